"""What two joined readings of a VM are, and what their difference is made of, part by part.

Of each part there is a difference or the `Reason` why there is none. Pure: no I/O, no clocks.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from collector.base import (
    CgroupCounters,
    DiskCounters,
    InterfaceCounters,
    NumaPlacement,
    PerfCounters,
    ProcessCounters,
    RdtCounters,
    Reason,
    ThreadCounters,
)

T = TypeVar("T")

#: A thread cannot use more CPU time than passes, but under load it is read up to this long after the time stamp. Twice
#: the time is allowed as well: for a thread alone on its CPU (nohz_full) the kernel accounts once a second only.
MAX_READ_JITTER_NS = 1_000_000_000 // 2

#: What each difference begins with: its length, and its end on both clocks.
Interval = tuple[int, int, int]


class Reading(NamedTuple, Generic[T]):
    """One part of one VM, from one source, with the moment at which it was read."""

    source: str
    mono_ns: int
    unix_ns: int
    value: T


class JoinedVm(NamedTuple):
    """What all sources together know of one VM in one epoch. A part that no source has is the reason.

    The parts are `collector.base.VM_PARTS`, in that order.
    """

    epoch: str
    vcpus: int
    threads: Reading[Mapping[int, ThreadCounters]] | Reason
    perf: Reading[PerfCounters] | Reason
    disks: Reading[Mapping[str, DiskCounters]] | Reason
    interfaces: Reading[Mapping[str, InterfaceCounters]] | Reason
    process: Reading[ProcessCounters] | Reason = Reason.SOURCE_OFF
    cgroup: Reading[CgroupCounters] | Reason = Reason.SOURCE_OFF
    rdt: Reading[RdtCounters] | Reason = Reason.SOURCE_OFF
    numa: Reading[NumaPlacement] | Reason = Reason.SOURCE_OFF


class CpuDelta(NamedTuple):
    """CPU time of the vCPU threads, `threads` in number; `guest_ns` None: only the process knows it."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    threads: int
    guest_ns: int | None
    cpu_ns: int
    run_queue_wait_ns: int | None


class EventDelta(NamedTuple):
    """Scaled counts of one event, and the cycles and instructions that its group counted beside it."""

    counted: float
    cycles: float
    instructions: float


class PerfDelta(NamedTuple):
    """Counts of the whole VM, scaled for multiplexing; `running_ns` of `enabled_ns` were truly counted (0: none was).

    `incomplete` says why not all vCPU threads are in the counts: their quotient holds, their sum is too small. `events`
    are those beside cycles and instructions that were counted; `missing` says why others were not.
    """

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cycles: float
    instructions: float
    enabled_ns: int
    running_ns: float
    incomplete: Reason | None
    events: Mapping[str, EventDelta]
    missing: Mapping[str, Reason]


class DiskDelta(NamedTuple):
    """Bytes and operations of all block devices."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    read_bytes: int
    write_bytes: int
    read_ops: int
    write_ops: int


class NetworkDelta(NamedTuple):
    """Bytes, packets and drops of all interfaces, as the guest sees the directions; a reason if one counts no drops."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    receive_bytes: int
    transmit_bytes: int
    receive_packets: int
    transmit_packets: int
    receive_drops: int | Reason
    transmit_drops: int | Reason


class ProcessDelta(NamedTuple):
    """The whole process; vCPU threads that run now. A reason where a value is not known."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cpu_ns: int
    guest_ns: int | Reason
    storage_read_bytes: int | Reason
    storage_write_bytes: int | Reason
    vcpus_running: int | Reason


class CgroupDelta(NamedTuple):
    """The control group: times of pressure and throttling, in `dt_ns`; quota and memory now."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cpu_some_ns: int | Reason
    memory_some_ns: int | Reason
    memory_full_ns: int | Reason
    io_some_ns: int | Reason
    io_full_ns: int | Reason
    throttled_ns: int | Reason
    quota_cores: float | Reason
    memory_bytes: int | Reason


class RdtDelta(NamedTuple):
    """All cache domains together: occupancy now, bytes moved in `dt_ns`."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    llc_occupancy_bytes: int | Reason
    mbm_total_bytes: int | Reason
    mbm_local_bytes: int | Reason


class VmDelta(NamedTuple):
    """What happened between two readings, part by part; each part over its own source's time."""

    cpu: CpuDelta | Reason
    perf: PerfDelta | Reason
    disk: DiskDelta | Reason
    network: NetworkDelta | Reason
    process: ProcessDelta | Reason = Reason.SOURCE_OFF
    cgroup: CgroupDelta | Reason = Reason.SOURCE_OFF
    rdt: RdtDelta | Reason = Reason.SOURCE_OFF
    numa: NumaPlacement | Reason = Reason.SOURCE_OFF
