"""Plays a recording, or a host's history, to the live view, in a thread: play, pause, wind, seek, speed."""

import threading
import time
from collections import deque
from typing import Protocol

from agent.top.feed import Came, Gone, Position, Tell
from agent.top.model import HISTORY, Frame
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.v1 import host_pb2

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_TELL_S = 0.1  # ticks that are due closer to each other are shown together
_PROGRESS_S = 0.25
_GAP_S = 30.0  # a longer time without ticks is not waited for
_STOP_WAIT_S = 10.0
_RETRY_S = 1.0


class PlayedHost(Protocol):
    """What can be played: `agent.top.recorded.RecordedHost`, `agent.top.past_host.PastHost`.

    `at_s` is where it is, in seconds from its beginning, `tick_s` how far the next moment is, `history_s` how long
    before a moment its past is wanted. `grows`: it may go on behind its end. `trouble`: a note for people.
    """

    history_s: float
    grows: bool
    trouble: str
    origin_ns: int

    @property
    def tick_s(self) -> float:
        """How far the next moment is."""

    @property
    def length_s(self) -> float | None:
        """From the beginning to the end; None: not known."""

    @property
    def span_s(self) -> float:
        """What its values are of; 0: ticks of a recording."""

    @property
    def begun(self) -> bool:
        """Whether it is at a moment."""

    @property
    def at_s(self) -> float:
        """Where it is."""

    def advance(self) -> bool:
        """Go to the next moment; False: there is none."""

    def seek(self, to_s: float) -> tuple[float, bool]:
        """Go to before a moment; return where it is, and whether what was shown before is of another time."""

    def frame(self) -> Frame:
        """Return the host now."""

    def explain(self, uuid: str) -> host_pb2.VmExplanation | None:
        """Return all about a VM now; None: it does not exist."""

    def close(self) -> None:
        """End."""


class Player:
    """A host of the past as a feed. It begins at `at_s`."""

    def __init__(self, host: PlayedHost, at_s: float = 0.0, *, playing: bool = True) -> None:
        self._host = host
        self._condition = threading.Condition()
        self._stopping = False
        self._playing = playing
        self._speed = 1.0
        self._target_s: float | None = at_s
        self._steps = 0  # moments to go forward, or back
        self._places: deque[float] = deque(maxlen=HISTORY)  # where it was since it was wound, this moment last
        self._asked = False
        self._anew = False
        self._wanted: str | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._anchor = (0.0, 0.0)  # when, and where in the recording, it began to play

    # --- what keys do; from any thread ---

    def start(self, tell: Tell) -> None:
        """Begin to play."""
        self._thread = threading.Thread(target=self._run, args=(tell,), name="top-player", daemon=True)
        self._thread.start()

    def want(self, uuid: str | None) -> None:
        """Explain this VM now and with each later tick."""
        with self._condition:
            self._wanted, self._asked = uuid, True
            self._condition.notify()

    def stop(self) -> None:
        """End, and close the file."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)
        else:
            self._host.close()

    def toggle(self) -> None:
        """Pause, or play on; at the end from the beginning."""
        with self._condition:
            if self._ended and not self._playing and not self._host.grows:
                self._target_s = 0.0
            self._playing, self._asked = not self._playing, True
            self._anchor_here()
            self._condition.notify()

    def wind(self, by_s: float) -> None:
        """Go forward, or back; keys that follow each other add up."""
        with self._condition:
            at_s = self._host.at_s if self._target_s is None else self._target_s
            self._target_s = min(max(0.0, at_s + by_s), self._end_s)
            self._condition.notify()

    def step(self, by: int) -> None:
        """Pause, and go this many moments forward, or back; keys that follow each other add up."""
        with self._condition:
            self._steps, self._playing = self._steps + by, False
            self._condition.notify()

    def seek(self, share: float) -> None:
        """Go to a share of the whole; without a known length nowhere."""
        with self._condition:
            if self._host.length_s is not None:
                self._target_s = min(max(0.0, share), 1.0) * self._host.length_s
                self._condition.notify()

    def change_speed(self, step: int) -> None:
        """Take the next faster speed, or the next slower."""
        with self._condition:
            at = min(max(0, SPEEDS.index(self._speed) + step), len(SPEEDS) - 1)
            self._speed, self._asked = SPEEDS[at], True
            self._anchor_here()
            self._condition.notify()

    @property
    def _end_s(self) -> float:
        return float("inf") if self._host.length_s is None else self._host.length_s

    # --- the thread ---

    def _run(self, tell: Tell) -> None:
        try:
            while True:
                with self._condition:
                    # Until the next tick, or a key.
                    wait_s = max(_TELL_S, -self._due_s() / self._speed) if self._playing else None
                    self._condition.wait_for(self._has_work, wait_s)
                    if self._stopping:
                        return
                    target_s = self._target()
                    asked, self._asked = self._asked, False
                try:
                    self._go(target_s, tell, asked=asked)
                except UnavailableError as error:
                    if not self._host.grows:
                        raise
                    tell(Gone(str(error)))  # an agent that starts again answers later
                    with self._condition:
                        if self._target_s is None:  # what was not shown is, from where it was to go
                            self._target_s = self._host.at_s if target_s is None else target_s
                        self._condition.wait_for(lambda: self._stopping, _RETRY_S)
        except (InputError, UnavailableError) as error:  # the file has gone
            tell(Gone(str(error)))
        except Exception as error:  # noqa: BLE001 - if the thread died silently the view would stand still
            tell(Gone(f"cannot play it: {error!r}; please report this"))
        finally:
            self._host.close()

    def _target(self) -> float | None:
        """Return where to go, None: nowhere. Back by moments is to one of those that were shown."""
        if self._steps < 0 and self._target_s is None:
            if self._places:
                self._target_s = self._places[max(0, len(self._places) - 1 + self._steps)]
            self._steps = 0
        return self._target_s

    def _go(self, target_s: float | None, tell: Tell, *, asked: bool) -> None:
        if target_s is not None:
            self._wind_to(target_s, tell)
        elif self._steps > 0:
            self._step(tell)
        elif asked:
            self._tell((), tell)
        else:
            self._play(tell)

    def _has_work(self) -> bool:
        return self._stopping or self._asked or self._steps != 0 or self._target_s is not None

    def _advance(self) -> bool:
        """Go to the next moment; at the end it is paused."""
        if self._host.advance():
            self._ended = False
            self._places.append(self._host.at_s)
            return True
        self._ended, self._playing = True, False
        return False

    def _step(self, tell: Tell) -> None:
        """Go forward by the moments that were asked for."""
        with self._condition:
            steps = max(0, self._steps)
            self._steps -= steps
        frames: deque[Frame] = deque(maxlen=HISTORY)
        for _ in range(steps):
            if self._stopping or not self._advance():
                break
            frames.append(self._host.frame())
        self._anchor_here()
        self._tell(tuple(frames), tell)

    def _play(self, tell: Tell) -> None:
        """Read the ticks that are due by now."""
        frames: deque[Frame] = deque(maxlen=HISTORY)
        until = time.monotonic() + _PROGRESS_S
        while self._due_s() >= 0 and not self._has_work() and time.monotonic() < until:
            at_s, tick_s = self._host.at_s, self._host.tick_s
            if not self._advance():
                break
            frames.append(self._host.frame())
            if self._host.at_s - at_s > tick_s + _GAP_S:
                self._anchor_here()  # nobody waits for what was not measured
        if time.monotonic() >= until:
            self._anchor_here()  # this machine is slower than the speed: do not catch up
        if frames or self._ended:
            self._tell(tuple(frames), tell)

    def _due_s(self) -> float:
        """Seconds since which the next tick is due, taking it to be one tick after the last."""
        began_s, from_s = self._anchor
        return (time.monotonic() - began_s) * self._speed - (self._host.at_s - from_s) - self._host.tick_s

    def _wind_to(self, target_s: float, tell: Tell) -> None:
        """Read up to a moment; the minute before it is shown as history."""
        host, asked_s = self._host, target_s
        target_s, is_anew = host.seek(asked_s)
        if is_anew:
            self._ended, self._anew = False, True
            self._places.clear()
        frames: deque[Frame] = deque(maxlen=HISTORY)
        shown_s = time.monotonic()
        since_s = target_s - host.history_s
        while not host.begun or host.at_s < target_s:
            if self._stopping or self._target_s != asked_s:
                return  # another key has come
            if not self._advance():
                break
            if host.at_s >= since_s:
                frames.append(host.frame())
            if time.monotonic() - shown_s > _PROGRESS_S:
                tell(Came(position=self._position(seeking=True)))
                shown_s = time.monotonic()
        with self._condition:
            if self._target_s == asked_s:
                self._target_s = None
        self._anchor_here()
        self._tell(tuple(frames), tell)

    def _anchor_here(self) -> None:
        self._anchor = (time.monotonic(), self._host.at_s)

    def _tell(self, frames: tuple[Frame, ...], tell: Tell) -> None:
        wanted = self._wanted
        found = self._host.explain(wanted) if wanted else None
        anew, self._anew = self._anew, False
        tell(Came(frames, found, anew, self._position()))

    def _position(self, *, seeking: bool = False) -> Position:
        host = self._host
        kind = (host.trouble, host.origin_ns, host.span_s)
        return Position(host.at_s, host.length_s, self._playing, self._speed, self._ended, seeking, *kind)
