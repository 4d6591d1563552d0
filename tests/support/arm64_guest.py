"""Runs a program inside the emulated arm64 machine, whose kernel has a PMU and control groups of its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests" / "lab"


def run_in_guest(folder: Path, main: Path) -> list[Any]:
    """Boot the guest with `main` and the repository's `collector`, and return what `main` prints after "RESULT".

    Args:
        folder: throw-away; `app` in it becomes the guest's /app, and may have more files.
        main: the program.

    """
    if os.geteuid() != 0:
        pytest.skip("needs root: the guest is unpacked and packed with its files' owners")
    for tool in ("qemu-system-aarch64", "cpio", "apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: qemu-system-arm, cpio)")
    build = subprocess.run([LAB / "arm64_build.sh"], capture_output=True, text=True, timeout=300, check=False)
    if build.returncode:
        pytest.skip(f"the arm64 guest's packages are not available: {build.stderr.strip()[-300:]}")
    app = folder / "app"
    shutil.copytree(ROOT / "collector", app / "collector", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("__init__.py", "common/__init__.py", "common/texts.py"):  # all that sources need beside it
        (app / "whitepanda" / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "proto" / "whitepanda" / part, app / "whitepanda" / part)
    shutil.copy(main, app / "main.py")
    # The guest's time is that of its instructions, so that it may be slow where others want the CPU too.
    run = subprocess.run(
        [LAB / "arm64_run.sh", folder],
        capture_output=True,
        text=True,
        timeout=630,
        check=False,
        env={**os.environ, "TIMEOUT_S": "600"},
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "GUEST EXIT 0" in run.stdout, run.stdout[-4000:]
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line[7:]) for line in lines]
