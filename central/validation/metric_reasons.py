"""Why metrics of VMs are not known, as hosts report it when it changes."""

from dataclasses import dataclass

from central.validation.reports import MAX_INT64
from central.validation.rows import Sender, is_name
from whitepanda.common.window_columns import BY_NUMBER
from whitepanda.v1 import agent_pb2

#: Why a reason is refused: of no task of the batch that has a row, or no known one.
BAD_REASON = "bad_reason"
_REASONS = frozenset(agent_pb2.Reason.values())


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """From a time on a metric (a number of `window_columns`) of a VM is not known; reason 0: it is known again."""

    host: str
    vm: str
    metric: int
    reason: int
    since_unix_ns: int


def check_reasons(batch: agent_pb2.CpiBatch, sender: Sender) -> tuple[list[ReasonRow], dict[str, int]]:
    """Return the good reasons of a batch whose structure is right, and how many are refused.

    Metrics that this central does not know are left out.
    """
    first_row: dict[int, int] = {}
    for row, index in enumerate(batch.task_index) if batch.reasons else ():
        first_row.setdefault(index, row)
    found: dict[tuple[int, int], ReasonRow] = {}
    bad = 0
    for one in batch.reasons:
        place = first_row.get(one.task_index)
        if place is None or one.reason not in _REASONS:
            bad += 1
            continue
        task = batch.tasks[one.task_index]
        host, start = task.machine or sender.host, batch.start_unix_ns[place if len(batch.start_unix_ns) > 1 else 0]
        if not is_name(task.vm) or not is_name(host) or start > MAX_INT64:
            bad += 1
            continue
        for number in one.metrics:
            if number in BY_NUMBER:
                found[one.task_index, number] = ReasonRow(host, task.vm, number, int(one.reason), start)
    return list(found.values()), {BAD_REASON: bad} if bad else {}
