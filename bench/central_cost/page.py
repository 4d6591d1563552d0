"""The fleet page with 1,000 hosts and 50,000 VMs: first paint, until figures are shown, weight, time of each answer.

    python -m bench.central_cost.page [--hosts 1000] [--vms 50] [--json]

A made-up fleet (tests/support/page_fleet.py: five minutes of 10 s windows, 50 incidents, 20 versions) is behind
central's real HTTP server in this process; Debian's Chromium opens each view in a fresh profile, five times.
CPU times say what it would be at least on a machine that does nothing else: of this process for answers, of all of
Chromium's processes for views.

Bar: with 50,000 VMs a view's first paint takes at most 0.5 s, by the median of its openings.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from playwright.async_api import Browser

from bench.ingest.study import bar
from central.page.files import read_files
from tests.support.browser import chromium, watched
from tests.support.page_fleet import PageCentral, Size

RUNS = 5
FIRST_PAINT_MS = 500.0
BAR_VMS = 50_000
VIEWS = (
    ("now", ""),
    ("vms", "#/vms"),
    ("vms, sorted", "#/vms?order=cpu&descending=true"),
    ("vm", "#/vm/web-0"),
    ("hosts", "#/hosts"),
    ("host", "#/host/node0001"),
    ("jobs", "#/jobs"),
    ("job", "#/job/batch-scan"),
    ("incidents", "#/incidents"),
    ("incident", "#/incident/1"),
    ("placement", "#/placement?job=web"),
    ("health", "#/health"),
)
CALLS = (
    "overview",
    "hosts?page_size=1000",
    "vms?page_size=100",
    "vms?page_size=100&text=web-1&order=cpi&descending=true",
    "search?text=web-1",
    "series?hosts=node0001&metrics=cpi&metrics=cpu_usage_cores",
    "host-timeline?host=node0001",
    "job-statistics?page_size=1000",
    "job?job=batch-scan",
    "incidents?page_size=200",
    "incidents/1",
    "placement?job=web&top=20",
    "status",
    "data-health",
)


def call(port: int, path: str) -> tuple[float, int, int]:
    """Seconds, bytes on the wire (compressed), status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        begun = time.perf_counter()
        connection.request("GET", f"/v1/{path}", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        content = answer.read()
        return time.perf_counter() - begun, len(content), answer.status
    finally:
        connection.close()


def browser_cpu_s() -> float:
    """CPU time of Chromium's processes that live, and of Playwright's own, which is little."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system
    return found


async def paint(browser: Browser, url: str, link: str) -> dict[str, float]:
    """Open a view in a profile that knows nothing: milliseconds and bytes."""
    begun_s = browser_cpu_s()
    async with watched(browser, url) as seen:
        session = await seen.page.context.new_cdp_session(seen.page)
        sizes: list[float] = []
        session.on("Network.loadingFinished", lambda known: sizes.append(known["encodedDataLength"]))
        await session.send("Network.enable")
        await seen.page.goto(f"{seen.origin}/{link}", wait_until="commit")
        shown = "() => document.querySelector('main')?.dataset.shows === location.hash && performance.now()"
        figures = await (await seen.page.wait_for_function(shown, polling=10)).json_value()
        await seen.settled()
        first = await seen.page.evaluate(
            "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        )
        assert [*seen.errors, *seen.foreign] == [], link
        cpu_ms = (browser_cpu_s() - begun_s) * 1e3
        return {
            "first_paint_ms": first, "figures_ms": figures, "cpu_ms": cpu_ms, "bytes": sum(sizes),
            "requests": len(sizes),
        }  # fmt: skip


def weight() -> dict[str, int]:
    """Bytes of all files of the page but the licence of its library, as they are and as they are sent."""
    files = [file for file in read_files() if not file.path.endswith(".LICENSE")]
    return {
        "files": len(files),
        "bytes": sum(len(file.content) for file in files),
        "compressed_bytes": sum(len(file.compressed) for file in files),
    }


async def measure(folder: Path, size: Size) -> dict[str, object]:
    begun = time.perf_counter()
    central = PageCentral(folder, size)
    found: dict[str, object] = {"made_s": time.perf_counter() - begun, "weight": weight(), "calls": {}, "views": {}}
    async with central, chromium() as browser:
        for path in CALLS:
            times, cpu = [], []
            for _ in range(RUNS + 1):
                begun = time.process_time()
                seconds, length, status = await asyncio.to_thread(call, central.api.port, path)
                assert status == 200, (path, status)
                times.append(seconds * 1e3)
                cpu.append((time.process_time() - begun) * 1e3)
            found["calls"][path] = {
                "first_ms": times[0], "median_ms": statistics.median(times[1:]),
                "first_cpu_ms": cpu[0], "cpu_ms": statistics.median(cpu[1:]), "bytes": length,
            }  # fmt: skip
        for name, link in VIEWS:
            runs = [await paint(browser, central.url, link) for _ in range(RUNS)]
            found["views"][name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            found["views"][name]["worst_first_paint_ms"] = max(run["first_paint_ms"] for run in runs)
    return found


def say_bars(views: dict[str, dict[str, float]], vms: int) -> None:
    """Print each view's first paint beside its bar, which is for a fleet of a size."""
    if vms != BAR_VMS:
        print(f"not the fleet of the bar ({BAR_VMS:,} VMs): a pass or a miss is no evidence")
    for name, row in views.items():
        bar(f"first paint of {name}", row["first_paint_ms"], FIRST_PAINT_MS, "ms", at_most=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the fleet page costs")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--vms", type=int, default=50, help="per host")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("chromium") is None:
        sys.exit("no chromium; tests/lab/packages.sh installs it")
    size = Size(hosts=options.hosts, vms_per_host=options.vms, windows=30, window_s=10, versions=20, slots=1,
                contended=20, jobs=300)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="whitepanda-page-") as folder:
        found = asyncio.run(measure(Path(folder), size))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    made, vms = found["made_s"], options.hosts * options.vms
    print(f"{options.hosts:,} hosts, {vms:,} VMs; made in {made:.0f} s; load {os.getloadavg()[0]:.1f}")
    page = found["weight"]
    print(f"the page: {page['files']} files, {page['bytes']:,} bytes, {page['compressed_bytes']:,} compressed")
    print("\nanswer                          first ms   (CPU)   median ms   (CPU)   bytes (gzip)")
    for path, row in found["calls"].items():
        first = f"{row['first_ms']:9.0f} {row['first_cpu_ms']:7.0f}"
        print(f"{path:30} {first} {row['median_ms']:11.0f} {row['cpu_ms']:7.0f} {row['bytes']:14,}")
    print("\nview         first paint ms (worst)   figures ms   CPU ms   requests     bytes")
    for name, row in found["views"].items():
        paints = f"{row['first_paint_ms']:14.0f} {row['worst_first_paint_ms']:7.0f}"
        rest = f"{row['cpu_ms']:8.0f} {row['requests']:10.0f} {row['bytes']:9,.0f}"
        print(f"{name:12} {paints} {row['figures_ms']:12.0f} {rest}")
    print()
    say_bars(found["views"], vms)


if __name__ == "__main__":
    main()
