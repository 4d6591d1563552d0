"""The RUNS file: one row per second of the served VM, with its client's measurements and the host's signals.

It grows in FILE.part, run by run, and becomes FILE when it is complete.
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
    *("scenario", "repetition", "phase", "at_s", "vm", "load_ratio", "cpu_level"),
    *Measured._fields,
    *SIGNALS,
)


class Row(NamedTuple):
    """One second of a run. `at_s`: its end, since the first phase began; `values`: shape (SIGNALS,)."""

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


def check_writable(path: Path, *, replace: bool) -> None:
    """Raise FileExistsError, IsADirectoryError or another OSError where a RUNS file cannot be made; leaves nothing."""
    if path.is_dir():
        raise IsADirectoryError(path)
    if path.exists() and not replace:
        raise FileExistsError(path)
    # Permissions say too little: root may write anywhere but on a read-only mount.
    made, stream = create_beside(path)
    stream.close()
    made.unlink()


class RunsFile:
    """Writes a RUNS file as CSV. Raises OSError as `check_writable` does."""

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        check_writable(path, replace=replace)
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.rows = 0
        self._file = self.part.open("w", encoding="utf-8", newline="")
        self._file.write(csv_line(COLUMNS))
        self._file.flush()

    def add(self, rows: Iterable[Row]) -> None:
        """Write a whole run, synced to disk."""
        lines = []
        for row in rows:
            numbers = (row.load_ratio, row.cpu_level, *row.measured, *row.values.tolist())
            cells = (None if math.isnan(number) else repr(number) for number in numbers)
            lines.append(csv_line((row.scenario, row.repetition, row.phase, f"{row.at_s:.3f}", row.vm, *cells)))
        self._file.write("".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(lines)

    def close(self) -> None:
        """Rename FILE.part to FILE; after an OSError it stays FILE.part."""
        self._file.close()
        self.part.replace(self.path)

    def leave(self) -> bool:
        """Stop early; return whether rows stay in FILE.part."""
        self._file.close()
        if self.rows == 0:
            self.part.unlink(missing_ok=True)
        return self.rows > 0
