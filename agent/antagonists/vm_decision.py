"""The decision on one VM, and on the host. Plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.analysis.verdict import Degradation
from agent.detection.verdicts import Analysis, Held, SuspectView


def _first(suspects: Sequence[SuspectView]) -> SuspectView | None:
    return suspects[0] if suspects and suspects[0].is_blamed else None


@dataclass(frozen=True, slots=True)
class VmDecision:
    """What is held of one VM, and why.

    `since_ns`: monotonic, 0 where it is not known. `slow_down`, `found_by`, `suspects`: of a VM that suffers; suspects
    are those that inflict, or by the scores alone the first one, the likeliest first.
    """

    uuid: str
    verdict: Held
    reason: str
    since_ns: int = 0
    slow_down: Degradation | None = None
    found_by: tuple[Analysis, ...] = ()
    suspects: tuple[SuspectView, ...] = ()

    @property
    def suspect(self) -> SuspectView | None:
        """The first suspect; None where nobody is blamed."""
        return _first(self.suspects)


@dataclass(frozen=True, slots=True)
class HostDecision:
    """What is held of the host. `victims`: the slowest first; `suspects`: of what they suffer, the likeliest first."""

    victims: tuple[VmDecision, ...] = ()
    affected: int = 0
    inflicting: int = 0
    suspects: tuple[SuspectView, ...] = ()

    @property
    def suspect(self) -> SuspectView | None:
        """The first suspect; None where nobody is blamed."""
        return _first(self.suspects)
