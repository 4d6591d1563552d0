"""The rules of docs/security.md, for one address of loopback from which a hostile host comes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["HOSTILE_ADDRESS", "bounded", "rules"]

HOSTILE_ADDRESS = "127.0.0.66"
_DOCS = Path(__file__).parents[2] / "docs" / "security.md"


def rules() -> list[list[str]]:
    """Return the arguments of iptables in docs/security.md, without what they are appended to."""
    found = re.findall(r"^iptables -A INPUT (.+)$", _DOCS.read_text(), re.MULTILINE)
    return [rule.split() for rule in found]


@contextmanager
def bounded(port: int) -> Iterator[None]:
    """Have the kernel bound what comes from that address to a port. As root; there must be iptables."""
    with ExitStack() as stack:
        for rule in rules():
            own = [str(port) if word == "7443" else word for word in rule]
            arguments = ["INPUT", "--source", HOSTILE_ADDRESS, *own]
            subprocess.run(["iptables", "-A", *arguments], check=True)
            stack.callback(subprocess.run, ["iptables", "-D", *arguments], check=True)
        yield
