"""The real server in this process: what it takes, what it refuses, and how it says so."""

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from central.config import CentralConfig
from central.daemon import Central
from central.ingest import backpressure, handshake
from central.ingest import service as ingest_module
from central.ingest.service import Ingest
from central.journal import metric_reasons
from tests.support.central_process import CentralProcess
from tests.support.spoken_streams import config
from tests.support.waiting import until
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc


async def test_batches_are_acknowledged_duplicates_too_but_counted_once(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    assert (await peer.hello("h1")).max_batch_rows == 10_000
    await peer.batch(1, cpu_usage_cores=[1.0, -1.0])
    assert await peer.ack() == agent_pb2.Ack(
        spool_id="s",
        ranges=[agent_pb2.SequenceRange(first=1, last=1)],
        accepted_rows=1,
        rejected_rows=[agent_pb2.RejectedRows(reason="bad_cpu_usage", count=1)],
    )
    await peer.batch(1, cpu_usage_cores=[1.0, -1.0])
    assert await peer.ack() == agent_pb2.Ack(spool_id="s", ranges=[agent_pb2.SequenceRange(first=1, last=1)])
    await peer.batch(2, task_index=[0, 9])
    ack = await peer.ack()
    assert [(r.first, r.last) for r in ack.ranges] == [(2, 2)]
    [rejected] = ack.rejected_batches
    assert (rejected.sequence, rejected.reason) == (2, "task_index")
    assert rejected.detail == "task_index 9 points beyond the batch's 2 tasks"
    await peer.batch(0)
    ack = await peer.ack()
    assert (list(ack.ranges), ack.rejected_batches[0].reason) == ([], "no_sequence")
    await peer.batch(3)  # the stream continues
    assert (await peer.ack()).accepted_rows == 2
    stats = central.journal.stats
    assert (stats.accepted_batches, stats.accepted_rows, stats.duplicate_batches) == (2, 3, 1)
    assert dict(stats.rejected_rows) == {"bad_cpu_usage": 1}
    assert dict(stats.rejected_batches) == {"task_index": 1, "no_sequence": 1}
    assert central.journal.hosts["h1"].accepted_rows == 3


async def test_values_that_cannot_be_and_reasons_are_kept_beside_the_rows(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    now = time.time_ns()
    reason = agent_pb2.MetricReason(task_index=1, reason=agent_pb2.REASON_NO_RDT, metrics=[14, 15])
    strange = agent_pb2.MetricColumns(numbers=[5, 9999], values=[1.0, -1.0, 2.0, 3.0])
    await peer.batch(1, start_unix_ns=[now], cpi=[1.0, -1.0], metrics=strange, reasons=[reason])
    ack = await peer.ack()
    assert (ack.accepted_rows, list(ack.rejected_rows)) == (2, [])
    for sequence in (2, 3):  # the first one without a reason is remembered, the second one checked with others
        await peer.batch(sequence, metrics=agent_pb2.MetricColumns(numbers=[5, 9999], values=[1.0] * 4))
        assert (await peer.ack()).accepted_rows == 2
    stats = central.journal.stats
    assert stats.rejected_values == {"bad_cpi": 1, "absurd_value": 1, "unknown_metric": 6}
    assert [
        (one.vm, one.metric, one.reason, one.since_unix_ns)
        for one in metric_reasons.read(central.journal.path, ["vm-1"])
    ] == [("vm-1", metric, agent_pb2.REASON_NO_RDT, now) for metric in (14, 15)]
    status = await fleet_pb2_grpc.FleetStub(make.peer(central, "operator").channel).GetFleetStatus(
        fleet_pb2.GetFleetStatusRequest()
    )
    assert {one.reason: one.count for one in status.rejected_values} == dict(stats.rejected_values)


async def test_a_batch_may_leave_out_the_names_of_the_last_one(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")

    async def shortened(sequence: int, usage: list[float]) -> None:
        now = time.time_ns()
        body = agent_pb2.CpiBatch(sequence=sequence, start_unix_ns=[now], duration_ns=[10**10], cpu_usage_cores=usage)
        await peer.send(agent_pb2.AgentMessage(next=body))

    await peer.batch(1)
    assert (await peer.ack()).accepted_rows == 2
    for sequence in (2, 3, 4):
        await shortened(sequence, [1.0, 2.0])
        assert (await peer.ack()).accepted_rows == 2
    await shortened(5, [1.0])
    [rejected] = (await peer.ack()).rejected_batches
    assert rejected.reason == "column_length"
    await peer.batch(6, rows=3)
    assert (await peer.ack()).accepted_rows == 3
    await shortened(7, [1.0, 2.0, 3.0])
    assert (await peer.ack()).accepted_rows == 3
    assert (central.journal.stats.accepted_batches, central.journal.stats.accepted_rows) == (6, 14)


async def test_names_that_no_batch_of_the_stream_has_said_end_it(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.send(agent_pb2.AgentMessage(next=agent_pb2.CpiBatch(sequence=1)))
    code, _ = await peer.refused()
    assert code == "INVALID_ARGUMENT"
    assert central.registry.refused == {"malformed": 1}


async def test_what_an_agent_says_of_itself_is_known(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1", jobs=["a"], agent_version="9", coefficient_version=4, sent_unix_ns=time.time_ns())
    [stream] = central.registry.connected()
    assert (stream.host, stream.platform, stream.jobs, stream.coefficient_version) == ("h1", "P", {"a"}, 4)
    await peer.batch(1)
    await peer.ack()
    assert stream.jobs == {"a", "job-0", "job-1"}
    heartbeat = agent_pb2.Heartbeat(jobs=["b"], coefficient_version=5, spooled_batches=7, dropped_batches=2)
    await peer.send(agent_pb2.AgentMessage(heartbeat=heartbeat))
    await until(lambda: stream.jobs == {"b"})
    assert (stream.coefficient_version, stream.spooled_batches, stream.dropped_batches) == (5, 7, 2)
    record = central.journal.hosts["h1"]
    assert (record.agent_version, record.jobs, record.spooled_batches) == ("9", ("b",), 7)
    assert abs(record.clock_offset_ns) < 5 * 10**9
    update = agent_pb2.CentralMessage(coefficients=agent_pb2.CoefficientUpdate(version=6))
    assert stream.send(update)
    assert await peer.read() == update
    await peer.call.done_writing()
    await until(lambda: not central.registry.connected())
    assert await peer.call.code() == grpc.StatusCode.OK


async def test_what_vms_are_called_is_known_of_batches_that_are_taken(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    names = central.registry.vm_names
    await peer.batch(1, tasks=[agent_pb2.Task(vm="vm-0", job="j", name="web-0"), agent_pb2.Task(vm="v", job="j")])
    await peer.ack()
    assert (names.get("vm-0", "h1"), names.get("v", "h1")) == ("web-0", "")
    tasks = [agent_pb2.Task(vm="vm-0", job="j", name="another's", machine="h2"), agent_pb2.Task(vm="v", job="j")]
    await peer.batch(2, tasks=tasks)
    assert (await peer.ack()).rejected_batches[0].reason == "foreign_machine"
    assert names.get("vm-0", "h1") == "web-0"


async def test_only_importers_speak_for_other_machines(make) -> None:
    central = await make.central()
    tasks = [agent_pb2.Task(vm="v", job="j", machine=machine, platform="Q") for machine in ("m1", "-1")]
    host, importer = make.peer(central, "h1"), make.peer(central, "importer")
    await host.hello("h1")
    await host.batch(1, tasks=tasks)
    assert (await host.ack()).rejected_batches[0].reason == "foreign_machine"
    await importer.hello("importer")
    await importer.batch(1, tasks=tasks)
    ack = await importer.ack()
    assert (ack.accepted_rows, ack.rejected_rows[0].reason) == (1, "bad_machine")
    assert central.registry.get("importer").jobs == set(), "an importer runs no jobs"


async def test_a_stream_that_does_not_begin_well_is_refused(make, monkeypatch) -> None:
    monkeypatch.setattr(handshake, "_HELLO_TIMEOUT_S", 0.2)
    central = await make.central()
    first = make.peer(central, "h1")
    await first.batch(1)
    assert await first.refused() == ("FAILED_PRECONDITION", "the first message must be a Hello, it was batch")
    empty = make.peer(central, "h1")
    await empty.call.done_writing()
    assert await empty.refused() == (
        "FAILED_PRECONDITION",
        "the stream ended without a Hello, or gRPC dropped one that is too large uncompressed",
    )
    silent = make.peer(central, "h1")
    assert (await silent.refused())[0] == "DEADLINE_EXCEEDED"
    other = make.peer(central, "h1")
    await other.send(agent_pb2.AgentMessage(hello=agent_pb2.Hello(host="h2", protocol_version=1)))
    code, detail = await other.refused()
    assert code == "PERMISSION_DENIED"
    assert detail.startswith("host 'h2' is not a name of its certificate (h1); issue a certificate for that name")
    twice = make.peer(central, "h1")
    await twice.hello("h1")
    await twice.send(agent_pb2.AgentMessage(hello=agent_pb2.Hello(host="h1")))
    assert (await twice.refused())[0] == "FAILED_PRECONDITION"
    assert central.ingest.refused_streams == {"no_hello": 3, "wrong_host": 1, "second_hello": 1}
    assert central.journal.stats.accepted_batches == 0


async def test_what_would_be_kept_for_ever_is_short_and_printable(make) -> None:
    central = await make.central()
    for fields, what in (
        ({"platform": "P\0"}, "platform"),
        ({"agent_version": "x" * 100_000}, "agent_version"),
        ({"boot_id": "a\nb"}, "boot_id"),
    ):
        peer = make.peer(central, "h1")
        said = {"host": "h1", "platform": "P", "protocol_version": 1, "min_protocol_version": 1, **fields}
        await peer.send(agent_pb2.AgentMessage(hello=agent_pb2.Hello(**said)))
        code, detail = await peer.refused()
        assert code == "INVALID_ARGUMENT"
        assert detail.startswith(f"{what} must be a text without control characters")
        assert len(detail) < 300
    assert central.ingest.refused_streams == {"bad_hello": 3}
    assert central.journal.hosts == {}
    peer = make.peer(central, "h1")
    await peer.hello("h1", jobs=["a", "b\0", "", "x" * 513])
    assert central.registry.get("h1").jobs == {"a"}
    await peer.send(agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(jobs=["a", "b", "c\n"])))
    await until(lambda: central.registry.get("h1").jobs == {"a", "b"})
    await peer.batch(1, spool_id="x" * 100_000)
    (refused,) = (await peer.ack()).rejected_batches
    assert (refused.sequence, refused.reason) == (1, "bad_spool")
    await peer.batch(2, start_unix_ns=[0, time.time_ns()])
    ack = await peer.ack()
    assert (ack.accepted_rows, [(row.reason, row.count) for row in ack.rejected_rows]) == (1, [("old_time", 1)])
    assert central.journal.stats.rejected_batches == {"bad_spool": 1}
    assert central.journal.stats.rejected_rows == {"old_time": 1}
    await central.roller.roll_all()
    assert len(central.lake.days()) == 1


@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize(
    ("raw", "code", "reason"),
    [(b"\xff" * 50, "INVALID_ARGUMENT", "malformed"), (b"\x12" * 2000, "RESOURCE_EXHAUSTED", "oversized")],
)
async def test_what_is_no_message_is_counted_and_reported(make, when, raw, code, reason) -> None:
    central = await make.central(max_message_bytes=1000)
    peer = make.peer(central, "h1")
    if when == "later":
        await peer.hello("h1")
    await peer.send(raw)
    found, detail = await peer.refused()
    assert found == code
    assert f"a message of {len(raw)} bytes" in detail
    await until(lambda: central.journal.stats.rejected_batches == {reason: 1})
    again = make.peer(central, "h1")  # central lives
    await again.hello("h1")
    await again.batch(1)
    assert (await again.ack()).accepted_rows == 2


class SlowContext:
    """A stream's context whose messages leave when they are let go."""

    def __init__(self, context) -> None:
        self.context = context
        self.go = asyncio.Event()
        self.go.set()
        self.begun = self.ended = 0
        self.at_abort = (0, 0)

    def __getattr__(self, name):
        return getattr(self.context, name)

    async def write(self, message: bytes) -> None:
        self.begun += 1
        await self.go.wait()
        await self.context.write(message)
        self.ended += 1

    async def abort(self, code, detail) -> None:
        self.at_abort = (self.begun, self.ended)
        await self.context.abort(code, detail)


async def test_a_refusal_waits_for_the_message_that_is_being_written(make, monkeypatch) -> None:
    """Amid a message gRPC takes no status, and the stream would stay open for ever."""
    contexts, connect = [], Ingest.connect

    async def slowly(self, requests, context) -> None:
        contexts.append(SlowContext(context))
        await connect(self, requests, contexts[-1])

    monkeypatch.setattr(Ingest, "connect", slowly)
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    contexts[0].go.clear()
    await peer.batch(1)
    await until(lambda: contexts[0].begun == 2)
    await peer.send(b"\xff" * 50)
    await until(lambda: central.ingest.refused_streams == {"malformed": 1})
    contexts[0].go.set()
    assert (await peer.ack()).accepted_rows == 2
    assert (await peer.refused())[0] == "INVALID_ARGUMENT"
    assert contexts[0].at_abort == (2, 2)


async def test_beyond_the_transports_limit_the_client_is_reported_and_central_lives(make) -> None:
    central = await make.central(max_message_bytes=1000)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.send(b"\x12" * 5000)
    code, detail = await peer.refused()
    assert code == "RESOURCE_EXHAUSTED"
    assert "(5000 vs. 4000)" in detail
    again = make.peer(central, "h1")
    await again.hello("h1")
    await again.batch(1)
    assert (await again.ack()).accepted_rows == 2


async def test_a_newer_stream_of_a_host_replaces_the_older_one(make) -> None:
    central = await make.central()
    older, newer = make.peer(central, "h1"), make.peer(central, "h1")
    await older.hello("h1")
    await newer.hello("h1")
    assert await older.refused() == ("ABORTED", "replaced by a newer stream of host 'h1'")
    await newer.batch(1)
    assert (await newer.ack()).accepted_rows == 2
    assert len(central.registry) == 1


async def test_no_more_streams_than_allowed(make) -> None:
    central = await make.central(max_streams=1)
    first = make.peer(central, "h1")
    await first.hello("h1")
    second = make.peer(central, "h2")
    code, detail = await second.refused()
    assert (code, central.ingest.refused_streams["max_streams"]) == ("RESOURCE_EXHAUSTED", 1)
    assert "as many as ingest.max_streams allows" in detail


@pytest.mark.parametrize("limit", ["batches", "bytes"])
async def test_a_journal_that_cannot_commit_slows_agents_and_is_not_read_past_the_limit(
    make, monkeypatch, limit
) -> None:
    central = await make.central(max_pending_batches=4 if limit == "batches" else 100)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    connection = central.journal._connection
    connection.execute("PRAGMA max_page_count = 1")  # as if the disk were full
    size = await peer.batch(1, rows=200)
    if limit == "bytes":
        monkeypatch.setattr(backpressure, "_PENDING_BYTES", round(3.5 * size))

    async def send() -> None:
        for sequence in range(2, 21):
            await peer.batch(sequence, rows=200)

    sending = asyncio.create_task(send())  # it waits: central lets it send 64 KiB ahead
    await until(lambda: central.journal.failure and central.ingest.backpressure.pending == 4)
    central.roller.failure, central.recorder.failure = "no lake", "no history"
    parts = central.fleet.parts
    assert (parts.roll_error(), parts.incidents_error()) == ("no lake", "no history")
    await asyncio.sleep(0.1)
    assert central.ingest.backpressure.pending == 4, "no more is read than may be pending"
    assert not sending.done(), "who sends more waits"
    assert central.journal.stats.accepted_batches < 16
    connection.execute("PRAGMA max_page_count = 100000")
    acknowledged, paces = set(), []
    while len(acknowledged) < 20 or not paces or paces[-1]:
        message = await peer.read()
        if message.WhichOneof("body") == "slow_down":
            paces.append(message.slow_down.min_batch_interval_ms)
            continue
        acknowledged |= {n for r in message.ack.ranges for n in range(r.first, r.last + 1)}
    await sending
    assert acknowledged == set(range(1, 21))
    assert 1000 in paces, "and they were told to slow down"
    assert central.journal.stats.accepted_batches == 20
    assert central.ingest.backpressure.pending == 0


async def test_streams_that_wait_for_room_go_in_their_order_and_none_is_forgotten(make) -> None:
    central = await make.central(max_pending_batches=2)
    of = central.ingest.backpressure
    of.pending = 2
    went: list[int] = []

    async def wait(number: int) -> None:
        await of._wait_for_room()
        went.append(number)
        of.pending += number < 4  # the later ones find nothing to read: they must not keep the others waiting

    tasks = [asyncio.create_task(wait(number)) for number in range(8)]
    await asyncio.sleep(0)
    assert len(of._waiting) == 8
    tasks[1].cancel()
    await asyncio.sleep(0)
    of.pending -= 1
    of._let_next_go()
    for _ in range(20):
        await asyncio.sleep(0)
    assert went == [0], "one place, one stream"
    of.pending -= 2
    of._let_next_go()
    for _ in range(20):
        await asyncio.sleep(0)
    assert went == [0, 2, 3]
    of.pending -= 1
    of._let_next_go()
    for _ in range(40):
        await asyncio.sleep(0)
    assert went == [0, 2, 3, 4, 5, 6, 7], "all of them, as there is room left"
    of.pending = 0
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stop_acknowledges_what_was_taken(make) -> None:
    central = await make.central(commit_interval_ms=200)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.batch(1)
    await until(lambda: central.ingest.backpressure.pending)
    stop = asyncio.create_task(central.stop())
    assert (await peer.ack()).accepted_rows == 2
    assert await peer.refused() == ("UNAVAILABLE", "central is stopping")
    await stop


async def test_health_reflection_and_the_fleet_api(make, pki) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    operator = make.peer(central, "operator").channel
    check = health_pb2_grpc.HealthStub(operator).Check
    for service in ("", "whitepanda.v1.AgentStream", "whitepanda.v1.Fleet"):
        assert (await check(health_pb2.HealthCheckRequest(service=service))).status == 1
    info = reflection_pb2_grpc.ServerReflectionStub(operator).ServerReflectionInfo()
    await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await info.read()).list_services_response.service}
    assert {"whitepanda.v1.AgentStream", "whitepanda.v1.Fleet", "grpc.health.v1.Health"} <= names
    status = await fleet_pb2_grpc.FleetStub(operator).GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
    assert (status.connected_hosts, status.protocol_version) == (1, 1)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await fleet_pb2_grpc.FleetStub(peer.channel).GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_it_does_not_start_without_what_it_needs(tmp_path: Path, pki) -> None:
    async def why(settings: CentralConfig, kind=UnavailableError) -> str:
        with pytest.raises(kind) as error:
            await Central(settings).start()
        assert "\n" not in str(error.value)
        return str(error.value)

    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"central.listen localhost:{port}: Address already in use (" in await why(
            config(tmp_path, pki, f"localhost:{port}")
        )
    first = Central(config(tmp_path, pki))
    await first.start()
    assert (tmp_path / "state" / "port").read_text() == f"{first.port}\n"
    assert "another central holds the journal" in await why(config(tmp_path, pki))
    await first.stop()
    (tmp_path / "file").write_text("")
    reported = await why(config(tmp_path / "file", pki))
    assert reported.startswith(f"central.state_dir {tmp_path}/file/state is not writable: Not a directory; create")
    assert (await why(config(Path("/proc/x"), pki))).startswith("central.state_dir /proc/x/state is not writable")
    elsewhere = config(tmp_path / "other", pki)
    elsewhere = msgspec.structs.replace(
        elsewhere, central=msgspec.structs.replace(elsewhere.central, lake_dir="/proc/x")
    )
    assert (await why(elsewhere)).startswith("central.lake_dir /proc/x is not writable")
    mixed = {"central": TlsFiles(ca=pki["h1"].ca, certificate=pki["h1"].certificate, key=pki["h2"].key)}
    assert "cannot be used together (key values mismatch)" in await why(config(tmp_path, mixed), TlsError)
    broken = tmp_path / "broken.crt"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    bad_ca = {"central": TlsFiles(ca=str(broken), certificate=pki["h1"].certificate, key=pki["h1"].key)}
    assert "holds no usable certificate" in await why(config(tmp_path, bad_ca), TlsError)
    clients = await why(config(tmp_path, {"central": pki["h1"]}), TlsError)
    assert f"central.tls.certificate: {pki['h1'].certificate} is not one for servers" in clients
    assert "central.tls.ca is not set" in await why(config(tmp_path, {"central": TlsFiles()}), TlsError)


async def test_two_centrals_of_one_name_do_not_take_leases_from_each_other(tmp_path: Path, pki) -> None:
    async with contextlib.AsyncExitStack() as stack:

        async def started(folder: str) -> Central:
            made = config(tmp_path / folder, pki)
            section = msgspec.structs.replace(made.central, lake_dir=str(tmp_path / "lake"), http_listen="")
            central = Central(msgspec.structs.replace(made, central=section))
            await central.start()
            stack.push_async_callback(central.stop)
            return central

        one, other = await started("one"), await started("other")
        assert one.journal.replica == other.journal.replica
        assert (one.builder.lease.acquire(), other.builder.lease.acquire()) == (True, False)
        one.builder.lease.check()
        assert one.webhooks._holder != other.webhooks._holder


def test_what_central_writes_nobody_else_reads(tmp_path: Path) -> None:
    """Also by hand, without the unit's UMask."""
    process = CentralProcess(tmp_path, state_dir=tmp_path / "new")
    arguments = [*process.command(), "--config", str(process.config)]
    central = subprocess.Popen(arguments, umask=0o022, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "new" / "port").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        central.terminate()
        central.wait(20)
    made = [path for root in ("new", "lake") for path in (tmp_path / root, *(tmp_path / root).rglob("*"))]
    assert {path.name for path in made} >= {"new", "lake", "journal.sqlite", "journal.lock", "port"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in made}
    assert modes == {path.name: 0o700 if path.is_dir() else 0o600 for path in made}


async def test_folders_are_closed_whatever_the_umask(tmp_path: Path, pki) -> None:
    central = Central(config(tmp_path, pki))
    before = os.umask(0o022)
    try:
        await central.start()
        await central.stop()
    finally:
        os.umask(before)
    for folder in ("state", "state/lake"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_the_command_says_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    first = CentralProcess(tmp_path)
    first.start()
    try:
        second = subprocess.run(
            [*first.command(), "--config", str(first.config)], capture_output=True, text=True, check=False
        )
    finally:
        assert first.stop() == 0
    assert second.returncode == 4
    assert second.stderr.count("\n") == 1
    assert "error: another central holds the journal in" in second.stderr


async def test_a_journal_that_cannot_go_on_ends_central_with_its_reason(make, monkeypatch) -> None:
    monkeypatch.setattr(ingest_module, "_DRAIN_S", 0.2)
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    central.journal._write = None  # as a bug would, or a damaged file
    await peer.batch(1)
    with pytest.raises(UnavailableError, match=r"journal .*TypeError.*nothing further is acknowledged"):
        await asyncio.wait_for(central.wait(), 5)


async def test_hosts_that_do_not_read_are_looked_for_ten_times_in_the_time_that_they_have(make, monkeypatch) -> None:
    central = await make.central(unread_s=30.0)
    waits_s, looks = [], []

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        if len(waits_s) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(central.ingest, "drop_unread", lambda: looks.append(1))
    with monkeypatch.context() as patch:
        patch.setattr(ingest_module, "asyncio", SimpleNamespace(sleep=sleep))
        with pytest.raises(asyncio.CancelledError):
            await central.ingest.watch()
    assert waits_s == [3.0] * 3
    assert len(looks) == 2


async def test_a_host_that_has_said_its_last_word_and_does_not_read_is_dropped(make) -> None:
    central = await make.central(unread_s=60.0)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    ingest, stream = central.ingest, central.registry.get("h1")
    for sequence in range(1, 901):  # their acknowledgements are more than gRPC takes for a host that does not read
        await peer.batch(sequence, spool_id="\x1b" * 20)
    await peer.call.done_writing()
    await until(lambda: stream.closed and stream.writing_since_s)
    ingest.drop_unread()
    await asyncio.sleep(0.1)
    assert central.registry.get("h1") is stream
    since_s = stream.writing_since_s
    ingest._clock_s = lambda: since_s + 60.1
    ingest.drop_unread()
    await until(lambda: central.registry.get("h1") is None)
    assert ingest.refused_streams == {"unread": 1}
