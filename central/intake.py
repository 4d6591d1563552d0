"""Batches: checked, handed to the journal, and acknowledged once they are on disk.

A batch like its stream's last one differs in numbers only; those of all batches that came at once are checked
together (`central.columns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from central.columns import CHECKED, Layout, sound
from central.config import CentralConfig
from central.events import check_events
from central.greeting import SHOWN
from central.journal import Journal, Submission
from central.journal_tables import EventRow
from central.log_limit import LogLimit
from central.quotas import OVER_QUOTA_REPORTS, Quotas
from central.room import Flow, Room
from central.streams import StreamRegistry
from central.triggers import TriggerRow, check_triggers
from central.validate import BatchError, Checked, Limits, bounds, check
from whitepanda.common import log
from whitepanda.v1 import agent_pb2

__all__ = ["Intake"]

_NO_REJECTIONS: dict[str, int] = {}
_WARN_EVERY_S = 600.0  # of the same host and reason; all are counted
_WARN_HOSTS = 100  # of one reason meanwhile
_NAMELESS = ("no_spool", "bad_spool", "no_sequence")  # nothing to remember such a batch by, or to acknowledge


class Intake:
    """Takes the batches of all streams.

    Args:
        config: central's.
        journal: what is acknowledged is in it.
        registry: is told of jobs that batches name.
        room: counts what is under way.
        quotas: of all hosts.
        clock: nanoseconds since 1970.

    """

    def __init__(
        self,
        config: CentralConfig,
        journal: Journal,
        registry: StreamRegistry,
        room: Room,
        quotas: Quotas,
        clock: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._room = room
        self._quotas = quotas
        self._clock = clock
        self._limits = Limits(
            max_batch_rows=config.ingest.max_batch_rows,
            max_cpi=config.ingest.max_cpi,
            max_cpu_usage_cores=config.ingest.max_cpu_usage_cores,
            max_future_s=config.ingest.max_future_s,
            max_past_days=config.ingest.max_past_days,
        )
        self._quick: list[tuple[Flow, Layout, int, bytes]] = []  # batches whose numbers are yet to be checked
        self._warn = LogLimit(log.get("ingest").warning, every_s=_WARN_EVERY_S, most_hosts=_WARN_HOSTS)

    def take_quick(self, flow: Flow, layout: Layout, sequence: int, raw: bytes) -> None:
        """Take a batch like the stream's last one: only its numbers are left to be checked, with all that came now."""
        self._room.begin(flow, layout.size)
        if not self._quick:
            asyncio.get_running_loop().call_soon(self._check_quick)
        self._quick.append((flow, layout, sequence, raw))

    def _check_quick(self) -> None:
        waiting, self._quick = self._quick, []
        now = self._clock()
        limits = bounds(self._limits, now)

        def is_sound(batches: list[tuple[Flow, Layout, int, bytes]]) -> bool:
            slices = [(layout.slices, raw) for _, layout, _, raw in batches]
            return sound(
                [[raw[at[i][0] : at[i][1]] for at, raw in slices] for i in range(len(CHECKED))], limits
            )

        all_sound = is_sound(waiting)
        for one in waiting:
            flow, layout, sequence, raw = one
            if all_sound or is_sound([one]):
                self._submit_quick(flow, layout, sequence, raw, now)
            else:  # let it be said row by row what is wrong
                self._room.end(flow, layout.size)
                self.take_batch(flow, agent_pb2.AgentMessage.FromString(raw).batch, raw)

    def _submit_quick(self, flow: Flow, layout: Layout, sequence: int, raw: bytes, now_unix_ns: int) -> None:
        stream = flow.stream
        if not layout.jobs <= stream.jobs:
            self._registry.update(stream, jobs=stream.jobs | layout.jobs)
        self._journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=layout.spool_id,
                sequence=sequence,
                received_unix_ns=now_unix_ns,
                payload=raw[layout.body_at :],
                rows=layout.rows,
                accepted_rows=layout.rows,
                rejected_rows=_NO_REJECTIONS,
                kept=None,
                done=partial(self._done_quick, flow, layout, sequence),
                rejected_events=_NO_REJECTIONS,
            )
        )

    def _done_quick(self, flow: Flow, layout: Layout, sequence: int, is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
        self._room.end(flow, layout.size)
        flow.stream.acknowledge(
            layout.spool_id,
            sequence,
            accepted_rows=layout.rows if is_new else 0,
            more_follow=flow.pending > 0,
        )

    def take_batch(self, flow: Flow, batch: agent_pb2.CpiBatch, raw: bytes) -> None:
        """Take any batch; `raw` is the message that it came in."""
        stream, now = flow.stream, self._clock()
        spool_id, sequence = batch.spool_id, batch.sequence
        batch.DiscardUnknownFields()  # of a newer protocol: nobody here would read them
        has_reports = bool(batch.events or batch.triggers)
        payload = b"" if has_reports else batch.SerializeToString()
        checked, refusal = self._check(flow, batch, payload, now)
        if refusal is not None and refusal.reason in _NAMELESS:
            self._journal.reject(stream.host, refusal.reason)
            stream.acknowledge(spool_id, 0, rejected_batch=_rejected(sequence, refusal))
            return
        for reason, count in checked.rejected_rows.items():
            self._refused(stream.host, reason, f"{count} of {checked.rows} rows of batch {sequence} refused")
        if not stream.is_importer and not checked.jobs <= stream.jobs:
            self._registry.update(stream, jobs=stream.jobs | checked.jobs)
        if refusal is None:  # batches of the same tasks as before are quick ones: their names are known
            self._registry.vm_names.note(batch.tasks)
        events, triggers, rejected_events = (
            self._check_reports(flow, batch, now) if refusal is None else ([], [], {})
        )
        if has_reports:
            for name in ("events", "triggers"):  # they have tables of their own
                batch.ClearField(name)
            payload = batch.SerializeToString()
        if not checked.accepted_rows:
            payload = b""
        elif checked.kept is None and not stream.is_importer:
            flow.layout = Layout.of(raw, payload, batch, checked.jobs)
        self._room.begin(flow, len(payload))

        def done(is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
            self._room.end(flow, len(payload))
            # What was counted already is acknowledged without counts.
            stream.acknowledge(
                spool_id,
                sequence,
                accepted_rows=checked.accepted_rows if is_new else 0,
                rejected_rows=checked.rejected_rows if is_new else None,
                rejected_batch=_rejected(sequence, refusal) if refusal and is_new else None,
                more_follow=flow.pending > 0,
            )

        self._journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=spool_id,
                sequence=sequence,
                received_unix_ns=now,
                payload=payload,
                rows=checked.rows,
                accepted_rows=checked.accepted_rows,
                rejected_rows=checked.rejected_rows,
                kept=None if checked.kept is None else np.packbits(checked.kept).tobytes(),
                done=done,
                refused=refusal.reason if refusal else "",
                events=tuple(events),
                triggers=tuple(triggers),
                rejected_events=rejected_events,
            )
        )

    def _check(
        self, flow: Flow, batch: agent_pb2.CpiBatch, payload: bytes, now_unix_ns: int
    ) -> tuple[Checked, BatchError | None]:
        stream = flow.stream
        try:
            return check(
                batch,
                host=stream.host,
                platform=stream.platform,
                is_importer=stream.is_importer,
                limits=self._limits,
                now_unix_ns=now_unix_ns,
                payload=payload,
            ), None
        except BatchError as error:
            told = f"batch {batch.sequence} of spool {batch.spool_id[:SHOWN]!r} refused: {error}"
            self._refused(stream.host, error.reason, told)
            return Checked(0, 0, {}, None, frozenset()), error

    def _check_reports(
        self, flow: Flow, batch: agent_pb2.CpiBatch, now_unix_ns: int
    ) -> tuple[list[EventRow], list[TriggerRow], dict[str, int]]:
        if not batch.events and not batch.triggers:
            return [], [], {}
        stream = flow.stream
        known: dict[str, Any] = {
            "host": stream.host,
            "is_importer": stream.is_importer,
            "limits": self._limits,
            "now_unix_ns": now_unix_ns,
        }
        events, rejected = check_events(batch, **known)
        triggers, rejected_triggers = check_triggers(batch, **known)
        rejected |= rejected_triggers
        if triggers and not stream.is_importer:
            triggers, dropped = self._quotas.take_reports(stream.host, triggers)
            if dropped:
                rejected[OVER_QUOTA_REPORTS] = dropped
        of = len(batch.events) + len(batch.triggers)
        for reason, count in rejected.items():
            self._refused(stream.host, reason, f"{count} of {of} reports of batch {batch.sequence} refused")
        return events, triggers, rejected

    def _refused(self, host: str, reason: str, detail: str) -> None:
        """Log what was refused; all of it is counted in the journal, and the agent learns of it."""
        self._warn("input refused", host=host, reason=reason, detail=detail)


def _rejected(sequence: int, error: BatchError) -> agent_pb2.RejectedBatch:
    return agent_pb2.RejectedBatch(sequence=sequence, reason=error.reason, detail=str(error))
