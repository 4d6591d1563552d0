"""A detector's answer: each VM's behaviour, since when, with what evidence, and who inflicts it.

Source of the three behaviours: "Cloud White", section 4.
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
    """One signal that supports a verdict: all three numbers are in the signal's own unit (docs/metrics.md).

    `expected`: at the VM's present load (and clock) without interference. `threshold`: an upper limit where it is above
    `expected`, else a lower one.
    """

    signal: str
    value: float
    expected: float
    threshold: float


@dataclass(frozen=True, slots=True)
class VmState:
    """One VM in one tick.

    `reason`: one line for people, with numbers. `since_s`: the tick's clock when the behaviour began.
    `culprits`: UUIDs of the VMs that inflict, the strongest first (victims only). `baseline_ticks`: quiet ticks behind
    the baseline, aged; `baseline_ready`: whether they are enough.
    """

    key: VmKey
    behaviour: Behaviour
    reason: str
    evidence: tuple[Evidence, ...]
    since_s: float
    culprits: tuple[str, ...]
    baseline_ticks: int
    baseline_ready: bool


@dataclass(eq=False)
class Detection:
    """The verdicts of one tick, in the order of its VMs.

    Reasons, evidence and baselines are made only on demand, from copies: for all VMs they would cost more than judging.

    `state` returns a VM's state by its row. `make_learnt` None: the load does not change the baselines. `estimate`,
    (VMs,): whose degradation is to be estimated; None: victims. `workers`: as learnt; `factors`, (VMs,):
    `signals.load_factors` with what is learnt; None: this detector does not learn them.
    """

    behaviours: tuple[Behaviour, ...]
    baseline_ticks: NDArray[np.int64]
    state: Callable[[int], VmState]
    make_baseline: Callable[[], Values]
    estimate: NDArray[np.bool_] | None = None
    make_learnt: Callable[[], Values] | None = None
    workers: LearntWorkers | None = None
    factors: Values | None = None

    @cached_property
    def states(self) -> tuple[VmState, ...]:
        """The states of all VMs."""
        return tuple(self.state(row) for row in range(len(self.behaviours)))

    @cached_property
    def baseline(self) -> Values:
        """Each signal's baseline at the VM's present load, in its own unit.

        Shape (VMs, SIGNALS); NaN where it is not ready or not known.
        """
        return self.make_baseline()

    @cached_property
    def learnt(self) -> Values:
        """Likewise, at the load at which it was learnt."""
        return self.baseline if self.make_learnt is None else self.make_learnt()


class AnyDetector(Protocol):
    """What `detector.Detector` and `paper_detector.PaperDetector` have in common."""

    def step(self, tick: Tick) -> Detection:
        """Take one tick, in order of time, and say what each VM does."""

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return what was learnt, as JSON has it; with the time now, its age is known when it is restored."""

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back what `dump` gave, by UUID and epoch, and as much of it as its age leaves."""
