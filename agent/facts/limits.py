"""Which limits `whitepanda act` has in force, by its journal, which it keeps for itself."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.clock import Clock, boot_id
from whitepanda.common.texts import clean_name

_MAX_BYTES = 8 << 20
_MAX_LIMITS = 16  # of a VM; act has one at a time
UNITS = {"cap-cpu": "cores", "limit-bandwidth": "percent", "limit-cache": "ways"}


class Limited(NamedTuple):
    """The limits of a VM, in words, and when the last one began or ended, by the wall clock."""

    limits: tuple[str, ...] = ()
    changed_unix_ns: int = 0


class _Record(msgspec.Struct, frozen=True):
    action: str
    vm: str
    amount: float
    began_unix_ns: int
    why: str = ""
    is_applied: bool = False


class _Ended(msgspec.Struct, frozen=True):
    vm: str
    boot_ns: int
    boot_id: str


class _Journal(msgspec.Struct, frozen=True):
    """What is read of `agent.act.journal`'s file."""

    records: tuple[_Record, ...] = ()
    ended: tuple[_Ended, ...] = ()


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ActLimits:
    """The journal in `act.state_dir`. `boot_ns`: nanoseconds since this boot, sleep included."""

    def __init__(self, folder: str, clock: Clock, boot_ns: Callable[[], int] = _boot_ns, boot: str = "") -> None:
        self._path = Path(folder) / "journal.json"
        self._clock = clock
        self._boot_ns = boot_ns
        self._boot_id = boot or boot_id()
        self._last: Mapping[str, Limited] = {}

    def read(self) -> Mapping[str, Limited]:
        """Return the VMs, by UUID, that are or were limited. Blocks.

        A file that is missing has none. If it cannot be read or is damaged they are as before.
        """
        try:
            with self._path.open("rb") as file:
                kept = msgspec.json.decode(file.read(_MAX_BYTES), type=_Journal)
        except FileNotFoundError:
            kept = _Journal()
        except (OSError, ValueError, RecursionError):
            return self._last
        limits, changed = defaultdict[str, list[str]](list), defaultdict[str, int](int)
        began_ns = self._clock.unix_ns() - self._boot_ns()
        for one in kept.ended:
            if one.boot_id == self._boot_id:
                changed[one.vm] = began_ns + one.boot_ns
        for record in kept.records:
            if record.is_applied:
                limits[record.vm].append(_words(record))
                changed[record.vm] = max(changed[record.vm], record.began_unix_ns)
        self._last = {vm: Limited(tuple(limits[vm][:_MAX_LIMITS]), at) for vm, at in changed.items()}
        return self._last


def _words(record: _Record) -> str:
    unit = UNITS.get(record.action, "")
    return clean_name(f"{record.action} {record.amount:g} {unit}".rstrip() + (f": {record.why}" if record.why else ""))
