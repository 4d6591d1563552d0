"""Options that several commands have in the same words."""

from pathlib import Path
from typing import Annotated

import typer

#: Both name the agent's socket: `agent.api.client.find_socket`.
#: typer would refuse a socket that may not be read, without our remedy.
SocketOption = Annotated[Path | None, typer.Option(readable=False, help="Where the agent answers.")]
ConfigOption = Annotated[Path | None, typer.Option(help="The agent's configuration, which names the socket.")]

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object for programs.")]
