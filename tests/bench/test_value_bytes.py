"""A value of a window takes few bytes: on the wire, all in, and in the lake; and only windows that differ prove it."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.ingest.value_bytes import (
    LAKE_BAR,
    RECORDING,
    WIRE_BAR,
    Bytes,
    counted_host,
    demo_host,
    measure,
    recorded_host,
)


def test_values_of_a_demonstration_host_take_few_bytes(tmp_path: Path, capsys) -> None:
    found = measure("simulated", demo_host(tmp_path, 5), tmp_path)
    assert found.is_evidence
    assert found.wire <= WIRE_BAR
    assert found.lake <= LAKE_BAR
    assert capsys.readouterr().out.count(": pass\n") == 2


def test_a_recording_of_seconds_is_no_evidence(tmp_path: Path, capsys) -> None:
    found = measure("recorded", recorded_host(RECORDING), tmp_path)
    assert (found.windows, found.distinct, found.is_evidence) == (3, 3, False)
    out = capsys.readouterr().out
    assert out.count("no evidence: 3 distinct windows") == 2
    assert "pass" not in out and "MISS" not in out


def test_values_that_come_again_and_again_are_no_evidence(tmp_path: Path) -> None:
    [windows] = recorded_host(RECORDING)
    again = ([replace(one, start_unix_ns=one.start_unix_ns + k * 10**10) for one in windows] for k in range(1000))
    found = measure("again", again, tmp_path)
    assert (found.windows, found.distinct, found.is_evidence) == (3000, 3, False)
    assert found.lake < LAKE_BAR  # what made them look well


@pytest.mark.parametrize(
    ("windows", "distinct", "is_evidence"), [(2000, 1900, True), (2000, 1700, False), (900, 900, False)]
)
def test_what_is_evidence(windows, distinct, is_evidence) -> None:
    assert Bytes(5.0, 2.0, windows, distinct).is_evidence is is_evidence


def test_windows_of_a_server_s_counters_have_its_values(tmp_path: Path) -> None:
    """20 rows for 10 VMs: VM k has rows 2 k and 2 k + 1."""
    numbers = range(20)
    table = {
        "app": ["BT"] * 20,
        "cycles": [16_000_000_000 + 8_000_000 * k for k in numbers],
        "instructions": [8_000_000_000] * 20,
        "l2_misses": [80_000_000] * 20,
        "l3_misses": [8_000_000 * (1 + k) for k in numbers],
        "stall_cycles": [4_000_000_000] * 20,
        "memory_bytes_local": [10**9] * 20,
        "memory_bytes_remote": [10**8] * 20,
        "llc_occupancy_bytes": [10**7] * 20,
        "cpu_cores": [6.0] * 20,
    }
    pq.write_table(pa.table(table), tmp_path / "counters.parquet")
    windows = [window for ended in counted_host(tmp_path / "counters.parquet") for window in ended]
    by_vm = sorted(windows, key=lambda one: (one.vm, one.start_unix_ns))
    assert len(by_vm) == 20
    for row, window in enumerate(by_vm):
        assert window.cpi == pytest.approx(2 + 0.001 * row)
        assert window.cpu_usage_cores == pytest.approx(6.0)
        known = {
            "llc_mpki": 1.0 + row,
            "l2_mpki": 10.0,
            "total_stall_ratio": 4 / (16 + 0.008 * row),
            "memory_bandwidth_bytes_per_s": 1.1e9,
            "memory_bandwidth_local_bytes_per_s": 1e9,
            "llc_occupancy_bytes": 1e7,
        }
        assert {name: window.metrics[name] for name in known} == pytest.approx(known, rel=1e-3)
