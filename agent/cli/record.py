"""`whitepanda record`: what this host's sources say, as a file that `replay` and `[sources.recorded]` read."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agent.clock import Clock, SystemClock
from agent.config import AgentConfig
from agent.daemon import make_plans
from agent.local_client import find_config
from agent.slots import Slot, Slots
from agent.state import SourceView
from agent.ticks import TickSchedule, first_due_ns
from collector.base import SourceSample
from collector.recorded import Recorder
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

__all__ = ["record"]

_START_WAIT_S = 10.0  # for the sources to be probed and opened
_LAST_WAIT_S = 2.0  # for the last tick's samples
_STOP_WAIT_S = 2.0
_POLL_S = 0.005
_BAR_FROM_S = 2.0


def record(
    file: Annotated[Path, typer.Argument(help="Where to: JSON lines, one sample of one source each.")],
    *,
    seconds: Annotated[float, typer.Option(help="How long.", min=0.1)] = 60.0,
    config: Annotated[
        Path | None, typer.Option(help="An agent's configuration, for its sources and tick_s.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for programs.")] = False,
) -> None:
    """Record what this host's sources say, each `agent.tick_s`, beside a running agent or without.

    `whitepanda replay` reads the file, and an agent with the source `recorded` measures that host.
    The file comes into being at the end; Ctrl-C ends early and keeps what there is.
    """
    log.configure("error")  # the summary tells of the sources
    settings, _ = find_config(config)
    try:
        recorder = Recorder(file, replace=force)
    except FileExistsError as error:
        raise InputError(f"{file}: exists already; give another name, or --force to replace it") from error
    except OSError as error:
        raise UnavailableError(f"{file}: cannot write: {error.strerror}") from error
    try:
        with _Bar(seconds) as bar:
            result = asyncio.run(_Recording(settings, recorder, SystemClock(), bar).run(seconds))
        size_bytes = recorder.part.stat().st_size
    except OSError as error:
        recorder.discard()
        raise UnavailableError(f"{file}: {error.strerror}; the recording was dropped") from error
    except BaseException:
        recorder.discard()
        raise
    try:
        recorder.close()
    except OSError as error:
        kept = f"the recording is in {recorder.part}"
        raise UnavailableError(f"{file}: cannot write: {error.strerror}; {kept}") from error
    if json:
        print_json(_as_json(file, size_bytes, result))
    else:
        _show(file, size_bytes, result)


@dataclass(slots=True)
class _Result:
    """What was recorded. `samples` are per source."""

    seconds: float = 0.0
    ticks: int = 0
    missed_ticks: int = 0
    ended_early: bool = False
    samples: dict[str, int] = field(default_factory=dict)
    vms: set[str] = field(default_factory=set)
    sources: tuple[SourceView, ...] = ()


class _Recording:
    """Asks all sources on the agent's schedule and writes down what is new, without making anything of it."""

    def __init__(self, config: AgentConfig, recorder: Recorder, clock: Clock, bar: _Bar) -> None:
        self._recorder = recorder
        self._clock = clock
        self._bar = bar
        self._slots = Slots(make_plans(config), clock)
        self._period_ns = round(config.agent.tick_s * 1e9)
        self._written: dict[str, SourceSample] = {}
        self._result = _Result()

    async def run(self, seconds: float) -> _Result:
        """Record until the end, or until SIGINT or SIGTERM.

        Raises:
            UnavailableError: a required source, or every source, is not available.
            OSError: the file cannot be written.

        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        task = asyncio.create_task(self._run(seconds))
        for number in signals:
            loop.add_signal_handler(number, task.cancel)
        started_ns = self._clock.mono_ns()
        try:
            await task
        except asyncio.CancelledError:
            self._result.ended_early = True
            self._write_new()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            self._result.sources = self._slots.views()
            self._slots.stop(_STOP_WAIT_S, time.monotonic)
        if not self._written:
            end = "ended before the first sample" if self._result.ended_early else "no source gave a sample"
            raise UnavailableError(f"nothing was recorded: {end}{_why(self._result.sources)}")
        self._result.seconds = (self._clock.mono_ns() - started_ns) / 1e9
        return self._result

    async def _run(self, seconds: float) -> None:
        self._slots.start()
        await self._wait(lambda slot: slot.tried, _START_WAIT_S)
        self._check_sources()
        first_ns = first_due_ns(self._clock.mono_ns(), self._clock.unix_ns(), self._period_ns)
        last_ns = first_ns + round(seconds * 1e9)
        schedule = TickSchedule(self._period_ns, first_ns)
        while schedule.due_ns <= last_ns:
            await self._clock.sleep_until(schedule.due_ns)
            if schedule.advance(self._clock.mono_ns()) is None:
                continue
            self._write_new()
            self._slots.kick()
            self._result.ticks, self._result.missed_ticks = schedule.ticks, schedule.missed
            self._bar.update((self._clock.mono_ns() - first_ns) / 1e9)
        await self._wait(self._answered, _LAST_WAIT_S)
        self._write_new()

    async def _wait(self, is_done: Callable[[Slot], bool], timeout_s: float) -> None:
        until_ns = self._clock.mono_ns() + round(timeout_s * 1e9)
        while not all(map(is_done, self._slots)) and self._clock.mono_ns() < until_ns:  # noqa: ASYNC110 - threads tell, once at start
            await asyncio.sleep(_POLL_S)  # threads tell; not worth an event of the loop

    def _answered(self, slot: Slot) -> bool:
        return slot.trouble is not None or slot.latest() is not self._written.get(slot.name)

    def _check_sources(self) -> None:
        for slot in self._slots:
            if slot.plan.mode == "required" and slot.trouble is not None:
                view = slot.view()
                raise UnavailableError(
                    f"sources.{slot.name}.mode is 'required', but it is {view.state}: {view.detail}"
                )
        if all(slot.trouble is not None and slot.tried for slot in self._slots):
            raise UnavailableError(f"no source is available here{_why(self._slots.views())}")

    def _write_new(self) -> None:
        for slot in self._slots:
            sample = slot.latest()
            if sample is None or sample is self._written.get(slot.name):
                continue
            self._recorder.write(sample)
            self._written[slot.name] = sample
            self._result.samples[slot.name] = self._result.samples.get(slot.name, 0) + 1
            self._result.vms.update(sample.vms)


class _Bar:
    """A progress bar on standard error, for people and what takes long only."""

    def __init__(self, seconds: float) -> None:
        self._progress = Progress(
            TextColumn("recording"),
            BarColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal or seconds <= _BAR_FROM_S,
        )
        self._task = self._progress.add_task("", total=seconds)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, seconds: float) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=seconds)


def _wanted(sources: tuple[SourceView, ...]) -> list[SourceView]:
    return [source for source in sources if source.state != "off"]


def _why(sources: tuple[SourceView, ...]) -> str:
    troubles = [f"{s.name} is {s.state}: {s.detail}" for s in _wanted(sources) if s.state != "available"]
    return "".join(f"; {trouble}" for trouble in troubles) or ("" if _wanted(sources) else "; all are off")


def _as_json(file: Path, size_bytes: int, result: _Result) -> dict[str, Any]:
    return {
        "file": str(file),
        "bytes": size_bytes,
        "seconds": round(result.seconds, 3),
        "ended_early": result.ended_early,
        "ticks": result.ticks,
        "missed_ticks": result.missed_ticks,
        "samples": sum(result.samples.values()),
        "vms": len(result.vms),
        "sources": [
            {
                "name": source.name,
                "state": source.state,
                "detail": source.detail,
                "samples": result.samples.get(source.name, 0),
                "failures": source.failures,
            }
            for source in result.sources
        ],
    }


def _show(file: Path, size_bytes: int, result: _Result) -> None:
    samples, vms = sum(result.samples.values()), len(result.vms)
    end = "ended early; " if result.ended_early else ""
    missed = f" ({result.missed_ticks} missed)" if result.missed_ticks else ""
    console.print(
        f"{escape(str(file))}: {end}{samples:,} samples of {vms:,} {'VM' if vms == 1 else 'VMs'}, "
        f"{result.ticks:,} ticks{missed} in {result.seconds:.1f} s, {-(-size_bytes // 1000):,} kB",
        soft_wrap=True,
    )
    for source in _wanted(result.sources):
        count = result.samples.get(source.name, 0)
        failures = f", {source.failures:,} failures" if source.failures else ""
        state = "" if source.state == "available" else f"; {source.state}: {source.detail}"
        console.print(f"  {source.name}: {count:,} samples{failures}{escape(state)}", soft_wrap=True)
