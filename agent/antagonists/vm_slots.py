"""Each VM over the last slots, summed up from its CPI windows. Nothing here reads a clock.

Slots are trailing: the youngest ends now, the one before it a slot length ago, and so on.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.sampling.windows import CpiWindow
from collector.base import NumaPlacement, Reason
from collector.inventory.numa import domains_of

#: Windows and slots watched for less than this share of their length are not compared with whole ones.
MIN_COVERAGE = 0.5

_POINTS = 12  # slots shown by `explain`: an hour of 5-minute slots
_ANYWHERE = frozenset[int]()


@dataclass(frozen=True, slots=True)
class CpiPoint:
    """One slot of a VM. `cpi` None: not known."""

    start_unix_ns: int
    cpi: float | None
    cpu_usage_cores: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """The kept part of a window; the rest would cost memory."""

    middle_unix_ns: int
    duration_ns: int
    cpu_usage_cores: float
    cpi: float | None
    cpi_reason: Reason
    cycles: int | None
    instructions: int | None
    domains: frozenset[int]


@dataclass(slots=True)
class SlotVm:
    """One VM in its present epoch. `domains`: its cache domains over the last slot; none: not known."""

    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    pieces: deque[_Piece] = field(default_factory=deque)
    domains: frozenset[int] = _ANYWHERE
    points: deque[CpiPoint] = field(default_factory=lambda: deque(maxlen=_POINTS))


@dataclass(frozen=True, slots=True)
class VmSlot:
    """One VM over one slot, of which it was watched for `watched_ns`."""

    cpi: float | None
    cpi_reason: Reason
    cpu_usage_cores: float
    watched_ns: int


class VmSlots:
    """The VMs, by UUID, with their windows over the last `count` slots.

    `domain_of_node`: cache domain of each NUMA node; empty: domains do not matter.
    """

    def __init__(self, count: int, domain_of_node: Mapping[int, int]) -> None:
        self.vms: dict[str, SlotVm] = {}
        self._count = count
        self._domain_of_node = domain_of_node
        self._recorded_unix_ns = 0

    def take(
        self, windows: Sequence[CpiWindow], places: Mapping[str, NumaPlacement], now_unix_ns: int, slot_ns: int
    ) -> None:
        """Take the windows that have just ended; forget VMs and windows that are older than the slots kept."""
        for window in windows:
            self._keep(window, places.get(window.vm))
        self._forget(now_unix_ns - self._count * slot_ns, now_unix_ns + slot_ns)
        if self._domain_of_node:
            since = now_unix_ns - slot_ns
            for vm in self.vms.values():
                vm.domains = _ANYWHERE.union(*(p.domains for p in vm.pieces if p.middle_unix_ns > since))

    def _keep(self, window: CpiWindow, place: NumaPlacement | None) -> None:
        vm = self.vms.get(window.vm)
        if vm is None or vm.epoch != window.epoch:
            vm = self.vms[window.vm] = SlotVm(window.epoch, window.name, window.job, window.latency_sensitive)
        vm.name, vm.job, vm.latency_sensitive = window.name, window.job, window.latency_sensitive
        vm.pieces.append(
            _Piece(
                window.start_unix_ns + window.duration_ns // 2,
                window.duration_ns,
                window.cpu_usage_cores,
                window.cpi,
                window.cpi_reason,
                window.cycles,
                window.instructions,
                domains_of(place, self._domain_of_node) if place and self._domain_of_node else _ANYWHERE,
            )
        )

    def _forget(self, oldest: int, newest: int) -> None:
        """Drop windows up to `oldest`, and those after `newest`, which a clock set back has put into the future."""
        for uuid, vm in list(self.vms.items()):
            while vm.pieces and vm.pieces[0].middle_unix_ns <= oldest:
                vm.pieces.popleft()
            # Sorted, except after a clock step, which shows at one of the ends. Usually nothing needs to be done.
            if any(not oldest < vm.pieces[i].middle_unix_ns <= newest for i in (0, -1) if vm.pieces):
                vm.pieces = deque(p for p in vm.pieces if oldest < p.middle_unix_ns <= newest)
            if not vm.pieces:
                del self.vms[uuid]

    def over(self, end_unix_ns: int, slot_ns: int, *, youngest: bool) -> dict[str, VmSlot]:
        """Aggregate each VM over the slot that ended at `end_unix_ns`."""
        # A window belongs to the slot that contains its midpoint, because windows end a few milliseconds off the grid.
        # The youngest slot also includes windows dated slightly after now.
        start, end = end_unix_ns - slot_ns, math.inf if youngest else end_unix_ns
        inside = {uuid: [p for p in vm.pieces if start < p.middle_unix_ns <= end] for uuid, vm in self.vms.items()}
        return {uuid: _slot_of(pieces) for uuid, pieces in inside.items() if pieces}

    def record(self, slots: Mapping[str, VmSlot], now_unix_ns: int, slot_ns: int) -> None:
        """Keep the youngest slots in the VMs' histories, once per slot length."""
        if now_unix_ns // slot_ns == self._recorded_unix_ns // slot_ns:
            return
        self._recorded_unix_ns = now_unix_ns
        for uuid, last in slots.items():
            self.vms[uuid].points.append(CpiPoint(now_unix_ns - slot_ns, last.cpi, last.cpu_usage_cores))

    def forget_points(self) -> None:
        """Drop the histories: slots have another length from here on."""
        self._recorded_unix_ns = 0
        for vm in self.vms.values():
            vm.points.clear()


def _slot_of(pieces: list[_Piece]) -> VmSlot:
    """Sum windows up to a slot: CPI is cycles over instructions, else the mean weighted by duration."""
    watched = sum(p.duration_ns for p in pieces)
    usage = math.fsum(p.cpu_usage_cores * p.duration_ns for p in pieces) / watched if watched else 0.0
    known = [(p, p.cpi) for p in pieces if p.cpi is not None]
    counted = [(p.cycles, p.instructions) for p, _ in known if p.cycles is not None and p.instructions]
    duration = sum(p.duration_ns for p, _ in known)
    if counted:
        cpi = sum(cycles for cycles, _ in counted) / sum(instructions for _, instructions in counted)
    elif duration:
        cpi = math.fsum(cpi * p.duration_ns for p, cpi in known) / duration
    else:
        return VmSlot(None, pieces[-1].cpi_reason, usage, watched)
    return VmSlot(cpi, Reason.UNSPECIFIED, usage, watched)
