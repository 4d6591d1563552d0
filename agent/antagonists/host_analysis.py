"""Antagonists on this host: keeps the last slots' CPI windows and judges every VM by what central has learnt.

After each window the trailing slots are looked at anew: the last one ends now, the one before ends a slot
length ago, and so on. The slot length is that of central's statistics, because a CPI over 10 s varies more
than one over 300 s and the two do not compare.

The trigger is `agent.analysis.antagonists.trigger` by default, which takes mnCPI of each window as it ends; until it
has seen an hour, and where it is so configured, it is the paper's rule over slots.

mnCPI and trigger are per domain of a last-level cache (`agent.antagonists.contention`), and a VM's suspects are
those that were in a domain of its own over the slot: one on another socket does not raise its CPI. A VM that was in
several counts in each; one of which that is not known, and a control group beside the VMs, counts in all.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.analysis.antagonists import panda as antagonists
from agent.analysis.antagonists.panda import CpiStatistics, TaskSlot
from agent.antagonists.coefficients import CoefficientStore
from agent.antagonists.contention import MIN_COVERAGE, Contention
from agent.config import AnalysisSection
from agent.detection.verdicts import Degradation, SuspectView
from agent.sampling.windows import CpiWindow
from collector.base import NumaPlacement, Reason
from collector.inventory.numa import domains_of

_DEFAULT_SLOT_NS = 300 * 10**9  # until central says otherwise: the paper's
_SAME_SLOT = 0.1  # windows as long as slots last a little longer now and then; those slots vary alike
_POINTS = 12  # slots shown by `explain`: an hour of 5-minute slots
_ANYWHERE = frozenset[int]()
_FIRST = 2  # suspects that are kept at hand of each domain: one of them may be the VM that is asked for


@dataclass(frozen=True, slots=True)
class Verdict:
    """What central's statistics say of one VM now. `degradation` is None where it is not known.

    A victim's CPI is above its threshold while there is contention on the host. `degradation` is at least 1.
    """

    verdict: Literal["victim", "normal", "unknown"]
    reason: str
    degradation: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedSlot:
    """One VM over the last slot beside its job: numbers as in `Explanation`."""

    cpi: float | None
    n_cpi: float | None
    threshold_cpi: float | None
    cpu_usage_cores: float


@dataclass(frozen=True, slots=True)
class CpiPoint:
    """One slot of a VM. `cpi` None: not known."""

    start_unix_ns: int
    cpi: float | None
    cpu_usage_cores: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that the verdict on one VM was made of. None: not known. CPI in cycles per instruction."""

    uuid: str
    verdict: Verdict
    statistics: CpiStatistics | None
    cpi: float | None
    n_cpi: float | None
    victim_threshold_cpi: float | None
    mn_cpi: float | None  # that which is compared with its threshold
    mn_cpi_threshold: float
    victim_slots: int
    coefficient_version: int
    coefficient_age_ns: int
    suspects: tuple[SuspectView, ...]
    history: tuple[CpiPoint, ...]
    triggered: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is kept of a window."""

    middle_unix_ns: int
    duration_ns: int
    cpu_usage_cores: float
    cpi: float | None
    cpi_reason: Reason
    cycles: int | None
    instructions: int | None
    domains: frozenset[int]


@dataclass(slots=True)
class _Vm:
    """One VM in its present epoch. `domains` it was in over the last slot; none: not known."""

    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    pieces: deque[_Piece] = field(default_factory=deque)
    domains: frozenset[int] = _ANYWHERE
    points: deque[CpiPoint] = field(default_factory=lambda: deque(maxlen=_POINTS))


@dataclass(frozen=True, slots=True)
class _Slot:
    """One VM over one slot."""

    cpi: float | None
    cpi_reason: Reason
    cpu_usage_cores: float
    watched_ns: int


class HostAnalysis:
    """PANDA's verdicts for the VMs of this host. Single-threaded: all calls from the daemon's loop.

    Args:
        section: thresholds and history length.
        platform: CPU model of this host; statistics are per platform.
        store: what central sent.
        domain_of_node: as from `collector.inventory.numa.llc_domains`; nothing, or a single domain: all VMs may hurt
            all.

    """

    def __init__(
        self,
        section: AnalysisSection,
        platform: str,
        store: CoefficientStore,
        domain_of_node: Mapping[int, int] | None = None,
    ) -> None:
        self._section = section
        domain_of_node = domain_of_node or {}
        self._domain_of_node = domain_of_node if len(set(domain_of_node.values())) > 1 else {}
        self._domains = {0: Contention(section)}
        self._platform = platform
        self._store = store
        self._vms: dict[str, _Vm] = {}
        self._slot_ns = store.slot_ns or _DEFAULT_SLOT_NS
        self._recorded_unix_ns = 0
        self._now_unix_ns = 0
        self._last: dict[str, _Slot] = {}
        self._suspects: tuple[SuspectView, ...] = ()
        #: The VMs that suffer by this analysis, with their slow-down: latency-sensitive, above their threshold, where
        #: there is contention.
        self.suffering: dict[str, Degradation] = {}
        self._by_uuid: dict[str, SuspectView] = {}
        self._first: dict[int, list[SuspectView]] = {}  # of each domain the first two suspects

    @property
    def slot_ns(self) -> int:
        """Length of the slots that are compared: central's, but never less than a window."""
        return self._slot_ns

    @property
    def mn_cpi(self) -> float | None:
        """Equation (2) as it is compared with its threshold, of the worst domain; None where no CPI can be judged."""
        return self._worst().value

    @property
    def mn_cpi_threshold(self) -> float:
        """What mnCPI has to exceed there for the trigger."""
        return self._worst().threshold

    @property
    def triggered(self) -> bool:
        """Whether there is contention now, in any domain."""
        return self._worst().triggered

    @property
    def coefficient_version(self) -> int:
        """Version of the statistics and coefficients in use; 0 means none."""
        return self._store.version

    def observe(
        self, windows: Sequence[CpiWindow], now_unix_ns: int, places: Mapping[str, NumaPlacement] | None = None
    ) -> None:
        """Take the windows that have just ended, of all VMs, and judge the slots that end now.

        Args:
            windows: any number, also none (the host has no VM now).
            now_unix_ns: the windows' end, about.
            places: where VMs are, by UUID.

        """
        self._now_unix_ns = now_unix_ns
        self._set_slot(max([self._store.slot_ns or _DEFAULT_SLOT_NS, *(w.duration_ns for w in windows)]))
        for window in windows:
            self._keep(window, (places or {}).get(window.vm))
        self._forget()
        self._place()
        slots = [self._slots(age) for age in range(self._section.victim_slots)]
        tasks = [self._tasks(slot) for slot in slots]
        self._last = slots[0]
        for number, domain in self._domains.items():
            mine = [window for window in windows if self._is_in(window.vm, number)]
            domain.watch(mine, self._n_cpi_of, self._store.version)
            inside = [[task for task in each if self._is_in(task.task, number)] for each in tasks]
            domain.take_slots(inside, now_unix_ns, self._slot_ns)
        self._record()
        self._suspects = self._rank(tasks[0])
        self._by_uuid = {one.uuid: one for one in self._suspects}
        self._first = {number: [] for number in self._domains}
        for suspect in self._suspects:
            for number in self._vms[suspect.uuid].domains or self._domains:
                if len(self._first[number]) < _FIRST:
                    self._first[number].append(suspect)
        self.suffering = {
            uuid: self._slow_down(uuid)
            for domain in self._domains.values()
            if domain.triggered and domain.states
            for uuid in domain.states[-1].victims
        }

    def verdict(self, uuid: str) -> Verdict:
        """Judge one VM by the last slot."""
        vm, slot = self._vms.get(uuid), self._last.get(uuid)
        if vm is None or slot is None:
            return Verdict("unknown", "no CPI window of this VM yet")
        statistics = self._statistics(vm)
        degradation = self._degradation(slot, statistics)
        if slot.cpi is None or statistics is None or statistics.std <= 0 or not self._covered(slot):
            return Verdict("unknown", self._why_unknown(vm, slot, statistics), degradation)
        exceeds = antagonists.is_victim(slot.cpi, statistics)
        suffers = uuid in self.suffering
        compared = " exceeds" if suffers else ", limit" if exceeds else " is within"
        text = (
            f"CPI {slot.cpi:.4g}{compared} {antagonists.victim_threshold(statistics):.4g}"
            f" = mean {statistics.mean:.4g} + 2 std {statistics.std:.4g} of job {vm.job} on this platform"
        )
        if suffers:
            return Verdict("victim", text, degradation)
        if exceeds and not vm.latency_sensitive:
            text += "; a higher CPI counts for latency-sensitive jobs only"
        elif exceeds:
            text += "; a higher CPI counts only while mnCPI shows contention on the host"
        return Verdict("normal", text, degradation)

    def slot(self, uuid: str) -> JudgedSlot | None:
        """Return the last slot of a VM; None where there is none."""
        vm, slot = self._vms.get(uuid), self._last.get(uuid)
        if vm is None or slot is None:
            return None
        statistics = self._statistics(vm)
        threshold = antagonists.victim_threshold(statistics) if statistics else None
        return JudgedSlot(slot.cpi, self._n_cpi(slot, statistics), threshold, slot.cpu_usage_cores)

    def suspects(self, uuid: str) -> tuple[SuspectView, ...]:
        """Return who may hurt a VM, the highest score first; of a VM that is not known, and of "": of any."""
        vm = self._vms.get(uuid)
        return self._suspects if vm is None else self._suspects_of(vm)

    def suspect(self, uuid: str) -> SuspectView | None:
        """Return one suspect; None where it is none by this analysis."""
        return self._by_uuid.get(uuid)

    def first_suspect(self, uuid: str) -> SuspectView | None:
        """Return who of `suspects` is the likeliest to hurt a VM, without going through all of them."""
        vm = self._vms.get(uuid)
        places = sorted((vm.domains if vm is not None else None) or self._domains)
        known = (one for number in places for one in self._first.get(number, ()) if one.uuid != uuid)
        return max(known, key=lambda one: -math.inf if one.score is None else one.score, default=None)

    def job_mean_cpi(self, uuid: str) -> float | None:
        """Return the mean CPI of a VM's job on this platform; None where central has not sent it."""
        vm = self._vms.get(uuid)
        statistics = self._statistics(vm) if vm else None
        return statistics.mean if statistics else None

    def explain(self, uuid: str) -> Explanation:
        """Return all that the verdict on one VM is made of; for a VM without windows all is unknown."""
        vm, judged = self._vms.get(uuid), self.slot(uuid)
        statistics = self._statistics(vm) if vm else None
        domain = self._worst(vm)
        return Explanation(
            uuid=uuid,
            verdict=self.verdict(uuid),
            statistics=statistics,
            cpi=judged.cpi if judged else None,
            n_cpi=judged.n_cpi if judged else None,
            victim_threshold_cpi=antagonists.victim_threshold(statistics) if statistics else None,
            mn_cpi=domain.value,
            mn_cpi_threshold=domain.threshold,
            victim_slots=self._consecutive(uuid),
            coefficient_version=self._store.version,
            coefficient_age_ns=self._store.age_ns(self._now_unix_ns),
            suspects=tuple(s for s in self.suspects(uuid) if s.uuid != uuid),
            history=tuple(vm.points) if vm else (),
            triggered=domain.triggered,
        )

    # --- domains ---

    def _place(self) -> None:
        """Set where each VM was over the last slot, and have a state for each domain."""
        if not self._domain_of_node:
            return
        since = self._now_unix_ns - self._slot_ns
        for vm in self._vms.values():
            vm.domains = _ANYWHERE.union(*(p.domains for p in vm.pieces if p.middle_unix_ns > since))
        known = _ANYWHERE.union(*(vm.domains for vm in self._vms.values()))
        if known and not known <= self._domains.keys():
            if len(known) == len(self._domains) == 1:  # what was learnt before any VM was placed is of this one
                self._domains = {next(iter(known)): next(iter(self._domains.values()))}
            for number in sorted(known - self._domains.keys()):
                self._domains[number] = Contention(self._section)

    def _is_in(self, uuid: str, domain: int) -> bool:
        vm = self._vms.get(uuid)
        return vm is None or not vm.domains or domain in vm.domains

    def _worst(self, vm: _Vm | None = None) -> Contention:
        """Return the domain with the worst contention, of a VM's own ones or of all."""
        own = [self._domains[number] for number in sorted(vm.domains)] if vm else []
        return max(own or self._domains.values(), key=lambda domain: domain.excess)

    def _suspects_of(self, vm: _Vm) -> tuple[SuspectView, ...]:
        """Return who may hurt a VM: those that share a domain with it."""
        if not vm.domains:
            return self._suspects
        return tuple(s for s in self._suspects if any(self._is_in(s.uuid, number) for number in vm.domains))

    def _n_cpi_of(self, window: CpiWindow) -> float | None:
        """Of a latency-sensitive VM."""
        if not window.latency_sensitive or window.cpi is None:
            return None
        statistics = self._store.statistics(window.job, self._platform, self._now_unix_ns)
        return None if statistics is None else antagonists.n_cpi(window.cpi, statistics)

    # --- windows and slots ---

    def _set_slot(self, slot_ns: int) -> None:
        if abs(slot_ns - self._slot_ns) > _SAME_SLOT * self._slot_ns:
            # Values over slots of another length vary differently: they are no history of these.
            for domain in self._domains.values():
                domain.forget()
            self._recorded_unix_ns = 0
            for vm in self._vms.values():
                vm.points.clear()
        self._slot_ns = slot_ns

    def _keep(self, window: CpiWindow, place: NumaPlacement | None) -> None:
        vm = self._vms.get(window.vm)
        if vm is None or vm.epoch != window.epoch:
            vm = self._vms[window.vm] = _Vm(window.epoch, window.name, window.job, window.latency_sensitive)
        vm.name, vm.job, vm.latency_sensitive = window.name, window.job, window.latency_sensitive
        vm.pieces.append(
            _Piece(
                window.start_unix_ns + window.duration_ns // 2,
                window.duration_ns,
                window.cpu_usage_cores,
                window.cpi,
                window.cpi_reason,
                window.cycles,
                window.instructions,
                domains_of(place, self._domain_of_node) if place and self._domain_of_node else _ANYWHERE,
            )
        )

    def _forget(self) -> None:
        """Drop what is older than the slots under test, and what a clock set back has put into the future."""
        oldest = self._now_unix_ns - self._section.victim_slots * self._slot_ns
        newest = self._now_unix_ns + self._slot_ns
        for uuid, vm in list(self._vms.items()):
            while vm.pieces and vm.pieces[0].middle_unix_ns <= oldest:
                vm.pieces.popleft()
            # In order but for a step of the clock, and that shows at an end: mostly there is nothing to do.
            if any(not oldest < vm.pieces[i].middle_unix_ns <= newest for i in (0, -1) if vm.pieces):
                vm.pieces = deque(p for p in vm.pieces if oldest < p.middle_unix_ns <= newest)
            if not vm.pieces:
                del self._vms[uuid]

    def _slots(self, age: int) -> dict[str, _Slot]:
        """Every VM over the slot that ended `age` slot lengths ago."""
        end = self._now_unix_ns - age * self._slot_ns
        found = {}
        for uuid, vm in self._vms.items():
            # A window belongs where its middle is: windows end some milliseconds beside the grid. The
            # youngest slot also has what is dated a little ahead of now.
            pieces = [
                p for p in vm.pieces if end - self._slot_ns < p.middle_unix_ns and (age == 0 or p.middle_unix_ns <= end)
            ]
            if pieces:
                found[uuid] = _slot_of(pieces)
        return found

    def _covered(self, slot: _Slot) -> bool:
        return slot.watched_ns >= MIN_COVERAGE * self._slot_ns

    def _tasks(self, slots: dict[str, _Slot]) -> list[TaskSlot]:
        tasks = []
        for uuid, slot in slots.items():
            vm = self._vms[uuid]
            cpi = slot.cpi if self._covered(slot) else None
            tasks.append(TaskSlot(uuid, vm.job, vm.latency_sensitive, cpi, slot.cpu_usage_cores, self._statistics(vm)))
        return tasks

    def _record(self) -> None:
        """Once per slot length keep this slot in the VMs' histories."""
        if self._now_unix_ns // self._slot_ns == self._recorded_unix_ns // self._slot_ns:
            return
        self._recorded_unix_ns = self._now_unix_ns
        start = self._now_unix_ns - self._slot_ns
        for uuid, last in self._last.items():
            self._vms[uuid].points.append(CpiPoint(start, last.cpi, last.cpu_usage_cores))

    def _rank(self, tasks: list[TaskSlot]) -> tuple[SuspectView, ...]:
        known = {job: self._store.coefficient(job, self._now_unix_ns) for job in {t.job for t in tasks}}
        coefficients = {job: coefficient.value for job, coefficient in known.items() if coefficient is not None}
        # They are of one method: rows of another one have other tags, so that they replace all others at once.
        method = next((coefficient.method for coefficient in known.values() if coefficient is not None), "")
        expired = self._store.expired(self._now_unix_ns)
        return tuple(
            SuspectView(
                uuid=s.task,
                name=self._vms[s.task].name,
                job=s.job,
                cpu_usage_cores=s.cpu_usage_cores,
                coefficient=s.coefficient,
                score=s.score,
                reason=Reason.STALE if expired and s.score is None else s.reason,
                epoch=self._vms[s.task].epoch,
            )
            for s in antagonists.rank_suspects(antagonists.suspects_of(tasks, coefficients), method)
        )

    # --- one VM ---

    def _statistics(self, vm: _Vm) -> CpiStatistics | None:
        return self._store.statistics(vm.job, self._platform, self._now_unix_ns)

    def _consecutive(self, uuid: str) -> int:
        count = 0
        for state in reversed(self._worst(self._vms.get(uuid)).states):
            if uuid not in state.victims:
                break
            count += 1
        return count

    def _n_cpi(self, slot: _Slot | None, statistics: CpiStatistics | None) -> float | None:
        if slot is None or slot.cpi is None or statistics is None or not self._covered(slot):
            return None
        return antagonists.n_cpi(slot.cpi, statistics)

    def _slow_down(self, uuid: str) -> Degradation:
        """CPI over the slot / the job's mean CPI, with the interval that mean -+ 2 std of the job's VMs give."""
        vm, slot = self._vms[uuid], self._last[uuid]
        statistics = self._statistics(vm)
        if slot.cpi is None or statistics is None or statistics.mean <= 0:
            return Degradation(cannot_tell="no_baseline", model="cpi")
        least = statistics.mean - 2 * statistics.std
        return Degradation(
            ratio=slot.cpi / statistics.mean,
            low=slot.cpi / antagonists.victim_threshold(statistics),
            high=slot.cpi / least if least > 0 else math.nan,
            model="cpi",
        )

    def _degradation(self, slot: _Slot, statistics: CpiStatistics | None) -> float | None:
        """CPI now over the job's mean CPI, at least 1: an estimate from CPI alone."""
        if slot.cpi is None or statistics is None or not self._covered(slot):
            return None
        return max(1.0, slot.cpi / statistics.mean)

    def _why_unknown(self, vm: _Vm, slot: _Slot, statistics: CpiStatistics | None) -> str:
        if slot.cpi is None:
            if slot.cpi_reason is Reason.IDLE:
                return "idle: too little CPU over the last slot for a CPI"
            return f"no CPI over the last slot: {slot.cpi_reason.code}"
        if statistics is None:
            return self._no_statistics(vm)
        if statistics.std <= 0:
            samples = statistics.samples
            return f"the CPI of job {vm.job} did not vary over its {samples} samples: there is no threshold"
        watched_s, slot_s = slot.watched_ns / 1e9, self._slot_ns / 1e9
        return f"watched for {watched_s:.0f} s of a slot of {slot_s:.0f} s: too short to compare"

    def _no_statistics(self, vm: _Vm) -> str:
        store = self._store
        if not store.version:
            return f"no statistics for job {vm.job} yet: central has not sent any"
        if store.expired(self._now_unix_ns):
            age_h, ttl_h = store.age_ns(self._now_unix_ns) / 3.6e12, store.ttl_ns / 3.6e12
            return (
                f"statistics of version {store.version} are {age_h:.1f} h old, past their time to live of"
                f" {ttl_h:.1f} h: central has sent no newer ones"
            )
        return f"no statistics for job {vm.job} on this platform yet: version {store.version} has none"


def _slot_of(pieces: list[_Piece]) -> _Slot:
    """Sum windows up to a slot: CPI is cycles over instructions, else the mean weighted by duration."""
    watched = sum(p.duration_ns for p in pieces)
    usage = math.fsum(p.cpu_usage_cores * p.duration_ns for p in pieces) / watched if watched else 0.0
    known = [p for p in pieces if p.cpi is not None]
    cycles = sum(p.cycles for p in known if p.cycles is not None and p.instructions)
    instructions = sum(p.instructions for p in known if p.cycles is not None and p.instructions)
    duration = sum(p.duration_ns for p in known)
    if instructions:
        return _Slot(cycles / instructions, Reason.UNSPECIFIED, usage, watched)
    if duration:
        mean = math.fsum(p.cpi * p.duration_ns for p in known if p.cpi is not None) / duration
        return _Slot(mean, Reason.UNSPECIFIED, usage, watched)
    return _Slot(None, pieces[-1].cpi_reason, usage, watched)
