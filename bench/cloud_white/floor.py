"""How small the study's errors can be at all: an oracle that knows everything but the random numbers of the requests.

What a host sees of a VM is made without those numbers (`collector.simulated.engine`): given how many requests arrive
each second, their mean work and how fast the host is, the signals are fixed, and the latencies are drawn. So a run is
drawn again many times, and the number that is off by the least share of what comes out, on average, is the best that
anybody could say who does not see latencies. See cloud_white.py --floor.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.cloud_white.runs import PERCENTILE
from bench.cloud_white.simulation import Queued, Study, blocks, queued, seed_of
from collector.simulated.contention import workers_of
from collector.simulated.profiles import PROFILES, Application

Floats = NDArray[np.float64]

DRAWS = 50
_RESAMPLES = 2000
#: How probable it is held to be that a VM has one worker, before anything is known of it.
PRIORS = tuple(np.round(np.linspace(0.0, 1.0, 21), 2).tolist())


class Floor(NamedTuple):
    """Of one run: errors of its overall degradation, ratios. "Expected": on draws that the estimate was not made of.

    `number`: of one number per run, the best. `seconds`: of the 95th percentile of the best number for each second.
    `mixture`: of that of all that each second might have been. `dynamic`: of the best number for each second, after
    the quiet phase. `by_prior`: of the best number for who does not know whether the VM has one worker or one on each
    vCPU, per `PRIORS`; `number` where it can be seen.
    """

    name: str
    measured: float
    number: float
    number_expected: float
    seconds: float
    seconds_expected: float
    mixture: float
    mixture_expected: float
    dynamic: float
    by_prior: tuple[float, ...]
    is_hidden: bool  # a VM with the other number of workers gives the same samples


def resimulate(
    application: Application,
    workers: int,
    arriving: NDArray[np.intp],
    service_s: Floats,
    disk_op_s: Floats,
    rngs: Sequence[np.random.Generator],
) -> Floats:
    """Let the same requests pass as many times as there are generators; ticks of 1 s.

    Each time is what a `RequestQueue` with that generator tells, but all are gone through together.

    Args:
        application: as for `RequestQueue`.
        workers: likewise.
        arriving: shape (T,): how many requests arrive in each tick.
        service_s: shape (T,): their mean time on a vCPU.
        disk_op_s: shape (T,): mean time of a disk operation.
        rngs: one for each time.

    Returns:
        Shape (T, times): the p95 of the requests that ended in each tick, in seconds; NaN: none.

    """
    sigma = math.sqrt(math.log1p(application.service_cv**2))
    total = int(arriving.sum())
    arrivals, services = np.empty((2, total, len(rngs)))
    for lane, rng in enumerate(rngs):
        begin = 0
        for t, count in enumerate(arriving.tolist()):
            end = begin + count
            arrivals[begin:end, lane] = t + np.sort(rng.random(count))
            some = service_s[t] * rng.lognormal(-(sigma**2) / 2, sigma, count)
            slow = rng.random(count) < application.disk_ops_per_request
            some[slow] += rng.exponential(disk_op_s[t], int(slow.sum()))
            services[begin:end, lane] = some
            begin = end
    free = np.zeros((workers, len(rngs)))
    ends = np.empty_like(arrivals)
    for request in range(total):
        end_s = np.maximum(arrivals[request], free[0]) + services[request]
        ends[request] = end_s
        # Sorted again, by taking the new one past those that are free earlier.
        for worker in range(1, workers):
            np.minimum(end_s, free[worker], out=free[worker - 1])
            end_s = np.maximum(end_s, free[worker])
        free[workers - 1] = end_s
    return _percentiles_by_tick(ends, ends - arrivals, len(arriving))


def _percentiles_by_tick(ends_s: Floats, latencies_s: Floats, ticks: int) -> Floats:
    """Return the p95 of the latencies that ended in each tick (]t, t + 1]), shape (ticks, lanes)."""
    tick = np.maximum(np.ceil(ends_s) - 1, 0.0)
    apart = 2.0 * float(latencies_s.max(initial=1.0))
    keys = np.sort((tick * apart + latencies_s).T, axis=-1)
    p95 = np.full((ticks, len(keys)), math.nan)
    for lane, key in enumerate(keys):
        bounds = np.searchsorted(key, np.arange(ticks + 1) * apart)
        for t in range(ticks):
            if bounds[t + 1] > bounds[t]:
                p95[t, lane] = float(np.percentile(key[bounds[t] : bounds[t + 1]], PERCENTILE)) - t * apart
    return p95


def best_estimate(drawn: Floats, weights: Floats | float = 1.0) -> Floats:
    """Return what has the least mean relative error over draws (the first axis): their median, weighed by 1/value."""
    order = np.argsort(drawn, axis=0)
    values = np.take_along_axis(drawn, order, axis=0)
    shares = np.cumsum(np.take_along_axis(weights / drawn, order, axis=0), axis=0)
    place = (shares >= shares[-1] / 2).argmax(axis=0)
    best: Floats = np.take_along_axis(values, place[None], axis=0)[0]
    return best


def floor_of(study: Study, draws: int = DRAWS) -> Floor:
    """Draw the requests of a study's first VM again, so many times, and hold what was measured against it."""
    vm, inputs = study.vms[0], queued(study, 0)
    workers = workers_of(PROFILES[vm.profile], vm.vcpus)
    quiet = int((inputs.at_s + 1 <= study.quiet_s).sum())
    (block,) = blocks(study)
    measured = relative_to_quiet(block.p95_latency_s[:, 0], quiet)
    overall = float(overall_of(measured))
    again = drawn(study, inputs, workers, draws, quiet)
    by_second = best_estimate(again.T)
    other = 1 if workers > 1 else vm.vcpus
    # The number of workers shows only where all of them are busy all the time.
    is_hidden = other != workers and bool((inputs.usage_cores < min(workers, other)).all())
    by_prior = (abs(best_of(overall_of(again)) - overall) / overall,) * len(PRIORS)
    if is_hidden:
        runs = overall_of(again), overall_of(drawn(study, inputs, other, draws, quiet))
        one, each = runs if workers == 1 else runs[::-1]
        by_prior = tuple(abs(between(one, each, prior) - overall) / overall for prior in PRIORS)
    said = {"number": best_of(overall_of(again)), "seconds": of_seconds(again), "mixture": of_mixture(again)}
    return Floor(
        name=study.name,
        measured=overall,
        **{name: abs(one - overall) / overall for name, one in said.items()},
        number_expected=unseen(again, lambda some: best_of(overall_of(some))),
        seconds_expected=unseen(again, of_seconds),
        mixture_expected=unseen(again, of_mixture),
        dynamic=float(np.nanmean(abs(by_second - measured)[quiet:] / measured[quiet:])),
        by_prior=by_prior,
        is_hidden=is_hidden,
    )


def drawn(study: Study, inputs: Queued, workers: int, draws: int, quiet: int) -> Floats:
    """Return the degradation of each second, as often as it is drawn, shape (T, draws)."""
    vm = study.vms[0]
    # 1 is what the run itself is drawn by.
    rngs = [np.random.default_rng([seed_of(study), 2, one, *vm.name.encode()]) for one in range(draws)]
    p95 = resimulate(PROFILES[vm.profile], workers, inputs.arriving, inputs.service_s, inputs.disk_op_s, rngs)
    return relative_to_quiet(p95, quiet)


def relative_to_quiet(p95: Floats, quiet: int) -> Floats:
    degradation: Floats = p95 / np.nanmean(p95[:quiet], axis=0)
    return degradation


def overall_of(degradation: Floats) -> Floats:
    """Return the 95th percentile over a run's seconds, the first axis."""
    overall: Floats = np.nanpercentile(degradation, PERCENTILE, axis=0)
    return overall


def best_of(runs: Floats) -> float:
    return float(best_estimate(runs[:, None])[0])


def between(one: Floats, each: Floats, prior: float) -> float:
    """Return the best number where runs are one of `one` with a probability, else one of `each`."""
    weights = np.r_[np.full(len(one), prior), np.full(len(each), 1 - prior)]
    return float(best_estimate(np.r_[one, each][:, None], weights[:, None])[0])


def of_seconds(again: Floats) -> float:
    return float(overall_of(best_estimate(again.T)))


def of_mixture(again: Floats) -> float:
    return float(overall_of(again.ravel()))


def unseen(again: Floats, estimate: Callable[[Floats], float]) -> float:
    """Return the mean error of an estimate that is made of one half of the draws on the other half, both ways."""
    runs, is_first = overall_of(again), np.arange(again.shape[1]) % 2 == 0
    errors = [abs(estimate(again[:, some]) - runs[~some]) / runs[~some] for some in (is_first, ~is_first)]
    return float(np.mean([error.mean() for error in errors]))


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over runs, and the 95 % interval of it (bootstrap over the runs)."""
    some = np.array(values)
    rng = np.random.default_rng(0)
    means = some[rng.integers(0, len(some), (_RESAMPLES, len(some)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(some.mean()), float(low), float(high)


def print_floors(floors: Mapping[str, Sequence[tuple[str, Floor]]]) -> None:
    """Print tables.

    Args:
        floors: by group, runs with the name of the cell that each belongs to.

    """
    columns = ("number", "seconds", "mixture", "number_expected", "seconds_expected", "mixture_expected")
    row("", "runs", *(name.replace("_expected", ", expected") for name in columns), "dynamic")
    row(*("---" for _ in range(len(columns) + 3)))
    for group, members in floors.items():
        cells = {"all": [one for _, one in members]}
        for name, one in members:
            cells.setdefault(name, []).append(one)
        for name, some in cells.items():
            shown = [percents([getattr(one, column) for one in some]) for column in (*columns, "dynamic")]
            row(f"{group}, {name}", len(some), *shown)
    print("\nWho does not know whether a VM has one worker or one on each vCPU, where it does not show:")
    head = ("", "runs", "of them hidden", "knows", "holds one on each for certain", "with the best prior", "it is")
    row(*head)
    row(*("---" for _ in head))
    for group, members in floors.items():
        some = [one for _, one in members]
        errors = np.array([one.by_prior for one in some])
        best = int(errors.mean(axis=0).argmin())
        shown = [percents(list(one)) for one in ([f.number for f in some], errors[:, 0], errors[:, best])]
        # Cells of single VMs are named by application and load; the others are of one load each.
        loads = np.array([name.partition(" ")[2] for name, _ in members])
        each = np.empty(len(some))
        for load in set(loads.tolist()):
            of_it = errors[loads == load]
            each[loads == load] = of_it[:, of_it.mean(axis=0).argmin()]
        hidden = sum(one.is_hidden for one in some)
        row(group, len(some), hidden, *shown, PRIORS[best], percents(each.tolist()))


def percents(values: Sequence[float]) -> str:
    mean, low, high = mean_and_interval(values)
    return f"{percent(mean)} ({percent(low)} to {percent(high)})"


def percent(value: Any) -> str:
    return f"{100 * float(value):.1f}"


def row(*cells: Any) -> None:
    print("| " + " | ".join(str(one) for one in cells) + " |")


def grouped(
    studies: Mapping[str, Iterable[Study]], found: Iterable[Floor], cell_of: Callable[[str, Study], str]
) -> dict[str, list[tuple[str, Floor]]]:
    """Put floors back into the groups of their studies, each with the name of its cell."""
    rest = iter(found)
    return {group: [(cell_of(group, study), next(rest)) for study in members] for group, members in studies.items()}
