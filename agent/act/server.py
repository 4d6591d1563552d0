"""The service's process: a unix socket, one request per connection, and the timers that undo actions.

The socket's mode (0660) and its folder's group decide who may ask; the client as the kernel reports it (SO_PEERCRED)
goes into the audit log. One thread does all work, so two requests at the same time cannot exceed the limits together.
"""

import asyncio
import contextlib
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.act.actor import Actor
from agent.act.audit import Audit
from agent.act.cpu_max import cpu_max_of
from agent.act.journal import Journal
from agent.act.quota import Quota, Virsh
from agent.act.records import ActError, Answer, Apply, Ask, Limits, Peer, RefusedError, Request, Undo
from agent.act.resctrl import Resctrl
from agent.act.victims import degradation_of
from agent.clock import boot_id
from agent.config import ActSection, AgentConfig
from collector.base import SourceError, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.inventory.inventory import Inventory
from collector.registry import make_inventory
from whitepanda.common import log, sdnotify
from whitepanda.common.errors import UnavailableError, WhitepandaError
from whitepanda.common.files.private import group_socket

_MAX_REQUEST_BYTES = 64 << 10
_REQUEST_S = 5.0
_TICK_S = 0.5
_BACKLOG = 16
# How long undoing is retried at shutdown: longer than an interrupted virsh may need.
_STOP_S = 45.0
_STOP_PAUSE_S = 1.0
# How long to wait for a VM that has just started: processes are listed every 2 s.
_FIND_S, _FIND_PAUSE_S = 4.0, 0.1

_T = TypeVar("_T")


def run(config: AgentConfig) -> None:
    """Run the service until SIGTERM or SIGINT, then undo all active limits.

    WhitepandaError: it cannot start, or limits are left in force at its end.
    """
    journal = Journal(Path(config.act.state_dir))
    try:
        asyncio.run(Server(config.act, make_actor(config, journal)).run())
    finally:
        journal.close()


def make_actor(config: AgentConfig, journal: Journal) -> Actor:
    """Make the actor with the host's libvirt, resctrl and control groups."""
    section, sources = config.act, config.sources
    inventory = make_inventory(sources)
    tree = CgroupTree(sources.procfs.root, sources.cgroup.root)

    def pid_of(uuid: str) -> int | None:
        return next((vm.pid for vm in inventory.vms() if vm.uuid == uuid), None)

    roots = Path(sources.resctrl.root), pid_of, Path(sources.procfs.root)
    return Actor(
        limits=msgspec.convert(section, Limits, from_attributes=True),
        journal=journal,
        audit=Audit(Path(section.state_dir)),
        backends={
            "cap-cpu": Quota(Virsh(sources.libvirt.uri, section.deadline_s)),
            "limit-bandwidth": Resctrl("limit-bandwidth", *roots),
            "limit-cache": Resctrl("limit-cache", *roots),
        },
        vms=lambda wanted: _vms(inventory, wanted),
        cpu_max=lambda vm: cpu_max_of(vm, tree),
        degradation=lambda uuid, signal: degradation_of(Path(config.agent.socket), uuid, signal),
        boot_id=boot_id(),
    )


def _vms(inventory: Inventory, wanted: str) -> Sequence[VmIdentity]:
    """Return this host's VMs, once the wanted one is among them or `_FIND_S` has passed.

    QEMUs without libvirt are found by listing all processes, which a request starts and another thread does.
    """
    end = time.monotonic() + _FIND_S
    while True:
        try:
            vms = inventory.vms()
        except SourceError as error:
            raise ActError(f"cannot list the VMs: {error}") from error
        is_found = not wanted or any(wanted in {vm.uuid, vm.name} for vm in vms)
        if is_found or not inventory.finders or time.monotonic() >= end:
            return vms
        time.sleep(_FIND_PAUSE_S)


class Server:
    """The socket and the timers. `stop_s`: how long undoing is retried at the end. `ready` is set once it answers."""

    def __init__(self, section: ActSection, actor: Actor, stop_s: float = _STOP_S) -> None:
        self._section, self._actor, self._stop_s = section, actor, stop_s
        self._worker = ThreadPoolExecutor(1, "act")
        self.ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._path = Path(section.socket)
        self._log = log.get("act")

    def stop(self) -> None:
        """Stop the service."""
        self._stop.set()

    async def run(self) -> None:
        """Undo leftovers, serve until `stop` or a signal, then undo the rest.

        UnavailableError: the socket cannot be made. ActError: limits are left in force at the end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        listener = _listen(self._path)
        try:
            await self._work(self._actor.start)
            server = await asyncio.start_unix_server(self._serve, sock=listener, limit=_MAX_REQUEST_BYTES)
            async with server, asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._every(_TICK_S, self._actor.tick)),
                    tasks.create_task(self._every(self._section.watch_interval_s, self._actor.look)),
                    tasks.create_task(self._feed_watchdog()),
                ]
                self.ready.set()
                sdnotify.notify("READY=1")
                limits = self._actor.limits
                self._log.info("act started", enabled=limits.enabled, dry_run=limits.dry_run, socket=str(self._path))
                await self._stop.wait()
                sdnotify.notify("STOPPING=1")
                for task in running:
                    task.cancel()
        finally:
            self._stop.set()  # nothing more is applied
            self._path.unlink(missing_ok=True)
            try:
                await self._undo_all()
            finally:
                self._worker.shutdown()

    async def _undo_all(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._stop_s
        await self._work(self._actor.stop)
        while self._actor.journal.records and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_STOP_PAUSE_S)
            await self._work(self._actor.stop)
        if left := self._actor.in_force():
            vms = ", ".join(one.record.vm for one in left)
            remedy = "the next start of the service undoes them"
            raise ActError(f"not undone: {len(left)} limits (VMs {vms}: {left[0].trouble}); {remedy}")

    async def _work(self, call: Callable[[], _T]) -> _T:
        """Call it in the one thread. A started call runs to its end, even if its waiter was cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._worker, call))

    async def _every(self, seconds: float, call: Callable[[], object]) -> None:
        logged = ""
        while True:
            try:
                await self._work(call)
                logged = ""
            except Exception as error:  # noqa: BLE001 - one failure must not stop the undoing
                if logged != repr(error):
                    logged = repr(error)
                    self._log.error("checking the actions in force failed", error=logged, exc_info=error)
            await asyncio.sleep(seconds)

    async def _feed_watchdog(self) -> None:
        """Feed the watchdog, as long as the one thread works."""
        interval_s = sdnotify.watchdog_interval_s()
        while interval_s is not None:
            await self._work(lambda: None)
            sdnotify.notify("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    # --- requests ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            answer = await self._answer(reader, _peer_of(writer))
            writer.write(msgspec.json.encode(answer) + b"\n")
            await asyncio.wait_for(writer.drain(), _REQUEST_S)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, peer: Peer) -> Answer:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_S)
            request = msgspec.json.decode(line, type=Request)
        except (TimeoutError, ValueError) as error:  # ValueError: too long; msgspec's errors are ones too
            problem = f"not a request: {str(error) or 'no line in time'}"[:300]
            await self._work(lambda: self._actor.refused("request", peer, problem))
            return Answer(error=problem, exit_code=3)
        try:
            return await self._work(lambda: self._do(request, peer))
        except WhitepandaError as error:
            return Answer(error=str(error), exit_code=error.exit_code)
        except Exception as error:  # noqa: BLE001 - a bug fails only its own request
            self._log.error("a request failed", error=repr(error), exc_info=error)
            return Answer(error=f"failed: {error!r}; see the service's log", exit_code=1)

    def _do(self, request: Request, peer: Peer) -> Answer:
        actor = self._actor
        match request:
            case Apply() if self._stop.is_set():
                why_not = "the service is stopping and would undo the limit immediately"
                actor.refused("apply", peer, why_not, request)
                raise RefusedError(why_not)
            case Apply():
                return Answer(done=(actor.apply(request, peer),))
            case Undo():
                return Answer(done=tuple(actor.undo(request, peer)))
            case Ask():
                return Answer(in_force=actor.in_force(), limits=actor.limits)


def _peer_of(writer: asyncio.StreamWriter) -> Peer:
    """Return the client, from the kernel."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    return Peer(uid, pid)


def _listen(path: Path) -> socket.socket:
    """Listen at `path`, replacing an earlier process's socket (by the journal's lock that process is gone)."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        if path.is_socket():
            path.unlink()
        with group_socket(path):
            listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UnavailableError(f"cannot listen at {path}: {error.strerror}; see act.socket") from error
    return listener
