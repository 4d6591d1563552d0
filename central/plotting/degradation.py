"""Measured against estimated degradation, like the paper's Fig. 8."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from central.plotting.figures import blank_figure, save_figure

MAX_PANELS = 12
_COLUMNS = 3


def plot(
    path: Path, measured: NDArray[np.float64], estimated: NDArray[np.float64], panels: NDArray[np.str_], title: str
) -> None:
    """Write a PNG: one panel per name in `panels` (the first `MAX_PANELS`), points, and the diagonal.

    Arrays have shape (n,); rows with an `estimated` of NaN are not drawn.

    Raises:
        InputError: the file cannot be written.
        UnavailableError: matplotlib is not installed.

    """
    known = np.isfinite(estimated)
    names = np.unique(panels)[:MAX_PANELS]
    columns = min(len(names), _COLUMNS)
    rows = -(-len(names) // columns)
    figure = blank_figure((4 * columns, 3.6 * rows))
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, columns, number)
        here = known & (panels == name)
        axes.scatter(measured[here], estimated[here], s=8, alpha=0.5, edgecolors="none")
        both = np.concatenate((measured[here], estimated[here]))
        if len(both):
            ends = (float(both.min()), float(both.max()))
            axes.plot(ends, ends, color="black", linewidth=0.8)
            if ends[1] > 10 * max(ends[0], 1e-9):
                axes.set_xscale("log")
                axes.set_yscale("log")
        axes.set_title(str(name) or "all rows", fontsize=9)
        axes.set_xlabel("measured degradation")
        axes.set_ylabel("estimated degradation")
    figure.suptitle(title)
    save_figure(figure, path)
