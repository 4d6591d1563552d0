"""Figures of loading vectors and of placements: PNG (matplotlib, in the extra `train`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from central.figures import new_figure, save_figure
from central.placement.profiles import Profiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_added", "plot_profiles"]

_SHOWN = 40  # rows in a figure


def plot_profiles(path: Path, found: Profiles) -> None:
    """Write a PNG: what was measured of each job, with its interval.

    Raises:
        InputError: the file cannot be written.
        UnavailableError: matplotlib is not installed.

    """
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
    """Write a PNG: by how much over 1 a VM's time is stretched, per row, and by which resources.

    Args:
        path: the file to write.
        rows: label, and what each resource adds.

    Raises:
        InputError: the file cannot be written.
        UnavailableError: matplotlib is not installed.

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


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
