"""The columns of whitepanda's detector, made from a tick's signals so that one scale fits all VMs.

Symptoms: larger is worse, and 0.05 is about 5 % for every signal (pressures are used as they are, the others as
logarithms). Acts (load): the logarithm of amount + floor. The floor is too small to hurt another VM, so growth from
zero to almost zero is ignored.
"""

import math
from dataclasses import dataclass

import numpy as np

from agent.analysis.signals import INDEX, Floats, Tick


@dataclass(frozen=True, slots=True)
class Symptom:
    """One sign of suffering."""

    name: str
    signal: str
    kind: str  # symptoms of one kind have one cause and are weighed together
    words: str
    prior_std: float  # of a short window's mean
    floor_std: float  # the least
    load_std: float  # how much a doubling of the VM's own load may change the symptom, until that is learnt


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a VM can do more of."""

    name: str
    signal: str
    words: str
    floor: float
    hurts: frozenset[str]  # the kinds of symptoms that it can cause in others
    least_ratio: float  # smaller growth over the baseline does not count, whatever the noise
    unit: str  # of the signal


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom("log_cpi", "ipc", "core", "IPC", 0.02, 0.003, 0.08),
    Symptom("log_memory_stalls", "memory_stall_ratio", "core", "memory stalls", 0.02, 0.003, 0.08),
    Symptom("log_total_stalls", "total_stall_ratio", "core", "stalls", 0.02, 0.003, 0.08),
    Symptom("log_llc_mpki", "llc_mpki", "core", "LLC misses per 1000 instructions", 0.05, 0.01, 0.2),
    Symptom("log_waiting", "run_queue_wait_ratio", "waiting", "waiting for a CPU", 0.03, 0.005, 0.1),
    Symptom("cpu_pressure", "pressure_cpu_some_ratio", "waiting", "CPU pressure", 0.03, 0.01, 0.1),
    Symptom("io_pressure", "pressure_io_some_ratio", "io", "I/O pressure", 0.03, 0.01, 0.1),
    Symptom("memory_pressure", "pressure_memory_some_ratio", "io", "memory pressure", 0.02, 0.01, 0.1),
    Symptom("log_cpu_per_byte", "cpu_usage_cores", "cost", "CPU per network byte", 0.06, 0.02, 0.2),
)

#: Kinds of symptoms, in a fixed order.
KINDS: tuple[str, ...] = ("core", "waiting", "io", "cost")
_CPU = frozenset({"core", "waiting", "cost"})
_IO = frozenset({"io", "core", "waiting", "cost"})
ACTS: tuple[Act, ...] = (
    Act("log_gips", "gips", "instructions", 0.2, _CPU, 1.25, "G/s"),
    Act("log_cpu", "cpu_usage_cores", "CPU", 0.1, _CPU, 1.5, "cores"),
    Act("log_bandwidth", "memory_bandwidth_bytes_per_s", "memory bandwidth", 5e7, _CPU, 1.5, "B/s"),
    Act("log_disk_bytes", "disk_bytes_per_s", "disk bytes", 2e6, _IO, 1.5, "B/s"),
    Act("log_disk_ops", "disk_ops_per_s", "disk operations", 50.0, _IO, 1.5, "/s"),
    Act("log_storage", "storage_bytes_per_s", "storage bytes", 2e6, _IO, 1.5, "B/s"),
    Act("log_network", "network_bytes_per_s", "network bytes", 5e6, _CPU, 1.5, "B/s"),
)
#: The clock's frequency: neither act nor symptom, but it explains some.
CLOCK = "log_clock"
COLUMNS: tuple[str, ...] = (*(s.name for s in SYMPTOMS), *(a.name for a in ACTS), CLOCK)

_MISSES_FLOOR = 0.2
_IDLE_CORES = 0.02  # below this, a VM waits too rarely for its wait ratio to mean anything
_QUIET_BYTES_PER_S = 20_000.0  # below, bytes do not follow requests
_GIPS, _CPU_CORES = INDEX["gips"], INDEX["cpu_usage_cores"]
_ACT_COLUMNS = [INDEX[act.signal] for act in ACTS]
_ACT_FLOORS = np.array([act.floor for act in ACTS])
_MAX_STALLS = 0.98
_RAW_PLACES = [place for place, symptom in enumerate(SYMPTOMS) if symptom.name.endswith("_pressure")]
_RAW_COLUMNS = [INDEX[SYMPTOMS[place].signal] for place in _RAW_PLACES]
_CLOCKED = 3  # the first three symptoms are measured in cycles
_PLACE = {name: place for place, name in enumerate(COLUMNS)}


def columns_of(values: Floats, vcpus: Floats) -> Floats:
    """Return the columns (VMs, COLUMNS) of a tick's values (VMs, SIGNALS) and sizes (VMs,); NaN: not known."""
    result = np.full((len(values), len(COLUMNS)), math.nan)
    cores = values[:, _CPU_CORES]
    result[:, _RAW_PLACES] = values[:, _RAW_COLUMNS]
    with np.errstate(divide="ignore", invalid="ignore"):
        ipc = values[:, INDEX["ipc"]]
        result[:, _PLACE["log_cpi"]] = -np.log(np.where(ipc > 0, ipc, math.nan))
        result[:, _PLACE["log_llc_mpki"]] = np.log(values[:, INDEX["llc_mpki"]] + _MISSES_FLOOR)
        # With the other cycles unchanged, stalls of share s make every instruction 1 / (1 - s) times as long.
        for name, signal in (("log_memory_stalls", "memory_stall_ratio"), ("log_total_stalls", "total_stall_ratio")):
            stalls = np.minimum(values[:, INDEX[signal]], _MAX_STALLS)
            result[:, _PLACE[name]] = -np.log1p(-stalls)
        waiting = values[:, INDEX["run_queue_wait_ratio"]] * vcpus
        result[:, _PLACE["log_waiting"]] = np.log1p(waiting / np.maximum(cores, _IDLE_CORES))
        # If instructions are counted, IPC shows the same thing without network noise.
        network = values[:, INDEX["network_bytes_per_s"]]
        is_used = np.isnan(values[:, _GIPS]) & (network >= _QUIET_BYTES_PER_S) & (cores > 0)
        result[:, _PLACE["log_cpu_per_byte"]] = np.where(is_used, np.log(cores / network), math.nan)
        start = len(SYMPTOMS)
        result[:, start : start + len(ACTS)] = np.log(values[:, _ACT_COLUMNS] + _ACT_FLOORS)
        clock = values[:, INDEX["frequency_ratio"]]
        result[:, _PLACE[CLOCK]] = np.log(np.where(clock > 0, clock, math.nan))
    # CPU pressure would count the run-queue wait twice, so drop it if that wait is known.
    known = ~np.isnan(result[:, _PLACE["log_waiting"]])
    result[known, _PLACE["cpu_pressure"]] = math.nan
    return result


def clock_effect(clock: Floats, memory_stalls: Floats) -> Floats:
    """Return what a change of the clock explains of the symptoms: shape (VMs, SYMPTOMS).

    A wait for memory takes the same nanoseconds at any clock, so with the share s of cycles stalled on memory log CPI
    grows by s * d(log clock), and so does -log(1 - s). If s is not known, a faster clock may explain as much as its
    change. `clock`: change of its logarithm; `memory_stalls`: baseline of "log_memory_stalls"; NaN: not known.
    """
    change = np.where(np.isnan(clock), 0.0, clock)
    known = ~np.isnan(memory_stalls)
    share = np.where(known, -np.expm1(-np.where(known, memory_stalls, 0.0)), 1.0)
    result = np.zeros((len(clock), len(SYMPTOMS)))
    result[:, :_CLOCKED] = (share * np.where(known, change, np.maximum(change, 0.0)))[:, None]
    return result


def in_unit(name: str, values: tuple[float, ...], row: int, tick: Tick) -> list[float]:
    """Return values of a symptom's column in its signal's unit, at the VM's present use of CPU and network."""
    if name == "log_cpi":
        return [math.exp(-value) for value in values]
    if name in {"log_memory_stalls", "log_total_stalls"}:
        return [-math.expm1(-value) for value in values]
    if name == "log_llc_mpki":
        return [max(math.exp(value) - _MISSES_FLOOR, 0.0) for value in values]
    if name == "log_waiting":
        share = max(_known(tick.values[row, _CPU_CORES]), _IDLE_CORES) / tick.vms[row].vcpus
        return [math.expm1(value) * share for value in values]
    if name == "log_cpu_per_byte":
        network = _known(tick.values[row, INDEX["network_bytes_per_s"]])
        return [math.exp(value) * network for value in values]
    return list(values)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
