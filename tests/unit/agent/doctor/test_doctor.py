"""doctor on hosts made of folders, real sockets and a real TLS server: what is missing, and the remedy."""

import json
import os
import socket
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

import agent.doctor.checks
from agent.cli import doctor as command
from agent.config import AgentConfig, AgentSection, MetricsSection, ProcfsSection, Sources, UplinkSection
from agent.doctor.checks import examine
from agent.doctor.findings import Check
from central.pki import describe, issue, make_ca
from collector.base import Probe, Reason
from collector.registry import SourceSpec
from whitepanda.common import cli
from whitepanda.common.tls import TlsFiles

ALL_CAPS = "CapEff:\t000001ffffffffff\n"
NO_CAPS = "CapEff:\t0000000000000000\n"


@dataclass
class FakeSource:
    """A source that only probes."""

    answer: Probe
    name: str = "procfs"

    def probe(self):
        return self.answer


@dataclass
class Sandbox:
    """A host made of files."""

    root: Path
    config: AgentConfig
    held: list = field(default_factory=list)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def listen(self, path):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(file))
        server.listen()
        self.held.append(server)

    def turn_on(self, name, monkeypatch, **settings):
        """Switch a source on for the fixed checks; the source itself is not probed here."""
        section = msgspec.structs.replace(getattr(self.config.sources, name), mode="auto", **settings)
        sources = msgspec.structs.replace(self.config.sources, **{name: section})
        self.config = msgspec.structs.replace(self.config, sources=sources)
        rest = tuple(spec for spec in agent.doctor.checks.SOURCES if spec.name != name)
        monkeypatch.setattr(agent.doctor.checks, "SOURCES", rest)

    def checks(self, *, file=Path("agent.toml")):
        return {check.name: check for check in examine(self.config, file, self.root)}


@pytest.fixture
def host(tmp_path, monkeypatch):
    off = {name: msgspec.structs.replace(getattr(Sources(), name), mode="off") for name in Sources.__struct_fields__}
    config = AgentConfig(agent=AgentSection(state_dir=str(tmp_path / "state")), sources=Sources(**off))
    sandbox = Sandbox(tmp_path / "root", config)
    sandbox.write("proc/self/status", ALL_CAPS)
    sandbox.write("proc/sys/kernel/perf_event_paranoid", "2\n")
    monkeypatch.setattr(agent.doctor.checks, "_DEADLINE_S", 2.0)
    yield sandbox
    for server in sandbox.held:
        server.close()


def test_a_whole_host(host, monkeypatch):
    for name in ("libvirt", "resctrl", "ovs"):
        host.turn_on(name, monkeypatch)
    host.write("sys/bus/event_source/devices/cpu/type", "4\n")
    host.write("dev/kvm", "")
    host.listen("run/libvirt/virtqemud-sock-ro")
    host.listen("run/openvswitch/db.sock")
    host.write("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n\text4\n")
    host.write("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n")
    host.write("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n")
    host.write("sys/fs/resctrl/info/L3_MON/num_rmids", "208\n")
    checks = host.checks()
    states = {name: check.state for name, check in checks.items()}
    assert states == {
        "host": "info",
        "configuration": "info",
        "source perf": "off",
        "source procfs": "off",
        "source cgroup": "off",
        "source pqos": "off",
        "source qemu": "off",
        "source simulated": "off",
        "perf_event_paranoid": "ok",
        "PMU": "ok",
        "KVM": "ok",
        "libvirt socket": "ok",
        "resctrl": "info",
        "Open vSwitch": "info",
        "state directory": "ok",
        "central": "off",
    }
    assert checks["PMU"].detail == "the CPU's counters are there: cpu"
    assert checks["resctrl"].detail == "mounted: llc_occupancy, mbm_total_bytes; 208 monitoring ids"
    assert checks["Open vSwitch"].detail.startswith("answers at ")
    assert checks["state directory"].detail.endswith("MiB free, made at start")


def test_what_is_off_is_off(host):
    host.listen("run/openvswitch/db.sock")
    checks = host.checks()
    assert {checks[name].state for name in ("libvirt socket", "resctrl", "Open vSwitch")} == {"off"}
    assert checks["libvirt socket"].detail == "sources.libvirt.mode is off"


def test_open_vswitch_is_looked_for_where_its_database_is(host, monkeypatch):
    host.listen("run/openvswitch/db.sock")
    host.turn_on("ovs", monkeypatch, database="unix:/srv/ovs/db.sock")
    assert "srv/ovs/db.sock: No such file or directory" in host.checks()["Open vSwitch"].detail
    host.listen("srv/ovs/db.sock")
    assert f"answers at {host.root}/srv/ovs/db.sock;" in host.checks()["Open vSwitch"].detail
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp:127.0.0.1:{server.getsockname()[1]}"
        host.turn_on("ovs", monkeypatch, database=address)
        assert f"answers at {address};" in host.checks()["Open vSwitch"].detail
    assert f"not here ({address}: Connection refused)" in host.checks()["Open vSwitch"].detail


def test_libvirt_is_looked_for_where_its_address_says(host, monkeypatch):
    host.listen("run/libvirt/libvirt-sock-ro")
    host.turn_on("libvirt", monkeypatch, uri="qemu:///system?socket=/srv/libvirt-sock-ro")
    check = host.checks()["libvirt socket"]
    assert (check.state, check.reason) == ("missing", Reason.NOT_PRESENT)
    assert check.detail.startswith(f"{host.root}/srv/libvirt-sock-ro: No such file or directory; start libvirtd")
    host.listen("srv/libvirt-sock-ro")
    assert host.checks()["libvirt socket"].detail == f"a daemon answers at {host.root}/srv/libvirt-sock-ro"
    host.turn_on("libvirt", monkeypatch, uri="qemu:///session")
    check = host.checks()["libvirt socket"]
    assert (check.state, check.detail) == ("info", "whether qemu:///session answers: see source libvirt")


def test_resctrl_is_looked_for_where_it_is_to_be_mounted(host, monkeypatch):
    host.turn_on("resctrl", monkeypatch, root="/srv/resctrl")
    host.write("proc/filesystems", "nodev\tresctrl\n")
    assert host.checks()["resctrl"].detail == "there, not mounted (mount -t resctrl resctrl /srv/resctrl)"
    host.write("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n")
    check = host.checks()["resctrl"]
    assert (check.state, check.reason) == ("missing", Reason.NOT_PRESENT)
    assert check.detail == "mounted at /sys/fs/resctrl, not at /srv/resctrl; set sources.resctrl.root"
    host.write("proc/mounts", "resctrl /srv/resctrl resctrl rw 0 0\n")
    host.write("srv/resctrl/info/L3_MON/mon_features", "llc_occupancy\n")
    assert host.checks()["resctrl"].detail == "mounted: llc_occupancy; ? monitoring ids"


def test_a_bare_host_has_a_remedy_for_everything(host, monkeypatch):
    for name in ("libvirt", "resctrl", "ovs"):
        host.turn_on(name, monkeypatch)
    host.write("proc/self/status", NO_CAPS)
    host.write("proc/filesystems", "nodev\tresctrl\n")
    checks = host.checks(file=None)
    assert checks["configuration"].detail == "none, these are the defaults"
    assert (checks["perf_event_paranoid"].state, checks["perf_event_paranoid"].reason) == ("missing", Reason.PARANOID)
    assert "run as root or by the unit" in checks["perf_event_paranoid"].detail
    assert (checks["PMU"].state, checks["PMU"].reason) == ("missing", Reason.NO_PMU)
    assert "-cpu host,pmu=on" in checks["PMU"].detail
    assert "virtualisation is off in the firmware" in checks["KVM"].detail
    assert "libvirt-sock-ro: No such file or directory" in checks["libvirt socket"].detail
    assert checks["resctrl"].detail.startswith("there, not mounted (mount -t resctrl")
    host.write("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n")
    assert "monitors neither cache nor bandwidth" in host.checks(file=None)["resctrl"].detail
    assert not any(check.required for check in checks.values())


@pytest.mark.parametrize(
    ("paranoid", "caps", "state"),
    [
        ("-1", NO_CAPS, "ok"),
        ("4", ALL_CAPS, "ok"),
        ("0", NO_CAPS, "missing"),
        ("2", "CapEff:\t0000004000000000\n", "ok"),
    ],
)
def test_perf_wants_cap_perfmon_or_an_open_kernel(host, paranoid, caps, state):
    host.write("proc/self/status", caps)
    host.write("proc/sys/kernel/perf_event_paranoid", paranoid)
    assert host.checks()["perf_event_paranoid"].state == state


def test_a_kernel_without_perf(host):
    (host.root / "proc/sys/kernel/perf_event_paranoid").unlink()
    assert host.checks()["perf_event_paranoid"].reason is Reason.NO_PMU


def test_a_hybrid_or_arm_cpu_has_a_pmu(host):
    for name in ("cpu_core", "cpu_atom", "armv8_pmuv3_0", "msr"):
        host.write(f"sys/bus/event_source/devices/{name}/type", "4\n")
    assert host.checks()["PMU"].detail == "the CPU's counters are there: armv8_pmuv3_0, cpu_atom, cpu_core"


def with_source(host, monkeypatch, mode, factory):
    monkeypatch.setattr(agent.doctor.checks, "SOURCES", (SourceSpec("procfs", factory, "guest time"),))
    sources = msgspec.structs.replace(host.config.sources, procfs=ProcfsSection(mode=mode))
    host.config = msgspec.structs.replace(host.config, sources=sources)
    return host.checks()["source procfs"]


def test_sources_speak_for_themselves(host, monkeypatch):
    good = with_source(host, monkeypatch, "auto", lambda *_: FakeSource(Probe(available=True, detail="")))
    assert good == Check("source procfs", "ok", "guest time")
    answer = Probe(available=False, detail="no /proc: mount it", reason=Reason.NOT_PRESENT)
    bad = with_source(host, monkeypatch, "required", lambda *_: FakeSource(answer))
    assert bad == Check("source procfs", "missing", "no /proc: mount it", required=True, reason=Reason.NOT_PRESENT)


def test_a_source_that_fails_hides_nobody_elses_finding(host, monkeypatch):
    def broken(*_):
        raise ImportError("No module named 'libvirt'")

    found = with_source(host, monkeypatch, "auto", broken)
    assert (found.state, found.required, found.reason) == ("missing", False, Reason.SOURCE_FAILED)
    assert found.detail == "failed: ImportError: No module named 'libvirt'"
    assert "central" in host.checks()


def test_a_state_directory_that_cannot_be_written_is_required(host, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may always
    check = host.checks()["state directory"]
    assert (check.state, check.required) == ("missing", True)
    assert f"{tmp_path} may not be written" in check.detail
    assert not host.checks(file=None)["state directory"].required


def test_a_file_in_the_place_of_the_state_directory(host, tmp_path):
    (tmp_path / "state").write_text("")
    assert host.checks()["state directory"].detail == f"{tmp_path / 'state'} is not a folder; set agent.state_dir"


# --- central ---


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    other = tmp_path_factory.mktemp("other")
    make_ca(folder)
    make_ca(other)
    return {
        "central": issue(folder, "central", server=True, addresses=["localhost"]),
        "node1": issue(folder, "node1"),
        "stranger": issue(other, "node1"),
    }


@contextmanager
def tls_server(files, greeting=b"\0\0\0\4", protocols=("h2",)):
    """What central is towards a handshake: both sides present a certificate of the CA, then the server speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(list(protocols))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            try:
                plain, _ = server.accept()
                with plain, context.wrap_socket(plain, server_side=True) as stream:
                    stream.sendall(greeting)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(5)


def central_of(host, address, tls, server_name="localhost"):
    uplink = UplinkSection(address=address, server_name=server_name, tls=tls)
    host.config = msgspec.structs.replace(host.config, uplink=uplink)
    return host.checks()


def test_central_answers(host, pki):
    with tls_server(pki["central"]) as port:
        checks = central_of(host, f"127.0.0.1:{port}", pki["node1"])
    assert checks["TLS files"].state == "ok"
    assert checks["central"].state == "ok"
    assert checks["central"].detail == f"127.0.0.1:{port} answers, TLSv1.3, both certificates accepted"


def test_centrals_http_port_is_named(host, pki):
    with tls_server(pki["central"], protocols=("http/1.1",)) as port:
        check = central_of(host, f"127.0.0.1:{port}", pki["node1"])["central"]
    assert (check.state, "by TLS but not HTTP/2, so it is not a gRPC port" in check.detail) == ("missing", True)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer():
            client, _ = plain.accept()
            with client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.recv(1 << 16)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = plain.getsockname()[1]
        check = central_of(host, f"127.0.0.1:{port}", pki["node1"])["central"]
        thread.join(5)
    assert check.detail == (
        f"127.0.0.1:{port} answers without TLS, so it is not a gRPC port; take the port of central.listen, "
        "not of central.http_listen; see uplink.address"
    )


def test_central_with_another_name(host, pki):
    with tls_server(pki["central"]) as port:
        check = central_of(host, f"127.0.0.1:{port}", pki["node1"], "central.example.net")["central"]
    assert (check.state, check.required) == ("missing", False)
    assert "its certificate does not pass: Hostname mismatch" in check.detail
    assert "see uplink.tls.ca and uplink.server_name" in check.detail


def test_central_that_does_not_trust_us(host, pki):
    """With TLS 1.3 the refusal comes after the handshake: who does not wait for it reports a false success."""
    files = TlsFiles(ca=pki["node1"].ca, certificate=pki["stranger"].certificate, key=pki["stranger"].key)
    with tls_server(pki["central"]) as port:
        checks = central_of(host, f"127.0.0.1:{port}", files)
    assert checks["central"].state == "missing"
    assert checks["central"].detail.endswith("does central trust the CA of uplink.tls.certificate?")
    ours = checks["TLS files"]
    assert (ours.state, ours.required) == ("missing", False)
    assert ours.detail.startswith(
        f"uplink.tls.certificate: {files.certificate} is not signed by the CA in uplink.tls.ca ({files.ca})"
    )


def test_a_central_that_takes_our_certificate_of_another_ca(host, pki):
    """Two CAs, one for each side, are nothing wrong as long as each side knows the other's."""
    stranger, central = pki["stranger"], pki["central"]
    files = TlsFiles(ca=pki["node1"].ca, certificate=stranger.certificate, key=stranger.key)
    server = TlsFiles(ca=stranger.ca, certificate=central.certificate, key=central.key)
    with tls_server(server) as port:
        checks = central_of(host, f"127.0.0.1:{port}", files)
    assert checks["central"].state == "ok"
    assert checks["TLS files"].state == "ok"
    assert checks["TLS files"].detail.startswith("central accepts them, but uplink.tls.certificate: ")


def test_a_central_that_hangs_up_is_none(host, pki):
    with tls_server(pki["central"], greeting=b"") as port:
        check = central_of(host, f"127.0.0.1:{port}", pki["node1"])["central"]
    assert check.detail == f"127.0.0.1:{port} closed the connection: is it central?"


def test_no_central_there(host, pki):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check = central_of(host, f"127.0.0.1:{port}", pki["node1"])["central"]
    assert (check.state, check.required) == ("missing", False)
    assert check.detail.startswith(f"127.0.0.1:{port}: Connection refused; the agent spools until it answers")
    check = central_of(host, "central.invalid:7443", pki["node1"])["central"]
    assert check.state == "missing"
    assert check.detail.startswith("central.invalid:7443: ")


def test_a_central_that_never_answers_costs_no_more_than_the_deadline(host, pki, monkeypatch):
    monkeypatch.setattr(agent.doctor.checks, "_DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        check = central_of(host, f"127.0.0.1:{mute.getsockname()[1]}", pki["node1"])["central"]
    assert check.state == "missing"
    assert "timed out" in check.detail


def test_an_agent_with_tls_files_that_do_not_fit_starts_but_reaches_no_central(host, pki, tmp_path):
    node, central = pki["node1"], pki["central"]
    wrong = [
        (TlsFiles(), "uplink.tls.ca is not set; `whitepanda pki` makes certificates"),
        (central, "is a server's certificate, not for clients"),
        (
            TlsFiles(ca=str(tmp_path / "x"), certificate="c", key="k"),
            f"uplink.tls.ca: cannot read {tmp_path / 'x'}: No such file or directory",
        ),
        (TlsFiles(ca=node.key, certificate=node.certificate, key=node.key), "holds no usable certificate"),
        (TlsFiles(ca=node.ca, certificate=node.certificate, key=central.key), "cannot be used together"),
    ]
    for files, message in wrong:
        checks = central_of(host, "127.0.0.1:1", files)
        assert (checks["TLS files"].state, checks["TLS files"].required) == ("missing", False)
        assert checks["TLS files"].detail.endswith("; the agent starts and spools, but reaches no central")
        assert message in checks["TLS files"].detail
        assert "central" not in checks


# --- the command ---


@pytest.fixture
def run(monkeypatch):
    def _run(*checks, arguments=(), width=80):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.argv", ["whitepanda", "doctor"])
        monkeypatch.setattr(command, "examine", lambda *_: iter(checks))
        return CliRunner().invoke(cli.build(), ["doctor", *arguments])

    return _run


GOOD = Check("KVM", "ok", "/dev/kvm is there")
BAD = Check("PMU", "missing", "this kernel sees no CPU counters, so no CPI; give it a PMU", reason=Reason.NO_PMU)
WORSE = Check("state directory", "missing", "/x may not be written", required=True)


def test_findings_as_a_table_of_80_columns(run):
    result = run(GOOD, BAD)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "CHECK STATE   WHAT",
        "KVM   ok      /dev/kvm is there",
        "PMU   missing no_pmu: this kernel sees no CPU counters, so no CPI; give it a PMU",
    ]
    assert all(len(line) <= 60 for line in run(BAD, width=60).stdout.splitlines())


def test_exit_code_4_only_for_what_is_required(run):
    result = run(GOOD, BAD, WORSE)
    assert result.exception.exit_code == 4
    assert str(result.exception) == "required and missing: state directory; the agent would not start"
    assert "missing!" in result.stdout


def test_json(run):
    result = run(GOOD, BAD, arguments=["--json"])
    assert json.loads(result.stdout) == {
        "ok": True,
        "checks": [
            {"name": "KVM", "state": "ok", "required": False, "reason": None, "detail": "/dev/kvm is there"},
            {"name": "PMU", "state": "missing", "required": False, "reason": "no_pmu", "detail": BAD.detail},
        ],
    }
    assert json.loads(run(WORSE, arguments=["--json"]).stdout)["ok"] is False


def test_the_real_thing_on_this_very_machine(monkeypatch, tmp_path):
    """Nothing played: whatever this machine is, doctor says something of every source and does not fail."""
    config = tmp_path / "agent.toml"
    config.write_text(f"[agent]\nstate_dir = '{tmp_path / 'state'}'\n")
    monkeypatch.setattr("sys.argv", ["whitepanda", "doctor"])
    result = CliRunner().invoke(cli.build(), ["doctor", "--json", "--config", str(config)])
    assert result.exit_code == 0
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["source procfs"]["state"] in {"ok", "missing"}
    assert checks["source simulated"]["state"] == "off"
    assert checks["configuration"]["detail"] == str(config)
    assert not (tmp_path / "state").exists()


def test_without_a_terminal_a_finding_is_a_line_that_ends_where_it_ends(run, monkeypatch):
    long = Check("libvirt socket", "missing", "no answer; " + "start it " * 30)
    run(GOOD)  # examines what the next one does
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(command, "examine", lambda *_: iter((GOOD, long)))
    assert CliRunner().invoke(cli.build(), ["doctor"]).stdout.splitlines() == [
        "CHECK          STATE   WHAT",
        "KVM            ok      /dev/kvm is there",
        f"libvirt socket missing {long.detail}",
    ]


@pytest.mark.parametrize(
    ("days", "state", "said"),
    [
        (400, "ok", "expires on"),
        (29, "info", "; renew it with `whitepanda pki renew` and put the new one in its place"),
        (6, "missing", "; renew it with `whitepanda pki renew` and put the new one in its place"),
        (-1, "missing", "; renew it with `whitepanda pki renew` and put the new one in its place"),
    ],
)
def test_certificates_that_expire(host, tmp_path, monkeypatch, days, state, said):
    make_ca(tmp_path)
    node, scraped = issue(tmp_path, "node1", days=500), issue(tmp_path, "m", days=500, server=True)
    end_s = min(describe(files.certificate).not_after.timestamp() for files in (node, scraped))
    monkeypatch.setattr(agent.doctor.checks, "time", SimpleNamespace(time=lambda: end_s - days * 86400 - 60))
    host.config = msgspec.structs.replace(host.config, metrics=MetricsSection("0.0.0.0:9747", scraped))
    checks = central_of(host, "127.0.0.1:1", node)
    for setting, files in (("uplink.tls", node), ("metrics.tls", scraped)):
        check = checks[f"certificate {setting}"]
        assert (check.state, check.required) == (state, False)
        assert check.detail.startswith(f"{files.certificate} {'expires' if days >= 0 else 'expired'} on 20")
        assert said in check.detail
        assert (f", in {days} days; " in check.detail) == (0 <= days < 30)


def test_no_certificate_no_finding(host):
    assert not any(name.startswith("certificate") for name in host.checks())
