"""The fleet's history: simulated days of every host, sent to central's real ingest by an importer."""

import math
import queue
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import grpc

from central.demo.fleet import PLATFORM, SLOT_S, DemoFleet
from collector.simulated.history import History, simulate_days
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import PROTOCOL_VERSION
from whitepanda.common.window_columns import METRIC_COLUMNS
from whitepanda.v1 import agent_pb2, agent_pb2_grpc

DAYS = 3
EVERY_S = 300.0
_BATCH_ROWS = 2000
_SPOOL_ID = "demo-past"
#: Of `History` and of a batch alike, and those of it that are metrics.
_COLUMNS = ("start_unix_ns", "cpi", "cpu_usage_cores")
_METRICS = tuple(column for column in METRIC_COLUMNS if column.name in {one.name for one in fields(History)})
_SILENCE_S = 20.0  # the longest wait for an acknowledgement, plus a second per batch


@dataclass(frozen=True, slots=True)
class Backfill:
    """Batches ready to send, and how many CPI windows they hold."""

    batches: tuple[agent_pb2.CpiBatch, ...]
    windows: int


def simulate(fleet: DemoFleet, now_unix_s: float) -> Backfill:
    """Simulate the last `DAYS` days of all hosts by the live model: a window of `SLOT_S` per `EVERY_S`."""
    end_s = math.floor(now_unix_s / EVERY_S) * EVERY_S
    start_s = end_s - DAYS * 86400
    batches: list[agent_pb2.CpiBatch] = []
    windows = 0
    for host in fleet.hosts:
        history = simulate_days(host.past, start_unix_s=start_s, end_unix_s=end_s, every_s=EVERY_S, window_s=SLOT_S)
        windows += len(history)
        tasks = [
            agent_pb2.Task(
                vm=vm.uuid,
                epoch=f"history-{int(start_s)}",
                job=vm.spec.job,
                latency_sensitive=vm.spec.job in fleet.services,
                name=vm.spec.name,
                machine=host.name,
                platform=PLATFORM,
            )
            for vm in history.vms
        ]
        batches += _batches(tasks, history, first_sequence=len(batches) + 1)
    return Backfill(tuple(batches), windows)


def _batches(tasks: list[agent_pb2.Task], history: History, first_sequence: int) -> Iterator[agent_pb2.CpiBatch]:
    for number, first in enumerate(range(0, len(history), _BATCH_ROWS)):
        rows = slice(first, first + _BATCH_ROWS)
        index = history.vm_index[rows]
        yield agent_pb2.CpiBatch(
            spool_id=_SPOOL_ID,
            sequence=first_sequence + number,
            tasks=tasks,
            task_index=index,
            duration_ns=[history.window_ns],
            backlog=True,
            metrics=agent_pb2.MetricColumns(
                numbers=[column.number for column in _METRICS],
                values=[value for column in _METRICS for value in getattr(history, column.name)[rows]],
            ),
            **{name: getattr(history, name)[rows] for name in _COLUMNS},
        )


def send(channel: grpc.Channel, importer: str, backfill: Backfill) -> None:
    """Send all batches over the importer's channel and wait until central has them on its disk.

    Raises UnavailableError if central refused something, hung up, or fell silent.
    """
    outbox: queue.SimpleQueue[agent_pb2.AgentMessage | None] = queue.SimpleQueue()
    hello = agent_pb2.Hello(
        host=importer,
        boot_id=_SPOOL_ID,
        spool_id=_SPOOL_ID,
        platform=PLATFORM,
        sent_unix_ns=time.time_ns(),
        agent_version="demo",
        protocol_version=PROTOCOL_VERSION,
        window_ms=round(SLOT_S * 1000),
    )
    outbox.put(agent_pb2.AgentMessage(hello=hello))
    for batch in backfill.batches:
        outbox.put(agent_pb2.AgentMessage(batch=batch))
    stub = agent_pb2_grpc.AgentStreamStub(channel)
    timeout_s = _SILENCE_S + len(backfill.batches)
    try:
        replies = stub.Connect(iter(outbox.get, None), timeout=timeout_s, wait_for_ready=True)
        _until_acknowledged(replies, len(backfill.batches), backfill.windows)
    except grpc.RpcError as error:
        detail = cast("grpc.Call", error).details()
        raise UnavailableError(f"demo: central did not take the simulated days: {detail}") from error
    finally:
        outbox.put(None)


def _until_acknowledged(replies: Iterable[Any], batches: int, windows: int) -> None:
    waiting = set(range(1, batches + 1))
    accepted = 0
    for reply in replies:
        if reply.WhichOneof("body") != "ack":
            continue
        ack = reply.ack
        for bad in ack.rejected_batches:
            raise UnavailableError(f"demo: central refused simulated batch {bad.sequence}: {bad.reason}: {bad.detail}")
        for rows in ack.rejected_rows:
            raise UnavailableError(f"demo: central refused {rows.count} simulated windows: {rows.reason}")
        accepted += ack.accepted_rows
        for part in ack.ranges:
            waiting.difference_update(range(part.first, part.last + 1))
        if not waiting:
            if accepted != windows:
                raise UnavailableError(f"demo: central accepted {accepted} of {windows} simulated windows")
            return
    raise UnavailableError(
        f"demo: central closed the connection with {len(waiting)} simulated batches not acknowledged"
    )
