"""The decision on a VM and on the host, with the views that `explain` and suspects show. Plain values.

Nothing here needs numpy: with the analysis off none of it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent.analysis.verdict import Degradation, Verdict
from collector.base import Reason

#: The verdict of all analyses on a VM, made by `agent.antagonists.decide_victims`.
VmVerdict = Literal["unknown", "steady", "inflicting", "affected", "victim"]
VERDICTS: tuple[VmVerdict, ...] = ("unknown", "steady", "inflicting", "affected", "victim")
#: The same as numbers of the protocol's `Behaviour`, in windows.
BEHAVIOUR_CODES: dict[VmVerdict, int] = {"unknown": 1, "steady": 2, "inflicting": 3, "victim": 4, "affected": 5}
#: Which analysis found something: the host's own, or the one by the fleet's statistics.
Analysis = Literal["host", "fleet"]


def is_running(state: str) -> bool:
    """Whether a VM in this state (libvirt's word) runs; one in an unknown state, "", counts as running."""
    return state in ("", "running")


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
    """The facts behind a verdict, for `explain`; here the verdict always has its estimate."""

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


def _first(suspects: Sequence[SuspectView]) -> SuspectView | None:
    return suspects[0] if suspects and suspects[0].is_blamed else None


@dataclass(frozen=True, slots=True)
class VmDecision:
    """The decision on one VM, and why.

    `since_ns`: monotonic, 0 where it is not known. `slow_down`, `found_by`, `suspects`: of a VM that suffers; suspects
    are those that inflict, or by the scores alone the first one, the likeliest first.
    """

    uuid: str
    verdict: VmVerdict
    reason: str
    since_ns: int = 0
    slow_down: Degradation | None = None
    found_by: tuple[Analysis, ...] = ()
    suspects: tuple[SuspectView, ...] = ()

    @property
    def suspect(self) -> SuspectView | None:
        """The first suspect; None where no VM is blamed."""
        return _first(self.suspects)


@dataclass(frozen=True, slots=True)
class HostDecision:
    """The decision on the host. `victims`: the slowest first; `suspects`: of their slow-down, the likeliest first."""

    victims: tuple[VmDecision, ...] = ()
    affected: int = 0
    inflicting: int = 0
    suspects: tuple[SuspectView, ...] = ()

    @property
    def suspect(self) -> SuspectView | None:
        """The first suspect; None where no VM is blamed."""
        return _first(self.suspects)
