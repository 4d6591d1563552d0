"""A QMP client (QEMU's machine protocol): connect, send read-only commands, disconnect.

A QMP socket serves one client at a time, so this one never stays connected. The library `qemu.qmp` is built on asyncio,
for clients that stay; for four commands every ten seconds its event loop would cost more than this client.
"""

import errno
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

from collector.base import MAX_PID, DiskCounters, DiskDevice, Reason, SourceError
from collector.files import NO_FD
from collector.qemu.cmdline import disk_kind
from collector.timestamps import seconds_left

#: The only commands that are ever sent, besides the handshake: none changes a VM.
ALLOWED = frozenset({"query-status", "query-blockstats", "query-cpus-fast", "query-block"})

_MAX_BYTES = 8 << 20  # of one conversation; 1000 disks make some 2 MB
_CHUNK_BYTES = 1 << 16
_MAX_COUNTER = 2**64 - 1
_MAX_NAME = 256  # characters of a device's name
_UCRED = struct.Struct("3i")

# libvirt's words for QEMU's RunState; every other one is a guest that does not run: "paused".
_STATES = {
    "running": "running",
    "suspended": "pmsuspended",
    "shutdown": "shutdown",
    "guest-panicked": "crashed",
    "internal-error": "crashed",
}


class QmpError(SourceError):
    """A VM did not answer."""


def ask(path: str, commands: Iterable[str], *, pid: int, uid: int, deadline_s: float) -> dict[str, Any]:
    r"""Return a QEMU's answers by command, without refused commands, on a connection that is closed before returning.

    `path` is the socket ("\0..." is an abstract one), `commands` are of `ALLOWED`. Answers of another process than
    `pid` are refused. A socket of another user than `uid` or root, or behind a symbolic link, is not connected to.
    Raises QmpError if no process listens, there is no answer in `deadline_s` (another client holds the socket, QEMU
    hangs), or the answer is not from that QEMU's QMP.
    """
    wanted = list(commands)
    refused = set(wanted) - ALLOWED
    if refused:
        raise ValueError(f"not a command that only reads: {sorted(refused)}")
    shown = path.replace("\0", "@")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            talk = _Talk(connection, deadline_s)
            talk.connect(path, uid)
            _check_peer(connection, shown, pid)
            return talk.ask(wanted)
    except TimeoutError as error:
        message = f"{shown}: no answer in {deadline_s:g} s; another client holds this QMP socket, or QEMU hangs"
        raise QmpError(message, Reason.STUCK) from error
    except OSError as error:
        raise _explain(error, shown) from error
    except _NotQmpError as error:
        raise QmpError(f"{shown}: {error}; is it a QMP socket?", Reason.INVALID_VALUE) from error


def check_socket(path: str, uid: int) -> None:
    """Check only the file: may `ask` connect to this socket? Raises QmpError as `ask` would."""
    if path.startswith("\0"):
        return  # no file
    try:
        _check_file(os.lstat(path), path, uid)
        if not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _explain(error, path) from error


class _NotQmpError(Exception):
    """The received bytes are not QMP."""


class _Talk:
    """One conversation with its deadline."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + deadline_s
        self._buffer = b""
        self._bytes = 0

    def connect(self, path: str, uid: int) -> None:
        self._arm_timeout()
        if path.startswith("\0"):
            self._connection.connect(path)
            return
        # By a descriptor, so that the checked file is the one that is connected to.
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_file(os.fstat(fd), path, uid)
            self._connection.connect(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def ask(self, commands: list[str]) -> dict[str, Any]:
        if "QMP" not in self._receive():
            raise _NotQmpError("no greeting of QMP")
        if self._execute("qmp_capabilities") is None:
            raise _NotQmpError("the handshake was refused")
        answers = {command: self._execute(command) for command in commands}
        return {command: answer["return"] for command, answer in answers.items() if answer is not None}

    def _execute(self, command: str) -> Mapping[str, Any] | None:
        """Return the answer; None for an error."""
        self._arm_timeout()
        self._connection.sendall(json.dumps({"execute": command, "id": command}).encode() + b"\n")
        while True:
            answer = self._receive()
            if answer.get("id") == command:
                return answer if "return" in answer else None
            if "event" not in answer:
                raise _NotQmpError(f"neither an event nor the answer to {command}")

    def _receive(self) -> dict[str, Any]:
        """Return the next message; each is one line."""
        while b"\n" not in self._buffer:
            self._arm_timeout()
            chunk = self._connection.recv(_CHUNK_BYTES)
            self._bytes += len(chunk)
            if not chunk:
                raise _NotQmpError("the connection was closed")
            if self._bytes > _MAX_BYTES:
                raise _NotQmpError(f"more than {_MAX_BYTES} bytes")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _NotQmpError(f"not JSON: {line[:40]!r}") from error
        if not isinstance(message, dict):
            raise _NotQmpError(f"not a message: {line[:40]!r}")
        return message

    def _arm_timeout(self) -> None:
        self._connection.settimeout(seconds_left(self._until_s))


def _check_file(found: os.stat_result, path: str, uid: int) -> None:
    """Refuse a file that another user may have put there for root to connect to."""
    if not stat.S_ISSOCK(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a socket"
        raise QmpError(f"{path}: {kind}; give QEMU the path of the socket itself", Reason.NO_PERMISSION)
    if found.st_uid not in {uid, 0}:
        message = f"{path}: of user {found.st_uid}, neither the QEMU's ({uid}) nor root; not connected to"
        raise QmpError(message, Reason.NO_PERMISSION)


def _check_peer(connection: socket.socket, shown: str, pid: int) -> None:
    """Refuse a socket on which another process listens: the VM was restarted, or the path is another's by now."""
    peer, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if peer and peer != pid:
        raise QmpError(f"{shown}: process {peer} listens there, not the VM's {pid}", Reason.NOT_PRESENT)


def _explain(error: OSError, shown: str) -> QmpError:
    why = f"{shown}: {error.strerror or error}"
    if error.errno == errno.EAGAIN:
        return QmpError(f"{shown}: another client holds this QMP socket and more wait for it", Reason.STUCK)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return QmpError(f"{why}; the agent's user needs write access to the socket", Reason.NO_PERMISSION)
    if error.errno in NO_FD:
        return QmpError(f"{shown}: no file descriptor is left; raise the agent's LimitNOFILE", Reason.FD_LIMIT)
    if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
        return QmpError(f"{why}; is the socket where the agent can see it (not in /tmp or /home)?", Reason.NOT_VISIBLE)
    return QmpError(why)


def parse_state(answer: Any) -> str:
    """Return a query-status's state in libvirt's words; "running" if it is missing."""
    status = answer.get("status") if isinstance(answer, Mapping) else None
    return _STATES.get(status, "paused") if isinstance(status, str) else "running"


def parse_tids(answer: Any) -> tuple[int, ...]:
    """Return a query-cpus-fast's vCPU threads in the order of the vCPUs; empty if none is there."""
    cpus = [cpu for cpu in answer if isinstance(cpu, Mapping)] if isinstance(answer, list) else []
    pairs = [(cpu.get("cpu-index"), cpu.get("thread-id")) for cpu in cpus]
    numbers = [(index, tid) for index, tid in pairs if isinstance(index, int) and isinstance(tid, int)]
    # One thread may run all of them (software emulation with thread=single).
    return tuple(dict.fromkeys(tid for _, tid in sorted(numbers) if 0 < tid <= MAX_PID))


def parse_blockstats(answer: Any) -> dict[str, DiskCounters]:
    """Return a query-blockstats's counters, as the guest sees the devices; none for empty drives. Raises ValueError."""
    found = {}
    try:
        for entry in answer:
            if "node-name" in entry:
                stats = entry["stats"]
                counters = [_counter(stats, key) for key in ("rd_bytes", "wr_bytes", "rd_operations", "wr_operations")]
                found[block_name(entry)] = DiskCounters(*counters)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an answer to query-blockstats: {error!r}") from error
    return found


def _counter(stats: Mapping[str, Any], key: str) -> int:
    value = stats[key]
    if type(value) is not int or not 0 <= value <= _MAX_COUNTER:  # type: True is an int
        raise ValueError(f"query-blockstats: {key} is not a counter ({str(value)[:40]!r})")
    return value


def parse_devices(answer: Any) -> tuple[DiskDevice, ...]:
    """Return the disks of a query-block, without empty drives."""
    entries = [entry for entry in answer if isinstance(entry, Mapping)] if isinstance(answer, list) else []
    return tuple(
        DiskDevice(block_name(entry), disk_kind(str(inserted.get("file", ""))))
        for entry in entries
        if isinstance(inserted := entry.get("inserted"), Mapping)
    )


def block_name(entry: Mapping[str, Any]) -> str:
    """Return the name of a device of query-block or query-blockstats: its id, such as "scsi0", else its drive's."""
    qdev = str(entry.get("qdev", ""))[:_MAX_NAME].removesuffix("/virtio-backend")
    name = qdev.removeprefix("/machine/peripheral/")
    if name and not name.startswith("/"):
        return name
    device, node = (str(entry.get(key, ""))[:_MAX_NAME] for key in ("device", "node-name"))
    return device or qdev.rpartition("/")[2] or node
