"""WSMeter and Pitot in the fleet API: the numbers of the command line, values by hand, and what is refused."""

import asyncio
import json
import math
import threading

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.api.admission import Turns, Worker
from central.api.context import ModelFile
from central.api.requests import ApiError
from central.incidents.store import StoreError
from central.journal.tables import HostRecord
from central.lake.segments import DAY_NS, Lake
from central.models.pitot import Members, Shape
from central.models.pitot_bounds import Difficulty, Pool, Scatter
from central.own_threads import SharedAnswer
from central.runtimes.model import Model, write_model
from central.runtimes.tables import Names
from central.upgrades.lake_rows import Side, read_side
from tests.support.fleet_cli import QuotaFacts, lake, quotas, run  # noqa: F401 - fixtures
from tests.unit.central.placement.test_live_placement import lake as windows  # noqa: F401 - a fixture
from tests.unit.central.placement.test_live_placement import live
from tests.unit.central.web.test_http_api import get, local, served  # noqa: F401 - fixtures
from whitepanda.common.errors import FieldError
from whitepanda.v1 import fleet_pb2

HOSTS = [f"h{host:02}" for host in range(10)]
UPGRADED = "&".join(f"new_hosts={host}" for host in HOSTS)
DAY_1 = f"current_since_unix_ns={DAY_NS}&new_since_unix_ns={DAY_NS}"
ENDS = f"current_until_unix_ns={2 * DAY_NS}&new_until_unix_ns={2 * DAY_NS}"


NO_MODEL = (
    "no model of runtimes: make one with `whitepanda runtime fit`, name its file as runtime.model in central's "
    "configuration"
)


@pytest.fixture
def asked(served, lake):  # noqa: F811 - the fixtures
    served.fleet.lake, served.fleet.facts = Lake(lake), QuotaFacts()
    return served


async def test_a_comparison_has_the_numbers_of_the_command_line(asked, local, lake, run):  # noqa: F811
    code, out, _ = run(
        "compare", "rest,from=1970-01-02", f"hosts={lake.parent / 'test.csv'},from=1970-01-02",
        "--lake", lake, "--json", "--weigh-by", "use",
    )  # fmt: skip
    reported = json.loads(out)
    status, found = await get(local, f"/v1/comparison?current_rest=true&{UPGRADED}&{DAY_1}&{ENDS}&weigh_by=use")
    assert (code, status) == (0, 200)
    assert found["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    for name in ("current", "new", "difference_percent", "independent_percent", "baseline_percent"):
        mine = {key: value for key, value in reported[name].items() if key != "margin"}
        assert found[name] == mine
    for name in ("metric", "weighed_by", "coverage", "confidence", "p"):
        assert found[name] == reported[name]
    assert (found["current_machines"], found["new_machines"]) == (30, 10)
    assert (found["current_instances"], found["new_instances"]) == tuple(reported["instances"].values())
    assert [(job["job"], job["verdict"], job["weight"]) for job in found["jobs"]] == [
        (job["job"], job["verdict"], job["weight"]) for job in reported["jobs"]
    ]
    assert found["jobs_in_all"] == 2
    assert (found["current_since_unix_ns"], found["new_until_unix_ns"]) == (DAY_NS, 2 * DAY_NS)


async def test_by_time_and_by_platform(asked, local):  # noqa: F811
    hosts = UPGRADED + "&" + UPGRADED.replace("new_hosts", "current_hosts")
    times = f"current_until_unix_ns={DAY_NS}&new_since_unix_ns={DAY_NS}&new_until_unix_ns={2 * DAY_NS}"
    _, found = await get(local, f"/v1/comparison?{hosts}&{times}")
    assert found["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    assert (found["current_machines"], found["new_machines"]) == (10, 10)
    ends = f"current_until_unix_ns={DAY_NS}&new_until_unix_ns={DAY_NS}"
    _, alike = await get(local, f"/v1/comparison?current_platform=P&new_platform=Q&{ends}&metric=mips")
    assert alike["difference_percent"]["low"] < 0 < alike["difference_percent"]["high"]
    assert alike["current"]["value"] == pytest.approx(100, abs=1)


async def test_a_plan_has_the_numbers_of_the_command_line(asked, local, lake, run, tmp_path):  # noqa: F811
    rows = read_side(Lake(lake), Side("all", from_ns=0, until_ns=2 * DAY_NS), "ipc", quotas)
    weight = dict(zip(rows.weights.job, rows.weights.weight, strict=True))
    seen = rows.observed
    columns = {"machine": seen.machine, "job": seen.job, "ipc": seen.value, "weight": [weight[j] for j in seen.job]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert run("jobs", tmp_path / "rows.parquet", "--out", tmp_path / "jobs.parquet")[0] == 0
    code, out, _ = run("plan", tmp_path / "jobs.parquet", "--margin-percent", 0.5, "--t", 1.9, "--json")
    reported = json.loads(out)
    status, found = await get(local, f"/v1/observation-plan?margin_percent=0.5&t=1.9&until_unix_ns={2 * DAY_NS}")
    assert (code, status) == (0, 200)
    same = ("cost", "is_optimal", "lower_bound", "gap_ratio", "instances", "coverage")
    more = ("expected_margin_percent", "metric_mean")
    assert {name: found[name] for name in (*same, *more)} == pytest.approx({n: reported[n] for n in (*same, *more)})
    assert [(job["job"], job["observe"]) for job in found["jobs"]] == [
        (job["job"], job["observe"]) for job in reported["jobs"]
    ]
    assert found["jobs"][0]["observe"] >= 4
    assert [job["instances"] for job in found["jobs"]] == [40, 40]
    assert (found["jobs_too_few"], found["jobs_without_spread"]) == (0, 0)
    assert (found["since_unix_ns"], found["until_unix_ns"]) == (0, 2 * DAY_NS)


async def test_jobs_weigh_quota_or_where_asked_use(asked, local):  # noqa: F811
    async def weights(path):
        status, found = await get(local, f"/v1/{path}&until_unix_ns={DAY_NS}&margin_percent=0.5")
        assert status == 200
        total = sum(job["weight"] for job in found["jobs"])
        return found["weighed_by"], {job["job"]: job["weight"] / total for job in found["jobs"]}

    assert await weights("observation-plan?metric=ipc") == ("quota", pytest.approx({"a": 2 / 3, "b": 1 / 3}))
    use, shares = await weights("observation-plan?weigh_by=use")
    assert (use, shares) == ("use", pytest.approx({"a": 1 / 3, "b": 2 / 3}))
    sides = f"{DAY_1}&{ENDS}&current_platform=P&new_platform=Q"
    for asked_by, weighed in (("", {"a": 2 / 3, "b": 1 / 3}), ("use", {"a": 1 / 3, "b": 2 / 3})):
        _, found = await get(local, f"/v1/comparison?{sides}&weigh_by={asked_by}")
        assert {job["job"]: job["weight"] for job in found["jobs"]} == pytest.approx(weighed)
        assert found["weighed_by"] == (asked_by or "quota")


async def test_the_mutant_that_weighs_by_use_silently_is_noticed(asked, local, monkeypatch):  # noqa: F811
    monkeypatch.setattr("central.api.decisions.upgrade_answers._quotas", lambda _request, _known: None)
    with pytest.raises(AssertionError):
        await test_jobs_weigh_quota_or_where_asked_use(asked, local)


async def test_a_plan_counts_jobs_without_a_quota(asked, local, monkeypatch):  # noqa: F811
    path = f"/v1/observation-plan?margin_percent=0.5&until_unix_ns={DAY_NS}"
    monkeypatch.setattr("tests.support.fleet_cli.QUOTAS", {"a": 2.0})
    _, found = await get(local, path)
    assert ([job["job"] for job in found["jobs"]], found["jobs_no_weight"]) == (["a"], 1)
    monkeypatch.setattr("tests.support.fleet_cli.QUOTAS", {})
    status, found = await get(local, path)
    assert (status, "no CPU quota of any of its VMs is known" in found["error"]) == (404, True)
    asked.fleet.facts = None
    assert await get(local, path) == (404, found)
    assert (await get(local, f"{path}&weigh_by=use"))[0] == 200


async def test_facts_that_do_not_answer(asked, local, monkeypatch):  # noqa: F811
    def away(*_at, **_page):
        raise StoreError("gone")

    monkeypatch.setattr(QuotaFacts, "vms_at", away)
    path = f"/v1/observation-plan?margin_percent=0.5&until_unix_ns={DAY_NS}"
    status, found = await get(local, path)
    said = "facts of VMs do not answer: gone; is their database up? Or weigh by use"
    assert (status, found["error"]) == (503, said)
    assert (await get(local, f"{path}&weigh_by=use"))[0] == 200
    _, found = await get(local, "/v1/placement?loading=cpu%3D1")
    assert {"resource": "facts", "why": "facts of hosts and VMs do not answer: gone"} in found["unmeasured"]


TOO_FEW = (
    "0 jobs have 40 instances on two machines of both sides and cover 0.0% of CURRENT's weight, less than 80%; take a "
    "longer time or more hosts, or lower min_coverage or min_instances (parameters of the API, options of `whitepanda"
)
WRONG_QUESTIONS = [
    ("/v1/observation-plan", 400, "margin_percent is missing: half the width of the interval, in % of the mean"),
    ("/v1/observation-plan?margin_percent=x", 400, "margin_percent must be a number (value 'x')"),
    ("/v1/observation-plan?margin_percent=nan", 400, "margin_percent must be a number"),
    ("/v1/observation-plan?margin_percent=1&t=-1", 400, "t must be 0.01 to 100, or 0 for 2 (value -1)"),
    ("/v1/observation-plan?margin_percent=1&min_instances=1", 400, "min_instances must be 2 or more"),
    ("/v1/observation-plan?margin_percent=1&metric=x", 400, "metric 'x' is not in the lake; it has ipc, mips"),
    ("/v1/observation-plan?margin_percent=1", 404, "nothing was measured from 20"),
    (
        f"/v1/observation-plan?margin_percent=1&until_unix_ns={100 * DAY_NS}&since_unix_ns=1",
        400,
        "until_unix_ns must be at most 92 days after since_unix_ns (value 100 days)",
    ),
    (
        f"/v1/observation-plan?margin_percent=1&min_instances=99&until_unix_ns={DAY_NS}",
        400,
        "no job has 99 VMs with ipc there, the largest has 40; take a longer time or more hosts, or lower",
    ),
    (f"/v1/observation-plan?margin_percent=1e-6&until_unix_ns={DAY_NS}", 400, "margin 1e-06 % cannot be reached"),
    ("/v1/comparison", 400, "current and new are the same samples; give hosts, platform or times"),
    ("/v1/comparison?current_rest=true", 400, "current_rest needs new_hosts and no current_hosts"),
    ("/v1/comparison?weigh_by=cores", 400, "weigh_by must be quota or use (value 'cores')"),
    ("/v1/comparison?current_rest=yes", 400, "current_rest must be true or false (value 'yes')"),
    ("/v1/comparison?current_rest=true&new_rest=true", 400, "current_rest and new_rest cannot both be"),
    ("/v1/comparison?confidence=2", 400, "confidence must be 0.5 to 0.9999, or 0 for 0.95 (value 2)"),
    ("/v1/comparison?new_since_unix_ns=9&new_until_unix_ns=9", 400, "new_since_unix_ns must be before"),
    (
        f"/v1/comparison?new_hosts=x&{ENDS}",
        404,
        "new_hosts: nothing is known of host 'x': it never connected, and the lake has nothing of it in this time;",
    ),
    (
        f"/v1/comparison?current_rest=true&new_hosts=x&new_hosts=h01&new_hosts=y&{ENDS}",
        404,
        "new_hosts: nothing is known of host 'x', 'y': ",
    ),
    (
        f"/v1/comparison?{'&'.join(f'new_hosts=x{k}' for k in range(5))}&{ENDS}",
        404,
        "new_hosts: nothing is known of host 'x0', 'x1', 'x2' and 2 more: ",
    ),
    (
        f"/v1/comparison?new_platform=Z&{ENDS}",
        404,
        "new_platform 'Z': no host of it was measured from 1970-01-01 00:00 UTC to 1970-01-03 00:00 UTC; known",
    ),
    (
        f"/v1/comparison?{DAY_1}&{ENDS}&metric=memory_stall_ratio&current_platform=P",
        404,
        "the current side has no VM with memory_stall_ratio from 1970-01-02 00:00 UTC to 1970-01-03 00:00 UTC; take",
    ),
    (
        f"/v1/comparison?new_since_unix_ns={2**62}",
        400,
        f"new_since_unix_ns is in the future: 2116-02-20 23:53 UTC (value {2**62})",
    ),
    (f"/v1/comparison?{UPGRADED}&{ENDS}&min_instances=40", 400, TOO_FEW),
]


async def test_wrong_questions_get_one_line(asked, local):  # noqa: F811
    for path, status, said in WRONG_QUESTIONS:
        found, answer = await get(local, path)
        assert (found, answer["error"][: len(said)]) == (status, said)
        assert "\n" not in answer["error"]


async def test_too_many_tasks_and_a_damaged_lake(asked, monkeypatch):
    monkeypatch.setattr("central.api.decisions.upgrade_answers._MAX_TASKS", 79)
    request = fleet_pb2.PlanObservationRequest(margin_percent=1, until_unix_ns=2 * DAY_NS)
    with pytest.raises(ApiError) as caught:
        await asked.fleet.answer("PlanObservation", request)
    assert caught.value.code == grpc.StatusCode.NOT_FOUND
    assert str(caught.value).startswith("side 'jobs': more than 79 tasks; take a shorter time or fewer hosts")
    monkeypatch.setattr("central.api.decisions.upgrade_answers._MAX_TASKS", 80)
    assert (await asked.fleet.answer("PlanObservation", request)).jobs_without_spread == 0
    segment = asked.fleet.lake.segments()[0].path
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    with pytest.raises(ApiError) as caught:
        await asked.fleet.answer("PlanObservation", request)
    assert caught.value.code == grpc.StatusCode.INTERNAL


async def test_an_option_of_the_command_line_is_a_field_of_the_request(asked, monkeypatch):
    def refused(*_arguments):
        raise FieldError("min_coverage", "0.9: too much")

    monkeypatch.setattr("central.api.decisions.upgrade_answers.compare_sides", refused)
    with pytest.raises(ApiError) as caught:
        await asked.fleet.answer("CompareSides", fleet_pb2.CompareSidesRequest())
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "min_coverage")
    assert str(caught.value) == "min_coverage 0.9: too much"
    assert str(caught.value.__cause__) == "--min-coverage 0.9: too much"


async def test_only_so_many_wait_and_who_leaves_is_not_waited_for():
    worker, gate, done = Worker(most_waiting=1), threading.Event(), []

    def call(number):
        gate.wait(10)
        done.append(number)
        return number

    first = asyncio.create_task(worker.run(lambda: call(1)))
    second = asyncio.create_task(worker.run(lambda: call(2)))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        await worker.run(lambda: call(3))
    assert (caught.value.code, str(caught.value)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "1 questions of this kind wait already; ask again in a while",
    )
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    fourth = asyncio.create_task(worker.run(lambda: call(4)))
    await asyncio.sleep(0)
    gate.set()
    assert (await first, await fourth, done) == (1, 4, [1, 4])


async def test_few_questions_are_answered_at_a_time_and_one_begins_per_turn_of_the_loop():
    turns, gate = Turns(2), asyncio.Event()
    begun, queued, per_turn = [], [], []

    async def ask(number: int, *, waits: bool) -> None:
        async with turns.turn():
            begun.append(number)
            if waits:
                await gate.wait()

    async def ask_queued(number: int) -> None:
        async with turns.turn(has_queue=True):
            queued.append(number)
            await gate.wait()

    asking = [asyncio.create_task(ask(number, waits=True)) for number in range(5)]
    asking += [asyncio.create_task(ask_queued(number)) for number in range(100)]
    asking[2].cancel()  # it leaves while it waits
    while len(queued) < 100:
        before = len(begun) + len(queued)
        await asyncio.sleep(0)
        per_turn.append(len(begun) + len(queued) - before)
    assert max(per_turn) == 1
    assert (begun, queued) == ([0, 1], list(range(100)))
    gate.set()
    await asyncio.gather(*asking, return_exceptions=True)
    assert begun == [0, 1, 3, 4]
    await asyncio.gather(*(ask(number, waits=False) for number in range(5, 50)))
    assert begun == [0, 1, *range(3, 50)]


def runtime_model(slow=2.0):
    """Alone: web 100 us, db 200 us on p; twice as much on q. Beside db web takes `slow` times as long, per VM."""
    shape = Shape(1, 1, 1)
    workload = np.zeros((1, 2, shape.workload_width), dtype=np.float32)
    platform = np.zeros((1, 2, shape.platform_width), dtype=np.float32)
    workload[0, 0, 1] = math.log(slow)  # web suffers
    workload[0, 1, 2] = 1.0  # db disturbs
    platform[0, :, 1] = platform[0, :, 2] = 1.0
    nobody = Members(shape, workload[:0], platform[:0])

    def pool(size):
        zeros = np.zeros(size)
        return Pool(np.log(np.linspace(1.01, 2.0, size)), Scatter(zeros, zeros, zeros))

    return Model(
        Names.of(("web", "db")), Names.of(("p", "q")),
        np.log([100.0, 200.0]), np.log([1.0, 2.0]), Members(shape, workload, platform), nobody,
        Difficulty(np.zeros(2), np.zeros(2), np.zeros(2)), {0: pool(100), 1: pool(100)}, {},
    )  # fmt: skip


@pytest.fixture
def modelled(served, windows, tmp_path):  # noqa: F811
    """Host h2 has VMs of web, db and moved; h1 has one of web; h3 none."""
    write_model(tmp_path / "runtimes.model", runtime_model())
    served.fleet.models = ModelFile(str(tmp_path / "runtimes.model"))
    served.live = live(windows)
    served.fleet.snapshot = SharedAnswer(served.live.snapshot)
    for host, platform in (("h1", "p"), ("h2", "q"), ("h3", "p"), ("h4", "p"), ("h5", "x")):
        served.journal.hosts[host] = HostRecord(host, platform)
    return served


async def test_a_prediction_by_hand(modelled, local):  # noqa: F811
    status, found = await get(local, "/v1/runtime?job=web&platform=q&beside=db&epsilons=0.1&epsilons=0.05")
    assert status == 200
    assert (found["platform"], found["beside"], found["not_known"]) == ("q", ["db"], [])
    assert found["predicted_us"] == pytest.approx(400, rel=1e-6)
    # of 100 residuals, ratios 1.01, 1.02, ...: the 91st and the 96th
    assert [bound["epsilon"] for bound in found["bounds"]] == [0.1, 0.05]
    assert [bound["bound_us"] for bound in found["bounds"]] == pytest.approx([764, 784], rel=1e-6)
    _, alone = await get(local, "/v1/runtime?job=web&platform=p")
    assert alone["predicted_us"] == pytest.approx(100, rel=1e-6)
    assert [bound["epsilon"] for bound in alone["bounds"]] == [0.1, 0.05, 0.01]
    _, two = await get(local, "/v1/runtime?job=web&platform=p&beside=db&beside=db&epsilons=0.1")
    assert two["predicted_us"] == pytest.approx(400, rel=1e-6)
    assert two["bounds"] == [{"epsilon": 0.1, "bound_us": None}]  # the fit never saw two


async def test_on_a_host_as_it_is_now(modelled, local):  # noqa: F811
    _, empty = await get(local, "/v1/runtime?job=web&host=h3&epsilons=0.1")
    assert (empty["beside"], empty["predicted_us"]) == ([], pytest.approx(100))
    _, one = await get(local, "/v1/runtime?job=db&host=h1&epsilons=0.1")
    assert (one["beside"], one["predicted_us"]) == (["web"], pytest.approx(200))
    assert one["bounds"][0]["bound_us"] == pytest.approx(382)
    _, busy = await get(local, "/v1/runtime?job=web&host=h2&epsilons=0.1")
    assert (busy["platform"], busy["beside"], busy["not_known"]) == ("q", ["db", "web"], ["moved"])
    assert busy["predicted_us"] == pytest.approx(400)
    assert busy["bounds"] == [{"epsilon": 0.1, "bound_us": None}]  # nothing is promised beside a stranger


async def test_beside_a_stranger_there_is_no_bound(modelled, local):  # noqa: F811
    """Were the stranger only left out, h1's bound for one VM beside would be told."""
    modelled.live.snapshot()
    now = modelled.live._last
    place = now.hosts.names.index("h1")
    object.__setattr__(now, "running", (*now.running[:place], ("moved", "web"), *now.running[place + 1 :]))
    _, found = await get(local, "/v1/runtime?job=db&host=h1&epsilons=0.1")
    assert (found["beside"], found["not_known"]) == (["web"], ["moved"])
    assert found["bounds"] == [{"epsilon": 0.1, "bound_us": None}]


WRONG_PREDICTIONS = [
    ("", 400, "name the job"),
    ("job=web", 400, "name either the host, or the platform and the jobs beside"),
    ("job=web&host=h1&platform=p", 400, "name either the host, or the platform"),
    ("job=web&host=h1&beside=db", 400, "beside goes with platform; a host's VMs are known"),
    ("job=web&platform=p" + "&beside=db" * 65, 400, "beside takes at most 64 values by HTTP"),
    ("job=web&platform=p" + "&epsilons=0.1" * 17, 400, "epsilons takes at most 16 values by HTTP"),
    ("job=web&platform=p&epsilons=0.6", 400, "epsilons must be above 0 and up to 0.5 (value 0.6)"),
    ("job=web&platform=p&epsilons=0.001", 400, "epsilons: with 0 co-runners: 100 calibration rows cannot bound"),
    ("job=no&platform=p", 404, "the model knows no job 'no'; `whitepanda runtime update` adds it"),
    ("job=web&platform=no", 404, "the model knows no platform 'no'"),
    ("job=web&platform=p&beside=no", 404, "the model knows no job 'no'"),
    ("job=web&host=h9", 404, "host 'h9' never connected; give platform and beside instead"),
    ("job=web&host=h4", 404, "host 'h4' is away, and sent no window lately"),
]


async def test_wrong_predictions_get_one_line(modelled, local):  # noqa: F811
    for query, status, said in WRONG_PREDICTIONS:
        found, answer = await get(local, f"/v1/runtime?{query}")
        assert (found, answer["error"][: len(said)]) == (status, said)


async def test_the_model_file_is_read_again_and_its_lack_is_reported(modelled, local, tmp_path):  # noqa: F811
    ask = "/v1/runtime?job=web&platform=p&beside=db&epsilons=0.1"
    file = tmp_path / "runtimes.model"
    assert (await get(local, ask))[1]["predicted_us"] == pytest.approx(200)
    known = modelled.fleet.models.read()
    assert modelled.fleet.models.read() is known
    write_model(file, runtime_model(slow=3.0))
    assert (await get(local, ask))[1]["predicted_us"] == pytest.approx(300)
    file.write_bytes(b"junk")
    status, answer = await get(local, ask)
    assert (status, answer["error"][: len(f"{file}: ")]) == (410, f"{file}: ")
    file.unlink()
    status, answer = await get(local, ask)
    assert (status, answer["error"]) == (410, f"runtime.model {file}: No such file or directory")
    modelled.fleet.models = ModelFile("")
    with pytest.raises(ApiError) as caught:
        await modelled.fleet.answer("PredictRuntime", fleet_pb2.PredictRuntimeRequest(job="web", platform="p"))
    assert (caught.value.code, str(caught.value)) == (grpc.StatusCode.FAILED_PRECONDITION, NO_MODEL)
