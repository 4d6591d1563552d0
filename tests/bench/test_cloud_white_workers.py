"""bench/cloud_white/workers.py: its queues are those of the simulator, and its tables count what was said."""

import numpy as np
import pytest

from agent.analysis.detectors.workers import running_shares
from bench.cloud_white import workers as bench
from bench.cloud_white.workers import Case, Said
from collector.simulated.profiles import APPLICATIONS
from collector.simulated.requests import RequestQueue


def test_no_case_is_beyond_what_its_workers_can_serve():
    two = list(bench.cases(2))
    assert {(one.workers, one.load) for one in two if one.application == "silo"} == {
        *((1, load) for load in (0.1, 0.2, 0.3, 0.4)),
        *((2, load) for load in (0.1, 0.2, 0.3, 0.4, 0.5)),
    }
    assert {one.application for one in two} == set(APPLICATIONS)


def test_busy_workers_are_those_of_the_simulators_queue():
    case = Case("moses", 2, 2, 0.3)
    busy = bench.running(case, 60, 20, seed=1)
    assert busy.shape == (60, 20)
    app = APPLICATIONS["moses"]
    queue = RequestQueue(app, 2, np.random.default_rng(2))
    rng = np.random.default_rng(3)
    step_s = 60 * app.service_ms / 1e3
    theirs = []
    for tick in range(1200):
        queue.serve(tick * step_s, step_s, int(rng.poisson(36)), app.service_ms / 1e3, 0.5e-3)
        theirs.append(queue.running_at((tick + 1) * step_s))
    shares, others = (np.bincount(np.ravel(one), minlength=3) / 1200 for one in (busy, theirs))
    assert shares == pytest.approx(others, abs=0.06)
    assert shares == pytest.approx(running_shares(np.array([0.6]), 2)[0, 1], abs=0.06)


def test_what_was_said_is_right_off_by_one_off_by_more_or_cannot_be_known():
    said = Said(Case("silo", 8, 3, 0.2), 60, 0.02, np.array([3, 3, 2, 4, 8, 0, 0, 0]))
    assert bench.shares([said]) == (0.25, 0.25, 0.125, 0.375)


def test_tables_have_all_sizes(capsys):
    cases = [Case("silo", 2, 1, 0.3), Case("silo", 2, 2, 0.3)]
    bench.print_tables([said for case in cases for said in bench.learnt(case, (60, 300), 3)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| 2 | fewer workers | 60 | 0 % | 3 | ")
    assert sum(line.startswith("| 2, ") for line in lines) == 4
    assert "| 2, 1 | 300 |  |  | 100 / 0 / 0 |  |  |" in lines
