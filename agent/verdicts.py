"""What the host's own analysis (`agent.cloud_white`) says of a VM, plain values: for local API, /metrics, central.

Nothing here needs numpy: with the analysis off none of it is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BEHAVIOURS",
    "Behaviour",
    "Degradation",
    "Reasoning",
    "Shown",
    "SignalView",
    "Verdict",
    "VmEvent",
    "held_of",
    "runs",
]

#: The words of `agent.analysis.detector.Behaviour`.
Behaviour = Literal["unknown", "steady", "inflicting", "victim"]
BEHAVIOURS: tuple[Behaviour, ...] = ("unknown", "steady", "inflicting", "victim")


def held_of(behaviour: str, verdict: str) -> str:
    """Return the one word for a VM that two analyses judge: what people and Prometheus are told.

    A VM that suffers by either is a victim; else the host's word counts, and central's where the host has none.

    Args:
        behaviour: by the host's own analysis, of `BEHAVIOURS`; "unknown" also where it does not look.
        verdict: by central's statistics: "victim", "normal" or "unknown".

    """
    if "victim" in (behaviour, verdict):
        return "victim"
    return behaviour if behaviour != "unknown" else verdict


def runs(state: str) -> bool:
    """Whether a VM in this state of libvirt's words runs, so that a verdict is of now; "" is not known: it does."""
    return state in ("", "running")


@dataclass(frozen=True, slots=True)
class Degradation:
    """How many times longer the 95th percentile of a VM's latency is than without interference, with its interval.

    All three are NaN where it cannot be told: then `cannot_tell` is "no_model", "no_baseline", "baseline_young",
    "missing:SIGNAL", "out_of_range:SIGNAL", "unlike_training" (each in range, together like nothing that the model was
    fitted to) or "failed". `model` is the file's name; "" where there is none.
    """

    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    cannot_tell: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A signal that speaks for a verdict: what it is, what it would be undisturbed, the threshold it was held against.

    `expected`: at the VM's present load, as in `agent.analysis.behaviour.Evidence`.
    """

    signal: str
    value: float
    expected: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is held of a VM since `since_ns` (monotonic). `culprits` are UUIDs; `degradation` None: not asked for."""

    behaviour: Behaviour
    reason: str
    since_ns: int
    evidence: tuple[Shown, ...] = ()
    culprits: tuple[str, ...] = ()
    baseline_ticks: int = 0
    baseline_ready: bool = False
    degradation: Degradation | None = None


@dataclass(frozen=True, slots=True)
class SignalView:
    """A signal of the last tick beside what was learnt of it in quiet times; NaN where not known.

    `expected` is the same at the VM's present load: what a model's estimate is made from.
    """

    name: str
    value: float
    learnt: float
    expected: float


@dataclass(frozen=True, slots=True)
class Reasoning:
    """All that a verdict was made of, for `explain`; here the verdict always has its estimate."""

    detector: str
    verdict: Verdict
    signals: tuple[SignalView, ...]
    events: tuple[VmEvent, ...]


@dataclass(frozen=True, slots=True)
class VmEvent:
    """A VM began or ceased to suffer or to inflict. `lasted_ns`: how long it had behaved as `before`.

    `degradation` is that of the moment, or, where a victim is none any more, the worst while it was one.
    """

    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    unix_ns: int
    behaviour: Behaviour
    before: Behaviour
    lasted_ns: int
    reason: str
    evidence: tuple[Shown, ...] = ()
    degradation: Degradation | None = None
    culprits: tuple[str, ...] = ()
