"""An honest host in a process of its own, whose acknowledgements are timed, and central's memory meanwhile."""

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import psutil

from central.pki import issue
from tests.support.central_process import ROOT, CentralProcess

HOST = "host-0"


class HonestHost:
    """One agent of bench/ingest/agents.py. In a process of its own: what others take of a loop's time is not measured.

    Args:
        central: it connects to it at once.
        vms: rows of a batch.

    Attributes:
        batches: so many were sent and acknowledged.

    """

    def __init__(self, central: CentralProcess, vms: int) -> None:
        issue(central.pki, HOST)
        self.vms = vms
        self.batches = 0
        options = {"port": central.port, "pki": str(central.pki), "first": 0, "last": 1, "vms": vms}
        command = [sys.executable, str(ROOT / "bench" / "ingest" / "agents.py"), json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._do("connect")

    def _do(self, what: str, **options: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": what, **options}) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, "the honest host failed"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def latencies_ms(self, seconds: float, interval_s: float) -> np.ndarray:
        """Send for so long and wait for nothing; return the times to the acknowledgement, once all are there.

        Raises:
            AssertionError: a batch was refused, or its acknowledgement did not come within a minute.

        """
        answer = self._do("paced", seconds=seconds, interval_s=interval_s)
        assert not answer["rejected"], "central rejected what is good"
        self.batches += answer["batches"]
        return np.array(answer["latencies_s"]) * 1e3

    def close(self) -> None:
        """Disconnect."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


def memory_mib(central: CentralProcess) -> float:
    """Return the resident memory of central's processes but the one that builds, which has a limit of its own."""
    assert central.process is not None
    server = psutil.Process(central.process.pid)
    found = 0
    for each in (server, *server.children()):
        with suppress(psutil.Error):
            if "central.build.worker" not in each.cmdline():
                found += each.memory_info().rss
    return found / 2**20
