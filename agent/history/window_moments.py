"""Windows as moments: what `vms`, `explain` and `top` show of a time whose ticks are no longer kept."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from agent.history import frames
from agent.history.replay import Pending, explained
from agent.history.segments import DamagedError, Frame, Segment, read
from agent.sampling.metric_table import VM_METRICS
from collector.base import Reason
from whitepanda.common.window_columns import BY_NAME, BY_NUMBER
from whitepanda.v1 import agent_pb2, host_pb2

_SOURCE = "history"
_HOST_TASK = "host:"  # work outside VMs (`agent.sampling.host_cgroups`)
_WORDS = "kept as windows: why, and the suspects, are kept of VMs that suffer or inflict"
_SLOW_DOWN = {"slow_down_ratio": "ratio", "slow_down_low_ratio": "low", "slow_down_high_ratio": "high"}
_NS_PER_MS = 10**6


class Row(NamedTuple):
    """A VM's window: its values by name, or reasons."""

    task: agent_pb2.Task
    values: dict[str, float | Reason]


def rows_of(batch: agent_pb2.CpiBatch) -> list[Row]:
    """Return the windows of a batch by the one table of columns; a column that it does not know is left out.

    ValueError: its columns do not fit its rows.
    """
    count = len(batch.task_index)
    numbers = batch.metrics.numbers
    if len(batch.metrics.values) != count * len(numbers):
        raise ValueError("the columns of metrics are not as long as the batch")
    if any(index >= len(batch.tasks) for index in batch.task_index):
        raise ValueError("a window is of no task")
    columns = {BY_NUMBER[number].name: at * count for at, number in enumerate(numbers) if number in BY_NUMBER}
    why = {(one.task_index, number): Reason(one.reason) for one in batch.reasons for number in one.metrics}
    rows = []
    for at, task_index in enumerate(batch.task_index):
        values: dict[str, float | Reason] = {name: batch.metrics.values[first + at] for name, first in columns.items()}
        for name in ("cpi", "cpu_usage_cores"):
            column = getattr(batch, name)
            values[name] = column[at] if len(column) == count else math.nan
        for name, value in values.items():
            if math.isnan(value):
                values[name] = why.get((task_index, BY_NAME[name].number), Reason.NOT_PRESENT)
        for (index, number), reason in why.items():
            if index == task_index and number in BY_NUMBER:
                values.setdefault(BY_NUMBER[number].name, reason)
        rows.append(Row(batch.tasks[task_index], values))
    return rows


@dataclass(frozen=True, slots=True)
class _Windows:
    """All windows that count at a moment."""

    frame: Frame
    parts: frames.WindowFrame
    rows: dict[str, tuple[int, Row]]  # by UUID, with the end of the window

    def make(self, metrics: Collection[str] | None, explain: str) -> host_pb2.Moment:
        unix_ns, parts = self.frame.unix_ns, self.parts
        status = host_pb2.HostStatus.FromString(parts.status)
        status.now_unix_ns = unix_ns
        answer = host_pb2.ListVmsResponse(now_unix_ns=unix_ns, host=status.host, triggered=parts.triggered)
        if parts.decision:
            answer.decision.CopyFrom(host_pb2.HostDecision.FromString(parts.decision))
        judged = {one.uuid: one for one in map(host_pb2.VmSummary.FromString, parts.vms)}
        explanation = None
        for uuid, (_, row) in sorted(self.rows.items(), key=lambda item: (item[1][1].task.name, item[0])):
            answer.vms.append(_summary(row, judged.get(uuid), metrics))
            if explain and explain in (uuid, row.task.name):
                explanation = explained(_summary(row, judged.get(uuid), None))
        return host_pb2.Moment(
            unix_ns=unix_ns,
            span_ms=parts.window_ms,
            is_window=True,
            clock_stepped=self.frame.clock_stepped,
            vms=answer,
            status=status,
            explanation=explanation,
        )


def _summary(row: Row, judged: host_pb2.VmSummary | None, metrics: Collection[str] | None) -> host_pb2.VmSummary:
    task, values = row
    summary = host_pb2.VmSummary(
        uuid=task.vm,
        name=task.name,
        job=task.job,
        epoch=task.epoch,
        latency_sensitive=task.latency_sensitive,
        state="running",
        degradation=math.nan,
        quota_cores=math.nan,
        job_mean_cpi=math.nan,
    )
    verdict = values.get("verdict", Reason.NOT_IN_TRACE)
    if judged is not None:
        summary.MergeFrom(judged)
    else:
        code = 1 if isinstance(verdict, Reason) else int(verdict)
        summary.decision.verdict = code  # type: ignore[assignment] # a number of Behaviour
        summary.decision.reason = _WORDS
    if summary.decision.HasField("slow_down"):
        for name, end in _SLOW_DOWN.items():
            value = values.get(name, Reason.NOT_IN_TRACE)
            if not isinstance(value, Reason):
                setattr(summary.decision.slow_down, end, value)
    for metric in VM_METRICS:
        if metrics is None or metric.name in metrics:
            value = values.get(metric.name, Reason.NOT_IN_TRACE)
            is_unknown = isinstance(value, Reason)
            summary.metrics.add(
                name=metric.name,
                value=math.nan if is_unknown else value,
                reason=int(value) if is_unknown else 0,
                source=_SOURCE,
            )
    return summary


def windows_of(segment: Segment) -> Iterator[Pending]:
    """Yield the moments of a file of windows. DamagedError: what follows cannot be read. OSError: nor can the file."""
    rows: dict[str, tuple[int, Row]] = {}
    for frame in read(segment):
        try:
            parts = frames.window_frame(frame.payload)
            found = rows_of(agent_pb2.CpiBatch.FromString(parts.batch))
        except (msgspec.MsgspecError, DecodeError, ValueError) as error:
            raise DamagedError(f"{segment.path}: {error}") from error
        oldest_ns = frame.unix_ns - parts.longest_ms * _NS_PER_MS
        rows = {uuid: one for uuid, one in rows.items() if one[0] > oldest_ns}
        rows |= {row.task.vm: (frame.unix_ns, row) for row in found if not row.task.vm.startswith(_HOST_TASK)}
        yield Pending(frame.unix_ns, _Windows(frame, parts, rows).make)
