"""How to install the extras of whitepanda. No package index has whitepanda itself."""

_PACKAGES = {"host": "whitepanda-agent", "top": "whitepanda-agent", "central": "whitepanda-central"}


def how_to_install(extra: str) -> str:
    """Return the remedy, for a line's end, if an extra of pyproject.toml is missing."""
    package = f", or the Debian package {_PACKAGES[extra]}" if extra in _PACKAGES else ""
    return f"install it: `python3 tools/bootstrap.py {extra}` in a checkout{package}"
