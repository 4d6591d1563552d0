"""`whitepanda check-config FILE...`: would the daemon take this file?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.config import read_toml
from whitepanda.common.errors import ConfigError
from whitepanda.common.tls import TlsFiles

__all__ = ["check_config"]

_GROUP = "whitepanda.config"
#: Settings that name a file which has to exist already.
_FILES = {"ca", "certificate", "key", "scenario", "file"}


@dataclass(slots=True)
class _Result:
    file: Path
    kind: str | None = None
    error: str | None = None
    warnings: list[str] = field(default_factory=list)


def check_config(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Configuration files of agent or central.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON array for programs.")] = False,
) -> None:
    """Check configuration files; exit code 2 if one would be refused. Warns of missing files in them."""
    results = [_check(file) for file in files]
    if json:
        print_json(
            [
                {
                    "file": str(r.file),
                    "kind": r.kind,
                    "ok": r.error is None,
                    "error": r.error,
                    "warnings": r.warnings,
                }
                for r in results
            ]
        )
    else:
        for result in results:
            _show(result)
    if any(result.error for result in results):
        raise typer.Exit(ConfigError.exit_code)


def _show(result: _Result) -> None:
    for warning in result.warnings:
        errors.print(Text("warning: ", style="yellow").append(warning, style="none"), soft_wrap=True)
    if result.error:
        errors.print(Text("error: ", style="bold red").append(result.error, style="none"), soft_wrap=True)
    else:
        console.print(Text(f"{result.file}: ok ({result.kind})"), soft_wrap=True)


def _check(file: Path) -> _Result:
    result = _Result(file)
    try:
        point = _kind_of(file)
        result.kind = point.name
        config = _loader(point, file)(file)
    except ConfigError as error:
        result.error = str(error)
    else:
        result.warnings = [f"{file}: {warning}" for warning in _missing_files(config, "")]
    return result


def _kind_of(file: Path) -> metadata.EntryPoint:
    """Find the first kind whose table the file has."""
    tables = read_toml(file)
    kinds = _kinds()
    for point in kinds:
        if point.name in tables:
            return point
    known = " or ".join(f"[{p.name}]" for p in kinds)
    has = ", ".join(f"[{name}]" for name in tables) or "none"
    raise ConfigError(f"{file}: not a configuration of ours: it needs a table {known} (it has {has})")


def _loader(point: metadata.EntryPoint, file: Path) -> Callable[[Path], Any]:
    try:
        loader: Callable[[Path], Any] = point.load()
    except ImportError as error:
        lacks = f"this installation lacks '{error.name}'; install whitepanda[{point.name}]"
        raise ConfigError(f"{file}: cannot check a configuration of {point.name}: {lacks}") from error
    return loader


def _kinds() -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=_GROUP), key=lambda p: p.name)


def _missing_files(section: Any, where: str) -> Iterator[str]:
    """Walk the settings; tell of each named file that does not exist. Sections that are off are left out."""
    if getattr(section, "mode", "") == "off":
        return
    for key, value in msgspec.structs.asdict(section).items():
        name = f"{where}.{key}".lstrip(".")
        if isinstance(value, msgspec.Struct):
            yield from _missing_files(value, name)
        elif key in _FILES and isinstance(value, str) and value and not Path(value).exists():
            yield f"{name}: {value} does not exist (yet?)"
        elif not value and isinstance(section, TlsFiles) and _speaks(section):
            yield f"{name} is not set, beside others that are"


def _speaks(files: TlsFiles) -> bool:
    return any((files.ca, files.certificate, files.key))
