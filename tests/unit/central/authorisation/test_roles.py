"""Who may call what, over a real central: each RPC has a role; without one it is refused, as are callers without it."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from central.authorisation import grpc_interceptor
from central.authorisation.roles import ROLES, Role
from central.config import CentralConfig, CentralSection
from central.daemon import Central
from central.pki import issue, make_ca
from central.web.openapi import ROUTES
from tests.support.spoken_streams import https, said_to_hello
from whitepanda.common.tls import TlsFiles, channel_credentials

WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
NAMES = ("operator", "h1", "importer", "stranger")
PATHS = (
    "/",
    "/metrics",
    "/healthz",
    "/openapi.json",
    "/nothing",
    *(route.path for route in ROUTES if route.verb == "GET"),
)


@pytest.fixture
def pki(tmp_path: Path) -> dict[str, TlsFiles]:
    make_ca(tmp_path / "pki")
    return {name: issue(tmp_path / "pki", name) for name in NAMES}


@pytest.fixture
async def central(tmp_path: Path, pki: dict[str, TlsFiles], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("central.web.server.is_loopback", lambda _host: False)
    tls = issue(tmp_path / "pki", "central", server=True, addresses=["localhost", "127.0.0.1"])
    section = CentralSection(
        listen="localhost:0",
        http_listen="127.0.0.1:0",
        state_dir=str(tmp_path / "state"),
        tls=tls,
        operators=("operator",),
        importers=("importer",),
    )
    central = Central(CentralConfig(central=section))
    await central.start()
    yield central
    await central.stop()


def channel(central: Central, files: TlsFiles) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(f"localhost:{central.port}", channel_credentials(files))


async def called(central: Central, files: TlsFiles, path: str, *, is_stream: bool = False) -> tuple[str, str]:
    """The status and the text that an RPC ends with; a stream's before anything is said."""
    async with channel(central, files) as opened:
        call = opened.stream_stream(path)() if is_stream else opened.unary_unary(path)(b"", timeout=20)
        async with asyncio.timeout(20):
            return (await call.code()).name, await call.details()


async def served(central: Central, files: TlsFiles) -> dict[str, bool]:
    """Every RPC of every service that central's reflection lists, and whether one side of it is a stream."""
    async with channel(central, files) as opened:
        stub = reflection_pb2_grpc.ServerReflectionStub(opened)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=20)
        answer = await call.read()
    pool = descriptor_pool.Default()
    return {
        f"/{service.name}/{method.name}": method.client_streaming or method.server_streaming
        for service in answer.list_services_response.service
        for method in pool.FindServiceByName(service.name).methods
    }


async def test_each_rpc_has_a_role(central: Central, pki: dict[str, TlsFiles]) -> None:
    rpcs = await served(central, pki["operator"])
    assert set(rpcs) == set(ROLES)
    for route in ROUTES:
        role = ROLES[f"/whitepanda.v1.Fleet/{route.method}"]
        assert role is (Role.OPERATOR if route.verb == "GET" else Role.RESPONDER), route


async def test_an_rpc_without_a_role_is_refused_to_all(
    central: Central, pki: dict[str, TlsFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    rpcs = await served(central, pki["operator"])
    monkeypatch.setattr(grpc_interceptor, "ROLES", {})
    del rpcs["/grpc.health.v1.Health/List"]  # not served
    for rpc, is_stream in rpcs.items():
        for name in ("operator", "h1"):
            found = await called(central, pki[name], rpc, is_stream=is_stream)
            assert found == ("PERMISSION_DENIED", f"no role may call {rpc}")


async def test_a_method_whose_request_grpc_reads_before_the_door_is_refused() -> None:
    class RefusedError(Exception):
        pass

    class Context:
        async def abort(self, code: grpc.StatusCode, _detail: str) -> None:
            raise RefusedError(code)

    async def unary(_details: object) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")

    details = SimpleNamespace(method="/whitepanda.v1.Fleet/ListHosts")
    handler = await grpc_interceptor.Authorisation(door=None).intercept_service(unary, details)
    assert handler.unary_unary is None
    with pytest.raises(RefusedError) as refused:
        await handler.stream_stream(None, Context())
    assert refused.value.args == (grpc.StatusCode.PERMISSION_DENIED,)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_operators_alone_ask_the_fleet(central: Central, pki: dict[str, TlsFiles], name: str) -> None:
    for rpc in (WATCH, REFLECTION):
        if name != "operator":
            assert (await called(central, pki[name], rpc, is_stream=True))[0] == "PERMISSION_DENIED"
    reported = f"only operators may ask; none of this certificate's names ({name}) is in central.operators"
    for rpc in (rpc for rpc, role in ROLES.items() if role is Role.OPERATOR and rpc not in (WATCH, REFLECTION)):
        found = await called(central, pki[name], rpc)
        assert (found == ("PERMISSION_DENIED", reported)) == (name != "operator"), (rpc, found)

    def ask() -> None:
        for path in PATHS:
            connection = https(central, pki[name])
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert (answer.status == 403) == (name != "operator"), path
            if name != "operator":
                assert json.loads(body) == {"error": reported}
            connection.close()

    await asyncio.to_thread(ask)


async def test_hosts_and_importers_alone_send(central: Central, pki: dict[str, TlsFiles]) -> None:
    for name in ("h1", "importer"):
        assert await said_to_hello(central, pki[name], name) == "welcome"
    for name in ("operator", "importer", "stranger"):
        assert await said_to_hello(central, pki[name], "h1") == "PERMISSION_DENIED"
    assert await said_to_hello(central, pki["h1"], "importer") == "PERMISSION_DENIED"
    assert central.ingest.refused_streams == {"wrong_host": 4}


@pytest.mark.parametrize("name", NAMES)
async def test_anyone_asks_for_health(central: Central, pki: dict[str, TlsFiles], name: str) -> None:
    async with channel(central, pki[name]) as opened:
        stub = health_pb2_grpc.HealthStub(opened)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        if name == "operator":
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
    assert (await called(central, pki[name], "/whitepanda.v1.Fleet/NoSuch"))[0] == "UNIMPLEMENTED"
