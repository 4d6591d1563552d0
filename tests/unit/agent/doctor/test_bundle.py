"""The support bundle: what is in it, and above all what is not."""

import contextlib
import errno
import gzip
import json
import os
import re
import stat
import sys
import tarfile
import time
from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from agent.config import AgentConfig, AgentSection, JobRule, LibvirtSection, OvsSection, Sources, UplinkSection
from agent.doctor import bundle as module
from agent.doctor import pseudonyms as module_names
from agent.doctor.bundle import kernel_facts, make_bundle, versions, write_bundle
from agent.doctor.findings import Check
from agent.doctor.pseudonyms import Pseudonyms
from agent.recording import record
from agent.recording.playback import Playback
from agent.sampling.source_threads import SourcePlan
from collector.base import (
    DiskCounters,
    DiskDevice,
    InterfaceCounters,
    InterfaceDevice,
    PerfCounters,
    PerfGroup,
    RdtCounters,
    RdtDomain,
    Reason,
    SourceSample,
    VmIdentity,
)
from tests.unit.agent.agent_fakes import FakeSource, S, threads, vm_sample
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import host_pb2

UUID = "8d8b5f4e-13a5-4c5e-9d3c-1b2a3c4d5e6f"
PROJECT = "5f1c0d9be0a94f7f8a7b6c5d4e3f2a1b"
MAC = "fa:16:3e:ab:cd:ef"
PORT = "c0ffee00-1111-4222-8333-444455556666"
TAP = "tapc0ffee00-11"
KEY = "MC4CAQAwBQYDK2VwBCIEIL7vVeryPrivateIndeed"
NAMES = {
    "vm": "acme-payroll-db-1",
    "vm as systemd writes it": "acme\\x2dpayroll\\x2ddb\\x2d1",
    "short vm": "q7",
    "uuid": UUID,
    "project": PROJECT,
    "user": "alice.smith@acme.example",
    "mac": MAC,
    "port": PORT,
    "tap": TAP,
    "host": "rack7-node3",
    "job": "acme-payroll",
    "pattern": "^acme-(payroll)",
    "group of another": "acme-ops-monitor",
    "title": "Payroll of ACME, primary",
    "disk": "disk-acmebank",
    "interface": "acmetap0",
    "bridge": "br-acme",
    "short host": "ovn-sb",
    "domain": "acmebank.example",
    "name as a machine": "acmepayroll",
    "description": "meant for acme",
    "key of a fact": "meta:acmecode",
    "address": "10.11.12.13",
    "IPv6 address": "fd12:3456::1",
}
ALWAYS = {
    "key": KEY,
    "certificate": "MIIBvzCCAWWgAwIBAgIUCertificateBody",
    "central": "central.acme.example",
    "server name": "whitepanda.acme.example",
    "credentials": "libvirtuser:hunter2",
}


ODD = ("thread", "procfs", "q7", "tcg", "qemu", "bridge", "acme payroll")


def identity(name: str = NAMES["vm"], uuid: str = UUID) -> VmIdentity:
    facts = {
        "nova:project": PROJECT,
        "nova:user": NAMES["user"],
        "title": NAMES["title"],
        "nova:vcpus": "2",
        "mac": MAC.upper(),
        NAMES["key of a fact"]: NAMES["description"],
    }
    return VmIdentity(
        uuid,
        name,
        100,
        "boot1234-77",
        (101, 102),
        facts=facts,
        disks=(DiskDevice("vda", "file"), DiskDevice(NAMES["disk"], "file")),
        interfaces=(
            InterfaceDevice(TAP, MAC, "bridge", PORT),
            InterfaceDevice(NAMES["interface"], "", "bridge", "tap0"),
        ),
    )


def take() -> SourceSample:
    now_ns = time.monotonic_ns()
    vm = replace(
        vm_sample(now_ns / S, "boot1234-77"),
        interfaces={
            TAP: InterfaceCounters(now_ns, now_ns, 1, 1, 0, 0),
            NAMES["interface"]: InterfaceCounters(now_ns, now_ns, 1, 1, 0, 0),
            "vnet3": InterfaceCounters(now_ns, now_ns, 1, 1, 0, 0),
        },
        disks={name: DiskCounters(now_ns, now_ns, 1, 1) for name in ("vda", NAMES["disk"])},
        rdt=RdtCounters(1, {"00": RdtDomain(4096, now_ns, now_ns)}, NAMES["group of another"]),
        perf=PerfCounters((("cycles", "instructions"),), {101: (PerfGroup(1, now_ns, now_ns, (now_ns, now_ns // 2)),)}),
        threads=threads(now_ns / S),
    )
    # VMs with names that are words of ours, and one whose name is too short to be a word.
    odd = {f"00000000-0000-4000-8000-00000000000{n}": name for n, name in enumerate(ODD)}
    vms = {UUID: vm, **dict.fromkeys(odd, vm)}
    inventory = (identity(), *(identity(name, uuid) for uuid, name in odd.items()))
    return SourceSample("simulated", now_ns, time.time_ns(), vms, None, inventory)


@pytest.fixture
def config(tmp_path):
    tls = tmp_path / "tls"
    tls.mkdir()
    (tls / "host.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
    body = f"-----BEGIN CERTIFICATE-----\n{ALWAYS['certificate']}\n-----END CERTIFICATE-----\n"
    for name in ("ca.crt", "host.crt"):
        (tls / name).write_text(body)
    return AgentConfig(
        AgentSection("rack7-node3", "cpu", str(tmp_path), str(tmp_path / "a.sock"), tick_s=0.05, window_s=0.2),
        Sources(
            libvirt=LibvirtSection(uri="qemu+ssh://libvirtuser:hunter2@rack7-node3/system?keyfile=/k"),
            ovs=OvsSection(database="ssl:ovn-sb.acmebank.example:6640,tcp:[fd12:3456::1]:6640"),
        ),
        uplink=UplinkSection(
            "central.acme.example:7443",
            "whitepanda.acme.example",
            TlsFiles(str(tls / "ca.crt"), str(tls / "host.crt"), str(tls / "host.key")),
        ),
        jobs=(JobRule(NAMES["pattern"], r"acme-\1"),),
    )


FINDINGS = (
    Check("source libvirt", "missing", f"VM {NAMES['vm']} ({UUID}, {MAC}) hangs", reason=Reason.STUCK),
    Check("central", "missing", "central.acme.example:7443: not valid for 'whitepanda.acme.example'", privacy="secret"),
    Check("source cgroup", "ok", f"/machine.slice/machine-qemu\\x2d1\\x2d{NAMES['vm as systemd writes it']}.scope"),
    Check("Open vSwitch", "ok", f"ports {TAP}, {PORT.upper()} of {PROJECT} on rack7-node3"),
    Check("source ovs", "missing", "ssl:ovn-sb.acmebank.example:6640: br-acme is gone; 10.11.12.13, fd12:3456::1"),
    Check("source qemu", "ok", "machine-qemu\\x2d2\\x2dacmepayroll.scope; /etc/ovn-sb.crt of 127.0.0.1"),
    Check("TLS files", "ok", "/etc/whitepanda/tls/rack7-node3.crt fits"),
)


SUSPECT = host_pb2.Suspect(uuid=UUID, name=NAMES["vm"], job=NAMES["job"])


class FakeAgent:
    def status(self):
        return host_pb2.HostStatus(
            host="rack7-node3",
            ticks=7,
            uplink=host_pb2.UplinkStatus(
                address="central.acme.example:7443", last_error="central.acme.example refuses"
            ),
            sources=[host_pb2.SourceStatus(name="ovs", state="failed", detail=f"{TAP} of {NAMES['vm']}")],
        )

    def vms(self):
        vm = host_pb2.VmSummary(
            uuid=UUID,
            name=NAMES["vm"],
            job=NAMES["job"],
            owner=PROJECT,
            epoch="boot1234-77",
            decision=host_pb2.VmDecision(suspects=[SUSPECT]),
            verdict_reason=f"{NAMES['job']} is slow",
            metrics=[host_pb2.Metric(name="cpi", value=1.5)],
        )
        return host_pb2.ListVmsResponse(
            host="rack7-node3",
            vms=[vm, host_pb2.VmSummary(name="q7", uuid=PORT)],
            decision=host_pb2.HostDecision(victims=1, suspect=SUSPECT),
        )


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host whose every part tells secrets."""
    monkeypatch.setattr(
        record, "make_plans", lambda _config: [SourcePlan("simulated", "auto", FakeSource("simulated", take))]
    )

    @contextlib.contextmanager
    def connect(_path):
        yield FakeAgent()

    monkeypatch.setattr(module, "connect", connect)
    (tmp_path / "root/sys/class/net/br-acme").mkdir(parents=True)
    true = module.make_bundle

    def in_root(*arguments, **options):
        return true(*arguments, root=tmp_path / "root", **options)

    monkeypatch.setattr(sys.modules[__name__], "make_bundle", in_root)


def unpacked(file):
    with tarfile.open(file) as archive:
        return {
            member.name.removeprefix("whitepanda-bundle/"): archive.extractfile(member).read()
            for member in archive.getmembers()
        }


def leaks(data: bytes, secrets: dict[str, str]) -> set[str]:
    text = data.decode("utf-8", "replace")
    found = set()
    for what, secret in secrets.items():
        forms = {secret, json.dumps(secret)[1:-1], secret.lower(), secret.upper()}
        # What is short counts as a whole value only.
        ends = '"' if len(secret) < 3 else ""
        if any(f"{ends}{form}{ends}" in text for form in forms):
            found.add(what)
    return found


def test_no_secret_is_anywhere_in_the_bundle(host, config, tmp_path):
    file = tmp_path / "bundle.tar.gz"
    write_bundle(make_bundle(config, FINDINGS, record_s=0.5), file)
    data = gzip.decompress(file.read_bytes())
    assert leaks(data, NAMES | ALWAYS) == set()
    assert leaks(data, {"epoch": "boot1234-77", "host part": "rack7", "company": "acme"}) == set()
    files = unpacked(file)
    assert set(files) == {
        "agent/status.json",
        "agent/vms.json",
        "config.json",
        "doctor.json",
        "doctor.txt",
        "kernel.json",
        "manifest.json",
        "recording.jsonl",
        "versions.json",
    }


def test_the_test_above_sees_names_where_they_are(host, config, tmp_path):
    file = tmp_path / "bundle.tar.gz"
    write_bundle(make_bundle(config, FINDINGS, anonymise=False, record_s=0.5), file)
    data = gzip.decompress(file.read_bytes())
    assert leaks(data, NAMES) == set(NAMES)
    # Keys, certificates and what central is called never are in it.
    assert leaks(data, ALWAYS) == set()
    assert json.loads(unpacked(file)["manifest.json"])["pseudonyms"] is False


def test_a_vm_has_one_pseudonym_all_through(host, config):
    made = make_bundle(config, FINDINGS, record_s=0.3)
    files = {name: data.decode() for name, (_, data) in made.files.items()}
    (vm, short) = json.loads(files["agent/vms.json"])["vms"]
    assert re.fullmatch(r"vm-[0-9a-f]{10}", vm["name"])
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", vm["uuid"])
    (suspect,) = vm["decision"]["suspects"]
    reported = json.loads(files["agent/vms.json"])
    assert suspect["name"] == reported["decision"]["suspect"]["name"] == vm["name"] != short["name"]
    assert (suspect["uuid"], suspect["job"]) == (vm["uuid"], vm["job"])
    assert vm["name"] in files["recording.jsonl"]
    assert vm["uuid"] in files["recording.jsonl"]
    assert vm["metrics"] == [{"name": "cpi", "value": 1.5}]
    again = json.loads(make_bundle(config, FINDINGS, record_s=0).files["agent/vms.json"][1])["vms"][0]
    assert again["name"] != vm["name"]  # another bundle, another key


def test_the_recording_with_pseudonyms_gives_the_same_numbers(host, config, tmp_path, monkeypatch):
    kept = {}
    real = module._anonymous

    def keep(file, names):
        kept["true"] = file.read_bytes()
        return real(file, names)

    monkeypatch.setattr(module, "_anonymous", keep)
    made = make_bundle(config, FINDINGS, record_s=0.5)
    for name, data in (("true", kept["true"]), ("made", made.files["recording.jsonl"][1])):
        (tmp_path / name).write_bytes(data)
    rates = {}
    for name in ("true", "made"):
        with Playback(tmp_path / name) as playback:
            rates[name] = [[vm.rates for vm in playback.pipeline.table] for _ in playback.ticks()]
            names = {vm.identity.name for vm in playback.pipeline.table}
            facts = [dict(vm.identity.facts) for vm in playback.pipeline.table]
    assert rates["true"] == rates["made"]
    assert len(rates["made"]) > 5
    assert len(names) == 1 + len(ODD)
    assert {(vm.identity.accelerator, vm.identity.manager, vm.identity.state) for vm in playback.pipeline.table} == {
        ("kvm", "libvirt", "running")
    }
    assert not isinstance(rates["made"][-1][0].disk_read_bytes_per_s, Reason)
    assert all(re.fullmatch(r"vm-[0-9a-f]{10}", name) for name in names)
    assert {key for key in facts[0] if not key.startswith("key-")} == {
        *("nova:project", "nova:user", "title", "nova:vcpus", "mac")
    }
    assert facts[0]["nova:vcpus"].startswith("fact-")
    assert rates["made"][-1][0].cpi is not Reason.INVALID_VALUE


def test_the_manifest_lists_what_is_in_the_bundle(host, config, tmp_path):
    file = tmp_path / "bundle.tar.gz"
    write_bundle(make_bundle(config, FINDINGS, record_s=0.2), file)
    files = unpacked(file)
    manifest = json.loads(files.pop("manifest.json"))
    assert (manifest["format"], manifest["version"], manifest["pseudonyms"]) == ("whitepanda-bundle", 1, True)
    assert {name: item["bytes"] for name, item in manifest["files"].items()} == {
        name: len(data) for name, data in files.items()
    }
    assert all(item["what"] for item in manifest["files"].values())
    assert manifest["notes"] == []


def test_what_cannot_be_had_is_noted(config, monkeypatch):
    nothing = SourcePlan("procfs", "auto", FakeSource("procfs", take, replace_probe()))
    monkeypatch.setattr(record, "make_plans", lambda _config: [nothing])
    made = make_bundle(config, FINDINGS, record_s=0.2)
    assert [note.partition(":")[0] for note in made.notes] == ["agent", "recording"]
    assert "no source is available here; procfs is unavailable: no /proc" in made.notes[1]
    assert "recording.jsonl" not in made.files
    assert make_bundle(config, FINDINGS, record_s=0).notes[1] == "recording: none was wanted"


def replace_probe():
    from collector.base import Probe  # noqa: PLC0415 - only here

    return Probe(available=False, detail="no /proc", reason=Reason.NOT_PRESENT)


def test_beside_an_agent_what_changes_the_host_is_left_to_it(config, monkeypatch):
    monkeypatch.setattr(record, "answers", lambda _path: True)
    settings, left = record.beside_agent(config)
    assert left == ("resctrl",)
    assert settings.sources.resctrl.mode == "off"
    assert settings.sources.procfs == config.sources.procfs
    monkeypatch.setattr(record, "answers", lambda _path: False)
    assert record.beside_agent(config) == (config, ())


def test_the_configuration_is_reported_without_what_is_secret(host, config):
    settings = json.loads(make_bundle(config, FINDINGS, record_s=0).files["config.json"][1])
    assert settings["uplink"]["address"] == settings["uplink"]["server_name"] == "(redacted)"
    assert settings["uplink"]["tls"]["key"] == settings["sources"]["libvirt"]["uri"] == "(redacted)"
    assert settings["sources"]["libvirt"]["disk_poll_s"] == 10
    assert settings["sources"]["libvirt"]["mode"] == "auto"
    assert settings["sources"]["ovs"]["database"] == "(redacted)"
    assert settings["sources"]["ovs"]["run_dir"] == "/run/openvswitch"
    assert (settings["jobs"][0]["pattern"], settings["jobs"][0]["fact"]) == ("(redacted)", "name")
    true = json.loads(make_bundle(config, FINDINGS, anonymise=False, record_s=0).files["config.json"][1])
    assert true["uplink"]["tls"]["key"].endswith("/tls/host.key")
    assert true["sources"]["libvirt"]["uri"] == true["uplink"]["address"] == "(redacted)"
    assert set(settings) == set(msgspec.to_builtins(config))


def test_versions_and_kernel_facts(tmp_path):
    found = versions()
    assert re.match(r"\d+\.\d+", found["python"])
    assert found["msgspec"]
    assert set(found) >= {"whitepanda", "kernel", "libvirtd", "qemu", "openvswitch"}
    root = tmp_path / "root"
    for name, text in {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: X\n\nprocessor\t: 1\n",
        "proc/self/mountinfo": (
            "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 1 8:1 / /home rw - ext4 /dev/secret rw\n"
        ),
        "proc/self/status": "Name:\tx\nCapEff:\t00ff\nNoNewPrivs:\t0\n",
        "proc/sys/kernel/perf_event_paranoid": "2\n",
        "sys/fs/resctrl/info/L3_MON/num_rmids": "32\n",
        "sys/bus/event_source/devices/cpu/type": "4\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    facts = kernel_facts(root)
    assert facts["proc/cpuinfo, first CPU"] == "processor\t: 0\nmodel name\t: X"
    assert facts["proc/self/mountinfo, cgroup and resctrl"] == ["/sys/fs/cgroup cgroup2 rw"]
    assert facts["proc/self/status"] == ["CapEff:\t00ff", "NoNewPrivs:\t0"]
    assert facts["proc/sys/kernel/perf_event_paranoid"] == "2"
    assert facts["sys/fs/resctrl/info/L3_MON/num_rmids"] == "32"
    assert facts["sys/bus/event_source/devices"] == ["cpu"]
    assert facts["proc/pressure/cpu"] is None


def test_a_name_that_is_no_utf8_costs_no_bundle(host, config):
    findings = (Check("source qemu", "missing", "VM caf\udce9 hangs"),)
    made = make_bundle(config, findings, anonymise=False, record_s=0)
    assert json.loads(made.files["doctor.json"][1])[0]["detail"] == "VM caf\udce9 hangs"
    assert b"VM caf? hangs" in made.files["doctor.txt"][1]


# -- the file


@pytest.fixture
def small():
    made = module.Bundle()
    made.add("a.json", "something", {"a": 1})
    return made


def test_only_its_owner_reads_it(small, tmp_path):
    file = tmp_path / "b.tgz"
    umask = os.umask(0)
    try:
        write_bundle(small, file)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert unpacked(file) == {"a.json": b'{\n  "a": 1\n}\n'}
    assert list(tmp_path.iterdir()) == [file]


def test_an_existing_file_is_not_replaced(small, tmp_path, monkeypatch):
    file = tmp_path / "b.tgz"
    file.write_text("mine")
    with pytest.raises(InputError, match=r"b\.tgz: exists already; give another name"):
        write_bundle(small, file)
    monkeypatch.setattr(module.os.path, "lexists", lambda _path: False)  # it comes into being meanwhile
    with pytest.raises(UnavailableError, match=r"b\.tgz: cannot write: exists already"):
        write_bundle(small, file)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_no_space_left_leaves_nothing(small, tmp_path, monkeypatch):
    def full(_bundle, stream):
        stream.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_pack", full)
    with pytest.raises(UnavailableError, match=r"b\.tgz: cannot write: No space left on device$"):
        write_bundle(small, tmp_path / "b.tgz")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnavailableError, match="cannot write: there is no folder"):
        write_bundle(small, tmp_path / "none" / "b.tgz")


def test_the_command(host, tmp_path):
    import typer  # noqa: PLC0415 - only here

    from agent.cli.doctor import doctor  # noqa: PLC0415 - only here

    app = typer.Typer()
    app.command()(doctor)
    config = tmp_path / "agent.toml"
    config.write_text(f"[agent]\nstate_dir = '{tmp_path}'\n")
    file = tmp_path / "b.tgz"
    arguments = ["--config", str(config), "--bundle", str(file), "--record-seconds", "0", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ok"] is True
    assert "files, pseudonyms for all names; manifest.json lists them" in done.stderr
    assert "not in it: recording: none was wanted" in done.stderr
    assert "doctor.txt" in unpacked(file)
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InputError)


# -- pseudonyms


def test_a_name_has_one_pseudonym_under_one_key():
    names = Pseudonyms()
    assert re.fullmatch("vm-[0-9a-f]{10}", names.of("vm", "db-1"))
    assert names.of("vm", "db-1") == names.of("vm", "db-1") != names.of("vm", "db-2")
    assert names.of("vm", "db-1") != Pseudonyms().of("vm", "db-1")
    assert names.of("uuid", UUID) == names.of("uuid", UUID.upper()) != UUID
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", names.of("uuid", UUID))
    assert names.of("owner", "") == ""


def test_texts_of_new_fields_are_left_out():
    """Only fields known to hold whitepanda's own words are shown."""
    message = host_pb2.VmSummary(uuid=UUID, state="running", decision=host_pb2.VmDecision(reason="db-1 is slow"))
    Pseudonyms().hide(message)
    assert (message.state, message.decision.reason) == ("running", "(redacted)")
    fields = {
        f"{kind.name}.{field.name}"
        for kind in host_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in kind.fields
    }
    assert {name for name in {*module_names._NAMES, *module_names._WORDS} if name not in fields} == {
        "Degradation.cannot_tell"  # of agent.proto
    }


def test_the_details_that_may_have_names_are_left_out():
    def details(*, anonymise):
        checks = [
            Check("KVM", "ok", "here", privacy="public"),
            Check("source ovs", "ok", "br-acme"),
            Check("central", "ok", "c:1", privacy="secret"),
        ]
        names = Pseudonyms(enabled=anonymise)
        return [module._shown(check, names).detail for check in checks]

    assert details(anonymise=True) == ["here", "(redacted)", "(redacted)"]
    assert details(anonymise=False) == ["here", "br-acme", "(redacted)"]
