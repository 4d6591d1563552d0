"""A host's past in `top`: the same player as of recordings, moments asked for as they are needed, a bar that seeks."""

import threading

import pytest

from agent.top.feed import Gone, Position
from agent.top.model import HISTORY, Model
from agent.top.past_host import PastHost
from agent.top.player import Player
from agent.top.seek_bar import drawn
from tests.unit.agent.top_fakes import S, Shown, frame
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.v1 import host_pb2

#: Windows of 10 s for an hour; a gap of an hour; then ticks of a second, ten minutes of them.
ORIGIN = 1_799_990_000 * S
WINDOWS = [ORIGIN + 10 * at * S for at in range(360)]
TICKS = [ORIGIN + (7200 + at) * S for at in range(600)]
TIMES = WINDOWS + TICKS


def moment(unix_ns):
    shown = frame()
    shown.vms.now_unix_ns = unix_ns
    is_window = unix_ns < TICKS[0]
    return host_pb2.Moment(
        unix_ns=unix_ns,
        span_ms=10_000 if is_window else 1000,
        is_window=is_window,
        vms=shown.vms,
        status=shown.status,
        explanation=host_pb2.VmExplanation(vm=shown.vms.vms[0]),
    )


class History:
    """What `History.moments` answers, of TIMES."""

    def __init__(self):
        self.asked = 0
        self.error = None

    def __call__(self, request):
        self.asked += 1
        if self.error:
            raise self.error
        at = max((place for place, one in enumerate(TIMES) if one <= request.at_unix_ns), default=0)
        found = TIMES[max(0, at - request.before) : at + 1 + request.after]
        answer = host_pb2.GetMomentsResponse(first_unix_ns=TIMES[0], last_unix_ns=TIMES[-1])
        answer.moments.extend(map(moment, found))
        return answer


class Updates:
    """What a player says, in a thread's stead."""

    def __init__(self, player):
        self.news, self.came, self.player, self.model = [], threading.Condition(), player, Model(is_recording=True)
        player.start(self.tell)

    def tell(self, news):
        with self.came:
            if not isinstance(news, Gone):
                if news.anew:
                    self.model.forget()
                self.model.take(news.frames)
            self.news.append(news)
            self.came.notify()

    def until(self, condition):
        with self.came:
            assert self.came.wait_for(lambda: self.news and condition(self.news[-1]), 20), self.news[-1:]
            return self.news[-1]

    def at(self, seconds):
        return self.until(lambda news: not isinstance(news, Gone) and news.position.at_s == seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.player.stop()


def test_it_stands_at_the_moment_and_keys_step():
    with Updates(Player(PastHost(History()), 1804.0, playing=False)) as told:
        first = told.at(1800.0)  # the window that had ended then
        assert (first.position.playing, first.position.span_s, first.position.origin_ns) == (False, 10.0, ORIGIN)
        assert first.position.length_s == 7799.0
        assert len(first.frames) == HISTORY
        told.player.wind(10)
        told.at(1810.0)
        told.player.wind(-60)
        told.at(1750.0)
        told.player.want(told.model.frame.vms.vms[0].uuid)
        assert told.until(lambda news: news.explanation).explanation.vm.uuid == told.model.frame.vms.vms[0].uuid
        told.player.seek(1.0)
        assert told.at(7799.0).position.span_s == 1.0
        told.player.seek(0.0)
        assert len(told.at(0.0).frames) == 1


def test_keys_step_moment_by_moment_and_pause():
    with Updates(Player(PastHost(History()), 1800.0)) as told:
        told.at(1800.0)
        told.player.step(-1)
        assert not told.at(1790.0).position.playing
        told.player.step(1)
        assert len(told.at(1800.0).frames) == 1
        told.player.step(-2)
        told.at(1780.0)
        told.player.wind(7202 - 1780)
        told.at(7202.0)
        for second in (7201.0, 7200.0, 3590.0, 3580.0):  # ticks, the gap, windows
            told.player.step(-1)
            told.at(second)
        for second in (3590.0, 7200.0, 7201.0):
            told.player.step(1)
            assert told.at(second).position.playing is False


def test_steps_end_at_both_ends():
    with Updates(Player(PastHost(History()), 10.0, playing=False)) as told:
        told.at(10.0)
        told.player.step(-5)
        told.at(0.0)
        told.player.step(-1)
        told.player.step(2)
        told.until(lambda news: news.position.at_s in (10.0, 20.0))
        told.player.seek(1.0)
        told.at(7799.0)
        told.player.step(1)
        assert told.until(lambda news: news.position.ended).position.at_s == 7799.0
        told.player.step(-1)
        assert not told.at(7798.0).position.ended


def test_keys_step_over_a_gap_and_it_is_told():
    with Updates(Player(PastHost(History()), 3590.0, playing=False)) as told:
        told.at(3590.0)
        told.player.wind(10)
        assert "nothing is kept from" in told.at(7200.0).position.note
        told.player.wind(1)
        assert told.at(7201.0).position.note == ""
        told.player.wind(-10)
        told.at(3590.0)


def test_it_plays_over_a_gap_without_waiting_for_it():
    history = History()
    with Updates(Player(PastHost(history), 3580.0)) as told:
        told.at(3580.0)
        for _ in range(6):
            told.player.change_speed(1)  # 64 times: a window in 0.16 s
        told.until(lambda news: news.position and news.position.at_s > 7260)
    assert history.asked < 20  # many moments at once


def test_at_the_end_it_waits_for_more():
    with Updates(Player(PastHost(History()), 7797.0)) as told:
        told.until(lambda news: news.position and news.position.ended)
        told.player.toggle()
        told.until(lambda news: news.position and news.position.ended and not news.position.playing)
        assert told.news[-1].position.at_s == 7799.0  # not from the beginning, which is days ago


def test_an_agent_that_goes_away_is_one_line_until_it_answers_again():
    history = History()
    with Updates(Player(PastHost(history), 100.0, playing=False)) as told:
        told.at(100.0)
        history.error = UnavailableError("no agent answers; start it")
        told.player.wind(10)
        assert told.until(lambda news: isinstance(news, Gone)).why == "no agent answers; start it"
        history.error = None
        told.at(110.0)
        history.error = UnavailableError("no agent answers; start it")
        told.player.want(told.model.frame.vms.vms[0].uuid)
        told.until(lambda news: isinstance(news, Gone))
        history.error = None
        found = told.until(lambda news: not isinstance(news, Gone) and news.explanation)
        assert (found.position.at_s, found.position.playing) == (110.0, False)
    history.error = UnavailableError("nothing is kept yet")
    with pytest.raises(UnavailableError, match="nothing is kept yet"):
        PastHost(history)


def test_of_a_vm_that_was_not_there_nothing_is_explained():
    history = History()
    host = PastHost(history)
    assert host.explain("u") is None
    assert host.advance()
    assert host.explain("u") is not None
    history.error = InputError("no VM had the name")
    assert host.explain("u") is None


def test_the_bar_shows_the_place():
    assert drawn(0.0, 10).plain == "●─────────"
    assert drawn(0.5, 11).plain == "━━━━━●─────"
    assert drawn(1.0, 10).plain == "━━━━━━━━━●"


async def test_comma_and_full_stop_step():
    player = Player(PastHost(History()), 7300.0, playing=False)
    async with Shown(player, size=(100, 30)) as top:
        await top.until(lambda: top.app._position and top.app._position.at_s == 7300.0)
        await top.pilot.press("comma")
        await top.until(lambda: top.app._position.at_s == 7299.0)
        await top.pilot.press("full_stop")
        await top.until(lambda: top.app._position.at_s == 7300.0)


async def test_the_bar_seeks_and_the_line_has_the_date():
    player = Player(PastHost(History()), 1800.0, playing=False)
    async with Shown(player, size=(100, 30)) as top:
        await top.until(lambda: "‖ paused" in top.text() and "values of 10 s" in top.text())
        assert any("━●─" in line for line in top.lines())
        await top.app.workers.wait_for_complete()
        await top.pilot.click("#seek", offset=(97, 0))
        await top.until(lambda: "values of 1 s" in top.text())
        assert any(line.strip().endswith("●") for line in top.lines())


def test_a_position_of_a_recording_has_no_date():
    assert Position(0.0, 6.0, playing=True, speed=1.0).origin_ns == 0
