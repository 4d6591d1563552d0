"""Frames as moments: messages of the local API, as the agent gave them, or would have given them."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from agent.history import frames
from agent.history.segments import DamagedError, Frame, Segment, read
from whitepanda.v1 import host_pb2

_SLOW_DOWN = 3  # numbers behind a VM's metrics


class Pending(NamedTuple):
    """A moment that was found and is not made yet; `make` takes the metrics that are wanted, and a VM to explain."""

    unix_ns: int
    make: Callable[[Collection[str] | None, str], host_pb2.Moment]


@dataclass(frozen=True, slots=True)
class _Told:
    """A message about a VM, and when it was written."""

    unix_ns: int
    summary: host_pb2.VmSummary
    explanation: host_pb2.VmExplanation | None = None


@dataclass(frozen=True, slots=True)
class _Tick:
    """The host at a tick, put together of its file's frames up to it. Never changed: the next tick is another one."""

    unix_ns: int = 0
    clock_stepped: bool = False
    frame: frames.TickFrame = field(default_factory=lambda: frames.TickFrame(b"", b""))
    uuids: tuple[str, ...] = ()
    vms: dict[str, _Told] = field(default_factory=dict)
    decision: bytes = b""
    status: bytes = b""

    def then(self, frame: Frame) -> "_Tick":
        """Return the tick of the next frame. ValueError: it makes no sense."""
        tick = frames.tick_frame(frame.payload)
        vms = self.vms
        if tick.vms or tick.explanations:
            vms = dict(vms)
            for data in tick.vms:
                summary = host_pb2.VmSummary.FromString(data)
                _take(vms, frame.unix_ns, summary, None)
            for data in tick.explanations:
                explanation = host_pb2.VmExplanation.FromString(data)
                _take(vms, frame.unix_ns, explanation.vm, explanation)
        return replace(
            self,
            unix_ns=frame.unix_ns,
            clock_stepped=frame.clock_stepped,
            frame=tick,
            uuids=self.uuids if tick.uuids is None else tuple(tick.uuids),
            vms=vms,
            decision=self.decision if tick.decision is None else tick.decision,
            status=tick.status or self.status,
        )

    def make(self, metrics: Collection[str] | None, explain: str) -> host_pb2.Moment:
        """Return the moment."""
        values = frames.unpack(self.frame.values, len(self.uuids))
        status = host_pb2.HostStatus.FromString(self.status)
        status.now_unix_ns = self.unix_ns
        host = frames.unpack(self.frame.host, 1)
        for metric, value in zip(status.host_metrics, host[0] if host else (), strict=False):
            _patch(metric, value)
        answer = host_pb2.ListVmsResponse(
            now_unix_ns=self.unix_ns,
            host=status.host,
            triggered=self.frame.triggered,
            decision=host_pb2.HostDecision.FromString(self.decision) if self.decision else None,
        )
        explanation = None
        for uuid, row in zip(self.uuids, values, strict=True):
            told = self.vms.get(uuid)
            if told is None:
                continue
            summary = self._summary(answer.vms.add(), told, row, metrics)
            if explain in (summary.uuid, summary.name) and explain:
                full = self._summary(host_pb2.VmSummary(), told, row, None)
                explanation = explained(full, told.explanation, self.frame.detector)
        answer.vms.sort(key=lambda vm: (vm.name, vm.uuid))
        return host_pb2.Moment(
            unix_ns=self.unix_ns,
            span_ms=self.frame.tick_ms,
            clock_stepped=self.clock_stepped,
            vms=answer,
            status=status,
            explanation=explanation,
        )

    def _summary(
        self, summary: host_pb2.VmSummary, told: _Told, row: tuple[float, ...], metrics: Collection[str] | None
    ) -> host_pb2.VmSummary:
        summary.CopyFrom(told.summary)
        for metric, value in zip(summary.metrics, row, strict=False):
            _patch(metric, value)
        if metrics is not None:
            kept = [metric for metric in summary.metrics if metric.name in metrics]
            del summary.metrics[:]
            summary.metrics.extend(kept)
        later_ns = max(0, self.unix_ns - told.unix_ns)
        for judged in (summary.decision, summary.cloud_white):
            if judged.since_ns:
                judged.since_ns += later_ns
        ratio, low, high = row[-_SLOW_DOWN:]
        if summary.decision.HasField("slow_down") and math.isfinite(ratio):
            slow_down = summary.decision.slow_down
            slow_down.ratio, slow_down.low, slow_down.high = ratio, low, high
        return summary


def explained(
    vm: host_pb2.VmSummary, known: host_pb2.VmExplanation | None = None, detector: str = ""
) -> host_pb2.VmExplanation:
    """Return what is known of a VM: what was kept, else nothing but its row."""
    answer = host_pb2.VmExplanation()
    if known is not None:
        answer.CopyFrom(known)
    else:
        answer.detector = detector
        for name in ("cpi", "n_cpi", "victim_threshold_cpi", "mn_cpi", "mn_cpi_threshold"):
            setattr(answer, name, math.nan)  # 0 would be a value
    answer.vm.CopyFrom(vm)
    return answer


def _take(
    vms: dict[str, _Told], unix_ns: int, summary: host_pb2.VmSummary, explanation: host_pb2.VmExplanation | None
) -> None:
    """Take a newer summary; its metrics are those that came with the first one."""
    before = vms.get(summary.uuid)
    if before is not None and not summary.metrics:
        summary.metrics.extend(before.summary.metrics)
    if explanation is None and before is not None and before.summary.decision.verdict == summary.decision.verdict:
        explanation = before.explanation
    vms[summary.uuid] = _Told(unix_ns, summary, explanation)


def _patch(metric: host_pb2.Metric, value: float) -> None:
    """Set a metric to a packed value: a number, or a reason as `frames.pack` writes it."""
    metric.age_ns = 0
    if value < 0:
        metric.value, metric.reason = math.nan, round(-1 - value)  # type: ignore[assignment] # a number of Reason
    else:
        metric.value, metric.reason = value, 0  # type: ignore[assignment] # as above


def ticks_of(segment: Segment) -> Iterator[Pending]:
    """Yield the moments of a file of ticks. DamagedError: what follows cannot be read. OSError: nor can the file."""
    state = _Tick()
    for frame in read(segment):
        try:
            state = state.then(frame)
        except (msgspec.MsgspecError, DecodeError, ValueError) as error:
            raise DamagedError(f"{segment.path}: {error}") from error
        yield Pending(frame.unix_ns, state.make)
