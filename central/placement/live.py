"""Loading vectors of the live fleet, from the lake's last windows: per job, and summed per host.

A loading is the share of a VM's own time spent at a resource (D-Factor, section 3). Measured shares come first:

    cpu           cores used, less those that waited for memory where that is measured
    memory_stall  cores that waited for memory: cores used * the share of their cycles
    disk_wait     share of the time in which some thread of the VM waited for a disk

If `placement` in central's configuration has the capacity of a host's memory, disks or network, the resource `memory`,
`disk` or `network` is bytes per second over that instead: the share of its time that the resource works for the VM.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from central.config import PlacementSection
from central.lake.duckdb_connection import answering
from central.lake.segments import Lake, day_of
from central.models.groups import Floats
from central.placement.fleet import Fleet, Hosts, Ranking, Request
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
    "disk": "no window has the rates of its disks, which needs the agents' source libvirt or qemu",
    "network": "no window has the rates of its network, which needs the agents' source libvirt, qemu or ovs",
    "memory_stall": f"no window has {_STALL}, which needs the agents' source perf and a CPU with the event",
    "disk_wait": f"no window has {_IO_WAIT}, which needs the agents' source cgroup and a kernel with PSI",
    "network_wait": "no agent measures it",
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
class Snapshot:
    """The fleet in [since, until): jobs by name, and hosts with the summed loadings of the VMs last seen there."""

    since_unix_ns: int
    until_unix_ns: int
    resources: tuple[str, ...]
    jobs: dict[str, JobLoading]
    hosts: Hosts
    vms: tuple[int, ...]
    running: tuple[tuple[str, ...], ...]  # by host, the job of each of these VMs that is busy (`BUSY_CORES`)
    unmeasured: dict[str, str]  # why resources are left out

    def rank(self, loading: Floats, top: int) -> Ranking:
        """Rank hosts for a VM with this loading; a resource with NaN does not count.

        Shares of more than 1 in all (a VM with several busy vCPUs) are divided by their sum, which changes the size of
        `added`, not the order.
        """
        return Fleet(self.hosts).rank(Request(_share_of_time(loading), np.zeros(0)), top=top)

    def by_resource(self, loading: Floats, host: int) -> Floats:
        """Return each resource's addition to the dilation of such a VM on a host."""
        found: Floats = _share_of_time(loading) * self.hosts.totals[host] / self.hosts.units
        return found


def _share_of_time(loading: Floats) -> Floats:
    known: Floats = np.nan_to_num(loading)
    return known / max(1.0, float(known.sum()))


class LiveFleet:
    """Reads snapshots, each used for `placement.refresh_s`. Thread-safe.

    `connected` returns the names of the hosts that are connected, which may have no VM at all.
    """

    def __init__(
        self,
        lake: Lake,
        config: PlacementSection,
        connected: Callable[[], Iterable[str]],
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._lake = lake
        self._config = config
        self._connected = connected
        self._clock = clock_unix_ns
        self._lock = threading.Lock()
        self._last: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return the fleet as it is, or was at most `placement.refresh_s` ago."""
        with self._lock:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last.until_unix_ns < self._config.refresh_s * _S_NS:
                since = now - int(self._config.window_s * _S_NS)
                self._last = self._make(since, now, _read(self._lake, since, now))
            return self._last

    def _make(self, since: int, until: int, rows: dict[str, list[Any]]) -> Snapshot:
        used, unmeasured = _resources(self._config, rows)
        n = len(rows["vm"])
        names, columns, units = zip(*used, strict=True)
        shares = np.column_stack(columns)
        hosts = sorted({*self._connected(), *rows["machine"]})
        index = {name: k for k, name in enumerate(hosts)}
        totals, counts = np.zeros((len(hosts), len(used))), [0] * len(hosts)
        running: list[list[str]] = [[] for _ in hosts]
        by_job: dict[str, list[int]] = {}
        last_seen: dict[str, int] = {}
        for k in range(n):
            by_job.setdefault(rows["job"][k], []).append(k)
            # A VM that has moved counts where it was last.
            before = last_seen.get(rows["vm"][k])
            if before is None or rows["last"][before] < rows["last"][k]:
                last_seen[rows["vm"][k]] = k
        gone_before = until - int(self._config.gone_s * _S_NS)
        for k in last_seen.values():
            if rows["last"][k] >= gone_before:
                host = index[rows["machine"][k]]
                totals[host] += np.nan_to_num(shares[k])
                counts[host] += 1
                if rows["cpu_usage_cores"][k] >= BUSY_CORES:
                    running[host].append(rows["job"][k])
        jobs = {job: _job(job, shares[at], [rows["windows"][k] for k in at]) for job, at in sorted(by_job.items())}
        made = Hosts(tuple(hosts), names, totals, np.array(units), np.full(totals.shape, np.inf))
        here = tuple(tuple(sorted(each)) for each in running)
        return Snapshot(since, until, names, jobs, made, tuple(counts), here, unmeasured)


#: A resource: its name; the share of each VM, NaN where it is not known; equal units of a host.
_Resource = tuple[str, Floats, float]


def _resources(config: PlacementSection, rows: dict[str, list[Any]]) -> tuple[list[_Resource], dict[str, str]]:
    """Return the resources that loading vectors have, and why each of the others is left out."""
    columns = {name: np.array(rows[name], dtype=np.float64) for name in (_STALL, _IO_WAIT, "cpu_usage_cores")}
    # Without the ratio the stalled cores are not known either.
    stalled = columns["cpu_usage_cores"] * columns[_STALL]
    cpu = columns["cpu_usage_cores"] - (0.0 if config.memory_bytes_per_s else np.nan_to_num(stalled))
    waits: tuple[_Resource, ...] = (
        ("memory_stall", stalled, config.memory_units or config.cpu_cores),
        ("disk_wait", columns[_IO_WAIT], config.disk_units),
        ("network_wait", np.full(len(cpu), np.nan), 1.0),
    )
    used: list[_Resource] = [("cpu", cpu, config.cpu_cores)]
    unmeasured = dict[str, str]()
    for (name, _, key), (wait, shares, units) in zip(_RATES, waits, strict=True):
        if capacity := getattr(config, key):
            rates = np.array(rows[name], dtype=np.float64) / capacity
            used.append((name, rates, 1.0))
            if not np.isfinite(rates).any():
                unmeasured[name] = f"{_WHY[name]}; unset placement.{key} to use measured waits"
        elif np.isfinite(shares).any():
            used.append((wait, shares, units))
        else:
            unmeasured[wait] = f"{_WHY[wait]}; set placement.{key} to use rates"
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
        means |= {column: found[column].mean() for column in ("cpu_usage_cores", _IO_WAIT)}
        cores = found.cpu_usage_cores
        means[_STALL] = (cores * found[_STALL]).sum() / cores.sum(where=found[_STALL].notnull()).nullif(0)
        sums = found.group_by(["machine", "vm", "job"]).aggregate(
            windows=found.count(), last=(found.start_unix_ns + found.duration_ns).max(), **means
        )
        rows: dict[str, list[Any]] = connection.to_pyarrow(sums).to_pydict()
    return rows
