"""Which VMs and hosts silences match, for the alerts of Prometheus."""

import time

import pytest

from central.vms import silenced as module
from central.vms.listing import VmEntry
from central.vms.silenced import Silenced, silenced
from whitepanda.v1 import fleet_pb2


def vm(uuid: str, name: str, host: str, job: str, project: str) -> VmEntry:
    return VmEntry(uuid, name, project, job, host, "xeon", 1.0, 1.0, 0, "")


VMS = [
    vm("u1", "web-1", "h1", "web", "shop"),
    vm("u2", "web-2", "h2", "web", "shop"),
    vm("u3", "scan-1", "h1", "scan", "ops"),
    vm("u4", "nobody", "h3", "", ""),
]


def silence(*, in_force: bool = True, **names: str) -> fleet_pb2.Silence:
    return fleet_pb2.Silence(in_force=in_force, **names)


@pytest.mark.parametrize(
    ("names", "vms", "hosts"),
    [
        ({"vm": "u1"}, ("u1",), ()),
        ({"vm": "web-1"}, ("u1",), ()),
        ({"host": "h1"}, ("u1", "u3"), ("h1",)),
        ({"job": "web"}, ("u1", "u2"), ()),
        ({"project": "shop"}, ("u1", "u2"), ()),
        ({"host": "h1", "job": "web"}, ("u1",), ()),  # not the host as a whole
        ({"project": "shop", "job": "scan"}, (), ()),
        ({"vm": "u1", "host": "h2"}, (), ()),
        ({"host": "h9"}, (), ("h9",)),
        ({}, (), ()),  # refused when it is made; must not match the VM without a job and project
    ],
)
def test_all_that_a_silence_names_must_be_true_of_the_vm(names, vms, hosts) -> None:
    assert silenced([silence(**names)], VMS) == Silenced(True, vms, hosts)


def test_only_silences_in_force_count() -> None:
    assert silenced([], VMS) == Silenced()
    assert silenced([silence(in_force=False, host="h1")], VMS) == Silenced()
    found = silenced([silence(in_force=False, host="h1"), silence(job="scan")], VMS)
    assert found == Silenced(True, ("u3",), ())


def test_the_list_is_bounded_and_the_first_stay(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_VMS", 2)
    assert silenced([silence(project="shop"), silence(host="h1")], VMS).vms == ("u1", "u2")


def test_two_hundred_silences_and_fifty_thousand_vms_take_little_cpu() -> None:
    vms = [vm(f"u{n}", f"vm-{n}", f"h{n % 1000}", f"job-{n % 300}", "") for n in range(50_000)]
    silences = [silence(host=f"h{n}", job=f"job-{n}") for n in range(200)]
    began = time.thread_time()
    assert silenced(silences, vms).vms
    assert time.thread_time() - began < 2
