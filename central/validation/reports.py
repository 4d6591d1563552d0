"""What hosts report beside rows (events, triggers): which reports of a batch are accepted, and why others are not."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from central.validation.rows import Sender, is_name
from whitepanda.v1 import agent_pb2

ANALYSES = frozenset(agent_pb2.Analysis.values()) - {agent_pb2.ANALYSIS_UNSPECIFIED}
_MAX_INT64 = 2**63 - 1


class _Report(Protocol):
    @property
    def machine(self) -> str: ...

    @property
    def unix_ns(self) -> int: ...


R = TypeVar("R", bound=_Report)


def good_reports(
    reports: Sequence[R],
    is_good: Callable[[R], bool],
    rejected: Counter[str],
    *,
    word: str,
    at_most: int,
    sender: Sender,
) -> Iterator[tuple[int, str, R]]:
    """Yield each good report: its place in the batch, its machine, and itself. A bad one costs no other.

    Args:
        reports: of one batch.
        is_good: whether a report is complete and fit to be shown.
        rejected: is added to: `too_many_<word>s`, `bad_<word>` and `bad_<word>_time`, tried in this order.
        word: for the reasons.
        at_most: the most reports of a batch.
        sender: whose limits say how far a time may be from now.

    """
    host, is_importer, limits = sender.host, sender.is_importer, sender.limits
    earliest = 0 if is_importer else sender.now_unix_ns - int(limits.max_past_days * 86_400e9)
    latest = min(sender.now_unix_ns + int(limits.max_future_s * 1e9), _MAX_INT64)
    if len(reports) > at_most:
        rejected[f"too_many_{word}s"] += len(reports) - at_most
    for number, report in enumerate(reports[:at_most]):
        machine = report.machine or host
        if not is_good(report) or (machine != host and not (is_importer and is_name(machine))):
            rejected[f"bad_{word}"] += 1
        elif not earliest <= report.unix_ns <= latest:
            rejected[f"bad_{word}_time"] += 1
        else:
            yield number, machine, report
