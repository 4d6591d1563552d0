"""The fleet page in a real browser: every view with 0, 1 and 1,000 hosts, live, by keyboard, and what goes wrong."""

import asyncio
import re
import shlex
import time
from datetime import datetime
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import pytest_asyncio

from central.authorisation.roles import Access
from central.journal.tables import HostRecord
from central.page import files
from central.validation.triggers import TriggerRow
from central.web.server import HttpApi
from tests.support.browser import chromium, serious, watched
from tests.support.page_fleet import PageCentral, S, Size, vm_id
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

#: Link of each view, its heading, and what it shows of a fleet and of nothing.
VIEWS = (
    ("", "Who suffers now", "Top antagonists", "No host has connected yet"),
    ("#/vms", "VMs", "web-0", "No VM runs, or central has not read the first windows yet"),
    ("#/hosts", "Hosts", "node0001", "No host has connected yet"),
    ("#/host/node0001", "Host node0001", "The host in all", "nothing is known of host 'node0001'"),
    (f"#/vm/{vm_id(0)}", "VM web-0", "What its host found", "nothing is known of VM"),
    ("#/jobs", "Jobs", "batch-scan", "No version of statistics has been built yet"),
    ("#/job/batch-scan", "Job batch-scan", "Coefficient over versions", "nothing is known of job 'batch-scan'"),
    ("#/incidents", "Incidents", "batch-scan", "No host has reported contention yet"),
    ("#/incident/1", "Incident 1", "Evidence", "no incident 1;"),
    ("#/silences", "Silences", "New silence", "Nothing is silenced"),
    ("#/audit", "Audit", "Nobody has acknowledged", "Nobody has acknowledged"),
    ("#/upgrade?margin=20", "Upgrade: A/B evaluation", "VMs to observe", "Did it help?"),
    ("#/placement?job=web", "Placement what-if", "Stretched by", "no VM of job 'web' was seen"),
    ("#/runtime?job=web&platform=p", "Runtime what-if", "no model of runtimes", "no model of runtimes"),
    ("#/health", "Data health", "Newest segment", "The lake is empty"),
)  # fmt: skip
NOT_ANSWERED = re.compile(r"Failed to load resource: the server responded with a status of (400|404|410|503)")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def one(tmp_path_factory):
    async with PageCentral(tmp_path_factory.mktemp("one"), Size(vms_per_host=24)) as central:
        yield central


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thousand(tmp_path_factory):
    size = Size(hosts=1000, windows=5, jobs=60, contended=20, slots=2)
    async with PageCentral(tmp_path_factory.mktemp("thousand"), size) as central:
        yield central


async def look(seen, link, heading, expected):
    await seen.open(link)
    assert await seen.page.inner_text("h1") == heading
    assert await seen.page.title() == f"{heading} · whitepanda"
    assert expected in await seen.page.inner_text("main")
    assert [error for error in seen.errors if not NOT_ANSWERED.match(error)] == []
    assert seen.foreign == []


async def test_every_view_without_a_host(tmp_path, browser):
    async with PageCentral(tmp_path, Size(hosts=0)) as central, watched(browser, central.url) as seen:
        for link, heading, _, empty in VIEWS:
            await look(seen, link, heading.replace("web-0", vm_id(0)), empty)
            assert await serious(seen.page) == [], link


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_every_view_of_one_host(one, browser, colours):
    async with watched(browser, one.url, color_scheme=colours) as seen:
        for link, heading, expected, _ in VIEWS:
            await look(seen, link, heading, expected)
            assert await serious(seen.page) == [], link


async def test_every_view_of_a_thousand_hosts(thousand, browser):
    async with watched(browser, thousand.url) as seen:
        for link, heading, expected, _ in VIEWS:
            await look(seen, link, heading, expected)
        await seen.open("#/hosts")
        rows = seen.page.locator("tbody tr")
        assert await rows.count() == 200
        await seen.page.get_by_role("button", name="Show all").click()
        assert await rows.count() == 1000
        await seen.page.get_by_role("searchbox").fill("node099")
        assert await rows.count() == 10
        assert "10 of 1,000 match" in await seen.page.inner_text("#hosts-note")
        await seen.open("")
        await seen.page.wait_for_function("() => document.body.innerText.includes('6,000')")
        assert await serious(seen.page) == []


async def test_a_view_follows_what_happens_and_the_focus_stays(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open("#/incidents?suspect_job=live")
        assert "no job 'live' is known here" in await seen.page.inner_text("main")
        await seen.page.locator("#field-host").focus()
        report(one, "live", 1)
        await seen.page.wait_for_selector("tbody tr")
        assert await seen.page.evaluate("() => document.activeElement.id") == "field-host"
        report(one, "live", 2)
        await seen.page.wait_for_function("() => document.querySelector('tbody').innerText.includes('2 min')")


def report(central, suspect, number, at=None):
    """A report of a host of its own, with a suspect of this job."""
    at = at or central.now + number * 120 * S
    reported = agent_pb2.Trigger(unix_ns=at, slot_ns=60 * S, since_unix_ns=at, mn_cpi=3.0, mn_cpi_threshold=2.0)
    reported.victims.add(vm="v", name=suspect, job=suspect, cpi=1.0, n_cpi=2.0, threshold_cpi=1.0)
    reported.suspects.add(vm="s", name=suspect, job=suspect, coefficient=1.0, cpu_usage_cores=1.0, score=1.0)
    host = f"host of {suspect}"
    row = TriggerRow(host, suspect, number, 0, host, at, reported.SerializeToString())
    central.store.take([row], gap_ns=900 * S, oldest_unix_ns=0)


#: All that people read, without what they typed.
READ = """() => {
  const titled = [...document.querySelectorAll('[title], [aria-label]')];
  const titles = titled.flatMap((each) => [each.title, each.getAttribute('aria-label') ?? '']);
  return [document.title, document.body.innerText, ...titles].join('\\n');
}"""


async def test_names_that_turn_the_reading_direction_are_shown_by_their_numbers(tmp_path, browser):
    name = "web\u202e\u2066\x1b[31mx\u115f\u1160\u2800\u3164\uffa0"
    job = quote(name)
    async with PageCentral(tmp_path, Size(hosts=0)) as central, watched(browser, central.url) as seen:
        report(central, name, 1, central.now - 60 * S)
        host = quote(f"host of {name}")
        links = ("", "#/incidents", "#/incident/1", "#/jobs", f"#/job/{job}", f"#/host/{host}", "#/vm/v")
        texts = {}
        for link in (*links, f"#/incidents?suspect_job={job}", f"#/placement?job={job}"):
            await seen.open(link)
            texts[link] = await seen.page.evaluate(READ)
            assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\u115f\u1160\u2800\u3164\uffa0]", texts[link]), link
        for link in ("#/incidents", "#/incident/1"):
            assert r"web\u202e\u2066\x1b[31mx\u115f\u1160\u2800\u3164\uffa0" in texts[link]


async def test_central_goes_and_comes_back(tmp_path, browser):
    async with PageCentral(tmp_path, Size()) as central, watched(browser, central.url) as seen:
        await seen.open("#/hosts")
        await central.api.stop()
        await seen.page.wait_for_selector("#stale:has-text('Central does not answer. What is shown is of')")
        assert "node0001" in await seen.page.inner_text("main"), "what is known stays"
        assert await serious(seen.page) == []
        # A view that cannot be fetched now says so, and where it was.
        await seen.page.get_by_role("link", name="Runtime").click()
        await seen.page.wait_for_selector("main .problem")
        await seen.page.evaluate("() => { location.hash = '#/hosts'; }")
        await seen.page.wait_for_function("() => document.querySelector('h1').innerText === 'Hosts'")
        again = HttpApi(central.fleet, f"127.0.0.1:{central.api.port}", TlsFiles(), Access(("operator",)))
        central.api = again
        await again.start()
        await seen.page.wait_for_function(
            "() => !document.getElementById('stale').innerText && document.body.innerText.includes('node0001')"
        )


async def test_wrong_links_are_reported(one, browser):
    async with watched(browser, one.url) as seen:
        for link, said in (
            ("#/nothing", "No view has this link"),
            ("#/job/%E0%A4%A", "nothing is known of job '%E0%A4%A'"),
            ("#/job/" + "x" * 500, "nothing is known of job 'xxx"),
            ("#/job/" + "x" * 3000, "at most 512 characters"),
            ("#/incident/x", "id must be an integer"),
            ("#/incidents?page=x", "page_token is not one of this request's pages"),
            ("#/placement?loading=warp=1", "no resource 'warp' here"),
            ("#/upgrade?margin=abc", "“Margin, %”: must be a number (value 'abc')"),
            ("#/placement?job=web&top=9999", "“Hosts”: must be an integer from 0 to 1000"),
            ("#/host/node0001?last=999999", "last=999999 cannot be shown; it is minutes, above 0 and at most 576000"),
            ("#/host/node0001?last=x", "last=x cannot be shown"),
            (f"#/vm/{vm_id(0)}?from=abc", "from=abc is no time; it is milliseconds since 1970"),
            (f"#/vm/{vm_id(0)}?from=2000&to=1000", "to must be after from, by 10 s to 400 days"),
            (f"#/vm/{vm_id(0)}?metrics=colour", "colour"),
            ("#/vms?order=colour", "order must be one of unspecified, name, project"),
            ("#/upgrade?by=time&new=soon", "soon is no time; write one such as 2026-03-01T12:00"),
            ("#/runtime?job=web", "name"),
        ):
            await seen.open(link)
            assert said in await seen.page.inner_text("main"), link
        assert [error for error in seen.errors if not NOT_ANSWERED.match(error)] == []


async def test_forms_are_links(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open("#/placement")
        await seen.page.get_by_label("VM of the job").fill("web")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("tbody tr")
        assert await seen.page.evaluate("() => location.hash") == "#/placement?job=web&top=20"
        await seen.open("#/jobs")
        await seen.page.get_by_label("Job by name").fill("ci-runner")
        await seen.page.get_by_role("button", name="Open", exact=True).click()
        await seen.page.wait_for_function("() => document.querySelector('h1').innerText === 'Job ci-runner'")
        await seen.page.go_back()
        await seen.page.wait_for_function("() => document.querySelector('h1').innerText === 'Jobs'")


async def test_what_to_do_is_reported_with_a_command_that_a_shell_takes(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open("#/incident/1")
        await seen.page.locator("#more-actions summary").click()
        text = "\n".join(await seen.page.locator(".actions").all_inner_texts())
        assert re.search(
            r"1\. cap the CPU of batch-scan-3 to \d\.\d\d cores\s+Expected: mnCPI 2\.90 now, \d\.\d\d ", text
        )
        assert "contention begins at 2.00" in text
        assert "do nothing" in text
        first = seen.page.locator(".action").first.locator("code")
        ours, *_, by_name = map(shlex.split, await first.all_inner_texts())
        assert ours[:4] == ["whitepanda", "act", "apply", "cap-cpu"]
        assert by_name == ["virsh", "schedinfo", "batch-scan-3's", "--live", "vcpu_quota=65000"]


async def test_an_incident_is_reported_from_who_suffers_to_the_evidence(one, browser):
    clipboard = ["clipboard-read", "clipboard-write"]
    async with watched(browser, one.url, permissions=clipboard) as seen:
        await seen.open("#/incident/1")
        parts = await seen.page.locator("main h2").all_inner_texts()
        assert parts == ["What to do", "People", "What happened", "Victims", "Suspects", "Evidence"]
        assert await seen.page.locator(".action:visible").count() == 2
        folded = seen.page.locator("#more-actions")
        inside = await folded.locator(".action").count()
        assert await folded.locator("summary").inner_text() == f"{inside} more actions"
        await folded.locator("summary").click()
        assert await seen.page.locator(".action:visible").count() == 2 + inside
        button = seen.page.locator("button.copy").first
        await button.click()
        await seen.page.wait_for_selector("button.copy:has-text('Copied')")
        copied = await seen.page.evaluate("() => navigator.clipboard.readText()")
        assert copied == await seen.page.locator(".action code").first.inner_text()
        assert shlex.split(copied)[:4] == ["whitepanda", "act", "apply", "cap-cpu"]
        assert not await serious(seen.page)
        # Where the browser gives no clipboard, the command is marked.
        await seen.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
        await button.click()
        await seen.page.wait_for_selector("button.copy:has-text('Press Ctrl+C')")
        assert await seen.page.evaluate("() => getSelection().toString()") == copied


async def test_a_hosts_vms_have_names_and_are_chosen_for_the_charts(thousand, browser):
    async with watched(browser, thousand.url) as seen:
        await seen.open("#/host/node0002")  # in no incident
        names = await seen.page.locator("#host-vms-scroll tbody th").all_inner_texts()
        assert len(names) == 6 and not any("-4000-" in name for name in names), names
        box = seen.page.get_by_label(f"Draw {names[-1]}")
        only = (await box.get_attribute("id")).removeprefix("draw-")
        await seen.open(f"#/host/node0002?vms={only}")
        chart = seen.page.get_by_role("img", name="CPU usage, beside its own baseline.")
        assert names[-1] in await chart.inner_text() and names[0] not in await chart.inner_text()
        assert await box.is_checked()
        other = seen.page.get_by_label(f"Draw {names[0]}")
        await other.check()
        await seen.page.wait_for_function("() => location.hash.includes('%2C')")
        await seen.settled()
        assert names[0] in await chart.inner_text()
        await other.uncheck()
        await seen.page.wait_for_function("() => !location.hash.includes('%2C')")
        await seen.settled()
        await seen.page.get_by_label("values as they are").check()
        await seen.page.wait_for_function("() => location.hash.includes('as=values')")
        await seen.settled()
        assert await seen.page.get_by_role("img", name="CPU usage. Steps of").count() == 1
        await seen.page.locator("#host-vms-scroll tbody th a").first.click()
        await seen.page.wait_for_function("() => document.querySelector('h1').innerText.startsWith('VM ')")
        await seen.settled()
        assert names[0] in await seen.page.inner_text("main")


SHADED = """async () => {
    const { measured, shaded } = await import("/page/views/host.js");
    const known = [1, 1, null, 1, 1, null, null, null, null, 1];
    const vms = [{ values: { cpi: known } }, { values: { cpi: known.map(() => null) } }];
    const incidents = [{ first_unix_ns: 30e9, last_unix_ns: 570e9 }, { first_unix_ns: 360e9, last_unix_ns: 420e9 }];
    return shaded(incidents, measured(vms, known.map((_, k) => k * 60), 60, 3));
}"""


async def test_nothing_is_shaded_where_nobody_measured(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open()
        # One step without a window is bridged, four are not; the incident in those is not drawn at all.
        assert await seen.page.evaluate(SHADED) == [[30, 300], [540, 570]]


async def test_a_question_stays_in_sight_while_it_is_answered(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open("#/placement")
        asked, answered = asyncio.Event(), asyncio.Event()

        async def hold(route):
            asked.set()
            await answered.wait()
            await route.continue_()

        await seen.page.route("**/v1/placement?*", hold)
        await seen.page.get_by_label("VM of the job").fill("web")
        await seen.page.keyboard.press("Enter")
        await asked.wait()
        await seen.page.wait_for_selector("main:has-text('Asking central')")
        assert await seen.page.get_by_label("VM of the job").input_value() == "web"
        answered.set()
        await seen.page.wait_for_selector("tbody tr")


async def test_an_importer_is_shown_as_such(one, browser):
    one.journal.note_host(HostRecord("trace-import", "", "0.1.0", 2, "boot", one.now - 9000 * S))
    one.fleet.importers = frozenset({"trace-import"})
    try:
        async with watched(browser, one.url) as seen:
            await seen.open("#/hosts")
            assert "import" in await seen.page.locator("tr", has_text="trace-import").locator("td").first.inner_text()
            await seen.open("")
            assert re.search(r"0\s+late or gone", await seen.page.inner_text(".tiles"))
            await seen.open("#/host/trace-import")
            assert "import" in await seen.page.inner_text(".facts")
    finally:
        del one.journal.hosts["trace-import"]


async def test_data_health_says_when_centrals_certificate_expires(one, browser, monkeypatch):
    days = 400
    certificate = SimpleNamespace(expiry_unix_s=lambda: time.time() + days * 86400)
    revoked = SimpleNamespace(serials=frozenset({"1a"}), problem="")
    monkeypatch.setattr(one.fleet.parts, "certificate", certificate)
    monkeypatch.setattr(one.fleet.parts, "revoked", revoked)

    async def fact(name):
        return await seen.page.locator(".facts > div", has_text=name).locator("dd").inner_text()

    async with watched(browser, one.url) as seen:
        await seen.open("#/health")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8}", await fact("certificate expires"))
        assert await fact("Revoked certificates") == "1"
        days, revoked.problem = 29, "line 3: not a serial number"
        await seen.page.wait_for_function("() => document.body.innerText.includes('whitepanda pki renew')")
        assert "line 3: not a serial number" in await fact("Revoked certificates")
        assert await serious(seen.page) == []


async def test_hosts_that_are_held_back_are_shown_with_the_budget_and_the_wait(one, browser, monkeypatch):
    monkeypatch.setattr(one.fleet.parts, "over_quota", lambda: {"node0001": {"over_quota_rows": 1234}})
    monkeypatch.setattr(one.registry.get("node0001"), "min_batch_interval_ms", 1250)
    async with watched(browser, one.url) as seen:
        await seen.open("#/health")
        row = await seen.page.locator("#health-held-back-scroll tbody tr").inner_text()
        assert row.split("\t") == ["node0001", "▲ rows (1,234)", "1,234", "1.3 s"]
        assert await serious(seen.page) == []
        said = "● connected ▲ over quota: rows (1,234) ◐ paced: 1.3 s"
        await seen.open("#/hosts")
        assert await seen.page.locator("#hosts-scroll tbody td").first.inner_text() == said
        assert await serious(seen.page) == []
        await seen.open("#/host/node0001")
        assert said in await seen.page.locator(".facts").inner_text()


FITS = "() => [...document.querySelectorAll('.scroll')].map((x) => [x.id, x.scrollWidth - x.clientWidth])"


@pytest.mark.parametrize("width", [1280, 1440])
async def test_the_overviews_tables_are_not_cut(thousand, browser, width):
    async with watched(browser, thousand.url, viewport={"width": width, "height": 900}) as seen:
        await seen.open()
        assert await seen.page.evaluate(FITS) == [["now-scroll", 0], ["now-hosts-scroll", 0], ["now-jobs-scroll", 0]]


async def test_on_a_telephone(thousand, browser):
    async with watched(browser, thousand.url, viewport={"width": 360, "height": 740}) as seen:
        await seen.open("#/health")
        menu = await seen.page.locator("nav a[aria-current]").bounding_box()
        assert menu["x"] >= 0 and menu["x"] + menu["width"] <= 360, "the view's name is in sight"
        await seen.open("")
        boxes = [await each.bounding_box() for each in await seen.page.locator(".tiles li").all()]
        assert [round(box["y"]) for box in boxes[:4:2]] == [round(box["y"]) for box in boxes[1:4:2]], "in twos"
        assert boxes[0]["x"] < boxes[1]["x"]
        assert (await seen.page.locator("header").bounding_box())["height"] < 110
        for link in ("", "#/vms", f"#/vm/{vm_id(0)}", "#/host/node0001", "#/incident/1", "#/silences", "#/health"):
            await seen.open(link)
            assert await seen.page.evaluate("() => document.documentElement.scrollWidth") == 360, link
        assert await serious(seen.page) == []


async def test_times_have_their_day_and_the_footer_the_zone(one, browser):
    async with watched(browser, one.url, timezone_id="Asia/Kolkata") as seen:
        await seen.open("#/incident/1")
        shown = seen.page.locator(".facts time").first
        assert re.fullmatch(r"\d+ (s|min) ago", await shown.inner_text())
        local, utc = (await shown.get_attribute("title")).split(" local, ")
        assert utc.endswith(" UTC")
        assert datetime.fromisoformat(local + "+05:30") == datetime.fromisoformat(utc.replace(" UTC", "+00:00"))
        assert datetime.fromisoformat(await shown.get_attribute("datetime")).timestamp() > 0
        exact = seen.page.locator("#incident-evidence-scroll tbody time").first
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", await exact.inner_text())
        assert re.search(r"Local times: Asia/\w+ \(UTC\+05:30\)", await seen.page.inner_text("footer"))


async def test_by_keyboard(one, browser):
    async with watched(browser, one.url) as seen:
        await seen.open("#/host/node0001")
        await seen.page.keyboard.press("Tab")
        await seen.page.keyboard.press("Enter")
        assert await seen.page.evaluate("() => document.activeElement.id") == "main"
        assert await seen.page.locator("nav a[aria-current]").inner_text() == "Hosts"
        header = seen.page.get_by_role("columnheader", name="VM", exact=True).first
        await seen.page.get_by_role("button", name="VM", exact=True).focus()
        for direction in ("ascending", "descending"):
            await seen.page.keyboard.press("Enter")
            assert await header.get_attribute("aria-sort") == direction
        names = await seen.page.locator("#host-vms-scroll tbody th").all_inner_texts()
        assert names[0].startswith("web-") and names[-1].startswith("batch-scan-")
        await seen.page.get_by_role("link", name="Jobs", exact=True).focus()
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_function("() => location.hash === '#/jobs'")
        await seen.settled()  # what central answers has replaced the view; who reads by ear is still at its title
        assert await seen.page.evaluate("() => document.activeElement.tagName") == "H1"
        await seen.page.get_by_role("button", name="Colours: system").press("Enter")
        await seen.page.get_by_role("button", name="Colours: light").press("Enter")
        await seen.page.reload()
        await seen.settled()
        assert await seen.page.evaluate("() => document.documentElement.dataset.theme") == "dark"


NAME = "<img src=x onerror=window.ran=1>"
INLINE = """() => {
    const script = document.createElement("script");
    script.textContent = "window.ran = 1";
    document.head.append(script);
}"""


async def test_nothing_foreign_runs(one, browser):
    report(one, NAME, 1)
    async with watched(browser, one.url) as seen:
        for link in ("", "#/incidents", f"#/job/{NAME}"):
            await seen.open(link)
            assert NAME in await seen.page.inner_text("body")
        assert seen.foreign == []
        await seen.page.evaluate(INLINE)
        assert not await seen.page.evaluate("() => window.ran")
        assert "violates the following Content Security Policy" in seen.errors[-1]


async def test_a_lax_policy_would_be_seen(tmp_path, browser, monkeypatch):
    lax = files.POLICY.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
    monkeypatch.setitem(files._HEADERS, "Content-Security-Policy", lax)
    async with PageCentral(tmp_path, Size(hosts=0)) as central, watched(browser, central.url) as seen:
        await seen.open()
        await seen.page.evaluate(INLINE)
        assert await seen.page.evaluate("() => window.ran")
