import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.validation.rows import Limits, Sender, bounds, check
from central.validation.wire_columns import CHECKED, Layout, column, locate, sound
from tests.unit.central.validation.test_validate import NOW, a_batch
from whitepanda.v1 import agent_pb2

NASTY = {
    "start_unix_ns": [NOW, NOW - 10**10, 0, 2**63, 2**64 - 1, NOW + 3600 * 10**9, NOW + 3600 * 10**9 + 1],
    "duration_ns": [10**10, 1, 0, 7200 * 10**9, 7200 * 10**9 + 1, 2**64 - 1],
    "cpu_usage_cores": [0.0, 1.0, 4096.0, 4097.0, -0.1, np.nan, np.inf, -np.inf],
    "cpi": [1.0, 0.125, 0.12, 100.0, 101.0, 0.0, -1.0, np.nan, np.inf, -np.inf],
    "cycles": [0, 2**64 - 1, 10**11, 2 * 10**11 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1],
    "instructions": [5, 2**64 - 1, 8 * 10**6, 8 * 10**6 + 8, 2**63],
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
    columns = (batch.cpi, batch.cpu_usage_cores, batch.running_ratio, batch.io_wait_ratio)
    return any(np.isnan(values).any() for values in columns)


@pytest.mark.parametrize(
    "batch",
    [
        good(),
        good(cpi=[]),
        good(cpi=[], cpi_reason=[1, 0, 9]),
        good(backlog=True),
        good(sequence=2**63 - 1),
        good(io_wait_ratio=[0.1, 0.2, 0.3]),
        good(memory_stall_ratio=[0.1, np.inf, 0.3], backlog=True, io_wait_ratio=[0.0, 0.5, 1.0]),
    ],
)
def test_columns_are_where_they_are_said_to_be(batch: agent_pb2.CpiBatch) -> None:
    payload = batch.SerializeToString()
    located = locate(payload, batch)
    assert located is not None
    for name in (*CHECKED, "running_ratio", "disk_bytes_per_s", "memory_stall_ratio", "io_wait_ratio"):
        values, found = list(getattr(batch, name)), column(payload, located, name)
        assert (found is None) == (not values)
        assert found is None or found.tolist() == values
    assert layout_of(batch).sequence_of(message(batch)) == batch.sequence


def test_what_is_not_written_as_expected_is_not_located() -> None:
    events = good(events=[agent_pb2.VmEvent(vm="v")])
    assert locate(events.SerializeToString(), events) is None
    # Words that look like the columns: tag, length and three zeros of each that is there.
    fake = "".join(f"{chr(number << 3 | 2)}\x18" + "\0" * 24 for number in (5, 6, 7, 9, 10, 12))
    forged = good(events=[agent_pb2.VmEvent(vm="v", reason=fake)])
    assert locate(forged.SerializeToString(), forged) is None
    among = good(triggers=[agent_pb2.Trigger(mn_cpi=2.0)], io_wait_ratio=[0.1, 0.2, 0.3])
    assert locate(among.SerializeToString(), among) is None
    reasons = good(cpi_reason=[200, 0, 0])  # two bytes each
    assert locate(reasons.SerializeToString(), reasons) is None
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
    ratios = {"io_wait_ratio": [0.1, 0.2, 0.3]} if data.draw(st.booleans()) else {}
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
    for name in ("spool_id", "tasks", "task_index", "backlog", "cpi_reason", "events", "triggers"):
        assert getattr(batch, name) == getattr(first, name)
    for (at, end), name in zip(layout.slices, CHECKED, strict=True):
        kind = "<f8" if name.startswith(("cpi", "cpu")) else "<u8"
        assert bytes(raw[at:end]) == np.array(getattr(batch, name), kind).tobytes() or _has_nan(batch)


@pytest.mark.long
@given(st.data())
def test_numbers_are_sound_exactly_where_no_row_is_refused(data) -> None:
    columns = {
        name: [data.draw(st.sampled_from(NASTY[name][: data.draw(st.sampled_from([2, 9]))])) for _ in range(3)]
        for name in CHECKED
    }
    batch = good(**columns)
    sender = Sender("h", "P", is_importer=False, limits=LIMITS, now_unix_ns=NOW)
    whole, by_bytes = check(batch, sender), check(batch, sender, batch.SerializeToString())
    assert (whole.rejected_rows, whole.jobs) == (by_bytes.rejected_rows, by_bytes.jobs)
    layout, raw = layout_of(batch), message(batch)
    parts = [[raw[at:end]] for at, end in layout.slices]
    assert sound(parts, bounds(LIMITS, NOW)) == (not whole.rejected_rows)


def test_hosts_with_and_without_counters_are_checked_together() -> None:
    kinds = [{"cycles": []}, {}, {"instructions": [5] * 3}, {"cycles": [], "instructions": [7] * 3}]
    well = [good(cpu_usage_cores=[1.0] * 3, **kind) for kind in kinds]
    absurd = good(cycles=[1, 2 * 10**11 + 1, 1], cpu_usage_cores=[1.0] * 3)

    def all_sound(batches) -> bool:
        pieces = [(layout_of(each).slices, message(each)) for each in batches]
        return sound([[raw[s[i][0] : s[i][1]] for s, raw in pieces] for i in range(len(CHECKED))], bounds(LIMITS, NOW))

    assert all_sound(well)
    assert not all_sound([*well, absurd])
    absurd.cycles[1] -= 1
    assert all_sound([*well, absurd])


def test_a_sequence_of_another_length_is_another_layout() -> None:
    layout = layout_of(good(127))
    assert layout.sequence_of(message(good(5))) == 5
    assert layout.sequence_of(message(good(128))) == 0
    assert layout.sequence_of(b"") == 0
