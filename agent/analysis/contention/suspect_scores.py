"""Scores of suspects, for their ranking on hosts and in central's evaluations.

Source: "PANDA", section 4.3: (3) the coefficients A_k, which central fits, (4) the percentile of a rank.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.analysis.contention.normalised_cpi import TaskSlot

#: Methods (`Coefficient.method`) that take a job without a coefficient for harmless. PANDA does not rate it.
_UNKNOWN_IS_HARMLESS = frozenset({"whitepanda"})


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A task that may be hurting others. `coefficient`: its job's A_k; `score`: A_k * u, its share of mnCPI."""

    task: str
    job: str
    cpu_usage_cores: float
    coefficient: float | None

    @property
    def score(self) -> float | None:
        """None without a coefficient."""
        return None if self.coefficient is None else suspect_score(self.coefficient, self.cpu_usage_cores)


def suspect_score(coefficient: float | None, cpu_usage_cores: float, method: str = "") -> float:
    """Return the rank of a suspect: A_k * u, its job's coefficient (None: not known) times its own CPU usage.

    `method` fitted the coefficients; "" is PANDA, by which a job without a coefficient comes last. By whitepanda's it
    ranks as harmless, at 0, towards which that method shrinks (`central.models.antagonists.whitepanda_solve`): below
    jobs known to hurt, above jobs next to which others fared better.
    """
    if coefficient is None:
        return 0.0 if method in _UNKNOWN_IS_HARMLESS else -math.inf
    return coefficient * cpu_usage_cores


def rank_suspects(
    tasks: Iterable[TaskSlot], coefficients: Mapping[str, float], method: str = ""
) -> list[RankedSuspect]:
    """Rank the tasks of a machine's slot that are not latency-sensitive by `suspect_score`, highest first.

    `coefficients`: A_k by job. Equal scores are in the order of known before unknown, usage, name: one state has one
    ranking.
    """

    def order(task: TaskSlot) -> tuple[float, bool, float, str]:
        known, cores = coefficients.get(task.job), task.cpu_usage_cores
        return -suspect_score(known, cores, method), known is None, -cores, task.task

    ranked = sorted((task for task in tasks if not task.latency_sensitive), key=order)
    return [RankedSuspect(t.task, t.job, t.cpu_usage_cores, coefficients.get(t.job)) for t in ranked]


def percentile_ranks(scores: Sequence[float]) -> list[float | None]:
    """Percentile of each score's rank, equation (4): (n - r) / (n - 1), rank 1 the highest, ties averaged.

    Returns one value in [0, 1] per score, 1 for the single highest. None for a lone score, which has no rank.
    """
    count = len(scores)
    if count == 1:
        return [None]
    ordered = sorted(scores)
    # The mean rank of equal scores, counted from the lowest, 0.
    return [(bisect_left(ordered, score) + bisect_right(ordered, score) - 1) / 2 / (count - 1) for score in scores]
