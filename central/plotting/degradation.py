"""Measured against estimated degradation, like the paper's Fig. 8."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from central.plotting.figures import Floats, new_figure, save_figure

MAX_PANELS = 12
_COLUMNS = 3


def plot(path: Path, measured: Floats, estimated: Floats, panels: NDArray[np.str_], title: str) -> None:
    """Write a PNG: one panel per name in `panels` (the first `MAX_PANELS`), points, and the diagonal.

    Arrays have shape (n,); rows with an estimate of NaN are not drawn. Raises what `save_figure` and `new_figure` do.
    """
    known = np.isfinite(estimated)
    names = np.unique(panels)[:MAX_PANELS]
    columns = min(len(names), _COLUMNS)
    rows = -(-len(names) // columns)
    figure, grid = new_figure((4 * columns, 3.6 * rows), columns, rows)
    places = np.atleast_1d(grid).ravel()
    for empty in places[len(names) :]:
        empty.remove()
    for name, axes in zip(names, places, strict=False):
        here = known & (panels == name)
        axes.scatter(measured[here], estimated[here], s=8, alpha=0.5, edgecolors="none")
        both = np.concatenate((measured[here], estimated[here]))
        if len(both):
            ends = (float(both.min()), float(both.max()))
            axes.plot(ends, ends, color="black", linewidth=0.8)
            if ends[1] > 10 * max(ends[0], 1e-9):
                axes.set(xscale="log", yscale="log")
        axes.set_title(str(name) or "all rows", fontsize=9)
        axes.set(xlabel="measured degradation", ylabel="estimated degradation")
    figure.suptitle(title)
    save_figure(figure, path)
