"""`whitepanda record` with fake and simulated sources."""

import asyncio
import errno
import io
import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from agent.cli import record as module
from agent.cli._options import progress_bar
from agent.cli.record import record
from agent.recording import record as recording
from agent.recording.format import Reader, Recorder
from agent.sampling.source_threads import SourcePlan
from collector.base import Probe, Reason, SourceError, SourceSample
from tests.unit.agent.agent_fakes import FakeSource, S, identity, vm_sample
from whitepanda.common.errors import InputError, UnavailableError

ABSENT = Probe(available=False, detail="no socket; start libvirtd", reason=Reason.NOT_PRESENT)


def take(name):
    def sample():
        now_ns = time.monotonic_ns()
        return SourceSample(name, now_ns, time.time_ns(), {"u1": vm_sample(now_ns / S)}, None, (identity(name="db7"),))

    return sample


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "etc"
    folder.mkdir()
    file = folder / "agent.toml"
    file.write_text("[agent]\ntick_s = 0.05\nwindow_s = 0.5\n")
    return file


@pytest.fixture
def file(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "host.jsonl"


@pytest.fixture
def plans(monkeypatch):
    """The sources: two that work, one that does not, one that is off."""
    plans = [
        SourcePlan("procfs", "auto", FakeSource("procfs", take("procfs"))),
        SourcePlan("libvirt", "auto", FakeSource("libvirt", take("libvirt"))),
        SourcePlan("perf", "auto", FakeSource("perf", take("perf"), ABSENT)),
        SourcePlan("simulated", "off", None),
    ]
    monkeypatch.setattr(recording, "make_plans", lambda _config: plans)
    return plans


@pytest.fixture
def unhurried(monkeypatch):
    """Each tick begins when the sources have given what the last one asked for, however busy the CPUs are."""
    made = []

    class TheseSlots(recording.Slots):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    class ThisClock(recording.SystemClock):
        async def sleep_until(self, due_ns):
            await super().sleep_until(due_ns)
            while any(slot.is_busy for slots in made for slot in slots):
                await asyncio.sleep(0.001)

    monkeypatch.setattr(recording, "Slots", TheseSlots)
    monkeypatch.setattr(recording, "SystemClock", ThisClock)


@pytest.fixture
def at_tick(monkeypatch):
    """Do something at a tick, when its samples were asked for."""

    def at_tick(number, what):
        ticks = []

        def update(_bar, _task, **_fields):
            ticks.append(None)
            if len(ticks) == number:
                what()

        monkeypatch.setattr("rich.progress.Progress.update", update)

    return at_tick


def ticks_of(file):
    ticks = []
    with Reader(file) as reader:
        while (tick := reader.next()) is not None:
            ticks.append(tick)
    return ticks


def samples_of(file):
    """Each sample once, in the order in which ticks saw them."""
    return list({id(sample): sample for tick in ticks_of(file) for sample in tick.samples}.values())


def test_every_sample_of_every_tick_is_recorded(plans, unhurried, config, file, capsys):
    record(file, seconds=0.5, config=config, json=True)
    reported = json.loads(capsys.readouterr().out)
    assert reported["ticks"] + reported["missed_ticks"] >= 11  # more if the last one was late
    assert (reported["file"], reported["ended_early"], reported["vms"]) == (str(file), False, 1)
    assert reported["samples"] == 2 * reported["ticks"] >= 4
    assert [(s["name"], s["state"], s["samples"], s["failures"]) for s in reported["sources"]] == [
        ("procfs", "available", reported["ticks"], 0),
        ("libvirt", "available", reported["ticks"], 0),
        ("perf", "unavailable", 0, 0),
        ("simulated", "off", 0, 0),
    ]
    assert reported["sources"][2]["detail"] == "no socket; start libvirtd"
    assert list(file.parent.iterdir()) == [file]
    assert file.stat().st_size == reported["bytes"]

    recorded = samples_of(file)
    assert sorted(s.source for s in recorded) == sorted(["procfs", "libvirt"] * reported["ticks"])
    times = [s.mono_ns for s in recorded if s.source == "procfs"]
    assert times == sorted(set(times))
    assert all(plan.source.closed for plan in plans[:2])


def test_each_tick_reports_its_moment_and_each_sources_trouble(plans, unhurried, config, file, capsys):
    record(file, seconds=0.5, config=config, json=True)
    reported = json.loads(capsys.readouterr().out)
    with Reader(file) as reader:
        assert reader.header.tick_s == 0.05
        assert reader.header.settings["agent.window_s"] == 0.5
        assert reader.header.settings["sources.libvirt.disk_poll_s"] == 10
    ticks = ticks_of(file)
    assert len(ticks) == reported["ticks"] + 1  # the last one sees what was asked for at the end
    assert ticks[0].samples == ()
    for before, tick in itertools.pairwise(ticks):
        assert dict(tick.sources) == {"procfs": None, "libvirt": None, "perf": Reason.NOT_PRESENT}
        assert [sample.source for sample in tick.samples] == ["procfs", "libvirt"]
        assert all(before.mono_ns <= sample.mono_ns <= tick.mono_ns for sample in tick.samples)
        assert abs((tick.unix_ns - tick.mono_ns) - (before.unix_ns - before.mono_ns)) < S


def test_the_summary_for_people(plans, unhurried, config, file, capsys):
    record(file, seconds=0.1, config=config)
    first, *sources = capsys.readouterr().out.splitlines()
    count = len(samples_of(file))
    assert first.startswith(f"{file}: {count} samples of 1 VM, {count // 2} ticks")
    assert sources == [
        f"  procfs: {count // 2} samples",
        f"  libvirt: {count // 2} samples",
        "  perf: 0 samples; unavailable: no socket; start libvirtd",
    ]


def test_a_source_that_fails_meanwhile_is_reported(plans, config, file, capsys, at_tick):
    def fail():
        raise SourceError("libvirtd is gone", Reason.SOURCE_FAILED)

    at_tick(2, lambda: setattr(plans[1].source, "take", fail))
    record(file, seconds=0.5, config=config)
    reported = capsys.readouterr().out
    assert "failures; failed: libvirtd is gone" in reported
    assert [s.source for s in samples_of(file)].count("procfs") > 2
    assert ticks_of(file)[-1].sources["libvirt"] is Reason.SOURCE_FAILED


def test_interrupted_it_keeps_what_there_is(plans, config, file, capsys, at_tick):
    at_tick(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    record(file, seconds=600, config=config, json=True)
    reported = json.loads(capsys.readouterr().out)
    assert (reported["ended_early"], reported["ticks"]) == (True, 4)
    assert len(samples_of(file)) == reported["samples"] >= 2
    assert list(file.parent.iterdir()) == [file]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.long
def test_interrupted_before_the_first_sample_it_leaves_nothing(plans, config, file, at_tick):
    for plan in plans[:2]:
        plan.source.gate.clear()
    at_tick(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(UnavailableError, match="nothing was recorded: ended before the first sample"):
            record(file, seconds=60, config=config)
    finally:
        for plan in plans[:2]:
            plan.source.gate.set()
    assert list(file.parent.iterdir()) == []


def test_an_existing_file_is_replaced_only_by_force(plans, config, file):
    file.write_text("mine")
    with pytest.raises(InputError, match=r"host\.jsonl: exists already; give another name, or --force"):
        record(file, seconds=0.3, config=config)
    assert file.read_text() == "mine"
    assert plans[0].source.probed == 0
    record(file, seconds=0.1, config=config, force=True)
    assert {s.source for s in samples_of(file)} == {"procfs", "libvirt"}
    assert list(file.parent.iterdir()) == [file]


def test_a_file_made_meanwhile_is_not_replaced_and_the_recording_stays_beside_it(plans, config, file, at_tick):
    at_tick(2, lambda: file.write_text("mine"))
    with pytest.raises(UnavailableError, match=r"File exists; the recording is in .*\.part$") as caught:
        record(file, seconds=0.3, config=config)
    assert file.read_text() == "mine"
    [part] = set(file.parent.iterdir()) - {file}
    assert str(caught.value).endswith(str(part))
    assert {s.source for s in samples_of(part)} == {"procfs", "libvirt"}


@pytest.mark.parametrize(("name", "why"), [("no/file", "there is no folder .*"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written(plans, config, tmp_path, name, why):
    with pytest.raises(UnavailableError, match=f"cannot write: {why}$"):
        record(tmp_path / name, seconds=0.1, config=config, force=True)
    assert plans[0].source.probed == 0


@pytest.fixture
def full_at(monkeypatch):
    """Let the disk be full from the write with that number on."""

    def full_at(number):
        writes, real = [], Recorder._append

        def append(recorder, data):
            writes.append(data)
            if len(writes) >= number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(recorder, data)

        monkeypatch.setattr(Recorder, "_append", append)

    return full_at


def test_no_space_left_is_one_line_and_keeps_what_there_is(plans, config, file, full_at, capsys):
    full_at(6)  # the header is the first
    message = r"host\.jsonl: No space left on device; it ends there, what was recorded before is kept$"
    with pytest.raises(UnavailableError, match=message):
        record(file, seconds=600, config=config, json=True)
    reported = json.loads(capsys.readouterr().out)
    assert (reported["ended_early"], reported["ticks"], reported["bytes"]) == (True, 4, file.stat().st_size)
    assert len(samples_of(file)) == reported["samples"] >= 1
    assert len(ticks_of(file)) == 4
    assert list(file.parent.iterdir()) == [file]
    assert plans[0].source.closed


def test_no_space_left_as_it_is_interrupted_keeps_what_there_is(plans, config, file, full_at, at_tick):
    full_at(6)
    at_tick(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(UnavailableError, match="what was recorded before is kept"):
        record(file, seconds=600, config=config)
    assert len(ticks_of(file)) == 4


def test_no_space_left_before_the_first_sample_leaves_nothing(plans, config, file, full_at):
    full_at(2)
    with pytest.raises(UnavailableError, match=r"No space left on device; the recording was dropped$"):
        record(file, seconds=600, config=config)
    assert list(file.parent.iterdir()) == []
    assert plans[0].source.closed


def test_what_a_killed_recording_left_is_reported_and_kept(plans, config, file, capsys):
    left = file.parent / ".host.jsonl.abcd_fg1.part"
    left.write_text("")
    record(file, seconds=0.1, config=config, json=True)
    reported = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in reported] == [str(left)]
    assert left.exists()


def test_a_recording_does_not_accuse_itself(plans, config, file, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    record(Path(file.name), seconds=0.1, config=config, json=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300])
def test_no_recording_lasts_for_ever(plans, config, file, seconds):
    with pytest.raises(InputError, match=r"^--seconds (inf|nan|1e\+300): at most 31622400 \(a year\)$"):
        record(file, seconds=seconds, config=config)
    assert list(file.parent.iterdir()) == []


def test_a_required_source_must_work(plans, config, file):
    plans[2] = SourcePlan("perf", "required", plans[2].source)
    message = r"^sources\.perf\.mode is 'required', but it is unavailable: no socket; start libvirtd$"
    with pytest.raises(UnavailableError, match=message):
        record(file, seconds=5, config=config)
    assert list(file.parent.iterdir()) == []


def test_without_any_source_nothing_is_recorded(plans, config, file):
    del plans[:2]
    with pytest.raises(UnavailableError, match=r"^no source is available here; perf is unavailable: no socket"):
        record(file, seconds=5, config=config)
    del plans[0]
    with pytest.raises(UnavailableError, match=r"^no source is available here; all are off$"):
        record(file, seconds=5, config=config)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(("seconds", "terminal", "shown"), [(3, True, True), (2, True, False), (3, False, False)])
def test_the_bar_is_for_people_and_what_takes_long(monkeypatch, seconds, terminal, shown):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    monkeypatch.setattr("agent.cli._options.errors", console)
    with progress_bar("recording", seconds, shown=seconds > module._BAR_FROM_S) as bar:
        bar(completed=1.0)
    assert ("recording" in console.file.getvalue()) == shown
