"""Batches that leave out what the stream's last batch said: put together again, bytes by bytes.

A host runs the same VMs for hours, and their names would be a third of what it sends (`AgentMessage.next`).
"""

from central.validation.wire_columns import Head, varint
from whitepanda.common.protocol import MAX_HEAD_BYTES

_BATCH, _NEXT = b"\x12", b"\x22"  # tags of AgentMessage
_SPOOL_ID, _SEQUENCE, _TASKS, _TASK_INDEX = b"\x0a"[0], b"\x10"[0], b"\x1a"[0], b"\x22"[0]  # of CpiBatch
_MORE = 0x80
_MAX_VARINT = 10


def is_next(raw: bytes) -> bool:
    """Whether an AgentMessage is a batch that leaves out its head."""
    return raw.startswith(_NEXT)


def head_of(raw: bytes) -> Head | None:
    """Return the head of an AgentMessage with a whole batch, None of any other or with a head that is too long."""
    try:
        at = _end_of_field(raw, 0) if raw.startswith(_BATCH) else 0
        if at != len(raw):
            return None
        begin = _varint_end(raw, 1)
        if raw[begin] != _SPOOL_ID:
            return None
        spool_end = _end_of_field(raw, begin)
        if raw[spool_end] != _SEQUENCE:
            return None
        tasks_at = at = _varint_end(raw, spool_end + 1)
        most = tasks_at + MAX_HEAD_BYTES
        while at < len(raw) and raw[at] in (_TASKS, _TASK_INDEX):
            at = _end_of_field(raw, at)
            if at > most:
                return None
    except (IndexError, ValueError):
        return None
    return Head(raw[begin:spool_end], raw[tasks_at:at]) if at <= len(raw) else None


def whole(raw: bytes, head: Head) -> bytes | None:
    """Return an AgentMessage of the form `is_next` as if its batch were whole, None if it is malformed."""
    try:
        begin = _varint_end(raw, 1)
        if _end_of_field(raw, 0) != len(raw) or raw[begin] != _SEQUENCE:
            return None
        end = _varint_end(raw, begin + 1)
    except (IndexError, ValueError):
        return None
    size = len(head.spool) + len(head.tasks) + len(raw) - begin
    return b"".join((_BATCH, varint(size), head.spool, raw[begin:end], head.tasks, raw[end:]))


def _varint_end(raw: bytes, at: int) -> int:
    end = at
    while raw[end] >= _MORE:
        end += 1
        if end - at >= _MAX_VARINT:
            raise ValueError("no varint")
    return end + 1


def _end_of_field(raw: bytes, at: int) -> int:
    """Return where a field with a length ends, whose tag of one byte is at `at`."""
    end = _varint_end(raw, at + 1)
    size = shift = 0
    for byte in raw[at + 1 : end]:
        size |= (byte & 0x7F) << shift
        shift += 7
    return end + size
