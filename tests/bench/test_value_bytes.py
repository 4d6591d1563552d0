"""A value of a window takes few bytes: on the wire, all in, and in the lake."""

from pathlib import Path

from bench.ingest.value_bytes import LAKE_BAR, WIRE_BAR, demo_batches, measure, recorded_batches


def test_values_of_a_demonstration_host_take_few_bytes(tmp_path: Path) -> None:
    wire, lake = measure("demo", demo_batches(tmp_path, 5), tmp_path)
    assert wire <= WIRE_BAR
    assert lake <= LAKE_BAR


def test_values_of_a_recorded_host_take_few_bytes(tmp_path: Path) -> None:
    wire, lake = measure("recorded", recorded_batches(60), tmp_path)
    assert wire <= WIRE_BAR
    assert lake <= LAKE_BAR
