"""Messages above 64 KiB: another process reads them, with the same result."""

import asyncio
import fcntl
import os
import re
import resource
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from google.protobuf.message import DecodeError

from central import worker_process
from central.ingest import large_messages
from central.ingest.large_messages import LARGE, Answer, LargeMessages, read
from central.ingest.peers import Peer, Peers
from central.validation.reader import read_batch
from central.validation.rows import Limits, Sender
from tests.support.metric_columns import batch_of
from whitepanda.v1 import agent_pb2

NOW = time.time_ns()
SENDER = Sender("h", "P", is_importer=False, limits=Limits(), now_unix_ns=NOW)


@pytest.fixture
def large() -> Iterator[LargeMessages]:
    made = LargeMessages()
    yield made
    made.close()


@pytest.fixture
def peer() -> Peer:
    return Peers().enter((frozenset({"h"}), ""))


def batch(rows: int = 3000, **columns) -> agent_pb2.CpiBatch:
    whole = {
        "spool_id": "s",
        "sequence": 7,
        "tasks": [agent_pb2.Task(vm=f"vm-{row}", job=f"job-{row % 9}", name=f"n-{row}") for row in range(rows)],
        "task_index": list(range(rows)),
        "start_unix_ns": [NOW] * rows,
        "duration_ns": [10**10] * rows,
        "cpu_usage_cores": [1.0] * (rows - 1) + [-1.0],
        "events": [
            agent_pb2.VmEvent(
                vm="vm-1", unix_ns=NOW, behaviour=agent_pb2.BEHAVIOUR_VICTIM, before=agent_pb2.BEHAVIOUR_STEADY
            ),
            agent_pb2.VmEvent(),
        ],
    }
    return batch_of(**{**whole, **columns})


def raw_of(made: agent_pb2.CpiBatch) -> bytes:
    return agent_pb2.AgentMessage(batch=made).SerializeToString()


@pytest.mark.parametrize(
    "columns",
    [{}, {"cpu_usage_cores": [1.0] * 3000, "events": []}, {"task_index": [3000] * 3000}, {"spool_id": "s" * 99}],
)
async def test_a_batch_is_read_as_on_the_loop(large, peer, columns) -> None:
    raw = raw_of(batch(**columns))
    assert len(raw) > LARGE
    answer = await large.read(raw, SENDER, peer)
    assert answer.batch == read_batch(agent_pb2.AgentMessage.FromString(raw).batch, raw, SENDER)
    assert answer == read(raw, SENDER)


async def test_what_a_batch_says(large, peer) -> None:
    found = (await large.read(raw_of(batch()), SENDER, peer)).batch
    assert (found.rows, found.accepted_rows, found.rejected_rows) == (3000, 2999, {"bad_cpu_usage": 1})
    assert (len(found.events), found.rejected_reports, len(found.jobs)) == (1, {"bad_event": 1}, 9)
    assert len(found.names) == 2000  # as many as are kept of a host


async def test_of_other_messages_their_jobs_are_counted(large, peer) -> None:
    jobs = [f"job-{number}" for number in range(5000)]
    heartbeat = agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(jobs=jobs))
    answer = await large.read(heartbeat.SerializeToString(), SENDER, peer)
    assert (answer.body, answer.jobs, answer.batch) == ("heartbeat", 5000, None)
    held = [agent_pb2.JobTag(job=job) for job in jobs]
    answer = await large.read(
        agent_pb2.AgentMessage(hello=agent_pb2.Hello(held=held)).SerializeToString(), SENDER, peer
    )
    assert (answer.body, answer.jobs) == ("hello", 5000)
    assert (await large.read(b"\x12" * 100_000, SENDER, peer)).body == "malformed"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DecodeError("Error parsing message with type 'whitepanda.v1.AgentMessage': alloc failed"), MemoryError),
        (DecodeError("Error parsing message"), Answer("malformed")),
    ],
)
def test_an_error_of_the_library_is_of_memory_or_of_the_message(monkeypatch, error, expected) -> None:
    def parse(_raw: bytes) -> agent_pb2.AgentMessage:
        raise error

    monkeypatch.setattr(large_messages, "agent_pb2", SimpleNamespace(AgentMessage=SimpleNamespace(FromString=parse)))
    if expected is MemoryError:
        with pytest.raises(MemoryError):
            read(b"", SENDER)
    else:
        assert read(b"", SENDER) == expected


async def test_a_message_for_which_memory_is_short_is_not_said_to_be_malformed(
    large, peer, tmp_path, monkeypatch
) -> None:
    """What the process answers, and what becomes of it."""

    def short(_raw: bytes, _sender: Sender) -> Answer:
        raise MemoryError

    order, raw = msgspec.msgpack.encode(SENDER), raw_of(batch(3))
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(large_messages._HEAD.pack(len(order), len(raw)) + order + raw)
    with monkeypatch.context() as patched, asked.open("rb") as stdin, answered.open("wb") as stdout:
        patched.setattr(large_messages, "read", short)
        patched.setattr(worker_process, "begin", lambda _parent, **_options: True)
        patched.setattr(resource, "setrlimit", lambda *_limits: None)  # of this process
        patched.setattr(sys, "argv", ["", "1"])
        patched.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        patched.setattr(sys, "stdout", SimpleNamespace(buffer=stdout))
        large_messages.main()
    answer = msgspec.msgpack.decode(answered.read_bytes()[large_messages._HEAD.size :], type=Answer)
    assert answer.body == "not_read"
    monkeypatch.setattr(large, "_exchange", lambda *_: answer)
    with pytest.raises(OSError, match="the process that reads large messages is short of memory"):
        await large.read(raw, SENDER, peer)


@pytest.mark.long
async def test_for_want_of_memory_a_message_is_not_said_to_be_malformed(large, peer) -> None:
    raw, small = raw_of(batch(20_000)), raw_of(batch(900))
    errors = []
    for more_kib in (2 << exponent for exponent in range(6, 20)):  # until it suffices
        await large.read(small, SENDER, peer)  # the process has started
        process = large._process
        status = Path(f"/proc/{process.pid}/status").read_text()  # noqa: ASYNC240 - not on a disk
        limit = (int(re.search(r"VmData:\s+(\d+)", status)[1]) + more_kib) << 10
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, hard))
        try:
            assert (await large.read(raw, SENDER, peer)).body == "batch"
            break
        except OSError as error:
            errors.append(str(error))
        process.kill()
        process.wait()
    assert "the process that reads large messages is short of memory" in errors


async def dying(large: LargeMessages, raw: bytes, *, waiting: int = 0) -> list[asyncio.Task]:
    """Have the process die of a message, while so many of other hosts wait."""
    peers = Peers()
    first, *others = (peers.enter((frozenset({f"h{number}"}), "")) for number in range(1 + waiting))
    await large.read(raw, SENDER, first)
    process = large._process
    os.kill(process.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(large.read(raw, SENDER, each)) for each in (first, *others)]
    arrived = bytearray(4)
    async with asyncio.timeout(20):
        while not int.from_bytes(arrived):
            await asyncio.sleep(0.01)
            fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, arrived)
    process.kill()
    return tasks


async def test_a_process_that_died_costs_the_message_that_it_was_reading(large, peer) -> None:
    raw = raw_of(batch())
    first, *others = await dying(large, raw, waiting=3)
    process = large._process
    with pytest.raises(OSError, match="ended with -9"):
        await first
    assert [(await each).batch.rows for each in others] == [3000] * 3
    assert (await large.read(raw, SENDER, peer)).batch.rows == 3000
    assert process.stdin.closed
    assert process.stdout.closed


async def test_who_waits_at_the_end_gets_an_error_and_no_process_is_left(large) -> None:
    tasks = await dying(large, raw_of(batch()), waiting=2)
    large.close()
    for task in tasks:
        with pytest.raises(OSError, match=r"ended with -9|central is stopping"):
            await task
    assert large._process is None
