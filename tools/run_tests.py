"""Run all tests that `make test` promises, in processes beside each other where nothing but CPU time is shared.

Most tests wait (for ticks, deadlines, servers of their own), so they run beside each other: the unit tests, in two
parts of like length, and the integration tests that bring all that they talk to, on ports and in namespaces of their
own. After them, alone, run those marked `alone`: of the lab, for the machine has one libvirtd, and those that measure
time or shares of CPUs. One of these that fails is repeated once, for another machine may have taken the CPUs meanwhile;
both outcomes stand in the last lines, and a second failure fails.
Of the long tests those that only compute run meanwhile, in two parts at idle priority: they take what these leave of
the CPUs.
Each process is a pytest of its own with CI's policy for skipped tests. Each test runs in exactly one of them.

    tools/run_tests.py [argument of pytest ...]    with arguments: one pytest with just these
    tools/run_tests.py --long                      what `make test-long` promises, likewise
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each process has a core, not all of them
#: What is compiled once is kept, also where this is set: hundreds of processes are started from these sources.
_KEEP_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
#: What JAX has compiled, many processes run: it is most of what a small fit takes.
_JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
_JAX_CACHES_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
_CENTRAL = "tests/unit/central"  # half of all unit tests
_FIRST = ("[a-c]*", "debian*")  # half of what the other long integration tests take
#: What of the integration tests has to do with the host: one after the other. The rest, central's, is a further part.
_HOST = ("arm64", *(f"test_{name}*.py" for name in ("demo", "host", "pqos", "record", "resctrl", "systemd")))
#: How many seconds a long test may take; which take longest is printed.
_LONG = ("--timeout", "1500", "--durations", "40", "--durations-min", "8")
_DEBS = "WHITEPANDA_TEST_DEBS"  # a folder in which the parts leave packages for each other: they take a minute to build
_MEMORY = "/dev/shm"  # noqa: S108 - a folder of random name is made in it
_ROOM_BYTES = 8 << 30
_CAMPAIGNS = "tests/unit/agent/calibrate"  # measures latencies, as no other unit test does
#: Two parts whose long tests only compute.
_COMPUTE = (
    ("tests/unit", f"--ignore={_CAMPAIGNS}"),
    (
        "tests/bench",
        *(f"tests/integration/test_{name}.py" for name in ("google_replay", "openapi", "swan_degradation")),
    ),
)
_IDLE = ("chrt", "--idle", "0")
#: How many times longer their waits and limits are: whatever else runs on the machine takes all CPUs from them.
_PATIENCE = {"WHITEPANDA_TEST_PATIENCE": "5"}
_TESTS_FAILED = 1  # pytest's exit status


def parts(root: Path = ROOT) -> tuple[list[list[str]], list[str]]:
    """Return pytest's arguments for what runs beside each other, and for what runs alone after that."""
    folder = root / "tests" / "integration"
    host = sorted(str(path.relative_to(root)) for pattern in _HOST for path in folder.glob(pattern))
    central = ["tests", *(f"--ignore={path}" for path in ("tests/unit", *host))]
    beside = [[*paths, "-m", "not long and not alone"] for paths in (host, central)]
    beside += [[_CENTRAL], ["tests/unit", f"--ignore={_CENTRAL}"]]
    return beside, ["tests", "--ignore=tests/unit", "-m", "alone and not long"]


def long_parts() -> tuple[list[list[str]], list[str], list[list[str]]]:
    """Return the same of the long tests, and those that only compute: they take the time that `alone` leaves."""
    folder = ROOT / "tests" / "integration"
    first = sorted(str(path.relative_to(ROOT)) for name in _FIRST for path in folder.rglob(f"test_{name}.py"))
    rest = ["tests", *(f"--ignore={path}" for part in _COMPUTE for path in part if not path.startswith("-"))]
    second = [*rest, *(f"--ignore={path}" for path in first)]
    halves = [[*half, *_LONG, "-m", "long and not alone"] for half in ([_CAMPAIGNS, *first], second)]
    return halves, [*rest, *_LONG, "-m", "long and alone"], [[*part, *_LONG, "-m", "long"] for part in _COMPUTE]


def run(
    beside: Sequence[Sequence[str]], alone: Sequence[str], idle: Sequence[Sequence[str]] = (), root: Path = ROOT
) -> int:
    """Run the parts; print what each says when it is over, that of `alone` immediately. `idle` gives way to `alone`.

    Returns:
        0 if all parts passed, else the first other exit status.

    """
    with tempfile.TemporaryDirectory() as debs, tempfile.TemporaryDirectory(prefix="", dir=_in_memory()) as temporary:
        # Tests flush many small files, which costs them a fifth of their time on a disk.
        compiled = {_JAX_CACHE: tempfile.mkdtemp(prefix="", dir=temporary), **_JAX_CACHES_ALL}
        environment = os.environ | _KEEP_COMPILED | {_DEBS: debs} | compiled
        return _run(beside, alone, idle, _Place(root, environment, temporary))


def _in_memory() -> str | None:
    """Return a file system in memory with enough room; None without one."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
            return _MEMORY
    return None


def _run(beside: Sequence[Sequence[str]], alone: Sequence[str], idle: Sequence[Sequence[str]], place: "_Place") -> int:
    began = time.monotonic()
    with _started(beside, (), place) as running:
        statuses = [_ended(*part, began) for part in running]
    print(f"== {' '.join(alone)}", flush=True)
    with _started(idle, _IDLE, place) as running, tempfile.TemporaryDirectory() as kept:
        command = [*_pytest(alone), "-o", f"cache_dir={kept}"]
        status = subprocess.run(command, check=False, cwd=place.root, env=place.environment).returncode
        statuses += [_ended(*part, began) for part in running]
        failed = _failed(kept) if status == _TESTS_FAILED else []
        if failed:
            print(f"== again, what failed of {' '.join(alone)}", flush=True)
            command += ["--last-failed", "--last-failed-no-failures", "none"]
            status = subprocess.run(command, check=False, cwd=place.root, env=place.environment).returncode
        twice = _failed(kept)
    statuses.append(status)
    print(f"== all parts: {time.monotonic() - began:.0f} s, exit statuses {statuses}", flush=True)
    outcomes = {True: "failed, and failed again", False: "failed, and passed when repeated"}
    for name in failed:
        print(f"== {name}: {outcomes[name in twice]}", flush=True)
    return next((status for status in statuses if status), 0)


class _Place(NamedTuple):
    """What all parts have in common."""

    root: Path
    environment: dict[str, str]
    files: str  # a folder for their tests' files


#: A part: its arguments, its process, and what it says.
_Part = tuple[Sequence[str], "subprocess.Popen[bytes]", IO[bytes]]


@contextlib.contextmanager
def _started(parts: Sequence[Sequence[str]], before: Sequence[str], place: _Place) -> Iterator[list[_Part]]:
    """Start parts, each by a command that begins with `before`; end those that still run when the caller fails."""
    running: list[_Part] = []
    with contextlib.ExitStack() as stack:
        for arguments in parts:
            said = stack.enter_context(tempfile.TemporaryFile())
            # No longer than pytest's own path: there are sockets in it.
            files = tempfile.mkdtemp(prefix="", dir=place.files)
            process = subprocess.Popen(
                [*before, *_pytest(arguments), "--basetemp", files],
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=place.root,
                env=place.environment | _ONE_THREAD | (_PATIENCE if before else {}),
            )
            stack.callback(_end, process)
            running.append((arguments, process, said))
        yield running


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def _ended(arguments: Sequence[str], process: "subprocess.Popen[bytes]", said: IO[bytes], began: float) -> int:
    """Wait for a part, print what it said, and return its exit status."""
    status = process.wait()
    said.seek(0)
    text = said.read().decode(errors="replace")
    print(f"== {' '.join(arguments)}: {time.monotonic() - began:.0f} s\n{text}", flush=True)
    return status


def _failed(cache: str) -> list[str]:
    """Return the names of the tests that failed in the last run that kept its cache there."""
    try:
        return sorted(json.loads(Path(cache, "v", "cache", "lastfailed").read_text()))
    except FileNotFoundError:
        return []


def _pytest(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", "not long", *arguments]


def main() -> int:
    """Run what the command line says."""
    arguments = sys.argv[1:]
    if arguments == ["--long"]:
        return run(*long_parts())
    if arguments:
        return subprocess.run(_pytest(arguments), check=False, cwd=ROOT).returncode
    beside, alone = parts()
    return run(beside, alone)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
