"""`--at`: a moment of the host's history, from the agent, or from its files where it is stopped and root asks."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agent.api.client import answers, connect, find_config, find_socket
from agent.cli._options import print_problem
from agent.history.reader import History
from agent.history.times import parse_time, shown_ns
from agent.history.writer import FOLDER
from whitepanda.common.cli import console
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.texts import clean_name
from whitepanda.v1 import host_pb2

AtOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Show a moment of the past: 03:10, 2026-11-28T03:10, or -30m.")
]
Ask = Callable[[host_pb2.GetMomentsRequest], host_pb2.GetMomentsResponse]

_LEAST_SPAN_NS = 10 * 10**9  # a moment counts for so long where nothing newer is kept


def asker(socket: Path | None, config: Path | None) -> Ask:
    """Return what answers questions about the past.

    UnavailableError, when it is asked: no agent answers, and this user may not read its files.
    """
    path = find_socket(socket, config)
    files: list[History] = []

    def ask(request: host_pb2.GetMomentsRequest) -> host_pb2.GetMomentsResponse:
        try:
            with connect(path) as client:
                return client.moments(request)
        except UnavailableError as error:
            if answers(path):
                raise
            folder = Path(find_config(config)[0].agent.state_dir) / FOLDER
            if not os.access(folder, os.R_OK | os.X_OK):
                raise UnavailableError(f"{error}; or ask as root, who can read {folder} without it") from error
            if not files:
                files.append(History(folder))
            return files[0].moments(request)

    return ask


def unix_ns_of(option: str, text: str) -> int:
    """Return the Unix time that an option gives. InputError: it is none, or in the future."""
    return round(parse_time(option, text, datetime.now().astimezone()).timestamp() * 1e9)


def moment_at(text: str, socket: Path | None, config: Path | None, explain: str = "") -> host_pb2.Moment:
    """Return the moment of `--at`, and say on standard error what is damaged.

    InputError: it is no time, nothing is kept of then, or no VM had the name to explain. UnavailableError: see `asker`.
    """
    at_ns = unix_ns_of("--at", text)
    request = host_pb2.GetMomentsRequest(at_unix_ns=at_ns, after=1, explain=clean_name(explain))
    answer = asker(socket, config)(request)
    for problem in answer.problems:
        print_problem("warning", problem)
    moment = answer.moments[0]
    if moment.unix_ns > at_ns:
        raise InputError(f"--at: nothing is kept of {shown_ns(at_ns)}; the history begins at {_begin(answer)}")
    if at_ns - moment.unix_ns > max(_LEAST_SPAN_NS, 2 * moment.span_ms * 10**6):
        until = f"to {shown_ns(answer.moments[1].unix_ns)}" if len(answer.moments) > 1 else "on"
        why = f"nothing is kept from {shown_ns(moment.unix_ns)} {until}, the agent did not run then"
        raise InputError(f"--at: nothing is kept of {shown_ns(at_ns)}: {why}")
    return moment


def print_moment(moment: host_pb2.Moment) -> None:
    """Say of which moment that what follows is."""
    span = f"{moment.span_ms / 1e3:g} s"
    kind = f"means of the {span} before" if moment.is_window else f"tick of {span}"
    stepped = "; the clock was set just before" if moment.clock_stepped else ""
    console.print(Text(f"{moment.vms.host} at {shown_ns(moment.unix_ns)} ({kind}{stepped})", "bold"), soft_wrap=True)


def moment_json(moment: host_pb2.Moment | None) -> dict[str, object]:
    """Return what programs get about the moment; nothing where they asked for now."""
    if moment is None:
        return {}
    kind = {"span_s": moment.span_ms / 1e3, "is_window": moment.is_window, "clock_stepped": moment.clock_stepped}
    return {"at": {"unix_ns": moment.unix_ns, **kind}}


def _begin(answer: host_pb2.GetMomentsResponse) -> str:
    return shown_ns(answer.first_unix_ns)
