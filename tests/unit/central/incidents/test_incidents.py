"""Incidents: reports find their incident whatever the order, once each; history is pruned; central moves them on."""

import asyncio
import contextlib
import dataclasses
import itertools
import math
import random
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent.analysis.advice import recommendations
from agent.analysis.advice.actions import recommend
from agent.uplink.messages import recommendation_message
from central.api.context import mark_open
from central.cli import incidents as incidents_cli
from central.cli.shared import outputs
from central.config import IncidentsSection
from central.incidents import store as incident_store
from central.incidents import tables
from central.incidents.recorder import IncidentRecorder
from central.incidents.store import IncidentQuery, IncidentStore, StoreError
from central.journal.tables import Roll, Submission
from central.journal.writer import Journal
from central.validation.rows import Limits, Sender
from central.validation.triggers import TriggerRow, check_triggers, first_suspect
from whitepanda.common.cli import PlainConsole
from whitepanda.common.errors import UnavailableError
from whitepanda.v1 import agent_pb2, fleet_pb2

S = 10**9
NOW = 1_800_000_000 * S
GAP = 900 * S
DAY = 86_400 * S


HOST, FLEET = agent_pb2.ANALYSIS_HOST, agent_pb2.ANALYSIS_FLEET
NAN = math.nan


def slower(ratio: float, low: float = NAN, high: float = NAN, **more) -> agent_pb2.Degradation:
    return agent_pb2.Degradation(ratio=ratio, low=low, high=high, **more)


def over(at=NOW, **more) -> agent_pb2.Trigger:
    return agent_pb2.Trigger(unix_ns=at, slot_ns=300 * S, mn_cpi=NAN, mn_cpi_threshold=NAN, ended=True, **more)


def host_only(at=NOW, **more) -> agent_pb2.Trigger:
    """Of a host whose own analysis found a victim: nothing is known of its job."""
    unknown = dict.fromkeys(("cpi", "n_cpi", "threshold_cpi"), NAN)
    culprit = {"name": "dedup-1", "job": "dedup", "coefficient": NAN, "score": NAN, "inflicts": True}
    return agent_pb2.Trigger(
        unix_ns=at,
        slot_ns=300 * S,
        mn_cpi=NAN,
        mn_cpi_threshold=NAN,
        found_by=[HOST],
        victims=[
            agent_pb2.TriggerVictim(
                vm="uuid-web", name="web-1", job="web", slow_down=slower(1.5, 1.25, 1.75), found_by=[HOST], **unknown
            )
        ],
        suspects=[agent_pb2.TriggerSuspect(vm="uuid-dedup", **culprit)],
        **more,
    )


def trigger(
    at=NOW, *, suspect="scan", score=2.0, victim="web", n_cpi=4.0, mn_cpi=3.0, slow_down=None, **more
) -> agent_pb2.Trigger:
    more = {"found_by": [FLEET], **more}
    return agent_pb2.Trigger(
        unix_ns=at,
        slot_ns=300 * S,
        since_unix_ns=at,
        mn_cpi=mn_cpi,
        mn_cpi_threshold=2.0,
        coefficient_version=7,
        victims=[
            agent_pb2.TriggerVictim(
                vm=f"uuid-{victim}",
                name=f"{victim}-1",
                job=victim,
                cpi=3.0,
                n_cpi=n_cpi,
                threshold_cpi=2.0,
                slow_down=slow_down,
            )
        ],
        suspects=[
            agent_pb2.TriggerSuspect(
                vm=f"uuid-{suspect}", name=f"{suspect}-1", job=suspect, coefficient=0.5, score=score
            ),
            agent_pb2.TriggerSuspect(vm="uuid-odd", name="odd-1", job="odd", coefficient=math.nan, score=math.nan),
        ],
        **more,
    )


def row(number: int, at: int = NOW, *, host: str = "h1", **changes) -> TriggerRow:
    return reported(number, trigger(at, **changes), host=host)


def reported(number: int, report: agent_pb2.Trigger, *, host: str = "h1") -> TriggerRow:
    return TriggerRow(host, "spool", number, 0, host, report.unix_ns, report.SerializeToString())


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as opened:
        yield opened


def take(store: IncidentStore, *rows: TriggerRow) -> int:
    return store.take(rows, gap_ns=GAP, oldest_unix_ns=0)


def listed(store: IncidentStore, limit: int = 100, after=None, **query):
    return store.find(IncidentQuery(**query), limit=limit, after=after)


def test_contention_of_one_suspect_without_a_pause_is_one_incident(store):
    rows = [row(n, NOW + n * 300 * S, mn_cpi=3.0 + (n == 2), n_cpi=4.0 + n) for n in range(5)]
    assert take(store, *rows) == 5
    (found,) = listed(store)
    assert (found.host, found.suspect_job, found.reports) == ("h1", "scan", 5)
    assert (found.first_unix_ns, found.last_unix_ns) == (NOW, NOW + 1200 * S)
    assert (found.peak_mn_cpi, found.peak_threshold) == (4.0, 2.0)
    (victim,) = found.victims
    assert (victim.vm, victim.name, victim.job, victim.peak, victim.reports) == ("uuid-web", "web-1", "web", 8.0, 5)
    assert [(s.job, s.reports) for s in found.suspects] == [("scan", 5), ("odd", 5)]
    assert found.suspects[0].peak == 2.0 and math.isnan(found.suspects[1].peak)


def test_another_host_or_time_is_another_incident(store):
    take(store, row(1), row(2, host="h2"), row(4, NOW + GAP + 1))
    assert [(i.host, i.reports) for i in listed(store)] == [("h1", 1), ("h2", 1), ("h1", 1)]
    take(store, row(5, NOW + GAP))
    assert [(i.host, i.reports) for i in listed(store)] == [("h2", 1), ("h1", 3)]


@pytest.mark.long
def test_whoever_is_suspected_it_is_one_incident_which_the_last_report_names(tmp_path_factory):
    """The latest report that names somebody, not the last to come; one without a suspect erases nobody."""
    names = ["scan", "dedup", "scan", "encode"]
    rows = [row(n, NOW + n * 300 * S, suspect=name) for n, name in enumerate(names)]
    rows.append(row(9, NOW + 1200 * S, score=NAN))
    for seed in range(8):
        random.Random(seed).shuffle(rows)
        with contextlib.closing(IncidentStore("", tmp_path_factory.mktemp("store"))) as store:
            for each in rows:
                take(store, each)
            (found,) = listed(store)
            jobs = store.suspect_jobs(limit=9)
        assert (found.suspect.vm, found.suspect.name, found.suspect.job) == ("uuid-encode", "encode-1", "encode")
        assert (found.suspect_job, found.reports) == ("encode", 5)
        assert found.suspects[0] == found.suspect
        assert [(s.job, s.first_reports) for s in found.suspects[:3]] == [("encode", 1), ("scan", 2), ("dedup", 1)]
        assert [(j.job, j.hosts, j.incidents) for j in jobs] == [(n, 1, 1) for n in ("dedup", "encode", "scan")]


def test_what_the_last_report_says_does_not_change_who_it_was_all_the_time(store):
    """A bystander that is named at the very end is one of those suspected; it does not replace the others."""
    rows = [row(n, NOW + n * 300 * S, suspect="scan" if n < 3 else "dedup") for n in range(4)]
    take(store, *rows)
    (found,) = listed(store)
    assert (found.suspect_job, found.suspect.job) == ("dedup", "dedup"), "now"
    take(store, reported(9, over(NOW + 1000 * S)))
    (found,) = listed(store)
    assert (found.suspect_job, found.suspect, found.suspect.first_reports) == ("scan", found.suspects[0], 3)
    assert store.get(found.id).recurrence.job == "scan"
    assert [len(listed(store, suspect_job=job)) for job in ("scan", "dedup", "odd")] == [1, 1, 0]
    top = store.totals(since_unix_ns=0, open_since_unix_ns=0, top=9).antagonists
    assert [(a.job, a.incidents, a.hosts) for a in top] == [("dedup", 1, 1), ("scan", 1, 1)]
    assert store.prune(NOW + DAY) == 1
    assert store.suspect_jobs(limit=9) == []


def test_a_finding_of_the_hosts_own_analysis_is_an_incident(store):
    take(store, reported(1, host_only()))
    (found,) = listed(store)
    assert (found.suspect_job, found.suspect.vm, list(found.found_by)) == ("dedup", "uuid-dedup", [HOST])
    assert math.isnan(found.peak_mn_cpi) and math.isnan(found.peak_threshold) and math.isnan(found.suspect.peak)
    (victim,) = found.victims
    assert math.isnan(victim.peak) and victim.slow_down.ratio == 1.5
    assert found.slowest_now.slow_down == victim.slow_down
    assert (found.victims_now, store.count_open(NOW)) == (1, 1)
    assert store.totals(since_unix_ns=0, open_since_unix_ns=0, top=9).contended[0].open_incidents == 1


def test_one_incident_names_both_analyses_that_found_it(store):
    take(store, reported(1, host_only()), row(2, NOW + 300 * S, mn_cpi=2.5))
    (found,) = listed(store)
    assert (list(found.found_by), found.reports) == ([HOST, FLEET], 2)
    assert (found.peak_mn_cpi, found.peak_threshold, found.suspect_job) == (2.5, 2.0, "scan")


def test_victims_are_ranked_by_their_worst_slow_down_and_n_cpi_is_evidence(store):
    """nCPI is cut at 3, where many are alike: it decides only where no slow-down is known."""
    take(store, row(1, victim="a", n_cpi=2.0, slow_down=slower(1.5, 1.25, 1.75, model="cpi")))
    take(store, row(2, NOW + S, victim="a", n_cpi=3.0, slow_down=slower(1.2, 1.1, 1.3)))
    take(store, row(3, NOW + 2 * S, victim="b", n_cpi=3.0, slow_down=slower(1.4)))
    take(store, row(4, NOW + 3 * S, victim="d", n_cpi=2.0, slow_down=slower(NAN, cannot_tell="no_model")))
    take(store, row(5, NOW + 4 * S, victim="c", n_cpi=2.5))
    (found,) = listed(store)
    assert [v.job for v in found.victims] == ["a", "b", "c", "d"]
    worst = found.victims[0]
    assert (worst.slow_down.ratio, worst.slow_down.low, worst.slow_down.high) == (1.5, 1.25, 1.75)
    assert (worst.slow_down.model, worst.peak, worst.reports) == ("cpi", 3.0, 2)
    assert math.isnan(found.victims[1].slow_down.low)
    assert not found.victims[2].HasField("slow_down") and not found.victims[3].HasField("slow_down")
    assert found.slowest_now.job == "c", "of the last report"


def test_the_host_with_the_slowest_victim_now_comes_first(store):
    take(store, row(1, host="h1", slow_down=slower(3.0)), row(2, NOW + S, host="h1", slow_down=slower(1.2)))
    take(store, row(1, NOW + S, host="h2", slow_down=slower(1.5)), row(1, NOW + S, host="h3", mn_cpi=9.0))
    take(store, row(1, NOW + S, host="h4", slow_down=slower(9.0)), reported(2, over(NOW + 2 * S), host="h4"))
    assert [one.host for one in store.open_now(NOW, limit=9)] == ["h2", "h1", "h3"]
    assert [one.host for one in store.open_now(NOW, limit=2)] == ["h2", "h1"]
    assert store.count_open(NOW) == 3
    assert store.open_now(NOW + 2 * S, limit=9) == []
    assert len(listed(store, open_since_unix_ns=NOW)) == 3
    assert len(listed(store)) == 4


def test_it_is_over_as_soon_as_the_host_says_so_and_the_same_again_within_the_gap(store):
    take(store, reported(1, over(NOW)))
    assert listed(store) == [], "nothing began"
    take(store, row(2, NOW + S), row(3, NOW + 300 * S))
    assert store.count_open(NOW) == 1
    take(store, reported(4, over(NOW + 360 * S)))
    (found,) = listed(store)
    assert (found.victims_now, found.HasField("slowest_now"), store.count_open(NOW)) == (0, False, 0)
    assert (found.last_unix_ns, found.reports) == (NOW + 300 * S, 2), "an end makes nothing longer"
    take(store, row(5, NOW + 400 * S, suspect="dedup"))
    (again,) = listed(store)
    assert (again.id, again.reports, again.victims_now, again.suspect_job) == (found.id, 3, 1, "dedup")
    assert store.count_open(NOW) == 1
    take(store, reported(6, over(NOW + 350 * S)), reported(4, over(NOW + 360 * S)))
    assert store.count_open(NOW) == 1, "older ends say nothing"
    take(store, reported(7, over(NOW + 500 * S), host="h2"))
    assert store.count_open(NOW) == 1, "nor do those of other hosts"


def test_who_is_suspected_first():
    assert first_suspect(trigger(score=0.0)) is None
    assert first_suspect(trigger(score=-1.0)) is None
    assert first_suspect(trigger(score=NAN)) is None
    assert first_suspect(trigger(score=0.1)).job == "scan"
    assert first_suspect(host_only()).job == "dedup"
    assert first_suspect(over()) is None


def replayed(store, take) -> tuple[int, int, int, int]:
    """Three reports, again, and one of them with a new one: new ones of both repeats, and what the incident has."""
    rows = [row(n, NOW + n * 300 * S) for n in range(3)]
    assert take(store, *rows) == 3
    again, more = take(store, *rows), take(store, rows[1], row(9, NOW + 900 * S))
    (found,) = listed(store)
    return again, more, found.reports, found.victims[0].reports


def test_replays_change_nothing(store):
    assert replayed(store, take) == (0, 1, 4, 4)


def test_that_notices_reports_that_are_not_known_again(store):
    numbers = itertools.count()

    def forgetful(store, *rows):
        return take(store, *(dataclasses.replace(each, number=next(numbers)) for each in rows))

    assert replayed(store, forgetful) == (3, 2, 8, 8)


def as_groups(store: IncidentStore):
    """Everything but numbers, which depend on the order."""
    found = []
    for incident in listed(store):
        reports = sorted(r.unix_ns for r in store.get(incident.id).reports)
        incident.id = 0
        found.append((str(incident), reports))
    jobs = store.suspect_jobs(limit=10)
    return found, [(job.job, job.hosts, job.incidents, job.first_unix_ns, job.last_unix_ns) for job in jobs]


@st.composite
def reports(draw) -> list[TriggerRow]:
    """Draw what a host reports over two hours: by either analysis, of any suspect, and that it is over."""
    minutes = sorted(draw(st.lists(st.integers(0, 120), min_size=1, max_size=12, unique=True)))
    made = []
    for number, minute in enumerate(minutes):
        at, kind = NOW + minute * 60 * S, draw(st.sampled_from(("fleet", "host", "nobody", "over")))
        ratio = draw(st.sampled_from((NAN, 1.25, 1.5)))
        slow = slower(ratio, ratio - draw(st.sampled_from((0.0, 0.125))), ratio)
        suspect = draw(st.sampled_from(("scan", "dedup")))
        if kind == "over":
            made.append(reported(number, over(at)))
        elif kind == "host":
            made.append(reported(number, host_only(at)))
        else:
            score = NAN if kind == "nobody" else 2.0
            made.append(row(number, at, mn_cpi=3.0 + minute % 7, suspect=suspect, score=score, slow_down=slow))
    return made


@pytest.mark.long
@settings(max_examples=25)
@given(rows=reports(), seed=st.integers(0, 2**32 - 1), split=st.integers(0, 12))
def test_the_order_of_arrival_does_not_matter(tmp_path_factory, rows, seed, split):
    mixed = rows * 2
    random.Random(seed).shuffle(mixed)
    ends = [r.unix_ns for r in rows if agent_pb2.Trigger.FromString(r.payload).ended]
    times = [r.unix_ns for r in rows if r.unix_ns not in ends]
    found = []
    for order in (rows, mixed):
        with contextlib.closing(IncidentStore("", tmp_path_factory.mktemp("store"))) as store:
            take(store, *order[:split])
            take(store, *order[split:])
            found.append(as_groups(store))
            assert len(listed(store)) == bool(times) + sum(b - a > GAP for a, b in itertools.pairwise(times))
            assert sum(one.reports for one in listed(store)) == len(times)
            # Open is the last incident at most, and only where the very last report names victims.
            assert store.count_open(rows[-1].unix_ns - GAP) == (rows[-1].unix_ns not in ends)
    assert found[0] == found[1]


def test_a_report_of_many_vms_takes_no_more_statements_than_one_of_few(store):
    """Each takes Python's lock from the loop that acknowledges, and hosts choose how many VMs a report names."""
    statements = []
    sa.event.listen(store._engine, "before_cursor_execute", lambda *reported: statements.append(reported[2]))

    def taken(number: int, vms: int, at: int) -> int:
        victims = [agent_pb2.TriggerVictim(vm=f"vm-{each}", job="web") for each in range(vms)]
        statements.clear()
        take(store, reported(number, agent_pb2.Trigger(unix_ns=at, victims=victims)))
        return len(statements)

    assert taken(1, 256, NOW) == taken(2, 1, NOW + 2 * GAP)
    between = taken(3, 1, NOW + GAP)  # makes them one incident, whose VMs are merged
    assert between < 30
    (whole,) = listed(store)
    assert {vm.vm: vm.reports for vm in whole.victims} == {f"vm-{n}": 1 if n else 3 for n in range(256)}


def test_recurrence_over_hosts(store):
    for host in range(3):
        for day in range(host + 1):
            take(store, row(10 * host + day, NOW + day * DAY, host=f"h{host}"))
    take(store, row(99, NOW - DAY, suspect="dedup"), row(100, NOW, host="h9", score=0.0))
    dedup, scan = store.suspect_jobs(limit=10)
    assert (dedup.job, dedup.hosts, dedup.incidents) == ("dedup", 1, 1)
    assert (scan.job, scan.hosts, scan.incidents) == ("scan", 3, 6)
    assert (scan.first_unix_ns, scan.last_unix_ns) == (NOW, NOW + 2 * DAY)
    assert [j.job for j in store.suspect_jobs(limit=1, after="dedup")] == ["scan"]
    detail = store.get(listed(store, suspect_job="scan", limit=1)[0].id)
    assert detail.recurrence == scan
    unsuspected = store.get(listed(store, host="h9")[0].id)
    assert not unsuspected.HasField("recurrence")


def test_filters_and_pages(store):
    take(store, *[row(n, NOW + n * DAY, host=f"h{n % 2}", victim=("web", "db")[n % 3 == 0]) for n in range(9)])
    pages, after = [], None
    while page := listed(store, limit=4, after=after):
        pages.append([(i.first_unix_ns - NOW) // DAY for i in page])
        after = (page[-1].first_unix_ns, page[-1].id)
    assert pages == [[8, 7, 6, 5], [4, 3, 2, 1], [0]]

    def days(**query):
        return [(i.first_unix_ns - NOW) // DAY for i in listed(store, **query)]

    assert days(host="h1") == [7, 5, 3, 1]
    assert days(victim_job="db") == days(vm="uuid-db") == days(vm="db-1") == [6, 3, 0]
    assert days(victim_job="scan") == days(suspect_job="web") == days(vm="nobody") == []
    assert days(vm="uuid-scan", host="h1", since_unix_ns=NOW + 2 * DAY) == [7, 5, 3]
    assert days(since_unix_ns=NOW + 7 * DAY) == [8, 7]
    assert days(until_unix_ns=NOW + DAY) == [0]
    assert days(since_unix_ns=NOW + 90 * DAY) == []
    assert days(until_unix_ns=2**64 - 1, since_unix_ns=1) == days()


def test_what_is_past_the_retention_goes_and_does_not_come_back(store):
    take(store, row(1, NOW), row(2, NOW + DAY), row(3, NOW + DAY, host="h2", suspect="dedup"))
    take(store, reported(4, over(NOW)))
    assert store.prune(NOW + 1) == 1
    assert store.prune(NOW + 1) == 0
    assert [(i.suspect_job, i.first_unix_ns) for i in listed(store)] == [("dedup", NOW + DAY), ("scan", NOW + DAY)]
    assert [(j.job, j.incidents, j.first_unix_ns) for j in store.suspect_jobs(limit=9)] == [
        ("dedup", 1, NOW + DAY),
        ("scan", 1, NOW + DAY),
    ]
    assert store.take([row(1, NOW)], gap_ns=GAP, oldest_unix_ns=NOW + 1) == 0
    assert store.prune(NOW + 2 * DAY) == 2
    assert listed(store) == [] and store.suspect_jobs(limit=9) == [] and store.get(1) is None


def advice(amount: float, **changes) -> agent_pb2.Recommendation:
    command = agent_pb2.Command(purpose="undone by itself", words=["whitepanda", "act"])
    known = {"action": 1, "vm": "uuid-scan", "name": "scan-1", "amount": amount, "unit": "cores"}
    return agent_pb2.Recommendation(**(known | {"evidence": ["score 2"], "commands": [command]} | changes))


def advised(store: IncidentStore, number: int) -> list[float]:
    return [one.amount for one in store.get(number).incident.recommendations]


def test_what_could_be_done_is_kept_as_it_was_said_last(store):
    """Once per incident, whatever the order of arrival: reports do not carry it on, nor do lists."""
    take(store, row(1, NOW, recommendations=[advice(2.0)]))
    take(store, row(2, NOW + 3000 * S, recommendations=[advice(1.0)]))
    first, second = (one.id for one in reversed(listed(store)))
    assert (advised(store, first), advised(store, second)) == ([2.0], [1.0])
    # What fills the pause makes them one; it is older than what was said last, and the last has nothing to say.
    for number, minutes in ((3, 15), (4, 30), (5, 40), (6, 60)):
        said = [] if number == 6 else [advice(9.0)]
        take(store, row(number, NOW + minutes * 60 * S, recommendations=said))
    (one,) = listed(store)
    assert list(one.recommendations) == []
    assert advised(store, one.id) == [1.0]
    assert {len(report.recommendations) for report in store.get(one.id).reports} == {0}
    take(store, reported(9, over(NOW + 3700 * S)))
    assert advised(store, one.id) == [], "once it is over nothing is to be done"
    store.prune(NOW + DAY)
    with store._engine.connect() as connection:
        assert connection.execute(sa.select(tables.recommendations)).all() == []


def test_history_that_cannot_be_used_says_why(tmp_path):
    (tmp_path / "incidents.sqlite").write_text("this is not a database, but quite another thing")
    with pytest.raises(UnavailableError, match=r"incidents\.sqlite cannot be used: file is not a database"):
        IncidentStore("", tmp_path)
    with pytest.raises(UnavailableError, match=r"incidents\.url must begin with postgresql:// .*'mysql'"):
        IncidentStore("mysql://u:secret@h/d", tmp_path)
    with pytest.raises(UnavailableError, match=r"incidents\.url is not a URL"):
        IncidentStore("secret", tmp_path)
    with pytest.raises(UnavailableError, match="cannot be used") as caught:
        IncidentStore("postgresql://u:secret@127.0.0.1:1/d", tmp_path)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_history_of_another_schema_is_left_alone(tmp_path):
    IncidentStore("", tmp_path).close()
    connection = sqlite3.connect(tmp_path / "incidents.sqlite")
    connection.execute("UPDATE incident_meta SET value = '9'")
    connection.commit()
    connection.close()
    with pytest.raises(UnavailableError, match=f"has schema 9, this central knows {incident_store.SCHEMA_VERSION}"):
        IncidentStore("", tmp_path)


# --- what a batch may bring ---


def checked(*triggers, importer=False):
    batch = agent_pb2.CpiBatch(spool_id="s", sequence=5, triggers=triggers)
    return check_triggers(batch, Sender("h1", "", is_importer=importer, limits=Limits(), now_unix_ns=NOW))


def test_a_report_is_known_by_its_batch():
    taken, rejected = checked(trigger(), trigger(NOW - S))
    assert rejected == {}
    assert [(t.host, t.spool_id, t.sequence, t.number, t.machine, t.unix_ns) for t in taken] == [
        ("h1", "s", 5, 0, "h1", NOW),
        ("h1", "s", 5, 1, "h1", NOW - S),
    ]
    assert agent_pb2.Trigger.FromString(taken[0].payload).suspects[0].job == "scan"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (trigger(victim="a\nb"), "bad_trigger"),
        (trigger(suspect="x" * 600), "bad_trigger"),
        (trigger(n_cpi=math.inf), "bad_trigger"),
        (trigger(found_by=[0]), "bad_trigger"),
        (trigger(found_by=[99]), "bad_trigger"),
        (trigger(found_by=[HOST] * 9), "bad_trigger"),
        (trigger(ended=True), "bad_trigger"),
        (trigger(slow_down=slower(0.0)), "bad_trigger"),
        (trigger(slow_down=slower(math.inf)), "bad_trigger"),
        (trigger(slow_down=slower(1.5, -math.inf)), "bad_trigger"),
        (trigger(slow_down=slower(1.5, 1.6, 1.7)), "bad_trigger"),
        (trigger(slow_down=slower(1.5, 1.2, 1.4)), "bad_trigger"),
        (trigger(slow_down=slower(NAN, 1.2, 1.1)), "bad_trigger"),
        (trigger(slow_down=slower(NAN, cannot_tell="a\nb")), "bad_trigger"),
        (trigger(slow_down=slower(NAN, cannot_tell="x" * 257)), "bad_trigger"),
        (trigger(mn_cpi=math.inf), "bad_trigger"),
        (trigger(score=math.inf), "bad_trigger"),
        (trigger(machine="other"), "bad_trigger"),
        (trigger(recommendations=[agent_pb2.Recommendation(name="a\x1b[2J")]), "bad_trigger"),
        (trigger(recommendations=[agent_pb2.Recommendation(evidence=["a\nb"])]), "bad_trigger"),
        (trigger(recommendations=[agent_pb2.Recommendation(amount=math.inf)]), "bad_trigger"),
        (
            trigger(recommendations=[agent_pb2.Recommendation(commands=[agent_pb2.Command(words=["x"] * 33)])]),
            "bad_trigger",
        ),
        (trigger(recommendations=[agent_pb2.Recommendation()] * 17), "bad_trigger"),
        (trigger(NOW + 2 * 3600 * S), "bad_trigger_time"),
        (trigger(NOW - 401 * DAY), "bad_trigger_time"),
    ],
)
def test_what_cannot_be_used_costs_itself_only(bad, reason):
    taken, rejected = checked(trigger(), bad, trigger())
    assert [t.number for t in taken] == [0, 2]
    assert rejected == {reason: 1}


def test_what_is_not_known_is_taken():
    taken, rejected = checked(
        host_only(),
        over(affected_vms=3),
        trigger(mn_cpi=NAN, n_cpi=NAN, slow_down=slower(NAN, cannot_tell="missing:llc_occupancy_bytes")),
        trigger(slow_down=slower(1.5, 1.5, NAN)),
        trigger(found_by=[HOST, FLEET]),
    )
    assert (len(taken), rejected) == (5, {})


def test_importers_speak_for_machines_of_any_time_and_floods_are_cut():
    (taken,), _ = checked(trigger(S, machine="m7"), importer=True)
    assert (taken.machine, taken.unix_ns) == ("m7", S)
    taken, rejected = checked(*[trigger()] * 203)
    assert (len(taken), rejected) == (200, {"too_many_triggers": 3})


# --- from the journal into history ---


def submission(sequence: int, *rows: TriggerRow) -> Submission:
    return Submission(
        host="h1",
        platform="p",
        spool_id="spool",
        sequence=sequence,
        received_unix_ns=NOW,
        payload=b"",
        rows=0,
        accepted_rows=0,
        rejected_rows={},
        kept=None,
        done=lambda _: None,
        triggers=rows,
    )


async def committed(journal: Journal, *submissions: Submission) -> None:
    for one in submissions:
        journal.submit(one)
    await journal.finish_roll(Roll("none", 0, 0), 0)  # a transaction after those before


async def test_reports_reach_history_once_over_failures_and_kills(tmp_path, monkeypatch):
    journal = Journal(tmp_path, replica="r", commit_interval_s=0.001)
    journal.start()
    store = IncidentStore("", tmp_path)
    recorder = IncidentRecorder(IncidentsSection(), journal, store, slot_s=300, clock_unix_ns=lambda: NOW)
    await committed(journal, submission(1, row(1)), submission(1, row(1)), submission(2, row(2, NOW - 300 * S)))
    assert journal.has_triggers.is_set()

    def broken(*_arguments, **_named):
        raise StoreError("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "take", broken)
        with pytest.raises(StoreError):
            await recorder.record_some()
    assert len(journal.read_triggers(10)) == 2
    with monkeypatch.context() as patch:  # killed between history and journal
        patch.setattr(journal, "forget_triggers", broken)
        with pytest.raises(StoreError):
            await recorder.record_some()
    assert await recorder.record_some() == 2
    assert await recorder.record_some() == 0
    (incident,) = store.find(IncidentQuery(), limit=10)
    assert incident.reports == 2
    assert await recorder.prune() == 0
    running = asyncio.create_task(recorder.run())
    await committed(journal, submission(3, row(3, NOW + 300 * S)))
    async with asyncio.timeout(10):
        while store.find(IncidentQuery(), limit=1)[0].reports != 3:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await journal.close()
    store.close()


async def test_the_recorder_reports_once_that_history_is_away(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("central.incidents.recorder._RETRY_S", 0.01)
    journal = Journal(tmp_path, replica="r", commit_interval_s=0.001)
    journal.start()
    store = IncidentStore("", tmp_path)
    recorder = IncidentRecorder(IncidentsSection(), journal, store, slot_s=300, clock_unix_ns=lambda: NOW)
    calls = []

    def flaky(*_arguments, **_named):
        calls.append(1)
        if len(calls) < 4:
            raise StoreError("the server is away")
        return 1

    monkeypatch.setattr(store, "take", flaky)
    await committed(journal, submission(1, row(1)))
    running = asyncio.create_task(recorder.run())
    async with asyncio.timeout(10):
        while journal.read_triggers(1):
            assert recorder.failure in {"", "the server is away"}
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(calls) == 4
    await journal.close()
    store.close()


async def test_the_oldest_reports_go_where_too_many_wait(tmp_path):
    journal = Journal(tmp_path, replica="r", commit_interval_s=0.001, max_events=3)
    journal.start()
    await committed(journal, *[submission(n, row(n)) for n in range(1, 6)])
    assert [t.sequence for _, t in journal.read_triggers(10)] == [3, 4, 5]
    assert journal.stats.rejected_events == {"trigger_backlog_full": 2}
    await journal.close()


@pytest.mark.parametrize("hours", ["-1", "nan", "inf", "1e7"])
def test_hours_that_are_none_are_refused(hours):
    result = CliRunner().invoke(incidents_cli.app, ["list", "--central", "h:1", "--hours", hours])
    assert result.exit_code == 2
    assert "Invalid value for '--hours'" in result.output


def test_what_an_agent_recommends_for_the_longest_names_is_taken():
    long = "n" * 256
    situation = recommendations.Situation(
        victims=(recommendations.Victim("v" * 36, long, long, 3.0, 1.0, 2.0, 1.5),),
        suspects=(
            recommendations.Suspect(
                "s" * 36, long, long, 2.0, 4, 0.5, 0.1, 1.0, 2.0**24, memory_bytes_per_s=1e9, inflicts=True
            ),
        ),
        mn_cpi=3.0,
        mn_cpi_threshold=2.0,
        lasted_s=900.0,
        host=recommendations.HostLimits(cache_ways=11, min_bandwidth_percent=10, central=f"{'h' * 253}:7480"),
    )
    advised = [recommendation_message(one) for one in recommend(situation)]
    lengths = [len(text) for one in advised for text in one.evidence]
    assert max(lengths) > 512, "else this test shows nothing"
    batch = agent_pb2.CpiBatch(spool_id="s", sequence=1, triggers=[trigger(recommendations=advised)])
    taken, rejected = check_triggers(batch, Sender("h1", "", is_importer=False, limits=Limits(), now_unix_ns=NOW))
    assert (len(taken), rejected) == (1, {})


def test_a_postgresql_that_went_without_a_word_is_given_up_soon():
    engine = incident_store._postgresql("postgresql://u@h/d?keepalives_idle=7")
    seen = {}

    @sa.event.listens_for(engine, "do_connect")
    def _(_dialect, _record, _arguments, named):
        seen.update(named)
        raise sa.exc.OperationalError("", None, Exception("not here"))

    with pytest.raises(sa.exc.OperationalError):
        engine.connect()
    assert (seen["tcp_user_timeout"], seen["keepalives_interval"], seen["keepalives_count"]) == (30_000, 5, 3)
    assert str(seen["keepalives_idle"]) == "7", "what the URL says goes first"


@pytest.fixture
def answered(monkeypatch):
    """Have central answer the command line with what a test puts here; `asked` has what it asked for."""
    answers, asked = {"GetIncidentTimeline": fleet_pb2.IncidentTimeline()}, []

    @contextlib.contextmanager
    def asking(*_arguments):
        yield lambda method, request: asked.append(request) or answers[method]

    monkeypatch.setattr(incidents_cli, "asking", asking)
    monkeypatch.setattr(incidents_cli.console, "width", 200)
    answers["asked"] = asked
    return answers


FILES = dict.fromkeys(("ca", "cert", "key"), Path("pki"))


def test_people_see_that_an_n_cpi_was_cut_and_that_times_are_utc(answered, capsys):
    incident = fleet_pb2.Incident(
        id=7,
        host="node1",
        first_unix_ns=1_700_000_000 * 10**9,
        victims=[
            fleet_pb2.IncidentVm(vm="u1", name="web-1", job="web", peak=3.0),
            fleet_pb2.IncidentVm(vm="u2", name="web-2", job="web", peak=2.5),
        ],
    )
    answered["GetIncident"] = fleet_pb2.IncidentDetail(incident=incident)
    answered["ListIncidents"] = fleet_pb2.ListIncidentsResponse(incidents=[incident])
    incidents_cli.show("7", "h:1", **FILES)
    shown = capsys.readouterr().out
    assert "3 (cut)" in shown
    assert "2.5 (cut)" not in shown
    assert "REPORTED (UTC)" in shown
    incidents_cli.list_("h:1", **FILES)
    assert "BEGAN (UTC)" in capsys.readouterr().out


def test_piped_tables_are_whole_and_a_narrow_terminal_keeps_who_and_how_much(answered, capsys, monkeypatch):
    vm = {"vm": "u1", "name": "a-victim-with-a-long-name-1", "job": "web"}
    slow = fleet_pb2.IncidentVm(**vm, slow_down=agent_pb2.Degradation(ratio=1.9, low=1.6, high=2.2))
    incident = fleet_pb2.Incident(
        id=7,
        host="node0001",
        first_unix_ns=NOW,
        open=True,
        victims=[slow],
        victims_now=1,
        slowest_now=slow,
        suspect=fleet_pb2.IncidentVm(vm="s", name="scan-1", job="scan"),
    )
    answered["ListIncidents"] = fleet_pb2.ListIncidentsResponse(incidents=[incident])
    answered["GetIncident"] = fleet_pb2.IncidentDetail(incident=incident)
    monkeypatch.setattr(incidents_cli.console, "width", 20)
    incidents_cli.list_("h:1", **FILES)
    _, line = capsys.readouterr().out.splitlines()
    for part in ("node0001", "2027-01-15 08:00:00", "1.90x [1.60, 2.20]", vm["name"], "scan-1 of job scan"):
        assert part in line
    incidents_cli.show("7", "h:1", **FILES)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith(vm["name"]))
    assert "1.90x [1.60, 2.20]" in line
    terminal = PlainConsole(force_terminal=True, color_system=None, width=90)
    for module in (incidents_cli, outputs):
        monkeypatch.setattr(module, "console", terminal)
    incidents_cli.list_("h:1", **FILES)
    _, line, *_ = (x for x in capsys.readouterr().out.splitlines() if "NO" in x or "node0001" in x)
    for part in ("node0001", "open", "1.90x [1.60, 2.20]", "scan-1 of job scan"):
        assert part in line


def test_people_see_by_how_much_who_does_it_and_which_analysis_found_it(store, answered, capsys):
    take(store, row(1, slow_down=slower(1.9, 1.6, 2.2)), reported(2, host_only(NOW + 60 * S)))
    take(store, row(3, NOW, host="h2", slow_down=slower(NAN, cannot_tell="no_model"), score=NAN))
    take(store, reported(4, over(NOW + S), host="h2"))
    incidents = mark_open(listed(store), NOW)
    answered["ListIncidents"] = fleet_pb2.ListIncidentsResponse(incidents=incidents)
    incidents_cli.list_("h:1", **FILES, open_only=True)
    assert answered["asked"][0].open_only
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["NO", "HOST", "STATE", "BEGAN", "(UTC)", "LASTED", "SLOW-DOWN", "VICTIMS", "SUSPECT", "FOUND", "BY"]
    day = ["2027-01-15", "08:00:00"]
    assert rows == [
        ["2", "h2", "over", *day, "0", "min", "-", "web-1", "-", "fleet"],
        [
            "1", "h1", "open", *day, "1", "min", "1.50x", "[1.25,", "1.75]", "web-1", "dedup-1", "of", "job", "dedup",
            "host,", "fleet",
        ],
    ]  # fmt: skip
    detail = store.get(1)
    mark_open([detail.incident], NOW)
    answered["GetIncident"] = detail
    incidents_cli.show("1", "h:1", **FILES)
    shown = capsys.readouterr().out
    assert "lasted 1 min, 1 VM suffers, last reported 2027-01-15 08:01:00 UTC" in shown
    assert "first suspect dedup-1 of job dedup; found by the host's own analysis and by the fleet's statistics" in shown
    victim, suspect = (next(line for line in shown.splitlines() if line.startswith(name)) for name in ("web", "ded"))
    assert victim.split()[2:10] == ["1.90x", "[1.60,", "2.20]", "4", "2", "1.50x", "[1.25,", "1.75]"]
    assert suspect.split() == ["dedup-1", "dedup", "1", "1", "-", "yes", "-", "0"]
    assert "are of the last report" in shown
    take(store, reported(9, over(NOW + 90 * S)))
    answered["GetIncident"] = store.get(1)
    incidents_cli.show("1", "h:1", **FILES)
    shown = capsys.readouterr().out
    assert "over" in shown and "are of the last report" not in shown, "nothing of it is so any more"
    assert not {"INFLICTS", "NOW", "CORES"} & set(shown.split())
    answered["ListIncidents"] = fleet_pb2.ListIncidentsResponse()
    incidents_cli.list_("h:1", **FILES, open_only=True)
    assert capsys.readouterr().out == "no open incidents\n"


def test_each_victim_of_now_has_its_own_begin_and_its_own_suspect(store):
    """In any order of arrival; a suspect that the last report does not name any more has its name of before."""
    first, last = trigger(NOW), trigger(NOW + 600 * S, suspect="dedup")
    last.victims[0].suspect = "uuid-scan"
    last.victims.add(vm="uuid-db", name="db-1", job="db", slow_down=slower(1.5, 1.25, 1.75), suspect="uuid-dedup")
    last.victims.add(vm="uuid-lone", name="lone-1", job="lone")
    take(store, reported(2, last), reported(1, first))
    (incident,) = open_ones = store.open_now(NOW, limit=10)
    found = {vm.name: vm for vm in store.suffering(open_ones)}
    begun = {name: vm.since_unix_ns for name, vm in found.items()}
    assert begun == {"web-1": NOW, "db-1": NOW + 600 * S, "lone-1": NOW + 600 * S}
    because = {name: (vm.suspect, vm.suspect_name, vm.suspect_job) for name, vm in found.items()}
    assert because == {
        "web-1": ("uuid-scan", "scan-1", "scan"),
        "db-1": ("uuid-dedup", "dedup-1", "dedup"),
        "lone-1": ("", "", ""),
    }
    assert {(vm.incident, vm.host) for vm in found.values()} == {(incident.id, "h1")}
    assert found["db-1"].slow_down.ratio == 1.5 and not found["lone-1"].HasField("slow_down")
    assert store.suffering([]) == []


def test_incidents_that_become_one_keep_when_each_vm_was_first_named(store):
    take(store, row(1, NOW), row(3, NOW + 2 * GAP, victim="db"))
    take(store, row(2, NOW + GAP, victim="db"))
    (whole,) = listed(store)
    assert {vm.name: vm.first_unix_ns for vm in whole.victims} == {"web-1": NOW, "db-1": NOW + GAP}
