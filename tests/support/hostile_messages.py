"""What no agent sends, beside what it does: each message with what central must count for it."""

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tests.support import hostile_reports as reports
from tests.support.metric_columns import batch_of
from whitepanda.v1 import agent_pb2

MAX_MESSAGE_BYTES = 1 << 20
MAX_ROWS = 1000
ROWS = 5


class Expected:
    """What central's counters must say at the end."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()  # of messages
        self.rows: Counter[str] = Counter()
        self.values: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()  # events and reports of contention
        self.streams: Counter[str] = Counter()
        self.accepted_rows = self.accepted_batches = self.duplicates = 0
        self.accepted_events = self.accepted_triggers = 0


class Fuzzer:
    """Makes one host's messages. Each method returns the bytes, and whether they end the stream."""

    def __init__(self, host: str, seed: int, expected: Expected) -> None:
        self.random, self.expected, self.sequence, self.host = random.Random(seed), expected, 0, host
        self.spool = f"spool-of-{host}"
        self.kinds: list[Callable[[], tuple[bytes, bool]]] = [
            self.good, self.good, self.good, self.bad_rows, self.bad_rows, self.bad_values, self.bad_batch,
            self.bad_batch, self.duplicate, self.unnumbered, self.noise, self.damaged, self.wrong_type,
            self.other_type, self.heartbeat, self.good_reports, self.bad_events, self.bad_triggers, self.second_hello,
        ]  # fmt: skip

    def message(self) -> tuple[bytes, bool]:
        chance = self.random.random()
        rare = self.huge if chance < 0.01 else self.too_many_reports if chance < 0.02 else None
        kind = rare or self.random.choice(self.kinds)
        self.expected.kinds[kind.__name__] += 1
        return kind()

    def batch(self, rows: int = ROWS) -> agent_pb2.CpiBatch:
        self.sequence += 1
        return batch_of(
            spool_id=self.spool,
            sequence=self.sequence,
            tasks=[agent_pb2.Task(vm=f"vm-{row}", job=f"job-{row}") for row in range(min(ROWS, rows))],
            task_index=[row % ROWS for row in range(rows)],
            start_unix_ns=[time.time_ns()] * rows,
            duration_ns=[10**10] * rows,
            cpi=[self.random.uniform(0.2, 9) for _ in range(rows)],
            cpu_usage_cores=[1.0] * rows,
            cycles=[7] * rows,
        )

    def take(self, batch: agent_pb2.CpiBatch, lost: int = 0) -> tuple[bytes, bool]:
        self.expected.accepted_batches += 1
        self.expected.accepted_rows += len(batch.task_index) - lost
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def good(self) -> tuple[bytes, bool]:
        return self.take(self.batch())

    def bad_rows(self) -> tuple[bytes, bool]:
        batch, now = self.batch(), time.time_ns()
        reason, name, value = self.random.choice(
            [
                ("future_time", "start_unix_ns", now + 10**15),
                ("old_time", "start_unix_ns", 5),
                ("bad_time", "start_unix_ns", 2**64 - 1),
                ("bad_time", "duration_ns", 0),
                ("bad_cpu_usage", "cpu_usage_cores", math.nan),
                ("bad_cpu_usage", "cpu_usage_cores", math.inf),
                ("bad_time", "duration_ns", 86_400 * 10**9),
            ]
        )
        rows = self.random.sample(range(ROWS), self.random.randint(1, ROWS))
        for row in rows:
            getattr(batch, name)[row] = value
        self.expected.rows[reason] += len(rows)
        return self.take(batch, lost=len(rows))

    def bad_values(self) -> tuple[bytes, bool]:
        batch = self.batch()
        reason, name, value = self.random.choice(
            [
                ("bad_cpi", "cpi", -math.inf),
                ("bad_cpi", "cpi", 0.0),
                ("absurd_cpi", "cpi", 1e300),
                ("absurd_cpi", "cpi", 0.1),
                ("absurd_counter", "metrics", 2e12),
                ("absurd_value", "metrics", -1.0),
                ("absurd_value", "metrics", math.inf),
            ]
        )
        rows = self.random.sample(range(ROWS), self.random.randint(1, ROWS))
        for row in rows:
            (batch.cpi if name == "cpi" else batch.metrics.values)[row] = value
        self.expected.values[reason] += len(rows)
        return self.take(batch)

    def bad_batch(self) -> tuple[bytes, bool]:
        batch = self.batch()
        reason = self.random.choice(["column_length", "task_index", "foreign_machine", "too_many_rows"])
        if reason == "column_length":
            batch.metrics.values.append(1.0)
        elif reason == "task_index":
            batch.task_index[0] = self.random.randint(ROWS, 2**32 - 1)
        elif reason == "foreign_machine":
            batch.tasks[0].machine = "someone-else"
        else:
            batch.task_index.extend([0] * MAX_ROWS)
        self.expected.batches[reason] += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def duplicate(self) -> tuple[bytes, bool]:
        if not self.sequence:
            return self.good()
        batch = self.batch()
        self.sequence -= 1
        batch.sequence = self.random.randint(1, self.sequence)
        self.expected.duplicates += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def unnumbered(self) -> tuple[bytes, bool]:
        batch = self.batch()
        self.sequence -= 1
        reason = self.random.choice(["no_spool", "bad_spool", "no_sequence"])
        if reason == "no_sequence":
            batch.sequence = self.random.choice([0, 2**63, 2**64 - 1])
        else:
            batch.spool_id = "" if reason == "no_spool" else "\x1b" * self.random.randint(1, 99)
        self.expected.batches[reason] += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def noise(self) -> tuple[bytes, bool]:
        while self.is_message(raw := self.random.randbytes(self.random.randint(1, 300))):
            continue
        self.refuse("malformed")
        return raw, True

    def damaged(self) -> tuple[bytes, bool]:
        """A good message that breaks off: its length says so."""
        batch = self.batch()
        self.sequence -= 1
        if self.random.random() < 0.5:
            batch.events.append(reports.event(self.random))
            batch.triggers.append(reports.trigger(self.random))
        heartbeat = reports.heartbeat(self.random)
        heartbeat.jobs.append("job-1")  # of an empty one nothing could break off
        message = self.random.choice(
            [
                agent_pb2.AgentMessage(batch=batch),
                agent_pb2.AgentMessage(heartbeat=heartbeat),
                agent_pb2.AgentMessage(hello=reports.hello(self.random, self.host)),
            ]
        )
        raw = message.SerializeToString()
        self.refuse("malformed")
        return raw[: self.random.randint(2, len(raw) - 1)], True

    def wrong_type(self) -> tuple[bytes, bool]:
        """A column of doubles whose bytes are no multiple of eight."""
        body = self.batch().SerializeToString() + b"\x3a\x07" + self.random.randbytes(7)
        self.sequence -= 1
        size = bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
        self.refuse("malformed")
        return b"\x12" + size + body, True

    def other_type(self) -> tuple[bytes, bool]:
        """A column that must be there, sent as another type: to protobuf it is no such field."""
        batch = self.batch()
        batch.ClearField("cpu_usage_cores")
        number = agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name["cpu_usage_cores"].number
        wire = self.random.choice([(0, b"\x01"), (5, b"\x00" * 4)])
        body = batch.SerializeToString() + bytes([number << 3 | wire[0]]) + wire[1]
        self.expected.batches["column_length"] += 1
        return b"\x12" + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body, False

    def huge(self) -> tuple[bytes, bool]:
        batch = self.batch()
        self.sequence -= 1
        batch.cpi.extend([1.0] * (MAX_MESSAGE_BYTES // 8))
        self.refuse("oversized")
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), True

    def refuse(self, reason: str) -> None:
        """It is not a batch to be taken, and the stream ends."""
        self.expected.batches[reason] += 1
        self.expected.streams[reason] += 1

    def heartbeat(self) -> tuple[bytes, bool]:
        return agent_pb2.AgentMessage(heartbeat=reports.heartbeat(self.random)).SerializeToString(), False

    def second_hello(self) -> tuple[bytes, bool]:
        self.expected.streams["second_hello"] += 1
        again = reports.hello(self.random, self.host)
        return agent_pb2.AgentMessage(hello=again).SerializeToString(), True

    def reporting(self) -> agent_pb2.CpiBatch:
        """A batch, with rows or without, with some good reports."""
        batch = self.batch() if self.random.random() < 0.5 else self.batch(0)
        batch.events.extend([reports.event(self.random) for _ in range(self.random.randint(0, 2))])
        batch.triggers.extend([reports.trigger(self.random) for _ in range(self.random.randint(0, 1))])
        self.expected.accepted_events += len(batch.events)
        self.expected.accepted_triggers += len(batch.triggers)
        return batch

    def good_reports(self) -> tuple[bytes, bool]:
        return self.take(self.reporting())

    def bad_events(self) -> tuple[bytes, bool]:
        return self.with_bad(reports.bad_event, "events")

    def bad_triggers(self) -> tuple[bytes, bool]:
        return self.with_bad(reports.bad_trigger, "triggers")

    def with_bad(self, make: Callable[..., tuple[Any, str]], name: str) -> tuple[bytes, bool]:
        """Bad reports among good ones and rows, which they do not cost."""
        batch = self.reporting()
        for _ in range(self.random.randint(1, 3)):
            bad, reason = make(self.random)
            getattr(batch, name).insert(self.random.randint(0, len(getattr(batch, name))), bad)
            self.expected.reports[reason] += 1
        return self.take(batch)

    def too_many_reports(self) -> tuple[bytes, bool]:
        """As many as are looked at, empty ones, and more. An empty report of contention lacks just its time."""
        batch, more = self.batch(), self.random.randint(1, 50)
        if self.random.random() < 0.5:
            batch.events.extend([agent_pb2.VmEvent()] * (reports.MAX_EVENTS + more))
            self.expected.reports.update({"bad_event": reports.MAX_EVENTS, "too_many_events": more})
        else:
            batch.triggers.extend([agent_pb2.Trigger()] * (reports.MAX_TRIGGERS + more))
            self.expected.reports.update({"bad_trigger_time": reports.MAX_TRIGGERS, "too_many_triggers": more})
        return self.take(batch)

    def opening(self) -> tuple[bytes | None, grpc.StatusCode]:
        """First words of a stream that is refused for them, None for none, and what it ends with."""
        self.expected.kinds["opening"] += 1
        if self.random.random() < 0.2:
            return self.noise()[0], grpc.StatusCode.INVALID_ARGUMENT
        raw, reason, code = reports.opening(self.random, self.host)
        self.expected.streams[reason] += 1
        return raw, code

    @staticmethod
    def is_message(raw: bytes) -> bool:
        try:
            agent_pb2.AgentMessage.FromString(raw)
        except DecodeError:
            return False
        return True
