"""What the tick's loop does during contention grows with the VMs, not with their pairs: calls are counted, not time."""

import sys

import pytest

from agent.analysis.advice.recommendations import HostLimits
from agent.analysis.verdict import Verdict as Suffering
from agent.antagonists.advisor import Advisor
from agent.config import AnalysisSection
from tests.unit.agent.antagonists.test_host_analysis import SCAN, VICTIM, update
from tests.unit.agent.antagonists.test_llc_contention import LEFT, RIGHT, TwoSockets, on
from tests.unit.agent.canned_agents import HOST, Quiet, State, canned_vm, changed
from whitepanda.v1 import host_pb2

pytestmark = pytest.mark.long


FEW, MANY = 60, 480
METRICS = ("cpu_usage_cores", "llc_occupancy_bytes", "memory_bandwidth_bytes_per_s")


def calls(work) -> int:
    """Count the calls of functions that some work takes, with each step of a generator."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Found(Quiet):
    """`agent.detection.cloud_white.CloudWhite`: which suspects inflict, by their numbers; each on the VMs beside it."""

    def __init__(self, inflicting):
        self._inflicting = inflicting

    def verdict(self, uuid):
        kind, number = uuid.removeprefix("uuid-").rsplit("-", 1)
        if kind == "web":
            near = {20, *range(int(number), int(number) + 3)}
            return Suffering("victim", "", 0, culprits=tuple(f"uuid-scan-{n}" for n in near & self._inflicting))
        return Suffering("inflicting" if int(number) in self._inflicting else "steady", "", 0)


class Fleet:
    """A host of as many victims as suspects on two sockets, in contention."""

    def __init__(self, folder, vms, coefficient, inflicting):
        self.host = TwoSockets(folder, AnalysisSection(trigger="paper"))
        sent = update()
        sent.coefficients[0].value = coefficient
        assert self.host.store.apply(sent)
        sides = (LEFT, RIGHT)
        self.rows = [
            on(sides[n % 2], like, vm=f"{name}-{n}")
            for n in range(vms // 2)
            for name, like in (("web", VICTIM), ("scan", SCAN))
        ]
        self.host.run(9, *self.rows)
        values = tuple(host_pb2.Metric(name=name, value=1e8) for name in METRICS)
        views = tuple(
            canned_vm(row["vm"], row["job"], values, ls=False, epoch="1", vcpus=8)
            for row in ({"job": "web", **row} for row in self.rows)
        )
        state = State(changed(HOST, now_unix_ns=self.host.now), views, self.host.analysis, Found(inflicting))
        self.advisor = Advisor(state, self.host.store, HostLimits(cache_ways=12, min_bandwidth_percent=10))
        self.decisions = state.decisions
        self.listed = views
        self.reported = self.decisions.report(self.host.now)
        assert self.reported is not None


SITUATIONS = {
    "all accused, none cleared": (0.5, set[int]()),
    "all accused, one inflicts": (0.5, {20}),
    "all accused, too small a part": (0.001, {20}),
    "all inflict": (0.5, set(range(MANY))),
    "nobody accused": (-0.5, set[int]()),
}


@pytest.fixture(params=SITUATIONS.values(), ids=SITUATIONS)
def fleets(request, tmp_path):
    return [Fleet(tmp_path / str(vms), vms, *request.param) for vms in (FEW, MANY)]


def grows_linearly(few: int, many: int) -> bool:
    return many <= 1.1 * MANY / FEW * few


def test_advice_is_linear_in_the_vms(fleets):
    few, many = (calls(lambda f=fleet: f.advisor.with_advice(f.reported)) for fleet in fleets)
    assert grows_linearly(few, many), (few, many)


def test_advice_for_one_vm_is_linear_in_the_vms(fleets):
    few, many = (calls(lambda f=fleet: f.advisor.for_vm("uuid-web-2")) for fleet in fleets)
    assert grows_linearly(few, many), (few, many)


def test_judging_all_vms_is_linear_in_them(fleets):
    def judge(fleet):
        for row in fleet.rows:
            fleet.host.analysis.verdict(f"uuid-{row['vm']}")

    few, many = (calls(lambda f=fleet: judge(f)) for fleet in fleets)
    assert grows_linearly(few, many), (few, many)


def test_deciding_on_all_vms_and_telling_them_is_linear_in_them(fleets):
    def decide(fleet):
        fleet.decisions.tick(fleet.listed, 2000 * 10**9, fleet.host.now)
        for row in fleet.rows:
            fleet.decisions.vm(f"uuid-{row['vm']}")
        fleet.decisions.report(fleet.host.now + 10**12)

    few, many = (calls(lambda f=fleet: decide(f)) for fleet in fleets)
    assert grows_linearly(few, many), (few, many)


def test_a_windows_analysis_is_linear_in_the_vms(fleets):
    def observe(fleet):
        fleet.host.run(1, *fleet.rows)
        assert fleet.host.analysis.triggered

    few, many = (calls(lambda f=fleet: observe(f)) for fleet in fleets)
    assert grows_linearly(few, many), (few, many)


def test_only_suspects_that_can_be_named_are_looked_up(fleets):
    """Metrics are read once per VM for the host's totals, and of three suspects; the VMs are asked for once."""
    fleet, asked, read = fleets[0], [], 0

    class Rates:
        def __init__(self, rates):
            self._rates = rates

        def __getattr__(self, name):
            nonlocal read
            read += 1
            return getattr(self._rates, name)

    state = fleet.advisor._state
    listed = state.vms()
    for one in listed:
        one.rates = Rates(one.rates)
    state.vms = lambda: asked.append(1) or listed
    fleet.advisor.with_advice(fleet.reported)
    assert asked == [1]
    inflicting = sum(one.inflicts for one in fleet.reported.suspects)
    assert read <= 2 * (FEW + 3) + inflicting
