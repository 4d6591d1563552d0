"""The events that are counted: those in the kernel's generic encodings, and what this host's CPU has beside them.

An event beside cycles and instructions is looked up, in this order, in the kernel's own table in sysfs (by the
alias that the CPU's data file names) and in the data file itself (`collector.perf.microarch`). The kernel's generic
cache events (PERF_TYPE_HW_CACHE) are not used: its last-level misses take an off-core register that is shared with the
sibling thread on Intel, and do not exist on AMD.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.base import PERF_EVENTS, Reason
from collector.perf.cpu import CorePmu, Cpu, core_pmus, read_cpus
from collector.perf.encoding import Event, encode, parse_terms
from collector.perf.microarch import Encoding, Microarch, find_microarch

TYPE_HARDWARE = 0
TYPE_SOFTWARE = 1
TYPE_RAW = 4

CYCLES = Event("cycles", TYPE_HARDWARE, 0)
INSTRUCTIONS = Event("instructions", TYPE_HARDWARE, 1)
TASK_CLOCK_NS = Event("task_clock_ns", TYPE_SOFTWARE, 1)
CONTEXT_SWITCHES = Event("context_switches", TYPE_SOFTWARE, 3)

#: What CPI needs, and all that it needs: two counters fit beside guests' virtual PMUs on every CPU we know. Every
#: group begins with them.
CYCLES_AND_INSTRUCTIONS = (CYCLES, INSTRUCTIONS)

_EXTRA = PERF_EVENTS[len(CYCLES_AND_INSTRUCTIONS) :]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What this host's CPU can count beside cycles and instructions, and with how many counters.

    `events` and `missing` together have each of `PERF_EVENTS` beyond the first two once; `why` says in words why one is
    missing, `sources` where an encoding comes from. `fixed` are the events that have a counter of their own.
    """

    title: str
    events: Mapping[str, Event] = field(default_factory=dict)
    missing: Mapping[str, Reason] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    programmable: int = 0
    fixed: frozenset[str] = frozenset()


def read_catalog(proc_root: str = "/proc", sys_root: str = "/sys", *, smt: bool = True) -> Catalog:
    """Find out what the CPUs of this host can count. Never raises: what cannot be read offers nothing.

    Args:
        proc_root: where /proc is.
        sys_root: where /sys is.
        smt: whether hardware threads share a core's counters now (on some CPUs each has fewer then).

    """
    cpus = read_cpus(proc_root)
    pmus = core_pmus(sys_root)
    if not pmus:
        return _nothing("the kernel shows no PMU of a CPU core in sysfs", "CPU without a PMU that the kernel shows")
    if len(pmus) > 1 or len(cpus) > 1:
        names = ", ".join(pmu.name for pmu in pmus)
        title = f"hybrid CPU ({names}): only the kind of core that the kernel counts generic events on is counted"
        return _nothing("the encodings differ between the kinds of core of a hybrid CPU", title)
    cpu = next(iter(cpus), None)
    known = find_microarch(cpu) if cpu is not None else None
    if known is None:
        return _nothing("this CPU is not known", _describe(cpu))
    return resolve(known, pmus[0], smt=smt)


def resolve(known: Microarch, pmu: CorePmu, *, smt: bool = True) -> Catalog:
    """Join what a data file says of a CPU with what the kernel shows of its PMU."""
    events: dict[str, Event] = {}
    sources: dict[str, str] = {}
    why = {name: known.missing.get(name, "this CPU's data file does not have it") for name in _EXTRA}
    for name in _EXTRA:
        encoding = known.events.get(name)
        if encoding is None:
            continue
        found = _encode(name, encoding, known, pmu)
        if isinstance(found, str):
            why[name] = found
        else:
            events[name], sources[name] = found
            del why[name]
    return Catalog(
        title=known.title,
        events=events,
        missing=dict.fromkeys(why, Reason.NO_EVENT),
        why=why,
        sources=sources,
        programmable=known.programmable_smt if smt else known.programmable,
        fixed=known.fixed,
    )


def _encode(name: str, encoding: Encoding, known: Microarch, pmu: CorePmu) -> tuple[Event, str] | str:
    """Return the event and where its encoding comes from, or why there is none."""
    if encoding.alias:
        text = pmu.alias(encoding.alias)
        if text:
            try:
                fields = parse_terms(text)
                event = Event(name, pmu.type, *encode(fields, pmu.formats or known.layout))
            except ValueError as error:
                return f"{pmu.name}/events/{encoding.alias}: {error}"
            return event, f"{pmu.name}/{encoding.alias}/ in sysfs"
        if not encoding.fields:
            return f"the kernel's table ({pmu.name}/events) has no {encoding.alias}"
    try:
        return Event(name, pmu.type, *encode(encoding.fields, pmu.formats or known.layout)), encoding.source
    except ValueError as error:
        return f"{encoding.source}: {error}"


def _describe(cpu: Cpu | None) -> str:
    if cpu is None:
        return "CPU that /proc/cpuinfo does not name"
    return f"CPU of vendor {cpu.vendor}, family {cpu.family}, model {cpu.model}, which whitepanda does not know"


def _nothing(why: str, title: str) -> Catalog:
    return Catalog(title=title, missing=dict.fromkeys(_EXTRA, Reason.NO_EVENT), why=dict.fromkeys(_EXTRA, why))
