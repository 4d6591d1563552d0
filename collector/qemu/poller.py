"""Polls the VMs by QMP, one after the other in its own thread, so that a silent one delays no sample.

Each VM is polled every `disk_poll_s`, at moments spread over that time; one that fails less and less often.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from collector.base import NS_PER_S, DiskCounters, Reason, Stamp, VmIdentity
from collector.files import read_once
from collector.proc_parse import parse_task_stat
from collector.qemu.discovery import QemuFinder
from collector.qemu.launch import Launch
from collector.qemu.proxmox import ProxmoxConfig
from collector.qemu.qmp import QmpError, ask, parse_blockstats, parse_devices, parse_state, parse_tids
from collector.timestamps import clocks_now

_log = logging.getLogger("whitepanda.qemu")

# How often vCPUs without names of their threads, and kinds of disks, are polled: they change by hot-plug.
_SLOW_NS = 60 * NS_PER_S
_MAX_WHY = 200
_MAX_BACKOFF_NS = 300 * NS_PER_S
_MAX_PAUSE_NS = NS_PER_S // 2
_IDLE_NS = 60 * NS_PER_S  # without VMs; a new one wakes the thread


class DiskReading(NamedTuple):
    """A VM's disk counters and when they were read."""

    stamp: Stamp
    disks: Mapping[str, DiskCounters]


@dataclass(frozen=True, slots=True)
class _Turn:
    """From one `start` to its `stop`: a thread that hung meanwhile ends once it continues, whatever began since."""

    wake: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Vm:
    """A VM in its epoch. `reason` says why the last poll gave nothing."""

    uuid: str
    epoch: str
    name: str
    due_ns: int
    slow_due_ns: int
    fails: int = 0
    said: str = ""
    reading: DiskReading | None = None
    reason: Reason = Reason.VM_STARTING


class Poller:
    """Keeps the latest disk counters per VM, and gives the finder the other results.

    Each VM is polled every `poll_ns` and may take `deadline_s` to answer. `asker` is `qmp.ask`, or a fake.
    """

    def __init__(
        self,
        finder: QemuFinder,
        config: ProxmoxConfig,
        poll_ns: int,
        *,
        deadline_s: float = 1.0,
        asker: Callable[..., dict[str, Any]] = ask,
        clocks: Callable[[], Stamp] = clocks_now,
    ) -> None:
        self._finder = finder
        self._config = config
        self._poll_ns = poll_ns
        self._deadline_s = deadline_s
        self._proc = finder.proc_root
        self._ask = asker
        self._clocks = clocks
        self._lock = threading.Lock()
        self._vms: dict[str, _Vm] = {}
        self._turn = _Turn()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once; again after a `stop`."""
        if self._thread is None or self._turn.ended.is_set():
            self._turn = _Turn()
            self._thread = threading.Thread(target=self._run, args=(self._turn,), name="qemu-qmp", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; a hung one (in Proxmox' file system) ends with the process."""
        self._turn.ended.set()
        self._turn.wake.set()
        if self._thread is not None:
            self._thread.join(2 * self._deadline_s)

    def watch(self, vms: Iterable[VmIdentity]) -> None:
        """Poll these VMs from now on, new ones soon."""
        now_ns = self._clocks().mono_ns
        with self._lock:
            known, self._vms = self._vms, {}
            added = False
            for vm in vms:
                entry = known.get(vm.uuid)
                if entry is None or entry.epoch != vm.epoch:
                    entry = _Vm(vm.uuid, vm.epoch, vm.name, now_ns, now_ns)
                    added = True
                self._vms[vm.uuid] = entry
        if added:
            self._turn.wake.set()

    def reading(self, uuid: str, epoch: str, not_before_ns: int) -> DiskReading | Reason:
        """Return the latest counters of a VM, or why there are none since `not_before_ns`."""
        with self._lock:
            vm = self._vms.get(uuid)
        if vm is None or vm.epoch != epoch:
            return Reason.VM_STARTING
        reading = vm.reading
        if reading is None or reading.stamp.mono_ns < not_before_ns:
            # Late without its own failure: the thread is at another VM, or hangs.
            return vm.reason or Reason.STALE
        return reading

    def step(self) -> int:
        """Poll the most overdue VM, if any; return how long to pause then, in nanoseconds."""
        now = self._clocks()
        with self._lock:
            vms = list(self._vms.values())
        vm = min(vms, key=lambda vm: vm.due_ns, default=None)
        if vm is None:
            return _IDLE_NS
        if vm.due_ns > now.mono_ns:
            return vm.due_ns - now.mono_ns
        self._poll(vm, now)
        # Half of the time between two VMs, so that polls that became due together spread.
        return min(self._poll_ns // (2 * len(vms)), _MAX_PAUSE_NS)

    def _run(self, turn: _Turn) -> None:
        while True:
            # Before `step`, so that a wake-up during it is not lost.
            turn.wake.clear()
            if turn.ended.is_set():
                return
            try:
                pause_ns = self.step()
            except Exception:  # noqa: BLE001 - it would end the thread
                # A defect of whitepanda at one VM's answer; that VM's next turn is already set.
                _log.exception("asking a VM failed; please report this")
                pause_ns = NS_PER_S
            turn.wake.wait(pause_ns / NS_PER_S)

    def _poll(self, vm: _Vm, now: Stamp) -> None:
        vm.due_ns = now.mono_ns + self._poll_ns
        launch = self._finder.launch(vm.uuid, vm.epoch)
        if launch is None:
            return
        try:
            self._ask_disks(vm, launch, now)
        except QmpError as error:
            self._fail(vm, launch, error, now)
        except Exception as error:  # noqa: BLE001 - a VM's answer affects that VM alone, in one line
            why = f"asking it failed: {error!r}"[:_MAX_WHY]
            self._fail(vm, launch, QmpError(f"{why}; please report this"), now, is_defect=True)
        else:
            if vm.said:
                _log.info("VM %s: QMP answers again", vm.name)
            vm.fails, vm.said = 0, ""
        if launch.vmid:
            found = self._config.vm(launch.vmid)
            self._finder.learn(vm.uuid, vm.epoch, name=found.name, facts=found.facts)

    def _ask_disks(self, vm: _Vm, launch: Launch, now: Stamp) -> None:
        if launch.command.libvirt:
            owner = "of a libvirt that has no status file here (a session's, a container's)"
            why = "measured without its disk counters and state, because only that libvirt may use its QMP socket"
            raise QmpError(f"{owner}: {why}", Reason.NOT_VISIBLE)
        if not launch.qmp:
            message = "no QMP socket, so no disk counters; start it with -qmp unix:/run/NAME.qmp,server=on,wait=off"
            raise QmpError(message, Reason.NOT_VISIBLE)
        if self._stopped(launch.pid):
            raise QmpError("its process is stopped (SIGSTOP)", Reason.STUCK)
        commands = ["query-status", "query-blockstats"]
        slow = now.mono_ns >= vm.slow_due_ns
        if slow:
            commands.append("query-block")
            if not self._finder.has_vcpu_names(vm.uuid, vm.epoch):
                commands.append("query-cpus-fast")
        # If there are several sockets and one is held, another may be free.
        path = launch.qmp[vm.fails % len(launch.qmp)]
        answers = self._ask(path, commands, pid=launch.pid, uid=launch.uid, deadline_s=self._deadline_s)
        try:
            disks = parse_blockstats(answers.get("query-blockstats"))
            stamp = self._clocks()  # a QEMU that was slow to answer has read them just now
        except ValueError as error:
            raise QmpError(f"{path}: {error}", Reason.INVALID_VALUE) from error
        # Another program serves vhost-user disks, so QEMU's block layer does not know them.
        named = launch.command.disks
        hidden = tuple(d for d in named if d.kind == "vhostuser" and d.target not in disks)
        learned: dict[str, Any] = {"state": parse_state(answers.get("query-status"))}
        if "query-cpus-fast" in answers:
            learned["vcpu_tids"] = parse_tids(answers["query-cpus-fast"])
        if "query-block" in answers:
            learned["disks"] = (*parse_devices(answers["query-block"]), *hidden)
        self._finder.learn(vm.uuid, vm.epoch, **learned)
        if slow:
            vm.slow_due_ns = now.mono_ns + _SLOW_NS
        vm.reading = DiskReading(stamp, disks) if disks and not hidden else None
        # A sum without hidden ones would look like a quieter VM.
        vm.reason = Reason.NOT_VISIBLE if hidden else Reason.UNSPECIFIED if disks else Reason.NOT_PRESENT

    def _fail(self, vm: _Vm, launch: Launch, error: QmpError, now: Stamp, *, is_defect: bool = False) -> None:
        vm.reason = error.reason
        vm.fails += 1
        vm.due_ns = now.mono_ns + min(self._poll_ns << min(vm.fails, 16), max(_MAX_BACKOFF_NS, self._poll_ns))
        text = str(error)
        # What fails only at a VM's start or end does not fail twice.
        is_lasting = is_defect or vm.fails > 1 or not launch.qmp or error.reason is Reason.NO_PERMISSION
        if is_lasting and vm.said != text:
            vm.said = text
            _log.warning("VM %s (process %d): %s", vm.name, launch.pid, text)

    def _stopped(self, pid: int) -> bool:
        """Whether a signal stopped the process: it would accept no connection, and the agent's would block others'."""
        try:
            return parse_task_stat(read_once(f"{self._proc}/{pid}/stat")).state in {"T", "t"}
        except (OSError, ValueError):
            return False
