"""What a project narrows: a host, an incident, a VM, a job, facts, silences and the audit."""

import grpc
import pytest

from central.api.requests import ApiError
from central.validation.facts import FactRow
from central.validation.triggers import TriggerRow
from tests.support.page_fleet import PageCentral, S, Size, vm_id
from whitepanda.v1 import agent_pb2, fleet_pb2

SIZE = Size(hosts=4, vms_per_host=6, windows=3, contended=4)


@pytest.fixture
async def central(tmp_path):
    """VMs 0 and 3 are of project shop, 1 and 4 of search; all in the incident of node0001. Others have no facts."""
    async with PageCentral(tmp_path, SIZE) as found:
        yield found


async def ask(central, method, **wanted):
    request = getattr(fleet_pb2, f"{method}Request")(**wanted)
    return await central.fleet.answer(method, request, names=frozenset({"anna"}))


async def refused(central, method, **wanted):
    with pytest.raises(ApiError) as caught:
        await ask(central, method, **wanted)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    return caught.value.field, str(caught.value)


def take(central, vm, project, ago_s=3600, host="node0001", **facts):
    """Have a host report a VM."""
    said = agent_pb2.VmFacts(unix_ns=central.now - ago_s * S, vm=vm, epoch="1", project=project, **facts)
    central.fleet.facts.take([FactRow(host, vm, said.unix_ns, said.SerializeToString())])
    central.fleet.listed_of = None


def report(central, vm, project, host="node0003"):
    """Have a host report a VM that suffers; its number is 2."""
    at = central.now - 600 * S
    reported = agent_pb2.Trigger(unix_ns=at, slot_ns=60 * S, mn_cpi=3.0, mn_cpi_threshold=2.0)
    reported.victims.add(vm=vm, name=vm, job="mail", cpi=1.0, n_cpi=2.0, threshold_cpi=1.0)
    row = TriggerRow(host, "spool", 1, 0, host, at, reported.SerializeToString())
    central.store.take([row], gap_ns=900 * S, oldest_unix_ns=0, project_of=lambda *_: project)


async def test_a_host_shows_the_vms_and_incidents_of_the_project(central):
    async def shown(**wanted):
        found = await ask(central, "GetHostTimeline", **wanted)
        return {vm.vm for vm in found.vms}, found.vms_in_all, [one.id for one in found.incidents]

    every = {vm_id(k) for k in range(6)}
    assert await shown(host="node0001") == (every, 6, [1])
    assert await shown(host="node0001", project="shop") == ({vm_id(0), vm_id(3)}, 2, [1])
    cut = await ask(central, "GetHostTimeline", host="node0001", project="shop", top=1)
    assert (len(cut.vms), cut.vms_in_all) == (1, 2)
    assert await refused(central, "GetHostTimeline", host="node0002", project="shop") == (
        "host", "no VM of project 'shop' is or was on host 'node0002'",
    )  # fmt: skip
    take(central, vm_id(5), "solo")
    assert await shown(host="node0001", project="solo") == ({vm_id(5)}, 1, []), "no VM of it is in the incident"
    early = {"since_unix_ns": central.now - 7300 * S, "until_unix_ns": central.now - 7200 * S}
    assert await shown(host="node0001", project="solo", **early) == (set(), 0, []), "it came later"


async def test_an_incident_is_shown_whole_to_the_projects_that_are_in_it(central):
    for project in ("shop", "search"):
        found = await ask(central, "GetIncident", id=1, project=project)
        assert {vm.project for vm in found.incident.victims} == {"shop", "search", ""}
        assert (await ask(central, "GetIncidentTimeline", id=1, project=project)).host == "node0001"
    for method in ("GetIncident", "GetIncidentTimeline"):
        field, said = await refused(central, method, id=1, project="solo")
        assert (field, said[:47]) == ("id", "no incident 1 with a VM of project 'solo'; it w")
        assert (await refused(central, method, id=9, project="shop"))[0] == "id"
    for vm, count in ((vm_id(0), 1), ("web-0", 1), (vm_id(1), 0)):
        found = await ask(central, "ListIncidents", vm=vm, project="shop")
        assert len(found.incidents) == count, "the VM itself is of the project"


async def test_a_vms_history_is_that_of_its_project(central):
    assert (await ask(central, "GetVmHistory", vm=vm_id(0), project="shop")).windows
    found = await refused(central, "GetVmHistory", vm=vm_id(0), project="search")
    assert found == ("vm", f"nothing is known of VM {vm_id(0)!r} of project 'search'")
    take(central, vm_id(0), "moved", ago_s=60)
    assert (await ask(central, "GetVmHistory", vm="web-0", project="shop")).vm == vm_id(0), "it was of it"
    central.registry.vm_names.note([("node0001", vm_id(1), "twin"), ("node0001", vm_id(3), "twin")])
    with pytest.raises(ApiError, match="2 VMs are named 'twin'"):
        await ask(central, "GetVmHistory", vm="twin")
    assert (await ask(central, "GetVmHistory", vm="twin", project="shop")).vm == vm_id(3)
    assert (await refused(central, "GetVmHistory", vm="twin", project="none"))[0] == "vm"
    report(central, "ghost", "old")
    assert (await ask(central, "GetVmHistory", vm="ghost", project="old")).incidents, "facts do not know it"
    assert (await refused(central, "GetVmHistory", vm="ghost", project="shop"))[0] == "vm"


async def test_facts_are_those_of_the_project(central):
    assert (await ask(central, "GetFacts", vm=vm_id(0), project="shop")).vm.facts.name == "web-0"
    assert (await ask(central, "GetFacts", host="node0001", project="shop")).host.facts.cpus == 64
    assert await refused(central, "GetFacts", vm=vm_id(0), project="search") == (
        "vm", f"no facts are known of VM {vm_id(0)!r} of project 'search'",
    )  # fmt: skip
    assert await refused(central, "GetFacts", host="node0001", project="none") == (
        "host", "no facts are known of host 'node0001' with a VM of project 'none'",
    )  # fmt: skip
    take(central, "other", "solo", name="web-0")
    with pytest.raises(ApiError, match="2 VMs are named 'web-0'"):
        await ask(central, "GetFacts", vm="web-0")
    assert (await ask(central, "GetFacts", vm="web-0", project="solo")).vm.facts.vm == "other"


async def test_a_job_counts_the_vms_of_the_project(central):
    assert (await ask(central, "GetJob", job="web")).vms == 4
    found = await ask(central, "GetJob", job="web", project="shop")
    assert (found.vms, [host.host for host in found.hosts], found.hosts_in_all) == (1, ["node0001"], 1)
    assert sum(sum(one.vms) for one in found.distributions) == 1
    assert found.statistics, "these are of the job in all"
    assert await refused(central, "GetJob", job="web", project="search") == (
        "job", "no VM of project 'search' is or was of job 'web'",
    )  # fmt: skip
    take(central, "gone-1", "past", job="web")
    take(central, "gone-1", "past", job="web", ago_s=600, gone=True)
    assert (await ask(central, "GetJob", job="web", project="past")).vms == 0


async def test_silences_and_the_audit_are_those_of_the_project_and_its_vms(central):
    end = central.now + 3600 * S
    for matchers in ({"project": "shop"}, {"vm": vm_id(0)}, {"vm": vm_id(1)}, {"host": "node0001"}, {"job": "web"}):
        await ask(central, "CreateSilence", reason="known", end_unix_ns=end, **matchers)
    await ask(central, "AcknowledgeIncident", id=1, reason="on it")
    report(central, "ghost", "old")
    await ask(central, "AddIncidentNote", id=2, text="not ours")

    async def silences(**wanted):
        return [one.id for one in (await ask(central, "ListSilences", **wanted)).silences]

    async def audit(**wanted):
        return [(one.incident, one.silence) for one in (await ask(central, "ListAudit", **wanted)).entries]

    assert await silences() == [5, 4, 3, 2, 1] and len(await audit()) == 7
    assert await silences(project="shop") == [2, 1]
    assert await audit(project="shop") == [(1, 0), (0, 2), (0, 1)]
    assert await silences(project="search", current_only=True) == [3]
    assert await audit(project="search") == [(1, 0), (0, 3)]
    assert (await silences(project="old"), await audit(project="old")) == ([], [(2, 0)])
    assert (await silences(project="none"), await audit(project="none")) == ([], [])


@pytest.mark.parametrize(("method", "field"), [("ListSilences", "silences"), ("ListAudit", "entries")])
async def test_pages_are_of_one_project(central, method, field):
    for number in range(3):
        silence = {"project": "shop", "key": str(number), "end_unix_ns": central.now + 3600 * S}
        await ask(central, "CreateSilence", reason="known", **silence)
    first = await ask(central, method, project="shop", page_size=2)
    more = await ask(central, method, project="shop", page_size=2, page_token=first.next_page_token)
    assert [one.id for one in (*getattr(first, field), *getattr(more, field))] == [3, 2, 1]
    with pytest.raises(ApiError, match="page_token is not one of this request's pages"):
        await ask(central, method, project="search", page_token=first.next_page_token)
