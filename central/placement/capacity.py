"""Whether a host has room for a VM: vCPUs and memory by facts, with overcommit. What is not known is "cannot tell".

A host is full if what is known to be taken there, and the VM, exceed its limit; it has room if everything is known and
fits. Otherwise nobody can tell: its own size, that of a VM there, or that of the new VM is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from central.models.groups import Floats

if TYPE_CHECKING:
    from central.config import PlacementSection

_GIB = float(1 << 30)
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class HostSize:
    """What a host's facts say; None where they do not."""

    cpus: float | None = None  # logical
    memory_bytes: float | None = None
    network_bytes_per_s: float | None = None  # the NICs' speeds in all
    disks: float | None = None  # their number


@dataclass(frozen=True, slots=True)
class VmSize:
    """What a VM's facts say; None where they do not."""

    vcpus: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Facts at a time, by name of the host and by VM."""

    hosts: Mapping[str, HostSize] = field(default_factory=dict)
    vms: Mapping[str, VmSize] = field(default_factory=dict)
    problem: str = ""  # why nothing is known

    def column(self, hosts: Sequence[str], name: str, unknown: float) -> Floats:
        """Return one size of each host, `unknown` where it is not known (or there is no such size)."""
        values = [getattr(self.hosts.get(host), name, None) for host in hosts]
        return np.array([unknown if value is None else value for value in values], dtype=np.float64)

    def largest(self, vms: Sequence[str]) -> VmSize:
        """Return the size of the largest of these VMs, by vCPUs and by memory."""
        found = [self.vms[vm] for vm in vms if vm in self.vms]
        return VmSize(
            max((each.vcpus for each in found if each.vcpus is not None), default=None),
            max((each.memory_bytes for each in found if each.memory_bytes is not None), default=None),
        )


NO_SIZES = Sizes()
UNKNOWN_VM = VmSize()


@dataclass(frozen=True, slots=True)
class Room:
    """Whether a VM has room; neither reason: it has."""

    full: str = ""  # why not
    unknown: str = ""  # why nobody can tell


@dataclass(frozen=True, slots=True)
class _Amount:
    """What is taken of vCPUs or memory, shapes (hosts,)."""

    name: str  # field of `VmSize`
    unit: str  # for people
    total: str  # of a host, for people
    scale: float  # of the unit
    taken: Floats  # by the VMs there, of which it is known
    unsized: npt.NDArray[np.int64]  # VMs there of which it is not
    limit: Floats  # NaN: not known; inf: none

    def is_full(self, wanted: float | None) -> npt.NDArray[np.bool_]:
        """Return which hosts lack room; without knowing the VM's size, those with none at all."""
        with np.errstate(invalid="ignore"):
            if wanted is None:
                return self.taken >= self.limit * (1 - _ROUNDING)
            return self.taken + wanted > self.limit * (1 + _ROUNDING)

    def words(self, host: int) -> str:
        """Say what is taken of what."""
        taken, limit = (float(each[host]) / self.scale for each in (self.taken, self.limit))
        return f"{taken:.4g} of {limit:.4g} {self.unit} taken"

    def doubt(self, host: int, wanted: float | None) -> str:
        """Say why nobody can tell; "" if one can."""
        if math.isinf(self.limit[host]):
            return ""
        if math.isnan(self.limit[host]):
            return f"no facts of the host's {self.total}"
        if self.unsized[host]:
            return f"no facts of the {self.unit} of {self.unsized[host]} VMs there"
        return f"the new VM's {self.unit} are not known" if wanted is None else ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is taken of the hosts."""

    amounts: tuple[_Amount, ...]

    @classmethod
    def of(cls, hosts: Sequence[str], vms: Sequence[Sequence[str]], sizes: Sizes, config: PlacementSection) -> Capacity:
        """Return what is taken of hosts by the VMs on each of them."""
        there = [[sizes.vms.get(vm, UNKNOWN_VM) for vm in each] for each in vms]

        def amount(name: str, unit: str, scale: float, total: str, overcommit: float) -> _Amount:
            values = [[getattr(vm, name) for vm in each] for each in there]
            return _Amount(
                name,
                unit,
                total.partition("_")[0],
                scale,
                np.array([sum(value for value in each if value is not None) for each in values], dtype=np.float64),
                np.array([each.count(None) for each in values], dtype=np.int64),
                overcommit * sizes.column(hosts, total, math.nan) if overcommit else np.full(len(hosts), math.inf),
            )

        return cls(
            (
                amount("vcpus", "vCPUs", 1.0, "cpus", config.cpu_overcommit),
                amount("memory_bytes", "GiB of memory", _GIB, "memory_bytes", config.memory_overcommit),
            )
        )

    def full(self, size: VmSize) -> npt.NDArray[np.bool_]:
        """Return which hosts are known to have no room for a VM, shape (hosts,)."""
        found: npt.NDArray[np.bool_] = np.logical_or.reduce(
            [each.is_full(getattr(size, each.name)) for each in self.amounts]
        )
        return found

    def room(self, host: int, size: VmSize) -> Room:
        """Return whether one host has room, and why not."""
        wanted = [(each, getattr(size, each.name)) for each in self.amounts]
        if full := [each.words(host) for each, value in wanted if each.is_full(value)[host]]:
            return Room(full=", ".join(full))
        return Room(unknown=", ".join(filter(None, (each.doubt(host, value) for each, value in wanted))))
