"""The program `whitepanda`: `agent run` without what only a terminal needs, everything else by the command line.

The agent is a guest on the hypervisor: the command line's libraries (typer, rich and what they bring) would take
a tenth of its memory, for nothing after the first second.
"""

import os
import sys
from pathlib import Path

_RUN = ["agent", "run"]
_RUN_WORDS = 4


def main() -> None:
    """Run the command line; see `whitepanda.common.cli.main`."""
    words = sys.argv[1:]
    if words[:2] == _RUN and len(words) == _RUN_WORDS and words[2] in {"-c", "--config"}:
        _run_agent(Path(words[3]))
        return
    from whitepanda.common import cli

    cli.main()


def _run_agent(path: Path) -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the command line does, and for its reason
    # structlog would load rich for coloured tracebacks, which a daemon does not write.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type] # makes the import fail
    from agent import config
    from whitepanda.common import log
    from whitepanda.common.errors import WhitepandaError
    from whitepanda.common.texts import printable

    try:
        settings = config.load(path)
        log.configure(settings.agent.log_level)
        from agent import daemon

        daemon.run(settings)
    except WhitepandaError as error:
        sys.stderr.writelines(f"error: {printable(problem)}\n" for problem in error.problems)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
