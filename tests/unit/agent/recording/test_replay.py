import asyncio
import json
import sys
from functools import partial

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import agent.cli.replay as command
from agent.config import AgentConfig, AgentSection, JobRule, UplinkSection
from agent.recording.format import Header, RecordedTick, Recorder
from agent.recording.replay import RecordedRows, ReplayResult, TraceRows, is_recording, read_all, send, spool_id_of
from collector.base import HostCounters, PerfCounters, PerfGroup, SourceSample, ThreadCounters, VmIdentity, VmSample
from collector.traces.google import TraceLimits, read_trace
from tests.support.fake_central import FakeCentral, ack, ack_of
from whitepanda.common.errors import InputError, TlsError, UnavailableError, WhitepandaError
from whitepanda.v1 import agent_pb2

HEAD = (
    "collection_id,instance_index,machine_id,start_time,end_time,"
    "avg_cpu,cycles_per_instruction,priority,scheduling_class"
)
SECOND = 10**9


@pytest.fixture
def trace(tmp_path):
    """2500 rows, of which 2 are bad and every fifth has no CPI."""
    lines = [HEAD]
    for i in range(2498):
        cpi = "" if i % 5 == 0 else f"{1 + i % 7}"
        start = i * 2_000_000
        lines.append(
            f"{100 + i % 40},{i % 3},{i % 11},{start},{start + 1_000_000},{i % 64 / 64},{cpi},{100 + i % 40},3"
        )
    lines += ["1,0,-1,1,2,0.5,1,200,3", "1,0,5,1,2,-0.5,1,200,3"]
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_batches_hold_the_rows_as_columns(trace):
    rows = TraceRows(read_trace(trace), batch_rows=1000)
    batches = list(rows.batches("s"))
    assert [(b.spool_id, b.sequence, len(b.task_index)) for b in batches] == [
        ("s", 1, 1000),
        ("s", 2, 1000),
        ("s", 3, 498),
    ]
    i = 0
    for batch in batches:
        for n, index in enumerate(batch.task_index):
            task = batch.tasks[index]
            assert (task.vm, task.job, task.machine) == (f"{100 + i % 40}-{i % 3}", str(100 + i % 40), str(i % 11))
            assert task.latency_sensitive == (100 + i % 40 >= 120)
            assert (batch.start_unix_ns[n], batch.duration_ns[n]) == (i * 2 * SECOND, SECOND)
            assert batch.cpu_usage_cores[n] == i % 64 / 64
            if i % 5 == 0:
                assert np.isnan(batch.cpi[n])
            else:
                assert batch.cpi[n] == 1 + i % 7
            i += 1
    assert i == 2498
    counts = rows.result
    rejected = {"unknown_machine": 1, "bad_cpu_usage": 1}
    assert (counts.rows_read, counts.without_cpi, counts.rejected_by_reader) == (2500, 500, rejected)


def test_borders_of_batches_do_not_depend_on_how_the_file_is_read(trace, tmp_path):
    pq.write_table(pa_csv.read_csv(trace), tmp_path / "t.parquet", row_group_size=170)
    readings = [read_trace(trace), read_trace(trace, batch_rows=7), read_trace(tmp_path / "t.parquet", batch_rows=333)]
    first, *others = ([b.SerializeToString() for b in TraceRows(r, 600).batches("s")] for r in readings)
    assert len(first) == 5
    assert all(other == first for other in others)


def test_a_replay_is_named_by_content_and_options(trace, tmp_path):
    name = spool_id_of([trace], (100.0, 120.0))
    copy = tmp_path / "copy.csv"
    copy.write_bytes(trace.read_bytes())
    assert spool_id_of([copy], (100.0, 120.0)) == name
    assert spool_id_of([trace], (90.0, 120.0)) != name
    assert spool_id_of([trace, trace], (100.0, 120.0)) != name
    copy.write_bytes(trace.read_bytes() + b"1,0,5,1,2,0.5,1,200,3\n")
    assert spool_id_of([copy], (100.0, 120.0)) != name


@pytest.fixture
async def central(tmp_path_factory):
    central = await FakeCentral(tmp_path_factory.mktemp("pki")).start()
    yield central
    await central.stop()


async def sent(central, rows, **options):
    address, name = options.pop("address", central.address), options.pop("host", "importer")
    section = UplinkSection(address=address, tls=options.pop("tls", central.client("importer")), reconnect_max_s=5.0)
    hello = partial(agent_pb2.Hello, host=name, platform="p", agent_version="1")
    return await send(rows, section, hello, **({"spool_id": "s", "patience_s": 10.0} | options))


async def test_all_is_sent_and_the_counts_add_up(central, trace):
    result = await sent(central, TraceRows(read_trace(trace), 1000))
    assert (result.rows_read, result.rows_sent, result.rows_acknowledged, result.rows_accepted) == (
        2500,
        2498,
        2498,
        2498,
    )
    assert (result.rows_already_there, result.batches_sent, result.problems()) == (0, 3, [])
    assert central.streams[0].hello.host == "importer"
    assert central.streams[0].hello.platform == "p"


async def test_what_was_not_acknowledged_is_sent_again_under_its_number(central, trace):
    async def script(stream):
        await stream.greet()
        if stream.number < 3:
            batches = [await stream.next_batch() for _ in range(3)]
            await stream.send(ack_of(batches[1]))
            return
        while (batch := await stream.next_batch()) is not None:
            # The others were committed by central, though it could not say so any more.
            await stream.send(ack(batch.spool_id, (batch.sequence, batch.sequence)))

    central.script = script
    result = await sent(central, TraceRows(read_trace(trace), 100))
    assert (result.rows_sent, result.rows_acknowledged) == (2498, 2498)
    assert result.rows_accepted == 300
    assert result.rows_already_there == 2198
    assert result.problems() == []
    meaning = {}
    for batch in central.batches():
        assert meaning.setdefault(batch.sequence, batch.SerializeToString()) == batch.SerializeToString()
    assert sorted(meaning) == list(range(1, 26))


async def test_the_rate_is_kept(central, trace):
    loop = asyncio.get_running_loop()
    started = loop.time()
    await sent(central, TraceRows(read_trace(trace), 250), rows_per_s=5000)
    assert loop.time() - started > 0.4


async def test_a_file_that_breaks_in_the_middle_is_an_input_error(central, trace):
    class Breaks(TraceRows):
        def batches(self, spool_id):
            yield next(super().batches(spool_id))
            raise InputError("trace.csv: broken file: at row 1000")

    with pytest.raises(InputError, match="broken file"):
        await sent(central, Breaks(read_trace(trace), 1000))


async def test_central_away_or_refusing_is_reported(central, trace):
    rows = TraceRows(read_trace(trace), 1000)
    await central.stop()
    with pytest.raises(UnavailableError, match="is away"):
        await sent(central, rows, patience_s=0.2)


def test_counts_that_do_not_add_up_are_named():
    result = ReplayResult(
        rows_read=10, rows_sent=8, rejected_by_reader={"bad_cpi": 1}, rows_acknowledged=7, rows_already_there=-1
    )
    assert result.problems() == [
        "10 rows read, but 8 sent and 1 rejected before",
        "8 rows sent, but 7 acknowledged",
        "central counts 1 rows more than were acknowledged",
    ]


# -- recorded hosts


def sample(tick, *, cycles_per_s=2 * SECOND, gone=False):
    """Two VMs that run half a core each with a CPI of 2 and 4, and one second per tick."""
    now = tick * SECOND
    vms, inventory = {}, []
    for n, cpi in ((1, 2), (2, 4)):
        if gone and n == 2:
            continue
        identity = VmIdentity(f"uuid-{n}", f"web-{n}", 100 + n, "epoch-1", (10 + n,))
        inventory.append(identity)
        vms[identity.uuid] = VmSample(
            "epoch-1",
            threads={10 + n: ThreadCounters(now // 2, now // 2, 0, 5)},
            perf=PerfCounters(
                (("cycles", "instructions"),),
                {
                    10 + n: (
                        PerfGroup(1, now // 2, now // 2, (tick * cycles_per_s // 2, tick * cycles_per_s // 2 // cpi)),
                    )
                },
            ),
        )
    host = HostCounters(4, now, 0, now * 3, 0, now, 0)
    unix_ns = 1_700_000_000 * SECOND + now
    return SourceSample("simulated", 50 * SECOND + now, unix_ns, vms, host, tuple(inventory))


@pytest.fixture
def recording(tmp_path):
    file = tmp_path / "host.jsonl"
    with Recorder(file, Header(tick_s=1.0)) as recorder:
        for tick in range(61):
            seen = sample(tick)
            moment = (seen.mono_ns + SECOND, seen.unix_ns + SECOND)
            recorder.write(RecordedTick(*moment, (seen,), {"simulated": None}))
    return file


def test_a_recorded_host_becomes_the_windows_that_the_agent_makes(recording):
    config = AgentConfig(agent=AgentSection(), jobs=(JobRule("^(web)-", "\\1", latency_sensitive=True),))
    rows = RecordedRows([recording], config=config, machine="host-9", batch_rows=5)
    batches = list(rows.batches("s"))
    windows = [
        (b.tasks[i], b.cpi[n], b.cpu_usage_cores[n], b.start_unix_ns[n if len(b.start_unix_ns) > 1 else 0])
        for b in batches
        for n, i in enumerate(b.task_index)
    ]
    assert [b.sequence for b in batches] == list(range(1, len(batches) + 1))
    assert rows.result.rows_read == len(windows) == 12
    for task, cpi, usage, start in windows:
        assert (task.job, task.latency_sensitive, task.machine) == ("web", True, "host-9")
        assert cpi == pytest.approx({"uuid-1": 2, "uuid-2": 4}[task.vm])
        assert usage == pytest.approx(0.5)
        assert 1_700_000_000 * SECOND <= start < 1_700_000_060 * SECOND
        assert start % (10 * SECOND) == 0
    assert is_recording(recording)


def test_a_damaged_recording_is_one_clear_error(recording, tmp_path):
    lines = recording.read_bytes().splitlines(keepends=True)
    recording.write_bytes(b"".join([*lines[:20], b"{}\n", *lines[20:]]))
    with pytest.raises(InputError, match=r"host\.jsonl:21: not a line of a recording"):
        read_all(RecordedRows([recording]))
    (tmp_path / "empty").write_text("{")
    with pytest.raises(InputError, match="empty:1: not a recording"):
        read_all(RecordedRows([tmp_path / "empty"]))


def test_a_recording_of_an_older_format_is_one_clear_error(tmp_path):
    (tmp_path / "old").write_text('{"source":"procfs","mono_ns":1,"unix_ns":1}\n')
    with pytest.raises(InputError, match=r"old: not a recording; .*: record again with it$"):
        read_all(RecordedRows([tmp_path / "old"]))


# -- the command


def run(*arguments):
    import typer  # noqa: PLC0415 - only here

    app = typer.Typer()
    app.command()(command.replay)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_without_central_it_reads_and_counts(trace):
    done = run(trace, "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert (result["sent"], result["rows_read"], result["rows_sent"], result["rows_acknowledged"]) == (
        False,
        2500,
        2498,
        None,
    )
    assert result["rejected_by_reader"] == {"unknown_machine": 1, "bad_cpu_usage": 1}
    assert result["adds_up"] is True
    text = run(trace).stdout
    assert "Nothing was sent; --central HOST:PORT sends it." in text
    assert "rejected before sending: bad_cpu_usage" in text
    assert "Nothing was sent.\n" in run(trace, "--dry-run", "--central", "nowhere:1").stdout


def test_options_change_which_cpi_is_sent_not_which_rows(trace):
    result = json.loads(run(trace, "--json", "--max-cpi", "5").stdout)
    assert (result["rows_sent"], result["adds_up"]) == (2498, True)
    assert result["without_cpi"] == sum(i % 5 == 0 or 1 + i % 7 > 5 for i in range(2498))


def test_an_absurd_cpi_is_not_sent_but_its_rows_usage_is(trace):
    (batch,) = TraceRows(read_trace(trace, limits=TraceLimits(max_cpi=5)), batch_rows=2498).batches("s")
    assert len(batch.cpu_usage_cores) == 2498
    for i in range(1, 7):  # CPI 2 to 7, and none of the sixth
        assert np.isnan(batch.cpi[i]) == (i in (5, 6)), i


def test_a_recording_by_the_command(recording):
    result = json.loads(run(recording, "--json").stdout)
    assert (result["rows_read"], result["rows_sent"]) == (12, 12)


def test_a_last_line_that_is_cut_off_is_reported_and_the_rest_counts(recording):
    recording.write_bytes(recording.read_bytes()[:-5])
    done = run(recording, "--json")
    assert done.exit_code == 0
    assert "host.jsonl:123: the last line is cut off and left out" in done.stderr
    assert json.loads(done.stdout)["rows_read"] == 12


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (["{trace}", "--central", "h:1"], TlsError, "give --tls DIR"),
        (["{trace}", "--central", "h", "--tls", "x"], InputError, "--central must be host:port"),
        (["{trace}", "--central", "h:1", "--tls", "/nowhere"], TlsError, "--tls: cannot read /nowhere/ca.crt"),
        (["/nowhere.csv"], InputError, "/nowhere.csv: cannot read"),
        (["{trace}", "{recording}"], InputError, "cannot be mixed"),
    ],
)
def test_mistakes_are_one_clear_line(trace, recording, arguments, kind, text):
    done = run(*(argument.format(trace=trace, recording=recording) for argument in arguments))
    assert isinstance(done.exception, kind), done.exception
    assert text in str(done.exception)


def test_counts_that_do_not_add_up_end_with_an_error(trace, monkeypatch):
    monkeypatch.setattr(command, "read_all", lambda *_: ReplayResult(rows_read=3, rows_sent=1))
    done = run(trace)
    assert isinstance(done.exception, WhitepandaError)
    assert "do not add up: 3 rows read, but 1 sent" in str(done.exception)


def test_batches_refused_whole_end_with_an_error(trace, tmp_path, monkeypatch):
    async def refused(*_, **__):
        rejected = {"above_limits": 1, "foreign_machine": 3}  # the former by the agent
        return ReplayResult(rows_acknowledged=0, rejected_batches=rejected, rejected_batch_rows=9)

    monkeypatch.setattr(command, "send", refused)
    for name in ("ca.crt", "operator.crt", "operator.key"):
        (tmp_path / name).touch()
    done = run(trace, "--central", "h:1", "--tls", str(tmp_path), "--name", "operator")
    assert isinstance(done.exception, InputError)
    assert "  in rejected batches: above_limits, foreign_machine" in done.stdout
    assert "foreign_machine 3; traces need the certificate of one of central's importers" in str(done.exception)


def test_where_the_extra_is_missing_the_remedy_is_named(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "collector.traces.google", None)
    done = run(trace)
    assert isinstance(done.exception, UnavailableError)
    assert "install it: `python3 tools/bootstrap.py central`" in str(done.exception)
