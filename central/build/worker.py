"""The process that builds, started by `central.build.client`."""

import contextlib
import queue
import sys
import threading
from pathlib import Path

import msgspec

from central import worker_process
from central.build.builder import Builder
from central.build.client import BUILD, MAINTAIN, ROLL_UP, Answer, Start
from central.build.status import BuildStoppedError
from central.config import BuildSection
from central.lake.segments import Lake
from whitepanda.common import log

_BESIDE_MIB = 512  # for Python, next to DuckDB's build.memory_limit_mib, and the same for each thread
_NICE = 10  # relative to central: an hour's build takes the CPU time that is left, no acknowledgement waits for it


def _build(builder: Builder) -> Answer:
    try:
        builder.build_once()
    except BuildStoppedError:
        return Answer("stopped")
    except Exception as error:  # noqa: BLE001 - central reports it, whatever it is
        return Answer(builder.last_error or f"{type(error).__name__}: {error}", builder.damaged)
    return Answer("", builder.damaged, builder.left_out)


def _maintain(builder: Builder) -> Answer:
    with contextlib.suppress(BuildStoppedError):
        builder.maintain_once()
    return Answer("", builder.damaged)


def _roll_up(builder: Builder) -> Answer:
    with contextlib.suppress(BuildStoppedError):
        builder.roll_up_once()
    return Answer("", builder.damaged)


#: What is done for each request.
ANSWERS = {BUILD: _build, MAINTAIN: _maintain, ROLL_UP: _roll_up}


def _serve(builder: Builder, asked: queue.SimpleQueue[bytes]) -> None:
    """Answer requests one after the other; an empty line ends it."""
    while what := asked.get():
        answer = ANSWERS[what](builder)
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


def bound_mib(section: BuildSection) -> int:
    """Return how much memory the process may have, MiB."""
    return section.memory_limit_mib + _BESIDE_MIB * (1 + section.threads)


def main() -> None:
    """Build whenever asked, until standard input ends."""
    if not worker_process.begin(int(sys.argv[-1]), nice=_NICE):
        return
    start = msgspec.json.decode(sys.stdin.readline(), type=Start)
    config = start.config
    if config.build.engine == "duckdb":  # Spark's Java would inherit it
        worker_process.bound_memory(bound_mib(config.build) << 20)
    log.configure(config.central.log_level)
    state = Path(config.central.state_dir)
    lake = Lake(config.central.lake_dir or state / "lake", copies=state)
    builder = Builder(
        config.build,
        lake,
        holder=start.holder,
        state_dir=None if lake.is_folder else state / "state",
        lake_section=config.lake,
        is_short=start.is_short,
    )
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
