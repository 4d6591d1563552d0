"""The fleet page in a real browser, once over: who suffers now and a host, nothing foreign asked for, nothing serious
said by axe. The rest is in test_page_views.py."""

import os
import signal
import socket

import pytest

from tests.support.browser import chromium, serious, watched
from tests.support.central_process import CentralProcess
from tests.support.page_fleet import PageCentral, Size

pytestmark = pytest.mark.integration


async def test_the_page_shows_a_fleet_of_one_host(tmp_path):
    async with PageCentral(tmp_path, Size()) as central, chromium() as browser, watched(browser, central.url) as seen:
        await seen.open()
        assert await seen.page.title() == "Who suffers now · whitepanda"
        await seen.page.get_by_role("link", name="node0001").first.click()
        await seen.page.wait_for_function("() => location.hash.startsWith('#/host/node0001')")
        await seen.settled()
        assert await seen.page.get_by_role("img", name="CPI, beside its own baseline. Steps of").count() == 1
        assert await seen.page.locator("#host-vms-scroll tbody th", has_text="web-0").count() == 1
        assert await serious(seen.page) == []
        assert (seen.errors, seen.foreign) == ([], [])


async def test_a_central_that_hangs_is_said_within_ten_seconds(tmp_path):
    central = CentralProcess(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        central.http_listen = f"127.0.0.1:{free.getsockname()[1]}"
    central.start()
    try:
        async with chromium() as browser, watched(browser, f"http://{central.http_listen}") as seen:
            await seen.page.clock.install()
            await seen.open("#/hosts")
            stale = seen.page.locator("#stale")
            os.kill(central.process.pid, signal.SIGSTOP)
            await seen.page.clock.run_for(10_000)
            assert (await stale.inner_text()).startswith("Central has not answered for 4 s. What is shown is of ")
            # Another view's module does not come either.
            await seen.page.evaluate(
                "() => { document.getElementById('stale').textContent = ''; location.hash = '#/jobs'; }"
            )
            await seen.page.clock.run_for(10_000)
            assert (await stale.inner_text()).startswith("Central has not answered for 4 s.")
            os.kill(central.process.pid, signal.SIGCONT)
            await seen.page.clock.resume()
            await seen.page.wait_for_function("() => !document.getElementById('stale').innerText")
            assert await seen.page.inner_text("h1") == "Jobs"
    finally:
        os.kill(central.process.pid, signal.SIGCONT)
        central.end()
