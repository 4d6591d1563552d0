"""What the fleet page says in a real browser: of charts, effects, plans, and questions that cannot be answered."""

import json
import math
import re
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from central.journal.tables import HostRecord
from central.validation.triggers import TriggerRow
from tests.support.browser import chromium, serious, watched
from tests.support.page_fleet import PageCentral, S, Size
from whitepanda.v1 import agent_pb2

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROBLEM = "main .problem"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def central(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("one"), Size(vms_per_host=12)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def empty(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("none"), Size(hosts=0)) as found:
        yield found


LEGENDS = """() => [...document.querySelectorAll(".chart")].map((chart) => Object.fromEntries(
    [...chart.querySelectorAll("tr.u-series")].slice(1).map((row) => [
        row.querySelector(".u-label").textContent,
        getComputedStyle(row.querySelector(".u-marker")).borderTopColor,
    ])))"""


async def test_a_vm_has_its_colour_and_its_box_in_every_chart_and_victims_are_drawn(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/host/node0001")
        titles = await seen.page.locator("figcaption").all_inner_texts()
        assert titles[0].startswith("CPI, beside its own baseline\nSteps of 20 s; 6 VMs, each beside its own median")
        assert [title.split("\n")[0] for title in titles[2:]] == [
            "CPU usage, its VMs in all",
            "Memory, its VMs in all",
            "LLC occupancy, its VMs in all",
            "Memory bandwidth, its VMs in all",
            "CPU pressure, mean of its VMs",
        ]
        by_cpi, by_usage, *_ = await seen.page.evaluate(LEGENDS)
        assert by_cpi == by_usage and len(set(by_cpi.values())) == 6
        rows = seen.page.locator("#host-vms-scroll tbody tr")
        slowest = await seen.page.locator(".verdict a[href^='#/vm/']").first.inner_text()
        assert await rows.first.locator("th").inner_text() == slowest and slowest in by_cpi
        checked = rows.filter(has=seen.page.locator("input:checked")).locator("th")
        assert set(await checked.all_inner_texts()) == set(by_cpi)
        # Who clears a box has the others still, each in one colour.
        first = next(iter(by_usage))
        await seen.page.get_by_label(f"Draw {first}", exact=True).uncheck()
        await seen.page.wait_for_function("() => location.hash.includes('vms=')")
        await seen.settled()
        again, *_ = await seen.page.evaluate(LEGENDS)
        assert set(again) == set(by_cpi) - {first} and len(set(again.values())) == len(again)
        heads = {
            await head.inner_text(): await head.get_attribute("title")
            for head in await seen.page.locator("#host-vms-scroll thead button").all()
        }
        assert heads["CPI / job's"].startswith("mean CPI in this time / its job's")
        assert await serious(seen.page) == []


def report(central, host, ago_s, number, **changes):
    """Have a host report what its own analysis alone found; `changes` may say that it is over."""
    at = central.now - ago_s * S
    nan = math.nan
    reported = agent_pb2.Trigger(unix_ns=at, slot_ns=60 * S, mn_cpi=nan, mn_cpi_threshold=nan, found_by=[1])
    unknown = {"cpi": nan, "n_cpi": nan, "threshold_cpi": nan}
    reported.victims.add(
        vm="v", name="web-1", job="web", slow_down=agent_pb2.Degradation(ratio=1.52, low=1.31, high=1.78), suspect="s",
        **unknown,
    )  # fmt: skip
    reported.victims.add(vm="w", name="db-1", job="db", **unknown)  # nobody is suspected of it
    reported.suspects.add(vm="s", name="scan-1", job="scan", coefficient=nan, score=nan, inflicts=True)
    if changes.get("ended"):
        reported = agent_pb2.Trigger(unix_ns=at, ended=True)
    row = TriggerRow(host, "spool", number, 0, host, at, reported.SerializeToString())
    central.store.take([row], gap_ns=900 * S, oldest_unix_ns=0)


async def test_the_overview_says_who_suffers_by_how_much_and_from_whom(tmp_path, browser):
    async with PageCentral(tmp_path, Size(slots=0)) as central, watched(browser, central.url) as seen:
        await seen.open("")
        assert "No contention now." in await seen.page.inner_text("main")
        report(central, "node0001", 60, 1)
        report(central, "other", 30, 1)
        await seen.page.wait_for_selector("#now-scroll tbody tr >> nth=3")
        rows = await seen.page.locator("#now-scroll tbody tr").all_inner_texts()
        assert len(rows) == 4
        assert re.match(r"web-1\s+1\.52x \[1\.31, 1\.78\]\s+\d+ s ago\s+scan-1 of job scan\s+\w+", rows[0])
        assert re.match(r"db-1\s+\S\s*not known\s+\d+ s ago\s+nobody\s+\w+", rows[2])
        await seen.open("#/incident/1")
        said = await seen.page.inner_text(".verdict")
        assert said == (
            "● open · 2 VMs suffer on node0001; the slowest is web-1, 1.52x [1.31, 1.78]; first suspect scan-1 of job "
            "scan."
        )
        assert "by the host's own analysis" in await seen.page.inner_text(".facts")
        heads = await seen.page.locator("#incident-victims-scroll thead button").all_inner_texts()
        assert heads[2:4] == ["Slow-down now", "Worst slow-down"]
        assert "NaN" not in await seen.page.inner_text("main")
        assert await seen.page.locator("#incident-victims-scroll tbody th").all_inner_texts() == ["web-1", "db-1"]
        assert await serious(seen.page) == []
        await seen.open("#/host/node0001")
        assert await seen.page.inner_text(".verdict") == said
        # Over, and said so at once; then a host goes, of which nothing is known.
        report(central, "node0001", 20, 2, ended=True)
        report(central, "other", 20, 2, ended=True)
        await seen.open("")
        assert "No contention now." in await seen.page.inner_text("main")
        central.journal.note_host(HostRecord("gone", "", "0.1.0", 2, "boot", central.now - 9000 * S))
        central.fleet.parts.incidents_error = lambda: "the disk is full"
        await seen.page.reload()
        await seen.settled()
        text = await seen.page.inner_text("main")
        assert "No contention now." not in text
        assert "No contention on the hosts that report." in text
        assert (
            "Nothing is known now of 1 host, late or gone. Central cannot record what hosts report: the disk is full."
            in text
        )


EFFECTS = """async () => {
    const { effect } = await import("/page/remedy.js");
    const cut = "at least: nCPI is cut at 3";
    return [
        effect({ signal: "mn_cpi", before: 3, after: 0.95, low: null, high: null, threshold: 1,
                 unknown_because: cut }, true),
        effect({ signal: "mn_cpi", before: 2.9, after: 1.9, low: 1.8, high: 2, threshold: 2, unknown_because: "" }),
        effect({ signal: "degradation", before: 1.7, after: null, low: null, high: null, threshold: null,
                 unknown_because: "nobody knows" }),
    ];
}"""


async def test_effects_do_not_contradict_themselves(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/incident/1")
        assert await seen.page.evaluate(EFFECTS) == [
            (
                "mnCPI 3.00 or more now, 0.95 or more then; contention begins at 1.00. nCPI is cut at 3; more may be "
                "needed"
            ),
            "mnCPI 2.90 now, 1.90 (1.80 to 2.00) then; contention begins at 2.00",
            "slow-down 1.70 now, not known what then. nobody knows",
        ]
        assert "1 incident on 1 host" in await seen.page.inner_text(".facts")

        async def cut(route):
            answer = await route.fetch()
            found = await answer.json()
            cap, *_, nothing = found["incident"]["recommendations"]
            assert nothing["action"] == "nothing"
            cap["effect"] |= {"low": None, "high": None, "unknown_because": "at least: nCPI is cut at 3"}
            await route.fulfill(response=answer, json=found)

        await seen.page.route("**/v1/incidents/1", cut)
        await seen.page.reload()
        await seen.settled()
        await seen.page.locator("#more-actions summary").click()
        *_, last = await seen.page.locator(".action").all_inner_texts()
        assert re.search(
            r"do nothing\s+Expected: mnCPI 2\.90 or more now, 2\.90 or more then; contention begins at 2\.00", last
        )


FOUND = """async (behaviours) => {
    const { found } = await import("/page/words.js");
    const degradation = { ratio: 1.57, low: 1.23, high: 2 };
    const events = [...behaviours.map((behaviour) => ({ behaviour, degradation })), { behaviour: "steady" },
        { behaviour: "victim", degradation: { ...degradation, model: "cpi" } }];
    return events.map((event) => found(event).textContent);
}"""


async def test_the_slow_down_of_an_event_that_ends_an_episode_is_what_it_was_at_worst(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/hosts")
        words = ["victim", "affected", "steady", "inflicting", "unknown"]
        assert await seen.page.evaluate(FOUND, words) == [
            "victim 1.57x [1.23, 2.00]",
            "affected 1.57x [1.23, 2.00]",
            "steady; was 1.57x [1.23, 2.00] at worst",
            "inflicting; was 1.57x [1.23, 2.00] at worst",
            "unknown; was 1.57x [1.23, 2.00] at worst",
            "steady",
            "victim 1.57x CPI [1.23, 2.00]",
        ]


async def test_what_the_columns_of_hosts_and_of_their_vms_hold(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/hosts")
        head = seen.page.locator("#hosts-scroll thead button", has_text="24 h")
        assert await head.inner_text() == "Reports, 24 h"
        assert await head.get_attribute("title") == "slots in which VMs suffered, in the last 24 hours"
        await seen.open("#/host/node0001")
        heads = await seen.page.locator("#host-vms-scroll thead button").all_inner_texts()
        ratio, sensitive = heads.index("CPI / job's"), heads.index("Latency-sensitive")
        for row in await seen.page.locator("#host-vms-scroll tbody tr").all():
            cells = row.locator("th, td")
            if await cells.nth(sensitive).inner_text() == "yes":
                assert re.fullmatch(r"\d\.\d\dx", await cells.nth(ratio).inner_text())
                continue
            why = cells.nth(ratio).locator("span[title]")
            assert await why.get_attribute("title") == "not latency-sensitive: its CPI says nothing of a slow-down"
            assert "not known" not in await cells.nth(ratio).text_content()


async def test_on_a_telephone_the_first_screen_says_who_suffers_from_whom_and_what_to_do(central, browser):
    async with watched(browser, central.url, viewport={"width": 400, "height": 800}) as seen:
        await seen.open("")
        first = seen.page.locator("#now-scroll tbody tr").first
        box = await first.bounding_box()
        assert box["y"] + box["height"] < 400, "half of the screen"
        said = await first.inner_text()
        for part in ("web-0", "1.59x", "ago", "batch-scan-3", "node0001", "cap the CPU of batch-scan-3 to 1.00 cores"):
            assert part in said, part
        assert await seen.page.evaluate("() => document.documentElement.scrollWidth") == 400
        cut = "cells => cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)"
        assert await seen.page.locator("#now-scroll tbody :is(th, td)").evaluate_all(cut) == []
        assert await serious(seen.page) == []


RANKED = """async () => {
    const { suffering } = await import("/page/views/host.js");
    const vms = (...names) => names.map((vm) => ({ vm }));
    return [...suffering({ incidents: [
        { open: false, victims: vms("old") },
        { open: true, slowest_now: { vm: "b" }, victims: vms("a", "b", "c") },
    ] })];
}"""


async def test_victims_of_an_open_incident_come_first_the_slowest_now_before_others(central, browser):
    async with watched(browser, central.url) as seen:
        await seen.open("#/host/node0001")
        assert await seen.page.evaluate(RANKED) == [["b", 0], ["a", 1], ["c", 2], ["old", 3]]


async def test_a_plan_says_why_jobs_are_left_out(central, browser):
    reported = {
        "metric": "ipc", "jobs": [], "instances": 8, "cost": 0.5, "is_optimal": True, "gap_ratio": 0,
        "expected_margin_percent": 2, "metric_mean": 1, "coverage": 0.9, "since_unix_ns": S, "jobs_too_few": 0,
        "jobs_without_spread": 1,
    }  # fmt: skip

    async def answer(route):
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(reported))

    async with watched(browser, central.url) as seen:
        await seen.page.route("**/v1/observation-plan?*", answer)
        for few, said in (
            (0, "1 with one VM, or VMs that are all alike"),
            (3, "3 with fewer than 4 VMs, 1 with one VM, or VMs that are all alike"),
        ):
            reported["jobs_too_few"] = few
            await seen.open(f"#/upgrade?margin={2 + few}")
            left = seen.page.locator(".facts div", has_text="Jobs left out").locator("dd")
            assert await left.inner_text() == said


async def test_an_empty_central_says_so(empty, browser):
    async with watched(browser, empty.url) as seen:
        for link in ("#/upgrade?margin=2", "#/upgrade?by=hosts&new=nope"):
            await seen.open(link)
            assert (await seen.page.inner_text(PROBLEM)).startswith("Not found. no data yet: "), link


async def test_questions_that_cannot_be_are_answered_with_value_and_remedy(central, browser):
    soon = (datetime.now(UTC) + timedelta(days=100)).strftime("%Y-%m-%dT%H:%M")
    async with watched(browser, central.url, timezone_id="UTC") as seen:
        for link, said in (
            (f"by=time&new={soon}", f"{soon} is in the future; give the moment of a change"),
            ("by=time&new=1970-01-01", "1970-01-01 is too early"),
            ("by=time&new=2026-03-01&current=node1", "has node1; by time the day before is compared"),
            ("by=hosts&new=nope", "nothing is known of host 'nope'"),
            ("by=foo&new=node0001", "by=foo is no way to compare; it is one of hosts, platform, time"),
            ("by=platform&new=P", "or platform” is empty; name the platform to compare P with"),
            ("by=platform&new=P&current=Xeon+Gold+6430", "no host of it was measured from"),
            ("platform=P", "“Margin, %” is empty; give the half width of the interval, such as 2"),
        ):
            await seen.open(f"#/upgrade?{link}")
            text = await seen.page.inner_text(PROBLEM)
            assert said in text, link
            assert len(re.findall("“New: hosts", text)) <= 1, "two things have one name"


async def test_an_empty_form_says_what_is_missing(central, browser):
    async with watched(browser, central.url) as seen:
        for view, button, said in (
            ("upgrade", "Plan", "“Margin, %” is empty"),
            ("upgrade", "Compare", "since when” is empty; name the hosts that have the change"),
            ("placement", "Rank hosts", "give either the VM's job, or its loading"),
            ("runtime", "Predict", "name the job"),
        ):
            await seen.open(f"#/{view}")
            assert await seen.page.locator(PROBLEM).count() == 0
            await seen.page.get_by_role("button", name=button, exact=True).click()
            await seen.page.wait_for_selector(PROBLEM)
            assert said in await seen.page.inner_text(PROBLEM)
        await seen.open("#/jobs")
        await seen.page.get_by_role("button", name="Open", exact=True).click()
        assert await seen.page.evaluate("() => document.activeElement.matches('#field-job:invalid')")
