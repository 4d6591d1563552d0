"""A host with a certificate that sends one kind of load as fast as central reads it, for bench/hostile/study.py.

    python -m bench.hostile.host '{"port": 7443, "pki": "FOLDER", "load": "rows"}'

It goes on until it is killed, and comes again whenever central ends its stream.
"""

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bench.ingest.agents import varint
from tests.support.firewall import HOSTILE_ADDRESS
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, channel_credentials
from whitepanda.v1 import agent_pb2

HOST = "hostile"
LOADS = (
    "rows", "rows_in_pieces", "bad_rows", "tasks", "jobs", "heartbeats", "long_heartbeats", "wide_heartbeats", "hellos",
    "wide_hellos", "long_spools", "spools", "reports", "events", "nested", "unread", "fleet", "reflection", "watch",
    "opens", "checks", "connections", "settings", "pings",
)  # fmt: skip

_CONNECT = "/whitepanda.v1.AgentStream/Connect"
_CALLS = {  # what is no stream of an agent: the method, how many at a time, whether a request is sent
    "fleet": ("/whitepanda.v1.Fleet/CompareSides", 8, True),
    "reflection": ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", 120, True),
    "watch": ("/grpc.health.v1.Health/Watch", 1000, True),
    "opens": (_CONNECT, 200, False),
    "checks": ("/grpc.health.v1.Health/Check", 16, True),
}
_UNREAD = ("long_spools", "unread")  # whose answers are not read
FLOODS = {  # frames of HTTP/2, sent again and again
    "settings": b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\1\x11\x70",  # a window of 70,000
    "pings": b"\0\0\x08\6\0\0\0\0\0" + b"12345678",
}
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # of HTTP/2, and no settings
_MIB = 1 << 20


def batch(number: int, rows: int, *, tasks: int | None = None, job: str = "job", **more: Any) -> agent_pb2.CpiBatch:
    """Return a batch of good rows."""
    tasks = rows if tasks is None else tasks
    whole = {
        "spool_id": "hostile",
        "sequence": number,
        "tasks": [agent_pb2.Task(vm=f"vm-{n}", job=f"{job}-{n % 3000}", name=f"name-{n}") for n in range(tasks)],
        "task_index": [n % max(tasks, 1) for n in range(rows)],
        "start_unix_ns": [time.time_ns() - 10**10] * rows,
        "duration_ns": [10**10] * rows,
        "cpi": [1.5] * rows,
        "cpu_usage_cores": [1.0] * rows,
        **more,
    }
    return agent_pb2.CpiBatch(**whole)


def event(**more: Any) -> agent_pb2.VmEvent:
    """Return an event that is taken."""
    return agent_pb2.VmEvent(
        vm="vm", job="job", unix_ns=time.time_ns(), behaviour=agent_pb2.BEHAVIOUR_VICTIM,
        before=agent_pb2.BEHAVIOUR_STEADY, **more,
    )  # fmt: skip


def trigger() -> agent_pb2.Trigger:
    """Return a report of contention that is taken, of about 60 KiB."""
    victims = [agent_pb2.TriggerVictim(vm=f"vm-{n}", job="j" * 400, name="n" * 400) for n in range(64)]
    return agent_pb2.Trigger(unix_ns=time.time_ns(), slot_ns=10**9, victims=victims)


def hello(jobs: int = 0, job: str = "job") -> agent_pb2.AgentMessage:
    """Return a Hello with so many jobs."""
    said = agent_pb2.Hello(
        host=HOST, platform="bench", protocol_version=1, min_protocol_version=1,
        jobs=[f"{job}-{n}" for n in range(jobs)],
        held=[agent_pb2.JobTag(job=f"{job}-{n}", tag=n) for n in range(jobs)],
    )  # fmt: skip
    return agent_pb2.AgentMessage(hello=said)


def numbered(whole: agent_pb2.CpiBatch) -> Iterator[bytes]:
    """Yield the batch again and again, each time with a number of its own, behind all others: the last one counts."""
    whole.ClearField("sequence")
    rest = whole.SerializeToString()
    for number in itertools.count(time.time_ns()):
        body = rest + agent_pb2.CpiBatch(sequence=number).SerializeToString()
        yield (agent_pb2.AgentMessage(batch=agent_pb2.CpiBatch()).SerializeToString()[:1] + varint(len(body)) + body)


def messages(load: str) -> Iterator[bytes]:
    """Yield the messages of a load, without end."""
    if load in ("hellos", "wide_hellos"):
        while True:
            yield b""  # a stream of its own for each: see `openings`
    if load == "heartbeats":  # as many jobs as are allowed, others each time
        for turn in itertools.count():
            said = agent_pb2.Heartbeat(jobs=[f"job-{turn}-{n}" for n in range(4000)])
            yield agent_pb2.AgentMessage(heartbeat=said).SerializeToString()
    if load == "long_heartbeats":  # two that take turns, with as many bytes of names as are allowed
        said = [agent_pb2.Heartbeat(jobs=[f"{n:03}{name * 199}" for n in range(320)]) for name in "🐼🐻"]
        beats = [agent_pb2.AgentMessage(heartbeat=each).SerializeToString() for each in said]
        yield from itertools.cycle(beats)
    if load == "wide_heartbeats":
        wide = agent_pb2.Heartbeat(jobs=[f"job-{n:08d}" for n in range(270_000)])
        yield from itertools.repeat(agent_pb2.AgentMessage(heartbeat=wide).SerializeToString())
    if load == "jobs":
        for number in itertools.count(time.time_ns()):
            whole = batch(number, 3000, job=f"job-{number}")
            yield agent_pb2.AgentMessage(batch=whole).SerializeToString()
    if load == "rows_in_pieces":  # of the size that central's loop reads itself, in an order that is never the last one
        bodies = [numbered(batch(1, size)) for size in (600, 599, 598)]
        yield from (next(bodies[turn % 3]) for turn in itertools.count())
    yield from numbered(_batch_of(load))


def _batch_of(load: str) -> agent_pb2.CpiBatch:
    """Return the batch that a load consists of."""
    nested = event(evidence=[agent_pb2.Evidence()] * 8000)
    made = {
        "rows": lambda: batch(1, 10_000),
        "bad_rows": lambda: batch(1, 10_000, cpu_usage_cores=[-1.0, 1.0] * 5000),
        "tasks": _tasks,
        "long_spools": lambda: batch(1, 0, spool_id="s" * _MIB),
        "spools": lambda: batch(1, 0, spool_id="s" * _MIB),
        "reports": lambda: batch(1, 0, triggers=[trigger()] * 60),
        "events": lambda: batch(1, 0, events=[event(reason="r" * 4000)] * 900),
        "nested": lambda: batch(1, 0, events=[nested] * 250),
        "unread": lambda: batch(1, 3),
    }
    return made[load]()


def _tasks() -> agent_pb2.CpiBatch:
    return agent_pb2.CpiBatch(
        spool_id="hostile", tasks=[agent_pb2.Task(vm=f"{n:x}", job="job", name="n") for n in range(220_000)]
    )


async def openings(channel: grpc.aio.Channel, load: str) -> None:
    """Begin stream after stream, eight at a time."""

    async def one(turn: int) -> None:
        call = channel.stream_stream(_CONNECT)()
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            wide = load == "wide_hellos"
            raw = hello(50_000).SerializeToString() if wide else hello(2000, f"job-{turn}").SerializeToString()
            await call.write(raw)
            await call.read()
        call.cancel()

    async def again(turns: Iterator[int]) -> None:
        for turn in turns:
            await one(turn)

    turns = itertools.count()
    await asyncio.gather(*(again(turns) for _ in range(8)))


async def calls(channel: grpc.aio.Channel, load: str) -> None:
    """Begin call after call, so many at a time. Answers are not read; a call that central keeps stays open for 10 s."""
    method, at_once, is_sent = _CALLS[load]
    raw = {
        "fleet": lambda: b"\x0a\x00" * (15 * _MIB // 2),
        "reflection": lambda: long_text(b"\x22"),
        "checks": lambda: long_text(b"\x0a"),
    }.get(load, bytes)()

    async def again() -> None:
        while True:
            call = channel.stream_stream(method)()
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(10):
                    if is_sent:
                        await call.write(raw)
                    await call.code()
            call.cancel()

    await asyncio.gather(*(again() for _ in range(at_once)))


def long_text(tag: bytes) -> bytes:
    """Return a request with 15 MiB of text in one field; the answer of reflection has it in it."""
    text = b"x" * (15 * _MIB)
    return tag + varint(len(text)) + text


async def connections(port: int) -> None:
    """Open connections without a word, up to 4,000."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened: list[socket.socket] = []
    while True:
        if len(opened) >= min(4000, hard - 100):
            opened.pop(0).close()
        opened.append(socket.socket())
        opened[-1].setblocking(False)
        opened[-1].connect_ex(("127.0.0.1", port))
        await asyncio.sleep(0.001)


async def frames(port: int, files: TlsFiles, load: str) -> None:
    """Send frames of HTTP/2 on four connections from an address of its own, and read the answers."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="localhost", local_addr=(HOSTILE_ADDRESS, 0)
                )
                answers = asyncio.create_task(_forget_bytes(reader))
                writer.write(GREETING)
                while not answers.done():
                    writer.write(FLOODS[load] * 500)
                    await writer.drain()
                writer.close()
            await asyncio.sleep(0.01)

    await asyncio.gather(*(again() for _ in range(4)))


async def _forget_bytes(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(_MIB):
            continue


async def send(channel: grpc.aio.Channel, load: str, said: Iterator[bytes]) -> None:
    """Send on one stream until it ends."""
    call = channel.stream_stream(_CONNECT)()
    await call.write(hello().SerializeToString())
    await call.read()
    reader = None if load in _UNREAD else asyncio.create_task(_forget(call))
    try:
        for raw in said:
            await call.write(raw)
    finally:
        if reader is not None:
            reader.cancel()


async def _forget(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        continue


async def run(options: dict[str, Any]) -> None:
    """Send a load to central."""
    pki = Path(options["pki"])
    files = TlsFiles(ca=str(pki / "ca.crt"), certificate=str(pki / f"{HOST}.crt"), key=str(pki / f"{HOST}.key"))
    settings = [*CLIENT_CHANNEL_OPTIONS, ("grpc.max_send_message_length", 64 * _MIB)]
    credentials = channel_credentials(files)
    if options["load"] == "connections":
        print("ready", flush=True)
        await connections(options["port"])
    if options["load"] in FLOODS:
        print("ready", flush=True)
        await frames(options["port"], files, options["load"])
    said = iter([b""]) if options["load"] in _CALLS else messages(options["load"])
    first = next(said)
    said = itertools.chain([first], said)
    print("ready", flush=True)
    async with grpc.aio.secure_channel(f"localhost:{options['port']}", credentials, options=settings) as channel:
        if options["load"] in _CALLS:
            await calls(channel, options["load"])
        if "hellos" in options["load"]:
            await openings(channel, options["load"])
        while True:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await send(channel, options["load"], said)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
