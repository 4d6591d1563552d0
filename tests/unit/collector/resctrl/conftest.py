"""A resctrl in a folder, made from the fixture trees, that does what the kernel does when groups and tasks change."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from collector.inventory.inventory import Inventory
from collector.resctrl.source import ResctrlSource
from collector.resctrl.tree import Place, Tree

FIXTURES = Path(__file__).parents[3] / "fixtures" / "resctrl"
S = 1_000_000_000


class KernelTree(Tree):
    """The kernel's side. `threads` is where each task is; those not in it are nowhere (ESRCH)."""

    def __init__(self, root: Path, proc: Path, machine: str) -> None:
        super().__init__(str(root), str(proc))
        self.proc = proc
        self.files = dict(line.split("\t", 1) for line in (FIXTURES / f"{machine}.tree").read_text().splitlines())
        self.threads: dict[int, Place] = {}
        self.folders: dict[int, Path] = {}
        self.limbo = 0
        self.fail: dict[str, int] = {}  # errno of mkdir or write
        self.log: list[str] = []
        self.tells = True
        self._written: dict[Path, str] = {}
        for path, text in self.files.items():
            self.put(root / path, text)
        (root / "mon_groups").mkdir()
        (proc / "filesystems").write_text("nodev\tsysfs\nnodev\tresctrl\n")

    @staticmethod
    def put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("|", "\n") + "\n" if text else "")

    def value(self, place: Place, domain: str, event: str, text: object) -> None:
        (Path(self.path(place)) / f"mon_data/mon_L3_{domain}/{event}").write_text(f"{text}\n")

    def everywhere(self, place: Place, occupancy: int, total: int, local: int) -> None:
        for domain in self.domains():
            for event, value in zip(
                ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"), (occupancy, total, local), strict=True
            ):
                self.value(place, domain, event, value)

    def group(self, place: Place) -> Place:
        """A control or monitoring group, as another user makes it."""
        folder = Path(self.path(place))
        folder.mkdir()
        for path in self.files:
            if path.startswith("mon_data/"):
                self.put(folder / path, "0")
        self._written.pop(folder / "tasks", None)
        self._write_if_new(folder / "tasks", "")
        if not place.mon:
            (folder / "mon_groups").mkdir()
        return place

    def put_task(self, place: Place, tid: int) -> None:
        self.threads[tid] = place
        self.publish()

    def publish(self) -> None:
        for place in self.places():
            tids = [
                tid
                for tid, where in self.threads.items()
                if where == place or (not place.mon and where.ctrl == place.ctrl)
            ]
            self._write_if_new(Path(self.path(place)) / "tasks", "".join(f"{tid}\n" for tid in tids))
        if not self.tells:
            return
        for tid, place in self.threads.items():
            text = f"res:{place.ctrl or '/'}\nmon:{place.mon}\n"
            if self.folders[tid].exists():
                self._write_if_new(self.folders[tid] / "cpu_resctrl_groups", text)
        (self.proc / "self").mkdir(exist_ok=True)
        self._write_if_new(self.proc / "self/cpu_resctrl_groups", "res:/\nmon:\n")

    def _write_if_new(self, path: Path, text: str) -> None:
        """Most of it is as it was: tests of hundreds of turns would only write files."""
        if self._written.get(path) != text or not path.exists():
            path.write_text(text)
            self._written[path] = text

    def make(self, place: Place) -> None:
        if "mkdir" in self.fail:
            raise OSError(self.fail["mkdir"], os.strerror(self.fail["mkdir"]))
        parent = Path(self.path(Place(place.ctrl)))
        if not parent.exists():
            raise FileNotFoundError(errno.ENOENT, "no such group", str(parent))
        if Path(self.path(place)).exists():
            raise FileExistsError(errno.EEXIST, "exists")
        used = len(self.places())
        rmids = int((self.root / "info/L3_MON/num_rmids").read_text())
        if used + self.limbo >= rmids:
            code = errno.EBUSY if self.limbo else errno.ENOSPC
            raise OSError(code, os.strerror(code))
        self.group(place)
        self.log.append(f"mkdir {place.name}")

    def remove(self, place: Place) -> None:
        assert place.own
        if not Path(self.path(place)).exists():
            return
        shutil.rmtree(self.path(place))
        for tid, where in self.threads.items():
            if where == place:
                self.threads[tid] = Place(place.ctrl)
        self.publish()
        self.log.append(f"rmdir {place.name}")

    def _write(self, fd: int, text: bytes) -> None:
        if "write" in self.fail:
            raise OSError(self.fail["write"], os.strerror(self.fail["write"]))
        folder = Path(f"/proc/self/fd/{fd}").readlink().parent.relative_to(self.root).parts
        place = Place(folder[0] if folder[0] != "mon_groups" else "", folder[-1])
        tid = int(text)
        if tid not in self.threads:
            raise ProcessLookupError(errno.ESRCH, "no such task")
        if self.threads[tid].ctrl != place.ctrl:
            raise OSError(errno.EINVAL, "Can't move task to different control group")
        self.log.append(f"task {tid} {place.name}")
        self.threads[tid] = place
        self.publish()


class Machine:
    """A host with a resctrl of its own, its VMs, and a clock that moves by hand."""

    def __init__(self, host, root: Path, machine: str) -> None:
        self.host = host
        self.kernel = KernelTree(root, host.proc, machine)
        self.now_ns = 1000 * S
        self.sources: list[ResctrlSource] = []

    def vm(self, name: str, pid: int, vcpus, others=(), *, start: int = 1000) -> str:
        self.host.vm(name, pid, vcpus, start=start)
        for tid in (pid, *others):
            self.host.thread(pid, tid, start=start)
        for tid in (pid, *vcpus, *others):
            self.kernel.folders[tid] = self.host.proc / str(pid) / "task" / str(tid)
            self.kernel.threads[tid] = Place("")
        self.kernel.publish()
        return self.host.uuid_of(name)

    def stop(self, name: str, pid: int) -> None:
        (self.host.state / f"{name}.xml").unlink()
        for path in (self.host.proc / str(pid) / "task").iterdir():
            self.kernel.threads.pop(int(path.name), None)
        shutil.rmtree(self.host.proc / str(pid))
        self.kernel.publish()

    def source(self, *, machine_tells: bool = True, **arguments) -> ResctrlSource:
        self.kernel.tells = machine_tells
        self.kernel.publish()
        for path in () if machine_tells else self.host.proc.rglob("cpu_resctrl_groups"):
            path.unlink()
        source = ResctrlSource(
            Inventory(str(self.host.state), str(self.host.proc)),
            root=str(self.kernel.root),
            proc_root=str(self.host.proc),
            tree=self.kernel,
            clock=lambda: self.now_ns,
            **arguments,
        )
        source.open()
        self.sources.append(source)
        return source

    def tick(self, source: ResctrlSource, seconds: float = 1.0):
        self.now_ns += int(seconds * S)
        return source.sample().vms

    def own_groups(self) -> list[str]:
        return sorted(place.name for place in self.kernel.places() if place.own)

    def open_files(self) -> int:
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            try:
                target = link.readlink()
            except OSError:
                continue
            found += target.is_relative_to(self.kernel.root) or target.is_relative_to(self.host.proc)
        return found


@pytest.fixture
def machine(host, tmp_path, monkeypatch):
    """Make a machine by the name of its fixture tree."""
    made = []
    read = os.pread

    def pread(fd, size, offset):
        # Files of a removed group answer so, where those of a folder go on.
        if os.fstat(fd).st_nlink == 0:
            raise OSError(errno.ENODEV, "No such device")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def make(name: str = "skylake-sp-2s") -> Machine:
        made.append(Machine(host, tmp_path / "resctrl", name))
        return made[-1]

    yield make
    for one in made:
        for source in one.sources:
            source.close()
