"""Whether another replica of the lake builds by other settings: then each replaces the other's versions by its own.

It is warned of, not refused: settings may be changed, one replica after the other.
"""

import time
from collections.abc import Callable

import msgspec

from central.coefficients.versions import Manifest, VersionStore
from central.config import BuildSection
from central.lake.errors import LakeError
from central.lake.replicas import RECENT_S
from whitepanda.common import log

_RECENT_BUILDS = 3  # a replica that builds none of so many that are due is gone, or was set up anew


class OtherSettings:
    """Compares with the newest version that another replica has built of late.

    Args:
        section: this replica's settings.
        versions: of the lake.
        holder: this replica in the lease, see `central.lake.lease.Lease`.
        clock_unix_ns: for tests.

    """

    def __init__(
        self,
        section: BuildSection,
        versions: VersionStore,
        holder: str,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._section = section
        self._versions = versions
        self._holder = holder
        self._clock_unix_ns = clock_unix_ns
        self._recent_ns = round(max(RECENT_S, _RECENT_BUILDS * section.interval_s) * 1e9)
        self._looked_at = 0  # versions up to this one
        self._theirs: Manifest | None = None
        self._told = ""
        self._log = log.get("builds")

    def look(self) -> None:
        """Warn of what differs, once until that changes. Blocks; what cannot be read is passed over."""
        try:
            numbers = self._versions.numbers()
        except OSError:
            return  # the build tells of it
        for number in reversed([each for each in numbers if each > self._looked_at]):
            try:
                manifest = self._versions.manifest(number)
            except (OSError, LakeError, msgspec.MsgspecError):
                continue  # whoever takes the version tells of it
            if manifest.builder != self._holder:
                self._theirs = manifest
                break
        self._looked_at = max(numbers, default=0)
        self._tell(self._theirs)

    def _tell(self, theirs: Manifest | None) -> None:
        if theirs is None or self._clock_unix_ns() - theirs.created_unix_ns > self._recent_ns:
            self._told = ""
            return
        differing = "; ".join(_differing(theirs, self._section))
        told = f"{theirs.builder} {differing}" if differing else ""
        if told not in ("", self._told):
            self._log.warning(
                "another replica builds by other settings, and each replaces the other's versions; set [build] alike "
                "on all",
                replica=theirs.builder,
                version=theirs.version,
                differing=differing,
            )
        self._told = told


def _differing(theirs: Manifest, ours: BuildSection) -> list[str]:
    settings = (
        ("slot_s", f"{theirs.slot_s:g}", f"{ours.slot_s:g}"),
        ("days", f"{theirs.build_days}", f"{ours.days}"),
        ("method", theirs.method, ours.method),
    )
    return [f"build.{name} {there} there, {here} here" for name, there, here in settings if there != here]
