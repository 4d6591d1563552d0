"""The fleet's VMs and the search: rows, pages, marks of open incidents, VMs that are gone, refusals."""

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
    async with PageCentral(tmp_path, SIZE) as found:
        yield found


async def listed(central, **wanted):
    return await central.fleet.answer("ListFleetVms", fleet_pb2.ListFleetVmsRequest(**wanted))


async def hits(central, text, **wanted):
    found = await central.fleet.answer("Search", fleet_pb2.SearchRequest(text=text, **wanted))
    return [(hit.kind, hit.name, hit.gone) for hit in found.hits]


async def test_the_slowest_victims_come_first_with_their_incident(central):
    found = await listed(central)
    assert found.vms_in_all == len(found.vms) == 24
    first, *_ = found.vms
    assert (first.name, first.job, first.host, first.incident) == ("web-0", "web", "node0001", 1)
    assert first.behaviour == agent_pb2.BEHAVIOUR_VICTIM
    assert first.slow_down.ratio > 1.5
    assert first.cpu_usage_cores > 0 and first.cpi > 0 and first.last_unix_ns > 0 and first.since_unix_ns > 0
    behaviours = [vm.behaviour for vm in found.vms]
    assert behaviours[:3] == [agent_pb2.BEHAVIOUR_VICTIM] * 3
    assert behaviours.count(agent_pb2.BEHAVIOUR_INFLICTING) == 1
    suspects = await listed(central, behaviour=agent_pb2.BEHAVIOUR_INFLICTING)
    assert [vm.name for vm in suspects.vms] == ["batch-scan-3"]


async def test_pages_follow_each_other_and_a_token_is_for_its_own_filter(central):
    names, token = [], ""
    while True:
        page = await listed(central, order="FLEET_VM_ORDER_NAME", page_size=7, page_token=token)
        names += [vm.name for vm in page.vms]
        token = page.next_page_token
        if not token:
            break
    assert len(names) == 24 and names == sorted(names)
    first = await listed(central, page_size=7)
    with pytest.raises(ApiError, match="page_token is not one of this request's pages"):
        await listed(central, page_size=7, job="web", page_token=first.next_page_token)
    with pytest.raises(ApiError, match=r"order is not known here \(value 99\)"):
        await listed(central, order=99)


@pytest.mark.parametrize("order", fleet_pb2.FleetVmOrder.keys())
async def test_each_order_of_the_interface_lists_all(central, order):
    assert len((await listed(central, order=order)).vms) == 24


async def test_projects_of_facts_narrow_the_list_and_the_search(central):
    shop = await listed(central, project="shop", order="FLEET_VM_ORDER_NAME")
    assert [(vm.vm, vm.project) for vm in shop.vms] == [(vm_id(3), "shop"), (vm_id(0), "shop")]
    assert (await listed(central, project="none")).vms_in_all == 0
    assert await hits(central, "shop") == [("project", "shop", False)]
    assert await hits(central, "e", project="search") == [
        ("host", "node0001", False), ("job", "orders-db", False), ("vm", "orders-db-1", False),
        ("project", "search", False), ("job", "video-encode", False), ("vm", "video-encode-4", False),
    ]  # fmt: skip


async def test_a_project_narrows_hosts_jobs_and_the_overview(central):
    central.note_facts(range(6, 12))  # of node0002, where nobody suffers
    answer = central.fleet.answer
    hosts = await answer("ListHosts", fleet_pb2.ListHostsRequest(project="shop", page_size=1))
    assert [one.host for one in hosts.hosts] == ["node0001"]
    more = fleet_pb2.ListHostsRequest(project="shop", page_size=1, page_token=hosts.next_page_token)
    assert [one.host for one in (await answer("ListHosts", more)).hosts] == ["node0002"]
    assert not (await answer("ListHosts", fleet_pb2.ListHostsRequest(project="none"))).hosts

    found = await answer("ListJobStatistics", fleet_pb2.ListJobStatisticsRequest(project="shop"))
    mine = {vm.job for vm in (await listed(central, project="shop")).vms}
    assert {one.job for one in found.statistics} == mine
    other = fleet_pb2.ListJobStatisticsRequest(project="shop", job="batch-scan")
    assert bool((await answer("ListJobStatistics", other)).statistics) == ("batch-scan" in mine)

    everything = await answer("GetOverview", fleet_pb2.GetOverviewRequest())
    shop = await answer("GetOverview", fleet_pb2.GetOverviewRequest(project="shop"))
    nobody = await answer("GetOverview", fleet_pb2.GetOverviewRequest(project="none"))
    counts = [(o.hosts, o.connected_hosts, o.vms, o.open_incidents, len(o.open)) for o in (everything, shop, nobody)]
    assert counts == [(4, 4, 24, 1, 1), (2, 2, 4, 1, 1), (0, 0, 0, 0, 0)]
    assert [one.host for one in shop.contended] == ["node0001"]
    assert [one.job for one in shop.antagonists] == ["batch-scan"]
    assert (nobody.incidents, nobody.contended_hosts, list(nobody.antagonists)) == (0, 0, [])


async def test_a_search_finds_vms_by_name_and_uuid_hosts_and_jobs(central):
    assert (await hits(central, "WEB-0"))[0] == ("vm", "web-0", False)
    assert await hits(central, vm_id(5)) == [("vm", "ci-runner-5", False)]
    assert await hits(central, "node0003") == [("host", "node0003", False)]
    assert (await hits(central, "batch-scan"))[0] == ("job", "batch-scan", False)
    assert len(await hits(central, "0", top=3)) == 3
    assert await hits(central, "nothing-like-it") == []


async def test_a_search_finds_vms_that_are_gone(central):
    facts = agent_pb2.VmFacts(unix_ns=central.now - 7200 * S, vm="gone-uuid", name="old-mail", job="mail")
    gone = agent_pb2.VmFacts(unix_ns=central.now - 3600 * S, vm="gone-uuid", name="old-mail", job="mail", gone=True)
    rows = [FactRow("node0002", "gone-uuid", each.unix_ns, each.SerializeToString()) for each in (facts, gone)]
    central.fleet.facts.take(rows)
    assert await hits(central, "old-ma") == [("vm", "old-mail", True)]
    # What only incident history knows, as after central's restart.
    at = central.now - 3600 * S
    reported = agent_pb2.Trigger(unix_ns=at, slot_ns=60 * S, mn_cpi=3.0, mn_cpi_threshold=2.0)
    reported.victims.add(vm="v", name="mail-9", job="mail", cpi=1.0, n_cpi=2.0, threshold_cpi=1.0)
    row = TriggerRow("node0002", "spool", 1, 0, "node0002", at, reported.SerializeToString())
    central.store.take([row], gap_ns=900 * S, oldest_unix_ns=0)
    assert await hits(central, "mail-9") == [("vm", "mail-9", True)]


async def test_gone_vms_are_found_by_job_project_and_host_after_all_names(central):
    old = central.now - 7200 * S
    told = [("g1", "old-a", "Mailer", "Post", "lost-9"), ("g2", "mailer-of-web", "web", "", "node0001")]
    rows = []
    for vm, name, job, project, host in told:
        for gone in (False, True):
            facts = agent_pb2.VmFacts(unix_ns=old + gone, vm=vm, name=name, job=job, project=project, gone=gone)
            rows.append(FactRow(host, vm, facts.unix_ns, facts.SerializeToString()))
    central.fleet.facts.take(rows)
    assert await hits(central, "mailer") == [
        ("job", "Mailer", True), ("vm", "mailer-of-web", True), ("vm", "old-a", True),
    ]  # fmt: skip
    assert await hits(central, "POST") == [("project", "Post", True), ("vm", "old-a", True)]
    assert await hits(central, "lost") == [("vm", "old-a", True)]
    assert await hits(central, "mailer", project="post") == [("job", "Mailer", True), ("vm", "old-a", True)]
    # A job with VMs that run is no gone one; the page of one whose VMs are all gone is there.
    assert [hit for hit in await hits(central, "web") if hit[0] == "job"] == [("job", "web", False)]
    found = await central.fleet.answer("GetJob", fleet_pb2.GetJobRequest(job="Mailer"))
    assert (found.vms, len(found.hosts)) == (0, 0)
    with pytest.raises(ApiError, match="nothing is known of job 'mail'"):
        await central.fleet.answer("GetJob", fleet_pb2.GetJobRequest(job="mail"))


async def test_a_projects_victims_alone_and_quiet_ones_last(central):
    central.report_contention(range(2, 3))
    everybody = await central.fleet.answer("GetOverview", fleet_pb2.GetOverviewRequest())
    slow = [vm.slow_down.ratio for vm in everybody.suffering]
    assert (len(slow), slow) == (6, sorted(slow, reverse=True))
    assert everybody.suffering[0].host == "node0003"
    assert {vm.suspect_name for vm in everybody.suffering} == {"batch-scan-3", "batch-scan-15"}
    request = fleet_pb2.AcknowledgeIncidentRequest(id=everybody.suffering[0].incident, reason="mine", operator="kim")
    await central.fleet.answer("AcknowledgeIncident", request)
    again = await central.fleet.answer("GetOverview", fleet_pb2.GetOverviewRequest())
    assert [vm.host for vm in again.suffering] == ["node0001"] * 3 + ["node0003"] * 3
    shop = await central.fleet.answer("GetOverview", fleet_pb2.GetOverviewRequest(project="shop"))
    assert ([vm.name for vm in shop.suffering], shop.suffering_in_all) == (["web-0"], 1)


async def test_an_empty_search_is_refused(central):
    with pytest.raises(ApiError, match="text is missing") as refused:
        await hits(central, "  ")
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_fleet_of_nothing_has_an_empty_list(tmp_path):
    async with PageCentral(tmp_path, Size(hosts=0)) as central:
        assert (await listed(central)).vms_in_all == 0
        assert await hits(central, "x") == []
