import asyncio
from collections.abc import Callable

import pytest

from central.ingest.sessions import MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES, HostStream, StreamRegistry
from whitepanda.v1 import agent_pb2


def acks(stream: HostStream) -> list[agent_pb2.Ack]:
    return [message.ack for message in stream.drain() if message.WhichOneof("body") == "ack"]


def test_acknowledgements_that_wait_leave_as_merged_ranges() -> None:
    stream = HostStream("h")
    for sequence in (3, 1, 2, 7):
        stream.acknowledge("s", sequence, accepted_rows=10, rejected_rows={"bad_cpi": 1})
    stream.acknowledge("t", 1, accepted_rows=5)
    refused = agent_pb2.RejectedBatch(sequence=8, reason="task_index", detail="why")
    stream.acknowledge("t", 8, rejected_batch=refused)
    first, second = acks(stream)
    assert first == agent_pb2.Ack(
        spool_id="s",
        ranges=[agent_pb2.SequenceRange(first=1, last=3), agent_pb2.SequenceRange(first=7, last=7)],
        accepted_rows=40,
        rejected_rows=[agent_pb2.RejectedRows(reason="bad_cpi", count=4)],
    )
    assert second.rejected_batches == [refused]
    assert [(r.first, r.last) for r in second.ranges] == [(1, 1), (8, 8)]
    assert stream.drain() == []


@pytest.mark.parametrize(("under_way", "wait_s"), [(1, 0.02), (7, 0.02), (8, 0.2), (31, 0.2)])
async def test_acknowledgements_wait_a_little_for_others_of_their_stream_and_then_leave(
    under_way: int, wait_s: float
) -> None:
    now_s = 100.0
    stream = HostStream("h", clock_s=lambda: now_s)
    stream.acknowledge("s", 1, under_way=under_way)
    now_s += wait_s - 0.001
    stream.acknowledge("t", 1, under_way=under_way)
    assert not stream._wake.is_set()
    now_s += 0.002
    stream.acknowledge("u", 1, under_way=under_way)  # the first has waited long enough, and the others leave with it
    assert stream._wake.is_set()
    assert [ack.spool_id for ack in acks(stream)] == ["s", "t", "u"]
    stream.acknowledge("s", 2, under_way=under_way)  # waits for its own time
    assert not stream._wake.is_set()
    stream.acknowledge("s", 3)  # nothing more is under way
    assert stream._wake.is_set()
    assert [(r.first, r.last) for ack in acks(stream) for r in ack.ranges] == [(2, 3)]


async def test_an_acknowledgement_that_none_follows_leaves_by_one_look_at_all_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    timers: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *timer: timers.append(timer))
    registry = StreamRegistry()
    one, many, gone = (HostStream(name, clock_s=lambda: now_s) for name in ("one", "many", "gone"))
    for stream in (one, many, gone):
        registry.add(stream)
    one.acknowledge("s", 1, under_way=1)
    many.acknowledge("s", 1, under_way=8)
    gone.acknowledge("s", 1, under_way=8)
    registry.remove(gone)
    assert acks(gone)
    for later_s, wakes in ((0.0, (False, False)), (0.29, (False, False)), (0.02, (True, True))):
        now_s += later_s
        [(wait_s, look)] = timers  # one for all streams
        assert wait_s == 0.1
        timers.clear()
        look()
        assert (one._wake.is_set(), many._wake.is_set()) == wakes
        for stream in (one, many):
            if stream._wake.is_set():
                assert len(acks(stream)) == 1
    assert not timers  # nothing waits


def test_a_batch_without_a_number_is_refused_outside_the_ranges() -> None:
    stream = HostStream("h")
    stream.acknowledge("s", 0, rejected_batch=agent_pb2.RejectedBatch(reason="no_sequence"))
    [ack] = acks(stream)
    assert (len(ack.ranges), ack.rejected_batches[0].reason) == (0, "no_sequence")


async def test_a_host_that_does_not_read_fills_its_queue_only() -> None:
    stream = HostStream("h")
    message = agent_pb2.CentralMessage(coefficients=agent_pb2.CoefficientUpdate(version=1))
    assert [stream.send(message) for _ in range(MAX_QUEUED_MESSAGES + 2)] == [True] * MAX_QUEUED_MESSAGES + [False] * 2
    await asyncio.wait_for(stream.wait(), 1)
    assert len(stream.drain()) == MAX_QUEUED_MESSAGES
    assert stream.send(message)
    stream.close("gone")
    stream.close("again")
    assert not stream.send(message)
    assert stream.close_reason == "gone"
    stream.acknowledge("s", 1)
    assert len(stream.drain()) == 1
    await asyncio.wait_for(stream.wait(), 1)  # a closed stream never waits
    assert stream.drain() == []


def test_the_registry_reports_who_came_and_what_changed() -> None:
    registry, seen = StreamRegistry(), []
    registry.on_change.append(
        lambda stream: seen.append((stream.host, sorted(stream.jobs), stream.coefficient_version))
    )
    first = HostStream("h", jobs=frozenset({"a"}))
    assert registry.add(first) is None
    registry.update(first, jobs=["a"])  # no change
    registry.update(first, jobs=["a", "b"])
    registry.update(first, coefficient_version=3)
    assert seen == [("h", ["a"], 0), ("h", ["a", "b"], 0), ("h", ["a", "b"], 3)]
    second = HostStream("h")
    assert registry.add(second) is first
    assert first.closed
    assert first.close_reason == "replaced by a newer stream of host 'h'"
    registry.update(first, jobs=["z"])
    registry.remove(first)
    assert registry.get("h") is second
    assert registry.connected() == [second]
    registry.remove(second)
    assert (len(registry), registry.get("h")) == (0, None)
    assert seen[3:] == [("h", [], 0)]


def test_what_a_host_is_owed_is_counted_until_it_is_written() -> None:
    stream = HostStream("h")
    for sequence in (0, 1, 2):
        stream.acknowledge("s", sequence)
    assert stream.owed == 3
    stream.drain()
    assert stream.owed == 0


def test_messages_that_wait_are_bounded_by_their_bytes() -> None:
    stream = HostStream("h")
    jobs = ["j" * 1024] * (MAX_QUEUED_BYTES // 1024 // 2 - 100)
    message = agent_pb2.CentralMessage(coefficients=agent_pb2.CoefficientUpdate(removed_jobs=jobs))
    larger = agent_pb2.CentralMessage(coefficients=agent_pb2.CoefficientUpdate(removed_jobs=jobs * 3))
    assert [stream.send(message) for _ in range(3)] == [True, True, False]
    stream.drain()
    assert [stream.send(larger), stream.send(message)] == [True, False]  # one may be larger
