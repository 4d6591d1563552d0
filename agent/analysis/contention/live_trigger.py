"""The live trigger: is this host's mnCPI higher than its own noise explains? Pure; one value at a time.

The paper's trigger (`slot_trigger`) fires above the host's own 99th percentile: one slot in a hundred by construction.
This one needs more if contention is short, and less if it lasts:

* A slowly learnt level removes the course of a day. Steps beyond two standard deviations pull no more than two do, and
  while the trigger is on it hardly moves.
* The mean excess over the level is taken over a minute to half an hour: long, weak contention shows in the long means.
* Each length has its own standard deviation, measured on this host over hours, so autocorrelated noise needs no model.
* Everything is scaled by the root of the number of latency-sensitive VMs: the mean of few VMs varies more.
* Contention in the warm-up would be learnt as level and noise. So at its end both are compared with its quieter parts.
* mnCPI is cut, so level plus noise may exceed its maximum. A mean of half an hour above `CERTAIN_MN_CPI` is contention
  whatever they are; a shorter mean of a single VM is often so high without any.

It is on from when a mean exceeds `threshold` standard deviations until it is below half of that; a shorter length that
exceeds them too takes over, so that the end is seen soon. docs/studies/trigger.md has its detection and error rates.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median, quantiles

from agent.analysis.contention.normalised_cpi import CERTAIN_MN_CPI

#: Lengths of time over which the excess is averaged, in seconds.
SPANS_S = (60.0, 180.0, 600.0, 1800.0)
#: Standard deviations; chosen on the study's training seeds.
THRESHOLD = 5.25
#: Seconds before it judges.
WARM_UP_S = 3600.0
_WARM_UP_STEPS = 60  # at least
_LEVEL_S = 900.0  # time constant of the level; at least
_LEVEL_STEPS = 90
_SLOWER_WHILE_ON = 24.0
_SCALE_S = 7200.0  # time constant of the standard deviations; at least
_SCALE_STEPS = 720
_CLIP_LEVEL = 2.0  # standard deviations that a value may pull by
_CLIP_SCALE = 3.0  # the same of a mean
_PRIOR_S = 600.0  # seconds with a standard deviation of 1 (nCPI's, by construction) that are assumed at first
_END = 0.5  # of the threshold
_CERTAIN_END = 2.5  # of mnCPI; lower than what is certain, so that noise does not end it
_PART_S = 600.0  # of the warm-up
_PART_STEPS = 10  # at least
_PART_SPAN = 0.3  # of a part: the longest mean whose noise a part can show
_MAX_NOISE = 6.0  # times the median of the parts' variances, which lack what is slower than a part


@dataclass(slots=True)
class _Span:
    """The mean excess over the last `length` values; `variance` is its own, of past ones."""

    length: int
    values: deque[float] = field(default_factory=deque)
    total: float = 0.0
    variance: float = 1.0

    @property
    def mean(self) -> float:
        return self.total / len(self.values) if self.values else 0.0

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    @property
    def is_full(self) -> bool:
        return len(self.values) == self.length

    def push(self, value: float) -> None:
        self.values.append(value)
        self.total += value
        if len(self.values) > self.length:
            self.total -= self.values.popleft()

    def clear(self) -> None:
        self.values.clear()
        self.total = 0.0

    def exceeds(self, threshold: float) -> bool:
        return self.is_full and self.mean > threshold * self.std


class NoiseScaledTrigger:
    """Follows one host's mnCPI, a value each `step_s` seconds; `threshold` in standard deviations."""

    def __init__(self, step_s: float, threshold: float = THRESHOLD) -> None:
        lengths = sorted({max(1, round(span / step_s)) for span in SPANS_S})
        self._spans = [_Span(length) for length in lengths]
        self._one = _Span(1)
        self._plain = _Span(lengths[-1])  # of mnCPI itself, not of its excess over the level
        self._step_s = step_s
        self._limit = threshold
        self._level_s = max(_LEVEL_S, _LEVEL_STEPS * step_s)
        self._scale_s = max(_SCALE_S, _SCALE_STEPS * step_s)
        self._warm_up_s = max(WARM_UP_S, _WARM_UP_STEPS * step_s)
        self._level = 0.0
        self._count = 0
        self._tasks = 1
        self._deciding: _Span | None = None
        self._first: list[float] = []  # the warm-up's values

    @property
    def is_ready(self) -> bool:
        """Whether the warm-up is over."""
        return self._count * self._step_s >= self._warm_up_s

    @property
    def is_on(self) -> bool:
        """Whether there is contention now."""
        return self._deciding is not None

    @property
    def value(self) -> float:
        """Mean of mnCPI over the length of time that found the contention, else the shortest that could."""
        span = self._decides
        return span.mean if span is self._plain else self._level + span.mean / math.sqrt(self._tasks)

    @property
    def threshold(self) -> float:
        """What `value` has to exceed, at most `CERTAIN_MN_CPI`."""
        span = self._decides
        return CERTAIN_MN_CPI if span is self._plain else min(CERTAIN_MN_CPI, self._own(span))

    @property
    def _decides(self) -> _Span:
        able = (span for span in self._spans if self._own(span) <= CERTAIN_MN_CPI)
        return self._deciding or next(able, self._plain)

    def _own(self, span: _Span) -> float:
        """Return the mnCPI above which a span's noise does not explain it."""
        return self._level + self._limit * span.std / math.sqrt(self._tasks)

    def observe(self, mn_cpi: float, tasks: int) -> bool:
        """Take the next mnCPI, the mean of `tasks` tasks, at least 1; return whether the trigger is on."""
        was_ready = self.is_ready
        self._count += 1
        self._tasks = tasks
        if not was_ready:
            self._first.append(mn_cpi)
            if self.is_ready:
                self._settle()
        root = math.sqrt(tasks)
        excess = (mn_cpi - self._level) * root
        self._plain.push(mn_cpi)
        self._judge(excess)
        self._learn(excess, root)
        return self.is_on

    def shift(self, by: float) -> None:
        """Move the level: by the new statistics of nCPI, all past values are `by` higher."""
        self._level += by
        self._first = [value + by for value in self._first]
        self._plain.values = deque(value + by for value in self._plain.values)
        self._plain.total = math.fsum(self._plain.values)

    def _settle(self) -> None:
        """Take level and noise from the warm-up's quieter parts, if all of it has far more noise."""
        length = max(_PART_STEPS, round(_PART_S / self._step_s))
        parts = [self._first[at : at + length] for at in range(0, len(self._first) - length + 1, length)]
        self._first = []
        spans = (self._one, *self._spans)
        longest = max(1, round(_PART_SPAN * length))
        prior = _PRIOR_S / (self._warm_up_s + _PRIOR_S)  # what is left of it
        most = [
            prior + _MAX_NOISE * self._tasks * median(_noise(part, min(span.length, longest)) for part in parts)
            for span in spans
        ]
        if all(span.variance <= limit for span, limit in zip(spans, most, strict=True)):
            return
        self._level = quantiles(map(median, parts), n=4, method="inclusive")[0]
        for span, limit in zip(spans, most, strict=True):
            span.variance = min(span.variance, limit)
            span.clear()

    def _judge(self, excess: float) -> None:
        for span in (self._one, *self._spans):
            span.push(excess)
        if not self.is_ready:
            return
        found = next((span for span in self._spans if span.exceeds(self._limit)), None)
        if found is None and self._plain.exceeds(CERTAIN_MN_CPI):
            found = self._plain
        now = self._deciding
        if now is None or (found is not None and found.length < now.length):
            self._deciding = found
        elif not now.exceeds(_CERTAIN_END if now is self._plain else _END * self._limit):
            self._deciding = self._plain if found is self._plain else None
            # The longer spans still include the contention that has ended.
            for span in self._spans:
                span.clear()

    def _learn(self, excess: float, root: float) -> None:
        seen_s = self._count * self._step_s
        std = math.sqrt(self._one.variance)
        slower = _SLOWER_WHILE_ON if self.is_on else 1.0
        gain = self._step_s / min(seen_s, self._level_s) / slower
        if seen_s >= _PRIOR_S:
            excess = max(-_CLIP_LEVEL * std, min(_CLIP_LEVEL * std, excess))
        self._level += gain * excess / root
        if self.is_on:
            return
        gain = self._step_s / min(seen_s + _PRIOR_S, self._scale_s)
        for span in (self._one, *self._spans):
            if span.is_full:
                square = min(span.mean**2, _CLIP_SCALE**2 * span.variance)
                span.variance += gain * (square - span.variance)


def _noise(values: Sequence[float], length: int) -> float:
    """Return the mean square of the moving means over `length` values, around the values' mean."""
    mean = fmean(values)
    sums = [0.0, *accumulate(value - mean for value in values)]
    return fmean((sums[at] - sums[at - length]) ** 2 for at in range(length, len(sums))) / length**2
