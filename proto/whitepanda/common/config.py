"""Configuration files: TOML into frozen typed structs, unknown keys refused, errors that name key and value."""

import enum
import ipaddress
import math
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from whitepanda.common.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

#: Takes a configuration and the keys that are wrong in it; yields further problems.
Check = Callable[[T, Container[str]], Iterable[str]]

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(?P<port>[0-9]{1,5})")
MAX_PORT = 65535
_HOST_HEADER = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::[0-9]{0,5})?")
_NONE: Mapping[str, str] = MappingProxyType({})
_WRONG = object()  # in place of a wrong value
_SIMPLE = {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; ConfigError, with the line, if it is missing, unreadable or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # besides TOML's own: no UTF-8, 5000 digits, 1000 brackets
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def convert(data: dict[str, Any], kind: type[T], where: str, check: Check[T] = lambda _config, _wrong: ()) -> T:
    """Turn parsed TOML into `kind`, a frozen msgspec.Struct that forbids unknown fields.

    Its numbers may have bounds: `Annotated[float, msgspec.Meta(ge=0, le=1)]`. `check` takes the configuration and the
    keys known to be wrong, which have their defaults there; it yields further problems, each beginning with its key.
    ConfigError: `where`, the key, the value and what was expected, for every wrong setting.
    """
    wrong: dict[str, str] = {}
    config = msgspec.convert(_sound(data, kind, "", wrong), kind)
    more = [problem for problem in check(config, wrong) if problem.partition(" ")[0].rstrip(":") not in wrong]
    if problems := [*wrong.values(), *more]:
        raise ConfigError(*(f"{where}: {problem}" for problem in problems))
    return config


def load_toml(
    path: Path, kind: type[T], check: Check[T] = lambda _config, _wrong: (), others: Mapping[str, str] = _NONE
) -> T:
    """Read and convert a configuration file; see `read_toml` and `convert`.

    `others`: what a file is that has this table, and none of this kind's required ones.
    """
    data = read_toml(path)
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    if not any(name in data for name in required):
        for table in others.keys() & data.keys():
            raise ConfigError(f"{path}: {others[table]}")
    return convert(data, kind, str(path), check)


def bounds(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """Return a setting's type without its bounds, and the bounds of a number."""
    if NoneType in get_args(kind):
        plain, limits = bounds(next(one for one in get_args(kind) if one is not NoneType))
        return plain | None, limits
    return get_args(kind)[:2] if get_origin(kind) is Annotated else (kind, None)


def address_problem(key: str, address: str, *, min_port: int = 1) -> str | None:
    """Return what is wrong with `host:port` (IPv6 in brackets), or None."""
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
    """Whether a request's Host header means an HTTP server with these names, in lower case.

    A web page can have a browser call any server by a name of the page's owner (DNS rebinding), but not by an IP
    address: every address is allowed, and "localhost".
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


def _sound(value: Any, kind: Any, path: str, wrong: dict[str, str]) -> Any:
    """Return the value with defaults in place of its wrong parts; note what is wrong by its key."""
    if NoneType in get_args(kind):  # TOML has no null
        kind = next(one for one in get_args(kind) if one is not NoneType)
    kind, limits = bounds(kind)
    arguments = get_args(kind)
    if _is_struct(kind):
        return _sound_table(value, kind, path, wrong)
    if get_origin(kind) is tuple and arguments[1:] == (...,) and isinstance(value, list):
        found = (_sound(item, arguments[0], f"{path}[{index}]", wrong) for index, item in enumerate(value))
        return [_stand_in(arguments[0]) if one is _WRONG else one for one in found]
    if get_origin(kind) is dict and isinstance(value, dict):
        read = {key: _sound(item, arguments[1], f"{path}.{key}", wrong) for key, item in value.items()}
        return {key: item for key, item in read.items() if item is not _WRONG}
    if problem := _value_problem(value, kind, limits):
        wrong[path] = f"{path} must be {problem}"
        return _WRONG
    return value


def _value_problem(value: Any, kind: Any, limits: msgspec.Meta | None) -> str:
    numbers = (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, float))
    if (infinite := next((one for one in numbers if not math.isfinite(one)), None)) is not None:
        return f"a finite number (value {infinite})"
    try:
        number = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return f"{_words(kind)}, got {_show(value)}"
    if limits is not None and not limits.ge <= number <= limits.le:
        return f"{limits.ge} to {limits.le} (value {_show(number)})"
    return ""


def _sound_table(value: Any, kind: type[msgspec.Struct], path: str, wrong: dict[str, str]) -> Any:
    if not isinstance(value, dict):
        wrong[path] = f"{path} must be a table, got {_show(value)}"
        return _WRONG
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = {}
    for key, item in value.items():
        place = f"{path}.{key}".removeprefix(".")
        if key in fields:
            found[key] = _sound(item, fields[key].type, place, wrong)
        else:
            known = ", ".join(sorted(fields)) or "none"
            wrong[place] = f"unknown key '{place}' (value {_show(item)}); known here: {known}"
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
    kind, limits = bounds(kind)
    if limits is not None:
        return limits.ge
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
    kind, _ = bounds(kind)
    if allowed := _allowed(kind):
        return " or ".join(allowed)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[1:] != (...,):
        return f"a list of {len(arguments)}: {', '.join(_words(one) for one in arguments)}"
    return "a table" if _is_struct(kind) or get_origin(kind) is dict else "a list"


def _show(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - one line for people


def _allowed(kind: Any) -> tuple[str, ...]:
    """Return the values that a setting of few may have; its type may be one of several."""
    if get_origin(kind) is Literal:
        return tuple(f'"{value}"' for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(f'"{one.value}"' for one in kind)
    return tuple(name for part in get_args(kind) for name in _allowed(part))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
