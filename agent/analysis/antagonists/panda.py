"""PANDA on one host: who suffers, whether the host is contended, and whom to suspect.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", sections 4.3 and 5.2:
(1) nCPI, (2) mnCPI, (3) the coefficients A_k, which central fits, and (4) the percentile of a rank.
Everything here is pure: floats and dataclasses in and out. Central evaluates traces with this very code.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collector.base import Reason

#: A victim's CPI is more than this many standard deviations above its job's mean (section 5.2).
VICTIM_STDS = 2.0

#: nCPI by robust statistics is cut to plus and minus this (`central.models.antagonists.whitepanda.CLIP`).
ROBUST_CLIP = 3.0

#: mnCPI above this is contention, whatever the host's past says: no threshold is higher. Below `ROBUST_CLIP`, so that
#: mnCPI can exceed every threshold; chosen on the training seeds of docs/studies/trigger.md.
CERTAIN_MN_CPI = 2.75

#: Method (`Coefficient.method`) that takes a job of which it knows nothing for harmless. PANDA has no opinion of it.
_UNKNOWN_IS_HARMLESS = frozenset({"whitepanda"})

#: A high percentile of fewer slots than this is little else than their maximum; until then the floor decides.
MIN_HISTORY_SLOTS = 100


@dataclass(frozen=True, slots=True)
class RobustLogCpi:
    """Location and scale of ln(CPI) that a few odd samples do not reach: median, interquartile range / 1.349."""

    location: float
    scale: float


@dataclass(frozen=True, slots=True)
class CpiStatistics:
    """The CPI of a job on a platform, over the fleet. `std` is the population one (ddof 0).

    With `robust` the coefficients that come along were fitted to nCPI of ln(CPI): `n_cpi` takes it then.
    """

    mean: float
    std: float
    samples: int
    robust: RobustLogCpi | None = None


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """One task (a VM of a job) in one slot. `cpi` None: not measured; `statistics` None: job unknown."""

    task: str
    job: str
    latency_sensitive: bool
    cpi: float | None
    cpu_usage_cores: float
    statistics: CpiStatistics | None = None


@dataclass(frozen=True, slots=True)
class SlotState:
    """One machine in one slot: equation (2), None without latency-sensitive tasks, and those that suffer."""

    mn_cpi: float | None
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A task that may be hurting others. `coefficient` is its job's A_k, None where that is unknown."""

    task: str
    job: str
    cpu_usage_cores: float
    coefficient: float | None


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A suspect with its score A_k * u, the mnCPI that it is held to cause. None has its reason."""

    task: str
    job: str
    cpu_usage_cores: float
    coefficient: float | None
    score: float | None
    reason: Reason = Reason.UNSPECIFIED


def n_cpi(cpi: float, statistics: CpiStatistics) -> float:
    """Normalised CPI, equation (1): (c - mean) / std. 0 for a job whose CPI never varies.

    With robust statistics it is (ln c - location) / scale instead, cut to +-`ROBUST_CLIP`: what central's own method
    fits its coefficients to.
    """
    robust = statistics.robust
    if robust is not None:
        return max(-ROBUST_CLIP, min(ROBUST_CLIP, (math.log(cpi) - robust.location) / robust.scale))
    if statistics.std <= 0:
        return 0.0
    return (cpi - statistics.mean) / statistics.std


def is_cut(n_cpi: float) -> bool:
    """Whether a nCPI was cut to `ROBUST_CLIP`, and may be more: nothing else gives this very value."""
    return n_cpi == ROBUST_CLIP


def victim_threshold(statistics: CpiStatistics) -> float:
    """CPI above which a task of the job is a victim: mean + 2 std."""
    return statistics.mean + VICTIM_STDS * statistics.std


def is_victim(cpi: float, statistics: CpiStatistics) -> bool:
    """Whether c > mean + 2 std. Never for a job whose CPI never varied: its threshold would be its mean."""
    return statistics.std > 0 and cpi > victim_threshold(statistics)


def mn_cpi(tasks: Iterable[TaskSlot]) -> float | None:
    """Machine-level CPI, equation (2): the mean of nCPI over the latency-sensitive tasks of one slot.

    Tasks without a known CPI or without statistics are left out. None where none is left: skip such slots.
    """
    values = [
        n_cpi(t.cpi, t.statistics)
        for t in tasks
        if t.latency_sensitive and t.cpi is not None and t.statistics is not None
    ]
    return math.fsum(values) / len(values) if values else None


def suffers(task: TaskSlot) -> bool:
    """Whether this task is a victim: latency-sensitive, CPI and statistics known, above its threshold."""
    return (
        task.latency_sensitive
        and task.cpi is not None
        and task.statistics is not None
        and is_victim(task.cpi, task.statistics)
    )


def slot_state(tasks: Sequence[TaskSlot]) -> SlotState:
    """Sum one machine's slot up: mnCPI and the victims, in the order of `tasks`."""
    return SlotState(mn_cpi=mn_cpi(tasks), victims=tuple(t.task for t in tasks if suffers(t)))


def mn_cpi_threshold(history: Sequence[float], percentile: float, floor: float) -> float:
    """What mnCPI has to exceed: the host's own percentile of `history`, from `floor` to `CERTAIN_MN_CPI`.

    Linear interpolation between the closest ranks. With fewer than `MIN_HISTORY_SLOTS` slots it is the floor.

    Args:
        history: mnCPI of past slots, in any order; not those under test.
        percentile: 0 to 100; the paper takes 99.
        floor: the least threshold.

    """
    if len(history) < MIN_HISTORY_SLOTS:
        return min(CERTAIN_MN_CPI, floor)
    ordered = sorted(history)
    position = (len(ordered) - 1) * percentile / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    own = ordered[below] + (ordered[above] - ordered[below]) * (position - below)
    return min(CERTAIN_MN_CPI, max(floor, own))


def is_triggered(slots: Sequence[SlotState], threshold: float, victim_slots: int) -> bool:
    """PANDA's trigger (section 5.2): a victim in each of the last slots, and mnCPI above `threshold` now.

    Args:
        slots: consecutive slots of one machine, oldest first, the present one last.
        threshold: as from `mn_cpi_threshold`.
        victim_slots: at least 1; the paper takes 3. Fewer slots than that never trigger.

    """
    if victim_slots < 1 or len(slots) < victim_slots:
        return False
    now = slots[-1].mn_cpi
    return now is not None and now > threshold and all(slot.victims for slot in slots[-victim_slots:])


def suspects_of(tasks: Iterable[TaskSlot], coefficients: Mapping[str, float]) -> list[Suspect]:
    """Return the co-located tasks that may be blamed: those that are not latency-sensitive."""
    return [
        Suspect(t.task, t.job, t.cpu_usage_cores, coefficients.get(t.job)) for t in tasks if not t.latency_sensitive
    ]


def suspect_score(coefficient: float | None, cpu_usage_cores: float, method: str = "") -> float:
    """Return what a suspect is ranked by, on hosts and in evaluations: A_k * u.

    A task whose job has no coefficient comes last by PANDA. By our own method it stands where a harmless one does, at
    0: below those known to hurt, above those beside whom others fared better. Its coefficients are shrunk by their own
    evidence towards the same 0 (`central.models.antagonists.whitepanda_solve`), so a job hardly seen is no other
    than one never seen; no further lower bound is taken.

    Args:
        coefficient: A_k; None: not known.
        cpu_usage_cores: u, the task's own.
        method: that the coefficients were fitted by; "" is PANDA.

    """
    if coefficient is None:
        return 0.0 if method in _UNKNOWN_IS_HARMLESS else -math.inf
    return coefficient * cpu_usage_cores


def rank_suspects(suspects: Iterable[Suspect], method: str = "") -> list[RankedSuspect]:
    """Rank suspects by `suspect_score`, highest first.

    Those of equal scores are by what is known, then by usage, then by the task's name: one state has one ranking.
    """
    ranked = [_scored(suspect) for suspect in suspects]
    return sorted(
        ranked,
        key=lambda s: (
            -suspect_score(s.coefficient, s.cpu_usage_cores, method),
            s.score is None,
            -s.cpu_usage_cores,
            s.task,
        ),
    )


def _scored(suspect: Suspect) -> RankedSuspect:
    a, u = suspect.coefficient, suspect.cpu_usage_cores
    if a is None:
        return RankedSuspect(suspect.task, suspect.job, u, None, None, Reason.NO_COEFFICIENTS)
    return RankedSuspect(suspect.task, suspect.job, u, a, suspect_score(a, u))


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
