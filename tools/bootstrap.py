"""Make the environment .venv with only Python's standard library: no pip, no python3-venv, no compiler needed.

python3 tools/bootstrap.py [--copy] EXTRA [EXTRA ...]     EXTRA: base, central, dev, docs, host, spark, predict, s3,
top, train

--copy installs the product into the environment instead of linking to this checkout.
$WHITEPANDA_VENV names another place for it.

pip comes from the wheel beside this file (pip's own release, MIT licence), because a fresh Debian has none. Which index
is used is the machine's own pip configuration. pip refuses a file whose hash is not in requirements/*.lock, also of
what builds (build.lock). All of base, central and dev installs from binary wheels only; `host`
(libvirt-python is source only) needs gcc, pkg-config and libvirt-dev; `spark` (pyspark is source only too, but nothing
is compiled) needs a Java to run.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("WHITEPANDA_VENV", ROOT / ".venv"))
PIP = next((ROOT / "tools").glob("pip-*.whl"))
BUILD = ROOT / "requirements" / "build.lock"
EXTRAS = ("base", "central", "dev", "docs", "host", "spark", "predict", "s3", "top", "train")
SOURCE_ONLY = {"host": ("libvirt-python", "ovs"), "spark": ("pyspark",)}
LOCKED = ("install", "-qq", "--require-hashes")


def pip(*arguments: str, tools: str = "") -> None:
    """Run the bundled pip inside the environment.

    Args:
        *arguments: of pip.
        tools: folder of the locked build tools; "": nothing is built.

    """
    command = [str(VENV / "bin" / "python"), f"{PIP}/pip", "--disable-pip-version-check", *arguments]
    variables = {**os.environ, "PYTHONPATH": tools} if tools else None
    code = subprocess.run(command, check=False, env=variables).returncode
    if code:
        raise SystemExit(f"whitepanda: pip {arguments[0]} failed (exit {code}); what pip printed above says why")


def stamp(extra: str) -> tuple[Path, str]:
    """Return the file that remembers an installed extra, and what it must say to be up to date."""
    inputs = [ROOT / "pyproject.toml", ROOT / "requirements" / f"{extra}.lock", BUILD, Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    return VENV / f".whitepanda-{extra}", f"{digest} {ROOT}\n"


def up_to_date(extra: str) -> bool:
    """Return whether an extra is installed as its lock says."""
    path, text = stamp(extra)
    return path.exists() and path.read_text() == text


def install(extra: str, tools: str) -> None:
    """Install the files that an extra's lock allows.

    Args:
        extra: its name.
        tools: folder of the locked build tools.

    """
    import lock  # noqa: PLC0415 - needs a Python that `main` has checked

    print(f"whitepanda: installing {extra} into {VENV.name} ...", file=sys.stderr, flush=True)
    sources = SOURCE_ONLY.get(extra, ())
    if sources:
        pins = [pin for pin in lock.read(extra) if pin.name in sources]
        file = Path(tools) / f"{extra}.lock"
        file.write_text(lock.render(pins), encoding="utf-8")
        build = ["--no-deps", "--no-build-isolation", "--no-binary", ",".join(sources)]
        pip(*LOCKED, *build, "-r", str(file), tools=tools)
    pip(*LOCKED, "--only-binary", ":all:", "-r", str(ROOT / "requirements" / f"{extra}.lock"))


def main(extras: list[str]) -> int:
    """Create or update the environment."""
    copy = "--copy" in extras
    extras = [extra for extra in extras if extra != "--copy"]
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what tells users of old Pythons
        print(f"whitepanda needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    unknown = [extra for extra in extras if extra not in EXTRAS]
    if unknown or not extras:
        print(f"usage: bootstrap.py [--copy] EXTRA [EXTRA ...], EXTRA one of {', '.join(EXTRAS)}", file=sys.stderr)
        return 2
    if not (VENV / "bin" / "python").exists():
        venv.EnvBuilder(with_pip=False, symlinks=True).create(VENV)
    stale = [extra for extra in extras if not up_to_date(extra)]
    if stale:
        with tempfile.TemporaryDirectory(prefix="whitepanda-build-") as tools:
            pip(*LOCKED, "--no-deps", "--only-binary", ":all:", "--target", tools, "-r", str(BUILD))
            for extra in stale:
                install(extra, tools)
            # Whatever this needs is there already: the lock's libraries and the build tools.
            product = ["--no-deps", "--no-index", "--no-build-isolation"]
            pip("install", "-qq", *product, *([] if copy else ["--editable"]), str(ROOT), tools=tools)
        for extra in stale:
            path, text = stamp(extra)
            path.write_text(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        raise SystemExit(f"whitepanda: cannot set up {VENV}: {error}") from error
