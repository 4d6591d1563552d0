"""kill -9 while the history is written: what was written before is whole, at most the frame in flight is lost."""

import random
import subprocess
import sys
import time
from pathlib import Path

from agent.history.segments import read, segments
from agent.history.writer import TICKS, WINDOWS

WRITER = Path(__file__).parents[1] / "support" / "history_writer.py"
KILLS = 40
S = 10**9


def numbers(folder: Path) -> list[int]:
    return [int.from_bytes(frame.payload[:8], "big") for one in segments(folder) for frame in read(one)]


def test_a_kill_loses_at_most_the_frame_in_flight(tmp_path: Path) -> None:
    rng = random.Random(20)
    began_ns = time.time_ns()
    known: dict[str, int] = {TICKS: 0, WINDOWS: 0}
    for kill in range(KILLS):
        began_ns += 10 * S  # ticks are kept for 15 minutes
        with subprocess.Popen(
            [sys.executable, WRITER, tmp_path, str(began_ns)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            process.kill()
            said = [0, *map(int, process.stdout.read().split("\n")[:-1])][-1]
        for kind, step in ((TICKS, 1), (WINDOWS, 10)):
            found = numbers(tmp_path / kind)
            new = found[known[kind] :]
            known[kind] = len(found)
            # All that it said is there, in order; the one after that may be.
            assert new == list(range(0, new[-1] + 1, step)), f"kill {kill}"
            assert said - said % step <= new[-1] <= said + 1, f"kill {kill}"
