"""Which facts are new since they were last sent.

Central may have lost them: each is sent again once a day, and within an hour of a new stream. A VM's UUID says when in
the day or hour, so that they do not come all at once.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.clock import Clock
from agent.config import AgentConfig
from agent.facts.host import host_facts
from agent.facts.limits import ActLimits, Limited
from agent.facts.sent_file import SentFile
from agent.facts.vms import VmKey, key_of, message_from, only_named
from agent.failures import Failures
from agent.sampling.vms import Vm
from collector.base import Reason
from whitepanda.v1 import agent_pb2

_READ_NS = 3600 * 10**9  # how often the host's files are read
_LOOP_S = 10.0
_AGAIN_NS = 86_400 * 10**9
_AFTER_STREAM_NS = 3600 * 10**9
_GONE_AFTER_NS = 60 * 10**9  # a source that hangs for a moment makes no VM go
_WAIT_NS = 60 * 10**9  # for a new VM's control group to be read, so that its quota is no second version
_NUMA_NS = 3600 * 10**9  # memory that the kernel moves between nodes makes no version more often
_JUMP_NS = 60 * 10**9
_STEP_NS = 10**9  # smaller steps of the clock are not sent
_CLOCK_QUIET_NS = 60 * 10**9
_NOT_LIMITED = Limited()
_UNREAD = frozenset((Reason.VM_STARTING, Reason.STALE, Reason.STUCK, Reason.NOT_PRESENT))


@dataclass(slots=True)
class _Sent:
    key: VmKey
    mono_ns: int  # when it was sent
    seen_ns: int  # when it was last on the host
    unix_ns: int = 0  # the time of what was sent; 0: not known


class FactChanges:
    """What central was sent so far. All calls from the daemon's loop."""

    def __init__(self, config: AgentConfig, clock: Clock, failures: Failures) -> None:
        self._config = config
        self._clock = clock
        self._failures = failures
        self._file = SentFile(config.agent.state_dir)
        self._act = ActLimits(config.act.state_dir, clock)
        # Before any VM is sent: at each start of the agent limits would seem to have ended.
        self._limited = self._act.read()
        self._vms: dict[str, _Sent] = {}
        self._new: dict[str, int] = {}  # VMs that wait for their control group, since when
        self._read: agent_pb2.HostFacts | None = None
        self._host: agent_pb2.HostFacts | None = None
        self._host_ns = 0
        self._clock_set = (0, 0.0)  # when, and by how many seconds
        self._clock_quiet_ns = 0
        self._started_ns = clock.mono_ns()
        self._clock_offset_ns = clock.unix_ns() - self._started_ns
        #: How many streams to central there were, from the uplink.
        self.connections: Callable[[], int] = int
        self._connections = 0
        self._stream_ns = self._started_ns

    async def run(self) -> None:
        """Read the limits, and every hour the host's facts; keep on disk which VMs were sent. In a thread, all."""
        for uuid in await asyncio.to_thread(self._file.load):
            now_ns = self._clock.mono_ns()
            self._vms.setdefault(uuid, _Sent(only_named(uuid), now_ns, now_ns))
        due_ns = 0
        while True:
            with self._failures.guard("host facts"):
                if self._clock.mono_ns() >= due_ns:
                    due_ns = self._clock.mono_ns() + _READ_NS
                    self._read = await asyncio.to_thread(host_facts, self._config)
                self._limited = await asyncio.to_thread(self._act.read)
                await asyncio.to_thread(self._file.save, sorted(self._vms))
            await asyncio.sleep(_LOOP_S)

    def clock_was_set(self, mono_ns: int, unix_ns: int, step_ns: int) -> None:
        """Note that the host's clock was set, now to `unix_ns`: at most once a minute, and by more than a second."""
        if abs(step_ns) > _STEP_NS and mono_ns >= self._clock_quiet_ns:
            self._clock_set, self._clock_quiet_ns = (unix_ns, step_ns / 1e9), mono_ns + _CLOCK_QUIET_NS

    @property
    def is_host_new(self) -> bool:
        """Whether facts of the host wait, also where it has no VMs for a minute: these say who manages it."""
        mono_ns = self._clock.mono_ns()
        self._watch_stream(mono_ns)
        is_known = bool(self._vms) or mono_ns - self._started_ns >= _WAIT_NS
        is_due = self._host is None or self._is_again("", self._host_ns, mono_ns)
        was_set = self._host is not None and self._host.clock_set_unix_ns != self._clock_set[0]
        return self._read is not None and (is_due or was_set) and is_known

    def take(self, vms: Iterable[Vm]) -> list[agent_pb2.VmFacts | agent_pb2.HostFacts]:
        """Return what has changed since the last call; everything after the clock was set to another time."""
        mono_ns, unix_ns = self._clock.mono_ns(), self._clock.unix_ns()
        self._watch_stream(mono_ns)
        if abs(unix_ns - mono_ns - self._clock_offset_ns) > _JUMP_NS:
            self._host = None
            for sent in self._vms.values():
                sent.mono_ns = mono_ns - _AGAIN_NS
        self._clock_offset_ns = unix_ns - mono_ns
        return [*self.of_vms(vms, mono_ns, unix_ns), *self.of_host(self._read, mono_ns, unix_ns)]

    def of_vms(self, vms: Iterable[Vm], mono_ns: int, unix_ns: int) -> list[agent_pb2.VmFacts]:
        """Return the facts of VMs that are new, changed, gone for a minute, or are sent again."""
        new = []
        waiting = dict[str, int]()
        for vm in vms:
            uuid = vm.identity.uuid
            sent = self._vms.get(uuid)
            limited = self._limited.get(uuid, _NOT_LIMITED)
            key = key_of(vm, None if sent is None else sent.key, limited.limits)
            if sent is None or sent.key.epoch != key.epoch:
                since_ns = self._new.get(uuid, mono_ns)
                cgroup = vm.now.cgroup
                if isinstance(cgroup, Reason) and cgroup in _UNREAD and mono_ns - since_ns < _WAIT_NS:
                    waiting[uuid] = since_ns
                    if sent is not None:
                        sent.seen_ns = mono_ns
                    continue
            elif not self._is_again(uuid, sent.mono_ns, mono_ns) and not _has_changed(sent, key, mono_ns):
                sent.seen_ns = mono_ns
                continue
            at_ns = unix_ns
            if sent is not None and sent.unix_ns and key.limits != sent.key.limits:  # when is known
                at_ns = min(unix_ns, max(limited.changed_unix_ns, sent.unix_ns + 1))
            self._vms[uuid] = _Sent(key, mono_ns, mono_ns, at_ns)
            new.append(message_from(key, at_ns))
        self._new = waiting
        gone = [uuid for uuid, sent in self._vms.items() if mono_ns - sent.seen_ns > _GONE_AFTER_NS]
        return new + [message_from(self._vms.pop(uuid).key, unix_ns, gone=True) for uuid in gone]

    def of_host(self, facts: agent_pb2.HostFacts | None, mono_ns: int, unix_ns: int) -> list[agent_pb2.HostFacts]:
        """Return the host's facts if they are new or are sent again. None: they are not read yet."""
        manager = self._manager() or (self._host.manager if self._host else "")
        if facts is None or (not manager and mono_ns - self._started_ns < _WAIT_NS):
            return []
        set_unix_ns, step_s = self._clock_set
        new = agent_pb2.HostFacts(manager=manager, clock_set_unix_ns=set_unix_ns, clock_step_s=step_s)
        new.MergeFrom(facts)
        if new == self._host and not self._is_again("", self._host_ns, mono_ns):
            return []
        self._host, self._host_ns = new, mono_ns
        sent = agent_pb2.HostFacts(unix_ns=unix_ns)
        sent.MergeFrom(new)
        return [sent]

    def _watch_stream(self, mono_ns: int) -> None:
        if (connections := self.connections()) != self._connections:
            self._connections, self._stream_ns = connections, mono_ns

    def _is_again(self, vm: str, sent_ns: int, mono_ns: int) -> bool:
        """Whether a VM's time of the day has come since it was sent, or that of the hour since a stream began."""
        place_ns = zlib.crc32(vm.encode()) * 64_000  # up to three days
        if (mono_ns + place_ns) // _AGAIN_NS != (sent_ns + place_ns) // _AGAIN_NS:
            return True
        is_old = sent_ns < self._stream_ns
        return is_old and (mono_ns + place_ns) // _AFTER_STREAM_NS != (self._stream_ns + place_ns) // _AFTER_STREAM_NS

    def _manager(self) -> str:
        managers = [sent.key.manager for sent in self._vms.values() if sent.key.manager]
        return max(sorted(set(managers)), key=managers.count, default="")


def _has_changed(sent: _Sent, key: VmKey, mono_ns: int) -> bool:
    has_moved = mono_ns - sent.mono_ns >= _NUMA_NS or not sent.key.numa_nodes
    return key != (sent.key if has_moved else sent.key._replace(numa_nodes=key.numa_nodes))
