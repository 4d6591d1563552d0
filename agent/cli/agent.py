"""`whitepanda agent run`: the daemon on a hypervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent import config as agent_config
from whitepanda.common import log

__all__ = ["app"]

app = typer.Typer(help="The agent on a hypervisor.", no_args_is_help=True)


@app.callback()
def _agent() -> None:
    """Keep `run` a subcommand though it is the only one."""


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent's configuration (TOML).")],
) -> None:
    """Run the agent in the foreground until SIGTERM or Ctrl-C; this is what the systemd unit starts."""
    settings = agent_config.load(config)
    log.configure(settings.agent.log_level)
    from agent import daemon  # noqa: PLC0415 - a wrong configuration is told before anything heavy is loaded

    daemon.run(settings)
