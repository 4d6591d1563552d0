"""Which events are counted together: groups within a budget of counters, the most telling events first.

Every group begins with cycles and instructions, so that each event has its own denominator, counted at the same time
(a quotient of counters that ran at different times is no quotient). What does not fit beside them in one group goes
into further groups, which are on in turns; that takes longer to tell but takes nothing from the guests' virtual PMUs.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collector.base import Reason
from collector.perf.encoding import Event
from collector.perf.events import CYCLES_AND_INSTRUCTIONS, Catalog

#: The events beside cycles and instructions, the most telling first. What a VM loses to its neighbours it loses in
#: the shared cache and on the way to memory: last-level misses say that, stalls on memory say what it costs. L2 misses
#: are the load that the VM puts on the shared cache. Total stalls complete the picture but correlate with CPI, which is
#: known already. Reference cycles tell frequency changes from load, slowly enough for a later turn where they are not
#: free; core stalls are mostly the VM's own code.
RANK = ("llc_misses", "memory_stall_cycles", "l2_misses", "total_stall_cycles", "reference_cycles", "core_stall_cycles")


@dataclass(frozen=True, slots=True)
class Budget:
    """The counters of a hardware thread and who else wants some.

    `programmable` counters take any event, `fixed` are the events that have a counter of their own; `reserved` are left
    to the guests' virtual PMUs, and the kernel's NMI watchdog has one.
    """

    programmable: int
    fixed: frozenset[str] = frozenset()
    reserved: int = 0
    watchdog: bool = False

    @property
    def beside_base(self) -> int:
        """How many programmable counters a group may use beside cycles and instructions."""
        base = sum(event.name not in self.fixed for event in CYCLES_AND_INSTRUCTIONS)
        return max(0, self.programmable - self.reserved - self.watchdog - base)


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups, in the order of their turns, and why an event is in none of them."""

    groups: tuple[tuple[Event, ...], ...]
    missing: Mapping[str, Reason]

    @property
    def layout(self) -> tuple[tuple[str, ...], ...]:
        """The names of each group's events."""
        return tuple(tuple(event.name for event in group) for group in self.groups)

    @property
    def events(self) -> int:
        """How many events, and so file descriptors, all groups together have."""
        return sum(len(group) for group in self.groups)


class Trial(enum.Enum):
    """What came of trying a group on the CPU: it counts, it waits for counters, or the kernel refuses it."""

    RUNS = "runs"
    WAITS = "waits"
    REFUSED = "refused"


def basic_plan(reason: Reason) -> Plan:
    """Return a plan of cycles and instructions only, all else missing for `reason`."""
    return Plan((CYCLES_AND_INSTRUCTIONS,), dict.fromkeys(RANK, reason))


def make_plan(events: Mapping[str, Event], beside_base: int, fixed: frozenset[str] = frozenset()) -> Plan:
    """Put events into groups. Pure.

    Args:
        events: what the CPU has beside cycles and instructions.
        beside_base: programmable counters that a group may use beside them; 0 leaves room for `fixed` ones only.
        fixed: events that have a counter of their own: they are in every group, at no cost.

    Returns:
        The plan; `missing` has the events for which there is no counter.

    """
    free = tuple(events[name] for name in RANK if name in events and name in fixed)
    wanted = [events[name] for name in RANK if name in events and name not in fixed]
    base = CYCLES_AND_INSTRUCTIONS + free
    if beside_base <= 0 or not wanted:
        return Plan((base,), {event.name: Reason.NO_COUNTER for event in wanted})
    starts = range(0, len(wanted), beside_base)
    return Plan(tuple((*base, *wanted[start : start + beside_base]) for start in starts), {})


def fit_plan(catalog: Catalog, budget: Budget, attempt: Callable[[Sequence[Event]], Trial]) -> Plan:
    """Make a plan and try it on the CPU, with fewer events per group until each group runs.

    The kernel refuses a group that can never be on as a whole; one that it takes but never runs asks for counters that
    others hold for good. Where even cycles and instructions wait at this moment, waiting says nothing of a group.

    Args:
        catalog: the events.
        budget: the counters.
        attempt: opens a group, lets it count for a moment and closes it.

    """
    missing = dict(catalog.missing)
    events: dict[str, Event] = {}
    for name, event in catalog.events.items():
        if attempt((event,)) is Trial.REFUSED:  # such as a hypervisor below us that offers only some
            missing[name] = Reason.NO_EVENT
        else:
            events[name] = event
    if not events:
        return Plan((CYCLES_AND_INSTRUCTIONS,), missing)
    waiting = attempt(CYCLES_AND_INSTRUCTIONS) is Trial.WAITS

    def fits(group: Sequence[Event]) -> bool:
        found = attempt(group)
        return found is Trial.RUNS or (found is Trial.WAITS and waiting)

    def fitted(fixed: frozenset[str]) -> Plan | None:
        for beside_base in range(min(budget.beside_base, len(events)), 0, -1):
            plan = make_plan(events, beside_base, fixed)
            if all(fits(group) for group in plan.groups):
                return plan
        return None

    fixed = budget.fixed & events.keys()
    plan = fitted(fixed)
    if plan is None and fixed:  # the fixed counters may not be to be had (a virtual machine's PMU)
        plan = fitted(frozenset())
    if plan is None:
        plan = make_plan(events, 0, fixed)
        plan = plan if fits(plan.groups[0]) else make_plan(events, 0)
    return Plan(plan.groups, {**missing, **plan.missing})
