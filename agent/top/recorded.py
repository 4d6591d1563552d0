"""A recorded host as the agent would have shown it: the same pipeline and analysis, the same messages."""

import os
from pathlib import Path

import msgspec

from agent.antagonists.coefficients import CoefficientStore
from agent.antagonists.decide_victims import Decisions
from agent.antagonists.host_analysis import HostAnalysis
from agent.api.messages import explanation_message, vms_message
from agent.api.state import AgentState, Names
from agent.clock import SystemClock
from agent.config import AgentConfig, AgentSection, AnalysisSection, CloudWhiteSection
from agent.recording.playback import Playback, cloud_white_of, read_errors
from agent.sampling.scheduler import TickSchedule
from agent.top.columns import METRICS
from agent.top.model import HISTORY, Frame
from whitepanda.common.errors import InputError
from whitepanda.v1 import host_pb2

_TAIL_BYTES = 1 << 20
_TICK_LINE = b'{"tick":'


class _Moment(msgspec.Struct, frozen=True):
    """When a tick was."""

    mono_ns: int


class _TickClock(SystemClock):
    """Stands at the last tick that was read."""

    mono = unix = 0

    def mono_ns(self) -> int:
        return self.mono

    def unix_ns(self) -> int:
        return self.unix


class RecordedHost:
    """A recording, tick by tick, read forwards only; `close` closes the file.

    A line that is wrong is left out and noted in `trouble`. See `Playback` for `config` and errors.
    """

    grows = False
    origin_ns = 0
    span_s = 0.0

    def __init__(self, file: Path, config: AgentConfig | None = None) -> None:
        self._file, self._config = file, config
        self._playback = Playback(file, config)
        self._ticks = self._playback.ticks()
        #: Seconds from one tick to the next.
        self.tick_s = self._playback.tick_s
        #: How long before a moment what `top` shows of its past begins.
        self.history_s = HISTORY * self.tick_s
        #: Seconds from the first tick to the last; None: not known.
        self.length_s = length_s(file)
        self._clock = _TickClock()
        section = config.cloud_white if config else CloudWhiteSection()
        self._cloud_white = cloud_white_of(section)
        # No coefficients are recorded: as an agent that central has not sent any.
        self._analysis = HostAnalysis(config.analysis if config else AnalysisSection(), "", CoefficientStore(None))
        self._decisions = Decisions(config or AgentConfig(agent=AgentSection()), self._cloud_white, self._analysis)
        self._state = AgentState(
            names=Names(file.name, "", "", 0, 0),
            clock=self._clock,
            pipeline=self._playback.pipeline,
            schedule=TickSchedule(1, 0),
            analysis=self._analysis,
            cloud_white=self._cloud_white,
            decisions=self._decisions,
        )
        self._first_ns: int | None = None
        #: What was wrong with the file so far; "" nothing.
        self.trouble = ""

    @property
    def begun(self) -> bool:
        """Whether a tick has been read."""
        return self._first_ns is not None

    @property
    def at_s(self) -> float:
        """Seconds since the first tick."""
        return 0.0 if self._first_ns is None else (self._clock.mono - self._first_ns) / 1e9

    def seek(self, to_s: float) -> tuple[float, bool]:
        """Go to a place before a moment: to the beginning, if it is behind. Returns the moment, and whether it was."""
        is_back = to_s < self.at_s
        if is_back:
            self.close()
            RecordedHost.__init__(self, self._file, self._config)
        return to_s, is_back

    def advance(self) -> bool:
        """Go to the next tick; return False at the end, which changes nothing."""
        while True:
            try:
                found = next(self._ticks, None)
            except InputError as error:
                if isinstance(error.__cause__, OSError):  # the file cannot be read: it would fail forever
                    raise
                self.trouble = str(error)
                self._ticks = self._playback.ticks()  # continues behind the wrong line
                continue
            break
        if found is None:
            self.trouble = self._playback.cut_off or self.trouble
            return False
        tick, windows = found
        self._clock.mono, self._clock.unix = tick.mono_ns, tick.unix_ns
        if self._first_ns is None:
            self._first_ns = tick.mono_ns
        pipeline = self._playback.pipeline
        if windows:
            self._analysis.observe(windows, tick.unix_ns)
        if self._cloud_white is not None:
            try:
                self._cloud_white.tick(pipeline.table, pipeline.host_rates, tick.mono_ns, tick.unix_ns)
            except Exception as error:  # noqa: BLE001 - what fails costs verdicts, as in the agent, and no frame
                self.trouble = f"the search for victims failed: {error!r}"
        self._decisions.tick(pipeline.table, tick.mono_ns, tick.unix_ns)
        self._decisions.events.take()
        return True

    def frame(self) -> Frame:
        """Return the host at this tick."""
        return Frame(vms_message(self._state, METRICS), self._state.host())

    def explain(self, uuid: str) -> host_pb2.VmExplanation | None:
        """Return all about a VM at this tick; None if it does not exist."""
        return explanation_message(self._state, uuid)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._playback.close()


def length_s(file: Path) -> float | None:
    """Return the seconds from a recording's first tick to its last; None: unknown. InputError: cannot be read."""
    with read_errors(file), file.open("rb") as stream:
        first = next((line for line in stream if line.startswith(_TICK_LINE)), b"")
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        lines = stream.read().splitlines()
    last = next((line for line in reversed(lines) if line.startswith(_TICK_LINE) and line.endswith(b"}}")), b"")
    try:
        ends = [msgspec.json.decode(line, type=dict[str, _Moment])["tick"].mono_ns for line in (first, last)]
    except ValueError:
        return None
    return (ends[1] - ends[0]) / 1e9
