"""Take the pictures of README.md and docs/top.md: docs/images/demo.svg and top.svg, of one run of `make demo`.

python tools/demo_screenshots.py

What the demonstration prints, and `whitepanda top` asking the agent that found the antagonist, while it still runs.
"""

import asyncio
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agent.display.words import VICTIM
from agent.top.app import TopApp
from agent.top.feed import LiveFeed
from agent.top.model import Model
from central.demo.outcome import Outcome
from central.demo.run import Demo
from central.demo.show import PlainShow, print_next_step, print_outcome
from central.demo.watch import AgentWatch

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PICTURES = ("demo", "top")
_SEED = 1
_COLUMNS = 116
_TOP_SIZE = (148, 40)  # at 150 the explanation would stand beside the table
_LOOKS = 20  # of the live view, so that its trends have a shape
_WAIT_S = 0.05
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # they would be loaded from elsewhere


class _Events(PlainShow):
    """What happens; not the progress, which a terminal has in a table above and other outputs in lines too long."""

    def refresh(self, agents: Sequence[AgentWatch]) -> None:
        """Print nothing."""


async def _top(agent: Path) -> str:
    """Return what the live view shows of an agent, the VM that suffers most explained."""
    app = TopApp(LiveFeed(agent))
    async with app.run_test(size=_TOP_SIZE) as pilot:
        while not _is_worth_seeing(app.model):
            await pilot.pause(_WAIT_S)
        await pilot.press("home", "enter")
        while app.explained is None:
            await pilot.pause(_WAIT_S)
        await pilot.pause(_WAIT_S)
        return app.export_screenshot(title="whitepanda top", simplify=True)


def _is_worth_seeing(model: Model) -> bool:
    rows = model.rows()
    return bool(rows and model.count(VICTIM.symbol) and len(model.history(rows[0], "CPU")) >= _LOOKS)


def _take(folder: Path) -> tuple[Outcome, tuple[str, ...]]:
    work, sockets = folder / "work", folder / "s"
    work.mkdir()
    sockets.mkdir()
    console = Console(record=True, file=io.StringIO(), force_terminal=True, width=_COLUMNS)
    demo = Demo(_SEED, work, sockets, _Events(console))
    try:
        outcome = demo.run()
        print_outcome(console, outcome)
        print_next_step(console)
        printed = console.export_svg(title="make demo", unique_id="demo")
        top = asyncio.run(_top(sockets / f"{outcome.host}.sock"))
    finally:
        demo.close()
    return outcome, (printed, top)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wp-") as temporary:
        found, drawn = _take(Path(temporary))
    if not found.correct:
        sys.exit(f"first suspect {found.first_suspect}, injected {found.injected_antagonist}: no pictures taken")
    for name, picture in zip(PICTURES, drawn, strict=True):
        path = IMAGES / f"{name}.svg"
        path.write_text(_FONTS.sub("", picture), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
