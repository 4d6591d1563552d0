"""Small trees of /proc and /run/libvirt/qemu for the tests of the host's sources."""

from dataclasses import dataclass
from pathlib import Path

import pytest

STAT = (
    "{pid} ({comm}) {state} 1 1 1 0 -1 0 0 0 0 0 {utime} {stime} 0 0 20 0 6 0 {start} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
    "0 0 0 0 {guest} 0 0 0 0 0 0 0 0 0\n"
)
HOST_STAT = "cpu  1000 0 500 8000 100 0 0 10 300 0\ncpu0 1000 0 500 8000 100 0 0 10 300 0\nintr 1 2 3\n"
IO = (
    "rchar: 9000\nwchar: 8000\nsyscr: 70\nsyscw: 60\nread_bytes: {read}\nwrite_bytes: {written}\n"
    "cancelled_write_bytes: 0\n"
)


@dataclass
class HostTree:
    proc: Path
    state: Path

    @staticmethod
    def uuid_of(name: str) -> str:
        return f"00000000-0000-4000-8000-{name.encode().hex():0>12}"

    @classmethod
    def make(cls, folder: Path) -> "HostTree":
        tree = cls(folder / "proc", folder / "qemu")
        (tree.proc / "sys/kernel/random").mkdir(parents=True)
        (tree.proc / "sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
        (tree.proc / "stat").write_text(HOST_STAT)
        tree.state.mkdir()
        return tree

    def vm(self, name: str, pid: int, tids=(), *, kind="kvm", start=1000, state="running", extra="") -> None:
        """A running VM: its status file, its process, its vCPU threads."""
        self.status(name, pid, tids, kind=kind, state=state, extra=extra)
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        self.stat(folder / "stat", pid=pid, start=start, comm="qemu-system-x86")
        self.io(pid, 4096, 512)
        (folder / "cmdline").write_bytes(
            b"\0".join([b"/usr/bin/qemu", b"-name", f"guest={name}".encode(), b"-uuid", self.uuid_of(name).encode()])
        )
        for number, tid in enumerate(tids):
            self.thread(pid, tid, start=start, comm=f"CPU {number}/{'KVM' if kind == 'kvm' else 'TCG'}")

    def status(self, name: str, pid: int, tids=(), *, kind="kvm", state="running", extra="") -> None:
        vcpus = "".join(f"<vcpu id='{number}' pid='{tid}'/>" for number, tid in enumerate(tids))
        text = (
            f"<!-- generated --><domstatus state='{state}' reason='booted' pid='{pid}'><vcpus>{vcpus}</vcpus>"
            f"<domain type='{kind}'><name>{name}</name><uuid>{self.uuid_of(name)}</uuid>{extra}<vcpu>9</vcpu></domain>"
            "</domstatus>"
        )
        # As libvirt does it: a new file renamed over the old one.
        (self.state / f"{name}.new").write_text(text)
        (self.state / f"{name}.new").rename(self.state / f"{name}.xml")

    def thread(self, pid: int, tid: int, *, schedstat="7000000 3000000 12\n", comm="CPU 0/KVM", **fields) -> None:
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(comm + "\n")
        self.stat(folder / "stat", pid=tid, comm=comm, **fields)
        if schedstat is not None:
            (folder / "schedstat").write_text(schedstat)

    def io(self, pid: int, read: int, written: int) -> None:
        (self.proc / str(pid) / "io").write_text(IO.format(read=read, written=written))

    @staticmethod
    def stat(path: Path, *, pid, comm, state="S", utime=500, stime=100, start=1000, guest=450) -> None:
        path.write_text(
            STAT.format(pid=pid, comm=comm, state=state, utime=utime, stime=stime, start=start, guest=guest)
        )


@pytest.fixture
def host(tmp_path):
    """An empty host."""
    return HostTree.make(tmp_path)


@pytest.fixture(autouse=True)
def _patient(request, monkeypatch):
    """A busy machine's threads read many new VMs' command lines late; what hangs is tested where little is waited."""
    if request.path.name not in ("test_identity.py", "test_qemu_discovery.py"):
        monkeypatch.setattr("collector.inventory.inventory._PATIENCE_S", 20)
