"""Questions, however many, hold up nothing that central does beside them: totals, health, acknowledgements, builds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bench.central_cost import questions
from central.config import BuildSection, CentralConfig, CentralSection, IngestSection
from central.daemon import Central
from central.pki import revoke
from tests.support.honest_host import HonestHost, memory_mib
from tests.support.spoken_streams import Peer
from tests.support.waiting import until
from whitepanda.common.tls import TlsFiles

pytestmark = pytest.mark.long


THREADS = 4
ASKING = 60  # as many as one address may have open
CLIENTS, SEGMENTS = 240, 2000
MAX_MEMORY_MIB = 1000  # as of tests/integration/test_central_hostile.py


async def get(central: Central, path: str) -> bytes:
    assert central._http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", central._http.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.fixture
async def central(tmp_path: Path, pki: dict[str, TlsFiles]):
    (tmp_path / "revoked").touch()
    section = CentralSection(
        listen="localhost:0",
        http_listen="127.0.0.1:0",
        state_dir=str(tmp_path / "state"),
        tls=pki["central"],
        revoked_serials=str(tmp_path / "revoked"),
    )
    made = Central(
        CentralConfig(
            central=section,
            ingest=IngestSection(commit_interval_ms=1, roll_interval_s=0.1),
            build=BuildSection(interval_s=1.0, min_samples=1, threads=1, memory_limit_mib=256),
        )
    )
    await made.start()
    yield made
    await made.stop()


@pytest.mark.timeout(300)
async def test_beside_questions_that_never_end_central_does_all_else(
    central: Central, pki: dict[str, TlsFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    go, asked = threading.Event(), []
    read_events = central.journal.read_events

    def never(**wanted: object) -> object:
        asked.append(wanted)
        go.wait()
        return read_events(**wanted)

    monkeypatch.setattr(central.journal, "read_events", never)
    asking = [asyncio.create_task(get(central, "/v1/events")) for _ in range(ASKING)]
    revoked, host = Peer(central, pki["h1"]), Peer(central, pki["h2"])
    try:
        await until(lambda: len(asked) == THREADS)
        async with asyncio.timeout(240):
            assert b"whitepanda_central_lake_segments 0.0" in await get(central, "/metrics")
            assert b"serving" in await get(central, "/healthz")
            await revoked.hello("h1")
            await host.hello("h2")
            await host.batch(1)
            assert (await host.ack()).accepted_rows == 2
            while central.builder.current is None:
                await asyncio.sleep(0.02)
            assert b"whitepanda_central_coefficient_version 1.0" in await get(central, "/metrics")
            revoke(Path(pki["h1"].certificate), tmp_path / "revoked")
            assert (await revoked.call.code()).name == "UNAUTHENTICATED"
        assert not any(each.done() for each in asking)
        go.set()
        answers = await asyncio.gather(*asking)
        assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    finally:
        go.set()
        for peer in (revoked, host):
            await peer.channel.close()
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_beside_a_flood_of_questions_a_real_central_does_all_else(tmp_path: Path) -> None:
    with ExitStack() as stack:
        central, port = stack.enter_context(questions.started(tmp_path, SEGMENTS))
        honest = stack.enter_context(closing(HonestHost(central, 5)))
        flood = stack.enter_context(questions.flooding(port, CLIENTS, questions.PATHS))
        questions.revoke(central, port)
        built = len(questions.versions(central))
        while len(questions.versions(central)) < built + 2:
            honest.latencies_ms(1.0, 0.1)
            assert b'"serving"' in questions.fetch(port, "/healthz")
            assert b"whitepanda_central_connected_hosts 1.0" in questions.fetch(port, "/metrics")
        answers = flood()
        assert answers["200"]
        assert set(answers) <= {"200", "404", "410", "429", "503", "ended"}, answers
        assert memory_mib(central) < MAX_MEMORY_MIB
        assert "Traceback" not in central.log.read_text()
        assert central.stop() == 0
