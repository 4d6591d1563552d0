"""Measurements in files turned into loading vectors: `whitepanda slowdown profile`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from central.models.dfactor import SUM_TOLERANCE, n_copies_roots
from central.models.dfactor_profile import Estimate, Profile, fit_runs, mean_shares
from central.placement.tables import JOB, TAU
from central.tables.user_files import UserTable
from whitepanda.common.errors import InputError
from whitepanda.common.files.csv_cells import csv_line
from whitepanda.common.files.durable import writing

COPIES, PROBES, SHARES = "copies", "probes", "shares"
_TIME, _VM, _SQUARE = "time_s", "vm", "squared_length"


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The profile of one job."""

    job: str
    n: int
    tau_s: Estimate | None
    measured: dict[str, Estimate]  # by resource, or `squared_length` of copies
    loading: dict[str, float] | None  # for `estimate` and `place`: shares within 0 to 1 that sum to at most 1
    candidates: tuple[dict[str, float], ...]
    notes: tuple[str, ...]  # where `loading` differs from what was measured, or why there is none


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles of a file's jobs, by the kind of its rows."""

    kind: str
    resources: tuple[str, ...]
    jobs: tuple[JobProfile, ...]


def read_profiles(path: Path, *, rest: str = "", larger: str = "") -> Profiles:
    """Profile the jobs of a CSV file. Its columns say what it is.

    Columns job, copies, time_s: runs of several copies together (two resources, named by `larger` and `rest`). Columns
    job, time_s and resources: runs beside known loads, the sums of their loading vectors, all 0 for a run alone.
    Columns job, resources and if known vm: measured shares of time, a row per window.

    `rest` is the resource that gets what busy jobs' other shares leave ("": jobs may idle), `larger` the one with the
    larger share of copies ("": not known, so both vectors are candidates). Raises InputError for what `UserTable`
    refuses, a number out of range, too few or inconsistent runs.
    """
    rows = UserTable(path)
    rows.require(JOB)
    names = rows.names(JOB)
    kind = COPIES if COPIES in rows.columns else PROBES if _TIME in rows.columns else SHARES
    if kind == COPIES:
        return _of_copies(path, rows, names, rest, larger)
    resources = tuple(name for name in rows.columns if name not in (JOB, _TIME, _VM))
    if larger:
        raise InputError(f"--larger {larger}: is for runs of several copies; {path} has no column {COPIES}")
    if not resources:
        raise InputError(f"{path}: has no resource column, only {', '.join(rows.columns)}")
    if kind == SHARES and TAU in resources:
        raise InputError(f"{path}: has a column {TAU}, which `slowdown estimate` reads; omit it from shares of time")
    if rest in resources:
        raise InputError(f"--rest {rest}: is measured already; name another resource")
    x = np.column_stack([rows.numbers(name, high=math.inf if kind == PROBES else 1.0) for name in resources])
    found = list[JobProfile]()
    if kind == PROBES:
        times = rows.numbers(_TIME, above=True)
        profiles = _by_job(path, names, lambda here: fit_runs(times[here], x[here]))
    else:
        vms = rows.names(_VM) if _VM in rows.columns else None
        profiles = _by_job(path, names, lambda here: mean_shares(x[here], None if vms is None else vms[here]))
    for job, profile in profiles.items():
        measured = dict(zip(resources, profile.shares, strict=True))
        loading, notes = _usable({name: each.value for name, each in measured.items()}, rest)
        found.append(JobProfile(job, profile.n, profile.tau_s, measured, loading, (), notes))
    return Profiles(kind, (*resources, rest) if rest else resources, tuple(found))


def _by_job(path: Path, names: Any, profile: Callable[[Any], Profile]) -> dict[str, Profile]:
    """Return the profile of each job's rows, which are a mask; in the order of the file."""
    found = {}
    for job in dict.fromkeys(names.tolist()):
        try:
            found[job] = profile(names == job)
        except ValueError as error:
            raise InputError(f"{path}: job {job}: {error}") from None
    return found


def _usable(values: Mapping[str, float], rest: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Clip measured shares to 0 to 1, with a sum of at most 1, and note where that changes them."""
    loading = {name: min(max(value, 0.0), 1.0) for name, value in values.items()}
    notes = [f"{k} {value:.4g} is taken as {loading[k]:g}" for k, value in values.items() if loading[k] != value]
    total = sum(loading.values())
    if total > 1:
        loading = {name: value / total for name, value in loading.items()}
        if total > 1 + SUM_TOLERANCE:  # below it is rounding
            notes.append(f"shares sum to {total:.4g}; they are divided by that")
    if rest:
        loading[rest] = max(1.0 - total, 0.0)
    return loading, tuple(notes)


def _of_copies(path: Path, rows: UserTable, names: Any, rest: str, larger: str) -> Profiles:
    rows.require(_TIME)
    if bool(rest) != bool(larger) or (rest and rest == larger):
        raise InputError("--larger and --rest: give two different resources, or neither")
    copies, times = rows.whole(COPIES), rows.numbers(_TIME, above=True)
    both = (larger, rest) if rest else ("resource-1", "resource-2")
    profiles = _by_job(path, names, lambda here: fit_runs(times[here], copies[here][:, None] - 1.0))
    found = [_copied(job, profile, both, chosen=bool(rest)) for job, profile in profiles.items()]
    return Profiles(COPIES, both, tuple(found))


def _copied(job: str, profile: Profile, names: tuple[str, str], *, chosen: bool) -> JobProfile:
    (square,) = profile.shares
    candidates: tuple[dict[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    if square.value > 1:
        notes = (f"|p|^2 {square.value:.4g} is above 1: more than jobs of one resource would suffer",)
    else:
        try:
            low, high = n_copies_roots(1.0 + square.value, 2)
        except ValueError:
            notes = (f"|p|^2 {square.value:.4g} is below 0.5: not a busy job of two resources",)
        else:
            both = (high, low) if high > low else (high,)
            candidates = tuple(dict(zip(names, (p, 1.0 - p), strict=True)) for p in both)
    loading = candidates[0] if candidates and chosen else None
    if candidates and not chosen:
        notes = ("the model cannot distinguish the two vectors; give --larger and --rest",)
    return JobProfile(job, profile.n, profile.tau_s, {_SQUARE: square}, loading, candidates, notes)


def write_loadings(path: Path, profiles: Profiles) -> None:
    """Write LOADINGS.csv for `slowdown estimate` and `place`.

    Raises InputError if a job has no loading vector, or the file cannot be written.
    """
    for job in profiles.jobs:
        if job.loading is None:
            raise InputError(f"--out {path}: job {job.job} has no loading vector: {'; '.join(job.notes)}")
    times = [job.tau_s.value for job in profiles.jobs if job.tau_s is not None]
    has_times = len(times) == len(profiles.jobs)
    lines = [csv_line([JOB, *profiles.resources, *([TAU] if has_times else [])])]
    for place, job in enumerate(profiles.jobs):
        values = [(job.loading or {})[name] for name in profiles.resources] + times[place : place + has_times]
        lines.append(csv_line([job.job, *(f"{value:.12g}" for value in values)]))
    with writing(path, mode=0o600) as file:
        file.write("".join(lines).encode())
