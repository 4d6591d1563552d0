"""A recorded agent of protocol version 1 talks to this central, a recorded central of version 1 to this agent."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from agent.config import UplinkSection
from agent.sampling.windows import CpiWindow
from agent.uplink.client import Uplink
from agent.uplink.spool import Spool
from agent.uplink.stream import Timing
from central.lake.segments import Lake
from central.pki import issue, make_ca
from tests.support.central_process import ROOT, CentralProcess
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import channel_credentials, server_credentials
from whitepanda.v1 import agent_pb2

CONNECT = "/whitepanda.v1.AgentStream/Connect"


def _recorder():
    path = ROOT / "tests" / "fixtures" / "protocol" / "v1" / "record.py"
    spec = importlib.util.spec_from_file_location("protocol_v1_recorder", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


V1 = _recorder()


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory):
    process = CentralProcess(
        tmp_path_factory.mktemp("central"), ingest="roll_interval_s = 0.2\nmax_past_days = 36500.0"
    )
    process.start()
    yield process
    process.end()


def _channel(central: CentralProcess, host: str) -> grpc.aio.Channel:
    credentials = channel_credentials(central.client(host))
    return grpc.aio.secure_channel(central.address, credentials, options=CLIENT_CHANNEL_OPTIONS)


async def test_an_agent_of_version_1_talks_to_this_central(central: CentralProcess) -> None:
    v1 = V1.load()
    async with _channel(central, V1.HOST) as channel:
        call = channel.stream_stream(CONNECT)()
        for raw in V1.read("agent_session.bin"):
            await call.write(raw)
        await call.done_writing()
        answers = []
        while (raw := await call.read()) is not grpc.aio.EOF:
            answers.append(v1["CentralMessage"].FromString(raw))
            # Nothing but what version 1 knows: what it does not know would be kept when it is written again.
            known = v1["CentralMessage"].FromString(raw)
            known.DiscardUnknownFields()
            assert known.SerializeToString(deterministic=True) == raw
        assert await call.code() == grpc.StatusCode.OK
    assert {answer.WhichOneof("body") for answer in answers} == {"ack"}
    assert {answer.ack.spool_id for answer in answers} == {V1.SPOOL}
    acknowledged = {
        number for answer in answers for one in answer.ack.ranges for number in range(one.first, one.last + 1)
    }
    assert acknowledged == {1, 2, 3, 5}
    rows = await _rows_of(central, V1.HOST, 10)
    assert [(row["sequence"], row["vm"], row["cpi"]) for row in rows] == [
        (1, "vm-0", 1.0), (1, "vm-1", 2.0), (1, "vm-2", 1.5),
        (2, "vm-0", 1.1), (2, "vm-1", None), (2, "vm-2", 1.6),
        (3, "vm-0", 1.2), (3, "vm-2", 1.7),  # the impossible value is refused, the rest goes through
        (5, "vm-0", 1.3), (5, "vm-1", 2.2),
    ]  # fmt: skip
    assert rows[0] == {
        "host": "old-host", "spool_id": V1.SPOOL, "sequence": 1, "machine": "old-host", "vm": "vm-0", "epoch": "1",
        "job": "job-0", "platform": "Old Xeon", "latency_sensitive": True,
        "start_unix_ns": V1.START + V1.WINDOW, "duration_ns": V1.WINDOW, "cpi": 1.0, "cpu_usage_cores": 0.5,
        "cycles": 10**10, "instructions": 10**10, "running_ratio": 1.0, "run_queue_wait_ratio": None,
        "disk_bytes_per_s": None, "network_bytes_per_s": None, "llc_occupancy_bytes": None,
        "memory_bandwidth_bytes_per_s": None, "memory_stall_ratio": None, "io_wait_ratio": None,
    }  # fmt: skip
    log = central.log.read_text()
    assert 'reason=bad_cpi detail="1 of 3 rows of batch 3 refused"' in log
    assert "host=old-host reason=connected protocol=1" in log


async def _rows_of(central: CentralProcess, host: str, count: int) -> list[dict]:
    lake = Lake(central.lake_dir)
    for _ in range(100):
        rows = [
            row for s in lake.segments() for row in pq.read_table(s.path).to_pylist() if row["host"] == host
        ]
        if len(rows) >= count:
            return sorted(rows, key=lambda row: (row["sequence"], row["vm"]))
        await asyncio.sleep(0.1)
    raise AssertionError(f"{len(rows)} rows of {host}, expected {count}")


class OldCentral:
    """Says what was recorded of a central of version 1, once it has heard enough."""

    def __init__(self) -> None:
        self.v1 = V1.load()
        self.heard = []

    async def connect(self, _requests, context) -> None:
        updates, first, rest = [
            self.v1["CentralMessage"].FromString(raw) for raw in V1.read("central_session.bin")
        ]
        batches = 0
        while (raw := await context.read()) is not grpc.aio.EOF:
            message = self.v1["AgentMessage"].FromString(raw)
            self.heard.append(message)
            if message.WhichOneof("body") != "batch":
                continue
            batches += 1
            for answer in {1: [updates, first], 4: [rest]}.get(batches, []):
                if answer.WhichOneof("body") == "ack":
                    answer.ack.spool_id = message.batch.spool_id  # the recorded one is another agent's
                await context.write(answer.SerializeToString())


async def test_this_agent_talks_to_a_central_of_version_1(tmp_path: Path) -> None:
    make_ca(tmp_path / "pki")
    server_files = issue(tmp_path / "pki", "central", server=True, addresses=["localhost"])
    old, server = OldCentral(), grpc.aio.server()
    handlers = {"Connect": grpc.stream_stream_rpc_method_handler(old.connect)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("whitepanda.v1.AgentStream", handlers),)
    )
    port = server.add_secure_port("localhost:0", server_credentials(server_files))
    await server.start()
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, boot_id="b")
    for number in range(4):
        spool.append([CpiWindow("vm", "1", "vm", "job-0", True, 10**18 + number, 10**10, 0.5, 1.25)])
    updates = []
    uplink = Uplink(
        UplinkSection(address=f"localhost:{port}", tls=issue(tmp_path / "pki", "new-host")),
        lambda: agent_pb2.Hello(host="new-host", platform="P", jobs=["job-0"]),
        spool,
        updates.append,
        timing=Timing(welcome_s=0.2),
    )
    task = asyncio.create_task(uplink.run())
    try:
        async with asyncio.timeout(20):
            while spool.counts().batches:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(None)
        spool.close()
    bodies = [message.WhichOneof("body") for message in old.heard]
    assert bodies == ["hello", "batch", "batch", "batch", "batch"]
    hello = old.heard[0].hello
    assert (hello.host, hello.protocol_version, hello.min_protocol_version) == ("new-host", 2, 1)
    assert [list(message.batch.cpi) for message in old.heard[1:]] == [[1.25]] * 4
    assert uplink.totals.acknowledged_batches == 4
    [update] = updates
    assert (update.version, update.full) == (7, True)
    assert [(row.job, row.mean_cpi, row.std_cpi) for row in update.statistics] == [("job-0", 1.5, 0.25)]


@pytest.mark.parametrize(
    ("newest", "oldest", "says"),
    [
        (99, 98, "speaks protocol 98 to 99, central speaks 1 to 2: upgrade the older side"),
        (99, 0, "speaks protocol 99, central speaks 1 to 2: upgrade the older side"),
        (3, 3, "speaks protocol 3, central speaks 1 to 2"),
    ],
)
async def test_versions_without_overlap_are_refused_in_one_line(central, newest, oldest, says) -> None:
    host = f"host-{newest}-{oldest}"
    async with _channel(central, host) as channel:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host=host, protocol_version=newest, min_protocol_version=oldest)
        await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert says in refused.value.details()
    [line] = [line for line in central.log.read_text().splitlines() if host in line]
    assert "reason=protocol_version" in line
    assert says in line


@pytest.mark.parametrize(
    ("newest", "oldest", "agreed"), [(0, 0, 1), (1, 1, 1), (2, 1, 2), (99, 1, 2), (99, 2, 2)]
)
async def test_the_newest_common_version_is_spoken(central, newest, oldest, agreed) -> None:
    host = f"common-{newest}-{oldest}"
    async with _channel(central, host) as channel:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host=host, protocol_version=newest, min_protocol_version=oldest)
        await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        if agreed >= 2:
            welcome = agent_pb2.CentralMessage.FromString(await call.read()).welcome
            assert welcome.protocol_version == agreed
            assert (welcome.max_batch_rows, welcome.max_batch_bytes) == (10_000, 4 << 20)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
    assert f"host={host} reason=connected protocol={agreed}" in central.log.read_text()
