import math
import sys

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from central.lake.schema import SAMPLES
from central.validation.metric_reasons import ReasonRow
from central.validation.reader import ReadBatch, read_batch
from central.validation.rows import (
    BATCH_REASONS,
    ROW_REASONS,
    VALUE_REASONS,
    BatchError,
    Checked,
    Limits,
    Sender,
    check,
    is_name,
)
from central.validation.samples import StoredBatch, samples_tables
from tests.support.metric_columns import NAMES, batch_of
from whitepanda.common.window_columns import METRIC_COLUMNS
from whitepanda.v1 import agent_pb2

NOW = 1_790_000_000 * 10**9
DAY = 86_400 * 10**9
NAN, INF = math.nan, math.inf


def a_batch(rows: int = 3, **columns) -> agent_pb2.CpiBatch:
    whole = {
        "spool_id": "s",
        "sequence": 1,
        "task_index": list(range(rows)),
        "start_unix_ns": [NOW] * rows,
        "duration_ns": [10**10] * rows,
        "cpi": [1.5] * rows,
        "cpu_usage_cores": [0.5] * rows,
        "tasks": [agent_pb2.Task(vm=f"vm-{row}", job="job") for row in range(rows)],
    }
    return batch_of(**{**whole, **columns})


def samples_table(batches: list[StoredBatch]) -> pa.Table:
    (table,) = samples_tables(batches, sys.maxsize)
    return table


def checked(batch: agent_pb2.CpiBatch, *, is_importer: bool = False, **limits) -> Checked:
    return check(batch, Sender("h", "P", is_importer=is_importer, limits=Limits(**limits), now_unix_ns=NOW))


def refused(batch: agent_pb2.CpiBatch, **options) -> tuple[str, str]:
    with pytest.raises(BatchError) as error:
        checked(batch, **options)
    assert error.value.reason in BATCH_REASONS
    return error.value.reason, str(error.value)


def test_a_good_batch_is_taken_whole() -> None:
    assert checked(a_batch()) == Checked(3, 3, {}, None, frozenset({"job"}))
    assert checked(a_batch(0)) == Checked(0, 0, {}, None, frozenset())


@pytest.mark.parametrize(
    ("batch", "reason", "says"),
    [
        (a_batch(spool_id=""), "no_spool", "spool_id is empty"),
        (a_batch(spool_id="x" * 65), "bad_spool", "at most 64 bytes"),
        (a_batch(spool_id="ä" * 33), "bad_spool", "(33 characters"),
        (a_batch(spool_id="x" * 100_000), "bad_spool", "(100000 characters, 'xxxxxxxxxxxxxxxxxxxx'...)"),
        (a_batch(spool_id="a\0b"), "bad_spool", "without control characters (3 characters"),
        (a_batch(spool_id="a\nb"), "bad_spool", "'a\\nb'"),
        (a_batch(sequence=0), "no_sequence", "sequence must be 1 to 2^63-1 (value 0)"),
        (a_batch(sequence=2**63), "no_sequence", f"(value {2**63})"),
        (a_batch(11), "too_many_rows", "11 rows; at most 10 are allowed in a batch"),
        (
            a_batch(1, tasks=[agent_pb2.Task(vm=str(n), job="j") for n in range(2)]),
            "too_many_tasks",
            "2 tasks of 1 rows",
        ),
        (
            a_batch(7, tasks=[agent_pb2.Task(vm=str(n), job="j") for n in range(7)]),
            "too_many_vms",
            "7 VMs; quotas.max_vms_per_hour allows 6 of one host",
        ),
        (
            a_batch(4, tasks=[agent_pb2.Task(vm="v", job=str(n)) for n in range(4)]),
            "too_many_jobs",
            "4 jobs; ingest.max_host_jobs allows 3",
        ),
        (a_batch(cpi=[1.0]), "column_length", "column cpi has 1 values, task_index has 3"),
        (a_batch(start_unix_ns=[NOW] * 2), "column_length", "column start_unix_ns has 2 values, task_index has 3"),
        (a_batch(duration_ns=[]), "column_length", "column duration_ns has 0 values, task_index has 3"),
        (a_batch(cpu_usage_cores=[]), "column_length", "column cpu_usage_cores has 0 values, task_index has 3"),
        (a_batch(running_ratio=[1.0] * 2), "column_length", "column metrics has 2 values, task_index has 3"),
        (
            a_batch(metrics=agent_pb2.MetricColumns(numbers=[5, 5], values=[1.0] * 6)),
            "column_length",
            "metrics have 2 columns of 1 metrics",
        ),
        (a_batch(task_index=[0, 1, 3]), "task_index", "task_index 3 points beyond the batch's 3 tasks"),
        (a_batch(task_index=[0, 1, 2**32 - 1]), "task_index", "task_index 4294967295 points beyond"),
        (
            a_batch(1, tasks=[agent_pb2.Task(vm="v", job="j", machine="other")]),
            "foreign_machine",
            "task 0 names machine 'other', platform ''; only importers (central.importers) may",
        ),
        (a_batch(1, tasks=[agent_pb2.Task(vm="v", job="j", platform="Z")]), "foreign_machine", "platform 'Z'"),
    ],
)
def test_a_structural_problem_refuses_the_batch(batch, reason, says) -> None:
    found, text = refused(batch, max_batch_rows=10, max_vms_per_hour=6, max_host_jobs=3)
    assert found == reason
    assert says in text


def test_as_much_as_is_allowed_is_taken() -> None:
    batch = a_batch(3, spool_id="ä" * 32, tasks=[agent_pb2.Task(vm="v", job=str(n)) for n in range(3)])
    assert checked(batch, max_batch_rows=3, max_host_jobs=3).accepted_rows == 3


def test_an_importer_may_name_more_jobs() -> None:
    batch = a_batch(4, tasks=[agent_pb2.Task(vm="v", job=str(n)) for n in range(4)])
    assert checked(batch, is_importer=True, max_host_jobs=3).accepted_rows == 4


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"cpu_usage_cores": [1.0, NAN, 1.0]}, "bad_cpu_usage"),
        ({"cpu_usage_cores": [1.0, -0.1, 1.0]}, "bad_cpu_usage"),
        ({"cpu_usage_cores": [1.0, 4097.0, 1.0]}, "bad_cpu_usage"),
        ({"cpu_usage_cores": [1.0, INF, 1.0]}, "bad_cpu_usage"),
        ({"duration_ns": [1, 0, 1]}, "bad_time"),
        ({"duration_ns": [1, 86_400 * 10**9 + 1, 1]}, "bad_time"),
        ({"duration_ns": [1, 2**64 - 1, 1]}, "bad_time"),
        ({"start_unix_ns": [NOW, 2**64 - 1, NOW]}, "bad_time"),
        ({"start_unix_ns": [NOW, 2**63 - 1, NOW]}, "bad_time"),
        ({"start_unix_ns": [NOW, NOW + 3600 * 10**9 + 1, NOW + 3600 * 10**9]}, "future_time"),
        ({"start_unix_ns": [NOW, 0, NOW]}, "old_time"),
        ({"start_unix_ns": [NOW, NOW - 31 * DAY - 1, NOW - 31 * DAY]}, "old_time"),
        ({"tasks": [agent_pb2.Task(vm=v, job="j") for v in ("a", "", "c")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job=j) for j in ("a", "", "c")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job=j) for j in ("a", "x" * 513, "c")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job=j) for j in ("a", "b\0c", "c")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm=v, job="j") for v in ("a", "b\x1b[2J", "\u00dc\u00a0\u4e2d")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", epoch=e) for e in ("", "1\n", "1")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", epoch=e) for e in ("", "x" * 513, "x" * 512)]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", platform=p) for p in ("", "\x85", "a")]}, "bad_task"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", machine=m) for m in ("a", "b\x7fc", "c")]}, "bad_machine"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", machine=m) for m in ("a", "-1", "c")]}, "bad_machine"),
        ({"tasks": [agent_pb2.Task(vm="v", job="j", machine=m) for m in ("a", " b", "c")]}, "bad_machine"),
    ],
)
def test_a_bad_row_is_counted_under_its_reason_and_the_rest_goes_through(columns, reason) -> None:
    batch = a_batch(**columns)
    found = checked(batch, is_importer=reason != "old_time")
    assert reason in ROW_REASONS
    assert (found.rows, found.accepted_rows, found.rejected_rows) == (3, 2, {reason: 1})
    assert found.kept.tolist() == [True, False, True]
    table = samples_table([StoredBatch("h", "P", "s", 1, batch.SerializeToString(), found.kept)])
    assert table["vm"].to_pylist() == [batch.tasks[0].vm, batch.tasks[2].vm]


HOUR = 3600 * 10**9


def test_a_host_watches_no_longer_than_two_hours() -> None:
    batch = a_batch(duration_ns=[2 * HOUR, 2 * HOUR + 1, 1])
    assert (checked(batch).rejected_rows, checked(batch).kept.tolist()) == ({"bad_time": 1}, [True, False, True])
    assert checked(batch, is_importer=True).rejected_rows == {}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"cpi": [1.0, 0.0, 1.0]}, "bad_cpi"),
        ({"cpi": [1.0, -1.0, 1.0]}, "bad_cpi"),
        ({"cpi": [1.0, INF, 1.0]}, "bad_cpi"),
        ({"cpi": [1.0, -INF, 1.0]}, "bad_cpi"),
        ({"cpi": [1.0, 105.0, 1.0]}, "absurd_cpi"),
        ({"cpi": [0.125, 0.124, 1.0]}, "absurd_cpi"),
        ({"cycles": [15e10, 15.1e10, NAN]}, "absurd_counter"),  # 10 s of 0.5 + 1 vCPUs, 10 GHz
        ({"cpu_usage_cores": [9.0] * 3, "cycles": [1e12, 1.01e12, 1]}, "absurd_counter"),
        ({"instructions": [12e11, 12.1e11, NAN]}, "absurd_counter"),
        ({"cycles": [1e9, 1e9, NAN], "instructions": [8e9, 9e9, 12e11]}, "absurd_counter"),
        ({"gips": [1.0, -0.1, NAN]}, "absurd_value"),
        ({"gips": [1.0, INF, NAN]}, "absurd_value"),
        ({"pressure_io_some_ratio": [1.0, 1.1, 0.0]}, "absurd_value"),
        ({"memory_charged_bytes": [1e12, 1e16, 0.0], "verdict": [1, 2, 3]}, "absurd_value"),
    ],
)
def test_an_absurd_value_is_not_known_and_the_rest_of_its_row_stays(columns, reason) -> None:
    batch = a_batch(**columns)
    name = next(name for name in reversed(columns) if name != "verdict")
    found = _read(batch)
    assert reason in VALUE_REASONS
    expected = {reason: 2 if len(columns) == 2 and "instructions" in columns else 1}
    assert (found.accepted_rows, found.rejected_rows, found.rejected_values) == (3, {}, expected)
    table = samples_table([StoredBatch("h", "P", "s", 1, found.payload)])
    values = [None if value != value else pytest.approx(value, rel=1e-6) for value in columns[name]]  # noqa: PLR0124
    assert table[name].to_pylist() == [values[0], None, values[2]]
    assert table["cpu_usage_cores"].to_pylist() == list(batch.cpu_usage_cores)


def test_importers_measure_in_units_of_their_own() -> None:
    batch = a_batch(cpi=[0.1, 0.124, 1.0], cycles=[15e10, 15.1e10, NAN])
    assert checked(batch, is_importer=True).rejected_values == {}


def test_a_metric_of_a_newer_agent_is_counted_and_costs_nothing_else() -> None:
    batch = a_batch(metrics=agent_pb2.MetricColumns(numbers=[5, 9999], values=[1.0, 2.0, 3.0, -1.0, NAN, INF]))
    found = _read(batch)
    assert (found.accepted_rows, found.rejected_values) == (3, {"unknown_metric": 3})
    assert (found.layout.numbers, found.layout.unknown_values) == ((5, 9999), 3)
    assert samples_table([StoredBatch("h", "P", "s", 1, found.payload)])["gips"].to_pylist() == [1.0, 2.0, 3.0]


def test_reasons_are_of_known_tasks_and_metrics() -> None:
    batch = a_batch(start_unix_ns=[NOW, NOW - 5, NOW])
    batch.reasons.add(task_index=1, reason=agent_pb2.REASON_NO_PMU, metrics=[1, 5, 9999])
    batch.reasons.add(task_index=1, reason=0, metrics=[5])  # the last one counts
    batch.reasons.add(task_index=3, reason=agent_pb2.REASON_IDLE, metrics=[1])
    batch.reasons.add(task_index=0, reason=200, metrics=[1])
    found = _read(batch)
    assert found.metric_reasons == (
        ReasonRow("h", "vm-1", 1, agent_pb2.REASON_NO_PMU, NOW - 5),
        ReasonRow("h", "vm-1", 5, 0, NOW - 5),
    )
    assert (found.accepted_rows, found.rejected_reports) == (3, {"bad_reason": 2})
    assert not agent_pb2.CpiBatch.FromString(found.payload).reasons


def test_one_time_may_be_of_all_rows() -> None:
    found = _read(a_batch(start_unix_ns=[NOW - 7], duration_ns=[10**9]))
    table = samples_table([StoredBatch("h", "P", "s", 1, found.payload)])
    assert (table["start_unix_ns"].to_pylist(), table["duration_ns"].to_pylist()) == ([NOW - 7] * 3, [10**9] * 3)


def test_importers_send_windows_of_any_age() -> None:
    batch = a_batch(start_unix_ns=[0, NOW - 32 * DAY, NOW])
    assert checked(batch, is_importer=True).rejected_rows == {}
    assert checked(batch).rejected_rows == {"old_time": 2}
    assert checked(batch, max_past_days=33).rejected_rows == {"old_time": 1}


def test_an_unknown_value_is_no_fault() -> None:
    assert checked(a_batch(cpi=[NAN, 1.0, NAN])).rejected_rows == {}
    assert checked(a_batch(cpi=[])).accepted_rows == 3
    assert checked(a_batch(cycles=[NAN] * 3, instructions=[])).rejected_values == {}


def test_a_row_with_several_faults_is_counted_once() -> None:
    batch = a_batch(cpi=[-1.0, 200.0, 1.0], cpu_usage_cores=[NAN, NAN, 1.0], duration_ns=[0, 1, 1])
    assert checked(batch).rejected_rows == {"bad_time": 1, "bad_cpu_usage": 1}


def test_its_own_machine_and_platform_may_be_named() -> None:
    batch = a_batch(1, tasks=[agent_pb2.Task(vm="v", job="j", machine="h", platform="P")])
    assert checked(batch).accepted_rows == 1


def test_the_table_of_several_batches() -> None:
    first = a_batch(
        2,
        cpi=[NAN, 2.0],
        cycles=[NAN, 7],
        running_ratio=[NAN, 0.5],
        disk_read_bytes_per_s=[NAN, 1e6],
        memory_stall_ratio=[0.25, NAN],
        backlog=True,
        tasks=[agent_pb2.Task(vm="a", epoch="1", job="x", latency_sensitive=True), agent_pb2.Task(vm="b", job="y")],
    )
    second = a_batch(
        2,
        task_index=[0, 0],
        tasks=[agent_pb2.Task(vm="c", job="z", machine="m7", platform="Q")],
        cpu_usage_cores=[1.0, 2.0],
        llc_occupancy_bytes=[1.0, 2.0],
        memory_bandwidth_bytes_per_s=[1.0, 3e9],
        pressure_io_some_ratio=[0.0, 0.125],
    )
    table = samples_table(
        [
            StoredBatch("h1", "P1", "s1", 5, first.SerializeToString()),
            StoredBatch("h2", "P2", "s2", 6, second.SerializeToString(), np.array([False, True])),
        ]
    )
    assert table.schema.equals(SAMPLES)
    assert table.validate(full=True) is None
    assert table.to_pydict() == {
        "host": ["h1", "h1", "h2"],
        "spool_id": ["s1", "s1", "s2"],
        "sequence": [5, 5, 6],
        "machine": ["h1", "h1", "m7"],
        "vm": ["a", "b", "c"],
        "epoch": ["1", "", ""],
        "job": ["x", "y", "z"],
        "platform": ["P1", "P1", "Q"],
        "latency_sensitive": [True, False, False],
        "start_unix_ns": [NOW] * 3,
        "duration_ns": [10**10] * 3,
        "cpi": [None, 2.0, 1.5],
        "cpu_usage_cores": [0.5, 0.5, 2.0],
        **dict.fromkeys(NAMES, [None] * 3),
        "cycles": [None, 7, None],
        "running_ratio": [None, 0.5, None],
        "disk_read_bytes_per_s": [None, 1e6, None],
        "llc_occupancy_bytes": [None, None, 2.0],
        "memory_bandwidth_bytes_per_s": [None, None, 3e9],
        "memory_stall_ratio": [0.25, None, None],
        "pressure_io_some_ratio": [None, None, 0.125],
    }
    assert not list(samples_tables([], 1))


doubles = st.floats(width=64) | st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, 1e308, 5e-324, -1.0])
singles = st.floats(width=32) | st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0])
counts = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1, NOW, NOW * 2])
texts = st.text(max_size=5) | st.sampled_from(["", "-1", "x" * 600, "\0", "a\x85b", "a\u00a0b"])


@st.composite
def any_batch(draw) -> agent_pb2.CpiBatch:
    rows = draw(st.integers(0, 6))

    def column(values):
        return draw(st.lists(values, min_size=rows, max_size=rows) | st.lists(values, max_size=7))

    tasks = draw(
        st.lists(st.builds(agent_pb2.Task, vm=texts, job=texts, epoch=texts, machine=texts, platform=texts), max_size=4)
    )
    return agent_pb2.CpiBatch(
        spool_id=draw(texts),
        sequence=draw(counts),
        tasks=tasks,
        task_index=column(st.integers(0, 4)),
        start_unix_ns=column(counts),
        duration_ns=column(counts),
        cpi=column(doubles),
        cpu_usage_cores=column(doubles),
        metrics=agent_pb2.MetricColumns(
            numbers=(numbers := draw(st.lists(st.integers(3, 40) | st.just(2**32 - 1), max_size=4))),
            values=draw(
                st.lists(singles, min_size=rows * len(numbers), max_size=rows * len(numbers))
                | st.lists(singles, max_size=7)
            ),
        ),
        reasons=draw(
            st.lists(
                st.builds(
                    agent_pb2.MetricReason,
                    task_index=st.integers(0, 4),
                    reason=st.integers(0, 30),
                    metrics=st.lists(st.integers(0, 40), max_size=3),
                ),
                max_size=2,
            )
        ),
        backlog=draw(st.booleans()),
    )


def _is_sound(batch: agent_pb2.CpiBatch) -> None:
    """Whatever comes: refused with a known reason, or rows that add up and a table that keeps the schema's word."""
    try:
        found = checked(batch, is_importer=True)
    except BatchError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.reason in BATCH_REASONS
        assert "\n" not in str(refusal)
        return
    assert found.accepted_rows + sum(found.rejected_rows.values()) == found.rows == len(batch.task_index)
    assert set(found.rejected_rows) <= set(ROW_REASONS)
    assert 0 not in found.rejected_rows.values()
    assert set(found.rejected_values) <= set(VALUE_REASONS)
    raw = agent_pb2.AgentMessage(batch=batch).SerializeToString()
    read = read_batch(batch, raw, Sender("h", "P", is_importer=True, limits=Limits(), now_unix_ns=NOW))
    assert (read.accepted_rows, read.rejected_values) == (found.accepted_rows, found.rejected_values)
    (table,) = (
        samples_tables([StoredBatch("h", "P", "s", 1, read.payload, found.kept)], 1 << 40)
        if read.payload
        else [SAMPLES.empty_table()]
    )
    assert table.num_rows == found.accepted_rows
    assert table.schema.equals(SAMPLES)
    table.validate(full=True)
    for name in ("vm", "job", "epoch", "machine", "platform"):
        for text in table[name].to_pylist():
            assert is_name(text) or (text == "" and name == "epoch"), (name, text)
    for column in METRIC_COLUMNS:
        values = table[column.name].drop_null().to_numpy()
        assert ((values >= 0) & (values <= np.float32(column.largest))).all()
    cpi = table["cpi"].drop_null().to_numpy()
    assert ((cpi > 0) & (cpi <= 100)).all()
    usage = table["cpu_usage_cores"].to_numpy()
    assert ((usage >= 0) & (usage <= 4096)).all()
    assert not any(table[field.name].null_count for field in SAMPLES if not field.nullable)
    assert pa.types.is_int64(table["start_unix_ns"].type)
    assert (table["start_unix_ns"].to_numpy() >= 0).all()


@given(any_batch())
def test_any_batch_is_refused_or_sound(batch: agent_pb2.CpiBatch) -> None:
    _is_sound(batch)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_no_message_or_sound(raw: bytes) -> None:
    try:
        message = agent_pb2.AgentMessage.FromString(raw)
    except DecodeError:
        return
    _is_sound(message.batch)


@given(st.data())
def test_a_damaged_batch_is_no_message_or_sound(data) -> None:
    raw = bytearray(a_batch(4, cycles=[1] * 4, running_ratio=[1.0] * 4).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = agent_pb2.CpiBatch.FromString(bytes(raw))
    except DecodeError:
        return
    _is_sound(batch)


def _read(batch: agent_pb2.CpiBatch) -> ReadBatch:
    raw = agent_pb2.AgentMessage(batch=batch).SerializeToString()
    return read_batch(batch, raw, Sender("h", "P", is_importer=False, limits=Limits(), now_unix_ns=NOW))


@pytest.mark.parametrize("field", ["vm", "epoch", "job", "name"])
@pytest.mark.parametrize("has_row", [True, False])
def test_names_of_megabytes_are_not_stored(field, has_row) -> None:
    long = agent_pb2.Task(**{"vm": "v", "job": "j", field: "x" * 4_000_000})
    batch = a_batch(3, tasks=[agent_pb2.Task(vm="good", job="job"), long])
    del batch.task_index[:]
    batch.task_index.extend([0, 1, 0] if has_row else [0, 0, 0])
    found = _read(batch)
    assert found.rejected_rows == ({"bad_task": 1} if has_row else {})
    assert len(found.payload) < 1000
    assert found.layout is None
    kept = np.array([True, not has_row, True])
    assert found.kept == (np.packbits(kept).tobytes() if has_row else None)
    stored = StoredBatch("h", "P", "s", 1, found.payload, kept)
    assert samples_table([stored])["vm"].to_pylist() == ["good"] * (2 if has_row else 3)


def test_what_is_stored_of_a_batch_has_none_of_its_refused_tasks_reports_and_unknown_fields() -> None:
    batch = a_batch(2, cpu_usage_cores=[1.5, -1.0], events=[agent_pb2.VmEvent(reason="x" * 1000)])
    batch.tasks[0].MergeFromString(b"\xfa\x01\xe8\x07" + b"x" * 1000)
    batch.MergeFromString(b"\xfa\x7f\xe8\x07" + b"x" * 1000)  # fields of newer protocols
    batch.tasks[1].name = "y" * 250
    found = _read(batch)
    assert found.rejected_rows == {"bad_cpu_usage": 1}
    assert len(found.payload) < 200
    assert found.tasks == (("vm-0", "job"), ("vm-1", "job")), "quotas count both"
    assert found.names == (("h", "vm-1", "y" * 250),)
    stored = agent_pb2.CpiBatch.FromString(found.payload)
    assert [task.vm for task in stored.tasks] == ["vm-0", ""]


def test_refused_rows_are_never_in_memory_with_names_of_any_length() -> None:
    # 9,999 rows with a name of 4 MB would be 40 GB.
    tasks = [agent_pb2.Task(vm="good", job="j"), agent_pb2.Task(vm="x" * 4_000_000, job="j")]
    batch = a_batch(10_000, tasks=tasks)
    batch.task_index[:] = [0] + [1] * 9_999
    kept = np.arange(10_000) == 0
    table = samples_table([StoredBatch("h", "P", "s", 1, batch.SerializeToString(), kept)])
    assert (table.num_rows, table["vm"].to_pylist()) == (1, ["good"])


def test_tables_are_bounded_by_the_bytes_of_their_texts() -> None:
    def stored(sequence: int, length: int) -> StoredBatch:
        batch = a_batch(100, tasks=[agent_pb2.Task(vm="ä" * length, job="j")], task_index=[0] * 100)
        return StoredBatch("h", "P", "s", sequence, batch.SerializeToString())

    batches = [stored(n, length) for n, length in enumerate([500, 500, 500, 1, 1, 1], start=1)]
    whole = samples_table(batches)
    tables = list(samples_tables(batches, 500_000))
    assert [table.num_rows for table in tables] == [200, 400]
    assert pa.concat_tables(tables).equals(whole)
    assert [table.num_rows for table in samples_tables(batches, 1)] == [100] * 6
    assert not list(samples_tables([], 1))


def bytes_of_texts(table: pa.Table) -> int:
    texts = [column for column in table.columns if pa.types.is_string(column.type)]
    return sum(len((text.as_py() or "").encode()) for column in texts for text in column)


@pytest.mark.parametrize("letter", ["a", "ä", "\U0001f43c"])
@pytest.mark.parametrize(
    ("tasks", "index", "kept"),
    [
        (1, [0], None),
        (50, list(range(50)), None),  # each VM once, as agents send them
        (50, list(range(50)), [True] * 20 + [False] * 30),
        (3, [0, 0, 0, 1, 2], [True] * 3 + [False] * 2),  # as many rows as tasks, all of one
        (2, [0] * 40 + [1], None),
    ],
)
def test_no_table_has_more_bytes_of_texts_than_asked_for(
    letter: str, tasks: int, index: list[int], kept: list[bool] | None
) -> None:
    importer = letter * 25 if kept else ""  # speaks for other machines
    named = [
        agent_pb2.Task(vm=letter * (9 if n else 900), epoch=f"{n}", job=letter * 9, machine=importer, platform=importer)
        for n in range(tasks)
    ]
    mask = None if kept is None else np.array(kept)
    batches = [
        StoredBatch(
            letter * 40,
            letter * 30,
            letter * 16,
            n,
            a_batch(len(index), tasks=named, task_index=index).SerializeToString(),
            mask,
        )
        for n in range(1, 41)
    ]
    most_bytes = 30 * bytes_of_texts(samples_table(batches[:1]))
    tables = list(samples_tables(batches, most_bytes))
    assert pa.concat_tables(tables).equals(samples_table(batches))
    assert len(tables) < len(batches)
    for table in tables:
        assert bytes_of_texts(table) <= most_bytes
