"""Which facts are new since they were last sent. All are sent again once a day: central may have lost them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from agent.clock import Clock
from agent.config import AgentConfig
from agent.facts.host import host_facts
from agent.facts.sent_file import SentFile
from agent.facts.vms import VmKey, key_of, message_from, only_named
from agent.failures import Failures
from agent.sampling.vms import Vm
from collector.base import Reason
from whitepanda.v1 import agent_pb2

_READ_NS = 3600 * 10**9  # how often the host's files are read
_LOOP_S = 10.0
_AGAIN_NS = 86_400 * 10**9
_GONE_AFTER_NS = 60 * 10**9  # a source that hangs for a moment makes no VM go
_WAIT_NS = 60 * 10**9  # for a new VM's control group to be read, so that its quota is no second version
_NUMA_NS = 3600 * 10**9  # memory that the kernel moves between nodes makes no version more often
_JUMP_NS = 60 * 10**9
_UNREAD = frozenset((Reason.VM_STARTING, Reason.STALE, Reason.STUCK, Reason.NOT_PRESENT))


@dataclass(slots=True)
class _Sent:
    key: VmKey
    mono_ns: int  # when it was sent
    seen_ns: int  # when it was last on the host


class FactChanges:
    """What central was sent so far. All calls from the daemon's loop."""

    def __init__(self, config: AgentConfig, clock: Clock, failures: Failures) -> None:
        self._config = config
        self._clock = clock
        self._failures = failures
        self._file = SentFile(config.agent.state_dir)
        self._vms: dict[str, _Sent] = {}
        self._new: dict[str, int] = {}  # VMs that wait for their control group, since when
        self._read: agent_pb2.HostFacts | None = None
        self._host: agent_pb2.HostFacts | None = None
        self._host_ns = 0
        self._started_ns = clock.mono_ns()
        self._clock_offset_ns = clock.unix_ns() - self._started_ns

    async def run(self) -> None:
        """Read the host's facts now and every hour; keep on disk which VMs were sent. In a thread, both."""
        for uuid in await asyncio.to_thread(self._file.load):
            now_ns = self._clock.mono_ns()
            self._vms.setdefault(uuid, _Sent(only_named(uuid), now_ns, now_ns))
        due_ns = 0
        while True:
            with self._failures.guard("host facts"):
                if self._clock.mono_ns() >= due_ns:
                    due_ns = self._clock.mono_ns() + _READ_NS
                    self._read = await asyncio.to_thread(host_facts, self._config)
                await asyncio.to_thread(self._file.save, sorted(self._vms))
            await asyncio.sleep(_LOOP_S)

    @property
    def is_host_new(self) -> bool:
        """Whether facts of the host wait, also where it has no VMs for a minute: these say who manages it."""
        is_known = bool(self._vms) or self._clock.mono_ns() - self._started_ns >= _WAIT_NS
        return self._read is not None and self._host is None and is_known

    def take(self, vms: Iterable[Vm]) -> list[agent_pb2.VmFacts | agent_pb2.HostFacts]:
        """Return what has changed since the last call; everything after the clock was set to another time."""
        mono_ns, unix_ns = self._clock.mono_ns(), self._clock.unix_ns()
        if abs(unix_ns - mono_ns - self._clock_offset_ns) > _JUMP_NS:
            self._host = None
            for sent in self._vms.values():
                sent.mono_ns = mono_ns - _AGAIN_NS
        self._clock_offset_ns = unix_ns - mono_ns
        return [*self.of_vms(vms, mono_ns, unix_ns), *self.of_host(self._read, mono_ns, unix_ns)]

    def of_vms(self, vms: Iterable[Vm], mono_ns: int, unix_ns: int) -> list[agent_pb2.VmFacts]:
        """Return the facts of VMs that are new, changed, gone for a minute, or were not sent for a day."""
        new = []
        waiting = dict[str, int]()
        for vm in vms:
            uuid = vm.identity.uuid
            sent = self._vms.get(uuid)
            key = key_of(vm, None if sent is None else sent.key)
            if sent is None or sent.key.epoch != key.epoch:
                since_ns = self._new.get(uuid, mono_ns)
                cgroup = vm.now.cgroup
                if isinstance(cgroup, Reason) and cgroup in _UNREAD and mono_ns - since_ns < _WAIT_NS:
                    waiting[uuid] = since_ns
                    if sent is not None:
                        sent.seen_ns = mono_ns
                    continue
            elif not _is_due(sent, key, mono_ns):
                sent.seen_ns = mono_ns
                continue
            self._vms[uuid] = _Sent(key, mono_ns, mono_ns)
            new.append(message_from(key, unix_ns))
        self._new = waiting
        gone = [uuid for uuid, sent in self._vms.items() if mono_ns - sent.seen_ns > _GONE_AFTER_NS]
        return new + [message_from(self._vms.pop(uuid).key, unix_ns, gone=True) for uuid in gone]

    def of_host(self, facts: agent_pb2.HostFacts | None, mono_ns: int, unix_ns: int) -> list[agent_pb2.HostFacts]:
        """Return the host's facts if they are new or were not sent for a day. None: they are not read yet."""
        manager = self._manager() or (self._host.manager if self._host else "")
        if facts is None or (not manager and mono_ns - self._started_ns < _WAIT_NS):
            return []
        new = agent_pb2.HostFacts(manager=manager)
        new.MergeFrom(facts)
        if new == self._host and mono_ns - self._host_ns < _AGAIN_NS:
            return []
        self._host, self._host_ns = new, mono_ns
        sent = agent_pb2.HostFacts(unix_ns=unix_ns)
        sent.MergeFrom(new)
        return [sent]

    def _manager(self) -> str:
        managers = [sent.key.manager for sent in self._vms.values() if sent.key.manager]
        return max(sorted(set(managers)), key=managers.count, default="")


def _is_due(sent: _Sent, key: VmKey, mono_ns: int) -> bool:
    age_ns = mono_ns - sent.mono_ns
    if age_ns >= _AGAIN_NS:
        return True
    has_moved = age_ns >= _NUMA_NS or not sent.key.numa_nodes
    return key != (sent.key if has_moved else sent.key._replace(numa_nodes=key.numa_nodes))
