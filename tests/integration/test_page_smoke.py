"""The fleet page in a real browser, once over: the overview and a host, nothing foreign asked for, nothing serious said
by axe. The rest is in test_page_views.py."""

from __future__ import annotations

import pytest

from tests.support.browser import chromium, serious, watched
from tests.support.page_fleet import PageCentral, Size

pytestmark = pytest.mark.integration


async def test_the_page_shows_a_fleet_of_one_host(tmp_path):
    async with (
        PageCentral(tmp_path, Size()) as central,
        chromium() as browser,
        watched(browser, central.url) as seen,
    ):
        await seen.open()
        assert await seen.page.title() == "Fleet · whitepanda"
        await seen.page.get_by_role("link", name="node0001").first.click()
        await seen.page.wait_for_function("() => location.hash.startsWith('#/host/node0001')")
        await seen.settled()
        assert await seen.page.get_by_role("img", name="CPI. Steps of 30 s").count() == 1
        assert await seen.page.locator("#host-vms-scroll tbody th", has_text="web-0").count() == 1
        assert await serious(seen.page) == []
        assert (seen.errors, seen.foreign) == ([], [])
