"""DuckDB in this process, opened here and nowhere else: it prints nothing and fetches nothing.

On a terminal, and if Python has no script (-c), DuckDB draws a bar on standard output during long queries.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from central.lake.errors import LakeError, SlowError, StoppedError

if TYPE_CHECKING:
    import duckdb

_POLL_S = 0.1


def connect(**settings: str | bool | float | list[str]) -> duckdb.DuckDBPyConnection:
    """Open a database in memory, with DuckDB's settings such as `memory_limit`; duckdb.Error if one is wrong."""
    import duckdb  # noqa: PLC0415 - takes 0.1 s; the daemon opens none before recent VMs are asked for

    connection = duckdb.connect(config={**settings, "autoinstall_known_extensions": False})
    connection.execute("SET enable_progress_bar = false")  # DuckDB takes no such setting before it is open
    return connection


def bounded(*, memory_limit_mib: int, threads: int, spill_dir: Path) -> duckdb.DuckDBPyConnection:
    """Open a database whose buffers are bounded; what does not fit goes to `spill_dir`."""
    return connect(
        memory_limit=f"{memory_limit_mib}MiB",
        threads=threads,
        temp_directory=str(spill_dir),
        preserve_insertion_order=False,  # lets DuckDB spill and stream
    )


@contextlib.contextmanager
def answering(memory_limit_mib: int, threads: int = 1) -> Iterator[Any]:
    """Yield an Ibis connection for one question.

    It spills to a temporary folder: DuckDB's default is the working directory, where a service may not write.
    """
    import ibis  # noqa: PLC0415 - takes half a second; the daemon starts without it

    with tempfile.TemporaryDirectory(prefix="whitepanda-") as spill:
        opened = bounded(memory_limit_mib=memory_limit_mib, threads=threads, spill_dir=Path(spill))
        connection = ibis.duckdb.from_connection(opened)
        try:
            yield connection
        finally:
            connection.disconnect()


@contextlib.contextmanager
def reading(lake: str, memory_limit_mib: int, threads: int = 1) -> Iterator[Any]:
    """Yield an Ibis connection for one question about a lake; raises LakeError, with its name, if that fails."""
    try:
        with answering(memory_limit_mib, threads) as connection:
            yield connection
    except LakeError:
        raise
    except Exception as error:  # the engine's own kinds differ by back end
        raise LakeError(f"{lake}: cannot be read: {str(error).partition(chr(10))[0]}") from error


@contextlib.contextmanager
def hurried(
    connection: duckdb.DuckDBPyConnection, deadline_s: float, stop: threading.Event | None = None
) -> Iterator[None]:
    """Interrupt queries at the deadline (SlowError), or once `stop` is set (StoppedError)."""
    import duckdb  # noqa: PLC0415 - as above

    done, stop = threading.Event(), stop or threading.Event()
    due_s = time.monotonic() + deadline_s

    def watch() -> None:
        wait_s = min(_POLL_S, deadline_s)
        while not done.wait(max(wait_s, 0)):
            wait_s = _POLL_S
            if stop.is_set() or time.monotonic() >= due_s:
                connection.interrupt()  # again and again: one between two queries stops neither

    watcher = threading.Thread(target=watch, name="deadline of a question", daemon=True)
    watcher.start()
    try:
        yield
    except duckdb.InterruptException as error:
        if stop.is_set():
            raise StoppedError from error
        raise SlowError(f"took longer than {deadline_s:g} s") from error
    finally:
        done.set()
        watcher.join()
