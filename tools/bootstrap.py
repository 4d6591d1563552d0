"""Make the environment .venv with only Python's standard library: no pip, no python3-venv, no compiler needed.

python3 tools/bootstrap.py [--copy] EXTRA [EXTRA ...]     EXTRA: base, central, dev, docs, host, spark, predict, s3,
top, train

--copy installs the product into the environment instead of linking to this checkout.
$WHITEPANDA_VENV names another place for it.

pip comes from the wheel beside this file (pip's own release, MIT licence), because a fresh Debian has none. Which index
is used is the machine's own pip configuration. All of base, central and dev installs from binary wheels only; `host`
(libvirt-python is source only) needs gcc, pkg-config and libvirt-dev; `spark` (pyspark is source only too, but nothing
is compiled) needs a Java to run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("WHITEPANDA_VENV", ROOT / ".venv"))
PIP = next((ROOT / "tools").glob("pip-*.whl"))
EXTRAS = ("base", "central", "dev", "docs", "host", "spark", "predict", "s3", "top", "train")
SOURCE_ONLY = {"host": "libvirt-python,ovs", "spark": "pyspark"}


def pip(*arguments: str) -> None:
    """Run the bundled pip inside the environment."""
    command = [str(VENV / "bin" / "python"), f"{PIP}/pip", "--disable-pip-version-check", *arguments]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise SystemExit(
            f"whitepanda: pip {arguments[0]} failed (exit {code}); what pip printed above says why"
        )


def stamp(extra: str) -> tuple[Path, str]:
    """Return the file that remembers an installed extra, and what it must say to be up to date."""
    inputs = [ROOT / "pyproject.toml", ROOT / "requirements" / f"{extra}.lock", Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    return VENV / f".whitepanda-{extra}", f"{digest} {ROOT}\n"


def main(extras: list[str]) -> int:
    """Create or update the environment."""
    copy = "--copy" in extras
    extras = [extra for extra in extras if extra != "--copy"]
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what tells users of old Pythons
        print(f"whitepanda needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    unknown = [extra for extra in extras if extra not in EXTRAS]
    if unknown or not extras:
        print(
            f"usage: bootstrap.py [--copy] EXTRA [EXTRA ...], EXTRA one of {', '.join(EXTRAS)}",
            file=sys.stderr,
        )
        return 2
    if not (VENV / "bin" / "python").exists():
        venv.EnvBuilder(with_pip=False, symlinks=True).create(VENV)
    fresh = False
    for extra in extras:
        path, text = stamp(extra)
        if path.exists() and path.read_text() == text:
            continue
        source = SOURCE_ONLY.get(extra)
        binary = ["--no-binary", source] if source else ["--only-binary", ":all:"]
        print(f"whitepanda: installing {extra} into {VENV.name} ...", file=sys.stderr, flush=True)
        pip("install", "-qq", *binary, "--requirement", str(ROOT / "requirements" / f"{extra}.lock"))
        if not fresh:
            pip("install", "-qq", "--no-deps", *([] if copy else ["--editable"]), str(ROOT))
            fresh = True
        path.write_text(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        raise SystemExit(f"whitepanda: cannot set up {VENV}: {error}") from error
