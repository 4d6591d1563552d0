"""Intel's libpqos: loading it, its requirements, and the groups that it makes and leaves in resctrl."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from collector.base import Reason, SourceError
from collector.proc_parse import parse_capabilities
from collector.resctrl.tree import Place, Tree
from whitepanda.common.extras import how_to_install

_log = logging.getLogger("whitepanda.pqos")

#: The library's names of its events, and their bits.
EVENTS = {"l3_occup": 1, "lmem_bw": 2, "tmem_bw": 4}

_CAPABILITIES = 1 << 1 | 1 << 5  # CAP_DAC_OVERRIDE, CAP_KILL
_CONTROL_GROUP = re.compile(r"COS[0-9]+")
_GROUP = re.compile(r"pqos-([0-9]+)-[0-9]+")


class Library(NamedTuple):
    """What is used of the package `pqos`. `busy`: no monitoring id is free; `parameter`: a thread is gone."""

    pqos: Any
    monitor: Any
    capabilities: Callable[[], Any]
    error: type[Exception]
    busy: type[Exception]
    parameter: type[Exception]


def load() -> Library:
    """Load the package and the library, without starting it. Raises SourceError with the remedy if one is missing."""
    try:
        from pqos import Pqos  # noqa: PLC0415 - only this source needs the package
        from pqos.capability import PqosCap  # noqa: PLC0415 - the same
        from pqos.error import PqosError, PqosErrorBusy, PqosErrorParam  # noqa: PLC0415 - the same
        from pqos.monitoring import PqosMon  # noqa: PLC0415 - the same
    except ImportError as error:
        message = f"the Python package pqos is missing ({error}); {how_to_install('host')}"
        raise SourceError(message, Reason.NO_RDT) from error
    try:
        return Library(Pqos(), PqosMon(), PqosCap, PqosError, PqosErrorBusy, PqosErrorParam)
    except OSError as error:
        raise SourceError(f"{error}; install libpqos 4 (Debian 12: intel-cmt-cat)", Reason.NO_RDT) from error


def monitored(library: Library) -> tuple[str, ...]:
    """Return the events that a started library can monitor here."""
    try:
        bits = {event.type for event in library.capabilities().get_type("mon").events}
    except library.error:
        return ()
    return tuple(name for name, bit in EVENTS.items() if bit in bits)


class Leftovers:
    """What libpqos makes in resctrl: control groups COS1, COS2, ... while it starts, `pqos-<process>-<n>` per VM."""

    def __init__(self, tree: Tree, proc_root: str) -> None:
        self._tree = tree
        self._proc = proc_root
        self._before: frozenset[str] | None = None

    def note(self) -> None:
        """Note which control groups there are; later ones with the library's names are its."""
        self._before = self.control_groups()

    def control_groups(self) -> frozenset[str]:
        """Return the names of all control groups but the root."""
        return frozenset(place.ctrl for place in self._places() if place.ctrl)

    def foreign(self) -> dict[int, Place]:
        """Return the threads that are in monitoring groups of others."""
        found: dict[int, Place] = {}
        for place in self._places():
            if place.mon and _maker(place) != os.getpid():
                with contextlib.suppress(OSError):
                    found.update(dict.fromkeys(self._tree.tasks(place), place))
        return found

    def remove_own(self) -> None:
        """Remove this process's groups, and the unused control groups made since `note`."""
        for place in self._places():
            if _maker(place) == os.getpid():
                self._remove(place)
        if self._before is not None:
            for name in self.control_groups() - self._before:
                if name.startswith("COS") and not self._in_use(Place(name)):
                    self._remove(Place(name))
        self._before = None

    def remove_stale(self, pids: Iterable[int]) -> None:
        """Remove the groups of a killed agent (or other user of libpqos) that have no threads except the VMs'."""
        threads: set[int] = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                threads.update(int(path.name) for path in Path(self._proc, str(pid), "task").iterdir())
        for place in self._places():
            maker = _maker(place)
            if maker and not Path(self._proc, str(maker)).exists():
                with contextlib.suppress(OSError):
                    if self._tree.tasks(place) <= threads and not self._cpus(place):
                        self._remove(place)

    def _places(self) -> list[Place]:
        try:
            return self._tree.places()
        except OSError:
            return []

    def _cpus(self, place: Place) -> str:
        return Path(self._tree.path(place), "cpus_list").read_text().strip()

    def _in_use(self, control_group: Place) -> bool:
        with contextlib.suppress(OSError):
            groups = Path(self._tree.path(control_group), "mon_groups").iterdir()
            return bool(self._tree.tasks(control_group) or self._cpus(control_group) or any(groups))
        return True  # unknown

    def _remove(self, place: Place) -> None:
        path = self._tree.path(place)
        try:
            Path(path).rmdir()
        except OSError as error:
            _log.warning("%s cannot be removed: %s", path, error.strerror)


def _maker(place: Place) -> int:
    """Return the process whose libpqos made a monitoring group; 0: another program made it."""
    found = _GROUP.fullmatch(place.mon)
    return int(found[1]) if found else 0


def check_host(tree: Tree, leftovers: Leftovers | None, proc_root: str, lock: str, msr: str) -> str:
    """Describe the host; raises SourceError where the library would not work, or would do harm.

    Without `leftovers` the library is to use the registers (`msr`: one CPU's); `lock` is its lock file.
    """
    if os.geteuid() != 0:
        raise SourceError("libpqos works for root only; run the agent by its unit", Reason.NO_PERMISSION)
    folder = Path(lock).parent
    if not os.access(folder, os.W_OK):
        message = f"{lock}: libpqos cannot lock; ReadWritePaths={folder.resolve()} in the unit"
        raise SourceError(message, Reason.NO_PERMISSION)
    if leftovers is None:
        return _check_registers(tree, msr)
    monitoring = tree.monitoring()
    if not _capable(proc_root):
        message = (
            "libpqos makes folders where the mode forbids it, and sends signal 0 to see whether a thread lives; "
            "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL in the unit"
        )
        raise SourceError(message, Reason.NO_PERMISSION)
    if tree.read_only:
        raise SourceError(f"{tree.root}: read-only here; ReadWritePaths={tree.root} in the unit", Reason.NO_PERMISSION)
    others = sorted(name for name in leftovers.control_groups() if not _CONTROL_GROUP.fullmatch(name))
    if others:
        message = (
            f"{tree.root}/{others[0]}: libpqos wants all control groups for itself, this one is another's; "
            "use [sources.resctrl] instead"
        )
        raise SourceError(message, Reason.NO_RDT)
    return f"libpqos on {tree.root}; {monitoring.num_rmids} monitoring ids"


def _capable(proc_root: str) -> bool:
    with contextlib.suppress(OSError):
        found = parse_capabilities(Path(proc_root, "self/status").read_text())
        return found is None or found & _CAPABILITIES == _CAPABILITIES
    return True


def _check_registers(tree: Tree, msr: str) -> str:
    if (tree.root / "info").exists():
        message = (
            f"{tree.root}: resctrl is mounted, and its groups would be spoilt by writing the registers; "
            'interface = "os" in [sources.pqos], or use [sources.resctrl]'
        )
        raise SourceError(message, Reason.NO_RDT)
    if not os.access(msr, os.R_OK | os.W_OK):
        message = f"{msr}: cannot be used; modprobe msr, and docs/operate.md for what the unit needs"
        raise SourceError(message, Reason.NO_PERMISSION)
    return f"libpqos on the registers, {msr}"
