"""Batches: checked, handed to the journal, and acknowledged once they are on disk.

A batch like its stream's last one differs in numbers only; those of all batches that came now are checked together
(`central.validation.wire_columns`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from central.config import CentralConfig
from central.ingest.backpressure import Backpressure, Flow
from central.ingest.handshake import SHOWN
from central.ingest.large_messages import LARGE, LargeMessages
from central.ingest.log_limit import LogLimit
from central.ingest.quotas import OVER_QUOTA_REPORTS, Quotas
from central.ingest.sessions import StreamRegistry
from central.journal.tables import Submission
from central.journal.writer import Journal
from central.validation.reader import ReadBatch, read_batch
from central.validation.rows import Limits, Sender, bounds, job_bytes, too_many_jobs
from central.validation.wire_columns import Layout, sound
from whitepanda.common import log
from whitepanda.v1 import agent_pb2

_WARN_EVERY_S = 600.0  # of the same host and reason; all are counted
_WARN_HOSTS = 100  # of one reason meanwhile
_NAMELESS = ("no_spool", "bad_spool", "no_sequence")  # such a batch can be neither remembered nor acknowledged


@dataclass(eq=False)
class Intake:
    """Takes the batches of all streams: checks them (large ones in `large`), and submits them to the journal.

    The registry gets the jobs and VM names of batches. `clock`: nanoseconds since 1970.
    """

    config: CentralConfig
    journal: Journal
    registry: StreamRegistry
    backpressure: Backpressure
    quotas: Quotas
    clock: Callable[[], int]
    large: LargeMessages
    _limits: Limits = field(init=False)
    _warn: LogLimit = field(init=False)
    _reading: set[asyncio.Task[None]] = field(default_factory=set)
    #: Batches with numbers that are yet to be checked.
    _quick: list[tuple[Flow, Layout, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = msgspec.convert(self.config.ingest, Limits, from_attributes=True)
        self._limits = replace(limits, max_vms_per_hour=self.config.quotas.max_vms_per_hour)
        self._warn = LogLimit(log.get("ingest").warning, every_s=_WARN_EVERY_S, most_hosts=_WARN_HOSTS)

    def take_quick(self, flow: Flow, layout: Layout, sequence: int, raw: bytes) -> None:
        """Take a batch like the stream's last one: only its numbers are left to be checked, with all that came now."""
        self.backpressure.begin(flow, layout.size)
        if not self._quick:
            asyncio.get_running_loop().call_soon(self._check_quick)
        self._quick.append((flow, layout, sequence, raw))

    def _check_quick(self) -> None:
        waiting, self._quick = self._quick, []
        now = self.clock()
        limits = bounds(self._limits, now)

        def is_sound(batches: list[tuple[Flow, Layout, int, bytes]]) -> bool:
            return sound([(layout, raw) for _, layout, _, raw in batches], limits)

        all_sound = is_sound(waiting)
        for one in waiting:
            flow, layout, sequence, raw = one
            if all_sound or is_sound([one]):
                self._submit_quick(flow, layout, sequence, raw, now)
            else:  # reports row by row what is wrong
                self._read_whole(flow, raw)

    def _read_whole(self, flow: Flow, raw: bytes) -> None:
        """Have a batch read that is not sound as a quick one."""
        if len(raw) <= LARGE:
            began_s = time.perf_counter()
            self.backpressure.end(flow, len(raw))
            self.take_batch(flow, agent_pb2.AgentMessage.FromString(raw).batch, raw)
            flow.peer.owe_for(time.perf_counter() - began_s)
            return
        task = asyncio.create_task(self._read_large(flow, raw))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_large(self, flow: Flow, raw: bytes) -> None:
        try:
            answer = await self.large.read(raw, self.sender_of(flow), flow.peer)
        except OSError as error:
            flow.stream.close(f"a batch of {len(raw)} bytes could not be read: {error}")
            return
        finally:
            self.backpressure.end(flow, len(raw))
        if answer.batch is None:
            flow.stream.close(f"a batch of {len(raw)} bytes could not be read")
        else:
            self.take_read(flow, answer.batch, len(raw))

    def _submit_quick(self, flow: Flow, layout: Layout, sequence: int, raw: bytes, now_unix_ns: int) -> None:
        stream = flow.stream
        self._note_jobs(flow, layout.jobs)
        self.journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=layout.spool_id,
                sequence=sequence,
                received_unix_ns=now_unix_ns,
                payload=raw[layout.body_at :],
                rows=layout.rows,
                accepted_rows=layout.rows,
                rejected_rows=None,
                rejected_values={"unknown_metric": layout.unknown_values} if layout.unknown_values else None,
                kept=None,
                done=partial(self._done_quick, flow, layout, sequence),
            )
        )

    def _done_quick(self, flow: Flow, layout: Layout, sequence: int, is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
        self.backpressure.end(flow, layout.size)
        rows = layout.rows if is_new else 0
        flow.stream.acknowledge(layout.spool_id, sequence, accepted_rows=rows, under_way=flow.pending)

    def take_batch(self, flow: Flow, batch: agent_pb2.CpiBatch, raw: bytes) -> ReadBatch:
        """Take any batch, from the message `raw`. Return what it says."""
        read = read_batch(batch, raw, self.sender_of(flow))
        self.take_read(flow, read, len(raw))
        return read

    def sender_of(self, flow: Flow) -> Sender:
        """Return what is known of a stream, to read a batch that comes now."""
        stream = flow.stream
        return Sender(stream.host, stream.platform, stream.is_importer, self._limits, self.clock())

    def take_read(self, flow: Flow, read: ReadBatch, size: int) -> None:
        """Take a batch that has been read from a message of `size` bytes."""
        stream, refused = flow.stream, read.reason
        if read.triggers and not stream.is_importer:
            read = self._within_quota(stream.host, read)
        self._log_refused(stream.host, read)
        self.backpressure.begin(flow, size)
        if refused in _NAMELESS:

            def answer() -> None:
                self.backpressure.end(flow, size)
                stream.acknowledge(read.spool_id, 0, rejected_batch=_rejected(read))

            self.journal.reject(stream.host, refused, answer)
            return
        self._note_jobs(flow, read.jobs)
        self.registry.vm_names.note(read.names)  # of quick batches: they are known
        if read.layout is not None:
            flow.layout = read.layout

        def done(is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
            self.backpressure.end(flow, size)
            # What was counted already is acknowledged without counts.
            stream.acknowledge(
                read.spool_id,
                read.sequence,
                accepted_rows=read.accepted_rows if is_new else 0,
                rejected_rows=read.rejected_rows if is_new else None,
                rejected_batch=_rejected(read) if refused and is_new else None,
                under_way=flow.pending,
            )

        self.journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=read.spool_id,
                sequence=read.sequence,
                received_unix_ns=self.clock(),
                is_importer=stream.is_importer,
                payload=read.payload,
                rows=read.rows,
                accepted_rows=read.accepted_rows,
                rejected_rows=read.rejected_rows,
                kept=read.kept,
                done=done,
                refused=refused,
                events=read.events,
                triggers=read.triggers,
                facts=read.facts,
                rejected_events=read.rejected_reports,
                rejected_values=read.rejected_values,
                metric_reasons=read.metric_reasons,
            )
        )

    def _within_quota(self, host: str, read: ReadBatch) -> ReadBatch:
        """Return the batch without the reports of contention beyond the host's quota; they count as rejected."""
        kept, dropped = self.quotas.take_reports(host, read.triggers)
        if not dropped:
            return read
        rejected = {**read.rejected_reports, OVER_QUOTA_REPORTS: dropped}
        return replace(read, triggers=tuple(kept), rejected_reports=rejected)

    def _note_jobs(self, flow: Flow, jobs: frozenset[str]) -> None:
        """Note the jobs of a batch: as well as the stream's others, or in place of them if these would be too many."""
        stream = flow.stream
        noted = flow.noted_jobs
        if noted is not None and noted[0] is jobs and noted[1] is stream.jobs:
            return
        if not jobs <= stream.jobs:
            both = stream.jobs | jobs
            is_too_many = too_many_jobs(len(both), job_bytes(both), self._limits.max_host_jobs)
            self.registry.update(stream, jobs=jobs if is_too_many else both)
        flow.noted_jobs = (jobs, stream.jobs)

    def _log_refused(self, host: str, read: ReadBatch) -> None:
        """Log what was refused; all of it is counted in the journal and reported to the agent."""
        if read.reason:
            detail = f"batch {read.sequence} of spool {read.spool_id[:SHOWN]!r} refused: {read.detail}"
            self._warn("input refused", host=host, reason=read.reason, detail=detail)
        values = {reason: count for reason, count in read.rejected_values.items() if reason != "unknown_metric"}
        rejected = (("rows", read.rejected_rows), ("reports", read.rejected_reports), ("values", values))
        for what, counts in rejected:
            for reason, count in counts.items():
                detail = f"{count} {what} of batch {read.sequence} of {read.rows} rows refused"
                self._warn("input refused", host=host, reason=reason, detail=detail)


def _rejected(read: ReadBatch) -> agent_pb2.RejectedBatch:
    return agent_pb2.RejectedBatch(sequence=read.sequence, reason=read.reason, detail=read.detail)
