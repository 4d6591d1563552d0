"""What fails in the agent costs itself only: it is counted, and logged once per change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from agent.clock import Clock, SystemClock
from whitepanda.common import log
from whitepanda.common.errors import WhitepandaError

_log = log.get("agent")

_RETRY_MIN_S, _RETRY_MAX_S = 1.0, 60.0

#: As messages name it.
CLOUD_WHITE = "Cloud White"
#: The consequence, for people, when a part of the agent fails.
EFFECTS = {
    "tick": "nothing is measured in this tick; the next one is tried",
    CLOUD_WHITE: "its view of the VMs stays as it was; tried again at the next tick",
    "verdicts": "the verdicts on VMs stay as they were; tried again at the next tick",
    "host suspects": "work outside VMs is not suspected in this window; tried again with the next one",
    "analysis": "nothing is looked for in this window; tried again with the next one",
    "reports": "central gets no report of this window; tried again with the next one",
    "recommendations": "reports have none; tried again with the next one",
    "facts": "central does not get what changed of the VMs and the host; tried again with the next window",
    "host facts": "central has the host's facts as they were read last; tried again",
    "queueing for central": "central does not get this window; tried again with the next one",
    "saving baselines": "after a restart they are those saved last; tried again",
    "uplink": "windows wait in the spool; tried again",
    "coefficients": "those held before stay in use",
    "local API": "commands and `whitepanda top` get no answer; tried again",
    "metrics": "Prometheus gets no answer; tried again",
    "start of the analysis": "neither victims nor suspects are looked for until the agent is restarted",
    f"start of {CLOUD_WHITE}": "it has no view of the VMs until the agent is restarted",
}


class Failures:
    """The parts of the agent that fail now, by their key in `EFFECTS`. `on_sink_error` is called at each failure."""

    def __init__(self, on_sink_error: Callable[[], None], clock: Clock | None = None) -> None:
        self._on_sink_error = on_sink_error
        self._clock = clock or SystemClock()
        self._failing: dict[str, str] = {}

    def guard(self, what: str, *, but: tuple[type[Exception], ...] = ()) -> "Guard":
        """Return a context manager that counts and logs what fails inside; execution continues behind it.

        Exceptions of `but` are raised.
        """
        return Guard(self, what, but)

    @contextlib.asynccontextmanager
    async def kept_running(self, what: str, call: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run a sink's coroutine inside the block; when it fails, again after a back-off."""
        task = asyncio.create_task(self._keep_running(what, call))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _keep_running(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        wait_s = _RETRY_MIN_S
        while True:
            started_ns = self._clock.mono_ns()
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - as in Guard
                if self._clock.mono_ns() - started_ns > _RETRY_MAX_S * 1e9:  # it worked in between
                    self._failing.pop(what, None)
                    wait_s = _RETRY_MIN_S
                self.count(what, error)
            else:
                self.works(what)
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)

    def count(self, what: str, error: Exception) -> None:
        """Count a sink's failure and log it."""
        self._on_sink_error()
        self.note(what, error)

    def note(self, what: str, error: Exception) -> None:
        """Log a failure, unless it is the same as the last time."""
        text = repr(error)
        if self._failing.get(what) != text:
            self._failing[what] = text
            is_defect = not isinstance(error, OSError | WhitepandaError)  # a full disk needs one line only
            _log.error(
                f"{what} failed: {EFFECTS[what]}",
                error=text if is_defect else str(error),
                exc_info=error if is_defect else None,
            )

    def works(self, what: str) -> None:
        """Log that something works again, where it has failed."""
        if self._failing and self._failing.pop(what, ""):
            _log.info(what + " works again")


class Guard:
    """See `Failures.guard`. A class, because it is used several times a tick."""

    __slots__ = ("_but", "_failures", "_what")

    def __init__(self, failures: Failures, what: str, but: tuple[type[Exception], ...]) -> None:
        self._failures = failures
        self._what = what
        self._but = but

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._failures.works(self._what)
            return False
        if not isinstance(error, Exception) or isinstance(error, self._but):
            return False
        self._failures.count(self._what, error)
        return True
