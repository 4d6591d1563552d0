"""What fails in the agent costs itself only: it is counted, and logged once per change."""

from collections.abc import Callable
from types import TracebackType

from whitepanda.common import log
from whitepanda.common.errors import WhitepandaError

_log = log.get("agent")

#: As messages name it.
CLOUD_WHITE = "Cloud White"
#: What follows, for people, when a part of the agent fails.
EFFECTS = {
    "tick": "nothing is measured in this tick; the next one is tried",
    CLOUD_WHITE: "its view of the VMs stays as it was; tried again at the next tick",
    "verdicts": "the verdicts on VMs stay as they were; tried again at the next tick",
    "host suspects": "work outside VMs is not suspected in this window; tried again with the next one",
    "analysis": "nothing is looked for in this window; tried again with the next one",
    "reports": "central gets no report of this window; tried again with the next one",
    "recommendations": "reports have none; tried again with the next one",
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
    """The parts of the agent that fail now. What works and what fails go by one key each, of `EFFECTS`.

    Args:
        on_sink_error: called at each failure of a sink.

    """

    def __init__(self, on_sink_error: Callable[[], None]) -> None:
        self._on_sink_error = on_sink_error
        self._failing: dict[str, str] = {}

    def guard(self, what: str, *, but: tuple[type[Exception], ...] = ()) -> "Guard":
        """Return a context manager: what fails inside is counted and noted, and the code behind it goes on.

        Exceptions of `but` are raised.
        """
        return Guard(self, what, but)

    def count(self, what: str, error: Exception) -> None:
        """Count a sink's failure and note it."""
        self._on_sink_error()
        self.note(what, error)

    def note(self, what: str, error: Exception) -> None:
        """Log a failure, unless it is the same as the last time."""
        text = repr(error)
        if self._failing.get(what) != text:
            self._failing[what] = text
            is_defect = not isinstance(error, OSError | WhitepandaError)  # of a full disk one line says all
            _log.error(
                f"{what} failed: {EFFECTS[what]}",
                error=text if is_defect else str(error),
                exc_info=error if is_defect else None,
            )

    def works(self, what: str) -> None:
        """Log that something works again, where it has failed."""
        if self._failing and self._failing.pop(what, ""):
            _log.info(what + " works again")

    def forget(self, what: str) -> None:
        """Log the next failure, also where it is the same as the last one."""
        self._failing.pop(what, None)


class Guard:
    """See `Failures.guard`."""

    __slots__ = ("_but", "_failures", "_what")

    def __init__(self, failures: Failures, what: str, but: tuple[type[Exception], ...]) -> None:
        self._failures = failures
        self._what = what
        self._but = but

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._failures.works(self._what)
            return False
        if not isinstance(error, Exception) or isinstance(error, self._but):
            return False
        self._failures.count(self._what, error)
        return True
