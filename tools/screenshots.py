"""Take the pictures of the fleet page for docs/page.md: docs/images/page-*.png, small ones of few colours.

python tools/screenshots.py

A made-up fleet of 100 hosts (tests/support/page_fleet.py) is behind central's real HTTP server; Debian's Chromium shows
it.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]
IMAGES = ROOT / "docs" / "images"
_WIDTH, _HEIGHT = 1200, 820
_COLOURS = 200

# Central counts VMs a moment after it was first asked.
_COUNTED = "() => [...document.querySelectorAll('.tiles strong')].every((each) => each.textContent !== '…')"

#: Name of the picture, the view's link, and the colours.
PICTURES = (
    ("overview", "", "light"),
    ("host", "#/host/node0013?hours=1", "dark"),
    ("job", "#/job/batch-scan", "light"),
    ("incident", "#/incident/2", "light"),
    ("upgrade", "#/upgrade?by=platform&new=EPYC+9354&current=Xeon+Gold+6430", "light"),
    ("placement", "#/placement?job=web&top=12", "light"),
    ("health", "#/health", "dark"),
)


async def _take(folder: Path) -> None:
    # The path must be set before these are found.
    from tests.support.browser import chromium, watched  # noqa: PLC0415
    from tests.support.page_fleet import PageCentral, Size  # noqa: PLC0415

    size = Size(hosts=100, vms_per_host=12, windows=60, jobs=12, contended=12)
    async with PageCentral(folder, size) as central, chromium() as browser:
        for name, link, colours in PICTURES:
            view = {"width": _WIDTH, "height": _HEIGHT}
            async with watched(browser, central.url, viewport=view, color_scheme=colours) as seen:
                await seen.open(link)
                await seen.page.wait_for_function(_COUNTED)
                path = IMAGES / f"page-{name}.png"
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
        asyncio.run(_take(Path(temporary)))
