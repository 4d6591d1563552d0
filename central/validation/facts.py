"""Facts of VMs and hosts that hosts report: which of a batch are accepted, and how many are refused, by reason."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from central.validation.reports import MAX_INT64
from central.validation.rows import Sender, is_name
from whitepanda.v1 import agent_pb2

#: Why facts are refused, in the order in which reasons are tried.
FACT_REASONS = ("too_many_facts", "bad_facts", "bad_facts_time")

_MAX_VMS = 5000  # of one batch
_MAX_BYTES = 64 << 10
_MAX_NODES = 1024
_MAX_LIMITS = 16
_MAX_STEP_S = 1e11  # of a clock: some thousand years
_MAX_LIST = 1024  # caches, cards, disks
_MAX_LABELS = 16
_MAX_CORES = 1e6


@dataclass(frozen=True, slots=True)
class FactRow:
    """Facts of a VM (its UUID is `vm`) or of the host (""); `payload` is `whitepanda.v1.VmFacts` or `HostFacts`."""

    host: str
    vm: str
    unix_ns: int
    payload: bytes


def check_facts(batch: agent_pb2.CpiBatch, sender: Sender) -> tuple[list[FactRow], dict[str, int]]:
    """Return the good facts of a batch, and how many are refused, by reason; these cost neither others nor rows.

    What a host says now is of now: where its clock is off by more than `max_future_s`, the time is central's, marked
    as such. Of what comes late, times that cannot be are refused.
    """
    good, rejected = list[FactRow](), Counter[str]()
    now_unix_ns, is_late = sender.now_unix_ns, batch.backlog or sender.is_importer
    if (excess := len(batch.vm_facts) - _MAX_VMS) > 0:
        rejected["too_many_facts"] += excess
    ahead_ns, past_ns = int(sender.limits.max_future_s * 1e9), int(sender.limits.max_past_days * 86_400e9)
    earliest = now_unix_ns - (past_ns if is_late else ahead_ns)
    latest = min(now_unix_ns + ahead_ns, MAX_INT64)
    hosts = [batch.host_facts] if batch.HasField("host_facts") else []
    said: list[agent_pb2.VmFacts | agent_pb2.HostFacts] = [*batch.vm_facts[:_MAX_VMS], *hosts]
    for one in said:
        vm = one.vm if isinstance(one, agent_pb2.VmFacts) else ""
        is_good = _is_good_vm(one) if isinstance(one, agent_pb2.VmFacts) else _is_good_host(one)
        if not is_good:
            rejected["bad_facts"] += 1
            continue
        one.is_received_time = not earliest <= one.unix_ns <= latest
        if one.is_received_time and is_late:
            rejected["bad_facts_time"] += 1
            continue
        if one.is_received_time:
            one.unix_ns = now_unix_ns
        good.append(FactRow(sender.host, vm, one.unix_ns, one.SerializeToString(deterministic=True)))
    return good, dict(rejected)


def _is_good_vm(facts: agent_pb2.VmFacts) -> bool:
    """Whether the VM is named, texts are fit for a terminal, and numbers can be."""
    texts = (facts.epoch, facts.name, facts.job, facts.project, facts.flavor, facts.image, facts.owner, facts.manager)
    return (
        is_name(facts.vm)
        and _are_names((*texts, *facts.limits))
        and len(facts.limits) <= _MAX_LIMITS
        and len(facts.numa_nodes) <= _MAX_NODES
        and facts.ByteSize() <= _MAX_BYTES
        and (not facts.HasField("cpu_quota_cores") or 0 < facts.cpu_quota_cores <= _MAX_CORES)
        and facts.vcpus <= _MAX_CORES
        and facts.memory_bytes <= MAX_INT64
    )


def _is_good_host(facts: agent_pb2.HostFacts) -> bool:
    """The same of a host."""
    counts = len(facts.caches), len(facts.network_cards), len(facts.disks)
    if max(counts) > _MAX_LIST or len(facts.labels) > _MAX_LABELS or facts.ByteSize() > _MAX_BYTES:
        return False
    names = [card.name for card in facts.network_cards] + [disk.name for disk in facts.disks]
    sizes = [
        facts.memory_bytes,
        *(cache.size_bytes for cache in facts.caches),
        *(disk.size_bytes for disk in facts.disks),
        facts.clock_set_unix_ns,
    ]
    sizes += [one.bits_per_s for one in facts.network_cards]
    labels = (text for pair in facts.labels.items() for text in pair)
    are_numbers_good = (
        max(sizes) <= MAX_INT64 and facts.cpus <= _MAX_CORES and abs(facts.clock_step_s) <= _MAX_STEP_S
    )  # NaN is not
    return _are_names((*names, facts.manager, *labels)) and are_numbers_good


def _are_names(texts: Iterable[str]) -> bool:
    return all(not text or is_name(text) for text in texts)
