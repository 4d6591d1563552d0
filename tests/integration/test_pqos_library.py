"""The pqos source with the real libpqos on the look-alike resctrl.

The registers ("msr") cannot be tried without the hardware. In "os" the library reads the same tree that we could, so
that its numbers agree with the tree's is about our use of it, not about the hardware.
"""

import ctypes
import importlib.util

import pytest

from tests.support.resctrl_ns import run_inside

pytestmark = pytest.mark.integration

HEAD = '''
import logging
from collector.base import Reason, VmIdentity
from collector.pqos.source import PqosSource

logging.disable()
PYTHON = "/usr/bin/python3"  # ours need not be readable for another user
BUSY = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,)).start()
while True:
    pass
"""

class Inventory:
    def __init__(self, *vms):
        self.list = list(vms)
    def vms(self):
        return tuple(self.list)

def threads(pid):
    return sorted(int(tid) for tid in os.listdir(f"/proc/{pid}/task"))

def start(name):
    process = subprocess.Popen([PYTHON, "-c", BUSY, "-uuid", name], user=4711)
    atexit.register(process.kill)
    while len(threads(process.pid)) < 4:
        time.sleep(0.02)
    return process, VmIdentity(name, name, process.pid, "e1", tuple(threads(process.pid)))

def groups():
    return sorted(path.name for path in R.glob("mon_groups/*"))

def control_groups():
    return sorted(path.name for path in R.glob("COS*"))

def members(group):
    return sorted(int(tid) for tid in (R / "mon_groups" / group / "tasks").read_text().split())
'''


@pytest.fixture(autouse=True)
def _needs_libpqos():
    if importlib.util.find_spec("pqos") is None:
        pytest.skip("needs the package pqos: tools/bootstrap.py host")
    try:
        ctypes.CDLL("libpqos.so.4")
    except OSError:
        pytest.skip("needs libpqos.so.4 (Debian: intel-cmt-cat)")


def test_samples_of_real_processes_are_those_of_the_tree():
    run_inside(
        HEAD
        + """
one, vm1 = start("vm1")
two, vm2 = start("vm2")
inventory = Inventory(vm1, vm2)
skipped_ns = 0
source = PqosSource(inventory, clock=lambda: time.monotonic_ns() + skipped_ns)
probe = source.probe()
assert probe.available and control_groups() == [], probe
source.open()
first = source.sample().vms
assert groups() == [f"pqos-{os.getpid()}-0", f"pqos-{os.getpid()}-1"]
assert members(groups()[0]) == threads(one.pid) and members(groups()[1]) == threads(two.pid)
os.kill(two.pid, 19)
time.sleep(0.5)
skipped_ns = 10**10  # time enough to settle
second = source.sample().vms
busy, before = second["vm1"].rdt.domains["all"], first["vm1"].rdt.domains["all"]
tree = {e: int((R / "mon_groups" / groups()[0] / "mon_data/mon_L3_00" / e).read_text())
        for e in ("mbm_total_bytes", "mbm_local_bytes")}
assert before.llc_occupancy_bytes is None and before.reason is Reason.VM_STARTING
assert before.mbm_total_bytes < busy.mbm_total_bytes <= tree["mbm_total_bytes"], (before, busy, tree)
assert 0 < busy.mbm_local_bytes <= tree["mbm_local_bytes"] and busy.llc_occupancy_bytes > 0
assert second["vm1"].rdt.opened == first["vm1"].rdt.opened
third = source.sample().vms["vm2"].rdt.domains["all"]
assert third.mbm_total_bytes == source.sample().vms["vm2"].rdt.domains["all"].mbm_total_bytes  # it is stopped

# A value that is not there is no value, and no burst when it returns.
value = R / "mon_groups" / groups()[0] / "mon_data/mon_L3_00/mbm_total_bytes"
os.setxattr(value, "user.answer", b"Unavailable")
assert source.sample().vms["vm1"].absent["rdt"] is Reason.RDT_UNAVAILABLE
os.setxattr(value, "user.answer", b"")
again = source.sample().vms["vm1"].rdt
assert again.opened == first["vm1"].rdt.opened and again.domains["all"].mbm_total_bytes >= busy.mbm_total_bytes

# Somebody removes a group: it is made anew, with new counters.
(R / "mon_groups" / groups()[0]).rmdir()
for _ in range(5):
    assert source.sample().vms["vm1"].absent["rdt"] is Reason.RDT_UNAVAILABLE
anew = source.sample().vms["vm1"].rdt
assert anew.opened > again.opened and members(f"pqos-{os.getpid()}-2") == threads(one.pid)

# A VM ends.
two.kill(); two.wait()
inventory.list.remove(vm2)
source.sample()
assert groups() == [f"pqos-{os.getpid()}-2"]
source.close()
assert groups() == [] and control_groups() == []
""",
        "--domains", "00", "--closids", "4",
    )  # fmt: skip


def test_ids_run_out_and_others_groups_are_let_alone():
    run_inside(
        HEAD
        + """
(R / "COS1").mkdir()
(R / "mon_groups/theirs").mkdir()
other, foreign = start("foreign")
for tid in threads(other.pid):
    (R / "mon_groups/theirs/tasks").write_text(str(tid))
vms = [start(f"vm{n}")[1] for n in range(4)]
inventory = Inventory(foreign, *vms)
source = PqosSource(inventory)
# 6 monitoring ids: the root's, theirs, COS1, COS2, and so two of ours.
for _ in range(2):
    found = source.sample().vms
    assert [found[vm.uuid].absent.get("rdt") for vm in inventory.list] == [
        Reason.RDT_UNAVAILABLE, None, None, Reason.NO_RMID, Reason.NO_RMID
    ], found
assert members("theirs") == threads(other.pid)
assert len(groups()) == 3
source.close()
assert groups() == ["theirs"] and members("theirs") == threads(other.pid)
assert control_groups() == ["COS1"]
""",
        "--domains", "00", "--closids", "3", "--rmids", "6",
    )  # fmt: skip


def test_threads_that_begin_and_end_and_a_killed_agent():
    run_inside(
        HEAD
        + """
code = '''
import sys, threading, time
for line in sys.stdin:
    threading.Thread(target=time.sleep, args=(float(line),)).start()
'''
vm = subprocess.Popen([PYTHON, "-c", code], stdin=subprocess.PIPE, user=4711, text=True)
atexit.register(vm.kill)
identity = VmIdentity("vm", "vm", vm.pid, "e1", (vm.pid,))
def threads_are(number):
    while len(threads(vm.pid)) != number:
        time.sleep(0.02)
def begin(seconds):
    vm.stdin.write(f"{seconds}\\n"); vm.stdin.flush()
source = PqosSource(Inventory(identity))
opened = source.sample().vms["vm"].rdt.opened
begin(60); begin(0.6); threads_are(3)
assert source.sample().vms["vm"].rdt.opened == opened
assert members(groups()[0]) == threads(vm.pid), (members(groups()[0]), threads(vm.pid))
threads_are(2)
begin(60); threads_are(3)
source._list_at_ns = 0
assert source.sample().vms["vm"].rdt.opened == opened
assert members(groups()[0]) == threads(vm.pid), (members(groups()[0]), threads(vm.pid))

# Another agent, that is killed: its groups are removed at the next start, a living one's are not.
(R / f"mon_groups/pqos-{os.getppid()}-0").mkdir()
source.close()
child = os.fork()
if child == 0:
    PqosSource(Inventory(identity)).sample()
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
theirs = [name for name in groups() if name.startswith(f"pqos-{child}-")]
assert len(theirs) == 1 and len(groups()) == 2, groups()
again = PqosSource(Inventory(identity))
assert again.sample().vms["vm"].rdt is not None
left = groups()
assert theirs[0] not in left and len(left) == 2, left
again.close()
assert groups() == [f"pqos-{os.getppid()}-0"]
""",
        "--domains", "00", "--closids", "2",
    )  # fmt: skip


def test_a_control_group_of_others_is_in_its_way():
    run_inside(
        HEAD
        + """
(R / "libvirt-1-db").mkdir()
probe = PqosSource(Inventory()).probe()
assert not probe.available and "libvirt-1-db: libpqos wants all control groups" in probe.detail, probe
assert control_groups() == []
"""
    )
