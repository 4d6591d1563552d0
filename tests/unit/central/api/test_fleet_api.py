"""The fleet API over real mTLS gRPC: who may ask, pages, and the numbers of its status."""

import asyncio
import json
import os
import socket
import ssl
import sys
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from grpc_health.v1.health import aio as health

from central import pki
from central.api.admission import Turns
from central.api.fleet import Fleet, Servicer
from central.authorisation.grpc_interceptor import Authorisation
from central.authorisation.roles import Access
from central.build.builder import Builder
from central.build.status import LeftOut
from central.cli import antagonists
from central.cli.shared.fleet_client import asking, explained
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, Manifest
from central.config import BuildSection
from central.facts.store import FactStore
from central.incidents.store import IncidentStore, StoreError
from central.ingest.sessions import HostStream, StreamRegistry
from central.journal.tables import HostRecord, Submission
from central.journal.writer import Journal
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, segment_stem
from central.validation.events import EventRow
from central.validation.facts import FactRow
from central.validation.triggers import TriggerRow
from central.web.grpc_services import Doorkeeper, handlers
from whitepanda.common import cli
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.fleets import CentralAddress
from whitepanda.common.protocol import ERROR_FIELD
from whitepanda.common.tls import TlsFiles, channel_credentials, server_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    pki.make_ca(folder)
    made = {"central": pki.issue(folder, "central", server=True, addresses=["127.0.0.1"])}
    return made | {name: pki.issue(folder, name) for name in ("operator", "host-1")}


def publish(builder: Builder, jobs: int) -> None:
    """Write a version of `jobs` jobs: statistics on two platforms each, coefficients job 0 < job 1 < ..."""
    names = [f"job-{n:04d}" for n in range(jobs)]
    statistics = [
        {"job": job, "platform": platform, "samples": 5, "mean_cpi": 1.0, "std_cpi": 0.5}
        for job in names
        for platform in ("amd", "intel")
    ]
    coefficients = [
        {"job": job, "samples": 7, "sum_usage_squared": 1.0, "coefficient": n / 10, "standard_error": error}
        for n, job in enumerate(names)
        for error in [0.025 if n == 3 else None]
    ]
    manifest = Manifest(
        version=0,
        created_unix_ns=99,
        slot_s=300.0,
        days=(),
        segments=0,
        segments_digest="",
        rows=0,
        job_statistics=0,
        coefficients=0,
        code_version="0",
    )
    builder.follower.current = builder.versions.write(
        manifest, pa.Table.from_pylist(statistics, JOB_STATISTICS), pa.Table.from_pylist(coefficients, COEFFICIENTS)
    )


class Served:
    """A fleet service behind mTLS, and what is behind it."""

    def __init__(self, tmp_path, certificates) -> None:
        self.certificates = certificates
        self.lake = Lake(tmp_path / "lake")
        self.journal = Journal(tmp_path, replica="central-0", commit_interval_s=0.001)
        self.registry = StreamRegistry()
        self.incidents = IncidentStore("", tmp_path)
        self.builder = Builder(BuildSection(), self.lake)
        self.port = 0
        self.door = Doorkeeper(Access(("operator",)), Counter())
        self._server = grpc.aio.server(interceptors=[Authorisation(self.door)])

    async def start(self) -> None:
        self.fleet = Fleet(
            self.journal, self.registry, self.lake, self.builder, self.incidents, clock_unix_ns=lambda: 77
        )
        self._server.add_generic_rpc_handlers(handlers(self.door, Servicer(self.fleet), health.HealthServicer(), ()))
        self.port = self._server.add_secure_port("127.0.0.1:0", server_credentials(self.certificates["central"]))
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)
        await self.journal.close()
        self.incidents.close()

    async def ask(self, method, request, name="operator"):
        files: TlsFiles = self.certificates[name]
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", channel_credentials(files)) as channel:
            return await getattr(fleet_pb2_grpc.FleetStub(channel), method)(request, timeout=10)

    async def refusal(self, method, request, name="operator"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(method, request, name)
        return caught.value.code().name, caught.value.details()


@pytest.fixture
async def served(tmp_path, certificates):
    made = Served(tmp_path, certificates)
    made.journal.start()
    await made.start()
    yield made
    await made.stop()


async def test_a_certificate_that_is_not_for_the_name_is_reported_with_its_names(served):
    def ask(**changes):
        with asking(CentralAddress(f"127.0.0.1:{served.port}", served.certificates["operator"], **changes), 10) as asks:
            return asks("ListHosts", fleet_pb2.ListHostsRequest())

    await asyncio.to_thread(ask)
    with pytest.raises(TlsError) as refused:
        await asyncio.to_thread(ask, server_name="elsewhere")
    where = f"the certificate of central at 127.0.0.1:{served.port} is not for the name 'elsewhere'"
    assert str(refused.value).startswith(f"{where}; give --server-name with one of its names: ")
    assert "127.0.0.1" in str(refused.value).partition("names: ")[2]
    assert "\n" not in str(refused.value)


def test_a_name_without_an_address_is_no_matter_of_certificates():
    class Unresolved(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):  # as gRPC 1.7x has it
            return (
                "errors resolving nohost.invalid:7443: [field:hostname lookup error:address lookup failed for "
                "nohost.invalid:7443: Domain name not found]"
            )

        def trailing_metadata(self):
            return ()

    asked = CentralAddress("nohost.invalid:7443", TlsFiles("ca", "certificate", "key"))
    found = explained(Unresolved(), asked, "ListIncidents", 10)
    assert isinstance(found, UnavailableError)
    assert str(found).startswith("central at nohost.invalid:7443: cannot resolve the host name: ")


async def test_an_error_names_the_field_and_the_command_line_knows_it_from_grpcs_own(served, monkeypatch):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.ask("ListHosts", fleet_pb2.ListHostsRequest(page_size=1001))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(refused.value.trailing_metadata())[ERROR_FIELD] == "page_size"

    def away(*_arguments, **_named):
        raise StoreError("connection refused")

    monkeypatch.setattr(served.incidents, "find", away)

    def ask():
        with asking(CentralAddress(f"127.0.0.1:{served.port}", served.certificates["operator"]), 10) as asks:
            return asks("ListIncidents", fleet_pb2.ListIncidentsRequest())

    with pytest.raises(UnavailableError) as refused:
        await asyncio.to_thread(ask)
    where = f"central at 127.0.0.1:{served.port}"
    assert str(refused.value) == (f"{where}: incident history does not answer: connection refused; is its database up?")


METHODS = {
    "GetFleetStatus": fleet_pb2.GetFleetStatusRequest,
    "ListHosts": fleet_pb2.ListHostsRequest,
    "ListJobStatistics": fleet_pb2.ListJobStatisticsRequest,
    "ListCoefficients": fleet_pb2.ListCoefficientsRequest,
    "ListEvents": fleet_pb2.ListEventsRequest,
}
DECISIONS = {
    "PlanObservation": fleet_pb2.PlanObservationRequest,
    "CompareSides": fleet_pb2.CompareSidesRequest,
    "PredictRuntime": fleet_pb2.PredictRuntimeRequest,
}


@pytest.mark.parametrize("method", METHODS)
async def test_only_operators_may_ask(served, method):
    code, details = await served.refusal(method, METHODS[method](), "host-1")
    assert code == "PERMISSION_DENIED"
    assert details == "only operators may ask; none of this certificate's names (host-1) is in central.operators"
    await served.ask(method, METHODS[method]())


async def test_who_may_not_ask_takes_no_turn(served):
    served.fleet.turns = Turns(1)
    async with served.fleet.turns.turn():
        asking = asyncio.create_task(served.ask("ListHosts", fleet_pb2.ListHostsRequest()))
        code, _ = await served.refusal("ListHosts", fleet_pb2.ListHostsRequest(), "host-1")
        assert code == "PERMISSION_DENIED"
        assert not asking.done()
    assert not (await asking).hosts


async def test_decisions_are_refused_with_a_code_and_a_line(served):
    """What they answer is tested where their numbers are."""
    jobs = fleet_pb2.PlanObservationRequest(margin_percent=3)
    sides = fleet_pb2.CompareSidesRequest(current_platform="p", new_platform="q")
    runtime = fleet_pb2.PredictRuntimeRequest(job="web", platform="p", epsilons=[0.1])
    for method, request, wanted, said in (
        ("PlanObservation", jobs, "NOT_FOUND", "no data yet: central's lake is empty; "),
        ("CompareSides", sides, "NOT_FOUND", "no data yet: central's lake is empty; "),
        ("CompareSides", None, "INVALID_ARGUMENT", "current and new are the same samples"),
        ("PredictRuntime", runtime, "FAILED_PRECONDITION", "no model of runtimes: make one with `whitepanda runtime"),
        ("PredictRuntime", None, "INVALID_ARGUMENT", "name the job"),
    ):
        code, details = await served.refusal(method, request or DECISIONS[method](), "operator")
        assert (code, details[: len(said)]) == (wanted, said)
        code, _ = await served.refusal(method, request or DECISIONS[method](), "host-1")
        assert code == "PERMISSION_DENIED"


async def test_status_before_anything(served):
    status = await served.ask("GetFleetStatus", fleet_pb2.GetFleetStatusRequest())
    assert (status.central_version, status.protocol_version, status.started_unix_ns) == ("0.1.0", 1, 77)
    assert (status.coefficient_version, status.lake_segments, status.accepted_rows) == (0, 0, 0)
    listed = await served.ask("ListCoefficients", fleet_pb2.ListCoefficientsRequest())
    assert (listed.version, len(listed.coefficients), listed.next_page_token) == (0, 0, "")


async def test_status_numbers(served):
    stats = served.journal.stats
    stats.accepted_batches, stats.accepted_rows, stats.duplicate_batches = 3, 30, 2
    stats.rejected_rows.update({"bad_cpi": 4, "absurd_cpi": 1})
    stats.rejected_batches.update({"malformed": 1})
    stats.journal_batches = 5
    columns = {field.name: pa.nulls(10, field.type) for field in SAMPLES}
    columns |= {field.name: pa.array([1] * 10).cast(field.type) for field in SAMPLES if not field.nullable}
    served.lake.write_segment(pa.table(columns, schema=SAMPLES), segment_stem("central-0", "0badcafe", 1))
    publish(served.builder, 2)
    served.builder.last_error = "OSError: no space"
    served.builder.left_out = LeftOut(31, 310)
    served.builder.damaged = {"build": ["samples/a", "slots/b"], "maintenance": ["samples/a"]}
    served.registry.add(HostStream("host-1"))
    for _ in range(2):  # the second time from what is known of the segments
        status = await served.ask("GetFleetStatus", fleet_pb2.GetFleetStatusRequest())
        assert (status.lake_segments, status.lake_rows) == (1, 10)
    assert (status.accepted_batches, status.accepted_rows, status.duplicate_batches) == (3, 30, 2)
    assert [(row.reason, row.count) for row in status.rejected] == [("absurd_cpi", 1), ("bad_cpi", 4)]
    assert [(row.reason, row.count) for row in status.rejected_batches] == [("malformed", 1)]
    assert (status.journal_batches, status.connected_hosts) == (5, 1)
    assert (status.coefficient_version, status.coefficient_created_unix_ns) == (1, 99)
    assert status.last_build_error == "OSError: no space"
    assert list(status.machines_left_out) == []
    assert (status.days_left_out, status.rows_left_out, status.damaged_files) == (31, 310, 2)


async def test_hosts_in_pages(served):
    for n in (3, 1, 2):
        record = HostRecord(f"host-{n}", last_seen_unix_ns=n, jobs=("old",), clock_offset_ns=-5)
        served.journal.note_host(record)
    served.registry.add(HostStream("host-2", jobs=frozenset({"web", "db"}), coefficient_version=4))
    first = await served.ask("ListHosts", fleet_pb2.ListHostsRequest(page_size=2))
    assert [host.host for host in first.hosts] == ["host-1", "host-2"]
    served.journal.note_host(HostRecord("host-0"))  # a host that comes meanwhile moves nobody to another page
    second = await served.ask("ListHosts", fleet_pb2.ListHostsRequest(page_size=2, page_token=first.next_page_token))
    assert [host.host for host in second.hosts] == ["host-3"]
    assert second.next_page_token == ""
    away, here = first.hosts
    assert (away.connected, list(away.jobs), away.clock_offset_ns, away.last_seen_unix_ns) == (False, ["old"], -5, 1)
    assert (here.connected, list(here.jobs), here.coefficient_version) == (True, ["db", "web"], 4)


async def test_pages_are_of_one_version(served):
    publish(served.builder, 5)
    request = fleet_pb2.ListCoefficientsRequest(page_size=2)
    first = await served.ask("ListCoefficients", request)
    assert [row.job for row in first.coefficients] == ["job-0004", "job-0003"]
    assert (first.coefficients[0].value, first.coefficients[0].samples) == (0.4, 7)
    assert first.coefficients[0].standard_error != first.coefficients[0].standard_error  # NaN: not known
    publish(served.builder, 50)  # a new version comes between two pages
    jobs = []
    token = first.next_page_token
    while token:
        request = fleet_pb2.ListCoefficientsRequest(page_size=2, page_token=token)
        page = await served.ask("ListCoefficients", request)
        assert page.version == 1
        jobs += [row.job for row in page.coefficients]
        token = page.next_page_token
    assert jobs == ["job-0002", "job-0001", "job-0000"]
    fresh = await served.ask("ListCoefficients", fleet_pb2.ListCoefficientsRequest())
    assert (fresh.version, len(fresh.coefficients), fresh.next_page_token) == (2, 50, "")
    # that version is deleted before its last page is asked for
    served.builder.versions.prune(1)
    stale = fleet_pb2.ListCoefficientsRequest(page_token=first.next_page_token)
    assert (await served.ask("ListCoefficients", stale)).version == 1  # still in memory
    publish(served.builder, 1)
    other = await served.ask("ListCoefficients", fleet_pb2.ListCoefficientsRequest(page_size=1))
    assert other.version == 3


@pytest.mark.parametrize("how", ["deleted", "damaged"])
async def test_a_version_that_is_gone(served, how):
    publish(served.builder, 3)
    first = await served.ask("ListJobStatistics", fleet_pb2.ListJobStatisticsRequest(page_size=4))
    assert [(row.job, row.platform) for row in first.statistics][3] == ("job-0001", "intel")
    publish(served.builder, 3)
    if how == "deleted":
        served.builder.versions.prune(1)
    else:
        (path,) = (served.lake.root / "versions/00000001").glob("*-job_statistics.parquet")
        os.truncate(path, path.stat().st_size - 1)
    request = fleet_pb2.ListJobStatisticsRequest(page_token=first.next_page_token)
    code, details = await served.refusal("ListJobStatistics", request)
    assert code == "FAILED_PRECONDITION"
    assert details == "version 1 is no longer kept; begin again without page_token"


async def test_one_job(served):
    publish(served.builder, 3)
    statistics = await served.ask("ListJobStatistics", fleet_pb2.ListJobStatisticsRequest(job="job-0001"))
    assert [(row.job, row.platform) for row in statistics.statistics] == [("job-0001", "amd"), ("job-0001", "intel")]
    page = await served.ask("ListJobStatistics", fleet_pb2.ListJobStatisticsRequest(job="job-0001", page_size=1))
    request = fleet_pb2.ListJobStatisticsRequest(job="job-0001", page_size=1, page_token=page.next_page_token)
    assert [row.platform for row in (await served.ask("ListJobStatistics", request)).statistics] == ["intel"]
    coefficient = await served.ask("ListCoefficients", fleet_pb2.ListCoefficientsRequest(job="job-0002"))
    assert [row.value for row in coefficient.coefficients] == [0.2]
    served.journal.note_host(HostRecord("host-1", jobs=("new",)))
    new = await served.ask("ListCoefficients", fleet_pb2.ListCoefficientsRequest(job="new"))
    assert (new.version, len(new.coefficients)) == (1, 0)
    request.job = "job-0002"  # a token of another list
    assert (await served.refusal("ListJobStatistics", request))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("method", ["ListHosts", "ListJobStatistics", "ListCoefficients"])
async def test_bad_pages(served, method):
    code, details = await served.refusal(method, METHODS[method](page_size=1001))
    assert (code, details) == ("INVALID_ARGUMENT", "page_size must be at most 1000 (value 1001)")
    for token in ("x", "!!!", "WyJub3BlIl0=", "\N{SNOWMAN}", "W10="):
        code, details = await served.refusal(method, METHODS[method](page_token=token))
        assert code == "INVALID_ARGUMENT", token
        assert details.startswith("page_token is not one of this request's pages")


async def test_asking_does_not_block_others(served):
    publish(served.builder, 5)
    request = fleet_pb2.ListCoefficientsRequest()
    answers = await asyncio.gather(*(served.ask("ListCoefficients", request) for _ in range(8)))
    assert {answer.version for answer in answers} == {1}


async def run_show(served, capsys, monkeypatch, *arguments, name="operator"):
    files = served.certificates[name]
    known = ["--ca", files.ca, "--cert", files.certificate, "--key", files.key]
    monkeypatch.setattr(sys, "argv", ["whitepanda", "antagonists", "show", *known, *arguments])

    def run() -> int:
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0)

    code = await asyncio.to_thread(run)
    return code, capsys.readouterr()


async def test_the_command_line_shows_coefficients(served, capsys, monkeypatch):
    central = f"127.0.0.1:{served.port}"
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central)
    assert (code, shown.out.strip()) == (0, "central has built no coefficients yet")
    publish(served.builder, 1500)
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central, "--limit", "2", "--json")
    assert json.loads(shown.out) == {
        "version": 1,
        "coefficients": [
            {"job": "job-1499", "coefficient": 149.9, "samples": 7, "standard_error": None},
            {"job": "job-1498", "coefficient": 149.8, "samples": 7, "standard_error": None},
        ],
    }
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central, "--limit", "5000", "--json")
    assert len({row["job"] for row in json.loads(shown.out)["coefficients"]}) == 1500
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central, "--job", "job-0003")
    assert "Version 1" in shown.out
    assert "job-0003" in shown.out
    assert "std. error" in shown.out
    cells = [cell.strip() for cell in shown.out.splitlines()[-2].strip("│").split("│")]
    assert cells == ["job-0003", "0.3", "0.025", "7"]
    _, shown = await run_show(served, capsys, monkeypatch, "--central", central, "--job", "job-0004")
    assert [cell.strip() for cell in shown.out.splitlines()[-2].split("│")[1:4]] == ["job-0004", "0.4", "-"]
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central, name="host-1")
    assert code == 4
    refused = f"refuses the certificate {served.certificates['host-1'].certificate}: only operators may ask"
    assert refused in shown.err


@pytest.mark.parametrize("central", ["central", "h:", ":7443", ":", "h:99999", "h:0", "h:-1", "h:x"])
async def test_what_is_no_address_is_refused_before_anything_is_asked(served, capsys, monkeypatch, central):
    code, shown = await run_show(served, capsys, monkeypatch, "--central", central)
    assert (code, shown.err) == (
        3,
        f"error: --central must be host:port, the port from 1 to 65535 (value {central!r})\n",
    )


async def test_the_command_line_says_why_central_does_not_answer(served, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(antagonists, "_DEADLINE_S", 0.5)
    central = f"127.0.0.1:{served.port}"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        frozen = f"127.0.0.1:{mute.getsockname()[1]}"
        code, shown = await run_show(served, capsys, monkeypatch, "--central", frozen)
    assert code == 4
    assert shown.err.startswith(
        f"error: central at {frozen} has not answered ListCoefficients for 0.5 s; is it overloaded, stopped"
    )
    code, shown = await run_show(served, capsys, monkeypatch, "--central", frozen)
    assert code == 4
    assert f"cannot connect to central at {frozen}: " in shown.err
    pki.make_ca(tmp_path / "other")
    foreign = pki.issue(tmp_path / "other", "operator")
    mine = ["--central", central, "--cert", foreign.certificate, "--key", foreign.key]
    code, shown = await run_show(served, capsys, monkeypatch, *mine)
    assert code == 5
    assert f"--cert: {foreign.certificate} is not signed by the CA in --ca" in shown.err
    code, shown = await run_show(served, capsys, monkeypatch, *mine, "--ca", foreign.ca)
    assert code == 5
    assert f"the certificate of central at {central} is not of the CA in {foreign.ca}; is it of" in shown.err
    assert "SSL" not in shown.err


@pytest.mark.parametrize(("is_tls", "how"), [(False, "without TLS"), (True, "by TLS but not HTTP/2")])
async def test_the_command_line_names_centrals_http_port(served, capsys, monkeypatch, is_tls, how):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served.certificates["central"].certificate, served.certificates["central"].key)

    async def answer(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context if is_tls else None) as server:
        central = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        code, shown = await run_show(served, capsys, monkeypatch, "--central", central)
    assert code == 4
    assert shown.err == (
        f"error: central at {central} answers {how}, so it is not a gRPC port; take the port of central.listen, not of "
        "central.http_listen; see --central\n"
    )


async def test_a_name_that_central_does_not_know_is_refused(served, capsys, monkeypatch):
    publish(served.builder, 2)
    served.journal.note_host(HostRecord("node1", jobs=("web",)))
    served.registry.vm_names.note([("h", "uuid-1", "vm-1")])
    row = EventRow("node1", 9, 9, "uuid-2", "vm-2", 0, 0, agent_pb2.VmEvent(vm="uuid-2").SerializeToString())
    done = asyncio.get_running_loop().create_future()
    served.journal.submit(Submission("node1", "P", "s", 1, 9, b"", 0, 0, {}, None, done.set_result, "", (row,)))
    await done
    trigger = agent_pb2.Trigger(
        unix_ns=10**18,
        victims=[agent_pb2.TriggerVictim(vm="uuid-3", name="vm-3", job="hurt")],
        suspects=[agent_pb2.TriggerSuspect(vm="uuid-4", name="vm-4", job="loud", score=1.0)],
    )
    reports = [TriggerRow("gone", "s", 1, 0, "gone", 10**18, trigger.SerializeToString())]
    served.incidents.take(reports, gap_ns=10**9, oldest_unix_ns=0)
    known = ["--central", f"127.0.0.1:{served.port}", "--tls", str(Path(served.certificates["operator"].ca).parent)]

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whitepanda", *words, *known])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0), *capsys.readouterr()

    unknown = f"error: central at 127.0.0.1:{served.port}: no"
    jobs = "no host runs it, no version has it, no incident names it"
    for words, problem in (
        (("--host", "nosuch"), "host 'nosuch' ever connected to this central"),
        (("--host", "node2"), "host 'node2' ever connected to this central; did you mean node1?"),
        (("--suspect-job", "nosuch"), f"job 'nosuch' is known here: {jobs}"),
        (("--victim-job", "wbe"), f"job 'wbe' is known here: {jobs}; did you mean web?"),
        (
            ("--vm", "nosuch"),
            "VM 'nosuch' is known here: none of that UUID or name sends windows, or is in an incident or event",
        ),
    ):
        found = await asyncio.to_thread(run, "incidents", "list", *words)
        assert found == (3, "", f"{unknown} {problem}\n")
    found = await asyncio.to_thread(run, "antagonists", "show", "--job", "nosuch")
    assert found == (3, "", f"{unknown} job 'nosuch' is known here: {jobs}\n")
    # Known, and nothing to tell of it: that is not an error.
    for words in (
        ("--host", "node1"),
        ("--host", "gone", "--hours", "1"),
        ("--suspect-job", "web"),
        ("--suspect-job", "job-0001"),
        ("--suspect-job", "hurt"),
        ("--victim-job", "loud"),
        *(("--vm", name, "--hours", "1") for name in ("uuid-1", "vm-1", "uuid-2", "vm-2", "uuid-3", "vm-4")),
    ):
        assert await asyncio.to_thread(run, "incidents", "list", *words) == (0, "no incidents\n", ""), words
    found = await asyncio.to_thread(run, "antagonists", "show", "--job", "web")
    assert found == (0, "version 1 has no coefficient of job web\n", "")


async def test_the_command_line_takes_the_folder_of_pki(served, capsys, monkeypatch):
    folder = Path(served.certificates["operator"].ca).parent
    command = ["whitepanda", "antagonists", "show", "--central", f"127.0.0.1:{served.port}"]
    for more, code, says in (
        (["--tls", str(folder)], 0, "central has built no coefficients yet"),
        (["--tls", str(folder), "--name", "host-1"], 4, "only operators may ask"),
        (["--tls", str(folder), "--name", "nobody"], 5, f"--tls: cannot read {folder / 'nobody.crt'}: "),
        ([], 5, "no TLS files are named: give --tls DIR"),
    ):
        monkeypatch.setattr(sys, "argv", [*command, *more])

        def run() -> int:
            with pytest.raises(SystemExit) as caught:
                cli.main()
            return int(caught.value.code or 0)

        assert await asyncio.to_thread(run) == code
        shown = capsys.readouterr()
        assert says in shown.out + shown.err


async def test_events_come_page_by_page_the_last_first(served):
    rows = tuple(
        EventRow(
            "h1", 9, number, f"v{number}", "n", agent_pb2.BEHAVIOUR_VICTIM, agent_pb2.BEHAVIOUR_STEADY,
            agent_pb2.VmEvent(vm=f"v{number}", reason="why").SerializeToString(),
        )
        for number in range(1, 6)
    )  # fmt: skip
    done = asyncio.get_running_loop().create_future()
    served.journal.submit(Submission("h1", "P", "s", 1, 9, b"", 0, 0, {}, None, done.set_result, "", rows))
    await done
    seen, token = [], ""
    while True:
        request = fleet_pb2.ListEventsRequest(page_size=2, page_token=token, host="h1")
        answer = await served.ask("ListEvents", request)
        seen.append([one.event.vm for one in answer.events])
        token = answer.next_page_token
        if not token:
            break
    assert seen == [["v5", "v4"], ["v3", "v2"], ["v1"]]
    (one,) = (await served.ask("ListEvents", fleet_pb2.ListEventsRequest(vm="v3"))).events
    assert (one.host, one.received_unix_ns, one.event.reason) == ("h1", 9, "why")
    facts = [agent_pb2.VmFacts(unix_ns=1, vm=f"v{number}", project="shop") for number in (2, 4)]
    FactStore(served.incidents).take([FactRow("h1", one.vm, 1, one.SerializeToString()) for one in facts])
    shops = await served.ask("ListEvents", fleet_pb2.ListEventsRequest(project="shop"))
    assert [one.event.vm for one in shops.events] == ["v4", "v2"]
    early = fleet_pb2.ListEventsRequest(project="shop", until_unix_ns=4)
    assert [one.event.vm for one in (await served.ask("ListEvents", early)).events] == ["v2"]
    assert (await served.refusal("ListEvents", fleet_pb2.ListEventsRequest(project="shoes")))[0] == "NOT_FOUND"
    request = fleet_pb2.ListEventsRequest(page_token=answer.next_page_token or "x", host="other")
    code, details = await served.refusal("ListEvents", request)
    assert code == "INVALID_ARGUMENT"
    assert "begin again without it" in details
    status = await served.ask("GetFleetStatus", fleet_pb2.GetFleetStatusRequest())
    assert status.accepted_events == 5


UUIDS = [f"57500000-0000-4000-8000-00000000000{n}" for n in range(4)]


def _take_facts(served):
    """A VM that grows and moves; two VMs of a name; hosts."""
    s = 10**9

    def vm(at_s, host="h1", uuid=UUIDS[0], **facts):
        message = agent_pb2.VmFacts(unix_ns=at_s * s, vm=uuid, **({"name": "shop-1", "project": "red"} | facts))
        return FactRow(host, uuid, at_s * s, message.SerializeToString())

    def node(host, cpus):
        message = agent_pb2.HostFacts(
            unix_ns=s,
            cpus=cpus,
            memory_bytes=64 << 30,
            caches=[agent_pb2.CacheDomain(cpus=cpus, size_bytes=32 << 20)],
            network_cards=[agent_pb2.NetworkCard(name="eth0", bits_per_s=25 * 10**9), agent_pb2.NetworkCard(name="b")],
            disks=[agent_pb2.DiskFacts(name="sda", size_bytes=2 * 10**12, rotational=False)],
            labels={"rack": "r1"},
        )
        return FactRow(host, "", s, message.SerializeToString())

    sizes = {"vcpus": 2, "memory_bytes": 4 << 30, "cpu_quota_cores": 1.5, "limits": ["limit-cache 4 ways"]}
    rows = [vm(100, **sizes), vm(200, **sizes | {"vcpus": 4}), vm(300, gone=True), vm(290, "h2", vcpus=4)]
    rows += [vm(10, uuid=uuid, name="twin", project=uuid[-1]) for uuid in UUIDS[1:3]]
    FactStore(served.incidents).take([*rows, node("h1", 8), node("h2", 16)])


async def test_facts_at_a_time(served):
    _take_facts(served)

    def ask(at_s=0, **what):
        return served.ask("GetFacts", fleet_pb2.GetFactsRequest(at_unix_ns=at_s * 10**9, **what))

    then = await ask(150, vm=UUIDS[0])
    assert (then.vm.host, then.vm.facts.vcpus, then.vm.facts.unix_ns, then.vm.until_unix_ns) == (
        "h1", 2, 100 * 10**9, 200 * 10**9,
    )  # fmt: skip
    assert not then.vm.facts.numa_nodes
    assert [(one.host, one.facts.vcpus) for one in then.versions] == [("h2", 4), ("h1", 4), ("h1", 2)]
    assert then.host.facts.cpus == 8
    for what in (UUIDS[0], "SHOP-1"):
        moved = await ask(2**33, vm=what) if what == UUIDS[0] else await ask(295, vm=what)
        assert (moved.vm.host or "gone", len(moved.versions)) == ("gone" if what == UUIDS[0] else "h2", 3)
    assert (await ask(295, host="h2")).host.facts.cpus == 16
    late = fleet_pb2.GetFactsRequest(vm=UUIDS[0], at_unix_ns=2**64 - 1)
    assert (await served.refusal("GetFacts", late))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ({}, "INVALID_ARGUMENT", "vm must be given, or host, and not both"),
        ({"vm": "a", "host": "b"}, "INVALID_ARGUMENT", "vm must be given, or host, and not both"),
        ({"vm": "nobody"}, "NOT_FOUND", "no facts are known of 'nobody' at that time"),
        ({"host": "%"}, "NOT_FOUND", "no facts are known of '%' at that time"),
        ({"vm": "twin"}, "INVALID_ARGUMENT", f"2 VMs are named 'twin': {UUIDS[1]}, {UUIDS[2]}; give the UUID"),
        ({"vm": "x" * 5000}, "INVALID_ARGUMENT", "vm must be at most "),
    ],
)
async def test_facts_of_nobody(served, what, code, says):
    _take_facts(served)
    found, details = await served.refusal("GetFacts", fleet_pb2.GetFactsRequest(**what))
    assert (found, details[: len(says)]) == (code, says)


async def test_facts_of_a_project_in_pages(served):
    _take_facts(served)
    seen, token = [], ""
    while True:
        request = fleet_pb2.ListFactsRequest(page_size=2, page_token=token, at_unix_ns=295 * 10**9)
        answer = await served.ask("ListFacts", request)
        seen.append([(one.host, one.facts.vm) for one in answer.vms])
        token = answer.next_page_token
        if not token:
            break
    assert seen == [[("h1", UUIDS[0]), ("h1", UUIDS[1])], [("h1", UUIDS[2]), ("h2", UUIDS[0])]]
    red = await served.ask("ListFacts", fleet_pb2.ListFactsRequest(project="red", host="h2", at_unix_ns=295 * 10**9))
    assert [one.facts.name for one in red.vms] == ["shop-1"]
    assert (await served.refusal("ListFacts", fleet_pb2.ListFactsRequest(page_size=1001)))[0] == "INVALID_ARGUMENT"


async def test_the_command_line_shows_facts(served, capsys, monkeypatch):
    _take_facts(served)
    files = served.certificates["operator"]
    tls = ["--ca", files.ca, "--cert", files.certificate, "--key", files.key]

    async def run(*words):
        line = ["whitepanda", "fleet", "facts", *words, "--central", f"127.0.0.1:{served.port}", *map(str, tls)]
        monkeypatch.setattr(sys, "argv", line)

        def call():
            with pytest.raises(SystemExit) as ended:
                cli.main()
            return ended.value.code

        return await asyncio.to_thread(call), capsys.readouterr()

    code, shown = await run("shop-1", "--at", "1970-01-01T00:02:30Z")
    assert code == 0, shown.err
    assert "VM shop-1 on h1, from 1970-01-01 00:01:40 until 1970-01-01 00:03:20" in shown.out
    for text in (
        "1.5 cores",
        "limit-cache 4 ways",
        "4 GiB",
        "eth0 25 Gbit/s, b (no link)",
        "sda 2,000 GB SSD",
        "rack=r1",
        "32 MiB of 8 CPUs",
    ):
        assert text in shown.out
    code, shown = await run("h2", "--at", "1970-01-01T00:02:30Z", "--json")
    assert json.loads(shown.out)["host"]["facts"]["cpus"] == 16
    for words, code, says in (
        (["nobody"], 3, "no facts are known of 'nobody'"),
        (["h2", "--at", "yesterday"], 3, "--at: invalid time yesterday"),
        (["h2", "--at", "1960-01-01"], 3, "--at: must be after 1970"),
    ):
        ended, shown = await run(*words)
        assert ended == code, words
        assert says in shown.err
