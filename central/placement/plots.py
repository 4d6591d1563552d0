"""Figures of loading vectors and of placements: PNG (matplotlib, in the extra `train`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from central.models.groups import Floats
from central.placement.profiles import Profiles
from central.plotting.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_SHOWN = 40  # rows in a figure
_PAIRS_LOW, _PAIRS_HIGH, _PAIRS_TICKS = 0.7, 5.0, (0.7, 1, 1.5, 2, 3, 4, 5)


def plot_profiles(path: Path, found: Profiles) -> None:
    """Write a PNG: what was measured of each job, with its interval. Raises what `save_figure` and `new_figure` do."""
    rows = [(f"{job.job}: {name}", each) for job in found.jobs for name, each in job.measured.items()]
    rows = rows[:_SHOWN]
    figure, axes = new_figure((7.5, 1.2 + 0.28 * len(rows)))
    for place, (_, each) in enumerate(rows):
        if each.low is not None and each.high is not None:
            axes.plot([each.low, each.high], [place, place], color="tab:blue", linewidth=1.4)
        axes.plot([each.value], [place], "o", color="tab:blue", markersize=4)
    _name_rows(axes, [name for name, _ in rows])
    axes.set_xlabel(f"from {found.kind}, with 95 % intervals")
    save_figure(figure, path)


def plot_added(path: Path, rows: Sequence[tuple[str, Mapping[str, float]]]) -> None:
    """Write a PNG: each row's dilation above 1, by resource.

    `rows` are a label and each resource's part. Raises what `save_figure` and `new_figure` do.
    """
    shown = rows[:_SHOWN]
    figure, axes = new_figure((7.5, 1.2 + 0.28 * len(shown)))
    places, left = list(range(len(shown))), [0.0] * len(shown)
    for name in dict.fromkeys(name for _, parts in shown for name in parts):
        widths = [parts.get(name, 0.0) for _, parts in shown]
        axes.barh(places, widths, left=left, label=name)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    _name_rows(axes, [label for label, _ in shown])
    axes.set_xlabel("dilation over 1")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=7)
    save_figure(figure, path)


def plot_pairs(path: Path, measured: Floats, predicted: Mapping[str, Floats]) -> None:
    """Write a PNG: measured slow-downs of pairs against predicted ones, from 0.7 to 5, a panel for each model.

    Raises what `save_figure` and `new_figure` do.
    """
    figure, panels = new_figure((4.5 * len(predicted), 4.7), len(predicted))
    bins = np.geomspace(_PAIRS_LOW, _PAIRS_HIGH, 160)
    for axes, (name, values) in zip(np.atleast_1d(panels), predicted.items(), strict=True):
        least, most = np.minimum(measured, values), np.maximum(measured, values)
        beyond = float(((least < _PAIRS_LOW) | (most > _PAIRS_HIGH)).mean())
        axes.hist2d(measured, values, bins=(bins, bins), norm="log", cmap="viridis")
        axes.plot((_PAIRS_LOW, _PAIRS_HIGH), (_PAIRS_LOW, _PAIRS_HIGH), color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", aspect="equal", xlabel="measured slow-down", ylabel="predicted")
        axes.set_title(f"{name}\n{len(measured):,} pairs, {beyond:.1%} beyond the frame", fontsize=9)
        # Default ticks on a log axis are powers of ten; this range has only one.
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([], minor=True)
            axis.set_ticks(_PAIRS_TICKS, [f"{tick:g}" for tick in _PAIRS_TICKS])
    save_figure(figure, path)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
