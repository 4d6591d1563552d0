"""The words of `explain` and of `top`'s detail pane, from the message on."""

import math

import pytest
from rich.console import Console

from agent.detection.decision_types import VERDICTS
from agent.display import render
from agent.display.explanation import Grid, arithmetic, found_here, head, numbers, suspects
from whitepanda.v1 import agent_pb2, host_pb2


def explained(**changes):
    known = {
        "statistics": agent_pb2.JobStatistics(
            job="web", platform="Xeon", samples=1000, mean_cpi=0.7625, std_cpi=0.05709
        ),
        "cpi": 1.027,
        "n_cpi": 3.0,
        "mn_cpi": math.nan,
    }
    return host_pb2.VmExplanation(**(known | changes))


def lines(parts):
    return [str(piece) for piece in parts]


ROBUST = agent_pb2.JobStatistics(
    job="web",
    platform="Xeon",
    samples=1000,
    mean_cpi=0.7625,
    std_cpi=0.05709,
    location_log_cpi=-0.27,
    scale_log_cpi=0.06,
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_cpi": (1.027 - 0.7625) / 0.05709}, "nCPI 4.63 = (1.027 - 0.7625) / 0.05709"),
        ({"statistics": ROBUST}, "nCPI 4.94 = (ln 1.027 + 0.27) / 0.06, by median and quartiles; cut to 3"),
        (
            {"statistics": ROBUST, "cpi": 0.8, "n_cpi": (math.log(0.8) + 0.27) / 0.06},
            "nCPI 0.781 = (ln 0.8 + 0.27) / 0.06, by median and quartiles",
        ),
    ],
)
def test_the_arithmetic_of_n_cpi_is_true(changes, said):
    answer = explained(**changes)
    assert f"CPI over the last slot {answer.cpi:.4g}: {said}" in lines(arithmetic(answer))


@pytest.mark.parametrize(("age_ns", "said"), [(0, "less than 1 s old"), (120 * 10**9, "2 min old")])
def test_coefficients_have_an_age_that_people_expect(age_ns, said):
    answer = explained(coefficient_version=7, coefficient_age_ns=age_ns)
    assert f"coefficients: version 7, {said}" in lines(arithmetic(answer))


def decided(answer, verdict, *found_by, **known):
    """Give the explained VM a decision, as the agent does."""
    answer.vm.state = "running"
    answer.vm.decision.CopyFrom(
        host_pb2.VmDecision(
            verdict=agent_pb2.Behaviour.Value(f"BEHAVIOUR_{verdict.upper()}"), found_by=found_by, **known
        )
    )
    return answer


def test_each_of_the_two_analyses_says_what_it_finds_and_the_verdict_is_one():
    answer = decided(explained(), "victim", agent_pb2.ANALYSIS_HOST, reason="ipc 0.61 is below 0.95")
    answer.vm.verdict = "normal"
    answer.vm.verdict_reason = "CPI 3.1, limit 1.9"
    own = answer.vm.cloud_white
    own.behaviour, own.since_ns, own.reason = agent_pb2.BEHAVIOUR_VICTIM, 95 * 10**9, "ipc 0.61 is below 0.95"
    said = lines((*head(answer), *found_here(answer), *arithmetic(answer)))
    assert [line for line in said if "victim" in line] == ["victim: ipc 0.61 is below 0.95"]
    assert "found by the host's own analysis" in said
    assert "the host's own analysis: suffers for 95 s: same reason" in said
    assert "the fleet's statistics: nothing found: CPI 3.1, limit 1.9" in said


HOST, FLEET = "the host's own analysis", "the fleet's statistics"


@pytest.mark.parametrize(
    ("analyses", "said"),
    [
        ((), ""),
        ((agent_pb2.ANALYSIS_HOST,), HOST),
        ((agent_pb2.ANALYSIS_FLEET,), FLEET),
        ((agent_pb2.ANALYSIS_HOST, agent_pb2.ANALYSIS_FLEET), f"{HOST} and {FLEET}"),
    ],
)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_of_a_vm_that_suffers_it_is_said_how_much_by_whom_and_who_found_it(verdict, analyses, said):
    answer = decided(explained(), verdict, *analyses, reason="why")
    if analyses:
        answer.vm.decision.slow_down.CopyFrom(agent_pb2.Degradation(ratio=1.3, low=0.9, high=1.8))
    shown = lines(head(answer))
    assert shown[2] == f"{verdict}: why"
    suffers = verdict in ("victim", "affected")
    assert ("no suspect" in shown) == (f"found by {said}" in shown) == suffers
    assert ("slow-down 1.30x [0.90, 1.80]: latency (p95)" in shown) == (suffers and bool(analyses))


@pytest.mark.parametrize(
    ("slow_down", "said"),
    [
        ({"ratio": 1.62, "low": 1.2, "high": 2.0, "model": "cpi"}, "1.62x CPI [1.20, 2.00]: CPI / mean CPI of the job"),
        ({"ratio": 1.62, "low": 1.2, "high": 2.0, "model": "m"}, "1.62x [1.20, 2.00]: latency (p95)"),
        (
            {"ratio": math.nan, "cannot_tell": "missing:ipc"},
            "-: missing:ipc: a signal that the model needs is not known here; `whitepanda explain VM` has the reason",
        ),
    ],
)
def test_a_slow_down_says_of_what_it_is_or_why_it_is_not_known(slow_down, said):
    answer = decided(explained(), "victim", agent_pb2.ANALYSIS_HOST, slow_down=agent_pb2.Degradation(**slow_down))
    assert f"slow-down {said}" in lines(head(answer))


def test_the_first_suspect_is_named_and_how_many_more_there_are():
    reported = [host_pb2.Suspect(name=name) for name in ("batch-1", "batch-2")]
    answer = decided(explained(), "victim", agent_pb2.ANALYSIS_HOST, suspects=reported, suspects_left_out=3)
    assert "first suspect batch-1, 4 more below" in lines(head(answer))


@pytest.mark.parametrize(
    ("triggered", "mn_cpi", "said"),
    [
        (True, 1.4, "contention"),
        (True, 0.4, "contention"),  # the trigger goes off later than it comes on
        (False, 1.4, "not for long enough to be contention"),
        (False, 1.0, "no contention"),
        (False, 0.4, "no contention"),
    ],
)
def test_that_there_is_no_contention_is_said_only_where_nothing_speaks_for_it(triggered, mn_cpi, said):
    answer = explained(mn_cpi=mn_cpi, mn_cpi_threshold=1.0, triggered=triggered)
    assert f"host: mnCPI {mn_cpi:.3g}, threshold 1: {said}" in lines(arithmetic(answer))


def drawn(grid, width):
    console = Console(width=width)
    with console.capture() as taken:
        console.print(render.table_of(grid.columns, grid.rows, width)[0])
    return [line.rstrip() for line in taken.get().splitlines()]


def suspected(*names):
    reported = [
        host_pb2.Suspect(name=name, job="backup", coefficient=0.5, cpu_usage_cores=4, score=2) for name in names
    ]
    answer = decided(host_pb2.VmExplanation(suspects=reported), "victim", agent_pb2.ANALYSIS_HOST)
    (grid,) = (piece for piece in suspects(answer) if isinstance(piece, Grid))
    return grid


def test_suspects_with_a_common_beginning_and_end_are_distinguished_whatever_the_width():
    grid = suspected(*(f"customer-{n}-backup-of-primary" for n in (1, 2)))
    assert drawn(grid, 60) == [
        "SUSPECT              JOB    COEFFICIENT CORES SCORE INFLICTS",
        "customer-1…f-primary backup        0.50  4.00  2.00 -",
        "customer-2…f-primary backup        0.50  4.00  2.00 -",
    ]
    assert drawn(grid, 54) == [
        "SUSPECT               COEFFICIENT CORES SCORE INFLICTS",
        "customer-1…of-primary        0.50  4.00  2.00 -",
        "customer-2…of-primary        0.50  4.00  2.00 -",
    ]
    # No other column can give room, and a cut would make them one: they are folded.
    assert drawn(grid, 34) == [
        "SUSPECT             SCORE INFLICTS",
        "customer-1-backup-o  2.00 -",
        "f-primary",
        "customer-2-backup-o  2.00 -",
        "f-primary",
    ]


def test_signals_and_metrics_are_distinguished_and_what_is_left_out_is_reported():
    names = ("memory_bandwidth_bytes_per_s", "memory_bandwidth_local_bytes_per_s", "memory_stall_ratio")
    answer = explained(signals=[host_pb2.Signal(name=name, value=17e9, learnt=5e9, baseline=6e9) for name in names])
    answer.vm.metrics.extend(host_pb2.Metric(name=name, value=17e9, source="perf") for name in names)
    answer.vm.cloud_white.reason = "why"
    for part, width, titles in (
        (found_here, 60, ["LEARNT", "THRESHOLD"]),
        (found_here, 50, ["LEARNT", "THRESHOLD", "EXPECTED"]),
        (numbers, 50, ["AGE"]),
    ):
        (grid,) = (piece for piece in part(answer) if isinstance(piece, Grid))
        titled, *rows = drawn(grid, width)
        assert max(map(len, (titled, *rows))) <= width
        assert len({row.split()[0] for row in rows}) == len(names) == len(rows)
        assert render.table_of(grid.columns, grid.rows, width)[2] == titles
        assert not set(titles) & set(titled.split())
    assert [line.plain for line in render.no_room(["AGE", "JOB"])] == ["no room for AGE, JOB: widen the terminal"]
    assert render.no_room([]) == []


@pytest.mark.parametrize(("one", "s"), [(1, ""), (2, "s")])
def test_one_of_a_thing_is_no_plural(one, s):
    answer = explained(victim_slots=one)
    answer.statistics.samples = one
    answer.vm.vcpus = one
    answer.vm.cloud_white.baseline_ticks = one
    answer.signals.add(name="workers_looks", value=one)
    said = "\n".join(lines([*head(answer), *found_here(answer), *arithmetic(answer)]))
    for what in (f"{one} vCPU{s}, ", f"baseline of {one} tick{s} (", f"({one} sample{s})"):
        assert what in said
    for what in (f", {one} sample{s}:", f"for {one} slot{s} in a row"):
        assert what in said


def test_the_slow_down_of_an_event_that_ends_an_episode_is_what_it_was_at_worst():
    degradation = agent_pb2.Degradation(ratio=1.57, low=1.23, high=2.0)
    reported = {
        now: render.event_line(agent_pb2.VmEvent(name="web-1", behaviour=now, degradation=degradation))
        for now in (agent_pb2.BEHAVIOUR_VICTIM, agent_pb2.BEHAVIOUR_STEADY, agent_pb2.BEHAVIOUR_UNKNOWN)
    }
    assert reported[agent_pb2.BEHAVIOUR_VICTIM].endswith("-> victim, 1.57x [1.23, 2.00]")
    assert reported[agent_pb2.BEHAVIOUR_STEADY].endswith("-> steady; 1.57x [1.23, 2.00] at worst while it suffered")
    assert reported[agent_pb2.BEHAVIOUR_UNKNOWN].endswith("-> unknown; 1.57x [1.23, 2.00] at worst while it suffered")
