"""whitepanda with one idea changed each, on development traces and between halves of the machines of fresh ones.

Parts `ablation` and `held-out` of antagonists.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import t as student

from central.models.antagonists import whitepanda, whitepanda_solve
from central.models.antagonists.panda import PairState
from central.models.antagonists.slots import TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState
from central.models.groups import Column, Floats, group, sums
from central.traces.generator.population import ROLES, Population
from central.traces.generator.presets import preset
from central.traces.generator.settings import SynthSettings
from central.traces.generator.simulate import Simulation
from central.traces.methods import METHODS, Known, Method, Panda, Whitepanda
from central.traces.protocol import evaluate

Days = list[tuple[int, TaskSlots]]

_BASE = SynthSettings(days=15, machines=30, companions=8, burners=6)
#: Development traces: what whitepanda was developed on (seeds 101 to 103).
DEVELOPMENT: Mapping[str, SynthSettings] = {
    "weak": replace(_BASE, antagonist_effect=0.03, cpi_noise=0.4, machine_noise=0.1),
    "confounded": replace(
        _BASE, companions=12, ride_along=0.95, companion_usage_correlation=0.9, antagonist_effect=0.06, cpi_noise=0.35
    ),
    "rare jobs": replace(
        _BASE,
        machines=20,
        batch_jobs=300,
        antagonists=30,
        antagonist_effect=0.08,
        cpi_noise=0.35,
        background_effect=0.01,
    ),
    "lag": replace(_BASE, antagonist_effect=0.06, cpi_noise=0.35, effect_memory_h=1, usage_memory_h=0.5),
    "bursts": replace(_BASE, effect_threshold=1.2, antagonist_effect=0.1, cpi_noise=0.35, ls_antagonists=3),
    "corrupted": replace(_BASE, corrupted_share=0.01, noise_tail=2.5, antagonist_effect=0.08, machine_noise_spread=0.5),
    "steady usage": replace(
        _BASE,
        usage_noise=0.0,
        diurnal_load=0,
        batch_diurnal_load=0,
        batch_lifetime_h=2000,
        platforms=1,
        machine_effect=0.03,
        antagonist_effect=0.1,
        machine_noise=0.1,
        machine_noise_memory_h=1,
    ),
}
DEVELOPMENT_SEED, DEVELOPMENT_FROM_DAY = 103, 10
#: Traces of the held-out ablation: the settings of the development's with other seeds, and shorter ones of the study's.
HELD_OUT: Mapping[str, SynthSettings] = {**DEVELOPMENT, "paper": replace(preset("paper"), days=15)}
#: None of these was used before.
HELD_OUT_SEEDS = range(201, 204)


def trace(settings: SynthSettings) -> tuple[Days, Column, dict[int, float]]:
    """Generate a trace in memory: its days, the antagonists, and every job's true mean coefficient."""
    population = Population.draw(settings)
    jobs, simulation = population.jobs, Simulation(population)
    days = []
    for number, day in enumerate(simulation.days()):
        job = population.tasks.job[day.task].astype(np.int64)
        machine = population.machine_of(day.task)
        platform = np.zeros(len(job), np.int8)  # as in a trace's files, which have none
        sensitive = jobs.is_sensitive[job]
        days.append((number, TaskSlots(machine, day.slot, day.task, job, platform, sensitive, day.usage, day.cpi)))
    antagonists = np.flatnonzero(jobs.role == ROLES.index("antagonist"))
    return days, antagonists, dict(enumerate(simulation.effects.coefficient.tolist()))


def _plain_n_cpi(job: Column, platform: Column, day: Column, cpi: Floats) -> Floats:
    keys, code = group(job, platform, day)
    n = len(keys[0])
    count = np.bincount(code, minlength=n)
    deviation = cpi - (sums(code, cpi, n) / count)[code]
    std = np.sqrt(sums(code, deviation**2, n) / count)[code]
    return np.divide(deviation, std, out=np.zeros_like(cpi), where=std > 0)


class _Marginal:
    """In place of the solver's factor: each job alone, as if none were beside another."""

    def __init__(self, gram: Floats) -> None:
        self._diagonal = np.diag(gram).copy()

    def solved(self, b: Floats) -> Floats:
        return b / self._diagonal

    def inverse_diagonal(self) -> Floats:
        return 1 / self._diagonal


class _NonNegative:
    """In place of the solver's factor: coordinate descent with every coefficient at least 0."""

    def __init__(self, gram: Floats) -> None:
        self._gram = gram

    def solved(self, b: Floats) -> Floats:
        a, residual = np.zeros(len(b)), b.copy()
        for _ in range(200):
            before = a.copy()
            for k in range(len(b)):
                new = max(0.0, a[k] + residual[k] / self._gram[k, k])
                residual -= self._gram[:, k] * (new - a[k])
                a[k] = new
            if np.abs(a - before).max() <= 1e-7 * np.abs(a).max():
                break
        return a

    def inverse_diagonal(self) -> Floats:
        return np.diag(np.linalg.inv(self._gram))


class _LowerBound(Whitepanda):
    """Ranks by the estimate less one standard error instead of the shrunk one."""

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state:
            found = self._state.coefficients()
            self._jobs, self._values = found.job, found.estimate - found.standard_error


Patch = tuple[Any, str, Any]
#: whitepanda with one idea changed each.
ABLATION: Mapping[str, tuple[type[Whitepanda], tuple[Patch, ...]]] = {
    "whitepanda": (Whitepanda, ()),
    "mean and std instead of median and IQR of the log": (Whitepanda, ((whitepanda, "robust_n_cpi", _plain_n_cpi),)),
    "not cut at 3": (Whitepanda, ((whitepanda, "CLIP", np.inf),)),
    "marginal instead of joint": (Whitepanda, ((whitepanda_solve, "_Factor", _Marginal),)),
    "non-negative": (Whitepanda, ((whitepanda_solve, "_Factor", _NonNegative),)),
    "no quasi-differences": (Whitepanda, ((whitepanda, "PERSISTENCE", 0.0), (whitepanda_solve, "MAX_WEIGHT", 1.0))),
    "machine effects left in": (
        Whitepanda,
        ((whitepanda, "PERSISTENCE", 0.0), (whitepanda_solve, "_weight", lambda _first, _other: 1.0)),
    ),
    "within machine days only": (Whitepanda, ((whitepanda_solve, "MAX_WEIGHT", 0.0),)),
    "ridge a tenth": (Whitepanda, ((whitepanda_solve, "RIDGE_SLOTS", 1.0),)),
    "ridge ten times": (Whitepanda, ((whitepanda_solve, "RIDGE_SLOTS", 100.0),)),
    "not shrunk": (Whitepanda, ((whitepanda_solve, "EVIDENCE", 0.0),)),
    "estimate less its error instead of shrunk": (_LowerBound, ()),
}


@contextmanager
def _changed(patches: tuple[Patch, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def run_ablation(name: str, seed: int) -> dict[str, Any]:
    """Evaluate whitepanda with each idea changed on one development trace."""
    days, antagonists, coefficients = trace(replace(DEVELOPMENT[name], seed=seed))
    plain: dict[str, Method] = {"panda": METHODS["panda"](), "oracle": Known(coefficients)}
    found = evaluate(days, antagonists, plain, from_day=DEVELOPMENT_FROM_DAY)
    scores = {method: result.mean_percentile.value for method, result in found.methods.items()}
    for variant, (make, patches) in ABLATION.items():
        with _changed(patches):
            one = evaluate(days, antagonists, {variant: make()}, from_day=DEVELOPMENT_FROM_DAY)
        scores[variant] = one.methods[variant].mean_percentile.value
    return {"trace": name, "seed": seed, "events": found.events, "rows": found.task_slots, "scores": scores}


def _halves(days: Days) -> tuple[Days, Days]:
    """Split a trace into its even and its odd machines."""
    even, odd = ([(number, day.take(day.machine % 2 == half)) for number, day in days] for half in (0, 1))
    return even, odd


def _states(make: Callable[[TaskSlots], Any], days: Days, patches: Sequence[Patch] = ()) -> list[Any]:
    """Return what a method has learnt at the end of each day."""
    states = list[Any]()
    with _changed(tuple(patches)):
        for _, day in days:
            state = make(day)
            states.append(states[-1].merge(state) if states else state)
    return states


def _elsewhere(kind: type[Panda | Whitepanda], states: Iterable[Any], patches: tuple[Patch, ...] = ()) -> Method:
    """Return a method that is given each day's state, whatever machines it is scored on."""
    given = iter(states)

    class Elsewhere(kind):
        def learn(self, _day: TaskSlots) -> None:
            self._state = next(given)

        def settle(self) -> None:
            with _changed(patches):
                super().settle()

    return Elsewhere()


def run_held_out(name: str, seed: int) -> dict[str, Any]:
    """Evaluate whitepanda with each idea changed on half of the machines, with what it learnt on the others.

    Job statistics and machines' percentiles, by which slots are events, are those of the half that is scored.
    """
    days, antagonists, coefficients = trace(replace(HELD_OUT[name], seed=seed))
    learnt, scored = _halves(days)
    learnt_by_patches = dict[tuple[Patch, ...], list[Any]]()
    methods: dict[str, Method] = {
        "panda": _elsewhere(Panda, _states(PairState.of, learnt)),
        "oracle": Known(coefficients),
    }
    for variant, (kind, patches) in ABLATION.items():
        # What the solver alone is changed by is learnt as whitepanda is.
        of_learning = tuple(patch for patch in patches if patch[0] is whitepanda)
        if of_learning not in learnt_by_patches:
            learnt_by_patches[of_learning] = _states(WhitepandaState.of, learnt, of_learning)
        methods[variant] = _elsewhere(kind, learnt_by_patches[of_learning], patches)
    found = evaluate(scored, antagonists, methods, from_day=DEVELOPMENT_FROM_DAY)
    scores = {method: result.mean_percentile.value for method, result in found.methods.items()}
    rows = sum(day.rows for _, day in days)
    return {"trace": name, "seed": seed, "events": found.events, "rows": rows, "scores": scores}


def shown(value: float | None) -> str:
    """Write a score of a table."""
    return "-" if value is None else f"{value:.3f}"


def difference(values: Floats) -> tuple[float, float]:
    """Mean of differences, shape (traces, seeds), and half of its 95 % interval: these traces, other seeds."""
    traces, seeds = values.shape
    freedom = traces * (seeds - 1)
    variance = float(values.var(axis=1, ddof=1).mean())
    return float(values.mean()), float(student.ppf(0.975, freedom)) * (variance / values.size) ** 0.5


def held_out_table(found: list[dict[str, Any]]) -> list[str]:
    """Write the table of the held-out ablation: means over seeds, and the difference to whitepanda over all traces."""
    traces = list(dict.fromkeys(run["trace"] for run in found))
    names = list(found[0]["scores"])
    of = {trace_: [run for run in found if run["trace"] == trace_] for trace_ in traces}
    scores = {n: np.array([[run["scores"][n] for run in of[each]] for each in traces], float) for n in names}
    lines = ["", "## Ablation on other machines", "", "| | " + " | ".join(traces) + " | mean | beside whitepanda |"]
    lines.append("|---" * (len(traces) + 3) + "|")
    for name in names:
        cells = " | ".join(f"{value:.3f}" for value in scores[name].mean(axis=1))
        mean, half = difference(scores[name] - scores["whitepanda"])
        beside = "" if name == "whitepanda" else f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"
        lines.append(f"| {name} | {cells} | {scores[name].mean():.3f} | {beside} |")
    events = " | ".join(str(sum(run["events"] for run in of[each])) for each in traces)
    lines.append(f"| events | {events} | | |")
    return lines


def ablation_table(found: list[dict[str, Any]]) -> list[str]:
    """Write the table of the development traces."""
    names = list(found[0]["scores"])
    lines = ["", "## Ablation", "", "| | " + " | ".join(run["trace"] for run in found) + " | mean |"]
    lines.append("|---" * (len(found) + 2) + "|")
    for name in names:
        values = [run["scores"][name] for run in found]
        mean = float(np.mean([v for v in values if v is not None]))
        lines.append(f"| {name} | " + " | ".join(shown(v) for v in values) + f" | {mean:.3f} |")
    lines.append("| events | " + " | ".join(str(run["events"]) for run in found) + " | |")
    return lines
