"""What a real central learns of a host's agent from one Hello to the next, also over a restart of central."""

import time
from pathlib import Path

import pytest

from central.config import CentralConfig, CentralSection
from central.daemon import Central
from central.incidents.store import StoreError
from central.pki import issue, make_ca
from tests.support.spoken_streams import said_to_hello
from tests.support.waiting import until
from tests.unit.central.incidents.test_incidents import GAP, row
from whitepanda.v1 import fleet_pb2

S = 10**9


@pytest.fixture
def pki(tmp_path: Path):
    make_ca(tmp_path / "pki")
    return {name: issue(tmp_path / "pki", name) for name in ("h1", "importer")}


@pytest.fixture
def config(tmp_path: Path, pki) -> CentralConfig:
    tls = issue(tmp_path / "pki", "central", server=True, addresses=["localhost", "127.0.0.1"])
    state = str(tmp_path / "state")
    return CentralConfig(central=CentralSection(listen="localhost:0", http_listen="", state_dir=state, tls=tls))


def changed(central: Central) -> list[str]:
    kind = fleet_pb2.ChangeKind.Name
    found = central.incidents.changes_of(1, time.time_ns() + 60 * S)
    return [kind(one.kind).removeprefix("CHANGE_KIND_") for one in found.changes]


async def test_a_restart_and_an_upgrade_stand_in_the_timeline(config, pki, monkeypatch):
    monkeypatch.setattr("central.incidents.recorder._RETRY_S", 0.01)
    now = time.time_ns()
    hello = {"boot_id": "b", "agent_version": "1.0", "agent_started_unix_ns": now - 300 * S}
    central = Central(config)
    await central.start()
    try:
        central.incidents.take([row(1, now)], gap_ns=GAP, oldest_unix_ns=0)
        assert await said_to_hello(central, pki["h1"], "h1", **hello) == "welcome"
        assert await said_to_hello(central, pki["importer"], "importer", **hello) == "welcome"
        await until(lambda: not central.recorder._agents)
        assert changed(central) == []
        again = {**hello, "agent_started_unix_ns": now - 100 * S}
        # While the database is away it waits, the last one of each host.
        note, calls = central.incidents.note_agents, []

        def flaky(seen):
            calls.append(seen)
            if len(calls) == 1:
                raise StoreError("the server is away")
            note(seen)

        monkeypatch.setattr(central.incidents, "note_agents", flaky)
        assert await said_to_hello(central, pki["h1"], "h1", **again) == "welcome"
        await until(lambda: len(calls) == 2 and not central.recorder._agents)
        assert changed(central) == ["AGENT_RESTARTED"]
    finally:
        await central.stop()
    central = Central(config)
    await central.start()
    try:
        newer = {**again, "agent_version": "1.1", "agent_started_unix_ns": now - 10 * S}
        assert await said_to_hello(central, pki["h1"], "h1", **newer) == "welcome"
        await until(lambda: len(changed(central)) == 2)
        assert changed(central) == ["AGENT_RESTARTED", "AGENT_UPGRADED"]
        assert await said_to_hello(central, pki["h1"], "h1", **newer) == "welcome"
        await until(lambda: not central.recorder._agents)
        assert len(changed(central)) == 2
    finally:
        await central.stop()
