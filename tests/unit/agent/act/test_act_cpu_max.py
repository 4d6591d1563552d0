"""VMs without libvirt are limited by `cpu.max` of their own control group: checked, read back, undone, never shared.

The tree is as systemd and Proxmox make it; a real kernel's cpu.max is in test_arm64_cpu_max.py, a real QEMU in
test_act_qemu.py.
"""

import errno
import os
from pathlib import Path

import pytest

from agent.act.audit import Audit
from agent.act.cpu_max import CpuMax, cpu_max_of
from agent.act.journal import Journal
from agent.act.records import ActError, RefusedError, Undo
from collector.base import VmIdentity
from collector.cgroup.tree import CgroupTree
from tests.unit.agent.act.test_act import KilledError, killed_at
from tests.unit.agent.act_fakes import OPERATOR, OTHER, VICTIM, VM, FakeBackend, FakeClock, asked, make

PROXMOX, BARE = "qemu.slice/101.scope", "system.slice/run-r7.scope"
PID = 500


class Host:
    """A host's /proc and its control groups."""

    def __init__(self, folder):
        self.proc, self.root = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.mounts(f"30 23 0:26 / {self.root} rw - cgroup2 cgroup2 rw,nsdelegate")

    def mounts(self, *lines):
        (self.proc / "self/mountinfo").write_text("".join(f"{line}\n" for line in lines))

    def group(self, path, limit="max 100000", pids=(PID,), pid=PID):
        """Put a process into a group; returns the file of its limit."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{one}\n" for one in pids))
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::/{path}\n")
        if limit:
            (folder / "cpu.max").write_text(f"{limit}\n")
        return folder / "cpu.max"

    def backend(self, manager="qemu", vcpus=4):
        return cpu_max_of(vm(manager, vcpus), CgroupTree(str(self.proc), str(self.root)))

    def actor(self, folder, clock=None, **changes):
        # What is of libvirt must not be asked here.
        listed = [vm(), VmIdentity(VICTIM, "db", 7, "e", (1,))]
        changes = {"listed": listed, "cpu_max": lambda _vm: self.backend()} | changes
        return make(folder, FakeBackend({}), clock=clock or FakeClock(), **changes)


def vm(manager="qemu", vcpus=4, uuid=VM, name="web", pid=PID):
    return VmIdentity(uuid, name, pid, "e", tuple(range(vcpus)), manager=manager)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.mark.parametrize(("manager", "group"), [("proxmox", PROXMOX), ("qemu", BARE)])
def test_a_limit_is_of_the_whole_vm_and_is_taken_back(host, manager, group):
    # Proxmox' scope is the VM's by its name, also with a helper such as swtpm in it.
    file = host.group(group, pids=(PID, 501) if manager == "proxmox" else (PID,))
    backend = host.backend(manager)
    before = backend.read(VM)
    after = backend.target(VM, 1.5)
    assert (before, after) == ("max 100000", "150000 100000")
    backend.write(VM, after)
    assert file.read_text() == "150000 100000\n"
    assert (backend.read(VM), backend.is_ours(after, after), backend.is_ours("1 2", after)) == (after, True, False)
    assert backend.command(VM, after) == f"echo '150000 100000' >{file}"
    with pytest.raises(ActError, match=r"can use at most 1\.5 cores already; give fewer \(value 1\.5\)"):
        backend.target(VM, 1.5)
    backend.write(VM, before)
    assert backend.read(VM) == "max 100000"
    with pytest.raises(ActError, match="can use at most 4 cores already; give fewer"):  # it has 4 vCPUs
        backend.target(VM, 4.0)
    assert CpuMax(backend.group).target(VM, 4.0) == "400000 100000"  # where their number is not known


def test_the_period_that_is_set_stays_and_the_kernels_least_quota_is_kept(host):
    host.group(BARE, "40000 20000")
    assert host.backend().target(VM, 0.5) == "10000 20000"
    assert host.backend().target(VM, 0.01) == "1000 20000"


def shared(host):
    host.group("user.slice/user-0.slice/session-1.scope", pids=(PID, 7))


def at_the_root(host):
    host.group("")


def in_v1(host):
    host.group(BARE)
    host.mounts(
        f"30 23 0:26 / {host.root} rw - cgroup2 cgroup2 rw",
        f"31 23 0:27 / {host.root}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
    )


def without_groups(host):
    host.group(BARE)
    host.mounts()


def controller_off(host):
    host.group(BARE, limit="")


def ended(_host):
    pass


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (shared, f"has no control group of its own: its process {PID} shares one with other processes"),
        (at_the_root, "has no control group of its own"),
        (in_v1, "this host's cpu controller is not in v2"),
        (without_groups, "this host's cpu controller is not in v2"),
        (controller_off, "has no cpu.max: the controller cpu is off there"),
        (ended, f"the control group of VM {VM} (process {PID}) is not known"),
    ],
)
def test_what_has_no_limit_of_its_own_is_refused_with_the_reason(host, tmp_path, made, said):
    made(host)
    with pytest.raises(ActError) as refused:
        host.actor(tmp_path / "act").apply(asked(), OPERATOR)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.read_text() for path in host.root.rglob("cpu.max")] in ([], ["max 100000\n"])


def test_what_the_sandbox_forbids_is_said_before_anything_is_done(host, monkeypatch):
    host.group(BARE)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ActError, match=r"is not writable: .* without ProtectControlGroups=yes"):
        host.backend().target(VM, 1.0)


def test_a_write_that_the_kernel_refuses_is_said(host, monkeypatch):
    host.group(BARE)

    def refuse(_fd, _data):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(ActError, match=r"cpu\.max: Invalid argument"):
        host.backend().write(VM, "1 1")


def test_a_write_that_has_not_come_to_be_is_seen_and_is_not_called_applied(host, tmp_path, monkeypatch):
    """The kernel's answer is read back: what it took is known, and not what was asked for."""
    file = host.group(BARE)
    actor = host.actor(tmp_path / "act")
    real = CpuMax.read
    wrong = iter(["max 100000", "max 100000", "max 100000", "1 100000"])
    monkeypatch.setattr(CpuMax, "read", lambda self, vm_: next(wrong, None) or real(self, vm_))
    with pytest.raises(ActError, match="'200000 100000' was written, and it is"):
        actor.apply(asked(), OPERATOR)
    actor.stop()
    assert (file.read_text(), actor.in_force()) == ("max 100000\n", ())


# --- by the service: in time, by hand, after a kill, and where others meddle ---


def test_the_service_limits_and_undoes_after_its_time(host, tmp_path):
    file, clock = host.group(PROXMOX), FakeClock()
    actor = host.actor(tmp_path / "act", clock, listed=[vm("proxmox"), VmIdentity(VICTIM, "db", 7, "e", (1,))])
    done = actor.apply(asked(vm="web", victim="db"), OPERATOR)
    assert (done.result, done.vm, done.before, done.after) == ("applied", VM, "max 100000", "200000 100000")
    assert file.read_text() == "200000 100000\n"
    (listed,) = actor.in_force()
    assert (listed.record.name, listed.record.victim, listed.record.group) == ("web", VICTIM, str(file.parent))
    clock.advance(900)
    assert [one.result for one in actor.tick()] == ["undone"]
    assert file.read_text() == "max 100000\n"


STEPS = [
    (Journal, "put", 1),
    (Audit, "write", 1),
    (CpuMax, "write", 1),
    (Journal, "put", 2),
    (Audit, "write", 2),
    (CpuMax, "write", 2),
    (Journal, "end", 1),
    (Audit, "write", 3),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__}.{step[1]} {step[2]}")
def test_after_a_kill_at_any_step_the_group_is_as_it_was_once_its_time_is_over(host, tmp_path, monkeypatch, step):
    assert survives(host, tmp_path / "act", monkeypatch, step)


def survives(host, folder, monkeypatch, step):
    file, clock = host.group(BARE), FakeClock()
    journal = Journal(folder)
    actor = host.actor(folder, clock, journal=journal)

    def live():
        actor.apply(asked(), OPERATOR)
        clock.advance(900)
        actor.tick()

    with monkeypatch.context() as patch:
        killed_at(patch, *step)
        with pytest.raises(KilledError):
            live()
    journal.close()
    clock.advance(900)
    again = host.actor(folder, clock)
    again.start()
    return file.read_text() == "max 100000\n" and again.in_force() == ()


def test_the_kills_catch_a_record_that_forgets_the_group(host, tmp_path, monkeypatch):
    """The mutant: after a kill nobody knows which file was written."""
    real = Journal.put

    def forgetful(self, record):
        real(self, type(record)(**{f: getattr(record, f) for f in record.__struct_fields__ if f != "group"}))

    monkeypatch.setattr(Journal, "put", forgetful)
    assert not survives(host, tmp_path / "act", monkeypatch, (Audit, "write", 2))


def test_a_group_that_outlives_its_vm_does_not_keep_the_limit(host, tmp_path):
    """A group made by hand stays: the next VM in it must not inherit what was set on the one before."""
    file = host.group("vms/a")
    actor = host.actor(tmp_path / "act")
    actor.apply(asked(), OPERATOR)
    (host.proc / str(PID) / "cgroup").unlink()
    (file.parent / "cgroup.procs").write_text("")
    assert [one.result for one in actor.undo(Undo(), OPERATOR)] == ["undone"]
    assert file.read_text() == "max 100000\n"


def test_a_group_that_is_gone_needs_no_undoing_and_one_of_others_is_left_alone(host, tmp_path):
    file = host.group(PROXMOX)
    actor = host.actor(tmp_path / "act")
    actor.apply(asked(), OPERATOR)
    file.unlink()
    assert [one.result for one in actor.undo(Undo(), OPERATOR)] == ["gone"]
    assert not file.exists()  # nothing is made where a group was
    with pytest.raises(ActError, match=r"no VM .* runs here any more"):
        CpuMax(str(file.parent)).write(VM, "1 1")
    assert not file.exists()


def test_what_qm_set_meanwhile_is_left_alone(host, tmp_path):
    file = host.group(PROXMOX)
    actor = host.actor(tmp_path / "act")
    actor.apply(asked(), OPERATOR)
    file.write_text("300000 100000\n")
    (done,) = actor.undo(Undo(vm="web"), OPERATOR)
    assert (done.result, file.read_text()) == ("left_alone", "300000 100000\n")


def test_a_vm_that_is_gone_is_undone_by_the_name_that_it_had(host, tmp_path):
    host.group(BARE)
    listed = [vm()]
    actor = host.actor(tmp_path / "act", listed=listed)
    actor.apply(asked(victim=""), OPERATOR)
    listed[:] = [vm(uuid=OTHER, name="web", pid=501)]
    with pytest.raises(RefusedError, match=rf"2 VMs are named 'web': {OTHER} .*, {VM} \(action 1\); give the UUID"):
        actor.undo(Undo(vm="web"), OPERATOR)
    listed.clear()
    assert [one.result for one in actor.undo(Undo(vm="web"), OPERATOR)] == ["undone"]


@pytest.mark.parametrize("manager", ["libvirt", "nova"])
def test_vms_of_libvirt_are_limited_by_libvirt(tmp_path, manager):
    """What libvirt does not know, it would overwrite or take for its own; `no_cpu_max` of the fakes fails."""
    backend = FakeBackend()
    make(tmp_path, backend, listed=[vm(manager)]).apply(asked(victim=""), OPERATOR)
    assert backend.states[VM] == "limit 2"


def test_a_vm_that_is_not_here_is_said_not_to_be(tmp_path):
    with pytest.raises(ActError, match=f"no VM {VM} runs here; `whitepanda vms` lists those that do"):
        make(tmp_path, FakeBackend(), listed=[]).apply(asked(), OPERATOR)


def test_a_record_of_before_there_were_groups_is_read(tmp_path):
    journal = Journal(tmp_path)
    make(tmp_path, FakeBackend(), journal=journal).apply(asked(), OPERATOR)
    journal.close()
    path = Path(tmp_path, "journal.json")
    text = path.read_text()
    path.write_text(text.replace(',"name":"vm-1","group":""', ""))
    assert path.read_text() != text
    assert Journal(tmp_path).records[0].group == ""
