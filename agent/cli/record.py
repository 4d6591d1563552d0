"""`whitepanda record`: what this host's sources say, as a file that `replay` and `top --replay` read."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from agent.api.client import find_config
from agent.cli._options import JsonOption, SourcesOption, print_left, progress_bar, sources_json
from agent.display.render import fields_of
from agent.recording.format import Header, Recorder, unfinished
from agent.recording.playback import header_of
from agent.recording.record import Recorded, Recording, beside_agent
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

_BAR_FROM_S = 2.0
_MAX_S = 366 * 86_400


def record(
    file: Annotated[Path, typer.Argument(help="Where to: JSON lines.")],
    *,
    seconds: Annotated[float, typer.Option(help="How long.", min=0.1)] = 60.0,
    config: SourcesOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Record what this host's sources say, each `agent.tick_s`, beside a running agent or without.

    `whitepanda replay` and `whitepanda top --replay` read the file.
    The file comes into being at the end; Ctrl-C and a full disk end early and keep what there is.
    """
    if not seconds <= _MAX_S:  # NaN is refused too
        raise InputError(f"--seconds {seconds:g}: at most {_MAX_S} (a year)")
    log.configure("error")  # the summary reports the sources
    settings, left = beside_agent(find_config(config)[0])
    recorder = _make(file, header_of(settings), replace=force)
    try:
        with progress_bar("recording", seconds, shown=seconds > _BAR_FROM_S) as bar:
            result = asyncio.run(Recording(settings).run(recorder, seconds, lambda done_s: bar(completed=done_s)))
        size_bytes = recorder.part.stat().st_size
    except BaseException as error:
        recorder.discard()
        if isinstance(error, OSError):
            raise UnavailableError(f"{file}: {error.strerror}; the recording was dropped") from error
        raise
    try:
        recorder.close()
    except OSError as error:
        kept = f"the recording is in {recorder.part}"
        raise UnavailableError(f"{file}: cannot write: {error.strerror}; {kept}") from error
    if json:
        _print_json(file, size_bytes, result, left)
    else:
        _show(file, size_bytes, result)
        print_left(left)
    if result.trouble:
        raise UnavailableError(f"{file}: {result.trouble}; it ends there, what was recorded before is kept")


def _make(file: Path, header: Header, *, replace: bool) -> Recorder:
    """Begin the file, and report unfinished recordings of the same name."""
    try:
        recorder = Recorder(file, header, replace=replace)
    except FileExistsError as error:
        raise InputError(f"{file}: exists already; give another name, or --force to replace it") from error
    except OSError as error:
        why = error.strerror if file.parent.is_dir() else f"there is no folder {file.parent}"
        raise UnavailableError(f"{file}: cannot write: {why}") from error
    for other in unfinished(file):
        if other.name != recorder.part.name:  # the same folder; FILE's may be relative
            what = "an unfinished recording; `replay` can read it; remove it unless it is still being written"
            errors.print(f"{other!s}: {what}", soft_wrap=True)
    return recorder


def _print_json(file: Path, size_bytes: int, result: Recorded, left: tuple[str, ...]) -> None:
    sources = [
        {**shown, "samples": result.samples.get(source.name, 0), "failures": source.failures}
        for source, shown in zip(result.sources, sources_json(result.sources), strict=True)
    ]
    print_json(
        {
            "file": str(file),
            "bytes": size_bytes,
            "seconds": round(result.seconds, 3),
            **fields_of(result, "ended_early", "ticks", "missed_ticks"),
            "samples": sum(result.samples.values()),
            "vms": len(result.vms),
            "sources": sources,
            "left_to_agent": list(left),
        }
    )


def _show(file: Path, size_bytes: int, result: Recorded) -> None:
    vms, ticks = len(result.vms), result.ticks
    end = "ended early; " if result.ended_early else ""
    missed = f" ({result.missed_ticks} missed)" if result.missed_ticks else ""
    counts = f"{sum(result.samples.values()):,} samples of {vms:,} {'VM' if vms == 1 else 'VMs'}"
    took = f"{ticks:,} {'tick' if ticks == 1 else 'ticks'}{missed} in {result.seconds:.1f} s"
    console.print(f"{file!s}: {end}{counts}, {took}, {-(-size_bytes // 1000):,} kB", soft_wrap=True)
    for source in result.sources:
        if source.state == "off":
            continue
        failures = f", {source.failures:,} failures" if source.failures else ""
        state = "" if source.state == "available" else f"; {source.state}: {source.detail}"
        count = result.samples.get(source.name, 0)
        console.print(f"  {source.name}: {count:,} samples{failures}{state}", soft_wrap=True)
