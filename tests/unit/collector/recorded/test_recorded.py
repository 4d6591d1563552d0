import errno
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    SourceError,
    SourceSample,
    Stamp,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.recorded import source as recorded
from collector.recorded.source import Header, Reader, RecordedSource, RecordedTick, Recorder, unfinished

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
    b'{"source":"a","mono_ns":1,"unix_ns":1}\n': "r: not a recording; this version reads format 1: record anew with it",
    b'{"format":"whitepanda-recording","version":3,"tick_s":1}\n': (
        "r: a recording of format 3; this version reads format 1: record anew with it"
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
def test_a_line_that_makes_no_sense_is_named(replay, tmp_path, line, why):
    file = write(tmp_path, tick(0), line + b"\n", tick(1))
    with Reader(file) as reader:
        reader.next()
        with pytest.raises(ValueError, match=rf"r:3: not a line of a recording: {why}.*; remove the line"):
            reader.next()
        assert reader.next().mono_ns == 101 * S


def test_a_last_line_that_is_cut_off_is_left_out_and_told(tmp_path):
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


# -- the source


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.ns = 500 * S
        self.slept = []

    def mono_ns(self):
        return self.ns

    def unix_ns(self):
        return self.ns + 1_000_000 * S

    def sleep_s(self, seconds):
        self.slept.append(seconds)
        self.ns += round(seconds * 1e9)


def sample(source, at_s, **vm):
    parts = {"a": VmSample("e1", **vm)} if vm else {}
    return SourceSample(source, round(at_s * S), round((at_s + 7000) * S), parts)


def threads(count):
    return {1: ThreadCounters(count, count, count, 5)}


def disks(count):
    return {"vda": DiskCounters(count, count, count, count)}


def tick(number, *also, why=None, **parts):
    """The tick at 100 + number seconds: it sees what each source said, by name, at the tick before."""
    asked_s = 99 + number
    new = tuple(sample(name, asked_s, **values) for name, values in parts.items())
    names = dict.fromkeys([*parts, *(s.source for s in also)])
    sources = {**names, **(why or {})}
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


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def replay(tmp_path, clock):
    opened = []

    def replay(*lines):
        file = write(tmp_path, *lines)
        source = RecordedSource(file, mono_ns=clock.mono_ns, unix_ns=clock.unix_ns, sleep_s=clock.sleep_s)
        assert source.probe().available
        source.open()
        opened.append(source)
        return source

    yield replay
    for source in opened:
        source.close()


def test_replay_keeps_the_spacing_and_begins_now(replay, clock):
    source = replay(tick(0), *(tick(n, procfs={"threads": threads(n)}) for n in (1, 2, 3)))
    times = []
    for _ in range(3):
        got = source.sample()
        assert got.source == "recorded"
        assert got.unix_ns - got.mono_ns == 1_000_000 * S
        times.append((got.mono_ns - 500 * S) / S)
    assert times == [0, 1, 2]
    # Each is given out at the moment at which it was asked for.
    assert clock.slept == [1, 1]


def test_what_a_tick_saw_is_one_sample_and_each_part_keeps_its_moment(replay, clock):
    libvirt = sample("libvirt", 100.25, disks=disks(1))
    source = replay(tick(0), tick(1, libvirt, procfs={"threads": threads(1)}))
    got = source.sample()
    vm = got.vms["a"]
    assert (vm.threads, vm.disks, vm.perf) == (threads(1), disks(1), None)
    assert got.mono_ns == 500 * S
    assert dict(vm.stamps) == {"disks": Stamp(500 * S + S // 4, 1_000_500 * S + S // 4)}


def test_a_source_that_missed_a_tick_is_seen_again_as_the_agent_sees_it(replay):
    libvirt = sample("libvirt", 100, disks=disks(1))
    source = replay(tick(0), *(tick(n, libvirt, procfs={"threads": threads(n)}) for n in range(1, 8)))
    for number in range(1, 7):
        vm = source.sample().vms["a"]
        assert vm.threads == threads(number)
        if number < 6:
            assert vm.disks == disks(1)
            assert number == 1 or vm.stamps["disks"].mono_ns == 500 * S
        else:
            assert (vm.disks, vm.absent["disks"]) == (None, Reason.STALE)


def test_a_part_that_nobody_told_has_its_reason(replay):
    why = {"perf": Reason.PARANOID, "libvirt": None, "ovs": Reason.NOT_PRESENT}
    source = replay(tick(0), tick(1, procfs={"threads": threads(1)}, why=why))
    assert dict(source.sample().vms["a"].absent) == {
        "perf": Reason.PARANOID,
        "cgroup": Reason.SOURCE_OFF,
        "rdt": Reason.SOURCE_OFF,
        "numa": Reason.SOURCE_OFF,
        # libvirt works and has not told of this VM yet; procfs has, and of its process nothing.
        "disks": Reason.VM_STARTING,
        "interfaces": Reason.VM_STARTING,
        "process": Reason.NOT_PRESENT,
    }


def test_the_word_of_a_source_about_a_vm_goes_before_that_about_the_host(replay):
    source = replay(
        tick(
            0,
            procfs={"absent": {"threads": Reason.FD_LIMIT, "disks": Reason.STALE}},
            libvirt={"disks": disks(1), "absent": {"perf": Reason.VPMU_CONFLICT}},
            why={"perf": Reason.NO_PMU},
        )
    )
    absent = source.sample().vms["a"].absent
    assert (absent["threads"], absent["perf"]) == (Reason.FD_LIMIT, Reason.VPMU_CONFLICT)
    assert "disks" not in absent


def test_of_two_epochs_the_inventorys_counts(replay):
    known = VmIdentity("a", "vm", 1, "e2")
    old = sample("procfs", 100, threads=threads(1))
    new = SourceSample("libvirt", 100 * S, 7100 * S, {"a": VmSample("e2", disks=disks(1))}, None, (known,))
    got = replay(tick(1, old, new)).sample()
    vm = got.vms["a"]
    assert (vm.epoch, vm.threads, vm.disks) == ("e2", None, disks(1))
    assert got.inventory == (known,)


def test_inventories_are_joined_the_first_word_counts(replay):
    one, two = (VmIdentity("a", name, 1, "e") for name in ("one", "two"))
    more = VmIdentity("b", "more", 2, "e")
    first = SourceSample("procfs", 100 * S, 1, inventory=(one,))
    second = SourceSample("libvirt", 100 * S, 1, inventory=(two, more))
    assert replay(tick(1, first, second)).sample().inventory == (one, more)


def test_the_hosts_counters_keep_their_moment(replay):
    host = HostCounters(2, 1, 1, 1, 1, 1, 1)
    first = sample("libvirt", 100, disks=disks(1))
    second = SourceSample("procfs", 100 * S + 5, 7100 * S + 5, {}, host)
    got = replay(tick(1, first, second)).sample()
    assert (got.host, got.mono_ns) == (host, 500 * S - S + 5)  # the only tick is its own beginning
    assert got.vms["a"].stamps["disks"].mono_ns == 499 * S


def test_a_tick_that_saw_nothing_new_for_long_is_an_error_and_the_next_is_given(replay, clock):
    old = sample("procfs", 100, threads=threads(1))
    source = replay(tick(0), tick(1, old), tick(9, old), tick(10, procfs={"threads": threads(10)}))
    source.sample()
    with pytest.raises(SourceError, match="no source of the recorded host had anything new here") as caught:
        source.sample()
    assert caught.value.reason is Reason.STALE
    assert source.sample().vms["a"].threads == threads(10)


def test_a_slow_consumer_gets_the_latest_tick_that_is_due(replay, clock):
    source = replay(tick(0), *(tick(n, procfs={"threads": threads(n)}) for n in range(1, 7)))
    source.sample()
    clock.ns += round(3.2 * S)
    assert source.sample().vms["a"].threads == threads(4)
    assert clock.slept == []


def test_bad_lines_are_named_and_cost_only_themselves(replay):
    source = replay(
        tick(0),
        tick(1, procfs={"threads": threads(1)}),
        b"\n",
        b"{broken\n",
        b"two\n",
        tick(2, procfs={"threads": threads(7)}),
    )
    source.sample()
    for number in (6, 7):
        with pytest.raises(SourceError, match=rf"r:{number}: not a line of a recording: ") as caught:
            source.sample()
        assert caught.value.reason is Reason.INVALID_VALUE
    assert source.sample().vms["a"].threads == threads(7)
    with pytest.raises(SourceError, match=r"r: the recording has ended at line 9$") as caught:
        source.sample()
    assert caught.value.reason is Reason.STALE


def test_the_end_tells_of_a_line_that_is_cut_off(replay):
    source = replay(tick(1, procfs={"threads": threads(1)}), b'{"sample":{"sour')
    source.sample()
    with pytest.raises(SourceError, match=r"ended at line 4; .*r:4: the last line is cut off and left out$"):
        source.sample()


def test_open_begins_anew(replay):
    source = replay(tick(1, procfs={"threads": threads(1)}))
    source.sample()
    source.open()
    assert source.sample().vms["a"].threads == threads(1)


def test_a_recording_that_cannot_be_read(tmp_path):
    source = RecordedSource(tmp_path / "none")
    assert source.probe().detail.endswith(
        "none: No such file or directory; sources.recorded.file must name a recording"
    )
    with pytest.raises(SourceError, match="No such file or directory"):
        source.open()
    (tmp_path / "none").write_text("nonsense\n")
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.INVALID_VALUE)
    assert probe.detail.startswith(f"{tmp_path / 'none'}:1: not a recording: ")
    with pytest.raises(SourceError, match="none:1: not a recording: "):
        source.open()


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
    monkeypatch.setattr("collector.recorded.source.MAX_LINE_BYTES", 5)
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
