"""What agents call their VMs: kept by UUID, bounded, fit for a terminal."""

from __future__ import annotations

from central.validation.vm_names import VmNames, named
from whitepanda.v1 import agent_pb2


def pairs(*names: tuple[str, str]) -> list[tuple[str, str]]:
    return list(named([agent_pb2.Task(vm=vm, name=name) for vm, name in names]))


def test_names_are_of_the_last_batch_and_those_said_longest_ago_go_first():
    names = VmNames(kept=2)
    names.note("h", pairs(("a", "web-1"), ("b", "db-1")))
    names.note("h", pairs(("a", "web-2"), ("b", "")))
    names.note("h", pairs(("c", "scan-1")))
    assert [names.get(vm) for vm in ("a", "b", "c", "d")] == ["web-2", "", "scan-1", ""]
    assert len(names) == 2


def test_what_is_no_name_is_not_kept():
    assert pairs(("a", "red\x1b[31m"), ("b", "x" * 257), ("", "y"), ("c\0", "z")) == []
    assert pairs(("b", "x" * 256)) == [("b", "x" * 256)]


def test_a_key_has_64_bytes_at_most():
    assert pairs(("ä" * 32, "fits"), ("ä" * 33, "too long")) == [("ä" * 32, "fits")]


def test_a_host_pushes_out_its_own_names_only():
    names = VmNames(kept=5, kept_of_host=2)
    names.note("good", pairs(("a", "web"), ("b", "db")))
    names.note("bad", pairs(*((str(n), f"vm-{n}") for n in range(100))))
    assert [names.get(vm) for vm in ("a", "b", "97", "98", "99")] == ["web", "db", "", "vm-98", "vm-99"]
    assert (names.knows("web"), names.uuids("vm-99"), names.knows("vm-1")) == (True, ["99"], False)


def test_a_vm_that_moves_is_of_the_host_that_named_it_last():
    names = VmNames(kept=5, kept_of_host=1)
    names.note("old", pairs(("a", "web")))
    names.note("new", pairs(("a", "web")))
    names.note("old", pairs(("b", "db")))
    assert (names.get("a"), names.get("b"), len(names)) == ("web", "db", 2)
