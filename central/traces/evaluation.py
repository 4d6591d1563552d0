"""`whitepanda antagonists evaluate`: the evaluation protocol over the files of a trace."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from central.models.antagonists.slots import TaskSlots
from central.traces.methods import METHODS, Known, Method
from central.traces.protocol import Evaluation, MethodResult, evaluate
from central.traces.slots import OnProgress, SlotOptions, no_sensitive_task, rows_json, slot_file, trace_names
from whitepanda.common.errors import InputError

#: The method of agents; results have it under its name and as "default".
DEFAULT_METHOD = "whitepanda"
#: Ranks by the true coefficients of TRUTH.json, if it has them.
ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Truth:
    """The antagonists' jobs of a trace and, of a synthetic one, every job's true coefficient."""

    antagonists: tuple[int, ...]
    coefficients: Mapping[int, float] | None = None

    @classmethod
    def read(cls, path: Path) -> "Truth":
        """Read {"antagonists": [job ids], "coefficients": {job id: value}}; the latter may be absent.

        Raises InputError if the file cannot be read, or is not of that form.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is not JSON: {error}") from error
        jobs = found.get("antagonists") if isinstance(found, dict) else None
        if not isinstance(jobs, list):
            raise InputError(f'{path}: must be {{"antagonists": [job ids]}} with at least one job')
        if not jobs:
            raise InputError(f"{path}: names no antagonist, so there is nothing to rank; name at least one job")
        known = found.get("coefficients")
        if known is not None and not isinstance(known, dict):
            raise InputError(f'{path}: "coefficients" must be {{job id: value}} (value {_short(known)})')
        try:
            values = None if known is None else {_job(job): _coefficient(value) for job, value in known.items()}
            return cls(tuple(sorted({_job(job) for job in jobs})), values)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: job ids must be integers of 64 bits and coefficients finite numbers: {error}"
            ) from error


def _job(value: Any) -> int:
    """Return a job's number, in JSON a number or text."""
    number = int(_as_given(value, int | str, "job"))
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"job {_short(value)}")
    return number


def _coefficient(value: Any) -> float:
    number = float(_as_given(value, int | float | str, "coefficient"))
    if not math.isfinite(number):
        raise ValueError(f"coefficient {_short(value)}")
    return number


def _as_given(value: Any, kinds: Any, what: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{what} {_short(value)}")
    return value


def _short(value: Any) -> str:
    return repr(value)[:80]


def evaluate_trace(
    traces: Sequence[Path],
    truth: Truth,
    options: SlotOptions,
    on_progress: OnProgress,
    *,
    methods: Sequence[str],
    from_day: int,
    seed: int,
) -> dict[str, Any]:
    """Evaluate methods on the files of one trace; return the result, ready for JSON.

    `traces` are Google cluster trace v3 usage rows, see `collector.traces.google`. `methods` empty: all, and the oracle
    if the truth has coefficients. The result is {"events": n, "methods": {name: {"mean_percentile": x, "consistency":
    y, ...}}, ...}; an interval of fewer than `protocol.LEAST_MACHINES` machines is [null, null].

    Raises InputError if a trace cannot be used, a method does not exist, no day is left to evaluate, or the trace has
    no latency-sensitive task with a CPI or none of the truth's jobs, and UnavailableError as `slot_file`.
    """
    began = time.monotonic()
    chosen = _methods(methods, truth)
    wanted = np.array(truth.antagonists, dtype=np.int64)
    antagonists, suspects, is_sensitive = set[int](), set[int](), False

    def noted() -> Iterator[tuple[int, TaskSlots]]:
        """Yield the days, report each as progress, and note who is there."""
        nonlocal is_sensitive
        for number, day in slots.days():
            on_progress("day", number, None)
            here = np.isin(day.job, wanted)
            antagonists.update(np.unique(day.job[here]).tolist())
            suspects.update(np.unique(day.job[here & ~day.latency_sensitive]).tolist())
            is_sensitive = is_sensitive or bool((day.latency_sensitive & ~np.isnan(day.cpi)).any())
            yield number, day

    with slot_file(traces, options, on_progress) as slots:
        found = evaluate(noted(), wanted, chosen, from_day=from_day, seed=seed)
    if not found.evaluated_days:
        raise InputError(
            f"{trace_names(traces)}: no day to evaluate: days 0 to {found.days - 1}, evaluated from day {from_day} "
            "with the days before; see --from-day"
        )
    if not is_sensitive:
        raise no_sensitive_task(traces, options.rule)
    if not antagonists:
        raise InputError(
            f"{trace_names(traces)}: none of the truth's antagonists is in the trace (the first is "
            f"{truth.antagonists[0]}); is it the truth of this trace?"
        )
    results: dict[str, Any] = {name: _result_json(result) for name, result in found.methods.items()}
    summary = {
        "events": found.events,
        "triggers": found.triggers,
        "no_event_because": _why_no_event(found, has_suspects=bool(suspects)),
        "methods": results,
    }
    if DEFAULT_METHOD in results:
        results["default"] = dict(results[DEFAULT_METHOD])
        summary["default"] = {"method": DEFAULT_METHOD, **results[DEFAULT_METHOD]}
    return summary | {
        **{name: getattr(found, name) for name in ("machines", "days", "evaluated_days", "task_slots")},
        "antagonists": len(antagonists),
        "antagonists_suspect": len(suspects),
        "rows": rows_json(slots.counts),
        "seconds": round(time.monotonic() - began, 3),
    }


def _result_json(result: MethodResult) -> dict[str, Any]:
    found: dict[str, Any] = {"ranked": result.ranked, "victim_pairs": result.pairs}
    for metric in ("mean_percentile", "consistency", "first_is_antagonist", "minus_panda"):
        estimate = getattr(result, metric)
        found |= {metric: estimate.value, f"{metric}_interval": [estimate.low, estimate.high]}
    return found


def _why_no_event(found: Evaluation, *, has_suspects: bool) -> str | None:
    """Return what is missing for an event; None if there are some."""
    if found.events:
        return None
    if not has_suspects:
        return "every antagonist in the trace is latency-sensitive throughout, so never a suspect"
    if not found.triggers:
        return "no machine triggered: no mnCPI above its 99th percentile with victims in 3 slots in a row"
    return f"{found.triggers:,} triggers, none with a true antagonist and another suspect there"


def _methods(names: Sequence[str], truth: Truth) -> dict[str, Method]:
    known = [*METHODS, ORACLE]
    methods: dict[str, Method] = {}
    for name in names or (known if truth.coefficients else METHODS):
        own = DEFAULT_METHOD if name == "default" else name
        if own not in known:
            raise InputError(f"unknown method '{name}'; known: {', '.join(known)}")
        if own == ORACLE:
            if not truth.coefficients:
                raise InputError('method oracle: the truth has no {"coefficients": {job id: value}}')
            methods[own] = Known(truth.coefficients)
        else:
            methods[own] = METHODS[own]()
    return methods
