"""What people do on the fleet page, in a real browser: search, zoom, compare, acknowledge, silence, save as CSV."""

import asyncio
import re
import time

import pytest
import pytest_asyncio

from central.validation.facts import FactRow
from tests.support.browser import chromium, legend, serious, watched
from tests.support.page_fleet import PageCentral, S, Size, vm_id
from whitepanda.v1 import agent_pb2

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def central(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("some"), Size(hosts=20, vms_per_host=12)) as found:
        found.note_facts(range(240))
        yield found


async def hash_of(seen):
    return await seen.page.evaluate("() => location.hash")


async def test_a_vm_is_found_by_keyboard(central, browser):
    gone = agent_pb2.VmFacts(unix_ns=central.now - 7200 * S, vm="gone-1", name="old-mail", job="mail", project="post")
    central.fleet.facts.take([FactRow("node0002", "gone-1", gone.unix_ns, gone.SerializeToString())])
    async with watched(browser, central.url) as seen:
        await seen.open()
        await seen.page.keyboard.press("/")
        assert await seen.page.evaluate("() => document.activeElement.id") == "search"
        await seen.page.keyboard.type("web-1")
        options = seen.page.get_by_role("option")
        await options.first.wait_for()
        assert await options.first.get_attribute("aria-selected") == "true"
        texts = await options.all_inner_texts()
        assert any("VM of job web on node" in text for text in texts), texts
        assert await serious(seen.page) == []
        await seen.page.keyboard.press("ArrowDown")
        assert await options.nth(1).get_attribute("aria-selected") == "true"
        chosen = (await options.nth(1).inner_text()).split(" ")[0]
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_function("() => location.hash !== ''")
        await seen.settled()
        assert chosen in await seen.page.inner_text("h1")
        # A VM that is gone, by the pointer; then a text that nothing has.
        await seen.page.locator("#search").fill("old-m")
        await seen.page.get_by_role("option", name="old-mail VM, gone").click()
        await seen.page.wait_for_function("() => location.hash === '#/vm/gone-1'")
        await seen.page.locator("#search").fill("nothing like it")
        await seen.page.wait_for_selector("#search-hits:has-text('Nothing is called so')")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_function("() => location.hash === '#/vms?text=nothing+like+it'")
        await seen.settled()
        assert "No VM that runs is like that" in await seen.page.inner_text("main")
        await seen.page.locator("#search").fill("web")
        await options.first.wait_for()
        await seen.page.keyboard.press("Escape")
        assert not await seen.page.locator("#search-hits").is_visible()
        assert [error for error in seen.errors if "404" not in error] == []


async def test_the_list_of_vms_is_filtered_sorted_and_paged_by_central(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/vms")
        rows = seen.page.locator("#vms-scroll tbody tr")
        assert await rows.count() == 100
        assert await seen.page.inner_text("#vms-scroll caption") == "240 VMs"
        assert (await rows.first.inner_text()).startswith("web-96\t● suffers\t1.63x [1.43, 1.88]\t#3, ")
        await seen.page.get_by_role("button", name="CPU, cores").click()
        await seen.page.wait_for_function("() => location.hash === '#/vms?order=cpu&descending=true'")
        await seen.settled()
        header = seen.page.get_by_role("columnheader", name="CPU, cores")
        assert await header.get_attribute("aria-sort") == "descending"
        shown = [float(text) for text in await rows.locator("td:nth-child(8)").all_inner_texts()]
        assert shown == sorted(shown, reverse=True)
        await seen.page.get_by_role("link", name="Next 100").click()
        await seen.page.wait_for_function("() => location.hash.includes('page=')")
        await seen.settled()
        assert float(await rows.first.locator("td:nth-child(8)").inner_text()) <= shown[-1]
        await seen.page.get_by_label("Those that").select_option("inflicting")
        await seen.page.get_by_role("button", name="Show").click()
        await seen.page.wait_for_function("() => location.hash.includes('behaviour=inflicting')")
        await seen.settled()
        assert await rows.count() == 5
        assert await serious(seen.page) == []


async def test_a_zoom_asks_for_finer_steps_is_of_all_charts_and_survives_the_refresh(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open(f"#/vm/{vm_id(0)}")
        plot = seen.page.locator(".chart .u-over").first
        before = await seen.page.locator("figcaption").first.inner_text()
        box = await plot.bounding_box()
        y = box["y"] + box["height"] / 2
        await seen.page.mouse.move(box["x"] + box["width"] * 0.70, y)
        await seen.page.mouse.down()
        await seen.page.mouse.move(box["x"] + box["width"] * 0.80, y, steps=4)
        await seen.page.mouse.move(box["x"] + box["width"] * 0.95, y, steps=4)
        await seen.page.mouse.up()
        await seen.page.wait_for_function("() => /from=\\d+&to=\\d+/.test(location.hash)")
        await seen.settled()
        link = await hash_of(seen)
        since, until = (int(text) for text in re.search(r"from=(\d+)&to=(\d+)", link).groups())
        assert 3 * 60_000 < until - since < 20 * 60_000
        asked = [url for _, url in seen.statuses if "/v1/series" in url][-1]
        assert f"since_unix_ns={since}000000" in asked and f"until_unix_ns={until}000000" in asked
        after = await seen.page.locator("figcaption").first.inner_text()
        length = [int(re.search(r"Steps of (\d+) s", text)[1]) for text in (before, after)]
        assert length[1] < length[0], "finer"
        shown = await seen.page.inner_text("#span-shown")
        answers = len(seen.statuses)
        deadline = time.monotonic() + 20
        while len(seen.statuses) == answers and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        assert len(seen.statuses) > answers, "refreshed"
        await seen.settled()
        assert await hash_of(seen) == link and await seen.page.inner_text("#span-shown") == shown
        # The link alone shows the same; so does going back, and out by a button.
        await seen.page.reload()
        await seen.settled()
        assert await seen.page.inner_text("#span-shown") == shown
        await seen.page.get_by_role("button", name="Zoom out").click()
        await seen.page.wait_for_function(f"() => location.hash !== {link!r}")
        await seen.page.go_back()
        await seen.page.wait_for_function(f"() => location.hash === {link!r}")
        await seen.settled()
        assert await serious(seen.page) == []
        assert (seen.errors, seen.foreign) == ([], [])


async def test_metrics_are_chosen_and_a_vm_is_compared_with_another(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open(f"#/vm/{vm_id(0)}?metrics=cpi,disk_read_bytes_per_s")
        assert await seen.page.locator("figcaption").count() == 1
        assert "Not known here: Disk reads" in await seen.page.inner_text("main")
        await seen.page.locator("#metric-choice summary").click()
        await seen.page.get_by_label("CPU usage", exact=True).check()
        await seen.page.wait_for_function("() => location.hash.includes('cpu_usage_cores')")
        await seen.settled()
        assert await seen.page.locator("figcaption").count() == 2
        assert await seen.page.locator("#metric-choice").get_attribute("open") is not None, "it stays open"
        await seen.page.get_by_label("Beside").fill("web-6")
        await seen.page.get_by_role("button", name="Compare").click()
        await seen.page.wait_for_function("() => location.hash.includes('compare=')")
        await seen.settled()
        labels = await seen.page.locator(".chart").first.locator(".u-label").all_inner_texts()
        assert "web-0" in labels and len(labels) == 3, labels


async def test_a_vm_is_compared_with_the_same_time_of_the_day_before(central, browser):
    central.write_windows(ago_s=86_400)
    async with watched(browser, central.url) as seen:
        ends = central.now // 10**6  # in ms
        link = f"#/vm/{vm_id(0)}?from={ends - 3_600_000}&to={ends}&compare=yesterday&metrics=cpi,slow_down_ratio"
        await seen.open(link)
        assert await seen.page.inner_text("h1") == "VM web-0"
        for title in ("CPI. Steps of", "Slow-down. Steps of"):
            shown = await legend(seen, title, 0.98)
            assert list(shown) == ["Time", "web-0", "the day before"]
            ratios = [float(shown[label].split(" ")[0]) for label in ("web-0", "the day before")]
            assert ratios[0] > 1.3 * ratios[1], "it suffers now, and did not then"
        captions = await seen.page.locator("figcaption").all_inner_texts()
        assert len(captions) == 2 and all("; dashed: the day before. Shaded: incidents." in text for text in captions)
        assert (seen.errors, seen.foreign) == ([], [])


async def test_a_vms_name_alone_says_what_happened_when_by_whom_and_what_to_do(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/vm/web-0")
        story = await seen.page.inner_text(".story")
        said = r"It suffers now, 1\.59x \[1\.39, 1\.84\], since \d+ min ago on node0001, because of batch-scan-3"
        assert re.search(said, story), story
        assert "What to do: cap the CPU of batch-scan-3 to 1.00 cores. How" in story
        await seen.open("#/vm/batch-scan-3")
        assert "It is suspected of making others suffer" in await seen.page.inner_text(".story")


async def test_an_incident_is_acknowledged_noted_and_silenced_and_the_audit_has_it(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/incident/2")
        acknowledge = seen.page.get_by_role("form", name="Acknowledge")
        await acknowledge.get_by_label("Reason").fill("I look at it")
        await acknowledge.get_by_label("Your name").fill("kim")
        await acknowledge.get_by_role("button").click()
        await seen.page.wait_for_selector("main:has-text('Taken by kim (unverified)')")
        note = seen.page.get_by_role("form", name="Add note")
        assert await note.get_by_label("Your name").input_value() == "kim", "remembered"
        await note.get_by_label("Note").fill("capped <b>batch</b>")
        await note.get_by_role("button").click()
        await seen.page.wait_for_selector(".notes:has-text('capped <b>batch</b> kim (unverified)')")
        await seen.page.locator("#silence-this summary").click()
        silence = seen.page.get_by_role("form", name="Silence")
        assert await silence.get_by_label("Host").input_value() == "node0005"
        # What is wrong is said, and what was typed stays over refreshes.
        await silence.get_by_label("Host").fill("nowhere")
        await silence.get_by_label("Reason").fill("maintenance")
        await silence.get_by_role("button").click()
        await seen.page.wait_for_selector("#silence-said:has-text('Not done: no host')")
        await silence.get_by_label("Host").fill("node0005")
        await silence.get_by_label("Job").fill("")
        await silence.get_by_role("button").click()
        await seen.page.wait_for_selector("main:has-text('keeps it quiet')")
        assert await serious(seen.page) == []
        await seen.open("")
        await seen.page.locator("#now-all").click()
        quiet = seen.page.locator("#now-scroll tbody tr", has_text="node0005").first
        assert "silenced" in await quiet.inner_text()
        assert "node0005" not in await seen.page.locator("#now-scroll tbody tr").first.inner_text(), "after the others"
        await seen.open("#/silences")
        row = seen.page.locator("#silences-scroll tbody tr").first
        assert re.match(r"#1\t◌ in force\thost node0005\tmaintenance\tkim \(unverified\)", await row.inner_text())
        await row.get_by_role("button", name="End").click()
        await seen.page.wait_for_selector("#silences-scroll:has-text('ended by kim')")
        assert await serious(seen.page) == []
        await seen.open("#/audit")
        did = await seen.page.locator("#audit-scroll tbody td:nth-child(3)").all_inner_texts()
        assert did == ["ended a silence", "silenced", "noted", "acknowledged"]
        await seen.open("#/incident/2")
        assert "acknowledged" in await seen.page.inner_text("#incident-changes-scroll")


CSV = """async () => {
    const { csv } = await import("/page/csv.js");
    return csv([{ label: "a", value: (row) => row }], ["=1+1", 'x"y', null, 2]);
}"""


async def test_a_table_is_saved_as_csv(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/vms")
        async with seen.page.expect_download() as waiting:
            await seen.page.locator("#vms-csv").click()
        saved = await waiting.value
        assert saved.suggested_filename == "whitepanda-vms.csv"
        lines = (await saved.path()).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("VM,Now,Slow-down,Incident,Job,Project,Host,")
        assert len(lines) == 241, "all rows, not the page shown"
        assert re.search(r",\d{4}-\d\d-\d\dT[\d:.]+Z$", lines[1])
        assert await seen.page.evaluate(CSV) == 'a\r\n\'=1+1\r\n"x""y"\r\n\r\n2\r\n'


async def test_a_project_narrows_every_view(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/vms?project=shop")
        assert await seen.page.inner_text("#vms-scroll caption") == "80 VMs that match"
        assert "Project shop" in await seen.page.inner_text("#project")
        await seen.page.get_by_role("link", name="Hosts", exact=True).click()
        await seen.page.wait_for_function("() => location.hash === '#/hosts?project=shop'")
        await seen.page.get_by_role("link", name="All projects").click()
        await seen.page.wait_for_function("() => location.hash === '#/hosts'")
        await seen.open("#/host/node0001?project=shop")
        names = await seen.page.locator("#host-vms-scroll tbody th").all_inner_texts()
        assert sorted(names) == ["batch-scan-3", "batch-scan-9", "web-0", "web-6"], "every third of twelve"
        assert "CPU usage, its VMs in all\n4 VMs." in await seen.page.inner_text("main")
        await seen.open("#/?project=shop")
        victims = await seen.page.locator("#now-scroll tbody th").all_inner_texts()
        assert victims and set(victims) <= {"web-0", "web-6"}, "of the victims on the same host only its own"
        tiles = [" ".join(text.split()) for text in await seen.page.locator(".tiles li").all_inner_texts()]
        assert {"20 hosts connected", "80 VMs running", "2 jobs", "1 open incident"} <= set(tiles)
        await seen.open("#/hosts?project=shop")
        assert len(await seen.page.locator("#hosts-scroll tbody th").all_inner_texts()) == 20
        await seen.open("#/jobs?project=shop")
        assert set(await seen.page.locator("#jobs-scroll tbody th").all_inner_texts()) == {"web", "batch-scan"}
        await seen.open("#/?project=nobody")
        assert "No VM of this project runs now" in await seen.page.inner_text("main")


async def test_a_view_of_one_thing_is_of_the_project_or_not_found(central, browser):
    async with watched(browser, central.url) as seen:
        asked = []
        seen.page.on("request", lambda request: asked.append(request.url))
        for link, table, names in (
            (f"#/vm/{vm_id(0)}?project=shop", "#vm-incidents-scroll", {"#1"}),
            ("#/incident/1?project=shop", "#incident-victims-scroll", {"web-0", "orders-db-1", "cache-2", "web-6"}),
            ("#/job/batch-scan?project=shop", "#job-hosts-scroll", {f"node{k + 1:04d}" for k in range(20)}),
            ("#/host/node0001?project=shop", "#host-vms-scroll", {"batch-scan-3", "batch-scan-9", "web-0", "web-6"}),
        ):
            await seen.open(link)
            found = set(await seen.page.locator(f"{table} tbody th").all_inner_texts())
            assert found >= names, (link, found)
        for link in (f"#/vm/{vm_id(1)}", "#/vm/orders-db-1", "#/job/cache", "#/host/node0001", "#/incident/1"):
            other = "shop" if link[2] in "vj" else "nobody"
            await seen.open(f"{link}?project={other}")
            assert (await seen.page.inner_text("main .problem")).startswith("Not found."), link
        await seen.open("#/silences?project=nobody")
        assert "Nothing is silenced." in await seen.page.inner_text("main")
        await seen.open("#/audit?project=nobody")
        assert "Nobody has acknowledged" in await seen.page.inner_text("main")
        questions = [url for url in asked if "/v1/" in url]
        # An incident is shown whole, with the series of all that is in it, and of the hour before.
        whole = [url for url in questions if "project" not in url]
        assert len(whole) == 3, whole
        assert [f"vms={vm_id(1)}" in url for url in whole if "/v1/series" in url] == [True, True]
        assert ["host=node0001" in url for url in whole if "/v1/incidents?" in url] == [True]
        assert not any("vm-facts" in url for url in questions)
        assert [error for error in seen.errors if "404" not in error] == []
