import errno
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import RdtDomain, Reason
from collector.files import KeptFiles
from collector.resctrl.counters import add_up, make_domain, parse_value, unbroken
from collector.resctrl.group_reader import GroupReader
from collector.resctrl.threads import Threads, parse_groups
from collector.resctrl.tree import Place, Tree
from collector.resctrl.turns import Step, Turns

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0\n", 0),
        (b"48318382080\n", 48318382080),
        (b"Unavailable\n", Reason.RDT_UNAVAILABLE),
        (b"Unassigned\n", Reason.RDT_UNASSIGNED),
        (b"Error\n", Reason.RDT_UNAVAILABLE),
        (b"18446744073708863487\n", Reason.INVALID_VALUE),
        (b"-1\n", Reason.INVALID_VALUE),
        (b"1_0\n", Reason.INVALID_VALUE),
        (b"", Reason.INVALID_VALUE),
        (b"\xc2\xb2\n", Reason.INVALID_VALUE),
    ],
)
def test_values(text, value):
    assert parse_value(text) == value


@given(st.binary(max_size=80))
def test_any_text_is_a_value_or_a_reason(text):
    value = parse_value(text)
    assert isinstance(value, Reason) or 0 <= value < 1 << 63


@given(st.lists(st.integers(0, 1 << 64), min_size=2, max_size=20))
def test_whatever_a_counter_does_no_epoch_has_an_absurd_difference(values):
    last = None
    for value in values:
        word = parse_value(str(value).encode())
        now = {"00": make_domain((0, word, 0))}
        if last is not None and unbroken(last, now, S):
            one, other = last["00"].mbm_total_bytes, now["00"].mbm_total_bytes
            assert one is None or other is None or 0 <= other - one <= 10**12
        last = now


def test_the_one_reason_of_a_domain():
    assert make_domain((1, 2, Reason.NO_EVENT)) == RdtDomain(1, 2, None, Reason.NO_EVENT)
    assert make_domain((Reason.NO_EVENT, 2, Reason.RDT_UNASSIGNED)).reason is Reason.RDT_UNASSIGNED
    assert make_domain((1, Reason.RDT_UNAVAILABLE, Reason.RDT_UNASSIGNED)).reason is Reason.RDT_UNAVAILABLE
    assert make_domain((1, 2, 3), settling=True) == RdtDomain(None, 2, 3, Reason.VM_STARTING)
    assert make_domain((Reason.NO_EVENT, 2, 3), settling=True) == RdtDomain(None, 2, 3, Reason.NO_EVENT)


def test_sums_of_groups():
    one, other = RdtDomain(1, 2, 3), RdtDomain(10, None, 30, Reason.RDT_UNASSIGNED)
    assert add_up([{"00": one, "01": one}, {"00": other}]) == {
        "00": RdtDomain(11, None, 33, Reason.RDT_UNASSIGNED),
        "01": one,
    }
    assert add_up([]) == {}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"res:/\nmon:\n", Place("", "")),
        (b"res:/\nmon:mon0\n", Place("", "mon0")),
        (b"res:group0\nmon:\n", Place("group0", "")),
        (b"res:group0\nmon:mon1\n", Place("group0", "mon1")),
        (b"res:\nmon:\n", None),  # not mounted
        (b"", None),
    ],
)
def test_the_kernels_word_on_a_tasks_groups(text, place):
    assert parse_groups(text) == place


def test_names_of_places():
    assert [place.name for place in (Place(""), Place("a"), Place("", "m"), Place("a", "m"))] == ["/", "a", "m", "a/m"]
    assert Place("", "whitepanda-1").own
    assert not Place("whitepanda-1").own


def test_only_our_groups_are_removed(tmp_path):
    with pytest.raises(ValueError, match="not whitepanda's"):
        Tree(str(tmp_path)).remove(Place("", "theirs"))


def test_root_without_capabilities_makes_and_removes_groups(tmp_path, monkeypatch):
    groups = tmp_path / "gold/mon_groups"
    groups.mkdir(parents=True)
    groups.chmod(0o555)  # as kernfs has it
    real_mkdir, real_rmdir = os.mkdir, os.rmdir

    def checked(real):
        def call(path, *arguments, **more):
            if not groups.stat().st_mode & stat.S_IWUSR:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return real(path, *arguments, **more)

        return call

    monkeypatch.setattr(os, "mkdir", checked(real_mkdir))
    monkeypatch.setattr(os, "rmdir", checked(real_rmdir))
    place = Place("gold", "whitepanda-1")
    tree = Tree(str(tmp_path))
    tree.make(place)
    assert stat.S_IMODE(groups.stat().st_mode) == 0o755
    groups.chmod(0o555)
    tree.remove(place)
    tree.remove(place)
    assert list(groups.iterdir()) == []


def test_threads_of_a_real_process():
    code = """
import sys, threading
def wait(): sys.stdin.readline()
for line in iter(sys.stdin.readline, ""):
    if line == "more\\n":
        event = threading.Event()
        threading.Thread(target=event.wait, daemon=True).start()
        print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        threads = Threads(child.pid)
        assert threads.refresh()
        assert threads.tids == {child.pid}
        assert not threads.refresh()
        assert not threads.refresh(force=True)
        child.stdin.write("more\n")
        child.stdin.flush()
        assert child.stdout.readline() == "done\n"
        assert threads.refresh()
        assert len(threads.tids) == 2
        child.kill()
        child.wait()
        with pytest.raises(OSError, match=r"ended|No such"):
            threads.refresh(force=True)
        threads.close()
        threads.close()


def test_a_sampling_reads_the_link_count_only(monkeypatch):
    threads = Threads(os.getpid())
    threads.refresh()
    monkeypatch.setattr(os, "listdir", lambda fd: pytest.fail("listed without need"))
    assert not threads.refresh()
    threads.close()


# --- turns ---


def test_the_longest_waiting_follows_the_longest_holding():
    turns = Turns(10 * S)
    for uuid in "abcd":
        turns.want(uuid, 1)
    for uuid in "ab":
        assert turns.next(2, 0) == Step("", uuid)
        turns.granted(uuid, 0)
    assert turns.next(2, 9 * S) is None
    assert turns.next(2, 10 * S) == Step("a", "c")
    turns.released("a")
    turns.granted("c", 10 * S)
    assert turns.next(2, 10 * S) == Step("b", "d")
    turns.forget("b")
    turns.forget("d")
    assert turns.next(2, 10 * S) == Step("", "a")


def test_a_smaller_cap_takes_groups_away():
    turns = Turns(10 * S)
    for uuid in "ab":
        turns.want(uuid, 1)
        turns.granted(uuid, 0)
    assert turns.next(1, 1) == Step("a", "")
    turns.released("a")
    assert turns.next(1, 1) is None


def test_what_never_fits_does_not_stop_the_line():
    turns = Turns(10 * S)
    turns.want("wide", 3)
    turns.want("a", 1)
    assert turns.next(2, 0) == Step("", "a")
    turns.want("early", 1, first=True)
    assert turns.next(2, 0) == Step("", "early")


def test_back_off_doubles_and_ends():
    turns = Turns(10 * S)
    turns.want("a", 1)
    now = 0
    pauses = []
    for _ in range(8):
        turns.refused("a", now)
        start = now
        while turns.next(1, now) is None:
            now += S
        pauses.append((now - start) // S)
    assert pauses == [1, 2, 4, 8, 16, 32, 32, 32]
    turns.granted("a", now)
    turns.refused("a", now)
    assert turns.next(1, now + S) == Step("", "a")


def test_what_was_refused_reports_how_many_there_are():
    turns = Turns(10 * S)
    for uuid in "abc":
        turns.want(uuid, 1)
    turns.want("two", 2)
    for uuid in "ab":
        turns.granted(uuid, 0)
    turns.refused("c", 0, all_taken=True)
    assert turns.next(100, 9 * S) is None
    assert turns.next(100, 10 * S) == Step("a", "c")
    turns.released("a")
    turns.granted("c", 10 * S)
    # Two at once, of which one may have been free; what is held is never taken away for what was found out.
    turns.refused("two", 10 * S, all_taken=True)
    assert turns.next(100, 10 * S) == Step("b", "two")
    assert turns.next(100, 71 * S) == Step("", "two")  # looked for again
    turns.refused("two", 71 * S, all_taken=False)  # in limbo: that is another thing
    assert turns.next(100, 71 * S) is None
    assert turns.next(100, 72 * S) == Step("", "two")


def test_none_at_all_is_asked_for_now_and_then():
    turns = Turns(10 * S)
    turns.want("a", 1)
    turns.refused("a", 0, all_taken=True)
    assert turns.next(100, 0) is None
    assert turns.next(100, 1 * S) == Step("", "a")


@given(
    st.lists(st.sampled_from(["tick", "want", "forget", "refuse"]), max_size=80),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_never_more_than_the_cap_and_nobody_is_lost(actions, cap, random):
    turns = Turns(3 * S)
    wanted: dict[str, int] = {}
    now = 0
    for action in actions:
        now += S
        uuid = random.choice("abcdefg")
        if action == "want":
            wanted.setdefault(uuid, random.choice([1, 1, 2]))
            turns.want(uuid, wanted[uuid])
        elif action == "forget":
            turns.forget(uuid)
            wanted.pop(uuid, None)
        else:
            while step := turns.next(cap, now):
                if step.grant and action == "refuse":
                    turns.refused(step.grant, now, all_taken=random.random() < 0.5)
                    continue
                if step.release:
                    turns.released(step.release)
                if step.grant:
                    turns.granted(step.grant, now)
        assert sum(wanted[uuid] for uuid in turns.holders) <= max(cap, 0)
        assert set(turns.holders) | set(turns._waiting) == wanted.keys()
        assert not set(turns.holders) & set(turns._waiting)


def test_values_of_the_fixture_trees(machine):
    m = machine("zen3-8-domains")
    features = m.kernel.monitoring().features
    reader = GroupReader(str(m.kernel.root), features, KeptFiles(99))
    domains = reader.read(m.kernel.domains(), 0)
    reader.close()
    assert domains["00"] == RdtDomain(1000, 2000, 1500)
    assert domains["02"] == RdtDomain(3000, None, None, Reason.RDT_UNAVAILABLE)
    assert domains["11"] == RdtDomain(8000, 16000, 12000)
    assert "mbm_total_bytes_config" in features
