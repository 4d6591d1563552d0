import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.validation.batch_heads import head_of, is_next, whole
from central.validation.rows import Limits, Sender, bounds, check
from central.validation.wire_columns import COLUMNS, BatchColumns, Layout, locate, sound
from tests.unit.central.validation.test_validate import NOW, a_batch
from whitepanda.v1 import agent_pb2

NASTY = {
    "start_unix_ns": [NOW, NOW - 10**10, 0, 2**63, 2**64 - 1, NOW + 3600 * 10**9, NOW + 3600 * 10**9 + 1],
    "duration_ns": [10**10, 1, 0, 7200 * 10**9, 7200 * 10**9 + 1, 2**64 - 1],
    "cpu_usage_cores": [0.0, 1.0, 4096.0, 4097.0, -0.1, np.nan, np.inf, -np.inf],
    "cpi": [1.0, 0.125, 0.12, 100.0, 101.0, 0.0, -1.0, np.nan, np.inf, -np.inf],
    "cycles": [0, np.nan, 1e11, 2.1e11, 4096e11, 2e18, np.inf, -1],
    "instructions": [5, np.nan, 8e6, 8.1e6, 1e19],
    "gips": [0.0, 1.0, np.nan, np.inf, -1.0],
    "pressure_io_some_ratio": [0.0, 1.0, np.nan, 1.1, -np.inf],
}
LIMITS = Limits()


def message(batch: agent_pb2.CpiBatch) -> bytes:
    return agent_pb2.AgentMessage(batch=batch).SerializeToString()


def layout_of(batch: agent_pb2.CpiBatch) -> Layout:
    found = Layout.of(message(batch), batch.SerializeToString(), batch, frozenset({"job"}))
    assert found is not None
    return found


def good(sequence: int = 300, **fields) -> agent_pb2.CpiBatch:
    return a_batch(3, sequence=sequence, **{"cycles": [1, 2, 3], "running_ratio": [0.5, 1.0, 1.0], **fields})


def _has_nan(batch: agent_pb2.CpiBatch) -> bool:
    return any(np.isnan(values).any() for values in (batch.cpi, batch.cpu_usage_cores, batch.metrics.values))


@pytest.mark.parametrize(
    "batch",
    [
        good(),
        good(cpi=[]),
        good(start_unix_ns=[NOW], duration_ns=[10**10]),
        good(cpi=[], metrics=agent_pb2.MetricColumns()),
        good(backlog=True),
        good(sequence=2**63 - 1),
        good(pressure_io_some_ratio=[0.1, 0.2, 0.3]),
        good(memory_stall_ratio=[0.1, np.inf, 0.3], backlog=True, pressure_io_some_ratio=[0.0, 0.5, 1.0]),
        good(metrics=agent_pb2.MetricColumns(numbers=[5, 2**32 - 1, 300], values=[1.0] * 9)),
    ],
)
def test_columns_are_where_they_are_said_to_be(batch: agent_pb2.CpiBatch) -> None:
    payload = batch.SerializeToString()
    located = locate(payload, batch)
    assert located is not None
    by_bytes, by_message = BatchColumns(batch, payload), BatchColumns(batch, b"")
    for name in COLUMNS:
        values, found = list(getattr(batch, name)), by_bytes.get(name)
        assert (found is None) == (not values)
        assert found is None or found.tolist() == (values * 3 if len(values) == 1 else values)
        assert by_message.get(name) is None if found is None else by_message.get(name).tolist() == found.tolist()
    assert by_bytes.numbers == by_message.numbers == tuple(batch.metrics.numbers)
    assert by_bytes.metrics().shape == (len(batch.metrics.numbers), 3)
    assert by_bytes.metrics().ravel().tolist() == by_message.metrics().ravel().tolist() == list(batch.metrics.values)
    assert layout_of(batch).sequence_of(message(batch)) == batch.sequence


def test_what_is_not_written_as_expected_is_not_located() -> None:
    events = good(events=[agent_pb2.VmEvent(vm="v")])
    assert locate(events.SerializeToString(), events) is None
    # Words that look like the columns: tag, length and three zeros of each that is there.
    fake = "".join(f"{chr(number << 3 | 2)}\x18" + "\0" * 24 for number in (5, 6, 7, 9))
    forged = good(events=[agent_pb2.VmEvent(vm="v", reason=fake)])
    assert locate(forged.SerializeToString(), forged) is None
    among = good(triggers=[agent_pb2.Trigger(mn_cpi=2.0)])
    assert locate(among.SerializeToString(), among) is None
    reasons = good(reasons=[agent_pb2.MetricReason(task_index=1, reason=1, metrics=[5])])
    assert locate(reasons.SerializeToString(), reasons) is None
    many = good(metrics=agent_pb2.MetricColumns(numbers=range(300), values=[1.0] * 900))
    assert locate(many.SerializeToString(), many) is None
    split = good()
    raw = agent_pb2.CpiBatch(cpi=split.cpi).SerializeToString()
    split.ClearField("cpi")
    other = split.SerializeToString() + raw  # the same to protobuf, in another order
    parsed = agent_pb2.CpiBatch.FromString(other)
    framed = b"\x12" + bytes((len(other) & 0x7F | 0x80, len(other) >> 7)) + other
    assert Layout.of(framed, parsed.SerializeToString(), parsed, frozenset()) is None


@given(st.integers(128, 16_383), st.data())
def test_a_message_of_the_layout_says_all_else_that_the_first_one_said(sequence: int, data) -> None:
    """Whatever bytes are changed: either it is not of the layout, or only its numbers have changed."""
    ratios = {"pressure_io_some_ratio": [0.1, 0.2, 0.3]} if data.draw(st.booleans()) else {}
    first = good(backlog=bool(ratios), **ratios)
    layout = layout_of(first)
    raw = bytearray(message(good(sequence, backlog=bool(ratios), **ratios)))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = layout.sequence_of(bytes(raw))
    if not found:
        return
    batch = agent_pb2.AgentMessage.FromString(bytes(raw)).batch
    assert batch.sequence == found
    assert agent_pb2.CpiBatch.FromString(bytes(raw[layout.body_at :])) == batch or _has_nan(batch)
    for name in ("spool_id", "tasks", "task_index", "backlog", "events", "triggers", "reasons"):
        assert getattr(batch, name) == getattr(first, name)
    assert batch.metrics.numbers == first.metrics.numbers
    for name in COLUMNS:
        at, end = layout.slices[name]
        kind = "<f8" if name.startswith(("cpi", "cpu")) else "<u8"
        assert bytes(raw[at:end]) == np.array(getattr(batch, name), kind).tobytes() or _has_nan(batch)
    at, end = layout.slices["metrics"]
    assert bytes(raw[at:end]) == np.array(batch.metrics.values, "<f4").tobytes() or _has_nan(batch)


@pytest.mark.long
@given(st.data())
def test_numbers_are_sound_exactly_where_nothing_is_refused(data) -> None:
    columns = {
        name: [data.draw(st.sampled_from(NASTY[name][: data.draw(st.sampled_from([2, 9]))])) for _ in range(3)]
        for name in NASTY
    }
    batch = good(**columns)
    sender = Sender("h", "P", is_importer=False, limits=LIMITS, now_unix_ns=NOW)
    found, by_bytes = check(batch, sender), check(batch, sender, batch.SerializeToString())
    assert (found.rejected_rows, found.jobs) == (by_bytes.rejected_rows, by_bytes.jobs)
    assert found.rejected_values == by_bytes.rejected_values
    is_sound = sound([(layout_of(batch), message(batch))], bounds(LIMITS, NOW))
    # A value in a refused row is not counted; its batch is read whole anyway.
    assert is_sound == (not found.rejected_rows and not found.rejected_values)


def test_hosts_with_and_without_counters_are_checked_together() -> None:
    kinds = [{"cycles": []}, {}, {"instructions": [5] * 3}, {"cycles": [], "instructions": [7] * 3}]
    kinds += [{"duration_ns": [10**10]}, {"gips": [np.nan] * 3, "metrics": agent_pb2.MetricColumns()}]
    well = [good(cpu_usage_cores=[1.0] * 3, **kind) for kind in kinds]
    absurd = good(cycles=[1, 2.1e11, 1], cpu_usage_cores=[1.0] * 3)

    def all_sound(batches) -> bool:
        return sound([(layout_of(each), message(each)) for each in batches], bounds(LIMITS, NOW))

    assert all_sound(well)
    assert not all_sound([*well, absurd])
    assert not all_sound([*well, good(gips=[0.5, -0.5, 0.5])])
    absurd.metrics.values[1] = 1.9e11
    assert all_sound([*well, absurd])


def shortened(batch: agent_pb2.CpiBatch) -> bytes:
    short = agent_pb2.AgentMessage(next=batch)
    for name in ("spool_id", "tasks", "task_index"):
        short.next.ClearField(name)
    return short.SerializeToString()


@pytest.mark.parametrize(
    "fields", [{}, {"backlog": True}, {"events": [agent_pb2.VmEvent(vm="v")]}, {"sequence": 2**63 - 1}]
)
def test_a_batch_without_its_head_is_put_together_again(fields) -> None:
    first, then = message(good(5)), good(**{"sequence": 300, "start_unix_ns": [NOW + 5], **fields})
    head, short = head_of(first), shortened(then)
    assert (is_next(first), is_next(short)) == (False, True)
    assert whole(short, head) == message(then)
    assert head == layout_of(good(5)).head == head_of(message(then))


def test_what_is_no_batch_without_its_head_is_refused() -> None:
    head = head_of(message(good()))
    short = shortened(good())
    for bad in (
        short[:-1],
        short + b"x",
        b"\x22",
        b"\x22\x00",
        b"\x22\x02\x0a\x00",
        b"\x22" + b"\xff" * 12,
        b"\x22\x03\x10\xff\xff",
    ):
        assert whole(bad, head) is None, bad


def test_the_head_of_what_is_no_batch_or_too_long_is_none() -> None:
    long = good(tasks=[agent_pb2.Task(vm="v" * 40_000, job="j")] * 3)
    bad = (
        b"",
        b"\x12",
        b"\x12\x00",
        b"\x12\x02\x10\x05",
        b"\x12\x03\x0a\x00\x12",
        b"\x12\x04\x0a\x09ab",
        message(good())[:-1],
    )
    for raw in (*bad, message(long), agent_pb2.AgentMessage(hello=agent_pb2.Hello(host="h")).SerializeToString()):
        assert head_of(raw) is None, raw[:10]
    assert layout_of(long).head is None


@given(st.binary(max_size=60), st.sampled_from([b"\x12", b"\x22"]))
def test_any_bytes_have_a_head_or_none(raw: bytes, tag: bytes) -> None:
    framed = tag + bytes((len(raw),)) + raw
    head_of(framed)
    if (found := whole(framed, head_of(message(good())))) is not None:
        assert found.startswith(b"\x12") and len(found) > len(raw)


def test_a_sequence_of_another_length_is_another_layout() -> None:
    layout = layout_of(good(127))
    assert layout.sequence_of(message(good(5))) == 5
    assert layout.sequence_of(message(good(128))) == 0
    assert layout.sequence_of(b"") == 0
