"""`whitepanda act` on real QEMUs without libvirt: found by their processes, limited by `cpu.max`, undone after a kill.

The QEMUs are in control groups of the real kernel, which says whose is whose. The CPU controller may be under cgroup v1
here, so that the files of the groups are stand-ins; the real ones are in test_arm64_cpu_max.py.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from agent.act.records import ActError, Apply, RefusedError, Undo
from collector.cgroup.tree import parse_mounts
from tests.support.act_process import ActProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(240)]

UUIDS = [f"57500000-0000-4000-8000-0000000ac7{n:02x}" for n in range(5)]
VMID = "8107"
FREE = "max 100000\n"


class Host:
    """QEMUs in real groups; /proc as it is, but with a mount of the groups' stand-in files."""

    def __init__(self, folder):
        self.folder, self.proc, self.files = folder, folder / "proc", folder / "cgroup"
        self.run_dir = folder / "qemu-server"
        self.run_dir.mkdir()
        (self.proc / "self").mkdir(parents=True)
        for name in ("stat", "sys"):
            (self.proc / name).symlink_to(f"/proc/{name}")
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_bytes())
        self.v2 = next((Path(mount.point) for mount in mounts if not mount.controllers), None)
        if os.geteuid() != 0 or self.v2 is None:
            pytest.skip("needs root and a mounted cgroup v2: makes control groups")
        if shutil.which("qemu-system-x86_64") is None:
            pytest.skip("tests/lab/packages.sh did not install qemu-system-x86_64")
        # One folder of its own for this run: others test beside it.
        self.own = f"wp-act-{os.getpid()}"
        (self.proc / "self/mountinfo").write_text(f"30 23 0:26 / {self.files} rw - cgroup2 cgroup2 rw\n")
        self.pids, self.groups = [], [self.v2 / self.own]
        self.groups[0].mkdir()

    def start(self, number, name, group, *, vmid=""):
        """Start a QEMU that waits for its guest to be told to run; returns the file of its limit."""
        pid_file = self.run_dir / f"{vmid}.pid" if vmid else self.folder / f"{number}.pid"
        words = ["qemu-system-x86_64", "-S", "-nodefaults", "-display", "none", "-m", "64", "-machine", "accel=tcg"]
        words += ["-name", f"{name},debug-threads=on", "-uuid", UUIDS[number], "-pidfile", str(pid_file)]
        done = subprocess.run([*words, "-daemonize"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        pid = int(pid_file.read_text())
        self.pids.append(pid)
        self.join(pid, group)
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")
        return self.files / self.own / group / "cpu.max"

    def join(self, pid, group):
        """Put a process into a group of the kernel, and say so in the stand-in."""
        real, files = self.v2 / self.own / group, self.files / self.own / group
        if not real.is_dir():
            real.mkdir()
            self.groups.insert(0, real)
            files.mkdir(parents=True)
            (files / "cpu.max").write_text(FREE)
        (real / "cgroup.procs").write_text(f"{pid}\n")
        (files / "cgroup.procs").write_text((real / "cgroup.procs").read_text())

    def end(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in self.groups:
            wait_until(lambda group=group: _removed(group))


def _removed(group):
    """Remove a control group; False while its last process, already gone from its list, still ends."""
    try:
        group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    yield host
    host.end()


@pytest.fixture
def act(host):
    more = (
        f'[sources.procfs]\nroot = "{host.proc}"\n[sources.cgroup]\nroot = "{host.files}"\n'
        f'[sources.qemu]\nproxmox_run_dir = "{host.run_dir}"\n[sources.libvirt]\nstate_dir = "{host.folder}/none"\n'
    )
    service = ActProcess(host.folder, "dry_run = false\ncool_down_s = 0.0\nmax_share = 1.0", more)
    service.start()
    yield service
    service.end()


def test_bare_and_proxmox_vms_are_limited_by_name_and_undone_over_a_kill(host, act):
    # Both begin after the service: it looks for them when it is asked.
    bare = host.start(0, "scan", "bare")
    proxmox = host.start(1, "web", "proxmox", vmid=VMID)
    said = act.run("apply", "cap-cpu", "scan", "--cores", "0.5")
    assert (said.returncode, said.stderr) == (0, "")
    assert f"cap-cpu {UUIDS[0]}: applied (max 100000 -> 50000 100000)" in " ".join(said.stdout.split())
    assert act.run("apply", "cap-cpu", "web", "--cores", "0.6", "--victim", "scan").returncode == 0
    assert (bare.read_text(), proxmox.read_text()) == ("50000 100000\n", "60000 100000\n")
    act.end(signal.SIGKILL)
    assert (bare.read_text(), proxmox.read_text()) == ("50000 100000\n", "60000 100000\n")
    act.start()
    assert [one.record.name for one in act.in_force()] == ["scan", "web"]
    (done,) = act.ask(Undo(vm="scan")).done
    assert (done.result, bare.read_text(), proxmox.read_text()) == ("undone", FREE, "60000 100000\n")
    act.ask(Apply("cap-cpu", UUIDS[0], 0.5, 1.0))
    wait_until(lambda: bare.read_text() == FREE)  # its time is over
    assert act.end() == 0
    assert proxmox.read_text() == FREE  # a clean end undoes the rest
    assert act.audit()[-1]["why"] == "the service ends"


def test_what_is_ambiguous_or_shared_is_refused(host, act):
    twins = [host.start(n, "twin", f"twin{n}") for n in (2, 3)]
    with pytest.raises(RefusedError) as ambiguous:
        act.ask(Apply("cap-cpu", "twin", 0.5, 60.0))
    assert str(ambiguous.value).startswith("2 VMs are named 'twin': ")
    assert all(uuid in str(ambiguous.value) for uuid in UUIDS[2:4])
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            host.start(4, "guest", "shell")
            host.join(other.pid, "shell")
            with pytest.raises(ActError, match="has no control group of its own: its process"):
                act.ask(Apply("cap-cpu", "guest", 0.5, 60.0))
        finally:
            other.kill()
    with pytest.raises(RefusedError, match="no VM named 'nobody' runs here"):
        act.ask(Apply("cap-cpu", "nobody", 0.5, 60.0))
    limits = [path.read_text() for path in host.files.rglob("cpu.max")]
    assert (limits, len(twins)) == ([FREE] * 3, 2)
    assert act.in_force() == ()
