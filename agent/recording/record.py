"""Recording of this host: the raw samples of its sources, on the agent's schedule."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent.api.client import answers
from agent.clock import SystemClock
from agent.config import AgentConfig
from agent.recording.format import RecordedTick, Recorder
from agent.sampling.pipeline import Inputs, take
from agent.sampling.scheduler import TickSchedule, first_due_ns
from agent.sampling.source_threads import STOP_WAIT_S, Slots, SourceView
from agent.sampling.startup import check_required, make_plans, wait_for
from collector.base import Reason
from whitepanda.common.errors import UnavailableError

_START_WAIT_S = 10.0  # for the sources to be probed and opened
_LAST_WAIT_S = 2.0  # for the last tick's samples
#: Sources that change something on the host: two programs would remove each other's groups.
_CHANGING = ("resctrl", "pqos")
T = TypeVar("T")


def beside_agent(config: AgentConfig) -> tuple[AgentConfig, tuple[str, ...]]:
    """Return the configuration to record with, and the sources that are off in it because a running agent uses them."""
    sources = config.sources
    left = tuple(name for name in _CHANGING if getattr(sources, name).mode != "off")
    if not left or not answers(Path(config.agent.socket)):
        return config, ()
    off = {name: msgspec.structs.replace(getattr(sources, name), mode="off") for name in left}
    return msgspec.structs.replace(config, sources=msgspec.structs.replace(sources, **off)), left


async def until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; SIGINT and SIGTERM cancel it, which raises CancelledError here."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@dataclass(slots=True)
class Recorded:
    """What was recorded. `samples` are per source; `trouble`: why the file ends early, or ""."""

    seconds: float = 0.0
    ticks: int = 0
    missed_ticks: int = 0
    ended_early: bool = False
    trouble: str = ""
    samples: dict[str, int] = field(default_factory=dict)
    vms: set[str] = field(default_factory=set)
    sources: tuple[SourceView, ...] = ()


class Recording:
    """Samples all sources, tick by tick, and hands each tick's inputs to a recorder."""

    def __init__(self, config: AgentConfig) -> None:
        self._clock = SystemClock()
        self._slots = Slots(make_plans(config), self._clock)
        self._period_ns = round(config.agent.tick_s * 1e9)
        self._result = Recorded()

    async def run(
        self, recorder: Recorder, seconds: float, on_progress: Callable[[float], None] = lambda _seconds: None
    ) -> Recorded:
        """Record until the end, until SIGINT or SIGTERM, or until the file cannot be written; `recorder` stays open.

        `on_progress` is called each tick with the seconds that have passed. UnavailableError: a required source, or
        every source, is not available. OSError: the file cannot be written, and has no sample.
        """
        started_ns = self._clock.mono_ns()
        result = self._result
        try:
            try:
                await until_signal(self._run(recorder, seconds, on_progress))
            except asyncio.CancelledError:  # before it began
                result.ended_early = True
        except OSError as error:
            if not result.samples:
                raise
            result.ended_early, result.trouble = True, error.strerror or str(error)
        finally:
            result.sources = self._slots.views()
            self._slots.stop(STOP_WAIT_S, time.monotonic)
        if not result.samples:
            end = "ended before the first sample" if result.ended_early else "no source gave a sample"
            raise UnavailableError(f"nothing was recorded: {end}{troubles_of(result.sources)}")
        result.seconds = (self._clock.mono_ns() - started_ns) / 1e9
        return result

    async def _run(self, recorder: Recorder, seconds: float, on_progress: Callable[[float], None]) -> None:
        try:
            await self._record(recorder, seconds, on_progress)
        except asyncio.CancelledError:
            self._result.ended_early = True
        self._write(recorder, take(self._slots, self._clock.mono_ns()))  # what the last tick requested

    async def _record(self, recorder: Recorder, seconds: float, on_progress: Callable[[float], None]) -> None:
        self._slots.start()
        await wait_for(self._slots, lambda slot: slot.tried, clock=self._clock, timeout_s=_START_WAIT_S)
        check_required(self._slots, _START_WAIT_S)
        if all(slot.trouble is not None and slot.tried for slot in self._slots):
            raise UnavailableError(f"no source is available here{troubles_of(self._slots.views())}")
        first_ns = first_due_ns(self._clock.mono_ns(), self._clock.unix_ns(), self._period_ns)
        last_ns = first_ns + round(seconds * 1e9)
        schedule = TickSchedule(self._period_ns, first_ns)
        seen: dict[str, Any] = {}
        while schedule.due_ns <= last_ns:
            await self._clock.sleep_until(schedule.due_ns)
            now_ns = self._clock.mono_ns()
            if schedule.advance(now_ns) is None:
                continue
            inputs = take(self._slots, now_ns)
            self._slots.kick()
            seen = {sample.source: sample for sample in inputs.samples}
            self._write(recorder, inputs)
            self._result.ticks, self._result.missed_ticks = schedule.ticks, schedule.missed
            on_progress((self._clock.mono_ns() - first_ns) / 1e9)
        await wait_for(
            self._slots,
            lambda slot: slot.trouble is not None or slot.sample is not seen.get(slot.name),
            clock=self._clock,
            timeout_s=_LAST_WAIT_S,
        )

    def _write(self, recorder: Recorder, inputs: Inputs) -> None:
        sources = {name: why for name, why in inputs.troubles.items() if why is not Reason.SOURCE_OFF}
        tick = RecordedTick(inputs.mono_ns, self._clock.unix_ns(), tuple(inputs.samples), sources)
        for sample in recorder.write(tick):
            self._result.samples[sample.source] = self._result.samples.get(sample.source, 0) + 1
            self._result.vms.update(sample.vms)


def troubles_of(sources: tuple[SourceView, ...]) -> str:
    """Say why sources do not work, to stand at the end of a message."""
    if all(source.state == "off" for source in sources):
        return "; all are off"
    return "".join(f"; {s.name} is {s.state}: {s.detail}" for s in sources if s.state not in ("off", "available"))
