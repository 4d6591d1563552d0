"""The RUNS file: one row per second of the served VM, with what its client measured and what the host could tell.

It grows in FILE.part, run by run, and becomes FILE only when it is whole.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agent.analysis.degradation.model import CPU_LEVELS
from agent.analysis.signals import SIGNALS, Values
from agent.calibrate.latency import Measured
from whitepanda.common.files.csv_cells import csv_line
from whitepanda.common.files.durable import create_beside

COLUMNS: tuple[str, ...] = (
    "scenario",
    "repetition",
    "phase",
    "at_s",
    "vm",
    "load_ratio",
    "cpu_level",
    *Measured._fields,
    *SIGNALS,
)


class Row(NamedTuple):
    """One second of a run. `at_s` is its end, since the run's first phase began; `values` has shape (SIGNALS,)."""

    scenario: str
    repetition: int
    phase: str
    at_s: float
    vm: str
    load_ratio: float
    cpu_level: float
    measured: Measured
    values: Values


def cpu_level(guest_ratio: float) -> float:
    """Return the nearest of Cloud White's CPU levels; NaN stays NaN."""
    if math.isnan(guest_ratio):
        return math.nan
    return min(CPU_LEVELS, key=lambda level: abs(level - guest_ratio))


def room_for(path: Path, *, replace: bool) -> None:
    """See that a RUNS file can be made; leaves nothing.

    Raises:
        FileExistsError: there is one, and it may not be replaced.
        IsADirectoryError: it is a folder.
        OSError: its folder is not there, or cannot be written.

    """
    if path.is_dir():
        raise IsADirectoryError(path)
    if path.exists() and not replace:
        raise FileExistsError(path)
    # Only trying tells: who is root may write anywhere, but on what is mounted read-only.
    made, stream = create_beside(path)
    stream.close()
    made.unlink()


class RunsFile:
    """Writes a RUNS file.

    Args:
        path: where to, as CSV.
        replace: whether an existing file may be replaced.

    Raises:
        OSError: it cannot be written; see `room_for`.

    """

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        room_for(path, replace=replace)
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.rows = 0
        self._file = self.part.open("w", encoding="utf-8", newline="")
        self._file.write(csv_line(COLUMNS))
        self._file.flush()

    def add(self, rows: Iterable[Row]) -> None:
        """Write a whole run, at once and to the disk."""
        lines = [_line(row) for row in rows]
        self._file.write("".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(lines)

    def close(self) -> None:
        """Let the file come into being. OSError: it stays FILE.part."""
        self._file.close()
        self.part.replace(self.path)

    def leave(self) -> bool:
        """End without a whole file; what there is of it stays in FILE.part, if there is anything.

        Returns:
            Whether something stays.

        """
        self._file.close()
        if self.rows == 0:
            self.part.unlink(missing_ok=True)
        return self.rows > 0


def _line(row: Row) -> str:
    numbers = (row.load_ratio, row.cpu_level, *row.measured, *row.values.tolist())
    return csv_line(
        (
            row.scenario,
            row.repetition,
            row.phase,
            f"{row.at_s:.3f}",
            row.vm,
            *(None if math.isnan(number) else repr(number) for number in numbers),
        )
    )
