"""Cloud White's own detector, algorithm 1 with M = 5 % and N = 50 %; `cloud_white.detector` selects it.

Per VM: load (%guest) and GIPS relative to their means over its first `baseline_ticks` ticks, which are taken for free
of interference. First pass: if the load differs from its rolling mean by at most M, the VM is steady. Otherwise it
inflicts if its GIPS differ from their rolling mean by more than N, and is a victim if they do not. Second pass: if any
VM inflicts, all others are victims. The rolling means do not include the present tick.

The paper does not say how long the rolling mean is, nor what GIPS are compared with. By default load and GIPS are
compared with the last 10 ticks, so a lasting load becomes steady once it fills the window. Other interpretations are
settings; docs/studies/cloud-white.md compares them. Degradation is estimated until every VM that inflicted is within N
of its baseline and the victim's own load is within M of its baseline.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.base import Detection
from agent.analysis.detectors.baseline import dumped_vms, move_rows, old_rows
from agent.analysis.signals import INDEX, SIGNALS, Bools, Floats, Tick, Values, VmKey
from agent.analysis.verdict import BEHAVIOURS, Behaviour, Evidence, Verdict

_FORMAT = 1
_GUEST, _GIPS = INDEX["guest_ratio"], INDEX["gips"]
_MAX_AGE_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """The paper's thresholds, as ratios. `rolling_ticks`: length of the rolling means, without the present tick.

    `load_from_baseline`, `gips_from_baseline`: changes count from the baseline, not from the rolling mean.
    """

    load_change: float = 0.05  # M
    gips_change: float = 0.50  # N
    rolling_ticks: int = 10
    baseline_ticks: int = 60
    load_from_baseline: bool = False
    gips_from_baseline: bool = False


class PaperDetector:
    """Algorithm 1 of "Cloud White". Ticks come in order of time; not thread-safe."""

    def __init__(self, settings: PaperSettings) -> None:
        self._settings = settings
        self._keys: tuple[VmKey, ...] = ()
        self._restored: dict[tuple[str, str], tuple[int, Values, Values]] = {}
        self._sum, self._known = np.zeros((2, 0, len(SIGNALS)))
        self._ring: Floats = np.full((0, settings.rolling_ticks, 2), math.nan)
        self._behaviour: NDArray[np.int64] = np.zeros(0, np.int64)
        self._ticks, self._since_s = np.zeros((2, 0))
        self._loaded, self._estimating = np.zeros((2, 0), bool)
        self._cursor = 0

    def step(self, tick: Tick) -> Detection:
        """Take one tick and tag its VMs."""
        settings = self._settings
        if tick.vms != self._keys:
            self._match(tick)
        now, baseline = tick.values[:, [_GUEST, _GIPS]], self._baseline()
        ready = self._ticks >= settings.baseline_ticks
        with np.errstate(invalid="ignore", divide="ignore"):
            own = np.where((own := baseline[:, [_GUEST, _GIPS]]) > 0, own, math.nan)
            relative = now / own
            known = ~np.isnan(self._ring)
            count = known.sum(axis=1)
            rolling = np.where(count > 0, np.where(known, self._ring, 0.0).sum(axis=1) / count, math.nan)
            usual = np.where((settings.load_from_baseline, settings.gips_from_baseline), own, rolling)
            change = np.abs(now - usual) / usual
        is_known = ready & ~np.isnan(change).any(axis=1)
        changed = is_known & (change[:, 0] > settings.load_change)
        inflicts = changed & (change[:, 1] > settings.gips_change)
        # Second pass: a VM with a baseline that does not inflict is a victim by association.
        victim = (changed | (is_known & inflicts.any())) & ~inflicts
        behaviour = is_known.astype(np.int64)
        behaviour[victim], behaviour[inflicts] = 2, 3
        self._since_s[behaviour != self._behaviour] = tick.at_s
        self._behaviour = behaviour
        estimate = self._estimate(relative, victim, inflicts)
        behaviours = tuple(map(BEHAVIOURS.__getitem__, behaviour.tolist()))
        ticks, since_s = self._ticks.astype(np.int64), self._since_s.copy()
        reasons = _Reasons(tick, behaviours, now, usual, since_s, ticks, ready, estimate, settings)
        self._learn(tick.values, now, ready)
        baseline[~ready] = math.nan
        return Detection(behaviours, ticks, reasons.state, lambda: baseline, estimate)

    def _estimate(self, relative: Values, victim: Bools, inflicts: Bools) -> Bools:
        settings = self._settings
        off = np.abs(relative - 1)
        self._loaded = inflicts | (self._loaded & (off[:, 1] > settings.gips_change))
        others = self._loaded.sum() - self._loaded > 0
        continues = self._estimating & (others | (off[:, 0] > settings.load_change))
        self._estimating = (victim | continues) & ~self._loaded
        return self._estimating.copy()

    def _baseline(self) -> Values:
        return np.where(self._known > 0, self._sum / np.maximum(self._known, 1), math.nan)

    def _learn(self, values: Values, now: Values, ready: Bools) -> None:
        learning = ~ready & ~np.isnan(now).any(axis=1)
        known = ~np.isnan(values) & learning[:, None]
        self._sum += np.where(known, values, 0.0)
        self._known += known
        self._ticks += learning
        self._ring[:, self._cursor] = now
        self._cursor = (self._cursor + 1) % self._settings.rolling_ticks

    def _match(self, tick: Tick) -> None:
        source = old_rows(self._keys, tick.vms)
        move_rows(self, source, _ticks=0.0, _sum=0.0, _known=0.0, _ring=math.nan, _behaviour=0)
        move_rows(self, source, _since_s=tick.at_s, _loaded=False, _estimating=False)
        self._keys = tick.vms
        for row in np.flatnonzero(source < 0):
            held = self._restored.pop((tick.vms[row].uuid, tick.vms[row].epoch), None)
            if held is not None and held[0] == tick.vms[row].vcpus:
                self._ticks[row] = self._settings.baseline_ticks
                self._sum[row], self._known[row] = held[1], held[2]

    # --- on disk ---

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return the complete baselines for JSON."""
        vms = []
        baseline = self._baseline()
        for row in np.flatnonzero(self._ticks >= self._settings.baseline_ticks):
            key, numbers = self._keys[row], zip(SIGNALS, baseline[row].tolist(), self._known[row].tolist(), strict=True)
            means = {name: [mean, known] for name, mean, known in numbers if known > 0}
            vms.append({"uuid": key.uuid, "epoch": key.epoch, "vcpus": key.vcpus, "means": means})
        return {"format": _FORMAT, "unix_s": now_unix_s, "vms": vms}

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back a `dump`, for VMs in the same epoch, unless it is older than a week. ValueError: it is not one."""
        vms, age_s = dumped_vms(data, now_unix_s, _FORMAT)
        if age_s > _MAX_AGE_S:
            return
        restored = {}
        for place, row in enumerate(vms):
            try:
                total, known = np.zeros(len(SIGNALS)), np.zeros(len(SIGNALS))
                for name, (mean, count) in row["means"].items():
                    if name in INDEX:
                        total[INDEX[name]], known[INDEX[name]] = mean * count, count
                restored[str(row["uuid"]), str(row["epoch"])] = (int(row["vcpus"]), total, known)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"baselines: row {place}: {error!r}") from error
        self._restored = restored


#: Added for a steady VM that still has an estimate: the rolling mean has adapted to the new load, the baseline has not.
_STILL_ESTIMATED = "; its slow-down is estimated until it and the inflicting VMs are back at their baselines"


@dataclass(frozen=True, eq=False)
class _Reasons:
    """Makes the verdicts of one tick's VMs on demand; its arrays do not change any more."""

    tick: Tick
    behaviours: tuple[Behaviour, ...]
    now: Values
    usual: Values
    since_s: Floats
    ticks: NDArray[np.int64]
    ready: Bools
    estimate: Bools
    settings: PaperSettings

    def state(self, row: int) -> Verdict:
        """Return the verdict on one VM."""
        behaviour, settings = self.behaviours[row], self.settings
        active = behaviour in {"victim", "inflicting"}
        factors = settings.load_change, settings.gips_change
        ticks = int(self.ticks[row])
        reason = _reason(behaviour, self.now[row], self.usual[row], settings, ticks)
        if self.estimate[row] and not active:
            reason += _STILL_ESTIMATED
        evidence = _evidence(self.now[row], self.usual[row], factors) if active else ()
        culprits = self._culprits if behaviour == "victim" else ()
        since_ns, is_ready = round(float(self.since_s[row]) * 1e9), bool(self.ready[row])
        return Verdict(behaviour, reason, since_ns, evidence, culprits, ticks, is_ready)

    @cached_property
    def _culprits(self) -> tuple[str, ...]:
        found = zip(self.tick.vms, self.behaviours, strict=True)
        return tuple(key.uuid for key, behaviour in found if behaviour == "inflicting")


def _evidence(now: Values, usual: Values, factors: tuple[float, float]) -> tuple[Evidence, ...]:
    """Return load and GIPS with their usual values, and the limit on the side to which each has moved."""
    limits = usual * (1 + np.where(now >= usual, factors, np.negative(factors)))
    rows = zip(("guest_ratio", "gips"), now.tolist(), usual.tolist(), limits.tolist(), strict=True)
    return tuple(starmap(Evidence, rows))


def _reason(behaviour: Behaviour, now: Values, usual: Values, settings: PaperSettings, ticks: int) -> str:
    if behaviour == "unknown":
        if np.isnan(now[1]):
            return "instructions are not counted here: the paper's rules do not apply"
        return f"no baseline yet: {ticks} of {settings.baseline_ticks} ticks"
    load, gips = 100 * (now / usual - 1)
    of_load, of_gips = (
        " against its baseline" if baseline else f" against the last {settings.rolling_ticks} ticks"
        for baseline in (settings.load_from_baseline, settings.gips_from_baseline)
    )
    changes = f"load {load:+.0f} %{'' if of_load == of_gips else of_load}, GIPS {gips:+.0f} %{of_gips}"
    if behaviour == "steady":
        return "load as in its baseline" if settings.load_from_baseline else "load as in the last ticks"
    if behaviour == "victim" and abs(load) <= 100 * settings.load_change:
        return f"{changes}: steady, but another VM inflicts"
    return changes
