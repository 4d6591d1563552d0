"""Which central a tool connects to, with which certificate: from the flags, the environment, or a file of fleets.

    default = "prod"

    [fleets.prod]
    central = "central.example.net:7443"
    tls = "~/pki"

The file is `~/.config/whitepanda/config.toml` (or below XDG_CONFIG_HOME), then /etc/whitepanda/config.toml.
"""

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whitepanda.common.config import MAX_PORT, address_problem, load_toml
from whitepanda.common.errors import InputError, TlsError
from whitepanda.common.tls import TlsFiles

CENTRAL, TLS, FLEET = "WHITEPANDA_CENTRAL", "WHITEPANDA_TLS", "WHITEPANDA_FLEET"
ETC = Path("/etc/whitepanda/config.toml")
_OPERATOR = "operator"
_FILES = ("ca", "cert", "key")


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One source of these settings; "" is not given. Paths are absolute, or relative to the file's folder."""

    central: str = ""  # host:port of central
    tls: str = ""  # folder of `whitepanda pki`
    name: str = ""  # of the certificate in that folder; "" = operator
    server_name: str = ""  # name in central's certificate, if not the host's
    ca: str = ""  # PEM files, instead of the folder's
    cert: str = ""
    key: str = ""


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    default: str = ""
    fleets: dict[str, Fleet] = {}


@dataclass(frozen=True, slots=True)
class CentralAddress:
    """Where to ask, and how."""

    central: str
    files: TlsFiles
    server_name: str = ""


def resolve(flags: Fleet, fleet: str = "") -> CentralAddress:
    """Return the central to ask: each setting is the first that is given of flag, environment, file of fleets.

    `fleet` (--fleet) precedes the environment; "" = the environment's, else the default.

    Raises:
        ConfigError: a file of fleets is wrong.
        InputError: there is no such fleet, or central's address is not given or not host:port.
        TlsError: a TLS file is not given, or not in its folder.
    """
    environment = Fleet(central=os.environ.get(CENTRAL, ""), tls=os.environ.get(TLS, ""))
    sources, profile = [flags, environment], (Fleet(), "")
    if fleet:
        sources.insert(1, (profile := _profile(fleet))[0])
    elif not _is_enough(sources):  # a file that is not needed is not read
        sources.append((profile := _profile(os.environ.get(FLEET, "")))[0])
    found = next((source for source in sources if source.central), None)
    if found is None and profile[1]:
        raise InputError(f'{profile[1]} has no central: write central = "HOST:PORT" there, or give --central')
    if found is None:
        ways = f"give --central HOST:PORT or --fleet NAME, set {CENTRAL}, or write {_user_file()} or {ETC}"
        raise InputError(f"no central is named: {ways}")
    if found in (flags, environment):  # a file's is checked when it is read
        _check_address(found.central, "--central" if found is flags else CENTRAL)
    # The server name belongs to the central that it was written down with.
    return CentralAddress(found.central, files_in(sources), flags.server_name or found.server_name)


def files_in(sources: Sequence[Fleet]) -> TlsFiles:
    """Return the three TLS files, each of the first source with it or a folder; TlsError if one is missing."""
    return TlsFiles(*(_file(sources, field) for field in _FILES))


def _is_enough(sources: Sequence[Fleet]) -> bool:
    has_files = any(one.tls for one in sources) or all(getattr(sources[0], field) for field in _FILES)
    return has_files and any(one.central for one in sources)


def _check_address(central: str, name: str) -> None:
    scheme, has_scheme, rest = central.partition("://")
    if has_scheme:
        raise InputError(f"{name} must be host:port without {scheme}:// (value {central!r}); give {rest.rstrip('/')}")
    host, _, port = central.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT):
        # gRPC would take another port.
        raise InputError(f"{name} must be host:port, the port from 1 to {MAX_PORT} (value {central!r})")


def _file(sources: Sequence[Fleet], field: str) -> str:
    flags = sources[0]
    for source in sources:
        if given := getattr(source, field):
            return str(given)
        if source.tls:
            name = "ca" if field == "ca" else flags.name or source.name or _OPERATOR
            environment = TLS if source.tls == os.environ.get(TLS) else "tls of the fleet"
            file = f"{name}.{'key' if field == 'key' else 'crt'}"
            return _in_folder(Path(source.tls), file, "--tls" if source is flags else environment)
    given = ((other, source) for other in _FILES for source in reversed(sources) if getattr(source, other))
    others = {other: f"--{other}" if source is flags else f"{other} of the fleet" for other, source in given}
    if others:
        known = " and ".join(others.values())
        raise TlsError(f"--{field} is missing beside {known}: give it too, or --tls DIR (of `whitepanda pki`)")
    ways = f"give --tls DIR (of `whitepanda pki`), set {TLS}, write {_user_file()}, or give --ca, --cert and --key"
    raise TlsError(f"no TLS files are named: {ways}")


def _in_folder(folder: Path, name: str, setting: str) -> str:
    try:
        (folder / name).open("rb").close()
    except OSError as error:
        remedy = "make it with `whitepanda pki`, or give --ca, --cert and --key"
        raise TlsError(f"{setting}: cannot read {folder / name}: {error.strerror}; {remedy}") from error
    return str(folder / name)


def _profile(name: str) -> tuple[Fleet, str]:
    """Return the fleet of that name or the default one, and its place; the user's file precedes the host's."""
    files = [file for file in (_user_file(), ETC) if os.path.lexists(file)]
    known: list[str] = []
    undecided = ""
    for file in files:
        read = load_toml(file, _Profile, check=_problems)
        known += read.fleets
        wanted = name or read.default or (next(iter(read.fleets)) if len(read.fleets) == 1 else "")
        if wanted in read.fleets:
            return _absolute(read.fleets[wanted], file.parent), f"fleet {wanted} of {file}"
        if read.fleets and not undecided:
            first = next(iter(read.fleets))
            remedy = f'--fleet {first}, or default = "{first}" there'
            undecided = f"{file} has fleets {', '.join(read.fleets)} and no default: {remedy}"
    if not name and undecided:
        raise InputError(undecided)
    if not name:
        return Fleet(), ""
    if not files:
        remedy = "write one (docs/operate.md), or give --central HOST:PORT"
        raise InputError(f"no fleet {name!r}: neither {_user_file()} nor {ETC} exists; {remedy}")
    have = f"known: {', '.join(known)}" if known else "no fleet is there"
    raise InputError(f"no fleet {name!r} in {' and '.join(map(str, files))}; {have}")


def _problems(profile: _Profile, wrong: Container[str]) -> Iterator[str]:
    if profile.default and profile.default not in profile.fleets and "fleets" not in wrong:
        known = ", ".join(profile.fleets) or "none"
        yield f"default must be one of the fleets (value {profile.default!r}); known: {known}"
    for name, fleet in profile.fleets.items():
        if fleet.central and (problem := address_problem(f"fleets.{name}.central", fleet.central)):
            yield problem


def _absolute(fleet: Fleet, folder: Path) -> Fleet:
    given = {key: getattr(fleet, key) for key in ("tls", *_FILES)}
    paths = {key: os.path.join(folder, os.path.expanduser(path)) for key, path in given.items() if path}  # noqa: PTH111, PTH118 - without a home it stays
    return msgspec.structs.replace(fleet, **paths)


def _user_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # as its specification has it
        base = os.path.expanduser("~/.config")  # noqa: PTH111 - without a home it stays
    return Path(base) / "whitepanda" / "config.toml"
