"""What hosts report beside rows (events, triggers): which reports of a batch are taken, and why others are not."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from central.validation.rows import Limits, is_name
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
    host: str,
    is_importer: bool,
    limits: Limits,
    now_unix_ns: int,
) -> Iterator[tuple[int, str, R]]:
    """Yield each report that can be used: its place in the batch, the machine that it is of, and itself.

    Args:
        reports: of one batch, as they came.
        is_good: whether a report says what it must.
        rejected: gets how many were refused, as `too_many_<word>s`, `bad_<word>` and `bad_<word>_time`, tried in this
            order. One that is refused costs no other.
        word: what a report is called in the reasons.
        at_most: reports of one batch.
        host: whose stream it is.
        is_importer: whether it may speak for other machines, of any time.
        limits: how far a time may be from now.
        now_unix_ns: central's clock.

    """
    earliest = 0 if is_importer else now_unix_ns - int(limits.max_past_days * 86_400e9)
    latest = min(now_unix_ns + int(limits.max_future_s * 1e9), _MAX_INT64)
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
