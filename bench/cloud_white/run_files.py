"""RUNS rows of studies: what `whitepanda degradation fit` learns from, as a campaign on a real host writes them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.cloud_white.simulation import Study, StudyTick, simulate
from whitepanda.common.files.csv_cells import csv_line

#: %guest at the baseline, for each of which Cloud White has a model.
CPU_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)
KEYS = (
    "scenario",
    "repetition",
    "phase",
    "at_s",
    "vm",
    "load_ratio",
    "cpu_level",
    "p95_latency_s",
    "p95_5s_latency_s",
    "expected_p95_s",
    "expected_degradation",
    "role",
)

#: `agent.analysis.signals.signals_of`: the agent's business, which nothing here may import.
Matrix = Callable[[Sequence[Mapping[str, float]], Mapping[str, float]], NDArray[np.float64]]
Row = tuple[Any, ...]


def cpu_level(guest_ratio: float) -> float:
    """Return the nearest of Cloud White's CPU levels."""
    return min(CPU_LEVELS, key=lambda level: abs(level - guest_ratio))


def rows(study: Study, matrix: Matrix) -> Iterator[Row]:
    """Simulate a study and yield a row per tick and latency-critical VM: `KEYS`, then the signals; None: not known.

    Args:
        study: what to simulate.
        matrix: makes a tick's signals, shape (VMs, signals), of the VMs' metrics and the host's.

    """
    ticks = list(simulate(study))
    levels = _levels(study, ticks)
    for tick in ticks:
        values = matrix(tick.vms, tick.host).tolist()
        for index, (vm, truth) in enumerate(zip(study.vms, tick.truths, strict=True)):
            if math.isnan(truth.expected_p95_s):
                continue
            yield (
                study.name,
                study.repetition,
                tick.phase,
                tick.at_s,
                vm.name,
                round(truth.load_ratio, 4),
                levels[index],
                _known(truth.p95_latency_s),
                _known(truth.p95_5s_latency_s),
                truth.expected_p95_s,
                truth.expected_degradation,
                truth.role.value,
                *map(_known, values[index]),
            )


def write(path: Path, studies: Iterable[Study], signals: Sequence[str], matrix: Matrix) -> int:
    """Write a RUNS file (CSV).

    Args:
        path: where to.
        studies: what to simulate, in this order.
        signals: names of the columns of `matrix`.
        matrix: as for `rows`.

    Returns:
        How many rows.

    """
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_line((*KEYS, *signals)))
        for study in studies:
            for row in rows(study, matrix):
                file.write(csv_line(row))
                count += 1
    return count


def _levels(study: Study, ticks: Sequence[StudyTick]) -> list[float]:
    """Return each VM's CPU level: of its mean %guest while it is quiet."""
    quiet = [tick.vms for tick in ticks if tick.phase == "quiet"] or [tick.vms for tick in ticks]
    return [cpu_level(float(np.mean([vms[index]["guest_ratio"] for vms in quiet]))) for index in range(len(study.vms))]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
