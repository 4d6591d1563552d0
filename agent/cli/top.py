"""`whitepanda top`: the VMs of this host live in a terminal, or a recording of a host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent import config as agent_config
from agent.api.client import connect, find_socket
from agent.cli._moments import AtOption, asker, unix_ns_of
from agent.cli._options import SocketOption
from agent.history.times import shown_ns
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
    at: AtOption = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Play the past from then on; else as --at.")] = None,
) -> None:
    """Show the VMs of this host live, each second: who suffers, how much, from whom, and why.

    Victims come first; sort, filter, freeze, and Enter explains the selected VM. `?` lists the keys and what the
    columns mean. A recording can be paused, rewound and sped up, and so can this host's past: `--at 03:10` stands
    there, `--since -30m` plays from there. Programs use `whitepanda vms --json`.
    """
    if not _is_terminal() or os.environ.get("TERM", "") in ("", "dumb"):
        raise UnavailableError("top needs a terminal; use `whitepanda vms --json` instead")
    given = (replay, at, since)
    if sum(one is not None for one in given) > 1:
        raise InputError("--replay, --at and --since: give one of them")
    if replay is not None and socket is not None:
        raise InputError("--socket and --replay: a recording needs no agent; give one of them")
    try:
        from agent.top.app import TopApp  # noqa: PLC0415 - an extra; nothing else may need it
        from agent.top.ending import Ending  # noqa: PLC0415 - of the live view, too
    except ImportError as error:
        lacks = f"{error.name}, which is not installed here"
        raise UnavailableError(f"top needs {lacks}; {how_to_install('top')}") from error
    log.configure("error")  # a line of a log would tear the picture
    past = None if at is None and since is None else _past(socket, config, at, since)
    view = TopApp(past or _feed(socket, config, replay))
    files = (sys.__stdin__, sys.__stderr__)  # what is read from, and drawn to
    terminal = [file.fileno() for file in files if file is not None and file.isatty()]
    with Ending(view.end, terminal) as ending:
        view.run()
    if ending.exit_code:
        raise typer.Exit(ending.exit_code)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()  # textual draws to the latter


def _past(socket: Path | None, config: Path | None, at: str | None, since: str | None) -> Feed:
    from agent.top.past_host import PastHost  # noqa: PLC0415 - an extra, as the view
    from agent.top.player import Player  # noqa: PLC0415 - as above

    start_ns = unix_ns_of("--since", since or "") if at is None else unix_ns_of("--at", at)
    host = PastHost(asker(socket, config))
    if at is not None and start_ns < host.origin_ns:
        raise InputError(
            f"--at: nothing is kept of {shown_ns(start_ns)}; the history begins at {shown_ns(host.origin_ns)}"
        )
    return Player(host, max(0.0, (start_ns - host.origin_ns) / 1e9), playing=at is None)


def _feed(socket: Path | None, config: Path | None, replay: Path | None) -> Feed:
    if replay is not None:
        from agent.top.player import Player  # noqa: PLC0415 - the analysis comes with it
        from agent.top.recorded import RecordedHost  # noqa: PLC0415 - as above

        return Player(RecordedHost(replay, agent_config.load(config) if config else None))
    from agent.top.feed import LiveFeed  # noqa: PLC0415 - as above

    path = find_socket(socket, config)
    with connect(path) as client:  # at the start a missing agent is a mistake, later it is waited for
        client.status()
    return LiveFeed(path)
