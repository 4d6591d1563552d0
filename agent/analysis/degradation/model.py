"""How much slower a VM is than without interference, by a fitted model, with an interval, or why that is not known.

Source: "Cloud White", section 6. `whitepanda degradation fit` writes the model's file, JSON of this shape:

    {"format": 1,
     "target": "p95_latency_s",            the measured signal; degradation = target / its mean in the group's baseline
     "nominal": 0.9,                       the intervals' nominal coverage
     "features": ["ipc", ...],             what estimators get, in this order (names of signals where the agent uses it)
     "rule": null or                       how a VM's model is chosen, from its baseline
         {"memory_stalls": "memory_stall_ratio", "total_stalls": "total_stall_ratio", "memory_bound_from": 0.5,
          "cpu": "guest_ratio"},
     "min_baseline_rows": 10,              a baseline of fewer ticks is too young
     "baselines": {"where": EXPR, "group_by": ["scenario", ...],
                   "groups": [{"key": ["a", "1"], "rows": 60, "target": 0.012, "values": [1.3, ...]}]},
     "choice": {"method", "split", "criterion", "held_out_by", "errors": [{"method", "split", "mean_ape", ...}, ...]},
     "models": [{"behaviour": null | "memory-bound" | "cpu-bound", "cpu_level": null | 0.1 ... 0.5, "rows": 425,
                 "estimator": {"kind": "glm" | "trees", ...}, "intervals": null or {...},
                 "scatter": null or        how far seconds scatter, see `SubModel.scatter`
                     {"factor": 1.1, "quiet": 0.05},
                 "uses": [0, 3],           the features that the estimator needs; absent: all
                 "ranges": [{"column": 0, "form": "raw" | "relative", "low": 0.2, "high": 1.9, "scale": 1.0}, ...]}],
     "provenance": {...}}                  its fit and data; not read here

`values` of groups are in the order of `inputs` (features, then the rule's other signals), null if not known.
The fallback is the one of `models` with neither behaviour nor level.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.glm import Glm
from agent.analysis.degradation.intervals import Intervals
from agent.analysis.degradation.model_numbers import (
    FEATURE,
    MAX_COLUMNS,
    NOMINAL,
    SCALE,
    TERM,
    number,
    numbers_from,
    read_all,
    reading,
    whole,
)
from agent.analysis.degradation.relative import relative
from agent.analysis.degradation.trees import Trees
from agent.analysis.signals import IDLE, Bools, Floats

FORMAT = 1
#: The levels of CPU use at the baseline that the paper fits models for, as a share of the VM's vCPUs, or its workers.
CPU_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)
#: A model for a level serves VMs whose use at the baseline is at most this far from it.
LEVEL_REACH = 0.1
MEMORY_BOUND = "memory-bound"
CPU_BOUND = "cpu-bound"
_SHARE = (0.0, 1.0)
_MAX_ROWS = 10**9
_REMEDY = "write it again with `whitepanda degradation fit`"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """One estimate per row. With a reason the numbers are NaN; without intervals in the model `low` and `high` are."""

    degradation: Floats  # shape (n,): the target relative to the baseline (1 = as without interference)
    low: Floats
    high: Floats
    reasons: tuple[str, ...]  # "", missing:INPUT, out_of_range:INPUT, no_baseline, baseline_young or unlike_training
    models: tuple[str, ...]  # the model that each estimate is from, such as "gamma-inverse memory-bound 20 %"


@dataclass(frozen=True, slots=True)
class Range:
    """A feature's range in training, in its own unit ("raw") or relative to its baseline."""

    column: int
    form: str
    low: float
    high: float
    scale: float


@dataclass(frozen=True, slots=True)
class Rule:
    """How a VM's model is chosen, from its signals at the baseline.

    Memory-bound: stalls on memory are at least `memory_bound_from` of all stalls. CPU level: the one nearest to the
    `used_share`.
    """

    memory_stalls: str
    total_stalls: str
    memory_bound_from: float
    cpu: str


@dataclass(frozen=True, slots=True, eq=False)
class SubModel:
    """One of a model's estimators, and its VMs (None: any).

    `scatter`: how far the seconds of one run lie from their mean, as standard deviations of the logarithm:
    a factor on the intervals' expected error under interference, and the deviation without.
    """

    name: str
    behaviour: str | None
    cpu_level: float | None
    estimator: Glm | Trees
    intervals: Intervals | None
    uses: tuple[int, ...]
    ranges: tuple[Range, ...]
    scatter: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupBaseline:
    """The baseline of a group of the training's rows: mean target, and mean of each input (NaN: not known)."""

    rows: int
    target: float
    values: Floats


def used_share(baseline: Floats, inputs: Sequence[str], cpu: str) -> Floats:
    """Return what share of its workers each VM uses at its baseline (n, len(inputs)), shape (n,), for CPU levels.

    A queue's delay follows the use of its servers: 1 - `vcpu_idle_ratio` if that is an input, else `cpu`, the rule's
    share of the vCPUs.
    """
    return 1.0 - baseline[:, inputs.index(IDLE)] if IDLE in inputs else baseline[:, inputs.index(cpu)]


def group_key(values: Iterable[object]) -> tuple[str, ...]:
    """Make the key of a group from its columns' values: 150000, 150000.0 and "150000" are the same, None is ""."""
    return tuple(map(_key_part, values))


def _key_part(value: object) -> str:
    text = "" if value is None else str(value)
    try:
        return f"{float(text):.15g}"
    except ValueError:
        return text


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as its file holds it. `inputs`: the columns of `values` and `baseline` in `predict`, in this order."""

    target: str
    nominal: float
    method: str
    features: tuple[str, ...]
    inputs: tuple[str, ...]
    rule: Rule | None
    min_baseline_rows: int
    baseline_where: str
    group_by: tuple[str, ...]
    groups: Mapping[tuple[str, ...], GroupBaseline]
    estimators: tuple[SubModel, ...]

    def predict(self, values: Floats, baseline: Floats, baseline_rows: Ints | None = None) -> Estimates:
        """Estimate the degradation of `values`, shape (n, len(inputs)), each in its own unit, NaN if not known.

        `baseline`: likewise, without interference. `baseline_rows`: shape (n,): of how many ticks each baseline is the
        mean; None: of enough.
        """
        count = len(values)
        numbers = np.full((3, count), math.nan)
        reasons = [""] * count
        chosen = self.choose(baseline)
        for index, part in enumerate(self.estimators):
            rows = np.flatnonzero(chosen == index)
            if len(rows):
                self._estimate(part, rows, values, baseline, numbers, reasons)
        if baseline_rows is not None:
            for row in np.flatnonzero(baseline_rows < self.min_baseline_rows):
                numbers[:, row] = math.nan
                if not reasons[row].startswith("missing") and reasons[row] != "no_baseline":
                    reasons[row] = "baseline_young"
        names = tuple(self.estimators[index].name for index in chosen)
        return Estimates(numbers[0], numbers[1], numbers[2], tuple(reasons), names)

    def choose(self, baseline: Floats) -> Ints:
        """Choose each row's model by its baseline (n, len(inputs)): places in `estimators`.

        Behaviour by the share of memory stalls, then the CPU level that is nearest to the `used_share`, within
        `LEVEL_REACH`; if either is not known or has no model, the one for any VM.
        """
        last_resort = next(i for i, e in enumerate(self.estimators) if e.behaviour is None and e.cpu_level is None)
        chosen = np.full(len(baseline), last_resort)
        rule = self.rule
        if rule is None or len(self.estimators) == 1:
            return chosen
        memory, total = (baseline[:, self.inputs.index(name)] for name in (rule.memory_stalls, rule.total_stalls))
        used = used_share(baseline, self.inputs, rule.cpu)
        levels = np.array([
            [e.cpu_level if e.behaviour == b and e.cpu_level is not None else math.inf for e in self.estimators]
            for b in (CPU_BOUND, MEMORY_BOUND)
        ])  # fmt: skip
        is_memory_bound = memory >= rule.memory_bound_from * total
        distances = np.abs(levels[is_memory_bound.astype(np.int64)] - np.nan_to_num(used)[:, None])
        nearest = distances.argmin(axis=1)
        is_near = ~np.isnan(memory + total + used) & (distances.min(axis=1) <= LEVEL_REACH)
        chosen[is_near] = nearest[is_near]
        return chosen

    def scatter(self, values: Floats, baseline: Floats, degradation: Floats) -> Floats:
        """Return how far measured seconds scatter around estimates within a run; intervals cover more than that.

        `values` and `baseline` as for `predict`; `degradation`: shape (n,), NaN: as without interference. Returns
        standard deviations of the logarithm, shape (n,); NaN if the model does not know.
        """
        found = np.full(len(values), math.nan)
        chosen = self.choose(baseline)
        count = len(self.features)
        for index, part in enumerate(self.estimators):
            rows = np.flatnonzero(chosen == index)
            if part.scatter is None or not len(rows):
                continue
            (factor, quiet), is_quiet = part.scatter, np.isnan(degradation[rows])
            found[rows[is_quiet]] = quiet
            estimated = rows[~is_quiet]
            if part.intervals is not None and len(estimated):
                found[estimated] = factor * part.intervals.expected_error(
                    values[estimated, :count], baseline[estimated, :count], degradation[estimated]
                )
        return found

    def _estimate(
        self, part: SubModel, rows: Ints, values: Floats, baseline: Floats, numbers: Floats, reasons: list[str]
    ) -> None:
        """Fill in `numbers` (degradation, low, high) and `reasons` of the rows that `part` is for."""
        uses = list(part.uses)
        is_missing = np.isnan(values[rows][:, uses])
        is_void = is_missing.any(axis=1) | np.isnan(baseline[rows][:, uses]).any(axis=1)
        for place in np.flatnonzero(is_void):
            missing = np.flatnonzero(is_missing[place])
            reasons[rows[place]] = f"missing:{self.features[uses[missing[0]]]}" if len(missing) else "no_baseline"
        usable = rows[~is_void]
        if not len(usable):
            return
        count = len(self.features)
        v, b = values[usable, :count], baseline[usable, :count]
        degradation = part.estimator.predict(v, b)
        outside, worst = _outside(part.ranges, v, b)
        low = high = np.full(len(usable), math.nan)
        is_like_training = np.ones(len(usable), np.bool_)
        if part.intervals is not None:
            low, high, is_like_training = part.intervals.bounds(v, b, degradation)
        is_known = np.isfinite(degradation) & ~outside & is_like_training
        numbers[:, usable[is_known]] = np.stack((degradation, low, high))[:, is_known]
        for place in np.flatnonzero(~is_known):
            of_range = worst[place] >= 0 and (outside[place] or not np.isfinite(degradation[place]))
            name = self.features[worst[place]] if worst[place] >= 0 else ""
            reasons[usable[place]] = f"out_of_range:{name}" if of_range else "unlike_training"


def _outside(ranges: Sequence[Range], values: Floats, baseline: Floats) -> tuple[Bools, Ints]:
    """Return whether each row leaves a range, and the column that is farthest out, -1 without ranges."""
    if not ranges:
        return np.zeros(len(values), np.bool_), np.full(len(values), -1)
    columns = np.array([r.column for r in ranges])
    low, high, scales = np.array([(r.low, r.high, r.scale) for r in ranges]).T
    raw, is_raw = values[:, columns], np.array([r.form == "raw" for r in ranges])
    seen = np.where(is_raw, raw, relative(raw, baseline[:, columns], scales))
    excess = np.maximum(low - seen, seen - high) / np.maximum(high - low, 1e-12)
    return excess.max(axis=1) > 0, columns[excess.argmax(axis=1)]


def parse(data: Mapping[str, Any]) -> Model:
    """Read a model file's content; ValueError says in one line what is wrong and where."""
    try:
        with reading("model"):
            return _parsed(data)
    except ValueError as error:
        raise ValueError(f"{error}; {_REMEDY}") from error


def _parsed(data: Mapping[str, Any]) -> Model:
    if data.get("format") != FORMAT:
        raise ValueError(f"format {data.get('format')} is not known (known: {FORMAT})")
    features = tuple(str(name) for name in data["features"])
    rule: Rule | None = None
    signals: tuple[str, ...] = ()
    if (given := data["rule"]) is not None:
        signals = memory, total, cpu = str(given["memory_stalls"]), str(given["total_stalls"]), str(given["cpu"])
        rule = Rule(memory, total, number(given, "memory_bound_from", _SHARE), cpu)
    inputs = tuple(dict.fromkeys((*features, *signals)))
    method, baselines = str(data["choice"]["method"]), data["baselines"]
    model = Model(
        target=str(data["target"]),
        nominal=number(data, "nominal", NOMINAL),
        method=method,
        features=features,
        inputs=inputs,
        rule=rule,
        min_baseline_rows=whole(data, "min_baseline_rows", 0, _MAX_ROWS),
        baseline_where=str(baselines["where"]),
        group_by=tuple(str(name) for name in baselines["group_by"]),
        groups={group_key(g["key"]): _group(g, len(inputs)) for g in baselines["groups"]},
        estimators=tuple(read_all("models", data["models"], lambda part: _part(part, method, len(features)))),
    )
    parts = model.estimators
    if not features or len(set(features)) != len(features):
        raise ValueError("features must be named, each once")
    if sum(part.behaviour is None and part.cpu_level is None for part in parts) != 1:
        raise ValueError("models needs exactly one for any behaviour and CPU level")
    if any((part.behaviour is None) != (part.cpu_level is None) for part in parts):
        raise ValueError("models: behaviour and cpu_level are given both or neither")
    return model


def _group(data: Mapping[str, Any], width: int) -> GroupBaseline:
    key, given = list(data["key"]), data["values"]
    if len(given) != width:
        raise ValueError(f"baselines: group {key} has {len(given)} values for {width} inputs")
    is_known = np.array([value is not None for value in given], np.bool_)
    values = np.full(width, math.nan)
    with reading(f"baselines: group {key}"):
        values[is_known] = numbers_from({"values": [one for one in given if one is not None]}, "values", FEATURE)
        target = math.nan if data["target"] is None else number(data, "target", SCALE)
        return GroupBaseline(whole(data, "rows", 0, _MAX_ROWS), target, values)


def _part(data: Mapping[str, Any], method: str, width: int) -> SubModel:
    behaviour, level = data["behaviour"], data["cpu_level"]
    if behaviour not in (None, MEMORY_BOUND, CPU_BOUND):
        raise ValueError(f"behaviour must be {MEMORY_BOUND} or {CPU_BOUND} (value {behaviour})")
    level = None if level is None else number(data, "cpu_level", _SHARE)
    uses = tuple(whole({"uses": column}, "uses", 0, MAX_COLUMNS) for column in data.get("uses", range(width)))
    ranges = tuple(read_all("ranges", data["ranges"], _range))
    if any(column >= width for column in (*uses, *(r.column for r in ranges))):
        raise ValueError(f"uses and ranges must name columns 0 to {width - 1}")
    estimator = _estimator(data["estimator"])
    columns = estimator.columns if isinstance(estimator, Glm) else estimator.terms.columns.tolist()
    if any(column >= width for column in columns):
        raise ValueError(f"an estimator's terms must name columns 0 to {width - 1}")
    intervals = None if data["intervals"] is None else Intervals.from_json(data["intervals"])
    scatter, limits = None, (0, TERM[1])
    if (given := data.get("scatter")) is not None:  # older files have none
        with reading("scatter"):
            scatter = number(given, "factor", limits), number(given, "quiet", limits)
    name = method if level is None else f"{method} {behaviour} {level:.0%}"
    return SubModel(name, behaviour, level, estimator, intervals, uses, ranges, scatter)


def _range(data: Mapping[str, Any]) -> Range:
    form, low = str(data["form"]), number(data, "low", FEATURE)
    if form not in ("raw", "relative"):
        raise ValueError(f"form must be raw or relative (value {form})")
    high, scale = number(data, "high", (low, FEATURE[1])), number(data, "scale", SCALE)
    return Range(whole(data, "column", 0, MAX_COLUMNS), form, low, high, scale)


def _estimator(data: Mapping[str, Any]) -> Glm | Trees:
    kind = data["kind"]
    if kind not in ("glm", "trees"):
        raise ValueError(f"estimator of unknown kind {kind}")
    return Glm.from_json(data) if kind == "glm" else Trees.from_json(data)
