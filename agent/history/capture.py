"""What the daemon gives to the history: a frame of each tick, and one of each group of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agent.analysis.verdict import Degradation
from agent.api.messages import decision_message, explanation_message, summary_messages
from agent.api.state import AgentState
from agent.history import frames
from agent.history.frames import TickFrame, WindowFrame
from agent.history.writer import TICKS, WINDOWS, HistoryWriter
from agent.sampling.metric_table import HostRates
from agent.sampling.vms import Vm
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from whitepanda.v1 import host_pb2

_KEY_NS = 60 * 10**9  # how often a tick is written whole
_EXPLAIN_NS = 30 * 10**9  # how often a VM that suffers or inflicts is explained anew
_MOST_EXPLAINED = 4  # in one tick: an explanation takes half a millisecond
_EXPLAINED = ("victim", "affected", "inflicting")
_NO_METRICS = frozenset[str]()
_UNKNOWN = (math.nan,) * 3
_Judged = tuple[str, tuple[str, ...], Degradation | None]


class Capture:
    """Belongs to the daemon's loop. A tick costs it about a microsecond per value; what is slow is the writer's."""

    def __init__(self, state: AgentState, writer: HistoryWriter, tick_ns: int) -> None:
        self._state = state
        self._writer = writer
        self._tick_ms = round(tick_ns / 1e6)
        self._key_due_ns = 0
        self._uuids: list[str] = []
        self._known: dict[str, tuple[Any, ...]] = {}
        self._explained: dict[str, tuple[int, str]] = {}
        self._verdicts: list[str] = []
        self._sequence = 0

    def tick(self, mono_ns: int) -> None:
        """Keep the tick that was just made and judged."""
        state, unix_ns = self._state, self._state.clock.unix_ns()
        is_key = self._writer.wants_key or mono_ns >= self._key_due_ns
        if is_key:
            self._key_due_ns = mono_ns + _KEY_NS
            self._known, self._explained = {}, {}
        vms = list(state.pipeline.table)
        uuids = [vm.identity.uuid for vm in vms]
        judged = self._judged(uuids)
        verdicts = [verdict for verdict, *_ in judged]
        decides = is_key or verdicts != self._verdicts or any(verdict == "victim" for verdict in verdicts)
        frame = TickFrame(
            frames.pack([(*vm.rates, *_numbers(one[2])) for vm, one in zip(vms, judged, strict=True)]),
            frames.pack([self._host_rates()]),
            uuids if uuids != self._uuids or is_key else None,
            [summary.SerializeToString() for summary in self._changed(vms, judged)],
            self._host_decision() if decides else None,
            self._explanations(uuids, verdicts, mono_ns),
            _pruned(state.host()).SerializeToString() if is_key else None,
            bool(state.analysis and state.analysis.triggered),
            self._tick_ms,
        )
        self._uuids, self._verdicts = uuids, verdicts
        self._writer.put(TICKS, unix_ns, mono_ns, lambda: frames.encode(frame), anew=is_key)

    def windows(self, windows: Sequence[CpiWindow], mono_ns: int, window_ns: int) -> None:
        """Keep windows that ended together."""
        if not windows:
            return
        self._sequence += 1
        end_ns = max(window.start_unix_ns for window in windows) + window_ns
        status, sequence = _pruned(self._state.host()), self._sequence
        # The moment on the monotonic clock at which they ended, whenever they were closed.
        end_mono_ns = mono_ns - (self._state.clock.unix_ns() - end_ns)

        def make() -> bytes:
            batch = encode(windows, spool_id="history", sequence=sequence)
            return frames.encode(WindowFrame(batch.SerializeToString(), status.SerializeToString()))

        self._writer.put(WINDOWS, end_ns, end_mono_ns, make)

    def _judged(self, uuids: Sequence[str]) -> list[_Judged]:
        decisions = self._state.decisions
        if decisions is None:
            return [("unknown", (), None)] * len(uuids)
        return [decisions.judged(uuid) for uuid in uuids]

    def _changed(self, vms: Sequence[Vm], judged: Sequence[_Judged]) -> list[host_pb2.VmSummary]:
        """Return the VMs of which something beside the rates has changed; with metrics only those that are new."""
        known: dict[str, tuple[Any, ...]] = {}
        new, changed = [], []
        for vm, (verdict, found_by, slow_down) in zip(vms, judged, strict=True):
            identity = vm.identity
            kind = None if slow_down is None else (slow_down.model, slow_down.cannot_tell)
            now = (identity, vm.job, vm.latency_sensitive, vm.owner, vm.quota_cores, verdict, found_by, kind)
            before = self._known.get(identity.uuid)
            known[identity.uuid] = now
            if before is None:
                new.append(vm)
            elif before != now:
                changed.append(vm)
        self._known = known
        summaries = summary_messages(self._state, new) if new else []
        return summaries + (summary_messages(self._state, changed, _NO_METRICS) if changed else [])

    def _explanations(self, uuids: Sequence[str], verdicts: Sequence[str], mono_ns: int) -> list[bytes]:
        """Explain VMs that suffer or inflict: when their verdict changes, and from time to time."""
        made: list[bytes] = []
        for uuid, verdict in zip(uuids, verdicts, strict=True):
            if verdict not in _EXPLAINED:
                continue
            due_ns, before = self._explained.get(uuid, (0, ""))
            if (before == verdict and mono_ns < due_ns) or len(made) >= _MOST_EXPLAINED:
                continue
            self._explained[uuid] = (mono_ns + _EXPLAIN_NS, verdict)
            if (answer := explanation_message(self._state, uuid)) is not None:
                del answer.vm.metrics[:]
                made.append(answer.SerializeToString())
        return made

    def _host_decision(self) -> bytes | None:
        found = decision_message(self._state)
        return None if found is None else found.SerializeToString()

    def _host_rates(self) -> Sequence[Any]:
        rates = self._state.pipeline.host_rates
        return rates if isinstance(rates, HostRates) else (rates,) * len(HostRates._fields)


def _pruned(status: host_pb2.HostStatus) -> host_pb2.HostStatus:
    """Leave out what the agent measures of itself: with it, a week of statuses would be larger than the windows."""
    kept = [metric for metric in status.host_metrics if not metric.name.startswith("agent_")]
    del status.host_metrics[:]
    status.host_metrics.extend(kept)
    status.ClearField("history")
    return status


def _numbers(slow_down: Degradation | None) -> tuple[float, float, float]:
    return _UNKNOWN if slow_down is None else (slow_down.ratio, slow_down.low, slow_down.high)
