"""When jobs run on one machine, drawn for a terminal or as a PNG: the time each takes alone, and what is added."""

from pathlib import Path
from typing import Any

from central.plotting.figures import new_figure, save_figure

_ALONE, _ADDED = "█", "░"


def bars(start_s: Any, tau_s: Any, end_s: Any, width: int) -> list[str]:
    """Return one line of text per job, of at most `width` characters for all the time there is."""
    whole = max(float(end) for end in end_s)
    found = list[str]()
    for start, tau, end in zip(start_s, tau_s, end_s, strict=True):
        begin, alone, last = (round(width * at / whole) for at in (start, start + tau, end))
        found.append(" " * begin + _ALONE * max(alone - begin, 1) + _ADDED * (last - max(alone, begin + 1)))
    return found


def plot(path: Path, names: Any, start_s: Any, tau_s: Any, end_s: Any) -> None:
    """Write a PNG of the same. Raises what `save_figure` and `new_figure` do."""
    rows = list(range(len(names)))
    figure, axes = new_figure((8, 1.2 + 0.4 * len(rows)))
    axes.barh(rows, tau_s, left=start_s, color="tab:blue", label="alone")
    alone = [start + tau for start, tau in zip(start_s, tau_s, strict=True)]
    added = [end - at for end, at in zip(end_s, alone, strict=True)]
    axes.barh(rows, added, left=alone, color="tab:orange", label="added by the others")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    # Next to the axes: inside it would lie over the last bars.
    figure.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    save_figure(figure, path)
