"""The ports of Open vSwitch's bridges, replicated from OVSDB by the official library (package `ovs`).

Only names, numbers and external_ids are monitored, so that the server wakes the client when ports change and not every
five seconds, as with `statistics`. While ovsdb-server is away there are no ports: ovs-vswitchd does not answer without
its database (seen with 3.1).
"""

import contextlib
import importlib
import socket
import time
from collections import Counter
from typing import Any

from collector.base import Reason, SourceError
from collector.ovs.openflow import permission_denied
from collector.ovs.ports import Port
from collector.timestamps import seconds_left

_NO_LIBRARY = (
    "this Python has no library `ovs`; install whitepanda's extra `host` into its environment "
    "(Debian's python3-openvswitch is not visible from there)"
)
# The monitored columns, of a schema that has had these since Open vSwitch 1.0.
_STRINGS = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}


def _references(table: str) -> dict[str, Any]:
    return {"type": {"key": {"type": "uuid", "refTable": table}, "min": 0, "max": "unlimited"}}


_COLUMNS: dict[str, dict[str, Any]] = {
    "Bridge": {"name": {"type": "string"}, "ports": _references("Port")},
    "Port": {"interfaces": _references("Interface")},
    "Interface": {
        "name": {"type": "string"},
        "ofport": {"type": {"key": "integer", "min": 0, "max": 1}},
        "external_ids": {"type": _STRINGS},
    },
}
_SCHEMA = {
    "name": "Open_vSwitch",
    "version": "1.0.0",
    "tables": {table: {"columns": columns} for table, columns in _COLUMNS.items()},
}


class PortsDatabase:
    """A replica of OVSDB's bridges and ports. Not safe for use by several threads together.

    `remote` is OVSDB's address, such as "unix:/run/openvswitch/db.sock"; `open` waits `deadline_s` for the first
    answer.
    """

    def __init__(self, remote: str, deadline_s: float) -> None:
        self._remote = remote
        self._deadline_s = deadline_s
        self._idl: Any = None
        self._renewed: Counter[str] = Counter()
        self._seen = -1
        #: Names of the bridges, as of the last `ports`.
        self.bridges: tuple[str, ...] = ()
        self._ports: tuple[Port, ...] = ()

    def open(self) -> None:
        """Connect and wait for the contents. Raises SourceError."""
        if self._idl is not None:
            return
        library = _import("ovs.db.idl")
        _check_socket(self._remote, self._deadline_s)
        idl = None
        try:
            helper = library.SchemaHelper(schema_json=_SCHEMA)
            for table, columns in _COLUMNS.items():
                helper.register_columns(table, list(columns))
            idl = library.Idl(self._remote, helper, leader_only=False)
            idl.notify = self._note
            self._wait(idl)
        except Exception as error:
            if idl is not None:
                with contextlib.suppress(Exception):
                    idl.close()
            if isinstance(error, SourceError):
                raise
            # Such as a TypeError for an address with TLS, because the library does not know the files.
            why = f"sources.ovs.database {self._remote!r}: the library `ovs` cannot connect to it"
            raise SourceError(f"{why} ({type(error).__name__}: {error}); set unix:/PATH or tcp:ADDRESS:PORT") from error
        self._idl = idl
        self._seen = -1

    def ports(self) -> tuple[Port, ...]:
        """Take what the server sent, without waiting, and return the ports that have a number.

        The same object until something changes. Reconnects by itself. Raises SourceError as `open` does, and while the
        connection is lost.
        """
        self.open()
        self._idl.run()
        self._idl.run()  # one run reads the end of a connection, the next one knows it
        connected = self._idl._session.is_connected()  # noqa: SLF001 - the library has no public way
        if not connected or self._idl.state != self._idl.IDL_S_MONITORING:
            raise SourceError(f"{self._remote}: the connection is lost; is ovsdb-server running?")
        if self._idl.change_seqno != self._seen:
            self._seen = self._idl.change_seqno
            self._rebuild()
        return self._ports

    def close(self) -> None:
        """Disconnect and forget."""
        idl, self._idl = self._idl, None
        if idl is not None:
            idl.close()

    def _note(self, _event: str, row: Any, old: Any = None) -> None:
        """Count a port that left its bridge and came back between two samplings."""
        if hasattr(old, "ofport"):  # `old` has the columns that changed
            self._renewed[str(row.uuid)] += 1

    def _wait(self, idl: Any) -> None:
        """Run the replica until it has the contents. Raises SourceError at the deadline."""
        poller_module = _import("ovs.poller")
        deadline_s = time.monotonic() + self._deadline_s
        idl.run()
        while not idl.has_ever_connected():
            try:
                left_s = seconds_left(deadline_s)
            except TimeoutError:
                why = f"{self._remote}: no answer within {self._deadline_s:g} s"
                remedy = "is ovsdb-server hung, or is it another database than Open_vSwitch?"
                raise SourceError(f"{why}; {remedy}", Reason.STUCK) from None
            poller = poller_module.Poller()
            idl.wait(poller)
            poller.timer_wait(max(1, round(left_s * 1000)))
            poller.block()
            idl.run()

    def _rebuild(self) -> None:
        tables = self._idl.tables
        found = []
        bridges = sorted(tables["Bridge"].rows.values(), key=lambda row: str(row.name))
        for bridge in bridges:
            interfaces = (interface for port in bridge.ports for interface in port.interfaces)
            found += [self._port(str(bridge.name), each) for each in interfaces if each.ofport and each.ofport[0] > 0]
        self.bridges = tuple(str(bridge.name) for bridge in bridges)
        self._ports = tuple(sorted(found, key=lambda port: (port.bridge, port.number)))
        present = {str(row) for row in tables["Interface"].rows}
        for row in self._renewed.keys() - present:
            del self._renewed[row]

    def _port(self, bridge: str, interface: Any) -> Port:
        ids = interface.external_ids
        row = str(interface.uuid)
        return Port(
            bridge=bridge,
            name=str(interface.name),
            number=int(interface.ofport[0]),
            row=row,
            renewed=self._renewed.get(row, 0),
            vm_uuid=str(ids.get("vm-id") or ids.get("vm-uuid") or "").lower(),
            port_id=str(ids.get("iface-id", "")).lower(),
            mac=str(ids.get("attached-mac", "")).lower(),
        )


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SourceError(_NO_LIBRARY, Reason.NOT_PRESENT) from error


def _check_socket(remote: str, deadline_s: float) -> None:
    """Raise SourceError for a bad unix socket: the library does not report the reason."""
    if not remote.startswith("unix:"):
        return
    path = remote.removeprefix("unix:")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as test:
            test.settimeout(deadline_s)
            test.connect(path)
    except FileNotFoundError as error:
        message = f"no {path}: Open vSwitch does not run here; else set sources.ovs.database"
        raise SourceError(message, Reason.NOT_PRESENT) from error
    except ConnectionRefusedError as error:
        raise SourceError(f"{path}: connection refused; is ovsdb-server running?") from error
    except PermissionError as error:
        raise permission_denied(path) from error
    except BlockingIOError as error:
        raise SourceError(f"{path}: its queue is full; is ovsdb-server hung?", Reason.STUCK) from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}; set sources.ovs.database") from error
