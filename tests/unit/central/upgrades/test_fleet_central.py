"""`whitepanda fleet plan|compare --central`: over mTLS gRPC, the output and JSON that files and the lake give."""

import asyncio
import json
from pathlib import Path

import pytest

from central.lake.segments import DAY_NS, Lake
from central.upgrades.lake_rows import Side, parse_side, read_side
from central.upgrades.messages import comparison_request, plan_request
from central.upgrades.plan import PlanOptions
from central.upgrades.tables import jobs_of, write_jobs, write_rows
from tests.support.fleet_cli import QuotaFacts, quotas
from tests.unit.central.api.test_fleet_api import certificates, served  # noqa: F401 - fixtures
from whitepanda.common.errors import InputError

DAY_1 = "from=1970-01-02,until=1970-01-03"
ALL = "from=1970-01-01,until=1970-01-03"


@pytest.fixture
def ask(served, lake, run):  # noqa: F811 - the fixtures; central's lake is the folder of `lake`
    served.fleet.facts = QuotaFacts()
    folder = Path(served.certificates["operator"].ca).parent
    known = ("--central", f"127.0.0.1:{served.port}", "--tls", folder)

    async def call(*arguments, central=True):
        return await asyncio.to_thread(run, *arguments, *(known if central else ()))

    return call


def rounded(reported):
    """JSON without the last digits: shares go through the protocol as percents."""
    return json.loads(reported, parse_float=lambda digits: float(f"{float(digits):.11g}"))


@pytest.mark.long
async def test_a_comparison_is_reported_as_from_the_lake(ask, lake, tmp_path, monkeypatch):
    sides = (f"rest,{DAY_1}", f"hosts={lake.parent / 'test.csv'},{DAY_1}")
    use = ("--weigh-by", "use")
    more = (*use, "--metric", "mips", "--top", 1, "--confidence", 0.9, "--min-coverage", 0)
    here = await ask("compare", *sides, "--lake", lake, *more, central=False)
    assert await ask("compare", *sides, *more) == here
    assert "+10" in here[1] or "+9" in here[1]
    assert "mips, weighed by use" in here[1]
    assert "ipc, weighed by quota" in (await ask("compare", *sides))[1]
    plot = tmp_path / "c.png"
    here = await ask("compare", *sides, *use, "--lake", lake, "--json", central=False)
    there = await ask("compare", *sides, *use, "--json", "--plot", plot)
    assert (there[0], there[2], plot.read_bytes()[:4]) == (0, "", b"\x89PNG")
    assert rounded(there[1]) == rounded(here[1])
    assert rounded(here[1])["jobs_in_all"] == 2
    monkeypatch.setattr("central.api.decisions.upgrade_answers._MAX_JOBS", 1)
    assert "2 jobs in all, of which central sends the 1 heaviest" in (await ask("compare", *sides))[1]


@pytest.mark.long
async def test_a_plan_is_reported_and_made_again_as_from_files(ask, lake, tmp_path):
    rows = read_side(Lake(lake), Side("all", until_ns=2 * DAY_NS), "ipc", quotas)
    write_jobs(tmp_path / "jobs.parquet", jobs_of(rows))
    write_rows(tmp_path / "seen.csv", rows.observed)
    for more in (
        ("--margin-percent", 0.5, "--t", 1.9, "--machine-std-percent", 3),
        ("--margin-percent", 0.8, "--coverage", 0.5, "--observed", tmp_path / "seen.csv"),
        ("--margin-percent", 0.9, "--coverage", 0),
    ):
        here = await ask("plan", tmp_path / "jobs.parquet", *more, central=False)
        assert await ask("plan", ALL, *more) == here
        here = await ask("plan", tmp_path / "jobs.parquet", *more, "--json", central=False)
        there = await ask("plan", ALL, *more, "--json")
        assert (here[0], there[0], there[2]) == (0, 0, "")
        assert rounded(there[1]) == {**rounded(here[1]), "left_out": None}
    few = rounded((await ask("plan", f"platform=P,{ALL}", "--margin-percent", 5, "--json"))[1])
    assert sum(job["observe"] for job in few["jobs"]) == few["instances"] == 8


@pytest.mark.long
async def test_what_central_refuses_and_what_is_not_asked(ask, served, lake, tmp_path):  # noqa: F811
    central, hosts = f"127.0.0.1:{served.port}", f"hosts={lake.parent / 'test.csv'}"
    plan = ("plan", "--margin-percent", 1)
    for arguments, code, message in (
        ((*plan, ALL, "--metric", "x"), 3, f"central at {central}: metric 'x' is not in the lake; it has ipc"),
        ((*plan, f"platform=Z,{ALL}"), 3, f"central at {central}: platform 'Z': no host of it was measured"),
        ((*plan, "until=1969-01-01"), 3, "nothing was measured from 1970-01-01 00:00 UTC"),
        ((*plan, ALL, "--name", "host-1"), 4, "only operators may ask"),
        ((*plan, hosts), 3, f"side '{hosts}': a plan covers all hosts; give platform=, from= and until="),
        ((*plan, "rest"), 3, "side 'rest': rest needs two sides; there is one"),
        (("compare", "rest", hosts, "--lake", lake), 3, "--lake is read here, and --central reads its own lake"),
        (("compare", hosts, hosts), 3, "are the same samples"),
    ):
        found, out, err = await ask(*arguments)
        assert (found, out, message in err, err.count("\n")) == (code, "", True, 1), err
    for arguments, code, message in (
        (plan, 3, "JOBS is needed, or --central HOST:PORT or --fleet NAME for the jobs of its lake"),
        ((*plan, "--central", central), 5, "give --tls DIR"),
    ):
        found, _, err = await ask(*arguments, central=False)
        assert (found, message in err, err.count("\n")) == (code, True, 1), err


def test_what_is_0_in_a_request_is_said_otherwise():
    made = plan_request(parse_side("from=1950-01-01,until=9999-01-01"), "", PlanOptions(1.0, coverage=0.0, top=2**40))
    assert 0 < made.coverage < 1e-300
    assert (made.since_unix_ns, made.until_unix_ns, made.top) == (1, 2**63 - 1, 2**32 - 1)
    unset = plan_request(parse_side(""), "", PlanOptions(1.0))
    assert (unset.coverage, unset.since_unix_ns, unset.until_unix_ns, unset.top) == (0, 0, 0, 0)
    sides = (Side("a", ("h1",), from_ns=0), Side("rest", not_hosts=("h1",)))
    asked = comparison_request(sides, "", min_instances=4, min_coverage=0.0, top=None, confidence=0.95)
    assert 0 < asked.min_coverage < 1e-300
    assert (list(asked.current_hosts), asked.current_rest, list(asked.new_hosts), asked.new_rest) == (
        ["h1"], False, [], True,
    )  # fmt: skip
    assert (asked.current_since_unix_ns, asked.new_since_unix_ns) == (1, 0)
    with pytest.raises(InputError, match="rest needs two sides"):
        parse_side("rest")
