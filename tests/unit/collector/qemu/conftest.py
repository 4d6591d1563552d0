"""A small /proc with QEMUs that libvirt does not know, and Proxmox' run directory."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.base import Stamp
from collector.qemu.discovery import QemuFinder

STAT = "{pid} ({comm}) {state} 1 1 1 0 -1 0 0 0 0 0 5 1 0 0 20 0 6 0 {start} " + "0 " * 20 + "4 0 0 0 0 0 0 0 0 0\n"
UUID = "57500000-0000-4000-8000-0000000000{:02x}"
NO_TAPS = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"


@dataclass
class QemuHost:
    folder: Path
    now_ns: int = 10**12

    @property
    def proc(self):
        return self.folder / "proc"

    @property
    def run_dir(self):
        return self.folder / "run"

    def clock(self):
        return self.now_ns

    def clocks(self):
        return Stamp(self.now_ns, self.now_ns + 7)

    def finder(self, **settings):
        """A finder that looks while it is asked, so that a test knows when."""
        settings = {"start": lambda work: work(), **settings}
        return QemuFinder(str(self.proc), str(self.run_dir), self.clock, **settings)

    def later(self, seconds):
        self.now_ns += round(seconds * 1e9)

    def process(self, pid, command, *, start=1000, state="S", threads=("qemu", "call_rcu", "CPU 0/KVM"), uid=0):
        """A process; `threads` are the names of its threads, the first with its own number."""
        folder = self.proc / str(pid)
        (folder / "task").mkdir(parents=True, exist_ok=True)
        words = [word.encode() for word in shlex.split(command)]
        (folder / "cmdline").write_bytes(b"".join(word + b"\0" for word in words))
        (folder / "status").write_text(f"Name:\tqemu\nUid:\t{uid}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
        self.state(pid, state, start=start)
        for number, name in enumerate(threads):
            self.thread(pid, pid + number, name)

    def state(self, pid, state, *, start=1000):
        (self.proc / str(pid) / "stat").write_text(STAT.format(pid=pid, comm="qemu", state=state, start=start))

    def thread(self, pid, tid, name):
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")

    def end(self, pid):
        folder = self.proc / str(pid)
        folder.rename(self.folder / f"ended-{pid}-{self.now_ns}")

    def proxmox(self, vmid, pid, extra="", **arguments):
        command = f"/usr/bin/kvm -id {vmid} -name vm-{vmid},debug-threads=on -pidfile {self.run_dir}/{vmid}.pid {extra}"
        self.process(pid, command, **arguments)
        self.run_dir.mkdir(exist_ok=True)
        (self.run_dir / f"{vmid}.pid").write_text(f"{pid}\n")

    def devices(self, taps, place="net/dev"):
        """What /proc/net/dev says: per tap what the host received and sent, in bytes."""
        lines = [f"  {name}: {rx} 11 0 12 0 0 0 0 {tx} 13 0 14 0 0 0 0\n" for name, (rx, tx) in taps.items()]
        path = self.proc / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NO_TAPS + "".join(lines))


@pytest.fixture
def qemu_host(host):
    """Without any VM; `host` is the same one, as libvirt's tests see it."""
    qemus = QemuHost(host.proc.parent)
    qemus.devices({})
    return qemus
