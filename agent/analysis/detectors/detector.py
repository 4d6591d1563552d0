"""whitepanda's detector of interference: VMs that suffer, by their own symptoms, and VMs that grow meanwhile.

After "Cloud White", section 4, whose fixed percentages and victims by association it replaces (`paper_detector`):

- a VM has *grown* if something that it does (`symptoms.ACTS`: instructions, memory bandwidth, disk, network;
  CPU time if instructions are not known) exceeds its baseline by a least ratio and a multiple of its own noise;
- a VM *suffers* if symptoms of one kind (`symptoms.SYMPTOMS`) exceed what is expected at its present load and
  clock by a multiple of their noise, and mean at least some delay. A small excess is enough while another VM has grown
  in a possible cause. Otherwise only waiting for CPUs and I/O counts, and must be large: a lower IPC is then the
  VM's own doing;
- *inflicting*: has grown, and another VM suffers, or has grown much. *Victim*: suffers, and does not inflict. Else
  *steady*.

Windows restart when the set of grown VMs changes, and lengthen from then on: at first only large effects are seen,
later small ones. Thresholds to leave a state are below those to enter it. While a VM inflicts, baselines are learnt
slowly, so that the end is seen as a return to them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.base import Detection
from agent.analysis.detectors.baseline import Baselines, BaselineSettings, dumped_vms, move_rows
from agent.analysis.detectors.detector_words import Judged, Reasons
from agent.analysis.detectors.symptoms import ACTS, CLOCK, COLUMNS, KINDS, SYMPTOMS, clock_effect, columns_of
from agent.analysis.detectors.workers import WorkersRule
from agent.analysis.signals import IDLE, INDEX, SIGNALS, SUMS, Bools, Floats, Tick, Values, load_factors
from agent.analysis.verdict import BEHAVIOURS

_FORMAT = 1
_FIRST_SYMPTOM = len(SIGNALS)
_SYMPTOMS = slice(0, len(SYMPTOMS))
_ACTS = slice(len(SYMPTOMS), len(SYMPTOMS) + len(ACTS))
_CLOCK = COLUMNS.index(CLOCK)
_GROWN_GIPS = _FIRST_SYMPTOM + len(SYMPTOMS)  # column of the first act, instructions
_CPI, _STALLS = 0, 1
_GIPS, _CPU, _BANDWIDTH = ([act.name for act in ACTS].index(name) for name in ("log_gips", "log_cpu", "log_bandwidth"))
_CORE = KINDS.index("core")
_ALONE = np.array([kind in {"waiting", "io"} for kind in KINDS])
_OF_KIND = [[place for place, s in enumerate(SYMPTOMS) if s.kind == kind] for kind in KINDS]
_CORE_PLACES = slice(0, len(_OF_KIND[_CORE]))  # they come first
_HURTS = np.array([[kind in act.hurts for kind in KINDS] for act in ACTS])
_LEAST: Floats = np.log([act.least_ratio for act in ACTS])
_FLOORS = np.log([act.floor for act in ACTS])
_LOAD_STD = np.array([symptom.load_std for symptom in SYMPTOMS])
#: Signals proportional to the VM's load: their baselines are scaled to its present load.
_ELASTIC = [INDEX[name] for name in ("guest_ratio", "cpu_usage_cores", "gips", "memory_bandwidth_bytes_per_s", *SUMS)]
_MAX_GUEST_RATIO = 0.9
_MAX_SCORE = 20.0
_MAX_SLOWING = 3.0  # a logarithm: larger ones mean no more
_SLOWING = 2  # the first symptoms of kind "core": logarithms of the slow-down
_CORRELATION = 0.6  # of symptoms of one kind: they are seldom independent
_NEWCOMER_GROWTH = math.log(6.0)  # a VM without a baseline has grown when it does five times a harmless amount
_MIN_SHARE = 0.1  # of the largest growth: a VM below it is not a cause
_DOMINANT_SHARE = 0.6  # of all growth of memory bandwidth: less may be a victim's, from lost cache
_LOAD_NOISE = 0.05  # changes of the load's logarithm up to this are noise rather than load
_OWN_CLOCK = 0.05  # a clock lower than the other VMs' by more is the VM's own doing (wide vector instructions)


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """Thresholds. Factors are of the noise's standard deviation, delays are relative (0.05 is 5 %).

    `*_alone`: if no other VM has grown in what could be the cause.
    """

    grown_factor: float = 5.0
    suffers_factor: float = 2.5
    suffers_factor_alone: float = 6.0
    suffers_delay: float = 0.04
    suffers_delay_alone: float = 0.25
    hysteresis: float = 0.5
    inflicting_ratio: float = 1.4  # growth from which a VM inflicts even if no VM suffers
    odd_factor: float = 5.0  # a score above this without a cause is not learnt immediately
    better_factor: float = 5.0  # a VM better by this for long has a baseline that was learnt under stress
    suspicion_s: float = 600.0  # how long nothing is learnt from unusual VMs that hurt no other
    baseline: BaselineSettings = field(default_factory=BaselineSettings)


class Detector:
    """Finds victims and inflicting VMs of one host. Ticks come in order of time; not thread-safe."""

    def __init__(self, settings: DetectorSettings) -> None:
        self._settings = settings
        self._baselines = Baselines(
            settings.baseline,
            (*SIGNALS, *COLUMNS),
            np.array([*(s.prior_std for s in SYMPTOMS), *(0.05 for _ in ACTS), 0.01]),
            np.array([*(s.floor_std for s in SYMPTOMS), *(0.01 for _ in ACTS), 0.003]),
        )
        # State of each VM, from tick to tick; `_ready_since_s` NaN: its baseline is not ready yet.
        self._grown: Bools = np.zeros((0, len(ACTS)), bool)
        self._suffers: Bools = np.zeros((0, len(KINDS)), bool)
        self._inflicts: Bools = np.zeros(0, bool)
        self._behaviour: NDArray[np.int64] = np.zeros(0, np.int64)
        self._suspect_s, self._since_s, self._ready_since_s, self._vcpus, self._factors = np.zeros((5, 0))
        self._workers = WorkersRule()
        self._last_s = math.nan
        self._since_change = 0

    def step(self, tick: Tick) -> Detection:
        """Take one tick and judge its VMs."""
        at_s = tick.at_s
        elapsed_s = min(max(at_s - self._last_s, 0.1), 10.0) if not math.isnan(self._last_s) else 1.0
        self._last_s = at_s
        source = self._baselines.match(tick.vms, at_s)
        if source is not None:
            move_rows(self, source, _grown=False, _suffers=False, _inflicts=False, _behaviour=0)
            move_rows(self, source, _suspect_s=0.0, _since_s=at_s, _ready_since_s=math.nan)
            self._workers.match(source, tick.vms)
            self._vcpus = np.array([key.vcpus for key in tick.vms], np.float64)
            self._factors = load_factors(tick.vms)
        if not tick.vms:
            return Detection((), np.zeros(0, np.int64), [].__getitem__, lambda: tick.values)
        values = np.concatenate([tick.values, columns_of(tick.values, self._vcpus)], axis=1)
        self._baselines.observe(values)
        guest_ratio = self._baselines.mean[:, INDEX["guest_ratio"]]
        self._workers.judge(self._baselines.samples, guest_ratio, self._baselines.seen)
        judged = self._judge(tick.values[:, INDEX["guest_ratio"]])
        self._decide(judged, at_s)
        found = self._found(tick, judged)
        self._learn(values, judged, elapsed_s, tick.vcpus_running)
        return found

    def dump(self, now_unix_s: float | None = None) -> dict[str, Any]:
        """Return the baselines for JSON; with the time now, `restore` knows their age."""
        return {"format": _FORMAT, "unix_s": now_unix_s, "vms": self._baselines.dump()}

    def restore(self, data: Mapping[str, Any], now_unix_s: float) -> None:
        """Take back a `dump`, for VMs in the same epoch; the older the less it counts. ValueError: it is not one."""
        self._baselines.restore(*dumped_vms(data, now_unix_s, _FORMAT))

    # --- judging ---

    def _judge(self, guest_ratio: Floats) -> Judged:
        """Compare the windows with the baselines."""
        baselines, settings = self._baselines, self._settings
        short_ticks, long_ticks = settings.baseline.short_ticks, settings.baseline.long_ticks
        ready = baselines.ticks >= settings.baseline.min_ticks
        short = baselines.window(short_ticks)
        mean = baselines.mean[:, _FIRST_SYMPTOM:]
        growth, amount, grown_from, enough, growing = self._grow(short, mean, ready)
        # Counted instructions measure the load; CPU time grows with suffering too.
        load = np.where(np.isnan(growth[:, _GIPS]), growth[:, _CPU], growth[:, _GIPS])
        shift = np.where(np.isnan(load), 0.0, np.maximum(load, 0.0))

        ticks = min(max(short_ticks, self._since_change + 2), long_ticks)
        window = short if ticks == short_ticks else baselines.window(ticks)
        slope, left = baselines.load_slope()
        usual = mean[:, _SYMPTOMS]
        clock = window[:, _CLOCK] - mean[:, _CLOCK]
        explained = clock_effect(clock, mean[:, _STALLS])
        expected = usual + explained + slope[:, _SYMPTOMS] * shift[:, None]
        unsure = np.square(_LOAD_STD * shift[:, None]) * left[:, None]
        std = np.sqrt(baselines.variance(ticks)[:, _SYMPTOMS] + unsure)
        deviation = window[:, _SYMPTOMS] - expected
        deviation[~ready] = math.nan
        score, effect = _by_kind(deviation, std, guest_ratio)
        own_clock = clock < _median(clock) - _OWN_CLOCK
        score[own_clock, _CORE] = math.nan
        return Judged(
            ready=ready,
            known=np.any(~np.isnan(short[:, : _ACTS.stop]), axis=1),
            growth=growth,
            amount=amount,
            usual=grown_from,
            enough=enough,
            growing=growing,
            shift=shift,
            window=window[:, _SYMPTOMS],
            expected=expected,
            std=std,
            score=score,
            effect=effect,
            odd=np.any(score > settings.odd_factor, axis=1),
            clock=clock,
            own_clock=own_clock,
            by_load=short[:, _SYMPTOMS] - usual - explained,
        )

    def _grow(self, short: Floats, mean: Floats, ready: Bools) -> tuple[Floats, Floats, Floats, Floats, Bools]:
        """Update who has grown, with hysteresis; return growth, amount, usual, enough and growing as in `Judged`."""
        baselines, settings = self._baselines, self._settings
        # A VM that arrives after others are known has grown from nothing.
        self._ready_since_s[ready & np.isnan(self._ready_since_s)] = self._last_s
        known_since_s = self._ready_since_s[ready].min() if ready.any() else math.inf
        newcomer = ~ready & (baselines.first_seen_s >= known_since_s)
        usual = mean[:, _ACTS].copy()
        usual[~ready] = math.nan
        usual[newcomer] = _FLOORS
        now = short[:, _ACTS]
        growth = now - usual
        latest = np.minimum(growth, baselines.window(2)[:, _ACTS] - usual)
        noise = settings.grown_factor * np.sqrt(baselines.variance(settings.baseline.short_ticks)[:, _ACTS])
        least = np.maximum(_LEAST, noise)
        least[newcomer] = _NEWCOMER_GROWTH
        above = latest > settings.hysteresis * least
        # Nothing is learnt while a VM grows: a ramp would count as noise and raise its own threshold.
        growing = np.any(above, axis=1)
        grown, share = above & (self._grown | (latest > least)), np.zeros_like(growth)
        if growing.any():
            share = _main_growth(grown, growth, now, usual)
        is_same = np.array_equal(grown.any(axis=1), self._grown.any(axis=1))
        self._since_change = self._since_change + 1 if is_same else 0
        self._grown = grown
        # Report the threshold to stay grown.
        least[grown] *= settings.hysteresis
        return growth, share, usual, least, growing

    def _decide(self, judged: Judged, at_s: float) -> None:
        """Update who suffers and who inflicts, with hysteresis."""
        settings = self._settings
        grown: Bools = np.any(self._grown, axis=1)
        can = self._grown @ _HURTS  # (VMs, KINDS): has grown in what can cause this kind
        helped = can.sum(axis=0) - can > 0
        alone = _ALONE & (judged.shift < _LEAST[_GIPS])[:, None] | helped
        judged.factor = np.where(helped, settings.suffers_factor, settings.suffers_factor_alone)
        judged.delay = np.where(helped, settings.suffers_delay, settings.suffers_delay_alone)
        judged.factor[self._suffers] *= settings.hysteresis
        judged.delay[self._suffers] *= settings.hysteresis
        suffers = (judged.score > judged.factor) & (judged.effect > judged.delay) & alone
        self._suffers = suffers
        hurting: Bools = (can & (suffers.sum(axis=0) - suffers > 0)).any(axis=1)
        # Large growth counts without a victim too: one may come, or may not be measured.
        much = (self._grown & (judged.growth > math.log(settings.inflicting_ratio))).any(axis=1) & judged.ready
        inflicts = hurting | ((much | self._inflicts) & grown)
        self._inflicts = inflicts
        victim = suffers.any(axis=1) & ~inflicts
        behaviour = (judged.ready & judged.known).astype(np.int64)
        behaviour[victim] = BEHAVIOURS.index("victim")
        behaviour[inflicts] = BEHAVIOURS.index("inflicting")
        self._since_s[behaviour != self._behaviour] = at_s
        self._behaviour = behaviour
        judged.grown, judged.suffers, judged.can, judged.hurting = self._grown, suffers, can, hurting
        judged.movers = int(grown.sum())

    def _found(self, tick: Tick, judged: Judged) -> Detection:
        baselines, settings = self._baselines, self._settings.baseline
        ticks = baselines.ticks.astype(np.int64)
        behaviours = tuple(map(BEHAVIOURS.__getitem__, self._behaviour.tolist()))
        since_s = self._since_s.copy()
        reasons = Reasons(tick, judged, behaviours, self._inflicts, since_s, ticks, settings.min_ticks)
        learnt = self._workers.found
        mean = baselines.mean[:, : _GROWN_GIPS + 1].copy()
        factors = np.where(learnt.workers > 0, self._vcpus / np.maximum(learnt.workers, 1), self._factors)
        # The mean may be older than the number of workers.
        mean[:, INDEX[IDLE]] = 1.0 - mean[:, INDEX["guest_ratio"]] * factors
        gips = baselines.window(settings.short_ticks)[:, _GROWN_GIPS - _FIRST_SYMPTOM]
        return Detection(
            behaviours,
            ticks,
            reasons.state,
            make_baseline=lambda: _baseline_at(mean, gips, judged.ready, factors),
            make_learnt=lambda: np.where(judged.ready[:, None], mean[:, : len(SIGNALS)], math.nan),
            workers=learnt,
            factors=factors,
        )

    # --- learning ---

    def _learn(self, values: Floats, judged: Judged, elapsed_s: float, running: Floats | None) -> None:
        settings, baselines = self._settings, self._baselines
        grown = self._grown.any(axis=1)
        suffering = self._suffers.any(axis=1)
        anyone = bool((self._inflicts & judged.hurting).any())
        odd = judged.odd
        # A VM does more than usual, and none suffers yet.
        suspicious = (grown.any() | odd | judged.growing) & judged.ready | grown
        self._suspect_s = np.where(suspicious, self._suspect_s + elapsed_s, 0.0)
        held = suffering | self._inflicts & (judged.hurting | anyone) | (anyone & judged.ready)
        quiet = ~held & (~suspicious | (self._suspect_s > settings.suspicion_s))
        alone = grown.sum() - grown == 0
        baselines.learn_load(judged.ready & alone, judged.shift, judged.by_load, elapsed_s)
        if not grown.any() and (better := self._better(judged)) is not None:
            baselines.relearn(better)
        baselines.learn(values, elapsed_s, quiet=quiet, held=held)
        if running is not None:
            baselines.learn_samples(running, elapsed_s, quiet=quiet)

    def _better(self, judged: Judged) -> Bools | None:
        """Rows well below their baseline for a while: it was learnt under stress."""
        settings, baselines = self._settings, self._baselines
        long_ticks = settings.baseline.long_ticks
        mean = baselines.mean[:, _FIRST_SYMPTOM : _FIRST_SYMPTOM + _ACTS.stop]
        change = baselines.window(long_ticks)[:, : _ACTS.stop] - mean
        least = np.where(np.arange(_ACTS.stop) < _ACTS.start, settings.suffers_delay, _LEAST.max())
        much = change < -least
        if not much.any():
            return None
        std = np.sqrt(baselines.variance(long_ticks)[:, : _ACTS.stop])
        full = judged.ready & (baselines.seen >= long_ticks)
        return full & (much & (change < -settings.better_factor * std)).any(axis=1)


def _main_growth(grown: Bools, growth: Floats, now: Floats, usual: Floats) -> Floats:
    """Remove from `grown`, in place, growth that is not a cause; return each share of the largest growth, (VMs, ACTS).

    All of shape (VMs, ACTS): acts now and at the baseline, as logarithms, and their difference.
    """
    counted = ~np.isnan(growth[:, _GIPS])
    grown[:, _CPU] &= ~counted
    amount = np.exp(now) - np.exp(usual)
    more = np.where(amount > 0, amount, 0.0)
    dominant = more[:, _BANDWIDTH] >= _DOMINANT_SHARE * more[:, _BANDWIDTH].sum()
    busier = np.where(counted, np.abs(growth[:, _GIPS]) > _LEAST[_GIPS], growth[:, _CPU] > _LEAST[_CPU])
    grown[:, _BANDWIDTH] &= dominant | busier
    most = np.where(grown, more, 0.0).max(axis=0)
    grown &= more >= _MIN_SHARE * most
    return np.where(grown, more, 0.0) / np.where(most > 0, most, 1.0)


def _baseline_at(mean: Floats, log_gips: Floats, ready: Bools, factors: Floats) -> Values:
    """Return the signals' baselines at each VM's present load, NaN if not ready.

    `mean`, (VMs, columns): the baselines, up to the one of log(GIPS + floor); `log_gips`, (VMs,): over the last ticks.
    """
    baseline = mean[:, : len(SIGNALS)].copy()
    # Without instructions, CPU time does not distinguish load from suffering: load is taken as at the baseline.
    load = _without_floor(log_gips) - _without_floor(mean[:, _GROWN_GIPS])
    # Small shifts are mostly noise of one tick; a real change of load is followed in full.
    load = np.where(np.isnan(load), 0.0, load * (load * load / (load * load + _LOAD_NOISE**2)))
    baseline[:, _ELASTIC] *= np.exp(np.clip(load, -_MAX_SLOWING, _MAX_SLOWING))[:, None]
    baseline[:, INDEX[IDLE]] = 1.0 - baseline[:, INDEX["guest_ratio"]] * factors
    baseline[~ready] = math.nan
    return baseline


def _median(numbers: Floats) -> float:
    """Return the median of those that are known, NaN without any: as numpy's, at a tenth of its cost."""
    known = np.sort(numbers[~np.isnan(numbers)])
    middle = len(known) // 2
    if len(known) % 2:
        return float(known[middle])
    return float((known[middle - 1] + known[middle]) / 2) if len(known) else math.nan


def _without_floor(log_gips: Floats) -> Floats:
    """Return log(GIPS) from log(GIPS + floor)."""
    floor = ACTS[_GIPS].floor
    return np.log(np.maximum(np.exp(log_gips) - floor, 1e-3 * floor))


def _by_kind(deviation: Floats, std: Floats, guest_ratio: Floats) -> tuple[Floats, Floats]:
    """Weigh symptoms by kind: score in standard deviations and effect as the delay it means, (VMs, KINDS) each.

    Core: the scores' sum over the standard deviation of that sum; the slow-down is the symptoms' mean weighted by
    1 / variance. Other kinds: the largest. A slow-down of service is felt as a longer delay the busier the VM is: at
    use u by 1 / (1 - u), as in a queue. NaN if no symptom of the kind is known.
    """
    busy = np.minimum(np.where(np.isnan(guest_ratio), 0.0, guest_ratio), _MAX_GUEST_RATIO)
    score = np.full((len(deviation), len(KINDS)), math.nan)
    slower = np.full_like(score, math.nan)
    z = np.minimum(np.maximum(deviation / std, -_MAX_SCORE), _MAX_SCORE)
    for kind, (first, *others) in enumerate(_OF_KIND):
        if kind == _CORE:
            continue
        largest, change = z[:, first], deviation[:, first]
        for place in others:
            largest, change = np.fmax(largest, z[:, place]), np.fmax(change, deviation[:, place])
        score[:, kind], slower[:, kind] = largest, change
    known = ~np.isnan(z[:, _CORE_PLACES])
    count = known.sum(axis=1)
    some = count > 0
    if some.any():
        total = np.where(known, z[:, _CORE_PLACES], 0.0).sum(axis=1)
        score[:, _CORE] = total / np.sqrt(np.maximum(count + count * (count - 1) * _CORRELATION, 1))
        weight = np.where(known[:, :_SLOWING], 1 / np.square(std[:, :_SLOWING]), 0.0)
        weighed = np.where(known[:, :_SLOWING], weight * deviation[:, :_SLOWING], 0.0)
        slower[:, _CORE] = weighed.sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-12)
        score[~some, _CORE] = slower[~some, _CORE] = math.nan
    return score, np.expm1(np.minimum(slower, _MAX_SLOWING)) / (1 - busy)[:, None]
