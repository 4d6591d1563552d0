"""What the page asks for: the fleet at a glance, a job, a host's lines, how whole the data is; and refusals."""

import asyncio
import math

import duckdb
import pyarrow as pa
import pytest

from central.api import lake_queries
from central.api.lake_queries import RecentVms, read_lines
from central.authorisation.roles import Access
from central.coefficients.history import CoefficientHistory
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, Manifest, VersionStore
from central.config import PlacementSection
from central.incidents.store import IncidentQuery, StoreError
from central.ingest.sessions import HostStream
from central.journal.tables import HostRecord, Submission
from central.lake.errors import LakeError
from central.lake.schema import SAMPLES
from central.lake.segment_times import SegmentTimes
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.validation.events import EventRow
from central.web.server import HttpApi
from tests.unit.central.incidents.test_incidents import GAP, over, reported, row, slower
from tests.unit.central.web.test_http_api import Served, get
from whitepanda.common import log
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

S = 10**9
NOW = 1_800_000_000 * S
MINUTE = 60 * S


def window(host, vm, job, cpi, cores, ago_s, *, platform="p", seconds=60, sequence=1):
    known = dict.fromkeys(SAMPLES.names)
    return known | {
        "host": host, "spool_id": f"spool-{host}", "sequence": sequence, "machine": host, "vm": vm, "epoch": "1",
        "job": job, "platform": platform, "latency_sensitive": job == "web", "start_unix_ns": NOW - ago_s * S,
        "duration_ns": seconds * S, "cpi": cpi, "cpu_usage_cores": cores,
    }  # fmt: skip


# w1 moved from h2 to h1; w2 has no CPI; old is gone.
ROWS = [
    window("h2", "w1", "web", 9.0, 9.0, 250),
    window("h1", "w1", "web", 1.0, 1.0, 120),
    window("h1", "w1", "web", 2.0, 3.0, 60, seconds=30),
    window("h1", "w2", "web", None, 0.5, 60, platform="q"),
    window("h1", "s1", "scan", 4.0, 2.0, 60),
    window("h1", "s2", "scan", 6.0, 2.5, 60),
    window("h1", "old", "old", 1.0, 1.0, 400),
]


def write(lake, rows, number=1):
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", number))


def version(lake, coefficients, at=NOW):
    manifest = Manifest(
        version=0, created_unix_ns=at, slot_s=300.0, days=(), segments=0, segments_digest="", rows=0,
        job_statistics=0, coefficients=0, code_version="1", method="whitepanda",
    )  # fmt: skip
    statistics = pa.Table.from_pylist(
        [{"job": "web", "platform": "p", "samples": 50, "mean_cpi": 1.0, "std_cpi": 0.5}], JOB_STATISTICS
    )
    table = pa.Table.from_pylist(
        [
            {"job": job, "samples": 9, "sum_usage_squared": 1.0, "coefficient": value, "standard_error": error}
            for job, value, error in coefficients
        ],
        COEFFICIENTS,
    )
    return VersionStore(lake.objects).write(manifest, statistics, table)


@pytest.fixture
async def fleet(tmp_path):
    """A central at a time of ours, with what is above."""
    lake = Lake(tmp_path / "lake")
    write(lake, ROWS)
    version(lake, [("scan", 0.5, 0.1)], NOW - 7200 * S)
    version(lake, [("scan", 0.6, None), ("web", 0.01, 0.01)])
    section = PlacementSection(gone_s=300.0, refresh_s=60.0)
    found = Served(tmp_path, placement=section, clock_unix_ns=lambda: NOW)
    found.lake = lake
    yield found
    await found.close()


@pytest.fixture
async def local(fleet):
    api = HttpApi(fleet.fleet, "127.0.0.1:0", TlsFiles(), Access(("operator",)))
    await api.start()
    yield api
    await api.stop()


def connect(central, host, seen):
    central.journal.note_host(HostRecord(host, "p", "1", 2, last_seen_unix_ns=seen, spooled_batches=3))
    if host != "gone":
        central.registry.add(HostStream(host, "p", spooled_batches=2, dropped_batches=1))


async def test_the_fleet_at_a_glance(fleet, local):
    connect(fleet, "h1", NOW - 10 * S)
    connect(fleet, "late", NOW - 670 * S)
    connect(fleet, "gone", NOW - 9000 * S)
    day_ago = NOW - DAY_NS
    fleet.store.take(
        [
            row(1, day_ago - 5 * MINUTE, host="h9", suspect="old"),
            row(2, NOW - 7200 * S, host="h1", mn_cpi=9.0),
            row(3, NOW - 5 * MINUTE, host="h1", mn_cpi=4.0),
            row(4, NOW - 4 * MINUTE, host="h1", mn_cpi=5.0, slow_down=slower(1.5, 1.25, 1.75)),
            row(5, NOW - 3 * MINUTE, host="h2", suspect="dedup"),
            row(6, NOW - 3 * MINUTE, host="h3", suspect="late"),
            reported(7, over(NOW - 2 * MINUTE), host="h3"),
        ],
        gap_ns=GAP,
        oldest_unix_ns=0,
    )
    _, found = await get(local, "/v1/overview")
    assert (found["hosts"], found["connected_hosts"], found["late_hosts"], found["gone_hosts"]) == (3, 2, 1, 1)
    assert (found["incidents"], found["open_incidents"], found["contended_hosts"]) == (4, 2, 3)
    assert [(i["host"], i["reports"]) for i in found["open"]] == [("h1", 2), ("h2", 1)]
    worst = found["open"][0]
    assert (worst["slowest_now"]["name"], worst["slowest_now"]["slow_down"]["low"]) == ("web-1", 1.25)
    assert (worst["suspect"]["name"], worst["suspect_job"]) == ("scan-1", "scan")
    assert (worst["found_by"], worst["victims_now"], worst["open"]) == (["fleet"], 1, True)
    assert [(vm["host"], vm["name"], vm["since_unix_ns"], vm["incident"]) for vm in found["suffering"]] == [
        ("h1", "web-1", NOW - 5 * MINUTE, worst["id"]),
        ("h2", "web-1", NOW - 3 * MINUTE, found["open"][1]["id"]),
    ]
    assert found["suffering_in_all"] == 2
    _, cut = await get(local, "/v1/overview?top=1")
    assert ([vm["host"] for vm in cut["suffering"]], cut["suffering_in_all"]) == (["h1"], 2)
    _, later = await get(local, f"/v1/overview?since_unix_ns={NOW - MINUTE}")
    assert (later["incidents"], later["open_incidents"], len(later["open"])) == (0, 2, 2)
    _, listed = await get(local, "/v1/incidents?open_only=true&page_size=1")
    _, more = await get(local, f"/v1/incidents?open_only=true&page_token={listed['next_page_token']}")
    assert [i["host"] for i in listed["incidents"] + more["incidents"]] == ["h2", "h1"]
    assert fleet.store.count_open(NOW - GAP) == 2
    _, listed = await get(local, "/v1/incidents")
    assert [(i["host"], i["open"]) for i in listed["incidents"]] == [
        ("h3", False),
        ("h2", True),
        ("h1", True),
        ("h1", False),
        ("h9", False),
    ]
    for one in listed["incidents"]:
        _, detail = await get(local, f"/v1/incidents/{one['id']}")
        assert detail["incident"]["open"] == one["open"]
    kept = ("host", "incidents", "open_incidents", "reports", "peak_mn_cpi", "last_unix_ns")
    assert [tuple(host[name] for name in kept) for host in found["contended"]] == [
        ("h1", 2, 1, 3, 9.0, NOW - 4 * MINUTE),
        ("h2", 1, 1, 1, 3.0, NOW - 3 * MINUTE),
        ("h3", 1, 0, 1, 3.0, NOW - 3 * MINUTE),
    ]
    kept = ("job", "incidents", "hosts", "coefficient", "standard_error")
    assert [tuple(job[name] for name in kept) for job in found["antagonists"]] == [
        ("scan", 2, 1, 0.6, None),
        ("dedup", 1, 1, None, None),
        ("late", 1, 1, None, None),
    ]
    assert found["since_unix_ns"] == day_ago // MINUTE * MINUTE
    assert not found["is_counted"], "nothing of the lake is waited for"
    await fleet.fleet.refreshing
    _, found = await get(local, f"/v1/overview?top=1&since_unix_ns={NOW - 3600 * S}")
    assert (found["is_counted"], found["vms"], found["jobs"]) == (True, 4, 2)
    assert (found["incidents"], [c["host"] for c in found["contended"]]) == (3, ["h1"])
    assert fleet.fleet.refreshing.done(), "what is known is young enough"


async def test_a_job_by_hand(fleet, local):
    fleet.store.take([row(1, NOW - 5 * MINUTE, host="h1")], gap_ns=GAP, oldest_unix_ns=0)
    _, found = await get(local, "/v1/job?job=scan&bins=4")
    assert found["coefficient"]["value"] == 0.6 and found["statistics"] == []
    assert [(x["version"], x["value"], x["standard_error"], x["samples"]) for x in found["history"]] == [
        (1, 0.5, 0.1, 9),
        (2, 0.6, None, 9),
    ]
    (distribution,) = found["distributions"]
    assert (distribution["platform"], distribution["low_cpi"]) == ("p", 4.0)
    assert distribution["high_cpi"] == pytest.approx(5.99) and distribution["vms"] == [1, 0, 0, 1]
    assert found["hosts"] == [{"host": "h1", "platform": "p", "vms": 2, "mean_cpi": 5.0, "cpu_usage_cores": 4.5}]
    assert (found["vms"], found["hosts_in_all"], found["recurrence"]["incidents"]) == (2, 1, 1)
    _, web = await get(local, "/v1/job?job=web&top=1")
    assert [s["mean_cpi"] for s in web["statistics"]] == [1.0] and web["recurrence"] is None
    # Weighted by duration: 60 s at 1 and 30 s at 2; the VM without a CPI is counted apart.
    p, q = web["distributions"]
    assert (p["low_cpi"], p["high_cpi"]) == (pytest.approx(4 / 3), pytest.approx(7 / 3))
    assert (sum(p["vms"]), p["vms_without_cpi"], sum(q["vms"]), q["vms_without_cpi"]) == (1, 0, 0, 1)
    assert len(web["hosts"]) == 1 and (web["hosts_in_all"], web["vms"]) == (1, 2)
    status, missing = await get(local, "/v1/job?job=old")
    assert status == 404 and missing["error"].startswith("nothing is known of job 'old': no version has it")


async def test_a_hosts_lines_by_hand(fleet, local):
    fleet.store.take([row(1, NOW - 5 * MINUTE, host="h1")], gap_ns=GAP, oldest_unix_ns=0)
    connect(fleet, "h1", NOW)
    _, found = await get(local, f"/v1/host-timeline?host=h1&since_unix_ns={NOW - 180 * S}&until_unix_ns={NOW}&points=3")
    assert (found["step_ns"], found["since_unix_ns"], found["until_unix_ns"]) == (MINUTE, NOW - 180 * S, NOW)
    lines = {vm["vm"]: vm for vm in found["vms"]}
    assert list(lines) == ["s2", "s1", "w1", "w2"], "the most CPU first, then by name"
    assert (lines["w1"]["cpi"], lines["w1"]["cpu_usage_cores"]) == ([None, 1.0, 2.0], [None, 1.0, 3.0])
    assert (lines["w1"]["mean_cpi"], lines["w1"]["mean_cpu_usage_cores"]) == (1.5, 2.0)
    assert (lines["w1"]["job_mean_cpi"], lines["w1"]["job_std_cpi"]) == (1.0, 0.5)
    assert (lines["w2"]["cpi"], lines["w2"]["mean_cpi"], lines["w2"]["job_mean_cpi"]) == ([None] * 3, None, None)
    assert (lines["w1"]["latency_sensitive"], lines["s1"]["latency_sensitive"]) == (True, False)
    assert found["summary"]["connected"] and len(found["incidents"]) == 0
    _, hour = await get(local, "/v1/host-timeline?host=h1&top=2")
    assert (hour["step_ns"], hour["vms_in_all"], len(hour["vms"]), len(hour["incidents"])) == (30 * S, 5, 2, 1)
    assert hour["until_unix_ns"] - hour["since_unix_ns"] == 3600 * S
    _, many = await get(local, "/v1/host-timeline?host=h1&top=1000")
    assert many["step_ns"] == 36 * S  # as many points as an answer may have of so many VMs
    _, imported = await get(local, "/v1/host-timeline?host=h2")
    assert imported["summary"] is None and [vm["vm"] for vm in imported["vms"]] == ["w1"]


async def test_victims_are_among_a_hosts_vms_whatever_their_cpu(fleet, local):
    _, before = await get(local, "/v1/host-timeline?host=h1&top=2")
    assert [vm["vm"] for vm in before["vms"]] == ["s2", "s1"]

    def suffers(number, vm, ago_s):
        report = agent_pb2.Trigger(unix_ns=NOW - ago_s * S, slot_ns=60 * S, mn_cpi=3.0, mn_cpi_threshold=2.0)
        report.victims.add(vm=vm, job="web", cpi=1.0, n_cpi=2.0, threshold_cpi=1.0)
        fleet.store.take([reported(number, report)], gap_ns=GAP, oldest_unix_ns=0)

    suffers(1, "w2", 2400)
    _, past = await get(local, "/v1/host-timeline?host=h1&top=2")
    assert [vm["vm"] for vm in past["vms"]] == ["s2", "w2"], "in order of CPU"
    suffers(2, "w1", 60)
    for top, expected in ((1, ["w1"]), (2, ["w1", "w2"]), (3, ["s2", "w1", "w2"])):
        _, both = await get(local, f"/v1/host-timeline?host=h1&top={top}")
        assert [vm["vm"] for vm in both["vms"]] == expected, "victims of open incidents before others"
        assert both["vms_in_all"] == before["vms_in_all"]


async def test_a_hosts_vms_have_names_and_what_was_found_of_them(fleet, local):
    seen = [row(n, NOW - DAY_NS, host=host, suspect="scan") for n, host in enumerate(("h9", "h1"), 1)]
    fleet.store.take(seen, gap_ns=GAP, oldest_unix_ns=0)
    (victim,) = fleet.store.find(IncidentQuery(), limit=1)[0].victims
    write(fleet.lake, [window("h1", vm, "web", 1.0, 1.0, 60) for vm in (victim.vm, "nameless")], 2)
    fleet.registry.vm_names.note([("h1", "w1", "web-one"), ("bad", "w1", "evil"), ("bad", "nameless", "evil")])
    fleet.journal.start()

    def event(vm, ago_s, behaviour, before, ratio):
        found = agent_pb2.VmEvent(vm=vm, unix_ns=NOW - ago_s * S, behaviour=behaviour, before=before)
        found.degradation.CopyFrom(agent_pb2.Degradation(ratio=ratio, low=ratio - 0.1, high=ratio + 0.1))
        found.evidence.add(signal="cpi", value=1.0)
        return EventRow("h1", NOW, found.unix_ns, vm, vm, behaviour, before, found.SerializeToString())

    taken = asyncio.Event()
    fleet.journal.submit(
        Submission(
            host="h1", platform="p", spool_id="s", sequence=1, received_unix_ns=NOW, payload=b"", rows=0,
            accepted_rows=0, rejected_rows={}, kept=None, done=lambda _is_new: taken.set(),
            events=(event("w1", 30, 4, 2, 1.5), event("w1", 90, 2, 4, 1.2), event("s1", 7200, 3, 2, 1.0)),
        )
    )  # fmt: skip
    await asyncio.wait_for(taken.wait(), 30)
    _, found = await get(local, f"/v1/host-timeline?host=h1&until_unix_ns={NOW}")
    names = {vm["vm"]: vm["name"] for vm in found["vms"]}
    assert (names["w1"], names["nameless"], names[victim.vm]) == ("web-one", "", victim.name)
    assert victim.name, "or nothing was tested"
    lines = {vm["vm"]: vm["last_event"] for vm in found["vms"]}
    assert (lines["w1"]["behaviour"], lines["w1"]["degradation"]["ratio"]) == ("victim", 1.5)
    assert lines["w1"]["evidence"] == [] and lines["s1"] is None, "the other one is of an earlier time"


async def test_an_importer_is_no_host_that_is_late_or_gone(tmp_path):
    central = Served(tmp_path, importers=("gone",), clock_unix_ns=lambda: NOW)
    connect(central, "h1", NOW - 10 * S)
    connect(central, "gone", NOW - 9000 * S)
    api = HttpApi(central.fleet, "127.0.0.1:0", TlsFiles(), Access(("operator",)))
    await api.start()
    try:
        _, found = await get(api, "/v1/overview")
        names = ("hosts", "connected_hosts", "late_hosts", "gone_hosts")
        assert [found[name] for name in names] == [1, 1, 0, 0]
        _, health = await get(api, "/v1/data-health")
        assert (health["gone_hosts"], health["silent"], health["spooled_batches"]) == (0, [], 5)
        _, hosts = await get(api, "/v1/hosts")
        assert [(host["host"], host["importer"]) for host in hosts["hosts"]] == [("gone", True), ("h1", False)]
    finally:
        await api.stop()
        await central.close()


async def test_how_whole_the_data_is(fleet, local):
    write(fleet.lake, [window("h1", "w1", "web", 1.0, 1.0, 3 * 86_400)], 2)
    connect(fleet, "h1", NOW - 10 * S)
    connect(fleet, "idle", NOW - 610 * S)  # its next heartbeat is on its way
    connect(fleet, "late", NOW - 670 * S)
    connect(fleet, "gone", NOW - 9000 * S)
    _, found = await get(local, "/v1/data-health")
    assert [(day["rows"], day["segments"]) for day in found["days"]] == [(7, 1), (1, 1)]
    assert found["days"][0]["day"] > found["days"][1]["day"] and found["days"][0]["size_bytes"] > 1000
    assert found["last_segment_unix_ns"] > 0
    assert (found["late_hosts"], found["gone_hosts"]) == (1, 1)
    assert [(x["host"], x["connected"], x["spooled_batches"]) for x in found["silent"]] == [
        ("gone", False, 3),
        ("late", True, 2),
    ]
    assert (found["spooled_batches"], found["dropped_batches"]) == (9, 3)
    _, short = await get(local, "/v1/data-health?top=1")
    assert len(short["silent"]) == 1 and short["gone_hosts"] == 1


async def test_which_hosts_are_held_back(fleet, local):
    for host in ("calm", "paced", "slow", "over", "worst"):
        connect(fleet, host, NOW - 10 * S)
    fleet.fleet.parts.over_quota = lambda: {
        "over": {"over_quota_bytes": 2},
        "worst": {"over_quota_rows": 7, "over_quota_reports": 1},
        "gone": {"over_quota_vms": 1},
    }
    for host, wait_ms in (("paced", 1250), ("slow", 2000), ("worst", 1000)):
        fleet.registry.get(host).min_batch_interval_ms = wait_ms
    _, found = await get(local, "/v1/data-health")
    assert found["held_back_hosts"] == 5
    worst = [{"reason": "over_quota_reports", "count": 1}, {"reason": "over_quota_rows", "count": 7}]
    assert [(x["host"], x["over_quota"], x["min_batch_interval_ms"]) for x in found["held_back"]] == [
        ("worst", worst, 1000),
        ("over", [{"reason": "over_quota_bytes", "count": 2}], 0),
        ("gone", [{"reason": "over_quota_vms", "count": 1}], 0),
        ("slow", [], 2000),
        ("paced", [], 1250),
    ]
    _, short = await get(local, "/v1/data-health?top=2")
    assert ([x["host"] for x in short["held_back"]], short["held_back_hosts"]) == (["worst", "over"], 5)
    _, hosts = await get(local, "/v1/hosts")
    summaries = {x["host"]: (x["over_quota"], x["min_batch_interval_ms"]) for x in hosts["hosts"]}
    assert summaries == {"calm": ([], 0), "over": (found["held_back"][1]["over_quota"], 0), "paced": ([], 1250),
                         "slow": ([], 2000), "worst": (worst, 1000)}  # fmt: skip
    _, timeline = await get(local, "/v1/host-timeline?host=worst")
    assert timeline["summary"]["over_quota"] == worst
    _, status = await get(local, "/v1/status")
    assert (status["over_quota"], status["paced_hosts"]) == (3, 3)


async def test_an_importer_is_no_host_that_is_asked_to_wait(fleet, local):
    connect(fleet, "importer", NOW - 10 * S)
    fleet.registry.get("importer").min_batch_interval_ms = 1000
    fleet.fleet.importers = frozenset({"importer"})
    _, hosts = await get(local, "/v1/hosts")
    [summary] = hosts["hosts"]
    assert (summary["importer"], summary["min_batch_interval_ms"]) == (True, 0)
    _, status = await get(local, "/v1/status")
    assert status["paced_hosts"] == 0
    _, found = await get(local, "/v1/data-health")
    assert (found["held_back"], found["held_back_hosts"]) == ([], 0)


async def test_what_cannot_be_answered_is_reported_in_one_line(local):
    refused = [
        ("/v1/overview?top=1001", 400, "top must be an integer from 0 to 1000 (value '1001')"),
        ("/v1/data-health?top=1001", 400, "top must be an integer from 0 to 1000 (value '1001')"),
        ("/v1/job", 400, "job is missing: name one, as /v1/job-statistics has them"),
        ("/v1/job?job=x&bins=201", 400, "bins must be an integer from 0 to 200 (value '201')"),
        ("/v1/host-timeline", 400, "host is missing: name one, as /v1/hosts has them"),
        ("/v1/host-timeline?host=h&points=501", 400, "points must be an integer from 0 to 500"),
        ("/v1/host-timeline?host=h&points=500&top=201", 400, "points must be at most 500, and points * top 100000"),
        ("/v1/host-timeline?host=h&since_unix_ns=9&until_unix_ns=9", 400, "until_unix_ns must be after"),
        ("/v1/host-timeline?host=h&since_unix_ns=1&until_unix_ns=86400000000002", 400, "until_unix_ns must be after"),
        ("/v1/host-timeline?host=nope", 404, "nothing is known of host 'nope' in this time; /v1/hosts lists"),
    ]
    for path, status, said in refused:
        found, answer = await get(local, path)
        assert (found, answer["error"][: len(said)]) == (status, said)
        assert "\n" not in answer["error"]


async def test_a_lake_or_history_that_cannot_be_read_is_said_so(fleet, local, monkeypatch):
    def broken(*_arguments, **_named):
        raise LakeError("segment x is damaged")

    monkeypatch.setattr(SegmentTimes, "overlapping", broken)
    status, _ = await get(local, "/v1/overview")
    await fleet.fleet.refreshing
    assert status == 200, "the overview does without the lake"
    before = fleet.fleet.refreshing
    assert (await get(local, "/v1/overview"))[0] == 200
    assert fleet.fleet.refreshing is before, "it is not tried again at once"
    for path in ("/v1/job?job=web", "/v1/host-timeline?host=h1"):
        status, answer = await get(local, path)
        assert status == 503 and "segment x is damaged; `whitepanda lake verify`" in answer["error"]

    def away(*_given, **_named):
        raise StoreError("connection refused")

    monkeypatch.setattr(fleet.store, "totals", away)
    status, answer = await get(local, "/v1/overview")
    assert (status, answer["error"][:31]) == (503, "incident history does not answe")


def test_who_runs_now_is_asked_again_when_it_is_old(tmp_path):
    lake = Lake(tmp_path)
    now = [NOW]
    write(lake, ROWS)
    found = RecentVms(lake, SegmentTimes(lake), gone_s=300, refresh_s=60, clock_unix_ns=lambda: now[0])
    assert found.known() == (None, True)
    first = found.read()
    vms = first.vms.to_pydict()
    assert (vms["vm"], vms["machine"]) == (["s1", "s2", "w1", "w2"], ["h1"] * 4), "w1 counts where it was last"
    assert found.known() == (first, False) and found.read() is first
    now[0] += 61 * S
    assert found.known() == (first, True)
    assert found.read() is not first
    now[0] -= 100 * S
    assert found.known()[1], "the clock was set back"


def test_after_a_failure_a_minute_passes(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    now = [NOW]
    write(lake, ROWS)
    found = RecentVms(lake, SegmentTimes(lake), gone_s=300, refresh_s=60, clock_unix_ns=lambda: now[0])

    def broken(*_arguments, **_named):
        raise duckdb.OutOfMemoryException("no room\nanywhere")

    monkeypatch.setattr(Lake, "samples", broken)
    with pytest.raises(LakeError, match="no room anywhere"):
        found.read()
    assert found.known() == (None, False)
    now[0] += 60 * S
    assert found.known() == (None, True)
    monkeypatch.undo()
    first = found.read()
    assert found.known() == (first, False)


async def test_what_nobody_thought_of_costs_only_who_runs_now(fleet, local, monkeypatch, capsys):
    log.configure("info")

    def broken(*_arguments, **_named):
        raise RuntimeError("of another kind")

    monkeypatch.setattr(SegmentTimes, "overlapping", broken)
    assert (await get(local, "/v1/overview"))[0] == 200
    await fleet.fleet.refreshing
    assert "RuntimeError: of another kind" in capsys.readouterr().err


def test_nothing_in_the_lake_is_nobody(tmp_path):
    lake = Lake(tmp_path)
    found = RecentVms(lake, SegmentTimes(lake), gone_s=300, refresh_s=60, clock_unix_ns=lambda: NOW).read()
    assert (len(found.vms), found.jobs) == (0, 0)
    assert len(read_lines(lake, SegmentTimes(lake), "h", NOW - MINUTE, NOW, S)) == 0


def test_only_segments_of_the_time_are_read(tmp_path):
    lake = Lake(tmp_path)
    write(lake, [window("h1", "w1", "web", 1.0, 1.0, 7000)], 1)
    write(lake, [window("h1", "w1", "web", 2.0, 1.0, 60)], 2)
    times = SegmentTimes(lake)
    assert [segment.first for segment in times.overlapping(NOW - 100 * S, NOW)] == [2]
    assert [segment.first for segment in times.overlapping(NOW - 7000 * S, NOW - 60 * S)] == [1]
    assert len(times.overlapping(NOW - 7000 * S, NOW)) == 2


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), duckdb.IOException("No files\nfound")])
def test_a_segment_merged_away_meanwhile_is_looked_for_once_more(tmp_path, monkeypatch, error):
    lake = Lake(tmp_path)
    write(lake, ROWS)
    real, failures = Lake.samples, [error]

    def samples(self, *arguments, **named):
        if failures:
            raise failures.pop()
        return real(self, *arguments, **named)

    monkeypatch.setattr(Lake, "samples", samples)
    assert len(read_lines(lake, SegmentTimes(lake), "h1", NOW - 300 * S, NOW, MINUTE)) == 5
    failures += [error, error]
    expected = FileNotFoundError if isinstance(error, FileNotFoundError) else LakeError
    with pytest.raises(expected, match=r"gone|No files found"):
        read_lines(lake, SegmentTimes(lake), "h1", NOW - 300 * S, NOW, MINUTE)


async def test_what_takes_too_long_is_broken_off(fleet, local, monkeypatch):
    monkeypatch.setattr(lake_queries, "_DEADLINE_S", 0.01)

    def endless(_self, connection, **_named):
        connection.raw_sql("SELECT count(*) FROM range(1000000000000) WHERE random() < 0")

    monkeypatch.setattr(Lake, "samples", endless)
    status, answer = await get(local, "/v1/host-timeline?host=h1")
    assert status == 503
    assert answer["error"].startswith("windows of 'h1' in the lake: took longer than 0.01 s; ask for a shorter time")
    status, answer = await get(local, "/v1/job?job=web")
    assert status == 503 and answer["error"].startswith("who runs now, in the lake: took longer than 0.01 s; the")


def test_a_coefficients_history_is_read_once_per_version(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    store = VersionStore(lake.objects)
    version(lake, [("scan", 0.5, 0.1)])
    version(lake, [("web", 0.1, 0.1)])
    history = CoefficientHistory(store)
    (first,) = history.of("scan")
    assert (first.version, first.value, first.created_unix_ns) == (1, 0.5, NOW)
    read, real = [], VersionStore.coefficient
    monkeypatch.setattr(
        VersionStore, "coefficient", lambda self, number, job: (read.append(number), real(self, number, job))[1]
    )
    version(lake, [("scan", 0.7, None)])
    assert [x.version for x in history.of("scan")] == [1, 3] and read == [3]
    assert math.isnan(history.of("scan")[1].standard_error)
    (tmp_path / "versions" / "00000003" / "manifest.json").write_text("{")
    assert [x.version for x in CoefficientHistory(store).of("scan")] == [1], "damaged ones are left out"
    store.prune(1)
    assert history.of("nothing") == []


def test_histories_of_few_jobs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("central.coefficients.history._KEPT_JOBS", 2)
    history = CoefficientHistory(VersionStore(Lake(tmp_path).objects))
    for job in ("a", "b", "a", "c"):
        history.of(job)
    assert list(history._known) == ["a", "c"]


def test_the_time_of_a_window_counts_from_its_begin(tmp_path):
    lake = Lake(tmp_path)
    write(lake, [window("h1", "w1", "web", 1.0, 1.0, ago) for ago in (120, 60)])
    found = read_lines(lake, SegmentTimes(lake), "h1", NOW - 120 * S, NOW - 60 * S, MINUTE)
    assert found.column("bin").to_pylist() == [0]


async def test_a_segment_whose_footer_is_damaged_counts_no_rows_and_is_looked_at_again(fleet, local):
    lake = fleet.lake
    write(lake, ROWS[:2])
    write(lake, ROWS[2:5], 2)
    broken = lake.segments()[1].path
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-20])
    status, found = await get(local, "/v1/status")
    assert (status, found["lake_segments"], found["lake_rows"]) == (200, 2, 2)
    for path in ("/v1/data-health", "/metrics"):
        assert (await get(local, path))[0] == 200
    broken.write_bytes(whole)
    assert (await get(local, "/v1/status"))[1]["lake_rows"] == 5


def test_a_version_that_could_not_be_read_is_read_the_next_time(tmp_path, monkeypatch):
    lake = Lake(tmp_path / "lake")
    version(lake, [("scan", 0.5, 0.1)])
    history = CoefficientHistory(VersionStore(lake.objects))
    original = VersionStore.coefficient

    def failing(self, number, job):
        raise OSError(5, "the store does not answer")

    monkeypatch.setattr(VersionStore, "coefficient", failing)
    assert history.of("scan") == []
    monkeypatch.setattr(VersionStore, "coefficient", original)
    assert [found.value for found in history.of("scan")] == [0.5]
