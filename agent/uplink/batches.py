"""Windows as protobuf columns (`whitepanda.v1.CpiBatch`): element i of every column is window i."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent.antagonists.reports import Trigger
from agent.antagonists.vm_events import VmEvent
from agent.sampling.windows import CpiWindow
from agent.uplink.messages import event_message, trigger_message
from collector.base import Reason
from whitepanda.common.protocol import MAX_HEAD_BYTES, or_nan
from whitepanda.common.window_columns import BY_NAME, METRIC_COLUMNS
from whitepanda.v1 import agent_pb2

#: What goes along with windows, in their order and numbered with them, so that it counts exactly once.
Report = VmEvent | Trigger | agent_pb2.VmFacts | agent_pb2.HostFacts

MAX_SEQUENCE = 2**63 - 1


def encode(
    windows: Sequence[CpiWindow], *, spool_id: str, sequence: int, backlog: bool = False, events: Sequence[Report] = ()
) -> agent_pb2.CpiBatch:
    """Make a batch of windows, in any order, and of what goes along with them.

    A column that no window has is left out; else a window without the value has NaN in it. `sequence` is the batch's
    number in the spool's incarnation `spool_id`, from 1; `backlog`: it is sent late, after an outage.
    """
    batch = agent_pb2.CpiBatch(spool_id=spool_id, sequence=sequence, backlog=backlog)
    tasks: dict[tuple[str, str, str, str, bool], int] = {}
    for window in windows:
        key = (window.vm, window.epoch, window.name, window.job, window.latency_sensitive)
        index = tasks.get(key)
        if index is None:
            index = tasks[key] = len(tasks)
            vm, epoch, name, job, latency_sensitive = key
            batch.tasks.add(vm=vm, epoch=epoch, name=name, job=job, latency_sensitive=latency_sensitive)
        batch.task_index.append(index)
        _add_reasons(batch, index, window)
    for name in ("start_unix_ns", "duration_ns"):
        times = [getattr(window, name) for window in windows]
        getattr(batch, name).extend(times[:1] if len(set(times)) == 1 else times)
    batch.cpu_usage_cores.extend(window.cpu_usage_cores for window in windows)
    if any(window.cpi is not None for window in windows):
        batch.cpi.extend(or_nan(window.cpi) for window in windows)
    for column in METRIC_COLUMNS:
        metric: list[Any] = [window.metrics.get(column.name, Reason.NOT_PRESENT) for window in windows]
        if any(value.__class__ is not Reason for value in metric):
            batch.metrics.numbers.append(column.number)
            batch.metrics.values.extend(math.nan if value.__class__ is Reason else value for value in metric)
    batch.events.extend(event_message(event) for event in events if isinstance(event, VmEvent))
    batch.triggers.extend(trigger_message(event) for event in events if isinstance(event, Trigger))
    batch.vm_facts.extend(event for event in events if isinstance(event, agent_pb2.VmFacts))
    for event in events:
        if isinstance(event, agent_pb2.HostFacts):
            batch.host_facts.CopyFrom(event)
    return batch


def _add_reasons(batch: agent_pb2.CpiBatch, task_index: int, window: CpiWindow) -> None:
    by_reason = defaultdict(list)
    for name, reason in window.new_reasons.items():
        by_reason[reason].append(BY_NAME[name].number)
    for reason, numbers in by_reason.items():
        wire: Any = int(reason)  # the numbers are the protocol's
        batch.reasons.add(task_index=task_index, reason=wire, metrics=numbers)


def in_stream(batch: agent_pb2.CpiBatch, last_head: bytes) -> tuple[agent_pb2.AgentMessage, bytes]:
    """Return the message that sends a batch, without what the stream's last batch said; and its own head.

    `last_head`: what this returned for the last batch, b"" at a stream's begin.
    """
    parts = agent_pb2.CpiBatch(spool_id=batch.spool_id, tasks=batch.tasks, task_index=batch.task_index)
    head = parts.SerializeToString()
    if len(head) > MAX_HEAD_BYTES:
        head = b""
    if not head or head != last_head:
        return agent_pb2.AgentMessage(batch=batch), head
    message = agent_pb2.AgentMessage(next=batch)
    for name in ("spool_id", "tasks", "task_index"):
        message.next.ClearField(name)
    return message, head


def problem_of(item: CpiWindow | Report) -> str:
    """Return why no batch can hold an item, such as a text that is not Unicode or a number out of its range; or ""."""
    windows, events = ([item], []) if isinstance(item, CpiWindow) else ([], [item])
    try:
        encode(windows, spool_id="", sequence=1, events=events)
    except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be sent
        whose = "" if isinstance(item, Trigger | agent_pb2.HostFacts) else f"VM {item.vm}: "
        return f"{whose}{type(error).__name__}: {error}"
    return ""


def pieces(
    chunks: Iterable[Sequence[CpiWindow]], spool_id: str, sequence: int, max_payload: int, events: Sequence[Report] = ()
) -> Iterator[tuple[int, int, bytes]]:
    """Serialise windows, one batch per chunk; a chunk of more than `max_payload` bytes is halved, down to one window.

    `sequence` is the first batch's number. Events go with that batch. Yields number, rows and message of each batch.
    """
    waiting = list(reversed(list(chunks)))
    while waiting:
        chunk = waiting.pop()
        batch = encode(chunk, spool_id=spool_id, sequence=MAX_SEQUENCE, events=events)
        if batch.ByteSize() > max_payload and len(chunk) > 1:
            half = len(chunk) // 2
            waiting += [chunk[half:], chunk[:half]]
            continue
        events = ()
        batch.sequence = sequence
        yield sequence, len(chunk), batch.SerializeToString()
        sequence += 1
