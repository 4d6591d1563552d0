"""Figures of models of runtimes: how good they are, and maps of their embeddings (PNG)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from central.plotting.figures import Floats, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Groups with a colour of their own; smaller ones share grey.
_MOST_GROUPS = 20
_ROWS_OF_LEGEND = 10
_MARKERS = "osD^v<>PX*"


def plot_maps(path: Path, maps: Mapping[str, tuple[Floats, Sequence[str]]]) -> None:
    """Write a PNG with a panel for each map by its title: places of names, shape (n, 2), and the group of each.

    Raises what `save_figure` and `new_figure` do.
    """
    figure, panels = new_figure((6.2 * len(maps), 6.0), len(maps))
    for axes, (title, (places, groups)) in zip(np.atleast_1d(panels), maps.items(), strict=True):
        labels = np.asarray(groups)
        names, counts = np.unique(labels, return_counts=True)
        largest = names[np.argsort(-counts, kind="stable")][:_MOST_GROUPS]
        for number, name in enumerate(largest):
            here = places[labels == name]
            marker, colour = _MARKERS[number % len(_MARKERS)], f"C{number % 10}"
            axes.scatter(*here.T, s=16, marker=marker, color=colour, label=f"{name} ({len(here)})")
        rest = ~np.isin(labels, largest)
        if rest.any():
            axes.scatter(*places[rest].T, s=10, color="lightgray", label=f"others ({rest.sum()})")
        axes.set_title(title, fontsize=9)
        axes.set(xticks=[], yticks=[])
        shown = len(largest) + bool(rest.any())
        columns = -(-shown // _ROWS_OF_LEGEND) + 1
        axes.legend(fontsize=7, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.01), frameon=False)
    save_figure(figure, path)


def plot_measures(path: Path, result: Mapping[str, Any]) -> None:
    """Write a PNG of `central.runtimes.evaluate.measure`: errors by co-runners, coverage, and what bounds cost.

    Raises what `save_figure` and `new_figure` do.
    """
    figure, (errors, covered, margins) = new_figure((11.5, 3.8), 3)
    for place, (count, line) in enumerate(result.items()):
        if line["mape"] is not None:
            half = 100 * (line["mape_half_width"] or 0.0)
            errors.bar([place], [100 * line["mape"]], yerr=[half], capsize=3, width=0.6, color=f"C{place % 10}")
        bounds = [(float(word), bound) for word, bound in line["bounds"].items() if bound is not None]
        bounds.sort(key=lambda one: -one[0])
        _draw_bounds(covered, margins, bounds, f"beside {count}", place)
    errors.set_xticks(range(len(result)), [f"{count}\nn={line['rows']:,}" for count, line in result.items()])
    errors.set(xlabel="co-runners", ylabel="mean |predicted - t| / t, %, 95 % interval")
    covered.axhline(0, color="black", linewidth=0.8)
    promised = "promised: runs within the bound, %"
    covered.set(xlabel=promised, ylabel="covered less promised, points, 95 % interval")
    margins.set(xlabel=promised, ylabel="mean max(bound - t, 0) / t, %, 95 % interval")
    if margins.get_legend_handles_labels()[0]:
        margins.legend(fontsize=8)
    save_figure(figure, path)


def _draw_bounds(
    covered: Axes, margins: Axes, bounds: Sequence[tuple[float, Mapping[str, Any]]], label: str, place: int
) -> None:
    if not bounds:
        return
    promised = np.array([100 * (1 - epsilon) for epsilon, _ in bounds])
    off, low, high = (
        np.array([100 * bound[name] for _, bound in bounds]) - promised
        for name in ("coverage", "coverage_low", "coverage_high")
    )
    spans = np.maximum(np.stack([off - low, high - off]), 0.0)
    style: dict[str, Any] = {"color": f"C{place % 10}", "marker": "o", "markersize": 4, "label": label}
    # Beside each other where several numbers of co-runners have the same promise.
    covered.errorbar(promised + 0.12 * place, off, yerr=spans, linestyle="none", capsize=3, **style)
    known = [
        (at, 100 * bound["margin"], 100 * (bound["margin_half_width"] or 0.0))
        for at, (_, bound) in zip(promised, bounds, strict=True)
        if bound["margin"] is not None
    ]
    if known:
        at, cost, half = zip(*known, strict=True)
        margins.errorbar(at, cost, yerr=half, capsize=3, **style)
