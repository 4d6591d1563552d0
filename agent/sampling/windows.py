"""Windows: what the agent keeps of a VM's ticks (10 s of them) and sends to central, metric by metric.

Which metrics, and how each is summed up, is in `whitepanda.common.window_columns`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.sampling.changes import (
    CgroupDelta,
    CpuDelta,
    DiskDelta,
    EventDelta,
    NetworkDelta,
    PerfDelta,
    ProcessDelta,
    RdtDelta,
    VmDelta,
)
from agent.sampling.metric_table import VM_METRICS, Value, VmRates
from agent.sampling.rates import EVENT_RATIOS, Limits, rates_of
from collector.base import VM_PARTS, Reason
from whitepanda.common.window_columns import BY_NAME, METRIC_COLUMNS

_Delta = CpuDelta | PerfDelta | DiskDelta | NetworkDelta | ProcessDelta | CgroupDelta | RdtDelta
_PERF = VM_PARTS.index("perf")
_NAMES = tuple(column.name for column in METRIC_COLUMNS)
_PLACE = {name: place for place, name in enumerate(_NAMES)}


@dataclass(frozen=True, slots=True)
class CpiWindow:
    """One VM over one window. None: not known (for `cpi`, `cpi_reason` says why).

    `start_unix_ns` is the window's border; `duration_ns` is how much of it was watched: less than the window's length
    if ticks were missed or the VM's epoch began or ended. `metrics`: the others of `window_columns.METRIC_COLUMNS` by
    name, each a number or the reason why it is not known; those that nobody looked for are not there.
    `new_reasons` are those that central has not been told; UNSPECIFIED: the metric is known again.
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
    metrics: Mapping[str, Value] = field(default_factory=dict)
    new_reasons: Mapping[str, Reason] = field(default_factory=dict)


def _planned(part: str) -> tuple[tuple[int, int, bool], ...]:
    """Return of each metric that windows keep of a part: place in `VmRates`, place here, whether its rule is `last`."""
    return tuple(
        (index, _PLACE[metric.name], BY_NAME[metric.name].rule == "last")
        for index, metric in enumerate(VM_METRICS)
        if metric.part == part and metric.name in _PLACE and BY_NAME[metric.name].rule in ("time", "last")
    )


#: By part, in the order of `collector.base.VM_PARTS`.
_PLANS = tuple(map(_planned, VM_PARTS))
_USED = frozenset(index for index, part in enumerate(VM_PARTS) if _PLANS[index] or part == "perf")
_PART_OF = {place: part for part, plan in enumerate(_PLANS) for _, place, _ in plan}
#: Metrics of events: their place here, the event, where its base stands in `EventDelta`, the factor.
_EVENTS = tuple((_PLACE[name], event, base, factor) for name, event, base, factor in EVENT_RATIOS if name in _PLACE)
_FREQUENCY = _PLACE["frequency_ratio"]


@dataclass(slots=True)
class _Sums:
    """One VM in one window so far: sums and their weights, by place, with the last reasons of what was not known."""

    labels: tuple[str, str, bool]
    cpu_dt_ns: int = 0
    cpu_ns: int = 0
    perf_dt_ns: int = 0
    complete: bool = True
    cycles: float = 0.0
    instructions: float = 0.0
    enabled_ns: int = 0
    uncounted_ns: int = 0
    running_ns: float = 0.0
    totals: list[float] = field(default_factory=lambda: [0.0] * len(_NAMES))
    weights: list[float] = field(default_factory=lambda: [0.0] * len(_NAMES))
    reasons: list[Reason] = field(default_factory=lambda: [Reason.UNSPECIFIED] * len(_NAMES))
    part_reasons: list[Reason] = field(default_factory=lambda: [Reason.NOT_PRESENT] * len(VM_PARTS))

    def add_rates(self, plan: Sequence[tuple[int, int, bool]], rates: VmRates, dt_ns: int) -> None:
        totals, weights = self.totals, self.weights
        for index, place, is_last in plan:
            value = rates[index]
            if value.__class__ is Reason:
                self.reasons[place] = value
            elif is_last:
                totals[place], weights[place] = value, 1.0
            else:
                totals[place] += value * dt_ns
                weights[place] += dt_ns

    def add(self, index: int, part: _Delta, rates: VmRates) -> None:
        """Add what is new of a part."""
        if type(part) is PerfDelta:
            self._add_perf(part)
            return
        if type(part) is CpuDelta:
            self.cpu_dt_ns += part.dt_ns
            self.cpu_ns += part.cpu_ns
        self.add_rates(_PLANS[index], rates, part.dt_ns)

    def add_others(self, change: VmDelta, rates: VmRates) -> None:
        """Note why parts are not known, and what has no time of its own."""
        for index, part in enumerate(change):
            if isinstance(part, tuple):
                continue
            if isinstance(part, Reason):
                self.part_reasons[index] = part
            else:
                self.add_rates(_PLANS[index], rates, 0)

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
        totals, weights, events = self.totals, self.weights, perf.events
        for place, name, base, factor in _EVENTS:
            event = events.get(name)
            if event is None:
                self.reasons[place] = perf.missing.get(name, Reason.NOT_PRESENT)
            else:
                totals[place] += event.counted * factor
                weights[place] += event[base]
        reference: EventDelta | None = events.get("reference_cycles")
        if reference is None:
            self.reasons[_FREQUENCY] = perf.missing.get("reference_cycles", Reason.NOT_PRESENT)
        else:
            totals[_FREQUENCY] += reference.cycles
            weights[_FREQUENCY] += reference.counted

    def mean(self, place: int) -> Value:
        """Return a metric of the window, rounded, or the reason why it is not known."""
        weight = self.weights[place]
        if weight <= 0:
            return self.reasons[place] or self.part_reasons[_PART_OF.get(place, _PERF)]
        column = METRIC_COLUMNS[place]
        return rounded(min(self.totals[place] / weight, column.largest), column.digits)


@dataclass(slots=True)
class _Window:
    """One open window: until its end and some grace on the monotonic clock, whatever Unix time does."""

    close_mono_ns: int
    sums: dict[tuple[str, str], _Sums] = field(default_factory=dict)


class WindowAccumulator:
    """Sums the ticks of all VMs over windows whose borders are multiples of their length in Unix time.

    `window_ns`: the length for batch VMs, and for latency-sensitive ones.

    A delta belongs to the window of its middle, exact to the sampling's jitter; a step of the Unix clock changes no
    duration. A slowly polled disk's belongs to the window of its end, as that of its middle may be closed. A delta much
    longer than a window is left out. A window waits `grace_ns` after its end for samples that were taken in it.
    """

    def __init__(self, window_ns: tuple[int, int], grace_ns: int, limits: Limits) -> None:
        self._window_ns = window_ns
        self._grace_ns = grace_ns
        self._limits = limits
        self._open: dict[tuple[int, int], _Window] = {}  # by length and number
        self._renamed: list[tuple[tuple[int, int], _Window]] = []
        # Ends of the deltas of each VM that were added last, by part: a slow source's delta is seen at several ticks.
        self._seen: dict[tuple[str, str], list[int]] = {}
        #: Windows closed, and those of them that were dropped because the VM's CPU usage was not known.
        self.closed = self.without_cpu = 0

    def add(
        self, uuid: str, epoch: str, labels: tuple[str, str, bool], change: VmDelta, rates: VmRates | None = None
    ) -> None:
        """Add one VM's deltas of this tick and what was made of them, but those added before.

        `labels`: its name, job, latency sensitivity.
        """
        key = (uuid, epoch)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = [0] * len(VM_PARTS)
        if rates is None:
            rates = rates_of(change, self._limits)
        latest: _Sums | None = None
        for index, part in enumerate(change):
            # In this order: isinstance of an Enum against what it is not costs ten times as much.
            if index in _USED and isinstance(part, tuple) and part.mono_ns > seen[index]:
                seen[index] = part.mono_ns
                if (sums := self._sums(key, labels, part)) is not None:
                    sums.add(index, part, rates)
                    latest = sums
        if latest is not None:
            latest.add_others(change, rates)

    def close(self, mono_ns: int, present: Iterable[tuple[str, str]]) -> list[CpiWindow]:
        """Return the windows that have ended, oldest first; forget VMs that are not `present`, by (UUID, epoch)."""
        ended = [which for which, window in self._open.items() if window.close_mono_ns <= mono_ns]
        if not ended and not self._renamed:
            return []
        for key in self._seen.keys() - set(present):
            del self._seen[key]
        return self._rows(ended)

    def flush(self) -> list[CpiWindow]:
        """Return all open windows as they are, oldest first: the agent is stopping."""
        return self._rows(list(self._open))

    @property
    def is_empty(self) -> bool:
        """Whether no window has begun."""
        return not self._open and not self._renamed

    def end_unix_ns(self, window: CpiWindow) -> int:
        """Return the border at which a window ended."""
        return window.start_unix_ns + self._window_ns[window.latency_sensitive]

    def _sums(self, key: tuple[str, str], labels: tuple[str, str, bool], part: _Delta) -> _Sums | None:
        dt_ns, mono_ns, unix_ns = part.dt_ns, part.mono_ns, part.unix_ns
        length_ns = self._window_ns[labels[2]]
        if dt_ns > length_ns + length_ns // 2:
            return None
        back_ns = dt_ns // 2
        if dt_ns > self._grace_ns and isinstance(part, DiskDelta):
            back_ns = 0
        number = (unix_ns - back_ns) // length_ns
        which = (length_ns, number)
        window = self._open.get(which)
        if window is not None and mono_ns - back_ns > window.close_mono_ns - self._grace_ns:
            # Unix time was set back: this is another window of the same name; the ended one stays as it is.
            self._renamed.append((which, self._open.pop(which)))
            window = None
        if window is None:
            left_ns = (number + 1) * length_ns - unix_ns
            window = self._open[which] = _Window(mono_ns + left_ns + self._grace_ns)
        sums = window.sums.get(key)
        if sums is None:
            sums = window.sums[key] = _Sums(labels)
        return sums

    def _rows(self, ended: list[tuple[int, int]]) -> list[CpiWindow]:
        rows = []
        ended.sort(key=lambda which: which[0] * which[1])
        windows = self._renamed + [(which, self._open.pop(which)) for which in ended]
        self._renamed = []
        for (length_ns, number), window in windows:
            for (uuid, epoch), sums in window.sums.items():
                if sums.cpu_dt_ns == 0:
                    self.without_cpu += 1
                else:
                    rows.append(self._row(uuid, epoch, number * length_ns, sums))
        self.closed += len(rows)
        return rows

    def _row(self, uuid: str, epoch: str, start_unix_ns: int, sums: _Sums) -> CpiWindow:
        usage_cores = sums.cpu_ns / sums.cpu_dt_ns
        cycles, instructions, ratio = _counts(sums)
        cpi, reason = None, Reason.UNSPECIFIED
        if ratio is None:
            reason = sums.part_reasons[_PERF]
        elif ratio == 0 or ratio < self._limits.min_running_ratio:
            reason, cycles, instructions = Reason.MULTIPLEXED, None, None
        elif usage_cores < self._limits.min_activity_cores or not sums.instructions or not sums.cycles:
            reason = Reason.IDLE
        else:
            cpi = sums.cycles / sums.instructions
        metrics = {name: sums.mean(place) for place, name in enumerate(_NAMES) if place in _PART_OF}
        counters: dict[str, Value] = dict.fromkeys(_OF_COUNTERS, reason)
        if ratio is not None:
            counters["running_ratio"] = rounded(ratio, BY_NAME["running_ratio"].digits)
        if instructions is not None and cycles is not None:
            counters["cycles"], counters["instructions"] = cycles, instructions
            counters["gips"] = rounded(instructions / sums.perf_dt_ns, BY_NAME["gips"].digits)
        elif not reason:
            counters |= dict.fromkeys(("cycles", "instructions", "gips"), Reason.VM_STARTING)  # a thread lacks counters
        if cpi is not None:
            counters |= {_NAMES[place]: sums.mean(place) for place in _OF_EVENTS}
        labels = sums.labels
        return CpiWindow(
            uuid,
            epoch,
            *labels,
            start_unix_ns,
            sums.cpu_dt_ns,
            usage_cores,
            cpi,
            reason,
            cycles,
            instructions,
            counters | metrics,
        )


_OF_EVENTS = (_FREQUENCY, *(place for place, *_ in _EVENTS))
_OF_COUNTERS = ("cycles", "instructions", "gips", "running_ratio", *(_NAMES[place] for place in _OF_EVENTS))


def rounded(value: float, digits: int) -> float:
    """Round to significant digits: what the hardware does not know would only take bytes in the lake."""
    return float(f"{value:.{digits}g}")


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
