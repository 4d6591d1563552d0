"""How the process's limit of file descriptors is divided, and what happens at a share's end."""

import resource

import pytest

from collector.cgroup.source import CgroupSource
from collector.files import KeptFiles, fd_share
from collector.inventory.inventory import Inventory
from collector.perf.source import PerfSource
from collector.procfs.source import ProcfsSource
from collector.resctrl.source import ResctrlSource

SHARERS = ("perf", "resctrl", "procfs", "cgroup")


@pytest.fixture
def limit(monkeypatch):
    """Set the process's limit, as the sources see it."""

    def set_limit(value):
        monkeypatch.setattr(resource, "getrlimit", lambda which: (value, 1 << 20))

    return set_limit


@pytest.mark.parametrize(
    ("most", "shares", "reserve"),
    [
        (64, (16, 8, 4, 4), 32),
        (1024, (448, 224, 112, 112), 128),
        (4096, (1792, 896, 448, 448), 512),
        (65536, (28672, 14336, 7168, 7168), 8192),
        (resource.RLIM_INFINITY, (458752, 229376, 114688, 114688), 131072),
    ],
)
def test_the_shares_leave_a_reserve(limit, most, shares, reserve):
    limit(most)
    assert tuple(fd_share(source) for source in SHARERS) == shares
    whole = 1 << 20 if most == resource.RLIM_INFINITY else most
    assert whole - sum(shares) == reserve


def test_the_sources_go_by_their_shares(limit, tmp_path):
    limit(4096)
    inventory = Inventory(str(tmp_path), str(tmp_path))
    assert PerfSource(inventory.vms)._max_fds == 1792
    assert ResctrlSource(inventory)._files._most == 896
    assert ProcfsSource(inventory)._files._most == 448
    assert CgroupSource(inventory)._files._most == 448


def test_beyond_the_bound_files_are_opened_for_each_reading(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    files = KeptFiles(1)
    kept, other = files.open(str(path)), files.open(str(path))
    assert (kept.fd is None, other.fd is None, files.count) == (False, True, 1)
    path.write_text("two")
    assert (kept.read(), other.read()) == (b"two", b"two")
    files.close(kept, other, None)
    files.close(kept)
    assert files.count == 0
    again = files.open(str(path))
    assert again.fd is not None
    files.close(again)
