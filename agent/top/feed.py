"""The live view's source of frames: this host's agent, polled every second by a separate thread."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from agent.api.client import Client, connect
from agent.top.columns import METRICS
from agent.top.model import Frame
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.v1 import host_pb2

PERIOD_S = 1.0
_STOP_WAIT_S = 6.0  # a question that is under way ends by its deadline


class Position(NamedTuple):
    """Where a recording, or a host's history, is being shown: seconds from its beginning; `length_s` None: not known.

    `seeking`: it is on its way to another place. `note`: what is wrong, "" nothing. `origin_ns`: the Unix time of the
    beginning, 0 for a recording; `span_s`: what the values are of, of a history only.
    """

    at_s: float
    length_s: float | None
    playing: bool
    speed: float
    ended: bool = False
    seeking: bool = False
    note: str = ""
    origin_ns: int = 0
    span_s: float = 0.0


class Came(NamedTuple):
    """An update: frames of the host, oldest first, and the explanation of the requested VM at the last frame.

    `anew`: drop all earlier frames, because playback moved to another time. `position`: of recordings only.
    """

    frames: tuple[Frame, ...] = ()
    explanation: host_pb2.VmExplanation | None = None
    anew: bool = False
    position: Position | None = None


class Gone(NamedTuple):
    """The agent did not answer; the feed retries. `why` is one line with the remedy."""

    why: str


Tell = Callable[[Came | Gone], object]


class Feed(Protocol):
    """A source of updates, with its own thread."""

    def start(self, tell: Tell) -> None:
        """Begin; `tell` is called in the feed's thread."""

    def want(self, uuid: str | None) -> None:
        """Explain this VM now and with each later frame; None: none."""

    def stop(self) -> None:
        """Stop; returns after the last update."""


@runtime_checkable
class Tape(Feed, Protocol):
    """A feed of a recording: it can be paused and wound."""

    def toggle(self) -> None:
        """Pause, or play on; at the end from the beginning."""

    def wind(self, by_s: float) -> None:
        """Go forward, or back."""

    def step(self, by: int) -> None:
        """Pause, and go this many moments forward, or back."""

    def seek(self, share: float) -> None:
        """Go to a share of the whole, from 0 to 1."""

    def change_speed(self, step: int) -> None:
        """Take the next faster speed, or the next slower."""


class LiveFeed:
    """Polls the agent at a unix socket on an absolute schedule, and retries while it is unreachable."""

    def __init__(self, socket: Path, period_s: float = PERIOD_S) -> None:
        self._socket = socket
        self._period_s = period_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._wanted: str | None = None
        self._thread: threading.Thread | None = None

    def start(self, tell: Tell) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._run, args=(tell,), name="top-feed", daemon=True)
        self._thread.start()

    def want(self, uuid: str | None) -> None:
        """Explain this VM now and with each later frame."""
        self._wanted = uuid
        if uuid is not None:
            self._wake.set()

    def stop(self) -> None:
        """End, waiting for the question that is under way."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)

    def _run(self, tell: Tell) -> None:
        while not self._stop.is_set():
            try:
                # Use a new channel for each try, because gRPC's own reconnects back off.
                with connect(self._socket) as client:
                    self._ask_on(client, tell)
            except (UnavailableError, InputError) as error:
                if not self._stop.is_set():
                    tell(Gone(str(error)))
            self._wake.clear()
            if not self._stop.is_set():
                self._pause(time.monotonic() + self._period_s)

    def _ask_on(self, client: Client, tell: Tell) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            self._wake.clear()
            frame = Frame(client.vms(METRICS), client.status())
            found = self._explained(client, self._wanted)
            if self._stop.is_set():
                return
            tell(Came((frame,), found))
            # Ticks missed while the agent was slow are skipped.
            due_s = max(due_s + self._period_s, time.monotonic())
            while self._pause(due_s):
                self._wake.clear()
                if found := self._explained(client, self._wanted):
                    tell(Came(explanation=found))

    def _pause(self, until_s: float) -> bool:
        """Wait until then; return True early if an explanation is requested."""
        self._wake.wait(max(0.0, until_s - time.monotonic()))
        return self._wake.is_set() and not self._stop.is_set() and time.monotonic() < until_s

    @staticmethod
    def _explained(client: Client, uuid: str | None) -> host_pb2.VmExplanation | None:
        if uuid is None:
            return None
        try:
            return client.explain(uuid)
        except InputError:  # it has gone from this host meanwhile
            return None
