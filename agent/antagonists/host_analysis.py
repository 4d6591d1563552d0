"""PANDA's verdicts: judges every VM over the last slots by what central has learnt, and ranks the suspects.

Slots are as long as those of central's statistics: a CPI over 10 s varies more than one over 300 s. The trigger is
`agent.analysis.contention.live_trigger` by default, which takes mnCPI of each window as it ends. In its first hour, or
if so configured, the paper's rule over slots (`slot_trigger`) decides.

mnCPI and trigger are per last-level cache (`agent.antagonists.cache_domain`). A VM's suspects are those that shared a
domain with it over the slot: one on another socket does not raise its CPI. A VM that was in several domains counts in
each. A VM whose domain is not known, and a control group outside of VMs, count in all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from agent.analysis.contention.normalised_cpi import CpiStatistics, TaskSlot, is_victim, n_cpi, victim_threshold
from agent.analysis.contention.suspect_scores import rank_suspects
from agent.analysis.verdict import Degradation
from agent.antagonists.cache_domain import Contention
from agent.antagonists.coefficients import CoefficientStore
from agent.antagonists.vm_slots import MIN_COVERAGE, CpiPoint, SlotVm, VmSlot, VmSlots
from agent.config import AnalysisSection
from agent.detection.decision_types import SuspectView
from agent.sampling.windows import CpiWindow
from collector.base import NumaPlacement, Reason

_DEFAULT_SLOT_NS = 300 * 10**9  # until central says otherwise: the paper's
_SAME_SLOT = 0.1  # windows as long as slots are sometimes a little longer; such slots vary alike
_FIRST = 2  # suspects kept at hand per domain: one of them may be the VM in question


@dataclass(frozen=True, slots=True)
class CpiVerdict:
    """The verdict on one VM by central's statistics. `degradation`: at least 1; None: not known.

    A victim's CPI is above its threshold while there is contention on the host.
    """

    verdict: Literal["victim", "normal", "unknown"]
    reason: str
    degradation: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedSlot:
    """One VM over the last slot, compared with its job: numbers as in `Explanation`."""

    cpi: float | None
    n_cpi: float | None
    threshold_cpi: float | None
    cpu_usage_cores: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts behind the verdict on one VM. None: not known. CPI in cycles per instruction."""

    statistics: CpiStatistics | None
    cpi: float | None
    n_cpi: float | None
    victim_threshold_cpi: float | None
    mn_cpi: float | None  # the value that is compared with its threshold
    mn_cpi_threshold: float
    victim_slots: int
    coefficient_version: int
    coefficient_age_ns: int
    history: tuple[CpiPoint, ...]
    triggered: bool


class HostAnalysis:
    """PANDA's verdicts for the VMs of this host. Single-threaded: all calls from the daemon's loop.

    `platform`: CPU model of this host; statistics are per platform. `domain_of_node` as from
    `collector.inventory.numa.llc_domains`; with none or a single domain all VMs may hurt all.
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
        several = len(set(domain_of_node.values())) > 1
        self._slots = VmSlots(section.victim_slots, domain_of_node if several else {})
        self._domains = {0: Contention(section)}
        self._platform = platform
        self._store = store
        self._vms = self._slots.vms
        #: Length of the slots that are compared: central's, but never less than a window.
        self.slot_ns = store.slot_ns or _DEFAULT_SLOT_NS
        self._now_unix_ns = 0
        self._last: dict[str, VmSlot] = {}
        self._suspects: tuple[SuspectView, ...] = ()
        #: The VMs that suffer by this analysis, with their slow-down: latency-sensitive, above their threshold, while
        #: there is contention.
        self.suffering: dict[str, Degradation] = {}
        self._by_uuid: dict[str, SuspectView] = {}
        self._first: dict[int, list[SuspectView]] = {}  # of each domain the first two suspects

    @property
    def mn_cpi(self) -> float | None:
        """Equation (2) as it is compared with its threshold, of the worst domain; None if no CPI can be judged."""
        return self._worst().value

    @property
    def mn_cpi_threshold(self) -> float:
        """Threshold of the trigger there."""
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
        """Take all VMs' windows that have just ended, and judge the slots that end now. `places`: of VMs, by UUID."""
        self._now_unix_ns = now_unix_ns
        self._set_slot(max([self._store.slot_ns or _DEFAULT_SLOT_NS, *(w.duration_ns for w in windows)]))
        self._slots.take(windows, places or {}, now_unix_ns, self.slot_ns)
        self._make_domains()
        slots = [
            self._slots.over(now_unix_ns - age * self.slot_ns, self.slot_ns, youngest=age == 0)
            for age in range(self._section.victim_slots)
        ]
        tasks = [self._tasks(slot) for slot in slots]
        self._last = slots[0]
        for number, domain in self._domains.items():
            mine = [window for window in windows if self._is_in(window.vm, number)]
            domain.watch(mine, self._n_cpi_of, self._store.version)
            inside = [[task for task in each if self._is_in(task.task, number)] for each in tasks]
            domain.take_slots(inside, now_unix_ns, self.slot_ns)
        self._slots.record(self._last, now_unix_ns, self.slot_ns)
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

    def verdict(self, uuid: str) -> CpiVerdict:
        """Judge one VM by the last slot."""
        vm, slot = self._vms.get(uuid), self._last.get(uuid)
        if vm is None or slot is None:
            return CpiVerdict("unknown", "no CPI window of this VM yet")
        statistics = self._statistics(vm)
        if slot.cpi is None or statistics is None or not self._covered(slot):
            return CpiVerdict("unknown", self._why_unknown(vm, slot, statistics))
        degradation = max(1.0, slot.cpi / statistics.mean)
        if statistics.std <= 0:
            return CpiVerdict("unknown", self._why_unknown(vm, slot, statistics), degradation)
        exceeds = is_victim(slot.cpi, statistics)
        suffers = uuid in self.suffering
        compared = " exceeds" if suffers else ", limit" if exceeds else " is within"
        text = (
            f"CPI {slot.cpi:.4g}{compared} {victim_threshold(statistics):.4g}"
            f" = mean {statistics.mean:.4g} + 2 std {statistics.std:.4g} of job {vm.job} on this platform"
        )
        if exceeds and not suffers:
            counts = "only while mnCPI shows contention on the host"
            text += f"; a higher CPI counts {counts if vm.latency_sensitive else 'for latency-sensitive jobs only'}"
        return CpiVerdict("victim" if suffers else "normal", text, degradation)

    def slot(self, uuid: str) -> JudgedSlot | None:
        """Return the last slot of a VM, if it has one."""
        vm, slot = self._vms.get(uuid), self._last.get(uuid)
        if vm is None or slot is None:
            return None
        statistics = self._statistics(vm)
        threshold = victim_threshold(statistics) if statistics else None
        return JudgedSlot(slot.cpi, self._n_cpi(slot, statistics), threshold, slot.cpu_usage_cores)

    def suspects(self, uuid: str) -> tuple[SuspectView, ...]:
        """Return the VMs that may hurt a VM, the highest score first; "" or an unknown VM: any VM."""
        vm = self._vms.get(uuid)
        if vm is None or not vm.domains:
            return self._suspects
        return tuple(s for s in self._suspects if any(self._is_in(s.uuid, number) for number in vm.domains))

    def suspect(self, uuid: str) -> SuspectView | None:
        """Return a suspect by UUID; None: this analysis does not suspect it."""
        return self._by_uuid.get(uuid)

    def first_suspect(self, uuid: str) -> SuspectView | None:
        """Return the likeliest of `suspects`, without going through all of them."""
        vm = self._vms.get(uuid)
        places = sorted((vm.domains if vm is not None else None) or self._domains)
        known = (one for number in places for one in self._first.get(number, ()) if one.uuid != uuid)
        return max(known, key=lambda one: -math.inf if one.score is None else one.score, default=None)

    def job_mean_cpi(self, uuid: str) -> float | None:
        """Return the mean CPI of a VM's job on this platform; None: central has not sent it."""
        statistics = self._statistics(self._vms.get(uuid))
        return statistics.mean if statistics else None

    def explain(self, uuid: str) -> Explanation:
        """Return the facts behind the verdict on one VM; all are unknown for a VM without windows."""
        vm, judged = self._vms.get(uuid), self.slot(uuid)
        statistics, domain = self._statistics(vm), self._worst(vm)
        latest = takewhile(lambda state: uuid in state.victims, reversed(domain.states))
        return Explanation(
            statistics=statistics,
            cpi=judged.cpi if judged else None,
            n_cpi=judged.n_cpi if judged else None,
            victim_threshold_cpi=victim_threshold(statistics) if statistics else None,
            mn_cpi=domain.value,
            mn_cpi_threshold=domain.threshold,
            victim_slots=sum(1 for _ in latest),
            coefficient_version=self._store.version,
            coefficient_age_ns=self._store.age_ns(self._now_unix_ns),
            history=tuple(vm.points) if vm else (),
            triggered=domain.triggered,
        )

    # --- domains ---

    def _make_domains(self) -> None:
        """Make a state for each domain that a VM is in."""
        known = frozenset[int]().union(*(vm.domains for vm in self._vms.values()))
        if known and not known <= self._domains.keys():
            if len(known) == len(self._domains) == 1:  # the state from before any VM was placed belongs to this one
                self._domains = {next(iter(known)): next(iter(self._domains.values()))}
            for number in sorted(known - self._domains.keys()):
                self._domains[number] = Contention(self._section)

    def _is_in(self, uuid: str, domain: int) -> bool:
        vm = self._vms.get(uuid)
        return vm is None or not vm.domains or domain in vm.domains

    def _worst(self, vm: SlotVm | None = None) -> Contention:
        """Return the domain with the worst contention, of a VM's own ones or of all."""
        own = [self._domains[number] for number in sorted(vm.domains)] if vm else []
        return max(own or self._domains.values(), key=lambda domain: domain.excess)

    def _n_cpi_of(self, window: CpiWindow) -> float | None:
        if not window.latency_sensitive or window.cpi is None:
            return None
        statistics = self._store.statistics(window.job, self._platform, self._now_unix_ns)
        return None if statistics is None else n_cpi(window.cpi, statistics)

    # --- windows and slots ---

    def _set_slot(self, slot_ns: int) -> None:
        if abs(slot_ns - self.slot_ns) > _SAME_SLOT * self.slot_ns:
            # Values over slots of another length vary differently: they are not comparable.
            for domain in self._domains.values():
                domain.forget()
            self._slots.forget_points()
        self.slot_ns = slot_ns

    def _covered(self, slot: VmSlot) -> bool:
        return slot.watched_ns >= MIN_COVERAGE * self.slot_ns

    def _tasks(self, slots: dict[str, VmSlot]) -> list[TaskSlot]:
        tasks = []
        for uuid, slot in slots.items():
            vm, cpi = self._vms[uuid], slot.cpi if self._covered(slot) else None
            statistics = self._statistics(vm)
            tasks.append(TaskSlot(uuid, vm.job, vm.latency_sensitive, cpi, slot.cpu_usage_cores, statistics))
        return tasks

    def _rank(self, tasks: list[TaskSlot]) -> tuple[SuspectView, ...]:
        known = {job: self._store.coefficient(job, self._now_unix_ns) for job in {t.job for t in tasks}}
        coefficients = {job: coefficient.value for job, coefficient in known.items() if coefficient is not None}
        # They are of one method: rows of another one have other tags, so that they replace all others.
        method = next((coefficient.method for coefficient in known.values() if coefficient is not None), "")
        unknown = Reason.STALE if self._store.expired(self._now_unix_ns) else Reason.NO_COEFFICIENTS
        return tuple(
            SuspectView(
                uuid=s.task,
                name=self._vms[s.task].name,
                job=s.job,
                cpu_usage_cores=s.cpu_usage_cores,
                coefficient=s.coefficient,
                score=s.score,
                reason=Reason.UNSPECIFIED if s.score is not None else unknown,
                epoch=self._vms[s.task].epoch,
            )
            for s in rank_suspects(tasks, coefficients, method)
        )

    # --- one VM ---

    def _statistics(self, vm: SlotVm | None) -> CpiStatistics | None:
        return self._store.statistics(vm.job, self._platform, self._now_unix_ns) if vm else None

    def _n_cpi(self, slot: VmSlot, statistics: CpiStatistics | None) -> float | None:
        if slot.cpi is None or statistics is None or not self._covered(slot):
            return None
        return n_cpi(slot.cpi, statistics)

    def _slow_down(self, uuid: str) -> Degradation:
        """CPI over the slot / the job's mean CPI, with the interval that mean -+ 2 std of the job's VMs give."""
        vm, slot = self._vms[uuid], self._last[uuid]
        statistics = self._statistics(vm)
        if slot.cpi is None or statistics is None or statistics.mean <= 0:
            return Degradation(cannot_tell="no_baseline", model="cpi")
        least = statistics.mean - 2 * statistics.std
        high = slot.cpi / least if least > 0 else math.nan
        return Degradation(slot.cpi / statistics.mean, slot.cpi / victim_threshold(statistics), high, model="cpi")

    def _why_unknown(self, vm: SlotVm, slot: VmSlot, statistics: CpiStatistics | None) -> str:
        store, job = self._store, vm.job
        if slot.cpi is None:
            idle, reason = "idle: too little CPU over the last slot for a CPI", slot.cpi_reason
            return idle if reason is Reason.IDLE else f"no CPI over the last slot: {reason.code}"
        if statistics is None and not store.version:
            return f"no statistics for job {job} yet: central has not sent any"
        if statistics is None and store.expired(self._now_unix_ns):
            age_h, ttl_h = store.age_ns(self._now_unix_ns) / 3.6e12, store.ttl_ns / 3.6e12
            old = f"statistics of version {store.version} are {age_h:.1f} h old, past their time to live"
            return f"{old} of {ttl_h:.1f} h: central has sent no newer ones"
        if statistics is None:
            return f"no statistics for job {job} on this platform yet: version {store.version} has none"
        if statistics.std <= 0:
            return f"the CPI of job {job} did not vary over its {statistics.samples} samples: there is no threshold"
        watched_s, slot_s = slot.watched_ns / 1e9, self.slot_ns / 1e9
        return f"watched for {watched_s:.0f} s of a slot of {slot_s:.0f} s: too short to compare"
