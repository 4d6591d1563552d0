import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.sampling.windows import CpiWindow
from agent.uplink.disk_queue import Spool
from agent.uplink.memory_queue import Acknowledged
from agent.uplink.queue import QueueCounts
from whitepanda.common.errors import UnavailableError

ROOT = Path(__file__).resolve().parents[4]
CAP = 64 << 20


def windows(tag, count=1):
    """Windows whose start says which data they are."""
    return [CpiWindow(f"vm{i}", "e", "n", "job", False, tag, 10**10, 0.5, cpi=1.5) for i in range(count)]


def opened(folder, *, max_bytes=CAP, boot_id="boot-1", warnings=None):
    warn = warnings.append if warnings is not None else None
    return Spool(folder / "spool.db", max_bytes=max_bytes, boot_id=boot_id, warn=warn)


def everything(spool):
    spool.begin_stream()
    found = []
    while batches := spool.fetch(50):
        found += batches
    return found


def content(spool):
    """What each (spool_id, sequence) means."""
    return {batch.key: batch.message.start_unix_ns[0] for batch in everything(spool)}


@pytest.fixture
def spool(tmp_path):
    spool = opened(tmp_path)
    yield spool
    spool.close()


def test_batches_come_out_as_they_went_in(spool):
    assert [spool.append(windows(tag, 3)) for tag in (5, 6)] == [1, 2]
    batches = everything(spool)
    assert [b.key for b in batches] == [(spool.spool_id, 1), (spool.spool_id, 2)]
    assert [list(b.message.start_unix_ns) for b in batches] == [[5], [6]]
    assert [b.rows for b in batches] == [3, 3]
    counts = spool.counts()
    assert (counts.batches, counts.rows, counts.dropped_batches) == (2, 6, 0)


def test_many_windows_become_several_batches(spool):
    assert spool.append(windows(1, 25), max_rows=10) == 3
    assert [b.rows for b in everything(spool)] == [10, 10, 5]


def test_a_batch_keeps_to_the_largest_message(spool):
    spool.append(windows(1, 100), max_batch_bytes=2000)
    batches = everything(spool)
    assert sum(b.rows for b in batches) == 100
    assert max(b.message.ByteSize() for b in batches) <= 2000
    assert [w for b in batches for w in (b.message.tasks[i].vm for i in b.message.task_index)] == [
        f"vm{i}" for i in range(100)
    ]


def test_nothing_to_append_is_nothing(spool):
    assert spool.append([]) == 0
    assert spool.counts().batches == 0


def test_live_before_backlog_and_the_last_session_before_earlier_ones(tmp_path):
    old = opened(tmp_path, boot_id="a")
    first = [(old.spool_id, old.append(windows(1))), (old.spool_id, old.append(windows(2)))]
    old.close()
    spool = opened(tmp_path, boot_id="b")
    backlog = [(spool.spool_id, spool.append(windows(tag))) for tag in (3, 4)]
    spool.begin_stream()
    live = [(spool.spool_id, spool.append(windows(5)))]
    batches = spool.fetch(2)
    assert [b.key for b in batches] == [*live, backlog[0]]
    assert [b.message.backlog for b in batches] == [False, True]
    later = (spool.spool_id, spool.append(windows(6)))
    batches = spool.fetch(50)
    assert [b.key for b in batches] == [later, backlog[1], *first]
    assert spool.fetch(50) == []
    spool.begin_stream()
    assert len(spool.fetch(50)) == 6  # what was not acknowledged comes again
    spool.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 25), st.integers(0, 2**64 - 1) | st.integers(0, 25)), max_size=3), max_size=5
    )
)
def test_acknowledging_removes_just_that(tmp_path_factory, acknowledgements):
    spool = opened(tmp_path_factory.mktemp("s"))
    left = {spool.append(windows(tag)) for tag in range(20)}
    for ranges in acknowledgements:
        gone = {s for s in left if any(first <= s <= last for first, last in ranges)}
        assert spool.acknowledge(spool.spool_id, ranges) == len(gone)
        left -= gone
        assert spool.acknowledge("another spool", ranges) == 0
    assert {sequence for _, sequence in content(spool)} == left
    counts = spool.counts()
    assert (counts.batches, counts.rows) == (len(left), len(left))
    if not left:
        assert counts.bytes == 0
    spool.close()


def test_a_restart_within_a_boot_continues_numbering(tmp_path):
    spool = opened(tmp_path)
    spool.append(windows(1))
    spool.append(windows(2))
    spool.acknowledge(spool.spool_id, [(1, 2)])
    name = spool.spool_id
    spool.close()
    spool = opened(tmp_path)
    assert spool.spool_id == name
    assert spool.append(windows(3)) == 3  # not 1, though the spool is empty
    spool.close()


@pytest.mark.parametrize("boot_id", ["boot-2", ""])
def test_after_another_boot_numbers_begin_again_in_another_spool(tmp_path, boot_id):
    spool = opened(tmp_path, boot_id="" if boot_id == "" else "boot-1")
    spool.append(windows(1))
    old = spool.spool_id
    spool.close()
    spool = opened(tmp_path, boot_id=boot_id)
    assert spool.spool_id != old
    assert spool.append(windows(2)) == 1
    assert content(spool) == {(old, 1): 1, (spool.spool_id, 1): 2}
    spool.close()


def lose_the_tail(tmp_path, boot_after):
    """A power cut: central has batches 1 to 5, the disk has 1 to 3. What do the numbers mean afterwards?"""
    folder = tmp_path / "a"
    spool = opened(folder)
    for tag in (1, 2, 3):
        spool.append(windows(tag))
    on_disk = tmp_path / "disk"
    shutil.copytree(folder, on_disk)
    for tag in (4, 5):
        spool.append(windows(tag))
    central_has = content(spool)
    spool.close()
    after = opened(on_disk, boot_id=boot_after)
    for tag in (6, 7):
        after.append(windows(tag))
    agent_has = content(after)
    after.close()
    return [key for key in central_has.keys() & agent_has.keys() if central_has[key] != agent_has[key]]


def test_a_power_cut_gives_no_number_another_meaning(tmp_path):
    assert lose_the_tail(tmp_path, "boot-2") == []


def test_the_power_cut_test_would_notice(tmp_path):
    # The mutant: a spool that continues numbering after a boot as if nothing could have been lost.
    assert len(lose_the_tail(tmp_path, "boot-1")) == 2


CHILD = """
    import sys
    from pathlib import Path
    from agent.uplink.disk_queue import Spool
    from agent.sampling.windows import CpiWindow
    spool = Spool(Path(sys.argv[1]), max_bytes=1 << 26, boot_id="boot-1")
    tag = int(sys.argv[2])
    while True:
        tag += 1
        window = CpiWindow("vm", "e", "n", "job", False, tag, 10**10, 0.5, cpi=1.5)
        print(spool.spool_id, spool.append([window] * (1 + tag % 50)), tag, flush=True)
"""


@pytest.mark.long
def test_killed_in_the_middle_of_appends_nothing_is_lost_and_no_number_reused(tmp_path):
    path = [str(ROOT), str(ROOT / "proto")]
    meaning, tag = {}, 0
    for round_ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), tmp_path / "spool.db", str(tag)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        )
        lines = []
        for line in child.stdout:
            lines.append(line.split())
            if len(lines) > 20 + 13 * round_:
                child.send_signal(signal.SIGKILL)
                break
        lines += [line.split() for line in child.stdout if line.endswith("\n")]
        child.wait()
        child.stdout.close()
        for spool_id, sequence, value in lines:
            key = (spool_id, int(sequence))
            assert key not in meaning
            meaning[key] = tag = int(value)
        tag += 1000  # an append whose line was not printed any more has a tag below
    spool = opened(tmp_path)
    found = content(spool)
    spool.close()
    assert len({spool_id for spool_id, _ in found}) == 1
    assert meaning.items() <= found.items()
    assert len(found) - len(meaning) <= 6  # at most one per kill was queued and not told


def test_at_the_cap_the_oldest_go_and_are_counted_for_ever(tmp_path):
    spool = opened(tmp_path, max_bytes=20_000)
    for tag in range(1, 101):
        spool.append(windows(tag, 10))
    counts = spool.counts()
    assert counts.bytes <= 20_000
    assert counts.batches + counts.dropped_batches == 100
    assert counts.rows + counts.dropped_rows == 1000
    assert sorted(content(spool).values()) == list(range(101 - counts.batches, 101))
    spool.close()
    spool = opened(tmp_path, max_bytes=20_000)
    assert spool.counts() == counts
    spool.close()


def test_the_file_stays_near_its_cap_and_shrinks_when_central_is_back(tmp_path):
    spool = opened(tmp_path, max_bytes=2 << 20)
    for tag in range(600):
        spool.append(windows(tag, 200))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < (2 << 20) * 1.3 + (9 << 20)  # payload, pages, and at most 8 MiB of log
    assert (tmp_path / "spool.db").stat().st_size < (2 << 20) * 1.5
    spool.acknowledge(spool.spool_id, [(1, 600)])
    spool.close()
    assert (tmp_path / "spool.db").stat().st_size < 100_000


def test_a_batch_larger_than_the_cap_is_dropped(tmp_path):
    spool = opened(tmp_path, max_bytes=300)
    spool.append(windows(1, 100))
    assert (spool.counts().batches, spool.counts().dropped_rows) == (0, 100)
    spool.close()


def test_a_second_agent_is_reported_that_the_spool_is_in_use(tmp_path, spool):
    with pytest.raises(UnavailableError, match="in use; is another whitepanda agent running"):
        opened(tmp_path)
    assert spool.append(windows(1)) == 1


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UnavailableError, match=r"^agent\.state_dir .*/file cannot be used: it is not a folder; set it to"
    ):
        opened(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_the_kernel_refuses_is_one_clear_error_too():
    with pytest.raises(UnavailableError) as caught:
        opened(Path("/proc/foo"))
    assert str(caught.value) == (
        "agent.state_dir /proc/foo cannot be used: No such file or directory;"
        " set it to a folder that the agent can make or write"
    )


def test_files_are_the_agents_alone(tmp_path, spool):
    spool.append(windows(1))
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_broken_file_is_moved_aside(tmp_path):
    (tmp_path / "spool.db").write_bytes(b"this is not a database, but long enough to be looked at" * 100)
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    assert spool.append(windows(1)) == 1
    assert len(warnings) == 1
    assert "moved to" in warnings[0]
    assert (tmp_path / "spool.db.corrupt").read_bytes().startswith(b"this is not a database")
    spool.close()


def test_a_file_that_breaks_while_in_use_costs_its_batches_only(tmp_path):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    for tag in range(50):
        spool.append(windows(tag, 200))
    old = spool.spool_id
    spool.close()
    with (tmp_path / "spool.db").open("r+b") as file:  # the pages behind the schema's
        size = file.seek(0, os.SEEK_END)
        file.seek(4 * 4096)
        file.write(b"\xa5" * (size - 4 * 4096))
    spool = opened(tmp_path, warnings=warnings)
    everything(spool)
    sequence = spool.append(windows(51))
    assert spool.spool_id != old
    assert (sequence, content(spool)) == (1, {(spool.spool_id, 1): 51})
    assert any("moved to" in warning for warning in warnings)
    assert spool.counts().batches == 1
    spool.close()


def test_a_batch_damaged_on_disk_is_dropped_and_the_others_go(tmp_path):
    spool = opened(tmp_path)
    for tag in (1, 2, 3):
        spool.append(windows(tag, 2))
    spool.close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        (payload,) = db.execute("SELECT payload FROM batches WHERE sequence = 2").fetchone()
        damaged = payload[:-1] + bytes([payload[-1] ^ 1])
        db.execute("UPDATE batches SET payload = ? WHERE sequence = 2", (damaged,))
    db.close()
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    assert sorted(content(spool).values()) == [1, 3]
    assert len(warnings) == 1
    counts = spool.counts()
    assert (counts.batches, counts.dropped_batches, counts.dropped_rows) == (2, 1, 2)
    spool.close()


def full(spool, pages=8):
    """SQLite's own way to a full disk: no page more than there are, or so."""
    spool._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def room(spool):
    spool._db.execute("PRAGMA max_page_count = 100000").fetchall()


WAITS = "until it can be written again new batches wait in memory only (the newest 8 MiB)"


def test_on_a_full_disk_new_batches_wait_in_memory_and_it_is_reported_once(tmp_path):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    spool.begin_stream()
    full(spool, 30)
    for tag in range(200):
        spool.append(windows(tag, 10))
    counts = spool.counts()
    assert (counts.batches, counts.rows, counts.dropped_batches) == (200, 2000, 0)
    assert warnings == [f"{tmp_path}/spool.db: the disk is full; {WAITS}"]
    found = []
    while batches := spool.fetch(7):
        found += batches
    assert sorted(b.message.start_unix_ns[0] for b in found) == list(range(200))
    assert {b.key[0] for b in found} == {spool.spool_id, spool._memory.spool_id}
    assert not any(b.message.backlog for b in found)
    for batch in found:
        assert spool.acknowledge(batch.key[0], [(batch.key[1], batch.key[1])]) == 1
    assert spool.counts() == QueueCounts()
    spool.close()


def test_what_waits_in_memory_moves_to_the_disk_under_its_number(tmp_path):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    spool.append(windows(1))
    full(spool)
    assert [spool.append(windows(tag, 500)) for tag in (2, 3, 4)] == [0, 0, 0]
    spool.begin_stream()
    sent = {b.key: b.message.start_unix_ns[0] for b in spool.fetch(2)}
    assert sorted(sent.values()) == [2, 3]  # in flight: what is there before the disk's backlog
    room(spool)
    with capture_logs() as logs:
        assert spool.append(windows(5)) > 0
    assert [entry["event"] for entry in logs] == ["the spool can be written again"]
    more = {b.key: b.message.start_unix_ns[0] for b in spool.fetch(50)}
    assert sorted(more.values()) == [1, 4, 5]  # none twice
    meaning = sent | more
    assert len(meaning) == 5
    spool.close()
    spool = opened(tmp_path)
    assert content(spool) == meaning  # the end has moved those in flight too
    spool.append(windows(6, 3))
    assert len(content(spool)) == 6
    spool.close()
    assert len(warnings) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_what_cannot_be_encoded_leaves_nothing_of_its_submission_behind(tmp_path, is_full):
    spool = opened(tmp_path, warnings=[])
    if is_full:
        full(spool, 1)
    good, bad = windows(1, 500), [replace(windows(1)[0], name="\udcff")]
    with pytest.raises(UnicodeEncodeError):
        spool.append([*good, *bad], max_rows=500)
    assert spool.counts().batches == 0
    assert (spool.append(good, max_rows=500) == 0) is is_full  # then they wait in memory
    assert [(batch.rows, list(batch.message.start_unix_ns)) for batch in everything(spool)] == [(500, [1])]
    spool.close()


def test_memory_keeps_the_newest_and_counts_the_rest(tmp_path):
    spool = opened(tmp_path, max_bytes=20_000, warnings=[])
    full(spool, 1)
    for tag in range(100):
        spool.append(windows(tag, 200))
    counts = spool.counts()
    assert spool._memory.bytes <= 20_000
    assert counts.dropped_batches == 100 - counts.batches > 0
    assert counts.dropped_rows == 20_000 - counts.rows
    assert sorted(content(spool).values()) == list(range(100 - counts.batches, 100))
    spool.close()


def test_a_stream_that_begins_while_the_disk_fails_gets_all_once_it_is_back(tmp_path):
    spool = opened(tmp_path, warnings=[])
    spool.append(windows(1))
    spool._db.close()
    spool._db = Broken()
    spool.begin_stream()
    assert spool.fetch(5) == []
    spool.append(windows(2))
    assert sorted(b.message.start_unix_ns[0] for b in spool.fetch(5)) == [1, 2]
    assert spool.fetch(5) == []
    spool.close()


def test_a_disk_that_fails_within_a_stream_sends_nothing_twice(tmp_path):
    spool = opened(tmp_path, warnings=[])
    spool.append(windows(1))
    spool.begin_stream()
    spool.append(windows(2))
    assert len(spool.fetch(5)) == 2
    spool._db.close()
    spool._db = Broken()
    spool.append(windows(3))
    assert [b.message.start_unix_ns[0] for b in spool.fetch(5)] == [3]
    spool.close()


class Full:
    """A connection whose disk takes no write while `until` is not set."""

    def __init__(self, db):
        self.db, self.is_full = db, True

    def execute(self, query, *arguments):
        if self.is_full and query.startswith(("DELETE", "INSERT")):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self.db.execute(query, *arguments)

    def __getattr__(self, name):
        return getattr(self.db, name)


@pytest.mark.parametrize("again", ["append", "acknowledge", "begin_stream", "close"])
def test_a_failed_acknowledgement_is_deleted_as_soon_as_it_works(tmp_path, again):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    for tag in (1, 2, 3):
        spool.append(windows(tag))
    spool._db = disk = Full(spool._db)
    assert spool.acknowledge(spool.spool_id, [(1, 2**63)]) == 0
    assert everything(spool) == []  # central has them: no new stream sends them again
    assert len(warnings) == 1
    disk.is_full = False
    if again == "append":
        assert spool.append(windows(4)) == 4
        assert list(content(spool).values()) == [4]  # which was not acknowledged by that wide range
    elif again == "acknowledge":
        assert spool.acknowledge("other", [(1, 1)]) == 3
    elif again == "begin_stream":
        spool.begin_stream()
    spool.close()
    spool = opened(tmp_path)
    assert list(content(spool).values()) == ([4] if again == "append" else [])
    spool.close()


def test_the_reserve_is_given_up_and_taken_back(tmp_path):
    spool = opened(tmp_path, warnings=[])
    reserve = tmp_path / "spool.db.reserve"
    assert reserve.stat().st_blocks * 512 >= 1 << 20
    spool.append(windows(1))
    full(spool)
    spool.append(windows(2, 1000))
    assert not reserve.exists()
    room(spool)
    spool.append(windows(3))
    assert reserve.exists()
    spool.close()


def test_ranges_to_delete_are_merged_and_bounded():
    gone = Acknowledged()
    gone.add("a", [(5, 6), (1, 2)])
    gone.add("a", [(3, 3)])
    gone.add("b", [])
    assert list(gone) == [("a", 1, 3), ("a", 5, 6)]
    assert (("a", 2) in gone, ("a", 4) in gone, ("b", 2) in gone) == (True, False, False)
    gone.add("a", [(number, number) for number in range(10, 100_000, 2)])
    assert len(list(gone)) == 10_000
    gone.clear()
    assert not gone


class Broken:
    """A connection whose disk fails from now on."""

    def __init__(self, message="disk I/O error", code=sqlite3.SQLITE_IOERR_WRITE):
        self.error = sqlite3.OperationalError(message)
        self.error.sqlite_errorcode = code

    def execute(self, *_):
        raise self.error

    def close(self):
        pass


def test_after_an_io_error_the_file_is_opened_again_under_a_new_name(tmp_path):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    spool.append(windows(1))
    old = spool.spool_id
    spool._db.close()
    spool._db = Broken()
    assert spool.append(windows(2)) == 1
    assert spool.spool_id != old
    assert content(spool) == {(old, 1): 1, (spool.spool_id, 1): 2}
    assert warnings == [f"{tmp_path}/spool.db: disk I/O error; {WAITS}"]
    spool.close()


def test_what_is_lost_with_a_broken_file_is_counted(tmp_path):
    warnings = []
    spool = opened(tmp_path, warnings=warnings)
    for tag in range(5):
        spool.append(windows(tag, 3))
    spool.begin_stream()
    old = spool.spool_id
    spool._db.close()
    spool._db = Broken("database disk image is malformed", sqlite3.SQLITE_CORRUPT)
    assert spool.append(windows(9)) == 1
    assert spool.spool_id != old
    assert [b.message.start_unix_ns[0] for b in spool.fetch(5)] == [9]  # in the same stream, as live
    counts = spool.counts()
    assert (counts.batches, counts.dropped_batches, counts.dropped_rows) == (1, 5, 15)
    spool.close()
    spool = opened(tmp_path)
    assert spool.counts().dropped_batches == 5
    spool.close()


@pytest.mark.parametrize("call", ["fetch", "acknowledge"])
def test_a_failing_disk_never_raises(tmp_path, call):
    spool = opened(tmp_path, warnings=[])
    spool.append(windows(1))
    spool._db.close()
    spool._db = Broken()
    assert (spool.fetch(5) if call == "fetch" else [spool.acknowledge(spool.spool_id, [(1, 1)])]) in ([], [0])
    assert spool.fetch(5) == []
    assert spool.append(windows(2)) == 1
    # What was acknowledged meanwhile is gone as soon as the disk is back.
    assert len(everything(spool)) == (2 if call == "fetch" else 1)
    spool.close()
    spool.close()
