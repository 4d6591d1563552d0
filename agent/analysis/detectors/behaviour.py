"""What a detector says of a VM: its behaviour, since when, from what evidence, and who does it to it.

Source of the three behaviours: "Cloud White", section 4. They are kept apart from the detectors so that whatever shows
or sends a verdict needs none of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.workers import LearntWorkers
from agent.analysis.signals import Tick, Values, VmKey


class Behaviour(StrEnum):
    """What a VM does now."""

    UNKNOWN = "unknown"  # it has no baseline yet, or its values are not known
    STEADY = "steady"  # as at its baseline, or only its own load has changed and nobody suffers from it
    INFLICTING = "inflicting"  # it does more than at its baseline, and others suffer
    VICTIM = "victim"  # it suffers from what others do


#: Behaviours by their number in arrays.
BEHAVIOURS = (Behaviour.UNKNOWN, Behaviour.STEADY, Behaviour.VICTIM, Behaviour.INFLICTING)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal that speaks for a verdict: all three numbers are in the signal's own unit (docs/metrics.md).

    `expected` is what it would be at the VM's present load (and clock) without interference; `threshold` is what
    `value` had to pass: above `expected` it is an upper limit, below it a lower one.
    """

    signal: str
    value: float
    expected: float
    threshold: float


@dataclass(frozen=True, slots=True)
class VmState:
    """The verdict on one VM in one tick.

    `reason`: one line for people, with numbers. `since_s`: the tick's clock when the behaviour began.
    `culprits`: UUIDs of the VMs that inflict, the strongest first (victims only). `baseline_ticks`: how many quiet
    ticks the baseline is made of, as far as they still count; `baseline_ready`: whether that is enough.
    """

    key: VmKey
    behaviour: Behaviour
    reason: str
    evidence: tuple[Evidence, ...]
    since_s: float
    culprits: tuple[str, ...]
    baseline_ticks: int
    baseline_ready: bool


class Detection:
    """The verdicts of one tick, in the order of its VMs.

    What only somebody who looks needs (reasons, evidence, baselines) is made when it is looked at, from copies of what
    the tick was judged by: nobody reads it in most ticks, and on a bad day it would cost more than the judging.

    Args:
        behaviours: of each VM.
        baseline_ticks: shape (VMs,), as in `VmState`.
        state: makes one VM's verdict, by its row; gives the same whenever it is asked.
        baseline: makes the attribute of this name; likewise.
        learnt: makes the attribute of this name; None: the load does not change this detector's baselines.
        estimate: as the attribute of this name.
        workers: as the attribute of this name.
        factors: as the attribute of this name.

    Attributes:
        estimate: shape (VMs,): whose degradation is worth an estimate now: with the paper's rules victims, and those
            that were one until the load is back at the baseline; None: victims.
        workers: what is learnt of how many requests the VMs serve at once; None: this detector does not.
        factors: shape (VMs,): `signals.load_factors` of the VMs with what is learnt; None: nothing is.

    """

    def __init__(
        self,
        behaviours: tuple[Behaviour, ...],
        baseline_ticks: NDArray[np.int64],
        state: Callable[[int], VmState],
        baseline: Callable[[], Values],
        estimate: NDArray[np.bool_] | None = None,
        learnt: Callable[[], Values] | None = None,
        *,
        workers: LearntWorkers | None = None,
        factors: Values | None = None,
    ) -> None:
        self.behaviours = behaviours
        self.baseline_ticks = baseline_ticks
        self.estimate = estimate
        self.workers = workers
        self.factors = factors
        self._state = state
        self._make_baseline = baseline
        self._make_learnt = learnt

    def state(self, row: int) -> VmState:
        """Return one VM's verdict."""
        return self._state(row)

    @cached_property
    def states(self) -> tuple[VmState, ...]:
        """All verdicts."""
        return tuple(self._state(row) for row in range(len(self.behaviours)))

    @cached_property
    def baseline(self) -> Values:
        """Each signal's baseline at the VM's present load, in its own unit.

        Shape (VMs, SIGNALS); NaN where it is not ready or not known.
        """
        return self._make_baseline()

    @cached_property
    def learnt(self) -> Values:
        """Likewise, at the load at which it was learnt."""
        return self.baseline if self._make_learnt is None else self._make_learnt()


class AnyDetector(Protocol):
    """What `detector.Detector` and `paper_detector.PaperDetector` have in common."""

    def step(self, tick: Tick) -> Detection:
        """Take one tick, in order of time, and say what each VM does."""

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return what was learnt, as JSON has it; with the time now, its age is known when it is restored."""

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back what `dump` gave, by UUID and epoch, and as much of it as its age leaves."""
