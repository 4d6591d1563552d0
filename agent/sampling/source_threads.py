"""Each source in a daemon thread with a slot for its latest sample: a tick never waits for one that hangs.

The sources sample one after the other: in parallel, passing the interpreter's lock was a quarter of the agent's cost.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.clock import Clock
from agent.config import Mode
from collector.base import Reason, Source, SourceError, SourceSample
from whitepanda.common import log
from whitepanda.common.texts import printable

_log = log.get("sources")

#: A source that could not be opened is tried again this often.
REOPEN_AFTER_NS = 30 * 1_000_000_000
#: For all sources to close: resctrl and pqos remove their groups, which takes seconds on a busy host. With the spool's
#: last write it fits into the unit's TimeoutStopSec.
STOP_WAIT_S = 8.0
_DEFAULT_DEADLINE_NS = 2 * 1_000_000_000
_QUICK_NS = 20_000_000  # sources that take longer come last, so that the quick ones are read at the tick


SourceState = Literal["off", "available", "unavailable", "failed", "stuck"]


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source's status. `detail`: why it is not available, and the remedy. Age 0: it never sampled."""

    name: str
    state: SourceState
    detail: str = ""
    age_ns: int = 0
    duration_ns: int = 0
    samples: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source and how it is wanted.

    A sampling longer than `deadline_ns` makes the source stuck. `source` None: it is off, or could not be
    made, as `broken` says.
    """

    name: str
    mode: Mode
    source: Source | None
    deadline_ns: int = _DEFAULT_DEADLINE_NS
    broken: SourceError | None = None


class Slot:
    """One source's thread, latest sample and state. What the tick calls holds a lock for a moment at most."""

    def __init__(self, plan: SourcePlan, clock: Clock, on_idle: Callable[[], object] = lambda: None) -> None:
        self.plan = plan
        self.name = plan.name
        #: The latest sample, however old.
        self.sample: SourceSample | None = None
        #: Whether the source was probed and opened (or failed to be) at least once.
        self.tried = plan.source is None or plan.mode == "off"
        self._source = None if plan.mode == "off" else plan.source
        self._on_idle = on_idle
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._busy_since_ns: int | None = None
        self._state: SourceState = "unavailable"
        self._detail = "not tried yet"
        self._reason = Reason.VM_STARTING
        self.duration_ns = self._samples = self._failures = 0  # of the last sample; how many there were
        self._logged = False  # whether its state was
        self._next_try_ns = 0  # when it is to be opened again; 0: it is open
        self._thread: threading.Thread | None = None
        if plan.broken is not None:
            self._reason, self._detail = plan.broken.reason, str(plan.broken)
        elif self._source is None:
            self._state, self._reason = "off", Reason.SOURCE_OFF
            self._detail = f"switched off; sources.{plan.name}.mode in the configuration"

    def start(self) -> None:
        """Start the thread; it probes and opens the source immediately."""
        if self._source is None:
            return
        self._busy_since_ns = self._clock.mono_ns()
        self._thread = threading.Thread(target=self._run, args=(self._source,), name=f"source-{self.name}", daemon=True)
        self._thread.start()

    def kick(self) -> bool:
        """Ask for a sample; return whether the thread was woken. A source past its deadline is stuck."""
        if self._thread is None:
            return False
        now_ns = self._clock.mono_ns()
        with self._lock:
            busy_since_ns = self._busy_since_ns
            if busy_since_ns is None:
                if now_ns < self._next_try_ns:
                    return False  # not there: to wake its thread for nothing costs more than this does
                self._busy_since_ns = now_ns
        if busy_since_ns is None:
            self._wake.set()
            return True
        if now_ns - busy_since_ns > self.plan.deadline_ns:
            seconds = self.plan.deadline_ns / 1e9
            self._become("stuck", Reason.STUCK, f"no answer within its deadline of {seconds:g} s; still waiting for it")
        return False

    @property
    def is_busy(self) -> bool:
        """Whether it is at a sample."""
        return self._busy_since_ns is not None

    @property
    def trouble(self) -> Reason | None:
        """Why there is no new sample, or None where the source works."""
        return None if self._state == "available" else self._reason

    def view(self) -> SourceView:
        """Return the source's status now."""
        with self._lock:
            age_ns = max(0, self._clock.mono_ns() - self.sample.mono_ns) if self.sample else 0
            return SourceView(
                self.name, self._state, self._detail, age_ns, self.duration_ns, self._samples, self._failures
            )

    def stop(self) -> None:
        """Tell the thread to close the source and end; does not wait."""
        self._stop = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end. False: it hangs, and as a daemon thread dies with the process."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _become(self, state: SourceState, reason: Reason, detail: str, failures: int = 0) -> None:
        """Change the state. Only a change is logged, so that a source that fails each second says so once."""
        detail = printable(detail)  # it may have a path or a name in it, of any text
        with self._lock:
            changed = (state, reason) != (self._state, self._reason) or not self._logged
            self._logged = True
            self._state, self._reason, self._detail = state, reason, detail
            self._failures += failures
        if changed:
            tell = _log.info if state == "available" else _log.warning
            tell("source " + state, source=self.name, **({"detail": detail} if detail else {}))

    def _run(self, source: Source) -> None:
        try:
            opened = self._open(source)
            self._idle()
            while self._wait():
                if opened or (opened := self._open(source)):
                    self._take(source)
                self._idle()
                self._on_idle()
        finally:
            self.tried = True
            try:
                source.close()
            except Exception as error:  # noqa: BLE001 - a source's bug must not spoil the end
                _log.warning("source did not close cleanly", source=self.name, error=repr(error))

    def _wait(self) -> bool:
        self._wake.wait()
        self._wake.clear()
        return not self._stop

    def _idle(self) -> None:
        self.tried = True
        with self._lock:
            self._busy_since_ns = None

    def _open(self, source: Source) -> bool:
        try:
            probe = source.probe()
            if probe.available:
                source.open()
        except Exception as error:  # noqa: BLE001 - a source's bug costs that source, not the agent
            self._fail("unavailable", error)
        else:
            if probe.available:
                self._become("available", Reason.UNSPECIFIED, probe.detail)
                self._next_try_ns = 0
                return True
            self._become("unavailable", probe.reason or Reason.SOURCE_FAILED, probe.detail)
        self._next_try_ns = self._clock.mono_ns() + REOPEN_AFTER_NS
        return False

    def _take(self, source: Source) -> None:
        started_ns = self._clock.mono_ns()
        try:
            sample = source.sample()
        except Exception as error:  # noqa: BLE001 - as in _open
            self._fail("failed", error, failures=1)
            return
        with self._lock:
            self.sample = sample
            self.duration_ns = self._clock.mono_ns() - started_ns
            self._samples += 1
        if self._state != "available":
            self._become("available", Reason.UNSPECIFIED, "")

    def _fail(self, state: SourceState, error: Exception, failures: int = 0) -> None:
        if isinstance(error, SourceError):
            self._become(state, error.reason or Reason.SOURCE_FAILED, str(error), failures)
        else:
            self._become(state, Reason.SOURCE_FAILED, f"{self.name}: {error!r}; please report this", failures)


class Slots:
    """All sources of the host, in their order of precedence."""

    def __init__(self, plans: Sequence[SourcePlan], clock: Clock) -> None:
        self._slots = tuple(Slot(plan, clock, self._kick_next) for plan in plans)
        self._by_name = {slot.name: slot for slot in self._slots}
        self._waiting: deque[Slot] = deque()

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def start(self) -> None:
        """Start all threads."""
        for slot in self._slots:
            slot.start()

    def kick(self) -> None:
        """Ask all sources for a sample together; waits for none."""
        self._waiting.clear()
        for slot in self._slots:
            slot.kick()

    def kick_in_turn(self) -> None:
        """Ask every source for a sample, each when the one before it has its own; waits for none.

        Quick ones come first. `kick_waiting` is to be called later: a source that hangs must not keep those behind it.
        """
        self.kick_waiting()  # if nobody has: a whole tick is more than patience
        free = []
        for slot in self._slots:
            if slot.is_busy:
                slot.kick()  # which notices when it is stuck
            else:
                free.append(slot)
        free.sort(key=lambda slot: slot.duration_ns > _QUICK_NS)
        self._waiting.extend(free)
        self._kick_next()

    def kick_waiting(self) -> None:
        """Ask all that still wait for their turn."""
        while self._kick_next():
            pass

    def _kick_next(self) -> bool:
        """Ask the next that waits and can be asked; any thread may call this. Returns whether there was one."""
        while True:
            try:
                slot = self._waiting.popleft()
            except IndexError:
                return False
            if slot.kick():
                return True

    def samples(self) -> list[SourceSample]:
        """Return the latest sample of each source that has one."""
        return [sample for slot in self._slots if (sample := slot.sample) is not None]

    def trouble(self, name: str) -> Reason | None:
        """Why the source `name` has nothing new to say; None where it works."""
        slot = self._by_name.get(name)
        return Reason.SOURCE_OFF if slot is None else slot.trouble

    def views(self) -> tuple[SourceView, ...]:
        """Return every source's status."""
        return tuple(slot.view() for slot in self._slots)

    def stop(self, timeout_s: float, now_s: Callable[[], float]) -> list[str]:
        """Close all sources, waiting `timeout_s` for all together. Returns the names of those that hang."""
        for slot in self._slots:
            slot.stop()
        until_s = now_s() + timeout_s
        return [slot.name for slot in self._slots if not slot.join(until_s - now_s())]
