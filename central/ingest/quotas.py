"""What one host may send: a budget each of rows, bytes, VMs, ranges of numbers and reports of contention.

A budget is a token bucket: it holds what its setting allows in its time, and refills evenly over that time. A batch is
taken while something is left, so a budget is exceeded by one batch at most. Beyond it a batch is refused for now: it is
not acknowledged, so the agent keeps it and sends it again later.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from central.config import QuotaSection
from central.validation.triggers import TriggerRow

#: Why reports are dropped.
OVER_QUOTA_REPORTS = "over_quota_reports"

_DAY_S = 86_400.0
_HOUR_S = 3600.0
_OVER_S = 300.0  # an agent that was refused comes again within its reconnect_max_s, 30 s by default
_PERIOD_S = 30.0  # of one count of refusals, so the five minutes may be this much longer
_REFILL_S = 0.05  # budgets are refilled no more often: it would be half of what a batch costs here
_SWEEP_S = 3600.0
_BATCH_ROWS = 10  # a batch costs at least as much as this many rows
_BATCH_REPORT_BYTES = 1 << 20  # of one batch; an agent has 100 reports in a batch at most, of 4.5 KiB
_REPORT_BYTES = 1024  # a small report costs about as much on the disk
_SPOOLS = 8  # remembered per host; an agent has two, on its disk and in its memory
_SLOW_BELOW, _FAST_ABOVE = 0.6, 0.8  # shares of the rows' budget that are left
_PACE = 0.8  # of the rate at which that budget refills
_GIB, _MIB = 2**30, 2**20
_NONE = np.empty(0, np.int64)


class OverQuotaError(Exception):
    """A host has used up a budget; `reason` is its label in metrics, the text gives the budget and the remedy."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True)
class _Host:
    """What is left of a host's budgets, in rows, bytes and ranges, at `at_s`."""

    at_s: float
    rows: float
    bytes: float
    ranges: float
    report_bytes: float
    tasks_since_s: float
    tasks: npt.NDArray[np.int64] = field(default_factory=_NONE.copy)  # hashes of this hour's (VM, job), ascending
    spools: dict[int, int] = field(default_factory=dict)  # hash of the id -> its last number, the oldest spool first
    pace_ms: int = 0
    pace_rows: int = 0
    refused_s: float = -math.inf
    refused: dict[tuple[int, str], int] = field(default_factory=dict)  # by the period that it was in, and reason

    def note_refused(self, reason: str, count: int = 1) -> None:
        """Count what was refused or dropped; forget counts too old to be shown."""
        self.refused_s = self.at_s
        self.refused = {key: number for key, number in self.refused.items() if _is_shown(key[0], self.at_s)}
        key = (int(self.at_s // _PERIOD_S), reason)
        self.refused[key] = self.refused.get(key, 0) + count


def _is_shown(period: int, now_s: float) -> bool:
    return (period + 1) * _PERIOD_S > now_s - _OVER_S


class Quotas:
    """Holds each host's budgets, in memory: a restart fills them. Belongs to the loop.

    A host that was quiet for a day is forgotten: its budgets would be full.
    """

    def __init__(self, section: QuotaSection | None = None, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._section = section = section or QuotaSection()
        self._clock_s = clock_s
        self._rows = float(section.max_rows_per_minute)
        self._bytes = section.max_gib_per_day * _GIB
        self._ranges = float(section.max_ranges_per_day)
        self._report_bytes = section.max_report_mib_per_day * _MIB
        self._hosts: dict[str, _Host] = {}
        self._swept_s = clock_s()

    def refused(self) -> dict[str, Counter[str]]:
        """Return how much was refused or dropped in the last five minutes, by host and budget."""
        now_s = self._clock_s()
        found = dict[str, Counter[str]]()
        for name, host in self._hosts.items():
            if host.refused_s >= now_s - _OVER_S:
                found[name] = counts = Counter[str]()
                for (period, reason), count in host.refused.items():
                    if _is_shown(period, now_s):
                        counts[reason] += count
        return found

    def take(
        self, name: str, *, rows: int, size: int, spool_id: str, sequence: int, tasks: Collection[tuple[str, str]] = ()
    ) -> int:
        """Charge a host for a batch: `rows` with its events and reports, in a message of `size` bytes.

        `tasks` are the (VM, job) of the batch, or empty if they are those of the host's last batch. Returns the least
        time between batches to ask the host for, in milliseconds, 0 for none: a host that keeps to it never uses up its
        rows. OverQuotaError: a budget is used up; nothing is charged.
        """
        host = self._refilled(name)
        if host.rows <= 0:
            detail = f"max_rows_per_minute allows {self._section.max_rows_per_minute} rows"
            raise self._over(host, "over_quota_rows", detail)
        if host.bytes <= 0:
            raise self._over(host, "over_quota_bytes", f"max_gib_per_day allows {self._section.max_gib_per_day:g} GiB")
        spool = hash(spool_id)
        begins = host.spools.get(spool) != sequence - 1
        if begins and host.ranges < 1:
            detail = f"max_ranges_per_day allows {self._section.max_ranges_per_day} new spools and gaps in numbers"
            raise self._over(host, "over_quota_ranges", detail)
        if tasks:
            self._take_tasks(host, tasks)
        if begins:
            host.ranges -= 1
            if spool not in host.spools and len(host.spools) >= _SPOOLS:
                del host.spools[next(iter(host.spools))]
        host.spools[spool] = sequence
        host.bytes -= size
        cost = max(rows, _BATCH_ROWS)
        host.rows -= cost
        if host.rows < _SLOW_BELOW * self._rows:
            if cost > host.pace_rows:
                host.pace_rows = cost
                host.pace_ms = math.ceil(cost / (_PACE * self._rows) * 60_000)
        elif host.pace_ms and host.rows > _FAST_ABOVE * self._rows:
            host.pace_ms = host.pace_rows = 0
        return host.pace_ms

    def take_reports(self, name: str, reports: Sequence[TriggerRow]) -> tuple[list[TriggerRow], int]:
        """Charge a host for a batch's reports of contention; returns those to keep, and how many are dropped.

        About a mebibyte of a batch is kept: writing more would hold up other hosts.
        """
        host = self._refilled(name)
        kept, left = [], _BATCH_REPORT_BYTES
        for report in reports:
            cost = max(len(report.payload), _REPORT_BYTES)
            if cost <= min(host.report_bytes, left):
                host.report_bytes -= cost
                left -= cost
                kept.append(report)
        if len(kept) < len(reports):
            host.note_refused(OVER_QUOTA_REPORTS, len(reports) - len(kept))
        return kept, len(reports) - len(kept)

    def _refilled(self, name: str) -> _Host:
        now_s = self._clock_s()
        host = self._hosts.get(name)
        if host is None:
            if now_s - self._swept_s >= _SWEEP_S:
                self._swept_s = now_s
                self._hosts = {each: host for each, host in self._hosts.items() if now_s - host.at_s < _DAY_S}
            host = _Host(now_s, self._rows, self._bytes, self._ranges, self._report_bytes, now_s)
            self._hosts[name] = host
            return host
        passed_s = now_s - host.at_s
        if passed_s >= _REFILL_S:
            host.at_s = now_s
            host.rows = min(self._rows, host.rows + self._rows * passed_s / 60.0)
            days = passed_s / _DAY_S
            host.bytes = min(self._bytes, host.bytes + self._bytes * days)
            host.ranges = min(self._ranges, host.ranges + self._ranges * days)
            host.report_bytes = min(self._report_bytes, host.report_bytes + self._report_bytes * days)
        return host

    def _take_tasks(self, host: _Host, tasks: Iterable[tuple[str, str]]) -> None:
        """Note the VMs of a batch; one that changes its job counts twice.

        A batch with more of them than the budget is not charged: `central.validation.rows` refuses it whole.
        """
        hashes = {hash(task) for task in tasks}
        if len(hashes) > self._section.max_vms_per_hour:
            return
        if host.at_s - host.tasks_since_s >= _HOUR_S:
            host.tasks, host.tasks_since_s = _NONE, host.at_s
        known = np.union1d(host.tasks, list(hashes))
        if len(known) > self._section.max_vms_per_hour:
            detail = f"max_vms_per_hour allows {self._section.max_vms_per_hour} VMs, with each job of a VM"
            raise self._over(host, "over_quota_vms", detail)
        host.tasks = known

    @staticmethod
    def _over(host: _Host, reason: str, detail: str) -> OverQuotaError:
        host.note_refused(reason)
        remedy = "it may send again later. Raise it if that is too few"
        return OverQuotaError(reason, f"over quota: quotas.{detail} of one host; {remedy}")
