"""Which users' QEMUs are VMs of this host: any user may start such a program with any VM's name and UUID."""

import logging
import pwd
import re
from collections.abc import Iterable

_log = logging.getLogger("whitepanda.qemu")

_MAX_SYSTEM_UID = 999
_UID = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)


class Owners:
    """Trusts root, system users (ids below 1000) and `users`: names, or numbers of users without a name here."""

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._users = tuple(users)
        self._refused: set[int] = set()

    def trusts(self, uid: int, pid: int) -> bool:
        """Whether QEMUs of this user count. The first one of each refused user is logged."""
        # Names are resolved each time, which is rare: a user may be created after the agent started.
        if uid <= _MAX_SYSTEM_UID or any(_uid_of(user) == uid for user in self._users):
            return True
        if uid not in self._refused:
            self._refused.add(uid)
            remedy = "add the user to sources.qemu.users if VMs run as that user"
            _log.warning("process %d: a QEMU of user %s is not measured; %s", pid, _name_of(uid), remedy)
        return False


def real_uid(status: bytes) -> int:
    """Return the real user id of a /proc/PID/status (root may own /proc/PID itself). Raises ValueError."""
    match = _UID.search(status)
    if match is None:
        raise ValueError(f"no line Uid: {status[:60]!r}")
    return int(match[1])


def _uid_of(user: str) -> int | None:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)
