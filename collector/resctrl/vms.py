"""The resctrl source's state of a VM."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.base import RdtDomain, Reason, VmIdentity
from collector.resctrl.group_reader import GroupReader
from collector.resctrl.threads import Threads
from collector.resctrl.tree import PREFIX, Place


@dataclass(slots=True)
class Vm:
    """A VM in its epoch.

    `places`: the resctrl group in which each thread was last found. `own`: the control groups in which the VM needs a
    group of whitepanda. `readers`: all groups that are read, including those of other programs. `reason`: why nothing
    can be read.
    """

    identity: VmIdentity
    threads: Threads
    places: dict[int, Place] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    foreign: frozenset[Place] = frozenset()
    shared: bool = False
    readers: dict[Place, GroupReader] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    reason: Reason = Reason.VM_STARTING
    look_at_ns: int = 0
    opened: int = 0
    last: Mapping[str, RdtDomain] = field(default_factory=dict)
    last_ns: int = 0

    def group(self, ctrl: str) -> Place:
        """Return the VM's monitoring group in control group `ctrl`."""
        return Place(ctrl, PREFIX + self.identity.uuid)

    @property
    def complete(self) -> bool:
        """Whether all its own groups are read."""
        return all(self.group(ctrl) in self.readers for ctrl in self.own)

    @property
    def watched(self) -> tuple[int, ...]:
        """Return the threads that decide where the VM is: its vCPUs, or all while none is known."""
        living = tuple(tid for tid in self.identity.vcpu_tids if tid in self.threads.tids)
        return living or tuple(self.threads.tids)

    def to_move(self) -> dict[str, set[int]]:
        """Return the threads to move into the VM's groups, by control group; those in others' groups stay there."""
        found: dict[str, set[int]] = {}
        for tid, place in self.places.items():
            if place.ctrl in self.own and tid not in self.inside and (place.own or not place.mon):
                found.setdefault(place.ctrl, set()).add(tid)
        return found
