"""The writer: nobody waits for it, the budget holds, errors of the disk stop it and nothing else."""

import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from agent.config import HistorySection
from agent.history.segments import SegmentWriter, read, segments
from agent.history.writer import TICKS, WINDOWS, HistoryWriter

S = 10**9
T0 = 1_700_000_000 * S


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "history"


def opened(folder, *, days=7.0, max_mib=512):
    writer = HistoryWriter(folder, HistorySection(days=days, max_mib=max_mib), 1 << 20)
    writer.start(T0)
    return writer


def put(writer, kind, second, payload=b"x", *, is_key=False):
    writer.put(kind, T0 + second * S, second * S, lambda: payload, is_key=is_key)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def times(folder, kind):
    return [(frame.unix_ns - T0) // S for one in segments(folder / kind) for frame in read(one)]


def test_ticks_and_windows_are_kept_and_counted(folder):
    writer = opened(folder)
    for second in range(20):
        put(writer, TICKS, second, is_key=second % 10 == 0)
    put(writer, WINDOWS, 10)
    put(writer, WINDOWS, 20)
    writer.stop()
    assert (times(folder, TICKS), times(folder, WINDOWS)) == (list(range(20)), [10, 20])
    status = writer.status()
    assert (status.state, status.lost_frames, status.first_unix_ns, status.max_bytes) == ("on", 0, T0, 512 << 20)
    assert status.bytes == sum(one.path.stat().st_size for kind in (TICKS, WINDOWS) for one in segments(folder / kind))


def test_ticks_are_kept_for_15_minutes_and_windows_for_days(folder):
    writer = opened(folder, days=0.5)
    for second in range(0, 3 * 86_400, 1800):
        put(writer, WINDOWS, second)
        put(writer, TICKS, second, is_key=True)
        until(lambda: not writer._waiting)
    writer.stop()
    assert times(folder, TICKS) == [3 * 86_400 - 1800]
    kept = times(folder, WINDOWS)
    assert 0.5 * 86_400 <= kept[-1] - kept[0] + 1800 <= 0.5 * 86_400 + 2 * 3600


def test_the_budget_holds_at_the_start_too(folder):
    many = SegmentWriter(folder / WINDOWS, 3600 * S)
    for hour in range(-40, 0):
        many.append(T0 + hour * 3600 * S, 0, os.urandom(100_000), is_key=True)
    many.end_file()
    writer = opened(folder, max_mib=1)
    until(lambda: writer.status().bytes)
    assert writer.status().bytes <= 1 << 20
    for second in range(30):
        put(writer, TICKS, second * 60, os.urandom(100_000), is_key=True)
        until(lambda: not writer._waiting)
    put(writer, WINDOWS, 1800, os.urandom(1000))
    writer.stop()
    assert writer.status().bytes <= (1 << 20) + 2 * 100_200  # and the files that are written
    assert sum(one.path.stat().st_size for one in segments(folder / TICKS)) <= (1 << 18) + 100_200
    assert times(folder, WINDOWS)[-1] == 1800
    assert sorted(times(folder, WINDOWS)) == times(folder, WINDOWS)


def test_an_error_stops_it_with_one_line_and_it_goes_on_afterwards(folder, monkeypatch):
    writer, real = opened(folder), SegmentWriter._write

    def full(_self, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with capture_logs() as logs:
        put(writer, TICKS, 0, is_key=True)
        until(lambda: times(folder, TICKS) == [0])
        monkeypatch.setattr(SegmentWriter, "_write", full)
        for second in range(1, 4):
            put(writer, TICKS, second)
            put(writer, WINDOWS, second)
        until(lambda: writer.status().lost_frames == 6)
        status = writer.status()
        assert (status.state, status.detail) == ("stopped", "No space left on device")
        assert writer.wants_key
        monkeypatch.setattr(SegmentWriter, "_write", real)
        put(writer, TICKS, 5)  # of no use: the frames before it are lost
        put(writer, TICKS, 6, is_key=True)
        put(writer, TICKS, 7)
        writer.stop()
    assert times(folder, TICKS) == [0, 6, 7]
    assert (writer.status().state, writer.status().lost_frames) == ("on", 7)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]


def test_it_leaves_the_spool_its_room(folder, monkeypatch):
    """A tenth of the disk, or what the spool may need: below it nothing is written."""
    free = 10 << 20
    monkeypatch.setattr(
        "agent.history.writer.os.statvfs",
        lambda _: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=(1 << 30) // 4096),
    )
    writer = HistoryWriter(folder, HistorySection(), 64 << 20)
    writer.start(T0)
    put(writer, WINDOWS, 1)
    until(lambda: writer.status().lost_frames == 1)
    assert writer.status().detail == "the disk is full: less than 64 MiB are free, which the spool may need"
    free = 65 << 20
    put(writer, WINDOWS, 2)
    writer.stop()
    assert times(folder, WINDOWS) == [2]


def test_a_disk_that_hangs_costs_frames_and_nobody_waits(folder, monkeypatch):
    writer, gate, real = opened(folder), threading.Event(), SegmentWriter.append

    def hangs(self, *arguments, **named):
        gate.wait()
        return real(self, *arguments, **named)

    monkeypatch.setattr(SegmentWriter, "append", hangs)
    began = time.monotonic()
    for second in range(100):
        put(writer, TICKS, second, is_key=second == 0)
    assert time.monotonic() - began < 1
    assert writer.status().lost_frames == 100 - 64 - 1 or writer.status().lost_frames == 100 - 64
    assert writer.wants_key
    gate.set()
    writer.stop()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "history").write_text("a file")
    with capture_logs() as logs:
        writer = opened(tmp_path / "history")
        for second in range(3):
            put(writer, TICKS, second, is_key=True)
        writer.stop()
    assert (writer.status().state, writer.status().lost_frames) == ("stopped", 3)
    assert len(logs) <= 2


def test_a_disk_that_refuses_all_is_left_no_files(tmp_path, monkeypatch):
    log = SegmentWriter(tmp_path, 3600 * S)
    log.append(T0, 0, b"x", is_key=True)

    def refuse(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr("agent.history.segments.os.write", refuse)
        for second in range(1, 50):
            with pytest.raises(OSError, match="quota"):
                log.append(T0 + second * S, second * S, b"x", is_key=True)
    assert len(segments(tmp_path)) == 1
    log.append(T0 + 60 * S, 60 * S, b"y", is_key=True)
    assert len(segments(tmp_path)) == 2 and log.total_bytes == sum(f.stat().st_size for f in tmp_path.iterdir())
