"""Python code run where /sys/fs/resctrl is the look-alike (tests/lab/resctrl_ns.sh)."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import atexit, errno, os, pathlib, subprocess, sys, threading, time
R = pathlib.Path("/sys/fs/resctrl")
A = R / "mon_groups/a"

def error_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno

def status():
    return (R / "info/last_cmd_status").read_text().strip()

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def counters(group):
    return [int(path.read_text()) for path in sorted(group.glob("mon_data/*/*"))]
"""


def needs_lookalike() -> None:
    """Skip where the look-alike cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace")
    if shutil.which("unshare") is None or not Path("/usr/lib/python3/dist-packages/fusepy.py").exists():
        pytest.skip("needs unshare and fusepy (Debian: util-linux, python3-fusepy, libfuse2)")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")


def run_inside(code: str, *options: str, timeout_s: float = 50) -> str:
    """Run code after the prelude, with options for the look-alike; returns what it printed."""
    needs_lookalike()
    result = subprocess.run(
        [ROOT / "tests/lab/resctrl_ns.sh", *options, "--", sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return result.stdout
