"""When counters were read, by the agent or by a daemon that answers it; deadlines."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from collector.base import VM_PARTS, Stamp, VmIdentity, VmSample

# A VM read this soon after the sampling began has the sampling's moment: VMs are read in the same order each time, so
# their lateness varies, which alone makes rates wrong, by much less than a fiftieth of the usual tick. A moment of its
# own would cost: the sample of a sleeping VM could not be reused.
_LATE_NS = 20_000_000

_MAX_UNCERTAIN = 0.2
_MAX_WAIT_NS = 200_000_000  # the same share of the usual tick
_SURE_NS = 20_000_000  # always accepted: sampling more than ten times a second has this noise anyway


def clocks_now() -> Stamp:
    """Read both clocks."""
    return Stamp(time.monotonic_ns(), time.time_ns())


def seconds_left(deadline_s: float) -> float:
    """Return the time until a moment of `time.monotonic`, for a socket. Raises TimeoutError once it has passed."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


class Moments:
    """Per VM, when its counters were last read, and whether the next moment is known well enough for a rate.

    A daemon that is busy or stopped usually reads the counters right before it answers, so the moment is the answer's
    arrival. If it waited after reading them, the moment is wrong by up to the whole time since the request. A reading
    is therefore rejected if that time exceeds 0.2 s, or if for it or the one before it exceeds both 20 ms and a fifth
    of the time between them. The next reading then makes its rate over the longer time.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, int]] = {}

    def accept(self, uuid: str, asked_ns: int, answered_ns: int) -> bool:
        """Note a reading that was asked for and arrived at these moments; False: do not use it."""
        wait_ns = answered_ns - asked_ns
        if wait_ns > _MAX_WAIT_NS:
            return False
        last = self._read.get(uuid)
        if last and max(wait_ns, last[0]) > max(_SURE_NS, _MAX_UNCERTAIN * (answered_ns - last[1])):
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
    """Return the samples by UUID, read one after the other; a VM that had to wait has a moment of its own.

    `begun` is the moment right before the first is read; `clock` is monotonic, in nanoseconds.
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
