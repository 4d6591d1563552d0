"""Webhooks: in which order incidents are reported, and what becomes of it when receiver, central or database fail."""

import asyncio
import contextlib
import math

import pytest
import sqlalchemy as sa

from central.config import WebhooksSection
from central.incidents import tables as incident_tables
from central.incidents import webhook_tables
from central.incidents.store import IncidentStore, StoreError
from central.incidents.webhooks import Timing, Webhooks
from tests.support.webhook_receiver import HANG, Receiver
from tests.unit.central.incidents.test_incidents import GAP, NOW, S, over, reported, row

QUICK = Timing(poll_s=0.02, first_retry_s=0.005, last_retry_s=0.02)


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as opened:
        yield opened


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def webhooks(store, *receivers, clock=None, holder="r", **settings) -> Webhooks:
    section = WebhooksSection(urls=tuple(r.url for r in receivers), **settings)
    return Webhooks(section, store, holder=holder, gap_ns=GAP, clock_unix_ns=clock or (lambda: NOW), timing=QUICK)


@contextlib.asynccontextmanager
async def running(found: Webhooks):
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def take(store, *rows) -> None:
    store.take(rows, gap_ns=GAP, oldest_unix_ns=0)


async def test_beginning_and_end_are_reported_once_in_order_over_failures(store, receiver):
    clock = Clock()
    take(store, row(1), row(2, host="h2"), row(3, NOW - 2 * GAP, host="h3"))  # the last is over already
    receiver.answers.extend([500, (429, {"Retry-After": "0"}), 503])
    async with running(webhooks(store, receiver, clock=clock, secret_file="")) as found:
        await until(lambda: len(receiver.taken()) == 2)
        assert [p.what[0] for p in receiver.posts] == ["1", "1", "1", "1", "2"]
        take(store, row(4, NOW + 300 * S))
        clock.now += GAP + 1  # h2 is quiet for so long, h1 is not
        await until(lambda: len(receiver.taken()) == 3)
        clock.now += 300 * S
        await until(lambda: len(receiver.taken()) == 4)
        await until(lambda: found.status()[0].waiting == 0)
        (status,) = found.status()
    assert receiver.taken() == [("1", "firing"), ("2", "firing"), ("2", "resolved"), ("1", "resolved")]
    assert receiver.posts[-1].alert["endsAt"] == "2027-01-15T08:05:00.000Z"
    assert (status.delivered, status.failed_attempts, status.active) == (4, 3, True)
    assert (status.last_error, [d.count for d in status.dropped]) == ("", [0, 0, 0])


async def test_what_continues_again_is_reported_again_and_what_was_merged_is_over(store, receiver):
    clock = Clock()
    take(store, row(1))
    take(store, row(2, NOW + 2 * GAP))
    async with running(webhooks(store, receiver, clock=clock)):
        await until(lambda: len(receiver.taken()) == 2)
        clock.now = NOW + GAP + 1
        await until(lambda: len(receiver.taken()) == 3)  # the first is over
        take(store, row(3, NOW + GAP))  # makes them one
        await until(lambda: len(receiver.taken()) == 5)
    assert receiver.taken()[:3] == [("1", "firing"), ("2", "firing"), ("1", "resolved")]
    assert sorted(receiver.taken()[3:]) == [("1", "firing"), ("2", "resolved")]


async def test_an_end_is_reported_after_the_quiet_gap_and_what_comes_again_before_is_no_news(store, receiver):
    clock = Clock()
    take(store, row(1), reported(2, over(NOW + S)))  # over before anybody was reported
    take(store, row(3, host="h2"))
    async with running(webhooks(store, receiver, clock=clock)):
        await until(lambda: receiver.taken() == [("2", "firing")])
        take(store, reported(4, over(NOW + 60 * S), host="h2"))
        clock.now = NOW + 120 * S
        take(store, row(5, NOW + 120 * S, host="h2"), reported(6, over(NOW + 180 * S), host="h2"))
        take(store, row(7, NOW + 120 * S, host="h3"))
        await until(lambda: len(receiver.taken()) == 2)
        clock.now = NOW + 120 * S + GAP + 1
        await until(lambda: len(receiver.taken()) == 4)
    assert receiver.taken()[:2] == [("2", "firing"), ("3", "firing")]
    assert sorted(receiver.taken()[2:]) == [("2", "resolved"), ("3", "resolved")]
    assert receiver.posts[2].alert["endsAt"] == "2027-01-15T08:02:00.000Z"


async def test_it_is_reported_again_once_someone_is_suspected_and_not_when_that_changes(store, receiver):
    take(store, row(1, score=math.nan))
    async with running(webhooks(store, receiver)):
        await until(lambda: len(receiver.taken()) == 1)
        take(store, row(2, NOW + S))
        await until(lambda: len(receiver.taken()) == 2)
        take(store, row(3, NOW + 2 * S, suspect="dedup"), row(4, host="h2"))
        await until(lambda: len(receiver.taken()) == 3)
    assert receiver.taken() == [("1", "firing"), ("1", "firing"), ("2", "firing")]
    first, second = (post.alert for post in receiver.posts[:2])
    assert "suspect_vm" not in first["annotations"] and second["annotations"]["suspect_vm"] == "scan-1"
    assert [first[key] == second[key] for key in ("labels", "startsAt", "fingerprint")] == [True] * 3


async def test_what_is_refused_or_too_old_keeps_nothing_waiting(store, receiver):
    clock = Clock()
    take(store, row(1), row(2, host="h2"))
    receiver.answers.extend([422])
    async with running(webhooks(store, receiver, clock=clock, retry_for_s=60)) as found:
        await until(lambda: receiver.taken() == [("2", "firing")])
        receiver.answers.extend([500] * 3)
        take(store, row(3, host="h3"))
        await until(lambda: len(receiver.posts) == 3)
        clock.now += 61 * S
        receiver.answers.extend([500] * 3)
        await until(lambda: found.status()[0].waiting == 0)
        receiver.answers.clear()
        take(store, row(4, host="h4"))
        await until(lambda: len(receiver.taken()) == 2)
        (status,) = found.status()
    assert receiver.taken() == [("2", "firing"), ("4", "firing")]
    assert {d.reason: d.count for d in status.dropped} == {"refused": 1, "expired": 1, "too_many": 0}


async def test_one_receiver_does_not_wait_for_another_and_the_oldest_go(store, receiver):
    slow = Receiver()
    slow.answers.append(HANG)
    take(store, *[row(n, NOW + n, host=f"h{n}") for n in range(7)])
    async with running(webhooks(store, slow, receiver, max_waiting=3)) as found:
        await until(lambda: len(slow.posts) == 1 and len(receiver.taken()) == 3)
        slow.released.set()
        await until(lambda: len(slow.taken()) == 3)
        first, second = found.status()
    assert [number for number, _ in receiver.taken()] == [number for number, _ in slow.taken()] == ["5", "6", "7"]
    assert {d.reason: d.count for d in first.dropped}["too_many"] == 4
    assert first.receiver == f"127.0.0.1:{slow.port}" and second.failed_attempts == 0
    slow.close()


async def test_what_waits_is_reported_by_the_next_start(store, receiver):
    take(store, row(1), row(2, host="h2"))
    receiver.answers.extend([200, HANG])
    async with running(webhooks(store, receiver)):
        await until(lambda: len(receiver.posts) == 2)
    async with running(webhooks(store, receiver)):
        await until(lambda: receiver.taken() == [("1", "firing"), ("2", "firing")])
    assert len(receiver.posts) == 3
    with store._engine.begin() as connection:
        connection.execute(sa.update(webhook_tables.receivers).values(until_unix_ns=NOW - 31 * 86_400 * S))
    async with running(webhooks(store)):  # no URL any more
        await until(lambda: store.write(lambda c: c.scalar(sa.func.count(webhook_tables.receivers.c.receiver))) == 0)
    assert store.write(lambda c: c.scalar(sa.select(sa.func.count()).select_from(webhook_tables.sent))) == 0


async def test_that_notices_what_is_forgotten_before_it_was_taken(store, receiver, monkeypatch):
    waiting = webhook_tables.waiting

    def hasty(connection, key):
        *counts, found = waiting(connection, key)
        if found:
            webhook_tables.forget(connection, found.id)
        return *counts, found

    take(store, row(1))
    receiver.answers.append(HANG)
    with monkeypatch.context() as patch:
        patch.setattr(webhook_tables, "waiting", hasty)
        async with running(webhooks(store, receiver)):
            await until(lambda: receiver.posts)
    notices = store.write(lambda c: c.scalar(sa.select(sa.func.count()).select_from(webhook_tables.notices)))
    assert (notices, receiver.taken()) == (0, [])


async def test_another_replica_leaves_it_alone_until_the_lease_ends(store, receiver):
    first, second = webhooks(store, receiver, holder="a"), webhooks(store, receiver, holder="b")
    clock = Clock()
    take(store, *[row(n, NOW + n, host=f"h{n}") for n in range(5)])
    async with running(first):
        await until(lambda: len(receiver.taken()) == 5)
        async with running(second):
            take(store, *[row(n, NOW + n, host=f"h{n}") for n in range(5, 10)])
            await until(lambda: first.status()[0].delivered == 10)  # and noted: else the last comes again
        assert [s.active for s in (first.status()[0], second.status()[0])] == [True, False]
    clock.now += 141 * S
    take(store, row(20, NOW, host="h20"))
    async with running(webhooks(store, receiver, clock=clock, holder="b")):
        await until(lambda: len(receiver.taken()) == 11)
    assert len(set(receiver.taken())) == 11


async def test_that_notices_a_lease_that_everybody_has(store, receiver, monkeypatch):
    monkeypatch.setattr(webhook_tables, "claim", lambda *_, **__: True)
    take(store, *[row(n, NOW + n, host=f"h{n}") for n in range(3)])
    receiver.answers.extend([HANG, HANG])
    first, second = webhooks(store, receiver, holder="a"), webhooks(store, receiver, holder="b")
    async with running(first), running(second):
        await until(lambda: len(receiver.posts) == 2)  # while the first is at it
        assert receiver.posts[0].what == receiver.posts[1].what


async def test_history_that_is_away_is_reported_of_and_awaited(store, receiver, monkeypatch):
    found = webhooks(store, receiver)
    write, away = store.write, [True]

    def flaky(work):
        if away:
            raise StoreError("the server is away")
        return write(work)

    monkeypatch.setattr(store, "write", flaky)
    async with running(found):
        await until(lambda: "the server is away" in found.status()[0].last_error)
        assert not found.status()[0].active
        away.clear()
        take(store, row(1))
        await until(lambda: len(receiver.taken()) == 1)
        await until(lambda: found.status()[0].last_error == "")


def test_more_incidents_than_one_transaction_takes(store, monkeypatch):
    monkeypatch.setattr(webhook_tables, "_AT_ONCE", 20)
    take(store, *[row(n, NOW + n, host=f"h{n}") for n in range(webhook_tables._AT_ONCE + 5)])

    def change(connection):
        return webhook_tables.change(
            connection, "k", open_since_unix_ns=NOW, now_unix_ns=NOW, incident_url="", max_waiting=10**6
        )

    counts = []
    for _ in range(3):
        assert store.write(change) == 0
        counts.append(store.write(lambda c: webhook_tables.waiting(c, "k"))[0])
    assert counts == [20, 25, 25]
    assert store.write(lambda c: webhook_tables.waiting(c, "k"))[-1].id == 1
    assert store.count_open(NOW) == 25 and store.count_open(NOW + 20) == 5
    assert incident_tables.METADATA is webhook_tables.METADATA


async def test_what_one_receiver_does_to_us_costs_neither_the_others_nor_central(store, receiver, monkeypatch):
    other = Receiver()
    take(store, row(1))
    found = webhooks(store, other, receiver)
    original, is_broken = found._receivers[0].sender.post, True

    async def failing(message):
        if is_broken:
            raise ValueError("of a kind that nobody\nthought of")
        return await original(message)

    monkeypatch.setattr(found._receivers[0].sender, "post", failing)
    try:
        async with running(found):
            await until(lambda: receiver.taken() == [("1", "firing")])
            await until(lambda: found.status()[0].failed_attempts > 1)
            assert found.status()[0].last_error == "ValueError: of a kind that nobody thought of"
            is_broken = False
            await until(lambda: other.taken() == [("1", "firing")])
            await until(lambda: found.status()[0].last_error == "")
    finally:
        other.close()


async def test_a_lease_outlasts_a_post_and_a_database_that_answers_late(store, receiver):
    clock = Clock()
    take(store, row(1))
    one, other = (webhooks(store, receiver, clock=clock, holder=name) for name in ("a", "b"))
    assert one._look(one._receivers[0]) is not None
    lease_ns = round((WebhooksSection().timeout_s + QUICK.lease_s) * 1e9)
    clock.now += lease_ns + S
    assert other._look(other._receivers[0]) is None
    clock.now += lease_ns
    assert other._look(other._receivers[0]) is not None
    for found in (one, other):
        await found._receivers[0].sender.close()


async def test_it_ends_also_if_news_come_with_the_cancellation(store, receiver, monkeypatch):
    """Else central would not end: its journal and history would stay open."""
    found, turns = webhooks(store, receiver), asyncio.Event()

    async def turn(_receiver) -> float:
        turns.set()
        return 60.0

    monkeypatch.setattr(found, "_turn", turn)
    task = asyncio.create_task(found.run())
    await turns.wait()
    await asyncio.sleep(0)  # it waits for news now
    found.wake()
    task.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait((task,))
    assert task.cancelled()
