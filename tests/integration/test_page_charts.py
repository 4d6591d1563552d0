"""What the fleet page's charts draw, in a real browser: baselines, intervals, and VMs that are left out."""

import re

import pytest
import pytest_asyncio

from central.history.queries import METRICS
from tests.support.browser import chromium, legend, serious, watched
from tests.support.page_fleet import PageCentral, Size, vm_id

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

EIGHT = (
    "slow_down_ratio,cpi,cpu_usage_cores,cycles,instructions,memory_stall_ratio,llc_occupancy_bytes,"
    "pressure_io_some_ratio"
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def central(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("one"), Size(vms_per_host=12)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def crowded(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("crowded"), Size(vms_per_host=150)) as found:
        yield found


def times(central, minutes=60):
    """Return a link's time: so long, up to the end of the last window, however long the tests take."""
    return f"from={central.now // 10**6 - minutes * 60_000}&to={central.now // 10**6}"


async def drag(seen, title, first, last):
    """Drag over a part of a chart's width, and wait for the answer."""
    before = await seen.page.evaluate("() => location.hash")
    plot = seen.page.get_by_role("img", name=title).locator(".u-over")
    await plot.scroll_into_view_if_needed()
    box = await plot.bounding_box()
    y = box["y"] + box["height"] / 2
    await seen.page.mouse.move(box["x"] + box["width"] * first, y)
    await seen.page.mouse.down()
    await seen.page.mouse.move(box["x"] + box["width"] * (first + last) / 2, y, steps=4)
    await seen.page.mouse.move(box["x"] + box["width"] * last, y, steps=4)
    await seen.page.mouse.up()
    await seen.page.wait_for_function("before => location.hash !== before", arg=before)
    await seen.settled()


async def test_who_zooms_into_an_incident_still_sees_victims_above_their_baselines(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open(f"#/host/node0001?{times(central, 15)}")
        await drag(seen, "CPI, beside its own baseline", 0.80, 0.95)
        title = "CPI, beside its own baseline. Steps of"
        said = await seen.page.get_by_role("img", name=title).get_attribute("aria-label")
        assert "each beside its own median in the hour before the first incident." in said
        beside = await legend(seen, title, 0.6)
        assert {"web-0", "orders-db-1", "cache-2"} <= set(beside)
        for victim in ("web-0", "orders-db-1", "cache-2", "web-6"):
            assert 1.3 < float(beside[victim]) < 1.9, "1.6 times as slow, give or take the noise"
        assert await serious(seen.page) == []
        await seen.open(f"#/incident/1?{times(central, 15)}")
        await drag(seen, "Victims: CPI, beside the hour before the incident", 0.75, 0.95)
        beside = await legend(seen, "Victims: CPI, beside the hour before the incident", 0.5)
        assert 1.3 < float(beside["web-0"]) < 1.9
        assert "the victims' CPI" not in await seen.page.inner_text("main")
        assert await serious(seen.page) == []
        assert (seen.errors, seen.foreign) == ([], [])


async def test_a_victim_without_a_calm_step_is_not_drawn_beside_its_disturbed_median(tmp_path, browser):
    async with PageCentral(tmp_path, Size(windows=4)) as central, watched(browser, central.url) as seen:
        await seen.open(f"#/host/node0001?{times(central)}")
        said = await seen.page.get_by_role("img", name="CPI, beside its own baseline").get_attribute("aria-label")
        assert said.endswith("Without a baseline, or with 0, not drawn: web-0, orders-db-1, cache-2.")
        assert set(await legend(seen, "CPI, beside its own baseline", 0.98)) == {"Time", "video-encode-4"}
        assert await serious(seen.page) == []
        await seen.open(f"#/host/node0001?{times(central)}&vms={vm_id(0)}")
        expected = "Not known here: CPI, beside its own baseline (no step without an incident, or 0 there)"
        assert expected in await seen.page.inner_text("main")
        await seen.open(f"#/host/node0001?{times(central)}&as=values")
        assert "web-0" in await legend(seen, "CPI. Steps of", 0.98)
        await seen.open("#/incident/1")
        expected = "the victims' CPI beside the hour before the incident, of which nothing is known"
        assert expected in await seen.page.inner_text("main")


CALM = """async () => {
    const { usual, relative } = await import("/page/baseline.js");
    const vms = (...cpi) => [{ vm: "v", values: { cpi } }];
    const incident = { first_unix_ns: 900e9, last_unix_ns: 1200e9, victims: [{ vm: "v" }] };
    const earlier = { first_unix_ns: 360e9, last_unix_ns: 420e9, victims: [{ vm: "v" }] };
    const seconds = [0, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600];
    const known = vms(1, null, 9, 9, 9, 9, 9, 9, 3, 2, 9);
    const baseline = { step: 60e9, before: 600, seconds, vms: known, incidents: [earlier] };
    const series = { step: 60e9, seconds: [540, 600, 1140, 1260], vms: vms(4, 8, 8, 6) };
    const all = [incident];
    const of = (vm, name, data) => usual(vm, name, { series, ...data }, all);
    return [of("v", "cpi", { baseline }), of("v", "cpi", {}), of("v", "gips", { baseline }),
        of("w", "cpi", { baseline }),
        relative([3, null], { value: 2 }), relative([3], { value: 0 }), relative([3], { value: null })];
}"""


async def test_what_is_usual_is_of_calm_steps_only(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open()
        # Of the hour before: 1, 2 and 3, without another incident there (which began up to 300 s before its first
        # moment) and without what is after. Of the time shown: 4 before and 6 after the incident.
        assert await seen.page.evaluate(CALM) == [
            {"value": 2, "isBefore": True},
            {"value": 4, "isBefore": False},
            {"value": None, "isBefore": False},
            {"value": None, "isBefore": False},
            [1.5, None],
            [],
            [],
        ]


async def test_a_victim_on_a_host_of_150_vms_is_drawn_whatever_its_cpu_and_metrics(crowded, browser):
    async with watched(browser, crowded.url) as seen:
        await seen.open(f"#/host/node0001?{times(crowded)}&metrics={EIGHT}")
        asked = [
            url for _, url in seen.statuses if "/v1/series" in url and "metrics=cycles" in url and "points=180" in url
        ]
        assert asked and all(url.count("&vms=") + url.count("?vms=") == 8 for url in asked), "of those drawn only"
        titles = await seen.page.locator("figcaption").all_inner_texts()
        assert {"Cycles, beside its own baseline", "Slow-down"} <= {title.split("\n")[0] for title in titles}
        beside = await legend(seen, "CPI, beside its own baseline", 0.98)
        assert len(beside) == 9 and float(beside["web-0"]) > 1.3
        rows = seen.page.locator("#host-vms-scroll tbody tr")
        assert await rows.count() == 100
        assert await rows.first.locator("th").inner_text() == "web-0"
        assert re.fullmatch(r"\d\.\d\d", await rows.first.locator("td").nth(3).inner_text()), "its CPI is known"
        said = await seen.page.inner_text("#host-left-out")
        assert said.startswith("24 more VMs are in incidents or chosen, but not drawn: at most 8 are.")
        assert await serious(seen.page) == []
        # One of which the UUID is beyond the first pages, and one that is not there.
        await seen.open(f"#/host/node0001?{times(crowded)}&metrics={EIGHT}&vms={vm_id(147)},{vm_id(200)}")
        assert set(await legend(seen, "CPI, beside its own baseline", 0.98)) == {"Time", "batch-scan-147"}
        assert await seen.page.inner_text("#host-left-out") == (
            "1 VM of those chosen is not in the table of VMs of this time."
        )
        assert (seen.errors, seen.foreign) == ([], [])


async def test_the_slow_down_has_its_interval(central, browser):
    async with watched(browser, central.url, viewport={"width": 400, "height": 800}) as seen:
        await seen.open(f"#/vm/{vm_id(0)}?{times(central)}&metrics=slow_down_ratio,cpi")
        caption = await seen.page.locator("figcaption").first.inner_text()
        assert caption.endswith("Shaded: incidents. Bands: intervals.")
        shown = await legend(seen, "Slow-down. Steps of", 0.98)
        assert set(shown) == {"Time", "web-0"}, "the ends are in its line"
        ratio, low, high = map(float, re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", shown["web-0"]).groups())
        assert (
            ratio > 1.3 and low == pytest.approx(0.9 * ratio, rel=0.01) and high == pytest.approx(1.2 * ratio, rel=0.01)
        )
        drawn = await seen.page.evaluate(BAND)
        assert drawn, "the band has its colour in the chart"
        assert re.fullmatch(r"\d\.\d+", (await legend(seen, "CPI. Steps of", 0.98))["web-0"])
        await seen.open(f"#/incident/1?{times(central)}")
        assert re.fullmatch(r"\S+ \[\S+, \S+\]", (await legend(seen, "Victims: slow-down", 0.97))["web-0"])
        for link in (f"#/vm/{vm_id(0)}", "#/incident/1", "#/host/node0001?metrics=slow_down_ratio,cpi"):
            await seen.open(link)
            assert await seen.page.evaluate("() => document.documentElement.scrollWidth") == 400, link
            assert await serious(seen.page) == [], link
        assert (seen.errors, seen.foreign) == ([], [])


#: Whether the first chart has pixels of a line's colour that shine through.
BAND = """() => {
    const canvas = document.querySelector(".chart canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let k = 0; k < data.length; k += 4) if (data[k + 3] === 0x26 && data[k + 2] > data[k] + 100) return true;
    return false;
}"""


async def test_every_metric_of_windows_but_the_verdict_can_be_chosen(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open(f"#/vm/{vm_id(0)}?metrics=running_ratio,cycles")
        await seen.page.locator("#metric-choice summary").click()
        boxes = await seen.page.locator("#metric-choice input").evaluate_all(
            "all => all.map((each) => each.id.slice(7))"
        )
        ends = {"slow_down_low_ratio", "slow_down_high_ratio"}  # which come with the ratio
        assert set(METRICS) - set(boxes) == ends | {"verdict"} and set(boxes) <= set(METRICS)
        await seen.page.get_by_label("Instructions", exact=True).check()
        await seen.page.wait_for_function("() => location.hash.includes('instructions')")
        await seen.settled()
        titles = [text.split("\n")[0] for text in await seen.page.locator("figcaption").all_inner_texts()]
        assert titles == ["Cycles", "Instructions"]
        assert "Not known here: Counters ran" in await seen.page.inner_text("main")
