"""The words of `explain` and of `top`'s detail pane, from the message on."""

import math

import pytest

from agent.cli._explanation import arithmetic
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
