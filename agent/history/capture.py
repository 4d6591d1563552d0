"""What the daemon gives to the history: a frame of each tick, and one of each group of windows."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.analysis.verdict import Degradation
from agent.api.messages import decision_message, explanation_message, summary_messages
from agent.api.state import AgentState
from agent.config import AgentConfig
from agent.failures import Failures
from agent.history import frames
from agent.history.frames import TickFrame, WindowFrame
from agent.history.reader import History
from agent.history.writer import FOLDER, TICKS, WINDOWS, HistoryWriter
from agent.sampling.metric_table import HostRates
from agent.sampling.vms import Vm
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from collector.base import Reason
from whitepanda.common import log
from whitepanda.v1 import host_pb2

_KEY_NS = 60 * 10**9  # how often a tick is written whole
_STEP_NS = 10**9
_NS_PER_MS = 10**6
_EXPLAIN_NS = 30 * 10**9  # how often a VM that suffers or inflicts is explained again
_EXPLAIN_WINDOWS_NS = 60 * 10**9  # the same where windows are kept: a kilobyte each
_MOST_EXPLAINED = 4  # in one frame: an explanation takes half a millisecond
_EXPLAINED = ("victim", "inflicting", "affected")  # the first first
_MOST_EVENTS = 4  # of an explanation that is kept with windows
_REFRESH_TICKS = 20  # how often the words of a verdict that stays are written again
_NEW = (0, "")
_NO_METRICS = frozenset[str]()
_UNKNOWN = (math.nan,) * 3
_Judged = tuple[str, tuple[str, ...], Degradation | None]


class HistoryKeeper:
    """The daemon's history. Nothing is kept where it is off, or before and after `running`."""

    def __init__(self, config: AgentConfig, state: AgentState, failures: Failures) -> None:
        self._config = config
        self._state = state
        self._failures = failures
        self._capture: Capture | None = None

    def tick(self, mono_ns: int) -> None:
        """Keep the tick that was just made and judged."""
        if self._capture is not None:
            self._capture.tick(mono_ns)

    def windows(self, windows: Sequence[CpiWindow]) -> None:
        """Keep windows that ended together."""
        if self._capture is not None and windows:
            self._capture.windows(windows)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write while the block runs, and all that waits at its end."""
        section, agent = self._config.history, self._config.agent
        if not section.days:
            yield
            return
        folder = Path(agent.state_dir) / FOLDER
        writer = HistoryWriter(folder, section, self._config.uplink.spool_max_mib << 20)
        with self._failures.guard("history"):
            writer.start(self._state.clock.unix_ns())
            lengths_ms = [round(seconds * 1e3) for seconds in self._config.window_lengths_s]
            self._capture = Capture(self._state, writer, round(agent.tick_s * 1e3), lengths_ms)
            self._state.history, self._state.moments = (
                writer.status,
                History(folder, log.get("history").warning).moments,
            )
        try:
            yield
        finally:
            self._capture = None
            await asyncio.to_thread(writer.stop)


class Capture:
    """Makes the frames, on the daemon's loop: about a microsecond per value. What is slow is the writer's."""

    def __init__(self, state: AgentState, writer: HistoryWriter, tick_ms: int, windows_ms: Sequence[int]) -> None:
        self._state = state
        self._writer = writer
        self._tick_ms = tick_ms
        self._windows_ms = windows_ms
        self._ticks = 0
        self._key_due_ns = 0
        self._offset_ns = self._last_ns = 0  # of the wall clock from the monotonic one, and the last tick
        self._windows_ns = state.clock.unix_ns()  # the end of the last windows
        self._uuids: list[str] = []
        self._known: dict[str, tuple[Any, ...]] = {}
        self._explained: dict[str, tuple[int, str]] = {}  # when each is due again, and its verdict
        self._windows_explained: dict[str, tuple[int, str]] = {}
        self._verdicts: list[str] = []
        self._sequence = 0

    def tick(self, mono_ns: int) -> None:
        """Keep the tick that was just made and judged."""
        state, unix_ns = self._state, self._state.clock.unix_ns()
        step_ns, self._offset_ns = unix_ns - mono_ns - self._offset_ns, unix_ns - mono_ns
        is_stepped = abs(step_ns) > _STEP_NS or unix_ns <= self._last_ns  # in a file times only go up
        self._last_ns = unix_ns
        is_key = self._writer.wants_key or mono_ns >= self._key_due_ns or is_stepped
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
            self._tick_explanations(dict(zip(uuids, verdicts, strict=True)), mono_ns),
            _pruned(state.host()).SerializeToString() if is_key else None,
            bool(state.analysis and state.analysis.triggered),
            state.cloud_white.detector if state.cloud_white else "",
            self._tick_ms,
        )
        self._uuids, self._verdicts = uuids, verdicts
        self._writer.put(TICKS, unix_ns, mono_ns, lambda: frames.encode(frame), is_key=is_key)
        is_due = abs(unix_ns - self._windows_ns) >= min(self._windows_ms) * _NS_PER_MS
        if not vms and state.pipeline.windows.is_empty and is_due:
            self.windows(())  # the agent ran, but no VM did

    def windows(self, windows: Sequence[CpiWindow]) -> None:
        """Keep windows that ended together; none: of now."""
        self._sequence += 1
        state, sequence = self._state, self._sequence
        # Windows that the agent's stop closes would have ended later.
        now_ns = state.clock.unix_ns()
        end_ns = self._windows_ns = min(max(map(state.pipeline.windows.end_unix_ns, windows), default=now_ns), now_ns)
        # On the monotonic clock they ended then, whenever they were closed.
        end_mono_ns = state.clock.mono_ns() - (state.clock.unix_ns() - end_ns)
        vms = list(state.pipeline.table)
        judged = self._judged([vm.identity.uuid for vm in vms])
        verdicts = {vm.identity.uuid: one[0] for vm, one in zip(vms, judged, strict=True)}
        suffering = [vm for vm in vms if verdicts[vm.identity.uuid] in _EXPLAINED]
        summaries = summary_messages(state, suffering, _NO_METRICS) if suffering else []
        explanations = self._window_explanations(verdicts, end_mono_ns)
        decision, status = decision_message(state), _pruned(state.host())
        triggered = bool(state.analysis and state.analysis.triggered)

        def make() -> bytes:
            batch = encode([_with_reasons(window) for window in windows], spool_id="history", sequence=sequence)
            frame = WindowFrame(
                batch.SerializeToString(),
                status.SerializeToString(),
                [summary.SerializeToString() for summary in summaries],
                b"" if decision is None else decision.SerializeToString(),
                triggered,
                min(self._windows_ms),
                max(self._windows_ms),
                [explanation.SerializeToString() for explanation in explanations],
            )
            return frames.encode(frame)

        self._writer.put(WINDOWS, end_ns, end_mono_ns, make)

    def _judged(self, uuids: Sequence[str]) -> list[_Judged]:
        decisions = self._state.decisions
        if decisions is None:
            return [("unknown", (), None)] * len(uuids)
        return [decisions.judged(uuid) for uuid in uuids]

    def _changed(self, vms: Sequence[Vm], judged: Sequence[_Judged]) -> list[host_pb2.VmSummary]:
        """Return the VMs of which something beside the rates has changed; with metrics only those that are new."""
        self._ticks += 1
        known: dict[str, tuple[Any, ...]] = {}
        new, changed = [], []
        for at, (vm, (verdict, found_by, slow_down)) in enumerate(zip(vms, judged, strict=True)):
            identity = vm.identity
            kind = None if slow_down is None else (slow_down.model, slow_down.cannot_tell)
            now = (identity, vm.job, vm.latency_sensitive, vm.owner, vm.quota_cores, verdict, found_by, kind)
            before = self._known.get(identity.uuid)
            known[identity.uuid] = now
            if before is None:
                new.append(vm)
            elif before != now or (at + self._ticks) % _REFRESH_TICKS == 0:
                changed.append(vm)
        self._known = known
        summaries = summary_messages(self._state, new) if new else []
        return summaries + (summary_messages(self._state, changed, _NO_METRICS) if changed else [])

    def _tick_explanations(self, verdicts: Mapping[str, str], mono_ns: int) -> list[bytes]:
        made = []
        for answer in self._explain(verdicts, self._explained, mono_ns, _EXPLAIN_NS):
            del answer.vm.metrics[:]
            made.append(answer.SerializeToString())
        return made

    def _window_explanations(self, verdicts: Mapping[str, str], mono_ns: int) -> list[host_pb2.VmExplanation]:
        made = []
        for answer in self._explain(verdicts, self._windows_explained, mono_ns, _EXPLAIN_WINDOWS_NS):
            uuid, verdict = answer.vm.uuid, answer.vm.decision.verdict
            answer.ClearField("vm")
            answer.vm.uuid, answer.vm.decision.verdict = uuid, verdict
            del answer.history[:], answer.events[:-_MOST_EVENTS]
            made.append(answer)
        return made

    def _explain(
        self, verdicts: Mapping[str, str], known: dict[str, tuple[int, str]], mono_ns: int, every_ns: int
    ) -> Iterator[host_pb2.VmExplanation]:
        """Explain VMs that suffer or inflict: when their verdict changes, and from time to time."""
        for uuid in [uuid for uuid, (_, verdict) in known.items() if verdicts.get(uuid) != verdict]:
            del known[uuid]
        due = [(known.get(uuid, _NEW)[0], uuid) for uuid, verdict in verdicts.items() if verdict in _EXPLAINED]
        due.sort(key=lambda one: (one[0], _EXPLAINED.index(verdicts[one[1]])))
        for due_ns, uuid in due[:_MOST_EXPLAINED]:
            if due_ns > mono_ns:
                break
            known[uuid] = (mono_ns + every_ns, verdicts[uuid])
            if (answer := explanation_message(self._state, uuid)) is not None:
                yield answer

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


def _with_reasons(window: CpiWindow) -> CpiWindow:
    """A window with all its reasons: each frame is read by itself."""
    reasons = {name: value for name, value in window.metrics.items() if isinstance(value, Reason)}
    if window.cpi is None:
        reasons["cpi"] = window.cpi_reason
    return replace(window, new_reasons=reasons)


def _numbers(slow_down: Degradation | None) -> tuple[float, float, float]:
    return _UNKNOWN if slow_down is None else (slow_down.ratio, slow_down.low, slow_down.high)
