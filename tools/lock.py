"""Write the hashes of all files of each pinned version into requirements/*.lock, and check the locks.

tools/lock.py             ask the package index for the files of each pinned version, and write their SHA-256
tools/lock.py --check     offline: every requirement is pinned with hashes, the locks agree with each other
                          and have what pyproject.toml requires

The index comes from your pip configuration; no lock names one. A locked hash that the index does not know is an
error: a file was replaced, or the version was changed by hand and its old hashes left. How to renew a lock is in
docs/packages.md#supply-chain. Needs only Python and the pip wheel beside this file.
"""

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
PIP = next((ROOT / "tools").glob("pip-*.whl"))
#: What builds wheels, and pip itself, which is in the repository: no extras of pyproject.toml.
BUILD, INSTALLER = "build", "pip"
#: Which extras of pyproject.toml a lock has, where these are not just the one of its name.
EXTRAS = {"base": (), "dev": ("dev", "central", "s3", "train", "top")}
_PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pin:
    """One requirement of a lock: `name==version`, when it applies ("": always), and what its files may be."""

    requirement: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The distribution's name, as the lock spells it."""
        return self.requirement.partition("==")[0]

    @property
    def version(self) -> str:
        """The one version that may be installed."""
        return self.requirement.partition("==")[2]


def parse(text: str, place: str) -> list[Pin]:
    """Return a lock's requirements.

    Args:
        text: of the lock.
        place: its name, for errors.

    Raises:
        SystemExit: a line is anything but a pinned version with hashes, such as an option, a URL or a range.

    """
    pins = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        hashes = [found for word in words if (found := _HASH.fullmatch(word))]
        requirement, _, marker = " ".join(words[: len(words) - len(hashes)]).partition(" ; ")
        if not _PINNED.fullmatch(requirement) or "--" in marker:
            raise SystemExit(
                f"whitepanda: {place}: {line.strip()[:120]!r} is no name==version with sha256 hashes; "
                "write one version, delete its hashes, and run tools/lock.py"
            )
        pins.append(Pin(requirement, marker, tuple(found[1] for found in hashes)))
    return pins


def read(name: str) -> list[Pin]:
    """Return the requirements of requirements/NAME.lock."""
    return parse((LOCKS / f"{name}.lock").read_text(encoding="utf-8"), f"requirements/{name}.lock")


def render(pins: list[Pin]) -> str:
    """Return a lock's text."""
    heads = (f"{pin.requirement} ; {pin.marker}" if pin.marker else pin.requirement for pin in pins)
    return "".join(
        " \\\n    ".join([head, *(f"--hash={value}" for value in pin.hashes)]) + "\n"
        for head, pin in zip(heads, pins, strict=True)
    )


def every_lock() -> dict[str, list[Pin]]:
    """Return all locks by name."""
    return {path.stem: read(path.stem) for path in sorted(LOCKS.glob("*.lock"))}


def _find_pip() -> None:
    """Let the bundled pip be imported, before any other; it brings its own copy of `packaging`."""
    if str(PIP) not in sys.path:
        sys.path.insert(0, str(PIP))


# -- the index ---------------------------------------------------------------------------------------------------------


class Index:
    """The package indexes of the machine's pip configuration, asked through the bundled pip."""

    def __init__(self) -> None:
        _find_pip()
        from pip._internal.commands import create_command  # noqa: PLC0415 - of the wheel
        from pip._internal.index.collector import LinkCollector  # noqa: PLC0415

        command = create_command("index")
        options, _ = command.parse_args(["--quiet", "--quiet"])
        self._collector = LinkCollector.create(command._build_session(options), options=options)  # noqa: SLF001
        self._pages: dict[str, list] = {}

    def _links(self, name: str) -> list:
        from pip._internal.index.collector import parse_links  # noqa: PLC0415
        from pip._internal.models.link import Link  # noqa: PLC0415

        if name not in self._pages:
            found = self._pages[name] = []
            for url in self._collector.search_scope.get_index_urls_locations(name):
                page = self._collector.fetch_response(Link(url), name)
                found += parse_links(page) if page else ()
        return self._pages[name]

    def hashes(self, pin: Pin) -> tuple[str, ...]:
        """Return the hashes of all wheels and source archives of a version, sorted.

        Raises:
            SystemExit: there is none, or indexes disagree about a file.

        """
        known: dict[str, str] = {}
        for link in self._links(pin.name):
            if version_of(link.filename) != (canonical(pin.name), pin.version) or link.hash_name != "sha256":
                continue
            value = f"sha256:{link.hash}"
            if known.setdefault(link.filename, value) != value:
                raise SystemExit(
                    f"whitepanda: {link.filename} is {known[link.filename]} on one index and {value} on another; "
                    "find out which is the maker's, and leave out the other index"
                )
        if not known:
            raise SystemExit(f"whitepanda: no index of pip's configuration has {pin.requirement} with hashes")
        return tuple(sorted(known.values()))


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version_of(file: str) -> tuple[str, str] | None:
    """Return the canonical name and the version of a file; None for what is neither a wheel nor a source archive."""
    _find_pip()
    from pip._vendor.packaging import utils  # noqa: PLC0415

    parsers = ((".whl", utils.parse_wheel_filename), (".tar.gz", utils.parse_sdist_filename))
    for suffix, parser in (*parsers, (".zip", utils.parse_sdist_filename)):
        if file.endswith(suffix):
            try:
                name, version = parser(file)[:2]
            except (utils.InvalidWheelFilename, utils.InvalidSdistFilename):
                return None
            return str(name), str(version)
    return None


def renewed(pin: Pin, hashes: tuple[str, ...]) -> Pin:
    """Return a requirement with the hashes that the index has.

    Raises:
        SystemExit: one that is locked is not among them.

    """
    gone = sorted(set(pin.hashes) - set(hashes))
    if gone:
        raise SystemExit(
            f"whitepanda: {pin.requirement}: no index has the locked {gone[0]}. If you changed the version, "
            "delete its hashes; if not, its files were replaced or removed: find out why before you take others"
        )
    return replace(pin, hashes=hashes)


# -- the check ---------------------------------------------------------------------------------------------------------


def problems(locks: dict[str, list[Pin]], project: dict) -> list[str]:
    """Return what is wrong with locks, one line each.

    Args:
        locks: by name.
        project: pyproject.toml.

    """
    found = [
        f"{name}.lock: {pin.requirement} has no hash; run tools/lock.py"
        for name, pins in locks.items()
        for pin in pins
        if not pin.hashes
    ]
    first: dict[tuple[str, str], tuple[str, Pin]] = {}
    for name, pins in locks.items():
        for pin in pins:
            other, same = first.setdefault((pin.name, pin.marker), (name, pin))
            if same != pin:
                what = "other hashes" if same.version == pin.version else f"another version ({pin.version})"
                found.append(f"{name}.lock: {pin.name} has {what} than {other}.lock ({same.version}); pin the same")
        found += [
            f"{name}.lock: nothing in it satisfies {wanted} of pyproject.toml; pin a version"
            for wanted in direct(name, project)
            if not any(satisfies(pin, wanted) for pin in pins)
        ]
    return found


def direct(lock: str, project: dict) -> list[str]:
    """Return what pyproject.toml requires of a lock."""
    if lock == BUILD:
        return project["build-system"]["requires"]
    if lock == INSTALLER:
        return []
    extras = project["project"]["optional-dependencies"]
    wanted = list(project["project"]["dependencies"])
    for extra in EXTRAS.get(lock, (lock,)):
        wanted += extras[extra]
    return wanted


def satisfies(pin: Pin, wanted: str) -> bool:
    """Return whether a pinned version is one that a requirement of pyproject.toml allows."""
    _find_pip()
    from pip._vendor.packaging.requirements import Requirement  # noqa: PLC0415

    requirement = Requirement(wanted)
    same = canonical(requirement.name) == canonical(pin.name)
    return same and requirement.specifier.contains(pin.version, prereleases=True)


def main(arguments: list[str]) -> int:
    """Do what the module's text says."""
    parser = argparse.ArgumentParser(description="Write the hashes of requirements/*.lock, or check the locks.")
    parser.add_argument("--check", action="store_true", help="check only, without the network")
    asked = parser.parse_args(arguments)
    locks = every_lock()
    if not asked.check:
        index = Index()
        for name, pins in locks.items():
            locks[name] = [renewed(pin, index.hashes(pin)) for pin in pins]
        for name, pins in locks.items():
            (LOCKS / f"{name}.lock").write_text(render(pins), encoding="utf-8")
    wrong = problems(locks, tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    for line in wrong:
        print(f"whitepanda: requirements/{line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
