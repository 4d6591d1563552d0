"""What `whitepanda runtime evaluate` and `embeddings` print for people: tables and bars that fit 80 columns."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table as Grid

from central.plotting.figures import bar, signed_bar
from central.runtimes.embeddings import Neighbours
from whitepanda.common.cli import console

_WIDE, _NARROW, _SIDE = 20, 14, 10


def show_measures(result: Mapping[str, Any]) -> None:
    """Print errors and bounds, then coverage and margins as bars."""
    largest = max((line["mape"] for line in result.values() if line["mape"] is not None), default=0.0)
    grid = Grid(title="Error by number of co-runners", title_justify="left")
    for name in ("beside", "rows", "error", "by t_hat"):
        grid.add_column(name, justify="right")
    grid.add_column("")
    for count, line in result.items():
        means = [_mean(line, name) for name in ("mape", "mape_by_prediction")]
        drawn = bar(line["mape"] or 0.0, largest, _NARROW)
        grid.add_row(count, f"{line['rows']:,}", *means, drawn)
    console.print(grid)
    grid = Grid(title="Bounds", title_justify="left")
    for name in ("beside", "epsilon", "covered", "margin", "by bound"):
        grid.add_column(name, justify="right")
    bounds = [
        (count if place == 0 else "", epsilon, bound)
        for count, line in result.items()
        for place, (epsilon, bound) in enumerate(line["bounds"].items())
    ]
    for first, epsilon, bound in bounds:
        cells = ["-"] * 3
        if bound is not None:
            span = f"{100 * bound['coverage_low']:.2f} to {100 * bound['coverage_high']:.2f}"
            cells = [f"{_percent(bound['coverage'])} ({span})"]
            cells += [_mean(bound, name) for name in ("margin", "margin_by_bound")]
        grid.add_row(first, epsilon, *cells)
    console.print(grid)
    _show_bars([one for one in bounds if one[2] is not None])


def _show_bars(bounds: list[tuple[str, str, Any]]) -> None:
    """Draw coverage less what was promised, to both sides, and margins."""
    if not bounds:
        return
    off = [bound["coverage"] - (1 - float(epsilon)) for _, epsilon, bound in bounds]
    farthest = max(map(abs, off))
    dearest = max((bound["margin"] or 0.0) for _, _, bound in bounds)
    grid = Grid(title="Coverage less the promise, and margin", title_justify="left")
    for name in ("beside", "epsilon", "points"):
        grid.add_column(name, justify="right")
    grid.add_column(f"{'too few ':>{_SIDE}}│ too many", min_width=2 * _SIDE + 1, no_wrap=True)
    grid.add_column("margin", min_width=_WIDE, no_wrap=True)
    for (first, epsilon, bound), difference in zip(bounds, off, strict=True):
        margin = bar(bound["margin"] or 0.0, dearest, _WIDE)
        drawn = signed_bar(difference, farthest, _SIDE)
        grid.add_row(first, epsilon, f"{100 * difference:+.2f}", drawn, margin)
    console.print(grid)


def show_neighbours(found: Mapping[str, Neighbours]) -> None:
    """Print how often the nearest name is of the same group, for each kind of names."""
    for kind, one in found.items():
        console.print(
            f"{kind}s: {one.names:,} in {one.groups:,} groups; the nearest other one is of the same group for "
            f"{one.share:.1%}, by chance for {one.chance:.1%} ({one.chance_low:.1%} to {one.chance_high:.1%}; "
            f"p = {one.p:.2g})",
            soft_wrap=True,
        )


def _mean(line: Mapping[str, Any], name: str) -> str:
    """Return a mean with half of its interval, short enough for 80 columns."""
    value, half = line[name], line[f"{name}_half_width"]
    if value is None or half is None:
        return f"{_percent(value)} ± unknown"
    return f"{100 * value:.2f} ± {100 * half:.2f}%"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2%}"
