"""Debian's Chromium, driven by Playwright, and a page that notes all that goes wrong in it."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright

AXE = Path(__file__).resolve().parents[1] / "fixtures" / "axe" / "axe.min.js"

# Chromium's own sandbox does not work for root; what is opened here is ours alone.
_ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []


@dataclass
class Watched:
    """A page with its troubles: errors of scripts and policy, requests to anywhere else, answers by status."""

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    statuses: list[tuple[int, str]] = field(default_factory=list)

    async def open(self, link: str = "") -> None:
        """Open a view by its link and wait until it is drawn."""
        await self.page.goto(f"{self.origin}/{link}")
        await self.settled()

    async def settled(self) -> None:
        """Wait until the view asks for nothing and its charts are drawn."""
        await self.page.wait_for_function(
            "() => document.querySelector('main').dataset.shows === location.hash"
            " && !document.querySelector('main[aria-busy]')"
            " && [...document.querySelectorAll('.chart')].every((each) => each.dataset.drawn)"
        )


@asynccontextmanager
async def chromium(*, program: Path | None = None) -> AsyncIterator[Browser]:
    """Start a browser, or `program`, which starts one elsewhere; skips where this machine has none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium; tests/lab/packages.sh installs it")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program or found, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def watched(browser: Browser, url: str, **options: object) -> AsyncIterator[Watched]:
    """Open a page of its own, which knows nothing of others; `options` are those of a Playwright context."""
    context = await browser.new_context(**options)
    try:
        page = await context.new_page()
        found = Watched(page, url.rstrip("/"))
        ours = urlsplit(url).netloc
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        page.on("console", lambda reported: found.errors.append(reported.text) if reported.type == "error" else None)
        page.on(
            "request", lambda asked: found.foreign.append(asked.url) if urlsplit(asked.url).netloc != ours else None
        )
        page.on("response", lambda answer: found.statuses.append((answer.status, answer.url)))
        yield found
    finally:
        await context.close()


async def legend(seen: Watched, title: str, at: float) -> dict[str, str]:
    """Return what the chart's legend says by line, with the pointer at a part of its width."""
    chart = seen.page.get_by_role("img", name=title)
    plot = chart.locator(".u-over")
    await plot.scroll_into_view_if_needed()
    box = await plot.bounding_box()
    await seen.page.mouse.move(box["x"] + box["width"] * at, box["y"] + box["height"] / 2)
    found = {}
    for row in await chart.locator("tr.u-series:visible").all():
        found[await row.locator(".u-label").inner_text()] = await row.locator(".u-value").inner_text()
    return found


#: Rules of axe-core that the page may break, each with the reason.
ACCEPTED: dict[str, str] = {}


async def serious(page: Page) -> list[str]:
    """Return what axe-core finds wrong in the page, a line for each element, without `ACCEPTED` rules."""
    # By the debugger, as the page's own policy lets no foreign script in.
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = await page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        if rule["id"] not in ACCEPTED
        for node in rule["nodes"]
    ]
