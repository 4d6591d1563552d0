"""What agents call their VMs: kept by UUID, bounded, fit for a terminal."""

from __future__ import annotations

from central.vm_names import VmNames
from whitepanda.v1 import agent_pb2


def test_names_are_of_the_last_batch_and_those_said_longest_ago_go_first():
    names = VmNames(kept=2)
    names.note([agent_pb2.Task(vm="a", name="web-1"), agent_pb2.Task(vm="b", name="db-1")])
    names.note([agent_pb2.Task(vm="a", name="web-2"), agent_pb2.Task(vm="b")])
    names.note([agent_pb2.Task(vm="c", name="scan-1")])
    assert [names.get(vm) for vm in ("a", "b", "c", "d")] == ["web-2", "", "scan-1", ""]
    assert len(names) == 2


def test_what_is_no_name_is_not_kept():
    names = VmNames()
    names.note(
        [
            agent_pb2.Task(vm="a", name="red\x1b[31m"),
            agent_pb2.Task(vm="b", name="x" * 1025),
            agent_pb2.Task(vm="", name="y"),
        ]
    )
    assert len(names) == 0
