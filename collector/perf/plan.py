"""Which events are counted together: groups within a budget of counters, the most useful events first.

Every group begins with cycles and instructions, so that each event has a denominator that was counted at the same time.
Further groups are on in turns; that measures less often but takes nothing from the guests' virtual PMUs.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collector.base import Reason
from collector.perf.encoding import Event
from collector.perf.events import CYCLES_AND_INSTRUCTIONS, Catalog

#: The other events, the most useful first: last-level misses show contention for cache and memory, stalls on memory its
#: cost, L2 misses the VM's load on the shared cache. Total stalls correlate with CPI, which is known already. Reference
#: cycles separate slow frequency changes from load; core stalls are mostly the VM's own code.
RANK = ("llc_misses", "memory_stall_cycles", "l2_misses", "total_stall_cycles", "reference_cycles", "core_stall_cycles")


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
    """The result of trying a group on the CPU: it counts, it waits for counters, or the kernel refuses it."""

    RUNS = "runs"
    WAITS = "waits"
    REFUSED = "refused"


def basic_plan(reason: Reason) -> Plan:
    """Return a plan of cycles and instructions only, all else missing for `reason`."""
    return Plan((CYCLES_AND_INSTRUCTIONS,), dict.fromkeys(RANK, reason))


def make_plan(events: Mapping[str, Event], beside: int, fixed: frozenset[str] = frozenset()) -> Plan:
    """Put the CPU's events into groups; `missing` of the plan are those without a counter. Pure.

    A group may use `beside` programmable counters beside cycles and instructions (0 leaves room for `fixed` events
    only). `fixed` events have a counter of their own: they are in every group, at no cost.
    """
    free = tuple(events[name] for name in RANK if name in events and name in fixed)
    wanted = [events[name] for name in RANK if name in events and name not in fixed]
    base = CYCLES_AND_INSTRUCTIONS + free
    if beside <= 0 or not wanted:
        return Plan((base,), {event.name: Reason.NO_COUNTER for event in wanted})
    starts = range(0, len(wanted), beside)
    return Plan(tuple((*base, *wanted[start : start + beside]) for start in starts), {})


def beside_base(catalog: Catalog, reserved: int, *, watchdog: bool) -> int:
    """Return how many programmable counters a group may use beside cycles and instructions.

    `reserved` ones are left to the guests' virtual PMUs, and the kernel's NMI watchdog takes one.
    """
    base = sum(event.name not in catalog.fixed for event in CYCLES_AND_INSTRUCTIONS)
    return max(0, catalog.programmable - reserved - watchdog - base)


def fit_plan(catalog: Catalog, most_beside: int, attempt: Callable[[Sequence[Event]], Trial]) -> Plan:
    """Make a plan and try it on the CPU, with fewer and fewer events per group until each group runs.

    A group has at most `most_beside` events as well as cycles and instructions, see `beside_base`.
    The kernel refuses a group that can never be on as a whole. A group that it takes but never runs needs counters that
    others hold, unless even cycles and instructions wait now. `attempt` opens a group, lets it count for a moment and
    closes it.
    """
    missing = dict(catalog.missing)
    events: dict[str, Event] = {}
    for name, event in catalog.events.items():
        if attempt((event,)) is Trial.REFUSED:  # such as by a hypervisor that offers only some
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
        plans = (make_plan(events, beside, fixed) for beside in range(min(most_beside, len(events)), 0, -1))
        return next((plan for plan in plans if all(map(fits, plan.groups))), None)

    fixed = catalog.fixed & events.keys()
    plan = fitted(fixed)
    if plan is None and fixed:  # the fixed counters may be unavailable (a virtual machine's PMU)
        plan = fitted(frozenset())
    if plan is None:
        plan = make_plan(events, 0, fixed)
        plan = plan if fits(plan.groups[0]) else make_plan(events, 0)
    return Plan(plan.groups, {**missing, **plan.missing})
