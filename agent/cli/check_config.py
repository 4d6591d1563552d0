"""`whitepanda check-config FILE...`: would the daemon take this file?"""

import stat
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import typer
from rich.text import Text

from agent.cli._options import print_problem
from agent.config import AgentConfig
from whitepanda.common.cli import console, print_json
from whitepanda.common.config import read_toml
from whitepanda.common.errors import ConfigError
from whitepanda.common.extras import how_to_install
from whitepanda.common.files.private import read_secret
from whitepanda.common.tls import TlsFiles, problems
from whitepanda.common.tls import warnings as doubts

#: Settings that name files which have to exist already, and what to do if one does not.
_FILES = {
    "scenario": 'write it (docs/simulated.md has an example), or set sources.simulated.mode = "off"',
    "models": "make it with `whitepanda degradation fit`",
    "model": "make it with `whitepanda runtime fit`",
}


def check_config(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Configuration files of agent or central.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON array for programs.")] = False,
) -> None:
    """Check configuration files and the scenario they name; exit code 2 if one would be refused.

    All wrong settings are reported together; once they are right, the files that they name are checked. Errors:
    central's TLS files and list of revoked serials are unusable. Warnings: other files are missing, an agent's TLS or
    secret files are unusable, a password is readable by everybody.
    """
    results = [_check(file) for file in files]
    if json:
        print_json(results)
    else:
        for result in results:
            for warning in result["warnings"]:
                print_problem("warning", warning)
            for error in result["errors"]:
                print_problem("error", error)
            if result["ok"]:
                console.print(Text(f"{result['file']}: ok ({result['kind']})"), soft_wrap=True)
    if not all(result["ok"] for result in results):
        raise typer.Exit(ConfigError.exit_code)


def _check(file: Path) -> dict[str, Any]:
    """Return the findings on a file, as `--json` prints them."""
    kind, errors, warnings = None, list[str](), list[str]()
    try:
        point = _kind_of(file)
        kind = point.name
        config = _loader(point, file)(file)
        warnings = [f"{file}: {warning}" for warning in _warnings(config, file, is_central=point.name == "central")]
        if hasattr(config, "file_problems"):
            errors = [f"{file}: {problem}" for problem in config.file_problems()]
        # As the source does at start; a missing file is a warning.
        if isinstance(config, AgentConfig) and (simulated := config.sources.simulated).mode != "off":
            from collector.simulated import scenario  # noqa: PLC0415 - rarely needed

            if Path(simulated.scenario).exists():
                scenario.load(Path(simulated.scenario))
    except ConfigError as error:
        errors = list(error.problems)
    return {"file": str(file), "kind": kind, "ok": not errors, "errors": errors, "warnings": warnings}


def _kind_of(file: Path) -> metadata.EntryPoint:
    """Find the first kind whose table the file has."""
    tables = read_toml(file)
    kinds = sorted(metadata.entry_points(group="whitepanda.config"), key=lambda point: point.name)
    if found := next((point for point in kinds if point.name in tables), None):
        return found
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


def _warnings(config: Any, file: Path, *, is_central: bool) -> Iterator[str]:
    """Yield what does not keep the daemon from starting."""
    mode = stat.S_IMODE(file.stat().st_mode)
    for name, section, key, value in _settings(config, ""):
        if key in _FILES and getattr(section, "mode", "") != "off":
            named = value if isinstance(value, tuple) else (value,)
            yield from (
                f"{name}: {each} does not exist; {_FILES[key]}" for each in named if each and not Path(each).exists()
            )
        if key == "secret_file" and value:
            try:
                read_secret(Path(value), name)
            except ConfigError as error:
                yield str(error)
        if key == "url" and mode & stat.S_IROTH and _has_password(value):
            remedy = "chmod 0600, owned by the user that central runs as"
            yield f"{name} has a password, and everybody may read this file (mode {mode:04o}): {remedy}"
        if isinstance(value, TlsFiles):
            yield from _tls_problems(value, section, name, is_central=is_central)


def _settings(section: Any, where: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield each setting: its full name, its section, its key and its value; sub-sections too."""
    for key, value in msgspec.structs.asdict(section).items():
        name = f"{where}.{key}".lstrip(".")
        yield name, section, key, value
        if isinstance(value, msgspec.Struct) and not isinstance(value, TlsFiles):
            yield from _settings(value, name)


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True  # it may have one
    return bool(parts.password) or "password" in parse_qs(parts.query)


def _tls_problems(files: TlsFiles, section: Any, name: str, *, is_central: bool) -> list[str]:
    """Return what to warn of in TLS files; a section that neither connects nor listens needs none.

    An agent measures without them, so every problem is a warning; those that keep central from starting are errors.
    """
    listens = getattr(section, "listen", None)
    is_wanted = listens is None and getattr(section, "address", None) != ""
    if files == TlsFiles() and not is_wanted:
        return []
    found = doubts if is_central else problems
    return found(files, server=is_central or listens is not None, prefix=name)
