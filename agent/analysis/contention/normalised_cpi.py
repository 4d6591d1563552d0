"""CPI of a job's tasks relative to the job, and of a machine: who suffers, and how contended the machine is.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", sections 4.3 and 5.2: (1) nCPI,
(2) mnCPI, and the definition of a victim.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: A victim's CPI is more than this many standard deviations above its job's mean (section 5.2).
VICTIM_STDS = 2.0

#: nCPI by robust statistics is cut to plus and minus this (`central.models.antagonists.whitepanda.CLIP`).
ROBUST_CLIP = 3.0

#: mnCPI above this is contention, whatever the host's past says: no threshold is higher. Below `ROBUST_CLIP`, so that
#: mnCPI can exceed every threshold; chosen on the training seeds of docs/studies/trigger.md.
CERTAIN_MN_CPI = 2.75


@dataclass(frozen=True, slots=True)
class RobustLogCpi:
    """Location and scale of ln(CPI), robust against outliers: median, interquartile range / 1.349."""

    location: float
    scale: float


@dataclass(frozen=True, slots=True)
class CpiStatistics:
    """The CPI of a job on a platform, over the fleet. `std` is the population one (ddof 0).

    With `robust`, the job's coefficient was fitted to nCPI of ln(CPI), and `n_cpi` uses that.
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
    """One machine in one slot: its mnCPI, None without latency-sensitive tasks, and its victims."""

    mn_cpi: float | None
    victims: tuple[str, ...]


def n_cpi(cpi: float, statistics: CpiStatistics) -> float:
    """Normalised CPI, equation (1): (c - mean) / std. 0 for a job whose CPI never varies.

    With robust statistics it is (ln c - location) / scale, cut to +-`ROBUST_CLIP`.
    """
    robust = statistics.robust
    if robust is not None:
        return max(-ROBUST_CLIP, min(ROBUST_CLIP, (math.log(cpi) - robust.location) / robust.scale))
    if statistics.std <= 0:
        return 0.0
    return (cpi - statistics.mean) / statistics.std


def is_cut(n_cpi: float) -> bool:
    """Whether an nCPI was cut to `ROBUST_CLIP` and may be more: nothing else gives exactly this value."""
    return n_cpi == ROBUST_CLIP


def victim_threshold(statistics: CpiStatistics) -> float:
    """CPI above which a task of the job is a victim: mean + 2 std."""
    return statistics.mean + VICTIM_STDS * statistics.std


def is_victim(cpi: float, statistics: CpiStatistics) -> bool:
    """Whether c > mean + 2 std. Never for a job whose CPI never varied: its threshold would be its mean."""
    return statistics.std > 0 and cpi > victim_threshold(statistics)


def mn_cpi(tasks: Iterable[TaskSlot]) -> float | None:
    """Machine-level CPI, equation (2): the mean of nCPI over the latency-sensitive tasks of one slot.

    Tasks without a known CPI or statistics are left out. None: no task is left; skip such slots.
    """
    values = [n_cpi(cpi, statistics) for _, cpi, statistics in _judged(tasks)]
    return math.fsum(values) / len(values) if values else None


def slot_state(tasks: Sequence[TaskSlot]) -> SlotState:
    """Return a machine's mnCPI and its victims, in the order of `tasks`. Only latency-sensitive tasks are victims."""
    victims = tuple(task for task, cpi, statistics in _judged(tasks) if is_victim(cpi, statistics))
    return SlotState(mn_cpi(tasks), victims)


def _judged(tasks: Iterable[TaskSlot]) -> Iterator[tuple[str, float, CpiStatistics]]:
    for t in tasks:
        if t.latency_sensitive and t.cpi is not None and t.statistics is not None:
            yield t.task, t.cpi, t.statistics
