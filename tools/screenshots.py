"""Take the pictures of the fleet page: docs/images/page-VIEW-{light,dark,400}.png, small ones of few colours.

python tools/screenshots.py [VIEW...]

A made-up fleet of 100 hosts (tests/support/page_fleet.py) is behind central's real HTTP server; Debian's Chromium shows
it, wide in light and in dark, and 400 pixels wide.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]
IMAGES = ROOT / "docs" / "images"
_COLOURS = 256

# Central counts VMs a moment after it was first asked.
_COUNTED = "() => [...document.querySelectorAll('.tiles strong')].every((each) => each.textContent !== '…')"

#: Each view's link, by the picture's name.
VIEWS = {
    "now": "",
    "vms": "#/vms",
    "vm": "#/vm/web-0",
    "host": "#/host/node0013",
    "hosts": "#/hosts",
    "incidents": "#/incidents",
    "incident": "#/incident/2",
    "silences": "#/silences",
    "audit": "#/audit",
    "jobs": "#/jobs",
    "job": "#/job/batch-scan",
    "upgrade": "#/upgrade?by=platform&new=EPYC+9354&current=Xeon+Gold+6430",
    "placement": "#/placement?job=web&top=12",
    "runtime": "#/runtime",
    "health": "#/health",
}
#: Name, width and height of the screen, colours.
SCREENS = (("light", 1200, 860, "light"), ("dark", 1200, 860, "dark"), ("400", 400, 800, "dark"))


async def _people(central: Any) -> None:
    """Have somebody acknowledge, note and silence."""
    from whitepanda.v1 import fleet_pb2  # noqa: PLC0415

    by = {"operator": "kim"}
    asked = (
        ("AcknowledgeIncident", fleet_pb2.AcknowledgeIncidentRequest(id=2, reason="I am on it", **by)),
        ("AddIncidentNote", fleet_pb2.AddIncidentNoteRequest(id=2, text="capped batch-scan-147 for 15 min", **by)),
        (
            "CreateSilence",
            fleet_pb2.CreateSilenceRequest(
                host="node0025", end_unix_ns=central.now + 7200 * 10**9, reason="memory is exchanged", **by
            ),
        ),
    )
    for method, request in asked:
        await central.fleet.answer(method, request)


async def _take(folder: Path, views: list[str]) -> None:
    # The path must be set before these are found.
    from tests.support.browser import chromium, watched  # noqa: PLC0415
    from tests.support.page_fleet import PageCentral, Size  # noqa: PLC0415

    size = Size(hosts=100, vms_per_host=12, windows=60, jobs=12, contended=12)
    async with PageCentral(folder, size) as central, chromium() as browser:
        central.note_facts(range(300))
        await _people(central)
        for view in views:
            for name, width, height, colours in SCREENS:
                screen = {"width": width, "height": height}
                async with watched(browser, central.url, viewport=screen, color_scheme=colours) as seen:
                    await seen.open(VIEWS[view])
                    await seen.page.wait_for_function(_COUNTED)
                    path = IMAGES / f"page-{view}-{name}.png"
                    path.write_bytes(_small(await seen.page.screenshot()))
                    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def _small(png: bytes) -> bytes:
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="whitepanda-pictures-") as temporary:
        asyncio.run(_take(Path(temporary), sys.argv[1:] or list(VIEWS)))
