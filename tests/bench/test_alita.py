"""Alita's rule, and the counter-example that Cloud White gives to it."""

import math

import pytest

from bench.cloud_white.alita import polluters, quota_bytes

MIB = 1 << 20


def test_the_quota_is_the_share_of_the_cpus():
    assert quota_bytes(16.5 * MIB, [2, 8], 24).tolist() == [16.5 * MIB * 2 / 24, 16.5 * MIB * 8 / 24]


def test_a_vm_above_its_quota_is_a_polluter():
    held = [1.4 * MIB, 1.3 * MIB, math.nan]
    assert polluters(held, [2, 2, 2], llc_bytes=16.5 * MIB, host_cpus=24).tolist() == [True, False, False]


def test_it_accuses_who_fills_the_cache_and_acquits_who_streams_through_it():
    # The paper's figure 13: img-dnn holds over 10 MB and hurts nobody; a stressor of as many vCPUs holds less.
    assert polluters([10.5 * MIB, 5.0 * MIB], [8, 8], llc_bytes=16.5 * MIB, host_cpus=24).tolist() == [True, False]


@pytest.mark.parametrize(("llc_bytes", "host_cpus"), [(0, 24), (math.nan, 24), (1e6, 0)])
def test_a_host_without_cache_or_cpus_is_an_error(llc_bytes, host_cpus):
    with pytest.raises(ValueError, match="a quota needs a cache and CPUs"):
        quota_bytes(llc_bytes, [2], host_cpus)
