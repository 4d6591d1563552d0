"""What hosts report along with rows (events, triggers): which reports are accepted, and why others are not."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from central.validation.rows import Sender, is_name
from whitepanda.v1 import agent_pb2

ANALYSES = frozenset(agent_pb2.Analysis.values()) - {agent_pb2.ANALYSIS_UNSPECIFIED}
MAX_INT64 = 2**63 - 1


class _Report(Protocol):
    @property
    def machine(self) -> str: ...

    @property
    def unix_ns(self) -> int: ...


R = TypeVar("R", bound=_Report)


def good_reports(
    reports: Sequence[R], is_good: Callable[[R], bool], *, word: str, at_most: int, sender: Sender
) -> tuple[list[tuple[int, str, R]], dict[str, int]]:
    """Return a batch's good reports: place in the batch, machine, report; and how many are refused, by reason.

    Reasons are `too_many_<word>s` (above `at_most`), `bad_<word>` (not complete and fit to be shown, by `is_good`) and
    `bad_<word>_time`, by the sender's limits, tried in this order. A bad report costs no other.
    """
    good, rejected = list[tuple[int, str, R]](), Counter[str]()
    host, is_importer, limits = sender.host, sender.is_importer, sender.limits
    earliest = 0 if is_importer else sender.now_unix_ns - int(limits.max_past_days * 86_400e9)
    latest = min(sender.now_unix_ns + int(limits.max_future_s * 1e9), MAX_INT64)
    if len(reports) > at_most:
        rejected[f"too_many_{word}s"] += len(reports) - at_most
    for number, report in enumerate(reports[:at_most]):
        machine = report.machine or host
        if not is_good(report) or (machine != host and not (is_importer and is_name(machine))):
            rejected[f"bad_{word}"] += 1
        elif not earliest <= report.unix_ns <= latest:
            rejected[f"bad_{word}_time"] += 1
        else:
            good.append((number, machine, report))
    return good, dict(rejected)
