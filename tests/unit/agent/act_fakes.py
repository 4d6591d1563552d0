"""Fakes of `whitepanda act`: VMs whose state is a text, a clock that tests move, and limits that forbid nothing."""

from agent.act.actor import Actor
from agent.act.audit import Audit
from agent.act.journal import Journal
from agent.act.records import ActError, Apply, Limits, Peer
from agent.act.victims import Degradation
from collector.base import VmIdentity

S = 10**9
VM = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
VICTIM = "00000000-0000-4000-8000-000000000009"
OPERATOR = Peer(1000, 4711)
LIMITS = Limits(
    enabled=True,
    dry_run=False,
    max_share=0.5,
    max_seconds=3600.0,
    cool_down_s=600.0,
    min_cores=0.5,
    min_bandwidth_percent=20,
    min_ways=2,
    worse_ratio=1.25,
)


def asked(**changes):
    known = {"action": "cap-cpu", "vm": VM, "amount": 2.0, "seconds": 900.0, "victim": VICTIM}
    return Apply(**(known | changes))


class FakeClock:
    def __init__(self):
        self.boot = 1000 * S
        self.unix = 1_700_000_000 * S

    def boot_ns(self):
        return self.boot

    def unix_ns(self):
        return self.unix

    def advance(self, seconds):
        self.boot += round(seconds * S)
        self.unix += round(seconds * S)


class FakeBackend:
    """`agent.act.records.Backend` over a dict, which outlives the service as VMs do."""

    settles_s = 0.0

    def __init__(self, states=None):
        self.states = {VM: "none", OTHER: "none"} if states is None else states
        self.failure = ""
        self.writes = []

    def read(self, vm):
        if self.failure:
            raise ActError(self.failure)
        return self.states.get(vm)

    def target(self, vm, amount):
        return f"limit {amount:g}"

    def write(self, vm, state):
        if self.failure:
            raise ActError(self.failure)
        self.writes.append((vm, state))
        self.states[vm] = state

    def is_ours(self, now, after):
        return now == after

    def command(self, vm, state):
        return f"set {vm} {state}"


class Victims:
    """What the agent reports the victim."""

    def __init__(self):
        self.ratio = 2.0
        self.signal = "latency"

    def __call__(self, _uuid, signal):
        is_known = self.ratio is not None and signal in {"", self.signal}
        return Degradation(self.ratio, self.signal) if is_known else None


def vms(count=4):
    """So many VMs of libvirt, the first three named vm-1, vm-2 and vm-9."""
    known = {VM: "vm-1", OTHER: "vm-2", VICTIM: "vm-9"}
    uuids = [*known, *(f"00000000-0000-4000-9000-{number:012}" for number in range(count))][:count]
    return [VmIdentity(uuid, known.get(uuid, uuid[:8]), 4711, "e", (1, 2)) for uuid in uuids]


def no_cpu_max(_vm):
    raise AssertionError("a VM of libvirt is not limited by its control group")


def make(
    folder,
    backend,
    *,
    clock=None,
    limits=LIMITS,
    victims=None,
    boot_id="boot-1",
    journal=None,
    running=4,
    listed=None,
    cpu_max=no_cpu_max,
):
    listed = vms(running) if listed is None else listed
    return Actor(
        limits=limits,
        journal=journal or Journal(folder),
        audit=Audit(folder),
        backends=dict.fromkeys(("cap-cpu", "limit-bandwidth", "limit-cache"), backend),
        vms=lambda _wanted: listed,
        cpu_max=cpu_max,
        degradation=victims or Victims(),
        boot_id=boot_id,
        clock=clock or FakeClock(),
    )
