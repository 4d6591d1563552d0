"""Contention as it is reported to central: when it begins, and once per slot as long as it lasts.

Plain values and when to tell them; `agent.host_analysis` finds them. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from agent.analysis.recommendations import Recommendation
from collector.base import Reason

__all__ = ["MAX_SUSPECTS", "MAX_VICTIMS", "Trigger", "TriggerSuspect", "TriggerVictim", "Triggers"]

#: Named in one report; how many more there were is a number in it.
MAX_VICTIMS = 32
MAX_SUSPECTS = 16

_MAX_PENDING = 100  # that central was not sent yet; the uplink takes them with each window's end


@dataclass(frozen=True, slots=True)
class TriggerVictim:
    """A latency-sensitive VM above its threshold, mean + 2 std. CPI in cycles per instruction."""

    vm: str
    epoch: str
    name: str
    job: str
    cpi: float
    n_cpi: float
    threshold_cpi: float
    cpu_usage_cores: float


@dataclass(frozen=True, slots=True)
class TriggerSuspect:
    """A co-located VM that may be blamed; without a score there is the reason why."""

    vm: str
    epoch: str
    name: str
    job: str
    coefficient: float | None
    cpu_usage_cores: float
    score: float | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Trigger:
    """Contention over the slot that ends at `unix_ns`, with the evidence; all victims, all suspects, worst first."""

    unix_ns: int
    slot_ns: int
    mn_cpi: float
    mn_cpi_threshold: float
    coefficient_version: int
    victims: tuple[TriggerVictim, ...]
    suspects: tuple[TriggerSuspect, ...]
    since_unix_ns: int = 0
    recommendations: tuple[Recommendation, ...] = ()


class Triggers:
    """When to tell: at once where contention begins, then once per slot; never more often than that.

    Contention that comes and goes within a slot is one and the same: its slots overlap.
    """

    def __init__(self) -> None:
        self._since_unix_ns = 0
        self._told_unix_ns: int | None = None
        self._pending: deque[Trigger] = deque(maxlen=_MAX_PENDING)
        self.dropped = 0

    def note(self, trigger: Trigger | None, now_unix_ns: int) -> None:
        """Take what the last slot showed; None: no contention."""
        if trigger is None:
            self._since_unix_ns = 0
            return
        self._since_unix_ns = self._since_unix_ns or now_unix_ns
        told = self._told_unix_ns
        # A clock that was set back does not silence the report until it has caught up.
        if told is not None and told <= now_unix_ns < told + trigger.slot_ns:
            return
        self._told_unix_ns = now_unix_ns
        if len(self._pending) == _MAX_PENDING:
            self.dropped += 1
        self._pending.append(replace(trigger, since_unix_ns=self._since_unix_ns))

    def take(self) -> tuple[Trigger, ...]:
        """Return what is to be told since the last call."""
        found = tuple(self._pending)
        self._pending.clear()
        return found
