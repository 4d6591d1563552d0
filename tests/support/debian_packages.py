"""The Debian packages of this checkout, built once for all tests of a run, and others that differ in one thing."""

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "0.1.0-1", "0.2.0-1"


def tool(name: str):
    """A module of tools/, whose scripts import each other."""
    tools = str(ROOT / "tools")
    if tools not in sys.path:
        sys.path.insert(0, tools)
    return importlib.import_module(name)


def need_debian():
    """Skip where packages cannot be built."""
    python = tool("build_debs").PYTHON
    if not python.exists():
        pytest.skip(f"needs {python} (Debian 12: python3)")
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb (Debian: dpkg)")


def _kept() -> Path | None:
    """Where one run's processes keep packages for each other; None: this pytest runs by itself."""
    folder = os.environ.get("WHITEPANDA_TEST_DEBS", "")
    return Path(folder) if folder else None


def keep(deb: Path) -> None:
    """Leave a package for the run's later processes."""
    folder = _kept()
    if folder is not None:
        half = folder / f".{deb.name}"
        shutil.copy(deb, half)
        half.rename(folder / deb.name)


def packages(folder: Path) -> list[Path]:
    """Return the packages of both sides as `make deb` makes them: the run's, else built in `folder`."""
    need_debian()
    build = tool("build_debs")
    found = []
    for side in ("agent", "central"):
        kept = list((_kept() or folder).glob(f"whitepanda-{side}_{OLD}_*.deb"))
        if not kept:
            package = build.Package(side, folder / "work", build.source_date())
            package.stage()
            kept = [package.pack(folder, OLD)]
            keep(kept[0])
        found += kept
    return found


class Built:
    """One side's packages: `old` from the checkout; `new`, a higher version whose configuration file is another."""

    def __init__(self, side: str, folder: Path) -> None:
        build = tool("build_debs")
        self.package = build.Package(side, folder / "work", build.source_date())
        self.out = folder / "out"
        self.package.stage()
        self.old = self.package.pack(self.out, OLD)
        configuration = self.package.tree / f"etc/whitepanda/{side}.toml"
        text = configuration.read_text(encoding="utf-8")
        configuration.write_text(text + "\n# new in 0.2\n", encoding="utf-8")
        self.new = self.package.pack(self.out, NEW)
        configuration.write_text(text, encoding="utf-8")
