"""Frames in files: found again, torn and damaged ones, the budget, clocks."""

import contextlib
import os

import pytest

from agent.history.segments import DamagedError, SegmentWriter, last_unix_ns, read, segments

S = 10**9
T0 = 1_700_000_000 * S


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "log"


def written(folder, seconds, *, roll_s=60, payload=lambda at: f"payload {at} ".encode() * 20):
    writer = SegmentWriter(folder, roll_s * S)
    for at in seconds:
        writer.append(T0 + at * S, at * S, payload(at))
    return writer


def all_of(folder):
    return [frame for one in segments(folder) for frame in read(one)]


def test_frames_come_back_in_files_of_a_minute(folder):
    writer = written(folder, range(150))
    frames = all_of(folder)
    assert [(one.unix_ns - T0) // S for one in frames] == list(range(150))
    assert frames[149].payload == b"payload 149 " * 20
    assert [one.first_unix_ns - T0 for one in segments(folder)] == [0, 60 * S, 120 * S]
    assert [one.is_first for one in frames] == [at in (0, 60, 120) for at in range(150)]
    assert writer.total_bytes == sum(one.path.stat().st_size for one in segments(folder))
    assert last_unix_ns(segments(folder)[-1]) == T0 + 149 * S
    assert {oct(one.path.stat().st_mode & 0o777) for one in segments(folder)} == {"0o600"}
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_a_large_file_is_ended_before_its_time(folder):
    writer = SegmentWriter(folder, 3600 * S, roll_bytes=1000)
    for at in range(10):
        writer.append(T0 + at * S, at * S, os.urandom(600))
        writer.trim(0, 3000)
    assert len(segments(folder)) == 2  # of 1.2 kB each
    assert (all_of(folder)[-1].unix_ns - T0) // S == 9


def test_what_repeats_costs_little(folder):
    noise = os.urandom(4000)
    writer = written(folder, range(50), payload=lambda at: noise + bytes([at]))
    assert writer.total_bytes < 4200 + 49 * 80


@pytest.mark.parametrize("cut", [1, 20, 24, 25, 30, 60])
def test_a_torn_end_loses_its_frame_only(folder, cut):
    written(folder, range(5), payload=lambda at: os.urandom(50))
    (one,) = segments(folder)
    size = one.path.stat().st_size
    os.truncate(one.path, size - cut)
    assert [(frame.unix_ns - T0) // S for frame in read(one)] == [0, 1, 2, 3]
    assert last_unix_ns(one) == T0 + 3 * S


def test_every_cut_leaves_whole_frames(folder):
    written(folder, range(4))
    (one,) = segments(folder)
    data = one.path.read_bytes()
    counts = []
    for size in range(len(data) + 1):
        one.path.write_bytes(data[:size])
        counts.append(len(list(read(one))))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 4)


def test_every_changed_byte_is_noticed(folder):
    written(folder, range(3), payload=lambda at: os.urandom(30))
    (one,) = segments(folder)
    data = one.path.read_bytes()
    whole = list(read(one))
    for at in range(len(data)):
        one.path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        found = []
        with contextlib.suppress(DamagedError):
            found.extend(read(one))
        assert found == whole[: len(found)]
        assert len(found) < 3


def test_the_next_process_begins_a_new_file(folder):
    written(folder, range(3)).end_file()
    os.truncate(segments(folder)[0].path, 40)
    written(folder, range(10, 13))
    assert len(segments(folder)) == 2
    assert [(one.unix_ns - T0) // S for one in all_of(folder)][-3:] == [10, 11, 12]


def test_the_oldest_files_go_first_and_never_the_one_in_use(folder):
    writer = written(folder, range(0, 600, 10))
    sizes = [one.path.stat().st_size for one in segments(folder)]
    assert len(sizes) == 10
    writer.trim(0, sum(sizes[4:]))
    assert [one.first_unix_ns - T0 for one in segments(folder)] == [at * 60 * S for at in range(4, 10)]
    for _ in range(5):  # one a call
        writer.trim(T0 + 420 * S, 1 << 30)  # a file of 360 to 420 s has ended then
    assert segments(folder)[0].first_unix_ns == T0 + 420 * S
    writer.trim(T0 + 10**6 * S, 0)
    assert [one.first_unix_ns for one in segments(folder)] == [T0 + 540 * S]
    assert writer.total_bytes == sizes[-1]
    assert writer.first_unix_ns == T0 + 540 * S


def test_a_step_of_the_clock_is_marked_and_begins_a_file(folder):
    writer = SegmentWriter(folder, 60 * S)
    for unix_s, mono_s in ((0, 0), (1, 1), (-3600, 2), (-3599, 3), (100, 4)):
        writer.append(T0 + unix_s * S, mono_s * S, b"x")
    assert [((one.unix_ns - T0) // S, one.clock_stepped) for one in all_of(folder)] == [
        (0, False),
        (1, False),
        (-3600, True),
        (-3599, False),
        (100, True),
    ]
    assert len(segments(folder)) == 3


def test_other_files_are_left_alone(folder):
    written(folder, range(2))
    (folder / "note.txt").write_text("mine")
    (folder / "1-x.frames").write_text("")
    assert len(segments(folder)) == 1
    (folder / "0000000009-5.frames").write_bytes(b"something else")
    with pytest.raises(DamagedError, match="no file of the history"):
        list(read(segments(folder)[-1]))
    assert segments(folder / "missing") == []
