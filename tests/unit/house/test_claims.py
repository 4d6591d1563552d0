"""What the docs claim of the methods follows from the code: each fails where a page says more than it does."""

import re
from pathlib import Path

import pytest

from central.cli.antagonists import app as antagonists
from central.config import BuildSection

ROOT = Path(__file__).resolve().parents[3]


def prose(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_the_readme_says_whose_the_default_coefficients_are() -> None:
    assert BuildSection().method == "whitepanda"
    (central,) = re.findall(r"- \*\*Central\*\* .*?(?= - \*\*| - For each)", prose("README.md"))
    assert "(docs/methods.md#whitepanda-our-estimator) by default" in central
    assert "PANDA's" not in central
    assert antagonists.info.help.endswith("whitepanda's or PANDA's.")


@pytest.mark.parametrize(
    ("page", "said", "never"),
    [
        ("docs/fleet.md", "95 % intervals, no certainty", "for sure"),
        ("docs/runtime.md", "Over all rows, 1 run in 100", "and 1 run in 100"),
        ("docs/runtime.md", "for a single job it can be more", "Give the job the time"),
        ("docs/studies/cloud-white.md", "every tick that is scored", "in every scored tick"),
        ("docs/studies/trigger.md", "In its place a rise does", "until November"),
        ("docs/studies/trigger.md", "| by the floor | by the rise |", "was not measured"),
        ("docs/studies/pitot.md", "a workload has at most one", "its activation makes no difference"),
    ],
)
def test_pages_do_not_claim_more_than_was_measured(page: str, said: str, never: str) -> None:
    text = prose(page)
    assert said in text
    assert never not in text
