"""Who may build: a lease in the lake that one replica holds at a time, with a fencing token.

    <root>/lease/<token>.json

A token is taken by creating its file exclusively, one higher than the last, so tokens grow and each has one holder,
which renews by rewriting its file. Others take over once they have seen the file unchanged, by their own monotonic
clock, for as long as the holder may be silent: the clocks of machines are never compared. A stalled holder that wakes
up finds a higher token and must stop; exclusive manifests (`central.lake.manifests`) stop what it could still publish.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from central.lake.objects import NotRegularError, Objects
from whitepanda.common.errors import WhitepandaError

#: The holder's name if the lease's file cannot be read.
UNREADABLE = "?"

_KEPT = 5  # tokens before the newest, to look at
_CHECKS = 20  # of the lease while it may run out
_CHECK_S = 1.0  # at most between two


class FencedError(WhitepandaError):
    """Another replica has taken over the lease."""


class _Holding(msgspec.Struct, frozen=True):
    holder: str
    renewals: int = 0
    is_released: bool = False
    ttl_s: float = 0.0  # the holder's; 0 if unknown


class Lease:
    """The lease as one replica sees it. All methods raise OSError if the lake cannot be read or written.

    `holder` is this replica's `central.journal.writer.Journal.origin`: a replica that starts again with its journal
    takes over from itself immediately, while another replica of the same name has another journal. `ttl_s` is for how
    long this replica may be silent as the holder, and one whose file is damaged. `token`: 0 unless it is the holder.
    """

    def __init__(
        self, objects: Objects, holder: str, ttl_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.token = 0
        self._objects = objects
        self._holder = holder
        self._ttl_s = ttl_s
        self._monotonic_s = monotonic_s
        self._renewals = 0
        self._renewed_s = 0.0
        self._checking = threading.Lock()
        self._seen: tuple[int, _Holding] | None = None
        self._seen_s = 0.0

    def acquire(self) -> bool:
        """Take the lease if it is free, released, this replica's own or silent for too long."""
        newest, holding = self._newest()
        if newest and newest == self.token:
            self.renew()
            return True
        now_s = self._monotonic_s()
        if holding is not None and not holding.is_released and holding.holder != self._holder:
            if self._seen != (newest, holding):
                self._seen, self._seen_s = (newest, holding), now_s
            if now_s - self._seen_s < (holding.ttl_s or self._ttl_s):
                return False
        try:
            mine = _Holding(self._holder, ttl_s=self._ttl_s)
            self._objects.create(_name(newest + 1), msgspec.json.encode(mine))
        except FileExistsError:
            return False
        self.token, self._renewals, self._renewed_s, self._seen = newest + 1, 0, now_s, None
        for token in _tokens(self._objects):
            if token <= self.token - _KEPT:
                self._objects.remove(_name(token))
        return True

    def outwait(self, tell: Callable[[str, float], None], sleep_s: Callable[[float], None] = time.sleep) -> bool:
        """Take the lease; if another replica holds it, wait until that renews, releases or has been silent for long.

        For a process that has not watched before, as `acquire` alone would never find a dead holder dead. `tell` is
        called once before the wait, with the holder's name and the longest wait, s. False: another holder is alive.
        """
        first: tuple[int, _Holding] | None = None
        while not self.acquire():
            if self._seen is None:
                continue  # another one took it in the same moment
            ttl_s = self._seen[1].ttl_s or self._ttl_s
            if first is None:
                first = self._seen
                tell(first[1].holder, ttl_s)
            elif self._seen != first:
                return False
            sleep_s(min(_CHECK_S, ttl_s / _CHECKS))
        return True

    def check(self) -> None:
        """Raise FencedError if another replica has taken over; renew when a third of the time has passed."""
        with self._checking:  # days are computed in parallel, and each checks
            newest = max(_tokens(self._objects), default=0)
            if not self.token or newest != self.token:
                problem = f"token {self.token} of {self._holder} was overtaken by {newest}"
                effect = "nothing of this build is published"
                raise FencedError(f"lease of the lake {self._objects.root}: {problem}; {effect}")
            if self._monotonic_s() - self._renewed_s > self._ttl_s / 3:
                self.renew()

    def renew(self) -> None:
        """Show that the holder lives."""
        self._renewals += 1
        self._write(_Holding(self._holder, self._renewals, ttl_s=self._ttl_s))
        self._renewed_s = self._monotonic_s()

    def release(self) -> None:
        """Let others take it immediately. Nothing happens if it is not held (any more)."""
        if self.token and max(_tokens(self._objects), default=0) == self.token:
            self._write(_Holding(self._holder, self._renewals + 1, is_released=True))
        self.token = 0

    def release_left(self) -> None:
        """Release what a process of this replica held when it died, which the caller knows."""
        if self.holder() == self._holder and self.acquire():
            self.release()

    def holder(self) -> str:
        """Return the holder of the lease now, "" for none."""
        _, holding = self._newest()
        return "" if holding is None or holding.is_released else holding.holder

    def _newest(self) -> tuple[int, _Holding | None]:
        token = max(_tokens(self._objects), default=0)
        try:
            return token, _read(self._objects, token) if token else None
        except (msgspec.MsgspecError, NotRegularError):
            return token, _Holding(UNREADABLE)  # damaged: no replica renews it

    def _write(self, holding: _Holding) -> None:
        """Rewrite the file of the own token, which no other replica writes."""
        draft = self._objects.draft(_name(self.token))
        draft.write_bytes(msgspec.json.encode(holding))
        self._objects.publish(draft, _name(self.token))


def _name(token: int) -> str:
    return f"lease/{token:012d}.json"


def _tokens(objects: Objects) -> list[int]:
    names = (entry.name.rpartition("/")[2] for entry in objects.entries("lease"))
    return [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()]


def _read(objects: Objects, token: int) -> _Holding:
    return msgspec.json.decode(objects.read(_name(token)), type=_Holding)


def lease_problem(objects: Objects) -> str:
    """Return why the newest lease cannot be read, in a line; "" if it can, or there is none."""
    token = max(_tokens(objects), default=0)
    try:
        _read(objects, token)
    except FileNotFoundError:
        return ""  # there is none, or a later one has come
    except (msgspec.MsgspecError, NotRegularError) as error:
        why = "it is not a regular file" if isinstance(error, NotRegularError) else str(error)
        effect = (
            "a replica that wants to build waits once for a sign of life of its holder, and takes over by a new one"
        )
        return f"{objects.root}/{_name(token)} is damaged: {why}; no row is lost: {effect}"
    return ""
