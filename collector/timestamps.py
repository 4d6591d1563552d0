"""When counters were read: VM by VM, and those that somebody else reads for us. Pure: no I/O, no clocks of its own."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from collector.base import VM_PARTS, Stamp, VmIdentity, VmSample

# A reading that follows the sampling's beginning this closely has its moment: VMs are read in the same order each time,
# so that what their lateness changes by, which alone makes rates wrong, is much less than a fiftieth of the usual tick.
# A moment of its own is not for nothing: what a sleeping VM's sample makes would be made anew each time.
_LATE_NS = 20_000_000

_MOST_UNCERTAIN = 0.2
_MOST_WAIT_NS = 200_000_000  # the same share of the usual tick
_SURE_NS = 20_000_000  # so little is never too much: who samples faster than ten times a second has such noise anyway


class Moments:
    """Per VM, when its counters were last read, and whether the next moment is known well enough for a rate.

    A daemon that is busy or stopped reads the counters as the last thing before it answers: the moment is that of the
    answer's arrival. Where it waited after it had read them, the moment is wrong by up to the whole time since we
    asked. A reading is therefore not used where that time is more than 0.2 s, or for it or the one before more than a
    fifth of the time between them (and than 20 ms): the next reading makes its rate over the longer time.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, int]] = {}

    def accept(self, uuid: str, asked_ns: int, answered_ns: int) -> bool:
        """Note a reading that was asked for and arrived at these moments; False: it is not to be used."""
        wait_ns = answered_ns - asked_ns
        if wait_ns > _MOST_WAIT_NS:
            return False
        last = self._read.get(uuid)
        if last is not None:
            most_ns = max(_SURE_NS, _MOST_UNCERTAIN * (answered_ns - last[1]))
            if max(wait_ns, last[0]) > most_ns:
                return False
        self._read[uuid] = wait_ns, answered_ns
        return True

    def keep(self, uuids: Collection[str]) -> None:
        """Forget all other VMs."""
        for uuid in self._read.keys() - uuids:
            del self._read[uuid]


def read_in_turn(
    identities: Iterable[VmIdentity], read: Callable[[VmIdentity], VmSample], begun: Stamp, clock: Callable[[], int]
) -> dict[str, VmSample]:
    """Read VM after VM; those that had to wait for the ones before them have moments of their own.

    Args:
        identities: the VMs.
        read: makes a VM's sample.
        begun: the moment of the sampling: right before the first one is read.
        clock: monotonic, in nanoseconds.

    Returns:
        The samples by UUID.

    """
    vms: dict[str, VmSample] = {}
    read_ns = begun.mono_ns
    for identity in identities:
        sample = read(identity)
        late_ns = read_ns - begun.mono_ns
        if late_ns >= _LATE_NS:
            stamp = Stamp(read_ns, begun.unix_ns + late_ns)
            own = {part: stamp for part in VM_PARTS if getattr(sample, part) is not None}
            sample = replace(sample, stamps={**own, **sample.stamps})
        vms[identity.uuid] = sample
        read_ns = clock()
    return vms
