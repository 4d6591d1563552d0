"""Fit a degradation model to runs: rivals, the choice among them, intervals, and the file that the agent evaluates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.glm import LINKS
from agent.analysis.degradation.model import (
    CPU_BOUND,
    CPU_LEVELS,
    FORMAT,
    LEVEL_REACH,
    MEMORY_BOUND,
    Model,
    parse,
    used_share,
)
from agent.analysis.degradation.relative import relative
from central.degradation import glm
from central.degradation.glm import FitError
from central.degradation.runs import Runs
from central.models.groups import Floats

#: What the choice among the models of behaviours and CPU levels needs of a VM's baseline: see `degradation.Rule`.
RULE_SIGNALS = ("memory_stall_ratio", "total_stall_ratio", "guest_ratio")
#: Rows, baselines apart, that a behaviour and CPU level needs for a model of its own.
MIN_CELL_ROWS = 100
#: How far outside training's values, as a share of their span, a feature may lie. Regressions continue in a straight
#: line; trees stay constant, and their intervals find out by themselves which rows are unlike training.
RANGE_MARGIN = {"glm": 0.1, "trees": 0.5}
_SPLIT = "-split"
_MAX_MIN_BASELINE_ROWS = 10


class Rival(NamedTuple):
    """One way to make a model. `split`: per behaviour and CPU level, where there are enough rows of it."""

    name: str
    fit: Callable[[Floats, Floats, Floats], dict[str, Any]]
    split: bool = False


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a model is fitted."""

    methods: tuple[str, ...] = ()  # names of rivals, empty for all
    nominal: float = 0.9
    seed: int = 0
    memory_bound_from: float = 0.5
    baseline_rows: bool = True  # fit to baseline rows too (their degradation is about 1)
    min_baseline_rows: int = 0  # 0: half the median number of baseline rows per group, at most 10
    held_out_sets: int = 8
    calibrate_by: str = "run"  # or "scenario": intervals cover runs of training's scenarios, or new scenarios
    provenance: dict[str, Any] = field(default_factory=dict)


def rivals(features: Sequence[str], options: FitOptions) -> list[Rival]:
    """Return the rivals in `options.methods`, all where that is empty. Raises ValueError if a method is not known."""
    from central.degradation import trees  # noqa: PLC0415 - the extra `train`

    known = [Rival(f"gamma-{link}", partial(glm.fit, names=features, link=link)) for link in LINKS]
    known += [Rival(rival.name + _SPLIT, rival.fit, split=True) for rival in known]
    known += [Rival(name, fit) for name, fit in trees.rivals(features, options.seed).items()]
    names = [rival.name for rival in known]
    unknown = next((method for method in options.methods if method not in names), None)
    if unknown is not None:
        raise ValueError(f"no method {unknown}; known: {', '.join(names)}")
    return [rival for rival in known if not options.methods or rival.name in options.methods]


def fit_parts(runs: Runs, rival: Rival, options: FitOptions) -> list[dict[str, Any]]:
    """Fit a rival: the `models` of a model file, without ranges and intervals.

    Raises FitError if it cannot be fitted to these rows, or has nothing to split.
    """
    fitted = runs if options.baseline_rows else runs.take(~runs.is_baseline)
    parts = [_part(fitted, rival, None, None)]
    if not rival.split:
        return parts
    behaviours, levels = cells(runs, options)
    for behaviour, level in product((MEMORY_BOUND, CPU_BOUND), CPU_LEVELS):
        is_in = (behaviours == behaviour) & (levels == level)
        if int((is_in & ~runs.is_baseline).sum()) < MIN_CELL_ROWS:
            continue
        wanted = is_in if options.baseline_rows else is_in & ~runs.is_baseline
        try:
            parts.append(_part(runs.take(wanted), rival, behaviour, level))
        except FitError:
            continue  # the model for any VM serves this cell
    if len(parts) == 1:
        raise FitError(f"no behaviour and CPU level has {MIN_CELL_ROWS} rows and a model of its own")
    return parts


def cells(runs: Runs, options: FitOptions) -> tuple[NDArray[np.str_], Floats]:
    """Return each row's behaviour ("": not known) and CPU level (NaN), by the rule that the agent applies."""
    behaviours = np.full(len(runs.values), "", dtype="<U16")
    levels = np.full(len(runs.values), np.nan)
    inputs = runs.columns.inputs
    if not set(RULE_SIGNALS) <= set(inputs):
        return behaviours, levels
    memory, total = (runs.baseline[:, inputs.index(name)] for name in RULE_SIGNALS[:2])
    used = used_share(runs.baseline, inputs, RULE_SIGNALS[2])
    known = ~np.isnan(memory + total + used)
    memory_bound = memory >= options.memory_bound_from * total
    behaviours[known & memory_bound] = MEMORY_BOUND
    behaviours[known & ~memory_bound] = CPU_BOUND
    grid = np.array(CPU_LEVELS)
    distance = np.abs(np.where(known, used, 0.0)[:, None] - grid)
    nearest = distance.argmin(axis=1)
    is_near = known & (distance.min(axis=1) <= LEVEL_REACH)
    levels[is_near] = grid[nearest[is_near]]
    return behaviours, levels


def rows_of_parts(
    parts: list[dict[str, Any]], runs: Runs, options: FitOptions
) -> list[tuple[dict[str, Any], NDArray[np.bool_]]]:
    """Return each part with a mask of the rows of its behaviour and CPU level; all rows for the model of any VM."""
    behaviours, levels = cells(runs, options)
    every = np.ones(len(levels), dtype=np.bool_)
    return [
        (part, every if (kind := part["behaviour"]) is None else (behaviours == kind) & (levels == part["cpu_level"]))
        for part in parts
    ]


def _part(runs: Runs, rival: Rival, behaviour: str | None, level: float | None) -> dict[str, Any]:
    estimator = rival.fit(*runs.features, runs.degradation)
    part: dict[str, Any] = {"behaviour": behaviour, "cpu_level": level, "rows": len(runs.values)}
    part |= {"estimator": estimator, "intervals": None, "ranges": []}
    if estimator["kind"] == "glm":
        # A constant alone uses none; its intervals still use the features.
        part["uses"] = [term["column"] for term in estimator["terms"]] or list(range(len(runs.columns.features)))
    elif "uses" in estimator:
        part["uses"] = estimator["uses"]
    return part


def with_ranges(parts: list[dict[str, Any]], runs: Runs, options: FitOptions) -> list[dict[str, Any]]:
    """Return the parts with the ranges of what they use: relative to the baseline for regressions, else raw."""
    scales = glm.scales_of(runs.features[0])
    result = []
    for part, is_in in rows_of_parts(parts, runs, options):
        values, baseline = runs.take(is_in).features
        kind = part["estimator"]["kind"]
        form, seen = ("relative", relative(values, baseline, scales)) if kind == "glm" else ("raw", values)
        ranges = []
        for column in part.get("uses", range(len(scales))):
            low, high = float(seen[:, column].min()), float(seen[:, column].max())
            margin = RANGE_MARGIN[kind] * (high - low)
            span = {"low": low - margin, "high": high + margin}
            ranges.append({"column": column, "form": form, **span, "scale": float(scales[column])})
        result.append({**part, "ranges": ranges})
    return result


def document(runs: Runs, parts: list[dict[str, Any]], choice: dict[str, Any], options: FitOptions) -> dict[str, Any]:
    """Return a model file's content: see `agent.analysis.degradation.model`."""
    columns = runs.columns
    sizes = [g.rows for g in runs.groups.values()]
    young = options.min_baseline_rows or max(1, min(_MAX_MIN_BASELINE_ROWS, int(np.median(sizes) / 2)))
    rule: dict[str, Any] = dict(zip(("memory_stalls", "total_stalls", "cpu"), RULE_SIGNALS, strict=True))
    rule["memory_bound_from"] = options.memory_bound_from
    # The rule's signals are inputs only where there is a rule.
    inputs = dict.fromkeys((*columns.features, *(RULE_SIGNALS if len(parts) > 1 else ())))
    return {
        "format": FORMAT,
        "target": columns.target,
        "nominal": options.nominal,
        "features": list(columns.features),
        "rule": rule if len(parts) > 1 else None,
        "min_baseline_rows": young,
        "baselines": {
            "where": columns.baseline_where,
            "group_by": list(columns.group_by),
            "groups": [
                {
                    "key": list(key),
                    "rows": group.rows,
                    "target": _number(group.target),
                    "values": [_number(group.values[columns.inputs.index(name)]) for name in inputs],
                }
                for key, group in sorted(runs.groups.items())
            ],
        },
        "choice": choice,
        "models": parts,
        "provenance": {
            **options.provenance,
            "rows": dict(runs.counts),
            "scenario": columns.scenario,
            "time": columns.time,
            "where": columns.where,
            "baseline_rows": options.baseline_rows,
            "seed": options.seed,
            "features_without_values": list(runs.left_out_features),
        },
    }


def model_of(runs: Runs, parts: list[dict[str, Any]], options: FitOptions) -> Model:
    """Return the run-time model of parts, for the rows of `runs`: errors are then measured on the agent's own code."""
    return parse(document(runs, parts, {"method": ""}, options))


def inputs_of(runs: Runs, model: Model) -> tuple[Floats, Floats]:
    """Return the rows' values and baselines as the model wants them, each of shape (n, len(model.inputs))."""
    places = [runs.columns.inputs.index(name) for name in model.inputs]
    return runs.values[:, places], runs.baseline[:, places]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
