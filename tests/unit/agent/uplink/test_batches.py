import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from collector.base import Reason
from whitepanda.common.protocol import UNKNOWN_COUNT


def window(**changes):
    values = {
        "vm": "u1",
        "epoch": "e1",
        "name": "web-1",
        "job": "web",
        "latency_sensitive": True,
        "start_unix_ns": 1_700_000_000_000_000_000,
        "duration_ns": 10_000_000_000,
        "cpu_usage_cores": 1.5,
        "cpi": 1.25,
    }
    return CpiWindow(**(values | changes))


def test_columns_and_tasks():
    batch = encode([window(), window(vm="u2", job="db"), window(start_unix_ns=7)], spool_id="s", sequence=3)
    assert (batch.spool_id, batch.sequence, batch.backlog) == ("s", 3, False)
    assert [(t.vm, t.epoch, t.name, t.job, t.latency_sensitive) for t in batch.tasks] == [
        ("u1", "e1", "web-1", "web", True),
        ("u2", "e1", "web-1", "db", True),
    ]
    assert list(batch.task_index) == [0, 1, 0]
    assert list(batch.start_unix_ns) == [1_700_000_000_000_000_000, 1_700_000_000_000_000_000, 7]
    assert list(batch.duration_ns) == [10_000_000_000] * 3
    assert list(batch.cpu_usage_cores) == [1.5] * 3
    assert list(batch.cpi) == [1.25] * 3


def test_what_nobody_measured_is_an_empty_column():
    batch = encode([window(), window()], spool_id="s", sequence=1)
    for name in ("cpi_reason", "cycles", "instructions", "running_ratio", "run_queue_wait_ratio"):
        assert len(getattr(batch, name)) == 0, name
    for name in (
        "disk_bytes_per_s",
        "network_bytes_per_s",
        "llc_occupancy_bytes",
        "memory_bandwidth_bytes_per_s",
        "memory_stall_ratio",
        "io_wait_ratio",
    ):
        assert len(getattr(batch, name)) == 0, name


def test_a_single_unknown_value_is_not_zero():
    rows = [
        window(cycles=5, disk_bytes_per_s=0.0, io_wait_ratio=0.0),
        window(cpi=None, cpi_reason=Reason.IDLE, instructions=0, memory_stall_ratio=0.25),
    ]
    batch = encode(rows, spool_id="s", sequence=1)
    assert batch.io_wait_ratio[0] == 0
    assert math.isnan(batch.io_wait_ratio[1])
    assert math.isnan(batch.memory_stall_ratio[0])
    assert batch.memory_stall_ratio[1] == 0.25
    assert list(batch.cycles) == [5, UNKNOWN_COUNT]
    assert list(batch.instructions) == [UNKNOWN_COUNT, 0]
    assert batch.disk_bytes_per_s[0] == 0
    assert math.isnan(batch.disk_bytes_per_s[1])
    assert batch.cpi[0] == 1.25
    assert math.isnan(batch.cpi[1])
    assert list(batch.cpi_reason) == [0, int(Reason.IDLE)]


def test_no_cpi_at_all_leaves_only_the_reasons():
    batch = encode([window(cpi=None, cpi_reason=Reason.NO_PMU)], spool_id="s", sequence=1)
    assert len(batch.cpi) == 0
    assert list(batch.cpi_reason) == [int(Reason.NO_PMU)]


def test_no_windows_is_an_empty_batch():
    assert len(encode([], spool_id="s", sequence=1).task_index) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.floats(0.1, 50),
            st.none() | st.integers(0, 2**63 - 1),
            st.none() | st.floats(0, 1e12),
        ),
        max_size=20,
    )
)
def test_every_column_is_empty_or_has_a_value_per_row_and_none_is_lost(rows):
    windows = [window(vm=vm, cpi=cpi, cycles=cycles, disk_bytes_per_s=disk) for vm, cpi, cycles, disk in rows]
    batch = type(encode([], spool_id="s", sequence=1)).FromString(
        encode(windows, spool_id="s", sequence=1).SerializeToString()
    )
    got = []
    for i, index in enumerate(batch.task_index):
        values = [batch.tasks[index].vm]
        for column, absent in (
            (batch.cpi, math.isnan),
            (batch.cycles, UNKNOWN_COUNT.__eq__),
            (batch.disk_bytes_per_s, math.isnan),
        ):
            assert len(column) in (0, len(rows))
            values.append(None if not column or absent(column[i]) is True else column[i])
        got.append(tuple(values))
    assert got == [(vm, pytest.approx(cpi) if cpi else cpi, cycles, disk) for vm, cpi, cycles, disk in rows]
