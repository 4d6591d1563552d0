"""The version that this process uses: the newest one of the lake, whichever replica built it."""

import threading
from collections.abc import Callable

from central.coefficients.versions import BuiltVersion, VersionStore
from central.own_threads import in_own_thread
from whitepanda.common import log


class VersionFollower:
    """Follows the versions of a lake: `current` is the newest; None before the first one.

    `announce` calls all of `on_version` with it.
    """

    def __init__(self, versions: VersionStore) -> None:
        self.versions = versions
        self.current: BuiltVersion | None = versions.latest()
        self.on_version: list[Callable[[BuiltVersion], None]] = []
        self._setting_current = threading.Lock()
        self._log = log.get("builds")

    def take_newer(self) -> bool:
        """Take a newer version of the lake, if one exists. Blocks; call it in a thread. Raises OSError."""
        if max(self.versions.numbers(), default=0) <= (self.current.version if self.current else 0):
            return False
        found = self.versions.latest()
        return found is not None and self.put_in_force(found)

    def put_in_force(self, found: BuiltVersion) -> bool:
        """Set `current`, unless that is as new: two threads may read at the same time."""
        with self._setting_current:
            if self.current and found.version <= self.current.version:
                return False
            self.current = found
            return True

    async def catch_up(self) -> None:
        """Take a newer version of the lake now, if one exists, and announce it. Raises OSError."""
        if await in_own_thread(self.take_newer):
            self._log.info("version loaded from another replica", version=self.current.version if self.current else 0)
            self.announce()

    def announce(self) -> None:
        """Call all of `on_version` with the current version."""
        if self.current is not None:
            for call in self.on_version:
                call(self.current)
