"""The words for what is held of a VM, and what the host's own analysis (`cloud_white`) says of it, plain values.

Nothing here needs numpy: with the analysis off none of it is loaded.
"""

import math
from dataclasses import dataclass
from typing import Literal

from collector.base import Reason

#: The words of `agent.analysis.detectors.detector.Behaviour`.
Behaviour = Literal["unknown", "steady", "inflicting", "victim"]
#: The words of `agent.antagonists.decisions`: what is held of a VM by all analyses.
Held = Literal["unknown", "steady", "inflicting", "affected", "victim"]
VERDICTS: tuple[Held, ...] = ("unknown", "steady", "inflicting", "affected", "victim")
#: Which analysis found something: the host's own, or the one by the fleet's statistics.
Analysis = Literal["host", "fleet"]


def runs(state: str) -> bool:
    """Whether a VM in this state of libvirt's words runs, so that a verdict is of now; "" is not known: it does."""
    return state in ("", "running")


@dataclass(frozen=True, slots=True)
class Degradation:
    """How many times longer the 95th percentile of a VM's latency is than without interference, with its interval.

    All three are NaN where it is not known: then `cannot_tell` is "no_model", "no_baseline", "baseline_young",
    "missing:SIGNAL", "out_of_range:SIGNAL", "unlike_training" (each in range, but not together) or "failed". `model`:
    the file's name, "" for none; "cpi": the estimate is CPI over the job's mean, with the interval of mean -+ 2 std.
    """

    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    cannot_tell: str = ""
    model: str = ""

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate."""
        return math.isfinite(self.ratio) and math.isfinite(self.low)

    @property
    def is_of_cpi(self) -> bool:
        """Whether it is of the CPI, and not of latency."""
        return self.model == "cpi"


@dataclass(frozen=True, slots=True)
class Shown:
    """A signal that speaks for a verdict: what it is, what it would be undisturbed, the threshold it was held against.

    `expected`: at the VM's present load, as in `agent.analysis.detectors.behaviour.Evidence`.
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


@dataclass(frozen=True, slots=True)
class SuspectView:
    """A co-located VM that may be blamed, with its score; None has its reason.

    `inflicts`: the host's own analysis found it. `cpu_usage_cores` NaN: not known.
    """

    uuid: str
    name: str
    job: str
    cpu_usage_cores: float
    coefficient: float | None
    score: float | None
    reason: Reason
    epoch: str = ""
    inflicts: bool = False

    @property
    def is_blamed(self) -> bool:
        """Whether anything speaks against it."""
        return self.inflicts or (self.score is not None and self.score > 0)
