"""Configuration files: TOML into frozen typed structs, unknown keys refused, errors that name key and value."""

from __future__ import annotations

import enum
import ipaddress
import math
import operator
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from whitepanda.common.errors import ConfigError

__all__ = ["Range", "address_problem", "convert", "is_loopback", "load_toml", "out_of_range", "read_toml"]

T = TypeVar("T")

#: A setting's dotted key, its lowest and its highest value.
Range = tuple[str, float, float]

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; the line is named.

    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # beside TOML's own: no UTF-8, 5000 digits, 1000 brackets
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def convert(data: dict[str, Any], kind: type[T], where: str) -> T:
    """Turn parsed TOML into `kind`, a frozen msgspec.Struct that forbids unknown fields.

    Raises:
        ConfigError: names the file, the key, the value it got and what was expected.

    """
    for path, value in _numbers(data, ""):
        if not math.isfinite(
            value
        ):  # TOML has nan and inf; every comparison with nan is false, so none would catch it
            raise ConfigError(f"{where}: {path} must be a finite number (value {value})")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        match = _AT.match(str(error))
        what = match["what"] if match else str(error)
        path = ((match["path"] if match else None) or "$").removeprefix("$").removeprefix(".")
        path = _numbered(data, kind, path)
        unknown = _UNKNOWN.search(what)
        if unknown:
            key = f"{path}.{unknown['key']}" if path else unknown["key"]
            known = ", ".join(_known_keys(kind, path)) or "none"
            raise ConfigError(
                f"{where}: unknown key '{key}' (value {_show(_value(data, key))}); known here: {known}"
            ) from error
        allowed = _allowed(_kind_at(kind, path)) if what.startswith("Invalid enum value") else ()
        if allowed:
            what = f"must be {' or '.join(allowed)}"
        got = f" (value {_show(_value(data, path))})" if path else ""
        raise ConfigError(f"{where}: {path or 'file'}: {what[:1].lower()}{what[1:]}{got}") from error


def out_of_range(config: msgspec.Struct, ranges: Sequence[Range]) -> Iterator[str]:
    """Tell of each number of `config` that is not within its range, both ends included."""
    for key, low, high in ranges:
        value = operator.attrgetter(key)(config)
        if not low <= value <= high:
            yield f"{key} must be {low} to {high} (value {_show(value)})"


def address_problem(key: str, address: str, *, min_port: int = 1) -> str | None:
    """Tell what is wrong with `host:port` (IPv6 in brackets), or None."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return f"{key} must be host:port (value {_show(address)})"
    if not min_port <= int(match["port"]) <= _MAX_PORT:
        return f"{key} must have a port of {min_port} to {_MAX_PORT} (value {_show(address)})"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host, by address or name, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load_toml(path: Path, kind: type[T]) -> T:
    """Read and convert a configuration file. Errors as in `read_toml` and `convert`."""
    return convert(read_toml(path), kind, str(path))


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(data, float):
        yield path, data
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from _numbers(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _numbers(item, f"{path}[{index}]")


def _value(data: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            data = data[int(part)] if isinstance(data, list) else data[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return data


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - one line for people


def _numbered(data: Any, kind: Any, path: str) -> str:
    """Put the number of the refused element where msgspec only says `[...]`."""
    while "[...]" in path:
        before, _, after = path.partition("[...]")
        element = _kind_at(kind, before + "[0]")
        refused = (i for i, item in enumerate(_value(data, before) or ()) if not _fits(item, element))
        path = f"{before}[{next(refused, 0)}]{after}"
    return path


def _fits(item: Any, kind: Any) -> bool:
    try:
        msgspec.convert(item, kind)
    except msgspec.ValidationError:
        return False
    return True


def _allowed(kind: Any) -> tuple[str, ...]:
    """Return the values that a setting may have, of one that may have few; its type may be one of several."""
    if get_origin(kind) is Literal:
        return tuple(f'"{value}"' for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(f'"{one.value}"' for one in kind)
    return tuple(name for part in get_args(kind) for name in _allowed(part))


def _known_keys(kind: Any, path: str) -> list[str]:
    found = _kind_at(kind, path)
    return sorted(f.encode_name for f in msgspec.structs.fields(found)) if _is_struct(found) else []


def _kind_at(kind: Any, path: str) -> Any:
    """Return the type of the setting at `path`."""
    for part in re.findall(r"[^.\[\]]+", path):
        if part.isdigit():
            kind = next(iter(getattr(kind, "__args__", ())), Any)
        elif _is_struct(kind):
            kind = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}.get(part)
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
