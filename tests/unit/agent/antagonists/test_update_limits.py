"""What a taken-over or broken central can do to an agent by what it sends: bounded, said, and mended by itself."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.antagonists.update_limits import AskedJobs, Refusals, has_more_parts
from agent.cli.agent_status import _json, _lines
from agent.config import UplinkSection
from agent.uplink.outage import explain
from tests.support.fake_central import FakeCentral, Message, ack, ack_of
from tests.support.waiting import until
from tests.unit.agent.antagonists.test_coefficients import DAY, NOW, SLOT, S, kept, tagged, update
from tests.unit.agent.uplink.test_uplink import Agent, windows
from whitepanda.v1 import agent_pb2, host_pb2

MIB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "coefficients.json"


@pytest.fixture
async def central(tmp_path_factory):
    central = await FakeCentral(tmp_path_factory.mktemp("pki")).start()
    yield central
    await central.stop()


# -- what is taken ---------------------------------------------------------------------------------


def test_only_rows_of_jobs_that_were_asked_for_are_taken(path):
    refusals = Refusals()
    store = kept(path, asked={"web", "db"}, platform="cpu-a", refusals=refusals)
    sent = tagged(update(7, jobs=("web", *(f"foreign-{i}" for i in range(50)))))
    sent.statistics.add(job="web", platform="cpu-b", samples=9, mean_cpi=1.0, std_cpi=0.1)
    assert store.apply(sent)
    assert store.jobs == {"web"}
    assert [row.job for row in store.held_tags] == []  # its tag is not of the rows that came with it
    assert store.statistics("web", "cpu-b", NOW) is None
    assert (refusals.updates, refusals.rows) == (0, 101)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"created": NOW + 301 * S}, {"created": NOW + 300 * S}),
        ({"version": 2**64 - 1}, {"version": 2**63 - 1}),
        ({"slot_ns": 10**8 - 1}, {"slot_ns": 10**8}),
        ({"slot_ns": DAY + 1}, {"slot_ns": DAY}),
        ({"jobs": tuple("abcd")}, {"jobs": tuple("abc")}),
        ({"jobs": ("x" * 1500, "y" * 1500)}, {"jobs": ("x" * 300,)}),
    ],
)
def test_an_update_beyond_a_limit_is_refused_and_one_just_below_it_taken(path, wrong, right):
    limits, refusals = UplinkSection(max_jobs=3), Refusals()
    store = kept(path, limits=limits, refusals=refusals)
    assert store.apply(update(7, jobs=("held",)))
    with capture_logs() as logs:
        assert not store.apply(update(**({"version": 8} | wrong)))
    assert (store.version, store.jobs, refusals.updates) == (7, {"held"}, 1)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("coefficient update refused", "warning")]
    assert logs[0]["why"] == refusals.last != ""
    assert store.apply(update(**({"version": 8} | right)))


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("mean_cpi", 0.009, 0.01),
        ("mean_cpi", 10_001.0, 10_000.0),
        ("std_cpi", 10_001.0, 10_000.0),
        ("location_log_cpi", -10.1, -10.0),
        ("scale_log_cpi", 10.1, 10.0),
        ("samples", 2**63, 2**63 - 1),
        ("value", 10_001.0, -10_000.0),
        ("standard_error", -0.1, 0.0),
        ("standard_error", 1.1e6, 1e6),
        ("method", "x" * 65, "x" * 64),
        ("method", "\x1b[2J", "whitepanda"),
    ],
)
def test_a_value_that_cannot_be_is_left_out(path, field, wrong, right):
    for value, is_held in ((wrong, False), (right, True)):
        refusals = Refusals()
        store = kept(None, refusals=refusals)
        sent = update(7)
        of_coefficient = field in {"value", "standard_error", "method"}
        setattr(sent.coefficients[0] if of_coefficient else sent.statistics[0], field, value)
        assert store.apply(sent)
        found = store.coefficient("web", NOW) if of_coefficient else store.statistics("web", "cpu-a", NOW)
        assert (found is not None, refusals.rows) == (is_held, 0 if is_held else 1)


@pytest.mark.long
@given(
    st.lists(
        st.builds(
            agent_pb2.CoefficientUpdate,
            version=st.integers(0, 2**64 - 1),
            created_unix_ns=st.integers(0, 2**64 - 1) | st.integers(NOW - DAY, NOW + DAY),
            ttl_ns=st.integers(0, 2**64 - 1),
            slot_ns=st.integers(0, 2**64 - 1) | st.just(SLOT),
            full=st.booleans(),
            removed_jobs=st.lists(st.sampled_from(["web", "db"]), max_size=2),
            statistics=st.lists(
                st.builds(
                    agent_pb2.JobStatistics,
                    job=st.sampled_from(["web", "db", "x"]),
                    platform=st.just("cpu-a"),
                    samples=st.integers(0, 2**64 - 1),
                    mean_cpi=st.floats(),
                    std_cpi=st.floats(),
                    location_log_cpi=st.floats(),
                    scale_log_cpi=st.floats(),
                ),
                max_size=3,
            ),
            coefficients=st.lists(
                st.builds(
                    agent_pb2.Coefficient,
                    job=st.sampled_from(["web", "db", "x"]),
                    value=st.floats(),
                    samples=st.integers(0, 2**64 - 1),
                    standard_error=st.floats(),
                    method=st.text(max_size=4),
                ),
                max_size=3,
            ),
            tags=st.lists(
                st.builds(agent_pb2.JobTag, job=st.sampled_from(["web", "x"]), tag=st.integers(0, 9)), max_size=2
            ),
        ),
        max_size=4,
    )
)
def test_whatever_was_sent_the_good_central_is_taken_afterwards_and_after_a_restart(tmp_path_factory, sent):
    path = tmp_path_factory.mktemp("c") / "coefficients.json"
    store = kept(path, asked={"web", "db"})
    for one in sent:
        store.apply(one)
        assert store.jobs <= {"web", "db"}
        with capture_logs() as logs:
            again = kept(path)
        assert (again.version, again.jobs, logs) == (store.version, store.jobs, [])
    # Its next build is made later than anything that was taken, whose creation is at most the skew ahead.
    good = tagged(update(3, created=NOW + 301 * S))
    later = kept(path, now=NOW + 301 * S)
    assert later.apply(good)
    assert (later.version, later.jobs, list(later.held_tags)) == (3, {"web"}, list(good.tags))


# -- poison, and its end ---------------------------------------------------------------------------


def test_poison_of_the_largest_numbers_is_refused(path):
    store = kept(path)
    store.apply(update(7))
    most = 2**64 - 1
    assert not store.apply(update(most, created=most, ttl_ns=0, mean=0.02))
    assert store.apply(update(8, full=False, created=NOW + S, mean=1.3))


def test_poison_on_the_disk_of_an_agent_before_is_not_used_and_gives_way(path):
    most = 2**64 - 1
    row = {"job": "web", "platform": "cpu-a", "samples": 100, "mean_cpi": 0.02, "std_cpi": 0.001}
    poison = {
        "version": most,
        "created_unix_ns": most,
        "ttl_ns": 0,
        "slot_ns": SLOT,
        "statistics": [row],
        "tags": {"web": 1},
    }
    path.write_text(json.dumps(poison))
    store = kept(path)
    assert (store.version, store.held_tags) == (0, ())  # so central sends everything
    assert store.statistics("web", "cpu-a", NOW) is None
    assert store.apply(update(5))
    assert store.statistics("web", "cpu-a", NOW).mean == 1.2


def test_a_lower_number_that_was_made_later_wins_after_a_restore_of_central(path):
    store = kept(path)
    assert store.apply(update(700, created=NOW - 100 * S))
    assert not store.apply(update(12, created=NOW - 100 * S))  # the restored version itself: its next build wins
    assert not store.apply(update(13, created=NOW, full=False))
    assert store.apply(update(13, created=NOW))
    assert (store.version, kept(path).version) == (13, 13)


# -- the file --------------------------------------------------------------------------------------


def test_the_last_good_file_stays_beside_a_new_one_and_is_read_where_that_is_damaged(path):
    store = kept(path)
    store.apply(update(7))
    store.apply(update(8))
    path.write_bytes(b"{")
    with capture_logs() as logs:
        store = kept(path)
    assert store.version == 7
    assert [entry["log_level"] for entry in logs] == ["warning"] * 2
    store.apply(update(9))  # what is damaged does not take the place of the good one
    path.write_bytes(b"{")
    assert kept(path).version == 7


def test_a_file_larger_than_the_bound_is_never_read(path, monkeypatch):
    limits = UplinkSection(max_jobs=2)
    store = kept(path, limits=limits)
    store.apply(update(7))
    store.apply(update(8))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b" " * (4096 - size))
    assert kept(path, limits=limits).version == 8  # just as large as allowed
    with path.open("ab") as file:
        file.truncate(1 << 40)
    read = []
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read.append(size) or real(fd, size))
    with capture_logs() as logs:
        assert kept(path, limits=limits).version == 7
    assert "larger than" in logs[0]["error"]
    assert sum(read) < 2 * 4097


def test_a_pipe_in_the_place_of_the_file_keeps_nobody_waiting(path):
    store = kept(path)
    store.apply(update(7))
    store.apply(update(8))
    path.unlink()
    os.mkfifo(path)
    with capture_logs() as logs:
        assert kept(path).version == 7
    assert logs[0]["error"] == "not a regular file"


# -- the log and the counts ------------------------------------------------------------------------


def test_refusals_are_counted_each_and_said_once_a_minute_and_kind():
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    with capture_logs() as logs:
        for _ in range(1000):
            refusals.update("future", "a")
        refusals.update("older", "b")
        now[0] = 59.9
        refusals.update("future", "a")
        now[0] = 60.0
        refusals.update("future", "c")
    assert (refusals.updates, refusals.last) == (1003, "c")
    assert [(entry["why"], entry.get("left_out")) for entry in logs] == [("a", None), ("b", None), ("c", 1000)]


def test_a_job_is_asked_for_while_an_answer_may_be_under_way():
    now = [0]
    asked = AskedJobs(lambda: now[0])
    asked.note(["web"])
    asked.note([])
    assert "web" in asked
    now[0] = 600 * S - 1
    asked.note(["db"])
    assert "web" in asked
    now[0] = 600 * S
    asked.note([])
    assert ("web" in asked, "db" in asked) == (False, True)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_counting_the_parts_of_anything_ends(raw, most):
    has_more_parts(raw, most)


@given(st.integers(0, 30), st.integers(1, 60))
def test_parts_are_counted_before_a_message_is_built(rows, most):
    update = agent_pb2.CoefficientUpdate(statistics=[agent_pb2.JobStatistics()] * rows)
    raw = Message(coefficients=update).SerializeToString()
    assert has_more_parts(raw, most) == (rows + 1 > most)
    empty = b"\x22\x00" * rows  # as many bodies
    assert has_more_parts(empty, most) == (rows > most)


# -- the stream ------------------------------------------------------------------------------------


async def test_changes_after_a_refused_update_begin_a_new_stream(tmp_path, central):
    """Central takes a refused update for held: what it sends next would be merged into rows that are missing."""

    async def script(stream):
        await stream.greet()
        await stream.send(Message(coefficients=agent_pb2.CoefficientUpdate(version=1, full=True)))
        await stream.send(Message(coefficients=agent_pb2.CoefficientUpdate(version=2)))
        await stream.acknowledge_all()

    central.script = script
    seen = []

    def take(update):
        seen.append(update.version)
        done = asyncio.get_running_loop().create_future()
        done.set_result(len(central.streams) > 1)
        return done

    async with Agent(tmp_path, central, on_coefficients=take) as agent:
        await until(lambda: len(seen) == 3)
        agent.uplink.submit(windows(1))
        await agent.drained()
    assert (seen, len(central.streams)) == ([1, 1, 2], 2)


async def test_the_next_update_waits_until_the_last_one_is_taken_and_acknowledgements_do_not(tmp_path, central):
    async def script(stream):
        await stream.greet()
        await stream.send(Message(coefficients=agent_pb2.CoefficientUpdate(version=1, full=True)))
        await stream.send(ack_of(await stream.next_batch()))
        await stream.send(Message(coefficients=agent_pb2.CoefficientUpdate(version=2, full=True)))
        await stream.acknowledge_all()

    central.script = script
    seen = []

    def take(update):
        seen.append((update.version, asyncio.get_running_loop().create_future()))
        return seen[-1][1]

    async with Agent(tmp_path, central, on_coefficients=take) as agent:
        agent.uplink.submit(windows(1))
        await agent.drained()
        assert [version for version, _ in seen] == [1]
        seen[0][1].set_result(True)
        await until(lambda: len(seen) == 2)
        seen[1][1].set_result(True)


async def test_an_acknowledgement_of_more_rows_than_there_are_breaks_no_count(tmp_path, central):
    most = 2**64 - 1

    async def script(stream):
        await stream.greet()
        batch = await stream.next_batch()
        rejected = [agent_pb2.RejectedRows(reason="x" * MIB, count=most)] * 2
        await stream.send(ack(batch.spool_id, (0, most), accepted_rows=most, rejected_rows=rejected))
        batch = await stream.next_batch()
        rejected = [agent_pb2.RejectedRows(reason=f"reason-{i}", count=1) for i in range(200)]
        one = (batch.sequence, batch.sequence)
        await stream.send(ack(batch.spool_id, one, accepted_rows=100, rejected_rows=rejected))
        await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1, 3))
        await agent.drained()
        agent.uplink.submit(windows(2, 300))
        await agent.drained()
        totals, view = agent.uplink.totals, agent.view
        host_pb2.UplinkStatus(rejected_rows=view.rejected_rows, acknowledged_windows=view.acknowledged_windows)
        assert (totals.acknowledged_rows, totals.accepted_rows, view.rejected_rows) == (303, 100, 200)
        assert (totals.implausible_acknowledgements, len(totals.rejected_rows)) == (1, 33)
        assert totals.rejected_rows["other"] == 168


async def test_an_acknowledgement_of_too_many_ranges_ends_the_stream(tmp_path, central):
    counts = [1001, 1000]

    async def script(stream):
        await stream.greet()
        batch = await stream.next_batch()
        await stream.send(ack(batch.spool_id, *[(batch.sequence, batch.sequence)] * counts.pop(0)))
        await stream.acknowledge_all()

    central.script = script
    async with Agent(tmp_path, central) as agent:
        agent.uplink.submit(windows(1))
        await agent.drained()
    assert len(central.streams) == 2


def test_a_message_that_is_too_large_is_said_with_the_setting():
    outage = explain(
        UplinkSection(address="c:1"), None, "CLIENT: Received message larger than max (19922961 vs. 4194304)"
    )
    assert outage.too_large
    assert outage.refused
    assert "uplink.max_message_mib" in outage.message
    theirs = explain(UplinkSection(address="c:1"), None, "SERVER: Received message larger than max (9 vs. 4)")
    assert not theirs.too_large


# Prints the resident memory before, the most of it, and what was refused.
_AGENT = """
    import asyncio, sys, time
    from pathlib import Path
    from agent.antagonists.coefficients import CoefficientStore
    from agent.config import UplinkSection
    from agent.host_info import resident_bytes
    from agent.uplink.disk_queue import Spool
    from agent.antagonists.update_limits import Refusals
    from agent.uplink.client import Uplink
    from agent.uplink.stream import Timing
    from whitepanda.common.tls import TlsFiles
    from whitepanda.v1 import agent_pb2

    async def main(folder, address, ca, certificate, key, sent):
        section = UplinkSection(
            address=address,
            tls=TlsFiles(ca=ca, certificate=certificate, key=key),
            reconnect_min_s=0.05,
            reconnect_max_s=0.1,
        )
        refusals = Refusals()
        store = CoefficientStore(Path(folder) / "c.json", section, asked={"web"}, refusals=refusals)
        def take(update):
            return asyncio.ensure_future(asyncio.to_thread(store.apply, update))
        spool = Spool(Path(folder) / "spool.db", max_bytes=1 << 20, boot_id="b")
        hello = lambda: agent_pb2.Hello(host="host-1", jobs=["web"], coefficient_version=store.version)
        uplink = Uplink(section, hello, spool, take, refusals=refusals, timing=Timing(poll_s=0.02))
        task = asyncio.create_task(uplink.run())
        while not uplink.connections:
            await asyncio.sleep(0.01)
        before = resident_bytes()
        while refusals.updates + uplink.totals.coefficient_updates < int(sent) or store.version != 9:
            await asyncio.sleep(0.01)
        most = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
        print(before >> 10, most >> 10, refusals.updates, sorted(store.jobs), (Path(folder) / "c.json").stat().st_size)
        task.cancel()

    asyncio.run(main(*sys.argv[1:]))
"""


def foreign_rows(size):
    """An update of about so many bytes, of jobs that the host does not run."""
    row = agent_pb2.JobStatistics(job="x" * 200, platform="cpu-a", samples=100, mean_cpi=0.02, std_cpi=0.001)
    sent = agent_pb2.CoefficientUpdate(version=5, created_unix_ns=NOW - 400 * DAY, slot_ns=SLOT, full=True)
    sent.statistics.extend([row] * (size // 240))
    return Message(coefficients=sent).SerializeToString()


@pytest.mark.long
async def test_large_updates_of_jobs_that_the_host_does_not_run_cost_little_memory(tmp_path, central):
    """The bound: 48 MiB over what the agent had. Six updates of 19 MiB cost 2.4 GiB before there were limits."""
    large, below = foreign_rows(19 * MIB), foreign_rows(3900 * 1024)
    assert len(below) < 4 * MIB < len(large)
    good = agent_pb2.CoefficientUpdate(version=9, created_unix_ns=NOW - 399 * DAY, slot_ns=SLOT, full=True)
    good.statistics.add(job="web", platform="cpu-a", samples=100, mean_cpi=1.2, std_cpi=0.3)
    tiny = b"\x12" + _varint(2 * 1_900_000) + b"\x2a\x00" * 1_900_000  # rows of two bytes each

    async def script(stream):
        await stream.greet()
        if stream.number < 6:
            await stream.send(large)
        else:
            for raw in [below, tiny] * 6:
                await stream.send(raw)
            await stream.send(Message(coefficients=good))
        await stream.acknowledge_all()

    central.script = script
    tls = central.client("host-1")
    arguments = [str(tmp_path), central.address, tls.ca, tls.certificate, tls.key, str(6 + 12 + 1)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_AGENT), *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()[-2000:]
    before, most, refused, rest = out.decode().splitlines()[-1].split(" ", 3)
    print(f"{before} KiB before, {most} KiB at most")
    assert (int(most) - int(before)) / 1024 < 48
    assert int(refused) >= 12
    assert rest.startswith("['web']")
    assert int(rest.split()[-1]) < 1000


def _varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def test_the_status_shows_what_was_refused():
    quiet = {"state": "connected", "address": "c:1"}
    loud = dict(quiet, refused_updates=3, refused_update_rows=4, last_refusal="created 9 s in the future")
    shown = [[line.plain for line in _lines(host_pb2.HostStatus(uplink=view))] for view in (quiet, loud)]
    assert not any(line.startswith("refused") for line in shown[0])
    assert "refused      3 updates of central, 4 rows of others; last: created 9 s in the future" in shown[1]
    assert _json(host_pb2.HostStatus(uplink=loud))["uplink"]["refused_updates"] == 3


def test_the_status_shows_how_long_central_asks_to_wait_between_batches():
    quiet = {"state": "connected", "address": "c:1"}
    paced = dict(quiet, min_batch_interval_ms=1200)
    answers = [host_pb2.HostStatus(uplink=view) for view in (quiet, paced)]
    lines = [next(line.plain for line in _lines(answer) if line.plain.startswith("central ")) for answer in answers]
    assert lines[0] == "central      connected, c:1"
    assert lines[1] == "central      connected, c:1; central asks for 1.2 s between batches"
    waits = [_json(answer)["uplink"]["min_batch_interval_s"] for answer in answers]
    assert waits == [None, 1.2]
