"""Detectors and models that do what tests tell them."""

import math
from types import SimpleNamespace

import numpy as np

from agent.analysis.degradation.model import Estimates
from agent.analysis.detectors.base import Detection
from agent.analysis.verdict import Evidence, Verdict
from agent.sampling.metric_table import VmRates
from collector.base import Reason

QUIET = ("steady", "as at its baseline", ())
SUFFERS = ("victim", "ipc 0.5 is below 0.9", ("bully",))
INFLICTS = ("inflicting", "memory bandwidth is 3 times its baseline", ())
UNKNOWN = ("unknown", "its baseline is not ready: 3 of 30 ticks", ())


class ToldDetector:
    """Says of each VM what `says` has for its UUID, and of all others that they are steady."""

    def __init__(self, *_: object) -> None:
        self.says: dict[str, tuple] = {}
        self.ticks = []
        self.learnt: dict = {}
        self.fails: Exception | None = None

    def step(self, tick):
        if self.fails is not None:
            raise self.fails
        self.ticks.append(tick)
        states = tuple(self._state(tick, key) for key in tick.vms)
        baseline = np.where(np.isnan(tick.values), math.nan, 1.0)
        suffers = np.array([state.behaviour == "victim" for state in states], bool)
        behaviours = tuple(state.behaviour for state in states)
        ticks = np.array([state.baseline_ticks for state in states], np.int64)
        return Detection(behaviours, ticks, states.__getitem__, lambda: baseline, suffers)

    def _state(self, tick, key):
        behaviour, reason, culprits = self.says.get(key.uuid, QUIET)
        ready = behaviour != "unknown"
        evidence = (Evidence("ipc", 0.5, 1.0, 0.9),) if behaviour == "victim" else ()
        since_ns = round((tick.at_s - 3) * 1e9)
        return Verdict(behaviour, reason, since_ns, evidence, culprits, 60 if ready else 3, baseline_ready=ready)

    def dump(self, _now_unix_s=None):
        return self.learnt

    def restore(self, data, now_unix_s):
        if "broken" in data:
            self.learnt = {"half": True}
            raise KeyError("broken")
        self.learnt = {**data, "now_unix_s": now_unix_s}


class ToldModel:
    """Its degradation is the first input; `reasons` by row's first input, NaN is "missing"."""

    def __init__(self, *inputs: str, factor: float = 1.0, cannot_tell: str = "") -> None:
        self.inputs = inputs or ("gips",)
        self.factor = factor
        self.cannot_tell = cannot_tell
        self.fails: Exception | None = None
        self.asked: list[int] = []

    def predict(self, values, baseline, baseline_rows):
        if self.fails is not None:
            raise self.fails
        self.asked.append(len(values))
        assert values.shape == baseline.shape == (len(values), len(self.inputs))
        ratio = values[:, 0] * self.factor
        reasons = [
            self.cannot_tell
            or (f"missing:{self.inputs[0]}" if math.isnan(value) else "" if rows >= 10 else "baseline_young")
            for value, rows in zip(ratio, baseline_rows, strict=True)
        ]
        ratio = np.where([reason == "" for reason in reasons], ratio, math.nan)
        return Estimates(ratio, ratio * 0.9, ratio * 1.1, tuple(reasons), ("glm",) * len(values))


def host_vm(uuid, name="", epoch="e1", rates=None, workers=None, **more):
    """As much of `agent.sampling.vms.Vm` as the analyses and decisions look at."""
    identity = SimpleNamespace(
        uuid=uuid, name=name or f"name-{uuid}", epoch=epoch, vcpus=2, state=more.pop("state", "running")
    )
    return SimpleNamespace(
        workers=workers,
        identity=identity,
        job="job",
        latency_sensitive=True,
        alert=more.pop("alert", True),
        rates=rates or rates_of(),
        **more,
    )


def rates_of(**known):
    """Rates of which only some are known."""
    return VmRates(*(known.get(name, Reason.NO_PMU) for name in VmRates._fields))
