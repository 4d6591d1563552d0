"""The rules of docs/security.md, for one address of loopback from which a hostile host comes."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HOSTILE_ADDRESS = "127.0.0.66"
_DOCS = Path(__file__).parents[2] / "docs" / "security.md"


def is_there() -> bool:
    """Return whether rules can be set."""
    return os.geteuid() == 0 and shutil.which("iptables") is not None


def _rules() -> list[list[str]]:
    """Return the arguments of iptables in docs/security.md, without what they are inserted into."""
    connections, rate = re.findall(r"^iptables -I INPUT (.+)$", _DOCS.read_text(), re.MULTILINE)
    return [connections.split(), rate.split()]


@contextmanager
def bounded(port: int) -> Iterator[Callable[[], int]]:
    """Have the kernel bound what comes from that address to a port; yields how many packets were dropped so far.

    As root; there must be iptables.
    """

    def dropped() -> int:
        command = ["iptables", "-w", "-n", "-v", "-x", "-L", "INPUT"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sum(int(line.split()[0]) for line in listed.splitlines() if f"dpt:{port} " in line and " DROP " in line)

    with ExitStack() as stack:
        for rule in _rules():
            own = [str(port) if word == "7443" else word for word in rule]
            arguments = ["INPUT", "--source", HOSTILE_ADDRESS, *own]
            subprocess.run(["iptables", "-w", "-I", *arguments], check=True)
            stack.callback(subprocess.run, ["iptables", "-w", "-D", *arguments], check=True)
        yield dropped
