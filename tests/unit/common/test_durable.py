"""Files that are there whole or not at all: on a disk that keeps, at a power cut, only what it was asked to keep."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from agent.antagonists.coefficients import CoefficientStore
from agent.detection.baseline_file import BaselineFile
from central.degradation.rows import write_model
from whitepanda.common.files.durable import replacing
from whitepanda.v1 import agent_pb2

OLD = b"the whole old file"


class Disk:
    """What a power cut would leave of one file, by the calls that reach the kernel.

    A file's content is on the disk once it is flushed. A new name may be there from the rename on, and is for sure
    once its folder is flushed.
    """

    def __init__(self, path, monkeypatch, *, skip=lambda _is_folder: False):
        self.path, self.flushed = path, {}
        #: What the file may hold after a cut now, and all that it might have held after a cut before.
        self.after_cut, self.ever = {path.read_bytes()}, set()
        fsync, replace = os.fsync, os.replace

        def watched_fsync(descriptor):
            fsync(descriptor)
            status = os.fstat(descriptor)
            is_folder = stat.S_ISDIR(status.st_mode)
            if skip(is_folder):
                return
            if is_folder:
                self.after_cut = {self._content()}
            else:
                self.flushed[status.st_ino] = self._read(descriptor)
            self.ever |= self.after_cut

        def watched_replace(source, target):
            replace(source, target)
            assert os.fspath(target) == os.fspath(path)
            self.after_cut = self.after_cut | {self._content()}
            self.ever |= self.after_cut

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "replace", watched_replace)

    @staticmethod
    def _read(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _content(self):
        return self.flushed.get(self.path.stat().st_ino, b"")

    def verify(self):
        new = self.path.read_bytes()
        assert new != OLD
        assert self.ever <= {OLD, new}  # never a part, whenever the power goes
        assert self.after_cut == {new}  # and when the call is over, the new one


def plainly(path):
    with replacing(path, mode=0o640) as file:
        file.write(b"the new file, " * 1000)


def baselines(path):
    BaselineFile(path, "paper").write({"vm": 1}, 5)


def coefficients(path):
    statistics = [agent_pb2.JobStatistics(job="web", platform="x", samples=9, mean_cpi=1.5, std_cpi=0.1)]
    update = agent_pb2.CoefficientUpdate(version=7, full=True, created_unix_ns=5, slot_ns=10**9, statistics=statistics)
    assert CoefficientStore(path).apply(update)


def model(path):
    write_model(path, {"format": 1})


WRITERS = [(plainly, 0o640), (baselines, 0o600), (coefficients, 0o600), (model, 0o644)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(OLD)
    return path


@pytest.mark.parametrize(("write", "mode"), WRITERS)
def test_whenever_the_power_goes_there_is_a_whole_file(path, monkeypatch, write, mode):
    disk = Disk(path, monkeypatch)
    write(path)
    disk.verify()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("skip", [lambda is_folder: not is_folder, lambda is_folder: is_folder])
@pytest.mark.parametrize(("write", "mode"), WRITERS)
def test_a_writer_that_does_not_flush_fails_this_test(path, monkeypatch, write, mode, skip):
    """The mutants: the file, or its folder, is not flushed."""
    disk = Disk(path, monkeypatch, skip=skip)
    write(path)
    with pytest.raises(AssertionError):
        disk.verify()


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize(("write", "mode"), WRITERS)
def test_the_permissions_are_those_that_were_asked_for_whatever_the_umask(path, write, mode, umask):
    before = os.umask(umask)
    try:
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_until_the_end_nobody_else_reads_it(path):
    with replacing(path, mode=0o644) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


@pytest.mark.parametrize("call", ["fsync", "replace", "the caller"])
def test_after_a_failure_there_is_the_old_file_and_nothing_beside_it(path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if call != "the caller":
        monkeypatch.setattr(os, call, fail)

    def write():
        with replacing(path, mode=0o600) as file:
            file.write(b"half")
            if call == "the caller":
                fail()

    with pytest.raises(OSError, match="No space left"):
        write()
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def test_no_folder_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "file", mode=0o600):
        pass


def test_a_device_stays_one_and_what_it_says_is_reported(tmp_path):
    device = tmp_path / "full"
    device.symlink_to("/dev/full")
    for path in (device, Path("/dev/full")):
        with pytest.raises(OSError, match="No space left"), replacing(path, mode=0o600) as file:
            file.write(b"new")
        assert stat.S_ISCHR(path.stat().st_mode)
    with replacing(Path("/dev/null"), mode=0o600) as file:
        file.write(b"new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert stat.S_IMODE(Path("/dev/null").stat().st_mode) == 0o666
    assert device.is_symlink()


def test_a_pipe_is_written(tmp_path):
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with replacing(path, mode=0o600) as file:
        file.write(b"new")
    reader.join()
    assert read == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_standard_output_in_a_file_is_written_and_its_link_stays(tmp_path):
    link, path = tmp_path / "stdout", tmp_path / "file"
    with path.open("wb") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        with replacing(link, mode=0o600) as stream:
            stream.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_a_link_to_a_file_is_replaced_and_the_file_is_not(tmp_path):
    link, path = tmp_path / "link", tmp_path / "file"
    path.write_bytes(OLD)
    link.symlink_to(path)
    with replacing(link, mode=0o600) as file:
        file.write(b"new")
    assert (path.read_bytes(), link.read_bytes(), link.is_symlink()) == (OLD, b"new", False)


def test_a_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(IsADirectoryError), replacing(tmp_path, mode=0o600):
        pytest.fail("the caller went to work")


def test_a_fresh_file_replaces_none_also_one_made_meanwhile(tmp_path):
    path = tmp_path / "new"
    with replacing(path, mode=0o600, fresh=True) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), replacing(path, mode=0o600, fresh=True) as file:
        file.write(b"second")
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"first", ["new"])
