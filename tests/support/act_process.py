"""`whitepanda act run` as a process, and the command that asks it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from agent.act import client
from agent.act.records import Answer, Ask, Listing, Request
from tests.support.central_process import MAIN
from tests.support.waiting import wait_until
from whitepanda.common.errors import UnavailableError

ROOT = Path(__file__).resolve().parents[2]


class ActProcess:
    """The service with a configuration of its own in `folder`.

    Args:
        folder: throw-away; short, as the socket is in it.
        act: more lines of [act].
        more: more sections.

    """

    def __init__(self, folder: Path, act: str = "dry_run = false\ncool_down_s = 0.0", more: str = "") -> None:
        self.folder = folder
        self.config = folder / "agent.toml"
        self.socket = folder / "act" / "act.sock"
        self.state_dir = folder / "state"
        self.config.write_text(
            f'[agent]\nsocket = "{folder}/agent.sock"\nstate_dir = "{folder}/agent"\n{more}\n'
            f'[act]\nenabled = true\nsocket = "{self.socket}"\nstate_dir = "{self.state_dir}"\n{act}\n'
        )
        self.log = folder / "act.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *MAIN, "act", "run", "--config", self.config], stdout=log, stderr=log, cwd=ROOT
            )
        wait_until(lambda: self.process.poll() is not None or self._answers())
        assert self.process.poll() is None, self.log.read_text()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it, and wait for that."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        code = self.process.wait(30)
        self.process = None
        return code

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `whitepanda act ...`."""
        return subprocess.run(
            [sys.executable, *MAIN, "act", *arguments, "--socket", str(self.socket)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
        )

    def ask(self, request: Request) -> Answer:
        """Ask as the command does, without a process for it."""
        return client.ask(self.socket, request)

    def in_force(self) -> tuple[Listing, ...]:
        """Return the actions in force."""
        return self.ask(Ask()).in_force

    def _answers(self) -> bool:
        try:
            return self.ask(Ask()).limits is not None
        except UnavailableError:
            return False

    def audit(self) -> list[dict]:
        """Return the audit log."""
        text = (self.state_dir / "audit.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]
