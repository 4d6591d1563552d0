"""Reports of victims to central: at the beginning, once per slot, and at the end. Nothing here reads a clock."""

from dataclasses import dataclass, replace

from agent.analysis.advice.recommendations import Recommendation
from agent.analysis.verdict import Degradation
from agent.detection.decision_types import Analysis, SuspectView

#: Named in one report; how many more there were is a number in it.
MAX_VICTIMS = 32
MAX_SUSPECTS = 16

_CHANGE_NS = 60 * 10**9  # a change of victims is reported no sooner than this after the last report


@dataclass(frozen=True, slots=True)
class TriggerVictim:
    """A victim. CPI over the slot in cycles per instruction; NaN if a number is not known.

    `threshold_cpi`: mean + 2 std of its job. `suspect`: UUID of its first suspect, "" if no VM is blamed.
    """

    vm: str
    epoch: str
    name: str
    job: str
    cpi: float
    n_cpi: float
    threshold_cpi: float
    cpu_usage_cores: float
    slow_down: Degradation | None = None
    found_by: tuple[Analysis, ...] = ()
    suspect: str = ""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The victims of this host at `unix_ns` with the evidence: the slowest first, suspects the likeliest first.

    `ended`: no victim is left. `affected`: how many VMs seem to suffer without being victims.
    """

    unix_ns: int
    slot_ns: int
    mn_cpi: float
    mn_cpi_threshold: float
    coefficient_version: int
    victims: tuple[TriggerVictim, ...]
    suspects: tuple[SuspectView, ...]
    since_unix_ns: int = 0
    recommendations: tuple[Recommendation, ...] = ()
    found_by: tuple[Analysis, ...] = ()
    affected: int = 0
    ended: bool = False


class Triggers:
    """Decides when to report: immediately at a beginning, an end, or a new first suspect; else once per slot."""

    def __init__(self) -> None:
        self._last: Trigger | None = None

    @property
    def is_open(self) -> bool:
        """Whether victims were reported, and the end not yet."""
        return self._last is not None

    def note(self, now: Trigger) -> Trigger | None:
        """Take the present state of the host; return the report if one is due."""
        last = self._last
        if last is None:
            self._last = replace(now, since_unix_ns=now.unix_ns) if now.victims else None
            return self._last
        if not now.victims:
            self._last = None
            return replace(now, suspects=(), since_unix_ns=last.since_unix_ns, ended=True)
        # A clock that was set back does not silence the host until it has caught up.
        passed_ns = now.unix_ns - last.unix_ns
        others = {one.vm for one in now.victims} != {one.vm for one in last.victims}
        is_news = _first(now) != _first(last) or (others and passed_ns >= _CHANGE_NS)
        if not is_news and 0 <= passed_ns < now.slot_ns:
            return None
        self._last = replace(now, since_unix_ns=min(last.since_unix_ns, now.unix_ns))
        return self._last


def _first(trigger: Trigger) -> str:
    return trigger.suspects[0].uuid if trigger.suspects and trigger.suspects[0].is_blamed else ""
