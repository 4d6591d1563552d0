"""Make the picture of `whitepanda top` in the docs from a recording of a host.

python tools/top_screenshot.py RECORDING SECONDS OUT.svg [AGENT.toml]

`whitepanda record` makes the recording, such as of a simulated host (docs/simulated.md); SECONDS is where in it the
picture is taken, the detail pane open on the VM that suffers most; AGENT.toml has the job rules.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from agent.cli._words import VICTIM
from agent.config import load
from agent.top.app import TopApp
from agent.top.player import Player

_WAIT_S = 0.05
_SIZE = (140, 40)
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


async def draw(recording: Path, at_s: float, config: Path | None) -> str:
    """Wind a recording to a moment and return what is seen, as SVG."""
    player = Player(recording, load(config) if config else None)
    app = TopApp(player)
    async with app.run_test(size=_SIZE) as pilot:
        player.toggle()
        player.wind(at_s)
        while app.model.frame is None or not app.model.count(VICTIM.symbol):
            await pilot.pause(_WAIT_S)
        await pilot.press("home", "enter")
        while app.explained is None:
            await pilot.pause(_WAIT_S)
        await pilot.pause(_WAIT_S)
        drawn = app.export_screenshot(title="whitepanda top", simplify=True)
    return _FONTS.sub("", drawn)  # they would be loaded from elsewhere


if __name__ == "__main__":
    config = Path(sys.argv[4]) if sys.argv[4:] else None
    picture = asyncio.run(draw(Path(sys.argv[1]), float(sys.argv[2]), config))
    Path(sys.argv[3]).write_text(picture, encoding="utf-8")
