"""Builds by a process of their own: the same versions, by the lake; failures reported; stopped and killed soundly."""

import asyncio
import errno
import os
import re
import select
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from central.build import client
from central.build.builder import Builder
from central.build.client import BuildFailedError, BuildProcess
from central.build.status import BuildStoppedError, LeftOut
from central.coefficients.follower import VersionFollower
from central.coefficients.versions import VersionStore
from central.config import BuildSection, CentralConfig, CentralSection
from central.lake.lease import Lease
from central.lake.segments import DAY_NS, Lake, segment_stem
from tests.unit.central.build.test_builds import samples, write_day
from whitepanda.common.tls import TlsFiles

HOLDER = "central-0-0a1b2c3d"


def made(folder: Path, lake: Lake, **build: object) -> BuildProcess:
    section = CentralSection(state_dir=str(folder / "state"), lake_dir=lake.name, tls=TlsFiles("a", "b", "c"))
    config = CentralConfig(central=section, build=BuildSection(memory_limit_mib=256, **build))
    return BuildProcess(config, lake, VersionFollower(VersionStore(lake.objects)), HOLDER)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


async def test_its_version_is_that_of_a_thread_and_a_failure_leaves_it_in_force(tmp_path: Path, lake: Lake) -> None:
    builder = made(tmp_path, lake, days=2, interval_s=1.0)
    reported: list[int] = []
    builder.follower.on_version.append(lambda built: reported.append(built.version))
    await builder.build_and_announce()
    assert builder._process is None, "nothing to build from, no process"
    for day in range(4):
        write_day(lake, day, day)
    await builder.build_and_announce()
    assert (reported, builder.last_error) == ([1], "")
    assert builder.left_out == LeftOut(2, 1200)
    here = Builder(BuildSection(memory_limit_mib=256, days=2), Lake(tmp_path / "copy"))
    for day in range(4):
        write_day(here._lake, day, day)
    assert here.build_once() == 1
    assert here.current is not None
    assert builder.current is not None
    ours, theirs = builder.current.coefficient("job-5"), here.current.coefficient("job-5")
    # Threads of the engine add in any order.
    assert ours.value == pytest.approx(theirs.value, abs=1e-12)
    assert ours.standard_error == pytest.approx(theirs.standard_error, rel=1e-9)
    assert (ours.job, ours.samples, ours.method) == (theirs.job, theirs.samples, theirs.method)
    first = builder._process
    assert first is not None
    await builder.build_and_announce()
    assert (reported, builder._process) == ([1], first), "builds that follow soon share a process; no new version"
    write_day(lake, 4, 4)
    newest = max(lake.segments(), key=lambda segment: segment.day)
    newest.path.write_bytes(b"no parquet")
    await builder.build_and_announce()
    assert newest.path.name in builder.last_error
    assert (builder.damaged["build"], builder.damaged_files) == ([newest.key], 1)
    assert builder.current.version == 1
    builder.close()
    assert first.poll() is not None


async def test_it_is_started_again_when_it_dies_and_ends_where_builds_are_rare(tmp_path: Path, lake: Lake) -> None:
    write_day(lake, 0, 1)
    builder = made(tmp_path, lake)
    builder.start()
    assert builder._process is not None
    os.kill(builder._process.pid, signal.SIGKILL)
    with pytest.raises(BuildFailedError, match="ended with status -9"):
        builder.build_once()
    assert "ended with status -9" in builder.last_error
    builder.start()
    assert builder.build_once() == 1
    await builder.build_and_announce()
    assert (builder.last_error, builder._process) == ("", None)


async def test_a_stop_ends_a_build_and_gives_the_lease_back(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("central.build.client._STOP_S", 60.0)  # builds wait for whatever else this machine does
    write_day(lake, 0, 1)
    builder = made(tmp_path, lake)
    running = asyncio.create_task(builder.run())
    async with asyncio.timeout(30):
        while builder._process is None:
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    builder.close()
    assert Lease(lake.objects, "another", 120.0).acquire()
    assert list((lake.root / "state").glob("*/.*")) == []
    builder.start()
    builder.stop()
    with pytest.raises(BuildStoppedError):
        builder.build_once()
    builder.close()


def test_a_build_that_does_not_stop_is_killed_and_its_lease_given_back(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("central.build.client._STOP_S", 0.1)
    builder = made(tmp_path, lake)
    builder.start()
    assert builder._process is not None
    os.kill(builder._process.pid, signal.SIGSTOP)
    assert Lease(lake.objects, HOLDER, 120.0).acquire(), "as the process would"
    builder.stop()
    with pytest.raises(BuildStoppedError):
        builder.build_once()
    assert builder._process.poll() == -signal.SIGKILL
    assert Lease(lake.objects, "another", 120.0).acquire()
    builder.close()


def test_the_process_builds_under_the_lease_of_this_replicas_journal(tmp_path: Path, lake: Lake) -> None:
    write_day(lake, 0, 1)
    builder = made(tmp_path, lake)
    builder.start()
    assert Lease(lake.objects, "central-0-99999999", 120.0).acquire(), "of another replica of this name"
    assert builder.build_once() is None
    builder.lease.release_left()
    assert builder.build_once() is None, "another's is not its to release"
    Lease(lake.objects, "central-0-99999999", 120.0).release_left()
    assert Lease(lake.objects, HOLDER, 120.0).acquire(), "of this one, before it was started again"
    assert builder.build_once() == 1
    builder.close()


def test_what_asks_all_of_central_to_stop_is_left_to_central(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd sends SIGTERM and a terminal SIGINT; also while it loads its modules."""
    monkeypatch.setattr("central.build.client._STOP_S", 60.0)  # it ends at nice 10, beside all other tests
    write_day(lake, 0, 1)
    builder = made(tmp_path, lake)
    for number in (1, 2):
        builder.start()
        process = builder._process
        assert process is not None
        for each in (signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, each)
        assert builder.build_once() == number
        write_day(lake, number, number)
    builder.close()
    assert process.poll() == 0, "the end of its input ends it"


_PARENT = """
import sys, time
from pathlib import Path
from central.lake.segments import DAY_NS, Lake, segment_stem
from tests.unit.central.build.test_build_worker import made
builder = made(Path(sys.argv[1]), Lake(sys.argv[2]))
builder.start()
print(builder._process.pid, flush=True)
builder.build_once()
print("built", flush=True)
time.sleep(3600)
"""


def test_it_dies_with_a_central_that_is_killed(tmp_path: Path, lake: Lake) -> None:
    write_day(lake, 0, 1)
    command = [sys.executable, "-c", _PARENT, str(tmp_path), lake.name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ) as parent:
        assert parent.stdout is not None
        ends = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert parent.stdout.readline() == "built\n"
            signal.pidfd_send_signal(ends, signal.SIGSTOP)  # it cannot see that its input ends
            parent.kill()
            assert select.select([ends], [], [], 20.0)[0]
        finally:
            os.close(ends)


_DAEMON = """
import asyncio, sys
from pathlib import Path
import central.daemon
from central.build.client import BuildProcess
from central.coefficients.follower import VersionFollower
from central.coefficients.versions import VersionStore
from central.config import CentralConfig, CentralSection
from central.lake.segments import Lake
from whitepanda.common.tls import TlsFiles
section = CentralSection(state_dir=sys.argv[1], lake_dir=sys.argv[2], tls=TlsFiles("a", "b", "c"))
lake = Lake(sys.argv[2])
builds = BuildProcess(CentralConfig(central=section), lake, VersionFollower(VersionStore(lake.objects)), "central-0")
asyncio.run(builds.build_and_announce())
print(builds.current.version, *sys.modules)
"""


def test_the_daemon_loads_neither_engines_nor_a_builder(tmp_path: Path, lake: Lake) -> None:
    write_day(lake, 0, 1)
    reported = subprocess.run(
        [sys.executable, "-c", _DAEMON, str(tmp_path), lake.name],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    version, *loaded = reported.splitlines()[-1].split()
    assert version == "1"
    assert {"central.daemon", "central.build.client"} < set(loaded)
    assert not {"ibis", "duckdb", "pyspark", "scipy", "central.build.builder", "central.build.engine"} & set(loaded)


@pytest.mark.parametrize("method", ["whitepanda", "panda"])
def test_a_host_with_30_000_job_names_costs_no_other_host_its_statistics(
    tmp_path: Path, lake: Lake, method: str
) -> None:
    without = Lake(tmp_path / "without")
    for each in (lake, without):
        write_day(each, 0, 1)
    rng = np.random.default_rng(5)
    count = 30_000
    names = [f"name-{number}" for number in range(count)]
    names[0] = "n" * 512
    columns = {
        "machine": ["crowded"] * count,
        "vm": names,
        "job": names,
        "platform": ["cpu"] * count,
        "latency_sensitive": np.ones(count, np.bool_),
        "start_unix_ns": (min(lake.days()) - date(1970, 1, 1)).days * DAY_NS + rng.integers(0, 24, count) * 300 * 10**9,
        "duration_ns": np.full(count, 10 * 10**9),
        "cpi": rng.lognormal(0, 0.1, count),
        "cpu_usage_cores": rng.gamma(2.0, 0.5, count),
    }
    lake.write_segment(samples(columns, 2), segment_stem("central-0", "0badcafe", 2))
    builder = made(tmp_path, lake, method=method)
    builder.start()
    assert builder.build_once() == 1
    assert builder._process is not None
    process = Path(f"/proc/{builder._process.pid}")
    bound_mib = 256 + 3 * 512
    (limit,) = re.findall(r"Max data size +(\d+)", (process / "limits").read_text())
    assert int(limit) == bound_mib << 20
    (peak_kib,) = re.findall(r"VmHWM:\s+(\d+)", (process / "status").read_text())
    assert int(peak_kib) >> 10 < bound_mib
    builder.close()
    here = Builder(BuildSection(memory_limit_mib=256, method=method), without)
    assert here.build_once() == 1
    assert builder.current is not None
    assert here.current is not None
    manifest = builder.current.manifest
    assert (manifest.machines_left_out, set(manifest.jobs_left_out)) == ((), {"crowded"})
    assert len(builder.current.jobs) == 506
    for job in sorted(here.current.jobs):
        (ours,), (theirs,) = builder.current.statistics(job), here.current.statistics(job)
        assert ours.samples == theirs.samples
        for field in ("mean_cpi", "std_cpi"):
            assert getattr(ours, field) == pytest.approx(getattr(theirs, field), rel=1e-9)
        if method == "panda":  # the other one fits all jobs at once
            ours, theirs = builder.current.coefficient(job), here.current.coefficient(job)
            assert ours.value == pytest.approx(theirs.value, rel=1e-9)


def test_after_a_process_that_died_the_next_one_does_less_at_a_time(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = made(tmp_path, lake)
    asked = []
    monkeypatch.setattr(client, "_write_line", lambda _process, line: asked.append(line))
    for _ in range(2):
        builder.start()
        assert builder._process is not None
        builder._process.kill()
        with pytest.raises(BuildFailedError):
            builder.build_once()
    assert [b'"is_short":true' in line for line in asked if b"holder" in line] == [False, True]
    builder.close()


async def test_a_process_that_does_not_start_is_a_failed_build(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when descriptors, memory or processes have run out: central continues, and builds once it can."""
    write_day(lake, 0, 0)
    builder = made(tmp_path, lake, days=2, interval_s=100.0)

    def refused(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(client.worker_process, "start", refused)
        for _ in range(2):
            await builder.build_and_announce()
    assert builder.last_error == "the process that builds does not start: [Errno 24] Too many open files"
    await builder.build_and_announce()
    assert builder.last_error == ""
    assert builder.current is not None
