"""Push back: each host gets the statistics and coefficients of the jobs that it runs, and of no others.

A stream's first message of a version is full: it replaces what the agent has. While the version stays and
only the host's jobs change, a delta brings the new jobs' rows and names the jobs that left. A new version is
sent in full, for with it nearly every row changes. What a stream was sent is remembered only as long as it
lasts: after a reconnect nobody has to guess what arrived before the break.

Rows of few samples are not sent: a coefficient of two task slots, or the spread of two CPIs, blames at random.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from central.builds import Builder
from central.streams import HostStream, StreamRegistry
from central.versions import BuiltVersion
from whitepanda.v1 import agent_pb2

__all__ = ["Publisher"]

_RETRY_S = 1.0  # for a host that does not read its messages
_SENT_AT_ONCE = 32  # hosts, before others on the loop have their turn


@dataclass(frozen=True, slots=True)
class _Sent:
    stream: HostStream
    version: int
    jobs: frozenset[str]


class Publisher:
    """Sends each connected host its part of the version in force.

    It registers itself with both: `run` looks at hosts that connect or change their jobs, and at all of them
    when there is a new version. Importers, which run no jobs, get nothing; nor do hosts of unknown jobs only.

    Args:
        registry: the open streams.
        builder: has the version in force.
        ttl_s: how long agents may use a version, from its making.
        min_samples: task slots that a row must be made from to be sent.

    """

    def __init__(self, registry: StreamRegistry, builder: Builder, *, ttl_s: float, min_samples: int) -> None:
        self._registry = registry
        self._builder = builder
        self._ttl_ns = round(ttl_s * 1e9)
        self._min_samples = min_samples
        self._due: dict[HostStream, None] = {}
        self._wake = asyncio.Event()
        self._sent: dict[str, _Sent] = {}
        # Rows of a job on a platform as a serialised CoefficientUpdate: merging is then appending.
        self._rows: dict[tuple[str, str], bytes] = {}
        self._rows_version = 0
        registry.on_change.append(self._look_at)
        builder.on_version.append(self._on_version)

    async def run(self) -> None:
        """Send what is due, until cancelled. Everything happens on the registry's loop."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            sent = 0
            while self._due:
                stream = next(iter(self._due))
                del self._due[stream]
                if not self._send(stream):
                    loop.call_later(_RETRY_S, self._look_at, stream)
                sent += 1
                if sent % _SENT_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _look_at(self, stream: HostStream) -> None:
        self._due[stream] = None
        self._wake.set()

    def _on_version(self, _built: BuiltVersion) -> None:
        connected = self._registry.connected()
        streams = set(connected)
        self._sent = {host: sent for host, sent in self._sent.items() if sent.stream in streams}
        for stream in connected:
            self._look_at(stream)

    def _send(self, stream: HostStream) -> bool:
        """Send a stream what it lacks. False where it must be tried again."""
        built = self._builder.current
        if built is None or stream.closed or stream.is_importer:
            return True
        rows = {job: part for job in stream.jobs if (part := self._rows_of(built, job, stream.platform))}
        sent = self._sent.get(stream.host)
        if sent is not None and sent.stream is not stream:
            sent = None
        if not rows and (sent is None or not sent.jobs):
            return True
        update = agent_pb2.CoefficientUpdate(
            version=built.version,
            created_unix_ns=built.manifest.created_unix_ns,
            ttl_ns=self._ttl_ns,
            slot_ns=built.slot_ns,
        )
        if sent is None or sent.version != built.version:
            update.full = True
            wanted = set(rows)
        else:
            wanted = rows.keys() - sent.jobs
            update.removed_jobs.extend(sorted(sent.jobs - rows.keys()))
            if not wanted and not update.removed_jobs:
                return True
        for job in sorted(wanted):
            update.MergeFromString(rows[job])
        if not stream.send(agent_pb2.CentralMessage(coefficients=update)):
            return stream.closed
        self._sent[stream.host] = _Sent(stream, built.version, frozenset(rows))
        return True

    def _rows_of(self, built: BuiltVersion, job: str, platform: str) -> bytes:
        """Return a job's rows for hosts of a platform; b"" where too little is known of the job there."""
        if self._rows_version != built.version:
            self._rows = {}
            self._rows_version = built.version
        known = self._rows.get((job, platform))
        if known is None:
            statistics = [row for row in built.statistics(job) if row.platform == platform]
            coefficient = built.coefficient(job)
            coefficients = [] if coefficient is None else [coefficient]
            known = agent_pb2.CoefficientUpdate(
                statistics=[row for row in statistics if row.samples >= self._min_samples],
                coefficients=[row for row in coefficients if row.samples >= self._min_samples],
            ).SerializeToString()
            self._rows[job, platform] = known
        return known
