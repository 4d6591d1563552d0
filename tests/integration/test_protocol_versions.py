"""Agents and central agree on a protocol version, or central refuses in one line that names both."""

import grpc
import pytest

from tests.support.central_process import CentralProcess
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import agent_pb2

CONNECT = "/whitepanda.v1.AgentStream/Connect"


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory):
    process = CentralProcess(tmp_path_factory.mktemp("central"))
    process.start()
    yield process
    process.end()


def _channel(central: CentralProcess, host: str) -> grpc.aio.Channel:
    credentials = channel_credentials(central.client(host))
    return grpc.aio.secure_channel(central.address, credentials, options=CLIENT_CHANNEL_OPTIONS)


@pytest.mark.parametrize(
    ("newest", "oldest", "says"),
    [
        (99, 98, "speaks protocol 98 to 99, central speaks 1: upgrade the older side"),
        (99, 0, "speaks protocol 99, central speaks 1: upgrade the older side"),
        (2, 2, "speaks protocol 2, central speaks 1: upgrade the older side"),
        (0, 0, "speaks protocol 0, central speaks 1: upgrade the older side"),
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


@pytest.mark.parametrize(("newest", "oldest"), [(1, 0), (1, 1), (99, 1)])
async def test_the_newest_common_version_is_spoken(central, newest, oldest) -> None:
    host = f"common-{newest}-{oldest}"
    async with _channel(central, host) as channel:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host=host, protocol_version=newest, min_protocol_version=oldest)
        await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        welcome = agent_pb2.CentralMessage.FromString(await call.read()).welcome
        assert welcome.protocol_version == 1
        assert (welcome.max_batch_rows, welcome.max_batch_bytes) == (10_000, 4 << 20)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
    assert f"host={host} reason=connected protocol=1" in central.log.read_text()
