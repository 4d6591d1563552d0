"""`whitepanda check-config FILE...`: would the daemon take this file?"""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import typer
from rich.text import Text

from agent.config import AgentConfig, SimulatedSection
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.config import read_toml
from whitepanda.common.errors import ConfigError
from whitepanda.common.extras import how_to_install
from whitepanda.common.files.private import read_secret
from whitepanda.common.tls import TlsFiles, problems
from whitepanda.common.tls import warnings as doubts

_GROUP = "whitepanda.config"
#: Settings that name a file which has to exist already, and what to do where it does not.
_FILES = {"scenario": "write it (docs/simulated.md has an example)"}


@dataclass(slots=True)
class _Result:
    file: Path
    kind: str | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_config(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Configuration files of agent or central.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON array for programs.")] = False,
) -> None:
    """Check configuration files and the scenario they name; exit code 2 if one would be refused.

    Says all that is wrong at once. Central's TLS files and list of revoked serials must do. Warns of other files in
    them that are missing, of an agent's TLS files and secret files that will not do, and of passwords that everybody
    may read.
    """
    results = [_check(file) for file in files]
    if json:
        print_json(
            [
                {"file": str(r.file), "kind": r.kind, "ok": not r.errors, "errors": r.errors, "warnings": r.warnings}
                for r in results
            ]
        )
    else:
        for result in results:
            _show(result)
    if any(result.errors for result in results):
        raise typer.Exit(ConfigError.exit_code)


def _show(result: _Result) -> None:
    for warning in result.warnings:
        errors.print(Text("warning: ", style="yellow").append(warning, style="none"), soft_wrap=True)
    for error in result.errors:
        errors.print(Text("error: ", style="bold red").append(error, style="none"), soft_wrap=True)
    if not result.errors:
        console.print(Text(f"{result.file}: ok ({result.kind})"), soft_wrap=True)


def _check(file: Path) -> _Result:
    result = _Result(file)
    try:
        point = _kind_of(file)
        result.kind = point.name
        config = _loader(point, file)(file)
        warnings = [
            *_missing_files(config, ""),
            *_tls_problems(config, "", server=point.name == "central"),
            *_unusable_secrets(config, ""),
            *_open_secrets(config, "", file.stat().st_mode),
        ]
        result.warnings = [f"{file}: {warning}" for warning in warnings]
        if hasattr(config, "file_problems"):
            result.errors = [f"{file}: {problem}" for problem in config.file_problems()]
        if isinstance(config, AgentConfig):
            _check_scenario(config.sources.simulated)
    except ConfigError as error:
        result.errors = list(error.problems)
    return result


def _check_scenario(section: SimulatedSection) -> None:
    """Raise what the source would raise at start. Of a file that is not there yet, a warning tells."""
    if section.mode != "off" and Path(section.scenario).exists():
        from collector.simulated import scenario  # noqa: PLC0415 - rarely needed

        scenario.load(Path(section.scenario))


def _kind_of(file: Path) -> metadata.EntryPoint:
    """Find the first kind whose table the file has."""
    tables = read_toml(file)
    kinds = _kinds()
    for point in kinds:
        if point.name in tables:
            return point
    known = " or ".join(f"[{p.name}]" for p in kinds)
    has = ", ".join(f"[{name}]" for name in tables) or "none"
    raise ConfigError(f"{file}: not a whitepanda configuration: it needs a table {known} (it has {has})")


def _loader(point: metadata.EntryPoint, file: Path) -> Callable[[Path], Any]:
    try:
        loader: Callable[[Path], Any] = point.load()
    except ImportError as error:
        lacks = f"this installation lacks '{error.name}'; {how_to_install(point.name)}"
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
            yield f'{name}: {value} does not exist; {_FILES[key]}, or set {where}.mode = "off"'


def _unusable_secrets(section: Any, where: str) -> Iterator[str]:
    """Walk the settings; tell of each file with a secret that will not do."""
    for key, value in msgspec.structs.asdict(section).items():
        name = f"{where}.{key}".lstrip(".")
        if isinstance(value, msgspec.Struct):
            yield from _unusable_secrets(value, name)
        elif key == "secret_file" and value:
            try:
                read_secret(Path(value), name)
            except ConfigError as error:
                yield str(error)


def _open_secrets(section: Any, where: str, mode: int) -> Iterator[str]:
    """Walk the settings; tell of each URL with a password in a file that everybody may read."""
    if not mode & stat.S_IROTH:
        return
    for key, value in msgspec.structs.asdict(section).items():
        name = f"{where}.{key}".lstrip(".")
        if isinstance(value, msgspec.Struct):
            yield from _open_secrets(value, name, mode)
        elif key == "url" and _has_password(value):
            yield (
                f"{name} has a password, and everybody may read this file (mode {stat.S_IMODE(mode):04o}): "
                "chmod 0600, owned by whom central runs as"
            )


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True  # nobody knows
    return bool(parts.password) or "password" in parse_qs(parts.query)


def _tls_problems(section: Any, where: str, *, server: bool) -> Iterator[str]:
    """Walk the settings; tell what is wrong with TLS files. What connects nowhere and serves nobody needs none.

    An agent measures without them, so all of it is a warning; of central's, what it would not start with is an error.
    """
    told = doubts if server else problems
    for key, value in msgspec.structs.asdict(section).items():
        name = f"{where}.{key}".lstrip(".")
        if isinstance(value, TlsFiles):
            listens = getattr(section, "listen", None)
            is_wanted = getattr(section, "address", None) != "" if listens is None else False
            if value != TlsFiles() or is_wanted:
                yield from told(value, server=server or listens is not None, prefix=name)
        elif isinstance(value, msgspec.Struct):
            yield from _tls_problems(value, name, server=server)
