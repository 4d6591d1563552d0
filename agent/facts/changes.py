"""Which facts are new since they were last sent. All are sent again once a day: central may have lost them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from agent.clock import Clock
from agent.config import AgentConfig
from agent.facts.host import host_facts
from agent.facts.vms import VmKey, key_of, message_from
from agent.sampling.vms import Vm
from whitepanda.v1 import agent_pb2

_READ_S = 3600.0  # how often the host's files are read
_AGAIN_NS = 86_400 * 10**9
_GONE_AFTER_NS = 60 * 10**9  # a source that hangs for a moment makes no VM go


@dataclass(slots=True)
class _Sent:
    key: VmKey
    mono_ns: int  # when it was sent
    seen_ns: int  # when it was last on the host


class FactChanges:
    """What central was sent so far. All calls from the daemon's loop."""

    def __init__(self, config: AgentConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._vms: dict[str, _Sent] = {}
        self._read: agent_pb2.HostFacts | None = None
        self._host: agent_pb2.HostFacts | None = None
        self._host_ns = 0

    async def read_host(self) -> None:
        """Read the host's facts now and every hour, in a thread."""
        while True:
            self._read = await asyncio.to_thread(host_facts, self._config)
            await asyncio.sleep(_READ_S)

    @property
    def is_host_new(self) -> bool:
        """Whether facts of the host wait, also where it has no VMs."""
        return self._read is not None and self._host is None

    def take(self, vms: Iterable[Vm]) -> list[agent_pb2.VmFacts | agent_pb2.HostFacts]:
        """Return what has changed since the last call."""
        mono_ns, unix_ns = self._clock.mono_ns(), self._clock.unix_ns()
        return [*self.of_vms(vms, mono_ns, unix_ns), *self.of_host(self._read, mono_ns, unix_ns)]

    def of_vms(self, vms: Iterable[Vm], mono_ns: int, unix_ns: int) -> list[agent_pb2.VmFacts]:
        """Return the facts of VMs that are new, changed, gone for a minute, or were not sent for a day."""
        new = []
        for vm in vms:
            key, sent = key_of(vm), self._vms.get(vm.identity.uuid)
            if sent is not None and sent.key == key and mono_ns - sent.mono_ns < _AGAIN_NS:
                sent.seen_ns = mono_ns
                continue
            self._vms[vm.identity.uuid] = _Sent(key, mono_ns, mono_ns)
            new.append(message_from(key, unix_ns))
        gone = [uuid for uuid, sent in self._vms.items() if mono_ns - sent.seen_ns > _GONE_AFTER_NS]
        return new + [message_from(self._vms.pop(uuid).key, unix_ns, gone=True) for uuid in gone]

    def of_host(self, facts: agent_pb2.HostFacts | None, mono_ns: int, unix_ns: int) -> list[agent_pb2.HostFacts]:
        """Return the host's facts if they are new or were not sent for a day. None: they are not read yet."""
        if facts is None or (facts == self._host and mono_ns - self._host_ns < _AGAIN_NS):
            return []
        self._host, self._host_ns = facts, mono_ns
        new = agent_pb2.HostFacts(unix_ns=unix_ns, manager=self._manager())
        new.MergeFrom(facts)
        return [new]

    def _manager(self) -> str:
        managers = [sent.key.manager for sent in self._vms.values()]
        return max(sorted(set(managers)), key=managers.count, default="")
