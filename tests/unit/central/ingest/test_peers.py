"""What one certificate makes central do, it waits for; others do not."""

import pytest

from central.ingest.peers import Peers

ONE, OTHER = (frozenset({"h1"}), ""), (frozenset({"h2", "h3"}), "")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_what_took_long_is_waited_for_four_times_as_long() -> None:
    clock = Clock()
    peers = Peers(clock_s=clock)
    one, other = peers.enter(ONE), peers.enter(OTHER)
    one.owe_for(0.025)
    assert one.wait_s() == pytest.approx(0)  # a tenth of a second is free
    one.owe_for(0.1)
    assert one.wait_s() == pytest.approx(0.4)
    assert other.wait_s() == 0
    clock.now_s += 0.4
    assert one.wait_s() == pytest.approx(0)


def test_short_messages_add_up() -> None:
    clock = Clock()
    peer = Peers(clock_s=clock).enter(ONE)
    for _ in range(1000):
        peer.owe_for(0.001)
        clock.now_s += 0.001
    assert peer.wait_s() == pytest.approx(2.9)


def test_reports_are_waited_for_by_their_bytes() -> None:
    peer = Peers(clock_s=Clock()).enter(ONE)
    peer.owe_for(0.0, 16 << 10)
    assert peer.wait_s() == 0
    peer.owe_for(0.0, 1 << 20)
    assert peer.wait_s() == pytest.approx(3.9)


def test_five_hellos_come_at_once_and_then_one_in_20_ms() -> None:
    peer = Peers(clock_s=Clock()).enter(ONE)
    waits = []
    for _ in range(7):
        peer.owe_for_hello()
        waits.append(peer.wait_s())
    assert waits == pytest.approx([0, 0, 0, 0, 0, 0.02, 0.04])


def test_a_new_stream_does_not_wipe_out_what_is_owed() -> None:
    clock = Clock()
    peers = Peers(clock_s=clock)
    peer = peers.enter(ONE)
    peer.owe_for(1.0)
    peers.leave(peer)
    again = peers.enter(ONE)
    assert again.wait_s() == pytest.approx(3.9)
    clock.now_s += 3.95
    peers.leave(again)
    assert len(peers._peers) == 1  # what may be owed without waiting adds up, too
    clock.now_s += 0.05
    peers.leave(peers.enter(ONE))
    assert len(peers._peers) == 0


def test_a_certificate_has_a_stream_for_each_name_and_eight() -> None:
    peers = Peers(clock_s=Clock())
    assert (peers.enter(ONE).allowed, peers.enter(OTHER).allowed) == (9, 10)
    assert peers.enter(ONE).open == 2


def test_so_many_streams_wait_to_be_refused() -> None:
    peers = Peers(clock_s=Clock())
    opened = [peers.enter(ONE).may_wait for _ in range(300)]
    assert opened == [True] * 265 + [False] * 35


def test_a_revoked_key_does_not_take_the_places_of_its_successor() -> None:
    peers = Peers({"12ab"}, clock_s=Clock())
    names, _ = ONE
    for _ in range(300):
        assert peers.enter((names, "12ab")).revoked == "12ab"
    peers.enter((names, "12ab")).owe(60.0)
    successor = peers.enter((names, "34cd"))
    assert successor.open == 1 and successor.wait_s() == 0 and not successor.revoked


def test_what_a_key_had_open_and_owed_before_it_was_revoked_is_left_behind() -> None:
    revoked: set[str] = set()
    peers = Peers(revoked, clock_s=Clock())
    names, _ = ONE
    opened = [peers.enter((names, "12ab")) for _ in range(300)]
    opened[0].owe(60.0)
    assert peers.enter((names, "34cd")) is opened[0]
    revoked.add("12ab")
    successor = peers.enter((names, "34cd"))
    assert successor.open == 1 and successor.wait_s() == 0
    for _ in range(301):
        peers.leave(opened[0])
    assert peers.enter((names, "34cd")) is successor and len(peers._peers) == 1
