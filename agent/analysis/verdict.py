"""The verdict on one VM by the host's own analysis. Plain values, without numpy: the agent loads them always."""

import math
from dataclasses import dataclass
from typing import Literal

#: What a VM does. Unknown: no baseline, or no values. Steady: as at its baseline, or only its own load has changed.
#: Inflicting: it does more than at its baseline, and others suffer. Source: "Cloud White", section 4.
Behaviour = Literal["unknown", "steady", "inflicting", "victim"]

#: Behaviours by their number in arrays.
BEHAVIOURS: tuple[Behaviour, ...] = ("unknown", "steady", "victim", "inflicting")


@dataclass(frozen=True, slots=True)
class Degradation:
    """A VM's 95th percentile latency divided by the one without interference, with its interval.

    All three are NaN if it is not known: then `cannot_tell` is "no_model", "no_baseline", "baseline_young",
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
class Evidence:
    """One signal that supports a verdict: all three numbers are in the signal's own unit (docs/metrics.md).

    `expected`: at the VM's present load (and clock) without interference. `threshold`: an upper limit if it is above
    `expected`, else a lower one.
    """

    signal: str
    value: float
    expected: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One VM in one tick."""

    behaviour: Behaviour
    reason: str  # one line for people, with numbers
    since_ns: int  # the tick's clock when the behaviour began
    evidence: tuple[Evidence, ...] = ()
    culprits: tuple[str, ...] = ()  # UUIDs of the VMs that inflict, the strongest first (victims only)
    baseline_ticks: int = 0  # quiet ticks that the baseline was learnt from, exponentially aged
    baseline_ready: bool = False  # whether they are enough
    degradation: Degradation | None = None  # None: not estimated
