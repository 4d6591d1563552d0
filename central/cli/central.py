"""`whitepanda central`: the aggregator."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from central import daemon
from central.config import load
from whitepanda.common import log

app = typer.Typer(help="The central aggregator: learns from what all agents measure.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `run` a subcommand."""


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="central's configuration, TOML")] = Path(
        "/etc/whitepanda/central.toml"
    ),
) -> None:
    """Run the aggregator in the foreground, until SIGTERM."""
    settings = load(config)
    os.umask(0o077)  # central's files are private, also without its unit
    log.configure(settings.central.log_level)
    asyncio.run(daemon.run(settings))
