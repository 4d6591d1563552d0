"""Measured pairs, one workload beside another: how well loading vectors fitted to some of them predict the others.

For `whitepanda slowdown pairs`. Loading vectors are of workloads, capacities of platforms, both without names of
resources: only their products were ever measured (`central.models.dfactor_pairs`).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import stdtrit

from central.models.dfactor_pairs import ExtendedLoadings, Pairs, fit_extended, fit_plain
from central.models.groups import Floats, Ints, group, sums
from central.models.pitot import ALONE, Rows
from central.runtimes.tables import Names, read_log_runtimes, read_rows
from whitepanda.common.errors import InputError

#: What validation inside the fitted pairs chooses among.
RESOURCES, PENALTIES = (2, 4, 6), (0.05, 0.2)
_SLOWDOWN = "slowdown"
_VALIDATION, _HELD_OUT = 0.2, 0.2
#: With fewer, a fifth of them says next to nothing.
_MIN_PAIRS = 100
PLATFORM, DFACTOR, EXTENDED = "per platform", "D-Factor", "extended"
#: The largest slow-down of a pair of busy jobs in D-Factor.
_MAX_SLOWDOWN = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured pairs of a file, and the names that their numbers are places of."""

    pairs: Pairs
    workloads: Names
    platforms: Names
    same: Ints  # number of each pair's (workload, interferer, platform), which may have been measured repeatedly
    without_alone: int  # pairs left out, whose workload has no run alone on the platform
    of_several: int  # rows left out, beside more than one


@dataclass(frozen=True, slots=True)
class MeanError:
    """Mean of |predicted - measured| / measured of n pairs, with its 95 % interval; None: too few pairs."""

    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A fifth of the pairs, predicted by models that were fitted to the others."""

    measured: Floats
    predicted: dict[str, Floats]
    errors: dict[str, dict[str, MeanError]]  # by model and part of the measured slow-downs (`parts_of`)
    resources: int  # of the extended form, by validation inside the other four fifths
    penalty: float  # likewise


def read_pairs(path: Path) -> Measured:
    """Read pairs: columns workload, platform, interferer, and runtime_us or slowdown.

    With runtime_us the rows without an interferer are the times alone (of several the geometric mean), and the
    slow-down of a pair is its time over the workload's alone on the same platform. With slowdown rows alone say
    nothing. Raises InputError if the file cannot be read, a column is missing, a value is not above 0, or there are too
    few pairs.
    """
    named = read_rows(path)
    workloads = Names.of(tuple(dict.fromkeys((*named.workloads, *named.interferers))))
    platforms = Names.of(named.platforms)
    places = named.placed(workloads, platforms, "")
    others = places.co_runners
    is_pair = known = others == 1
    if _SLOWDOWN in named.table.columns:
        slowdown = named.table.numbers(_SLOWDOWN, low=-math.inf, empty=math.nan)
        bad = np.flatnonzero(is_pair & ~(slowdown > 0))
        if len(bad):
            where = f"row {bad[0] + 1}: {slowdown[bad[0]]:g}"
            raise InputError(f"{path}: {_SLOWDOWN} must be more than 0 in rows with another workload ({where})")
    else:
        log_us = read_log_runtimes(named)
        at = places.workload * len(platforms) + places.platform
        size = len(workloads) * len(platforms)
        is_alone = others == 0
        count = np.bincount(at[is_alone], minlength=size)
        mean = sums(at[is_alone], log_us[is_alone], size) / np.maximum(count, 1)
        known = is_pair & (count[at] > 0)
        slowdown = np.exp(log_us - mean[at])
    pairs = _pairs(places.take(known), slowdown[known])
    without_alone, of_several = int((is_pair & ~known).sum()), int((others > 1).sum())
    if len(pairs.victim) < _MIN_PAIRS:
        raise InputError(
            f"{path}: has {len(pairs.victim):,} pairs of a workload beside one other, fewer than {_MIN_PAIRS} "
            f"({without_alone:,} more have no run alone on their platform, {of_several:,} rows are beside several); "
            "measure more"
        )
    _, same = group(pairs.victim, pairs.beside, pairs.platform)
    return Measured(pairs, workloads, platforms, same, without_alone, of_several)


def _pairs(rows: Rows, slowdown: Floats) -> Pairs:
    """Return rows that are beside one other as pairs."""
    return Pairs(rows.workload, rows.interferers.max(axis=1, initial=ALONE), rows.platform, slowdown)


def hold_out(measured: Measured, seed: int, say: Callable[[str], None]) -> HeldOut:
    """Fit to four fifths of the pairs, predict the fifth; what was measured twice stays together.

    `seed` is of the division and of where searches begin; `say` is called with the name of each fit.
    """
    rng = np.random.default_rng(seed)
    distinct = int(measured.same.max()) + 1
    is_held = (rng.permutation(distinct) < max(1, round(_HELD_OUT * distinct)))[measured.same]
    fitted, asked = measured.pairs.where(~is_held), measured.pairs.where(is_held)
    sizes = (len(measured.workloads), len(measured.platforms))
    say("D-Factor")
    plain = fit_plain(fitted, *sizes, seed=seed)
    model, resources, penalty = chosen_extended(fitted, measured.same[~is_held], *sizes, seed, say)
    predicted = {PLATFORM: by_platform(fitted, asked, sizes[1])}
    predicted |= {DFACTOR: plain.predict(asked), EXTENDED: model.predict(asked)}
    parts = parts_of(asked.slowdown)
    errors = {}
    for name, values in predicted.items():
        off = relative_errors(values, asked)
        errors[name] = {part: mean_error(off[rows], asked.where(rows)) for part, rows in parts.items()}
    return HeldOut(asked.slowdown, predicted, errors, resources, penalty)


def parts_of(slowdown: Floats) -> dict[str, npt.NDArray[np.bool_]]:
    """Return masks of all pairs, and of those that D-Factor can reach, and cannot."""
    return {
        "all": np.ones(len(slowdown), dtype=np.bool_),
        "above 2": slowdown > _MAX_SLOWDOWN,
        "1 to 2": (slowdown >= 1) & (slowdown <= _MAX_SLOWDOWN),
        "below 1": slowdown < 1,
    }


def relative_errors(predicted: Floats, pairs: Pairs) -> Floats:
    """Return |predicted - measured| / measured of each pair."""
    return np.abs(predicted - pairs.slowdown) / pairs.slowdown


def mean_error(errors: Floats, pairs: Pairs) -> MeanError:
    """Return the mean with its 95 % interval, the wider of the intervals clustered by workloads and by platforms.

    Each has the sandwich variance and Student's t with as many degrees as there are workloads (platforms), less one.
    """
    n = len(errors)
    if not n:
        return MeanError(0)
    mean, half = float(errors.mean()), -math.inf
    for number in (pairs.victim, pairs.platform):
        (groups,), place = group(number)
        size = len(groups)
        if size > 1:
            total = sums(place, errors - mean, size)
            spread = math.sqrt(float((total**2).sum()) * size / (size - 1)) / n
            half = max(half, float(stdtrit(size - 1, 0.975)) * spread)
    if half < 0:
        return MeanError(n, mean)
    return MeanError(n, mean, max(mean - half, 0.0), mean + half)


def best_constant(slowdown: Floats) -> float:
    """Return the constant with the least mean |c - y| / y: the median with weights 1 / y."""
    order = np.argsort(slowdown)
    weight = np.cumsum(1 / slowdown[order])
    return float(slowdown[order][np.searchsorted(weight, weight[-1] / 2)])


def by_platform(fitted: Pairs, asked: Pairs, platforms: int) -> Floats:
    """Predict the best constant of each pair's platform, that of all where none was fitted."""
    values = np.full(platforms, best_constant(fitted.slowdown))
    for k in np.unique(fitted.platform):
        values[k] = best_constant(fitted.slowdown[fitted.platform == k])
    return values[asked.platform]


def chosen_extended(
    fitted: Pairs, groups: Ints, workloads: int, platforms: int, seed: int, say: Callable[[str], None]
) -> tuple[ExtendedLoadings, int, float]:
    """Choose the number of resources and the penalty by a fifth of the pairs, then fit to all of them.

    Pairs of one number in `groups` stay together. `seed` is of the division (1000 more) and of where searches begin.
    """
    names, at = np.unique(groups, return_inverse=True)
    held = (np.random.default_rng(1000 + seed).random(len(names)) < _VALIDATION)[at]
    outer = fitted.where(held)

    def fit(pairs: Pairs, resources: int, penalty: float) -> ExtendedLoadings:
        return fit_extended(pairs, workloads, platforms, resources=resources, penalty=penalty, seed=seed)

    tried = list[tuple[float, int, float]]()
    for resources, penalty in itertools.product(RESOURCES, PENALTIES):
        say(f"extended: {resources} resources, penalty {penalty:g}")
        predicted = fit(fitted.where(~held), resources, penalty).predict(outer)
        tried.append((float(relative_errors(predicted, outer).mean()), resources, penalty))
    _, resources, penalty = min(tried)
    say(f"extended: {resources} resources, penalty {penalty:g}, chosen")
    return fit(fitted, resources, penalty), resources, penalty


@dataclass(frozen=True, slots=True, eq=False)
class RowsToPredict:
    """Rows of a file that are to be predicted: which are beside another, as pairs."""

    table: pa.Table
    is_pair: npt.NDArray[np.bool_]
    pairs: Pairs

    def with_slowdowns(self, measured: Measured, chosen: HeldOut, seed: int) -> pa.Table:
        """Return the rows with predictions by the extended form, fitted to all pairs: a column slowdown, 1 alone."""
        sizes = (len(measured.workloads), len(measured.platforms))
        model = fit_extended(measured.pairs, *sizes, resources=chosen.resources, penalty=chosen.penalty, seed=seed)
        found = np.ones(len(self.is_pair))
        found[self.is_pair] = model.predict(self.pairs)
        return self.table.append_column(_SLOWDOWN, pa.array(found))


def read_rows_to_predict(path: Path, measured: Measured) -> RowsToPredict:
    """Read rows to predict: columns workload, platform, interferer.

    Raises InputError if the file cannot be read or has a column slowdown, a name was never measured in its role, or a
    row is beside several.
    """
    named = read_rows(path)
    if _SLOWDOWN in named.table.columns:
        raise InputError(f"{path}: already has a column {_SLOWDOWN}, which the predictions would overwrite; rename it")
    rows = named.placed(measured.workloads, measured.platforms, "measure it in pairs")
    others = rows.co_runners
    if (others > 1).any():
        row = int(np.flatnonzero(others > 1)[0])
        raise InputError(
            f"{path}: row {row + 1} is beside {others[row]} others, and pairs have one; use `whitepanda runtime`"
        )
    is_pair = others == 1
    pairs = _pairs(rows.take(is_pair), np.ones(int(is_pair.sum())))
    seen = measured.pairs
    for what, names, wanted, known in (
        ("workload", measured.workloads, pairs.victim, seen.victim),
        ("interferer", measured.workloads, pairs.beside, seen.beside),
        ("platform", measured.platforms, pairs.platform, seen.platform),
    ):
        never = np.flatnonzero(~np.isin(wanted, known))
        if len(never):
            row, name = np.flatnonzero(is_pair)[never[0]] + 1, names.names[wanted[never[0]]]
            raise InputError(f"{path}: row {row}: {name!r} is not the {what} of any measured pair; measure one with it")
    return RowsToPredict(named.table.cells, is_pair, pairs)
