import threading
from pathlib import Path

import pytest

from central.lake.lease import FencedError, Lease
from central.lake.objects import Folder


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def leases(root: Path, clock: Clock, *holders: str) -> list[Lease]:
    return [Lease(Folder(root), holder, 30.0, clock) for holder in holders]


def test_one_holder_at_a_time_and_tokens_grow(tmp_path: Path) -> None:
    one, two = leases(tmp_path, Clock(), "a", "b")
    assert (one.acquire(), one.token, two.acquire(), two.token) == (True, 1, False, 0)
    assert (one.acquire(), one.token, two.holder()) == (True, 1, "a")  # still its own
    one.release()
    assert (one.token, two.holder()) == (0, "")
    assert (two.acquire(), two.token) == (True, 2)
    assert one.acquire() is False
    one.release()  # nothing of another's
    two.check()


def test_a_silent_holder_is_overtaken_and_a_renewing_one_is_not(tmp_path: Path) -> None:
    clock = Clock()
    old, new = leases(tmp_path, clock, "a", "b")
    assert old.acquire()
    for _ in range(10):
        clock.now_s += 20.0
        old.check()  # renews, for more than a third of 30 s has passed
        assert new.acquire() is False
    clock.now_s += 29.0
    assert new.acquire() is False
    clock.now_s += 1.0
    assert (new.acquire(), new.token) == (True, 2)
    with pytest.raises(FencedError, match="token 1 of a was overtaken by 2; nothing of this build is published"):
        old.check()
    old.renew()  # a stalled write of its own file: changes nothing
    new.check()
    old.release()
    new.check()


def test_a_replica_that_starts_again_takes_over_from_itself(tmp_path: Path) -> None:
    before, after = leases(tmp_path, Clock(), "a", "a")
    assert (before.acquire(), after.acquire(), after.token) == (True, True, 2)
    with pytest.raises(FencedError):
        before.check()


def test_what_a_dead_process_held_is_released_and_anothers_is_not(tmp_path: Path) -> None:
    dead, parent, other = leases(tmp_path, Clock(), "a", "a", "b")
    parent.release_left()
    assert parent.holder() == ""
    assert dead.acquire()
    assert not other.acquire()
    parent.release_left()
    assert (parent.holder(), parent.token, other.acquire()) == ("", 0, True)
    parent.release_left()
    other.check()


def test_of_two_that_try_at_once_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = leases(tmp_path, Clock(), "a", "b")
    create = Folder.create

    def race(self: Folder, name: str, data: bytes) -> None:
        monkeypatch.undo()
        assert two.acquire()
        create(self, name, data)

    monkeypatch.setattr(Folder, "create", race)
    assert (one.acquire(), two.token) == (False, 1)


def test_a_damaged_lease_runs_out_like_a_silent_one(tmp_path: Path) -> None:
    clock = Clock()
    one, two = leases(tmp_path, clock, "a", "b")
    assert one.acquire()
    (tmp_path / "lease/000000000001.json").write_text("{")
    assert two.acquire() is False
    clock.now_s = 30.0
    assert (two.acquire(), two.token) == (True, 2)


def test_a_watcher_outwaits_a_dead_holder_by_that_ones_time(tmp_path: Path) -> None:
    clock, reported = Clock(), list[tuple[str, float]]()
    dead = Lease(Folder(tmp_path), "a", 90.0, clock)
    [watcher] = leases(tmp_path, clock, "cli")
    assert dead.acquire()

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    assert watcher.outwait(lambda *words: reported.append(words), sleep) is True
    assert (reported, clock.now_s, watcher.token) == ([("a", 90.0)], 90.0, 2)
    assert watcher.outwait(lambda *words: reported.append(words), sleep) is True, "its own"
    watcher.release()
    assert dead.outwait(lambda *words: reported.append(words), sleep) is True
    assert (len(reported), clock.now_s) == (1, 90.0), "what is free is not waited for"


def test_a_watcher_gives_up_once_the_holder_renews_and_takes_what_is_released(tmp_path: Path) -> None:
    clock = Clock()
    holder, watcher = leases(tmp_path, clock, "a", "cli")
    assert holder.acquire()
    steps = [lambda: None, holder.renew]
    assert watcher.outwait(lambda *_: None, lambda _: steps.pop(0)()) is False
    assert (steps, watcher.token) == ([], 0)
    [watcher] = leases(tmp_path, clock, "cli")
    assert watcher.outwait(lambda *_: None, lambda _: holder.release()) is True


def test_old_tokens_go(tmp_path: Path) -> None:
    [one] = leases(tmp_path, Clock(), "a")
    for _ in range(9):
        assert one.acquire()
        one.release()
    assert sorted(int(path.stem) for path in (tmp_path / "lease").iterdir()) == [5, 6, 7, 8, 9]


def test_days_computed_beside_each_other_renew_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    (lease,) = leases(tmp_path, clock, "a")
    assert lease.acquire()
    clock.now_s += 20.0
    written = 0
    other = threading.Thread(target=lease.check)

    def write(self: Lease, _holding: object) -> None:
        nonlocal written
        written += 1
        if written == 1:
            other.start()
            other.join(0.3)  # the other one has to wait for this one

    monkeypatch.setattr(Lease, "_write", write)
    lease.check()
    other.join()
    assert written == 1
