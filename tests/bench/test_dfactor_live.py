"""bench/dfactor/live.py: its control, its truth by hand, and that the study has its bar's numbers."""

import re

import numpy as np
import pytest

from bench.dfactor import live
from tests.support.central_process import ROOT


def control(seed=17):
    return live.measure(live.SCENARIOS["control"], 40, seed)


def error(found):
    return float(np.concatenate(found.errors["live D-Factor"]).mean())


def test_where_the_truth_is_dfactor_only_noise_is_left():
    found = control()
    assert error(found) < 0.01 < live.CONTROL_BAR
    assert found.order > 0.99
    assert error(control()) == error(found)  # a seed gives one result


def test_the_mutant_that_forgets_to_leave_out_the_vm_itself_is_noticed(monkeypatch):
    def forgets(now, place, hosts):
        found = np.ones(len(place))
        for k, (host, column) in enumerate(place):
            loading = np.nan_to_num(now.jobs[f"job-{hosts.running[host, column]:03d}"].loading)
            share = loading / max(1.0, loading.sum())
            found[k] = 1.0 + (share * now.hosts.totals[host] / now.hosts.units_of(host)).sum()
        return found

    monkeypatch.setattr(live, "predicted", forgets)
    assert error(control()) > live.CONTROL_BAR


def test_a_vm_alone_is_not_slowed_down():
    scenario = live.SCENARIOS["all of them"]
    made = live.make_hosts(scenario, 20, np.random.default_rng(1))
    made.load[:, 1:] = 0.0
    place = np.argwhere(made.load > 0)
    dilation, work = live.truth(made, made.rates(made.running, made.load), place)
    assert len(place) == 20
    assert dilation == pytest.approx(np.ones(20), abs=1e-6)
    assert work == pytest.approx(np.ones(20), abs=1e-6)


def test_the_networks_share_is_of_the_speed_that_host_facts_have():
    scenario = live.SCENARIOS["network"]
    made = live.make_hosts(scenario, 20, np.random.default_rng(1))
    rates = made.rates(made.running, made.load)
    now, _ = live.snapshot(made, rates, np.random.default_rng(2))
    at = now.resources.index("network")
    sent = rates.network_bytes_per_s.sum(axis=1) / (scenario.link_mb_per_s * 1e6)
    assert now.hosts.totals[:, at] == pytest.approx(sent, rel=0.05)
    found = live.measure(scenario, 40, 17)
    assert found.order > 0.9
    assert error(found) < float(np.concatenate(found.errors["no slow-down"]).mean())


def test_the_study_has_a_row_for_each_scenario_and_its_control_below_the_bar():
    page = (ROOT / "docs" / "studies" / "placement.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| [\d,]+ \| [^|]+ \| (\d+\.\d) \(", page, re.MULTILINE))
    assert set(rows) == set(live.SCENARIOS)
    assert float(rows["control"]) <= 100 * live.CONTROL_BAR
