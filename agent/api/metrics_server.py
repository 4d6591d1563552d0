"""Metrics for Prometheus: /metrics over HTTP, made of what the agent knows. Imported only where they are on.

For a scrape the loop hands over a `Snapshot`, of which the scrape's own thread makes the text, once per tick.
"""

import asyncio
import concurrent.futures
import contextlib
import gzip
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder

from agent.api.prometheus_text import render
from agent.api.state import Snapshot
from agent.config import MetricsSection
from whitepanda.common import log
from whitepanda.common.config import is_own_name
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.tls import TlsFiles, problems, stamps, warnings

_log = log.get("metrics")

_SNAPSHOT_WAIT_S = 2.0  # the loop is busy for so long only where the agent is in trouble
_CLIENT_WAIT_S = 5.0  # between two reads, or two writes
_REQUEST_S = 10.0  # for all of it: handshake, request and answer
_WARN_EACH_S = 60.0
_MAX_CLIENTS = 8
_GZIP_LEVEL = 1
_PLAIN = "text/plain; charset=utf-8"


class _Pages:
    """Pages of the latest tick. Asked from the server's threads."""

    def __init__(self, take: Callable[[], Snapshot], ticks: Callable[[], int], max_age_s: float) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._ticks = ticks
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._taken_s = 0.0
        self._made: dict[tuple[str, bool], tuple[bytes, str]] = {}

    def get(self, accept: str, *, compress: bool) -> tuple[bytes, str]:
        """Return a page and its content type.

        Raises:
            UnavailableError: the agent's loop did not answer in time, or has ended.

        """
        with self._lock:
            snapshot = self._latest()
            # Whatever a client asks for, the encoders are three.
            kind = choose_encoder(accept)[1]
            page = self._made.get((kind, compress))
            if page is None:
                body, kind = render(snapshot, accept)
                page = (gzip.compress(body, _GZIP_LEVEL) if compress else body, kind)
                self._made[kind, compress] = page
            return page

    def _latest(self) -> Snapshot:
        known = self._snapshot
        is_old = time.monotonic() - self._taken_s > self._max_age_s
        if known is not None and not is_old and known.host.ticks == self._ticks():
            return known
        try:
            future = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        except RuntimeError as error:
            raise UnavailableError("the agent is shutting down") from error
        try:
            self._snapshot = snapshot = future.result(_SNAPSHOT_WAIT_S)
        except (TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise UnavailableError(f"the agent's loop gave no answer in {_SNAPSHOT_WAIT_S:g} s") from error
        self._taken_s = time.monotonic()
        self._made.clear()
        return snapshot

    async def _ask(self) -> Snapshot:
        return self._take()


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_WAIT_S
    server_version = "whitepanda"
    sys_version = ""
    server: "_Server"

    def do_GET(self) -> None:
        self.server.end_wait(self.connection)
        name = ",".join(self.headers.get_all("Host", []))
        if not self.server.is_named(name):
            refusal = f"this agent does not go by that name (Host {name[:80]!r}); use its address, or localhost\n"
            self._answer(400, refusal.encode())
            return
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"metrics are at /metrics\n")
            return
        compress = "gzip" in self.headers.get("Accept-Encoding", "")
        try:
            body, kind = self.server.pages.get(self.headers.get("Accept", ""), compress=compress)
        except UnavailableError as error:
            self._answer(503, f"{error}\n".encode())
            return
        self._answer(200, body, kind, compressed=compress)

    def _answer(self, status: int, body: bytes, kind: str = _PLAIN, *, compressed: bool = False) -> None:
        self.server.begin_wait(self.connection, self.client_address)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: scrapes never end."""


class _Server(ThreadingHTTPServer):
    """A thread per client, a bounded number of them; TLS is begun there, so that no client keeps others waiting.

    A connection that waits for its client (for a request, or for the answer to be read) gives way to a new one.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, family: int, address: Any, pages: _Pages, tls: TlsFiles, on_refused: Callable[[], None]) -> None:
        self.address_family = family
        self.pages = pages
        self._tls = tls
        self._tls_stamps = stamps(tls)
        self._context = _context(tls)
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._warned_s = -_WARN_EACH_S
        self._free = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._waiting: dict[socket.socket | None, Any] = {}  # connections with their addresses, the longest wait first
        super().__init__(address, _Handler)

    def is_named(self, host_header: str) -> bool:
        """Whether a request's Host header is a name of this agent. With TLS the certificate sees to that."""
        return self._context is not None or is_own_name(host_header, {socket.gethostname().lower()})

    def server_bind(self) -> None:
        """Bind without the look-up of the own name that the library makes here."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed allows sockets without a port

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; its thread shakes hands, where TLS is on."""
        request, client_address = super().get_request()
        context = self._fresh_context()
        if context is not None:
            request = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, client_address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the client a thread. Where none is free, the connection that waits the longest for its client goes."""
        is_free = self._free.acquire(blocking=False)
        if not is_free and not (self._push_out() and self._free.acquire(timeout=_CLIENT_WAIT_S)):
            self._refuse(f"{_MAX_CLIENTS} clients are being served", client_address)
            self.shutdown_request(request)
            return
        self.begin_wait(request, client_address)
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can be started
            self.end_wait(request)
            self._free.release()
            self._refuse(str(error), client_address)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.end_wait(request)
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, where TLS is on, and answer; a client that takes too long for all of it is cut off."""
        why = f"not done after {_REQUEST_S:g} s"
        timer = threading.Timer(_REQUEST_S, self._cut_off, (request, client_address, why))
        timer.daemon = True
        timer.start()
        try:
            if isinstance(request, ssl.SSLSocket):
                request.settimeout(_CLIENT_WAIT_S)
                request.do_handshake()
            super().finish_request(request, client_address)
        finally:
            timer.cancel()

    def begin_wait(self, stream: socket.socket, client_address: Any) -> None:
        """Note that a connection waits for its client from here on."""
        with self._lock:
            self._waiting[stream] = client_address

    def end_wait(self, stream: socket.socket) -> None:
        """Note that a connection does not wait for its client."""
        with self._lock:
            self._waiting.pop(stream, None)

    def _push_out(self) -> bool:
        """End the connection that waits the longest for its client; False where none does."""
        with self._lock:
            stream = next(iter(self._waiting), None)
            client_address = self._waiting.pop(stream, None)
        if stream is not None:
            self._cut_off(stream, client_address, "another one came while it waited for its client")
        return stream is not None

    def _fresh_context(self) -> ssl.SSLContext | None:
        """Return a context of the TLS files as they are; of those before, where what they became cannot work."""
        with self._lock:
            now = stamps(self._tls)
            if now != self._tls_stamps:
                self._tls_stamps = now
                try:
                    self._context = _context(self._tls)
                except (TlsError, OSError) as error:
                    what = "changed certificate files cannot be used for /metrics; the previous ones stay in use"
                    _log.error(what, problem=str(error))
            return self._context

    def _cut_off(self, stream: socket.socket, client_address: Any, why: str) -> None:
        self._refuse(why, client_address)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(stream, socket.SHUT_RDWR)  # not TLS's own, which another thread is in

    def _refuse(self, why: str, client_address: Any) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._on_refused()
            is_news = now_s - self._warned_s >= _WARN_EACH_S
            if is_news:
                self._warned_s = now_s
        if is_news:
            _log.warning("a scrape was refused", client=str(client_address[0]), why=why)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Note what a client broke; the others are served."""
        # No traceback of a connection that breaks off: new clients wait until this thread ends, see `process_request`.
        error = sys.exception()
        why = {"error": str(error)} if isinstance(error, OSError) else {"exc_info": True}
        _log.debug("a scrape failed", client=str(client_address), **why)


class MetricsServer:
    """Serves /metrics as `[metrics]` says.

    `take` makes a snapshot on the loop of `start`; `ticks` returns how many ticks ran, from any thread; `on_refused` is
    called for each refused scrape, from any thread but one at a time.
    """

    def __init__(
        self,
        section: MetricsSection,
        take: Callable[[], Snapshot],
        ticks: Callable[[], int],
        tick_s: float,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_refused = on_refused
        self._section = section
        self._pages = partial(_Pages, take, ticks, 2 * tick_s)
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """Where it listens; "" before `start`."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    async def start(self) -> None:
        """Begin to answer. May be tried again after an error.

        Raises:
            UnavailableError: it cannot listen there.
            TlsError: the TLS files cannot work.

        """
        self._server = await asyncio.to_thread(self._listen, self._pages())
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        _log.info("metrics are served", address=self.address)

    async def stop(self) -> None:
        """Stop listening; may be called twice. Open requests are answered, unless the agent exits first."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    def _listen(self, pages: _Pages) -> _Server:
        listen = self._section.listen
        host, _, port = listen.rpartition(":")
        try:
            family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            return _Server(family, address, pages, self._section.tls, self._on_refused)
        except OSError as error:
            remedy = "free that port, or set another metrics.listen"
            raise UnavailableError(f"cannot listen at metrics.listen {listen}: {error.strerror}; {remedy}") from error


def _context(files: TlsFiles) -> ssl.SSLContext | None:
    """Return None without files; with them clients must present a certificate of the CA."""
    if files == TlsFiles():
        return None
    doubts = warnings(files, server=True, prefix="metrics.tls")
    for problem in problems(files, server=True, prefix="metrics.tls"):
        if problem not in doubts:
            raise TlsError(problem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.certificate, files.key, password="")  # never asks at the terminal
    return context
