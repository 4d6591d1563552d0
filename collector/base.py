"""The samples that sources of the host return, and the interface of a source.

A source gives raw cumulative counters with both clocks; `agent.sampling.rates` makes rates of them. An unknown value is
absent and has a `Reason`; it is never a zero. Only the standard library is needed here: bare guests are sampled too.

Counters and samples are never changed once made. Those made per VM and tick are not declared frozen, because creating a
frozen one costs four to six times as much.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from whitepanda.common.texts import clean_name

#: Nanoseconds per second.
NS_PER_S = 1_000_000_000
#: The largest process or thread id (the kernel's PID_MAX_LIMIT).
MAX_PID = 1 << 22
#: The events that perf can count, by whitepanda's names. Every group begins with the first two.
PERF_EVENTS = (
    "cycles",
    "instructions",
    "reference_cycles",
    "l2_misses",
    "llc_misses",
    "memory_stall_cycles",
    "total_stall_cycles",
    "core_stall_cycles",
)

#: The parts of a VM's sample: the fields of `VmSample` that carry values, in this order everywhere.
VM_PARTS = ("threads", "perf", "disks", "interfaces", "process", "cgroup", "rdt", "numa")
#: `VmIdentity.manager` of VMs that the host's libvirt runs.
LIBVIRT_MANAGERS = ("libvirt", "nova")
# The texts of a VM's identity that leave the collector.
_SHOWN = ("uuid", "name", "epoch", "state", "accelerator", "manager")


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
    NOT_VISIBLE = 22  # the host's kernel does not see it (vhost-user, VFIO, librbd)
    TIME_SLICED = 23  # counted in turns, and this tick was not its turn
    NO_EVENT = 24  # this CPU has no such event
    NO_COUNTER = 25  # no hardware counter is left for it beside the guests'
    RDT_UNASSIGNED = 26  # AMD: no bandwidth counter is assigned to the group
    SHARED = 27  # counted together with others, so not this VM's alone

    @property
    def code(self) -> str:
        """The reason code as people and metrics see it, such as `no_pmu`."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a source can work here. `detail` says why not and the remedy, in one line."""

    available: bool
    detail: str
    reason: Reason = Reason.UNSPECIFIED


class SourceError(Exception):
    """A source cannot do its work now. One clear line: what, where, the value, the remedy."""

    def __init__(self, message: str, reason: Reason = Reason.SOURCE_FAILED) -> None:
        super().__init__(message)
        self.reason = reason

    def as_probe(self) -> Probe:
        """Return the probe of a source that cannot work for this reason."""
        return Probe(available=False, detail=str(self), reason=self.reason)


@dataclass(frozen=True, slots=True)
class DiskDevice:
    """A block device of a VM: the guest's `target` (such as "vda"), and what is behind it on the host.

    `kind` is libvirt's word ("file", "block", "network", "vhostuser", "nvme", ...); "" is not known. Of kinds other
    than "file" and "block" the host's kernel sees no I/O.
    """

    target: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class InterfaceDevice:
    """A network interface of a VM. `device` is the host's (a tap, "" where there is none).

    `kind` is libvirt's word ("bridge", "network", "ethernet", "vhostuser", "hostdev", ...); `port_id` is what Open
    vSwitch calls iface-id.
    """

    device: str
    mac: str = ""
    kind: str = ""
    port_id: str = ""


@dataclass(frozen=True, slots=True)
class VmIdentity:
    """A VM in one of its epochs, as found on the host.

    `epoch` changes with every start, restore and incoming migration: no delta crosses it. `vcpu_tids` are in the order
    of the vCPU numbers. `facts` are strings for the job rules (such as `nova:flavor`, `nova:project`, `title`).
    `manager` is libvirt, nova (OpenStack, by libvirt), proxmox or qemu (no manager). `vfio`: it has devices passed
    through. `memory_bytes`: what the guest was given; None: not known.

    Users choose the texts of their VMs: shown, logged and sent ones are made valid, printable and of bounded length
    here (`clean_name`), whatever the source.
    """

    uuid: str
    name: str
    pid: int
    epoch: str
    vcpu_tids: tuple[int, ...] = ()
    state: str = "running"
    accelerator: str = "kvm"
    facts: Mapping[str, str] = field(default_factory=dict)
    disks: tuple[DiskDevice, ...] = ()
    interfaces: tuple[InterfaceDevice, ...] = ()
    manager: str = "libvirt"
    vfio: bool = False
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Clean the texts. Done once per change of a VM, not per tick."""
        for field_name in _SHOWN:
            text = getattr(self, field_name)
            clean = clean_name(text)
            if clean is not text:
                object.__setattr__(self, field_name, clean)

    @property
    def vcpus(self) -> int:
        """Number of vCPU threads."""
        return len(self.vcpu_tids)

    @property
    def by_libvirt(self) -> bool:
        """Whether the host's libvirt runs it, for itself or for Nova."""
        return self.manager in LIBVIRT_MANAGERS


@dataclass(slots=True)
class ThreadCounters:
    """One vCPU thread, cumulative since it started.

    `guest_ns` is time in guest mode; None where only the process's is known. Under software emulation, where the kernel
    has no such mode, it is the thread's whole CPU time. A reused thread id has other `start_ticks`.
    """

    guest_ns: int | None
    cpu_ns: int
    run_queue_wait_ns: int | None
    start_ticks: int


@dataclass(slots=True)
class ProcessCounters:
    """The VM's process as a whole, cumulative: vCPU threads and all that QEMU does beside them.

    `guest_ns` as for threads; None where the threads have it. The storage bytes are what the kernel moved from and to
    devices for the process (not what the page cache served, nor what the guest saw); where they are None
    `storage_reason` says why.

    `vcpus_running` is a gauge: how many vCPU threads ran at the instant of sampling. On real hosts those in state R,
    which includes threads that wait for a CPU. None: not counted.
    """

    cpu_ns: int
    start_ticks: int
    guest_ns: int | None = None
    storage_read_bytes: int | None = None
    storage_write_bytes: int | None = None
    storage_reason: Reason = Reason.UNSPECIFIED
    vcpus_running: int | None = None


@dataclass(slots=True)
class PerfGroup:
    """One group of hardware counters, cumulative and raw: not scaled for multiplexing.

    `opened` numbers the opening of the group: counters of another opening are another epoch. `counts` are in the
    order of the group's layout, cycles and instructions first.
    """

    opened: int
    time_enabled_ns: int
    time_running_ns: int
    counts: tuple[int, ...]


@dataclass(slots=True)
class PerfCounters:
    """One VM's hardware counters.

    `layout` names the events of each group; the first two of every group are cycles and instructions. Several groups
    are on in turns, never together, so that their cycles and instructions add up; a group's clocks stand still while it
    is off. `groups` are by thread id, or by CPU if the counters are the control group's (`scope`): one `PerfGroup` per
    layout. `missing` says why an event of `PERF_EVENTS` is in none.
    """

    layout: tuple[tuple[str, ...], ...]
    groups: Mapping[int, tuple[PerfGroup, ...]]
    scope: Literal["thread", "cgroup"] = "thread"
    missing: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class DiskCounters:
    """One block device of a VM, cumulative, as the guest sees it."""

    read_bytes: int
    write_bytes: int
    read_ops: int
    write_ops: int


@dataclass(slots=True)
class InterfaceCounters:
    """One network interface of a VM, cumulative; receive and transmit as the guest sees them.

    `opened` numbers the device behind the name: counters of another one are another epoch. Drops are None where the
    device does not count them.
    """

    receive_bytes: int
    transmit_bytes: int
    receive_packets: int
    transmit_packets: int
    receive_drops: int | None
    transmit_drops: int | None
    opened: int = 0


@dataclass(slots=True)
class CgroupCounters:
    """The VM's control group. None: not known to this kernel or hierarchy.

    `opened` numbers the group: counters of another one are another epoch. Pressures are the cumulative times of
    /proc/pressure (PSI) in the group; `throttled_ns` is the time its CPU quota took away; `quota_cores` is that quota
    (None: no limit), `memory_bytes` is what it is charged now.
    """

    opened: int
    cpu_some_ns: int | None = None
    memory_some_ns: int | None = None
    memory_full_ns: int | None = None
    io_some_ns: int | None = None
    io_full_ns: int | None = None
    throttled_ns: int | None = None
    quota_cores: float | None = None
    memory_bytes: int | None = None


@dataclass(slots=True)
class RdtDomain:
    """One VM's values of resctrl (Intel RDT, AMD QoS) in one cache domain.

    Occupancy is a gauge, bandwidth is cumulative bytes. None: `reason` says why, for all three or those that are None.
    """

    llc_occupancy_bytes: int | None = None
    mbm_total_bytes: int | None = None
    mbm_local_bytes: int | None = None
    reason: Reason = Reason.UNSPECIFIED


@dataclass(slots=True)
class RdtCounters:
    """One VM's monitoring group. `opened` numbers the assignment: counters of another one are another epoch.

    `domains` are by the kernel's name less its prefix ("00" of mon_L3_00). `owner` is "whitepanda", or
    the other groups that the VM is read in.
    """

    opened: int
    domains: Mapping[str, RdtDomain]
    owner: str = "whitepanda"


@dataclass(frozen=True, slots=True)
class NumaPlacement:
    """Where the VM is now, by NUMA node: its memory, and on how many vCPUs' last CPUs."""

    memory_bytes: Mapping[int, int]
    vcpus: Mapping[int, int]


class Stamp(NamedTuple):
    """A moment on both clocks."""

    mono_ns: int
    unix_ns: int


@dataclass(slots=True)
class VmSample:
    """What one source knows of one VM. None: the source does not cover it. `absent` has a reason per part.

    Keys of `absent` and `stamps` are `VM_PARTS`. `stamps` has the parts that were read at another moment than the
    sample (a part that is polled slowly is repeated until it is read again).
    """

    epoch: str
    threads: Mapping[int, ThreadCounters] | None = None
    perf: PerfCounters | None = None
    disks: Mapping[str, DiskCounters] | None = None
    interfaces: Mapping[str, InterfaceCounters] | None = None
    absent: Mapping[str, Reason] = field(default_factory=dict)
    process: ProcessCounters | None = None
    cgroup: CgroupCounters | None = None
    rdt: RdtCounters | None = None
    numa: NumaPlacement | None = None
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


def vm_sample(epoch: str, stamps: Mapping[str, Stamp] | None = None, **parts: Any) -> VmSample:
    """Make a VM's sample of its parts; a part that is a `Reason` is absent."""
    absent = {name: part for name, part in parts.items() if isinstance(part, Reason)}
    known = {name: part for name, part in parts.items() if name not in absent}
    return VmSample(epoch, absent=absent, stamps=stamps or {}, **known)


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The host's CPU time since boot, summed over CPUs; memory and load now; cumulative pressures (PSI)."""

    cpus: int
    user_ns: int
    system_ns: int
    idle_ns: int
    iowait_ns: int
    guest_ns: int
    steal_ns: int
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    load_1: float | None = None
    cpu_some_ns: int | None = None
    memory_some_ns: int | None = None
    memory_full_ns: int | None = None
    io_some_ns: int | None = None
    io_full_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One sampling of one source. `vms` is keyed by UUID.

    Both clocks are read right before the first VM's counters, after the VMs were listed, which may take long.
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
    """One way to observe the host. `sample` may block; it runs in a thread of its own with a deadline.

    `probe` has no side effects and never raises. `open` and `sample` raise `SourceError`. After an error `sample` is
    called again at the next tick; the source reconnects by itself. `close` never raises.
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
