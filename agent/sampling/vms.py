"""The VMs of this host: who is there, to which job each belongs, and what all sources say of it, joined.

A VM is a UUID in one epoch. A new epoch starts it anew, so that no delta crosses a restart or a migration.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from agent.config import JobRule
from agent.sampling.changes import JoinedVm, PerfDelta, Reading, VmDelta
from agent.sampling.deltas import subtract
from agent.sampling.metric_table import VM_METRICS, VmRates
from agent.sampling.rates import Limits, rates_of
from agent.sampling.traffic import Traffic
from collector.base import VM_PARTS, Reason, SourceSample, VmIdentity
from collector.inventory.coverage import PART_SOURCES, why_absent
from whitepanda.common import log
from whitepanda.common.texts import clean_name

_log = log.get("vms")

Part = Reading[Any] | Reason

_new = tuple.__new__
_STARTING = (Reason.VM_STARTING,) * len(VM_PARTS)
_NOTHING = VmDelta(*_STARTING)
_INVALID = VmRates(*(Reason.INVALID_VALUE,) * len(VmRates._fields))


class Placing(NamedTuple):
    """What the rules say of a VM."""

    job: str
    latency_sensitive: bool
    owner: str
    workers: int | None = None
    alert: bool = True


class JobRules:
    """The configured rules, compiled. The first rule with a pattern that its fact matches names the job."""

    def __init__(self, rules: Sequence[JobRule]) -> None:
        self._rules = tuple((re.compile(rule.pattern), rule) for rule in rules)

    def job_of(self, identity: VmIdentity) -> Placing:
        """Return a VM's job, whether it is latency-sensitive, and its owner.

        Without a matching rule a VM of OpenStack Nova is of the job PROJECT/FLAVOR, any other of its own name. Neither
        is latency-sensitive, and both can be victims: their latency may matter. If no rule names the owner it is Nova's
        project, else "". A rule that makes an empty job does not match. Tenants write the facts: the results are clean.
        """
        project, flavor = identity.facts.get("nova:project", ""), identity.facts.get("nova:flavor", "")
        for pattern, rule in self._rules:
            fact = identity.name if rule.fact == "name" else identity.facts.get(rule.fact)
            match = pattern.search(fact) if fact is not None else None
            job = match.expand(rule.job).strip() if match else ""
            if match and job:
                owner = match.expand(rule.owner).strip() or project
                alert = rule.latency_sensitive if rule.alert is None else rule.alert
                return Placing(clean_name(job), rule.latency_sensitive, clean_name(owner), rule.workers, alert)
        job = f"{project}/{flavor}" if project and flavor else identity.name
        return Placing(clean_name(job), False, clean_name(project))


@dataclass(slots=True)
class Vm:
    """One VM in its epoch. `change` None: its data made no sense, and its rates are INVALID_VALUE.

    `latest` is the last reading that each part ever had, from which the next difference is made, and `known` the last
    differences that made sense: all that is kept of earlier ticks. `held` has the metrics, by their place in `rates`,
    that are of an earlier tick, and its moment. `still` has a bit for each part whose difference is that of a value
    and itself. `traffic` continues through the epochs of one UUID.
    """

    identity: VmIdentity
    job: str
    latency_sensitive: bool
    owner: str
    workers: int | None  # how many requests it serves at once; None: not configured
    alert: bool  # whether it can be a victim, or only affected
    now: JoinedVm
    latest: Sequence[Part]
    known: VmDelta
    change: VmDelta | None
    rates: VmRates
    held: dict[int, int] = field(default_factory=dict)
    still: int = 0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def quota_cores(self) -> float | None:
        """How many cores the VM may use: its control group's CPU quota, where it has none the number of its vCPUs.

        None: it is not known whether there is a quota.
        """
        cgroup = self.now.cgroup
        if isinstance(cgroup, Reason):
            return None
        quota = cgroup.value.quota_cores
        return float(self.identity.vcpus) if quota is None else quota

    @property
    def vmid(self) -> str:
        """Its number in Proxmox, else ""."""
        return self.identity.facts.get("pve:vmid", "")


class VmTable:
    """Joins the samples of all sources per VM, tick by tick.

    A sample older than `stale_after_ns` is not used, and no delta is made across a longer gap, but for `slow_parts`,
    which have their own limits. `trouble` is `Slots.trouble`.
    """

    def __init__(
        self,
        rules: JobRules,
        limits: Limits,
        stale_after_ns: int,
        trouble: Callable[[str], Reason | None],
        slow_parts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._stale_after_ns = stale_after_ns
        self._trouble = trouble
        self._stale_part_ns = [max(stale_after_ns, slow_parts.get(part, 0)) for part in VM_PARTS]
        self._vms: dict[str, Vm] = {}
        self._broken: dict[str, str] = {}
        #: VMs, per tick, left out because their data made no sense.
        self.errors = 0

    def __iter__(self) -> Iterator[Vm]:
        return iter(self._vms.values())

    def __len__(self) -> int:
        return len(self._vms)

    def jobs(self) -> frozenset[str]:
        """Return the jobs that run here now."""
        return frozenset(vm.job for vm in self._vms.values())

    def update(self, samples: Sequence[SourceSample], mono_ns: int) -> None:
        """Take the latest sample of every source, in order of precedence, and make every VM's rates.

        Inventories are complete lists: a VM that none has any more is forgotten. The old list of a source that hangs
        counts only while no other source has a newer one.
        """
        fresh = [sample for sample in samples if mono_ns - sample.mono_ns <= self._stale_after_ns]
        found: dict[str, VmIdentity] = {}
        listed: tuple[VmIdentity, ...] | None = None
        for sample in [sample for sample in fresh if sample.inventory is not None] or samples:
            if sample.inventory is not listed:  # mostly all sources have the very same
                listed = sample.inventory
                for identity in listed or ():
                    found.setdefault(identity.uuid, identity)
        for uuid in self._vms.keys() - found.keys():
            del self._vms[uuid]
            self._broken.pop(uuid, None)
        absent = [self._why_absent(part, samples, mono_ns) for part in VM_PARTS]
        joinable = [_Sampled(sample, *_PARTS_OF.get(sample.source, _ALL)) for sample in fresh]
        for uuid, identity in found.items():
            try:
                self._update_vm(uuid, identity, joinable, absent)
            except Exception as error:  # noqa: BLE001 - one VM's bad data must not cost another VM's sample
                self._break(uuid, identity, error)
            else:
                if self._broken and self._broken.pop(uuid, ""):
                    _log.info("VM's data is consistent again", vm=identity.name, uuid=uuid)

    def _update_vm(
        self, uuid: str, identity: VmIdentity, fresh: "Sequence[_Sampled]", absent: Sequence[Reason]
    ) -> None:
        parts = _join(uuid, identity.epoch, fresh, absent)
        vm = self._vms.get(uuid)
        if vm is None or vm.identity.epoch != identity.epoch:
            now, latest, change, *_ = self._subtract(parts, identity, _STARTING, _STARTING, _NOTHING, 0)
            traffic = Traffic() if vm is None else vm.traffic
            states = now, latest, change, change, rates_of(change, self._limits)
            self._vms[uuid] = Vm(identity, *self._rules.job_of(identity), *states, traffic=traffic)
            traffic.count(now, change)
            return
        if vm.identity is not identity:
            if (vm.identity.name, vm.identity.facts) != (identity.name, identity.facts):
                vm.job, vm.latency_sensitive, vm.owner, vm.workers, vm.alert = self._rules.job_of(identity)
            if vm.identity.vcpus != identity.vcpus:
                vm.known, vm.still = _without_vcpus(vm.known), 0
            vm.identity = identity
        now, latest, change, still, is_same = self._subtract(parts, identity, vm.now[2:], vm.latest, vm.known, vm.still)
        # Whether there may be counters whose turn it was not; searching all rates would cost more.
        perf = change.perf
        in_turns = perf is Reason.TIME_SLICED or (
            isinstance(perf, PerfDelta) and Reason.TIME_SLICED in perf.missing.values()
        )
        if not is_same or in_turns or vm.change is not vm.known:
            rates = rates_of(change, self._limits)
            vm.rates = self._hold(vm, rates, now) if in_turns and Reason.TIME_SLICED in rates else rates
        vm.now, vm.latest, vm.known, vm.change, vm.still = now, latest, change, change, still
        vm.traffic.count(now, change)

    def _subtract(
        self,
        parts: Sequence[Part],
        identity: VmIdentity,
        former: Sequence[Part],
        latest: Sequence[Part],
        known: VmDelta,
        still: int,
    ) -> tuple[JoinedVm, list[Part], VmDelta, int, bool]:
        """Subtract the new readings from the last one of each part so far.

        Returns the new readings, the last one of each part, the differences, `still` as in `Vm`, and whether rates made
        of these differences are those that were made of the ones before.
        The same sample seen again (a source slower than the tick) leaves what it made before. A value that is the very
        same object has not moved: its difference from itself is made once, and then only the time differs.
        """
        vcpus = len(identity.vcpu_tids)
        changes: list[Any] = list(parts)  # where there is no reading: the reason
        now = list(parts)
        last = list(latest)
        is_same = True
        for index, new in enumerate(parts):
            bit, change = 1 << index, known[index]
            if not isinstance(new, Reading):
                is_same &= new is change
                still &= ~bit
                continue
            base = old = latest[index]
            is_still = False
            if isinstance(old, Reading):
                gap_ns, is_one_source = new.mono_ns - old.mono_ns, new.source == old.source
                if gap_ns == 0 and is_one_source and former[index] is old:
                    now[index], changes[index] = old, change
                    continue
                if gap_ns > self._stale_part_ns[index]:
                    base = Reason.STALE
                elif new.value is old.value:
                    is_still = is_one_source and gap_ns > 0
                if is_still and still & bit:
                    last[index] = new
                    if isinstance(change, tuple):  # what is none, or a reason, has no time
                        changes[index] = _new(change.__class__, (gap_ns, new.mono_ns, new.unix_ns, *change[3:]))
                    else:
                        changes[index] = change
                    continue
            still = still | bit if is_still else still & ~bit
            last[index] = new
            changes[index] = subtract(index, new, base, vcpus)
            is_same = False
        return JoinedVm(identity.epoch, vcpus, *now), last, VmDelta(*changes), still, is_same

    def _hold(self, vm: Vm, rates: VmRates, now: JoinedVm) -> VmRates:
        """Keep the values of counters whose turn it was not, until they are stale; `vm.held` has their moments."""
        values = list(rates)
        mono_ns = now.perf.mono_ns if isinstance(now.perf, Reading) else 0
        before = vm.now.perf.mono_ns if isinstance(vm.now.perf, Reading) else 0
        for index in _SLICED:
            old = vm.rates[index]
            if values[index] is not Reason.TIME_SLICED:
                vm.held.pop(index, None)
            elif not isinstance(old, Reason):
                since_ns = vm.held.setdefault(index, before)
                if mono_ns - since_ns <= self._stale_after_ns:
                    values[index] = old
        return VmRates(*values)

    def _why_absent(self, part: str, samples: Sequence[SourceSample], mono_ns: int) -> Reason:
        """Why a VM may have no reading of a part, where no source gave a reason for that very VM."""
        why = why_absent(part, self._trouble)
        if why is not None:
            return why
        ages_ns = (mono_ns - sample.mono_ns for sample in samples if sample.source in PART_SOURCES[part])
        return Reason.STALE if any(age_ns > self._stale_after_ns for age_ns in ages_ns) else Reason.VM_STARTING

    def _break(self, uuid: str, identity: VmIdentity, error: Exception) -> None:
        self.errors += 1
        text = repr(error)
        if self._broken.get(uuid) != text:
            self._broken[uuid] = text
            _log.warning("VM left out: inconsistent data", vm=identity.name, uuid=uuid, error=text)
        vm = self._vms.get(uuid)
        if vm is not None and vm.identity.epoch == identity.epoch:
            # The last readings that made sense stay, so that the next tick tries again from them.
            vm.change, vm.rates = None, _INVALID
            return
        nothing = JoinedVm(identity.epoch, identity.vcpus, *(Reason.INVALID_VALUE,) * len(VM_PARTS))
        self._vms[uuid] = Vm(identity, *Placing(identity.name, False, ""), nothing, _STARTING, _NOTHING, None, _INVALID)


class _Sampled(NamedTuple):
    """A sample, the parts that its source can have (a bit each), and their places and names."""

    sample: SourceSample
    mask: int
    parts: Sequence[tuple[int, str]]


def _join(uuid: str, epoch: str, fresh: Sequence[_Sampled], absent: Sequence[Reason]) -> list[Part]:
    """Find each part's reading: the first source that has it. A sample of another epoch does not count."""
    parts: list[Part | None] = [None] * len(VM_PARTS)
    reasons: Mapping[str, Reason] = {}
    seen = 0
    for sample, mask, possible in fresh:
        vm = sample.vms.get(uuid)
        if vm is None or vm.epoch != epoch:
            continue
        source, stamps = sample.source, vm.stamps
        seen |= mask
        for index, name in possible:
            value = getattr(vm, name)
            if value is not None and parts[index] is None:
                moment = stamps.get(name, sample) if stamps else sample
                # What NamedTuple does, without its call: this is done for every part of every VM.
                parts[index] = _new(Reading, (source, moment.mono_ns, moment.unix_ns, value))
        if vm.absent:
            reasons = {**reasons, **vm.absent}
    for index, part in enumerate(parts):
        if part is None:
            reason = reasons and reasons.get(VM_PARTS[index])
            if not reason:
                reason = absent[index]
                if reason is Reason.VM_STARTING and seen >> index & 1:
                    reason = Reason.NOT_PRESENT  # a source that has the VM and not this part has no such part
            parts[index] = reason
    return cast("list[Part]", parts)


def _without_vcpus(known: VmDelta) -> VmDelta:
    """Forget what was made of a former number of vCPUs: a reading that is handed on may lack the new ones."""
    cpu, perf = (part if isinstance(part, Reason) else Reason.VM_STARTING for part in (known.cpu, known.perf))
    process = known.process
    if not isinstance(process, Reason):
        process = process._replace(vcpus_running=Reason.VM_STARTING)
    return known._replace(cpu=cpu, perf=perf, process=process)


def _parts_of(source: str) -> tuple[int, tuple[tuple[int, str], ...]]:
    parts = tuple((index, part) for index, part in enumerate(VM_PARTS) if source in PART_SOURCES[part])
    return sum(1 << index for index, _ in parts), parts


#: The parts of each source, as `_Sampled` has them; a source that the registry does not know may have any.
_PARTS_OF = {source: _parts_of(source) for part in VM_PARTS for source in PART_SOURCES[part]}
_ALL = (0, tuple(enumerate(VM_PARTS)))
_SLICED = tuple(index for index, metric in enumerate(VM_METRICS) if metric.part == "perf")
