"""Configuration files: TOML into frozen typed structs, unknown keys refused, errors that name key and value."""

import enum
import ipaddress
import math
import operator
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from whitepanda.common.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

#: Takes a configuration and the keys that are wrong in it; yields further problems.
Check = Callable[[T, Container[str]], Iterable[str]]

#: A setting's dotted key, its lowest and its highest value.
Range = tuple[str, float, float]

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(?P<port>[0-9]{1,5})")
MAX_PORT = 65535
_HOST_HEADER = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::[0-9]{0,5})?")
#: In place of a value that is wrong.
_WRONG = object()


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
        ConfigError: names of every wrong setting the file, the key, the value it got and what was expected.

    """
    return _checked(data, kind, where, (), lambda _config, _wrong: ())


def _checked(data: dict[str, Any], kind: type[T], where: str, ranges: Sequence[Range], check: Check[T]) -> T:
    wrong: dict[str, str] = {}
    config = msgspec.convert(_sound(data, kind, "", wrong), kind)
    wrong |= {_key_of(problem): problem for problem in out_of_range(config, ranges)}
    # Of a setting that is wrong nothing more need be said.
    more = [problem for problem in check(config, wrong) if _key_of(problem) not in wrong]
    if problems := [*wrong.values(), *more]:
        raise ConfigError(*(f"{where}: {problem}" for problem in problems))
    return config


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
    if not min_port <= int(match["port"]) <= MAX_PORT:
        return f"{key} must have a port of {min_port} to {MAX_PORT} (value {_show(address)})"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host, by address or name, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_name(host_header: str, names: Container[str]) -> bool:
    """Whether an HTTP server with these names, in lower case, is meant by a request's Host header.

    A web page can have a browser call any server by a name of the page's own that leads there (DNS rebinding), but not
    by an IP address: every address is allowed, and "localhost".
    """
    match = _HOST_HEADER.fullmatch(host_header)
    if match is None:
        return False
    name = match["name"].lower().removesuffix(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name in names
    return True


def load_toml(
    path: Path, kind: type[T], ranges: Sequence[Range] = (), check: Check[T] = lambda _config, _wrong: ()
) -> T:
    """Read and convert a configuration file, and look at its values.

    Args:
        path: the file.
        kind: a frozen msgspec.Struct that forbids unknown fields.
        ranges: of numbers.
        check: takes the configuration and the keys that are already known to be wrong, which stand at their defaults or
            are out of range; yields further problems, each beginning with its key.

    Raises:
        ConfigError: as of `read_toml` and `convert`; all problems at once.

    """
    return _checked(read_toml(path), kind, str(path), ranges, check)


def _key_of(problem: str) -> str:
    return problem.partition(" ")[0].rstrip(":")


def _sound(value: Any, kind: Any, path: str, wrong: dict[str, str]) -> Any:
    """Return what of a value has its type, the default in place of the rest; note what is wrong by its key."""
    if NoneType in get_args(kind):  # TOML has no null
        kind = next(one for one in get_args(kind) if one is not NoneType)
    arguments = get_args(kind)
    if _is_struct(kind):
        return _sound_table(value, kind, path, wrong)
    if get_origin(kind) is tuple and arguments[1:] == (...,) and isinstance(value, list):
        found = []
        for index, item in enumerate(value):
            one = _sound(item, arguments[0], f"{path}[{index}]", wrong)
            found.append(_stand_in(arguments[0]) if one is _WRONG else one)
        return found
    if get_origin(kind) is dict and isinstance(value, dict):
        read = {key: _sound(item, arguments[1], f"{path}.{key}", wrong) for key, item in value.items()}
        return {key: item for key, item in read.items() if item is not _WRONG}
    infinite = next((number for number in _numbers(value) if not math.isfinite(number)), None)
    if infinite is not None:
        # TOML has nan and inf; every comparison with nan is false, so no range would catch it.
        wrong[path] = f"{path} must be a finite number (value {infinite})"
        return _WRONG
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        wrong[path] = f"{path} must be {_words(kind)}, got {_show(value)}"
        return _WRONG
    return value


def _sound_table(value: Any, kind: type[msgspec.Struct], path: str, wrong: dict[str, str]) -> Any:
    if not isinstance(value, dict):
        wrong[path] = f"{path} must be a table, got {_show(value)}"
        return _WRONG
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = {}
    for key, item in value.items():
        place = f"{path}.{key}".removeprefix(".")
        if key not in fields:
            known = ", ".join(sorted(fields)) or "none"
            wrong[place] = f"unknown key '{place}' (value {_show(item)}); known here: {known}"
            continue
        found[key] = _sound(item, fields[key].type, place, wrong)
    for key, field in fields.items():
        if field.required and key not in found:
            place = f"{path}.{key}".removeprefix(".")
            what = f"[{place}]" if _is_struct(field.type) else place
            wrong[place] = f"{what} is missing; it must be {_words(field.type)}"
            found[key] = _WRONG
    return {
        key: _stand_in(fields[key].type) if one is _WRONG else one
        for key, one in found.items()
        if one is not _WRONG or fields[key].required
    }


def _stand_in(kind: Any) -> Any:
    """Return a value of the type, for a wrong one that has no default."""
    if _is_struct(kind):
        fields = msgspec.structs.fields(kind)
        return {field.encode_name: _stand_in(field.type) for field in fields if field.required}
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return arguments[0]
    if get_origin(kind) is tuple:
        return [] if arguments[1:] == (...,) else [_stand_in(one) for one in arguments]
    return kind()


def _words(kind: Any) -> str:
    """Say what a value must be."""
    if allowed := _allowed(kind):
        return " or ".join(allowed)
    if _is_struct(kind):
        return "a table"
    simple = {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}
    arguments = get_args(kind)
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is tuple and arguments[1:] != (...,):
        return f"a list of {len(arguments)}: {', '.join(_words(one) for one in arguments)}"
    return "a table" if get_origin(kind) is dict else "a list"


def _numbers(data: Any) -> Iterator[float]:
    if isinstance(data, float):
        yield data
    elif isinstance(data, list):
        for item in data:
            yield from _numbers(item)


def _show(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - one line for people


def _allowed(kind: Any) -> tuple[str, ...]:
    """Return the values that a setting may have, of one that may have few; its type may be one of several."""
    if get_origin(kind) is Literal:
        return tuple(f'"{value}"' for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(f'"{one.value}"' for one in kind)
    return tuple(name for part in get_args(kind) for name in _allowed(part))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
