"""Central as a real process, its certificates and configuration, for tests and benchmarks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from central.pki import issue, make_ca
from whitepanda.common.tls import TlsFiles

ROOT = Path(__file__).resolve().parents[2]
MAIN = ("-c", "from whitepanda.common.cli import main; main()")


class CentralProcess:
    """One central in a folder of its own: starts, is killed, starts again on the same port and state."""

    def __init__(
        self,
        folder: Path,
        *,
        ingest: str = "",
        quotas: str = "",
        central: str = "",
        build: str = "",
        state_dir: Path | None = None,
    ) -> None:
        """`ingest`, `quotas`, `central` and `build` are TOML lines of these sections."""
        self.folder = folder
        self.pki = folder / "pki"
        self.state_dir = state_dir or folder / "state"
        self.lake_dir = folder / "lake"
        self.config = folder / "central.toml"
        self.log = folder / "central.log"
        self.port = 0
        self.http_listen = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = (ingest, central)
        self._quotas = quotas
        self.build = build  # of the next start
        if not (self.pki / "ca.crt").exists():
            make_ca(self.pki)
            issue(self.pki, "central", server=True, addresses=["localhost", "127.0.0.1"])
        self._write_config()

    def client(self, name: str, *more: str) -> TlsFiles:
        """Issue a client's certificate, with more names if they are given."""
        return issue(self.pki, name, addresses=more)

    def _write_config(self) -> None:
        ingest, central = self._settings
        self.config.write_text(
            f"""
[central]
listen = "127.0.0.1:{self.port}"
http_listen = "{self.http_listen}"
state_dir = "{self.state_dir}"
lake_dir = "{self.lake_dir}"
{central}
[central.tls]
ca = "{self.pki}/ca.crt"
certificate = "{self.pki}/central.crt"
key = "{self.pki}/central.key"
[ingest]
{ingest}
[quotas]
{self._quotas}
[build]
{self.build}
"""
        )

    @staticmethod
    def command(main: Sequence[str] = MAIN) -> list[str]:
        return [sys.executable, *main, "central", "run"]

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def start(
        self, *, main: Sequence[str] = MAIN, before: Sequence[str] = (), timeout_s: float = 30.0, wait: bool = True
    ) -> None:
        """Start it; `main` are Python's arguments, `before` a command that runs it (such as strace)."""
        self.state_dir.mkdir(exist_ok=True, parents=True)
        port_file = self.state_dir / "port"
        port_file.unlink(missing_ok=True)
        self._write_config()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, *self.command(main), "--config", str(self.config)],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while wait and not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"central did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        if wait:
            self.port = int(port_file.read_text())

    def kill(self) -> None:
        """SIGKILL, to it and what runs it."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def end(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
