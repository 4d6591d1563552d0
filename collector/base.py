"""What every source of the host says, and how.

A source gives raw cumulative counters with both clocks; rates are made elsewhere (`agent.rates`). A value that is not
known is absent and has a `Reason`, never a zero. Only the standard library is imported here: samples are also taken
inside bare guests.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = [
    "DiskCounters",
    "HostCounters",
    "InterfaceCounters",
    "PerfCounters",
    "Probe",
    "Reason",
    "Source",
    "SourceError",
    "SourceSample",
    "ThreadCounters",
    "VmIdentity",
    "VmSample",
]


class Reason(enum.IntEnum):
    """Why a value is not known. Numbers are those of `whitepanda.v1.Reason`; the lower-case name is what people see."""

    UNSPECIFIED = 0
    NO_PMU = 1
    PARANOID = 2
    VPMU_CONFLICT = 3
    MULTIPLEXED = 4
    NO_RDT = 5
    RDT_UNAVAILABLE = 6
    NO_RMID = 7
    NOT_SCHEDULED = 8
    STALE = 9
    VM_STARTING = 10
    NO_PERMISSION = 11
    SOURCE_OFF = 12
    SOURCE_FAILED = 13
    STUCK = 14
    IDLE = 15
    COUNTER_RESET = 16
    NOT_PRESENT = 17
    FD_LIMIT = 18
    NOT_IN_TRACE = 19
    NO_COEFFICIENTS = 20
    INVALID_VALUE = 21

    @property
    def code(self) -> str:
        """The reason code as people and metrics see it, such as `no_pmu`."""
        return self.name.lower()


class SourceError(Exception):
    """A source cannot do its work now. One clear line: what, where, the value, the remedy."""

    def __init__(self, message: str, reason: Reason = Reason.SOURCE_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a source can work here. `detail` says why not and the remedy, in one line."""

    available: bool
    detail: str
    reason: Reason = Reason.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class VmIdentity:
    """A VM in one of its epochs, as found on the host.

    `epoch` changes with every start, restore and incoming migration: no delta crosses it. `vcpu_tids` are in the order
    of the vCPU numbers. `facts` are strings for the job rules (such as `nova:flavor`, `nova:project`, `title`).
    """

    uuid: str
    name: str
    pid: int
    epoch: str
    vcpu_tids: tuple[int, ...] = ()
    state: str = "running"
    accelerator: str = "kvm"
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def vcpus(self) -> int:
        """Number of vCPU threads."""
        return len(self.vcpu_tids)


@dataclass(frozen=True, slots=True)
class ThreadCounters:
    """One vCPU thread, cumulative since it started.

    `guest_ns` is time in guest mode (under software emulation, where the kernel has no such mode, the thread's whole
    CPU time). `start_ticks` tells a reused thread id from the same thread.
    """

    guest_ns: int
    cpu_ns: int
    run_queue_wait_ns: int | None
    start_ticks: int


@dataclass(frozen=True, slots=True)
class PerfCounters:
    """One group of hardware counters (one vCPU thread), raw: not scaled for multiplexing.

    `opened` numbers the opening of the group: counters of another opening are another epoch. Events that this CPU lacks
    are None.
    """

    opened: int
    time_enabled_ns: int
    time_running_ns: int
    cycles: int | None
    instructions: int | None


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """One block device of a VM, cumulative, as the guest sees it."""

    read_bytes: int
    write_bytes: int
    read_ops: int
    write_ops: int


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """One network interface of a VM, cumulative; receive and transmit as the guest sees them."""

    receive_bytes: int
    transmit_bytes: int
    receive_packets: int
    transmit_packets: int
    receive_drops: int
    transmit_drops: int


@dataclass(frozen=True, slots=True)
class VmSample:
    """What one source knows of one VM. None: not this source's to tell. `absent` has a reason per metric group.

    Keys of `absent` are the field names below (`threads`, `perf`, `disks`, `interfaces`).
    """

    epoch: str
    threads: Mapping[int, ThreadCounters] | None = None
    perf: Mapping[int, PerfCounters] | None = None
    disks: Mapping[str, DiskCounters] | None = None
    interfaces: Mapping[str, InterfaceCounters] | None = None
    absent: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The host's CPU time, cumulative since boot, summed over CPUs."""

    cpus: int
    user_ns: int
    system_ns: int
    idle_ns: int
    iowait_ns: int
    guest_ns: int
    steal_ns: int


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One sampling of one source. `vms` is keyed by UUID. Both clocks are read at the start of the sampling.

    `inventory` is set by sources that know which VMs there are, and is then complete.
    """

    source: str
    mono_ns: int
    unix_ns: int
    vms: Mapping[str, VmSample] = field(default_factory=dict)
    host: HostCounters | None = None
    inventory: tuple[VmIdentity, ...] | None = None


@runtime_checkable
class Source(Protocol):
    """One way to know something of the host. `sample` may block; it runs in a thread of its own with a deadline.

    `probe` has no side effects and never raises. `open`, `sample` raise `SourceError`. After an error `sample` is
    simply called again at the next tick: reconnecting is the source's own business. `close` never raises.
    """

    name: str

    def probe(self) -> Probe:
        """Say whether this source can work here, why not, and the remedy."""

    def open(self) -> None:
        """Acquire what sampling needs."""

    def sample(self) -> SourceSample:
        """Read all counters once."""

    def close(self) -> None:
        """Release everything; may be called twice."""
