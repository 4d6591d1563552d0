import errno
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording import format as recorded
from agent.recording.format import Header, Reader, RecordedTick, Recorder, unfinished
from collector.base import (
    CgroupCounters,
    DiskCounters,
    HostCounters,
    InterfaceCounters,
    NumaPlacement,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    SourceSample,
    Stamp,
    ThreadCounters,
    VmIdentity,
    VmSample,
)

S = 1_000_000_000
count = st.integers(0, 2**63 - 1)
word = st.text(max_size=12)
vms = st.builds(
    VmSample,
    epoch=word,
    threads=st.none() | st.dictionaries(count, st.builds(ThreadCounters, count, count, st.none() | count, count)),
    perf=st.none()
    | st.builds(
        PerfCounters,
        st.just((("cycles", "instructions"),)),
        st.dictionaries(count, st.tuples(st.builds(PerfGroup, count, count, count, st.tuples(count, count)))),
        st.sampled_from(["thread", "cgroup"]),
        st.dictionaries(word, st.sampled_from(Reason)),
    ),
    disks=st.none() | st.dictionaries(word, st.builds(DiskCounters, *[count] * 4)),
    interfaces=st.none() | st.dictionaries(word, st.builds(InterfaceCounters, *[count] * 6)),
    absent=st.dictionaries(word, st.sampled_from(Reason)),
    process=st.none()
    | st.builds(ProcessCounters, count, count, *[st.none() | count] * 3, vcpus_running=st.none() | count),
    cgroup=st.none() | st.builds(CgroupCounters, count, *[st.none() | count] * 6),
    rdt=st.none()
    | st.builds(
        RdtCounters,
        count,
        st.dictionaries(word, st.builds(RdtDomain, *[st.none() | count] * 3, st.sampled_from(Reason))),
    ),
    numa=st.none() | st.builds(NumaPlacement, st.dictionaries(count, count), st.dictionaries(count, count)),
    stamps=st.dictionaries(word, st.builds(Stamp, count, count)),
)
identities = st.builds(
    VmIdentity,
    uuid=word,
    name=word,
    pid=count,
    epoch=word,
    vcpu_tids=st.lists(count, max_size=3).map(tuple),
    state=word,
    accelerator=word,
    facts=st.dictionaries(word, word, max_size=3),
)
samples = st.builds(
    SourceSample,
    source=word,
    mono_ns=count,
    unix_ns=count,
    vms=st.dictionaries(word, vms, max_size=3),
    host=st.none() | st.builds(HostCounters, *[count] * 7),
    inventory=st.none() | st.lists(identities, max_size=3).map(tuple),
)


HEADER = Header(tick_s=1.0, settings={"agent.tick_s": 1.0})
moments = st.integers(0, 2**63 - 1)


@st.composite
def recordings(draw):
    """Ticks that see the latest samples of some sources, each new or the one before."""
    ticks, latest = [], {}
    for _ in range(draw(st.integers(0, 4))):
        for name in draw(st.lists(word, max_size=3)):
            drawn = draw(samples)
            latest[name] = SourceSample(name, drawn.mono_ns, drawn.unix_ns, drawn.vms, drawn.host, drawn.inventory)
        sources = draw(st.dictionaries(word, st.none() | st.sampled_from(Reason)))
        ticks.append(RecordedTick(draw(moments), draw(moments), tuple(latest.values()), sources))
    return ticks


def read(file):
    ticks = []
    with Reader(file) as reader:
        while (tick := reader.next()) is not None:
            ticks.append(tick)
    return ticks


@pytest.mark.long
@given(recordings())
def test_a_reader_gives_what_the_recorder_took(ticks):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "r"
        with Recorder(file, HEADER) as recorder:
            for tick in ticks:
                recorder.write(tick)
        assert read(file) == ticks
        with Reader(file) as reader:
            assert reader.header == HEADER


def test_a_sample_is_written_once_however_many_ticks_see_it(tmp_path):
    once, other = sample("procfs", 10), sample("libvirt", 10)
    with Recorder(tmp_path / "r", HEADER) as recorder:
        assert recorder.write(RecordedTick(S, S, (once,), {})) == [once]
        assert recorder.write(RecordedTick(2 * S, S, (once, other), {})) == [other]
        assert recorder.write(RecordedTick(3 * S, S, (once,), {})) == []
    assert (tmp_path / "r").read_bytes().count(b'"sample"') == 2
    first, second, third = read(tmp_path / "r")
    assert second.samples == (once, other)
    assert first.samples[0] is second.samples[0] is third.samples[0]  # as in the agent, it is the same sample


BAD = {
    b"": "r:1: not a recording: ",
    b"nonsense\n": "r:1: not a recording: ",
    b'{"source":"a","mono_ns":1,"unix_ns":1}\n': (
        "r: not a recording; this version reads format 1: record again with it"
    ),
    b'{"format":"whitepanda-recording","version":3,"tick_s":1}\n': (
        "r: a recording of format 3; this version reads format 1: record again with it"
    ),
    b'{"format":"whitepanda-recording","version":1}\n': "r:1: not a recording's first line: ",
    b'{"format":"whitepanda-recording","version":1,"tick_s":0}\n': "r:1: tick_s must be above 0 (value 0.0)",
}


@pytest.mark.parametrize("line", BAD)
def test_what_is_no_recording_of_this_format_is_refused_in_one_line(tmp_path, line):
    file = tmp_path / "r"
    file.write_bytes(line)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is compared below
        Reader(file)
    assert str(error.value).startswith(f"{tmp_path}/{BAD[line]}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{}", "neither a sample nor a tick"),
        (b"[1]", "Expected `object`"),
        (b'{"sample":{"source":"a","mono_ns":"x","unix_ns":1}}', "Expected `int`"),
        (b'{"sample":{"source":"a","mono_ns":-1,"unix_ns":1}}', "a clock is negative"),
        (b'{"tick":{"mono_ns":-1,"unix_ns":1,"samples":[],"sources":{}}}', "a clock is negative"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path, line, why):
    file = write(tmp_path, tick(0), line + b"\n", tick(1))
    with Reader(file) as reader:
        reader.next()
        with pytest.raises(ValueError, match=rf"r:3: not a line of a recording: {why}.*; remove the line"):
            reader.next()
        assert reader.next().mono_ns == 101 * S


def test_a_last_line_that_is_cut_off_is_left_out_and_reported(tmp_path):
    file = write(tmp_path, tick(0, procfs={"threads": threads(0)}), tick(1))
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    with Reader(file) as reader:
        assert reader.next() is not None
        assert reader.next() is None
        assert reader.cut_off == f"{file}:4: the last line is cut off and left out"
    file.write_bytes(whole[:-1])  # only its end is missing
    assert len(read(file)) == 2


def test_a_line_that_is_too_long_is_refused_without_reading_it_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "MAX_LINE_BYTES", 1 << 12)
    file = write(tmp_path, tick(0), b"x" * 10_000 + b"\n", tick(1))
    with Reader(file) as reader:
        reader.next()
        with pytest.raises(ValueError, match="r:3: longer than 0 MiB"):
            reader.next()
        assert reader.next().mono_ns == 101 * S
    big = sample("procfs", 1, threads={n: ThreadCounters(1, 1, 1, 1) for n in range(200)})
    recorder = Recorder(tmp_path / "big", HEADER)
    with pytest.raises(OSError, match="bytes is longer than a line may be"):
        recorder.write(RecordedTick(S, S, (big,), {}))
    recorder.discard()


def test_a_name_that_is_no_utf8_costs_no_recording(tmp_path):
    odd = VmIdentity("u1", "caf\udce9", 1, "e1", facts={"k\udce9": "\udcff"})
    seen = SourceSample("qemu", S, S, {"u1": VmSample("e1", threads=threads(3))}, None, (odd,))
    [got] = read(write(tmp_path, RecordedTick(2 * S, 2 * S, (seen,), {"qemu": None})))
    (sample,) = got.samples
    assert (sample.inventory[0].name, dict(sample.inventory[0].facts)) == (r"caf\xe9", {"k?": "?"})
    assert sample.vms == seen.vms


def sample(source, at_s, **vm):
    parts = {"a": VmSample("e1", **vm)} if vm else {}
    return SourceSample(source, round(at_s * S), round((at_s + 7000) * S), parts)


def threads(count):
    return {1: ThreadCounters(count, count, count, 5)}


def tick(number, *also, **parts):
    """The tick at 100 + number seconds: it sees what each source said, by name, at the tick before."""
    asked_s = 99 + number
    new = tuple(sample(name, asked_s, **values) for name, values in parts.items())
    sources = dict.fromkeys([*parts, *(s.source for s in also)])
    return RecordedTick((asked_s + 1) * S, (asked_s + 7001) * S, (*new, *also), sources)


def write(folder, *lines):
    """Record ticks (or raw lines)."""
    with Recorder(folder / "r", HEADER) as recorder:
        for line in lines:
            if isinstance(line, bytes):
                recorder._stream.write(line)
            else:
                recorder.write(line)
    return folder / "r"


# -- the file


ONE = RecordedTick(11 * S, S, (sample("procfs", 10),), {"procfs": None})


def test_a_recording_comes_into_being_whole(tmp_path):
    file = tmp_path / "host.jsonl"
    with Recorder(file, HEADER) as recorder:
        recorder.write(ONE)
        assert [path.name for path in tmp_path.iterdir()] == [recorder.part.name]
        assert read(recorder.part) == [ONE]
    recorder.close()
    assert list(tmp_path.iterdir()) == [file]
    assert read(file) == [ONE]


def test_a_recording_that_an_error_ended_is_dropped(tmp_path):
    recorder = Recorder(tmp_path / "host.jsonl", HEADER)
    recorder.write(ONE)
    assert len(list(tmp_path.iterdir())) == 1
    recorder.__exit__(RuntimeError, RuntimeError(), None)
    assert list(tmp_path.iterdir()) == []


class Full:
    """A file on a disk that has room for so many bytes more."""

    def __init__(self, stream, room):
        self.stream, self.room = stream, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.stream.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.parametrize("room", [0, 1, 200])
def test_on_a_full_disk_a_recording_ends_at_its_last_whole_tick(tmp_path, room):
    file = tmp_path / "host.jsonl"
    recorder = Recorder(file, HEADER)
    recorder.write(ONE)
    recorder._stream = Full(recorder._stream, room)
    size = recorder.part.stat().st_size
    two = tick(12, procfs={"threads": threads(2)})
    with pytest.raises(OSError, match="No space left"):
        recorder.write(two)
    assert recorder.part.stat().st_size == size
    recorder._stream.room = 1 << 20
    recorder.write(two)  # there is room again: the sample that was not written before is
    recorder.close()
    assert read(file) == [ONE, two]


def test_a_header_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("agent.recording.format.MAX_LINE_BYTES", 5)
    with pytest.raises(OSError, match="longer than a line may be"):
        Recorder(tmp_path / "host.jsonl", HEADER)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_recordings_of_a_file_are_found(tmp_path):
    file = tmp_path / "a[b].jsonl"
    recorder = Recorder(file, HEADER)
    for name in (".a[b].jsonl.part", ".other.jsonl.abcdefgh.part", ".a[b].jsonl.abcdefgh.partly", "a[b].jsonl"):
        (tmp_path / name).write_text("")
    killed = tmp_path / ".a[b].jsonl.abcd_fg1.part"
    killed.write_text("")
    assert unfinished(file) == sorted([killed, recorder.part])
    assert unfinished(tmp_path / "none" / "file") == []
    recorder.discard()


def test_a_recording_replaces_only_what_it_may(tmp_path):
    file = tmp_path / "host.jsonl"
    file.write_text("old")
    with pytest.raises(FileExistsError):
        Recorder(file, HEADER)
    assert file.read_text() == "old"
    with Recorder(file, HEADER, replace=True) as recorder:
        recorder.write(ONE)
        assert file.read_text() == "old"
    assert read(file) == [ONE]
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_came_into_being_meanwhile_is_not_replaced_and_the_recording_kept(tmp_path):
    file = tmp_path / "host.jsonl"
    recorder = Recorder(file, HEADER)
    recorder.write(ONE)
    file.write_text("somebody else's")
    with pytest.raises(FileExistsError):
        recorder.close()
    assert file.read_text() == "somebody else's"
    assert read(recorder.part) == [ONE]


def test_only_its_owner_reads_a_recording_and_its_part_cannot_be_foretold(tmp_path):
    file = tmp_path / "host.jsonl"
    umask = os.umask(0)
    try:
        with Recorder(file, HEADER) as recorder, Recorder(tmp_path / "other.jsonl", HEADER) as other:
            parts = [recorder.part, other.part]
            assert {stat.S_IMODE(part.stat().st_mode) for part in parts} == {0o600}
        assert re.fullmatch(r"\.host\.jsonl\.\w{8}\.part", parts[0].name)
        assert str(os.getpid()) != parts[0].suffixes[1][1:]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with Recorder(file, HEADER, replace=True):
            pass
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_a_link_that_lies_in_the_parts_place_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("keep")
    names = iter(["foretold", "another"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
    (tmp_path / ".host.jsonl.foretold.part").symlink_to(tmp_path / "victim")
    with Recorder(tmp_path / "host.jsonl", HEADER) as recorder:
        assert recorder.part.name == ".host.jsonl.another.part"
    assert (tmp_path / "victim").read_text() == "keep"
