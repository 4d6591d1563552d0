"""The shipped units, started by a real systemd as PID 1: readiness, watchdog, sandbox, the sources in it.

systemd runs in namespaces over a throw-away layer of this machine's root (tests/lab/systemd_ns.sh). The product
is in /opt/whitepanda there, on this checkout's code; everything in systemd/ is installed as docs/operate.md
says. A program of another user stands for a QEMU: libvirt's status file names it, its threads are the vCPUs.
"""

import json
import os
import re
import shutil
import subprocess
import time

import msgspec
import pytest

from agent.config import AgentConfig, AgentSection
from agent.config import load as load_agent
from central.config import BuildSection, CentralConfig, CentralSection
from central.config import load as load_central
from central.pki import issue, make_ca
from collector.cgroup.tree import parse_mounts
from tests.support.systemd_machine import UNITS, booted, install_product, install_units
from tests.support.waiting import wait_until
from whitepanda.common.errors import ConfigError, TlsError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

HOST = "sandbox"
VM_UUID = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0"
EXPOSURE = {"act": 1.4, "agent": 2.7, "central": 1.6}
CAP_PERFMON = 38

# The vCPU threads: one busy, one idle. QEMU's arguments have the UUID, and so have ours.
STAND_IN = """
import threading, time
def busy():
    while True: pass
def idle():
    while True: time.sleep(0.2)
for work in (busy, idle):
    threading.Thread(target=work).start()
"""

# The host's VMs alone.
HOST_ONLY = """
ExecStart=
ExecStart=/opt/whitepanda/bin/whitepanda agent run --config /etc/whitepanda/host.toml
"""

SCENARIO = """
[[vms]]
name = "db"
job = "db"
latency_sensitive = true
load.cores = 2.0
[[vms]]
name = "batch"
job = "batch"
load.cores = 3.0
"""


# -- what needs no systemd to run --------------------------------------------------------------------------------


def uncommented(path, tmp_path):
    """The example with every default that it shows switched on."""
    text = re.sub(r"(?m)^#(?=[a-z_]+ = )", "", path.read_text())
    assert text != path.read_text()
    copy = tmp_path / path.name
    copy.write_text(text)
    return copy


def test_example_configurations_load():
    assert load_agent(UNITS / "agent.toml") == AgentConfig(agent=AgentSection())
    central = load_central(UNITS / "central.toml").central
    assert central.listen == "[::]:7443"
    assert central.tls.key == "/etc/whitepanda/tls/central.key"


def test_defaults_shown_in_the_examples_are_the_defaults(tmp_path):
    assert load_agent(uncommented(UNITS / "agent.toml", tmp_path)) == AgentConfig(agent=AgentSection())
    found = load_central(uncommented(UNITS / "central.toml", tmp_path))
    plain = load_central(UNITS / "central.toml")
    lake_and_rest = msgspec.structs.replace(plain.central, listen=found.central.listen)
    assert found == CentralConfig(central=lake_and_rest)
    assert msgspec.structs.replace(
        found.central, listen=CentralSection().listen, tls=CentralSection().tls
    ) == CentralSection()  # fmt: skip


def test_the_examples_job_rule_loads(tmp_path):
    text = (UNITS / "agent.toml").read_text()
    rule = re.sub(r"(?m)^# ", "", text[text.index("# [[jobs]]") :])
    (tmp_path / "agent.toml").write_text("[agent]\n" + rule)
    (job,) = load_agent(tmp_path / "agent.toml").jobs
    assert re.sub(job.pattern, job.job, "db.small") == "database-small"
    assert job.latency_sensitive


@pytest.fixture
def analyze():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (Debian: systemd)")

    def run(*arguments):
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize("name", ["act", "agent", "central"])
def test_units_are_well_formed(analyze, tmp_path, name):
    # The product is not installed on this machine; verify wants the program to exist.
    program = tmp_path / "whitepanda"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = (UNITS / f"whitepanda-{name}.service").read_text()
    copy = tmp_path / f"whitepanda-{name}.service"
    copy.write_text(unit.replace("/opt/whitepanda/bin/whitepanda", str(program)))
    result = analyze("verify", str(copy))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["act", "agent", "central"])
def test_exposure(analyze, name):
    path = UNITS / f"whitepanda-{name}.service"
    limit = EXPOSURE[name]
    result = analyze("security", "--offline=true", f"--threshold={round(10 * limit)}", str(path))
    assert result.returncode == 0, result.stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)
    assert found
    assert float(found[1]) <= limit


@pytest.mark.parametrize("name", ["act", "agent", "central"])
def test_a_unit_without_its_system_call_filter_is_too_exposed(analyze, tmp_path, name):
    text = (UNITS / f"whitepanda-{name}.service").read_text()
    mutant = tmp_path / f"whitepanda-{name}.service"
    mutant.write_text(re.sub(r"(?m)^SystemCall.*\n", "", text))
    limit = round(10 * EXPOSURE[name])
    assert analyze("security", "--offline=true", f"--threshold={limit}", str(mutant)).returncode != 0


def test_tmpfiles_close_keys_of_any_name_and_leave_their_owners(tmp_path):
    """As docs/operate.md has them: the key of central is named after it and is whitepanda-central's."""
    if shutil.which("systemd-tmpfiles") is None or os.geteuid() != 0:
        pytest.skip("needs systemd-tmpfiles (Debian: systemd) and root")
    tls = tmp_path / "etc/whitepanda/tls"
    tls.mkdir(parents=True)
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nwhitepanda-central:x:4711:4712::/:/bin/false\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nwhitepanda-central:x:4712:\n")
    owners = {"central.example.net.key": (4711, 4712), "central.key": (4711, 4712), "node1.key": (0, 0)}
    for name, (user, group) in owners.items():
        (tls / name).touch(mode=0o644)
        os.chown(tls / name, user, group)
    settings = {"central.toml": 0o600, "agent.toml": 0o644}  # the first may hold secrets
    for name, mode in settings.items():
        (tls.parent / name).touch()
        (tls.parent / name).chmod(mode)
    config = tmp_path / "usr/lib/tmpfiles.d/whitepanda.conf"
    config.parent.mkdir(parents=True)
    shutil.copy(UNITS / "tmpfiles.conf", config)
    done = subprocess.run(
        ["systemd-tmpfiles", f"--root={tmp_path}", "--create", str(config)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: path.stat() for path in tls.iterdir()}
    assert {name: (stat.st_uid, stat.st_gid) for name, stat in found.items()} == owners
    assert {stat.st_mode & 0o777 for stat in found.values()} == {0o600}
    assert {name: (tls.parent / name).stat().st_mode & 0o777 for name in settings} == settings


@pytest.mark.parametrize("name", ["agent", "central"])
def test_what_a_new_start_would_not_mend_is_not_started_again(name):
    codes = {str(ConfigError.exit_code), str(TlsError.exit_code)}
    assert settings(name)["RestartPreventExitStatus"] == [" ".join(sorted(codes))]


def test_whoever_has_limits_to_undo_is_started_until_it_can():
    act = settings("act")
    assert "RestartPreventExitStatus" not in act
    assert (act["Restart"], act["StartLimitIntervalSec"], act["TimeoutStartSec"]) == (
        ["on-failure"],
        ["0"],
        ["infinity"],
    )
    assert "libvirt-guests.service" in act["After"][0].split()  # so at shutdown it ends before VMs are saved


def settings(name):
    """Settings of a unit's [Service] as systemd reads them: later lines add to lists."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / f"whitepanda-{name}.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def test_central_may_use_the_memory_that_its_defaults_allow():
    (value,), (most,) = settings("central")["MemoryHigh"], settings("central")["MemoryMax"]
    assert value.endswith("G")
    assert (most[-1], int(most[:-1]) > int(value[:-1])) == ("G", True)
    assert int(value[:-1]) * 1024 >= BuildSection().memory_limit_mib + 512 + 256
    assert settings("central")["OOMPolicy"] == ["continue"], "a build that is too large does not end central"


def test_capabilities_are_those_that_are_needed():
    assert settings("act")["CapabilityBoundingSet"] == [""]
    assert settings("agent")["CapabilityBoundingSet"] == ["CAP_PERFMON"]
    assert settings("central")["CapabilityBoundingSet"] == [""]
    assert settings("central")["User"] == ["whitepanda-central"]


def test_only_what_limits_vms_may_write_to_control_groups():
    found = {name: settings(name)["ProtectControlGroups"] for name in ("act", "agent", "central")}
    assert found == {"act": ["no"], "agent": ["yes"], "central": ["yes"]}


# -- a machine with systemd --------------------------------------------------------------------------------------


def install_configuration(folder):
    """As docs/operate.md says, but for the test's pace and names."""
    root = folder / "root"
    etc = root / "etc/whitepanda"
    etc.mkdir(parents=True)
    install_units(root)
    agent, metrics, others = (UNITS / "agent.toml").read_text().partition("[metrics]")
    for shown, wanted in {
        '#host = ""': f'host = "{HOST}"',
        "#window_s = 10.0": "window_s = 1.0",
        '#address = ""': 'address = "127.0.0.1:7443"',
        '#ca = ""': 'ca = "/etc/whitepanda/tls/ca.crt"',
        '#certificate = ""': f'certificate = "/etc/whitepanda/tls/{HOST}.crt"',
        '#key = ""': f'key = "/etc/whitepanda/tls/{HOST}.key"',
    }.items():
        assert agent.count(shown) == 1, shown
        agent = agent.replace(shown, wanted)
    agent += metrics + others
    # Beside simulated VMs the host's own are sampled only where that is demanded.
    (etc / "host.toml").write_text(agent)
    agent = agent.replace('[sources.procfs]\n#mode = "auto"', '[sources.procfs]\nmode = "required"')
    assert 'mode = "required"' in agent
    agent += '\n[sources.simulated]\nmode = "required"\nscenario = "/etc/whitepanda/scenario.toml"\n'
    (etc / "agent.toml").write_text(agent)
    (etc / "scenario.toml").write_text(SCENARIO)
    central = (UNITS / "central.toml").read_text()
    for shown, wanted in {
        "#roll_interval_s = 60.0": "roll_interval_s = 1.0",
        "#interval_s = 3600.0": "interval_s = 2.0\nslot_s = 1.0",
        "#min_samples = 36": "min_samples = 3",
    }.items():
        assert central.count(shown) == 1, shown
        central = central.replace(shown, wanted)
    (etc / "central.toml").write_text(central)
    pki = folder / "pki"
    make_ca(pki)
    issue(pki, HOST)
    issue(pki, "central", server=True, addresses=["127.0.0.1"])
    tls = etc / "tls"
    tls.mkdir()
    for name in ("ca.crt", f"{HOST}.crt", f"{HOST}.key", "central.crt", "central.key"):
        shutil.copy(pki / name, tls)


def install_stand_in(folder):
    """A program of another user; `run_stand_in` writes what libvirt would say of it."""
    root = folder / "root"
    (root / "opt/stand-in.py").write_text(STAND_IN)
    (root / "etc/systemd/system/stand-in.service").write_text(
        f"[Service]\nUser=nobody\nExecStart=/opt/whitepanda/bin/python /opt/stand-in.py -uuid {VM_UUID}\n"
    )


def run_stand_in(machine):
    machine.start("stand-in.service")
    pid = machine.show("stand-in", "MainPID")
    tids = wait_until(
        lambda: (t := sorted(int(t) for t in machine.run("ls", f"/proc/{pid}/task").split()))[2:] and t, "no threads"
    )
    tids.remove(int(pid))
    status = f"""<domstatus state='running' reason='booted' pid='{pid}'>
      <vcpus>{"".join(f"<vcpu id='{i}' pid='{t}'/>" for i, t in enumerate(tids))}</vcpus>
      <domain type='qemu'><name>stand-in</name><uuid>{VM_UUID}</uuid></domain></domstatus>"""
    # As libvirt has it: root's alone.
    machine.run("mkdir", "-p", "/run/libvirt/qemu")
    machine.run("tee", "/run/libvirt/qemu/stand-in.xml", stdin=status)
    machine.run("chmod", "600", "/run/libvirt/qemu/stand-in.xml")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systemd")
    install_product(folder)
    install_configuration(folder)
    install_stand_in(folder)
    with booted(folder) as machine:
        machine.run("chown", "whitepanda-central:", "/etc/whitepanda/tls/central.key")
        machine.run("systemd-tmpfiles", "--create", "/usr/lib/tmpfiles.d/whitepanda.conf")
        run_stand_in(machine)
        machine.start("whitepanda-central")
        machine.start("whitepanda-agent")
        yield machine


@pytest.fixture
def override(machine):
    """Start a unit again with a drop-in; without it again afterwards."""
    changed = []

    def change(unit, text):
        changed.append(unit)
        machine.override(unit, text)
        try:
            machine.run("systemctl", "restart", unit, timeout_s=60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{machine.journal(unit)}") from error

    yield change
    for unit in changed:
        machine.override(unit, None)
        machine.run("systemctl", "reset-failed", unit, check=False)
        machine.run("systemctl", "restart", unit, timeout_s=60)


@pytest.mark.parametrize("name", ["agent", "central"])
def test_units_are_ready_by_notification(machine, name):
    unit = f"whitepanda-{name}"
    assert machine.is_active(unit) == "active"
    assert machine.show(unit, "Type") == "notify"
    assert machine.show(unit, "NRestarts") == "0"
    assert machine.show(unit, "WatchdogUSec") == "30s"
    assert int(machine.show(unit, "WatchdogTimestampMonotonic")) > 0  # it was fed


def test_act_can_write_to_control_groups_and_the_agent_cannot(machine):
    """Seen from within their sandboxes; what `whitepanda act` writes there is in test_act_qemu.py."""
    machine.start("whitepanda-act")
    try:
        made = {name: may_make_a_group(machine, f"whitepanda-{name}") for name in ("act", "agent")}
    finally:
        machine.run("systemctl", "stop", "whitepanda-act")
    assert made == {"act": True, "agent": False}


def may_make_a_group(machine, unit):
    """Whether a process in a unit's mount namespace, as root without capabilities, can make a control group."""
    inside = ["nsenter", "-t", machine.show(unit, "MainPID"), "-m"]
    mounts = parse_mounts(machine.run(*inside, "cat", "/proc/self/mountinfo").encode())
    v2 = next(mount.point for mount in mounts if not mount.controllers)
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    make = f"mkdir {v2}/{unit}-test && rmdir {v2}/{unit}-test && echo made"
    return "made" in machine.run(*inside, *drop, "sh", "-c", make, check=False)


def test_files_and_users(machine):
    def stat(path):
        return machine.run("stat", "-c", "%U:%G %a", path).strip()

    assert stat("/run/whitepanda") == "root:whitepanda 750"
    assert stat("/run/whitepanda/agent.sock") == "root:whitepanda 660"
    assert stat("/var/lib/whitepanda") == "root:whitepanda 700"
    assert stat("/var/lib/whitepanda-central") == "whitepanda-central:whitepanda-central 700"
    assert stat("/etc/whitepanda/tls/central.key") == "whitepanda-central:whitepanda-central 600"
    assert stat(f"/etc/whitepanda/tls/{HOST}.key") == "root:root 600"
    pid = machine.show("whitepanda-central", "MainPID")
    assert stat(f"/proc/{pid}").startswith("whitepanda-central:")


def test_privileges_of_the_running_processes(machine):
    for name, expected in (("agent", 1 << CAP_PERFMON), ("central", 0)):
        pid = machine.show(f"whitepanda-{name}", "MainPID")
        status = dict(line.split(":\t", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines())
        assert int(status["CapEff"], 16) == expected
        assert int(status["CapBnd"], 16) == expected
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


def test_sources_work_in_the_units_sandbox(machine):
    found = wait_until(lambda: (s := machine.sources())["procfs"][0] == "available" and s, "procfs is not sampled")
    assert found["simulated"][0] == "available"


def test_perf_works_in_the_units_sandbox(machine, override):
    override("whitepanda-agent", HOST_ONLY)
    state, detail = wait_until(lambda: (s := machine.sources()["perf"])[1] != "not tried yet" and s, "no word of perf")
    # Where this machine has no counters, that and not a missing permission is what keeps perf from counting.
    assert state == "available" or "shows no hardware counters" in detail, detail


def metrics(vm):
    return {metric["name"]: metric for metric in vm["metrics"]} if isinstance(vm["metrics"], list) else vm["metrics"]


def value(vm, name):
    return vm["metrics"][name]["value"]


def test_vms_answers_with_a_vm_of_another_user_and_the_simulated_ones(machine):
    def sampled():
        found = machine.vms()
        return (
            found if {"stand-in", "db", "batch"} <= found.keys() and value(found["stand-in"], "guest_ratio") else None
        )

    found = wait_until(sampled, lambda: json.dumps(machine.vms(), indent=1))
    assert found["stand-in"]["vcpus"] == 2
    assert 0.1 < value(found["db"], "cpi") < 20
    # One busy thread of two; this machine may have others at work.
    assert 0.02 < value(found["stand-in"], "guest_ratio") <= 0.6


def test_windows_reach_central_the_lake_and_a_build(machine):
    wait_until(
        lambda: machine.python("print(json.dumps(client.status().uplink.acknowledged_windows))") >= 6,
        lambda: machine.journal("whitepanda-agent") + machine.journal("whitepanda-central"),
    )
    lake = "/var/lib/whitepanda-central/lake"
    wait_until(
        lambda: machine.run("find", lake, "-name", "*.parquet").strip(), lambda: machine.journal("whitepanda-central")
    )
    wait_until(
        lambda: machine.python("print(json.dumps(client.status().coefficient_version))") > 0,
        lambda: machine.journal("whitepanda-central"),
    )


def test_nothing_is_logged_as_an_error(machine):
    for name in ("agent", "central"):
        text = machine.journal(f"whitepanda-{name}")
        assert not re.search(r"level=(error|critical)|Traceback|Permission denied|Operation not permitted", text), text


def test_the_watchdog_restarts_what_hangs(machine, override):
    units = ("whitepanda-agent", "whitepanda-central")
    limit_s = 10  # pings are half of it apart: 5 s to spare
    for unit in units:
        override(unit, f"WatchdogSec={limit_s}")
    pids = {unit: machine.show(unit, "MainPID") for unit in units}

    def has_lived(unit):
        """Whether it has pinged for longer than the limit since it was ready."""
        last, ready = (int(machine.show(unit, f"{name}TimestampMonotonic")) for name in ("Watchdog", "ActiveEnter"))
        return last - ready > limit_s * 1e6

    def reaches(unit, condition):
        wait_until(lambda: condition(unit), lambda: machine.journal(unit))

    for unit in units:  # one that lives is left alone
        reaches(unit, has_lived)
        assert machine.show(unit, "MainPID") == pids[unit]
        assert machine.show(unit, "NRestarts") == "0"
    for unit in units:
        machine.run("kill", "-STOP", pids[unit])
    for unit in units:
        reaches(unit, lambda unit: machine.show(unit, "NRestarts") == "1")
        reaches(unit, lambda unit: machine.is_active(unit) == "active")
        assert machine.show(unit, "MainPID") not in {pids[unit], "0"}
        assert f"{unit}.service: Watchdog timeout (limit {limit_s}s)!" in machine.journal(unit)


def test_a_wrong_configuration_is_not_retried(machine, override):
    text = machine.run("cat", "/etc/whitepanda/agent.toml")
    machine.run("tee", "/etc/whitepanda/wrong.toml", stdin=text.replace("[agent]", "[agent]\nintervall_s = 1"))
    with pytest.raises(AssertionError):
        override(
            "whitepanda-agent",
            "ExecStart=\nExecStart=/opt/whitepanda/bin/whitepanda agent run --config /etc/whitepanda/wrong.toml",
        )
    time.sleep(3)
    assert machine.is_active("whitepanda-agent") == "failed"
    assert machine.show("whitepanda-agent", "NRestarts") == "0"
    assert "unknown key 'agent.intervall_s'" in machine.journal("whitepanda-agent")


# -- mutants: each thing that the unit leaves open is needed -----------------------------------------------------


def perf_detail(machine):
    return wait_until(lambda: machine.sources()["perf"][1], "no word of perf")


@pytest.mark.parametrize(
    ("drop_in", "expected"),
    [("CapabilityBoundingSet=", "give the agent CAP_PERFMON"), ("SystemCallFilter=~perf_event_open", "seccomp filter")],
)
def test_perf_needs_what_the_unit_gives(machine, override, drop_in, expected):
    override("whitepanda-agent", HOST_ONLY + drop_in)
    wait_until(lambda: expected in perf_detail(machine), lambda: perf_detail(machine))


def test_other_users_threads_need_an_open_proc(machine, override):
    override("whitepanda-agent", "ProtectProc=invisible")
    wait_until(lambda: "db" in machine.vms(), "no VM")
    assert "stand-in" not in machine.vms()


def test_libvirt_is_reached_from_the_sandbox(machine, override):
    # The last test: a starting libvirtd looks after its status files, among them the one that we wrote.
    if shutil.which("libvirtd") is None:
        pytest.skip("needs libvirtd (Debian: libvirt-daemon-system)")
    pytest.importorskip("libvirt", reason="needs libvirt-python: tools/bootstrap.py host")
    override("whitepanda-agent", HOST_ONLY)
    wait_until(lambda: machine.sources()["libvirt"][0] == "unavailable", lambda: str(machine.sources()))
    machine.start("libvirtd")
    machine.run("systemctl", "restart", "whitepanda-agent", timeout_s=60)
    found = wait_until(
        lambda: (s := machine.sources()["libvirt"])[0] == "available" and s, lambda: str(machine.sources()["libvirt"])
    )
    assert "qemu:///system" in found[1]
