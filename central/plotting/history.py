"""Metrics of VMs over time as a PNG: below each other a picture per metric, in it a line per VM with its range."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from central.plotting.figures import Floats, new_figure, save_figure

_COLOURS = 10
_SHOWN = 20  # VMs in the legend


class Line(NamedTuple):
    """One VM's steps of one metric; NaN where nothing is known."""

    name: str
    mean: Floats
    low: Floats
    high: Floats


def plot(path: Path, start_s: Floats, pictures: Sequence[tuple[str, Sequence[Line]]]) -> None:
    """Write a PNG: `pictures` are titles and their lines, at these times since 1970. Raises as `save_figure`."""
    figure, found = new_figure((9, 1 + 2.2 * len(pictures)), rows=len(pictures))
    times = np.array([datetime.fromtimestamp(at, UTC) for at in start_s.tolist()])
    for axes, (title, lines) in zip(np.ravel(found), pictures, strict=True):
        for number, line in enumerate(lines):
            colour = f"C{number % _COLOURS}"
            axes.plot(times, line.mean, color=colour, linewidth=1.2, label=line.name if number < _SHOWN else None)
            axes.fill_between(times, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(title, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
    names, texts = np.ravel(found)[0].get_legend_handles_labels()
    figure.legend(names, texts, loc="outside right upper", fontsize=7, frameon=False)
    np.ravel(found)[-1].set_xlabel("UTC", fontsize=8)
    save_figure(figure, path)
