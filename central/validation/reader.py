"""A batch, checked: a pure function, for the event loop and for the process that reads large messages."""

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from central.validation.events import EventRow, check_events
from central.validation.facts import FactRow, check_facts
from central.validation.metric_reasons import ReasonRow, check_reasons
from central.validation.rows import BatchError, Checked, Sender, check
from central.validation.triggers import TriggerRow, check_triggers
from central.validation.vm_names import MAX_NAMES, named
from central.validation.wire_columns import Layout
from whitepanda.v1 import agent_pb2

_SHOWN_ID = 64  # bytes of a spool id that is refused


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A checked batch. `reason` is "" or why all of it is refused; `kept` are the accepted rows as packed bits.

    `payload` is the batch without its reports and without tasks whose rows are all refused, empty where no row
    is accepted. `names` are (host, VM, name) and `tasks` (VM, job).
    """

    spool_id: str
    sequence: int
    payload: bytes = b""
    rows: int = 0
    accepted_rows: int = 0
    rejected_rows: dict[str, int] = field(default_factory=dict)
    kept: bytes | None = None
    jobs: frozenset[str] = frozenset()
    names: tuple[tuple[str, str, str], ...] = ()
    tasks: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    detail: str = ""
    reports: int = 0
    report_bytes: int = 0
    events: tuple[EventRow, ...] = ()
    triggers: tuple[TriggerRow, ...] = ()
    facts: tuple[FactRow, ...] = ()
    rejected_reports: dict[str, int] = field(default_factory=dict)
    rejected_values: dict[str, int] = field(default_factory=dict)
    metric_reasons: tuple[ReasonRow, ...] = ()
    layout: Layout | None = None


def read_batch(batch: agent_pb2.CpiBatch, raw: bytes, sender: Sender) -> ReadBatch:
    """Check a batch, and remove reports and unknown fields from it; `raw` is the message that it came in."""
    batch.DiscardUnknownFields()  # of a newer protocol
    spool_id = batch.spool_id.encode()[:_SHOWN_ID].decode(errors="ignore")
    facts_too = len(batch.vm_facts) + batch.HasField("host_facts")
    reports = len(batch.events) + len(batch.triggers) + len(batch.reasons) + facts_too
    size = batch.ByteSize() if reports else 0
    payload = b"" if reports else batch.SerializeToString()
    try:
        checked = check(batch, sender, payload)
    except BatchError as error:
        return ReadBatch(spool_id, batch.sequence, reason=error.reason, detail=str(error), report_bytes=size)
    events: list[EventRow] = []
    triggers: list[TriggerRow] = []
    reasons: list[ReasonRow] = []
    facts: list[FactRow] = []
    rejected: dict[str, int] = {}
    if reports:
        events, rejected_events = check_events(batch, sender)
        triggers, rejected_triggers = check_triggers(batch, sender)
        reasons, rejected_reasons = check_reasons(batch, sender)
        facts, rejected_facts = check_facts(batch, sender)
        rejected = rejected_events | rejected_triggers | rejected_reasons | rejected_facts
        for name in ("events", "triggers", "reasons", "vm_facts", "host_facts"):  # they have their own tables
            batch.ClearField(name)
        size -= batch.ByteSize()
    names = tuple(islice(named(batch.tasks, sender.host), MAX_NAMES))
    tasks = tuple((task.vm, task.job) for task in batch.tasks)
    is_whole = checked.kept is None and not checked.has_bad_tasks
    is_changed = _clear_bad_values(batch, checked) | (not is_whole and _clear_unused(batch, checked.kept))
    if not checked.accepted_rows:
        payload = b""
    elif is_changed or reports:
        payload = batch.SerializeToString()
    is_like_others = bool(payload) and is_whole and not is_changed and not sender.is_importer
    return ReadBatch(
        spool_id=spool_id,
        sequence=batch.sequence,
        payload=payload,
        rows=checked.rows,
        accepted_rows=checked.accepted_rows,
        rejected_rows=checked.rejected_rows,
        kept=None if checked.kept is None else np.packbits(checked.kept).tobytes(),
        jobs=frozenset() if sender.is_importer else checked.jobs,
        names=names,
        tasks=tasks,
        reports=reports,
        report_bytes=size,
        events=tuple(events),
        triggers=tuple(triggers),
        facts=tuple(facts),
        rejected_reports=rejected,
        rejected_values=checked.rejected_values,
        metric_reasons=tuple(reasons),
        layout=Layout.of(raw, payload, batch, checked.jobs) if is_like_others else None,
    )


def _clear_bad_values(batch: agent_pb2.CpiBatch, checked: Checked) -> bool:
    """Make values that cannot be NaN; return whether there were any."""
    for values, bad in ((batch.cpi, checked.bad_cpi), (batch.metrics.values, checked.bad_metrics)):
        for place in () if bad is None else np.flatnonzero(bad).tolist():
            values[place] = math.nan
    return checked.bad_cpi is not None or checked.bad_metrics is not None


def _clear_unused(batch: agent_pb2.CpiBatch, kept: Any) -> bool:
    """Clear tasks without an accepted row, whose names may have any length; return whether there were any.

    `kept` (shape (rows,)) is True for accepted rows; None means all of them.
    """
    of_rows = np.array(batch.task_index, dtype=np.int64)
    is_unused = np.ones(len(batch.tasks), dtype=np.bool_)
    is_unused[of_rows if kept is None else of_rows[kept]] = False
    for index in np.flatnonzero(is_unused).tolist():
        batch.tasks[index].Clear()
    return bool(is_unused.any())
