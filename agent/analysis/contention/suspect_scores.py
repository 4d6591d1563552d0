"""What suspects are ranked by, on hosts and in central's evaluations.

Source: "PANDA", section 4.3: (3) the coefficients A_k, which central fits, (4) the percentile of a rank.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.analysis.contention.normalised_cpi import TaskSlot

#: Methods (`Coefficient.method`) that take a job without a coefficient for harmless. PANDA does not rate it.
_UNKNOWN_IS_HARMLESS = frozenset({"whitepanda"})


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A task that may be hurting others. `coefficient` is its job's A_k, None where that is unknown."""

    task: str
    job: str
    cpu_usage_cores: float
    coefficient: float | None

    @property
    def score(self) -> float | None:
        """A_k * u, the mnCPI that it is held to cause; None without a coefficient."""
        return None if self.coefficient is None else self.coefficient * self.cpu_usage_cores


def suspect_score(coefficient: float | None, cpu_usage_cores: float, method: str = "") -> float:
    """Return what a suspect is ranked by: A_k * u, its job's coefficient (None: not known) times its own CPU usage.

    `method`: by which the coefficients were fitted; "" is PANDA, by which a job without a coefficient comes last. By
    whitepanda's it ranks as harmless, at 0: below jobs known to hurt, above jobs beside which others fared better. That
    method shrinks coefficients towards the same 0 (`central.models.antagonists.whitepanda_solve`).
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
    suspects = [
        RankedSuspect(t.task, t.job, t.cpu_usage_cores, coefficients.get(t.job))
        for t in tasks
        if not t.latency_sensitive
    ]
    return sorted(
        suspects,
        key=lambda s: (
            -suspect_score(s.coefficient, s.cpu_usage_cores, method),
            s.coefficient is None,
            -s.cpu_usage_cores,
            s.task,
        ),
    )


def percentile_ranks(scores: Sequence[float]) -> list[float | None]:
    """Percentile of each score's rank, equation (4): (n - r) / (n - 1), rank 1 the highest, ties averaged.

    Returns:
        One value in [0, 1] per score, 1 for the single highest. None for a lone score, which has no rank.

    """
    count = len(scores)
    if count == 1:
        return [None]
    order = sorted(range(count), key=lambda i: -scores[i])
    result: list[float | None] = [None] * count
    first = 0
    while first < count:
        last = first
        while last + 1 < count and scores[order[last + 1]] == scores[order[first]]:
            last += 1
        rank = (first + last) / 2 + 1
        for position in range(first, last + 1):
            result[order[position]] = (count - rank) / (count - 1)
        first = last + 1
    return result
