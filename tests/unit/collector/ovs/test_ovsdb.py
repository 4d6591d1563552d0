"""The replica of OVSDB: what it says where there is none, and what it makes of a small server's contents."""

import contextlib
import json
import os
import socket
import sys
import threading
import time

import pytest

from collector.base import Reason, SourceError
from collector.inventory.coverage import Coverage
from collector.inventory.inventory import Inventory
from collector.ovs.ovsdb import PortsDatabase
from collector.ovs.ports import Port
from collector.ovs.source import OvsSource


class Server:
    """An OVSDB server of the oldest kind: it knows `monitor` alone, and sends what the test says."""

    def __init__(self, path, contents):
        self.contents = contents
        self.asked = None
        self._client = None
        self._path = str(path)
        self.listen()

    def listen(self):
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self._path)
        self._server.listen(5)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server):
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        decoder, text = json.JSONDecoder(), ""
        with client, contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                text += chunk.decode()
                with contextlib.suppress(ValueError):
                    while text:
                        request, end = decoder.raw_decode(text)
                        text = text[end:]
                        self._answer(client, request)

    def _answer(self, client, request):
        if request["method"] != "monitor":
            reply = {"id": request["id"], "result": None, "error": "unknown method"}
        else:
            self.asked, self._client = request["params"], client
            reply = {"id": request["id"], "result": self.contents, "error": None}
        client.sendall(json.dumps(reply).encode())

    def update(self, changes):
        self._client.sendall(json.dumps({"method": "update", "params": [self.asked[1], changes], "id": None}).encode())

    def stop(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - a str


def uuid(number):
    return f"00000000-0000-4000-8000-{number:012x}"


def ids(*numbers):
    return ["set", [["uuid", uuid(number)] for number in numbers]]


def interface(name, ofport, **external):
    number = ["set", []] if ofport is None else ofport
    pairs = [[key.replace("_", "-"), value] for key, value in external.items()]
    return {"name": name, "ofport": number, "external_ids": ["map", pairs]}


def contents():
    return {
        "Bridge": {
            uuid(1): {"new": {"name": "br-int", "ports": ids(11, 12, 13)}},
            uuid(2): {"new": {"name": "br-ex", "ports": ids(14)}},
        },
        "Port": {uuid(10 + n): {"new": {"interfaces": ids(20 + n)}} for n in (1, 2, 3, 4)}
        | {uuid(15): {"new": {"interfaces": ids(25, 26)}}},
        "Interface": {
            uuid(21): {"new": interface("tap1", 5, vm_id="AA-1", attached_mac="FA:16:3E:00:00:01", iface_id="BB-2")},
            uuid(22): {"new": interface("vhu2", 3, vm_uuid="cc-3")},
            uuid(23): {"new": interface("gone", -1)},
            uuid(24): {"new": interface("uplink", 1)},
            uuid(25): {"new": interface("on-no-bridge", 9)},
            uuid(26): {"new": interface("not-yet", None)},
        },
    }


TAP1 = Port("br-int", "tap1", 5, uuid(21), 0, "aa-1", "bb-2", "fa:16:3e:00:00:01")
VHU2 = Port("br-int", "vhu2", 3, uuid(22), 0, "cc-3")
UPLINK = Port("br-ex", "uplink", 1, uuid(24))


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")
    server = Server(tmp_path / "db.sock", contents())
    yield server
    server.stop()


@pytest.fixture
def database(tmp_path):
    database = PortsDatabase(f"unix:{tmp_path / 'db.sock'}", 5.0)
    yield database
    database.close()


def wait_until(condition):
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.01)


def wait_for(database, condition):
    wait_until(lambda: condition(database.ports()))
    return database.ports()


def test_the_ports_that_have_a_number_and_no_column_more(server, database):
    assert database.ports() == (UPLINK, VHU2, TAP1)
    assert database.bridges == ("br-ex", "br-int")
    columns = {table: sorted(requests[0]["columns"]) for table, requests in server.asked[2].items()}
    # Above all not `statistics`, which would wake us every five seconds.
    assert columns == {
        "Bridge": ["name", "ports"],
        "Port": ["interfaces"],
        "Interface": ["external_ids", "name", "ofport"],
    }


def test_the_same_object_until_something_changes(server, database):
    first = database.ports()
    assert database.ports() is first
    row = uuid(23)
    server.update({"Interface": {row: {"old": {"ofport": -1}, "new": interface("gone", 8)}}})
    now = wait_for(database, lambda ports: ports is not first)
    assert [port.name for port in now] == ["uplink", "vhu2", "tap1", "gone"]


def test_a_port_taken_off_and_put_on_between_two_readings_is_seen(server, database):
    database.ports()
    new, without = contents()["Interface"][uuid(21)]["new"], interface("tap1", -1)
    server.update({"Interface": {uuid(21): {"old": {"ofport": 5}, "new": {**new, "ofport": without["ofport"]}}}})
    server.update({"Interface": {uuid(21): {"old": {"ofport": -1}, "new": new}}})
    time.sleep(0.1)
    port = wait_for(database, lambda ports: ports[-1].renewed)[-1]
    assert (port.name, port.number, port.renewed) == ("tap1", 5, 2)


def test_without_the_server_there_are_no_ports_until_it_is_back(server, database):
    database.ports()
    server.stop()
    for _ in range(3):
        with pytest.raises(SourceError, match=r"db\.sock: the connection is lost; is ovsdb-server running\?"):
            database.ports()
    server.contents["Interface"][uuid(24)]["new"]["name"] = "uplink2"
    server.listen()

    def back():
        with contextlib.suppress(SourceError):
            return database.ports()
        return ()

    wait_until(back)
    now = database.ports()
    assert [port.name for port in now] == ["uplink2", "vhu2", "tap1"]
    assert TAP1 in now  # the same row: the same port


def test_a_server_that_never_answers_costs_the_deadline(tmp_path):
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "db.sock"))
        silent.listen(5)
        source = OvsSource(_Inventory(), database=f"unix:{tmp_path / 'db.sock'}", run_dir=str(tmp_path), deadline_s=0.4)
        started = time.monotonic()
        probe = source.probe()
        assert time.monotonic() - started < 5
        assert (probe.available, probe.reason) == (False, Reason.STUCK)
        assert "no answer within 0.2 s; is ovsdb-server hung" in probe.detail
        with pytest.raises(SourceError):
            source.open()
        source.close()


class _Inventory:
    interfaces_covered = Coverage()

    def vms(self):
        return ()


def test_no_open_vswitch_here(tmp_path, database):
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")
    with pytest.raises(SourceError, match=r"^no /.*/db\.sock: Open vSwitch does not run here") as caught:
        database.open()
    assert caught.value.reason is Reason.NOT_PRESENT
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "db.sock"))
    with pytest.raises(SourceError, match=r"db\.sock: connection refused; is ovsdb-server running\?"):
        database.open()


def test_sockets_of_root_and_what_is_no_socket(tmp_path, monkeypatch):
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        with pytest.raises(SourceError, match=r"permission denied to user \d+; run the agent as root") as caught:
            PortsDatabase("unix:/run/db.sock", 0.2).open()
        assert caught.value.reason is Reason.NO_PERMISSION
    with pytest.raises(SourceError, match=r"AF_UNIX path too long; set sources\.ovs\.database"):
        PortsDatabase("unix:/" + "x" * 200, 0.2).open()
    with pytest.raises(SourceError, match=r"no answer|cannot connect to it"):
        PortsDatabase("nonsense", 0.2).open()


def test_without_the_library_the_probe_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ovs.db.idl", None)
    source = OvsSource(_Inventory(), database=f"unix:{tmp_path}/db.sock", run_dir=str(tmp_path))
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    assert "install whitepanda's extra `host`" in probe.detail


@pytest.mark.parametrize(
    ("address", "error"),
    # A deprecation is an error in tests only; in a daemon it is a TypeError, for want of certificates.
    [("ssl:127.0.0.1:6640", "DeprecationWarning: "), ("tcp:x", "ValueError: x: port")],
)
def test_what_the_library_raises_at_an_address_is_one_line_with_the_remedy(address, error):
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")
    with pytest.raises(SourceError) as caught:
        PortsDatabase(address, 1.0).ports()
    start = f"sources.ovs.database {address!r}: the library `ovs` cannot connect to it ({error}"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith("); set unix:/PATH or tcp:ADDRESS:PORT")
    source = OvsSource(Inventory(), database=address, run_dir="/run/ovs")
    probe = source.probe()
    assert (probe.available, probe.reason, probe.detail) == (False, Reason.SOURCE_FAILED, str(caught.value))
