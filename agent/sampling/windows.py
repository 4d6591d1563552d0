"""CPI windows: what the agent keeps of a VM per window (10 s) and sends to central."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.sampling.changes import CgroupDelta, CpuDelta, DiskDelta, NetworkDelta, PerfDelta, RdtDelta, VmDelta
from agent.sampling.rates import Limits
from collector.base import Reason

_S = 1_000_000_000

_Delta = CpuDelta | PerfDelta | DiskDelta | NetworkDelta | CgroupDelta | RdtDelta
_SHARE_DECIMALS = 4  # of shares of time: four take two bytes a row in the lake, all of them eight
_RDT_DIGITS = 4  # the hardware knows no more of caches and memory bandwidth, and all of them take twice the bytes
_PARTS = 6  # those of a VmDelta that go into windows


@dataclass(frozen=True, slots=True)
class CpiWindow:
    """One VM over one window. None: not known (for `cpi`, `cpi_reason` says why).

    `start_unix_ns` is the window's border; `duration_ns` is how much of it was watched: less than the window's length
    if ticks were missed or the VM's epoch began or ended. The numbers are those of `window_columns.WINDOW_COLUMNS`.
    """

    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    start_unix_ns: int
    duration_ns: int
    cpu_usage_cores: float
    cpi: float | None = None
    cpi_reason: Reason = Reason.UNSPECIFIED
    cycles: int | None = None
    instructions: int | None = None
    running_ratio: float | None = None
    run_queue_wait_ratio: float | None = None
    disk_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    memory_stall_ratio: float | None = None
    io_wait_ratio: float | None = None
    llc_occupancy_bytes: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None


@dataclass(slots=True)
class _OverTime:
    """A sum, and the time over which it was watched."""

    dt_ns: int = 0
    total: int = 0

    def add(self, dt_ns: int, amount: int | Reason) -> None:
        if amount.__class__ is not Reason:
            self.dt_ns += dt_ns
            self.total += amount

    def per_s(self) -> float | None:
        return self.total * _S / self.dt_ns if self.dt_ns else None


@dataclass(slots=True)
class _Sums:
    """One VM in one window so far. Each part has its own watched time."""

    labels: tuple[str, str, bool]
    cpu_dt_ns: int = 0
    cpu_ns: int = 0
    wait_ns: int | None = 0
    wait_vcpu_ns: int = 0
    perf_dt_ns: int = 0
    perf_reason: Reason = Reason.NOT_PRESENT
    complete: bool = True
    cycles: float = 0.0
    instructions: float = 0.0
    enabled_ns: int = 0
    uncounted_ns: int = 0
    running_ns: float = 0.0
    disk_bytes: _OverTime = field(default_factory=_OverTime)
    network_bytes: _OverTime = field(default_factory=_OverTime)
    stall_cycles: float = 0.0
    beside_stall_cycles: float = 0.0  # all cycles, of the ticks in which stalls were counted
    io_wait_ns: _OverTime = field(default_factory=_OverTime)
    llc_byte_ns: _OverTime = field(default_factory=_OverTime)
    memory_bytes: _OverTime = field(default_factory=_OverTime)

    def add(self, part: _Delta) -> None:
        if type(part) is CpuDelta:
            self._add_cpu(part)
        elif type(part) is PerfDelta:
            self._add_perf(part)
        elif type(part) is DiskDelta:
            self.disk_bytes.add(part.dt_ns, part.read_bytes + part.write_bytes)
        elif type(part) is NetworkDelta:
            self.network_bytes.add(part.dt_ns, part.receive_bytes + part.transmit_bytes)
        elif type(part) is RdtDelta:
            if part.llc_occupancy_bytes.__class__ is not Reason:
                self.llc_byte_ns.add(part.dt_ns, part.llc_occupancy_bytes * part.dt_ns)
            self.memory_bytes.add(part.dt_ns, part.mbm_total_bytes)
        elif type(part) is CgroupDelta:
            self.io_wait_ns.add(part.dt_ns, part.io_some_ns)

    def _add_cpu(self, cpu: CpuDelta) -> None:
        self.cpu_dt_ns += cpu.dt_ns
        self.cpu_ns += cpu.cpu_ns
        if cpu.run_queue_wait_ns is None:
            self.wait_ns = None
        elif self.wait_ns is not None:
            self.wait_ns += cpu.run_queue_wait_ns
            self.wait_vcpu_ns += cpu.dt_ns * cpu.threads

    def _add_perf(self, perf: PerfDelta) -> None:
        self.perf_dt_ns += perf.dt_ns
        self.cycles += perf.cycles
        self.instructions += perf.instructions
        self.enabled_ns += perf.enabled_ns
        self.running_ns += perf.running_ns
        if perf.running_ns == 0:
            self.uncounted_ns += perf.enabled_ns
        if perf.incomplete is not None:
            self.complete = False
        stalls = perf.events.get("memory_stall_cycles")
        if stalls is not None:
            self.stall_cycles += stalls.counted
            self.beside_stall_cycles += stalls.cycles


@dataclass(slots=True)
class _Window:
    """One open window: until its end and some grace on the monotonic clock, whatever Unix time does."""

    close_mono_ns: int
    sums: dict[tuple[str, str], _Sums] = field(default_factory=dict)


class WindowAccumulator:
    """Sums the deltas of all VMs over windows whose borders are multiples of `window_ns` of Unix time.

    A delta belongs to the window of its middle, exact to the sampling's jitter; a step of the Unix clock changes no
    duration. A slowly polled disk's belongs to the window of its end, as that of its middle may be closed. A delta much
    longer than a window is left out. A window waits `grace_ns` after its end for samples that were taken in it.
    """

    def __init__(self, window_ns: int, grace_ns: int, limits: Limits) -> None:
        self._window_ns = window_ns
        self._grace_ns = grace_ns
        self._limits = limits
        self._open: dict[int, _Window] = {}
        self._renamed: list[tuple[int, _Window]] = []
        # Ends of the deltas of each VM that were added last, by part: a slow source's delta is seen at several ticks.
        self._seen: dict[tuple[str, str], list[int]] = {}
        #: Windows closed, and those of them that were dropped because the VM's CPU usage was not known.
        self.closed = self.without_cpu = 0

    def add(self, uuid: str, epoch: str, labels: tuple[str, str, bool], change: VmDelta) -> None:
        """Add one VM's deltas of this tick, but those added before. `labels`: its name, job, latency sensitivity."""
        key = (uuid, epoch)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = [0] * _PARTS
        latest: _Sums | None = None
        parts = (change.cpu, change.perf, change.disk, change.network, change.cgroup, change.rdt)
        for index, part in enumerate(parts):
            # In this order: isinstance of an Enum against what it is not costs ten times as much.
            if not isinstance(part, tuple) or part.mono_ns <= seen[index]:
                continue
            seen[index] = part.mono_ns
            if (sums := self._sums(key, labels, part)) is not None:
                sums.add(part)
                latest = sums
        if latest is not None and isinstance(change.perf, Reason):
            latest.perf_reason = change.perf

    def close(self, mono_ns: int, present: Iterable[tuple[str, str]]) -> list[CpiWindow]:
        """Return the windows that have ended, oldest first; forget VMs that are not `present`, by (UUID, epoch)."""
        ended = [index for index, window in self._open.items() if window.close_mono_ns <= mono_ns]
        if not ended and not self._renamed:
            return []
        for key in self._seen.keys() - set(present):
            del self._seen[key]
        return self._rows(ended)

    def flush(self) -> list[CpiWindow]:
        """Return all open windows as they are, oldest first: the agent is stopping."""
        return self._rows(list(self._open))

    def end_unix_ns(self, window: CpiWindow) -> int:
        """Return the border at which a window ended."""
        return window.start_unix_ns + self._window_ns

    def _sums(self, key: tuple[str, str], labels: tuple[str, str, bool], part: _Delta) -> _Sums | None:
        dt_ns, mono_ns, unix_ns = part.dt_ns, part.mono_ns, part.unix_ns
        if dt_ns > self._window_ns + self._window_ns // 2:
            return None
        back_ns = dt_ns // 2
        if dt_ns > self._grace_ns and isinstance(part, DiskDelta):
            back_ns = 0
        index = (unix_ns - back_ns) // self._window_ns
        window = self._open.get(index)
        if window is not None and mono_ns - back_ns > window.close_mono_ns - self._grace_ns:
            # Unix time was set back: this is another window of the same name; the ended one stays as it is.
            self._renamed.append((index, self._open.pop(index)))
            window = None
        if window is None:
            left_ns = (index + 1) * self._window_ns - unix_ns
            window = self._open[index] = _Window(mono_ns + left_ns + self._grace_ns)
        sums = window.sums.get(key)
        if sums is None:
            sums = window.sums[key] = _Sums(labels)
        return sums

    def _rows(self, indexes: list[int]) -> list[CpiWindow]:
        rows = []
        ended = self._renamed + [(index, self._open.pop(index)) for index in sorted(indexes)]
        self._renamed = []
        for index, window in ended:
            for (uuid, epoch), sums in window.sums.items():
                if sums.cpu_dt_ns == 0:
                    self.without_cpu += 1
                else:
                    rows.append(self._row(uuid, epoch, index * self._window_ns, sums))
        self.closed += len(rows)
        return rows

    def _row(self, uuid: str, epoch: str, start_unix_ns: int, sums: _Sums) -> CpiWindow:
        usage_cores = sums.cpu_ns / sums.cpu_dt_ns
        cycles, instructions, ratio = _counts(sums)
        cpi, stalled, reason = None, None, Reason.UNSPECIFIED
        if ratio is None:
            reason = sums.perf_reason
        elif ratio == 0 or ratio < self._limits.min_running_ratio:
            reason, cycles, instructions = Reason.MULTIPLEXED, None, None
        elif usage_cores < self._limits.min_activity_cores or not sums.instructions or not sums.cycles:
            reason = Reason.IDLE
        else:
            cpi = sums.cycles / sums.instructions
            if sums.beside_stall_cycles > 0:
                stalled = _share(sums.stall_cycles, sums.beside_stall_cycles)
        waited = sums.wait_ns is not None and sums.wait_vcpu_ns > 0
        return CpiWindow(
            uuid,
            epoch,
            *sums.labels,
            start_unix_ns,
            sums.cpu_dt_ns,
            usage_cores,
            cpi,
            reason,
            cycles,
            instructions,
            ratio,
            (sums.wait_ns or 0) / sums.wait_vcpu_ns if waited else None,
            sums.disk_bytes.per_s(),
            sums.network_bytes.per_s(),
            stalled,
            _share(sums.io_wait_ns.total, sums.io_wait_ns.dt_ns) if sums.io_wait_ns.dt_ns else None,
            _rounded(sums.llc_byte_ns.total / sums.llc_byte_ns.dt_ns) if sums.llc_byte_ns.dt_ns else None,
            _rounded(sums.memory_bytes.per_s()),
        )


def _share(part: float, whole: float) -> float:
    return round(min(1.0, part / whole), _SHARE_DECIMALS)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_RDT_DIGITS}g}")


def _counts(sums: _Sums) -> tuple[int | None, int | None, float | None]:
    """Return cycles, instructions and running ratio. Counts that lack a thread are too small: None."""
    if sums.perf_dt_ns == 0:
        return None, None, None
    ratio = sums.running_ns / sums.enabled_ns if sums.enabled_ns else 1.0
    if not sums.complete:
        return None, None, ratio
    # Ticks in which the VM ran and its counters never did: time slices as well, seen from the window.
    counted_ns = sums.enabled_ns - sums.uncounted_ns
    factor = sums.enabled_ns / counted_ns if counted_ns > 0 else 1.0
    return round(sums.cycles * factor), round(sums.instructions * factor), ratio
