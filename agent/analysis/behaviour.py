"""What a detector says of a VM: its behaviour, since when, from what evidence, and who does it to it.

Source of the three behaviours: "Cloud White", section 4. They are kept apart from the detectors so that whatever shows
or sends a verdict needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.analysis.signals import Tick, Values, VmKey

__all__ = ["AnyDetector", "Behaviour", "Detection", "Evidence", "VmState"]


class Behaviour(StrEnum):
    """What a VM does now."""

    UNKNOWN = "unknown"  # it has no baseline yet, or its values are not known
    STEADY = "steady"  # as at its baseline, or only its own load has changed and nobody suffers from it
    INFLICTING = "inflicting"  # it does more than at its baseline, and others suffer
    VICTIM = "victim"  # it suffers from what others do


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal that speaks for a verdict: all three numbers are in the signal's own unit (docs/metrics.md).

    `baseline` is what is expected of the VM at its present load without interference; `threshold` is what `value` had
    to pass: above `baseline` it is an upper limit, below it a lower one.
    """

    signal: str
    value: float
    baseline: float
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


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """The verdicts of one tick, in the order of its VMs.

    `baseline`: shape (VMs, SIGNALS), each signal's baseline in its own unit; NaN where it is not ready or not known.
    `estimate`: shape (VMs,): whose degradation is worth an estimate now: with the paper's rules victims, and those that
    were one until the load is back at the baseline; None: victims.
    """

    states: tuple[VmState, ...]
    baseline: Values
    estimate: NDArray[np.bool_] | None = None


class AnyDetector(Protocol):
    """What `detector.Detector` and `paper_detector.PaperDetector` have in common."""

    def step(self, tick: Tick) -> Detection:
        """Take one tick, in order of time, and say what each VM does."""

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return what was learnt, as JSON has it; with the time now, its age is known when it is restored."""

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back what `dump` gave, by UUID and epoch, and as much of it as its age leaves."""
