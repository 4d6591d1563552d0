"""Acknowledgements, notes, silences and the audit in incident history, and what webhooks send then."""

import contextlib
import json

import pytest
import sqlalchemy as sa

from central.incidents import changes, people, silences, webhook_tables
from central.incidents.people import TooManyError
from central.incidents.silences import KeyTakenError
from central.incidents.store import IncidentStore
from central.validation.events import AgentSeen
from tests.support.webhook_receiver import Receiver
from tests.unit.central.incidents.test_incidents import DAY, GAP, NOW, S, host_only, listed, reported, row
from tests.unit.central.incidents.test_incidents import take as put
from tests.unit.central.incidents.test_webhook_delivery import Clock, running, until, webhooks
from whitepanda.v1 import agent_pb2, fleet_pb2

HOUR = 3600 * S


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as opened:
        yield opened


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


def silence(store, *, key="k", now=NOW, start=0, end=NOW + HOUR, **matchers) -> fleet_pb2.Silence:
    values = dict.fromkeys((*silences.MATCHERS, "name"), "") | matchers
    values |= {"key": key, "start_unix_ns": start or now, "end_unix_ns": end, "reason": "known", "who": "anna"}
    return store.create_silence(values, now_unix_ns=now)


def audited(store) -> list[tuple]:
    return [(e.action, e.by, e.incident or e.silence, e.text) for e in store.audit(limit=99, before_id=2**62)]


def silenced(store, now=NOW, **matchers) -> bool:
    """Whether a silence of these alone matches the first incident."""
    store.write(lambda connection: connection.execute(sa.delete(silences.silences)))
    silence(store, now=now, **matchers)
    return 1 in store.silenced([1], now)


def test_the_first_to_acknowledge_stays_and_a_repeated_request_is_no_second_line_of_the_audit(store):
    put(store, row(1))
    assert store.acknowledge(1, who="anna", reason="on it", unix_ns=NOW)
    assert store.acknowledge(1, who="bob", reason="me too", unix_ns=NOW + S)
    (found,) = listed(store)
    assert (found.acknowledged_by, found.acknowledgement, found.acknowledged_unix_ns) == ("anna", "on it", NOW)
    assert audited(store) == [(fleet_pb2.AUDIT_ACTION_ACKNOWLEDGE, "anna", 1, "on it")]
    assert not store.acknowledge(9, who="anna", reason="on it", unix_ns=NOW)


def test_notes_are_kept_in_their_order_once_each_and_not_without_end(store, monkeypatch):
    put(store, row(1))
    for n in (1, 1, 2):
        store.add_note(1, who="anna", text=f"note {n}", key=f"k{n}", unix_ns=NOW + n)
    assert [(n.by, n.text) for n in store.get(1).notes] == [("anna", "note 1"), ("anna", "note 2")]
    assert len(audited(store)) == 2
    assert store.add_note(7, who="anna", text="x", key="k7", unix_ns=NOW) is None
    monkeypatch.setattr(people, "MAX_NOTES", 2)
    with pytest.raises(TooManyError, match="incident 1 has 2 notes"):
        store.add_note(1, who="anna", text="x", key="k3", unix_ns=NOW)


def test_notes_and_acknowledgements_move_with_an_incident_that_becomes_part_of_another_and_go_with_it(store):
    put(store, row(1), row(2, NOW + 2 * GAP))
    store.add_note(2, who="anna", text="look", key="k", unix_ns=NOW)
    store.acknowledge(2, who="bob", reason="on it", unix_ns=NOW + S)
    store.acknowledge(1, who="cleo", reason="later", unix_ns=NOW + 2 * S)
    put(store, row(3, NOW + GAP))
    (found,) = listed(store)
    assert (found.id, found.acknowledged_by) == (1, "bob"), "the first of both"
    assert [n.text for n in store.get(1).notes] == ["look"]
    while store.prune(NOW + DAY):
        pass
    for table in ("incident_notes", "incident_acknowledgements"):
        count = sa.text(f"SELECT count(*) FROM {table}")  # noqa: S608 - names from above
        assert store.write(lambda connection, count=count: connection.scalar(count)) == 0


def test_a_silence_matches_where_all_that_it_names_does(store):
    put(store, row(1), row(2, NOW, victim="db", suspect="scan"))  # victims web-1 and db-1, first suspect scan-1
    assert silenced(store, host="h1") and not silenced(store, host="h2")
    assert silenced(store, job="scan") and silenced(store, vm="uuid-scan") and silenced(store, vm="scan-1")
    assert silenced(store, job="scan", host="h1") and not silenced(store, job="scan", host="h2")
    assert not silenced(store, job="odd"), "a suspect, and not the first"
    assert not silenced(store, job="web"), "another victim must not be hidden"
    assert not silenced(store, job="web", vm="db-1")
    put(store, row(3, NOW + 9 * GAP, host="h3"))
    made = silence(store, key="other", job="web")
    assert store.silenced([1, 2], NOW) == {2: made.id}, "all victims of the second are of it"


def test_a_project_is_that_of_the_reports(store):
    projects = {"uuid-web": "shop", "uuid-scan": "lab"}
    store.take([row(1)], gap_ns=GAP, oldest_unix_ns=0, project_of=lambda _host, vm: projects.get(vm, ""))
    assert silenced(store, project="lab") and silenced(store, project="shop") and not silenced(store, project="x")
    assert [i.id for i in listed(store, project="shop")] == [1] and listed(store, project="x") == []
    store.take([row(2)], gap_ns=GAP, oldest_unix_ns=0)
    assert listed(store)[0].victims[0].project == "shop", "what is not known any more stays"


def test_a_silence_begins_and_ends_by_itself_or_is_ended_once(store):
    put(store, row(1))
    one = silence(store, host="h1", start=NOW + 60 * S, end=NOW + 120 * S)
    assert not one.in_force
    at = {s: store.silenced([1], NOW + s * S) for s in (59, 60, 119, 120)}
    assert at == {59: {}, 60: {1: 1}, 119: {1: 1}, 120: {}}
    ended = store.end_silence(1, who="bob", now_unix_ns=NOW + 90 * S)
    assert (ended.end_unix_ns, ended.ended_by, ended.in_force) == (NOW + 90 * S, "bob", False)
    assert store.end_silence(1, who="cleo", now_unix_ns=NOW + 100 * S) == ended
    assert store.end_silence(7, who="bob", now_unix_ns=NOW) is None
    actions = [fleet_pb2.AUDIT_ACTION_END_SILENCE, fleet_pb2.AUDIT_ACTION_SILENCE]
    assert audited(store) == [(actions[0], "bob", 1, "host h1"), (actions[1], "anna", 1, "host h1: known")]
    later = silence(store, key="k2", host="h1", start=NOW + HOUR, end=NOW + 2 * HOUR)
    ended = store.end_silence(later.id, who="bob", now_unix_ns=NOW)
    assert (ended.start_unix_ns, ended.end_unix_ns) == (NOW, NOW), "it never begins"


def test_a_repeated_request_is_the_same_silence_and_another_with_its_key_is_refused(store, monkeypatch):
    first = silence(store, host="h1")
    assert silence(store, host="h1", now=NOW + 5 * S) == first
    with pytest.raises(KeyTakenError):
        silence(store, host="h2")
    monkeypatch.setattr(silences, "MAX_IN_FORCE", 1)
    with pytest.raises(TooManyError, match="1 silences are in force"):
        silence(store, key="k2", host="h2")
    silence(store, key="k3", host="h2", now=NOW + 2 * HOUR, end=NOW + 3 * HOUR)  # the first is over then


def test_silences_and_audit_are_listed_the_last_first_and_pruned(store, monkeypatch):
    for n in range(5):
        silence(store, key=f"k{n}", host=f"h{n}", end=NOW + (n + 1) * HOUR)
    named = {"now_unix_ns": NOW + 2 * HOUR, "limit": 2}
    assert [s.id for s in store.list_silences(before_id=5, current_only=False, **named)] == [4, 3]
    assert [s.id for s in store.list_silences(before_id=4, current_only=True, **named)] == [3]
    assert [e.silence for e in store.audit(limit=2, before_id=5)] == [4, 3]
    monkeypatch.setattr(people, "MAX_AUDIT", 3)
    store.prune_old(NOW + HOUR + 1)
    assert [s.id for s in store.list_silences(before_id=9, current_only=False, now_unix_ns=NOW, limit=9)] == [
        5,
        4,
        3,
        2,
    ]
    assert audited(store) == [], "all of it is older"
    for n in range(5):
        silence(store, key=f"l{n}", host="h1", now=NOW + 2 * HOUR, end=NOW + 9 * HOUR)
    store.prune_old(NOW)
    assert len(audited(store)) == 3, "the oldest beyond the bound go first"


def test_open_incidents_are_counted_by_what_people_did(store):
    put(store, *(row(n, host=f"h{n}", victim=f"web{n}") for n in range(4)))
    silence(store, host="h0")
    for number in (1, 2):
        store.acknowledge(number, who="anna", reason="on it", unix_ns=NOW)
    counts = store.open_counts(NOW, NOW)
    assert (counts.all, counts.silenced, counts.acknowledged) == (4, 1, 1)
    assert counts.quiet_victims == ("uuid-web0", "uuid-web1")
    assert store.open_counts(NOW, NOW + HOUR).silenced == 0


# -- webhooks


async def test_a_silenced_incident_is_not_sent_until_its_silence_is_over(store, receiver):
    clock = Clock()
    put(store, row(1), row(2, host="h2"))
    silence(store, host="h1", end=NOW + 300 * S)
    async with running(webhooks(store, receiver, clock=clock)) as found:
        await until(lambda: receiver.taken() == [("2", "firing")])
        for _ in range(3):
            await quiet_turn(found)
        assert receiver.taken() == [("2", "firing")]
        clock.now += 300 * S
        await until(lambda: receiver.taken() == [("2", "firing"), ("1", "firing")])
    description = receiver.posts[-1].alert["annotations"]["description"]
    assert description.startswith("silence 1 of anna is over (known); ")


async def test_webhooks_that_ignore_silences_would_be_noticed(store, receiver, monkeypatch):
    """The mutant of the test above: what it asserts does not hold."""
    monkeypatch.setattr(silences, "is_silenced", lambda _now: sa.false())
    put(store, row(1), row(2, host="h2"))
    silence(store, host="h1")
    async with running(webhooks(store, receiver)):
        await until(lambda: receiver.taken() == [("1", "firing"), ("2", "firing")])


async def test_what_was_sent_and_silenced_then_is_sent_again_if_it_is_open_at_the_end_of_the_silence(store, receiver):
    clock = Clock()
    put(store, row(1))
    async with running(webhooks(store, receiver, clock=clock)) as found:
        await until(lambda: receiver.taken() == [("1", "firing")])
        made = silence(store, job="scan")
        await quiet_turn(found)
        store.end_silence(made.id, who="bob", now_unix_ns=NOW)
        await until(lambda: receiver.taken() == [("1", "firing")] * 2)
        await quiet_turn(found)
    assert receiver.taken() == [("1", "firing")] * 2, "once"
    assert len({json.dumps(p.alert["labels"]) for p in receiver.posts}) == 1


async def test_the_end_of_what_a_receiver_knows_is_sent_in_a_silence_and_of_the_rest_nothing(store, receiver):
    clock = Clock()
    put(store, row(1))
    async with running(webhooks(store, receiver, clock=clock)) as found:
        await until(lambda: receiver.taken() == [("1", "firing")])
        silence(store, job="scan", end=NOW + 9 * HOUR)
        put(store, row(2, host="h2"))
        await quiet_turn(found)
        clock.now += GAP + 1
        await until(lambda: len(receiver.taken()) == 2)
        await quiet_turn(found)
    assert receiver.taken() == [("1", "firing"), ("1", "resolved")]


async def test_an_acknowledged_incident_is_not_sent_again_and_its_end_is(store, receiver):
    clock = Clock()
    alone = agent_pb2.Trigger(victims=host_only().victims, unix_ns=NOW)
    put(store, reported(1, alone))
    async with running(webhooks(store, receiver, clock=clock)) as found:
        await until(lambda: receiver.taken() == [("1", "firing")])
        store.acknowledge(1, who="anna", reason="on it", unix_ns=NOW)
        put(store, row(2, NOW + S))  # now it has a suspect
        await quiet_turn(found)
        assert receiver.taken() == [("1", "firing")]
        clock.now += GAP + 2 * S
        await until(lambda: receiver.taken() == [("1", "firing"), ("1", "resolved")])


async def quiet_turn(found) -> None:
    """Wait until webhooks have looked once more."""
    looked, before = [], found._look

    def look(receiver):
        looked.append(1)
        return before(receiver)

    found._look = look
    found.wake()
    await until(lambda: len(looked) >= 2)
    found._look = before


def test_a_thousand_silenced_incidents_do_not_hold_up_another(store, monkeypatch):
    monkeypatch.setattr(webhook_tables, "_AT_ONCE", 3)
    put(store, *(row(n, NOW + n, host=f"h{n}") for n in range(9)))
    for n in range(8):
        silence(store, key=f"k{n}", host=f"h{n}")

    def change(connection):
        named = {"open_since_unix_ns": NOW, "now_unix_ns": NOW + S, "incident_url": "", "max_waiting": 99}
        webhook_tables.change(connection, "r", **named)
        return [
            json.loads(m)["alerts"][0]["labels"]["host"]
            for m in connection.scalars(sa.select(webhook_tables.notices.c.message))
        ]

    assert store.write(change) == ["h8"]


# -- what else changed


def seen(host="h1", boot="b1", version="1.0", started=NOW - DAY, at=NOW) -> AgentSeen:
    return AgentSeen(host, boot, version, started, at)


def changed(store, number=1, now=NOW + DAY) -> list[tuple[int, str, str]]:
    timeline = store.changes_of(number, now)
    kind = fleet_pb2.ChangeKind.Name
    return [((c.unix_ns - NOW) // S, kind(c.kind).removeprefix("CHANGE_KIND_"), c.text) for c in timeline.changes]


def test_changes_of_agents_and_hosts_are_found_between_two_hellos_also_of_other_replicas(store):
    put(store, row(1), row(2, NOW + 300 * S))
    store.note_agents([seen(), seen("h2")])
    store.note_agents([seen(at=NOW + S)])
    assert changed(store) == [], "it only came again"
    store.note_agents([seen(started=NOW + 10 * S, at=NOW + 20 * S), seen("h2", started=NOW + 10 * S, at=NOW + 20 * S)])
    store.note_agents([seen(started=NOW + 30 * S, version="1.1", at=NOW + 31 * S)])
    store.note_agents([seen(started=NOW + 900 * S, boot="b2", version="1.2", at=NOW + 40 * S)])  # its clock is ahead
    assert changed(store) == [
        (10, "AGENT_RESTARTED", "agent 1.0 was started again"),
        (30, "AGENT_UPGRADED", "agent 1.0 -> 1.1"),
        (40, "HOST_RESTARTED", "host h1 was started again, agent 1.1 -> 1.2"),
    ]


def test_the_timeline_has_what_people_did_and_ten_minutes_before_and_after(store):
    put(store, row(1))
    store.note_agents([seen()])
    for s in (-601, -599, 599, 601):
        store.note_agents([seen(started=NOW + s * S, at=NOW + s * S)])
    store.acknowledge(1, who="anna", reason="on it", unix_ns=NOW + 60 * S)
    store.add_note(1, who="anna", text="disk is new", key="k", unix_ns=NOW + 61 * S)
    silence(store, now=NOW + 62 * S, host="h1")
    store.end_silence(1, who="bob", now_unix_ns=NOW + 63 * S)
    assert [(s, kind) for s, kind, _ in changed(store)] == [
        (-599, "AGENT_RESTARTED"), (60, "ACKNOWLEDGED"), (61, "NOTED"), (62, "SILENCED"), (63, "SILENCE_ENDED"),
        (599, "AGENT_RESTARTED"),
    ]  # fmt: skip
    assert changed(store)[3][2] == "silence 1 of anna (host h1) began: known"
    timeline = store.changes_of(1, NOW + 100 * S)
    assert (timeline.since_unix_ns, timeline.until_unix_ns) == (NOW - 600 * S, NOW + 100 * S)
    assert not timeline.changes_left_out
    assert store.changes_of(9, NOW) is None


def test_a_timeline_is_bounded_and_old_changes_go(store, monkeypatch):
    put(store, row(1))
    store.note_agents([seen()])
    for s in range(5):
        store.note_agents([seen(started=NOW + s * S, at=NOW + s * S)])
    monkeypatch.setattr(changes, "MAX_CHANGES", 3)
    timeline = store.changes_of(1, NOW + DAY)
    assert ([c.unix_ns for c in timeline.changes], timeline.changes_left_out) == (
        [NOW + s * S for s in (2, 3, 4)],
        True,
    )
    monkeypatch.setattr(changes, "MAX_KEPT", 4)
    store.prune_old(0)
    assert len(store.changes_of(1, NOW + DAY).changes) == 3
    monkeypatch.setattr(changes, "MAX_CHANGES", 9)
    assert len(store.changes_of(1, NOW + DAY).changes) == 4
    store.prune_old(NOW + 4 * S)
    assert len(store.changes_of(1, NOW + DAY).changes) == 1
