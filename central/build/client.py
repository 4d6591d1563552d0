"""Builds run in a separate process: in central's they would hold Python's lock, cores and memory while agents wait.

Central starts it (`central.build.worker`) for the first build that has something to do. If builds are rare it is ended
after each, which frees its memory. A line on its standard input requests a build or the maintenance of the lake; the
end of the input stops what runs. The version comes through the lake, as another replica's does.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from central import worker_process
from central.build.other_settings import OtherSettings
from central.build.status import BuildStatus, BuildStoppedError, LeftOut
from central.coefficients.follower import VersionFollower
from central.config import CentralConfig
from central.lake.lease import Lease
from central.lake.segments import Lake
from central.own_threads import in_own_thread
from whitepanda.common import log
from whitepanda.common.errors import WhitepandaError

#: What runs in the process; it gets central's process id as its argument.
COMMAND = [sys.executable, "-m", "central.build.worker"]
#: Requests to the process.
BUILD, MAINTAIN, ROLL_UP = b"build", b"maintenance", b"slots"

_KEPT_S = 60.0  # builds that follow sooner than this share a process
_STOP_S = 5.0  # for a build to stop by itself, before it is killed

_T = TypeVar("_T")


class BuildFailedError(WhitepandaError):
    """A build failed in the process; the text is its error."""


class Start(msgspec.Struct, frozen=True):
    """The first line that the process reads: its configuration, and its name in the lease."""

    config: CentralConfig
    holder: str
    is_short: bool = False  # of memory, probably: the process before it died


class Answer(msgspec.Struct, frozen=True):
    """The process's answer to a request."""

    error: str = ""  # one line; "": it succeeded
    damaged: dict[str, list[str]] = {}  # as `BuildStatus.damaged`
    left_out: LeftOut = LeftOut()


class BuildProcess(BuildStatus):
    """Has the process build every `build.interval_s`; `follower` brings the versions into use."""

    def __init__(self, config: CentralConfig, lake: Lake, follower: VersionFollower, holder: str) -> None:
        super().__init__(follower)
        self.lease = Lease(lake.objects, holder, config.build.lease_s)
        self._lake = lake
        self._interval_s = config.build.interval_s
        self._roll_up_s = config.build.roll_up_interval_s
        self._newest_unix_s = 0.0  # of segments, when they were last rolled up
        self._first_look_s = min(config.ingest.roll_interval_s, self._interval_s)
        self._others = OtherSettings(config.build, follower.versions, holder)
        self._start = Start(config, holder)
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()
        self._log = log.get("builds")

    async def run(self) -> None:
        """Build every `interval_s`, beginning now, until cancelled, and roll up in between. A failure is tried again.

        While the lake has nothing to build a first version from, that is checked every `ingest.roll_interval_s`.
        """
        self._stopping.clear()
        while True:
            began = time.monotonic()
            await self.build_and_announce()
            is_waiting = self.current is None and not self.last_error
            due = began + (self._first_look_s if is_waiting else self._interval_s)
            while due - time.monotonic() > 2 * self._roll_up_s:  # else the build comes soon
                await asyncio.sleep(self._roll_up_s)
                await self._roll_up()
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def build_and_announce(self) -> None:
        """Build, announce the version, and only then maintain the lake, which may take long."""
        failed_before = self.last_error
        if await in_own_thread(self._has_something):
            try:
                self.start()
            except OSError as error:  # as without memory or descriptors
                self.last_error = f"the process that builds does not start: {error}"
                self._log_failed(failed_before)
                return
        await in_own_thread(self._others.check)
        try:
            number = await self._stoppable(self.build_once)
        except Exception:  # noqa: BLE001 - whatever failed, the daemon continues with the last version
            self._log_failed(failed_before)
        else:
            if number is not None:
                self.follower.announce()
            await self._stoppable(self.maintain_once)
        if self._interval_s >= _KEPT_S:
            await in_own_thread(self.close)

    async def _roll_up(self) -> None:
        """Have new windows rolled up to slots; the process that does it ends. A failure is the next build's too."""
        if not await in_own_thread(self._has_new_segments):
            return
        try:
            self.start()
        except OSError:
            return
        await self._stoppable(self.roll_up_once)
        await in_own_thread(self.close)

    def roll_up_once(self) -> None:
        """Have the process roll up new windows, if it runs; it logs failures itself."""
        with self._one_at_a_time:
            if self._process is not None:
                self._ask(self._process, ROLL_UP)

    def _has_new_segments(self) -> bool:
        """Return whether the lake has other segments than at the last call; not if it cannot be read."""
        try:
            found = self._lake.segments()
        except OSError:
            return False
        newest = max((segment.modified_unix_s for segment in found), default=0.0)
        before, self._newest_unix_s = self._newest_unix_s, newest
        return newest != before

    async def _stoppable(self, work: Callable[[], _T]) -> _T:
        """Run it in a thread; a cancellation stops it and waits for that."""
        running = asyncio.ensure_future(in_own_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.gather(running, return_exceptions=True)
            raise

    def build_once(self) -> int | None:
        """Have the process build, once `start` was called; without it there is nothing to build.

        Returns the new version's number; None: nothing is new. BuildFailedError: the build failed, or its process died.
        BuildStoppedError: it was stopped. OSError: the lake cannot be read.
        """
        with self._one_at_a_time:
            process = self._process
            if process is None:
                return None
            answer = self._ask(process, BUILD)
            if self._stopping.is_set():
                raise BuildStoppedError
            self.damaged |= answer.damaged
            self.last_error = answer.error
            if self.last_error:
                raise BuildFailedError(self.last_error)
            self._start = msgspec.structs.replace(self._start, is_short=False)
            self.left_out = answer.left_out
            return self.current.version if self.follower.take_newer() and self.current else None

    def maintain_once(self) -> None:
        """Have the process maintain the lake, if it runs; it logs failures itself."""
        with self._one_at_a_time:
            if self._process is not None:
                self.damaged |= self._ask(self._process, MAINTAIN).damaged

    def start(self) -> None:
        """Start the process if it does not run; raises OSError. For the main thread: the process ends with it."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = worker_process.start([*COMMAND, str(os.getpid())], env=worker_process.FRUGAL | os.environ)
        _write_line(self._process, msgspec.json.encode(self._start))

    def stop(self) -> None:
        """Have a running build end soon, with `BuildStoppedError`. May be called from any thread."""
        self._stopping.set()
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
            late = threading.Timer(_STOP_S, process.kill)
            late.daemon = True
            late.start()

    def close(self) -> None:
        """End the process, and with it a build that runs."""
        process, self._process = self._process, None
        if process is None:
            return
        worker_process.close_pipes(process)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ask(self, process: subprocess.Popen[bytes], what: bytes) -> Answer:
        """Send a request and return the answer."""
        _write_line(process, what)
        line = process.stdout.readline() if process.stdout is not None else b""
        if not line:
            error = f"the process that builds ended with status {process.wait()}"
            self._start = msgspec.structs.replace(self._start, is_short=True)
            with contextlib.suppress(OSError):  # then other replicas wait until the lease runs out
                self.lease.release_left()
            return Answer(error)
        return msgspec.json.decode(line, type=Answer)

    def _log_failed(self, failed_before: str) -> None:
        if self.last_error != failed_before:
            self._log.warning("build failed, the last version stays", error=self.last_error)

    def _has_something(self) -> bool:
        """Return whether a build may find anything. If the lake cannot be read, the build reports it."""
        try:
            return self.current is not None or any(True for _ in self._lake.objects.entries("samples"))
        except OSError:
            return True


def _write_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it has ended, or is ending: the next request finds that
        if process.stdin is not None:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
