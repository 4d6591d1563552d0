"""Reads the history: the moments at, before and after a time. The agent does for its clients, and root without it."""

import contextlib
import difflib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent.history.replay import Pending, ticks_of
from agent.history.segments import DamagedError, Segment, last_unix_ns, segments
from agent.history.window_moments import windows_of
from agent.history.writer import TICKS, WINDOWS
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.texts import several_named
from whitepanda.v1 import host_pb2

_MOST = 600
_MOST_BYTES = 16 << 20


class _File(NamedTuple):
    segment: Segment
    read: Callable[[Segment], Iterator[Pending]]


class History:
    """The history in a folder, which may be written meanwhile. Calls read the disk: not from the daemon's loop."""

    def __init__(self, folder: Path, warn: Callable[[str], object] | None = None) -> None:
        """`warn` takes a line about each file that is damaged, once."""
        self._warn = warn
        self._folder = folder
        self._damaged: dict[Path, str] = {}

    def moments(self, request: host_pb2.GetMomentsRequest) -> host_pb2.GetMomentsResponse:
        """Return the last moment at or before a time, or else the first one, and its neighbours.

        InputError: no VM has the name to explain. UnavailableError: nothing is kept, or it may not be read.
        """
        files = self._files()
        answer = host_pb2.GetMomentsResponse(first_unix_ns=_first(self._from(files[:1])))
        if not answer.first_unix_ns:
            answer.first_unix_ns = _first(self._from(files))
        if not answer.first_unix_ns:
            raise UnavailableError(f"{self._folder}: nothing is kept yet")
        answer.last_unix_ns = self._last(files)
        before, after = min(request.before, _MOST), min(request.after, _MOST - min(request.before, _MOST))
        size, wanted = 0, frozenset(request.metrics) or None
        for pending in self._around(files, request.at_unix_ns, before, after):
            try:
                moment = pending.make(wanted, request.explain)
            except DamagedError as error:
                answer.problems.append(f"{error}; this moment is left out")
                continue
            size += moment.ByteSize()
            if size > _MOST_BYTES and answer.moments:
                # What is wanted most is at the end of those before, and at the beginning of those after.
                if moment.unix_ns > request.at_unix_ns:
                    break
                size -= answer.moments.pop(0).ByteSize()
            answer.moments.append(moment)
        if not answer.moments:
            raise UnavailableError(f"{self._folder}: {'; '.join(answer.problems) or 'nothing is kept yet'}")
        answer.problems.extend(self._damaged.values())
        if request.explain:
            _check_explained(request.explain, request.at_unix_ns, answer)
        return answer

    # --- files ---

    def _files(self) -> list[_File]:
        """Return the files in the order of time: windows up to the first tick that is kept, then ticks."""
        try:
            ticks = sorted(segments(self._folder / TICKS), key=lambda one: one.first_unix_ns)
            windows = sorted(segments(self._folder / WINDOWS), key=lambda one: one.first_unix_ns)
        except OSError as error:
            raise UnavailableError(f"{self._folder}: cannot read: {error.strerror}") from error
        first_tick_ns = ticks[0].first_unix_ns if ticks else None

        place = {segment: at for at, segment in enumerate(windows)}

        def earlier(segment: Segment) -> Iterator[Pending]:
            for pending in windows_of(segment, windows[: place[segment]]):
                if first_tick_ns is not None and pending.unix_ns >= first_tick_ns:
                    return
                yield pending

        old = [_File(one, earlier) for one in windows if first_tick_ns is None or one.first_unix_ns < first_tick_ns]
        return old + [_File(one, ticks_of) for one in ticks]

    def _from(self, files: list[_File]) -> Iterator[Pending]:
        """Yield the moments of these files; times only go up. What is damaged is left out, with one warning a file."""
        last_ns = 0
        for file in files:
            try:
                for pending in file.read(file.segment):
                    if pending.unix_ns > last_ns:
                        last_ns = pending.unix_ns
                        yield pending
            except FileNotFoundError:
                continue  # it became too old meanwhile
            except (DamagedError, OSError) as error:
                if file.segment.path not in self._damaged:
                    self._damaged[file.segment.path] = f"{error}; what follows in this file is left out"
                    if self._warn is not None:
                        self._warn(self._damaged[file.segment.path])

    def _around(self, files: list[_File], at_ns: int, before: int, after: int) -> Iterator[Pending]:
        # Files of the moments before: those that begin earlier, as many as may be needed.
        following = next((at for at, file in enumerate(files) if file.segment.first_unix_ns > at_ns), len(files))
        first = max(0, following - 1)
        while True:
            kept: deque[Pending] = deque(maxlen=before + 1)
            later: list[Pending] = []
            for pending in self._from(files[first:]):
                if pending.unix_ns <= at_ns or not kept:
                    kept.append(pending)
                else:
                    later = [pending]
                    break
            if first == 0 or (len(kept) > before and kept[-1].unix_ns <= at_ns):
                break
            first = max(0, first - max(1, following - first))
        yield from kept
        if later and after:
            yield later[0]
            rest = (one for one in self._from(files[first:]) if one.unix_ns > later[0].unix_ns)
            yield from islice(rest, after - 1)

    @staticmethod
    def _last(files: list[_File]) -> int:
        for file in reversed(files):
            with contextlib.suppress(OSError):
                if found := last_unix_ns(file.segment):
                    return found
        return 0


def _first(moments: Iterator[Pending]) -> int:
    found = next(moments, None)
    return 0 if found is None else found.unix_ns


def _check_explained(asked: str, at_ns: int, answer: host_pb2.GetMomentsResponse) -> None:
    """Raise InputError if the moment that was asked for lacks the VM, or has several of its name."""
    at = max((place for place, one in enumerate(answer.moments) if one.unix_ns <= at_ns), default=0)
    vms = answer.moments[at].vms.vms
    named = [vm.uuid for vm in vms if vm.name == asked]
    if len(named) > 1 and asked not in {vm.uuid for vm in vms}:
        raise InputError(several_named(asked, named))
    if answer.moments[at].HasField("explanation"):
        return
    near = difflib.get_close_matches(asked, [name for vm in vms for name in (vm.name, vm.uuid)], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there were {len(vms)}; `whitepanda vms --at` lists them"
    raise InputError(f"no VM had the name or UUID {asked[:80]!r} then: {hint}")
