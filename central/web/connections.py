"""HTTP connections: limits on their number, and on the time that a client takes to send a request and read the answer.

A connection that waits for its client (for a request, or for the answer to be read) gives up its place to a new one;
those that central is answering do not. A few places are reserved for health and totals, which so always answer.
"""

import asyncio
import contextlib
import ipaddress
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from central.api.limits import MAX_HTTP_BYTES
from central.authorisation.http_middleware import CERTIFICATE
from central.config import HttpSection
from whitepanda.common import log

#: Why a connection is ended, as counted.
REASONS = (NO_PLACE, SLOW_REQUEST, UNREAD_ANSWER) = ("http_connections", "http_slow_request", "http_unread_answer")
#: Reserved places, on which only `_ALWAYS` is answered.
RESERVE = 16
_ALWAYS = frozenset({"/healthz", "/metrics"})
_SWEEP_S = 1.0
_NO_FILES_S = 0.2  # until the next try, where this process may open no more files
_WARN_EVERY_S = 60.0
_NETWORK_BITS = 64  # a client with one IPv6 address has such a network of them


@dataclass(eq=False)
class Entry:
    """One connection, from when it was accepted until it is gone."""

    peer: str  # the client's address
    since_s: float  # when it was accepted
    is_reserve: bool  # whether it has a reserved place
    protocol: "ClientProtocol | None" = None  # once TLS, if any, is established
    end: Callable[[], object] = lambda: None

    def awaited_since_s(self, now_s: float) -> float | None:
        """Return since when the client is awaited; None while central works on an answer."""
        return self.since_s if self.protocol is None else self.protocol.awaited_since_s(now_s)


class Connections:
    """All open connections of a listener. `refused` counts refusals by reason; `clock_s` is monotonic."""

    def __init__(
        self, section: HttpSection, refused: Counter[str], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.section = section
        self.clock_s = clock_s
        self._refused = refused
        self._entries: dict[Entry, None] = {}  # oldest first
        self._warned_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, address: str) -> Entry | None:
        """Return a new connection's place, perhaps that of one that waits for its client; None if there is none."""
        peer, now_s = _peer(address), self.clock_s()
        usual = [entry for entry in self._entries if not entry.is_reserve]
        own = [entry for entry in usual if entry.peer == peer]
        among = None
        if len(own) >= self.section.max_connections_per_address:
            among = own
        elif len(usual) >= self.section.max_connections:
            among = usual
        is_reserve = among is not None and not self._push_out(among, now_s)
        if is_reserve:
            reserve = [entry for entry in self._entries if entry.is_reserve]
            if len(reserve) >= RESERVE and not self._push_out(reserve, now_s):
                self._note(NO_PLACE, peer)
                return None
        found = Entry(peer, now_s, is_reserve=is_reserve)
        self._entries[found] = None
        return found

    def remove(self, entry: Entry) -> None:
        """Free the place of a connection that is gone."""
        self._entries.pop(entry, None)

    def sweep(self) -> None:
        """End the connections whose client takes too long."""
        now_s = self.clock_s()
        for entry in list(self._entries):
            if entry.protocol is not None and (reason := entry.protocol.overdue(now_s)):
                self._note(reason, entry.peer)

    def _push_out(self, among: list[Entry], now_s: float) -> bool:
        """End the connection that has waited longest for its client; False if none waits."""
        waiting = [(since, entry) for entry in among if (since := entry.awaited_since_s(now_s)) is not None]
        if not waiting:
            return False
        entry = min(waiting, key=lambda each: each[0])[1]
        if entry.protocol is None or not entry.protocol.is_idle:
            self._note(NO_PLACE, entry.peer)
        self.remove(entry)
        entry.end()
        return True

    def _note(self, reason: str, peer: str) -> None:
        self._refused[reason] += 1
        now_s = self.clock_s()
        if now_s - self._warned_s.get(reason, -_WARN_EVERY_S) >= _WARN_EVERY_S:
            self._warned_s[reason] = now_s
            log.get("http").warning("connection ended", reason=reason, client=peer, open=len(self._entries))

    async def serve(
        self, listener: socket.socket, make: "Callable[[], ClientProtocol]", context: ssl.SSLContext | None
    ) -> None:
        """Accept connections until cancelled; `make` makes the protocol of each."""
        loop = asyncio.get_running_loop()
        beginning: set[asyncio.Task[None]] = set()
        sweeping = asyncio.create_task(self._sweep_often(), name="http sweep")
        try:
            while True:
                try:
                    stream, address = await loop.sock_accept(listener)
                except ConnectionError:
                    continue
                except OSError:
                    await asyncio.sleep(_NO_FILES_S)
                    continue
                entry = self.admit(str(address[0]))
                if entry is None:
                    stream.close()
                    continue
                task = asyncio.create_task(self._begin(stream, entry, make, context), name="http connection")
                entry.end = task.cancel
                beginning.add(task)
                task.add_done_callback(beginning.discard)
        finally:
            sweeping.cancel()
            for task in beginning:
                task.cancel()

    async def _begin(
        self, stream: socket.socket, entry: Entry, make: "Callable[[], ClientProtocol]", context: ssl.SSLContext | None
    ) -> None:
        """Do the TLS handshake, if any, and let uvicorn answer."""

        def made() -> ClientProtocol:
            protocol = make()
            protocol.place, protocol.entry = self, entry
            return protocol

        limit_s = None if context is None else self.section.request_timeout_s
        try:
            with contextlib.suppress(OSError):  # such as ssl.SSLError, or a handshake that timed out
                await asyncio.get_running_loop().connect_accepted_socket(
                    made, stream, ssl=context, ssl_handshake_timeout=limit_s, ssl_shutdown_timeout=limit_s
                )
        finally:
            if entry.protocol is None:  # no connection came about
                self.remove(entry)
                stream.close()

    async def _sweep_often(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()


class ClientProtocol(H11Protocol):
    """Uvicorn's protocol of one connection, with the time since when its client is awaited."""

    place: Connections
    entry: Entry

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._request_since_s: float | None = self.place.clock_s()
        self._unread_since_s: float | None = None
        self._answered_s = self.place.clock_s()
        tls = transport.get_extra_info("ssl_object")
        self.app_state = {**self.app_state, CERTIFICATE: tls and tls.getpeercert()}
        self.entry.protocol = self
        self.entry.end = transport.abort
        if self.entry.is_reserve:
            self.app = _only_always(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place up."""
        self.place.remove(self.entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._request_since_s is None and not self._is_answering():
            self._request_since_s = self.place.clock_s()
        super().data_received(data)
        if self._is_answering():
            self._request_since_s = None

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._answered_s = self.place.clock_s()
        super().on_response_complete()

    def _is_answering(self) -> bool:
        """Whether a request is complete and its answer not yet written."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    @property
    def is_idle(self) -> bool:
        """Whether it is only kept open: no request has begun, and the last answer was read."""
        return self._request_since_s is None and not self.transport.get_write_buffer_size()

    def awaited_since_s(self, now_s: float) -> float | None:
        """Return since when the client is awaited; None while central works on an answer."""
        if self._request_since_s is not None:
            return self._request_since_s
        if self.transport.get_write_buffer_size():
            return now_s if self._unread_since_s is None else self._unread_since_s
        return None if self._is_answering() else self._answered_s

    def overdue(self, now_s: float) -> str:
        """End the connection if its client takes too long and return the reason, else ""."""
        section = self.place.section
        if not self.transport.get_write_buffer_size():
            self._unread_since_s = None
        elif self._unread_since_s is None:
            self._unread_since_s = now_s
        elif now_s - self._unread_since_s >= section.answer_timeout_s:
            self.transport.abort()
            return UNREAD_ANSWER
        since_s = self._request_since_s
        if since_s is None or now_s - since_s < section.request_timeout_s:
            return ""
        self._request_since_s = None
        self._refuse(408, f"the request did not come whole in {section.request_timeout_s:g} s")
        return SLOW_REQUEST

    def send_400_response(self, _msg: str) -> None:
        """Answer requests that are too long or not HTTP, in the form of all errors."""
        # h11 does not tell the two apart; a request that is too long is still in its buffer.
        is_long = len(self.conn.trailing_data[0]) >= (self.config.h11_max_incomplete_event_size or 0) > 0
        if is_long:
            self._refuse(431, f"the request's line and headers are longer than {MAX_HTTP_BYTES:,} bytes")
        else:
            self._refuse(400, "this is not an HTTP request")

    def _refuse(self, status: int, text: str) -> None:
        if self.cycle is not None:  # in a request's body: this answer replaces the method's
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self._is_answering():
            self.transport.abort()
            return
        body, headers = _error(text)
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _only_always(answer: Any) -> Any:
    """Answer health and totals, and refuse the rest."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in _ALWAYS:
            await answer(scope, receive, send)
            return
        body, headers = _error("too many connections are open; try again later")
        headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _error(text: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the body and the headers of an error after which the connection is closed."""
    body = json.dumps({"error": text}).encode()
    length = str(len(body)).encode()
    return body, [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]


def _peer(address: str) -> str:
    """Return the address that connections are counted by: the network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:  # noqa: PLR2004 - the protocol's number
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _NETWORK_BITS), strict=False).network_address)
