"""What `whitepanda runtime evaluate` and `embeddings` show to people: tables and bars that fit 80 columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from central.cli.shared.outputs import grid
from central.plotting.figures import bar, signed_bar
from central.runtimes.embeddings import Neighbours

_WIDE, _NARROW, _SIDE = 20, 14, 10


def measures_shown(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Show errors and bounds, then coverage less what was promised, to both sides, and margins as bars."""
    largest = max((line["mape"] for line in result.values() if line["mape"] is not None), default=0.0)
    titles = (">beside", ">rows", ">error", ">by t_hat", "")
    table = grid(*titles, title="Error by number of co-runners")
    for count, line in result.items():
        means = [_mean(line, name) for name in ("mape", "mape_by_prediction")]
        table.add_row(count, f"{line['rows']:,}", *means, bar(line["mape"] or 0.0, largest, _NARROW))
    yield table
    table = grid(">beside", ">epsilon", ">covered", ">margin", ">by bound", title="Bounds")
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
        table.add_row(first, epsilon, *cells)
    yield table
    off = [(*one, one[2]["coverage"] - (1 - float(one[1]))) for one in bounds if one[2] is not None]
    if not off:
        return
    farthest = max(abs(difference) for *_, difference in off)
    dearest = max(bound["margin"] or 0.0 for _, _, bound, _ in off)
    table = grid(">beside", ">epsilon", ">points", title="Coverage less the promise, and margin")
    table.add_column(f"{'too few ':>{_SIDE}}│ too many", min_width=2 * _SIDE + 1, no_wrap=True)
    table.add_column("margin", min_width=_WIDE, no_wrap=True)
    for first, epsilon, bound, difference in off:
        drawn = signed_bar(difference, farthest, _SIDE)
        table.add_row(first, epsilon, f"{100 * difference:+.2f}", drawn, bar(bound["margin"] or 0.0, dearest, _WIDE))
    yield table


def neighbours_shown(found: Mapping[str, Neighbours]) -> Iterator[str]:
    """Show how often the nearest name is of the same group, for each kind of names."""
    for kind, one in found.items():
        yield (
            f"{kind}s: {one.names:,} in {one.groups:,} groups; the nearest other one is of the same group for "
            f"{one.share:.1%}, by chance for {one.chance:.1%} ({one.chance_low:.1%} to {one.chance_high:.1%}; "
            f"p = {one.p:.2g})"
        )


def _mean(line: Mapping[str, Any], name: str) -> str:
    """Return a mean with half of its interval, short enough for 80 columns."""
    value, half = line[name], line[f"{name}_half_width"]
    if value is None or half is None:
        return f"{_percent(value)} ± unknown"
    return f"{100 * value:.2f} ± {100 * half:.2f}%"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2%}"
