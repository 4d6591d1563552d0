"""Contention that a host's analysis finds becomes an incident at central, once, whatever breaks; gRPC, HTTP, CLI.

The real analysis, spool and uplink over mTLS to a central that is a process; the host's windows are made up.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from agent.analysis.advice.recommendations import HostLimits
from agent.antagonists.advisor import Advisor
from agent.antagonists.reports import Trigger
from agent.config import AnalysisSection, UplinkSection
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.stream import Timing
from tests.support.central_process import MAIN, CentralProcess
from tests.unit.agent import canned_agents
from tests.unit.agent.antagonists import test_host_analysis as made_up
from tests.unit.central.web.test_http_api import fetch
from whitepanda.common.recommendations import recommendation_json
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc

pytestmark = pytest.mark.integration

S = 10**9
BUSY = (made_up.VICTIM, made_up.CALM, made_up.SCAN)
IDLE = (made_up.CALM, made_up.SCAN)
SLOT_WINDOWS = 3  # of 10 s in a slot of 30 s


class Host:
    """A host whose time passes as fast as it can."""

    def __init__(self, central: CentralProcess, name: str) -> None:
        folder = central.folder / name
        folder.mkdir()
        self.name = name
        self.host = made_up.Host(folder, AnalysisSection(mn_cpi_floor=1.0))
        self.host.now = time.time_ns() - 4 * 3600 * S
        assert self.host.store.apply(made_up.update(created=self.host.now))
        self.spool_file = folder / "spool.sqlite"
        self.spool = Spool(self.spool_file, max_bytes=1 << 24, boot_id="b")
        self.section = UplinkSection(
            address=central.address, tls=central.client(name), reconnect_min_s=0.02, reconnect_max_s=0.1
        )
        self.uplink = self.make_uplink(self.spool)
        self.found: list = []

    def make_uplink(self, spool: Spool) -> Uplink:
        timing = Timing(acknowledgement_s=10.0, poll_s=0.05)
        return Uplink(self.section, lambda: agent_pb2.Hello(host=self.name, platform="P"), spool, timing=timing)

    async def live(self, windows: int, vms) -> None:
        for _ in range(windows):
            self.host.now += made_up.WINDOW
            made = [made_up.window(end=self.host.now, **vm) for vm in vms]
            known = len(self.host.reports)
            self.host.observe(made)
            triggers = tuple(map(self.advised, self.host.reports[known:]))
            self.found += [one for one in triggers if not one.ended]  # an end is no report of its own
            self.uplink.submit(made, triggers)
            await asyncio.sleep(0.001)

    def advised(self, trigger: Trigger) -> Trigger:
        """As the daemon has it: with what could be done. The VMs have eight vCPUs."""
        names = [vm["vm"] for vm in BUSY]
        vms = tuple(canned_agents.canned_vm(name, "", (), ls=False, epoch="1", vcpus=8) for name in names)
        state = canned_agents.State(canned_agents.HOST, vms, self.host.analysis)
        return Advisor(state, self.host.store, HostLimits()).with_advice(trigger)

    @contextlib.asynccontextmanager
    async def connected(self):
        running = asyncio.create_task(self.uplink.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def drained(self) -> None:
        async with asyncio.timeout(30):
            while self.uplink._pending or self.uplink._queue.counts().batches:
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        await self.uplink.close()
        self.spool.close()


@pytest.fixture
def central(tmp_path: Path):
    process = CentralProcess(tmp_path, central='operators = ["operator"]', ingest="commit_interval_ms = 2")
    process.http_listen = "127.0.0.1:0"
    process._write_config()
    yield process
    process.end()


async def course(central: CentralProcess) -> tuple[Host, Host]:
    """Two hosts; the first has two bouts of contention, with central killed in between and its spool set back."""
    await asyncio.to_thread(central.start)
    first, second = Host(central, "host-1"), Host(central, "host-2")
    old = central.folder / "old.sqlite"
    async with first.connected(), second.connected():
        for host in (first, second):  # what was there when they began would be none of their incidents
            await host.live(5 * SLOT_WINDOWS, IDLE)
        await first.live(8 * SLOT_WINDOWS, BUSY)
        await second.live(5 * SLOT_WINDOWS, BUSY)
        await first.drained()
        central.kill()
        await first.live(390 * SLOT_WINDOWS, IDLE)
        await first.live(6 * SLOT_WINDOWS, BUSY)
        async with asyncio.timeout(10):
            while first.uplink._pending:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # the last of them is written
        for end in ("", "-wal"):  # an open spool lets nobody else read it as a database
            shutil.copy(f"{first.spool_file}{end}", f"{old}{end}")
        await asyncio.to_thread(central.start)
        await first.drained()
        await second.drained()
    await first.close()
    await second.close()
    central.kill()
    await asyncio.to_thread(central.start)
    first.spool = Spool(old, max_bytes=1 << 24, boot_id="b")
    first.uplink = first.make_uplink(first.spool)
    async with first.connected():  # all of it comes a second time
        await first.drained()
    await first.close()
    return first, second


@pytest.mark.long
async def test_contention_becomes_incidents_once_whatever_breaks(central: CentralProcess) -> None:
    first, second = await course(central)
    bouts = [t for t in first.found if t.unix_ns - first.found[0].unix_ns < 900 * S]
    later = first.found[len(bouts) :]
    assert len(bouts) >= 5 and len(later) >= 3 and len(second.found) >= 2

    credentials = channel_credentials(central.client("operator"))

    def ask(method: str, request):
        with grpc.secure_channel(central.address, credentials) as channel:
            return getattr(fleet_pb2_grpc.FleetStub(channel), method)(request, timeout=10, wait_for_ready=True)

    wanted = len(first.found) + len(second.found)
    async with asyncio.timeout(20):  # the history follows the acknowledgement
        while True:
            answer = await asyncio.to_thread(ask, "ListIncidents", fleet_pb2.ListIncidentsRequest())
            if sum(i.reports for i in answer.incidents) >= wanted:
                break
            await asyncio.sleep(0.05)
    expected = [
        (host, reported[0].unix_ns, reported[-1].unix_ns, len(reported))
        for host, reported in (("host-1", bouts), ("host-1", later), ("host-2", second.found))
    ]
    found = [(i.host, i.first_unix_ns, i.last_unix_ns, i.reports) for i in answer.incidents]
    assert sorted(found) == sorted(expected)
    assert {i.suspect_job for i in answer.incidents} == {"scan"}
    last = next(i for i in answer.incidents if i.first_unix_ns == later[0].unix_ns)
    detail = await asyncio.to_thread(ask, "GetIncident", fleet_pb2.GetIncidentRequest(id=last.id))
    assert [r.unix_ns for r in detail.reports] == [t.unix_ns for t in later]
    assert (detail.recurrence.hosts, detail.recurrence.incidents) == (2, 3)
    assert detail.reports[0].victims[0].name == "web-1"
    assert detail.reports[0].suspects[0].score == pytest.approx(2.0)
    cap = detail.incident.recommendations[0]
    assert (cap.action, cap.vm, cap.name) == (agent_pb2.ACTION_CAP_CPU, "uuid-scan-1", "scan-1")
    assert not any(one.recommendations for one in (*answer.incidents, *detail.reports))

    port = int((central.state_dir / "http_port").read_text())
    status, page = await asyncio.to_thread(fetch, port, f"/v1/incidents/{last.id}")
    assert status == 200
    assert [r["unix_ns"] for r in page["reports"]] == [t.unix_ns for t in later]
    assert page["incident"]["recommendations"] == [recommendation_json(one) for one in detail.incident.recommendations]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *MAIN, "incidents", *arguments]
        command += ["--central", central.address, "--tls", str(central.pki)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    done = await asyncio.to_thread(run, "show", str(last.id))
    assert done.returncode == 0, done.stderr
    assert f"incident {last.id} on host-1: began " in done.stdout
    assert "job scan was suspected first in 3 incidents on 2 hosts" in done.stdout
    assert "web-1" in done.stdout and "scan-1" in done.stdout
    assert "what could be done, the best first:\n1. cap the CPU of scan-1 to " in done.stdout
    assert "   $ whitepanda act apply cap-cpu uuid-scan-1 --cores " in done.stdout
    done = await asyncio.to_thread(run, "list", "--host", "host-2", "--json")
    (only,) = json.loads(done.stdout)["incidents"]
    assert (only["host"], only["reports"]) == ("host-2", len(second.found))
    done = await asyncio.to_thread(run, "show", "999")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no incident 999; it was forgotten, became part of an earlier one, or never was" in done.stderr
    assert "Traceback" not in central.log.read_text()
