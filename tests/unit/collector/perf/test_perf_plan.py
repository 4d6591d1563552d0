"""Groups within a budget of counters, and a plan that shrinks to what the CPU runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import PERF_EVENTS, Reason
from collector.perf.cpu import CorePmu
from collector.perf.encoding import Event
from collector.perf.events import TYPE_RAW, Catalog, resolve
from collector.perf.microarch import load_microarchs
from collector.perf.plan import RANK, Trial, basic_plan, beside_base, fit_plan, make_plan

EVENTS = {name: Event(name, TYPE_RAW, number) for number, name in enumerate(RANK)}
BASE = ("cycles", "instructions")


class Pmu:
    """A core: a group is refused beyond `counters`, and waits beyond what others leave `free`."""

    def __init__(self, counters, *, fixed=(), free=None, unknown=()):
        self.counters, self.fixed, self.unknown = counters, set(fixed), set(unknown)
        self.free = counters if free is None else free
        self.tried = []

    def __call__(self, group):
        names = [event.name for event in group]
        self.tried.append(names)
        needed = sum(name not in self.fixed for name in names)
        if needed > self.counters or self.unknown & set(names):
            return Trial.REFUSED
        return Trial.RUNS if needed <= self.free else Trial.WAITS


def test_every_event_has_a_rank():
    assert sorted(RANK) == sorted(PERF_EVENTS[2:])
    assert RANK[:3] == ("llc_misses", "memory_stall_cycles", "l2_misses")


def test_all_fit_one_group():
    plan = make_plan(EVENTS, 6)
    assert plan.layout == ((*BASE, *RANK),)
    assert plan.missing == {}
    assert plan.events == 8


def test_what_does_not_fit_goes_into_further_groups_in_the_order_of_rank():
    plan = make_plan(EVENTS, 2, frozenset({"reference_cycles"}))
    assert plan.layout == (
        (*BASE, "reference_cycles", "llc_misses", "memory_stall_cycles"),
        (*BASE, "reference_cycles", "l2_misses", "total_stall_cycles"),
        (*BASE, "reference_cycles", "core_stall_cycles"),
    )


def test_without_a_counter_beside_the_base_only_fixed_events_are_left():
    plan = make_plan(EVENTS, 0, frozenset({"reference_cycles"}))
    assert plan.layout == ((*BASE, "reference_cycles"),)
    assert plan.missing == dict.fromkeys(set(RANK) - {"reference_cycles"}, Reason.NO_COUNTER)


def test_a_basic_plan_has_a_reason_for_all_else():
    plan = basic_plan(Reason.SOURCE_OFF)
    assert plan.layout == (BASE,)
    assert plan.missing == dict.fromkeys(RANK, Reason.SOURCE_OFF)


@given(names=st.sets(st.sampled_from(RANK)), beside=st.integers(0, 8), fixed=st.sets(st.sampled_from([*RANK, *BASE])))
def test_a_plan_has_every_event_once_and_keeps_the_budget(names, beside, fixed):
    plan = make_plan({name: EVENTS[name] for name in names}, beside, frozenset(fixed))
    counted = [name for group in plan.layout for name in group[2:] if name not in fixed]
    assert sorted([*counted, *plan.missing]) == sorted(names - fixed)
    assert counted == sorted(counted, key=RANK.index)
    for group in plan.layout:
        assert group[:2] == BASE
        assert sum(name not in fixed for name in group[2:]) <= beside
        assert {name for name in group[2:] if name in fixed} == names & fixed
    assert len(plan.groups) == max(1, -(-len(counted) // beside) if beside else 1)


@pytest.mark.parametrize(
    ("file", "smt", "watchdog", "reserved", "beside"),
    [
        ("intel-skylake-sp", True, False, 2, 2),
        ("intel-skylake-sp", True, True, 2, 1),
        ("intel-skylake-sp", False, True, 2, 5),
        ("intel-icelake-sp", True, True, 2, 5),
        ("amd-zen4", True, False, 2, 2),
        ("amd-zen4", True, True, 2, 1),
        ("amd-zen4", True, True, 4, 0),
        ("arm-neoverse-v1", True, False, 2, 3),
    ],
)
def test_budgets_of_real_cpus(file, smt, watchdog, reserved, beside):
    catalog = resolve(load_microarchs()[file], CorePmu("cpu", TYPE_RAW), smt=smt)
    assert beside_base(catalog, reserved, watchdog=watchdog) == beside


def fitted(pmu, *, programmable=8, fixed=(), events=EVENTS, missing=None):
    catalog = Catalog("test", events, missing or {}, programmable=programmable, fixed=frozenset(fixed))
    return fit_plan(catalog, beside_base(catalog, 0, watchdog=False), pmu)


def test_a_plan_that_runs_is_kept():
    pmu = Pmu(8, fixed=BASE)
    plan = fitted(pmu, fixed=BASE)
    assert plan.layout == ((*BASE, *RANK),)
    assert plan.missing == {}


@pytest.mark.parametrize("limit", [{"counters": 5}, {"counters": 8, "free": 5}])
def test_a_group_that_is_refused_or_never_runs_is_too_large(limit):
    pmu = Pmu(**limit)
    plan = fitted(pmu)
    assert plan.layout == ((*BASE, *RANK[:3]), (*BASE, *RANK[3:]))
    assert all(pmu(group) is Trial.RUNS for group in plan.groups)


def test_waiting_says_nothing_where_even_cycles_and_instructions_wait():
    plan = fitted(Pmu(8, free=0))
    assert plan.layout == ((*BASE, *RANK),)


def test_an_event_that_the_hypervisor_below_does_not_offer_is_missing():
    plan = fitted(Pmu(8, unknown={"llc_misses"}), missing={"core_stall_cycles": Reason.NO_EVENT})
    assert plan.missing == {"llc_misses": Reason.NO_EVENT, "core_stall_cycles": Reason.NO_EVENT}
    assert "llc_misses" not in plan.layout[0]


def test_no_room_beside_the_base_is_no_counter():
    plan = fitted(Pmu(2))
    assert plan.layout == (BASE,)
    assert plan.missing == dict.fromkeys(RANK, Reason.NO_COUNTER)


def test_a_fixed_counter_that_is_not_there_is_not_counted_on():
    # A virtual machine's PMU: reference cycles take one of the four as all others do.
    plan = fitted(Pmu(3), fixed=(*BASE, "reference_cycles"))
    assert plan.layout == tuple((*BASE, name) for name in RANK)
    assert plan.missing == {}


def test_without_further_events_nothing_further_is_tried():
    pmu = Pmu(2)
    assert fitted(pmu, events={}, missing=dict.fromkeys(RANK, Reason.NO_EVENT)).layout == (BASE,)
    assert pmu.tried == []


@given(counters=st.integers(2, 10), free=st.integers(2, 10), promised=st.integers(0, 12))
def test_a_fitted_plan_always_runs(counters, free, promised):
    pmu = Pmu(counters, free=min(counters, free))
    plan = fitted(pmu, programmable=promised)
    assert all(pmu(group) is Trial.RUNS for group in plan.groups)
    assert {name for group in plan.layout for name in group[2:]} | plan.missing.keys() == set(RANK)
