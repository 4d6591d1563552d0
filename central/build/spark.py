"""Spark as an engine: the same Ibis expressions as on DuckDB, on any master. Needs the extra `spark` and Java 17."""

import contextlib
import os
import shutil
import sys
import uuid
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from central.build.machine_days import DAY_NS, Kernel
from whitepanda.common.errors import UnavailableError
from whitepanda.common.extras import how_to_install


def is_spark_error(error: BaseException) -> bool:
    """Return whether Spark raised this; its classes can be named only where it is installed."""
    return type(error).__module__.split(".")[0] in {"pyspark", "py4j"}


class SparkEngine(contextlib.AbstractContextManager["SparkEngine"]):
    """A Spark session with the methods of `central.build.engine.Engine`.

    `master` is `local[2]`, `spark://host:7077`, `yarn` or `k8s://...`, `memory_limit_mib` the driver's and `partitions`
    the number for shuffles. UnavailableError: there is no pyspark or Java, or no session at the master.
    """

    def __init__(self, *, master: str, memory_limit_mib: int, partitions: int, spill_dir: Path) -> None:
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UnavailableError(
                f"engine spark: {error}; {how_to_install('spark')}, or use engine duckdb (build.engine, --engine)"
            ) from error
        # It says so of any pandas 3, at each use; the pair that requirements/ pins is tested.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        settings: dict[str, bool | float | int | str | None] = {
            "spark.driver.memory": f"{memory_limit_mib}m",
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.local.dir": str(spill_dir),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.ansi.enabled": "false",  # a division by null or 0 is null, as on DuckDB
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if master.startswith("local"):
            # Workers of this machine, with what is installed here. PySpark asks for this name in the environment alone.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName("whitepanda")
        try:
            self._session: Any = builder.config(map=settings).getOrCreate()
        except Exception as error:  # pyspark's own, or Java's
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnavailableError(
                f"engine spark, master {master}: no session: {line}; is there Java 17, and does the master answer "
                "(build.spark_master, --spark-master)?"
            ) from error
        self._session.sparkContext.setLogLevel("ERROR")
        self.connection: Any = ibis.pyspark.connect(self._session)

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def interrupt(self) -> None:
        """Have the running jobs fail. May be called from any thread."""
        self._session.sparkContext.cancelAllJobs()

    def read(self, paths: Iterable[Path]) -> ir.Table:
        """Return Parquet files of one schema as one table. Every worker must see them under these names."""
        # Not `connection.read_parquet`: ibis 12 makes one name of several.
        name = f"parquet_{uuid.uuid4().hex}"
        frame = self._session.read.parquet(*(str(path.resolve()) for path in paths))
        frame.createOrReplaceTempView(name)
        return self.connection.table(name)

    def collect(self, table: ir.Table) -> pa.Table:
        """Run an expression and return its rows. Arrow all the way: pandas 3 warns of PySpark's use of it."""
        return self._session.sql(self.connection.compile(table)).toArrow()

    def write(self, table: ir.Table, path: Path) -> int:
        """Run an expression and write its rows as one Parquet file. Returns how many."""
        self._write(self._session.sql(self.connection.compile(table)), path)
        return int(pq.read_metadata(path).num_rows)

    def machine_days(self, rows: ir.Table, _count: int, kernel: Kernel, slot_ns: int, path: Path) -> None:
        """Do as `Engine.machine_days`, on the workers, each machine day by itself."""

        def run(part: pa.Table) -> pa.Table:
            return kernel(part.drop_columns(["_day"]), slot_ns)

        rows = rows.mutate(_day=rows.slot_start_ns - rows.slot_start_ns % DAY_NS)
        frame = self._session.sql(self.connection.compile(rows))
        schema = "kind byte, a int, b int, v0 double, v1 double, v2 double, v3 double"
        self._write(frame.groupBy("machine", "_day").applyInArrow(run, schema), path)

    @staticmethod
    def _write(frame: Any, path: Path) -> None:
        folder = path.with_name(path.name + ".spark")
        # Not `coalesce`, which would have one worker compute all of it.
        frame.repartition(1).write.mode("overwrite").parquet(str(folder.resolve()))
        try:
            (file,) = folder.glob("*.parquet")
            file.replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
