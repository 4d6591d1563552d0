"""/metrics, over real HTTP where that matters."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import http.client
import math
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from agent.analysis.verdict import Degradation
from agent.analysis.verdict import Verdict as Suffering
from agent.antagonists.host_analysis import CpiVerdict
from agent.api import metrics_server
from agent.api.metrics_server import MetricsServer
from agent.api.prometheus_text import family_name, render
from agent.api.state import Snapshot, VmSnapshot
from agent.config import AgentConfig, AgentSection, MetricsSection, UplinkSection, load
from agent.daemon import Daemon
from agent.detection.decision_types import VERDICTS, SuspectView, VmDecision
from agent.display.words import VICTIM, word_of
from agent.sampling.metric_table import METRICS, TrafficTotals, VmRates
from agent.sampling.source_threads import SourcePlan
from agent.uplink.messages import behaviour_number
from central.pki import describe, issue, make_ca, renew
from collector.base import Reason, SourceSample
from tests.unit.agent.agent_fakes import FakeSource, S, identity, joined, vm_sample
from tests.unit.agent.canned_agents import source
from whitepanda.common.errors import ConfigError, TlsError, UnavailableError
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import host_pb2

RATES = VmRates(*(float(index) for index in range(len(VmRates._fields))))
TOTALS = TrafficTotals(*range(100, 100 + len(TrafficTotals._fields)))
SOURCES = (
    source("procfs", "available", age_ns=2 * S, duration_ns=S // 4, samples=100, failures=3),
    source("perf", "unavailable", "no PMU"),
    source("ovs", "off"),
)
NO_TLS = TlsFiles()
UNKNOWN = CpiVerdict("unknown", "")
UPLINK = {
    "state": "connected",
    "address": "central:1",
    "spooled_batches": 2,
    "spooled_bytes": 3,
    "acknowledged_batches": 4,
    "acknowledged_windows": 5,
    "dropped_batches": 6,
    "rejected_rows": 7,
}


CERTIFICATES = (("uplink.tls", 1.8e9), ("metrics.tls", 1.9e9))


def host_status(ticks=7, uplink=UPLINK, sources=SOURCES, **values: float) -> host_pb2.HostStatus:
    names = [m.name for m in METRICS if m.scope in {"host", "agent"}]
    given = {name: float(index) for index, name in enumerate(names)} | values
    metrics = [host_pb2.Metric(name=name, value=value) for name, value in given.items()]
    return host_pb2.HostStatus(
        host="host1",
        agent_version="1.2",
        platform="cpu",
        ticks=ticks,
        sources=sources,
        uplink=uplink,
        host_metrics=metrics,
    )


def vm_of(uuid="u1", name="db7", job="db", rates=RATES, now=None, *, state="running", **more) -> VmSnapshot:
    return VmSnapshot(replace(identity(uuid, name=name), state=state), job, rates, now, **more)


def snapshot(*vms: VmSnapshot, **values: float | None) -> Snapshot:
    return Snapshot(host_status(**values), vms or (vm_of(),), certificates=CERTIFICATES)


def page_of(snapshot: Snapshot) -> dict[str, list]:
    body, kind = render(snapshot)
    assert kind.startswith("text/plain; version=")
    return samples_of(body)


def samples_of(body: bytes) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


# -- names and values


@pytest.fixture(autouse=True)
def _no_client_is_left():
    """What the server notes of a client that broke off does not come in the middle of another test's output."""
    yield
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(30)


def test_every_metric_of_the_table_is_there_with_its_value():
    page = page_of(snapshot(vm_of("u1", "db7", "db", RATES, traffic=TOTALS)))
    assert set(page) == {family_name(metric) for metric in METRICS} | {"whitepanda_agent_info", "whitepanda_vm_info"}
    for index, metric in enumerate(m for m in METRICS if m.scope == "traffic"):
        assert page[family_name(metric)] == [({"vm": "u1", "name": "db7", "job": "db"}, 100 + index)]
    for index, metric in enumerate(m for m in METRICS if m.scope == "vm"):
        assert page[family_name(metric)] == [({"vm": "u1", "name": "db7", "job": "db"}, index)]
    for index, metric in enumerate(m for m in METRICS if m.scope in {"host", "agent"}):
        assert page[family_name(metric)] == [({}, index)]
    assert page["whitepanda_agent_info"] == [({"version": "1.2", "platform": "cpu", "host": "host1"}, 1)]
    ends = page["whitepanda_agent_certificate_expiry_timestamp_seconds"]
    assert ends == [({"certificate": "uplink.tls"}, 1.8e9), ({"certificate": "metrics.tls"}, 1.9e9)]


def test_golden_names():
    names = {m.name: family_name(m) for m in METRICS}
    assert names["cpi"] == "whitepanda_vm_cpi"
    assert names["network_receive_bytes_per_s"] == "whitepanda_vm_network_receive_bytes_per_second"
    assert names["disk_read_bytes_total"] == "whitepanda_vm_disk_read_bytes_total"
    assert names["host_cpu_user_ratio"] == "whitepanda_host_cpu_user_ratio"
    assert names["agent_missed_ticks_total"] == "whitepanda_agent_missed_ticks_total"
    assert names["source_duration_seconds"] == "whitepanda_source_duration_seconds"


def test_sources_are_labelled_and_those_that_are_off_are_left_out():
    page = page_of(snapshot())
    assert page["whitepanda_source_success"] == [({"source": "procfs"}, 1)]
    assert page["whitepanda_source_samples_total"] == [({"source": "procfs"}, 100), ({"source": "perf"}, 0)]
    assert page["whitepanda_source_failures_total"] == [({"source": "procfs"}, 3), ({"source": "perf"}, 0)]
    # What never sampled has neither an age nor a duration.
    assert page["whitepanda_source_age_seconds"] == [({"source": "procfs"}, 2)]
    assert page["whitepanda_source_duration_seconds"] == [({"source": "procfs"}, 0.25)]


def test_of_a_source_success_is_reported_once_it_worked():
    def reported(view):
        page = page_of(snapshot()._replace(host=host_status(sources=(view,))))
        return page.get("whitepanda_source_success")

    assert reported(source("ovs", "unavailable", "no OVSDB")) is None  # `auto`, and not on this host
    assert reported(source("ovs", "available")) == [({"source": "ovs"}, 1)]
    assert reported(source("ovs", "failed", failures=1)) == [({"source": "ovs"}, 0)]
    assert reported(source("ovs", "stuck")) == [({"source": "ovs"}, 0)]
    assert reported(source("ovs", "unavailable", samples=3)) == [({"source": "ovs"}, 0)]


def test_each_part_of_a_vm_says_its_source_and_age():
    vm = vm_of("u1", "db7", "db", RATES, joined(100))
    page = page_of(Snapshot(host_status(), (vm,), 102 * S + S // 2))
    whose = {"vm": "u1", "name": "db7", "job": "db"}
    assert page["whitepanda_vm_part_age_seconds"] == [
        ({**whose, "part": part, "source": source}, 2.5)
        for part, source in (("threads", "procfs"), ("perf", "perf"), ("disks", "libvirt"), ("interfaces", "libvirt"))
    ]


def test_whose_a_vm_is_has_one_series_for_joins():
    nova = replace(
        identity(name="db7"), facts={"nova:project": "shop", "nova:flavor": "m1\x1b.large"}, manager="libvirt"
    )
    whose = VmSnapshot(nova, "db", RATES, owner="team-a", latency_sensitive=True)
    bare = VmSnapshot(replace(identity("u2", name="b"), manager="qemu"), "b", RATES)
    page = page_of(snapshot(whose, bare))
    labels = {"vm": "u1", "name": "db7", "job": "db", "project": "shop", "flavor": r"m1\x1b.large"}
    labels |= {"owner": "team-a", "manager": "libvirt", "latency_sensitive": "true"}
    nobodys = {"vm": "u2", "name": "b", "job": "b", "project": "", "flavor": "", "owner": ""}
    nobodys |= {"manager": "qemu", "latency_sensitive": "false"}
    assert page["whitepanda_vm_info"] == [(labels, 1), (nobodys, 1)]


def test_verdicts_are_reported_where_they_are_known():
    """The word is that of the decision, whatever an analysis says by itself."""
    vms = [
        vm_of(word, "", "", RATES, verdict=CpiVerdict("normal", "", 1.7), decision=VmDecision(word, word, ""))
        for word in VERDICTS
    ]
    vms += [
        vm_of("starting", "", "", RATES, verdict=CpiVerdict("victim", "", 1.0)),
        vm_of("u", "", "", RATES, verdict=UNKNOWN),
    ]
    page = page_of(snapshot(*vms))
    reported = {labels["vm"]: value for labels, value in page["whitepanda_vm_victim"]}
    assert reported == {"victim": 1, "affected": 0, "inflicting": 0, "steady": 0}
    words = [(labels["vm"], labels["behaviour"]) for labels, value in page["whitepanda_vm_behaviour"] if value]
    assert words == [(word, word) for word in VERDICTS[1:]]
    assert len(page["whitepanda_vm_behaviour"]) == 16
    by_job = {labels["vm"]: value for labels, value in page["whitepanda_vm_degradation_ratio"]}
    assert by_job == {**dict.fromkeys(VERDICTS, 1.7), "starting": 1.0}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_victim_is_one_as_in_vms_and_top(verdict):
    vm = vm_of("u1", "a", "j", RATES, decision=VmDecision("u1", verdict, ""))
    samples = page_of(snapshot(vm)).get("whitepanda_vm_victim", [])
    # The very word that `vms` and `top` show.
    decision = host_pb2.VmDecision(verdict=behaviour_number(verdict))
    summary = host_pb2.VmSummary(state="running", decision=decision)
    assert (word_of(summary) is VICTIM) == ([value for _, value in samples] == [1])
    assert word_of(summary).text == verdict
    paused = page_of(snapshot(vm_of(state="paused", decision=vm.decision)))
    assert not {"whitepanda_vm_victim", "whitepanda_vm_behaviour", "whitepanda_vm_suspect"} & set(paused)


SCAN = SuspectView("s1", "scan\x1b1", "scan", 4.0, 0.5, 2.0, Reason.UNSPECIFIED, inflicts=True)
ODD = SuspectView("s2", "odd", "odd", 4.0, None, None, Reason.NO_COEFFICIENTS)


@pytest.mark.parametrize(
    ("verdict", "suspects", "named"),
    [
        ("victim", (SCAN, ODD), ["s1"]),
        ("victim", (ODD,), []),  # nothing speaks against it
        ("victim", (), []),
        ("affected", (SCAN,), []),
    ],
)
def test_the_first_suspect_of_a_victim_is_named(verdict, suspects, named):
    held = VmDecision("u1", verdict, "", suspects=suspects)
    page = page_of(snapshot(vm_of("u1", "a", "j", RATES, decision=held)))
    found = page.get("whitepanda_vm_suspect", [])
    assert [labels["suspect"] for labels, _ in found] == named
    for labels, value in found:
        assert (labels["vm"], labels["suspect_name"], labels["suspect_job"], value) == ("u1", r"scan\x1b1", "scan", 1)


def test_the_uplink_is_there_where_it_is_on():
    page = page_of(snapshot())
    reported = {name: page[f"whitepanda_uplink_{name}"][0][1] for name in UPLINK_NAMES}
    assert tuple(reported.values()) == (1, 2, 3, 4, 5, 6, 7)
    page = page_of(snapshot(uplink={"state": "off"}))
    assert not [name for name in page if name.startswith("whitepanda_uplink")]


UPLINK_NAMES = (
    "connected",
    "spooled_batches",
    "spooled_bytes",
    "acknowledged_batches_total",
    "acknowledged_windows_total",
    "dropped_batches_total",
    "rejected_rows_total",
)


def test_the_unknown_is_absent_and_reported_per_part():
    perf = [name for name in VmRates._fields if _metric(name).part == "perf"]
    disks = [name for name in VmRates._fields if _metric(name).part == "disks"]
    rates = RATES._replace(**dict.fromkeys(perf, Reason.NO_PMU), **{disks[0]: Reason.COUNTER_RESET})
    page = page_of(snapshot(vm_of("u1", "a", "j", rates), host_load_1=math.nan))
    assert page["whitepanda_vm_part_absent"] == [({"vm": "u1", "part": "perf", "reason": "no_pmu"}, 1)]
    assert page["whitepanda_vm_metric_absent"] == [({"vm": "u1", "metric": disks[0], "reason": "counter_reset"}, 1)]
    for name in (*perf, disks[0]):
        assert family_name(_metric(name)) not in page
    assert "whitepanda_host_load_1" not in page
    assert family_name(_metric(disks[1])) in page  # a part that is known in part is not absent


def _metric(name):
    return next(metric for metric in METRICS if metric.name == name)


def test_parts_that_are_absent_are_bounded_by_the_parts_not_by_the_metrics():
    rates = VmRates(*(Reason.VM_STARTING,) * len(VmRates._fields))
    page = page_of(snapshot(vm_of("u1", "a", "j", rates)))
    assert len(page["whitepanda_vm_part_absent"]) == 8
    assert {name for name in page if name.startswith("whitepanda_vm_")} == {
        "whitepanda_vm_info",
        "whitepanda_vm_part_absent",
    }


def test_hostile_labels_are_escaped_and_bounded():
    name = 'a"b\\c\nd{}#é' + "x" * 1000
    page = page_of(snapshot(vm_of("u1", name, "j\udcff", RATES)))
    ((labels, value),) = page["whitepanda_vm_cpi"]
    shown = name.replace("\n", r"\n")[:255] + "…"
    assert labels == {"vm": "u1", "name": shown, "job": r"j\xff"}
    assert value == VmRates._fields.index("cpi")


def test_the_page_passes_promtools_lint():
    """Its rules, from prometheus/client_golang/prometheus/testutil/promlint/validations."""
    abbreviations = ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
    not_base = ("milliseconds", "minutes", "hours", "kilobytes", "mebibytes", "bits", "percent", "celsius")
    body, _ = render(snapshot())
    families = list(parse(body.decode()))
    assert len(families) > 70
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert family.documentation.endswith((".", "reason", "1."))
        assert family.type in {"gauge", "counter"}
        assert name.endswith("_total") == (family.type == "counter")
        words = name.split("_")
        assert not set(words) & {*abbreviations, *not_base, "gauge", "counter", "histogram", "summary"}, name
        assert words[-1] not in {"bucket", "count", "sum"}


def test_the_tables_units_are_in_the_names():
    for metric in METRICS:
        name = family_name(metric).removesuffix("_total")
        suffix = {"s": "_seconds", "bytes": "_bytes", "bytes/s": "_bytes_per_second", "ratio": "_ratio"}
        assert name.endswith(suffix.get(metric.unit, "")), name


def test_openmetrics_for_who_asks_for_it():
    body, kind = render(snapshot(), "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    assert families["whitepanda_agent_ticks"].type == "counter"
    assert families["whitepanda_vm_cpi"].samples[0].labels["name"] == "db7"


# -- the server


@contextlib.asynccontextmanager
async def serving(take=snapshot, ticks=lambda: 7, tls=NO_TLS, tick_s=1.0, listen="127.0.0.1:0"):
    server = MetricsServer(MetricsSection(listen, tls), take, ticks, tick_s)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


def get(address, path="/metrics", context=None, **headers):
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    options = {} if context is None else {"context": context}
    connection = kind(address, timeout=60, **options)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


async def test_a_web_page_of_another_name_cannot_scrape_through_a_browser():
    async with serving() as address:
        port = address.rpartition(":")[2]
        for name in ("evil.example", f"evil.example:{port}", f"{socket.gethostname()}.evil.example", ""):
            status, _, body = await asyncio.to_thread(get, address, Host=name)
            assert (status, body.count(b"\n")) == (400, 1), name
            assert repr(name).encode() in body
        status, _, _ = await asyncio.to_thread(get, address, "/other", Host="evil.example")
        assert status == 400  # nor does it learn what else there is
        for name in (address, "127.0.0.1", f"localhost:{port}", f"[::1]:{port}", socket.gethostname()):
            status, _, _ = await asyncio.to_thread(get, address, Host=name)
            assert status == 200, name


async def test_a_host_is_named_once():
    async with serving() as address:
        host, _, port = address.rpartition(":")

        def ask(headers: str) -> bytes:
            with socket.create_connection((host, int(port)), 60) as stream:
                stream.sendall(f"GET /metrics HTTP/1.1\r\n{headers}Connection: close\r\n\r\n".encode())
                return stream.makefile("rb").readline()

        for headers in ("", "Host: localhost\r\nHost: evil.example\r\n"):
            assert b" 400 " in await asyncio.to_thread(ask, headers)
        assert b" 200 " in await asyncio.to_thread(ask, "Host: localhost\r\n")


async def test_a_scrape_over_http():
    async with serving() as address:
        status, headers, body = await asyncio.to_thread(get, address)
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert samples_of(body)["whitepanda_vm_cpi"][0][0]["name"] == "db7"
        _, headers, packed = await asyncio.to_thread(get, address, **{"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == body
        assert (await asyncio.to_thread(get, address, "/metrics?name=x"))[0] == 200
        assert (await asyncio.to_thread(get, address, "/other"))[0] == 404
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(get, address)


async def test_one_snapshot_per_tick_however_many_ask():
    taken, tick = [], [7]

    def take():
        assert threading.current_thread() is threading.main_thread()  # on the loop, as all of the state
        taken.append(tick[0])
        return Snapshot(host_status(ticks=tick[0]), ())

    async with serving(take, lambda: tick[0]) as address:
        await asyncio.gather(*(asyncio.to_thread(get, address) for _ in range(5)))
        assert taken == [7]
        tick[0] = 8
        await asyncio.to_thread(get, address)
        await asyncio.to_thread(get, address, **{"Accept-Encoding": "gzip"})
        assert taken == [7, 8]


async def test_without_ticks_a_page_grows_no_older_than_two_of_them():
    taken = []

    def take():
        taken.append(1)
        return snapshot()

    async with serving(take, tick_s=0.0) as address:
        await asyncio.to_thread(get, address)
        await asyncio.to_thread(get, address)
    assert len(taken) == 2


async def test_a_loop_that_hangs_costs_the_scrape_not_the_server(monkeypatch):
    monkeypatch.setattr(metrics_server, "_SNAPSHOT_WAIT_S", 0.05)
    answers = []

    async with serving() as address:

        def ask():
            answers.append(get(address))

        thread = threading.Thread(target=ask)
        thread.start()
        while not answers:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop hangs: that is the test
        thread.join()
        assert answers[0][0] == 503
        assert answers[0][2] == b"the agent's loop gave no answer in 0.05 s\n"
        assert (await asyncio.to_thread(get, address))[0] == 200


@contextlib.contextmanager
def connected(address, number):
    """So many clients that have sent a part of a request."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(number)]
        for client in clients:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        yield clients


@pytest.fixture
def patient(monkeypatch):
    """No client is cut off because it takes long; nothing is printed of those that are cut off."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 600.0)
    monkeypatch.setattr(metrics_server, "_REQUEST_S", 600.0)
    monkeypatch.setattr(metrics_server, "_CLIENT_WAIT_S", 600.0)
    monkeypatch.setattr(metrics_server._Server, "handle_error", lambda *_: None)


@pytest.mark.usefixtures("patient")
async def test_slow_clients_give_way_to_a_scrape():
    refused = []
    section = MetricsSection("127.0.0.1:0")
    server = MetricsServer(section, snapshot, lambda: 7, 1.0, lambda: refused.append(1))
    await server.start()
    try:
        with connected(server.address, 12):
            assert (await asyncio.to_thread(get, server.address))[0] == 200
            assert len(refused) >= 12 + 1 - metrics_server._MAX_CLIENTS
    finally:
        await server.stop()


@pytest.mark.usefixtures("patient")
async def test_clients_that_do_not_read_the_answer_give_way_to_a_scrape(monkeypatch):
    body = b"a 1\n" * 4_000_000  # more than the sockets hold
    monkeypatch.setattr(metrics_server, "render", lambda _snapshot, _accept: (body, "text/plain"))
    async with serving() as address:
        with connected(address, 12) as clients:
            for client in clients[-metrics_server._MAX_CLIENTS :]:
                client.send(b"\r\n")
                await asyncio.to_thread(client.recv, 15, socket.MSG_WAITALL)  # the answer has begun
            assert (await asyncio.to_thread(get, address))[2] == body


@pytest.mark.usefixtures("patient")
async def test_over_tls_slow_clients_give_way_to_a_scrape(pki):
    tls, client = pki
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(client.certificate, client.key)
    async with serving(tls=tls) as address:
        with connected(address, 12):  # it waits for their handshakes
            assert (await asyncio.to_thread(get, address, context=context))[0] == 200


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (ConnectionResetError(104, "reset"), {"error": "[Errno 104] reset"}),
        (ssl.SSLError(1, "no handshake"), {"error": "no handshake"}),
        (ValueError("a bug"), {"exc_info": True}),
    ],
)
def test_a_connection_that_breaks_off_costs_no_traceback(monkeypatch, error, noted):
    found = []
    monkeypatch.setattr(metrics_server, "_log", SimpleNamespace(debug=lambda _event, **keys: found.append(keys)))
    server = metrics_server._Server.__new__(metrics_server._Server)
    try:
        raise error
    except type(error):
        server.handle_error(None, ("127.0.0.1", 1))
    assert found == [{"client": "('127.0.0.1', 1)", **noted}]


async def test_clients_for_which_no_thread_can_be_started_are_refused_and_keep_nothing(monkeypatch):
    refused = []
    section = MetricsSection("127.0.0.1:0")
    server = MetricsServer(section, snapshot, lambda: 7, 1.0, lambda: refused.append(1))
    await server.start()

    def start(_server, _request, _client_address):
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(socketserver.ThreadingMixIn, "process_request", start)
            for _ in range(metrics_server._MAX_CLIENTS + 1):
                with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                    await asyncio.to_thread(get, server.address)
        assert server._server._waiting == {}
        assert len(refused) == metrics_server._MAX_CLIENTS + 1
        assert (await asyncio.to_thread(get, server.address))[0] == 200
        assert len(refused) == metrics_server._MAX_CLIENTS + 1  # none had to give way
    finally:
        await server.stop()


@pytest.mark.usefixtures("patient")
async def test_clients_that_are_being_answered_are_not_cut_off(monkeypatch):
    """While all are, a new one is turned away."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(_pages, _accept, *, compress):
        begun.release()
        assert go_on.wait(60)
        return b"a 1\n", "text/plain"

    monkeypatch.setattr(metrics_server._Pages, "get", slow)
    async with serving() as address:
        with concurrent.futures.ThreadPoolExecutor(metrics_server._MAX_CLIENTS) as pool:
            asked = [pool.submit(get, address) for _ in range(metrics_server._MAX_CLIENTS)]
            try:
                for _ in asked:
                    assert begun.acquire(timeout=60)
                with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                    get(address)
            finally:
                go_on.set()
            assert {answer.result()[0] for answer in asked} == {200}


async def test_who_drips_is_cut_off_and_counted(monkeypatch):
    monkeypatch.setattr(metrics_server, "_REQUEST_S", 0.5)
    refused = []
    section = MetricsSection("127.0.0.1:0")
    server = MetricsServer(section, snapshot, lambda: 7, 1.0, lambda: refused.append(1))
    await server.start()
    try:
        with connected(server.address, metrics_server._MAX_CLIENTS) as slow:

            def are_cut_off():
                for client in slow:
                    with contextlib.suppress(OSError):
                        client.send(b"G")
                return len(refused) == len(slow)

            await until(are_cut_off)
    finally:
        await server.stop()


async def test_who_drips_over_tls_is_cut_off(pki, monkeypatch):
    tls, client = pki
    monkeypatch.setattr(metrics_server, "_REQUEST_S", 1.0)
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(client.certificate, client.key)
    refused = []
    section = MetricsSection("127.0.0.1:0", tls)
    server = MetricsServer(section, snapshot, lambda: 7, 1.0, lambda: refused.append(1))
    await server.start()
    host, _, port = server.address.rpartition(":")

    def ask(stream):
        stream.send(b"GET /met")
        while stream.recv(100):
            pass

    def drip():  # on a busy machine it may be cut off at any step
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 10) as plain:
            ask(context.wrap_socket(plain, server_hostname="127.0.0.1"))
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 10) as plain:
            ask(plain)  # no handshake even

    try:
        await asyncio.to_thread(drip)
        await until(lambda: refused)
        monkeypatch.setattr(metrics_server, "_REQUEST_S", 60.0)  # a busy machine may need more than that second
        assert (await asyncio.to_thread(get, server.address, context=context))[0] == 200
        called = await asyncio.to_thread(get, server.address, context=context, Host="node1.example.net:9747")
        assert called[0] == 200  # the certificate has the names by which it is called
    finally:
        await server.stop()


async def test_an_address_in_use_is_reported():
    async with serving() as address:
        server = MetricsServer(MetricsSection(address), snapshot, lambda: 1, 1.0)
        message = f"^cannot listen at metrics.listen {address}: Address already in use; free that port"
        with pytest.raises(UnavailableError, match=message):
            await server.start()
        assert server.address == ""


async def test_ipv6_and_names(monkeypatch):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    async with serving(listen="localhost:0") as address:
        assert (await asyncio.to_thread(get, address))[0] == 200
    try:
        async with serving(listen="[::1]:0") as address:
            assert address.startswith("[::1]:")
            assert (await asyncio.to_thread(get, address))[0] == 200
    except UnavailableError:
        pass  # this host has no IPv6 address


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    make_ca(folder)
    server = issue(folder, "host1", server=True, addresses=["localhost", "127.0.0.1"])
    return server, issue(folder, "prometheus")


async def test_over_tls_clients_need_a_certificate(pki):
    tls, client = pki
    async with serving(tls=tls) as address:
        trusting = ssl.create_default_context(cafile=tls.ca)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            await asyncio.to_thread(get, address, context=trusting)
        trusting.load_cert_chain(client.certificate, client.key)
        assert (await asyncio.to_thread(get, address, context=trusting))[0] == 200
        # Who begins no handshake keeps nobody waiting.
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))):
            assert (await asyncio.to_thread(get, address, context=trusting))[0] == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            await asyncio.to_thread(get, address)


async def test_renewed_tls_files_are_taken_up_without_a_restart(pki, tmp_path, capsys):
    before, client = pki
    tls = TlsFiles(*(str(shutil.copy(file, tmp_path)) for file in (before.ca, before.certificate, before.key)))
    context = ssl.create_default_context(cafile=before.ca)
    context.load_cert_chain(client.certificate, client.key)

    def serial(address):
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as stream,
        ):
            return int(stream.getpeercert()["serialNumber"], 16)

    shutil.copy(before.ca.replace("ca.crt", "ca.key"), tmp_path)
    async with serving(tls=tls) as address:
        old = await asyncio.to_thread(serial, address)
        (tmp_path / "host1.crt").write_text("-----BEGIN nothing")
        assert await asyncio.to_thread(serial, address) == old, "what cannot work is not taken up"
        shutil.copy(before.certificate, tls.certificate)
        renew(tmp_path, "host1")
        new = await asyncio.to_thread(serial, address)
    assert new != old and f"{new:x}" == describe(tls.certificate).serial
    reported = capsys.readouterr()
    assert (reported.out + reported.err).count("the previous ones stay in use") == 1


async def test_tls_files_that_cannot_work_are_reported(pki, tmp_path):
    tls, _ = pki
    broken = TlsFiles(tls.ca, tls.certificate, str(tmp_path / "none"))
    with pytest.raises(TlsError, match=r"^metrics\.tls\.key: cannot read .*none: No such file"):
        await MetricsServer(MetricsSection("127.0.0.1:0", broken), snapshot, lambda: 1, 1.0).start()


# -- in the agent


@pytest.fixture
def config(tmp_path):
    section = AgentSection("host1", "cpu", str(tmp_path), str(tmp_path / "a.sock"), tick_s=0.05, window_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return AgentConfig(section, metrics=MetricsSection(f"127.0.0.1:{port}"))


def take() -> SourceSample:
    now_ns = time.monotonic_ns()
    vms = {"u1": vm_sample(now_ns / S)}
    return SourceSample("simulated", now_ns, time.time_ns(), vms, None, (identity(name="db7"),))


@contextlib.asynccontextmanager
async def running(config):
    daemon = Daemon(config, plans=[SourcePlan("simulated", "required", FakeSource("simulated", take))])
    task = asyncio.create_task(daemon.run())
    try:
        yield daemon
    finally:
        daemon.stop()
        await asyncio.wait_for(task, 10)


async def until(true):
    end = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < end, "did not come true"
        await asyncio.sleep(0.02)
    return found


async def scraped(config):
    with contextlib.suppress(OSError):
        status, _, body = await asyncio.to_thread(get, config.metrics.listen)
        if status == 200:
            return samples_of(body)
    return {}


async def test_a_running_agent_is_scraped(config):
    async with running(config) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 1)
        page = await scraped(config)
        assert page["whitepanda_vm_cpi"][0][1] == pytest.approx(1.6, rel=1e-3)
        assert page["whitepanda_agent_ticks_total"][0][1] >= 4
        assert page["whitepanda_agent_open_fds"][0][1] > 5
        assert page["whitepanda_agent_threads"][0][1] >= 2
        assert page["whitepanda_agent_refused_scrapes_total"] == [({}, 0)]
        parts = {labels["part"]: labels["source"] for labels, _ in page["whitepanda_vm_part_age_seconds"]}
        assert parts["threads"] == parts["disks"] == "simulated"
        assert page["whitepanda_agent_clock_steps_total"] == [({}, 0)]
        assert page["whitepanda_source_success"] == [({"source": "simulated"}, 1)]
        assert daemon.state.counters.sink_errors == 0
    assert await scraped(config) == {}


async def test_a_port_in_use_costs_the_metrics_not_the_agent(config, monkeypatch):
    monkeypatch.setattr("agent.failures._RETRY_MIN_S", 0.05)
    host, _, port = config.metrics.listen.rpartition(":")
    with socket.create_server((host, int(port)), reuse_port=False):
        async with running(config) as daemon:
            await until(lambda: daemon.state.counters.sink_errors >= 2)
            ticks = daemon.state.schedule.ticks
            await until(lambda: daemon.state.schedule.ticks > ticks + 3)


async def test_a_running_agent_reports_when_its_certificate_expires(config, tmp_path):
    make_ca(tmp_path / "pki")
    files = issue(tmp_path / "pki", "host1", days=20)
    uplink = UplinkSection(address="127.0.0.1:1", tls=files)
    config = AgentConfig(config.agent, metrics=config.metrics, uplink=uplink)
    name = "whitepanda_agent_certificate_expiry_timestamp_seconds"

    async def reported():
        await until(lambda: daemon._metrics is not None)
        return (await scraped(config))[name]

    async with running(config) as daemon:
        label = {"certificate": "uplink.tls"}
        assert await reported() == [(label, describe(files.certificate).not_after.timestamp())]
        renew(tmp_path / "pki", "host1", days=90)
        expected = describe(files.certificate).not_after.timestamp()
        end = time.monotonic() + 60
        while await reported() != [(label, expected)]:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


async def test_a_port_that_comes_free_is_taken(config, monkeypatch):
    monkeypatch.setattr("agent.failures._RETRY_MIN_S", 0.05)
    host, _, port = config.metrics.listen.rpartition(":")
    blocker = socket.create_server((host, int(port)))
    async with running(config) as daemon:
        await until(lambda: daemon.state.counters.sink_errors >= 1)
        blocker.close()
        await until(lambda: daemon._metrics is not None)
        assert "whitepanda_agent_ticks_total" in await scraped(config)


def test_off_it_is_not_even_imported():
    code = "import agent.daemon, sys; print([m for m in sys.modules if m.startswith(('prometheus', 'http.server'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- the configuration


def loaded(tmp_path, text):
    file = tmp_path / "agent.toml"
    file.write_text(f"[agent]\n[metrics]\n{text}\n")
    return load(file).metrics


@pytest.mark.parametrize("listen", ["", "127.0.0.1:9747", "127.8.9.1:1", "[::1]:9747", "localhost:9747"])
def test_loopback_needs_no_tls(tmp_path, listen):
    assert loaded(tmp_path, f"listen = '{listen}'").listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:9747", "[::]:9747", "10.0.0.1:9747", "node1.example:9747"])
def test_beyond_this_host_only_over_tls(tmp_path, listen):
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, f"listen = '{listen}'")
    assert str(error.value) == (
        f"{tmp_path}/agent.toml: metrics.listen is not this host's loopback and has no TLS (value '{listen}'); "
        'listen at "127.0.0.1:PORT", or set ca, certificate and key in [metrics.tls]'
    )
    tls = "[metrics.tls]\nca = 'a'\ncertificate = 'b'\nkey = 'c'"
    assert loaded(tmp_path, f"listen = '{listen}'\n{tls}").tls.key == "c"


def test_what_is_no_address_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"metrics\.listen must be host:port \(value '9747'\)"):
        loaded(tmp_path, "listen = '9747'")


def test_how_slow_those_are_that_suffer_or_why_that_is_not_known() -> None:
    reported = {
        "u1": ("victim", Degradation(1.4, 1.3, 1.6)),
        "u2": ("unknown", None),
        "u3": ("victim", Degradation(cannot_tell="no_model")),
        "u4": ("affected", Degradation(1.2, 0.9, math.nan, model="cpi")),
    }
    vms = [
        vm_of(
            uuid,
            uuid,
            "job",
            RATES,
            suffering=Suffering(
                "unknown" if verdict == "unknown" else "victim",
                "",
                5,
                baseline_ticks=3 if verdict == "unknown" else 60,
                baseline_ready=verdict != "unknown",
                degradation=Degradation(9.9, 9.8, 10.0),  # what an analysis says by itself is not shown
            ),
            decision=VmDecision(uuid, verdict, "", slow_down=slow_down),
        )
        for uuid, (verdict, slow_down) in reported.items()
    ]
    vms.append(vm_of("u5", "u5", "job", RATES))  # it is off, and nothing was decided yet
    page = page_of(snapshot(*vms))

    def values(name: str, *more: str) -> list:
        return [(labels["vm"], *(labels[key] for key in more), value) for labels, value in page[name]]

    assert values("whitepanda_vm_behaviour", "behaviour")[:4] == [
        ("u1", "steady", 0),
        ("u1", "inflicting", 0),
        ("u1", "affected", 0),
        ("u1", "victim", 1),
    ]
    assert {vm for vm, *_ in values("whitepanda_vm_behaviour")} == {"u1", "u3", "u4"}
    assert values("whitepanda_vm_slow_down_ratio") == [("u1", 1.4), ("u4", 1.2)]
    assert values("whitepanda_vm_slow_down_low_ratio") == [("u1", 1.3), ("u4", 0.9)]
    assert values("whitepanda_vm_slow_down_high_ratio") == [("u1", 1.6)]
    assert values("whitepanda_vm_slow_down_absent", "reason") == [("u3", "no_model", 1)]
    assert values("whitepanda_vm_baseline_ticks") == [("u1", 60), ("u2", 3), ("u3", 60), ("u4", 60)]
    assert values("whitepanda_vm_baseline_ready") == [("u1", 1), ("u2", 0), ("u3", 1), ("u4", 1)]


def test_the_two_ratios_are_distinguished_and_one_is_to_be_alerted_on():
    reported = VmDecision("u1", "victim", "", slow_down=Degradation(1.4, 1.3, 1.6))
    vm = vm_of("u1", "u1", "job", RATES, verdict=CpiVerdict("victim", "", 1.7), decision=reported)
    text = render(snapshot(vm))[0].decode()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert helps["whitepanda_vm_degradation_ratio"].endswith("of any VM, also one that suffers nothing.")
    assert helps["whitepanda_vm_slow_down_ratio"].endswith("alert on this one.")
