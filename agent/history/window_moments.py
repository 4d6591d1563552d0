"""Windows as moments: what `vms`, `explain` and `top` show of a time whose ticks are no longer kept."""

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from agent.history import frames
from agent.history.replay import Pending, explained
from agent.history.segments import DamagedError, Frame, Segment, read
from agent.sampling.metric_table import VM_METRICS
from collector.base import Reason
from whitepanda.common.window_columns import BY_NUMBER
from whitepanda.v1 import agent_pb2, host_pb2

_SOURCE = "history"
_HOST_TASK = "host:"  # work outside VMs (`agent.sampling.host_cgroups`)
_WORDS = "kept as windows: why, and the suspects, are kept of VMs that suffer or inflict"
_NOT_EXPLAINED = "; its evidence and recommendations were not kept"
_EXPLAINED_NS = 120 * 10**9  # for so long an explanation counts, if the verdict stays (`agent.history.capture`)
_SLOW_DOWN = {"slow_down_ratio": "ratio", "slow_down_low_ratio": "low", "slow_down_high_ratio": "high"}
_NS_PER_MS = 10**6


class Row(NamedTuple):
    """A VM's window: its values by name, or reasons."""

    task: agent_pb2.Task
    values: dict[str, float | Reason]
    duration_ns: int


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
    why: defaultdict[int, dict[str, Reason]] = defaultdict(dict)
    for one in batch.reasons:
        for number in one.metrics:
            if number in BY_NUMBER:
                why[one.task_index][BY_NUMBER[number].name] = Reason(one.reason)
    durations = list(batch.duration_ns)
    rows = []
    for at, task_index in enumerate(batch.task_index):
        values: dict[str, float | Reason] = {name: batch.metrics.values[first + at] for name, first in columns.items()}
        for name in ("cpi", "cpu_usage_cores"):
            column = getattr(batch, name)
            values[name] = column[at] if len(column) == count else math.nan
        reasons = why[task_index]
        for name, value in values.items():
            if math.isnan(value):
                values[name] = reasons.get(name, Reason.NOT_PRESENT)
        duration_ns = durations[min(at, len(durations) - 1)] if durations else 0
        rows.append(Row(batch.tasks[task_index], reasons | values, duration_ns))
    return rows


@dataclass(frozen=True, slots=True)
class _Windows:
    """All windows that count at a moment."""

    frame: Frame
    parts: frames.WindowFrame
    batches: tuple[bytes, ...]  # those that end within the longest window before, and its own, the oldest first
    explanations: tuple[bytes, ...]  # those that count, the newest first

    def _rows(self) -> dict[str, Row]:
        """Return each VM's last window by UUID. DamagedError: a batch is not one."""
        found: dict[str, Row] = {}
        try:
            for batch in self.batches:
                rows = rows_of(agent_pb2.CpiBatch.FromString(batch))
                if not rows:  # written where no VM runs
                    found.clear()
                found |= {row.task.vm: row for row in rows if not row.task.vm.startswith(_HOST_TASK)}
        except (DecodeError, ValueError) as error:
            raise DamagedError(f"windows until {self.frame.unix_ns}: {error}") from error
        return found

    def _span_ms(self, rows: Mapping[str, Row]) -> int:
        """Return the length of the longest window; that of the configuration if it is about as long."""
        longest_ms = max((row.duration_ns // _NS_PER_MS for row in rows.values()), default=self.parts.window_ms)
        lengths_ms = (self.parts.window_ms, self.parts.longest_ms)
        return next((ms for ms in lengths_ms if abs(ms - longest_ms) < ms // 10), longest_ms)

    def make(self, metrics: Collection[str] | None, explain: str) -> host_pb2.Moment:
        unix_ns, parts = self.frame.unix_ns, self.parts
        status = host_pb2.HostStatus.FromString(parts.status)
        status.now_unix_ns = unix_ns
        answer = host_pb2.ListVmsResponse(now_unix_ns=unix_ns, host=status.host, triggered=parts.triggered)
        if parts.decision:
            answer.decision.CopyFrom(host_pb2.HostDecision.FromString(parts.decision))
        judged = {one.uuid: one for one in map(host_pb2.VmSummary.FromString, parts.vms)}
        explanation, rows = None, self._rows()
        for uuid, row in sorted(rows.items(), key=lambda item: (item[1].task.name, item[0])):
            answer.vms.append(_summary(row, judged.get(uuid), metrics))
            if explain and explain in (uuid, row.task.name):
                explanation = self._explained(_summary(row, judged.get(uuid), None), judged.get(uuid))
        return host_pb2.Moment(
            unix_ns=unix_ns,
            span_ms=self._span_ms(rows),
            is_window=True,
            clock_stepped=self.frame.clock_stepped,
            vms=answer,
            status=status,
            explanation=explanation,
        )

    def _explained(self, vm: host_pb2.VmSummary, judged: host_pb2.VmSummary | None) -> host_pb2.VmExplanation:
        if judged is None:
            return explained(vm)
        found = map(host_pb2.VmExplanation.FromString, self.explanations)
        known = next((one for one in found if one.vm.uuid == vm.uuid), None)
        if known is None or known.vm.decision.verdict != judged.decision.verdict:
            vm.decision.reason += _NOT_EXPLAINED
            known = None
        return explained(vm, known)


def _summary(row: Row, judged: host_pb2.VmSummary | None, metrics: Collection[str] | None) -> host_pb2.VmSummary:
    task, values, _ = row
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


def windows_of(segment: Segment, before: Sequence[Segment] = ()) -> Iterator[Pending]:
    """Yield the moments of a file of windows; those of the files `before` it count as long as the longest window.

    DamagedError: what follows cannot be read. OSError: nor can the file.
    """
    recent: deque[tuple[int, frames.WindowFrame]] = deque()
    for frame in read(segment):
        parts = _parts(segment, frame)
        oldest_ns = frame.unix_ns - parts.longest_ms * _NS_PER_MS
        needed_ns = min(oldest_ns, frame.unix_ns - _EXPLAINED_NS)
        if frame.is_first and (parts.longest_ms > parts.window_ms or parts.vms):
            for earlier in reversed(before):
                recent.extendleft(reversed(_last_frames(earlier, needed_ns, frame.unix_ns)))
                if earlier.first_unix_ns <= needed_ns:
                    break
        while recent and recent[0][0] <= needed_ns:
            recent.popleft()
        recent.append((frame.unix_ns, parts))
        batches = tuple(one.batch for unix_ns, one in recent if unix_ns > oldest_ns)
        explanations = tuple(data for _, one in reversed(recent) for data in one.explanations)
        yield Pending(frame.unix_ns, _Windows(frame, parts, batches, explanations).make)


def _last_frames(segment: Segment, after_ns: int, until_ns: int) -> list[tuple[int, frames.WindowFrame]]:
    """Return the frames of (after_ns, until_ns) with their times; those that can be read."""
    found = []
    with contextlib.suppress(DamagedError, OSError):
        for frame in read(segment):
            if after_ns < frame.unix_ns < until_ns:
                found.append((frame.unix_ns, _parts(segment, frame)))  # noqa: PERF401 - kept up to the damage
    return found


def _parts(segment: Segment, frame: Frame) -> frames.WindowFrame:
    try:
        return frames.window_frame(frame.payload)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"{segment.path}: {error}") from error
