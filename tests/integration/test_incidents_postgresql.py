"""Incident history in a real PostgreSQL, shared by several centrals: the answers of SQLite, each report once."""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from central.facts.store import FactStore
from central.incidents import people, silences, webhook_tables
from central.incidents.store import IncidentQuery, IncidentStore, StoreError
from central.validation.events import AgentSeen
from central.validation.facts import FactRow
from tests.support.webhook_receiver import Receiver
from tests.unit.central.incidents.test_incidents import DAY, GAP, NOW, S, host_only, over, reported, row, slower
from tests.unit.central.incidents.test_webhook_delivery import running, take, until, webhooks
from whitepanda.common.errors import UnavailableError
from whitepanda.v1 import agent_pb2, fleet_pb2

pytestmark = pytest.mark.integration

BIN = Path("/usr/lib/postgresql/15/bin")


class Cluster:
    """A server of its own, on a unix socket only, as the user postgres where we are root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._user = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self._run("initdb", "--auth=trust", "--username=whitepanda", "--no-sync", "--locale=C", "--encoding=UTF8")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://whitepanda@/postgres?host={self.folder}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self._run("pg_ctl", "--wait", f"--log={self.folder}/log", f"--options={options}", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(BIN / name), "-D", str(self.data), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd="/", **self._user)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cluster():
    if not (BIN / "initdb").exists():
        pytest.skip("needs PostgreSQL: apt-get install postgresql-15")
    # Not below pytest's folder, which the user postgres may not enter; and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="wp-pg-", dir="/tmp"))
    found = Cluster(folder)
    yield found
    found.stop()
    shutil.rmtree(folder)


def plain(store: IncidentStore) -> list[str]:
    """All that history tells, but for numbers, which depend on the order of arrival."""
    found = []
    for incident in store.find(IncidentQuery(), limit=1000):
        detail = store.get(incident.id)
        detail.incident.id = 0
        found.append(str(detail))
    return found + [str(job) for job in store.suspect_jobs(limit=1000)]


def test_postgresql_answers_like_sqlite_also_to_two_centrals_at_once(cluster, tmp_path):
    rows = [
        row(
            n,
            NOW + minute * 60 * S,
            host=f"h{n % 3}",
            suspect=("scan", "dedup")[n % 2],
            mn_cpi=3.0 + n,
            slow_down=slower(1.25 + n / 8, 1.25) if n % 4 else None,
        )
        for n, minute in enumerate([0, 3, 5, 30, 33, 60, 14, 45, 90, 91, 22, 70])
    ]
    rows += [reported(50 + n, host_only(NOW + (40 + 20 * n) * 60 * S), host=f"h{n}") for n in range(3)]
    rows += [reported(60, over(NOW + 92 * 60 * S), host="h0")]
    sqlite = IncidentStore("", tmp_path)
    sqlite.take(rows, gap_ns=GAP, oldest_unix_ns=0)
    stores = [IncidentStore(cluster.url, tmp_path), IncidentStore(cluster.url, tmp_path)]
    taken = []

    def feed(store: IncidentStore, mine: list) -> None:
        for at in range(0, len(mine), 3):
            new = store.take(mine[at : at + 3], gap_ns=GAP, oldest_unix_ns=0)
            taken.append(new)

    # A host that goes over to the other central before its acknowledgement: both have all of it.
    threads = [
        threading.Thread(target=feed, args=(stores[0], rows)),
        threading.Thread(target=feed, args=(stores[1], rows[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == len(rows)
    assert plain(stores[0]) == plain(stores[1]) == plain(sqlite)
    worst = [[i.host for i in s.open_now(NOW + 30 * 60 * S, limit=9)] for s in (*stores, sqlite)]
    assert worst[0] == worst[1] == worst[2] != []
    assert len({s.count_open(NOW + 30 * 60 * S) for s in (*stores, sqlite)}) == 1
    for query in (
        IncidentQuery(host="h1"),
        IncidentQuery(open_since_unix_ns=NOW + 30 * 60 * S),
        IncidentQuery(suspect_job="dedup", since_unix_ns=NOW + 40 * 60 * S),
        IncidentQuery(victim_job="web", until_unix_ns=NOW + 40 * 60 * S),
        IncidentQuery(vm="uuid-scan"),
        IncidentQuery(vm="scan-1"),
    ):
        found = [[(i.host, i.suspect_job, i.first_unix_ns) for i in s.find(query, limit=9)] for s in (*stores, sqlite)]
        assert found[0] == found[1] == found[2] != []
    first = stores[0].find(IncidentQuery(), limit=1)[0]
    after = (first.first_unix_ns, first.id)
    assert stores[0].find(IncidentQuery(), limit=1, after=after) == stores[0].find(IncidentQuery(), limit=2)[1:]
    while stores[0].prune(NOW + DAY):
        pass
    assert plain(stores[1]) == []
    for store in (*stores, sqlite):
        store.close()


async def test_of_two_centrals_one_reports_each_webhook(cluster, tmp_path):
    """Both look for what is new, which comes by both, and each incident is reported once; then the other takes over."""
    receiver = Receiver()
    stores = [IncidentStore(cluster.url, tmp_path), IncidentStore(cluster.url, tmp_path)]
    first, second = (webhooks(store, receiver, holder=name) for store, name in zip(stores, "ab", strict=True))
    async with running(first), running(second):
        for n in range(30):
            take(stores[n % 2], row(n, NOW + n, host=f"h{n}"))
            first.wake()
            second.wake()
        await until(lambda: sum(s.delivered for s in (*first.status(), *second.status())) == 30)
        assert sorted(s.active for s in (*first.status(), *second.status())) == [False, True]
    assert len(set(receiver.taken())) == 30
    holder = stores[0].write(lambda c: c.scalar(sa.select(webhook_tables.receivers.c.holder)))
    other = "b" if holder == "a" else "a"
    take(stores[0], row(40, NOW, host="h40"))
    async with running(webhooks(stores[1], receiver, holder=other)) as third:
        await until(lambda: third.status()[0].receiver and not third.status()[0].active)
        stores[0].write(lambda c: c.execute(sa.update(webhook_tables.receivers).values(until_unix_ns=time.time_ns())))
        await until(lambda: len(receiver.taken()) == 31)
    receiver.close()
    for store in stores:
        while store.prune(NOW + DAY):
            pass
        store.close()


def test_people_at_two_centrals_at_once(cluster, tmp_path):
    """Each of the same requests at both changes things once, has one line in the audit, and both give one answer."""
    stores = [IncidentStore(cluster.url, tmp_path), IncidentStore(cluster.url, tmp_path)]
    take(stores[0], *(row(n, NOW + n * 2 * GAP) for n in range(8)))
    numbers = sorted(i.id for i in stores[0].find(IncidentQuery(), limit=99))
    answers: list[list] = [[], []]
    start = threading.Barrier(len(stores))

    def respond(which: int) -> None:
        store, found, who = stores[which], answers[which], "ab"[which]
        start.wait()
        for n, number in enumerate(numbers):
            store.acknowledge(number, who=who, reason="on it", unix_ns=NOW)
            store.add_note(number, who=who, text="x", key=f"k{number}", unix_ns=NOW)  # it may be gone already
            values = dict.fromkeys(("vm", "job", "project", "name"), "") | {"host": f"h{n}", "key": f"s{n}"}
            values |= {"start_unix_ns": NOW, "end_unix_ns": NOW + DAY, "reason": "x", "who": who}
            made = store.create_silence(values, now_unix_ns=NOW)
            found.append((made.id, made.by))
            found.append(store.end_silence(made.id, who=who, now_unix_ns=NOW + S).ended_by)
            store.note_agents([AgentSeen("h1", "b", "1", NOW + n, NOW + n)])

    # Meanwhile all incidents become one.
    joining = [row(100 + n, NOW + n * 2 * GAP + GAP) for n in range(7)]
    threads = [threading.Thread(target=respond, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for each in joining:
        take(stores[1], each)
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1] != [], "whoever was first, for both"
    (last,) = stores[0].find(IncidentQuery(), limit=99)
    assert last.acknowledged_by in ("a", "b")
    lines = stores[0].audit(limit=999, before_id=2**62)
    assert lines == stores[1].audit(limit=999, before_id=2**62)
    by_action = Counter(line.action for line in lines)
    assert by_action[fleet_pb2.AUDIT_ACTION_SILENCE] == by_action[fleet_pb2.AUDIT_ACTION_END_SILENCE] == 8
    assert by_action[fleet_pb2.AUDIT_ACTION_NOTE] == len(stores[0].get(last.id).notes) <= 8
    assert by_action[fleet_pb2.AUDIT_ACTION_ACKNOWLEDGE] <= 8
    assert len(stores[0].list_silences(limit=99, before_id=99, now_unix_ns=NOW, current_only=False)) == 8
    for store in stores:
        while store.prune(NOW + DAY):
            pass
        store.close()


def test_silences_match_alike(cluster, tmp_path):
    stores = [IncidentStore(cluster.url, tmp_path), IncidentStore("", tmp_path)]
    found = []
    for store in stores:
        store.write(lambda c: c.execute(sa.delete(silences.silences)))
        take(store, row(1), row(2, victim="db"), row(3, host="h3", suspect="dedup"))
        first = min(i.id for i in store.find(IncidentQuery(), limit=9))
        for n, matchers in enumerate(
            [{"host": "h1"}, {"job": "scan"}, {"job": "web"}, {"vm": "dedup-1", "host": "h3"}]
        ):
            values = dict.fromkeys((*silences.MATCHERS, "name"), "") | matchers | {"key": f"m{n}", "reason": "x"}
            values |= {"start_unix_ns": NOW, "end_unix_ns": NOW + (n + 1) * S, "who": "a"}
            store.create_silence(values, now_unix_ns=NOW)
        least = min(s.id for s in store.list_silences(limit=9, before_id=2**62, now_unix_ns=NOW, current_only=True))
        at = [store.silenced([first, first + 1], NOW + s * S) for s in range(4)]
        found.append([{i - first: s - least for i, s in each.items()} for each in at])
        counts = store.open_counts(NOW, NOW)
        found[-1] += [counts.all, counts.silenced, counts.quiet_victims]
        while store.prune(NOW + DAY):
            pass
        store.close()
    assert found[0] == found[1] == [{0: 1, 1: 3}, {0: 1, 1: 3}, {1: 3}, {1: 3}, 2, 2, ("uuid-db", "uuid-web")]


def test_a_project_has_the_same_silences_audit_and_vms(cluster, tmp_path):
    stores = [IncidentStore(cluster.url, tmp_path), IncidentStore("", tmp_path)]
    found = []
    for store in stores:
        store.write(lambda c: [c.execute(sa.delete(table)) for table in (silences.silences, people.audit)])
        store.take([row(1)], gap_ns=GAP, oldest_unix_ns=0, project_of=lambda *_: "shop")
        facts = FactStore(store)
        said = [
            agent_pb2.VmFacts(unix_ns=S * at, vm="v1", project=p, name="Web-1") for at, p in ((1, "Shop"), (9, "b"))
        ]
        facts.take([FactRow("h1", "v1", one.unix_ns, one.SerializeToString()) for one in said])
        (incident,) = store.find(IncidentQuery(vm="uuid-web", project="shop"), limit=9)
        assert store.find(IncidentQuery(number=incident.id, project="shop"), limit=1) and not store.find(
            IncidentQuery(vm="uuid-web", project="b"), limit=1
        )
        store.acknowledge(incident.id, who="a", reason="x", unix_ns=NOW)
        for n, matchers in enumerate([{"project": "shop"}, {"vm": "v1"}, {"vm": "WEB-1"}, {"vm": "v2"}]):
            values = dict.fromkeys((*silences.MATCHERS, "name"), "") | matchers | {"key": f"p{n}", "reason": "x"}
            values |= {"start_unix_ns": NOW, "end_unix_ns": NOW + S, "who": "a"}
            store.create_silence(values, now_unix_ns=NOW)
        vms = facts.of_project("shop", store.silenced_vms())
        page = {"limit": 9, "before_id": 2**62, "project": "shop", "vms": vms}
        listed = store.list_silences(now_unix_ns=NOW, current_only=True, **page)
        lines = store.audit(**page)
        found.append((vms, [one.vm or one.project for one in listed], [one.action for one in lines]))
        found[-1] += (facts.has_project("SHOP", vm="v1"), facts.projects_of(["v1", "v2"], ["shop", "B"], 0, NOW))
        while store.prune(NOW + DAY):
            pass
        store.close()
    silence = fleet_pb2.AUDIT_ACTION_SILENCE
    actions = [silence, silence, silence, fleet_pb2.AUDIT_ACTION_ACKNOWLEDGE]
    assert found[0] == found[1] == (["WEB-1", "v1"], ["WEB-1", "v1", "shop"], actions, True, {"v1": "B"})


def test_vms_that_suffer_and_facts_are_found_alike(cluster, tmp_path):
    rows = []
    for at in range(1, 10):
        facts = agent_pb2.VmFacts(
            unix_ns=at * S, vm=f"vm-{at}", name=f"n{at}", job=f"Mail-{at % 3}", project="Post", gone=at > 6
        )
        rows.append(FactRow(f"Host-{at % 2}", facts.vm, facts.unix_ns, facts.SerializeToString()))
    found = []
    for store in [IncidentStore(cluster.url, tmp_path), IncidentStore("", tmp_path)]:
        facts = FactStore(store)
        facts.take(rows)
        take(store, row(1), row(2, NOW + GAP // 2, victim="db"), row(3, host="h3"))
        vms = store.suffering(store.open_now(NOW, limit=9))
        found.append(
            [
                sorted((vm.host, vm.name, vm.since_unix_ns - NOW) for vm in vms),
                store.totals(0, NOW, top=9).suffering_in_all,
                *([vm.vm for vm in facts.find(text, 9)] for text in ("mail", "host-1", "post", "n3", "vm-")),
                *(facts.find_groups(text, 9, project) for text in ("mail", "post", "0") for project in ("", "post")),
            ]
        )
        while store.prune(NOW + DAY):
            pass
        store.close()
    assert found[0] == found[1]
    assert found[0][:2] == [[("h1", "db-1", GAP // 2), ("h3", "web-1", 0)], 2]
    assert ("job", "Mail-2") in found[0][-6] and len(found[0][2]) == 6


def test_a_server_that_goes_and_comes_back(cluster, tmp_path):
    store = IncidentStore(cluster.url, tmp_path)
    store.take([row(1)], gap_ns=GAP, oldest_unix_ns=0)
    cluster.stop()
    with pytest.raises(StoreError) as caught:
        store.take([row(2)], gap_ns=GAP, oldest_unix_ns=0)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnavailableError, match=r"cannot be used: .*is incidents\.url right"):
        IncidentStore(cluster.url, tmp_path)
    cluster.start()
    assert store.take([row(1), row(2)], gap_ns=GAP, oldest_unix_ns=0) == 1
    assert [i.reports for i in store.find(IncidentQuery(), limit=9)] == [2]
    store.close()
