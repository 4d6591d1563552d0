"""Loading vectors of the live fleet, from the lake's last windows: per job, and summed per host.

A loading is the share of a VM's own time spent at a resource (D-Factor, section 3). Measured shares come first:

    cpu           cores used, less those that waited for memory where that is measured
    memory_stall  cores that waited for memory: cores used * the share of their cycles
    disk_wait     share of the time in which some thread of the VM waited for a disk

If `placement` in central's configuration has the capacity of a host's memory, disks or network, the resource `memory`,
`disk` or `network` is bytes per second over that instead: the share of its time that the resource works for the VM.
The network needs no setting where host facts have the speed of NICs. Rates are over the fleet's median speed; where
NICs are c times as fast, both VMs need 1 / c of the time, so they count as c * c units. Host facts also give each
host's CPUs and number of disks.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from central.config import PlacementSection
from central.lake.duckdb_connection import answering
from central.lake.segments import Lake, day_of
from central.models.groups import Floats, Ints
from central.placement.capacity import NO_SIZES, UNKNOWN_VM, Capacity, Room, Sizes, VmSize
from central.placement.fleet import Fleet, Hosts, Request
from central.runtimes.lake_rows import BUSY_CORES

_S_NS = 10**9
_DAY_NS = 86_400 * _S_NS
_MEMORY_MIB = 512
_STALL, _IO_WAIT = "memory_stall_ratio", "pressure_io_some_ratio"
# Resource, the columns whose sum is its rate, and the setting with a host's capacity.
_RATES = (
    ("memory", ("memory_bandwidth_bytes_per_s",), "memory_bytes_per_s"),
    ("disk", ("disk_read_bytes_per_s", "disk_write_bytes_per_s"), "disk_bytes_per_s"),
    ("network", ("network_receive_bytes_per_s", "network_transmit_bytes_per_s"), "network_bytes_per_s"),
)
# Why there is no measured share, or rate.
_WHY = {
    "memory": "no window has memory_bandwidth_bytes_per_s, which needs the agents' source resctrl or pqos",
    "disk": "no window has the disk's bytes per second, which need the agents' source libvirt or qemu",
    "network": "no window has the network's bytes per second, which need the agents' source libvirt, qemu or ovs",
    "memory_stall": f"no window has {_STALL}, which needs the agents' source perf and a CPU with the event",
    "disk_wait": f"no window has {_IO_WAIT}, which needs the agents' source cgroup and a kernel with PSI",
    "network_wait": "no agent measures it, and no host's facts have the speed of a NIC",
}
#: More about a resource that no facts can give a capacity.
_NOT_IN_FACTS = {
    "memory_stall": "host facts have no memory bandwidth",
    "disk_wait": "host facts have no bandwidth of disks",
}


@dataclass(frozen=True, slots=True)
class JobLoading:
    """A job's loading vector: the mean over its VMs, NaN for a resource without values."""

    job: str
    loading: Floats
    standard_error: Floats  # over VMs, NaN for fewer than two with a value
    measured: tuple[int, ...]  # number of the `vms` with a value
    vms: int
    windows: int


@dataclass(frozen=True, slots=True)
class LiveRanking:
    """Hosts for a VM: those with room, or of which that is not known, then the full ones; each the best first."""

    order: Ints
    added: Floats  # p' . P of all hosts, shape (hosts,)
    rooms: dict[int, Room]  # of the hosts in `order`


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet in [since, until): jobs by name, and hosts with the summed loadings of the VMs last seen there."""

    since_unix_ns: int
    until_unix_ns: int
    resources: tuple[str, ...]
    jobs: dict[str, JobLoading]
    hosts: Hosts
    capacity: Capacity  # what of the hosts' vCPUs and memory is taken
    sizes: dict[str, VmSize]  # by job, its largest VM's where that is known
    vms: tuple[int, ...]
    running: tuple[tuple[str, ...], ...]  # by host, the job of each of these VMs that is busy (`BUSY_CORES`)
    unmeasured: dict[str, str]  # why resources are left out, or facts

    def rank(self, loading: Floats, top: int, size: VmSize = UNKNOWN_VM) -> LiveRanking:
        """Rank hosts for a VM with this loading and size; a resource with NaN does not count. Full hosts come last.

        Shares of more than 1 in all (a VM with several busy vCPUs) are divided by their sum, which changes the size of
        `added`, not the order.
        """
        found = Fleet(self.hosts).rank(Request(_share_of_time(loading), np.zeros(0)))
        is_full = self.capacity.full(size)[found.order]
        order = np.concatenate([found.order[~is_full], found.order[is_full]])[:top]
        return LiveRanking(order, found.added, {host: self.capacity.room(host, size) for host in order.tolist()})

    def by_resource(self, loading: Floats, host: int) -> Floats:
        """Return each resource's addition to the dilation of such a VM on a host."""
        found: Floats = _share_of_time(loading) * self.hosts.totals[host] / self.hosts.units_of(host)
        return found


def _share_of_time(loading: Floats) -> Floats:
    known: Floats = np.nan_to_num(loading)
    return known / max(1.0, float(known.sum()))


class LiveFleet:
    """Reads snapshots, each used for `placement.refresh_s`. Thread-safe.

    `connected` returns the names of the hosts that are connected, which may have no VM at all; `sizes` what facts say
    of hosts and VMs at a time, in ns since 1970.
    """

    def __init__(
        self,
        lake: Lake,
        config: PlacementSection,
        connected: Callable[[], Iterable[str]],
        clock_unix_ns: Callable[[], int] = time.time_ns,
        sizes: Callable[[int], Sizes] = lambda _: NO_SIZES,
    ) -> None:
        self._lake = lake
        self._config = config
        self._connected = connected
        self._clock = clock_unix_ns
        self._sizes = sizes
        self._lock = threading.Lock()
        self._last: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return the fleet as it is, or was at most `placement.refresh_s` ago."""
        with self._lock:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last.until_unix_ns < self._config.refresh_s * _S_NS:
                since = now - int(self._config.window_s * _S_NS)
                rows = _read(self._lake, since, now)
                self._last = make_snapshot(self._config, since, now, rows, self._connected(), self._sizes(now))
            return self._last


def make_snapshot(
    config: PlacementSection,
    since: int,
    until: int,
    rows: Mapping[str, Sequence[Any]],
    connected: Iterable[str] = (),
    sizes: Sizes = NO_SIZES,
) -> Snapshot:
    """Return the fleet in [since, until) from a row per VM and host.

    `rows` has machine, vm, job, last (end of its last window, in ns since 1970), windows (their number), and means,
    None where nothing was measured: cpu_usage_cores; stall, the share of cycles that waited for memory; wait, the share
    of the time with a wait for a disk; and memory, disk and network, bytes per second.
    """
    hosts = sorted({*connected, *rows["machine"]})
    used, unmeasured = _resources(config, rows, hosts, sizes)
    if sizes.problem:
        unmeasured["facts"] = sizes.problem
    names, columns, units = zip(*used, strict=True)
    shares = np.column_stack(columns)
    index = {name: k for k, name in enumerate(hosts)}
    totals = np.zeros((len(hosts), len(used)))
    there: list[list[int]] = [[] for _ in hosts]  # rows of the VMs that are on each host now
    by_job: dict[str, list[int]] = {}
    last_seen: dict[str, int] = {}
    for k, (job, vm, last) in enumerate(zip(rows["job"], rows["vm"], rows["last"], strict=True)):
        by_job.setdefault(job, []).append(k)
        # A VM that has moved counts where it was last.
        before = last_seen.get(vm)
        if before is None or rows["last"][before] < last:
            last_seen[vm] = k
    gone_before = until - int(config.gone_s * _S_NS)
    for k in last_seen.values():
        if rows["last"][k] >= gone_before:
            host = index[rows["machine"][k]]
            totals[host] += np.nan_to_num(shares[k])
            there[host].append(k)
    jobs = {job: _job(job, shares[at], [rows["windows"][k] for k in at]) for job, at in sorted(by_job.items())}
    made = Hosts(tuple(hosts), names, totals, np.column_stack(units), np.full(totals.shape, np.inf))
    busy = rows["cpu_usage_cores"]
    running = tuple(tuple(sorted(rows["job"][k] for k in here if busy[k] >= BUSY_CORES)) for here in there)
    capacity = Capacity.of(hosts, [[rows["vm"][k] for k in here] for here in there], sizes, config)
    largest = {job: sizes.largest([rows["vm"][k] for k in at]) for job, at in by_job.items()}
    counts = tuple(map(len, there))
    return Snapshot(since, until, names, jobs, made, capacity, largest, counts, running, unmeasured)


#: A resource: its name; the share of each VM, NaN where it is not known; equal units of each host.
_Resource = tuple[str, Floats, Floats]


def _resources(
    config: PlacementSection, rows: Mapping[str, Sequence[Any]], hosts: Sequence[str], sizes: Sizes
) -> tuple[list[_Resource], dict[str, str]]:
    """Return the resources that loading vectors have, and why each of the others is left out."""
    cores, ratio, waited = (np.array(rows[name], dtype=np.float64) for name in ("cpu_usage_cores", "stall", "wait"))
    # Without the ratio the stalled cores are not known either.
    stalled = cores * ratio
    cpu = cores - (0.0 if config.memory_bytes_per_s else np.nan_to_num(stalled))
    every = np.ones(len(hosts))
    cpus = sizes.column(hosts, "cpus", config.cpu_cores)
    disks = sizes.column(hosts, "disks", 1.0)
    waits: tuple[_Resource, ...] = (
        ("memory_stall", stalled, config.memory_units * every if config.memory_units else cpus),
        ("disk_wait", waited, config.disk_units * every if config.disk_units else disks),
        ("network_wait", np.full(len(cpu), np.nan), every),
    )
    used: list[_Resource] = [("cpu", cpu, cpus)]
    unmeasured = dict[str, str]()
    for (name, _, key), (wait, shares, units) in zip(_RATES, waits, strict=True):
        speeds = sizes.column(hosts, key, getattr(config, key) or math.nan)
        if np.isfinite(speeds).any():
            usual = float(np.nanmedian(speeds))
            rates = np.array(rows[name], dtype=np.float64) / usual
            used.append((name, rates, (np.where(np.isfinite(speeds), speeds, usual) / usual) ** 2))
            if not np.isfinite(rates).any():
                then = f"; unset placement.{key} to use measured waits" if getattr(config, key) else ""
                unmeasured[name] = f"{_WHY[name]}{then}"
        elif np.isfinite(shares).any():
            used.append((wait, shares, units))
        else:
            without = f" ({_NOT_IN_FACTS[wait]})" if wait in _NOT_IN_FACTS else ""
            unmeasured[wait] = f"{_WHY[wait]}; set placement.{key} to use rates{without}"
    return used, unmeasured


def _job(job: str, shares: Floats, windows: list[int]) -> JobLoading:
    known = np.isfinite(shares)
    count = known.sum(axis=0)
    values = np.nan_to_num(shares)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = values.sum(axis=0) / count
        squares = (np.where(known, shares - mean, 0.0) ** 2).sum(axis=0)
        error = np.where(count > 1, np.sqrt(squares / (count - 1) / count), np.nan)
    return JobLoading(job, mean, error, tuple(count.tolist()), len(shares), sum(windows))


def _read(lake: Lake, since: int, until: int) -> dict[str, list[Any]]:
    """Return mean rates and shares of each VM on each host, over its windows that begin in [since, until).

    The share of cycles that waited for memory is weighed by CPU time, so that idle windows hardly count.
    """
    days = sorted({day_of(at) for at in (*range(since, until, _DAY_NS), until - 1)})
    with lake.objects.session(), answering(_MEMORY_MIB) as connection:
        table = lake.samples(connection, days)
        found = table.filter(table.start_unix_ns >= since, table.start_unix_ns < until)
        means = {name: reduce(add, (found[one] for one in columns)).mean() for name, columns, _ in _RATES}
        means |= {"cpu_usage_cores": found.cpu_usage_cores.mean(), "wait": found[_IO_WAIT].mean()}
        cores = found.cpu_usage_cores
        means["stall"] = (cores * found[_STALL]).sum() / cores.sum(where=found[_STALL].notnull()).nullif(0)
        sums = found.group_by(["machine", "vm", "job"]).aggregate(
            windows=found.count(), last=(found.start_unix_ns + found.duration_ns).max(), **means
        )
        rows: dict[str, list[Any]] = connection.to_pyarrow(sums).to_pydict()
    return rows
