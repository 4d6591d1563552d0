"""Which VMs have monitoring groups now, if there are more VMs than monitoring ids. Pure: the caller passes the time."""

from collections.abc import Collection
from typing import NamedTuple

from collector.base import NS_PER_S

#: A freed monitoring id is in limbo until its lines left the cache; the kernel looks once a second.
_FIRST_BACK_OFF_NS = 1 * NS_PER_S
_LAST_BACK_OFF_NS = 32 * NS_PER_S
#: How long a limit of ids is believed that a refused mkdir has shown.
_LIMIT_NS = 60 * NS_PER_S


class Step(NamedTuple):
    """The next change: give `grant` its groups, take away the groups of `release`; "" is not a VM.

    With both, make the new group first: the kernel may refuse it.
    """

    release: str
    grant: str


class Turns:
    """VMs by UUID: holders of groups, for `hold_ns` before another's turn, and those that wait, first come first."""

    def __init__(self, hold_ns: int) -> None:
        self._hold_ns = hold_ns
        self._needs: dict[str, int] = {}
        self._holders: dict[str, int] = {}  # since when, the longest first
        self._waiting: dict[str, None] = {}  # the longest first
        self._blocked: dict[str, int] = {}  # until when
        self._free_at_ns = 0
        self._back_off_ns = _FIRST_BACK_OFF_NS
        self._limit = 0  # groups that there can be, as far as was found, and until when that is believed
        self._limit_until_ns = 0

    @property
    def holders(self) -> Collection[str]:
        """The VMs that hold groups."""
        return self._holders.keys()

    def want(self, uuid: str, groups: int, *, first: bool = False) -> None:
        """Note how many groups a VM needs. `first`: it has had them already and need not wait."""
        if uuid not in self._needs:
            self._waiting = {uuid: None, **self._waiting} if first else {**self._waiting, uuid: None}
        self._needs[uuid] = groups

    def forget(self, uuid: str) -> None:
        """Note that a VM needs none any more."""
        for each in (self._needs, self._holders, self._waiting, self._blocked):
            each.pop(uuid, None)

    def next(self, cap: int, now_ns: int) -> Step | None:
        """Return what to do next with at most `cap` groups; None: nothing now. Changes nothing by itself."""
        used = self._used()
        if used > cap:
            return Step(next(iter(self._holders)), "")
        if now_ns < self._limit_until_ns:
            cap = min(cap, self._limit)
        may = (u for u in self._waiting if self._needs[u] <= cap and self._blocked.get(u, now_ns) <= now_ns)
        waiter = next(may, "")
        if not waiter or now_ns < self._free_at_ns:
            return None
        if used + self._needs[waiter] <= cap:
            return Step("", waiter)
        holder, since_ns = next(iter(self._holders.items()))
        return Step(holder, waiter) if now_ns - since_ns >= self._hold_ns else None

    def _used(self) -> int:
        return sum(self._needs[uuid] for uuid in self._holders)

    def released(self, uuid: str) -> None:
        """A VM's groups were taken away: it waits again, last."""
        del self._holders[uuid]
        self._waiting[uuid] = None

    def granted(self, uuid: str, now_ns: int) -> None:
        """A VM has its groups."""
        self._waiting.pop(uuid, None)
        self._holders[uuid] = now_ns
        self._back_off_ns = _FIRST_BACK_OFF_NS

    def refused(self, uuid: str, now_ns: int, *, all_taken: bool = False) -> None:
        """The kernel has no monitoring id now: the VM stays first in the line, and no VM asks for a while.

        `all_taken`: none is in limbo either, so there are fewer ids than known; the turns continue among those held.
        """
        if self._holders.pop(uuid, None) is not None:
            self._waiting = {uuid: None, **self._waiting}
        used = self._used()
        if all_taken and used:
            self._limit = used + self._needs[uuid] - 1
            self._limit_until_ns = now_ns + _LIMIT_NS
            return
        self._free_at_ns = now_ns + self._back_off_ns
        self._back_off_ns = min(2 * self._back_off_ns, _LAST_BACK_OFF_NS)

    def postponed(self, uuid: str, until_ns: int) -> None:
        """A VM could not have its groups for a reason of its own: others first, and it not before `until_ns`."""
        self._holders.pop(uuid, None)
        self._waiting.pop(uuid, None)
        self._waiting[uuid] = None
        self._blocked[uuid] = until_ns
