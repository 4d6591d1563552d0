"""What one certificate costs central: how many streams it has open, and how long it waits for the work it caused.

Each certificate owes time for its work (a Hello, a message to be read, many reports), which passing time pays. While it
owes more than a little, its streams are not read. Waiting for others is not owed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

Certificate = tuple[frozenset[str], str]  # its names and its serial

_SPARE_STREAMS = 8  # beyond one for each name: some have broken off and central does not know yet
_GREETS_AT_ONCE = 4  # streams whose Hello is read: their bytes are held meanwhile
_WAITING_STREAMS = 256  # beyond those allowed, for their turn to be refused; further ones are refused immediately
_FREE_S = 0.1  # that may be owed without waiting
_TIMES = 4  # owed for each second that a message took: one peer has a quarter of the loop at most
_HELLO_S = 0.02  # owed for a Hello, as well as the time that it took
JOB_S = 20e-6  # owed for each job in it, and for each that the host holds rows of
_REPORT_BYTES_PER_S = 256 << 10  # of events and reports of contention; agents send some hundred a second
_LARGE_REPORTS = 16 << 10  # bytes of one batch; fewer are free


@dataclass(slots=True, eq=False)
class Peer:
    """What the certificates of the same names have open and owe, or a revoked one.

    `reads_large` is held while one of its large messages is read, `greets` while one of its Hellos is.
    """

    names: frozenset[str]
    revoked: str  # its serial, or ""
    clock_s: Callable[[], float]
    serials: set[str] = field(default_factory=set)  # of the certificates that came with these names
    open: int = 0  # streams, or calls of the fleet API
    calls: Counter[str] = field(default_factory=Counter)  # open ones by kind, of those that are counted by kind
    reads_large: asyncio.Lock = field(default_factory=asyncio.Lock)
    greets: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_GREETS_AT_ONCE))
    until_s: float = 0.0  # when nothing is owed any more; 0: nothing is

    @property
    def allowed(self) -> int:
        """How many streams it may have open."""
        return len(self.names) + _SPARE_STREAMS

    @property
    def may_wait(self) -> bool:
        """Whether its last opened stream waits until others are paid for, even if only to be refused."""
        return self.open <= self.allowed + _WAITING_STREAMS

    def owe(self, seconds: float) -> None:
        """Add to what is owed."""
        self.until_s = max(self.until_s, self.clock_s()) + seconds

    def owe_for_hello(self) -> None:
        """Add what a Hello costs before it is read."""
        self.owe(_HELLO_S)

    def owe_for(self, took_s: float, report_bytes: int = 0) -> None:
        """Add the cost of a message that took `took_s` to be read and had `report_bytes` of reports."""
        owed_s = _TIMES * took_s
        if report_bytes > _LARGE_REPORTS:
            owed_s += report_bytes / _REPORT_BYTES_PER_S
        if owed_s:
            self.owe(owed_s)

    def wait_s(self) -> float:
        """Return how long its streams must not be read, s; 0 if they may be read."""
        if self.until_s and self.until_s <= (now_s := self.clock_s()):
            self.until_s = 0.0
        return max(0.0, self.until_s - _FREE_S - now_s) if self.until_s else 0.0

    async def wait(self) -> None:
        """Wait for what is owed now."""
        if (wait_s := self.wait_s()) > 0:
            await asyncio.sleep(wait_s)


class Peers:
    """All certificates that have streams open or owe something.

    A revoked one is counted separately: what it has open, or owes, is not charged to the one issued after it. `revoked`
    has serials, `clock_s` never goes back.
    """

    def __init__(self, revoked: Container[str] = (), clock_s: Callable[[], float] = time.monotonic) -> None:
        self._revoked = revoked
        self._clock_s = clock_s
        self._peers: dict[Certificate, Peer] = {}  # with a serial only if that is revoked

    def enter(self, certificate: Certificate) -> Peer:
        """Count a stream that begins, and return its peer, which must `leave`."""
        peer = self.of(certificate)
        peer.open += 1
        return peer

    def of(self, certificate: Certificate) -> Peer:
        """Return what a certificate has open and owes."""
        names, serial = certificate
        revoked = serial if serial in self._revoked else ""
        peer = self._peers.get((names, revoked))
        if peer is None or (not revoked and any(serial in self._revoked for serial in peer.serials)):
            peer = self._peers[names, revoked] = Peer(names, revoked, self._clock_s)
        peer.serials.add(serial)
        return peer

    def leave(self, peer: Peer) -> None:
        """Count a stream that ended. A peer that owes something stays known until its next stream ends."""
        peer.open -= 1
        name = peer.names, peer.revoked
        if not peer.open and peer.until_s <= self._clock_s() and self._peers.get(name) is peer:
            del self._peers[name]
