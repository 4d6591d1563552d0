"""Files that people give: jobs with their loading vectors, hosts with what runs there. Each fault is one clear line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from central.models.dfactor import SUM_TOLERANCE
from central.models.groups import Floats
from whitepanda.common.csv_cells import csv_text
from whitepanda.common.errors import InputError

__all__ = ["JOB", "START", "TAU", "Jobs", "Rows", "jobs_of", "numbers_by_name", "read_rows", "units_of"]

JOB, TAU, START = "job", "tau_s", "start_s"


@dataclass(frozen=True, slots=True)
class Rows:
    """A CSV file as it is read: named columns of text, with the line each row is on."""

    path: Path
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.cells)

    def require(self, *names: str) -> None:
        """Refuse a file without these columns."""
        for name in names:
            if name not in self.columns:
                raise InputError(f"{self.path}: has no column {name}; it has {', '.join(self.columns)}")

    def text(self, column: str) -> list[str]:
        """Return a column of names, none of which may be empty."""
        at = self.columns.index(column)
        for line, row in zip(self.lines, self.cells, strict=True):
            if not row[at]:
                raise InputError(f"{self.path}:{line}: {column} is empty")
        return [row[at] for row in self.cells]

    def numbers(
        self,
        column: str,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above: bool = False,
        empty: float | None = None,
        remedy: str = "",
    ) -> Floats:
        """Return a column of finite numbers.

        Args:
            column: its name.
            low: the least value.
            high: the greatest.
            above: `low` itself is too little.
            empty: what an empty cell stands for; None: it is refused.
            remedy: of a number that is too large.

        """
        at = self.columns.index(column)
        found = np.zeros(len(self.cells))
        for k, (line, row) in enumerate(zip(self.lines, self.cells, strict=True)):
            found[k] = self._number(column, line, row[at], empty)
            if not math.isfinite(found[k]) and row[at]:
                raise InputError(f"{self.path}:{line}: {column}: must be a finite number (value {row[at]})")
            if found[k] < low or found[k] > high or (above and found[k] <= low):
                bound = f"above {low:g}" if above else f"{low:g} or more"
                bound = f"{low:g} to {high:g}" if high < math.inf else bound
                then = f"; {remedy}" if remedy and found[k] > high else ""
                raise InputError(f"{self.path}:{line}: {column}: must be {bound} (value {row[at]}){then}")
        return found

    def _number(self, column: str, line: int, cell: str, empty: float | None) -> float:
        if not cell and empty is not None:
            return empty
        try:
            return float(cell)
        except ValueError:
            raise InputError(f"{self.path}:{line}: {column}: must be a number (value {cell!r})") from None


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of a file, in its order.

    `loadings` has shape (jobs, resources). `tau_s` is each one's time alone, `start_s` when it arrives; None without
    the column.
    """

    names: tuple[str, ...]
    resources: tuple[str, ...]
    loadings: Floats
    tau_s: Floats | None
    start_s: Floats | None


def read_rows(path: Path) -> Rows:
    """Read a CSV file with a header.

    Raises:
        InputError: it cannot be read, is no UTF-8 text, has no rows, a column twice, or a row of another width.

    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            read = [
                (reader.line_num, tuple(csv_text(cell.strip()) for cell in row)) for row in reader if any(row)
            ]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no CSV text in UTF-8: {error}") from error
    if not read:
        raise InputError(f"{path}: is empty; the first line must name the columns")
    header = read[0][1]
    for name in header:
        if not name:
            raise InputError(f"{path}: has a column without a name")
        if header.count(name) > 1:
            raise InputError(f"{path}: has the column {name} twice")
    for line, row in read[1:]:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}: has {len(row)} fields, not {len(header)} as the first line")
    if len(read) == 1:
        raise InputError(f"{path}: has no rows below its header")
    return Rows(path, header, tuple(row for _, row in read[1:]), tuple(line for line, _ in read[1:]))


def jobs_of(rows: Rows, *, beside: Iterable[str] = (), can_fit: bool = False) -> Jobs:
    """Return jobs with their loading vectors: columns `job`, one per resource, if wanted `tau_s` and `start_s`.

    Args:
        rows: as `read_rows` reads them, once: what comes through a pipe is there only once.
        beside: columns that are no resources.
        can_fit: an amount that only has to fit can be told by `--fit`: the remedy of a share above 1.

    Raises:
        InputError: there is no job or resource, a share is below 0 or above 1, shares are more than 1 in all, a time is
            not above 0.

    """
    rows.require(JOB)
    others = {JOB, TAU, START, *beside}
    resources = tuple(name for name in rows.columns if name not in others)
    if not resources:
        raise InputError(f"{rows.path}: has no column of a resource beside {', '.join(rows.columns)}")
    remedy = "if it is no share of time but has to fit, add --fit {}=ROOM" if can_fit else ""
    loadings = np.column_stack(
        [rows.numbers(name, high=1.0, remedy=remedy.format(name)) for name in resources]
    )
    sums = loadings.sum(axis=1)
    names = rows.text(JOB)
    worst = int(sums.argmax())
    if sums[worst] > 1.0 + SUM_TOLERANCE:
        raise InputError(
            f"{rows.path}:{rows.lines[worst]}: job {names[worst]}: the shares of its time sum to {sums[worst]:g}, "
            "above 1"
        )
    tau = rows.numbers(TAU, above=True) if TAU in rows.columns else None
    start = rows.numbers(START) if START in rows.columns else None
    return Jobs(tuple(names), resources, loadings, tau, start)


def numbers_by_name(words: Sequence[str], option: str, *, is_share: bool = False) -> dict[str, float]:
    """Read values of an option such as `cpu=8,disk=2`; one may be given several times.

    Args:
        words: as they were given.
        option: its name, for errors.
        is_share: numbers are shares of time, within 0..1; else they are above 0.

    Raises:
        InputError: not NAME=NUMBER, a number out of range, or a name comes twice.

    """
    found: dict[str, float] = {}
    for word in (part.strip() for each in words for part in each.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not name or not equals:
            example = "cpu=0.5" if is_share else "cpu=8"
            raise InputError(f"{option} {word}: must be NAME=NUMBER, as in {example}")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"{option} {word}: {value!r} is not a number") from None
        if is_share and not 0.0 <= number <= 1.0:
            raise InputError(f"{option} {word}: must be within 0..1, the share of the VM's time at {name}")
        if not is_share and not (math.isfinite(number) and number > 0.0):
            raise InputError(f"{option} {word}: must be above 0")
        if name in found:
            raise InputError(f"{option}: {name} is given twice")
        found[name] = number
    return found


def units_of(given: Mapping[str, float], resources: Sequence[str], option: str = "--units") -> Floats:
    """Return the units of each resource, 1 where none are given.

    Raises:
        InputError: a name is no resource, or there would be less than one unit.

    """
    for name, number in given.items():
        if name not in resources:
            raise InputError(f"{option} {name}: is no resource of the file; they are {', '.join(resources)}")
        if number < 1:
            raise InputError(f"{option} {name}: must be 1 or more (value {number:g})")
    return np.array([given.get(name, 1.0) for name in resources])
