"""bench/pitot/vm_facts.py: what a fold holds out, and that only the facts' variant sees facts."""

import argparse

import numpy as np
import pytest

from bench.pitot import vm_facts
from central.models.pitot import ALONE

GIVEN = argparse.Namespace(hosts=240, runs=3)


@pytest.fixture(scope="module")
def world():
    return vm_facts.make_world(np.random.default_rng(1))


def test_a_fold_gives_few_runs_of_what_is_new_and_no_co_runner_that_is(world):
    applications, machines = world.applications.max() + 1, len(world.machines)
    new = {"application": np.arange(applications) < 2, "machine": np.arange(machines) < 3}
    (rows, log_us), tests = vm_facts.fold_of(world, new, GIVEN, np.random.default_rng(2))
    new_jobs = np.flatnonzero(new["application"][world.applications])
    assert len(new_jobs) == 2 * vm_facts.SIZES and len(rows) == len(log_us)
    assert [int((rows.workload == job).sum()) for job in new_jobs] == [GIVEN.runs] * len(new_jobs)
    assert [int((rows.platform == machine).sum()) for machine in range(3)] == [GIVEN.runs] * 3
    for test, _ in [(rows, log_us), *tests.values()]:
        assert not np.isin(test.interferers[test.interferers != ALONE], new_jobs).any()
    is_new = {what: (np.isin(test.workload, new_jobs), test.platform < 3) for what, (test, _) in tests.items()}
    found = {what: (set(job.tolist()), set(machine.tolist())) for what, (job, machine) in is_new.items()}
    assert found == {"application": ({True}, {False}), "machine": ({False}, {True}), "both": ({True}, {True})}


def test_a_quota_bounds_what_a_job_uses_and_only_its_variant_has_facts(world):
    assert (world.load * world.facts["vcpus"] <= world.facts["quota"] + 1e-9).all()
    columns = {name: vm_facts.features_of(world, name).columns for name in vm_facts.VARIANTS}
    assert columns == {"none": (), "VM facts": ("vcpus", "quota", "memory"), "cores used": ("cores",)}
