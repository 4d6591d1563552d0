"""A small OpenFlow client: port statistics and port names from a bridge's management socket.

One connection per bridge is kept open; a reading is one request and its replies, without a subprocess. All versions of
Open vSwitch (1.0 to 1.5) are understood, because a bridge may be restricted to any of them.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from collector.base import NS_PER_S, Reason, SourceError
from collector.timestamps import seconds_left

_HEADER = struct.Struct("!BBHI")  # version, type, length, xid
_HELLO, _ERROR, _ECHO_REQUEST, _ECHO_REPLY = 0, 1, 2, 3
_VERSIONS = {1: "1.0", 2: "1.1", 3: "1.2", 4: "1.3", 5: "1.4", 6: "1.5"}
_HELLO_BITMAP = 1
_HELLO_FAILED = 0
# Statistics and port descriptions are "stats" in 1.0 and "multipart" since: type, flags, then the body.
_PART = struct.Struct("!HH")
_PART_1_1 = struct.Struct("!HH4x")
_MORE = 1
_PORT_STATS, _PORT_DESC = 4, 13
# One entry, by version. Fixed sizes up to 1.3; since 1.4 each entry has its length, and properties after what is read.
# Statistics: number, then receive and transmit packets, bytes, drops, ..., since 1.3 with seconds and nanoseconds.
_STATS_1_1 = struct.Struct("!I4x6Q48x")
_STATS = {1: struct.Struct("!H6x6Q48x"), 2: _STATS_1_1, 3: _STATS_1_1, 4: struct.Struct("!I4x6Q48xII")}
_STATS_1_4 = struct.Struct("!H2xIII6Q16x")  # length, number, seconds, nanoseconds, then the six
_DESC_1_1 = struct.Struct("!I12x16s32x")
_DESC = {1: struct.Struct("!H6x16s24x"), 2: _DESC_1_1, 3: _DESC_1_1, 4: _DESC_1_1}
_DESC_1_4 = struct.Struct("!IH10x16s8x")  # number, length, name
_UNKNOWN = 2**64 - 1  # the specification's value of a counter that the port does not have
_COUNTS = 6  # of a port in an answer; in later versions its age follows them
_RESERVED_1_0, _RESERVED = (0xFF00, 0xFFFFFF00)  # from here on: the bridge itself (LOCAL) and other special ports
_MAX_BUFFER = 16 << 20
_CHUNK = 65536
_CLOSED = "closed the connection"

_T = TypeVar("_T")
_Parser = Callable[[int, bytes], Iterator[tuple[int, _T]]]  # OpenFlow's version, a reply's body


class PortStats(NamedTuple):
    """Cumulative counters of a port as the bridge sees it: it receives what the VM transmits.

    None: the port does not count it. `age_ns` is the age of the port; None before OpenFlow 1.3.
    """

    rx_packets: int | None
    tx_packets: int | None
    rx_bytes: int | None
    tx_bytes: int | None
    rx_dropped: int | None
    tx_dropped: int | None
    age_ns: int | None = None


def permission_denied(path: str) -> SourceError:
    """Return the error of a socket of Open vSwitch that refuses permission."""
    remedy = "run the agent as root; where Open vSwitch has a user of its own see docs/operate.md"
    return SourceError(f"{path}: permission denied to user {os.geteuid()}; {remedy}", Reason.NO_PERMISSION)


class BridgeClient:
    """A connection to one bridge. Not safe for use by several threads together.

    `connections` counts them: readings of another one may be of other ports, with other zeros. `path` is the bridge's
    management socket. Every deadline is a moment of `time.monotonic`. The methods raise SourceError: no listener, no
    answer in time, or not OpenFlow. The next call reconnects.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._version = 0
        self._xid = 0
        self.connections = 0

    def stats(self, deadline_s: float) -> dict[int, PortStats]:
        """Return the statistics of all ports except the reserved ones, by number."""
        return self._ask(_PORT_STATS, deadline_s, _parse_stats, "port statistics")

    def names(self, deadline_s: float) -> dict[int, str]:
        """Return the names of all ports except the reserved ones, by number; longer ones are cut at 15 bytes."""
        return self._ask(_PORT_DESC, deadline_s, _parse_names, "port descriptions")

    def hello(self, deadline_s: float) -> str:
        """Connect if needed and return the common version, such as "1.4"."""
        try:
            self._connect(deadline_s)
        except OSError as error:
            raise self._explain(error) from error
        return _VERSIONS[self._version]

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer.clear()

    def _ask(self, kind: int, deadline_s: float, parse: _Parser[_T], what: str) -> dict[int, _T]:
        """Send a request and return its parsed replies by port; reconnects once if the connection was lost."""
        try:
            bodies = None
            if self._socket is not None:
                with contextlib.suppress(ConnectionError):
                    bodies = self._exchange(kind, deadline_s)
            if bodies is None:
                self.close()  # ovs-vswitchd was restarted, or the bridge was replaced
                self._connect(deadline_s)
                bodies = self._exchange(kind, deadline_s)
            return {number: value for body in bodies for number, value in parse(self._version, body)}
        except struct.error as error:
            raise self._not_openflow(f"{what} of a wrong length ({error})") from error
        except OSError as error:
            raise self._explain(error) from error

    def _connect(self, deadline_s: float) -> None:
        if self._socket is not None:
            return
        self._buffer.clear()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(seconds_left(deadline_s))
        self._socket.connect(self._path)
        self.connections += 1
        self._version = max(_VERSIONS)  # the hello's
        bitmap = sum(1 << version for version in _VERSIONS)
        self._send(_HELLO, 1, struct.pack("!HHI", _HELLO_BITMAP, 8, bitmap), deadline_s)
        while True:
            version, kind, _, body = self._receive(deadline_s)
            if kind == _ERROR:
                raise self._refused(body)
            if kind == _HELLO:
                theirs = _hello_versions(version, body)
                if theirs.isdisjoint(_VERSIONS):
                    what = f"it does not speak OpenFlow 1.0 to 1.5, but version bytes {sorted(theirs)}"
                    raise self._not_openflow(what)
                self._version = max(theirs & _VERSIONS.keys())
                return

    def _exchange(self, kind: int, deadline_s: float) -> list[bytes]:
        self._xid = self._xid % 0xFFFFFFFF + 1
        request, reply = (16, 17) if self._version == 1 else (18, 19)
        self._send(request, self._xid, _request(self._version, kind), deadline_s)
        part = _PART if self._version == 1 else _PART_1_1
        bodies = []
        size = 0
        while True:
            version, message, xid, body = self._receive(deadline_s)
            if message == _ECHO_REQUEST:
                self._send(_ECHO_REPLY, xid, body, deadline_s)
            elif xid != self._xid:
                continue
            elif message == _ERROR:
                raise self._refused(body)
            elif message == reply:
                if version != self._version or len(body) < part.size:
                    raise self._not_openflow(f"a reply of version {version} with {len(body)} bytes")
                found, flags = part.unpack_from(body)
                if found != kind:
                    raise self._not_openflow(f"a reply of kind {found} to a request of kind {kind}")
                bodies.append(body[part.size :])
                size += len(body)
                if not flags & _MORE:
                    return bodies
                if size > _MAX_BUFFER:
                    raise self._not_openflow(f"a reply without end, {size} bytes so far")

    def _send(self, kind: int, xid: int, body: bytes, deadline_s: float) -> None:
        message = _HEADER.pack(self._version, kind, _HEADER.size + len(body), xid) + body
        self._until(deadline_s).sendall(message)

    def _until(self, deadline_s: float) -> socket.socket:
        """Return the connection, with the time left as its timeout."""
        if self._socket is None:
            raise ConnectionResetError(_CLOSED)
        self._socket.settimeout(seconds_left(deadline_s))
        return self._socket

    def _receive(self, deadline_s: float) -> tuple[int, int, int, bytes]:
        """Return the next message: version, type, xid, body."""
        buffer = self._buffer
        while True:
            if len(buffer) >= _HEADER.size:
                version, kind, length, xid = _HEADER.unpack_from(buffer)
                if length < _HEADER.size or not version:
                    raise self._not_openflow(f"a message that begins with {bytes(buffer[:8]).hex(' ')}")
                if len(buffer) >= length:
                    body = bytes(buffer[_HEADER.size : length])
                    del buffer[:length]
                    return version, kind, xid, body
            chunk = self._until(deadline_s).recv(_CHUNK)
            if not chunk:
                raise ConnectionResetError(_CLOSED)
            buffer += chunk

    def _refused(self, body: bytes) -> SourceError:
        self.close()
        kind, code = struct.unpack_from("!HH", body) if len(body) >= 4 else (-1, -1)  # noqa: PLR2004 - two words
        if kind == _HELLO_FAILED:
            text = body[4:].decode(errors="replace").strip("\0 ") or f"code {code}"
            return SourceError(f"{self._path}: no common version of OpenFlow: {text}; see the bridge's protocols")
        return SourceError(f"{self._path}: the bridge refused with OpenFlow error {kind}, code {code}")

    def _not_openflow(self, what: str) -> SourceError:
        self.close()
        return SourceError(f"{self._path}: not OpenFlow: {what}; is it a bridge's management socket?")

    def _explain(self, error: OSError) -> SourceError:
        self.close()
        path = self._path
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return SourceError(f"{path}: {error.strerror}; is ovs-vswitchd running? else set sources.ovs.run_dir")
        if isinstance(error, PermissionError):
            return permission_denied(path)
        if isinstance(error, TimeoutError | BlockingIOError):
            return SourceError(f"{path}: no answer in time; is ovs-vswitchd hung or stopped?", Reason.STUCK)
        return SourceError(f"{path}: {error}; reconnecting at the next tick")


def _hello_versions(version: int, body: bytes) -> set[int]:
    """Return the versions that a hello offers: by its bitmap, else all up to the header's."""
    offset = 0
    while offset + 4 <= len(body):
        kind, length = struct.unpack_from("!HH", body, offset)
        if kind == _HELLO_BITMAP and length >= 8 and offset + 8 <= len(body):  # noqa: PLR2004 - one bitmap
            (bitmap,) = struct.unpack_from("!I", body, offset + 4)
            return {bit for bit in range(1, 32) if bitmap >> bit & 1}
        offset += max(8, (length + 7) // 8 * 8)
    return set(range(1, version + 1))


def _request(version: int, kind: int) -> bytes:
    if version == 1:
        return _PART.pack(kind, 0) + (struct.pack("!H6x", 0xFFFF) if kind == _PORT_STATS else b"")
    # Before 1.5 a request for descriptions has no body.
    all_ports = struct.pack("!I4x", 0xFFFFFFFF) if kind == _PORT_STATS or version == max(_VERSIONS) else b""
    return _PART_1_1.pack(kind, 0) + all_ports


def _parse_stats(version: int, body: bytes) -> Iterator[tuple[int, PortStats]]:
    if version in _STATS:
        for number, *values in _STATS[version].iter_unpack(body):
            if number < (_RESERVED_1_0 if version == 1 else _RESERVED):
                since = values[_COUNTS:]
                yield number, _stats(values[:_COUNTS], since[0] * NS_PER_S + since[1] if since else None)
        return
    for _, number, seconds, ns, *values in _entries(_STATS_1_4, body, length_at=0):
        if number < _RESERVED:
            yield number, _stats(values, seconds * NS_PER_S + ns)


def _stats(values: list[int], age_ns: int | None) -> PortStats:
    known = [None if value == _UNKNOWN else value for value in values] if _UNKNOWN in values else values
    return PortStats._make([*known, age_ns])


def _parse_names(version: int, body: bytes) -> Iterator[tuple[int, str]]:
    entries = _DESC[version].iter_unpack(body) if version in _DESC else _entries(_DESC_1_4, body, length_at=1)
    for number, *_, name in entries:
        if number < (_RESERVED_1_0 if version == 1 else _RESERVED):
            yield number, name.partition(b"\0")[0].decode(errors="replace")


def _entries(entry: struct.Struct, body: bytes, *, length_at: int) -> Iterator[tuple[Any, ...]]:
    """Yield entries that each have their length, as OpenFlow has it since 1.4. Raises struct.error."""
    offset = 0
    while offset < len(body):
        values = entry.unpack_from(body, offset)
        if values[length_at] < entry.size:
            raise struct.error(f"an entry of {values[length_at]} bytes")
        yield values
        offset += values[length_at]
