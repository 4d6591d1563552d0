"""The Debian packages of this checkout, built once for all tests of a run, and others that differ in one thing."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "0.1.0-1", "0.2.0-1"


def builder():
    """The module tools/build_debs.py."""
    tools = str(ROOT / "tools")
    if tools not in sys.path:
        sys.path.insert(0, tools)
    return importlib.import_module("build_debs")


def need_debian():
    """Skip where packages cannot be built."""
    if not builder().PYTHON.exists():
        pytest.skip(f"needs {builder().PYTHON} (Debian 12: python3)")
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb (Debian: dpkg)")


class Built:
    """One side's packages: `old` from the checkout; `new`, a higher version whose configuration file is another."""

    def __init__(self, side: str, folder: Path) -> None:
        build = builder()
        self.package = build.Package(side, folder / "work", build.source_date())
        self.out = folder / "out"
        self.package.stage()
        self.old = self.package.pack(self.out, OLD)
        with self._changed(f"etc/whitepanda/{side}.toml", lambda text: text + "\n# new in 0.2\n"):
            self.new = self.package.pack(self.out, NEW)

    def _changed(self, place, change):
        return Changed(self.package.tree / place, change)


class Changed:
    """A file that is another one meanwhile."""

    def __init__(self, path: Path, change) -> None:
        self.path, self.change = path, change

    def __enter__(self):
        self.before = self.path.read_text(encoding="utf-8")
        self.path.write_text(self.change(self.before), encoding="utf-8")

    def __exit__(self, *_):
        self.path.write_text(self.before, encoding="utf-8")


def field(deb: Path, name: str) -> str:
    """A field of a package's control file."""
    return subprocess.run(
        ["dpkg-deb", "-f", deb, name], capture_output=True, text=True, check=True
    ).stdout.strip()
