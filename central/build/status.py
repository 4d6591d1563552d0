"""The state of builds, in the process that runs them and in central."""

from dataclasses import dataclass

from central.coefficients.follower import VersionFollower
from central.coefficients.versions import BuiltVersion, VersionStore


class BuildStoppedError(Exception):
    """The build was stopped."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Days of the lake, and their rows, that are not in the version because they are older than `build.days`."""

    days: int = 0
    rows: int = 0


class BuildStatus:
    """The outcome of the last build, and the current version (`follower`).

    `last_error`: why the last build failed, in one line; "": it succeeded. `left_out`: what it found too old to count.
    `damaged`: files that the last build ("build") and the last maintenance of the lake ("maintenance") found damaged.
    """

    def __init__(self, follower: VersionFollower) -> None:
        self.follower = follower
        self.last_error = ""
        self.left_out = LeftOut()
        self.damaged: dict[str, list[str]] = {}

    @property
    def versions(self) -> VersionStore:
        """All versions."""
        return self.follower.versions

    @property
    def current(self) -> BuiltVersion | None:
        """The current version; None before the first one."""
        return self.follower.current

    @property
    def damaged_files(self) -> int:
        """How many of the lake's objects were found damaged when they were last read."""
        return len(set[str]().union(self.versions.damaged, *self.damaged.values()))


def line_of(error: Exception) -> str:
    """Return the kind of an error and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
