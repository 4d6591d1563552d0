"""Certificates change while central runs: its own, its CA's, and an agent's."""

import asyncio
import datetime as dt
import shutil
import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from typer.testing import CliRunner

from agent.config import UplinkSection
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from central import pki
from central.authorisation.revocation_list import LOOK_S, revoked_text
from central.cli.pki import app as pki_app
from central.config import CentralConfig, CentralSection, IngestSection
from central.daemon import Central
from central.pki import issue, make_ca
from tests.support.central_process import CentralProcess
from tests.support.spoken_streams import CONNECT, https, said_to_hello
from tests.support.waiting import until
from whitepanda.common.errors import TlsError
from whitepanda.common.tls import TlsFiles, channel_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc


@pytest.fixture
async def central(tmp_path: Path):
    for name in ("old", "new"):
        make_ca(tmp_path / name)
        issue(tmp_path / name, "central", server=True, addresses=["localhost"])
        issue(tmp_path / name, "h1")
    shutil.copytree(tmp_path / "old", tmp_path / "tls")
    tls = TlsFiles(*(str(tmp_path / "tls" / file) for file in ("ca.crt", "central.crt", "central.key")))
    section = CentralSection(listen="localhost:0", state_dir=str(tmp_path / "state"), tls=tls)
    central = Central(CentralConfig(central=section, ingest=IngestSection(commit_interval_ms=1)))
    await central.start()
    yield central
    await central.stop()


def of(folder: Path, name: str = "h1") -> TlsFiles:
    return TlsFiles(*(str(folder / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key")))


async def test_centrals_files_are_taken_up_without_a_restart(
    central: Central, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = of(tmp_path / "old"), of(tmp_path / "new")
    assert await said_to_hello(central, old, "h1") == "welcome"
    assert await said_to_hello(central, new, "h1") == "UNAVAILABLE"
    (tmp_path / "tls" / "central.crt").write_text("-----BEGIN nothing")
    assert await said_to_hello(central, old, "h1") == "welcome", "what cannot work is not taken up"
    for name in ("ca.crt", "central.crt", "central.key"):
        shutil.copy(tmp_path / "new" / name, tmp_path / "tls" / name)
    assert await said_to_hello(central, new, "h1") == "welcome"
    assert await said_to_hello(central, old, "h1") == "UNAVAILABLE"
    reported = capsys.readouterr()
    reported = reported.out + reported.err
    assert reported.count("cannot be used; the previous ones stay in use") == 1
    assert reported.count("changed certificate files are in force") == 1


async def test_the_certificate_of_another_host_is_refused(
    central: Central, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        assert await said_to_hello(central, of(tmp_path / "old"), "h2") == "PERMISSION_DENIED"
    assert central.ingest.refused_streams == {"wrong_host": 3}
    assert len(central.journal.hosts) == 0
    reported = capsys.readouterr()
    lines = [line for line in (reported.out + reported.err).splitlines() if "stream refused" in line]
    assert len(lines) == 1, "once, however often it comes"
    assert "host=h1" in lines[0], "by its certificate"
    assert "reason=wrong_host" in lines[0]
    assert "host 'h2' is not a name of its certificate (h1); issue a certificate for that name" in lines[0]
    central.ingest._handshake._warn.clock_s = lambda: time.monotonic() + 61
    assert await said_to_hello(central, of(tmp_path / "old"), "h2") == "PERMISSION_DENIED"
    reported = capsys.readouterr()
    assert (reported.out + reported.err).count("stream refused") == 1, "and again a minute later"


async def test_the_log_has_one_line_of_a_certificate_whatever_hosts_it_claims(
    central: Central, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with grpc.aio.secure_channel(
        f"localhost:{central.port}", channel_credentials(of(tmp_path / "old"))
    ) as channel:
        for number in range(30):
            call = channel.stream_stream(CONNECT)()
            hello = agent_pb2.Hello(host=f"other-{number}", protocol_version=1, min_protocol_version=1)
            await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
            assert await call.code() == grpc.StatusCode.PERMISSION_DENIED
    assert central.ingest.refused_streams == {"wrong_host": 30}
    reported = capsys.readouterr()
    assert (reported.out + reported.err).count("stream refused") == 1


async def test_an_agents_new_certificate_is_taken_up_without_a_restart(
    central: Central, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it has one that expired, then one of another CA, then a good one."""
    folder = tmp_path / "agent"
    make_ca(folder)
    shutil.copy(tmp_path / "old" / "ca.crt", folder / "own.crt")
    for name in ("ca.crt", "ca.key"):
        shutil.copy(tmp_path / "old" / name, folder / name)
    issue_long_ago(folder, "h1", monkeypatch)
    section = UplinkSection(
        address=f"localhost:{central.port}", tls=of(folder), reconnect_min_s=0.02, reconnect_max_s=0.1
    )
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, boot_id="b")
    uplink = Uplink(section, lambda: agent_pb2.Hello(host="h1", platform="P"), spool)
    running = asyncio.create_task(uplink.run())

    async def says_error(text: str) -> None:
        async with asyncio.timeout(20):
            while text not in uplink.view().last_error:
                await asyncio.sleep(0.02)

    try:
        await says_error("expired")
        for kind in ("crt", "key"):
            shutil.copy(tmp_path / "new" / f"h1.{kind}", folder / f"h1.{kind}")
        await says_error("not signed by the CA")
        for kind in ("crt", "key"):
            shutil.copy(tmp_path / "old" / f"h1.{kind}", folder / f"h1.{kind}")
        async with asyncio.timeout(20):
            while uplink.view().state != "connected":
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await uplink.close()
        spool.close()


@pytest.fixture
async def revoking(tmp_path: Path):
    """A central with a list of revoked serials that is still empty, gRPC and HTTP beyond loopback."""
    pki_folder = tmp_path / "pki"
    make_ca(pki_folder)
    tls = issue(pki_folder, "central", server=True, addresses=["localhost", "127.0.0.1"])
    for name in ("h1", "h2", "operator"):
        issue(pki_folder, name)
    (pki_folder / "revoked.txt").touch()
    section = CentralSection(
        listen="localhost:0",
        http_listen="0.0.0.0:0",
        state_dir=str(tmp_path / "state"),
        tls=tls,
        revoked_serials=str(pki_folder / "revoked.txt"),
    )
    central = Central(CentralConfig(central=section, ingest=IngestSection(commit_interval_ms=1)))
    await central.start()
    yield central
    await central.stop()


def revoke(folder: Path, *names: str) -> None:
    done = CliRunner().invoke(pki_app, ["revoke", *(str(folder / f"{name}.crt") for name in names)])
    assert done.exit_code == 0, done.output


async def test_a_revoked_host_is_refused_within_a_minute_and_its_open_stream_closed(
    revoking: Central, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LOOK_S <= 60
    folder = tmp_path / "pki"
    opened = {}
    async with (
        grpc.aio.secure_channel(f"localhost:{revoking.port}", channel_credentials(of(folder, "h1"))) as first,
        grpc.aio.secure_channel(f"localhost:{revoking.port}", channel_credentials(of(folder, "h2"))) as second,
    ):
        for host, channel in (("h1", first), ("h2", second)):
            call = opened[host] = channel.stream_stream(CONNECT)()
            hello = agent_pb2.Hello(host=host, protocol_version=1, min_protocol_version=1)
            await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
            assert agent_pb2.CentralMessage.FromString(await call.read()).HasField("welcome")
        revoke(folder, "h1")
        assert await asyncio.wait_for(opened["h1"].code(), 60) == grpc.StatusCode.UNAUTHENTICATED
        serial = pki.describe(folder / "h1.crt").serial
        assert await opened["h1"].details() == revoked_text(serial)
        assert await said_to_hello(revoking, of(folder, "h1"), "h1") == "UNAUTHENTICATED"
        assert revoking.ingest.refused_streams == {"revoked": 1}
        assert not opened["h2"].done(), "others stay"
        assert [stream.host for stream in revoking.registry.connected()] == ["h2"]
        issue(folder, "h1", force=True)
        assert await said_to_hello(revoking, of(folder, "h1"), "h1") == "welcome", (
            "a new certificate of the host counts"
        )
    reported = capsys.readouterr()
    [line] = [line for line in (reported.out + reported.err).splitlines() if "stream closed" in line]
    assert f"certificate_serial={serial}" in line and "host=h1" in line


async def test_nothing_more_is_taken_from_a_revoked_host_that_reads_nothing(revoking: Central, tmp_path: Path) -> None:
    """What was queued for it keeps the stream open; what it sends must not count."""
    folder = tmp_path / "pki"
    credentials = channel_credentials(of(folder, "h1"))
    async with grpc.aio.secure_channel(f"localhost:{revoking.port}", credentials) as channel:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1)
        await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        await call.read()
        await until(lambda: revoking.registry.get("h1") is not None)  # the Welcome is sent just before
        stream = revoking.registry.get("h1")
        large = agent_pb2.CoefficientUpdate(version=1)
        large.coefficients.add(job="x" * 1_000_000)
        while stream.send(agent_pb2.CentralMessage(coefficients=large)):
            continue
        revoke(folder, "h1")
        revoking.revoked.look()
        assert revoking.registry.close_revoked(revoking.revoked) == [stream]
        heartbeat = agent_pb2.Heartbeat(jobs=["told-too-late"])
        await call.write(agent_pb2.AgentMessage(heartbeat=heartbeat).SerializeToString())
        async with asyncio.timeout(60):
            while revoking.registry.get("h1") is not None:
                await asyncio.sleep(0.02)
        assert stream.jobs == frozenset()
        call.cancel()


async def test_a_revoked_operator_is_refused_by_grpc_and_http(revoking: Central, tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    files = of(folder, "operator")
    kept = https(revoking, files)

    def status(path: str) -> tuple[int, bytes]:
        kept.request("GET", path)
        answer = kept.getresponse()
        return answer.status, answer.read()

    async with grpc.aio.secure_channel(f"localhost:{revoking.port}", channel_credentials(files)) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        assert (await stub.GetFleetStatus(fleet_pb2.GetFleetStatusRequest())).revoked_certificates == 0
        assert (await asyncio.to_thread(status, "/"))[0] == 200
        revoke(folder, "operator")
        revoking.revoked.look()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    for path in ("/", "/v1/hosts", "/metrics"):
        code, body = await asyncio.to_thread(status, path)
        assert code == 403, "on the connection that was open before, too"
        assert revoked_text(pki.describe(folder / "operator.crt").serial) in body.decode()
    kept.close()


async def test_a_list_that_cannot_be_used_leaves_the_last_good_one_in_force_and_is_shown(
    revoking: Central, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pki"
    file = folder / "revoked.txt"
    revoke(folder, "h1")
    revoking.revoked.look()
    for spoil in (lambda: file.write_text("nonsense\n"), file.unlink):
        spoil()
        for _ in range(3):
            revoking.revoked.look()
        assert await said_to_hello(revoking, of(folder, "h1"), "h1") == "UNAUTHENTICATED"
        answer = await revoking.fleet.answer("GetFleetStatus", fleet_pb2.GetFleetStatusRequest())
        assert answer.revoked_certificates == 1
        assert answer.last_revocation_error.startswith(f"central.revoked_serials: {file}")
    file.write_text("")
    revoking.revoked.look()
    assert revoking.revoked.problem == ""
    assert await said_to_hello(revoking, of(folder, "h1"), "h1") == "welcome", "whoever is taken off the list"
    reported = capsys.readouterr()
    assert (reported.out + reported.err).count("the last good one stays in force") == 2, "once a problem"


async def test_central_does_not_start_with_a_list_that_it_cannot_use(tmp_path: Path) -> None:
    make_ca(tmp_path)
    tls = issue(tmp_path, "central", server=True, addresses=["localhost"])
    section = CentralSection(
        listen="localhost:0", http_listen="", state_dir=str(tmp_path / "s"), tls=tls, revoked_serials="/nowhere"
    )
    with pytest.raises(TlsError, match=r"^central\.revoked_serials: /nowhere: cannot read the list"):
        await Central(CentralConfig(central=section)).start()


def knock(port: int, ca: Path, files: TlsFiles | None) -> None:
    """Do a TLS handshake as a client, and wait until central hangs up."""
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    with socket.create_connection(("localhost", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                while wrapped.recv(4096):
                    continue
        except (ssl.SSLError, ConnectionError):
            return


def issue_long_ago(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> TlsFiles:
    """Issue a certificate that expired three weeks ago."""
    real = dt.datetime

    class LongAgo(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) - dt.timedelta(days=30)

    with monkeypatch.context() as patch:
        patch.setattr(pki, "dt", SimpleNamespace(datetime=LongAgo, UTC=dt.UTC, timedelta=dt.timedelta))
        return issue(folder, name, days=7)


def test_refused_handshakes_are_counted_and_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)  # what a test before may have left
    central = CentralProcess(tmp_path / "c")
    make_ca(tmp_path / "c" / "pki-old")
    for name in ("ca.crt", "ca.key"):
        shutil.copy(central.pki / name, tmp_path / "c" / "pki-old" / name)
    expired = issue_long_ago(tmp_path / "c" / "pki-old", "h1", monkeypatch)
    make_ca(tmp_path / "other")
    foreign = issue(tmp_path / "other", "h1")
    operator = central.client("operator")
    central.start()
    try:
        for files, times in ((foreign, 3), (expired, 2), (None, 1)):
            for _ in range(times):
                knock(central.port, central.pki / "ca.crt", files)
        with grpc.secure_channel(central.address, channel_credentials(operator)) as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            wanted = {"tls_wrong_ca": 3, "tls_expired": 2, "tls_no_certificate": 1}
            until = time.monotonic() + 10
            while True:
                status = stub.GetFleetStatus(fleet_pb2.GetFleetStatusRequest(), timeout=10)
                found = {each.reason: each.count for each in status.refused_streams}
                if found == wanted or time.monotonic() > until:
                    break
                time.sleep(0.05)
        assert found == wanted
        assert central.stop() == 0
    finally:
        central.end()
    lines = [line for line in central.log.read_text().splitlines() if "client refused in the TLS handshake" in line]
    assert len(lines) == 3, "one a reason"
    for reason in wanted:
        assert sum(f"reason={reason} " in line for line in lines) == 1
