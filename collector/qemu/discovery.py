"""Finds the QEMUs that libvirt does not manage: Proxmox' by its run directory, any other by looking at processes.

A thread looks for new processes every two seconds, and for Proxmox' immediately, because reading the /proc/PID/cmdline
of a wedged process may hang indefinitely. A look that hangs is given up and the next one skips that process. A process
is examined three times (it may become QEMU by exec meanwhile) and again once a minute, so that a tick costs one small
file per known VM.

A libvirt's QEMU is left to libvirt's status files. One without a status file for ten seconds belongs to another libvirt
than the host's (KubeVirt's, a user's session, one in a container) and is measured as a bare QEMU without QMP. Only
QEMUs of users that `collector.qemu.owners` trusts are VMs.

The UUID is the command line's (`-uuid`, `-smbios type=1,uuid=`). Without one, Proxmox' VM has one made of this host's
name and its number, which survives restarts; any other's is made of its command line, process and start, and so changes
with each start.
"""

import contextlib
import errno
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collector.base import MAX_PID, Probe, Reason, VmIdentity
from collector.files import NO_FD, read_once
from collector.inventory.inventory import boot_of, epoch_of, mtime_ns
from collector.proc_parse import parse_life, parse_task_stat
from collector.qemu.cmdline import CommandLine, is_qemu, is_started_by_libvirt, parse_command_line
from collector.qemu.launch import Launch, absolute, listed, network_namespace, taps_of
from collector.qemu.owners import Owners, real_uid
from collector.qemu.process import Learned, Process
from whitepanda.common.files.bounded import read_bounded

_log = logging.getLogger("whitepanda.qemu")

_SCAN_NS = 2_000_000_000
_FRESH_NS = 200_000_000  # several sources call it in one tick
_LOOKS = 3
_SCANS_PER_ROUND = 30
# QEMU has the main, an RCU and a vCPU thread. With fewer it is starting, or the parent of one that becomes a daemon.
_MIN_THREADS = 3
# libvirt writes a VM's status file while QEMU starts, and a replaced one may be missed once.
_GRACE_NS = 10_000_000_000
# A look that reads one process for this long hangs; with this many hung ones there are no more looks.
_HANG_NS = 5_000_000_000
_MAX_HUNG = 4
# How long to wait for the first look: a list without it would show no VMs.
_FIRST_S = 0.5
_PIDFILE_BYTES = 64
_CMDLINE_BYTES = 1 << 13  # enough for other programs, and to recognize a QEMU
_MAX_CMDLINE_BYTES = 1 << 20
# Shortages of the agent itself: the next process cannot be examined either.
_SHORTAGES = {*NO_FD, errno.ENOMEM}
_NAMESPACE = uuid.UUID("5f0c2f4e-7b0b-5d52-9b0e-3b1d5c0f6a11")  # of the UUIDs that are made here


@dataclass(slots=True)
class _Look:
    """One look for new processes. `pid` is being read since `since_ns`; 0: the folder of all of them."""

    full: bool
    since_ns: int
    pid: int = 0
    given_up: bool = False


class _GivenUpError(Exception):
    """This look hung and was replaced."""


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="qemu-look", daemon=True).start()


class QemuFinder:
    """A `collector.inventory.inventory.Finder`. May be called from any thread.

    `run_dir` has Proxmox' process ids and sockets. QEMUs of `users` count as well as the system's. `start` runs a look
    without waiting for it; `clock` is monotonic, in nanoseconds.
    """

    def __init__(
        self,
        proc_root: str = "/proc",
        run_dir: str = "/run/qemu-server",
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        users: Collection[str] = (),
        start: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._proc = self.proc_root = Path(proc_root)
        self._run_dir = Path(run_dir)
        self._clock = clock
        self._start = start
        self._owners = Owners(users)
        # Guards all that follows. Never held while something is read that may hang.
        self._lock = threading.Lock()
        self._current: _Look | None = None
        self._hung: dict[int, _Look] = {}
        self._first = threading.Event()
        self._waited = False
        self._boot = ""
        self._looked: dict[int, int] = {}  # looks left, by process id
        self._processes: dict[int, Process] = {}
        self._libvirt_ns: dict[int, int] = {}  # when libvirt last had a process
        self._strange_ns: dict[int, int] = {}  # since when a libvirt's QEMU without status file is known
        self._failed: set[int] = set()  # processes whose failed examination was logged
        self._scanned_ns = self._checked_ns = -_SCAN_NS
        self._run_dir_mtime_ns: int | None = None
        self._warned = ""

    def probe(self) -> Probe:
        """Say whether processes can be listed, and Proxmox' run directory if there is one."""
        try:
            listed(self._proc)
            if self._run_dir.is_dir():
                listed(self._run_dir)
        except OSError as error:
            is_there = not isinstance(error, FileNotFoundError | NotADirectoryError)
            reason = Reason.NO_PERMISSION if is_there else Reason.NOT_PRESENT
            remedy = "run the agent as root" if is_there else "see sources.procfs.root"
            return Probe(False, f"{error.filename}: {error.strerror}; {remedy}", reason)
        proxmox = f", Proxmox' in {self._run_dir}" if self._run_dir.is_dir() else ""
        detail = f"QEMU processes without libvirt in {self._proc}{proxmox}"
        stuck = self._stuck()
        # Known VMs are still measured.
        reason = Reason.STUCK if stuck else Reason.UNSPECIFIED
        return Probe(available=True, detail=f"{detail}; {stuck}" if stuck else detail, reason=reason)

    def _stuck(self) -> str:
        """Describe the looks that hang; "" none."""
        with self._lock:
            pids = sorted(self._hung)
            if self._current is not None and not self._first.is_set() and self._waited:
                pids.append(self._current.pid)
        if not pids:
            return ""
        which = ", ".join(map(str, pids))
        lost = "no new VM is seen" if len(pids) >= _MAX_HUNG else "a VM there is not seen"
        return f"reading {self._proc}/PID/cmdline hangs for process {which}: {lost} until it continues or ends"

    def vms(self, libvirt_pids: Collection[int]) -> list[VmIdentity]:
        """Return the living VMs of the last look, without libvirt's, by process id."""
        now_ns = self._clock()
        with self._lock:
            look = None
            if now_ns - self._checked_ns >= _FRESH_NS:
                self._checked_ns = now_ns
                self._libvirt_ns.update(dict.fromkeys(libvirt_pids, now_ns))
                self._drop_dead()
                look = self._next_look(now_ns)
        if look is not None:
            try:
                self._start(lambda: self._run(look))
            except RuntimeError as error:
                with self._lock:
                    self._current = None
                    self._warn(f"looking for new VMs: {error}; raise the agent's TasksMax")
        if not self._waited:
            self._first.wait(_FIRST_S)
            self._waited = True
        with self._lock:
            return [
                process.identity(self._proc)
                for pid, process in sorted(self._processes.items())
                if pid not in libvirt_pids and not self._is_started_by_libvirt(pid, now_ns)
            ]

    def launch(self, vm_uuid: str, epoch: str) -> Launch | None:
        """Return how a VM was started; None if it is gone."""
        with self._lock:
            process = self._find(vm_uuid, epoch)
            return process.launch if process else None

    def learn(self, vm_uuid: str, epoch: str, **learned: Any) -> None:
        """Note what was learned of a VM, by the names of `Learned`."""
        with self._lock:
            process = self._find(vm_uuid, epoch)
            if process is not None and (changed := replace(process.learned, **learned)) != process.learned:
                process.learned, process.made = changed, None

    def has_vcpu_names(self, vm_uuid: str, epoch: str) -> bool:
        """Whether the vCPU threads have names (`-name ...,debug-threads=on`)."""
        with self._lock:
            process = self._find(vm_uuid, epoch)
            return process is not None and bool(process.vcpus)

    def _find(self, vm_uuid: str, epoch: str) -> Process | None:
        return next((p for p in self._processes.values() if p.uuid == vm_uuid and p.epoch == epoch), None)

    def _warn(self, message: str) -> None:
        """Log a message ("" is silent) unless it is the last one."""
        if message and self._warned != message:
            _log.warning("%s", message)
        self._warned = message

    def _drop_dead(self) -> None:
        """Forget the VMs that ended. Reading stat files never hangs: the kernel reads no process memory for them."""
        for pid, process in list(self._processes.items()):
            try:
                is_alive, start = parse_life(read_once(f"{self._proc}/{pid}/stat", 1024))
                lives = is_alive and int(start) == process.launch.start_ticks
            except (FileNotFoundError, ProcessLookupError, ValueError):
                lives = False
            except OSError:
                continue  # such as EMFILE, which the next look reports: the VM may live
            if not lives:
                del self._processes[pid]
                self._looked.pop(pid, None)

    def _is_started_by_libvirt(self, pid: int, now_ns: int) -> bool:
        """Whether a process is in libvirt's status files, which then decide whether it lives."""
        seen_ns = self._libvirt_ns.get(pid)
        return seen_ns is not None and now_ns - seen_ns < _GRACE_NS

    def _next_look(self, now_ns: int) -> _Look | None:
        """Return the look that is due; None: none is, or one is running."""
        current = self._current
        if current is not None:
            if now_ns - current.since_ns < _HANG_NS:
                return None
            current.given_up, self._current = True, None
            self._hung[current.pid] = current
            _log.warning("%s/%d/cmdline: reading it hangs; only known VMs are measured", self._proc, current.pid)
        if len(self._hung) >= _MAX_HUNG:
            return None
        run_dir_mtime_ns = mtime_ns(self._run_dir)
        full = now_ns - self._scanned_ns >= _SCAN_NS
        if full:
            self._scanned_ns = now_ns
        elif run_dir_mtime_ns == self._run_dir_mtime_ns:
            return None
        self._run_dir_mtime_ns = run_dir_mtime_ns
        self._current = _Look(full, now_ns)
        return self._current

    def _run(self, look: _Look) -> None:
        said = ""
        try:
            self._scan(look)
        except _GivenUpError:
            pass
        except OSError as error:
            said = f"{error.filename or self._proc}: {error.strerror}; new VMs are not seen"
        except Exception as error:  # noqa: BLE001 - the thread would end silently
            said = f"looking for new VMs failed: {type(error).__name__}: {error}; please report this"
        with self._lock:
            if look.given_up:
                self._hung.pop(look.pid, None)
                return
            self._current = None
            self._warn(said)
        self._first.set()

    def _scan(self, look: _Look) -> None:
        """Examine the processes that are new, young or due again; find plugged vCPUs."""
        if not self._boot:
            self._boot = boot_of(self._proc)
        if not look.full:
            self._look_at(look, list(self._proxmox_pids()))
            return
        pids = {int(name) for name in listed(self._proc) if name.isdecimal()}
        with self._lock:
            self._failed &= pids
            for seen in (self._looked, self._libvirt_ns, self._strange_ns):
                for pid in seen.keys() - pids:
                    del seen[pid]
            due = len(self._looked) // _SCANS_PER_ROUND + 1
            for pid in list(itertools.islice(self._looked, due)):
                self._looked[pid] = max(self._looked.pop(pid), 1)
            theirs = {pid for pid in self._libvirt_ns if self._is_started_by_libvirt(pid, look.since_ns)}
            wanted = [pid for pid in pids - theirs if self._looked.get(pid, _LOOKS) > 0]
            known = [process for pid, process in self._processes.items() if pid not in theirs]
        self._look_at(look, sorted(wanted))
        for process in known:
            self._enter(look, process.launch.pid)
            with self._alone(process.launch.pid):
                self._find_vcpus(process)

    def _enter(self, look: _Look, pid: int) -> None:
        """Note which process this look reads now, and end it if it was given up."""
        with self._lock:
            if look.given_up:
                raise _GivenUpError
            look.pid, look.since_ns = pid, self._clock()

    def _proxmox_pids(self) -> Iterator[int]:
        try:
            files = [path for path in self._run_dir.iterdir() if path.suffix == ".pid"]
        except FileNotFoundError:
            return
        for path in files:
            try:
                pid = int(read_bounded(path, _PIDFILE_BYTES))
            except (OSError, ValueError):
                continue  # being written, removed, or not a file
            if not 0 < pid <= MAX_PID:
                continue
            with self._lock:
                self._looked[pid] = _LOOKS  # in place of the former process of that number
            yield pid

    def _look_at(self, look: _Look, pids: Collection[int]) -> None:
        for pid in pids:
            self._enter(look, pid)
            with self._lock:
                left = self._looked.get(pid, _LOOKS)
                if left <= 0 or pid in self._processes or pid in self._hung:
                    continue
                self._looked[pid] = left - 1
            with self._alone(pid):
                self._examine(look, pid)

    @contextlib.contextmanager
    def _alone(self, pid: int) -> Iterator[None]:
        """Limit an error to its process: any user may have started it, in any way."""
        try:
            yield
        except _GivenUpError:
            raise
        except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
            pass  # it ended meanwhile, or is hidden
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _SHORTAGES:
                raise
            if pid not in self._failed:
                self._failed.add(pid)
                what = f"{type(error).__name__}: {error}"
                _log.warning("process %d: examining it failed: %s; if it is a VM, please report this", pid, what)

    def _examine(self, look: _Look, pid: int) -> None:
        folder = f"{self._proc}/{pid}"
        text = read_once(f"{folder}/cmdline", _CMDLINE_BYTES)
        self._enter(look, pid)
        if not text or not is_qemu(text):
            return
        stat = parse_task_stat(read_once(f"{folder}/stat", 1024))
        if not stat.alive:
            return
        is_starting = len(listed(f"{folder}/task")) < _MIN_THREADS
        with self._lock:
            if not is_starting and is_started_by_libvirt(text):  # libvirt may still write its status file
                is_starting = look.since_ns - self._strange_ns.setdefault(pid, look.since_ns) < _GRACE_NS
            if is_starting:
                self._looked[pid] = _LOOKS
                return
        uid = real_uid(read_once(f"{folder}/status", 4096))
        if not self._owners.trusts(uid, pid):
            return
        # Only now: others' arguments are not parsed.
        if len(text) == _CMDLINE_BYTES:
            text = read_once(f"{folder}/cmdline", _MAX_CMDLINE_BYTES)
        command = parse_command_line(text)
        if command.machine == "none":
            return
        launch = self._launch(pid, stat.start_ticks, uid, command)
        facts = {"pve:vmid": launch.vmid} if launch.vmid else {}
        process = Process(launch, "", epoch_of(self._boot, stat.start_ticks), Learned(facts=facts))
        self._find_vcpus(process)
        self._enter(look, pid)
        with self._lock:
            process.uuid = self._uuid(launch, text)
            self._processes[pid] = process

    def _find_vcpus(self, process: Process) -> None:
        vcpus = process.find_vcpus(self._proc)
        with self._lock:
            if vcpus != process.vcpus:
                process.vcpus, process.made = vcpus, None

    def _launch(self, pid: int, start_ticks: int, uid: int, command: CommandLine) -> Launch:
        folder = f"{self._proc}/{pid}"
        # Proxmox' pid files are in its run directory (/var/run is /run) and have the VM's number.
        pidfile = Path(command.pidfile)
        is_proxmox = pidfile.stem.isdecimal() and pidfile.parent.resolve() == self._run_dir.resolve()
        vmid = pidfile.stem if is_proxmox else ""
        # A QMP socket serves only one connection: libvirt's.
        qmp = () if command.libvirt else tuple(absolute(path, folder) for path in command.qmp)
        if vmid and not qmp:
            qmp = (str(self._run_dir / f"{vmid}.qmp"),)
        return Launch(pid, start_ticks, command, vmid, qmp, taps_of(command, folder), network_namespace(folder), uid)

    def _uuid(self, launch: Launch, text: bytes) -> str:
        made = launch.command.uuid
        if not made and launch.vmid:
            made = str(uuid.uuid5(_NAMESPACE, f"proxmox {os.uname().nodename} {launch.vmid}"))
        if made:
            if all(process.uuid != made for process in self._processes.values()):
                return made
            message = "process %d: another VM here has its UUID %s too; it is measured under a UUID of its own"
            _log.warning(message, launch.pid, made)
        words = f"{self._boot} {launch.pid} {launch.start_ticks} {text.decode('utf-8', 'replace')}"
        return str(uuid.uuid5(_NAMESPACE, words))
