"""A VM's windows from the lake's segments: which are read, and that every batch counts once."""

import math
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.lake.errors import LakeError, SlowError
from central.lake.schema import SAMPLES
from central.lake.segment_times import SegmentTimes
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.lake.vm_windows import VmWindows

A, B = segment_stem("central-0", "0000000a", 1), segment_stem("central-1", "0000000b", 1)
A2 = segment_stem("central-0", "0000000a", 2)


def table(*rows: tuple[str, int, int], host: str = "x") -> pa.Table:
    """Rows of (vm, sequence, start_unix_ns), all of one host."""
    known = {
        "vm": [vm for vm, _, _ in rows],
        "sequence": [sequence for _, sequence, _ in rows],
        "start_unix_ns": [start for _, _, start in rows],
        "latency_sensitive": [False] * len(rows),
        "duration_ns": [7] * len(rows),
        "cpu_usage_cores": [0.5] * len(rows),
        "cpi": [1.5 if start % 2 else None for _, _, start in rows],
    }
    known |= {"host": [host] * len(rows), "machine": [host] * len(rows)}
    filled = {f.name: ["x" if f.type == pa.string() else None] * len(rows) for f in SAMPLES}
    return pa.table({**filled, **known}, schema=SAMPLES)


def starts(windows: VmWindows, vm: str, since: int, until: int, limit: int = 1000) -> list[int]:
    return [window.start_unix_ns for window in windows.read(vm, since, until, limit)]


def test_windows_of_one_vm_in_order_and_the_last_ones(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write_segment(table(("v", 1, 30), ("w", 1, 31), ("v", 1, DAY_NS + 1)), A)
    lake.write_segment(table(("v", 2, 21), ("v", 2, 40)), A2)
    windows = VmWindows(SegmentTimes(lake))
    first = windows.read("v", 0, 2 * DAY_NS, 1000)[0]
    assert (first.host, first.duration_ns, first.cpi, first.cpu_usage_cores) == ("x", 7, 1.5, 0.5)
    assert math.isnan(windows.read("v", 30, 31, 1)[0].cpi)
    assert starts(windows, "v", 0, 2 * DAY_NS) == [21, 30, 40, DAY_NS + 1]
    assert starts(windows, "v", 21, 40) == [21, 30], "the begin counts, the end does not"
    assert starts(windows, "v", 40, 41) == [40]
    assert starts(windows, "v", 0, 2 * DAY_NS, 2) == [40, DAY_NS + 1]
    assert starts(windows, "nobody", 0, 2 * DAY_NS) == []
    assert starts(windows, "v", 5 * DAY_NS, 6 * DAY_NS) == []


def test_a_host_that_claims_a_vm_leaves_room_for_the_windows_of_another(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write_segment(table(*(("v", 1, start) for start in range(1, 100))), A)
    lake.write_segment(table(*(("v", 1, start) for start in range(100, 1000)), host="bad"), A2)
    for limit in (10, 11, 500):
        found = VmWindows(SegmentTimes(lake)).read("v", 0, 1000, limit)
        times = {host: [w.start_unix_ns for w in found if w.host == host] for host in ("x", "bad")}
        mine = min(99, limit // 2)
        assert times == {"x": [*range(100 - mine, 100)], "bad": [*range(1000 - limit + mine, 1000)]}


def test_a_batch_that_two_journals_took_counts_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write_segment(table(("v", 1, 10), ("v", 1, 20), ("w", 1, 10)), B)
    lake.write_segment(table(("v", 1, 10), ("v", 1, 20), ("v", 2, 15)), A)
    assert starts(VmWindows(SegmentTimes(lake)), "v", 0, 100) == [10, 15, 20]


ROWS = st.lists(
    st.tuples(st.sampled_from("vw"), st.integers(1, 3), st.integers(0, 60)), min_size=1, max_size=12, unique=True
)


@settings(max_examples=10)
@given(ROWS, ROWS, st.integers(0, 60), st.integers(0, 60))
def test_what_is_left_unread_has_nothing(tmp_path_factory, first, second, since, length) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    lake.write_segment(table(*first), A)
    lake.write_segment(table(*[(vm, number + 3, start) for vm, number, start in second]), A2)
    wanted = sorted(s for vm, _, s in [*first, *second] if vm == "v" and since <= s < since + length)
    assert starts(VmWindows(SegmentTimes(lake)), "v", since, since + length) == wanted


def test_segments_of_other_times_and_vms_are_not_read(tmp_path: Path, monkeypatch) -> None:
    lake = Lake(tmp_path)
    early = lake.write_segment(table(("v", 1, 10)), A)
    late = lake.write_segment(table(("v", 2, 50)), A2)
    windows = VmWindows(SegmentTimes(lake))
    assert starts(windows, "v", 0, 100) == [10, 50]
    opened: list[str] = []
    kind = type(lake.objects)
    real = kind.open
    monkeypatch.setattr(kind, "open", lambda self, name: (opened.append(name), real(self, name))[1])
    assert starts(windows, "v", 40, 100) == [50]
    assert opened == [late[0].key], "the footer of the other is known"
    opened.clear()
    assert starts(windows, "v", 100, 200) == []
    assert opened == []
    assert starts(windows, "v", 0, 20) == [10] and opened == [early[0].key]


def test_failures_are_reported(tmp_path: Path, monkeypatch) -> None:
    lake = Lake(tmp_path)
    [segment] = lake.write_segment(table(("v", 1, 10)), A)
    with pytest.raises(SlowError, match=r"^took longer than -1 s$"):
        VmWindows(SegmentTimes(lake), deadline_s=-1).read("v", 0, 100, 10)
    windows = VmWindows(SegmentTimes(lake))
    listings = [[segment], []]
    monkeypatch.setattr(lake, "segments", lambda _day: listings.pop(0))
    segment.path.rename(tmp_path / "away")
    assert starts(windows, "v", 0, 100) == [], "merged elsewhere since it was listed: listed anew"
    assert listings == []
    (tmp_path / "away").rename(segment.path)
    monkeypatch.undo()
    segment.path.write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(LakeError, match="is damaged"):
        windows.read("v", 0, 100, 10)
