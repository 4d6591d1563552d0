"""The resctrl source in the shipped unit, under a real systemd: 100 VMs and 32 monitoring ids, crashes, who may move.

resctrl is our look-alike (tests/lab/resctrl_fuse.py), mounted by a service of that machine. The VMs are processes of
another user with three threads each, whose arguments have the UUIDs as QEMU's do, and status files as libvirt writes.
"""

import importlib.util
import json
import time
from pathlib import Path
from statistics import mean

import pytest

from tests.support.resctrl_ns import needs_lookalike
from tests.support.systemd_machine import booted, install_product, install_units
from tests.support.waiting import wait_until

# Its look-alike answers within the source's deadline where nobody takes the CPU: alone.
pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(240)]

VMS = 100
RMIDS = 32
RESERVED = 4
AGENT = "whitepanda-agent"
ROOT = "/sys/fs/resctrl"
MINE = "whitepanda-"
# Groups of another user: one has the threads of the second VM, one is empty and called nearly as ours are.
THEIRS, EMPTY = "theirs", "whitepanda.empty"
L3_BYTES = 4 << 20  # of each of the two domains, so that who works has soon filled them
# Two threads with 10 ms of CPU time and a pause of 100 ms each, and 0.5 bytes per nanosecond of CPU time.
MOST_BYTES_PER_S = 2 * 0.01 / 0.11 * 0.5e9
UUIDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(VMS)]
CAPABILITIES = "DAC_OVERRIDE DAC_READ_SEARCH FOWNER KILL PERFMON SETUID SYS_ADMIN SYS_NICE SYS_PTRACE"

# A parent with all UUIDs in its arguments, and so in those of the children that it forks: one per VM. The first two
# VMs are the only ones that work.
STAND_INS = """
import json, os, pathlib, sys, threading, time
def idle():
    while True: time.sleep(3600)
def work():
    while True:
        end = time.thread_time() + 0.01
        while time.thread_time() < end: pass
        time.sleep(0.1)
parent = os.getpid()
for number, uuid in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        for _ in range(2):
            threading.Thread(target=idle if number > 1 else work).start()
        tids = sorted(int(tid) for tid in os.listdir("/proc/self/task"))[1:]
        path = pathlib.Path("/run/stand-ins", uuid)
        path.with_suffix(".new").write_text(json.dumps([os.getpid(), tids]))
        path.with_suffix(".new").rename(path)
        idle()
idle()
"""

CONFIGURATION = """
[agent]
host = "sandbox"
window_s = 1.0
[sources.resctrl]
mode = "required"
hold_s = 1.0
reserve_rmids = 4
[sources.libvirt]
mode = "off"
[sources.perf]
mode = "off"
[sources.cgroup]
mode = "off"
[sources.ovs]
mode = "off"
[sources.qemu]
mode = "off"
"""

# Asks the agent until `seconds` are over or `wanted` VMs were seen with a value; prints the reasons of the others, too,
# and every bandwidth and occupancy that it was reported.
WATCH = """
import collections, json, math, pathlib, sys, time
from agent.api.client import connect
from collector.base import Reason
seconds, wanted = float(sys.argv[1]), int(sys.argv[2])
seen, reasons = set(), collections.Counter()
told = {"memory_bandwidth_bytes_per_s": {}, "llc_occupancy_bytes": {}}
end = time.monotonic() + seconds
with connect(pathlib.Path("/run/whitepanda/agent.sock")) as client:
    while time.monotonic() < end and len(seen) < wanted:
        for vm in client.vms().vms:
            for metric in vm.metrics:
                if metric.name in told and not math.isnan(metric.value):
                    told[metric.name].setdefault(vm.name, []).append(metric.value)
                if metric.name == "memory_bandwidth_bytes_per_s":
                    if math.isnan(metric.value):
                        reasons[Reason(metric.reason).code] += 1
                    else:
                        seen.add(vm.name)
        time.sleep(0.3)
print(json.dumps([sorted(seen), reasons, *told.values()]))
"""


class Resctrl:
    """The tree in the machine."""

    def __init__(self, machine):
        self.machine = machine

    def groups(self):
        return set(self.machine.run("ls", f"{ROOT}/mon_groups").split())

    def mine(self):
        return {name for name in self.groups() if name.startswith(MINE)}

    def tasks(self, group):
        return sorted(int(tid) for tid in self.machine.run("cat", f"{ROOT}/mon_groups/{group}/tasks").split())

    def counted(self, group, event):
        """What the kernel counts in a group, all domains."""
        files = f"{ROOT}/mon_groups/{group}/mon_data"
        return sum(map(int, self.machine.run("sh", "-c", f"cat {files}/mon_L3_*/{event}").split()))

    def inode(self, group):
        return self.machine.run("stat", "-c", "%i", f"{ROOT}/mon_groups/{group}")

    def knob(self, name, value):
        code = f"import os; os.setxattr('{ROOT}', 'user.{name}', b'{value}')"
        self.machine.run("/usr/bin/python3", "-c", code)


def install(folder):
    root = folder / "root"
    install_product(folder)
    install_units(root)
    # sysfs has no place for the mount, as this kernel has no resctrl.
    with (folder / "prepare").open("a") as file:
        file.write(
            "mount -t tmpfs -o mode=755 tmpfs sys/fs\n"
            "mkdir sys/fs/cgroup sys/fs/bpf sys/fs/pstore sys/fs/resctrl\n"
            "mount -t cgroup2 cgroup2 sys/fs/cgroup\n"
            # libpqos is to see them in /proc.
            "{ cat proc/filesystems; printf 'nodev\\tresctrl\\n'; } >opt/filesystems\n"
            "flags='cat_l3 cqm mba cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local rdt_a'\n"
            'sed "s/^flags\\t\\t: .*/& $flags/" proc/cpuinfo >opt/cpuinfo\n'
        )
    (root / "etc/whitepanda").mkdir(parents=True)
    (root / "etc/whitepanda/agent.toml").write_text(CONFIGURATION)
    pqos = CONFIGURATION.replace("hold_s = 1.0\nreserve_rmids = 4\n", "").replace("sources.resctrl", "sources.pqos")
    pqos += '[sources.resctrl]\nmode = "off"\n'
    (root / "etc/whitepanda/pqos.toml").write_text(pqos)
    (root / "etc/whitepanda/held.toml").write_text(CONFIGURATION.replace("hold_s = 1.0", "hold_s = 600.0"))
    (root / "opt/stand-ins.py").write_text(STAND_INS)
    (root / "opt/watch.py").write_text(WATCH)
    units = root / "etc/systemd/system"
    (units / "lookalike.service").write_text(
        "[Service]\nExecStart=/usr/bin/python3 /opt/whitepanda-source/tests/lab/resctrl_fuse.py"
        f" --rmids {RMIDS} --domains 00,02 --l3-bytes {L3_BYTES} {ROOT}\n"
    )
    (units / "stand-ins.service").write_text(
        "[Service]\nUser=nobody\nRuntimeDirectory=stand-ins\nTasksMax=infinity\n"
        f"ExecStart=/usr/bin/python3 /opt/stand-ins.py {' '.join(UUIDS)}\n"
    )


def write_status_files(machine):
    """As libvirt has them: root's alone."""
    code = f"""
import json, os, pathlib, time
folder = pathlib.Path("/run/libvirt/qemu"); folder.mkdir(parents=True)
names = pathlib.Path("/run/stand-ins")
while len(list(names.glob("*[0-9]"))) < {VMS}: time.sleep(0.05)
os.umask(0o077)
for number, path in enumerate(sorted(names.iterdir())):
    pid, tids = json.loads(path.read_text())
    vcpus = "".join(f"<vcpu id='{{i}}' pid='{{tid}}'/>" for i, tid in enumerate(tids))
    (folder / f"vm{{number:03}}.xml").write_text(
        f"<domstatus state='running' reason='booted' pid='{{pid}}'><vcpus>{{vcpus}}</vcpus><domain type='qemu'>"
        f"<name>vm{{number:03}}</name><uuid>{{path.name}}</uuid></domain></domstatus>")
print(json.dumps({{path.name: json.loads(path.read_text()) for path in names.iterdir()}}))
"""
    return json.loads(machine.run("/usr/bin/python3", "-c", code))


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    needs_lookalike()
    folder = tmp_path_factory.mktemp("resctrl")
    install(folder)
    with booted(folder) as machine:
        machine.start("lookalike")
        machine.start("stand-ins")
        machine.processes = write_status_files(machine)
        wait_until(lambda: "info" in machine.run("ls", ROOT), lambda: machine.journal("lookalike"))
        # The second VM is measured by another user.
        tree = Resctrl(machine)
        for name in (THEIRS, EMPTY):
            machine.run("mkdir", f"{ROOT}/mon_groups/{name}")
        for tid in threads_of(machine, UUIDS[1]):
            machine.run("tee", f"{ROOT}/mon_groups/{THEIRS}/tasks", stdin=str(tid))
        machine.theirs = {name: tree.inode(name) for name in (THEIRS, EMPTY)}
        machine.start(AGENT)
        yield machine


@pytest.fixture
def tree(machine):
    return Resctrl(machine)


def threads_of(machine, uuid):
    pid, tids = machine.processes[uuid]
    return [pid, *tids]


def watch(machine, seconds, wanted=VMS):
    text = machine.run("/opt/whitepanda/bin/python", "/opt/watch.py", str(seconds), str(wanted), timeout_s=seconds + 20)
    seen, *rest = json.loads(text)
    return set(seen), *rest


def watch_beside_the_tree(machine, tree, group, *arguments):
    """Watch; also returns the bytes per second that the tree itself counts in a group meanwhile."""
    before, start = tree.counted(group, "mbm_total_bytes"), time.monotonic()
    found = watch(machine, *arguments)
    after, end = tree.counted(group, "mbm_total_bytes"), time.monotonic()
    return found, (after - before) / (end - start)


def theirs_is_untouched(machine, tree):
    assert tree.tasks(THEIRS) == sorted(threads_of(machine, UUIDS[1]))
    assert tree.tasks(EMPTY) == []
    assert {name: tree.inode(name) for name in machine.theirs} == machine.theirs  # and not made again


def occupancy_is_the_trees(machine, tree, group, name, reported):
    """Check that the agent tells what a VM's group occupies, all domains, as soon as they are full."""

    def compare():
        last = reported.pop() if reported else watch(machine, 0.1, VMS + 1)[3].get(name, [None])[-1]
        pairs.append((last, tree.counted(group, "llc_occupancy")))
        return pairs[-1][0] == pairs[-1][1] > L3_BYTES // 2

    pairs = []
    wait_until(compare, lambda: f"told, in the tree: {pairs}\n{machine.journal(AGENT)}")


@pytest.mark.long  # four turns of 10 s
def test_every_vm_gets_its_turn(machine, tree):
    (seen, reasons, bandwidth, occupancy), truly = watch_beside_the_tree(machine, tree, THEIRS, 120, VMS)
    assert len(seen) == VMS, (sorted(seen), reasons, machine.sources(), machine.journal(AGENT))
    # Less the root's and theirs; where a turn changes hands the new group is made before the old one goes.
    assert len(tree.mine()) <= RMIDS - RESERVED - 3 + 1
    assert tree.mine() <= {MINE + uuid for uuid in UUIDS} - {MINE + UUIDS[1]}
    assert mean(bandwidth["vm001"]) == pytest.approx(truly, rel=0.3)
    # Of single ticks, which the look-alike answers sooner or later.
    assert 1_000_000 < max(bandwidth["vm000"]) < 2.5 * MOST_BYTES_PER_S
    others = {name: max(values) for name, values in bandwidth.items() if name not in ("vm000", "vm001")}
    assert max(others.values()) < 100_000, others  # they sleep
    assert occupancy.keys() == {"vm001"}  # no turn is as long as what was moved needs to settle
    assert machine.show(AGENT, "NRestarts") == "0"
    theirs_is_untouched(machine, tree)
    occupancy_is_the_trees(machine, tree, THEIRS, "vm001", occupancy["vm001"][-1:])


def test_all_threads_of_a_vm_are_in_its_group(machine, tree):
    wait_until(tree.mine, "it made no groups")

    def complete():
        name = min(tree.mine())
        try:
            return tree.tasks(name) == sorted(threads_of(machine, name.removeprefix(MINE)))
        except AssertionError:
            return False  # its turn was over

    wait_until(complete, lambda: machine.journal(AGENT))


@pytest.mark.long
def test_ids_in_limbo_and_ids_taken_by_others_are_waited_for(machine, tree):
    machine.run("bash", "-c", f"for i in $(seq {RMIDS}); do mkdir {ROOT}/mon_groups/x$i || exit 0; done 2>/dev/null")
    taken = {name for name in tree.groups() if name.startswith("x")}
    assert taken  # the last mkdir said ENOSPC
    tree.knob("limbo_s", 1.5)
    seen, reasons, *_ = watch(machine, 3)
    assert 0 < len(seen) < VMS
    assert reasons["no_rmid"]
    assert tree.groups() >= taken
    assert machine.sources()["resctrl"][0] == "available"
    machine.run("bash", "-c", f"rmdir {ROOT}/mon_groups/x*")
    tree.knob("limbo_s", 0)
    waited = {f"vm{number:03}" for number in range(VMS)} - seen
    seen, reasons, *_ = watch(machine, 60, RMIDS)
    assert seen & waited, (reasons, machine.journal(AGENT))
    assert machine.show(AGENT, "NRestarts") == "0"
    theirs_is_untouched(machine, tree)


@pytest.mark.long
def test_killed_and_started_again(machine, tree):
    pid = machine.show(AGENT, "MainPID")
    machine.run("systemctl", "kill", "--signal=KILL", AGENT)
    left = wait_until(tree.mine, "it had no groups")
    stale = f"{MINE}11111111-0000-4000-8000-000000000000"  # of a VM that has ended meanwhile
    machine.run("mkdir", f"{ROOT}/mon_groups/{stale}")
    wait_until(lambda: machine.show(AGENT, "NRestarts") == "1", lambda: machine.journal(AGENT))
    wait_until(lambda: stale not in tree.groups(), lambda: machine.journal(AGENT))
    assert len(left) > 1
    assert machine.show(AGENT, "MainPID") not in {pid, "0"}
    seen, reasons, *_ = watch(machine, 120, RMIDS + 1)  # more than have groups at once
    assert len(seen) > RMIDS, (reasons, machine.journal(AGENT))
    theirs_is_untouched(machine, tree)


def test_a_stopped_agent_leaves_nothing(machine, tree):
    machine.run("systemctl", "stop", AGENT)
    assert tree.groups() == {THEIRS, EMPTY}
    theirs_is_untouched(machine, tree)
    assert "Traceback" not in machine.journal(AGENT)


# -- mutants: what the unit gives is needed ----------------------------------------------------------------------


@pytest.fixture
def drop_in(machine):
    """Stop the agent and change its unit; unchanged again afterwards."""

    def change(text):
        machine.run("systemctl", "stop", AGENT)
        machine.override(AGENT, text)
        machine.run("systemctl", "reset-failed", AGENT, check=False)

    yield change
    change(None)


def sampled(machine):
    """Start the agent and wait for what it says of the source and of the VMs."""
    machine.start(AGENT)
    return wait_until(
        lambda: (found := watch(machine, 2, 1))[1].keys() - {"vm_starting", "source_off"} and found,
        lambda: machine.journal(AGENT),
    )


@pytest.mark.long
def test_another_user_with_capabilities_moves_no_task(machine, tree, drop_in):
    """The kernel's rule, and so the look-alike's: only euid 0 or the task's owner. This agent believes it is root."""
    program = "import os; os.geteuid = lambda: 0; from whitepanda.common.cli import main; main()"
    names = " ".join(f"CAP_{name}" for name in CAPABILITIES.split())
    drop_in(
        f"User=daemon\nCapabilityBoundingSet={names}\nAmbientCapabilities={names}\nExecStart=\n"
        f'ExecStart=/opt/whitepanda/bin/python -c "{program}" agent run --config /etc/whitepanda/agent.toml'
    )
    seen, reasons, *_ = sampled(machine)
    status = machine.run("cat", f"/proc/{machine.show(AGENT, 'MainPID')}/status")
    assert f"CapEff:\t{0:016x}" not in status
    assert "no_permission" in reasons, (reasons, machine.journal(AGENT))
    assert seen <= {"vm001"}  # in others' group, so only read
    assert "groups cannot be made or filled: Operation not permitted" in machine.journal(AGENT)


@pytest.mark.long
def test_without_its_write_access_the_agent_only_reads_others_groups(machine, tree, drop_in):
    drop_in("ReadWritePaths=")
    seen, reasons, *_ = sampled(machine)
    assert "read-only here" in machine.sources()["resctrl"][1]
    assert "no_permission" in reasons
    assert seen <= {"vm001"}
    assert tree.groups() == {THEIRS, EMPTY}
    assert "cannot be removed" not in machine.journal(AGENT)  # nothing was made


@pytest.mark.long
def test_pqos_needs_more_of_the_unit_and_then_works_in_the_sandbox(machine, tree, drop_in):
    if not Path("/usr/lib/libpqos.so.4").exists() or importlib.util.find_spec("pqos") is None:
        pytest.skip("needs libpqos.so.4 and the package pqos (Debian: intel-cmt-cat; tools/bootstrap.py host)")
    text = (
        "BindReadOnlyPaths=/opt/filesystems:/proc/filesystems /opt/cpuinfo:/proc/cpuinfo\n"
        "ExecStart=\nExecStart=/opt/whitepanda/bin/whitepanda agent run --config /etc/whitepanda/pqos.toml\n"
        "Restart=no"
    )
    drop_in(f"{text}\nReadWritePaths=/run/lock")
    machine.run("systemctl", "start", AGENT, check=False, timeout_s=60)
    assert "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL in the unit" in machine.journal(AGENT)
    drop_in(f"{text}\nReadWritePaths=/run/lock\nCapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL")
    sampled(machine)
    # Until it has started a group for each that can have one.
    seen, reasons, *_ = wait_until(
        lambda: (found := watch(machine, 3, VMS))[0] and found, lambda: machine.journal(AGENT)
    )
    assert reasons["no_rmid"]
    assert "vm001" not in seen
    theirs_is_untouched(machine, tree)
    machine.run("systemctl", "stop", AGENT)
    assert tree.groups() == {THEIRS, EMPTY}, machine.journal(AGENT)
    assert "COS" not in machine.run("ls", ROOT)


@pytest.mark.long
def test_the_occupancy_of_a_vm_in_a_group_of_ours(machine, tree, drop_in):
    """Reported from its turn's sixth second on, so with turns that are longer."""
    drop_in("ExecStart=\nExecStart=/opt/whitepanda/bin/whitepanda agent run --config /etc/whitepanda/held.toml")
    machine.start(AGENT)
    wait_until(lambda: MINE + UUIDS[0] in tree.groups(), lambda: machine.journal(AGENT))
    group = MINE + UUIDS[0]
    occupancy_is_the_trees(machine, tree, group, "vm000", [])
    (_, _, bandwidth, occupancy), truly = watch_beside_the_tree(machine, tree, group, 10, VMS + 1)
    assert mean(bandwidth["vm000"]) == pytest.approx(truly, rel=0.3)
    assert len(occupancy) == len(tree.mine()) + 1
    assert {name for name, values in occupancy.items() if max(values)} == {"vm000", "vm001"}
    theirs_is_untouched(machine, tree)


@pytest.mark.long
def test_with_the_shipped_unit_it_works_again(machine, tree):
    machine.start(AGENT)
    wait_until(tree.mine, lambda: machine.journal(AGENT))
