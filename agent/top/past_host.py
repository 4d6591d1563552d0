"""A host's past as the player shows it: moments of its history, asked for as they are needed."""

import time
from collections import deque
from collections.abc import Callable

from agent.history.times import shown_ns
from agent.top.columns import METRICS
from agent.top.model import HISTORY, Frame
from whitepanda.common.errors import InputError
from whitepanda.v1 import host_pb2

_AHEAD = 30  # moments that are asked for at once
_GAP_NS = 30 * 10**9
_S = 10**9


class PastHost:
    """The history of a host, moment by moment. `ask` is `agent.api.client.Client.moments`, or reads the files.

    Raises what `ask` raises; at the start too.
    """

    #: How long before a moment its own history may begin: whatever is asked for belongs to it.
    history_s = float("inf")
    grows = True

    def __init__(self, ask: Callable[[host_pb2.GetMomentsRequest], host_pb2.GetMomentsResponse]) -> None:
        self._ask = ask
        self._coming: deque[host_pb2.Moment] = deque()
        self._now: host_pb2.Moment | None = None
        answer = self._take(ask(host_pb2.GetMomentsRequest(at_unix_ns=time.time_ns(), metrics=sorted(METRICS))))
        #: The Unix time from which `at_s` counts.
        self.origin_ns = answer.first_unix_ns
        self.trouble = ""

    @property
    def begun(self) -> bool:
        """Whether a moment is shown."""
        return self._now is not None

    @property
    def at_s(self) -> float:
        """Seconds since the first moment that was kept as this began."""
        return 0.0 if self._now is None else (self._now.unix_ns - self.origin_ns) / _S

    @property
    def length_s(self) -> float:
        """Seconds from the first moment to the last one that is known."""
        return (self._last_ns - self.origin_ns) / _S

    @property
    def tick_s(self) -> float:
        """Seconds from this moment to the next one, as far as is known; a gap counts as one moment."""
        if self._now is None:
            return 1.0
        step_ns = self._coming[0].unix_ns - self._now.unix_ns if self._coming else 0
        return step_ns / _S if 0 < step_ns < _GAP_NS else self._now.span_ms / 1e3

    @property
    def span_s(self) -> float:
        """What the values are of, in seconds."""
        return 0.0 if self._now is None else self._now.span_ms / 1e3

    def advance(self) -> bool:
        """Go to the next moment; return False if there is none yet."""
        if not self._coming:
            self._fetch(self._now.unix_ns if self._now else self.origin_ns, after=_AHEAD)
        if not self._coming:
            return False
        before, self._now = self._now, self._coming.popleft()
        self._note(before)
        return True

    def seek(self, to_s: float) -> tuple[float, bool]:
        """Go to shortly before a moment. Returns where `advance` gets to it, and that all before is of another time."""
        at_ns, here = self.origin_ns + round(to_s * _S), self._now
        self._now = None
        self._fetch(at_ns, before=HISTORY, after=1)
        moments = list(self._coming)
        at = max((place for place, one in enumerate(moments) if one.unix_ns <= at_ns), default=0)
        if here is not None and moments[at].unix_ns == here.unix_ns and at_ns > here.unix_ns and at + 1 < len(moments):
            at += 1  # forward over a gap
        self._coming = deque(moments[: at + 1])
        return (moments[at].unix_ns - self.origin_ns) / _S, True

    def frame(self) -> Frame:
        """Return the host at this moment."""
        assert self._now is not None  # noqa: S101 - `advance` came first
        return Frame(self._now.vms, self._now.status)

    def explain(self, uuid: str) -> host_pb2.VmExplanation | None:
        """Return all that was kept about a VM; None if it did not exist."""
        if self._now is None:
            return None
        try:
            answer = self._ask(host_pb2.GetMomentsRequest(at_unix_ns=self._now.unix_ns, explain=uuid))
        except InputError:
            return None
        return answer.moments[-1].explanation

    def close(self) -> None:
        """Nothing is open."""

    def _fetch(self, at_ns: int, *, before: int = 0, after: int = 0) -> None:
        request = host_pb2.GetMomentsRequest(at_unix_ns=at_ns, before=before, after=after, metrics=sorted(METRICS))
        answer = self._take(self._ask(request))
        here_ns = self._now.unix_ns if self._now is not None else 0
        self._coming = deque(one for one in answer.moments if one.unix_ns > here_ns)

    def _take(self, answer: host_pb2.GetMomentsResponse) -> host_pb2.GetMomentsResponse:
        self._last_ns, self._problem = answer.last_unix_ns, next(iter(answer.problems), "")
        return answer

    def _note(self, before: host_pb2.Moment | None) -> None:
        """Say what is special about this moment."""
        now = self._now
        if now is None:
            return
        if now.clock_stepped:
            self.trouble = "the clock was set here"
        elif before is not None and now.unix_ns - before.unix_ns > max(_GAP_NS, 2 * now.span_ms * 10**6):
            self.trouble = f"nothing is kept from {shown_ns(before.unix_ns)} to here"
        else:
            self.trouble = self._problem
