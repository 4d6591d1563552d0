"""What the limits of `whitepanda act` forbid, and in which words."""

import math

import msgspec
import pytest

from agent.act.limits import Named, refusal, uuid_of
from agent.act.records import Record, RefusedError
from tests.unit.agent.act_fakes import LIMITS, OTHER, VICTIM, VM, asked


def record(vm, number=3):
    return Record(number, "cap-cpu", vm, 1.0, "a", "b", 0, 0, "boot", 0, 0)


def refused(request, *, in_force=(), ended_s=None, running=10, **changes):
    limits = msgspec.structs.replace(LIMITS, **changes)
    return refusal(request, limits, in_force, ended_s or {}, lambda: running)


def test_what_is_within_the_limits_is_not_refused():
    assert refused(asked()) == ""
    assert refused(asked(action="limit-bandwidth", amount=20.0)) == ""
    assert refused(asked(action="limit-cache", amount=2.0, victim="")) == ""
    assert refused(asked(), ended_s={VM: 601.0, OTHER: 1.0}) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vm": VICTIM}, "the victim itself would be limited"),
        ({"amount": math.nan}, "cores must be above 0"),
        ({"amount": -1.0}, "cores must be above 0"),
        ({"action": "limit-bandwidth", "amount": 101.0}, "percent must be above 0 and at most 100 (value 101.0)"),
        ({"seconds": 0.0}, "seconds must be at least 1 (value 0.0)"),
        ({"seconds": math.inf}, "seconds must be at least 1"),
        ({"why": "a\x1b[2J"}, "why must be one line"),
        ({"why": "x" * 301}, "why must be one line"),
        ({"amount": 0.4}, "0.4 cores is below act.min_cores (0.5)"),
        ({"action": "limit-bandwidth", "amount": 10.0}, "10 percent is below act.min_bandwidth_percent (20)"),
        ({"action": "limit-cache", "amount": 1.0}, "1 ways is below act.min_ways (2)"),
        ({"seconds": 3601.0}, "3601 s is longer than act.max_seconds (3600)"),
    ],
)
def test_what_makes_no_sense_or_is_too_much_is_refused_with_the_setting(changes, said):
    assert said in refused(asked(**changes))


def test_one_action_on_a_vm_at_once():
    assert refused(asked(), in_force=[record(VM)]) == ("action 3 (cap-cpu) is in force on this VM; undo it first")


def test_a_share_of_the_vms_and_never_less_than_one():
    assert refused(asked(), in_force=[record(OTHER)], running=10, max_share=0.2) == ""
    said = refused(asked(), in_force=[record(OTHER)], running=9, max_share=0.2)
    assert said == "1 of 9 VMs are acted upon, and act.max_share (0.2) allows 1"
    assert refused(asked(), running=2, max_share=0.0) == ""


def test_a_vm_cools_down():
    assert refused(asked(), ended_s={VM: 10.0}) == (
        "the last action on this VM ended 10 s ago; act.cool_down_s: wait 590 s"
    )


@pytest.mark.parametrize("changes", [{}, {"amount": -1.0}, {"seconds": 99999.0}])
def test_libvirt_is_not_asked_where_it_does_not_matter(changes):
    def away():
        raise AssertionError

    assert bool(refusal(asked(**changes), LIMITS, (), {}, away)) == bool(changes)
    assert "wait" in refusal(asked(), LIMITS, [record(OTHER)], {VM: 10.0}, away)


RUNNING = (
    Named(VM, "web", "libvirt, process 1"),
    Named(OTHER, "db", "proxmox, process 2"),
    Named(VICTIM, "web", "qemu, process 3"),
    Named("00000000-0000-4000-8000-00000000000a", VM, "qemu, process 4"),
)


def test_a_vm_is_named_by_uuid_or_by_a_name_that_only_it_has():
    asked_for = []

    def named(name):
        asked_for.append(name)
        return RUNNING

    assert uuid_of("db", named) == OTHER
    assert uuid_of(VM, named) == VM  # and not the VM that somebody has given this name
    assert uuid_of(OTHER, lambda _name: ()) == OTHER
    assert asked_for == ["db"]
    assert uuid_of("db", lambda _name: (RUNNING[1], RUNNING[1])) == OTHER  # one VM, found twice


@pytest.mark.parametrize("value", ["scan-1", "", "--all", f"{VM}\n", VM.upper() + "x", "we"])
def test_a_name_that_no_vm_has_is_refused(value):
    with pytest.raises(RefusedError, match=r"no VM named .* runs here; `whitepanda vms` lists"):
        uuid_of(value, lambda _name: RUNNING)


def test_a_name_that_several_vms_have_is_refused_with_all_of_them():
    with pytest.raises(RefusedError) as refused_:
        uuid_of("web", lambda _name: RUNNING)
    assert str(refused_.value) == (
        f"2 VMs are named 'web': {VM} (libvirt, process 1), {VICTIM} (qemu, process 3); give the UUID"
    )
    many = [Named(f"{n}", "web", "qemu") for n in range(9)]
    with pytest.raises(RefusedError, match=r"9 VMs are named 'web': 0 \(qemu\), .*4 \(qemu\), \.\.\.; give"):
        uuid_of("web", lambda _name: many)
