"""The interface of detectors: a tick of signals in, each VM's verdict out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.workers import LearntWorkers
from agent.analysis.signals import Tick, Values
from agent.analysis.verdict import Behaviour, Verdict


@dataclass(eq=False)
class Detection:
    """The verdicts of one tick, in the order of its VMs.

    Reasons, evidence and baselines are made only on demand, from copies: for all VMs they would cost more than judging.
    """

    behaviours: tuple[Behaviour, ...]
    baseline_ticks: NDArray[np.int64]
    state: Callable[[int], Verdict]  # a VM's verdict by its row
    make_baseline: Callable[[], Values]
    estimate: NDArray[np.bool_] | None = None  # (VMs,): whose degradation is to be estimated; None: victims
    make_learnt: Callable[[], Values] | None = None  # None: the load does not change the baselines
    workers: LearntWorkers | None = None  # None, as `factors`: this detector does not learn them
    factors: Values | None = None  # (VMs,): `signals.load_factors` with what is learnt

    @cached_property
    def states(self) -> tuple[Verdict, ...]:
        """The verdicts on all VMs."""
        return tuple(self.state(row) for row in range(len(self.behaviours)))

    @cached_property
    def baseline(self) -> Values:
        """Each signal's baseline at the VM's present load, in its own unit.

        Shape (VMs, SIGNALS); NaN if it is not ready or not known.
        """
        return self.make_baseline()

    @cached_property
    def learnt(self) -> Values:
        """Each signal's baseline at the load at which it was learnt; shape and NaN as of `baseline`."""
        return self.baseline if self.make_learnt is None else self.make_learnt()


class AnyDetector(Protocol):
    """The interface of `detector.Detector` and `paper_detector.PaperDetector`."""

    def step(self, tick: Tick) -> Detection:
        """Take one tick, in order of time, and judge each VM."""

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return the baselines, for JSON; with the time now, their age is known when they are restored."""

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back a `dump`, by UUID and epoch, weighted by its age; ValueError: not a dump, and nothing was taken."""
