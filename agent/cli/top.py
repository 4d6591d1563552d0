"""`whitepanda top`: the VMs of this host live in a terminal, or a recording of a host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent import config as agent_config
from agent.api.client import connect, find_socket
from agent.cli._options import SocketOption
from whitepanda.common import log
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.extras import how_to_install

if TYPE_CHECKING:
    from agent.top.feed import Feed


def top(
    *,
    socket: SocketOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The agent's configuration, which names the socket; with --replay its job rules and models count."
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Show a recording (`whitepanda record`) instead of this host.")
    ] = None,
) -> None:
    """Show the VMs of this host live, each second: who suffers, how much, from whom, and why.

    Victims come first; sort, filter, freeze, and Enter explains the selected VM. `?` lists the keys and what the
    columns mean. A recording can be paused, rewound and sped up. Programs use `whitepanda vms --json`.
    """
    if not _is_terminal() or os.environ.get("TERM", "") in ("", "dumb"):
        raise UnavailableError("top needs a terminal; use `whitepanda vms --json` instead")
    if replay is not None and socket is not None:
        raise InputError("--socket and --replay: a recording needs no agent; give one of them")
    try:
        from agent.top.app import TopApp  # noqa: PLC0415 - an extra; nothing else may need it
        from agent.top.ending import Ending  # noqa: PLC0415 - of the live view, too
    except ImportError as error:
        lacks = f"{error.name}, which is not installed here"
        raise UnavailableError(f"top needs {lacks}; {how_to_install('top')}") from error
    log.configure("error")  # a line of a log would tear the picture
    view = TopApp(_feed(socket, config, replay))
    files = (sys.__stdin__, sys.__stderr__)  # what is read from, and drawn to
    terminal = [file.fileno() for file in files if file is not None and file.isatty()]
    with Ending(view.end, terminal) as ending:
        view.run()
    if ending.exit_code:
        raise typer.Exit(ending.exit_code)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()  # textual draws to the latter


def _feed(socket: Path | None, config: Path | None, replay: Path | None) -> Feed:
    if replay is not None:
        from agent.top.player import Player  # noqa: PLC0415 - the analysis comes with it

        return Player(replay, agent_config.load(config) if config else None)
    from agent.top.feed import LiveFeed  # noqa: PLC0415 - as above

    path = find_socket(socket, config)
    with connect(path) as client:  # at the start a missing agent is a mistake, later it is waited for
        client.status()
    return LiveFeed(path)
