"""How much slower a VM is than without interference, by a fitted model, with an interval, or why it cannot be told.

Source: "Cloud White", section 6. `whitepanda degradation fit` writes the model's file, JSON of this shape:

    {"format": 1,
     "target": "p95_latency_s",            what was measured; degradation = target / its mean in the group's baseline
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
                 "uses": [0, 3],           the features that the estimator needs; absent: all
                 "ranges": [{"column": 0, "form": "raw" | "relative", "low": 0.2, "high": 1.9, "scale": 1.0}, ...]}],
     "provenance": {...}}                  who fitted it to what; not read here

`values` of groups are in the order of `inputs` (features, then the rule's signals that are none), null where not known.
A model's last resort is the one of `models` with neither behaviour nor level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CPU_LEVELS",
    "FORMAT",
    "Estimates",
    "Estimator",
    "GroupBaseline",
    "Interval",
    "Model",
    "Range",
    "Rule",
    "SubModel",
    "group_key",
    "parse",
]

FORMAT = 1
#: The levels of CPU use at the baseline that the paper fits models for, as a share of the VM's vCPUs.
CPU_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)

Floats = NDArray[np.float64]


class Estimator(Protocol):
    """What predicts: `agent.analysis.glm.Glm`, `agent.analysis.trees.Trees`."""

    def predict(self, values: Floats, baseline: Floats) -> Floats:
        """Return the degradation, shape (n,), of features (n, k) and their baselines (n, k); NaN: cannot tell."""


class Interval(Protocol):
    """What bounds it: `agent.analysis.intervals.Intervals`."""

    def bounds(
        self, values: Floats, baseline: Floats, degradation: Floats
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return low, high, and whether the rows are like those it was calibrated with; each of shape (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """One estimate per row. Where `reasons` is not empty the numbers are NaN: it cannot be told.

    `degradation`, `low`, `high`: shape (n,), the target relative to the baseline (1 = as without interference).
    `low` and `high` alone are NaN where the model has no intervals.
    `reasons`: "" or "missing:<input>", "out_of_range:<input>", "no_baseline", "baseline_young", "unlike_training".
    `models`: the name of the model that each estimate is from, such as "gamma-inverse memory-bound 20 %".
    """

    degradation: Floats
    low: Floats
    high: Floats
    reasons: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Where a feature lay in training, in its own unit ("raw") or relative to its baseline."""

    column: int
    form: str
    low: float
    high: float
    scale: float


@dataclass(frozen=True, slots=True)
class Rule:
    """How a VM's model is chosen, from its signals at the baseline.

    Memory-bound: stalls on memory are at least `memory_bound_from` of all stalls. CPU level: the nearest there is.
    """

    memory_stalls: str
    total_stalls: str
    memory_bound_from: float
    cpu: str


@dataclass(frozen=True, slots=True, eq=False)
class SubModel:
    """One of a model's estimators, and which VMs it is for (None: any)."""

    name: str
    behaviour: str | None
    cpu_level: float | None
    estimator: Estimator
    intervals: Interval | None
    uses: tuple[int, ...]
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroupBaseline:
    """The baseline of a group of the training's rows: mean target, and mean of each input (NaN: not known)."""

    rows: int
    target: float
    values: Floats


def group_key(values: Iterable[object]) -> tuple[str, ...]:
    """Make the key of a group from its columns' values: 150000, 150000.0 and "150000" are the same."""
    raise NotImplementedError


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

    def baseline_for(self, key: Sequence[object]) -> GroupBaseline | None:
        """Return the baseline of a group, by the values of `group_by`; None: the model has no such group."""
        return self.groups.get(group_key(key))

    def predict(
        self, values: Floats, baseline: Floats, baseline_rows: NDArray[np.int64] | None = None
    ) -> Estimates:
        """Estimate the degradation of rows.

        Args:
            values: shape (n, len(inputs)), each in its own unit, NaN where not known.
            baseline: shape (n, len(inputs)): the same without interference, NaN where there is no baseline.
            baseline_rows: shape (n,): of how many ticks each baseline is the mean; None: of enough.

        """
        raise NotImplementedError


def parse(data: Mapping[str, Any]) -> Model:
    """Read a model file's content.

    Raises:
        ValueError: what is wrong with it and where, in one line.

    """
    raise NotImplementedError
