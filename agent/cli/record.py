"""`whitepanda record`: what this host's sources say, as a file that `replay` and `top --replay` read."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agent.api.client import find_config
from agent.cli._options import JsonOption
from agent.recording.format import Header, Recorder, unfinished
from agent.recording.playback import header_of
from agent.recording.record import Recorded, Recording, beside_agent
from agent.sampling.views import SourceView
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

_BAR_FROM_S = 2.0
_MAX_S = 366 * 86_400


def record(
    file: Annotated[Path, typer.Argument(help="Where to: JSON lines.")],
    *,
    seconds: Annotated[float, typer.Option(help="How long.", min=0.1)] = 60.0,
    config: Annotated[Path | None, typer.Option(help="An agent's configuration, for its sources and tick_s.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Record what this host's sources say, each `agent.tick_s`, beside a running agent or without.

    `whitepanda replay` and `whitepanda top --replay` read the file.
    The file comes into being at the end; Ctrl-C and a full disk end early and keep what there is.
    """
    if not seconds <= _MAX_S:  # nor is NaN
        raise InputError(f"--seconds {seconds:g}: at most {_MAX_S} (a year)")
    log.configure("error")  # the summary tells of the sources
    settings, left = beside_agent(find_config(config)[0])
    recorder = _make(file, header_of(settings), replace=force)
    try:
        with _bar(seconds) as show:
            result = asyncio.run(Recording(settings).run(recorder, seconds, show))
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
        print_json({**_as_json(file, size_bytes, result), "left_to_agent": list(left)})
    else:
        _show(file, size_bytes, result)
        for name in left:
            console.print(f"  {name}: left to the agent that runs here", soft_wrap=True)
    if result.trouble:
        raise UnavailableError(f"{file}: {result.trouble}; it ends there, what was recorded before is kept")


def _make(file: Path, header: Header, *, replace: bool) -> Recorder:
    """Begin the file, and tell of others that were to become the same."""
    try:
        recorder = Recorder(file, header, replace=replace)
    except FileExistsError as error:
        raise InputError(f"{file}: exists already; give another name, or --force to replace it") from error
    except OSError as error:
        raise UnavailableError(f"{file}: cannot write: {error.strerror}") from error
    for other in unfinished(file):
        if other.name != recorder.part.name:  # the same folder; that of FILE may be relative
            what = "a recording that was killed, or still runs; `replay` reads it, remove it if it was killed"
            errors.print(f"{other!s}: {what}", soft_wrap=True)
    return recorder


@contextmanager
def _bar(seconds: float) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error, for people and what takes long only."""
    with Progress(
        TextColumn("recording"),
        BarColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal or seconds <= _BAR_FROM_S,
    ) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda done_s: bar.update(task, completed=done_s)


def _wanted(sources: tuple[SourceView, ...]) -> list[SourceView]:
    return [source for source in sources if source.state != "off"]


def _as_json(file: Path, size_bytes: int, result: Recorded) -> dict[str, Any]:
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


def _show(file: Path, size_bytes: int, result: Recorded) -> None:
    samples, vms = sum(result.samples.values()), len(result.vms)
    end = "ended early; " if result.ended_early else ""
    missed = f" ({result.missed_ticks} missed)" if result.missed_ticks else ""
    console.print(
        f"{file!s}: {end}{samples:,} samples of {vms:,} {'VM' if vms == 1 else 'VMs'}, "
        f"{result.ticks:,} {'tick' if result.ticks == 1 else 'ticks'}{missed} in {result.seconds:.1f} s, "
        f"{-(-size_bytes // 1000):,} kB",
        soft_wrap=True,
    )
    for source in _wanted(result.sources):
        count = result.samples.get(source.name, 0)
        failures = f", {source.failures:,} failures" if source.failures else ""
        state = "" if source.state == "available" else f"; {source.state}: {source.detail}"
        console.print(f"  {source.name}: {count:,} samples{failures}{state}", soft_wrap=True)
