"""Writes the history in a thread of its own: the tick and the spool never wait for it, whatever the disk does.

It leaves the spool its room: with less free than the spool may need, nothing is written. Each change is logged once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from agent.config import HistorySection
from agent.history.segments import SegmentWriter
from whitepanda.common import log
from whitepanda.v1 import host_pb2

#: In the state directory; and its folders.
FOLDER = "history"
TICKS, WINDOWS = "ticks", "windows"
#: How long ticks are kept, and the least share of the budget that windows have.
TICKS_NS = 15 * 60 * 10**9
_TICKS_SHARE = 0.25
_ROLL_NS = {TICKS: 60 * 10**9, WINDOWS: 3600 * 10**9}
_FILES = 16  # in the budget, at least: the one that is written cannot be deleted
_DAY_NS = 86_400 * 10**9
_MAX_WAITING = 64  # frames; more only where the disk hangs
_STOP_WAIT_S = 5.0
_FREE_SHARE = 10  # at most a tenth of the disk is left to the spool


class _Item(NamedTuple):
    """A frame to write. `make` serialises it; in the thread, if that is no work for the loop."""

    kind: str
    unix_ns: int
    mono_ns: int
    make: Callable[[], bytes]
    is_key: bool


@dataclass(slots=True)
class _Status:
    """Replaced or counted by the thread alone, read by the loop."""

    state: Literal["on", "stopped"] = "on"
    detail: str = ""
    lost: int = 0
    bytes: int = 0
    first_unix_ns: int = 0


class HistoryWriter:
    """Keeps frames of ticks and windows in a folder. `put` is called from one thread and never waits."""

    def __init__(self, folder: Path, section: HistorySection, spool_max_bytes: int) -> None:
        self._folder = folder
        self._keep_ns = round(section.days * _DAY_NS)
        self._max_bytes = section.max_mib << 20
        self._spool_max_bytes = spool_max_bytes
        self._log = log.get("history")
        self._logs: dict[str, SegmentWriter] = {}
        self._status = _Status()
        self._waiting: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._start_unix_ns = 0
        self._overflows = 0
        self._is_cut = False  # the thread's: ticks were lost, so those up to the next whole one are of no use
        #: A frame of ticks was lost: the next one is to be whole.
        self.wants_key = True
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self, now_unix_ns: int) -> None:
        """Begin to write; the budget is enforced first."""
        self._start_unix_ns = now_unix_ns
        self._thread.start()

    def put(self, kind: str, unix_ns: int, mono_ns: int, make: Callable[[], bytes], *, is_key: bool = False) -> None:
        """Queue a frame; if the disk hangs it is dropped and counted."""
        if kind == TICKS and is_key:
            self.wants_key = False
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._overflows += 1
                self.wants_key |= kind == TICKS
                return
            self._waiting.append(_Item(kind, unix_ns, mono_ns, make, is_key))
            self._changed.notify()

    def stop(self) -> None:
        """Write what waits; a disk that hangs gets 5 s."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_STOP_WAIT_S)

    def status(self) -> host_pb2.HistoryStatus:
        """Return the state for the local API; never waits."""
        now = self._status
        return host_pb2.HistoryStatus(
            state=now.state,
            detail=now.detail,
            bytes=now.bytes,
            max_bytes=self._max_bytes,
            first_unix_ns=now.first_unix_ns,
            lost_frames=now.lost + self._overflows,
        )

    # --- the thread ---

    def _run(self) -> None:
        self._attempt(lambda: self._enforce_budget(self._start_unix_ns))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    break
                item = self._waiting.popleft()
            # Ticks that were made before the loss of an earlier one was known are of no use without it.
            is_useless = item.kind == TICKS and self._is_cut and not item.is_key
            if is_useless or not self._attempt(lambda item=item: self._write(item)):  # type: ignore[misc] # mypy knows no defaults
                self._status.lost += 1
                if item.kind == TICKS:
                    self.wants_key = self._is_cut = True
        for segment_log in self._logs.values():
            segment_log.end_file()

    def _write(self, item: _Item) -> None:
        if reason := self._no_room():
            raise OSError(reason)
        segment_log = self._log_of(item.kind)
        segment_log.append(item.unix_ns, item.mono_ns, item.make(), is_key=item.is_key if item.kind == TICKS else None)
        if item.kind == TICKS:
            self._is_cut = False
        if item.is_key or item.kind == WINDOWS:
            self._enforce_budget(item.unix_ns)
        self._status.bytes = sum(one.total_bytes for one in self._logs.values())

    def _enforce_budget(self, now_unix_ns: int) -> None:
        ticks, windows = self._log_of(TICKS), self._log_of(WINDOWS)
        most_ticks = round(_TICKS_SHARE * self._max_bytes)
        ticks.trim(now_unix_ns - TICKS_NS, most_ticks)
        windows.trim(now_unix_ns - self._keep_ns, self._max_bytes - min(ticks.total_bytes, most_ticks))
        firsts = [one.first_unix_ns for one in (ticks, windows) if one.first_unix_ns is not None]
        self._status.first_unix_ns = min(firsts, default=0)
        self._status.bytes = ticks.total_bytes + windows.total_bytes

    def _log_of(self, kind: str) -> SegmentWriter:
        found = self._logs.get(kind)
        if found is None:
            found = self._logs[kind] = SegmentWriter(self._folder / kind, _ROLL_NS[kind], self._max_bytes // _FILES)
        return found

    def _no_room(self) -> str:
        """Say why nothing may be written now, because the spool may need the room; "" if it may."""
        disk = os.statvfs(self._folder)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        least = min(self._spool_max_bytes, size // _FREE_SHARE)
        if free >= least:
            return ""
        return f"the disk is full: less than {max(1, least >> 20)} MiB are free, which the spool may need"

    def _attempt(self, call: Callable[[], None]) -> bool:
        """Call it; an error stops the history until the next call works. Returns whether it worked."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs history only
            detail = (error.strerror or str(error)) if isinstance(error, OSError) else repr(error)
            if (self._status.state, self._status.detail) != ("stopped", detail):
                self._status.state, self._status.detail = "stopped", detail
                self._log.warning(f"{self._folder}: {detail}; no history is kept until it can be written again")
            return False
        if self._status.state == "stopped":
            self._status.state, self._status.detail = "on", ""
            self._log.info("the history can be written again", path=str(self._folder))
        return True
