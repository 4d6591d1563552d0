"""What the lists of the fleet page have and what they leave out, in a real browser."""

import re

import pytest
import pytest_asyncio

from central.validation.facts import FactRow
from tests.support.browser import chromium, serious, watched
from tests.support.page_fleet import PageCentral, S, Size, vm_id
from whitepanda.v1 import agent_pb2, fleet_pb2

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def central(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("some"), Size(hosts=6, vms_per_host=12)) as found:
        found.note_facts(range(24))  # of two hosts
        yield found


async def test_placement_shows_full_hosts_and_those_of_which_nobody_can_tell(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/placement?job=web")
        rooms = seen.page.locator("#placement-scroll tbody tr td:nth-child(2)")
        assert sorted(await rooms.all_inner_texts()) == ["● yes"] * 2 + ["◐ cannot tell"] * 4
        assert "Its size: 4 vCPUs, 4.0 GiB." in await seen.page.inner_text("main")
        why = seen.page.locator("#placement-doubts")
        await why.locator("summary").click()
        assert (await why.locator("li").all_inner_texts())[0].startswith("4 hosts: no facts of the host's cpus")
        await seen.page.get_by_label("vCPUs").fill("250")
        await seen.page.get_by_label("Memory, GiB").fill("1.5")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_function("() => location.hash.endsWith('?job=web&vcpus=250&memory_gib=1.5&top=20')")
        await seen.settled()
        assert (await rooms.all_inner_texts())[-2:] == ["▲ full: 48 of 256 vCPUs taken"] * 2
        assert "Its size: 250 vCPUs, 1.5 GiB." in await seen.page.inner_text("main")
        assert await serious(seen.page) == []
        await seen.open("#/placement?job=web&memory_gib=much")
        assert "“Memory, GiB”: must be an integer" in await seen.page.inner_text(".problem")

        async def nowhere(route):
            answer = await route.fetch()
            found = await answer.json()
            found["hosts"] = [{**each, "full": "no room"} for each in found["hosts"]]
            await route.fulfill(response=answer, json=found)

        await seen.page.route("**/v1/placement?*", nowhere)
        await seen.open("#/placement?job=web&top=3")
        assert "No host has room for it." in await seen.page.inner_text(".problem")


async def test_every_victim_of_now_is_listed_and_what_is_left_out_is_said(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("")
        assert await seen.page.locator("#now-left").count() == 0
        await seen.page.locator("#now-all").click()
        assert await seen.page.locator("#now-scroll tbody tr").count() == 12, "six on each of two hosts"

        async def more(route):
            answer = await route.fetch()
            found = await answer.json()
            found["suffering_in_all"] = 2012
            for each in found["suffering"]:
                if each["name"] == "web-0":
                    each |= {
                        "since_unix_ns": central.now - 50 * 60 * S,
                        "suspect": "u-1",
                        "suspect_name": "",
                        "suspect_job": "",
                    }
            await route.fulfill(response=answer, json=found)

        await seen.page.route("**/v1/overview?*", more)
        await seen.page.reload()
        await seen.settled()
        assert await seen.page.inner_text("#now-scroll caption") == "VMs that suffer, the slowest first: 12 of 2,012"
        of_it = seen.page.get_by_role("link", name="web-0", exact=True)
        row = await seen.page.locator("#now-scroll tbody tr", has=of_it).inner_text()
        assert re.search(r"\t5\d min ago\tu-1\t", row), row
        said = seen.page.locator("#now-left")
        assert await said.inner_text() == "2,000 more VMs suffer: the list of VMs has all."
        await said.get_by_role("link").click()
        await seen.page.wait_for_function("() => location.hash === '#/vms?behaviour=victim'")
        await seen.settled()
        assert await seen.page.locator("#vms-scroll tbody tr").count() == 12


async def test_hosts_with_open_incidents_come_first_in_the_heat_map_of_a_large_fleet(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("")
        cells = seen.page.locator(".heat .cell")
        assert [(await each.get_attribute("title")).split(":")[0] for each in await cells.all()] == [
            f"node000{k}" for k in range(1, 7)
        ], "by name where all fit"
        assert await seen.page.locator("#heat-left").count() == 0

        async def first_page(route):
            answer = await route.fetch()
            found = await answer.json()
            found["hosts"] = [each for each in found["hosts"] if each["host"] in ("node0002", "node0003")]
            await route.fulfill(response=answer, json={**found, "next_page_token": "more"})

        await seen.page.route("**/v1/hosts?*", first_page)
        await seen.page.reload()
        await seen.settled()
        titles = [await each.get_attribute("title") for each in await cells.all()]
        assert [title.split(":")[0] for title in titles] == ["node0001", "node0005", "node0002", "node0003"]
        assert re.fullmatch(r"node0005: 6 VMs suffer, 1\.\d\dx", titles[1]), "connected, by data health"
        said = "2 hosts are not shown: those whose VMs suffer come first, then the others by name. All hosts."
        assert await seen.page.inner_text("#heat-left") == said
        assert await serious(seen.page) == []


async def test_data_health_has_refused_values_by_reason(central, browser):
    central.journal.stats.rejected_values["implausible"] = 7
    try:
        async with watched(browser, central.url) as seen:
            await seen.open("#/health")
            row = await seen.page.locator("#health-rejected-scroll tbody tr").inner_text()
            assert row.split("\t") == ["implausible", "values, taken as not known", "7"]
    finally:
        del central.journal.stats.rejected_values["implausible"]


async def saved(seen, table):
    async with seen.page.expect_download() as waiting:
        await seen.page.locator(f"#{table}-csv").click()
    return (await (await waiting.value).path()).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("view", "path", "rows", "first"),
    [
        ("incidents", "incidents", "incidents", "Incident,State,Host"),
        ("audit", "audit", "entries", "When,Who,Did"),
        ("silences", "silences", "silences", "Silence,State,Of"),
        ("hosts", "hosts", "hosts", "Host,State,"),
        ("jobs", "job-statistics", "statistics", "Job,Platform,"),
    ],
)
async def test_a_file_has_the_rows_of_all_pages(central, browser, view, path, rows, first):
    request = fleet_pb2.CreateSilenceRequest(
        host="node0001", end_unix_ns=central.now + 3600 * S, reason="test", operator="kim"
    )
    await central.fleet.answer("CreateSilence", request)
    asked, row = [], []

    async def two_pages(route):
        if "page_token=second" in route.request.url:
            asked.append(route.request.url)
            await route.fulfill(json={rows: row, "next_page_token": ""})
            return
        answer = await route.fetch()
        found = await answer.json()
        row[:] = found[rows][:1]
        await route.fulfill(response=answer, json={**found, rows: row, "next_page_token": "second"})

    async with watched(browser, central.url) as seen:
        await seen.page.route(f"**/v1/{path}?*", two_pages)
        await seen.open(f"#/{view}")
        lines = await saved(seen, view)
        assert lines[0].startswith(first) and len(lines) == 3, lines
        assert len(asked) == 1 and "page_size=1000" in asked[0]


async def test_a_file_of_too_many_rows_has_the_first_ones_and_says_so(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/incidents")
        one = {"id": 1, "host": "h", "victims": [], "found_by": [], "first_unix_ns": S, "last_unix_ns": S}

        async def endless(route):
            await route.fulfill(json={"incidents": [one], "next_page_token": "more"})

        await seen.page.route("**/v1/incidents?*page_size=1000*", endless)
        assert len(await saved(seen, "incidents")) == 101
        assert await seen.page.inner_text("#incidents-csv") == "CSV: only the first 100 rows"


async def test_a_vms_versions_and_a_host_have_what_facts_say(central, browser):
    at = central.now - 600 * S
    vm = agent_pb2.VmFacts(
        unix_ns=at, vm=vm_id(0), name="web-0", job="web", owner="team-web", manager="libvirt", numa_nodes=[0, 1]
    )
    host = agent_pb2.HostFacts(unix_ns=at, cpus=64, memory_bytes=256 << 30, manager="libvirt", labels={"rack": "r7"})
    for k in range(2):
        host.caches.add(first_cpu=32 * k, cpus=32, size_bytes=64 << 20)
    host.network_cards.add(name="eno1", bits_per_s=25 * 10**9)
    host.network_cards.add(name="eno2")
    for k in range(10):
        host.disks.add(name=f"nvme{k}", size_bytes=2 << 40, rotational=k == 0)
    central.fleet.facts.take(
        [
            FactRow("node0001", vm_id(0), at, vm.SerializeToString()),
            FactRow("node0001", "", at, host.SerializeToString()),
        ]
    )
    async with watched(browser, central.url) as seen:
        await seen.open(f"#/vm/{vm_id(0)}")
        heads = await seen.page.locator("#vm-versions-scroll thead th").all_inner_texts()
        row = await seen.page.locator("#vm-versions-scroll tbody tr").first.locator("th, td").all_inner_texts()
        shown = dict(zip(heads, row, strict=True))
        assert [shown[name] for name in ("NUMA nodes", "Owner", "Manager")] == ["0, 1", "team-web", "libvirt"]
        assert await serious(seen.page) == []
        await seen.open("#/host/node0001")
        said = [" ".join(text.split()) for text in await seen.page.locator(".facts > div").all_inner_texts()]
        assert "Size 64 CPUs, 256.0 GiB" in said
        assert "LLC domains 2 x 64.0 MiB of 32 CPUs" in said
        assert "Network cards eno1 25.0 Gbit/s, eno2 without a link" in said
        disks = ["nvme0 2.0 TiB (rotates)", *(f"nvme{k} 2.0 TiB" for k in range(1, 8)), "2 more"]
        assert f"Disks {', '.join(disks)}" in said
        assert "Manager libvirt" in said
        assert await serious(seen.page) == []


async def test_jobs_and_projects_whose_vms_are_all_gone_are_found(central, browser):
    at = central.now - 7200 * S
    rows = []
    for gone in (False, True):
        facts = agent_pb2.VmFacts(unix_ns=at + gone, vm="g", name="old", job="Mailer", project="Post", gone=gone)
        rows.append(FactRow("node0002", "g", facts.unix_ns, facts.SerializeToString()))
    central.fleet.facts.take(rows)
    async with watched(browser, central.url) as seen:
        await seen.open("")
        options = seen.page.get_by_role("option")
        await seen.page.locator("#search").fill("post")
        await options.first.wait_for()
        assert await options.all_inner_texts() == [
            "Post project, its VMs are gone", "old VM, gone of job Mailer last on node0002"
        ]  # fmt: skip
        await options.first.click()
        await seen.page.wait_for_function("() => location.hash === '#/incidents?project=Post'")
        await seen.page.locator("#search").fill("mailer")
        await seen.page.get_by_role("option", name="Mailer job, its VMs are gone").click()
        await seen.page.wait_for_function("() => location.hash.startsWith('#/job/Mailer')")
        await seen.settled()
        assert await seen.page.inner_text("h1") == "Job Mailer"
        assert await seen.page.locator("main .problem").count() == 0
        assert await serious(seen.page) == []
