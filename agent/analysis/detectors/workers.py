"""How many requests a VM serves at a time, learnt from how many of its vCPU threads run at one instant.

A queue's delay follows the idle share of its workers, and a VM with fewer workers than vCPUs seems half idle when they
are full. No average over a second shows their number; samples at single instants do, as w workers never keep more than
w threads busy, and keep all w busy the more often the fewer they are.

The rule (docs/studies/cloud-white.md): of the numbers 1 to V (vCPUs) of workers of an M/M/w queue at the offered load
a = guest time of all vCPUs at the baseline, the one whose posterior is at least `MIN_POSTERIOR`, from at least
`MIN_SAMPLES` samples; else it is not known. Guest kernel, interrupts or KVM's polling run one thread more, up to V, in
an unknown share of the samples, one of `BESIDE`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.baseline import taken
from agent.analysis.signals import Bools, Floats, VmKey

MIN_POSTERIOR = 0.95
MIN_SAMPLES = 20.0
#: Shares of the samples in which one thread more runs than workers are busy, equally likely.
BESIDE = (0.0, 0.02, 0.05, 0.1)
#: Ticks between two judgements of a VM: posteriors change little from sample to sample.
EVERY_TICKS = 10
# Likelihood of a sample that a number of workers does not allow: above 0, so that ageing forgets it again.
_IMPOSSIBLE = 1e-300
_MIN_LOAD = 1e-9
_TOGETHER = 32


class LearntWorkers(NamedTuple):
    """What was learnt of a host's VMs, each of shape (VMs,)."""

    workers: NDArray[np.int64]  # how many requests each serves at a time; 0: not known
    posterior: Floats  # of the likeliest number, NaN before there are enough samples
    samples: Floats  # how many samples, aged; NaN: not judged yet, or given by the operator


def running_shares(offered: Floats, vcpus: int) -> Floats:
    """Return in what share of the samples k workers are busy: the stationary distribution of M/M/w queues.

    `offered`: shape (n,), loads a in workers. Returns shape (n, V, V + 1): by load, w - 1 and k = 0..V (vCPUs); at k =
    w the whole tail. 0 if a >= w: no such queue lasts.
    """
    # More than all of them is as impossible as all of them.
    a = np.clip(offered, _MIN_LOAD, vcpus)[:, None]
    k = np.arange(vcpus + 1)
    # a^k / k!, over the largest of them: high powers of large loads have no number of their own.
    logs = k * np.log(a) - np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    terms = np.exp(logs - logs.max(axis=1, keepdims=True))
    w = k[1:]
    is_stable = a < w
    tails = terms[:, 1:] * np.where(is_stable, w / np.where(is_stable, w - a, 1.0), 0.0)
    totals = np.cumsum(terms, axis=1)[:, :-1] + tails
    shares = np.where(k < w[:, None], terms[:, None, :], 0.0)
    shares[:, w - 1, w] = tails
    found: Floats = np.where(is_stable, 1.0 / totals, 0.0)[:, :, None] * shares
    return found


def posteriors(samples: Floats, offered: Floats) -> Floats:
    """Return how likely 1..V workers are, shape (n, V), with a flat prior; all 0 if none is possible.

    `samples`: shape (n, V + 1): in how many samples k threads ran, aged. `offered`: shape (n,), loads in workers; NaN:
    not known.
    """
    vcpus = samples.shape[1] - 1
    shares = running_shares(np.nan_to_num(offered, nan=vcpus), vcpus)
    beside = np.roll(shares, 1, axis=2)
    beside[:, :, 0] = 0.0
    beside[:, :, -1] += shares[:, :, -1]
    seen = np.flatnonzero(samples.any(axis=0))
    found, more, counted = shares[:, :, seen], beside[:, :, seen], samples[:, None, seen]
    likelihoods = np.stack([
        (counted * np.log(np.maximum((1 - b) * found + b * more, _IMPOSSIBLE))).sum(axis=2) for b in BESIDE
    ])  # fmt: skip
    is_possible = shares[:, :, 0] > 0
    likelihoods[:, ~is_possible] = -np.inf
    best = likelihoods.max(axis=(0, 2))
    weights = np.exp(likelihoods - np.where(np.isfinite(best), best, 0.0)[None, :, None]).sum(axis=0)
    total = weights.sum(axis=1, keepdims=True)
    found_likely: Floats = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return found_likely


class WorkersRule:
    """The learnt workers of each VM. Rows are those of the baselines."""

    def __init__(self) -> None:
        self.found = LearntWorkers(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        self._vcpus: NDArray[np.int64] = np.zeros(0, np.int64)
        self._asked: Bools = np.zeros(0, bool)
        self._due: Bools = np.zeros(0, bool)
        self._group: NDArray[np.int64] = np.zeros(0, np.int64)

    def match(self, source: NDArray[np.int64], keys: Sequence[VmKey]) -> None:
        """Take other VMs: `source` has the old row of each, -1 if it is new."""
        defaults = (0, np.nan, np.nan)
        self.found = LearntWorkers(*(taken(a, source, d) for a, d in zip(self.found, defaults, strict=True)))
        self._vcpus = np.array([key.vcpus for key in keys], np.int64)
        self._asked = np.array([key.workers is None for key in keys], np.bool_)
        self._due = source < 0
        # Many together are cheaper than each alone; all of a large host's in one tick would be seen.
        self._group = np.arange(len(keys)) // _TOGETHER

    def judge(self, samples: Floats, guest_ratio: Floats, seen: NDArray[np.int64]) -> None:
        """Judge the VMs whose turn it is: new ones, and each once in `EVERY_TICKS` of its ticks.

        `samples` as in `posteriors`. `guest_ratio`, (VMs,): guest time per vCPU at the baseline; NaN: unknown. `seen`,
        (VMs,): for how many ticks each VM has been there.
        """
        turn = (self._due | ((seen + self._group) % EVERY_TICKS == 0)) & self._asked
        if not turn.any():
            return
        self._due &= ~turn
        workers, posterior, total = (self.found.workers.copy(), self.found.posterior.copy(), self.found.samples.copy())
        total[turn] = samples[turn].sum(axis=1)
        workers[turn], posterior[turn] = 0, np.nan
        enough = turn & (total >= MIN_SAMPLES) & (self._vcpus > 0)
        for vcpus in np.unique(self._vcpus[enough]).tolist():
            rows = np.flatnonzero(enough & (self._vcpus == vcpus))
            likely = posteriors(samples[rows, : vcpus + 1], guest_ratio[rows] * vcpus)
            posterior[rows] = likely.max(axis=1)
            workers[rows] = np.where(posterior[rows] >= MIN_POSTERIOR, likely.argmax(axis=1) + 1, 0)
        self.found = LearntWorkers(workers, posterior, total)
