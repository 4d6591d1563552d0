"""The uplink: keeps a stream to central open, and never lets the agent wait for it.

`submit` only puts windows aside; a thread writes them to the spool, and they leave it when central has
acknowledged them. While central is away, the spool fills up to its cap.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from agent.antagonists.update_limits import Refusals
from agent.config import UplinkSection, WindowsSection
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import Report, problem_of
from agent.uplink.disk_queue import Spool
from agent.uplink.outage import Outage, explain
from agent.uplink.outgoing import Outgoing
from agent.uplink.queue import BatchQueue
from agent.uplink.stream import AckTotals, Shared, StreamError, Taker, Timing, UplinkStream
from whitepanda.common import log
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS, MAX_BATCH_ROWS, MAX_MESSAGE_BYTES
from whitepanda.common.tls import channel_credentials, warnings
from whitepanda.v1 import agent_pb2, host_pb2

_METHOD = "/whitepanda.v1.AgentStream/Connect"
_MAX_PENDING = 64  # submissions that may wait for a slow disk
_FLUSH_S = 5.0
_LOG = log.get("uplink")


class Uplink:
    """Sends what is queued to central. Belongs to the one asyncio loop."""

    def __init__(
        self,
        section: UplinkSection,
        hello: Callable[[], agent_pb2.Hello],
        queue: BatchQueue,
        on_coefficients: Taker | None = None,
        *,
        windows: WindowsSection | None = None,
        refusals: Refusals | None = None,
        give_up_after_s: float | None = None,
        tls_prefix: str = "uplink.tls",
        timing: Timing | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Set up; nothing is opened before `run`.

        `hello` gives what is known now: host, boot_id, platform, agent_version, jobs, coefficient_version, window_ms;
        it is called often. `windows` chooses metrics. `on_coefficients` takes central's updates on the loop; `refusals`
        counts refused ones.
        With `give_up_after_s`, `run` raises TlsError or UnavailableError if central refuses or is away for that long.
        `tls_prefix`: what the TLS settings are called in errors; "--": a tool's options. Tests shorten `timing`.
        """
        self._section = section
        self._queue = queue
        self._outgoing = Outgoing(windows or WindowsSection())
        self._refusals = refusals or Refusals()
        self._give_up_after_s = give_up_after_s
        self._tls_prefix = tls_prefix
        self._rng = rng or random.Random()  # noqa: S311 - jitter is not a secret
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._pending: deque[tuple[Sequence[CpiWindow], Sequence[Report]]] = deque()
        self._submitted = asyncio.Event()
        self._appending: asyncio.Future[Any] | None = None
        self._stream: UplinkStream | None = None
        self._limits = (MAX_BATCH_ROWS, MAX_MESSAGE_BYTES)
        self._last_error = ""
        self._overflows = 0
        self._unsendable, self._logged_unsendable = 0, ""
        #: What became of the batches since the start.
        self.totals = AckTotals()
        self._shared = Shared(
            section, hello, queue, on_coefficients, self._refusals, timing or Timing(), self.totals, self._in_thread
        )
        #: Streams that central answered on.
        self.connections = 0

    def submit(self, windows: Sequence[CpiWindow], events: Sequence[Report] = ()) -> None:
        """Queue windows and events for central. Never waits; if the disk is stuck the oldest are dropped, counted."""
        if not windows and not events:
            return
        if len(self._pending) >= _MAX_PENDING:
            self._pending.popleft()
            self._overflows += 1
            self._outgoing.restart()
        self._pending.append((self._outgoing.prepare(windows), events))
        self._submitted.set()

    def view(self) -> host_pb2.UplinkStatus:
        """Return the state for the local API; never blocks."""
        counts = self._queue.counts()
        state = "connecting" if self._section.address else "off"
        if self._stream is not None and self._stream.heard.is_set():
            state = "connected"
        return host_pb2.UplinkStatus(
            state=state,
            address=self._section.address,
            spooled_batches=counts.batches,
            spooled_bytes=counts.bytes,
            acknowledged_batches=self.totals.acknowledged_batches - self.totals.whole_batches,
            acknowledged_windows=self.totals.sent_rows,
            dropped_batches=counts.dropped_batches + self._overflows,
            rejected_rows=self.totals.all_rejected_rows + self._unsendable,
            rejected_batches=self.totals.whole_batches,
            refused_updates=self._refusals.updates,
            refused_update_rows=self._refusals.rows,
            last_refusal=self._refusals.last,
            last_error=self._last_error,
            min_batch_interval_ms=0 if self._stream is None else round(1000 * self._stream.min_interval_s),
        )

    async def run(self) -> None:
        """Work until cancelled, then close the channel; may be run again. See `give_up_after_s` for its errors."""
        tasks = [asyncio.create_task(self._keep_spool()), asyncio.create_task(self._keep_connected())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Write what was submitted to the spool (a stuck disk gets 5 s) and let the thread go."""
        with contextlib.suppress(TimeoutError, RuntimeError):  # RuntimeError: closed before
            await asyncio.wait_for(self._flush(), _FLUSH_S)
            if self._appending is not None:
                await asyncio.wait({self._appending}, timeout=_FLUSH_S)
        self._threads.shutdown(wait=False)

    # -- spool -----------------------------------------------------------------------------------

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _keep_spool(self) -> None:
        while True:
            await self._submitted.wait()
            self._submitted.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._pending:
            windows, events = self._pending.popleft()
            if self._stream is not None:
                self._limits = (self._stream.max_batch_rows, self._stream.max_batch_bytes)
            # Shielded: were it cancelled half-way, it would be unknown whether to append them again.
            self._appending = asyncio.ensure_future(self._in_thread(self._append, windows, events))
            await asyncio.shield(self._appending)
            if self._stream is not None:
                self._stream.wake.set()

    def _append(self, windows: Sequence[CpiWindow], events: Sequence[Report]) -> None:
        """Queue what can be sent. Never raises: the rest is dropped and counted."""
        why = self._try_append(windows, events)
        if not why:
            return
        kept = [window for window in windows if not problem_of(window)]
        reports = [event for event in events if not problem_of(event)]
        first = next(filter(None, map(problem_of, (*windows, *events))), "")
        again = self._try_append(kept, reports) if first else why
        dropped = len(windows) + len(events) - (0 if again else len(kept) + len(reports))
        self._unsendable += dropped
        why = again or first
        if why != self._logged_unsendable:
            self._logged_unsendable = why
            _LOG.warning("what cannot be sent is dropped; please report this", rows=dropped, error=why)

    def _try_append(self, windows: Sequence[CpiWindow], events: Sequence[Report]) -> str:
        """Append all or nothing; return why that failed, "" if it did not."""
        assert isinstance(self._queue, Spool)  # noqa: S101 - tools that bring their own queue submit nothing
        rows, size = self._limits
        rows = min(self._section.batch_rows, rows)
        try:
            self._queue.append(windows, max_rows=rows, max_batch_bytes=size, events=events)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next submission is another one
            return f"{type(error).__name__}: {error}"
        return ""

    # -- streams ---------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        if not self._section.address:
            return
        loop = asyncio.get_running_loop()
        failures, away_since, logged = 0, loop.time(), ""
        while True:
            started = loop.time()
            outage, heard, acknowledged = await self._one_stream()
            ended = loop.time()
            if heard:
                away_since, logged = ended, ""
            if acknowledged or ended - started > self._shared.timing.stable_s:
                failures = 0
            self._last_error = outage.message
            if self._give_up_after_s is not None:
                if outage.refused or ended - away_since > self._give_up_after_s:
                    raise (TlsError if outage.is_tls else UnavailableError)(outage.message)
                if not logged:  # a tool's user reads the reason when it is given up
                    _LOG.warning("no stream to central yet, trying on", give_up_after_s=self._give_up_after_s)
            elif logged != outage.message:
                _LOG.warning("no stream to central", error=outage.message, spooled_batches=self._queue.counts().batches)
            logged = outage.message
            await asyncio.sleep(self._back_off_s(failures, refused=outage.refused))
            failures += 1

    def _back_off_s(self, failures: int, *, refused: bool) -> float:
        """Full jitter: anything up to a ceiling that doubles; if central refuses, long from the start."""
        longest = self._section.reconnect_max_s
        if refused:
            return self._rng.uniform(longest / 2, longest)
        return self._rng.uniform(0, min(longest, self._section.reconnect_min_s * 2 ** min(failures, 32)))

    async def _one_stream(self) -> tuple[Outage, bool, bool]:
        """Connect and talk until the end. Returns why it ended, and whether central said, acknowledged anything.

        Does not return the stream: its call keeps the channel, which even closed would try to connect in the pause.
        """
        address = self._section.address
        try:
            # Read each time: a renewed certificate is taken up without a restart.
            credentials = channel_credentials(self._section.tls, self._tls_prefix)
        except TlsError as error:
            return Outage(str(error), refused=True, is_tls=True), False, False
        largest = self._section.max_message_mib << 20
        options: list[tuple[str, Any]] = [*CLIENT_CHANNEL_OPTIONS, ("grpc.max_receive_message_length", largest)]
        if self._section.server_name:
            options.append(("grpc.ssl_target_name_override", self._section.server_name))
        channel = grpc.aio.secure_channel(address, credentials, options=options)
        try:
            # Answers stay bytes: grpc.aio turns into None what it cannot parse, and continues.
            connect: Any = channel.stream_stream(_METHOD, request_serializer=agent_pb2.AgentMessage.SerializeToString)
            call = connect()
            stream = self._stream = UplinkStream(call, self._shared)
            watcher = asyncio.create_task(self._note_connection(stream))
            try:
                await stream.run()
                try:  # how it ended is known once its reader or writer has
                    code, details = await asyncio.wait_for(call.code(), 5.0), await call.details() or ""
                except TimeoutError:
                    code, details = None, ""
                outage = self._explain(code, details, heard=stream.heard.is_set())
            except StreamError as error:
                outage = Outage(f"central {address} {error}")
            finally:
                watcher.cancel()
                call.cancel()
            return outage, stream.heard.is_set(), stream.acknowledged
        finally:
            self._stream = None
            await channel.close()

    def _explain(self, code: grpc.StatusCode | None, details: str, *, heard: bool) -> Outage:
        outage = explain(self._section, code, details, heard=heard, is_tool=self._tls_prefix == "--")
        if outage.too_large:
            self._refusals.update("message", "a message larger than uplink.max_message_mib allows")
        if outage.broke_off and (doubts := warnings(self._section.tls, server=False, prefix=self._tls_prefix)):
            return Outage(f"{doubts[0]} (central {self._section.address}: {details})", refused=True, is_tls=True)
        return outage

    async def _note_connection(self, stream: UplinkStream) -> None:
        await stream.heard.wait()
        self._outgoing.restart()
        self.connections += 1
        _LOG.info("connected to central", address=self._section.address, spooled_batches=self._queue.counts().batches)
        self._last_error = ""
