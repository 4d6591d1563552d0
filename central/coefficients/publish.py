"""Push back: each host gets the statistics and coefficients of the jobs that it runs, and of no others.

A job's rows are sent with a tag of their content. An agent's Hello has the tags that it holds, so one message takes it
from any version to the current one, with just the rows that differ and the names of the jobs that it no longer needs:
neither side has to know what arrived before a break, and any replica can answer. Within a stream it is compared with
what was sent there. A message is full, and replaces all, if the agent keeps nothing anyway or its version would go
back. A version that changes none of a host's rows is still announced, as its time to live counts from its creation.

Rows of few samples are not sent: a coefficient of two task slots, or the spread of two CPIs, blames at random.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from central.coefficients.follower import VersionFollower
from central.coefficients.versions import BuiltVersion
from central.ingest.sessions import HostStream, StreamRegistry
from central.lake.errors import LakeError
from whitepanda.common import log
from whitepanda.common.job_tags import tag_of
from whitepanda.v1 import agent_pb2

_RETRY_S = 1.0  # for a host that does not read its messages
_SENT_AT_ONCE = 8  # hosts, before others on the loop have their turn
_JOBS_AT_ONCE = 64  # the same of a host's jobs
_REST_S = 0.001  # for each of its jobs, before a host of many jobs has its next update
_MAX_ROWS = 100_000  # kept; a host itself names its platform, so there may be many
_HOSTS_PER_S = 500  # of a large fleet at a new version: acknowledgements do not wait, and statistics can


class _Rows(NamedTuple):
    """Rows of a job on a platform with their tag, as a serialised CoefficientUpdate: merging is then appending."""

    job: str
    tag: int
    message: bytes


@dataclass(frozen=True, slots=True)
class _Sent:
    stream: HostStream
    version: int
    tags: dict[str, int]  # by job


class Publisher:
    """Sends each connected host its part of the current version.

    It registers itself with both: `run` serves hosts that connect or change their jobs, and all hosts at a new version.
    Importers, which run no jobs, get nothing; nor do hosts of unknown jobs only. Agents may use a version for `ttl_s`
    from its creation. A row is sent if it is made from `min_samples` task slots.
    """

    def __init__(self, registry: StreamRegistry, versions: VersionFollower, *, ttl_s: float, min_samples: int) -> None:
        self._registry = registry
        self._versions = versions
        self._ttl_ns = round(ttl_s * 1e9)
        self._min_samples = min_samples
        self._due: dict[HostStream, None] = {}
        self._wake = asyncio.Event()
        self._sent: dict[str, _Sent] = {}
        self._rows: dict[tuple[str, str], _Rows | None] = {}
        self._rows_version = 0
        self._rest_until_s: dict[str, float] = {}  # by host
        self._is_blind = False  # the lake could not be read
        self._log = log.get("publish")
        registry.on_change.append(self._enqueue)
        versions.on_version.append(self._on_version)

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
                if (rest_s := self._rest_until_s.get(stream.host, 0.0) - loop.time()) > 0:
                    loop.call_later(rest_s, self._enqueue, stream)
                    continue
                if not (await self._has_caught_up(stream) and await self._send(stream)):
                    loop.call_later(_RETRY_S, self._enqueue, stream)
                sent += 1
                if sent % _SENT_AT_ONCE == 0:
                    await asyncio.sleep(_SENT_AT_ONCE / _HOSTS_PER_S)

    def _enqueue(self, stream: HostStream) -> None:
        self._due[stream] = None
        self._wake.set()

    def _on_version(self, _built: BuiltVersion) -> None:
        connected = dict.fromkeys(self._registry.connected())
        self._sent = {host: sent for host, sent in self._sent.items() if sent.stream in connected}
        self._rest_until_s.clear()
        for stream in connected:
            self._enqueue(stream)

    async def _has_caught_up(self, stream: HostStream) -> bool:
        """Keep a host that comes from another replica with a newer version from being set back to this replica's.

        What the host holds was in the lake before it was sent. So if the lake has nothing newer even now, the host's
        version came from another lake, and this one's version counts. False: try again.
        """
        built, before = self._versions.current, self._sent.get(stream.host)
        is_known = before is not None and before.stream is stream
        if built is None or is_known or stream.closed or stream.coefficient_version <= built.version:
            return True
        try:
            await self._versions.catch_up()
        except (OSError, LakeError) as error:
            if not self._is_blind:
                self._log.warning("cannot look for newer versions in the lake", error=str(error))
            self._is_blind = True
            return stream.closed
        self._is_blind = False
        return True

    async def _send(self, stream: HostStream) -> bool:
        """Send a stream what it lacks. False: try again."""
        built = self._versions.current
        if built is None or stream.closed or stream.is_importer:
            return True
        rows = await self._rows_for(built, stream)
        before = self._sent.get(stream.host)
        if before is None or before.stream is not stream:
            before = _Sent(stream, stream.coefficient_version, stream.held_tags)
        same = {job for job, part in rows.items() if before.tags.get(job) == part.tag}
        gone = before.tags.keys() - rows.keys()
        if before.version == built.version and len(same) == len(rows) and not gone:
            return True
        if not rows and not before.version:
            return True
        # A host that has more than was sent last refused that: the lake was restored, and its newest version is older
        # than what the host got before. It takes a lower number in full only, and only one made later.
        if not same or built.version < before.version or before.version < stream.coefficient_version:
            update = await self._update(built, rows.values())
            update.full = True
        else:
            update = await self._update(built, [part for job, part in rows.items() if job not in same])
            update.removed_jobs.extend(sorted(gone))
        if not stream.send(agent_pb2.CentralMessage(coefficients=update)):
            return stream.closed
        if len(rows) > _JOBS_AT_ONCE:
            self._rest_until_s[stream.host] = asyncio.get_running_loop().time() + _REST_S * len(rows)
        tags = {job: part.tag for job, part in rows.items()}
        self._sent[stream.host] = _Sent(stream, built.version, tags)
        return True

    async def _rows_for(self, built: BuiltVersion, stream: HostStream) -> dict[str, _Rows]:
        """Return a stream's rows by job, with turns for others on the loop."""
        rows = {}
        for number, job in enumerate(stream.jobs & built.jobs, 1):
            if part := self._rows_of(built, job, stream.platform):
                rows[job] = part
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return rows

    async def _update(self, built: BuiltVersion, rows: Iterable[_Rows]) -> agent_pb2.CoefficientUpdate:
        update = agent_pb2.CoefficientUpdate(
            version=built.version,
            created_unix_ns=built.manifest.created_unix_ns,
            ttl_ns=self._ttl_ns,
            slot_ns=built.slot_ns,
        )
        for number, part in enumerate(sorted(rows, key=lambda part: part.job), 1):
            update.MergeFromString(part.message)
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return update

    def _rows_of(self, built: BuiltVersion, job: str, platform: str) -> _Rows | None:
        """Return a job's rows for hosts of a platform; None: too little is known of the job there."""
        if self._rows_version != built.version or len(self._rows) >= _MAX_ROWS:
            self._rows = {}
            self._rows_version = built.version
        key = (job, platform)
        if key not in self._rows:
            found = built.coefficient(job)
            statistics = (row for row in built.statistics(job) if row.platform == platform)
            rows = agent_pb2.CoefficientUpdate(
                statistics=[row for row in statistics if row.samples >= self._min_samples],
                coefficients=[found] if found is not None and found.samples >= self._min_samples else [],
                slot_ns=built.slot_ns,  # part of the tag: values of other slots do not mix with them
            )
            self._rows[key] = None
            if rows.statistics or rows.coefficients:
                rows.tags.add(job=job, tag=(tag := tag_of(rows)))
                self._rows[key] = _Rows(job, tag, rows.SerializeToString())
        return self._rows[key]
