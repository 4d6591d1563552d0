"""The words of `explain` and of `top`'s detail pane, from the message on."""

import math

import pytest
from rich.console import Console

from agent.cli import _render as render
from agent.cli._explanation import Grid, arithmetic, found_here, head, numbers, suspects
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
        (
            {"statistics": ROBUST},
            "nCPI 4.94 = (ln 1.027 + 0.27) / 0.06, by median and quartiles; cut to 3",
        ),
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


def test_each_of_the_two_analyses_speaks_for_itself():
    answer = explained()
    answer.vm.state, answer.vm.verdict = "running", "normal"
    answer.vm.verdict_reason = "CPI 3.1 is above 1.9; none of its VMs is a victim by this rule"
    own = answer.vm.cloud_white
    own.behaviour, own.since_ns, own.reason = agent_pb2.BEHAVIOUR_VICTIM, 95 * 10**9, "ipc 0.61 is below 0.95"
    said = lines((*head(answer), *found_here(answer)))
    assert [line for line in said if "victim" in line] == [
        "victim by the host's own analysis, normal by central's statistics",
        f"normal by central's statistics: {answer.vm.verdict_reason}",
        "victim for 95 s by the host's own analysis: ipc 0.61 is below 0.95",
    ]


DETECTOR = "detector noise_scaled says so by ipc, llc_mpki"
CENTRAL = "central's statistics say so by CPI"


@pytest.mark.parametrize(
    ("behaviour", "verdict", "interval", "rules"),
    [
        ("VICTIM", "normal", (0.9, 1.8), DETECTOR),
        ("STEADY", "victim", (0.9, 1.8), CENTRAL),
        ("VICTIM", "victim", (1.0, 1.8), f"{DETECTOR} and {CENTRAL}"),
        ("VICTIM", "victim", (1.01, 1.8), ""),
        ("VICTIM", "victim", (math.nan, math.nan), ""),
        ("STEADY", "normal", (0.9, 1.8), ""),
    ],
)
def test_a_victim_whose_interval_holds_1_has_the_rule_that_made_it_one(behaviour, verdict, interval, rules):
    answer = explained(
        detector="noise_scaled", evidence=[agent_pb2.Evidence(signal=name) for name in ("ipc", "llc_mpki")]
    )
    answer.vm.state, answer.vm.verdict = "running", verdict
    own = answer.vm.cloud_white
    own.behaviour = agent_pb2.Behaviour.Value(f"BEHAVIOUR_{behaviour}")
    own.degradation.ratio, (own.degradation.low, own.degradation.high) = 1.3, interval
    said = [line for line in lines(found_here(answer)) if "interval" in line]
    end = "the interval is of the model's estimate alone"
    assert said == ([f"a victim although the interval holds 1: {rules}; {end}"] if rules else [])


def drawn(grid, width):
    console = Console(width=width)
    with console.capture() as taken:
        console.print(render.table_of(grid.columns, grid.rows, width)[0])
    return [line.rstrip() for line in taken.get().splitlines()]


def suspected(*names):
    told = [
        host_pb2.Suspect(name=name, job="backup", coefficient=0.5, cpu_usage_cores=4, score=2)
        for name in names
    ]
    answer = host_pb2.VmExplanation(suspects=told)
    answer.vm.state, answer.vm.verdict = "running", "victim"
    (grid,) = (piece for piece in suspects(answer) if isinstance(piece, Grid))
    return grid


def test_suspects_with_a_common_beginning_and_end_are_told_apart_whatever_the_width():
    grid = suspected(*(f"customer-{n}-backup-of-primary" for n in (1, 2)))
    assert drawn(grid, 51) == [
        "SUSPECT              JOB    COEFFICIENT CORES SCORE",
        "customer-1…f-primary backup        0.50  4.00  2.00",
        "customer-2…f-primary backup        0.50  4.00  2.00",
    ]
    assert drawn(grid, 45) == [
        "SUSPECT               COEFFICIENT CORES SCORE",
        "customer-1…of-primary        0.50  4.00  2.00",
        "customer-2…of-primary        0.50  4.00  2.00",
    ]
    # No other column can give room, and a cut would make them one: they are folded.
    assert drawn(grid, 25) == [
        "SUSPECT             SCORE",
        "customer-1-backup-o  2.00",
        "f-primary",
        "customer-2-backup-o  2.00",
        "f-primary",
    ]


def test_signals_and_metrics_are_told_apart_and_what_is_left_out_is_told():
    names = ("memory_bandwidth_bytes_per_s", "memory_bandwidth_local_bytes_per_s", "memory_stall_ratio")
    answer = explained(
        signals=[host_pb2.Signal(name=name, value=17e9, learnt=5e9, baseline=6e9) for name in names]
    )
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
    assert [line.plain for line in render.no_room(["AGE", "JOB"])] == [
        "no room for AGE, JOB: widen the terminal"
    ]
    assert render.no_room([]) == []
