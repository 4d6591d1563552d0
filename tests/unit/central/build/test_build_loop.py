"""The daemon's loop: it builds, announces versions, survives failures, and warns of replicas with other settings."""

import asyncio
import threading
import time
from functools import partial

import msgspec
import pyarrow as pa
import pytest

from central.build import worker
from central.build.builder import Builder
from central.build.client import BuildProcess
from central.build.other_settings import OtherSettings
from central.coefficients.follower import VersionFollower
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, VersionStore
from central.config import BuildSection, CentralConfig, CentralSection, IngestSection
from central.lake.replicas import RECENT_S
from central.lake.segments import Lake
from central.roll_ups.store import SlotStore
from tests.unit.central.build.test_builds import OURS, SECTION, write_day
from whitepanda.common import log
from whitepanda.common.tls import TlsFiles

RARE = BuildSection(interval_s=3600.0, memory_limit_mib=256)


class InThread(BuildProcess):
    """Builds in this process, by what the other one would do."""

    def __init__(self, folder, lake, section, *, first_look_s=60.0, holder="central-0", clock_unix_ns=time.time_ns):
        config = CentralConfig(
            central=CentralSection(state_dir=str(folder), tls=TlsFiles("a", "b", "c")),
            build=section,
            ingest=IngestSection(roll_interval_s=first_look_s),
        )
        super().__init__(config, lake, VersionFollower(VersionStore(lake.objects)), holder)
        self.here = Builder(section, lake, holder=holder, clock_unix_ns=clock_unix_ns)

    def start(self):
        self._process = self.here

    def stop(self):
        self._stopping.set()
        self.here.stop()

    def close(self):
        self._process = None

    def _ask(self, process, what):
        return worker.ANSWERS[what](process)


def others(section, lake, holder, clock=time.time_ns):
    return OtherSettings(section, VersionStore(lake.objects), holder, clock)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


async def test_the_loop_builds_reports_and_survives_failures(tmp_path, lake, monkeypatch):
    reported = []
    builder = InThread(tmp_path, lake, SECTION)
    builder.follower.on_version.append(lambda built: reported.append((built.version, threading.current_thread())))
    fail = True
    original = Builder._build

    def build(self):
        assert threading.current_thread() is not threading.main_thread()
        if fail:
            raise RuntimeError("disk on fire\nwith a long story")
        return original(self)

    monkeypatch.setattr(Builder, "_build", build)
    write_day(lake, 0, 1)
    loop = asyncio.create_task(builder.run())
    async with asyncio.timeout(20):
        while not builder.last_error:
            await asyncio.sleep(0.01)
        assert builder.last_error == "RuntimeError: disk on fire"
        fail = False
        while not reported:
            await asyncio.sleep(0.01)
    assert reported == [(1, threading.main_thread())]
    assert builder.last_error == ""
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_a_new_central_builds_when_there_is_something_to_build_from(tmp_path, lake):
    builder = InThread(tmp_path, lake, RARE, first_look_s=0.05)
    built = asyncio.Event()
    builder.follower.on_version.append(lambda _: built.set())
    builds = 0
    original = builder.build_once

    def counted():
        nonlocal builds
        builds += 1
        return original()

    builder.build_once = counted
    loop = asyncio.create_task(builder.run())
    async with asyncio.timeout(20):
        while builds < 3:  # it looks again and again, and finds nothing
            await asyncio.sleep(0.01)
        assert builder.current is None
        await asyncio.to_thread(write_day, lake, 0, 1)
        await built.wait()
    before = builds
    await asyncio.to_thread(write_day, lake, 1, 2)
    await asyncio.sleep(0.5)  # ten looks; from the first version on only every `interval_s`
    assert (builds, builder.current.version) == (before, 1)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_between_builds_new_windows_are_rolled_up_and_nothing_else(tmp_path, lake):
    section = msgspec.structs.replace(RARE, roll_up_interval_s=1.0)
    builder = InThread(tmp_path, lake, section, first_look_s=0.05)
    slots = SlotStore(lake, round(section.slot_s * 1e9))
    write_day(lake, 0, 1)
    loop = asyncio.create_task(builder.run())
    async with asyncio.timeout(60):
        while builder.current is None:
            await asyncio.sleep(0.01)
        [(day, before)] = slots.manifests().items()
        assert before.segments == 1
        write_day(lake, 0, 2)
        while slots.manifest(day).segments == 1:
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.5)
    assert slots.manifest(day).number == before.number + 1  # nothing new, so nothing was done
    assert builder.current.version == 1 and builder._process is None
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_a_first_build_that_fails_is_not_tried_at_every_look(tmp_path, lake, monkeypatch):
    tries = []

    def fail(_self):
        tries.append(1)
        raise OSError("disk on fire")

    monkeypatch.setattr(Builder, "_build", fail)
    write_day(lake, 0, 1)
    builder = InThread(tmp_path, lake, RARE, first_look_s=0.01)
    loop = asyncio.create_task(builder.run())
    await asyncio.sleep(0.5)
    assert len(tries) == 1
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_replicas_that_build_by_other_settings_are_warned_of_once_before_they_build(tmp_path, lake, capsys):
    log.configure("info")
    now = [1_800_000_000 * 10**9]
    clock = partial(now.__getitem__, 0)
    other_section = msgspec.structs.replace(OURS, slot_s=60.0, days=7, interval_s=0.05)
    one = Builder(SECTION, lake, holder="central-0", clock_unix_ns=clock)
    other = InThread(tmp_path, lake, other_section, holder="central-1", clock_unix_ns=clock)
    other._others = others(other_section, lake, "central-1", clock)
    write_day(lake, 0, 1)
    assert one.build_once() == 1
    capsys.readouterr()
    for _ in range(2):
        await other.build_and_announce()
    reported = capsys.readouterr().err
    [line] = [line for line in reported.splitlines() if "builds by other settings" in line]
    assert reported.index("builds by other settings") < reported.index("version built"), "before it builds over it"
    differing = f"build.slot_s {SECTION.slot_s:g} there, 60 here; build.days {SECTION.days} there, 7 here; "
    assert f"{differing}build.method panda there, whitepanda here" in line
    assert "set [build] alike on all" in line
    assert "replica=central-0 version=1" in line
    again = others(other_section, lake, "central-1", clock)
    assert other.versions.manifest(2).builder == "central-1"
    again.check()
    assert "version=1" in capsys.readouterr().err, "its own version 2 is no other's, the one before it is"
    now[0] += round(RECENT_S * 1e9) + 1
    again.check()
    others(other_section, lake, "central-1", clock).check()
    assert capsys.readouterr().err == "", "what is long ago is not compared with"


def test_versions_of_its_own_or_built_alike_are_not_warned_of(lake, capsys):
    log.configure("info")
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake, holder="central-0")
    builder.build_once()
    one = others(SECTION, lake, "central-0")
    manifest = msgspec.structs.replace(builder.versions.manifest(1), slot_s=60.0)
    tables = [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in (JOB_STATISTICS, COEFFICIENTS)]
    capsys.readouterr()
    builder.versions.write(manifest, *tables)
    one.check()
    builder.versions.write(msgspec.structs.replace(manifest, builder="central-1", slot_s=300.0), *tables)
    one.check()
    assert capsys.readouterr().err == ""
    builder.versions.write(msgspec.structs.replace(manifest, builder="central-2"), *tables)
    found = lake.root / "versions" / f"{4:08d}" / "manifest.json"
    text = found.read_bytes()
    found.write_text("{")
    others(SECTION, lake, "central-0").check()
    assert "builds by other settings" not in capsys.readouterr().err, "what cannot be read is passed over"
    found.write_bytes(text)
    one.check()
    assert "build.slot_s 60 there" in capsys.readouterr().err
