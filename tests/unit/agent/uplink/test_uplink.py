import asyncio
import contextlib
import random
import statistics
import time
from dataclasses import replace

import grpc
import pytest

from agent.antagonists.vm_events import VmEvent
from agent.config import UplinkSection
from agent.sampling.windows import CpiWindow
from agent.uplink import client as uplink_module
from agent.uplink import stream as stream_module
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.outage import explain
from agent.uplink.stream import Timing
from central.pki import issue, make_ca
from tests.support.fake_central import FakeCentral, Message, ack, ack_of, obedient
from tests.support.waiting import until
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.protocol import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

QUICK = Timing(acknowledgement_s=20.0, poll_s=0.02, stable_s=5.0)


def windows(tag, count=1):
    return [CpiWindow(f"vm{i}", "e", "n", "job", False, tag, 10**10, 0.5, cpi=1.5) for i in range(count)]


class Agent:
    """An uplink with its spool, as the daemon runs it."""

    def __init__(self, folder, central, **options):
        self.jobs = ["web"]
        self.coefficient_version = 0
        self.updates = []
        self.spool = Spool(folder / "spool.db", max_bytes=1 << 24, boot_id="b")
        tls = options.pop("tls", None) or central.client("host-1")
        section = UplinkSection(
            address=options.pop("address", central.address),
            tls=tls,
            reconnect_min_s=0.02,
            reconnect_max_s=options.pop("reconnect_max_s", 0.1),
            in_flight_batches=options.pop("in_flight_batches", 32),
            server_name=options.pop("server_name", ""),
        )
        options = {"timing": QUICK} | options
        self.uplink = Uplink(
            section, self.hello, self.spool, options.pop("on_coefficients", self.updates.append), **options
        )
        self.task = None

    def hello(self):
        return agent_pb2.Hello(
            host="host-1",
            boot_id="b",
            platform="cpu",
            agent_version="1",
            jobs=self.jobs,
            coefficient_version=self.coefficient_version,
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(self.uplink.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, UnavailableError, TlsError):
            await self.task
        await self.uplink.close()
        self.spool.close()

    @property
    def view(self):
        return self.uplink.view()

    @property
    def appended(self):
        return self.uplink._appending is None or self.uplink._appending.done()

    async def drained(self):
        await until(lambda: not self.uplink._pending and self.appended and self.view.spooled_batches == 0)


class Logs(list):
    """Takes the place of the loggers: rows of event and keys."""

    def _note(self, event, **keys):
        self.append({"event": event, **keys})

    debug = info = warning = error = _note

    def errors(self):
        return [row["error"] for row in self if row["event"] == "no stream to central"]


@pytest.fixture
def logs(monkeypatch):
    logs = Logs()
    monkeypatch.setattr(uplink_module, "_LOG", logs)
    monkeypatch.setattr(stream_module, "_LOG", logs)
    return logs


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return tmp_path_factory.mktemp("pki")


@pytest.fixture
async def central(pki):
    central = await FakeCentral(pki).start()
    yield central
    await central.stop()


async def test_hello_batches_and_acknowledgements(tmp_path, central):
    async with Agent(tmp_path, central) as agent:
        await until(lambda: agent.view.state == "connected")
        agent.uplink.submit(windows(5, 3))
        # The acknowledgement is counted first, then the batch leaves the spool in a thread.
        await until(lambda: agent.view.acknowledged_batches == 1 and agent.view.spooled_batches == 0)
        hello = central.streams[0].hello
        assert (hello.host, hello.spool_id, hello.platform) == ("host-1", agent.spool.spool_id, "cpu")
        assert (hello.protocol_version, hello.min_protocol_version) == (PROTOCOL_VERSION, MIN_PROTOCOL_VERSION)
        assert hello.sent_unix_ns > 0
        [batch] = central.batches()
        assert (batch.sequence, list(batch.start_unix_ns), batch.backlog) == (1, [5], False)
        view = agent.view
        assert (view.state, view.spooled_batches, view.acknowledged_windows, view.last_error) == ("connected", 0, 3, "")
        assert agent.uplink.totals.accepted_rows == 3


async def test_live_batches_go_before_the_backlog(tmp_path, central):
    gate = asyncio.Event()

    async def script(stream):
        await stream.greet()
        batch = await stream.next_batch()
        await gate.wait()
        await stream.send(ack_of(batch))
        await stream.acknowledge_all()

    central.script = script
    agent = Agent(tmp_path, central, in_flight_batches=1)
    for tag in range(8):
        agent.spool.append(windows(tag))
    async with agent:
        await until(lambda: len(central.batches()) == 1)
        agent.uplink.submit(windows(100))
        await until(lambda: agent.view.spooled_batches == 9)
        gate.set()
        await agent.drained()
    tags = [batch.start_unix_ns[0] for batch in central.batches()]
    assert sorted(tags) == [*range(8), 100]
    # One was on its way when the live one came, with in_flight_batches = 1 nothing else was fetched.
    assert tags.index(100) == 1
    assert [batch.backlog for batch in central.batches() if batch.start_unix_ns[0] != 100] == [True] * 8


async def test_no_more_than_the_window_is_in_flight_and_any_order_of_acknowledgements_will_do(tmp_path, central):
    most = 0

    async def script(stream):
        await stream.greet()
        waiting = []

        async def acknowledge():
            rng = random.Random(1)
            while True:
                await asyncio.sleep(0.05)
                rng.shuffle(waiting)
                while waiting:
                    await stream.send(ack_of(waiting.pop()))

        task = asyncio.create_task(acknowledge())
        while (batch := await stream.next_batch()) is not None:
            nonlocal most
            waiting.append(batch)
            most = max(most, len(waiting))
        task.cancel()

    central.script = script
    agent = Agent(tmp_path, central, in_flight_batches=4)
    for tag in range(15):
        agent.spool.append(windows(tag))
    async with agent:
        await agent.drained()
    assert most == 4
    assert sorted(b.start_unix_ns[0] for b in central.batches()) == list(range(15))


@pytest.mark.parametrize("most", [20, 2])
async def test_what_is_in_flight_grows_by_what_is_acknowledged_but_not_while_central_asks_to_slow_down(
    tmp_path, central, most
):
    flights = []
    slow, quick = [min(size, most) for size in (20, 4)], [min(size, most) for size in (4, 8, 16, 20)]

    async def script(stream):
        await stream.greet()
        waiting = []

        async def take():
            while (batch := await stream.next_batch()) is not None:
                waiting.append(batch)

        async def acknowledge(expected):
            await until(lambda: len(waiting) >= expected)
            await asyncio.sleep(0.1)  # for what should not come
            flight = waiting.copy()
            waiting.clear()
            flights.append(len(flight))
            first, last = (flight[at].sequence for at in (0, -1))
            await stream.send(ack(flight[0].spool_id, (first, last), accepted_rows=len(flight)))

        task = asyncio.create_task(take())
        for expected in quick[:-1]:
            await acknowledge(expected)
        await until(lambda: len(waiting) == most)
        await stream.send(Message(slow_down=agent_pb2.SlowDown(min_batch_interval_ms=1)))
        for expected in slow:
            await acknowledge(expected)
        await stream.send(Message(slow_down=agent_pb2.SlowDown()))
        for expected in quick:
            await acknowledge(expected)
        await task

    central.script = script
    agent = Agent(tmp_path, central, in_flight_batches=most)
    for tag in range(sum(quick[:-1] + slow + quick)):
        agent.spool.append(windows(tag))
    async with agent:
        await agent.drained()
    assert flights == quick[:-1] + slow + quick


@pytest.mark.long
async def test_a_stream_dropped_time_and_again_loses_nothing_and_changes_no_number(tmp_path, central):
    async def script(stream):
        await stream.greet()
        for _ in range(3):
            batch = await stream.next_batch()
            if batch is None:
                return
            await stream.send(ack_of(batch))
        await stream.next_batch()  # sent, never acknowledged
        await stream.context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    central.script = script
    async with Agent(tmp_path, central) as agent:
        for tag in range(20):
            agent.uplink.submit(windows(tag))
        await agent.drained()
    meaning = {}
    for batch in central.batches():
        assert meaning.setdefault((batch.spool_id, batch.sequence), batch.start_unix_ns[0]) == batch.start_unix_ns[0]
    assert sorted(meaning.values()) == list(range(20))
    assert agent.uplink.totals.acknowledged_batches == 20
    assert len(central.streams) >= 5


async def test_central_may_go_and_come_back(tmp_path, pki):
    central = await FakeCentral(pki).start()
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1))
        await agent.drained()
        await central.stop()
        await until(lambda: agent.view.state == "connecting")
        for tag in (2, 3, 4):
            agent.uplink.submit(windows(tag))
        await until(lambda: agent.view.spooled_batches == 3 and agent.view.last_error)
        assert "is away: unavailable" in agent.view.last_error
        await central.start()
        await agent.drained()
        assert agent.view.state == "connected"
        assert agent.view.last_error == ""
        await central.stop()
    assert sorted(b.start_unix_ns[0] for b in central.batches()) == [1, 2, 3, 4]


class Proxy:
    """Passes bytes on, until told to swallow them: a peer behind a dead link."""

    def __init__(self, target):
        self.target = target
        self.alive = True
        self.tasks = []

    async def start(self):
        self.server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def _connect(self, reader, writer):
        host, port = self.target.split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self.tasks += [asyncio.create_task(self._pass(reader, far_writer, alive=self.alive))]
        self.tasks += [asyncio.create_task(self._pass(far_reader, writer, alive=self.alive))]

    async def _pass(self, reader, writer, *, alive):
        while data := await reader.read(65536):
            if self.alive == alive:
                writer.write(data)
        writer.close()

    async def stop(self):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_peer_that_vanishes_without_a_word_is_noticed_though_nothing_is_sent(tmp_path, central, monkeypatch):
    options = dict(uplink_module.CLIENT_CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 60_000
    # Three settings, because gRPC waits for 60 s if it is not told twice how long a ping may take.
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]
    quick = {"grpc.keepalive_time_ms": 1000, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    options |= {name: quick.get(name, value) for name, value in options.items()}
    monkeypatch.setattr(uplink_module, "CLIENT_CHANNEL_OPTIONS", tuple(options.items()))
    proxy = await Proxy(central.address).start()
    async with Agent(tmp_path, central, address=proxy.address) as agent:
        await until(lambda: agent.view.state == "connected")
        proxy.alive = False  # connections made before are dead, new ones live
        await until(lambda: agent.uplink.connections == 2)
        agent.uplink.submit(windows(1))
        await agent.drained()
    await proxy.stop()


async def test_acknowledgements_of_what_was_never_sent_are_ignored(tmp_path, central):
    async def script(stream):
        await stream.greet()
        first = await stream.next_batch()
        await stream.send(ack(first.spool_id, (100, 2**64 - 1)))
        await stream.send(ack("another spool", (0, 2**64 - 1)))
        await stream.send(ack(first.spool_id, (5, 1)))
        await stream.send(ack(first.spool_id))
        await stream.send(Message())
        await stream.send(b"\xf8\x07\x01")  # a field of a future version
        await asyncio.sleep(0.2)
        await stream.send(ack(first.spool_id, (0, 2**64 - 1)))  # only what is under way can be meant
        await stream.acknowledge_all()

    central.script = script
    agent = Agent(tmp_path, central, in_flight_batches=1)
    agent.spool.append(windows(1))
    agent.spool.append(windows(2))
    async with agent:
        await until(lambda: agent.uplink.totals.ignored_acknowledgements == 3)
        assert agent.view.spooled_batches == 2
        await agent.drained()
    assert [b.start_unix_ns[0] for b in central.batches()] == [1, 2]


async def test_garbage_from_central_ends_the_stream_only(tmp_path, central, logs):
    async def script(stream):
        await stream.greet()
        if stream.number < 2:
            await stream.next_batch()
            await stream.send(b"\xff\xff\xff")
            await asyncio.sleep(10)
        await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: any("sends what is not a message (3 bytes)" in error for error in logs.errors()))
        await agent.drained()
        assert len(central.streams) == 3


async def test_a_central_that_takes_nothing_is_given_up_and_tried_again(tmp_path, central, logs):
    async def script(stream):
        await stream.greet()
        if stream.number < 1:
            await asyncio.Event().wait()  # reads no further: what is sent is more than it lets ahead
        await stream.acknowledge_all()

    central.script = script
    agent = Agent(tmp_path, central, timing=replace(QUICK, acknowledgement_s=0.5))
    for tag in range(8):
        agent.spool.append(windows(tag, 2000))
    async with agent:
        await until(lambda: any("has taken nothing for 0.5 s" in error for error in logs.errors()))
        await agent.drained()
    assert sorted(batch.start_unix_ns[0] for batch in central.batches()) == list(range(8))


async def test_a_silent_central_is_given_up_and_tried_again(tmp_path, central, logs):
    async def script(stream):
        if stream.number < 1:
            await stream.greet()
            while await stream.receive():
                pass  # takes everything, acknowledges nothing
        await obedient(stream)

    central.script = script
    async with Agent(tmp_path, central, timing=replace(QUICK, acknowledgement_s=0.5)) as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: any("has acknowledged nothing for 0.5 s" in error for error in logs.errors()))
        await agent.drained()


async def test_a_central_that_does_not_answer_the_hello_is_given_up_and_tried_again(tmp_path, central, logs):
    async def script(stream):
        if stream.number < 1:
            while await stream.receive():
                pass
        await obedient(stream)

    central.script = script
    async with Agent(tmp_path, central, timing=replace(QUICK, welcome_s=0.2)) as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: any("has sent no Welcome for 0.2 s" in error for error in logs.errors()))
        agent.uplink._shared.timing = QUICK
        await agent.drained()
    assert central.streams[0].batches == []


async def test_heartbeats_at_the_pace_of_the_welcome_and_when_jobs_change(tmp_path, central):
    async def script(stream):
        await stream.greet(heartbeat_ms=100)
        await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        await until(lambda: central.streams and len(central.streams[0].heartbeats) >= 3)
        assert list(central.streams[0].heartbeats[-1].jobs) == ["web"]
    slow = await FakeCentral(central.pki).start()  # the default pace: 10 s
    async with Agent(tmp_path / "2", slow) as agent:
        await until(lambda: agent.view.state == "connected")
        await asyncio.sleep(0.2)
        assert slow.streams[0].heartbeats == []
        agent.jobs = ["db", "web"]
        await until(lambda: slow.streams[0].heartbeats)
        agent.coefficient_version = 7
        await until(lambda: len(slow.streams[0].heartbeats) == 2)
        await asyncio.sleep(0.1)
    beats = slow.streams[0].heartbeats
    assert [(list(b.jobs), b.coefficient_version) for b in beats] == [(["db", "web"], 0), (["db", "web"], 7)]
    await slow.stop()


async def test_slow_down_is_obeyed_and_lifted(tmp_path, central):
    times = []

    async def script(stream):
        await stream.greet()
        await stream.send(Message(slow_down=agent_pb2.SlowDown(min_batch_interval_ms=150)))
        for n in range(12):
            batch = await stream.next_batch()
            times.append(asyncio.get_running_loop().time())
            if n == 3:
                await stream.send(Message(slow_down=agent_pb2.SlowDown()))
            await stream.send(ack_of(batch))
        await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        await until(lambda: agent.view.min_batch_interval_ms)
        assert agent.view.min_batch_interval_ms == 150
        began = asyncio.get_running_loop().time()
        for tag in range(12):
            agent.uplink.submit(windows(tag))
        await agent.drained()
        assert (agent.view.state, agent.view.min_batch_interval_ms) == ("connected", 0)
    # What arrives late makes the next gap short: only since the beginning is there a least time.
    assert times[3] - began > 3 * 0.15 - 0.01


async def test_rejections_are_counted_by_reason_and_reported_once(tmp_path, central, logs):
    async def script(stream):
        await stream.greet()
        while (batch := await stream.next_batch()) is not None:
            if batch.sequence == 3:
                rejected = agent_pb2.RejectedBatch(sequence=3, reason="oversized", detail="too large")
                await stream.send(ack(batch.spool_id, (3, 3), rejected_batches=[rejected]))
                continue
            rows = [agent_pb2.RejectedRows(reason="absurd_cpi", count=2)]
            await stream.send(ack(batch.spool_id, (batch.sequence,) * 2, rejected_rows=rows, accepted_rows=3))

    central.script = script
    async with Agent(tmp_path, central) as agent:
        for tag in range(4):
            agent.uplink.submit(windows(tag, 5))
        await agent.drained()
        totals = agent.uplink.totals
        assert totals.rejected_rows == {"absurd_cpi": 6}
        assert totals.rejected_batches == {"oversized": 1}
        assert (totals.accepted_rows, totals.acknowledged_rows, totals.rejected_batch_rows) == (9, 20, 5)
        assert (agent.view.rejected_batches, agent.view.rejected_rows) == (1, 11)
        assert (agent.view.acknowledged_batches, agent.view.acknowledged_windows) == (3, 9)
    assert [log["reason"] for log in logs if log["event"] == "central rejects data"] == ["absurd_cpi", "oversized"]


async def test_a_batch_is_rejected_once_however_often_central_says_so(tmp_path, central):
    async def script(stream):
        await stream.greet()
        while (batch := await stream.next_batch()) is not None:
            rejected = [agent_pb2.RejectedBatch(sequence=batch.sequence, reason="too_many_rows")] * 9
            rows = [agent_pb2.RejectedRows(reason="bad_cpi", count=5)]
            one = (batch.sequence, batch.sequence)
            await stream.send(ack(batch.spool_id, one, rejected_batches=rejected, rejected_rows=rows))

    central.script = script
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1, 5))
        await agent.drained()
        view = agent.view
        assert (view.rejected_batches, view.rejected_rows) == (1, 5)
        assert (view.acknowledged_batches, view.acknowledged_windows) == (0, 0)
        assert agent.uplink.totals.rejected_batches == {"too_many_rows": 1}


async def test_rejections_of_no_batch_that_is_acknowledged_count_only_without_a_number(tmp_path, central):
    async def script(stream):
        await stream.greet()
        while (batch := await stream.next_batch()) is not None:
            unknown = agent_pb2.RejectedBatch(sequence=batch.sequence + 7, reason="too_many_rows")
            rejected = [agent_pb2.RejectedBatch(reason="malformed")] * 2 + [unknown]
            one = (batch.sequence, batch.sequence)
            await stream.send(ack(batch.spool_id, one, rejected_batches=rejected, accepted_rows=5))

    central.script = script
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1, 5))
        await agent.drained()
        assert agent.uplink.totals.rejected_batches == {"malformed": 2}
        assert (agent.view.rejected_batches, agent.view.rejected_rows) == (0, 0)


async def test_limits_below_what_a_window_needs_are_not_obeyed(tmp_path, central, logs):
    async def script(stream):
        await stream.greet(max_batch_rows=1, max_batch_bytes=1)
        if len(central.streams) > 1:
            await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        await until(lambda: len(central.streams) == 2 and agent.view.state == "connected")
        agent.uplink.submit(windows(1, 3))
        await agent.drained()
        assert (agent.view.acknowledged_windows, agent.view.rejected_rows) == (3, 0)
    assert [len(batch.task_index) for batch in central.batches()] == [1, 1, 1]
    floors = [log for log in logs if log["event"] == "central's limit is below what a window needs; not obeyed"]
    assert [(log["max_batch_bytes"], log["used"]) for log in floors] == [(1, 1 << 16)]


async def test_new_batches_keep_to_the_limits_of_the_welcome(tmp_path, central, logs):
    async def script(stream):
        await stream.greet(max_batch_rows=1200, max_batch_bytes=1 << 16)
        await stream.acknowledge_all()

    central.script = script
    agent = Agent(tmp_path, central)
    agent.spool.append(windows(1, 1500))  # spooled under another central's limits
    async with agent:
        await until(lambda: agent.view.state == "connected" and agent.view.spooled_batches == 0)
        assert (agent.view.rejected_batches, agent.view.rejected_rows) == (1, 1500)
        assert (agent.view.acknowledged_batches, agent.view.acknowledged_windows) == (0, 0)
        agent.uplink.submit(windows(2, 1500))
        await agent.drained()
        assert agent.uplink.totals.rejected_batches == {"above_limits": 1}
        assert agent.view.acknowledged_windows == 1500
    sizes = [(len(b.task_index), b.ByteSize() <= 1 << 16) for b in central.batches()]
    assert sum(rows for rows, _ in sizes) == 1500
    assert all(rows <= 1200 and fits for rows, fits in sizes)
    assert [log["reason"] for log in logs if "agent discards" in log["event"]] == ["above_limits"]
    assert not [log for log in logs if log["event"] == "central rejects data"]


async def test_coefficients_are_handed_on_and_a_failing_taker_costs_nothing(tmp_path, central):
    async def script(stream):
        await stream.greet()
        for version in (1, 2):
            await stream.send(Message(coefficients=agent_pb2.CoefficientUpdate(version=version)))
        await stream.acknowledge_all()

    central.script = script
    seen = []

    def take(update):
        seen.append(update.version)
        if update.version == 1:
            raise ValueError("no such job")

    async with Agent(tmp_path, central, on_coefficients=take) as agent:
        agent.uplink.submit(windows(1))
        await agent.drained()
    assert seen == [1, 2]
    assert len(central.streams) == 1


async def test_a_refused_protocol_backs_off_far_and_says_so_once(tmp_path, central, logs):
    async def script(stream):
        await stream.receive()
        await stream.context.abort(grpc.StatusCode.FAILED_PRECONDITION, "host speaks 1 to 2, central 7 to 9")

    central.script = script
    async with Agent(tmp_path, central) as agent:
        await until(lambda: len(central.streams) == 3)
        error = agent.view.last_error
    assert "refuses the protocol: host speaks 1 to 2, central 7 to 9" in error
    assert "upgrade the older side" in error
    assert len(logs.errors()) == 1


async def test_a_tool_gives_up_where_an_agent_tries_on(tmp_path, central):
    async def script(stream):
        await stream.context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")

    central.script = script
    async with Agent(tmp_path, central, give_up_after_s=30.0) as agent:
        with pytest.raises(UnavailableError, match="refuses the protocol"):
            await agent.task
    async with Agent(tmp_path / "2", central, give_up_after_s=0.1, address="127.0.0.1:1") as agent:
        with pytest.raises(UnavailableError, match="is away: unavailable"):
            await agent.task


async def test_certificates_that_do_not_fit_are_one_clear_line(tmp_path, central):
    stranger = tmp_path / "stranger"
    make_ca(stranger)
    foreign = issue(stranger, "host-1")
    good = central.client("host-1")
    cases = {
        "is not of the CA in": {"tls": TlsFiles(ca=foreign.ca, certificate=good.certificate, key=good.key)},
        "does not name": {"server_name": "elsewhere.example"},
        "cannot read": {"tls": TlsFiles(ca=str(tmp_path / "no.crt"), certificate=good.certificate, key=good.key)},
    }
    for n, (text, options) in enumerate(cases.items()):
        async with Agent(tmp_path / str(n), central, **options) as agent:
            await until(lambda agent=agent: agent.view.last_error)
            assert text in agent.view.last_error
            assert "\n" not in agent.view.last_error
    assert central.streams == []


async def test_a_certificate_of_another_ca_is_no_normal_outage(tmp_path, central, logs):
    """With TLS 1.3 the client learns of the refusal only as a connection that breaks off."""
    stranger = tmp_path / "stranger"
    make_ca(stranger)
    foreign, good = issue(stranger, "host-1"), central.client("host-1")
    mixed = TlsFiles(ca=good.ca, certificate=foreign.certificate, key=foreign.key)
    async with Agent(tmp_path, central, tls=mixed) as agent:
        await until(lambda: agent.view.last_error)
        agent.uplink.submit(windows(1))
        await until(lambda: agent.view.spooled_batches == 1)
    (error,) = logs.errors()
    assert error.startswith(
        f"uplink.tls.certificate: {foreign.certificate} is not signed by the CA in uplink.tls.ca ({good.ca})"
    )
    assert "Socket closed" in error
    assert central.streams == []
    async with Agent(tmp_path / "2", central, tls=mixed, give_up_after_s=30.0, tls_prefix="--") as agent:
        with pytest.raises(TlsError, match=r"^--cert: .* is not signed by the CA in --ca"):
            await agent.task


async def test_nothing_knocks_at_a_central_that_refuses_us_during_the_pauses(tmp_path, central, logs, monkeypatch):
    """A channel that anything of the last stream still held would connect on by itself."""
    stranger = tmp_path / "stranger"
    make_ca(stranger)
    foreign, good = issue(stranger, "host-1"), central.client("host-1")
    opened, closed, connections = [], [], []  # how many connections there were at each
    quick = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]
    open_channel = grpc.aio.secure_channel

    def counted(address, credentials, options):
        opened.append(len(connections))
        channel = open_channel(address, credentials, options=[*options, *quick])
        close = channel.close

        async def noted():
            await close()
            # Connections are accepted in their order: once ours is, all that were made before are counted.
            _reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await until(lambda: writer.get_extra_info("sockname") in connections)
            writer.close()
            closed.append(len(connections))

        channel.close = noted
        return channel

    async def refuse(_reader, writer):
        connections.append(writer.get_extra_info("peername"))
        writer.close()

    monkeypatch.setattr(grpc.aio, "secure_channel", counted)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        options = {
            "address": f"127.0.0.1:{server.sockets[0].getsockname()[1]}",
            "tls": TlsFiles(ca=good.ca, certificate=foreign.certificate, key=foreign.key),
            "reconnect_max_s": 1.5,  # refused: pauses of half of it and more, in which gRPC would try 7 times
        }
        async with Agent(tmp_path, central, **options):
            await until(lambda: len(opened) == 3)
    assert "is not signed by the CA" in logs.errors()[0]
    assert 0 < closed[0] < closed[1]
    for before, after in zip(closed, opened[1:], strict=False):
        assert after <= before + 1, "one may have been on its way"


async def test_a_certificate_that_cannot_work_is_not_even_tried(tmp_path, central, logs):
    server = issue(central.pki, "central-2", server=True, force=True)
    async with Agent(tmp_path, central, tls=server) as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: agent.view.last_error and agent.view.spooled_batches == 1)
        await asyncio.sleep(0.3)  # some attempts
    (error,) = logs.errors()
    assert error.startswith(f"uplink.tls.certificate: {server.certificate} is a server's certificate")


async def test_two_cas_that_know_each_other_are_fine(tmp_path):
    """What we doubt central may yet accept: `tls.ca` is only who must have signed the other side's certificate."""
    agents_ca = tmp_path / "agents"
    make_ca(agents_ca)
    mine = issue(agents_ca, "host-1")
    central = FakeCentral(tmp_path / "central")
    central_ca = tmp_path / "central" / "ca.crt"
    keep = central_ca.read_bytes()
    central_ca.write_bytes((agents_ca / "ca.crt").read_bytes())
    await central.start()
    (tmp_path / "theirs.crt").write_bytes(keep)
    both = TlsFiles(ca=str(tmp_path / "theirs.crt"), certificate=mine.certificate, key=mine.key)
    async with Agent(tmp_path, central, tls=both) as agent:
        agent.uplink.submit(windows(1))
        await agent.drained()
    await central.stop()


def test_a_connection_that_breaks_off_before_central_spoke_may_be_our_certificate():
    details = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:1: Socket closed"
    unavailable = grpc.StatusCode.UNAVAILABLE
    section = UplinkSection(address="c:1", tls=TlsFiles(certificate="/t/h.crt", ca="/t/ca.crt"))
    outage = explain(section, unavailable, details)
    assert "it may not accept this host's certificate /t/h.crt" in outage.message
    assert (outage.refused, outage.broke_off) == (False, True)
    outage = explain(section, unavailable, "Socket closed", heard=True)
    assert outage.message == "central c:1 is away: unavailable: Socket closed"
    assert not outage.broke_off
    details = "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get"
    outage = explain(section, unavailable, details + " local issuer certificate")
    assert outage.message == (
        "the certificate of central c:1 is not of the CA in /t/ca.crt; is it of another fleet? Give the CA that issued "
        "it (uplink.tls.ca), or another address"
    )
    assert (outage.refused, outage.is_tls, outage.broke_off) == (True, True, False)
    tool = explain(section, unavailable, "Peer name c is not in peer certificate", is_tool=True)
    assert "set --server-name to a name in it" in tool.message


async def test_a_tool_reports_why_it_gave_up_only_once(tmp_path, central, logs):
    pauses = []

    class Rng(random.Random):
        def uniform(self, low, high):
            pauses.append(high)
            return low

    options = {"give_up_after_s": 3600.0, "address": "127.0.0.1:1", "rng": Rng()}
    async with Agent(tmp_path, central, **options) as agent:
        await until(lambda: len(pauses) >= 3)  # it failed and tries on
        agent.uplink._give_up_after_s = 0.0  # the hour is over
        with pytest.raises(UnavailableError, match="is away: unavailable"):
            await agent.task
    assert logs == [{"event": "no stream to central yet, trying on", "give_up_after_s": 3600.0}]


async def test_a_renewed_certificate_is_taken_up_without_a_restart(tmp_path, central):
    good = central.client("host-1")
    mine = {name: tmp_path / name for name in ("ca", "certificate", "key")}
    async with Agent(tmp_path, central, tls=TlsFiles(**{k: str(v) for k, v in mine.items()})) as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: "cannot read" in agent.view.last_error)
        for name, path in mine.items():
            with open(getattr(good, name)) as file:  # noqa: ASYNC230, PTH123 - a test
                path.write_text(file.read())
        await agent.drained()


async def test_without_central_windows_go_to_the_spool(tmp_path, central):
    async with Agent(tmp_path, central, address="") as agent:
        agent.uplink.submit(windows(1))
        await until(lambda: agent.view.spooled_batches == 1)
        assert agent.view.state == "off"
        assert agent.view.last_error == ""


async def test_what_was_submitted_last_is_in_the_spool_after_closing(tmp_path, central):
    agent = Agent(tmp_path, central, address="")
    async with agent:
        agent.uplink.submit(windows(1))
        agent.task.cancel()
    await agent.uplink.close()
    spool = Spool(tmp_path / "spool.db", max_bytes=1 << 20, boot_id="b")
    assert spool.counts().batches == 1
    spool.close()


async def test_windows_are_spooled_once_when_the_agent_stops_in_the_middle_of_it(tmp_path, central):
    agent = Agent(tmp_path, central, address="")
    entered, append = asyncio.Event(), agent.spool.append
    loop = asyncio.get_running_loop()

    def slow_append(*arguments, **options):
        loop.call_soon_threadsafe(entered.set)
        time.sleep(0.2)
        return append(*arguments, **options)

    agent.spool.append = slow_append
    async with agent:
        agent.uplink.submit(windows(1))
        agent.uplink.submit(windows(2))
        await entered.wait()
    spool = Spool(tmp_path / "spool.db", max_bytes=1 << 20, boot_id="b")
    spool.begin_stream()
    assert [b.message.start_unix_ns[0] for b in spool.fetch(9)] == [1, 2]
    spool.close()


async def test_windows_that_wait_for_the_thread_are_not_lost_when_the_agent_stops(tmp_path, central):
    agent = Agent(tmp_path, central, address="")
    async with agent:
        agent.uplink._threads.submit(time.sleep, 0.3)
        agent.uplink.submit(windows(1))
        await until(lambda: agent.uplink._appending is not None)
    assert agent.spool.counts().batches == 1


BAD = (
    CpiWindow("vm-bad", "e", "bad\udcff", "job", False, 7, 10**10, 0.5, cpi=1.5),
    CpiWindow("vm-bad", "e", "n", "job", False, 2**70, 10**10, 0.5),
    CpiWindow("vm-bad", "e", "n", "job", False, 7, 10**10, "half a core"),
)


@pytest.mark.parametrize("bad", BAD)
async def test_a_window_that_cannot_be_sent_costs_itself_and_is_reported_once(tmp_path, central, logs, bad):
    event = VmEvent("vm-bad", "e", "bad\udcff", "job", False, 7, "victim", "steady", 0, "why", (), None, ())
    agent = Agent(tmp_path, central, address="")
    async with agent:
        agent.uplink.submit([*windows(1), bad, *windows(2)], [event])
        agent.uplink.submit([bad])
        agent.uplink.submit(windows(3))
        await until(lambda: not agent.uplink._pending and agent.appended)
        assert (agent.view.spooled_batches, agent.view.rejected_rows) == (2, 3)
        agent.task.cancel()  # at stop
        agent.uplink.submit([bad])
        agent.uplink.submit(windows(4))
    assert agent.view.rejected_rows == 4
    [reported] = [row for row in logs if row["event"].startswith("what cannot be sent")]
    assert reported["rows"] == 2
    assert reported["error"].startswith("VM vm-bad: ")
    spool = Spool(tmp_path / "spool.db", max_bytes=1 << 20, boot_id="b")
    spool.begin_stream()
    assert [list(b.message.start_unix_ns) for b in spool.fetch(9)] == [[1, 2], [3], [4]]
    spool.close()


async def test_a_defect_of_the_spool_costs_the_submission_and_not_the_next(tmp_path, central, logs):
    agent = Agent(tmp_path, central, address="")
    append = agent.spool.append

    def failing(rows, **options):
        if rows[0].start_unix_ns == 1:
            raise AssertionError("a defect")
        return append(rows, **options)

    agent.spool.append = failing
    async with agent:
        agent.uplink.submit(windows(1, 5))
        agent.uplink.submit(windows(2))
        await until(lambda: agent.view.spooled_batches == 1)
    assert agent.view.rejected_rows == 5
    assert [(row["rows"], row["error"]) for row in logs] == [(5, "AssertionError: a defect")]


async def test_a_stuck_disk_drops_the_oldest_submissions_and_holds_up_nobody(tmp_path, central):
    agent = Agent(tmp_path, central, address="")
    for tag in range(100):
        agent.uplink.submit(windows(tag))
    assert agent.view.dropped_batches == 36
    async with agent:
        await until(lambda: agent.view.spooled_batches == 64)


async def test_a_bug_in_the_callback_of_the_daemon_ends_run_and_run_can_be_called_again(tmp_path, central):
    agent = Agent(tmp_path, central)
    shared = agent.uplink._shared
    hello, shared.hello = agent.hello, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        await agent.uplink.run()
    shared.hello = hello
    async with agent:
        agent.uplink.submit(windows(1))
        await agent.drained()


def test_full_jitter():
    section = UplinkSection(reconnect_min_s=0.5, reconnect_max_s=30.0)
    uplink = Uplink(section, lambda: None, None, rng=random.Random(7))
    for failures, ceiling in ((0, 0.5), (1, 1.0), (4, 8.0), (6, 30.0), (500, 30.0)):
        delays = [uplink._back_off_s(failures, refused=False) for _ in range(2000)]
        assert max(delays) <= ceiling
        assert statistics.mean(delays) == pytest.approx(ceiling / 2, rel=0.1)
    refused = [uplink._back_off_s(0, refused=True) for _ in range(2000)]
    assert 15 <= min(refused) <= max(refused) <= 30


@pytest.mark.parametrize(
    ("code", "details", "refused", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", False, "c:1 is away: unavailable: connection refused"),
        (grpc.StatusCode.OK, "", False, "central c:1 ended the stream"),
        (None, "", False, "central c:1 ended the stream"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "over quota", False, "central c:1 refuses for now: over quota"),
        (grpc.StatusCode.PERMISSION_DENIED, "host 'a'", True, "whitepanda pki host"),
        (
            grpc.StatusCode.UNAUTHENTICATED,
            "this certificate is revoked (serial 1a); use a new one",
            True,
            "refuses the certificate : this certificate is revoked (serial 1a); use a new one; issue a new one with",
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "", True, "upgrade the older side"),
        (grpc.StatusCode.ABORTED, "replaced", True, "under the same name"),
        (grpc.StatusCode.INVALID_ARGUMENT, "malformed", True, "refuses what was sent: malformed"),
        (grpc.StatusCode.UNAVAILABLE, "Ssl handshake failed", True, "whitepanda pki show"),
        (grpc.StatusCode.UNAVAILABLE, "Handshake read failed (Endpoint closing)", False, "whitepanda pki show"),
        (grpc.StatusCode.UNAVAILABLE, "x\nCERTIFICATE_VERIFY_FAILED\ny", True, "does not verify"),
        # Central's HTTP port, on loopback and elsewhere, in gRPC's words.
        (
            grpc.StatusCode.UNAVAILABLE,
            "Tls handshake failed: SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: I",
            True,
            "central c:1 answers without TLS, so it is not a gRPC port; take the port of central.listen",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Cannot check peer: missing selected ALPN property.",
            True,
            "by TLS but not HTTP/2, so it is not a gRPC port; take the port of central.listen, not of",
        ),
        (grpc.StatusCode.UNAVAILABLE, "Hostname Verification Check failed.", True, "does not name c:1"),
    ],
)
def test_explanations(code, details, refused, text):
    outage = explain(UplinkSection(address="c:1"), code, details)
    assert outage.refused == refused
    assert text in outage.message
    assert "\n" not in outage.message


async def test_a_batch_leaves_out_the_names_that_the_last_one_had(tmp_path, central):
    async with Agent(tmp_path, central) as agent:
        await until(lambda: agent.view.state == "connected")
        for tag in (5, 6, 7):
            agent.uplink.submit(windows(tag, 3 if tag < 7 else 2))
            await until(lambda tag=tag: agent.view.acknowledged_batches == tag - 4)
        assert [list(batch.start_unix_ns) for batch in central.batches()] == [[5], [6], [7]]
        assert [len(batch.tasks) for batch in central.batches()] == [3, 3, 2]
        assert {batch.spool_id for batch in central.batches()} == {agent.spool.spool_id}
        kinds = [kind for kind in central.streams[0].kinds if kind != "heartbeat"]
        assert kinds == ["hello", "batch", "next", "batch"]
