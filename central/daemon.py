"""The central daemon: one event loop, one gRPC server over mTLS, the journal's thread, loops that roll and build."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health

from central.api.context import Parts
from central.api.fleet import Fleet, Servicer
from central.authorisation.grpc_interceptor import Authorisation
from central.authorisation.revocation_list import LOOK_S, Revoked
from central.authorisation.roles import Access
from central.build.client import BuildProcess
from central.coefficients.follower import VersionFollower
from central.coefficients.publish import Publisher
from central.coefficients.versions import VersionStore
from central.config import CentralConfig
from central.facts.recorder import FactRecorder
from central.facts.store import FactStore
from central.incidents.recorder import IncidentRecorder
from central.incidents.store import IncidentStore
from central.incidents.webhooks import Webhooks
from central.ingest import gc_tuning
from central.ingest.service import Ingest
from central.ingest.sessions import StreamRegistry
from central.ingest.tls_rejections import Refusals, reading_standard_error
from central.journal.flush import Roller
from central.journal.flush_worker import RollWorker
from central.journal.reserve import reserve_bytes
from central.journal.writer import Journal
from central.lake.replicas import other_journals, replica_of
from central.lake.segments import Lake
from central.own_threads import in_own_thread
from central.web.grpc_services import Doorkeeper, channel_options, handlers
from central.web.server import HttpApi
from whitepanda.common import log, sdnotify
from whitepanda.common.errors import UnavailableError
from whitepanda.common.files.durable import replacing
from whitepanda.common.protocol import SERVER_CHANNEL_OPTIONS
from whitepanda.common.tls import OwnCertificate, server_credentials, warnings

_SPOOL_MARGIN_DAYS = 31  # for clocks that were wrong
_STOP_GRACE_S = 3.0
_SWITCH_S = 0.001  # how long a busy thread keeps the GIL from the loop; 5 ms by default
_SERVICES = ("whitepanda.v1.AgentStream", "whitepanda.v1.Fleet")


class Central:
    """All of central's parts, started and stopped in order."""

    def __init__(self, config: CentralConfig) -> None:
        self.config = config
        self.port = 0
        self._log = log.get("central")
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._http: HttpApi | None = None
        self.registry = StreamRegistry()

    async def start(self) -> None:
        """Open the journal, listen, and start the loops.

        Raises UnavailableError if a folder is not writable or another central's, or the port is taken; TlsError if a
        certificate, a key or the list of revoked serials is missing or wrong.
        """
        config = self.config
        self.revoked = Revoked(config.central.revoked_serials)
        self.revoked.load()
        credentials = server_credentials(config.central.tls, on_change=self._tls_changed)
        for doubt in warnings(config.central.tls, server=True, prefix="central.tls"):
            self._log.warning("agents may not accept this certificate", problem=doubt)
        state = Path(config.central.state_dir)
        _make_writable(state, "central.state_dir")
        try:
            self.lake = Lake(config.central.lake_dir or state / "lake", copies=state)
        except OSError as error:
            raise UnavailableError(f"central.lake_dir {config.central.lake_dir}: {error}") from error
        if self.lake.is_folder:
            _make_writable(self.lake.root, "central.lake_dir")
        self.journal = Journal(
            state,
            replica=config.central.replica,
            commit_interval_s=config.ingest.commit_interval_ms / 1e3,
            max_events=config.ingest.max_events,
            max_events_per_host=config.quotas.max_events_per_host,
            reserve_bytes=reserve_bytes(state, config.ingest.journal_reserve_mib, config.ingest.max_message_bytes),
            spool_days=config.ingest.max_past_days + config.ingest.max_future_s / 86400 + _SPOOL_MARGIN_DAYS,
        )
        self.journal.start()
        try:
            self.incidents = await in_own_thread(IncidentStore, config.incidents.url, state)
            facts = FactStore(self.incidents)
            self._fact_recorder = FactRecorder(config.incidents, self.journal, facts)
            self.recorder = IncidentRecorder(
                config.incidents, self.journal, self.incidents, slot_s=config.build.slot_s, project_of=facts.project
            )
            self.webhooks = Webhooks(
                config.webhooks, self.incidents, holder=self.journal.origin, gap_ns=self.recorder.gap_ns
            )
            self.recorder.on_recorded = self.webhooks.wake
            self.ingest = Ingest(
                config, self.journal, self.registry, revoked=self.revoked, on_agent=self.recorder.note_agent
            )
            self._roll_worker = RollWorker(self.lake.name, state, self.journal.lock)
            self.roller = Roller(config.ingest, self.journal, self.lake, self._roll_worker)
            follower = VersionFollower(VersionStore(self.lake.objects))
            self.builder = BuildProcess(config, self.lake, follower, self.journal.origin)
            self.publisher = Publisher(
                self.registry, follower, ttl_s=config.build.ttl_s, min_samples=config.build.min_samples
            )
            access = Access(config.central.operators, self.revoked, config.central.responders)
            await self._listen(credentials, access)
            await self._listen_http(access)
            _write_port(state / "port", self.port)
        except BaseException:
            await self._stop_server(0.0)
            await self.journal.close()
            raise
        loops = {
            "ingest": self.ingest.watch(),
            "rolls": self.roller.run(),
            "builds": self.builder.run(),
            "publish": self.publisher.run(),
            "incidents": self.recorder.run(),
            "facts": self._fact_recorder.run(),
        }
        for name, work in loops.items():
            self._spawn(work, name)
        if config.central.revoked_serials:
            self._spawn(self._watch_revoked(), "revoked")
        if config.webhooks.urls:
            self._spawn(self.webhooks.run(), "webhooks")
        self._spawn(gc_tuning.collect_rarely(lambda: self.registry.ended), "garbage")
        self._spawn(_watchdog(), "watchdog")
        stats = self.journal.stats
        self._log.info(
            "listening", address=config.central.listen, port=self.port, journal=self.journal.origin,
            journal_rows=stats.journal_rows, accepted_rows=stats.accepted_rows,
        )  # fmt: skip

        await self.warn_of_replicas()

    async def warn_of_replicas(self) -> None:
        """Warn if others write into the lake under this replica's name, or replicas do not share incidents."""
        name, own = self.config.central.replica, self.journal.origin
        try:
            found = await in_own_thread(other_journals, self.lake, own)
        except OSError:  # reported by builds and rolls
            return
        if namesakes := [each for each in found if replica_of(each) == name]:
            message = (
                "another central writes into this lake under the same name; set a unique central.replica for each "
                "(ignore this if this central has lost its journal)"
            )
            self._log.warning(message, replica=name, journal=own, others=namesakes, lake=self.lake.name)
        others = sorted({replica_of(each) for each in found} - {name})
        if others and not self.config.incidents.url:
            message = "other replicas write into this lake, and each has its own incidents; share one incidents.url"
            self._log.warning(message, replicas=others)

    async def stop(self) -> None:
        """Stop taking batches, commit and acknowledge what was taken, and close everything."""
        await self.ingest.drain()
        await self._stop_server(_STOP_GRACE_S)
        self.ingest.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._roll_worker.close()
        self.builder.close()
        await self.journal.close()
        self.incidents.close()

    async def wait(self) -> None:
        """Wait until a part of central fails, and raise its error; UnavailableError if it is the journal."""
        fatal = self.journal.fatal
        if fatal is None:
            raise RuntimeError("central was not started")
        parts: set[asyncio.Future[Any]] = {fatal, *self._tasks}
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if fatal in done:
            raise UnavailableError(f"{fatal.result()}; nothing further is acknowledged, agents keep their windows")
        for task in done:
            await task

    def _tls_changed(self, problem: str) -> None:
        if problem:
            self._log.error("the new certificate files cannot be used; the previous ones stay in use", problem=problem)
        else:
            self._log.info("changed certificate files are in force", certificate=self.config.central.tls.certificate)

    async def _watch_revoked(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await in_own_thread(self.revoked.look)
            for stream in self.registry.close_revoked(self.revoked):
                message = "stream closed: its certificate is revoked"
                self._log.warning(message, host=stream.host, certificate_serial=stream.serial)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _listen(self, credentials: grpc.ServerCredentials, access: Access) -> None:
        config = self.config
        # gRPC's limit, for memory's sake, is above central's, which counts and answers oversized messages. Beyond it
        # gRPC ends the stream itself (RESOURCE_EXHAUSTED), which central sees as an end by the client.
        options = (
            *SERVER_CHANNEL_OPTIONS,
            *channel_options(config),
            ("grpc.max_receive_message_length", 4 * config.ingest.max_message_bytes),
        )
        self.door = Doorkeeper(access, self.registry.refused)
        self._server = grpc.aio.server(interceptors=[Authorisation(self.door)], options=options)
        self._server.add_generic_rpc_handlers((self.ingest.handler(),))
        self.fleet = fleet = Fleet(
            self.journal,
            self.registry,
            self.lake,
            self.builder,
            self.incidents,
            placement=config.placement,
            runtime=config.runtime,
            importers=config.central.importers,
            gap_ns=self.recorder.gap_ns,
            slot_s=config.build.slot_s,
            parts=Parts(
                roll_error=lambda: self.roller.failure,
                incidents_error=lambda: self.recorder.failure,
                webhooks=self.webhooks.status,
                over_quota=self.ingest.quotas.refused,
                certificate=OwnCertificate(config.central.tls),
                revoked=self.revoked,
            ),
        )
        fleet.on_written = self.webhooks.wake
        self._health = health.HealthServicer()
        self._server.add_generic_rpc_handlers(handlers(self.door, Servicer(fleet), self._health, _SERVICES))
        _check_free(config.central.listen)
        try:
            self.port = self._server.add_secure_port(config.central.listen, credentials)
        except RuntimeError as error:
            where = f"central.listen {config.central.listen}"
            raise UnavailableError(f"{where}: cannot listen: {error}; is it an address of this machine?") from error
        await self._server.start()
        for name in ("", *_SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def _listen_http(self, access: Access) -> None:
        central = self.config.central
        if not central.http_listen:
            return
        http = HttpApi(self.fleet, central.http_listen, central.tls, access, self.config.http, self.registry.refused)
        await http.start()
        self._http = http
        _write_port(Path(central.state_dir) / "http_port", http.port)

    async def _stop_server(self, grace_s: float) -> None:
        if self._http is not None:
            await self._http.stop()
            self._http = None
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


async def run(config: CentralConfig) -> None:
    """Run central until SIGTERM or SIGINT; raises UnavailableError or TlsError where it cannot start or continue."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    central = Central(config)
    refusals = Refusals(central.registry.refused)

    def note(line: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(refusals.note, line)

    with reading_standard_error(note):
        await central.start()
        gc_tuning.be_patient()
        sys.setswitchinterval(_SWITCH_S)
        sdnotify.notify(f"READY=1\nSTATUS=listening on port {central.port}")
        await _serve(central, stopping)


async def _serve(central: Central, stopping: asyncio.Event) -> None:
    waiter = asyncio.create_task(central.wait())
    stopper = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((waiter, stopper), return_when=asyncio.FIRST_COMPLETED)
        if waiter.done():
            await waiter  # raises what went wrong
    finally:
        sdnotify.notify("STOPPING=1")
        for task in (waiter, stopper):
            task.cancel()
        await central.stop()
        log.get("central").info("stopped", accepted_rows=central.journal.stats.accepted_rows)


async def _watchdog() -> None:
    """Notify systemd's watchdog that the loop turns, as often as the unit asks for."""
    interval_s = sdnotify.watchdog_interval_s()
    while True:
        if interval_s is not None:
            sdnotify.notify("WATCHDOG=1")
        await asyncio.sleep(interval_s if interval_s is not None else 3600.0)


def _check_free(listen: str) -> None:
    """Refuse an address that is taken: gRPC is content with one free address of several (::1 and 127.0.0.1)."""
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        return
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(f"central.listen {listen}: cannot resolve {host}: {error.strerror}") from error
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    raise UnavailableError(
                        f"central.listen {listen}: {os.strerror(error.errno)} ({address[0]}); stop the process that "
                        "has the port, or set another central.listen"
                    ) from error


def _make_writable(folder: Path, setting: str) -> None:
    """Make a private folder, and check that it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UnavailableError(
            f"{setting} {folder} is not writable: {error.strerror}; create it for the user that central runs as, or "
            f"set another {setting}"
        ) from error


def _write_port(path: Path, port: int) -> None:
    with replacing(path, mode=0o600) as file:
        file.write(b"%d\n" % port)
