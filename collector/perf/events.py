"""The events that are counted, in the kernel's generic encodings (linux/perf_event.h)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CONTEXT_SWITCHES",
    "CYCLES",
    "CYCLES_AND_INSTRUCTIONS",
    "INSTRUCTIONS",
    "TASK_CLOCK_NS",
    "TYPE_HARDWARE",
    "TYPE_SOFTWARE",
    "Event",
]

TYPE_HARDWARE = 0
TYPE_SOFTWARE = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `type` selects the PMU, `config` the event on it."""

    name: str
    type: int
    config: int


CYCLES = Event("cycles", TYPE_HARDWARE, 0)
INSTRUCTIONS = Event("instructions", TYPE_HARDWARE, 1)
TASK_CLOCK_NS = Event("task_clock_ns", TYPE_SOFTWARE, 1)
CONTEXT_SWITCHES = Event("context_switches", TYPE_SOFTWARE, 3)

#: What CPI needs, and all that it needs: two counters fit beside guests' virtual PMUs on every CPU we know.
CYCLES_AND_INSTRUCTIONS = (CYCLES, INSTRUCTIONS)
