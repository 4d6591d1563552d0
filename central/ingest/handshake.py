"""A stream's handshake: who speaks, for which host, in which version of the protocol; and refusals."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from central.authorisation.revocation_list import Revoked, revoked_text
from central.config import CentralConfig
from central.ingest.large_messages import LARGE, LargeMessages
from central.ingest.log_limit import LogLimit
from central.ingest.peers import Peer
from central.ingest.sessions import HostStream
from central.journal.tables import HostRecord
from central.journal.writer import Journal
from central.validation.batch_heads import whole
from central.validation.events import AgentSeen
from central.validation.reader import ReadBatch
from central.validation.rows import Limits, Sender, is_name, job_bytes, too_many_jobs
from central.validation.wire_columns import Head
from whitepanda.common import log
from whitepanda.common.protocol import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree, version_span
from whitepanda.common.tls import peer_certificate, shown_names
from whitepanda.v1 import agent_pb2

Context = Any  # grpc.aio.ServicerContext[bytes, bytes]; the stubs know it only with message types

#: The status of a refused stream by reason, RESOURCE_EXHAUSTED for the others.
_CODES = {
    "revoked": grpc.StatusCode.UNAUTHENTICATED,
    "wrong_host": grpc.StatusCode.PERMISSION_DENIED,
    "not_read": grpc.StatusCode.UNAVAILABLE,
    **dict.fromkeys(("bad_hello", "malformed", "too_many_jobs"), grpc.StatusCode.INVALID_ARGUMENT),
    **dict.fromkeys(("no_hello", "second_hello", "protocol_version"), grpc.StatusCode.FAILED_PRECONDITION),
}

SHOWN = 60  # characters of a client's text in a message
_HELLO_TIMEOUT_S = 10.0
_LAST_UNIX_NS = 2**63 - 1  # of a host's clock
_CONNECTIONS = 10  # of a host in a minute are logged
#: Between heartbeats of an agent without batches, the longest that agents accept: changes (jobs, a version) are sent
#: immediately, and pings find a dead agent.
HEARTBEAT_MS = 600_000
_NO_HELLO = b""  # stands for a large batch in place of a Hello


class RefusedError(Exception):
    """The stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(eq=False)
class Handshake:
    """Reads and checks what comes before a stream's first batch; counts refused streams by reason in `refused`."""

    config: CentralConfig
    journal: Journal
    refused: Counter[str]
    revoked: Revoked
    clock: Callable[[], int]
    large: LargeMessages
    on_agent: Callable[[AgentSeen], None] = lambda _seen: None  # called with each host's agent, not importers'
    _warn: LogLimit = field(init=False)
    _inform: LogLimit = field(init=False)

    def __post_init__(self) -> None:
        logger = log.get("ingest")
        self._warn = LogLimit(logger.warning)
        self._inform = LogLimit(logger.info, most_lines=_CONNECTIONS, most_hosts=self.config.ingest.max_streams)

    def admit(self, context: Context, names: frozenset[str], hello: agent_pb2.Hello) -> tuple[HostStream, HostRecord]:
        """Check a Hello and return the stream and the host's record.

        RefusedError: it is for a host not in `names`, malformed, of another protocol, or the certificate is revoked.
        """
        now = self.clock()
        _, serial = peer_certificate(context)
        if serial in self.revoked:
            raise self.refuse_revoked(names, serial)
        if hello.host not in names:
            detail = (
                f"host {hello.host[:SHOWN]!r} is not a name of its certificate ({shown_names(names)}); "
                "issue a certificate for that name, or set agent.host to the certificate's name"
            )
            # Not for the claimed host: one certificate could use up all log lines of that reason.
            raise self.refuse("wrong_host", detail, host=someone(names))
        for what in ("platform", "agent_version", "boot_id"):
            value = getattr(hello, what)
            if value and not is_name(value):
                found = f"({len(value)} characters, {value[:SHOWN]!r})"
                detail = f"{what} must be a text without control characters, of a name's length {found}"
                raise self.refuse("bad_hello", detail, host=hello.host)
        self.check_jobs(len(hello.jobs), job_bytes(hello.jobs), hello.host)
        self.check_jobs(len(hello.held), job_bytes(held.job for held in hello.held), hello.host)
        version = agree(hello.protocol_version, hello.min_protocol_version)
        if version is None:
            theirs = version_span(hello.min_protocol_version, hello.protocol_version)
            ours = version_span(MIN_PROTOCOL_VERSION, PROTOCOL_VERSION)
            detail = f"host {hello.host!r} speaks protocol {theirs}, central speaks {ours}: upgrade the older side"
            raise self.refuse("protocol_version", detail, host=hello.host)
        stream = HostStream(
            host=hello.host,
            platform=hello.platform,
            protocol_version=version,
            is_importer=hello.host in self.config.central.importers,
            serial=serial,
            jobs=frozenset(filter(is_name, hello.jobs)),
            coefficient_version=hello.coefficient_version,
            held_tags={held.job: held.tag for held in hello.held if is_name(held.job)},
        )
        said = ("host", "platform", "agent_version", "boot_id", "coefficient_version")
        record = HostRecord(
            **{name: getattr(hello, name) for name in said},
            protocol_version=version,
            last_seen_unix_ns=now,
            clock_offset_ns=min(hello.sent_unix_ns, _LAST_UNIX_NS) - now,
            jobs=tuple(sorted(stream.jobs)),
        )
        self.journal.note_host(record)
        if not stream.is_importer:
            started = min(hello.agent_started_unix_ns, _LAST_UNIX_NS)
            self.on_agent(AgentSeen(hello.host, hello.boot_id, hello.agent_version, started, now))
        facts = {"protocol": version, "agent": hello.agent_version, "certificate_serial": serial}
        self._inform("host connected", host=hello.host, reason="connected", **facts)
        return stream, record

    async def welcome(self, context: Context, stream: HostStream) -> None:
        """Answer a Hello."""
        welcome = agent_pb2.Welcome(
            protocol_version=stream.protocol_version,
            central_version=_version(),
            sent_unix_ns=self.clock(),
            max_batch_rows=self.config.ingest.max_batch_rows,
            max_batch_bytes=self.config.ingest.max_message_bytes,
            heartbeat_ms=HEARTBEAT_MS,
        )
        await context.write(agent_pb2.CentralMessage(welcome=welcome).SerializeToString())

    async def read_hello(self, context: Context, peer: Peer) -> agent_pb2.Hello:
        """Read a stream's first message; RefusedError if it is not a Hello, comes too late, or is too large."""
        host = someone(peer.names)
        try:
            raw = await asyncio.wait_for(context.read(), _HELLO_TIMEOUT_S)
        except TimeoutError:
            detail = f"no Hello within {_HELLO_TIMEOUT_S:.0f} s of connecting"
            raise self.refuse("no_hello", detail, host=host, code=grpc.StatusCode.DEADLINE_EXCEEDED) from None
        if raw is grpc.aio.EOF:
            detail = "the stream ended without a Hello, or gRPC dropped one that is too large uncompressed"
            raise self.refuse("no_hello", detail, host=host)
        self.check_size(raw, host)
        if len(raw) > LARGE:
            sender = Sender(host, "", is_importer=False, limits=Limits(), now_unix_ns=0)
            if await self.read_large(raw, sender, peer) is not None:
                raw = _NO_HELLO
        message = self.parse(raw, host)
        if (body := message.WhichOneof("body")) != "hello":
            detail = f"the first message must be a Hello, it was {body or 'empty'}"
            raise self.refuse("no_hello", detail, host=host)
        return message.hello

    def check_jobs(self, jobs: int, size: int, host: str) -> None:
        """End the stream (RefusedError) of a host that names too many or too long jobs (`too_many_jobs`)."""
        if detail := too_many_jobs(jobs, size, self.config.ingest.max_host_jobs):
            raise self.refuse("too_many_jobs", f"host {host!r}: {detail}", host=host)

    async def read_large(self, raw: bytes, sender: Sender, peer: Peer) -> ReadBatch | None:
        """Return the batch of a large message; None if it is another message, which the loop can read.

        RefusedError: it is malformed, names too many jobs, or could not be read.
        """
        try:
            answer = await self.large.read(raw, sender, peer)
        except OSError as error:
            detail = f"a message of {len(raw)} bytes could not be read: {error}"
            raise self.refuse("not_read", detail, host=sender.host) from None
        if answer.body == "malformed":
            raise self._malformed(raw, sender.host)
        self.check_jobs(answer.jobs, answer.job_bytes, sender.host)
        return answer.batch

    def _malformed(self, raw: bytes, host: str) -> RefusedError:
        self.journal.reject(host, "malformed")
        detail = f"a message of {len(raw)} bytes is not a whitepanda.v1.AgentMessage"
        return self.refuse("malformed", detail, host=host)

    def check_size(self, raw: bytes, host: str) -> None:
        """End the stream (RefusedError) of a host that sends a message above `ingest.max_message_bytes`; counted."""
        limit = self.config.ingest.max_message_bytes
        if len(raw) > limit:
            self.journal.reject(host, "oversized")
            detail = f"a message of {len(raw)} bytes; ingest.max_message_bytes allows {limit}: send smaller batches"
            raise self.refuse("oversized", detail, host=host)

    def parse(self, raw: bytes, host: str) -> agent_pb2.AgentMessage:
        """Return the message; one that is malformed or too large ends the stream (RefusedError) and is counted."""
        self.check_size(raw, host)
        try:
            return agent_pb2.AgentMessage.FromString(raw)
        except DecodeError:
            raise self._malformed(raw, host) from None

    def whole(self, raw: bytes, head: Head | None, host: str) -> bytes:
        """Return a batch that left out its head with that of the stream's last batch; as `parse` without one."""
        found = whole(raw, head) if head is not None else None
        if found is None:
            raise self._malformed(raw, host)
        return found

    def refuse_revoked(self, names: frozenset[str], serial: str) -> RefusedError:
        """As `refuse`, for a revoked certificate."""
        return self.refuse("revoked", revoked_text(serial), host=someone(names))

    def refuse(self, reason: str, detail: str, *, host: str, code: grpc.StatusCode | None = None) -> RefusedError:
        """Count and log a refusal, and return the error to raise."""
        self.refused[reason] += 1
        self._warn("stream refused", host=host, reason=reason, detail=detail)
        return RefusedError(code or _CODES.get(reason, grpc.StatusCode.RESOURCE_EXHAUSTED), detail)


@cache
def _version() -> str:
    """Return central's version; a look-up takes a millisecond, and ten thousand hosts may come together."""
    return metadata.version("whitepanda")


def someone(names: frozenset[str]) -> str:
    """Return the speaker's name before its Hello: the certificate's first one."""
    return min(names, default="")
