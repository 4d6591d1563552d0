"""What agents call their VMs: kept by UUID, bounded, fit for a terminal."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from central.validation.vm_names import VmNames, named, shown_name
from whitepanda.v1 import agent_pb2

UUID = "6b29fc40-ca47-1067-b31d-00dd010662da"


def pairs(host: str, *names: tuple[str, str]) -> list[tuple[str, str, str]]:
    return list(named([agent_pb2.Task(vm=vm, name=name) for vm, name in names], host))


def test_names_are_of_the_last_batch_and_those_said_longest_ago_go_first():
    names = VmNames(kept=2)
    names.note(pairs("h", ("a", "web-1"), ("b", "db-1")))
    names.note(pairs("h", ("a", "web-2"), ("b", "")))
    names.note(pairs("h", ("c", "scan-1")))
    assert [names.get(vm, "h") for vm in ("a", "b", "c", "d")] == ["web-2", "", "scan-1", ""]
    assert len(names) == 2


def test_what_is_no_name_is_not_kept():
    assert pairs("h", ("a", "red\x1b[31m"), ("b", "x" * 257), ("", "y"), ("c\0", "z")) == []
    assert pairs("h", ("b", "x" * 256)) == [("h", "b", "x" * 256)]


def test_a_key_has_64_bytes_at_most():
    assert pairs("h", ("ä" * 32, "fits"), ("ä" * 33, "too long")) == [("h", "ä" * 32, "fits")]


def test_an_importer_names_vms_of_their_machines():
    task = agent_pb2.Task(vm="a", name="web", machine="node1")
    assert list(named([task], "importer")) == [("node1", "a", "web")]


def test_a_host_pushes_out_its_own_names_only():
    names = VmNames(kept=5, kept_of_host=2)
    names.note(pairs("good", ("a", "web"), ("b", "db")))
    names.note(pairs("bad", *((str(n), f"vm-{n}") for n in range(100))))
    assert [names.get(vm, "good") for vm in ("a", "b")] == ["web", "db"]
    assert [names.get(vm, "bad") for vm in ("97", "98", "99")] == ["", "vm-98", "vm-99"]
    assert [names.find(text) for text in ("web", "vm-99", "vm-1")] == [["a"], ["99"], []]


def test_a_host_cannot_rename_another_hosts_vm():
    names = VmNames()
    names.note(pairs("good", ("a", "web")))
    names.note(pairs("bad", ("a", "evil"), ("web", "x"), ("c", UUID)))
    names.note(pairs("good", (UUID, "db")))
    assert (names.get("a", "good"), names.get("a", "bad"), names.get("a", "other")) == ("web", "evil", "")
    assert names.by_host("a") == {"good": "web", "bad": "evil"}
    assert names.find("web") == ["web", "a"]  # neither hides the other
    assert names.find(UUID) == [UUID]


def test_a_vm_that_moves_has_a_name_of_each_host():
    names = VmNames(kept=5, kept_of_host=1)
    names.note(pairs("old", ("a", "web")))
    names.note(pairs("new", ("a", "web")))
    assert (names.by_host("a"), names.find("web")) == ({"old": "web", "new": "web"}, ["a"])
    names.note(pairs("old", ("b", "db")))
    assert (names.by_host("a"), names.get("b", "old"), len(names)) == ({"new": "web"}, "db", 2)


_NOTES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("123456"), st.text(max_size=1)), max_size=30)


@given(st.lists(_NOTES, max_size=6))
def test_what_is_kept_is_what_was_said_last(batches):
    names, order = VmNames(kept=7, kept_of_host=3), []
    for batch in batches:
        names.note(batch)
        for host, vm, name in batch:
            order = [each for each in order if each[:2] != (host, vm)]
            mine = [each for each in order if each[0] == host]
            if len(mine) == 3:
                order.remove(mine[0])
            order.append((host, vm, name))
        order = order[-7:]
        assert list(names._order) == [(host, vm) for host, vm, _ in order]
        assert {(host, vm): names.get(vm, host) for host in "abcd" for vm in "123456"} == (
            dict.fromkeys([(host, vm) for host in "abcd" for vm in "123456"], "")
            | {(host, vm): name for host, vm, name in order}
        )
    # To find the oldest entry of a plain dict is slow once older ones were deleted.
    assert isinstance(names._order, OrderedDict)


def test_hosts_that_name_a_vm_otherwise_are_shown_each():
    assert shown_name({}, {"a"}) == ""
    assert shown_name({"a": "web", "b": "web"}, {"a", "b"}) == "web"
    assert shown_name({"a": "web", "b": "evil"}, {"a", "b"}) == "web on a, evil on b"
    assert shown_name({"a": "web", "b": "old"}, {"a"}) == "web"
    assert shown_name({"a": "web"}, {"b"}) == "web"
    assert shown_name({str(n): f"vm-{n}" for n in range(9)}, {}).endswith("vm-4 on 4, ...")
