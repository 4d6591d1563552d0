"""The client against servers that answer as QEMU does, slowly, wrongly, or not at all."""

import contextlib
import json
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import DiskCounters, DiskDevice, Reason
from collector.qemu import qmp
from collector.qemu.qmp import ALLOWED, QmpError, ask, parse_blockstats, parse_devices, parse_state, parse_tids

GREETING = {"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}
EVENT = {"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RTC_CHANGE", "data": {"offset": 0}}


class Server:
    """Says `greeting`, then for each request what `reply` makes of it."""

    def __init__(self, path, reply, greeting=GREETING):
        self.path, self.reply, self.greeting = str(path), reply, greeting
        self.requests = []
        self.ends = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self._send(connection, self.greeting)
                for line in connection.makefile("rb"):
                    request = json.loads(line)
                    self.requests.append(request)
                    for message in self.reply(request):
                        self._send(connection, message)
            self.ends += 1

    def _send(self, connection, message):
        raw = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\r\n"
        for at in range(0, len(raw), 4096):
            connection.sendall(raw[at : at + 4096])

    def close(self):
        # Closing alone leaves the thread in accept(), which then wakes up in another test.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(20)


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(reply=None, **arguments):
        def good(request):
            return [{"return": {"of": request["execute"]}, "id": request["id"]}]

        servers.append(Server(tmp_path / f"s{len(servers)}", reply or good, **arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def query(server, *commands, deadline_s=60.0):
    return ask(server.path, commands or ["query-status"], pid=os.getpid(), uid=os.getuid(), deadline_s=deadline_s)


def test_asks_in_order_after_the_handshake_and_goes(serve):
    server = serve()
    assert query(server, "query-status", "query-block") == {
        "query-status": {"of": "query-status"},
        "query-block": {"of": "query-block"},
    }
    query(server)  # the socket is free again
    assert [request["execute"] for request in server.requests] == [
        "qmp_capabilities", "query-status", "query-block", "qmp_capabilities", "query-status"
    ]  # fmt: skip


def test_only_what_reads_is_ever_sent(serve):
    assert sorted(ALLOWED) == ["query-block", "query-blockstats", "query-cpus-fast", "query-status"]
    server = serve()
    for command in ("quit", "stop", "system_reset", "human-monitor-command", "qmp_capabilities"):
        with pytest.raises(ValueError, match="not a command that only reads"):
            query(server, "query-status", command)
    assert server.requests == []


def test_events_are_skipped_and_large_answers_read(serve):
    big = {"x": "y" * 300_000}
    server = serve(lambda request: [EVENT, EVENT, {"return": big, "id": request["id"]}, EVENT])
    assert query(server, "query-status", "query-block") == {"query-status": big, "query-block": big}


def test_a_command_that_this_qemu_does_not_know_is_left_out(serve):
    def reply(request):
        if request["execute"] == "query-cpus-fast":
            return [{"error": {"class": "CommandNotFound", "desc": "no"}, "id": request["id"]}]
        return [{"return": [], "id": request["id"]}]

    assert query(serve(reply), "query-cpus-fast", "query-blockstats") == {"query-blockstats": []}


@pytest.mark.parametrize(
    ("reply", "greeting", "says"),
    [
        (None, b"QEMU 7.2.22 monitor - type 'help' for more information\r\n(qemu) ", "not JSON"),
        (None, {"hello": 1}, "no greeting of QMP"),
        (None, b"[1]\n", "not a message"),
        (None, b"[" * 5000 + b"\n", "not JSON"),
        (lambda _: [{"error": {"class": "GenericError"}, "id": "qmp_capabilities"}], GREETING, "handshake was refused"),
        (lambda _: [{"return": {}, "id": "another"}], GREETING, "neither an event nor the answer"),
        (lambda _: [b"\xff\xfe\n"], GREETING, "not JSON"),
        (lambda _: [b" " * (9 << 20)], GREETING, "more than 8388608 bytes"),
    ],
)
def test_what_is_not_qmp_is_said(serve, reply, greeting, says):
    server = serve(reply, greeting=greeting)
    with pytest.raises(QmpError, match=says) as caught:
        query(server)
    assert caught.value.reason is Reason.INVALID_VALUE
    assert server.path in str(caught.value)


def test_a_connection_that_is_closed_midway(serve):
    server = serve(greeting=b"")
    original = server._send
    server._send = lambda connection, message: connection.shutdown(socket.SHUT_WR)
    with pytest.raises(QmpError, match="the connection was closed"):
        query(server)
    server._send = original


@pytest.mark.parametrize("greeting", [b"", b'{"QMP"', b'{"event":'])
def test_who_does_not_answer_costs_the_deadline_and_no_more(serve, greeting):
    with pytest.raises(QmpError, match="another client holds this QMP socket, or QEMU hangs") as caught:
        query(serve(greeting=greeting), deadline_s=0.1)
    assert caught.value.reason is Reason.STUCK


def test_who_dribbles_does_not_stretch_the_deadline(serve):
    events = json.dumps(EVENT).encode() + b"\n"

    def endless(_):
        while True:
            yield events

    with pytest.raises(QmpError) as caught:
        query(serve(endless), deadline_s=0.2)
    assert caught.value.reason in {Reason.STUCK, Reason.INVALID_VALUE}


def test_a_held_socket_with_others_waiting(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as holders:
        server.bind(path)
        server.listen(0)
        for _ in range(2):
            holder = holders.enter_context(socket.socket(socket.AF_UNIX))
            holder.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                holder.connect(path)
        with pytest.raises(QmpError, match="more wait for it") as caught:
            ask(path, ["query-status"], pid=os.getpid(), uid=os.getuid(), deadline_s=0.2)
    assert caught.value.reason is Reason.STUCK


def test_another_process_is_not_asked(serve):
    server = serve()
    with pytest.raises(QmpError, match=f"process {os.getpid()} listens there, not the VM's 1") as caught:
        ask(server.path, ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)
    assert caught.value.reason is Reason.NOT_PRESENT
    assert server.requests == []


def test_no_socket(tmp_path):
    with pytest.raises(QmpError, match=r"No such file.*where the agent can see it") as caught:
        ask(str(tmp_path / "none"), ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)
    assert caught.value.reason is Reason.NOT_VISIBLE
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "dead"))
    server.close()
    with pytest.raises(QmpError, match="Connection refused"):
        ask(str(tmp_path / "dead"), ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)
    with pytest.raises(QmpError, match="@whitepanda-none: Connection refused"):
        ask("\0whitepanda-none", ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)
    with pytest.raises(QmpError, match="No such file"):
        ask("/x" * 100, ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (PermissionError(13, "Permission denied"), Reason.NO_PERMISSION, "Permission denied; .* needs write access"),
        (OSError(24, "Too many open files"), Reason.FD_LIMIT, "raise the agent's LimitNOFILE"),
        (OSError(5, "Input/output error"), Reason.SOURCE_FAILED, "/run/x: Input/output error"),
    ],
)
def test_errors_of_the_system(monkeypatch, error, reason, says):
    def fail(*_):
        raise error

    monkeypatch.setattr(qmp.socket, "socket", fail)
    with pytest.raises(QmpError, match=says) as caught:
        ask("/run/x", ["query-status"], pid=1, uid=os.getuid(), deadline_s=1)
    assert caught.value.reason is reason


# --- answers, as QEMU 7.2 gave them (shortened) ---

STATS = {"rd_bytes": 10, "wr_bytes": 20, "rd_operations": 1, "wr_operations": 2, "flush_operations": 9}
ANONYMOUS = "/machine/peripheral-anon"
BLOCKSTATS = [
    {"device": "drive-ide2", "stats": STATS, "qdev": "ide2"},
    {"device": "drive-scsi0", "stats": STATS, "node-name": "#block245", "qdev": "scsi0", "parent": {"stats": {}}},
    {"device": "", "stats": STATS, "node-name": "n1", "qdev": "/machine/peripheral/vd1/virtio-backend"},
    {"device": "virtio0", "stats": STATS, "node-name": "n2", "qdev": f"{ANONYMOUS}/device[0]/virtio-backend"},
    {"device": "", "stats": STATS, "node-name": "n3", "qdev": f"{ANONYMOUS}/device[1]/virtio-backend"},
    {"device": "ide0-hd0", "stats": STATS, "node-name": "n4", "qdev": "/machine/unattached/device[23]"},
    {"device": "old", "stats": STATS, "node-name": "n5"},
]  # fmt: skip


def test_blockstats():
    counters = DiskCounters(10, 20, 1, 2)
    names = ("scsi0", "vd1", "virtio0", "device[1]", "ide0-hd0", "old")
    assert parse_blockstats(BLOCKSTATS) == dict.fromkeys(names, counters)
    assert parse_blockstats([]) == {}


@pytest.mark.parametrize(
    "answer", [None, 7, [1], [{"node-name": "x"}], [{"node-name": "x", "stats": {"rd_bytes": "q"}}]]
)
def test_blockstats_that_are_none(answer):
    with pytest.raises(ValueError, match=r"query-blockstats|invalid literal"):
        parse_blockstats(answer)


def test_devices():
    answer = [
        {"device": "drive-ide2", "qdev": "ide2", "removable": True},
        {"device": "", "qdev": "/machine/peripheral/vd1/virtio-backend", "inserted": {"file": "rbd:pool/a"}},
        {"device": "x", "qdev": "scsi0", "inserted": {"file": "/dev/sdb"}},
        "odd",
    ]
    assert parse_devices(answer) == (DiskDevice("vd1", "network"), DiskDevice("scsi0", "block"))
    assert parse_devices({"x": 1}) == ()


def test_tids_are_in_the_order_of_the_vcpus():
    answer = [{"cpu-index": 2, "thread-id": 5}, {"cpu-index": 0, "thread-id": 7}, {"cpu-index": 10, "thread-id": 6}]
    assert parse_tids(answer) == (7, 5, 6)
    assert parse_tids([{"cpu-index": i, "thread-id": 9} for i in range(4)]) == (9,)  # one thread for all
    assert parse_tids([{"cpu-index": 0}, 3]) == parse_tids(None) == ()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("running", "running"), ("paused", "paused"), ("prelaunch", "paused"), ("inmigrate", "paused"),
        ("suspended", "pmsuspended"), ("shutdown", "shutdown"), ("guest-panicked", "crashed"), ("io-error", "paused"),
    ],
)  # fmt: skip
def test_state(status, state):
    assert parse_state({"status": status, "running": state == "running"}) == state


@pytest.mark.long
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_answer_is_survived(answer):
    parse_state(answer), parse_tids(answer), parse_devices(answer)
    with contextlib.suppress(ValueError):
        parse_blockstats(answer)


def test_a_symbolic_link_is_not_followed(serve, tmp_path):
    """Whoever may write the folder would have root connect anywhere."""
    server = serve()
    link = tmp_path / "link"
    link.symlink_to(server.path)
    with pytest.raises(QmpError, match="link: a symbolic link; give QEMU the path") as caught:
        ask(str(link), ["query-status"], pid=os.getpid(), uid=os.getuid(), deadline_s=1)
    assert caught.value.reason is Reason.NO_PERMISSION
    (tmp_path / "file").touch()
    with pytest.raises(QmpError, match="file: not a socket"):
        ask(str(tmp_path / "file"), ["query-status"], pid=os.getpid(), uid=os.getuid(), deadline_s=1)


@pytest.mark.parametrize(("owner", "uid", "is_refused"), [(12345, 107, True), (107, 107, False), (0, 107, False)])
def test_a_socket_of_another_user_is_not_connected_to(serve, monkeypatch, owner, uid, is_refused):
    server = serve()
    real = os.fstat

    def fstat(fd):
        found = list(real(fd))
        found[4] = owner
        return os.stat_result(found)

    monkeypatch.setattr("collector.qemu.qmp.os.fstat", fstat)
    if is_refused:
        with pytest.raises(QmpError, match=r"of user 12345, neither the QEMU's \(107\) nor root") as caught:
            ask(server.path, ["query-status"], pid=os.getpid(), uid=uid, deadline_s=1)
        assert caught.value.reason is Reason.NO_PERMISSION
    else:
        answers = ask(server.path, ["query-status"], pid=os.getpid(), uid=uid, deadline_s=5)
        assert list(answers) == ["query-status"]
