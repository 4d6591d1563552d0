"""Builds run in a process of their own: in central's they would hold Python's lock, cores and memory while agents wait.

Central starts it for a build, on the first one that has something to do, and ends it afterwards where builds are rare;
so what a build needed is given back. A line on its standard input asks for a build or for what the lake needs after it;
the end of the input stops what runs.
The version comes by way of the lake, as another replica's does; lease and manifests are the same ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from central import worker_process
from central.build.builder import Builder, BuildStoppedError
from central.build.left_out import LeftOut
from central.config import BuildSection, CentralConfig
from central.lake.segments import Lake
from central.own_threads import in_own_thread
from whitepanda.common import log
from whitepanda.common.errors import WhitepandaError

__all__ = ["COMMAND", "BuildFailedError", "BuildProcess", "bound_mib", "main"]

#: What runs in the process; it gets central's process id as its argument.
COMMAND = [sys.executable, "-m", "central.build.worker"]

_BESIDE_MIB = (
    512  # of memory for Python beside build.memory_limit_mib, which is DuckDB's, and as much for each thread
)
_KEPT_S = 60.0  # builds that follow sooner than this share a process
_STOP_S = 5.0  # for a build to stop by itself, before it is killed
_NICE = 10  # than central: an hour's build takes what CPU time is left, and no acknowledgement waits for it
_BUILD, _CARE = b"build", b"care"  # what the process is asked


class BuildFailedError(WhitepandaError):
    """A build failed over there; the text is what it said."""


class _Start(msgspec.Struct, frozen=True):
    """The first line that the process is told: what it builds by, and who it is in the lease."""

    config: CentralConfig
    holder: str
    is_short: bool = False  # of memory, for all that is known: the process before it died


def _arguments(start: _Start, lake: Lake) -> dict[str, Any]:
    """Return what a `Builder` is made of, here and there."""
    config = start.config
    return {
        "section": config.build,
        "lake": lake,
        "first_look_s": config.ingest.roll_interval_s,
        "holder": start.holder,
        "state_dir": None if lake.is_folder else Path(config.central.state_dir) / "state",
        "lake_section": config.lake,
        "is_short": start.is_short,
    }


class BuildProcess(Builder):
    """A builder whose builds run in the process. Its attributes tell of them as a `Builder`'s do.

    Args:
        config: central's.
        lake: whose samples are read.
        holder: this replica in the lease, see `Lease`.

    """

    def __init__(self, config: CentralConfig, lake: Lake, holder: str) -> None:
        self._start = _Start(config, holder)
        super().__init__(**_arguments(self._start, lake))
        self._process: subprocess.Popen[bytes] | None = None

    def build_once(self) -> int | None:
        """Build as `Builder.build_once` does, once `start` was called; without it there is nothing to build.

        Raises:
            BuildFailedError: the build failed, or its process died.
            BuildStoppedError: it was told to stop.

        """
        with self._one_at_a_time:
            process = self._process
            if process is None:
                return None
            answer = self._ask(process, _BUILD)
            if self._stopping.is_set():
                raise BuildStoppedError
            self.damaged |= answer.get("damaged", {})
            self.last_error = answer.get("error", "")
            if self.last_error:
                raise BuildFailedError(self.last_error)
            self._start = msgspec.structs.replace(self._start, is_short=False)
            self.last_build_s, self.last_days_computed = answer["seconds"], answer["days_computed"]
            self.left_out = LeftOut(*answer["left_out"])
            return self.current.version if self._take_newer() and self.current else None

    def care_once(self) -> None:
        """Have the process do what `Builder.care_once` does, if it runs; it tells of failures itself."""
        with self._one_at_a_time:
            if self._process is not None:
                self.damaged |= self._ask(self._process, _CARE).get("damaged", {})

    def start(self) -> None:
        """Start the process if it does not run. To be called by the main thread: the process ends with the caller.

        Raises:
            OSError: it cannot be started.

        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = worker_process.start(
            [*COMMAND, str(os.getpid())], env=worker_process.FRUGAL | os.environ
        )
        _tell(self._process, msgspec.json.encode(self._start))

    def stop(self) -> None:
        """Have a build that runs now end soon, with `BuildStoppedError`. May be called from any thread."""
        super().stop()
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
            late = threading.Timer(_STOP_S, process.kill)
            late.daemon = True
            late.start()

    def close(self) -> None:
        """End the process; a build that it is at is broken off."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ask(self, process: subprocess.Popen[bytes], what: bytes) -> dict[str, Any]:
        """Have it do that, and return what it says of it."""
        _tell(process, what)
        line = process.stdout.readline() if process.stdout is not None else b""
        if not line:
            error = f"the process that builds ended with status {process.wait()}"
            self._start = msgspec.structs.replace(self._start, is_short=True)
            with contextlib.suppress(OSError):  # else other replicas wait until the lease runs out
                self.lease.release_left()
            return {"error": error}
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _build_in_thread(self) -> None:
        if await in_own_thread(self._has_something) and not self._starts():
            return
        await super()._build_in_thread()
        if self._section.interval_s >= _KEPT_S:
            await in_own_thread(self.close)

    def _starts(self) -> bool:
        """Start the process; where that fails, as without memory or descriptors, tell of it as of a failed build."""
        failed_before = self.last_error
        try:
            self.start()
        except OSError as error:
            self.last_error = f"the process that builds does not start: {error}"
            if self.last_error != failed_before:
                self._log.warning("build failed, the last version stays", error=self.last_error)
            return False
        return True

    def _has_something(self) -> bool:
        """Whether a build may find anything: what cannot be looked at is the build's to tell of."""
        if self.current is not None:
            return True
        try:
            return next(iter(self._lake.objects.entries("samples")), None) is not None
        except OSError:
            return True


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it has ended, or was told to: whoever asks it sees that
        if process.stdin is not None:
            process.stdin.write(line + b"\n")
            process.stdin.flush()


def _build(builder: Builder) -> dict[str, Any]:
    try:
        builder.build_once()
    except BuildStoppedError:
        return {"error": "stopped"}
    except Exception as error:  # noqa: BLE001 - central tells of it, whatever it is
        error_line = builder.last_error or f"{type(error).__name__}: {error}"
        return {"error": error_line, "damaged": builder.damaged}
    return {
        "damaged": builder.damaged,
        "seconds": builder.last_build_s,
        "days_computed": builder.last_days_computed,
        "left_out": [builder.left_out.days, builder.left_out.rows],
    }


def _care(builder: Builder) -> dict[str, Any]:
    with contextlib.suppress(BuildStoppedError):
        builder.care_once()
    return {"damaged": builder.damaged}


def _serve(builder: Builder, asked: queue.SimpleQueue[bytes]) -> None:
    """Do what is asked, one after the other; an empty line ends it."""
    while what := asked.get():
        answer = _care(builder) if what == _CARE else _build(builder)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def bound_mib(section: BuildSection) -> int:
    """Return how much memory the process may have, MiB."""
    return section.memory_limit_mib + _BESIDE_MIB * (1 + section.threads)


def main() -> None:
    """Build whenever asked, until standard input ends."""
    if not worker_process.begin(int(sys.argv[-1]), nice=_NICE):
        return
    start = msgspec.json.decode(sys.stdin.readline(), type=_Start)
    config = start.config
    if config.build.engine == "duckdb":  # Spark's Java would inherit it
        worker_process.bound_memory(bound_mib(config.build) << 20)
    log.configure(config.central.log_level)
    state = Path(config.central.state_dir)
    lake = Lake(config.central.lake_dir or state / "lake", copies=state)
    builder = Builder(**_arguments(start, lake))
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    thread = threading.Thread(target=_serve, args=(builder, asked), name="builds", daemon=True)
    thread.start()
    for line in sys.stdin:
        asked.put(line.strip().encode())
    builder.stop()
    asked.put(b"")
    thread.join()  # the parent kills what takes too long


if __name__ == "__main__":
    main()
