"""Files that people give: jobs with their loading vectors, hosts with what runs there. Each fault is one clear line."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from central.models.dfactor import SUM_TOLERANCE
from central.models.groups import Floats
from central.tables.user_files import UserTable
from whitepanda.common.errors import InputError

JOB, TAU, START = "job", "tau_s", "start_s"


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of a file, in its order."""

    names: tuple[str, ...]
    resources: tuple[str, ...]
    loadings: Floats  # shape (jobs, resources)
    tau_s: Floats | None  # time alone; None without the column
    start_s: Floats | None  # when each arrives; likewise


def jobs_of(rows: UserTable, *, beside: Iterable[str] = (), can_fit: bool = False) -> Jobs:
    """Return jobs with their loading vectors: columns `job`, one per resource, if wanted `tau_s` and `start_s`.

    Columns of `beside` are not resources; with `can_fit` the remedy of a share above 1 is `--fit`. Raises InputError if
    there is no job or resource, a share is below 0 or above 1, shares are more than 1 in all, a time is not above 0.
    """
    rows.require(JOB)
    others = {JOB, TAU, START, *beside}
    resources = tuple(name for name in rows.columns if name not in others)
    if not resources:
        raise InputError(f"{rows.path}: has no resource column, only {rows.header}")
    remedy = "if it is an amount that must fit, not a share of time, add --fit {}=CAPACITY" if can_fit else ""
    loadings = np.column_stack([rows.numbers(name, high=1.0, remedy=remedy.format(name)) for name in resources])
    sums = loadings.sum(axis=1)
    names = rows.names(JOB)
    worst = int(sums.argmax())
    if sums[worst] > 1.0 + SUM_TOLERANCE:
        raise InputError(
            f"{rows.path}: job {names[worst]}: the shares of its time sum to {sums[worst]:g}, above 1 (row {worst + 1})"
        )
    tau = rows.numbers(TAU, above=True) if TAU in rows.columns else None
    start = rows.numbers(START) if START in rows.columns else None
    return Jobs(tuple(names.tolist()), resources, loadings, tau, start)


def numbers_by_name(words: Sequence[str], option: str, *, is_share: bool = False) -> dict[str, float]:
    """Read values of an option such as `cpu=8,disk=2`; it may be given several times. Shares are within 0..1.

    Raises InputError for a word that is not NAME=NUMBER, a number out of range, or a name that comes twice.
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
            raise InputError(f"{option} {word}: {name} is given twice")
        found[name] = number
    return found


def units_of(given: Mapping[str, float], resources: Sequence[str]) -> Floats:
    """Return the units of each resource, 1 where none are given.

    Raises InputError if a name is not a resource, or there would be less than one unit.
    """
    for name, number in given.items():
        if name not in resources:
            raise InputError(f"--units {name}: no such resource in the file; it has {', '.join(resources)}")
        if number < 1:
            raise InputError(f"--units {name}: must be 1 or more (value {number:g})")
    return np.array([given.get(name, 1.0) for name in resources])
