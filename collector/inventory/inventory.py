"""Which VMs run here: libvirt's, from its own status files, and VMs that other finders know.

libvirt keeps `<state_dir>/NAME.xml` per running VM with the QEMU process, the vCPU threads and the whole domain
definition, and replaces it (by rename) at each change. The files are there while libvirtd hangs or is dead. A file is
parsed again only when it changed.
"""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Collection, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from collector.base import NS_PER_S, Probe, Reason, SourceError, VmIdentity
from collector.files import GONE, read_once, reason_of
from collector.inventory.coverage import Coverage
from collector.inventory.pci import passed_interfaces
from collector.inventory.process_watch import ProcessWatch
from collector.inventory.status_file import StatusError, VmStatus, parse_status
from collector.proc_parse import parse_life
from whitepanda.common.files.bounded import read_bounded

_log = logging.getLogger("whitepanda.identity")

_RESCAN_NS = 10 * NS_PER_S
_STAT_BYTES = 1024
# How long one list waits for the command lines of new processes, and how many may hang.
_PATIENCE_S = 0.5
_MAX_HUNG = 16
_MAX_STATUS_BYTES = 2 << 20  # of a VM with a thousand disks: 1 MB; to parse it takes up to 40 times its size
_MAX_ARGUMENTS_BYTES = 1 << 20
# Opening something that is not a status file: a folder, a pipe, a ring of links, too large.
_NO_STATUS = frozenset({errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP, errno.EFBIG})


def _read_in_thread(path: Path) -> Future[bytes]:
    """Read a process's command line, which hangs while the process is wedged. Raises RuntimeError without a thread."""
    text: Future[bytes] = Future()

    def read() -> None:
        try:
            with path.open("rb") as file:
                found = file.read(_MAX_ARGUMENTS_BYTES)
            text.set_result(found)
        except OSError as error:
            text.set_exception(error)

    threading.Thread(target=read, name="cmdline", daemon=True).start()
    return text


@dataclass(slots=True)
class _Entry:
    """A status file as last seen. `identity` is reused while file and process stay the same.

    `start` is the start of the process that its arguments have shown to be this VM's. `arguments` are being read, of a
    process with this start. `watch` is of the VM's process, from before it was checked.
    """

    stamp: tuple[int, int, int]
    status: VmStatus | None
    stat_path: str
    start: bytes = b""
    arguments: tuple[bytes, Future[bytes]] | None = None
    identity: VmIdentity | None = None
    watch: int | None = None


class Finder(Protocol):
    """Finds VMs that libvirt's status files do not have."""

    def probe(self) -> Probe:
        """Say whether it can find VMs, why not, and the remedy. Has no side effects and never raises."""

    def vms(self, libvirt_pids: Collection[int]) -> Sequence[VmIdentity]:
        """Return its living VMs, without libvirt's processes. Never raises or blocks."""


class Inventory:
    """The VMs of this host. One is shared by all sources; `vms` may be called from any thread.

    Libvirt's status files are in `state_dir`; `finders` find other VMs, and of two VMs with one UUID libvirt's is
    returned. A list up to `fresh_s` old is returned again, because the sources of one tick ask for it together.
    """

    def __init__(
        self,
        state_dir: str = "/run/libvirt/qemu",
        proc_root: str = "/proc",
        finders: Sequence[Finder] = (),
        *,
        fresh_s: float = 0.0,
    ) -> None:
        self.finders = tuple(finders)
        self._state_dir = Path(state_dir)
        self._proc = Path(proc_root)
        #: Where /proc is.
        self.proc_root = proc_root
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._watch = ProcessWatch(proc_root)
        self._fresh_ns = int(fresh_s * 1e9)
        self._listed: tuple[VmIdentity, ...] = ()
        self._listed_ns: int | None = None
        self._scanned_ns = -_RESCAN_NS
        self._patient_until_ns = 0
        # Only if the folder was quiet when it was scanned.
        self._folder_mtime_ns: int | None = None
        self._warned: dict[str, str] = {}
        self._twins: set[int] = set()  # processes left out because libvirt's VM has their UUID
        #: VMs whose interfaces Open vSwitch covers, so that libvirt is not asked for them.
        self.interfaces_covered = Coverage()

    def probe(self) -> Probe:
        """Say whether VMs can be found. A host on which libvirt has not run yet has none of libvirt's."""
        probes = [self._probe_status_files(), *(finder.probe() for finder in self.finders)]
        wrong = [probe for probe in probes if not probe.available]
        shown = wrong or probes
        return Probe(not wrong, "; ".join(probe.detail for probe in shown), shown[0].reason)

    def _probe_status_files(self) -> Probe:
        try:
            for path in self._state_files():
                with contextlib.suppress(FileNotFoundError):
                    read_bounded(path, _MAX_STATUS_BYTES)
        except FileNotFoundError:
            return Probe(available=True, detail=f"no {self._state_dir} (yet): libvirt has started no VM")
        except OSError as error:
            if error.errno not in _NO_STATUS:  # such a file costs that VM alone, which is logged when it is read
                detail = f"{error.filename}: {error.strerror}; run the agent as root"
                return Probe(available=False, detail=detail, reason=Reason.NO_PERMISSION)
        return Probe(available=True, detail=f"VMs by the status files in {self._state_dir}")

    def vms(self) -> tuple[VmIdentity, ...]:
        """Return the VMs whose QEMU process lives: libvirt's by name, then the others.

        The list is the same object until it changes. A malformed file costs only its VM, and one line in the log.
        Raises SourceError if the folder of the status files cannot be listed.
        """
        with self._lock:
            now_ns = time.monotonic_ns()
            if self._listed_ns is None or now_ns - self._listed_ns >= self._fresh_ns:
                listed = self._list()
                if listed != self._listed:
                    self._listed = listed
                self._listed_ns = now_ns
            return self._listed

    def _list(self) -> tuple[VmIdentity, ...]:
        self._refresh()
        ended = self._watch.ended()
        if ended:
            for entry in self._entries.values():
                if entry.watch in ended:
                    self._unwatch(entry)
        self._patient_until_ns = time.monotonic_ns() + int(_PATIENCE_S * NS_PER_S)
        found = (self._identify(name, entry) for name, entry in sorted(self._entries.items()))
        vms = [identity for identity in found if identity is not None]
        pids = {vm.pid for vm in vms}
        taken = {vm.uuid: vm for vm in vms}
        others = [vm for finder in self.finders for vm in finder.vms(pids)]
        twins = {vm.pid for vm in others if vm.uuid in taken}
        for vm in others:
            if vm.pid in twins - self._twins:
                why = f"QEMU {vm.name} has the UUID {vm.uuid} of libvirt's VM {taken[vm.uuid].name}"
                _log.warning("process %d: %s and is not measured; give it its own -uuid", vm.pid, why)
        self._twins = twins
        return (*vms, *(vm for vm in others if vm.pid not in twins))

    def _is_unchanged(self, now_ns: int) -> bool:
        """Whether no status file came, went or was replaced since the last scan: each changes the folder's mtime.

        The mtime is trusted only if it was a second old at the scan, because the file system's clock has ticks; and for
        ten seconds, because only libvirt always renames.
        """
        changed_ns = mtime_ns(self._state_dir)
        if changed_ns is not None and changed_ns == self._folder_mtime_ns and now_ns - self._scanned_ns < _RESCAN_NS:
            return True
        self._scanned_ns = now_ns
        is_quiet = changed_ns is not None and time.time_ns() - changed_ns > NS_PER_S
        self._folder_mtime_ns = changed_ns if is_quiet else None
        return False

    def _state_files(self) -> list[Path]:
        return [path for path in self._state_dir.iterdir() if path.suffix == ".xml"]

    def _refresh(self) -> None:
        if self._is_unchanged(time.monotonic_ns()):
            return
        try:
            names = {path.name: path for path in self._state_files()}
        except FileNotFoundError:
            names = {}
        except OSError as error:
            self._folder_mtime_ns = None  # list again at the next call
            message = f"{self._state_dir}: {error.strerror}; run the agent as root"
            raise SourceError(message, reason_of(error)) from error
        for name in self._entries.keys() - names.keys():
            self._drop(name)
            self._warned.pop(name, None)
        for name, path in names.items():
            try:
                self._refresh_one(name, path)
            except OSError as error:
                if error.errno in GONE:
                    self._drop(name)
                else:
                    self._warn(name, f"{path}: {error.strerror}; this VM is not measured")
                    self._folder_mtime_ns = None  # as above
            except Exception as error:  # noqa: BLE001 - whatever its file says, it costs no other VM
                self._drop(name)
                self._warn(name, f"{path}: {error!r}; this VM is not measured; please report this")

    def _refresh_one(self, name: str, path: Path) -> None:
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = self._entries.get(name)
        if known is not None and known.stamp == stamp:
            return
        status = None
        try:
            status = parse_status(read_bounded(path, _MAX_STATUS_BYTES))
            self._warned.pop(name, None)
        except StatusError as error:
            self._warn(name, f"{path}: {error}; this VM is not measured until libvirt rewrites the file")
        stat_path = f"{self._proc}/{status.pid}/stat" if status else ""
        entry = self._entries[name] = _Entry(stamp, status, stat_path)
        if known is not None:
            self._unwatch(known)
            old = known.status
            if old is not None and status is not None and (old.pid, old.uuid) == (status.pid, status.uuid):
                entry.start, entry.arguments = known.start, known.arguments

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._unwatch(entry)

    def _unwatch(self, entry: _Entry) -> None:
        self._watch.drop(entry.watch)
        entry.watch = None

    def _identify(self, name: str, entry: _Entry) -> VmIdentity | None:
        """Return the VM of a status file if its process lives and is that VM's."""
        status = entry.status
        if status is None:
            return None
        if entry.watch is not None:
            return entry.identity
        entry.watch = self._watch.add(status.pid)
        identity = None
        try:
            identity = self._check_process(name, entry, status)
        except OSError as error:
            if error.errno not in GONE:
                # Such as EMFILE: the VM may live, and the watch may be another process's.
                self._unwatch(entry)
                self._warn(name, f"{entry.stat_path}: {error.strerror}")
                return entry.identity
        except ValueError as error:
            self._warn(name, f"{entry.stat_path}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a VM costs no other
            self._warn(name, f"{entry.stat_path}: {error!r}; this VM is not measured; please report this")
        if identity is None:
            self._unwatch(entry)
        return identity

    def _check_process(self, name: str, entry: _Entry, status: VmStatus) -> VmIdentity | None:
        is_alive, start = parse_life(read_once(entry.stat_path, _STAT_BYTES))
        if not is_alive or (start == entry.start and entry.identity is not None):
            return entry.identity if is_alive else None
        folder = self._proc / str(status.pid)
        if start != entry.start:
            # The process id of a stale file may be another process's now; QEMU's arguments hold the UUID.
            text = self._arguments(name, entry, start, folder / "cmdline")
            if text is None or status.uuid.encode() not in text:
                return None
            entry.start, entry.identity = start, None
        if entry.identity is None:
            entry.identity = self._make(status, int(start), folder)
        return entry.identity

    def _arguments(self, name: str, entry: _Entry, start: bytes, path: Path) -> bytes | None:
        """Return the arguments of an entry's process; None: reading them hangs, which costs only this VM."""
        wait_s = 0.0
        text = entry.arguments[1] if entry.arguments is not None and entry.arguments[0] == start else None
        is_new = text is None
        if text is None:
            if sum(other.arguments is not None for other in self._entries.values()) >= _MAX_HUNG:
                self._warn(name, f"{path}: not read, because reading others hangs; this VM is not measured")
                return None
            try:
                text = _read_in_thread(path)
            except RuntimeError as error:
                self._warn(name, f"{path}: {error}; raise the agent's TasksMax; this VM is not measured")
                return None
            entry.arguments = start, text
            wait_s = max(self._patient_until_ns - time.monotonic_ns(), 0) / NS_PER_S
        if not futures.wait([text], wait_s).done:
            if not is_new:
                self._warn(name, f"{path}: reading it hangs; this VM is not measured until it continues")
            return None
        entry.arguments = None
        arguments = text.result()
        self._warned.pop(name, None)
        return arguments

    def _make(self, status: VmStatus, start_ticks: int, folder: Path) -> VmIdentity:
        known = {field.name: getattr(status, field.name) for field in fields(VmIdentity)} | {
            "epoch": epoch_of(boot_of(self._proc), start_ticks),
            "accelerator": status.accelerator or _accelerator(folder, status.vcpu_tids),
            "interfaces": status.interfaces + passed_interfaces(status.passed, self._proc),
        }
        return VmIdentity(**known)

    def _warn(self, name: str, message: str) -> None:
        if self._warned.get(name) != message:
            self._warned[name] = message
            _log.warning("%s", message)


def boot_of(proc_root: Path) -> str:
    """Return an id of this boot of the host. Raises OSError."""
    return (proc_root / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]


def epoch_of(boot: str, start_ticks: int) -> str:
    """Return the epoch of a VM whose process started `start_ticks` after `boot`."""
    return f"{boot}-{start_ticks}"


def _accelerator(folder: Path, tids: tuple[int, ...]) -> str:
    """Return the accelerator by the name that QEMU gives its vCPU threads ("CPU 0/TCG")."""
    for tid in tids[:1]:
        with contextlib.suppress(OSError):
            return "tcg" if (folder / f"task/{tid}/comm").read_text().rstrip().endswith("/TCG") else "kvm"
    return "kvm"


def mtime_ns(folder: Path) -> int | None:
    """Return when a folder changed last; None if that is unknown."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
