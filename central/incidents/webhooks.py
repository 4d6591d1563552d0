"""Sends incidents to webhook receivers: a task for each makes notices of what is new and posts them in order.

Waiting notices are in the database of incident history, so a kill loses nothing; a message that was taken while central
was killed is sent once more.
"""

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from central.config import WebhooksSection
from central.incidents import webhook_tables
from central.incidents.store import IncidentStore, StoreError
from central.incidents.webhook_sender import Answer, Sender, receiver_names
from central.own_threads import in_own_thread
from whitepanda.common import log
from whitepanda.v1 import agent_pb2, fleet_pb2

#: Why a notice is given up.
DROP_REASONS = ("expired", "refused", "too_many")

_KEEP_UNCLAIMED_NS = 30 * 86_400 * 10**9  # of receivers that are in no configuration any more
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between checks of the history, and before a message is posted again: doubling, half of it random."""

    poll_s: float = 2.0
    first_retry_s: float = 1.0
    last_retry_s: float = 300.0
    lease_s: float = 60.0  # beyond the time that a post may take


@dataclass(slots=True)
class _Receiver:
    """One URL as this replica knows it; nothing is posted before `due_s` (monotonic)."""

    name: str
    key: str  # in the database, which must not hold the secrets of a URL
    sender: Sender
    attempts: int = 0
    due_s: float = 0.0
    is_leased: bool = False  # by this replica
    error: str = ""
    delivered: int = 0
    failed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # notices
    oldest_unix_ns: int = 0  # of these; 0: none


class Webhooks:
    """All receivers of one central.

    `holder` is this central's own name, its journal's `origin`: after a restart with it, leases still hold. An incident
    is over after `gap_ns` without a report. `timing` is for tests. Raises ConfigError if
    `webhooks.secret_file` cannot be used, TlsError if `webhooks.ca` cannot.
    """

    def __init__(
        self,
        section: WebhooksSection,
        store: IncidentStore,
        *,
        holder: str,
        gap_ns: int,
        clock_unix_ns: Callable[[], int] = time.time_ns,
        timing: Timing | None = None,
    ) -> None:
        self._section = section
        self._store = store
        self._holder = holder
        self._gap_ns = gap_ns
        self._clock = clock_unix_ns
        self._timing = timing or Timing()
        self._news: dict[str, asyncio.Event] = {}
        self._log = log.get("webhooks")
        names = receiver_names(section.urls)
        make = partial(Sender, ca=section.ca, secret_file=section.secret_file, timeout_s=section.timeout_s)
        self._receivers = [
            _Receiver(name, hashlib.sha256(url.encode()).hexdigest()[:32], make(url))
            for name, url in zip(names, section.urls, strict=True)
        ]

    def wake(self) -> None:
        """Check the history now, as there is something new. Call it on the loop of `run`."""
        for event in self._news.values():
            event.set()

    async def run(self) -> None:
        """Serve all receivers indefinitely."""
        self._news = {receiver.key: asyncio.Event() for receiver in self._receivers}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tidy())
                for receiver in self._receivers:
                    group.create_task(self._serve(receiver))
        finally:
            for receiver in self._receivers:
                await receiver.sender.close()

    def status(self) -> list[fleet_pb2.WebhookReceiver]:
        """Return the state of each receiver, as this replica knows it."""
        return [
            fleet_pb2.WebhookReceiver(
                receiver=one.name,
                active=one.is_leased,
                delivered=one.delivered,
                failed_attempts=one.failed,
                dropped=[agent_pb2.RejectedRows(reason=reason, count=one.dropped[reason]) for reason in DROP_REASONS],
                waiting=one.waiting,
                oldest_waiting_unix_ns=one.oldest_unix_ns,
                last_error=one.error,
            )
            for one in self._receivers
        ]

    async def _serve(self, receiver: _Receiver) -> None:
        news = self._news[receiver.key]
        while True:
            news.clear()
            try:
                pause_s = await self._turn(receiver)
            except StoreError as error:
                receiver.is_leased = False  # by the time that the database answers another may have it
                self._set_error(receiver, f"incident history does not answer: {error}")
                pause_s = self._timing.poll_s
            except Exception as error:  # noqa: BLE001 - one receiver must not end the others or central
                receiver.is_leased = False
                receiver.failed += 1
                self._set_error(receiver, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
                await asyncio.sleep(self._timing.last_retry_s)
                continue
            if pause_s > 0:
                # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with news.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await news.wait()

    async def _turn(self, receiver: _Receiver) -> float:
        """Make new notices and post the next one, if it is due; return how long to wait before the next turn."""
        notice = await in_own_thread(self._look, receiver)
        if notice is None:
            self._set_error(receiver, "")
            return self._timing.poll_s
        early_s = receiver.due_s - time.monotonic()
        if early_s > 0:
            return min(early_s, self._timing.poll_s)
        answer = await receiver.sender.post(notice.message)
        receiver.failed += bool(answer.why)
        if not answer.why or answer.is_final:
            receiver.attempts, receiver.due_s = 0, 0.0
            if answer.is_final:
                await self._give_up(receiver, notice.id, "refused", answer.why)
            else:
                await self._forget(notice.id)
                receiver.delivered += 1
            self._set_error(receiver, "")
            return 0.0
        self._set_error(receiver, answer.why)
        receiver.due_s = time.monotonic() + self._delay_s(receiver, answer)
        receiver.attempts += 1
        if self._clock() - notice.created_unix_ns > self._section.retry_for_s * 1e9:
            await self._give_up(receiver, notice.id, "expired", answer.why)
        return min(self._timing.poll_s, self._timing.first_retry_s)

    def _look(self, receiver: _Receiver) -> sa.Row[Any] | None:
        """Make new notices; return the next one, None if none waits or another replica has the lease."""

        def look(connection: sa.Connection) -> tuple[bool, int, int, int, sa.Row[Any] | None]:
            section, now = self._section, self._clock()
            # Renewed before each post; twice the time, for a database that answers late.
            lease_ns = round(2 * (section.timeout_s + self._timing.lease_s) * 1e9)
            if not webhook_tables.claim(connection, receiver.key, self._holder, lease_ns=lease_ns, now_unix_ns=now):
                return False, 0, 0, 0, None
            dropped = webhook_tables.change(
                connection,
                receiver.key,
                open_since_unix_ns=now - self._gap_ns,
                now_unix_ns=now,
                incident_url=section.incident_url,
                max_waiting=section.max_waiting,
            )
            return True, dropped, *webhook_tables.waiting(connection, receiver.key)

        receiver.is_leased, dropped, receiver.waiting, receiver.oldest_unix_ns, notice = self._store.write(look)
        if dropped:
            receiver.dropped["too_many"] += dropped
            message = "too many notices wait for a webhook; the oldest are dropped"
            self._log.error(message, receiver=receiver.name, dropped=dropped)
        return notice

    def _delay_s(self, receiver: _Receiver, answer: Answer) -> float:
        timing = self._timing
        ceiling_s = min(timing.last_retry_s, timing.first_retry_s * 2.0 ** min(receiver.attempts, 30))
        return max(answer.delay_s, ceiling_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is not a secret

    async def _forget(self, notice: int) -> None:
        await in_own_thread(self._store.write, partial(webhook_tables.forget, notice=notice))

    async def _give_up(self, receiver: _Receiver, notice: int, reason: str, why: str) -> None:
        await self._forget(notice)
        receiver.dropped[reason] += 1
        self._log.error("a webhook's notice is given up", receiver=receiver.name, reason=reason, why=why, notice=notice)

    async def _tidy(self) -> None:
        """Forget receivers that no central has claimed for a month, now and daily."""
        while True:
            now = self._clock()
            forget = partial(webhook_tables.forget_receivers, unclaimed_for_ns=_KEEP_UNCLAIMED_NS, now_unix_ns=now)
            try:
                gone = await in_own_thread(self._store.write, forget)
            except StoreError:
                gone = 0  # the receivers' own tasks log it
            if gone:
                self._log.info("removed the state of webhooks that are no longer configured", receivers=gone)
            await asyncio.sleep(_DAY_S)

    def _set_error(self, receiver: _Receiver, error: str) -> None:
        if error and not receiver.error:
            self._log.error("notices to a webhook fail; they are queued", receiver=receiver.name, why=error)
        elif receiver.error and not error:
            self._log.info("a webhook accepts notices again", receiver=receiver.name)
        receiver.error = error
