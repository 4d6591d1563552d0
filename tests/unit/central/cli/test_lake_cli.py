"""`whitepanda lake` where things are not as they should be: a line that says so, nothing wrong in silence."""

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from central.build.builder import Builder
from central.cli import lake as lake_cli
from central.config import BuildSection
from central.lake.lease import Lease
from central.lake.objects import Folder
from central.lake.segments import Lake
from central.roll_ups import store as slots
from central.roll_ups.compaction import compact_day, remove_superseded
from central.roll_ups.store import SlotStore
from central.verify.checks import problems
from tests.unit.central.roll_ups.test_compaction import DAY, rolled, write
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for number in range(1, 4):
        write(lake, number)
    return lake


def run(*words: str | Path) -> str:
    """Run a command, and return what it prints; its errors are raised."""
    result = CliRunner().invoke(lake_cli.app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def verified(lake: Lake, *, is_quick: bool = False) -> list[str]:
    with duckdb.connect() as connection:
        return list(problems(lake, connection, is_quick=is_quick))


def test_a_dead_builder_is_outwaited_and_a_living_one_is_not(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rolled(lake)
    assert Lease(lake.objects, "central-7", 0.2).acquire()  # and is never heard of again
    reported = run("compact", lake.root, "--min-segments", "2", "--json")
    line, _, answer = reported.partition("{")
    assert "central-7 is building, or died while it did" in line
    assert "at most 0.2 s" in line
    assert json.loads("{" + answer)["compacted"] == {DAY.isoformat(): {"sources": 3, "written": 1, "rows": 12}}

    living = Lease(lake.objects, "central-7", 60.0)
    assert living.acquire()
    monkeypatch.setattr("central.lake.lease._CHECK_S", 0.001)
    original = Lease.acquire

    def acquire(self: Lease) -> bool:
        living.renew()
        return original(self)

    monkeypatch.setattr(Lease, "acquire", acquire)
    with pytest.raises(UnavailableError, match="central-7 is building; try again later"):
        run("compact", lake.root)


@pytest.mark.parametrize(("text", "why"), [(b"", "Input data was truncated"), (b"\0 {", "JSON is malformed")])
def test_a_lease_that_cannot_be_read_is_named_and_outwaited(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, text: bytes, why: str
) -> None:
    monkeypatch.setattr(lake_cli, "_LEASE_S", 0.2)
    rolled(lake)
    assert Lease(lake.objects, "central-7", 0.2).acquire()
    path = lake.root / "lease" / "000000000001.json"
    assert verified(lake) == []
    path.write_bytes(text)
    [line] = verified(lake)
    assert line.startswith(f"{path} is damaged: {why}")
    assert "no row is lost" in line
    reported = run("compact", lake.root, "--min-segments", "2")
    assert f"{path} is damaged: {why}" in reported
    assert "waiting for a sign of life, at most 0.2 s" in reported
    assert "3 segments into 1" in reported
    assert verified(lake) == []  # there is a new one


@pytest.mark.parametrize("command", ["verify", "stats", "compact"])
def test_what_is_no_lake_is_said_and_left_as_it_is(tmp_path: Path, command: str) -> None:
    with pytest.raises(UnavailableError, match=r"no lake here, or an empty one: .*; central.lake_dir, or lake in"):
        run(command, tmp_path)
    (tmp_path / "lake").mkdir()
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(UnavailableError, match=rf"; is it {tmp_path}/lake\?"):
        run(command, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.sqlite", "lake"]
    with pytest.raises(UnavailableError, match=r"journal\.sqlite: is a file, no folder; central\.lake_dir, or"):
        run(command, tmp_path / "journal.sqlite")
    (tmp_path / "samples").touch()
    with pytest.raises(UnavailableError, match=r"cannot be used: .*Not a directory.*samples"):
        run(command, tmp_path)


@pytest.mark.parametrize("command", ["verify", "stats", "compact"])
def test_a_lake_that_cannot_be_read_is_one_line(lake: Lake, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    original = os.scandir

    def refused(path: object = ".") -> object:
        if str(path).endswith("samples"):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UnavailableError, match=r"^lake \S+ cannot be used: .*Permission denied: '\S+/samples'$"):
        run(command, lake.root)


def test_a_damaged_lake_is_one_line_of_stats(lake: Lake) -> None:
    path = lake.segments()[0].path
    path.write_bytes(b"PAR1")
    with pytest.raises(WhitepandaError, match=f"{path.name} is damaged"):
        run("stats", lake.root)


def test_numbers_are_whole_in_a_pipe(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rolled(lake)
    monkeypatch.setenv("COLUMNS", "40")
    head, day, replica, versions = run("stats", lake.root).splitlines()
    assert head.startswith("day ")
    size = sum(segment.size_bytes for segment in lake.segments())
    slots = SlotStore(lake, 300 * 10**9).manifests()[DAY]
    assert day.split() == [
        "1970-01-02", "3", "12", f"{size:,}", f"{size / 12:.1f}", "0", "1", f"{slots.parts[0].slots_bytes:,}"
    ]  # fmt: skip
    assert len(head) == len(day)
    assert (replica, versions) == ("replica central-0: 12 rows", "0 versions, the newest is 0")


def test_machines_left_out_are_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    original = slots.write_part
    (machine,) = pq.read_table(lake.segments()[0].path)["machine"].unique().to_pylist()

    def write(*arguments: Any) -> tuple[int, int]:
        if machine not in arguments[-1]:
            raise MemoryError
        return original(*arguments)

    monkeypatch.setattr(slots, "write_part", write)
    assert Builder(BuildSection(memory_limit_mib=256, threads=1), lake).build_once() == 1
    assert run("stats", lake.root).splitlines()[-2:] == [
        "1 versions, the newest is 1",
        f"left out of it, as their rows make a build fail: {machine}",
    ]
    assert json.loads(run("stats", lake.root, "--json"))["machines_left_out"] == [machine]


def test_the_slots_that_are_there_are_taken(lake: Lake) -> None:
    with duckdb.connect() as connection:
        SlotStore(lake, 60 * 10**9).roll_up(DAY, connection)
    reported = json.loads(run("stats", lake.root, "--json"))
    assert (reported["slot_s"], reported["days"][0]["samples_in_slots"]) == (60.0, 12)
    with pytest.raises(InputError, match="has slots of 60 s, none of --slot-s 300"):
        run("stats", lake.root, "--slot-s", "300")
    rolled(lake)
    for command in ("stats", "compact"):
        with pytest.raises(InputError, match=r"has slots of 60 and 300 s; say which, --slot-s: central's build"):
            run(command, lake.root)
    reported = json.loads(run("compact", lake.root, "--slot-s", "60", "--min-segments", "2", "--json"))
    assert reported["compacted"][DAY.isoformat()]["written"] == 1


@pytest.mark.parametrize(
    "words", [("--slot-s", "nan"), ("--slot-s", "0"), ("--slot-s", "-300"), ("--slot-s", "86401"), ("--grace-s", "nan")]
)  # fmt: skip
def test_numbers_out_of_range_are_refused(lake: Lake, words: tuple[str, str]) -> None:
    result = CliRunner().invoke(lake_cli.app, ["compact", str(lake.root), *words])
    assert result.exit_code == 2
    assert f"Invalid value for '{words[0]}'" in result.output
    assert not (lake.root / "lease").exists()


def test_a_folder_that_is_none_of_slots_is_a_line(lake: Lake) -> None:
    rolled(lake)
    for name in ("slot=abc", "slot=nan", "other", "slot=0300"):
        (lake.root / "slots" / name / "day=1970-01-02").mkdir(parents=True)
        (lake.root / "slots" / name / "day=1970-01-02/x").touch()
    assert verified(lake) == [
        f"slots/{name}: no folder of slots, slots/slot=<length in s>; nothing reads it"
        for name in ("other", "slot=0300", "slot=abc", "slot=nan")
    ]
    assert json.loads(run("stats", lake.root, "--json"))["slot_s"] == 300.0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["quick", "full"])
def test_what_central_does_meanwhile_is_no_problem(lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """After each listing of samples and slots, and before slots are opened, central does all that it does, once."""
    monkeypatch.setattr("central.roll_ups.store._GROWTH", 1e9)  # so each roll-up makes the part before it superfluous
    rolled(lake)
    left = {"samples": 2, "slots": 2, "open": 1}
    originals = Folder.entries, Folder.open

    def hook(name: str) -> None:
        if left.get(name, 0) > 0:
            left[name] -= 1
            unhook()
            write(lake, 10 - sum(left.values()))
            compact_day(lake, DAY, rolled(lake), min_sources=2)
            remove_superseded(lake, grace_s=0)
            SlotStore(lake, 300 * 10**9).remove_unused(0.0)
            hooked()

    def entries(self: Folder, prefix: str) -> list[object]:
        found = list(originals[0](self, prefix))
        hook(prefix.partition("/")[0])
        return found

    def opened(self: Folder, name: str) -> object:
        hook("open" if name.startswith("slots/") else "")
        return originals[1](self, name)

    def hooked() -> None:
        monkeypatch.setattr(Folder, "entries", entries)
        monkeypatch.setattr(Folder, "open", opened)

    def unhook() -> None:
        monkeypatch.setattr(Folder, "entries", originals[0])
        monkeypatch.setattr(Folder, "open", originals[1])

    hooked()
    assert verified(lake, is_quick=kind == "quick") == []
    assert set(left.values()) == {0}


def test_damage_in_a_lake_that_is_in_use_is_reported(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rolled(lake)
    lost = lake.segments()[0]
    original = Folder.open

    def gone(self: Folder, name: str) -> object:
        if name == lost.key:
            lost.path.write_bytes(lost.path.read_bytes()[:50])
            monkeypatch.setattr(Folder, "open", original)
        return original(self, name)

    monkeypatch.setattr(Folder, "open", gone)
    [line] = verified(lake, is_quick=True)
    assert f"{lost.key} is damaged" in line
