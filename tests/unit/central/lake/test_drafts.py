"""Temporary folders have owners: those of a process that is gone are removed, and no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from central.lake import drafts
from central.lake.drafts import OwnedFolder
from central.lake.objects import Bucket
from tests.support.waiting import wait_until

PREFIX = ".objects-"
_BUCKET = """
import os, signal, sys
from pathlib import Path
from central.lake.objects import Bucket
bucket = Bucket("memory://lake", Path(sys.argv[1]))
bucket.draft("samples/one").write_bytes(b"draft")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def other_process(copies: Path) -> subprocess.Popen[bytes]:
    """Start a process that has a lake in an object store open, and pause it."""
    process = subprocess.Popen([sys.executable, "-c", _BUCKET, str(copies)], cwd=Path(__file__).parents[4])
    status = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    return process


def aged(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.utime(each, (1.0, 1.0))


@pytest.mark.parametrize("boot", ["", "0badb001"])
def test_what_a_killed_process_copied_of_an_object_store_goes_with_the_next_one(tmp_path: Path, boot: str) -> None:
    process = other_process(tmp_path)
    try:
        [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
        mine = Bucket("memory://lake", tmp_path)
        assert (folder / "drafts" / "samples" / "one").read_bytes() == b"draft", "its owner lives"
    finally:
        process.kill()
        process.wait()
    if boot:  # the machine was started again
        drafts_boot = drafts.owner().partition("-")[0]
        for path in (folder, folder.with_name(f"{folder.name}.tmp")):
            path.rename(path.with_name(path.name.replace(f".{drafts_boot}-", f".{boot}-")))
    own = Bucket("memory://lake", tmp_path)
    left = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert sorted(left) == sorted([mine._copies, own._copies])
    for bucket in (mine, own):
        bucket._copies_folder.close()
    assert names(tmp_path) == []


def test_a_folder_of_another_machine_goes_when_nobody_wrote_into_it_for_long(tmp_path: Path) -> None:
    (tmp_path / ".build-a.0badb001-7" / "state").mkdir(parents=True)
    (tmp_path / ".build-a.0badb001-7" / "state" / "file").write_bytes(b"x")
    lock = tmp_path / ".build-a.0badb001-7.tmp"
    lock.touch()
    kept = [".build-a.0badb001-7", ".build-a.0badb001-7.tmp"]
    with OwnedFolder(tmp_path, ".build-") as own:
        assert names(tmp_path) == sorted([*kept, own.name, f"{own.name}.tmp"])
    for path in tmp_path.iterdir():
        aged(path)
    (tmp_path / kept[0] / "state" / "file").touch()
    with OwnedFolder(tmp_path, ".build-"):
        pass
    assert names(tmp_path) == kept
    for path in tmp_path.iterdir():
        aged(path)
    with OwnedFolder(tmp_path, ".build-"):
        pass
    assert names(tmp_path) == []


def test_a_folder_goes_at_exit_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{PREFIX}x.tmp")
    code = f"""
from pathlib import Path
from central.lake.drafts import OwnedFolder
kept = OwnedFolder(Path({str(tmp_path)!r}), {PREFIX!r})
(kept.path / "file").write_bytes(b"x")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[4])
    assert names(tmp_path) == [f"{PREFIX}x.tmp"]
