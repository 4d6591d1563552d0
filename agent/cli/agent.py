"""`whitepanda agent run`: the daemon on a hypervisor; `whitepanda agent status`: how it does."""

from pathlib import Path
from typing import Annotated

import typer

from agent import config as agent_config
from agent.cli._options import ConfigOption, JsonOption, SocketOption
from whitepanda.common import log

app = typer.Typer(help="The agent on a hypervisor.", no_args_is_help=True)


@app.command()
def run(config: Annotated[Path, typer.Option("--config", "-c", help="The agent's configuration (TOML).")]) -> None:
    """Run the agent in the foreground until SIGTERM or Ctrl-C; this is what the systemd unit starts."""
    settings = agent_config.load(config)
    log.configure(settings.agent.log_level)
    from agent import daemon  # noqa: PLC0415 - a wrong configuration is reported before anything heavy is loaded

    daemon.run(settings)


@app.command()
def status(socket: SocketOption = None, config: ConfigOption = None, *, json: JsonOption = False) -> None:
    """Show how the agent itself does: the stream to central, the spool, its sources, what it costs.

    AGE is that of a source's last sample, TOOK how long that sample took.
    """
    from agent.cli import agent_status  # noqa: PLC0415 - `run` needs none of it

    agent_status.show(socket, config, json=json)
