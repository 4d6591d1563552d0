"""Reads a group's counters through files that are kept open, within a bound.

kernfs makes a file's text anew for every read from its start, so pread at 0 gives the present value.
"""

import contextlib
from collections.abc import Collection

from collector.base import RdtDomain, Reason
from collector.files import GONE, NO_FD, KeptFile, KeptFiles
from collector.resctrl.counters import EVENTS, make_domain, parse_value
from collector.resctrl.tree import domains_of

_VALUE_BYTES = 64


class GroupGoneError(Exception):
    """The group was removed."""


class GroupReader:
    """The value files of one group in `folder`. Every method raises GroupGoneError once there is no such group.

    Only a domain's own files are read: its sub-NUMA nodes (mon_sub_L3_YY) are included in them. `features` are the
    events that the kernel says it has; a missing file of another one is normal. `settled_ns`: from when on the
    occupancy is that of the threads here; see `SETTLE_NS`. Also raises OSError (EMFILE).
    """

    def __init__(self, folder: str, features: Collection[str], kept: KeptFiles, *, settled_ns: int = 0) -> None:
        self._folder = folder
        self._features = features
        self._kept = kept
        self._settled_ns = settled_ns
        self._files: dict[str, tuple[KeptFile | Reason, ...]] = {}
        self._open()

    def read(self, domains: tuple[str, ...], now_ns: int) -> dict[str, RdtDomain]:
        """Read all values of the `domains` that the kernel shows now (CPUs that go offline take theirs with them).

        `now_ns` is the time by the clock of `settled_ns`.
        """
        if tuple(self._files) != domains:
            self._open()
        try:
            return {name: self._read(files, now_ns) for name, files in self._files.items()}
        except GroupGoneError:  # the group, or a domain since the kernel was asked
            self._open()
            return {name: self._read(files, now_ns) for name, files in self._files.items()}

    def close(self) -> None:
        """Close all files."""
        for files in self._files.values():
            self._kept.close(*(file for file in files if not isinstance(file, Reason)))
        self._files = {}

    def _read(self, files: tuple[KeptFile | Reason, ...], now_ns: int) -> RdtDomain:
        values = [file if isinstance(file, Reason) else _read_value(file) for file in files]
        return make_domain(values, settling=now_ns < self._settled_ns)

    def _open(self) -> None:
        self.close()
        try:
            for name in domains_of(self._folder):
                self._files[name] = ()
                for event in EVENTS:  # one by one, so that `close` finds those before one that fails
                    self._files[name] += (self._open_file(f"{self._folder}/mon_data/mon_L3_{name}/{event}", event),)
        except OSError as error:
            self.close()
            if error.errno in GONE:
                raise GroupGoneError(self._folder) from error
            raise

    def _open_file(self, path: str, event: str) -> KeptFile | Reason:
        if event not in self._features:
            return Reason.NO_EVENT
        with contextlib.suppress(FileNotFoundError):
            return self._kept.open(path)
        return Reason.RDT_UNAVAILABLE


def _read_value(file: KeptFile) -> int | Reason:
    try:
        return parse_value(file.read(_VALUE_BYTES))
    except OSError as error:
        if error.errno in GONE:
            raise GroupGoneError from error
        if error.errno in NO_FD:
            raise
        return Reason.RDT_UNAVAILABLE
