"""What doctor says of the VMs that are here: the causes of what the agent cannot tell of them, and no names."""

import os
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import msgspec
import pytest

from agent.config import Sources
from agent.doctor.vms import examine_vms
from collector.base import DiskDevice, Reason, SourceError, VmIdentity
from collector.qemu.cmdline import CommandLine
from collector.qemu.discovery import QemuFinder
from collector.qemu.launch import Launch


class Finder(QemuFinder):
    """Knows how VMs were started because it was reported."""

    def __init__(self):
        self.launches = {}

    def launch(self, vm_uuid, epoch):
        return self.launches.get(vm_uuid)


class Host:
    def __init__(self, folder):
        self.folder, self.finder, self.vms = folder, Finder(), []
        self.inventory = SimpleNamespace(vms=lambda: tuple(self.vms), finders=(self.finder,))
        self.sources = Sources()
        self.write("proc/self/mountinfo", f"25 1 0:22 / {folder}/cg rw - cgroup2 cgroup2 rw\n")
        procfs = msgspec.structs.replace(self.sources.procfs, root=str(folder / "proc"))
        self.sources = msgspec.structs.replace(self.sources, procfs=procfs)

    def write(self, path, text=""):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def vm(self, pid, *, io=True, group=True, tids=(1,), manager="qemu", qmp=(), uid=None, **settings):
        self.vms.append(VmIdentity(f"u{pid}", f"secret{pid}", pid, "e", tids, manager=manager, **settings))
        if manager != "libvirt":
            uid = os.getuid() if uid is None else uid
            paths = tuple(str(self.folder / name) for name in qmp)
            command = CommandLine(libvirt=manager == "session")
            self.finder.launches[f"u{pid}"] = Launch(pid, 1, command, "", paths, (), 0, uid)
        self.write(f"proc/{pid}/cgroup", f"0::/machine.slice/machine-qemu-{pid}.scope\n")
        if io:
            self.write(f"proc/{pid}/io", "read_bytes: 0\n")
        if group:
            self.write(f"cg/machine.slice/machine-qemu-{pid}.scope/io.stat")

    def checks(self):
        found = {check.name: check for check in examine_vms(self.sources, self.inventory)}
        assert not any("secret" in check.detail or str(self.folder) in check.detail for check in found.values())
        return {name: (check.state, check.reason, check.detail) for name, check in found.items()}


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path has 108 bytes
    return Host(tmp_path)


@pytest.fixture
def listen(tmp_path):
    with ExitStack() as stack:

        def make(name, mode=0o755):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(name)
            (tmp_path / name).chmod(mode)

        yield make


def test_without_vms_nothing_is_said(host):
    assert host.checks() == {}


def test_a_list_that_fails_is_reported_by_the_sources(host):
    def fails():
        raise SourceError("no")

    host.inventory.vms = fails
    assert host.checks() == {}


@pytest.mark.parametrize(
    ("io", "group", "state", "words"),
    [
        (True, True, "ok", "io.stat of the control groups of 2 VMs"),
        (False, True, "ok", "io.stat of the control groups of 2 VMs"),
        (True, False, "info", "of 1 of 2 VMs (process 600) by /proc/PID/io alone, which takes CAP_SYS_PTRACE: under"),
        (False, False, "missing", "of 1 of 2 VMs (process 600) neither /proc/PID/io nor io.stat"),
    ],
)
def test_storage(host, io, group, state, words):
    host.vm(500, manager="libvirt")
    host.vm(600, manager="libvirt", io=io, group=group)
    host.vm(700, manager="libvirt", io=False, group=False, disks=(DiskDevice("vda", "network"),))  # librbd
    ((name, (found, reason, detail)),) = host.checks().items()
    assert (name, found, detail[: len(words)]) == ("VMs: storage", state, words)
    assert reason is (Reason.NO_PERMISSION if state == "missing" else Reason.UNSPECIFIED)
    off = msgspec.structs.replace(host.sources.procfs, mode="off")
    host.sources = msgspec.structs.replace(host.sources, procfs=off)
    assert host.checks() == {}


def test_sockets_that_are_ours_to_use(host, listen):
    listen("a", 0o777)
    host.vm(500, qmp=("none", "a"))
    state, _, detail = host.checks()["VMs: QMP"]
    hidden = str(host.folder).startswith("/tmp/")
    assert state == ("info" if hidden else "ok")
    assert "the shipped unit not that of 1 of 1 VM (process 500)" in detail if hidden else "1 VM" in detail


def test_sockets_that_are_not(host, listen, monkeypatch):
    host.vm(500, qmp=("none",))
    assert host.checks()["VMs: QMP"] == (
        "missing",
        Reason.NOT_VISIBLE,
        (
            "the socket of 1 of 1 VM (process 500): No such file or directory; "
            "is the socket where the agent can see it (not in /tmp or /home)?"
        ),
    )
    listen("a")
    host.vms.clear()
    host.vm(500, qmp=("a",))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may always
    state, reason, detail = host.checks()["VMs: QMP"]
    assert (state, reason) == ("missing", Reason.NO_PERMISSION)
    assert detail.endswith("Permission denied; the agent's user needs write access to the socket")


def test_vms_without_a_socket(host):
    host.vm(500)
    host.vm(600, manager="session")  # of another libvirt: its own
    host.vm(700, manager="libvirt")
    state, reason, detail = host.checks()["VMs: QMP"]
    assert (state, reason) == ("missing", Reason.NOT_VISIBLE)
    assert detail.startswith("1 of 1 VM (process 500) without a socket for us, so without state and disk counters; ")


def test_vcpu_threads(host, listen):
    host.vm(500, tids=(501,))
    assert host.checks()["VMs: vCPU threads"][0] == "ok"
    listen("a")
    host.vm(600, tids=(), qmp=("a",))
    assert host.checks()["VMs: vCPU threads"] == (
        "ok",
        Reason.UNSPECIFIED,
        "1 of 2 VMs (process 600) are asked for them by QMP",
    )
    for pid in range(700, 706):
        host.vm(pid, tids=(), qmp=("none",) if pid % 2 else ())
    state, reason, detail = host.checks()["VMs: vCPU threads"]
    assert (state, reason) == ("missing", Reason.NOT_VISIBLE)
    assert detail.startswith(
        "6 of 8 VMs (process 700, 701, 702, 703, 704, ...) identify them neither by name nor by QMP"
    )
