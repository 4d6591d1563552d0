"""Loading vectors fitted to pairs: gradients, recovery of what made the data, and the bounds of either form."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from central.models import dfactor_pairs
from central.models.dfactor_pairs import ExtendedLoadings, Pairs, PlainLoadings, fit_extended, fit_plain

WORKLOADS, PLATFORMS = 12, 4


def pairs_of(loadings, n, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    victim, beside = rng.integers(0, WORKLOADS, (2, n))
    platform = rng.integers(0, PLATFORMS, n)
    blank = Pairs(victim, beside, platform, np.ones(n))
    return Pairs(victim, beside, platform, loadings.predict(blank) * np.exp(noise * rng.normal(size=n)))


def plain(seed=0):
    rng = np.random.default_rng(seed)
    return PlainLoadings(
        1.5 * rng.normal(size=(WORKLOADS, 3)),
        0.5 * rng.normal(size=(PLATFORMS, 3)),
        rng.uniform(0.2, 1, (PLATFORMS, 2)),
    )


def extended(seed=0):
    rng = np.random.default_rng(seed)
    shape = (WORKLOADS, 2)
    return ExtendedLoadings(
        np.exp(rng.normal(size=shape)),
        np.exp(rng.normal(size=shape)),
        rng.uniform(0.1, 0.6, (PLATFORMS, 2)),
        rng.uniform(0.9, 1.1, PLATFORMS),
        rng.uniform(0.9, 1.1, WORKLOADS),
    )


def error(found, pairs):
    return float(np.mean(np.abs(found.predict(pairs) - pairs.slowdown) / pairs.slowdown))


@pytest.mark.parametrize(("fit", "truth"), [(fit_plain, plain()), (partial(fit_extended, resources=2), extended())])
def test_gradients_are_those_of_the_loss(monkeypatch, fit, truth):
    seen = {}

    def solve(loss, first):
        seen.update(loss=loss, first=first)
        return first

    monkeypatch.setattr(dfactor_pairs, "_solve", solve)
    fit(pairs_of(truth, 60, noise=0.2), WORKLOADS, PLATFORMS)
    x = seen["first"] + 0.1 * np.random.default_rng(3).normal(size=len(seen["first"]))
    slope = approx_fprime(x, lambda at: seen["loss"](at)[0], 1e-6)
    assert seen["loss"](x)[1] == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_plain_vectors_that_made_the_pairs_come_back_as_predictions():
    truth = plain()
    found = fit_plain(pairs_of(truth, 1500, noise=0.03), WORKLOADS, PLATFORMS)
    fresh = pairs_of(truth, 500, seed=2)
    assert error(found, fresh) < 0.01
    everybody = np.arange(WORKLOADS)
    for platform in range(PLATFORMS):
        shares = found.shares(everybody, np.full(WORKLOADS, platform))
        assert (shares > 0).all() and (shares.sum(axis=1) < 1).all()
    assert ((found.predict(fresh) >= 1) & (found.predict(fresh) <= 2)).all()


def test_extended_vectors_reach_beyond_2_and_below_1():
    truth = extended()
    measured = pairs_of(truth, 1500, noise=0.03)
    assert (measured.slowdown > 2).mean() > 0.1 and (measured.slowdown < 1).any()
    fresh = pairs_of(truth, 500, seed=2)
    found = fit_extended(measured, WORKLOADS, PLATFORMS, resources=2)
    assert error(found, fresh) < 0.03
    high = fresh.where(fresh.slowdown > 2)
    assert error(found, high) < 0.05
    # the plain form cannot: a victim's slow-down and what it does to the other differ, and 2 is its end
    assert error(fit_plain(measured, WORKLOADS, PLATFORMS), high) > 0.2


def test_one_seed_gives_one_result_and_units_alone_shift_nothing():
    pairs = pairs_of(plain(), 300, noise=0.1)
    one, two = (fit_plain(pairs, WORKLOADS, PLATFORMS, speeds=False, seed=4) for _ in range(2))
    assert (one.time == two.time).all()
    assert (one.speed == 0).all()


def test_a_workload_and_a_platform_without_pairs_are_predicted_near_the_middle():
    pairs = pairs_of(extended(), 800)
    known = pairs.where((pairs.victim > 0) & (pairs.beside > 0) & (pairs.platform > 0))
    found = fit_extended(known, WORKLOADS, PLATFORMS)
    assert error(found, pairs.where((pairs.victim == 0) | (pairs.platform == 0))) < 1.0


@pytest.mark.parametrize("fit", [fit_plain, fit_extended])
def test_bad_pairs(fit):
    nothing = np.zeros(0, dtype=np.int64)
    with pytest.raises(ValueError, match=r"^no pairs to fit loading vectors to$"):
        fit(Pairs(nothing, nothing, nothing, np.zeros(0)), 1, 1)
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match=r"^slow-downs must be above 0 \(value 0\)$"):
        fit(Pairs(one, one, one, np.zeros(1)), 1, 1)
