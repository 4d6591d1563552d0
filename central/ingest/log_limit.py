"""Limits log lines about clients, by host and reason, and counts the lines left out."""

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any


@dataclass(slots=True)
class _Lines:
    """The lines of one reason in an interval."""

    since_s: float
    hosts: dict[str, int] = field(default_factory=dict)  # how many there were, written and left out
    before: dict[str, int] = field(default_factory=dict)  # left out in the interval before
    others: int = 0  # left out, of hosts that had no line since


@dataclass(eq=False)
class LogLimit:
    """Writes the first `most_lines` of a host and reason in `every_s`, and counts the others. Single-threaded.

    The host's next line has their number since its last one (`left_out`), and the number for hosts without a line
    since (`of_other_hosts_left_out`). Memory is bounded: `most_hosts` have lines of a reason in an interval.
    `write` is a logger's method such as `warning`.
    """

    write: Callable[..., Any]
    _: KW_ONLY
    every_s: float = 60.0
    most_lines: int = 1
    most_hosts: int = 20
    clock_s: Callable[[], float] = time.monotonic
    _by_reason: dict[str, _Lines] = field(default_factory=dict)

    def __call__(self, event: str, *, host: str, reason: str, **fields: object) -> None:
        """Write a line with these fields, or count it."""
        lines = self._lines(reason)
        count = lines.hosts.get(host, 0)
        if not count and len(lines.hosts) >= self.most_hosts:
            lines.others += 1
            return
        lines.hosts[host] = count + 1
        if count >= self.most_lines:
            return
        left_out = {"left_out": lines.before.pop(host, 0), "of_other_hosts_left_out": lines.others}
        lines.others = 0
        counts = {name: number for name, number in left_out.items() if number}
        self.write(event, host=host, reason=reason, **fields, **counts)

    def _lines(self, reason: str) -> _Lines:
        now_s = self.clock_s()
        lines = self._by_reason.setdefault(reason, _Lines(now_s))
        if now_s - lines.since_s >= self.every_s:
            lines.since_s = now_s
            lines.others += sum(lines.before.values())
            lines.before = {
                host: count - self.most_lines for host, count in lines.hosts.items() if count > self.most_lines
            }
            lines.hosts = {}
        return lines
