"""Options, progress bars and lines that several commands share."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from agent.sampling.source_threads import SourceView
from whitepanda.common.cli import console, errors

#: Both name the agent's socket: `agent.api.client.find_socket`.
#: typer would refuse a socket that may not be read, without our remedy.
SocketOption = Annotated[Path | None, typer.Option(readable=False, help="The agent's socket.")]
ConfigOption = Annotated[Path | None, typer.Option(help="The agent's configuration, which names the socket.")]
#: For commands that read the sources themselves.
SourcesOption = Annotated[Path | None, typer.Option(help="An agent's configuration, for its sources and tick_s.")]

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object for programs.")]


@contextlib.contextmanager
def progress_bar(
    what: str, total: float | None, *columns: ProgressColumn, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, for people only. Yields what updates it, as `Progress.update` does."""
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not shown or not errors.is_terminal,
    ) as bar:
        yield functools.partial(bar.update, bar.add_task(what, total=total))


def print_problem(kind: Literal["warning", "error"], text: str) -> None:
    """Print a warning or an error in one line."""
    style = "yellow" if kind == "warning" else "bold red"
    errors.print(Text(f"{kind}: ", style=style).append(text, style="none"), soft_wrap=True)


def sources_json(sources: Iterable[SourceView]) -> list[dict[str, str]]:
    """Return the state of sources for programs."""
    return [{"name": source.name, "state": source.state, "detail": source.detail} for source in sources]


def print_left(left: Iterable[str]) -> None:
    """Say which sources are left to the running agent."""
    for name in left:
        console.print(f"  {name}: left to the agent that runs here", soft_wrap=True)
