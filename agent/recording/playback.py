"""Recordings through the agent's pipeline: it computes what the agent did, or would have done.

No clocks and no threads: a recording has exactly the inputs of each tick (`agent.sampling.pipeline.Inputs`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.clock import SystemClock
from agent.config import AgentConfig, AgentSection, CloudWhiteSection
from agent.recording.format import Header, Reader, RecordedTick
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.sampling.windows import CpiWindow
from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    from agent.detection.cloud_white import CloudWhite

_TICK = "agent.tick_s"
#: Settings that the pipeline depends on, besides the job rules.
_SETTINGS = (
    _TICK,
    "agent.window_s",
    "agent.min_activity_cores",
    "sources.perf.min_running_ratio",
    "sources.libvirt.disk_poll_s",
    "sources.qemu.disk_poll_s",
    "sources.cgroup.numa_poll_s",
)


@contextlib.contextmanager
def read_errors(file: Path) -> Iterator[None]:
    """Turn errors of reading a file into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def cloud_white_of(section: CloudWhiteSection) -> CloudWhite | None:
    """Make the host's own analysis; None: it is off."""
    if section.detector == "off":
        return None
    from agent.detection.cloud_white import CloudWhite  # noqa: PLC0415 - needs numpy; `record` and traces do not
    from agent.detection.degradation_models import load  # noqa: PLC0415 - as above

    return CloudWhite(section, load(section.models))


def header_of(config: AgentConfig) -> Header:
    """Make the first line of a recording under `config`."""
    settings = {key: float(operator.attrgetter(key)(config)) for key in _SETTINGS}
    return Header(tick_s=config.agent.tick_s, settings=settings)


class Playback(contextlib.AbstractContextManager["Playback"]):
    """One recorded host through the agent's pipeline. A context manager, which closes the file.

    `config` has job rules, windows and limits; without it those of the recording apply, and no job rules. InputError:
    the file cannot be read or is not a recording.
    """

    def __init__(self, file: Path, config: AgentConfig | None = None) -> None:
        with read_errors(file):
            self._reader = Reader(file)
        self._file = file
        #: Seconds from one recorded tick to the next.
        self.tick_s = self._reader.header.tick_s
        self.pipeline = Pipeline(_config(self._reader.header, config), Slots((), SystemClock()))

    @property
    def cut_off(self) -> str:
        """Says so if the file's last line is cut off; else "". Known at the end."""
        return self._reader.cut_off

    def ticks(self) -> Iterator[tuple[RecordedTick, list[CpiWindow]]]:
        """Yield each tick and the windows that end at it; `pipeline` is then at that tick.

        InputError: a wrong line, or the file cannot be read.
        """
        while True:
            with read_errors(self._file):
                tick = self._reader.next()
            if tick is None:
                return
            yield tick, self.pipeline.process(Inputs(tick.mono_ns, tick.samples, tick.sources))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._reader.close()


def _config(header: Header, config: AgentConfig | None) -> AgentConfig:
    """Return `config` with the recording's tick, or else the recording's settings."""
    given = {_TICK: header.tick_s} if config else {**header.settings, _TICK: header.tick_s}
    known = config or AgentConfig(agent=AgentSection())
    for key in given.keys() & set(_SETTINGS):
        known = _set(known, key.split("."), given[key])
    return known


def _set(section: AgentConfig, path: list[str], value: float) -> AgentConfig:
    name, *rest = path
    inner = _set(getattr(section, name), rest, value) if rest else value
    return msgspec.structs.replace(section, **{name: inner})
