"""The host's own analysis: runs the detector and the models over each tick's rates.

Without loop and disk: the daemon calls `tick`, and saves the result of `dump`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_, itemgetter
from typing import Any, NamedTuple

import numpy as np

from agent.analysis.detectors.base import AnyDetector, Detection
from agent.analysis.detectors.workers import LearntWorkers
from agent.analysis.signals import HOST, METRICS, SIGNALS, Tick, Values, VmKey, load_factors, matrix, set_idle
from agent.analysis.verdict import Behaviour, Degradation, Verdict
from agent.config import CloudWhiteSection
from agent.detection.decision_types import Reasoning, SignalView
from agent.detection.degradation_models import HostModels
from agent.sampling.metric_table import HostRates, VmRates
from agent.sampling.vms import Vm
from collector.base import Reason, VmIdentity

_MAX_REASON = 400  # characters

#: Taken from a VM's rates with one call: its signals' metrics, then its running vCPU threads.
_PICKED = (*METRICS, "vcpus_running")
_RUNNING = len(METRICS)
_pick = itemgetter(*(VmRates._fields.index(name) for name in _PICKED))


def make_detector(section: CloudWhiteSection) -> AnyDetector:
    """Make the configured detector; only that one is loaded."""
    if section.detector == "paper":
        from agent.analysis.detectors.paper_detector import PaperDetector, PaperSettings  # noqa: PLC0415 - loaded only where it is on

        return PaperDetector(PaperSettings())
    from agent.analysis.detectors.baseline import BaselineSettings  # noqa: PLC0415 - loaded only where it is on
    from agent.analysis.detectors.detector import Detector, DetectorSettings  # noqa: PLC0415 - loaded only where it is on

    usual, baseline = DetectorSettings(), BaselineSettings()
    settings = replace(
        usual,
        suffers_factor=usual.suffers_factor / section.sensitivity,
        suffers_factor_alone=usual.suffers_factor_alone / section.sensitivity,
        hysteresis=section.hysteresis,
        baseline=replace(
            baseline, quiet_time_constant_s=section.baseline_quiet_s, held_time_constant_s=section.baseline_disturbed_s
        ),
    )
    return Detector(settings)


def _numbers(rates: Sequence[VmRates]) -> Values:
    """Return the numbers taken from rates, shape (len(rates), len(_PICKED)), NaN where not known."""
    nan = math.nan
    # A Reason is an integer too, so its class is compared.
    flat = [nan if value.__class__ is Reason else value for one in rates for value in _pick(one)]
    return np.array(flat, np.float64).reshape(len(rates), len(_PICKED))


def _matrix(picked: Values, host: HostRates | Reason, factors: Values | float) -> Values:
    """Return the signals of a tick from what `_numbers` took, as `agent.analysis.signals.signals_of`."""
    found = (Reason.SOURCE_OFF if isinstance(host, Reason) else getattr(host, name) for name in HOST)
    known = [math.nan if isinstance(value, Reason) else value for value in found]
    return matrix(picked[:, :_RUNNING], known, factors)


class _Last(NamedTuple):
    """The last tick, whose rows are those of `CloudWhite._keys`."""

    mono_ns: int
    unix_ns: int
    values: Values
    detection: Detection


class CloudWhite:
    """The analysis of one host. Single-threaded: all calls from the daemon's loop. `make`: for tests."""

    def __init__(
        self,
        section: CloudWhiteSection,
        models: HostModels,
        make: Callable[[CloudWhiteSection], AnyDetector] = make_detector,
    ) -> None:
        self._section = section
        self.detector = section.detector
        self._models = models
        self._make = make
        self._detector = make(section)
        self._identities: list[VmIdentity] = []
        self._keys: tuple[VmKey, ...] = ()
        self._factors: Values = np.ones(0)
        self._rates: list[VmRates] = []
        self._numbers: Values = _numbers([])
        self._rows: dict[str, int] = {}
        self._last: _Last | None = None
        self._estimates: dict[str, Degradation] = {}

    # --- the tick ---

    def tick(self, vms: Iterable[Vm], host: HostRates | Reason, mono_ns: int, unix_ns: int) -> None:
        """Judge all VMs of the host by their rates over the last tick.

        Raises whatever an analysis raises; then this tick has no verdict, or no estimate.
        """
        listed = list(vms)
        self._take_keys(listed)
        numbers = self._take_numbers([vm.rates for vm in listed])
        values = _matrix(numbers, host, self._factors)
        self._last = None  # an old verdict does not count
        self._estimates = {}
        detection = self._detector.step(Tick(mono_ns / 1e9, self._keys, values, numbers[:, _RUNNING]))
        if detection.factors is not None:
            set_idle(values, detection.factors)
        self._last = last = _Last(mono_ns, unix_ns, values, detection)
        failures: list[Exception] = []
        victims = [behaviour == "victim" for behaviour in detection.behaviours]
        wanted = np.flatnonzero(victims if detection.estimate is None else detection.estimate).tolist()
        if wanted:
            found = self._estimate(last, wanted, failures)
            self._estimates = {self._keys[row].uuid: one for row, one in zip(wanted, found, strict=True)}
        if failures:
            raise failures[0]

    def _take_numbers(self, rates: list[VmRates]) -> Values:
        """Return the numbers of rates; they are kept where a VM's rates are the same object as in the tick before."""
        if len(rates) == len(self._rates):
            known = self._rates
            moved = [row for row, (now, last) in enumerate(zip(rates, known, strict=True)) if now is not last]
            if moved:
                self._numbers[moved] = _numbers([rates[row] for row in moved])
        else:
            self._numbers = _numbers(rates)
        self._rates = rates
        return self._numbers

    def _take_keys(self, vms: Sequence[Vm]) -> None:
        """Make the VMs' keys again unless all identities are those of the tick before."""
        identities = [vm.identity for vm in vms]
        known = self._identities
        if len(identities) == len(known) and all(map(is_, identities, known)):
            return
        self._identities = identities
        self._keys = tuple(VmKey(vm.identity.uuid, vm.identity.epoch, vm.identity.vcpus, vm.workers) for vm in vms)
        self._factors = load_factors(self._keys)
        self._rows = {key.uuid: row for row, key in enumerate(self._keys)}

    def _estimate(self, last: _Last, rows: Sequence[int], failures: list[Exception]) -> list[Degradation]:
        chosen = np.array(rows, np.intp)
        ticks = last.detection.baseline_ticks[chosen]
        found = self._models.estimate(last.values[chosen], last.detection.baseline[chosen], ticks, failures.append)
        return [
            replace(one, cannot_tell="baseline_young") if one.cannot_tell == "no_baseline" and known else one
            for one, known in zip(found, ticks.tolist(), strict=True)
        ]

    # --- queries ---

    def _found(self, uuid: str) -> tuple[_Last | None, int]:
        """Return the last tick and a VM's row in it; None where the VM is not in it."""
        row = self._rows.get(uuid) if self._last else None
        return (None, -1) if row is None else (self._last, row)

    def behaviour(self, uuid: str) -> Behaviour:
        """Return a VM's behaviour now."""
        last, row = self._found(uuid)
        return "unknown" if last is None else last.detection.behaviours[row]

    def estimate(self, uuid: str) -> Degradation | None:
        """Return how slow a suffering VM is; None for any other."""
        return self._estimates.get(uuid)

    def verdict(self, uuid: str) -> Verdict:
        """Return the verdict on a VM now."""
        last, row = self._found(uuid)
        if last is None:
            return Verdict("unknown", "not judged yet: it has had no tick", 0)
        found = last.detection.state(row)
        return replace(found, reason=found.reason[:_MAX_REASON], degradation=self._estimates.get(uuid))

    def since_ns(self, verdict: Verdict) -> int:
        """Return how long a VM has behaved so, in nanoseconds, as of the last tick."""
        last = self._last
        return max(0, last.mono_ns - verdict.since_ns) if last and verdict.since_ns else 0

    def explain(self, uuid: str) -> Reasoning:
        """Return the facts behind the verdict, with an estimate unless the VM inflicts.

        A model would mistake an inflicting VM's own load for suffering.
        """
        verdict, (last, row) = self.verdict(uuid), self._found(uuid)
        if last is None:
            return Reasoning(self.detector, verdict, ())
        if verdict.degradation is None and verdict.behaviour != "inflicting":
            failures: list[Exception] = []
            (estimate,) = self._estimate(last, [row], failures)
            verdict = replace(verdict, degradation=estimate)
        found = last.detection
        numbers = (last.values[row].tolist(), found.learnt[row].tolist(), found.baseline[row].tolist())
        signals = tuple(
            SignalView(name, value, learnt, expected)
            for name, value, learnt, expected in zip(SIGNALS, *numbers, strict=True)
            if not math.isnan(value)
        )
        # Shown beside the signals, because one of them follows from it.
        workers = _workers_shown(self._keys[row].workers, found.workers, row)
        signals += tuple(SignalView(name, value, math.nan, math.nan) for name, value in workers.items())
        return Reasoning(self.detector, verdict, signals)

    # --- over restarts ---

    def dump(self) -> dict[str, Any]:
        """Return the baselines for `restore`, as JSON can hold them."""
        last = self._last
        return self._detector.dump(last.unix_ns / 1e9 if last else None)

    def restore(self, data: Mapping[str, Any], now_unix_ns: int) -> None:
        """Continue with earlier baselines; raises, with nothing taken, if they are not from `dump`."""
        detector = self._make(self._section)
        detector.restore(data, now_unix_ns / 1e9)
        self._detector = detector


def _workers_shown(configured: int | None, found: LearntWorkers | None, row: int) -> dict[str, float]:
    """Return a VM's workers as configured; or as learnt, if known, with posterior and number of samples."""
    if configured is not None:
        return {"workers": configured}
    if found is None or not found.samples[row] > 0:
        return {}
    workers, posterior = found.workers[row], found.posterior[row]
    return {
        **({"workers": float(workers)} if workers else {}),
        **({"workers_posterior": float(posterior)} if not math.isnan(posterior) else {}),
        "workers_looks": float(found.samples[row]),
    }
