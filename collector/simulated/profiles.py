"""The parameters of the simulated study: applications, stressors and the host, each with its source.

They were set before any estimator was fitted and follow Cloud White (Pons et al., FGCS 2022) where it gives a number;
"chosen" ones have the order of magnitude of such software. docs/simulated.md has the same table with reasons;
`collector.simulated.contention` uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Application:
    """What runs in a VM. Numbers hold while it is alone on the host, at the host's nominal frequency.

    An application with `service_ms` serves requests: at load L each of its vCPUs is busy for the share L of the time
    while it is undisturbed, and longer when disturbed. One without is a closed loop of work: it uses the share L of its
    vCPUs however slow they are.
    """

    name: str
    ipc: float  # instructions per cycle
    l2_mpki: float  # misses of the private caches, per 1000 instructions: what asks the last-level cache
    llc_miss_min: float  # share of them that misses the last-level cache too, with the working set held there ...
    llc_miss_max: float  # ... and with nothing held
    working_set_mib: float  # more than this it never holds of the last-level cache
    blocking: float  # share of a miss's latency in which the core stands still: the rest is overlapped
    core_stall: float  # share of the cycles without misses in which the core stalls on itself
    curve: float = 1.0  # miss share = min + (max - min) * (1 - held / working set) ^ curve
    stay: float = 1.0  # how long its lines stay, relative to lines that are used once: reuse protects them
    service_ms: float = 0.0  # mean CPU time of a request; 0 = no requests
    service_cv: float = 0.0  # coefficient of variation of a request's work (log-normal)
    workers_per_vcpu: float = 1.0  # requests in service together; fewer if locks serialise them
    disk_ops_per_request: float = 0.0  # synchronous operations; the worker waits for each
    disk_mb_per_s: float = 0.0  # of a closed loop at load 1, MB = 1e6 bytes
    disk_op_kib: float = 16.0
    network_bytes_per_request: float = 0.0
    network_mb_per_s: float = 0.0  # of a closed loop at load 1


@dataclass(frozen=True, slots=True)
class Machine:
    """The host that the VMs share; the defaults are the study's.

    Section 3.1: 24 logical CPUs in a socket (two threads on each of 12 cores), 16.5 MB of 11-way LLC, 107.3 GB/s;
    Intel's data sheet of the Xeon Silver 4116: 2.1 GHz. Section 5: 8 logical CPUs are the agents' (OVS, DPDK, ReAM).
    Chosen: latencies (usual of Skylake-SP), the memory's queue, the disk (a Ceph volume over 20 Gb/s), and that the
    agents keep 2 CPUs busy (DPDK polls).
    """

    cpus: int = 24
    vm_cpus: int = 16  # of them, those that VMs run on
    system_cores: float = 2.0  # what the other ones do all the time
    ghz: float = 2.1  # nominal; reference cycles have it
    llc_mib: float = 16.5
    llc_ns: float = 24.0  # latency of a hit in the last-level cache, beyond the private caches
    memory_ns: float = 90.0  # latency of idle memory
    memory_gb_per_s: float = 107.3
    memory_queue: float = 0.5  # latency = idle latency * (1 + memory_queue * U / (1 - U)), U = utilisation
    write_back: float = 0.3  # bytes written back per byte read from memory
    disk_mb_per_s: float = 200.0
    disk_op_ms: float = 0.5  # an operation of an idle disk; it waits like in an M/M/1 queue
    link_mb_per_s: float = 0.0  # of the network, in all; 0: far from saturation, as in section 6.1, it delays nobody
    max_utilisation: float = 0.9  # of memory, disk and link: those that wait ask for less


@dataclass(frozen=True, slots=True)
class Noise:
    """What varies while nothing changes. Deviations of logarithms; the first two are AR(1) processes.

    Chosen. Deviations of the p95 between repetitions below 5 % (10 % at high load) are section 7.1's.
    """

    load_std: float = 0.03
    load_correlation_s: float = 15.0
    ipc_std: float = 0.01
    ipc_correlation_s: float = 30.0
    counter_std: float = 0.003  # of a hardware count in a second, independent (counts are attributed with some slack)
    bandwidth_std: float = 0.02  # of the memory bandwidth that resctrl reports
    occupancy_std: float = 0.03  # of the cache occupancy that it reports
    wait_std: float = 0.2  # of the time that vCPUs wait for CPUs


HOST = Machine()
NOISE = Noise()

# fmt: off
_COLUMNS = (
    "ipc", "l2_mpki", "llc_miss_min", "llc_miss_max", "working_set_mib", "curve", "blocking", "stay", "core_stall",
    "service_ms", "service_cv", "workers_per_vcpu", "disk_ops_per_request", "network_bytes_per_request",
)
# img-dnn is bound by memory and specjbb by CPU (section 6); the others follow figure 9 as the text describes it (moses
# more sensitive than the rest, section 7.2; silo little, section 7.3) and Tailbench's descriptions.
# IPC of img-dnn: figure 4 (1.78). Service times: 100 to 2000 requests/s are 10 to 60 % of small VMs (section 4.1),
# and specjbb's tail is 4 times shorter than img-dnn's (section 6.1). img-dnn holds over 10 MB (figure 13).
# silo saturates before 50 % of two vCPUs (figure 9's note): one worker for two vCPUs. Disk and network use is
# low (section 6.1), specjbb's correlation with them the larger one. All else: chosen.
_SERVICES = {
    "img-dnn":  (1.78, 12.0, 0.10, 0.75, 11.0, 1.3, 0.35, 2.0, 0.15, 2.0, 0.25, 1.0, 0.002, 3000.0),
    "masstree": (0.95, 14.0, 0.15, 0.65, 14.0, 1.3, 0.40, 2.0, 0.12, 0.6, 0.35, 1.0, 0.001, 1500.0),
    "moses":    (1.00, 12.0, 0.12, 0.70, 16.0, 1.2, 0.55, 2.0, 0.18, 1.5, 0.50, 1.0, 0.002, 800.0),
    "silo":     (1.40, 4.0, 0.20, 0.55, 8.0, 1.5, 0.35, 2.0, 0.20, 0.4, 0.30, 0.5, 0.002, 1000.0),
    "specjbb":  (1.15, 11.0, 0.20, 0.65, 10.0, 1.5, 0.35, 1.5, 0.22, 0.5, 0.40, 1.0, 0.005, 2000.0),
}
# Section 5, without requests. "No interference": 6 logical CPUs at a low load, less than 1 MB of cache (figure 13's
# text). Cache and memory, at loads 0.33, 0.62 and 0.95 of 8 vCPUs: 1.9 to 5.5 GB/s and 12.5 to 14.7 MB of cache.
_LOOPS = {
    "no-interference": (1.0, 2.0, 0.30, 0.60, 0.9, 1.0, 0.25, 1.0, 0.20),
    "cache-memory-1":  (0.8, 12.0, 0.42, 0.60, 12.5, 1.0, 0.20, 1.0, 0.10),
    "disk":            (0.9, 6.0, 0.50, 0.60, 2.0, 1.0, 0.20, 1.0, 0.15),
}
# fmt: on
_NO_INTERFERENCE, _CACHE, _DISK = (
    Application(name, **dict(zip(_COLUMNS, row, strict=False))) for name, row in _LOOPS.items()
)
APPLICATIONS: Mapping[str, Application] = {
    name: Application(name, **dict(zip(_COLUMNS, row, strict=True))) for name, row in _SERVICES.items()
}
# At loads 0.15, 0.25 and 0.35 of 8 vCPUs: 45 (moderate) to over 100 MB/s (high); 45 / 0.15 = 300 MB/s at load 1.
_DISK = replace(_DISK, disk_mb_per_s=300.0, disk_op_kib=128.0)
# iPerf3 (section 5), at load 0.3: 1.0 GB/s of the 20 Gb/s link; far from saturation (section 6.1). Rates chosen.
_NETWORK = replace(_DISK, name="network", disk_mb_per_s=0.0, network_mb_per_s=3300.0)

# Working set of the cache's stressor in MiB, its load, and the disk's load; per level.
_LEVELS = ((12.5, 0.33, 0.15), (13.6, 0.62, 0.25), (14.7, 0.95, 0.35))


def _stressors() -> dict[str, tuple[Application, float]]:
    table = {"no-interference": (_NO_INTERFERENCE, 0.10), "network": (_NETWORK, 0.30)}
    for level, (working_set_mib, cache_load, disk_load) in enumerate(_LEVELS, start=1):
        cache = replace(_CACHE, name=f"cache-memory-{level}", working_set_mib=working_set_mib)
        both = replace(
            cache,
            name=f"cache-memory-disk-{level}",
            disk_mb_per_s=_DISK.disk_mb_per_s * disk_load / cache_load,
            disk_op_kib=_DISK.disk_op_kib,
        )
        table[cache.name] = (cache, cache_load)
        table[f"disk-{level}"] = (replace(_DISK, name=f"disk-{level}"), disk_load)
        table[both.name] = (both, cache_load)
    return table


#: Stressors with the load at which a VM of 8 vCPUs runs them.
STRESSORS: Mapping[str, tuple[Application, float]] = _stressors()
#: All that a VM of a scenario can name as its profile.
PROFILES: Mapping[str, Application] = {**APPLICATIONS, **{name: app for name, (app, _) in STRESSORS.items()}}
