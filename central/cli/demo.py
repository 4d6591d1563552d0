"""`whitepanda demo`: central and four simulated hosts on this machine, and an antagonist found among them."""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from central.cli.shared.outputs import JsonOption
from central.demo.outcome import Outcome
from central.demo.run import Demo
from central.demo.show import LiveShow, PlainShow, Show, print_next_step, print_outcome, print_where
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_DEFAULT_SEED = 1
_MAX_SEED = 2**31
_SHORT = ("/tmp", "/dev/shm")  # noqa: S108 - private folders are made in them
_MAX_SHORT = 60  # bytes of a path that leaves room for a folder's and a socket's name


def demo(
    seed: Annotated[int, typer.Option(min=0, max=_MAX_SEED, help="Seed of fleet and antagonist.")] = _DEFAULT_SEED,
    keep: Annotated[Path | None, typer.Option(help="Folder to make and keep: configurations, logs, truth.")] = None,
    *,
    stay: Annotated[
        bool, typer.Option("--stay", help="Continue until Ctrl-C, with the fleet page, top and incidents to look at.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start central and four simulated hosts, inject an antagonist, and see who is blamed.

    Real processes over real mTLS on the loopback; only the hypervisors are simulated, and the days before.

    It takes less than a minute.
    """
    is_staying = False
    try:
        with _signals_as_exit(), _folders(keep) as (work, sockets):
            show: Show = (
                LiveShow(console) if console.is_terminal and not json else PlainShow(errors if json else console)
            )
            running = Demo(seed, work, sockets, show)
            try:
                outcome = running.run()
                show.close()
                _tell(outcome, as_json=json)
                if stay:
                    is_staying = True
                    # After `make demo` this program is not on the PATH.
                    program = "whitepanda" if shutil.which("whitepanda") else str(Path(sys.argv[0]).absolute())
                    print_where(
                        errors if json else console,
                        page=running.page(),
                        host=outcome.host,
                        top=shlex.join([program, "top", "--socket", str(running.socket())]),
                        incidents=shlex.join([program, "incidents", "list", *running.asking()]),
                    )
                    running.stay()
                elif not json:
                    print_next_step(console)
            finally:
                # Nothing may interrupt the end of all processes, which takes seconds.
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                show.close()
                running.close()
    except SystemExit:  # a signal; by now all processes and folders are gone
        errors.print("stopped")
        if not is_staying:  # a signal is how --stay ends, and no failure
            raise


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome.to_json())
    else:
        print_outcome(console, outcome)
    if not outcome.correct:
        raise UnavailableError(
            f"demo: the first suspect on {outcome.host} is {outcome.first_suspect}, "
            f"but {outcome.injected_antagonist} was injected (seed {outcome.seed})"
        )


@contextlib.contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Turn the signals that end a program into an exception, so that everything is cleaned up."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _folders(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    """Make the folder of the run and a short-named one for sockets (their paths are limited to 107 bytes)."""
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except FileExistsError as error:
            raise InputError(f"demo: --keep {keep} exists already; name a new folder") from error
        except OSError as error:
            raise InputError(f"demo: cannot make the folder --keep {keep}: {error.strerror}") from error
    with contextlib.ExitStack() as temporary:
        work = keep.resolve() if keep is not None else _temporary_folder(temporary, [tempfile.gettempdir()])
        # TMPDIR may be too long for a socket's path.
        short = [parent for parent in (tempfile.gettempdir(), *_SHORT) if len(os.fsencode(parent)) <= _MAX_SHORT]
        yield work, _temporary_folder(temporary, short)


def _temporary_folder(until: contextlib.ExitStack, parents: list[str]) -> Path:
    """Make a private folder in the first of `parents` that allows it, and remove it at the end of `until`."""
    why = ""
    for parent in parents:
        try:
            made = tempfile.TemporaryDirectory(prefix="whitepanda-demo-", dir=parent, ignore_cleanup_errors=True)
            return Path(until.enter_context(made)).resolve()
        except OSError as error:
            why = f"{parent}: {error.strerror}"
    raise UnavailableError(f"demo: cannot make a temporary folder ({why}); set TMPDIR to a folder that you may write")
