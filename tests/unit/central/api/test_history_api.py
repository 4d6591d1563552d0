"""QuerySeries and TopVms, by gRPC's code and as JSON: answers, bounds that are refused, pages, a client that goes."""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime

import grpc
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from central.api.fleet import Fleet
from central.api.requests import ApiError
from central.build.builder import Builder
from central.cli import history as command
from central.config import BuildSection
from central.history import queries
from central.incidents.store import IncidentStore
from central.ingest.sessions import StreamRegistry
from central.journal import metric_reasons
from central.journal.writer import Journal
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.validation.facts import FactRow
from central.validation.metric_reasons import ReasonRow
from central.web.server import make_app
from whitepanda.common.errors import InputError
from whitepanda.common.window_columns import WINDOW_COLUMNS
from whitepanda.v1 import agent_pb2, fleet_pb2

S = 10**9
DAY = 20_000 * DAY_NS
NOW = DAY + 1800 * S
VMS = tuple(f"vm-{number}" for number in range(6))


def window(number: int, at: int, cpi: float | None = 1.5, host: str = "h1") -> dict:
    return {
        **{field.name: "x" if field.type == pa.string() else None for field in SAMPLES},
        "host": host,
        "machine": host,
        "sequence": at // S * 10 + number,
        "vm": f"vm-{number}",
        "job": "even" if number % 2 == 0 else "odd",
        "latency_sensitive": False,
        "start_unix_ns": at,
        "duration_ns": 10 * S,
        "cpi": cpi,
        "cpu_usage_cores": float(number),
    }


@pytest.fixture
async def fleet(tmp_path):
    lake = Lake(tmp_path / "lake")
    rows = [window(number, DAY + k * 10 * S) for number in range(6) for k in range(60)]
    rows += [window(0, DAY + 900 * S, cpi=None), window(0, DAY + 960 * S, host="h2")]
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    journal, incidents = Journal(tmp_path, replica="central-0", commit_interval_s=0.001), IncidentStore("", tmp_path)
    journal.start()
    made = Fleet(journal, StreamRegistry(), lake, Builder(BuildSection(), lake), incidents, clock_unix_ns=lambda: NOW)
    yield made
    made.fleet_history.close()
    await journal.close()
    incidents.close()


def query(**fields: object) -> fleet_pb2.QuerySeriesRequest:
    return fleet_pb2.QuerySeriesRequest(**{"metrics": ["cpi"], "since_unix_ns": DAY, "until_unix_ns": NOW} | fields)


async def refused(fleet: Fleet, method: str, request: object) -> tuple[str, str, str]:
    with pytest.raises(ApiError) as caught:
        await fleet.answer(method, request)
    return caught.value.code.name, caught.value.field, str(caught.value)


async def test_a_vms_series_has_its_places_and_why_values_are_absent(fleet) -> None:
    found = await fleet.answer("QuerySeries", query(vms=["vm-0"], points=30))
    assert (found.since_unix_ns, found.until_unix_ns, found.step_ns, found.slot_ns) == (DAY, NOW, 60 * S, 0)
    [vm] = found.vms
    assert (vm.vm, vm.job) == ("vm-0", "even") and not found.next_page_token
    places = [(place.host, (place.since_unix_ns - DAY) // S, (place.until_unix_ns - DAY) // S) for place in vm.places]
    assert places == [("h1", 0, 600), ("h1", 900, 960), ("h2", 960, 1020)]
    [series] = vm.metrics
    assert (series.metric, series.unit) == ("cpi", "cycles/instruction")
    assert list(series.count) == [6] * 10 + [0] * 6 + [1] + [0] * 13
    assert series.mean[0] == series.min[0] == series.max[0] == 1.5 and series.mean[10] != series.mean[10]
    absences = [
        ((each.since_unix_ns - DAY) // S, (each.until_unix_ns - DAY) // S, each.reason) for each in series.absences
    ]
    assert absences == [(600, 900, "no_windows"), (900, 960, "unknown"), (1020, 1800, "no_windows")]


async def test_the_hosts_reason_is_given_from_when_it_held(fleet) -> None:
    number = next(column.number for column in WINDOW_COLUMNS if column.name == "llc_mpki")
    rows = [
        ReasonRow("h1", "vm-0", number, agent_pb2.REASON_IDLE, DAY),
        ReasonRow("h1", "vm-0", number, agent_pb2.REASON_NO_PMU, DAY + 300 * S),
    ]
    with sqlite3.connect(fleet.journal.path) as journal:
        metric_reasons.write(journal, rows)
    journal.close()
    found = await fleet.answer("QuerySeries", query(metrics=["llc_mpki"], vms=["vm-0"], points=6))
    [series] = found.vms[0].metrics
    assert [each.reason for each in series.absences] == ["idle", "no_pmu", "no_windows", "unknown", "no_windows"]
    assert series.absences[1].since_unix_ns == DAY + 300 * S


async def test_pages_of_a_host_have_each_vm_once_and_at_most_ten_thousand_points(fleet) -> None:
    wanted = query(hosts=["h1"], page_size=4, points=30)
    first = await fleet.answer("QuerySeries", wanted)
    wanted.page_token = first.next_page_token
    second = await fleet.answer("QuerySeries", wanted)
    assert [vm.vm for vm in (*first.vms, *second.vms)] == list(VMS) and not second.next_page_token
    wanted.jobs.append("odd")
    assert (await refused(fleet, "QuerySeries", wanted))[:2] == ("INVALID_ARGUMENT", "page_token")
    large = await fleet.answer("QuerySeries", query(jobs=["even", "odd"], points=5000))
    assert len(large.vms) == 10_000 // 1800 and large.next_page_token  # steps of a second


@pytest.mark.parametrize(
    ("request_", "field", "said"),
    [
        (query(metrics=[], vms=["a"]), "metrics", "is missing"),
        (query(metrics=["heat"], vms=["a"]), "metrics", "'heat'"),
        (query(), "vms", "TopVms ranks the whole fleet"),
        (query(vms=["a"], points=1), "points", "fewer points or metrics"),
        (query(vms=["a"], metrics=["cpi", "cycles"], points=6000), "points", "10,000 (values 6000, 2)"),
        (query(vms=["a"], points=10_001), "points", "10,000"),
        (query(hosts=["h1"], points=1800, page_size=6), "page_size", "must be at most 5"),
        (query(vms=["a"], since_unix_ns=NOW), "until_unix_ns", "400 days"),
        (query(vms=["a"], since_unix_ns=NOW - 401 * DAY_NS), "until_unix_ns", "400 days"),
        (query(vms=["a"] * 1001), "vms", "1,000"),
        (query(vms=["a"], group_by=9), "group_by", "is not known here (value 9)"),
        (query(hosts=["h1"], group_by="GROUP_BY_PROJECT"), "group_by", "give projects"),
    ],
)
async def test_too_much_and_nonsense_are_refused_with_the_bound(fleet, request_, field, said) -> None:
    code, about, message = await refused(fleet, "QuerySeries", request_)
    assert (code, about) == ("INVALID_ARGUMENT", field) and said in message


async def test_a_vm_of_which_nothing_is_known_is_not_found(fleet) -> None:
    assert (await refused(fleet, "QuerySeries", query(vms=["nobody"])))[:2] == ("NOT_FOUND", "vms")
    assert not (await fleet.answer("QuerySeries", query(jobs=["nobody"]))).vms


async def test_leaders_of_the_fleet_and_of_a_job(fleet) -> None:
    wanted = fleet_pb2.TopVmsRequest(metric="cpu_usage_cores", since_unix_ns=DAY, until_unix_ns=NOW, top=2)
    found = await fleet.answer("TopVms", wanted)
    assert [(vm.vm, vm.host, vm.job, vm.mean) for vm in found.vms] == [
        ("vm-5", "h1", "odd", 5),
        ("vm-4", "h1", "even", 4),
    ]
    assert (found.unit, found.slot_ns, found.vms[0].count) == ("cores", 0, 60)
    wanted.jobs.append("even")
    wanted.by = fleet_pb2.TOP_BY_MAX
    assert [vm.vm for vm in (await fleet.answer("TopVms", wanted)).vms] == ["vm-4", "vm-2"]
    for wrong, field in (
        ({"metric": ""}, "metric"),
        ({"metric": "heat"}, "metric"),
        ({"by": 9}, "by"),
        ({"top": 1001}, "top"),
    ):
        request = fleet_pb2.TopVmsRequest(**{"metric": "cpi"} | wrong)
        assert (await refused(fleet, "TopVms", request))[:2] == ("INVALID_ARGUMENT", field)
    request = fleet_pb2.TopVmsRequest(metric="cpi", since_unix_ns=NOW - 32 * DAY_NS)
    assert (await refused(fleet, "TopVms", request))[1] == "until_unix_ns"


async def test_a_projects_vms_are_those_that_were_of_it_in_the_time(fleet, monkeypatch) -> None:
    def facts(vm: str, at: int, project: str, **more: object) -> FactRow:
        said = agent_pb2.VmFacts(vm=vm, unix_ns=at, project=project, **more)
        return FactRow("h1", vm, at, said.SerializeToString())

    fleet.facts.take([facts("vm-0", DAY - 100 * S, "Blue"), facts("vm-1", DAY - 100 * S, "blue")])
    fleet.facts.take([facts("vm-1", DAY - 50 * S, "red"), facts("vm-2", NOW, "blue")])
    wanted = query(projects=["blue"], points=30)
    assert [vm.vm for vm in (await fleet.answer("QuerySeries", wanted)).vms] == ["vm-0"]
    wanted.projects.append("red")
    assert [vm.vm for vm in (await fleet.answer("QuerySeries", wanted)).vms] == ["vm-0", "vm-1"]
    assert not (await fleet.answer("QuerySeries", query(projects=["green"]))).vms
    with monkeypatch.context() as patched:
        patched.setattr("central.api.history.MAX_SCOPE", 1)
        assert (await refused(fleet, "QuerySeries", wanted))[1] == "projects"
        wanted.vms.append("vm-1")
        assert [vm.vm for vm in (await fleet.answer("QuerySeries", wanted)).vms] == ["vm-1"], "a large project's"
    leaders = fleet_pb2.TopVmsRequest(metric="cpi", since_unix_ns=DAY, until_unix_ns=NOW, projects=["red"])
    assert [vm.vm for vm in (await fleet.answer("TopVms", leaders)).vms] == ["vm-1"]
    leaders.projects[:] = ["green"]
    assert not (await fleet.answer("TopVms", leaders)).vms


async def test_a_host_and_a_job_have_the_sum_or_the_mean_of_their_vms(fleet) -> None:
    wanted = query(metrics=["cpu_usage_cores", "cpi"], hosts=["h1", "h2"], points=30, group_by="GROUP_BY_HOST")
    found = await fleet.answer("QuerySeries", wanted)
    assert [(each.group, each.vm, each.name, each.job, len(each.places)) for each in found.vms] == [
        ("h1", "", "", "", 0), ("h2", "", "", "", 0),
    ]  # fmt: skip
    cores, cpi = found.vms[0].metrics
    assert (cores.joined, cpi.joined, cores.unit) == ("sum", "mean", "cores")
    assert (cores.mean[0], cores.min[0], cores.max[0], cores.count[0], cores.vms[0]) == (15, 0, 5, 36, 6)
    assert (cpi.mean[9], cpi.vms[9], cpi.count[9], cpi.vms[15], cpi.count[15]) == (1.5, 6, 36, 0, 0)
    assert [each.reason for each in cpi.absences] == ["no_windows", "unknown", "no_windows"]
    assert (cores.mean[15], cores.vms[15]) == (0, 1), "vm-0 alone"
    assert list(found.vms[1].metrics[0].vms) == [0] * 16 + [1] + [0] * 13
    by_job = query(metrics=["cpu_usage_cores"], hosts=["h1"], points=30, group_by="GROUP_BY_JOB", page_size=1)
    first = await fleet.answer("QuerySeries", by_job)
    by_job.page_token = first.next_page_token
    second = await fleet.answer("QuerySeries", by_job)
    assert [(each.group, each.metrics[0].mean[0]) for each in (*first.vms, *second.vms)] == [("even", 6), ("odd", 9)]
    assert not second.next_page_token
    single = await fleet.answer("QuerySeries", query(hosts=["h1"], points=30, group_by="GROUP_BY_VM"))
    assert [vm.vm for vm in single.vms] == list(VMS)
    assert (single.vms[0].group, single.vms[0].metrics[0].joined, len(single.vms[0].metrics[0].vms)) == ("", "", 0)
    by_job.group_by = fleet_pb2.GROUP_BY_HOST
    assert (await refused(fleet, "QuerySeries", by_job))[:2] == ("INVALID_ARGUMENT", "page_token")


async def test_a_project_has_the_sum_of_the_vms_that_were_of_it_last(fleet) -> None:
    def facts(vm: str, at: int, project: str) -> FactRow:
        return FactRow("h1", vm, at, agent_pb2.VmFacts(vm=vm, unix_ns=at, project=project).SerializeToString())

    fleet.facts.take([facts(f"vm-{number}", DAY - 100 * S, "Red" if number < 3 else "Blue") for number in range(5)])
    fleet.facts.take([facts("vm-4", DAY + 10 * S, "Red")])
    wanted = query(metrics=["cpu_usage_cores"], projects=["red", "Blue"], points=30, group_by="GROUP_BY_PROJECT")
    found = await fleet.answer("QuerySeries", wanted)
    assert [(each.group, each.metrics[0].mean[0], each.metrics[0].vms[0]) for each in found.vms] == [
        ("Blue", 3, 1), ("red", 7, 4),
    ]  # fmt: skip
    wanted.page_size = 1
    first = await fleet.answer("QuerySeries", wanted)
    wanted.page_token = first.next_page_token
    second = await fleet.answer("QuerySeries", wanted)
    assert [(each.group, each.metrics[0].vms[0]) for each in (*first.vms, *second.vms)] == [("Blue", 1), ("red", 4)]
    nobody = query(projects=["green"], group_by="GROUP_BY_PROJECT")
    assert not (await fleet.answer("QuerySeries", nobody)).vms


async def test_a_vm_that_is_gone_is_found_by_the_name_in_its_facts(fleet) -> None:
    said = agent_pb2.VmFacts(vm="vm-3", unix_ns=DAY, name="Web-7")
    fleet.facts.take([FactRow("h1", "vm-3", DAY, said.SerializeToString())])
    found = await fleet.answer("QuerySeries", query(vms=["web-7"], points=30))
    assert [(vm.vm, vm.name) for vm in found.vms] == [("vm-3", "Web-7")]


async def test_json_follows_from_the_protocol(fleet) -> None:
    transport = httpx.ASGITransport(app=make_app(fleet, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        times = f"since_unix_ns={DAY}&until_unix_ns={NOW}"
        answer = await client.get(f"/v1/series?metrics=cpi&metrics=cycles&vms=vm-0&points=30&{times}")
        assert answer.status_code == 200, answer.text
        [vm] = answer.json()["vms"]
        assert [series["metric"] for series in vm["metrics"]] == ["cpi", "cycles"]
        assert vm["metrics"][0]["mean"][9:11] == [1.5, None]
        answer = await client.get(f"/v1/top-vms?metric=cpi&by=max&top=1&{times}")
        assert len(answer.json()["vms"]) == 1
        assert (await client.get("/v1/series?metrics=cpi")).status_code == 400


def endless(*_arguments: object) -> str:
    return "SELECT count(*) FROM range(1000000000000) WHERE random() < 0"


@pytest.mark.parametrize("is_http", [False, True])
async def test_a_client_that_goes_frees_the_thread(fleet, monkeypatch, is_http) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(queries, "series", endless)
        left = asyncio.Event()

        async def has_left() -> bool:
            return left.is_set()

        asked = asyncio.create_task(fleet.answer("QuerySeries", query(vms=["vm-0"]), has_left if is_http else None))
        await asyncio.sleep(0.3)
        assert not asked.done()
        if is_http:
            left.set()
            with pytest.raises(ApiError) as caught:
                await asked
            assert caught.value.code is grpc.StatusCode.CANCELLED
        else:
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        await asyncio.wait_for(fleet.asking.run(lambda: None), 10)  # long before the deadline of 20 s
    assert len((await fleet.answer("QuerySeries", query(vms=["vm-0"]))).vms) == 1


@pytest.fixture
async def cli(fleet, monkeypatch):
    """Run the command, which asks this fleet."""
    loop = asyncio.get_running_loop()

    class Asking:
        def __enter__(self):
            def ask(method, request):
                try:
                    return asyncio.run_coroutine_threadsafe(fleet.answer(method, request), loop).result(20)
                except ApiError as error:
                    raise InputError(str(error)) from error

            return ask

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(command, "asking", lambda *_: Asking())
    monkeypatch.setattr(command.Operator, "address", lambda *_: None)
    app = typer.Typer()
    app.command()(command.history)
    times = ("--since", "2024-10-04T00:00", "--until", "2024-10-04T00:30:00+00:00")

    async def run(*words: str, is_timed: bool = True):
        given = [*words, *(times if is_timed else ())]
        return await asyncio.to_thread(CliRunner().invoke, app, given, env={"COLUMNS": "200"})

    return run


async def test_the_command_shows_a_table_rows_a_picture_and_json(cli, tmp_path) -> None:
    found = await cli("vm-0", "--metric", "cpi", "--metric", "cycles")
    assert found.exit_code == 0, found.output
    assert "1.5 (1.5 to 1.5)" in found.stdout and "no windows" in found.stdout and "h2" in found.stdout
    found = await cli("vm-0", "--metric", "cpi", "--points", "30", "--csv")
    lines = found.stdout.splitlines()
    assert (
        len(lines) == 31
        and lines[1].startswith('"2024-10-04T00:00:00Z","vm-0",')
        and lines[-1].endswith('"no_windows"')
    )
    found = await cli("--host", "h1", "--points", "30", "--parquet", str(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet")
    assert len(table) == 6 * 2 * 30 and set(table["metric"].to_pylist()) == {"cpi", "cpu_usage_cores"}
    assert table["mean"].null_count and table["start"].type == pa.timestamp("ns", "UTC")
    found = await cli("vm-0", "--json")
    assert json.loads(found.stdout)["vms"][0]["vm"] == "vm-0"
    found = await cli("--job", "even", "--plot", str(tmp_path / "out.png"))
    assert found.exit_code == 0 and (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


async def test_the_command_ranks(cli) -> None:
    found = await cli("--top", "2", "--by", "max")
    assert (
        found.exit_code == 0 and found.stdout.index("vm-5") < found.stdout.index("vm-4") and "vm-3" not in found.stdout
    )
    assert (await cli("--top", "2", "--csv")).stdout.splitlines()[1].startswith('"vm-5",')


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a", "--csv", "--json"),
        ("a", "--top", "3"),
        ("--top", "3", "--by", "median"),
        ("a", "--plot", "x.jpg"),
        ("a", "--since", "yesterday"),
        ("a", "--since", "1969-01-01"),
        ("a", "--metric", "heat"),
        ("nobody",),
    ],
)
async def test_wrong_options_are_one_clear_error(cli, words) -> None:
    found = await cli(*words, is_timed="--since" not in words)
    assert isinstance(found.exception, InputError) and "no central" not in str(found.exception), found.output


def test_times_are_relative_or_iso() -> None:
    now = round(datetime(2026, 11, 29, 3, tzinfo=UTC).timestamp()) * S
    assert command.read_time("-6h", "--since", now) == now - 6 * 3600 * S
    assert command.read_time("2026-11-29T04:00+01:00", "--since", 0) == now
    assert command.read_time("2026-11-29T03:00", "--since", 0) == now
