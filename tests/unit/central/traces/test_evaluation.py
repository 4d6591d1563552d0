"""The protocol of PANDA's section 5.2 on a trace made by hand, whose events and percentiles are known."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.contention.normalised_cpi import TaskSlot
from agent.analysis.contention.suspect_scores import rank_suspects
from central.models.antagonists.panda import CpiMoments
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.traces.events import Event, History, events_of
from central.traces.methods import METHODS, Known, Panda
from central.traces.protocol import LEAST_MACHINES, evaluate

VICTIMS, BATCH = (1, 2), (5, 6, 7)
QUIET = (1.0, 1.2)  # CPI by turns: mean 1.1, std 0.1


def day_of(day, raised=(), *, machine=0, usage=(0.1, 0.2, 0.3), slots=range(SLOTS_PER_DAY), only=VICTIMS):
    """Two latency-sensitive tasks, of one job each, and three of batch; CPI is 2 in the slots `raised`."""
    rows = []
    for slot in slots:
        for job in VICTIMS:
            cpi = 2.0 if slot in raised and job in only else QUIET[(slot + job) % 2]
            rows.append((machine, day * SLOTS_PER_DAY + slot, 100 + job, job, 0, True, 0.05, cpi))
        for job, used in zip(BATCH, usage, strict=True):
            rows.append((machine, day * SLOTS_PER_DAY + slot, 100 + job, job, 0, False, used, np.nan))
    return TaskSlots(*(np.array(column) for column in zip(*rows, strict=True)))


def found_of(*days, antagonists=(6,)):
    """Events of the last day."""
    history, moments = History(), None
    for day in days[:-1]:
        history.add(day)
        today = CpiMoments.of(day.job, day.platform, day.cpi)
        moments = moments.merge(today) if moments else today
    statistics = moments.statistics()
    rows = TaskSlots.concatenate(list(days[-2:]))
    first = (len(days) - 1) * SLOTS_PER_DAY
    limits = history.thresholds(statistics)
    return list(events_of(rows, first, statistics, limits, np.array(antagonists)).events)


def evaluated_machines(count, antagonist=6):
    """An evaluation of `count` machines, which trigger twice each on the last of two days."""
    raised = (100, 101, 102, 103)
    first = TaskSlots.concatenate([day_of(0, machine=m) for m in range(count)])
    last = TaskSlots.concatenate([day_of(1, raised=raised, machine=m) for m in range(count)])
    methods = {"cpi2": METHODS["cpi2"](), "known": Known({6: 10.0})}
    return evaluate([(0, first), (1, last)], np.array([antagonist]), methods, from_day=1)


def slots_of(events):
    return [event.slot % SLOTS_PER_DAY for event in events]


def test_the_third_slot_with_a_victim_triggers():
    events = found_of(day_of(0), day_of(1, raised=(100, 101, 102, 103, 200, 201)))
    assert slots_of(events) == [102, 103]
    event = events[0]
    assert event.mn_cpi == pytest.approx((2.0 - 1.1) / 0.1)
    assert event.suspect_job.tolist() == [5, 6, 7]
    assert event.is_antagonist.tolist() == [False, True, False]
    assert event.victim_job.tolist() == [1, 2]
    assert event.suspect_usage[:, -1].tolist() == [0.1, 0.2, 0.3]
    assert event.victim_cpi[0, -3:].tolist() == [2, 2, 2]
    assert event.victim_cpi.shape == (2, 24)


def test_victims_in_a_row_may_differ_and_cross_midnight():
    late, early = day_of(1, raised=(286, 287), only=(1,)), day_of(2, raised=(0,), only=(2,))
    assert slots_of(found_of(day_of(0), late, early)) == [0]


def test_a_gap_ends_the_row():
    slots = [s for s in range(SLOTS_PER_DAY) if s != 101]
    assert slots_of(found_of(day_of(0), day_of(1, raised=(99, 100, 102, 103), slots=slots))) == []


def test_machines_and_days_have_their_own_percentile():
    """A machine whose mnCPI has been as high before does not trigger; a machine without history never does."""
    raised = tuple(range(100, 110))
    assert slots_of(found_of(day_of(0, raised=raised), day_of(1, raised=(100, 101, 102)))) == []
    other = day_of(1, raised=(100, 101, 102), machine=1)
    assert found_of(day_of(0), other) == []


def test_no_event_without_an_antagonist_or_another_suspect():
    raised = day_of(1, raised=(100, 101, 102))
    assert found_of(day_of(0), raised, antagonists=(99,)) == []
    assert found_of(day_of(0), raised, antagonists=(1,)) == []  # latency-sensitive ones are no suspects
    alone = raised.take(~np.isin(raised.job, (5, 7)))
    assert found_of(day_of(0), alone) == []


def test_windows_are_zero_or_unknown_where_a_task_was_not_there():
    today = day_of(1, raised=(100, 101, 102))
    today = today.take(~((today.job == 6) & (today.slot < SLOTS_PER_DAY + 99)))
    (event,) = found_of(day_of(0), today.take(~((today.job == 1) & (today.slot % SLOTS_PER_DAY == 90))))
    assert event.suspect_usage[1].tolist() == [0.0] * 20 + [0.2] * 4
    assert np.flatnonzero(np.isnan(event.victim_cpi[0])).tolist() == [23 - 12]
    (event,) = found_of(day_of(0), day_of(1, raised=(0, 1, 2)))  # reaches into the day before
    assert event.suspect_usage[0].tolist() == [0.1] * 24


def test_percentiles_by_hand():
    days = [(0, day_of(0)), (1, day_of(1)), (2, day_of(2, raised=(100, 101, 102, 103)))]
    methods = {
        "best": Known({6: 10.0, 7: 1.0}),  # scores 0, 2, 0.3
        "tied": Known({}),
        "last": Known({5: 1.0, 6: -1.0}),
    }
    found = evaluate(days, np.array([6]), methods, from_day=2)
    assert (found.events, found.machines, found.days, found.evaluated_days) == (2, 1, 3, 1)
    assert {name: result.mean_percentile.value for name, result in found.methods.items()} == {
        "best": 1.0,
        "tied": 0.5,
        "last": 0.0,
    }
    first = {name: result.first_is_antagonist.value for name, result in found.methods.items()}
    assert first == {"best": 1.0, "tied": pytest.approx(1 / 3), "last": 0.0}
    assert all(result.consistency.value == 1.0 for result in found.methods.values())
    assert all((result.ranked, result.pairs) == (2, 2) for result in found.methods.values())
    both = evaluate(days, np.array([6, 7]), methods, from_day=2).methods["best"]
    assert both.mean_percentile.value == 0.75  # ranks 1 and 2 of 3
    assert both.ranked == 4


def test_consistency_and_average_over_victims():
    class Divided:
        """Victim 1 blames job 5 alone, victim 2 mostly job 6."""

        def learn(self, day):
            pass

        def settle(self):
            pass

        def scores(self, event):
            return np.array([[0.4, 0.0, 0.1], [0.0, 0.6, 0.1]])

    days = [(0, day_of(0)), (1, day_of(1, raised=(100, 101, 102)))]
    found = evaluate(days, np.array([6]), {"divided": Divided()}, from_day=1).methods["divided"]
    assert found.mean_percentile.value == 1.0
    assert found.consistency.value == 0.0
    assert found.pairs == 1


@pytest.mark.parametrize(
    ("scores", "percentile", "first"),
    [
        ([0.3, 0.1 + 0.2, -np.inf], 0.75, 0.5),
        ([-0.3, -(0.1 + 0.2), 1e-12], 0.25, 0.0),
        ([0.3, 0.3 + 1e-8, 0.0], 1.0, 1.0),
        ([0.0, 0.0, 0.0], 0.5, 1 / 3),
        ([-np.inf, -np.inf, -np.inf], 0.5, 1 / 3),
    ],
)
def test_scores_that_the_order_of_additions_reports_apart_are_tied(scores, percentile, first):
    class Given:
        def learn(self, day):
            pass

        def settle(self):
            pass

        def scores(self, event):
            return np.array([scores])

    days = [(0, day_of(0)), (1, day_of(1, raised=(100, 101, 102)))]
    found = evaluate(days, np.array([6]), {"given": Given()}, from_day=1).methods["given"]
    assert found.mean_percentile.value == percentile
    assert found.first_is_antagonist.value == first


def test_a_method_knows_only_the_days_before():
    class Watched(Panda):
        def learn(self, day):
            seen.append(("learn", int(day.slot[0]) // SLOTS_PER_DAY))
            super().learn(day)

        def settle(self):
            seen.append(("settle", None))
            super().settle()

    seen = []
    evaluate([(n, day_of(n)) for n in range(3)], np.array([6]), {"panda": Watched()}, from_day=1)
    assert seen == [("learn", 0), ("settle", None), ("learn", 1), ("settle", None), ("learn", 2)]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 8)), min_size=1, max_size=9),
    st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    st.sampled_from(["panda", "whitepanda"]),
)
def test_hosts_rank_as_the_evaluation_does(tasks, values, method):
    """Jobs 0 to 2 have coefficients, 3 and 4 have none."""
    job, usage = np.array([job for job, _ in tasks]), np.array([[0.0, usage] for _, usage in tasks])
    none = np.empty(0)
    event = Event("m", 0, 9.0, job, usage, job == 0, none, none, none)
    made = METHODS[method]()
    made._jobs, made._values = np.arange(3), np.array(values)
    scores = made.scores(event)[0]
    slots = [TaskSlot(str(n), str(job), False, None, usage) for n, (job, usage) in enumerate(tasks)]
    ranked = rank_suspects(slots, {str(job): value for job, value in enumerate(values)}, method)
    in_order = [scores[int(suspect.task)] for suspect in ranked]
    assert in_order == sorted(scores.tolist(), reverse=True)
    assert all(suspect.score is None or suspect.score == score for suspect, score in zip(ranked, in_order, strict=True))


@pytest.mark.parametrize("machines", [1, 3, 4])
def test_few_machines_have_no_interval(machines):
    """The draw of three machines that has one of them alone thrice is more frequent than the interval's ends."""
    found = evaluated_machines(machines)
    assert (found.machines, LEAST_MACHINES) == (machines, 4)
    known = (None, None) if machines < 4 else (1.0, 1.0)
    for estimate in (found.methods["known"].mean_percentile, found.methods["known"].consistency):
        assert (estimate.value, estimate.low, estimate.high) == (1.0, *known)


def test_machines_without_pairs_do_not_count_for_the_interval_of_consistency():
    """Five machines trigger, three of them with two victims at once."""
    raised = (100, 101, 102)
    first = [day_of(0, machine=machine) for machine in range(5)]
    last = [day_of(1, raised, machine=m, only=VICTIMS if m < 3 else (1,)) for m in range(5)]
    days = [(0, TaskSlots.concatenate(first)), (1, TaskSlots.concatenate(last))]
    found = evaluate(days, np.array([6]), {"known": Known({6: 10.0})}, from_day=1)
    assert (found.machines, found.methods["known"].pairs) == (5, 3)
    estimate = found.methods["known"].mean_percentile
    assert (estimate.value, estimate.low, estimate.high) == (1.0, 1.0, 1.0)
    estimate = found.methods["known"].consistency
    assert (estimate.value, estimate.low, estimate.high) == (1.0, None, None)


@pytest.mark.parametrize(("antagonist", "events"), [(6, 4), (1, 0), (99, 0)])
def test_triggers_without_an_antagonist_are_counted(antagonist, events):
    found = evaluated_machines(2, antagonist)
    assert (found.triggers, found.events) == (4, events)


@pytest.mark.parametrize("sensitive", [True, False])
def test_days_with_nobody_who_could_suffer(sensitive):
    """Without a latency-sensitive task, or without a CPI of any, nothing triggers and nothing breaks."""
    days = []
    for number in range(3):
        day = day_of(number, raised=(100, 101, 102))
        cpi = np.full(day.rows, np.nan) if sensitive else day.cpi
        days.append((number, replace(day, cpi=cpi, latency_sensitive=day.latency_sensitive & sensitive)))
    found = evaluate(days, np.array([6]), {name: make() for name, make in METHODS.items()}, from_day=1)
    assert (found.triggers, found.events, found.evaluated_days) == (0, 0, 2)


def test_cpi2_ages_by_the_calendar():
    """Three days without data between two that have some: what was known weighs 0.9 to the fourth."""
    aged = {}
    for gap in (1, 4):
        method = METHODS["cpi2"]()
        for number in (7, 7 + gap):
            method.learn(day_of(number, slots=range(10)))
        aged[gap] = method._spec.weight.tolist()
    assert aged == {1: pytest.approx([10 + 10 * 0.9] * 2), 4: pytest.approx([10 + 10 * 0.9**4] * 2)}


def test_no_event_is_no_number():
    found = evaluate([(0, day_of(0)), (1, day_of(1))], np.array([6]), {"panda": Panda()}, from_day=1)
    assert found.events == 0
    estimate = found.methods["panda"].mean_percentile
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)


def test_every_method_finds_the_one_whose_usage_goes_along():
    rng = np.random.default_rng(0)
    days = []
    for day in range(4):
        parts = []
        for machine in range(4):
            high = (np.arange(SLOTS_PER_DAY) // 8 + machine) % 12 == 0
            made = day_of(day, machine=machine)
            slot = made.slot % SLOTS_PER_DAY
            usage = np.where(
                made.job == 6, np.where(high[slot], 1.0, 0.01), made.usage * rng.lognormal(0, 0.3, made.rows)
            )
            strength = 1 + 0.01 * day  # so that the last days pass the percentile of those before
            cpi = made.cpi * np.where(high[slot], 1.8 * strength, 1.0) * rng.lognormal(0, 0.05, made.rows)
            new = {"usage": usage, "cpi": cpi}
            parts.append(TaskSlots(*(new.get(f.name, getattr(made, f.name)) for f in fields(made))))
        days.append((day, TaskSlots.concatenate(parts)))
    found = evaluate(days, np.array([6]), {name: make() for name, make in METHODS.items()}, from_day=2)
    assert found.events >= 3
    for name, result in found.methods.items():
        assert result.mean_percentile.value > 0.9, name
        assert result.mean_percentile.low <= result.mean_percentile.value <= result.mean_percentile.high
        if "panda" in name:
            assert result.consistency.value == 1.0, name
    assert found.methods["panda"].minus_panda.value == 0.0
