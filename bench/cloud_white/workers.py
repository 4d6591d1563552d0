"""How often the number of workers is learnt right from samples, where nothing can have tuned the rule to it.

The study has one application with fewer workers than vCPUs. Here each application is run with every number of workers
up to its vCPUs, on 2, 4 and 8 of them, as far as its workers can serve the load (to 0.95 of what they can): their
queues alone, looked at when many requests have passed since the last sample. What runs beside the workers, and in which
share of the samples, is drawn on top. docs/studies/cloud-white.md has the tables.

    python -m bench.cloud_white.workers [--vcpus 2 4 8] [--runs 40]

Two minutes on one core.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.workers import MIN_POSTERIOR, posteriors
from bench.cloud_white.scenarios import LOADS
from collector.simulated.profiles import APPLICATIONS, HOST

Floats = NDArray[np.float64]

LOOKS = (60, 300)  # the study's quiet phase; as many as an agent keeps
BESIDE = (0.0, 0.02, 0.1, 0.2)  # 0.02 is the simulator's; the rule knows of none above 0.1
MOST_USED = 0.95
_SERVICES_BETWEEN = 120.0  # between samples, over the workers: service times
_WARM_UP_LOOKS = 5
_GUEST_SHARE = 0.98  # of a vCPU's CPU time, as the engine's


class Case(NamedTuple):
    """A VM; `load` is the share of its vCPUs that it uses."""

    application: str
    vcpus: int
    workers: int
    load: float


class Said(NamedTuple):
    """What was learnt in the runs of a case: the number, 0 where it is unknown."""

    case: Case
    samples: int
    beside: float
    workers: NDArray[np.int64]


def cases(vcpus: int) -> Iterator[Case]:
    """Yield those that their workers can serve."""
    for application in APPLICATIONS:
        for load in LOADS:
            for workers in range(1, vcpus + 1):
                if load * vcpus <= MOST_USED * workers:
                    yield Case(application, vcpus, workers, load)


def running(case: Case, samples: int, runs: int, seed: int) -> NDArray[np.int64]:
    """Return how many workers are on a vCPU at each sample, shape (samples, runs): queues with Poisson arrivals."""
    app = APPLICATIONS[case.application]
    rng = np.random.default_rng([seed, case.vcpus, case.workers, round(100 * case.load), *app.name.encode()])
    sigma = math.sqrt(math.log1p(app.service_cv**2))
    rate = case.load * case.vcpus  # requests per mean service time
    between = _SERVICES_BETWEEN / case.workers
    count = math.ceil((samples + _WARM_UP_LOOKS) * between * rate + 1)
    arrivals = np.cumsum(rng.exponential(1 / rate, (count, runs)), axis=0)
    services = rng.lognormal(-(sigma**2) / 2, sigma, (count, runs))
    slow = rng.random((count, runs)) < app.disk_ops_per_request
    disk = slow * rng.exponential(HOST.disk_op_ms / app.service_ms, (count, runs))
    begins = np.empty((count, runs))
    free = np.zeros((case.workers, runs))
    for request in range(count):
        begins[request] = np.maximum(arrivals[request], free[0])
        end = begins[request] + services[request] + disk[request]
        # Sorted again, by taking the new one past those that are free earlier.
        for worker in range(1, case.workers):
            np.minimum(end, free[worker], out=free[worker - 1])
            end = np.maximum(end, free[worker])
        free[case.workers - 1] = end
    leaves = np.sort(begins + services, axis=0)
    # After the last arrival nobody samples: the queue runs empty there.
    last = arrivals[-1]
    found = np.empty((samples, runs), np.int64)
    for run in range(runs):
        at = last[run] * (np.arange(samples) + _WARM_UP_LOOKS) / (samples + _WARM_UP_LOOKS)
        begun, left = (np.searchsorted(column[:, run], at, side="right") for column in (begins, leaves))
        found[:, run] = np.minimum(begun - left, case.workers)
    return found


def learnt(case: Case, samples: Sequence[int], runs: int, seed: int = 1) -> Iterator[Said]:
    """Yield what the agent's rule says of a case, from so many samples, with so much beside."""
    busy = running(case, max(samples), runs, seed)
    drawn = np.random.default_rng([seed, 7, case.vcpus, case.workers]).random(busy.shape)
    for beside in BESIDE:
        seen = np.minimum(busy + (drawn < beside), case.vcpus)
        for count in samples:
            counts = np.stack([np.bincount(one, minlength=case.vcpus + 1) for one in seen[:count].T]).astype(np.float64)
            likely = posteriors(counts, np.full(runs, _GUEST_SHARE * case.load * case.vcpus))
            known = np.where(likely.max(axis=1) >= MIN_POSTERIOR, likely.argmax(axis=1) + 1, 0)
            yield Said(case, count, beside, known)


def shares(some: Iterable[Said]) -> tuple[float, float, float, float]:
    """Return how often it was right, off by one, off by more, and is unknown."""
    found: Counter[str] = Counter()
    for one in some:
        off = np.abs(one.workers - one.case.workers)
        found["cannot"] += int((one.workers == 0).sum())
        found["right"] += int((off == 0).sum())
        found["one"] += int(((off == 1) & (one.workers > 0)).sum())
        found["more"] += int(((off > 1) & (one.workers > 0)).sum())
    total = sum(found.values())
    return (found["right"] / total, found["one"] / total, found["more"] / total, found["cannot"] / total)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def percents(numbers: Iterable[float]) -> list[str]:
    return [f"{100 * one:.1f}" for one in numbers]


def print_tables(said: Sequence[Said]) -> None:
    """Print by vCPUs and what runs beside, then, with the simulator's share of it, by load and number of workers."""
    head = ("right", "off by one", "off by more", "cannot tell")
    row("vCPUs", "workers", "samples", "beside", "runs", *head)
    row(*("---" for _ in range(5 + len(head))))
    sizes = sorted({one.case.vcpus for one in said})
    for vcpus in sizes:
        for kind, is_full in (("fewer workers", False), ("one per vCPU", True)):
            for samples in LOOKS:
                for beside in BESIDE:
                    some = [
                        one
                        for one in said
                        if (one.case.vcpus, one.samples, one.beside) == (vcpus, samples, beside)
                        and (one.case.workers == vcpus) is is_full
                    ]
                    runs = sum(len(one.workers) for one in some)
                    row(vcpus, kind, samples, f"{100 * beside:g} %", runs, *percents(shares(some)))
    print()
    row("vCPUs, workers", "samples", *(f"load {100 * load:g} %" for load in LOADS))
    row(*("---" for _ in range(2 + len(LOADS))))
    for vcpus in sizes:
        for workers in range(1, vcpus + 1):
            for samples in LOOKS:
                cells = []
                for load in LOADS:
                    some = [
                        one
                        for one in said
                        if one.case[1:] == (vcpus, workers, load) and (one.samples, one.beside) == (samples, 0.02)
                    ]
                    right, by_one, by_more, cannot = shares(some) if some else (math.nan,) * 4
                    wrong = by_one + by_more
                    cells.append(f"{100 * right:.0f} / {100 * wrong:.0f} / {100 * cannot:.0f}" if some else "")
                row(f"{vcpus}, {workers}", samples, *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcpus", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--runs", type=int, default=40, help="of each case")
    given = parser.parse_args()
    print_tables([
        said for vcpus in given.vcpus for case in cases(vcpus) for said in learnt(case, LOOKS, given.runs)
    ])  # fmt: skip


if __name__ == "__main__":
    main()
