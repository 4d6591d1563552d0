"""How to install what a part of whitepanda needs beside its base. No package index has whitepanda itself."""

from __future__ import annotations

__all__ = ["how_to_install"]

_PACKAGES = {"host": "whitepanda-agent", "top": "whitepanda-agent", "central": "whitepanda-central"}


def how_to_install(extra: str) -> str:
    """Return the remedy where an extra of pyproject.toml is missing, to stand at a line's end."""
    package = f", or the Debian package {_PACKAGES[extra]}" if extra in _PACKAGES else ""
    return f"install it: `python3 tools/bootstrap.py {extra}` in a checkout{package}"
