"""Warns if another replica of the lake builds with other settings: then each replaces the other's versions.

That is not refused: settings may be changed, one replica after the other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from central.coefficients.versions import Manifest, VersionStore
from central.config import BuildSection
from central.lake.errors import LakeError
from central.lake.replicas import RECENT_S
from whitepanda.common import log

_log = log.get("builds")
_RECENT_BUILDS = 3  # a replica that built none of this many due ones is gone, or was set up again


@dataclass(slots=True)
class OtherSettings:
    """Compares settings with those of the newest version that another replica (not `holder`) has built recently."""

    section: BuildSection
    versions: VersionStore
    holder: str
    clock_unix_ns: Callable[[], int] = time.time_ns
    _checked: int = 0  # versions up to this one
    _theirs: Manifest | None = None
    _warned: str = ""

    def check(self) -> None:
        """Warn of differing settings, once until that changes. Blocks; unreadable versions are skipped."""
        try:
            numbers = self.versions.numbers()
        except OSError:
            return  # the build reports it
        for number in reversed([each for each in numbers if each > self._checked]):
            try:
                manifest = self.versions.manifest(number)
            except (OSError, LakeError, msgspec.MsgspecError):
                continue  # reported by the replica that takes the version
            if manifest.builder != self.holder:
                self._theirs = manifest
                break
        self._checked = max(numbers, default=0)
        theirs = self._theirs
        recent_ns = round(max(RECENT_S, _RECENT_BUILDS * self.section.interval_s) * 1e9)
        if theirs is None or self.clock_unix_ns() - theirs.created_unix_ns > recent_ns:
            self._warned = ""
            return
        settings = (
            ("slot_s", f"{theirs.slot_s:g}", f"{self.section.slot_s:g}"),
            ("days", f"{theirs.build_days}", f"{self.section.days}"),
            ("method", theirs.method, self.section.method),
        )
        differing = "; ".join(
            f"build.{name} {there} there, {here} here" for name, there, here in settings if there != here
        )
        news = f"{theirs.builder} {differing}" if differing else ""
        if news not in ("", self._warned):
            _log.warning(
                "another replica builds with different settings, so the two keep replacing each other's versions; "
                "use the same [build] settings on all replicas",
                replica=theirs.builder,
                version=theirs.version,
                differing=differing,
            )
        self._warned = news
