"""The events that are counted: those in the kernel's generic encodings, and what this host's CPU has beside them.

Other events than cycles and instructions come from the kernel's own table in sysfs, else from the CPU's data file
(`collector.perf.microarch`). The kernel's generic cache events are not used: its last-level misses take an off-core
register that is shared with the sibling thread on Intel, and do not exist on AMD.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collector.base import PERF_EVENTS, Reason
from collector.perf.cpu import CorePmu, core_pmus, parse_cpuinfo
from collector.perf.encoding import Event, encode, parse_terms
from collector.perf.microarch import Encoding, Microarch, find_microarch

TYPE_HARDWARE = 0
TYPE_SOFTWARE = 1
TYPE_RAW = 4

CYCLES = Event("cycles", TYPE_HARDWARE, 0)
INSTRUCTIONS = Event("instructions", TYPE_HARDWARE, 1)
TASK_CLOCK_NS = Event("task_clock_ns", TYPE_SOFTWARE, 1)
CONTEXT_SWITCHES = Event("context_switches", TYPE_SOFTWARE, 3)

#: What CPI needs; two counters fit beside guests' virtual PMUs on every known CPU. Every group begins with them.
CYCLES_AND_INSTRUCTIONS = (CYCLES, INSTRUCTIONS)

_EXTRA = PERF_EVENTS[len(CYCLES_AND_INSTRUCTIONS) :]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What this host's CPU can count as well as cycles and instructions, and with how many counters.

    Each of the other `PERF_EVENTS` is in `events` or `missing`. `fixed` events each have their own counter.
    """

    title: str
    events: Mapping[str, Event] = field(default_factory=dict)
    missing: Mapping[str, Reason] = field(default_factory=dict)
    programmable: int = 0
    fixed: frozenset[str] = frozenset()


def read_catalog(proc_root: str = "/proc", sys_root: str = "/sys", *, smt: bool = True) -> Catalog:
    """Return what this host's CPUs can count. Never raises: what cannot be read offers nothing.

    `smt`: whether hardware threads share a core's counters now (on some CPUs each has fewer then).
    """
    try:
        cpus = parse_cpuinfo((Path(proc_root) / "cpuinfo").read_text(errors="replace"))
    except OSError:
        cpus = frozenset()
    pmus = core_pmus(sys_root)
    if not pmus:
        return _nothing("CPU without a PMU that the kernel shows")
    if len(pmus) > 1 or len(cpus) > 1:
        names = ", ".join(pmu.name for pmu in pmus)
        title = f"hybrid CPU ({names}): only the kind of core that the kernel counts generic events on is counted"
        return _nothing(title)
    if not cpus:
        return _nothing("CPU that /proc/cpuinfo does not name")
    (cpu,) = cpus
    known = find_microarch(cpu)
    if known is None:
        name = f"vendor {cpu.vendor}, family {cpu.family}, model {cpu.model}"
        return _nothing(f"CPU of {name}, which whitepanda does not know")
    return resolve(known, pmus[0], smt=smt)


def resolve(known: Microarch, pmu: CorePmu, *, smt: bool = True) -> Catalog:
    """Join a CPU's data file with what the kernel shows of its PMU."""
    encoded = {name: _encode(name, known.events[name], known, pmu) for name in _EXTRA if name in known.events}
    events = {name: event for name, event in encoded.items() if event is not None}
    return Catalog(
        title=known.title,
        events=events,
        missing={name: Reason.NO_EVENT for name in _EXTRA if name not in events},
        programmable=known.programmable_smt if smt else known.programmable,
        fixed=known.fixed,
    )


def _encode(name: str, encoding: Encoding, known: Microarch, pmu: CorePmu) -> Event | None:
    """Return the event by the kernel's table, else by the data file; None where this PMU cannot count it."""
    terms = pmu.alias(encoding.alias) if encoding.alias else ""
    if not terms and not encoding.fields:
        return None
    try:
        fields = parse_terms(terms) if terms else encoding.fields
        return Event(name, pmu.type, *encode(fields, pmu.formats or known.layout))
    except ValueError:
        return None


def _nothing(title: str) -> Catalog:
    return Catalog(title=title, missing=dict.fromkeys(_EXTRA, Reason.NO_EVENT))
