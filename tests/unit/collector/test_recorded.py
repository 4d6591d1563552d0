from __future__ import annotations

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
from collector.recorded import RecordedSource, Recorder, decode, encode

S = 1_000_000_000
count = st.integers(0, 2**63 - 1)
word = st.text(max_size=12)
vms = st.builds(
    VmSample,
    epoch=word,
    threads=st.none()
    | st.dictionaries(count, st.builds(ThreadCounters, count, count, st.none() | count, count)),
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
    process=st.none() | st.builds(ProcessCounters, count, count, *[st.none() | count] * 3),
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


@given(samples)
def test_decode_gives_what_encode_took(sample):
    line = encode(sample)
    assert line.count(b"\n") == 1
    assert decode(line) == sample


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[1]", b"nonsense", b'{"source":"a","mono_ns":"x","unix_ns":1}', b'{"source":"a"'],
)
def test_decode_refuses_what_is_no_sample(line):
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder's own words
        decode(line)


def test_decode_refuses_negative_clocks():
    with pytest.raises(ValueError, match="a clock is negative"):
        decode(b'{"source":"a","mono_ns":-1,"unix_ns":1}')


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


BOTH = (
    ("procfs", lambda tick: {"threads": threads(tick)}),
    ("libvirt", lambda tick: {"disks": disks(tick)}),
)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def replay(tmp_path, clock):
    """Record samples (or raw lines) and open the recording."""
    opened = []

    def replay(*lines):
        file = tmp_path / "host.jsonl"
        with Recorder(file) as recorder:
            for line in lines:
                if isinstance(line, bytes):
                    recorder._stream.write(line)
                else:
                    recorder.write(line)
        source = RecordedSource(file, mono_ns=clock.mono_ns, unix_ns=clock.unix_ns, sleep_s=clock.sleep_s)
        assert source.probe().available
        source.open()
        opened.append(source)
        return source

    yield replay
    for source in opened:
        source.close()


def test_replay_keeps_the_spacing_and_begins_now(replay, clock):
    source = replay(sample("procfs", 10), sample("procfs", 11), sample("procfs", 13.5))
    times = []
    for _ in range(3):
        got = source.sample()
        assert got.source == "recorded"
        assert got.unix_ns - got.mono_ns == 1_000_000 * S
        times.append((got.mono_ns - 500 * S) / S)
        clock.ns = got.mono_ns  # the consumer is quick
    assert times == [0, 1, 3.5]
    assert clock.slept == [1, 2.5]


def test_sources_of_one_tick_are_joined(replay, clock):
    source = replay(
        sample("procfs", 10, threads=threads(1)),
        sample("libvirt", 10.01, disks=disks(1)),
        sample("procfs", 11, threads=threads(2)),
        sample("libvirt", 11.3, disks=disks(2)),
    )
    for tick in (1, 2):
        got = source.sample()
        assert got.mono_ns == (499 + tick) * S
        vm = got.vms["a"]
        assert (vm.threads, vm.disks, vm.perf) == (threads(tick), disks(tick), None)


def test_a_sample_that_is_missing_does_not_shift_later_ones_by_a_tick(replay, clock):
    """Else the same counters would seem to have taken half the time: twice the true rate."""
    source = replay(
        *(
            sample(name, 10 + tick, **parts(tick))
            for tick in range(6)
            for name, parts in BOTH
            if tick in (0, 1, 3, 4, 5) or name == "libvirt"
        )
    )
    seen = []
    for tick in range(6):
        got = source.sample()
        assert got.mono_ns == (500 + tick) * S
        vm = got.vms["a"]
        assert vm.disks == disks(tick)
        seen.append(vm.threads)
    assert seen == [threads(0), threads(1), None, threads(3), threads(4), threads(5)]


def test_a_sample_that_comes_ticks_too_late_is_left_out(replay, clock):
    source = replay(
        sample("libvirt", 10, disks=disks(0)),
        sample("libvirt", 11, disks=disks(1)),
        sample("libvirt", 12, disks=disks(2)),
        sample("procfs", 10, threads=threads(0)),
        sample("libvirt", 13, disks=disks(3)),
        sample("procfs", 13.1, threads=threads(3)),
    )
    vms = [source.sample().vms["a"] for _ in range(4)]
    assert [vm.disks for vm in vms] == [disks(tick) for tick in range(4)]
    assert [vm.threads for vm in vms] == [None, None, None, threads(3)]


def test_what_one_source_lacks_and_another_has_is_not_absent(replay):
    source = replay(
        sample("procfs", 10, absent={"threads": Reason.FD_LIMIT, "disks": Reason.STALE}),
        sample("libvirt", 10, disks=disks(1), absent={"interfaces": Reason.NOT_PRESENT}),
    )
    absent = source.sample().vms["a"].absent
    assert dict(absent) == {"threads": Reason.FD_LIMIT, "interfaces": Reason.NOT_PRESENT}


def test_parts_of_different_epochs_are_not_joined(replay):
    old = sample("procfs", 10, threads=threads(1))
    new = SourceSample("libvirt", 10 * S, 10 * S, {"a": VmSample("e2", disks=disks(1))})
    vm = replay(old, new).sample().vms["a"]
    assert (vm.epoch, vm.threads) == ("e2", None)


def test_a_slow_consumer_gets_the_latest_tick_that_is_due(replay, clock):
    source = replay(*(sample("procfs", 10 + i, threads=threads(i)) for i in range(6)))
    source.sample()
    clock.ns += round(3.2 * S)
    assert source.sample().vms["a"].threads == threads(3)
    assert clock.slept == []


def test_a_bad_line_is_named_and_costs_only_itself(replay, clock, tmp_path):
    source = replay(sample("procfs", 10), b"\n", b"{broken\n", sample("procfs", 11, threads=threads(7)))
    source.sample()
    with pytest.raises(
        SourceError, match=r"host\.jsonl:3: not a recorded sample: .*; remove the line"
    ) as caught:
        source.sample()
    assert caught.value.reason is Reason.INVALID_VALUE
    assert source.sample().vms["a"].threads == threads(7)
    with pytest.raises(SourceError, match=r"host\.jsonl: the recording has ended at line 4"):
        source.sample()


def test_two_bad_lines_are_both_named(replay):
    source = replay(sample("procfs", 10), b"one\n", b"two\n", sample("procfs", 11))
    source.sample()
    for number in (2, 3):
        with pytest.raises(SourceError, match=rf"host\.jsonl:{number}:"):
            source.sample()
    source.sample()


def test_open_begins_anew(replay):
    source = replay(sample("procfs", 10, threads=threads(1)))
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
    assert probe.detail.startswith(f"{tmp_path / 'none'}:1: not a recorded sample: ")


def test_a_recording_comes_into_being_whole(tmp_path):
    file = tmp_path / "host.jsonl"
    with Recorder(file) as recorder:
        recorder.write(sample("procfs", 10))
        assert [path.name for path in tmp_path.iterdir()] == [recorder.part.name]
        assert decode(recorder.part.read_bytes()) == sample("procfs", 10)
    recorder.close()
    assert list(tmp_path.iterdir()) == [file]
    assert decode(file.read_bytes()) == sample("procfs", 10)


def test_a_recording_that_an_error_ended_is_dropped(tmp_path):
    recorder = Recorder(tmp_path / "host.jsonl")
    recorder.write(sample("procfs", 10))
    assert len(list(tmp_path.iterdir())) == 1
    recorder.__exit__(RuntimeError, RuntimeError(), None)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_replaces_only_what_it_may(tmp_path):
    file = tmp_path / "host.jsonl"
    file.write_text("old")
    with pytest.raises(FileExistsError):
        Recorder(file)
    assert file.read_text() == "old"
    with Recorder(file, replace=True) as recorder:
        recorder.write(sample("procfs", 10))
        assert file.read_text() == "old"
    assert decode(file.read_bytes()) == sample("procfs", 10)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_came_into_being_meanwhile_is_not_replaced_and_the_recording_kept(tmp_path):
    file = tmp_path / "host.jsonl"
    recorder = Recorder(file)
    recorder.write(sample("procfs", 10))
    file.write_text("somebody else's")
    with pytest.raises(FileExistsError):
        recorder.close()
    assert file.read_text() == "somebody else's"
    assert decode(recorder.part.read_bytes()) == sample("procfs", 10)
