"""The list of VMs: every filter, every order, pages; and the order of a search's names."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from central.vms.listing import ORDERS, Part, VmList, Wanted, best_first, entry
from whitepanda.v1 import agent_pb2

VICTIM, INFLICTING, STEADY = agent_pb2.BEHAVIOUR_VICTIM, agent_pb2.BEHAVIOUR_INFLICTING, agent_pb2.BEHAVIOUR_STEADY


def vm(number, name, job="web", host="h1", project="shop", cpi=1.0, cores=1.0, last=5):
    row = {
        "job": job, "machine": host, "platform": "p", "cpi": cpi, "cpu_usage_cores": cores, "last": last,
    }  # fmt: skip
    return entry(f"{number:08d}", name, project, row)


VMS = VmList(
    [
        vm(1, "web-2", cores=3.0),
        vm(2, "Web-1", cpi=None, project=""),
        vm(3, "db-1", job="db", host="h2", cpi=4.0),
        vm(4, "", job="scan", host="h2", cores=9.0, last=7),
    ]
)
PARTS = {
    "00000003": Part(VICTIM, 7, 1, agent_pb2.Degradation(ratio=1.2)),
    "00000002": Part(VICTIM, 7, 1, agent_pb2.Degradation(ratio=1.9)),
    "00000004": Part(INFLICTING, 7, 1),
}


def names(wanted, first=0, size=10):
    found, count = VMS.page(wanted, PARTS, first, size)
    assert count >= len(found)
    return [each.name for each in found]


def test_a_list_is_filtered_by_what_a_vm_is_and_by_a_text_in_any_case():
    assert names(Wanted(text="web-1")) == ["Web-1"]
    assert names(Wanted(text="00000004")) == [""]
    assert names(Wanted(text="db")) == ["db-1"], "by job and name"
    assert names(Wanted(host="h2")) == ["", "db-1"]
    assert names(Wanted(job="web", project="shop")) == ["web-2"]
    assert names(Wanted(behaviour=VICTIM)) == ["db-1", "Web-1"]
    assert names(Wanted(behaviour=INFLICTING)) == [""]
    assert names(Wanted(behaviour=STEADY)) == ["web-2"]
    assert names(Wanted(text="nothing")) == []


def test_every_column_sorts_and_what_is_not_known_is_least():
    assert names(Wanted(order="slow_down", descending=True)) == ["Web-1", "db-1", "", "web-2"]
    assert names(Wanted(order="slow_down")) == ["web-2", "", "db-1", "Web-1"]
    assert names(Wanted(order="behaviour", descending=True))[:2] == ["db-1", "Web-1"]
    assert names(Wanted(order="cpi", descending=True))[0] == "db-1"
    assert names(Wanted(order="cpi"))[0] == "Web-1"
    assert names(Wanted(order="cpu", descending=True))[:2] == ["", "web-2"]
    assert names(Wanted(order="last", descending=True))[0] == ""


@given(st.sampled_from(ORDERS), st.booleans(), st.integers(1, 4))
def test_pages_together_are_the_list(order, descending, size):
    wanted = Wanted(order=order, descending=descending)
    pages = [each for first in range(0, 4, size) for each in VMS.page(wanted, PARTS, first, size)[0]]
    assert pages == VMS.page(wanted, PARTS, 0, 4)[0]
    assert len({each.vm for each in pages}) == 4
    turned = VMS.page(replace(wanted, descending=not descending), PARTS, 0, 4)[0]
    assert {each.vm for each in turned} == {each.vm for each in pages}


def test_a_cpi_that_is_not_known_is_nan():
    assert math.isnan(VMS.entries[1].cpi)


def test_names_that_are_the_text_come_first_then_those_that_begin_with_it():
    assert best_first("web", ["my-web", "webserver", "web", "db", "Web-1"], 3) == ["web", "Web-1", "webserver"]
