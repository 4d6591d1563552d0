"""`whitepanda antagonists evaluate`: the evaluation protocol over the files of a trace."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from central.models.antagonists.slots import SLOT_S, TaskSlots
from central.models.groups import Column
from central.traces.methods import METHODS, Known, Method
from central.traces.protocol import DEFAULT_FROM_DAY, Evaluation, evaluate
from central.traces.slots import EngineOptions, SlotFile, no_sensitive_task, rows_json, slot_file, trace_names
from collector.traces.google import LatencySensitiveRule, TraceCounts, TraceLimits
from whitepanda.common.errors import InputError

#: The method of agents; results have it under its name and as "default".
DEFAULT_METHOD = "whitepanda"
#: Ranks by the true coefficients of TRUTH.json, where it has them.
ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Truth:
    """The antagonists' jobs of a trace and, of a synthetic one, every job's true coefficient."""

    antagonists: tuple[int, ...]
    coefficients: Mapping[int, float] | None = None

    @classmethod
    def read(cls, path: Path) -> "Truth":
        """Read {"antagonists": [job ids], "coefficients": {job id: value}}; the latter may be absent.

        Raises:
            InputError: the file cannot be read, or is not of that form.

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
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"job {_short(value)}")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"job {_short(value)}")
    return number


def _coefficient(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"coefficient {_short(value)}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"coefficient {_short(value)}")
    return number


def _short(value: Any) -> str:
    return repr(value)[:80]


@dataclass(frozen=True, slots=True)
class TraceEvaluationOptions:
    """How a trace is evaluated. `methods` empty: all, and the oracle where the truth has coefficients."""

    methods: tuple[str, ...] = ()
    from_day: int = DEFAULT_FROM_DAY
    rule: LatencySensitiveRule = field(default_factory=LatencySensitiveRule)
    limits: TraceLimits = field(default_factory=TraceLimits)
    seed: int = 0
    engine: EngineOptions = field(default_factory=EngineOptions)


@dataclass(frozen=True, slots=True)
class TraceEvaluation:
    """The result, and what was read for it.

    `antagonists_known` are the true ones in the trace; of them, `antagonists_suspect` are not latency-sensitive
    throughout.
    """

    evaluation: Evaluation
    counts: TraceCounts
    antagonists_known: int
    antagonists_suspect: int
    seconds: float

    def why_no_event(self) -> str | None:
        """Return what is missing for an event; None where there are some."""
        if self.evaluation.events:
            return None
        if not self.antagonists_suspect:
            return "every antagonist in the trace is latency-sensitive throughout, so never a suspect"
        if not self.evaluation.triggers:
            return "no machine triggered: no mnCPI above its 99th percentile with victims in 3 slots in a row"
        return f"{self.evaluation.triggers:,} triggers, none with a true antagonist and another suspect there"

    def as_json(self) -> dict[str, Any]:
        """Return {"events": n, "methods": {name: {"mean_percentile": x, "consistency": y, ...}}, ...}.

        An interval is [null, null] of fewer than `protocol.LEAST_MACHINES` machines.
        """
        found = self.evaluation
        methods: dict[str, Any] = {}
        for name, result in found.methods.items():
            methods[name] = {"ranked": result.ranked, "victim_pairs": result.pairs}
            for metric in ("mean_percentile", "consistency", "first_is_antagonist", "minus_panda"):
                estimate = asdict(getattr(result, metric))
                methods[name][metric] = estimate["value"]
                methods[name][f"{metric}_interval"] = [estimate["low"], estimate["high"]]
        summary: dict[str, Any] = {
            "events": found.events,
            "triggers": found.triggers,
            "no_event_because": self.why_no_event(),
            "methods": methods,
        }
        if DEFAULT_METHOD in methods:
            methods["default"] = dict(methods[DEFAULT_METHOD])
            summary["default"] = {"method": DEFAULT_METHOD, **methods[DEFAULT_METHOD]}
        return summary | {
            "machines": found.machines,
            "days": found.days,
            "evaluated_days": found.evaluated_days,
            "task_slots": found.task_slots,
            "antagonists": self.antagonists_known,
            "antagonists_suspect": self.antagonists_suspect,
            "rows": rows_json(self.counts),
            "seconds": round(self.seconds, 3),
        }


def evaluate_trace(
    traces: Sequence[Path],
    truth: Truth,
    options: TraceEvaluationOptions,
    on_progress: Callable[[str, int, int | None], None] = lambda _step, _done, _total: None,
) -> TraceEvaluation:
    """Evaluate methods on the files of one trace.

    Args:
        traces: Google cluster trace v3 usage rows, see `collector.traces.google`.
        truth: the antagonists.
        options: methods, days, rules and limits.
        on_progress: called with the step ("read", "fit" or "day"), what is done, and all of it where known.

    Raises:
        InputError: a trace cannot be used, a method does not exist, no day is left to evaluate, or the trace has no
            latency-sensitive task with a CPI or none of the truth's jobs.
        UnavailableError: disk or memory did not suffice, or there is no Spark.

    """
    began = time.monotonic()
    methods = _methods(options.methods, truth)
    wanted = np.array(truth.antagonists, dtype=np.int64)
    seen = _Seen()
    with slot_file(
        traces, rule=options.rule, limits=options.limits, slot_s=SLOT_S, options=options.engine, on_progress=on_progress
    ) as slots:
        found = evaluate(
            _noted(slots, wanted, seen, on_progress), wanted, methods, from_day=options.from_day, seed=options.seed
        )
    if not found.evaluated_days:
        raise InputError(
            f"{trace_names(traces)}: no day to evaluate: days 0 to {found.days - 1}, evaluated from day "
            f"{options.from_day} with the days before; see --from-day"
        )
    if not seen.sensitive:
        raise no_sensitive_task(traces, options.rule)
    if not seen.antagonists:
        raise InputError(
            f"{trace_names(traces)}: none of the truth's antagonists is in the trace (the first is "
            f"{truth.antagonists[0]}); is it the truth of this trace?"
        )
    return TraceEvaluation(
        evaluation=found,
        counts=slots.counts,
        antagonists_known=len(seen.antagonists),
        antagonists_suspect=len(seen.suspects),
        seconds=time.monotonic() - began,
    )


@dataclass(slots=True)
class _Seen:
    """Whom a trace has: true antagonists, those that may be suspects, and whether any task may be a victim."""

    antagonists: set[int] = field(default_factory=set)
    suspects: set[int] = field(default_factory=set)
    sensitive: bool = False

    def add(self, day: TaskSlots, wanted: Column) -> None:
        here = np.isin(day.job, wanted)
        self.antagonists.update(np.unique(day.job[here]).tolist())
        self.suspects.update(np.unique(day.job[here & ~day.latency_sensitive]).tolist())
        self.sensitive = self.sensitive or bool((day.latency_sensitive & ~np.isnan(day.cpi)).any())


def _noted(
    slots: SlotFile, wanted: Column, seen: _Seen, on_progress: Callable[[str, int, int | None], None]
) -> Iterator[tuple[int, TaskSlots]]:
    """Yield the days, report each as progress, and note who is there."""
    for number, day in slots.days():
        on_progress("day", number, None)
        seen.add(day, wanted)
        yield number, day


def _methods(names: tuple[str, ...], truth: Truth) -> dict[str, Method]:
    known = [*METHODS, ORACLE]
    chosen = names or tuple(METHODS) + ((ORACLE,) if truth.coefficients else ())
    methods: dict[str, Method] = {}
    for name in chosen:
        own = DEFAULT_METHOD if name == "default" else name
        if own not in known:
            raise InputError(f"no method '{name}'; there are {', '.join(known)}")
        if own == ORACLE:
            if not truth.coefficients:
                raise InputError('method oracle: the truth has no {"coefficients": {job id: value}}')
            methods[own] = Known(truth.coefficients)
        else:
            methods[own] = METHODS[own]()
    return methods
