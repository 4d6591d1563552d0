"""What runs a build's Ibis expressions: DuckDB in this process, here, or Spark (`central.build.spark`).

Several days are computed in parallel: Python makes half of a day's state, on one core, queries the rest on all.
An engine runs one query at a time, so each day has its own engine, with its part of memory and threads.
"""

import concurrent.futures
import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from central.build.machine_days import PRODUCTS, Kernel
from central.build.spark import SparkEngine
from central.build.status import BuildStoppedError
from central.lake import duckdb_connection

_PART_ROWS = 4_000_000  # of some 32 bytes, and as much again while they are sorted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Interruptible(Protocol):
    """An engine or connection that a build waits for."""

    def interrupt(self) -> None:
        """Have what runs now fail. May be called from any thread."""


class Engine(contextlib.AbstractContextManager["Engine"]):
    """DuckDB in this process, bounded in memory (its buffers) and threads; what does not fit goes to `spill_dir`."""

    def __init__(self, *, memory_limit_mib: int, threads: int, spill_dir: Path) -> None:
        spill_dir.mkdir(parents=True, exist_ok=True)  # DuckDB makes no folder above it
        opened = duckdb_connection.bounded(memory_limit_mib=memory_limit_mib, threads=threads, spill_dir=spill_dir)
        self.connection: Any = ibis.duckdb.from_connection(opened)

    def __exit__(self, *_: object) -> None:
        self.connection.disconnect()

    def interrupt(self) -> None:
        """Have the running query fail. May be called from any thread."""
        self.connection.con.interrupt()

    def read(self, paths: Iterable[Path]) -> ir.Table:
        """Return Parquet files of one schema as one table."""
        return self.connection.read_parquet([str(path) for path in paths])

    def collect(self, table: ir.Table) -> pa.Table:
        """Run an expression and return its rows."""
        return table.to_pyarrow()

    def write(self, table: ir.Table, path: Path) -> int:
        """Run an expression and write its rows to a Parquet file. Returns how many.

        The engine writes the file itself: the rows never come to Python, and need not fit into memory.
        """
        table.to_parquet(path, compression="zstd")
        return int(pq.read_metadata(path).num_rows)

    def machine_days(self, rows: ir.Table, count: int, kernel: Kernel, slot_ns: int, path: Path) -> None:
        """Run a kernel of `central.build.machine_days` on `count` rows of whole machine days, better of one day.

        Writes its `machine_days.PRODUCTS` to the Parquet file `path`. Python holds the rows of whole machines, some
        `_PART_ROWS` at a time.
        """
        parts = max(1, math.ceil(count / _PART_ROWS))
        with pq.ParquetWriter(path, PRODUCTS, compression="none") as writer:  # read once, soon
            for part in range(parts):
                mine = rows if parts == 1 else rows.filter(rows.machine % parts == part)
                writer.write_table(kernel(mine.to_pyarrow(), slot_ns))


AnyEngine = Engine | SparkEngine
_AnyOne = TypeVar("_AnyOne", bound=Interruptible)


@contextlib.contextmanager
def duckdb_engines(days: int, *, memory_limit_mib: int, threads: int, spill_dir: Path) -> Iterator[list[Engine]]:
    """Open engines for this many days, at most one per thread; they share the memory and the threads."""
    count = max(1, min(days, threads))
    share = {"memory_limit_mib": memory_limit_mib // count, "threads": threads // count}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Engine(**share, spill_dir=spill_dir / f"engine-{number}")) for number in range(count)
        ]


def on_engines(
    engines: Sequence[_AnyOne], items: Sequence[_Item], work: Callable[[_AnyOne, _Item], _Result]
) -> list[_Result]:
    """Do the work for each item, one per engine at a time, and return the results in the items' order.

    The first failure is raised; then nothing more is begun, and what runs is interrupted and waited for.
    """
    if len(engines) == 1:
        return [work(engines[0], item) for item in items]
    idle = queue.SimpleQueue[_AnyOne]()
    for each in engines:
        idle.put(each)

    def one(item: _Item) -> _Result:
        engine = idle.get()
        try:
            return work(engine, item)
        finally:
            idle.put(engine)

    with concurrent.futures.ThreadPoolExecutor(len(engines), "engine") as pool:
        running = [pool.submit(one, item) for item in items]
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_EXCEPTION)
        failed = next((each for each in running if each in done and each.exception()), None)
        if failed is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            for each in engines:
                each.interrupt()
        return [each.result() for each in ([failed] if failed else running)]


class StopSwitch:
    """Ends a build from another thread: between two steps by `check`, within one by interrupting its engines."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._running: Sequence[Interruptible] = ()

    @property
    def is_on(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Have what runs fail, and every later `check`."""
        self._stopping.set()
        for each in self._running:
            each.interrupt()

    def check(self) -> None:
        """Raise BuildStoppedError once `stop` was called."""
        if self.is_on:
            raise BuildStoppedError

    @contextlib.contextmanager
    def interrupting(self, running: Sequence[Interruptible]) -> Iterator[None]:
        """Have `stop` interrupt these while the context lasts."""
        self._running = running
        try:
            yield
        finally:
            self._running = ()


def with_schema(table: ir.Table, schema: pa.Schema) -> ir.Table:
    """Return the columns of a schema, in its order and types."""
    return table.select(*schema.names).cast(ibis.Schema.from_pyarrow(schema))
