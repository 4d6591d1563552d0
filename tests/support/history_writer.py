"""A process that writes a history as fast as it can, for tests that kill it. Run: this file, the folder, a mutant.

It says each frame that it has written. With the mutant `in_the_loop` frames are written in the caller's thread, and
errors reach it: history then stops what calls it.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

from agent.config import HistorySection  # noqa: E402 - after the path is set
from agent.history import writer as history  # noqa: E402 - after the path is set

S = 10**9


def in_the_loop() -> None:
    """The guarantee broken: whoever keeps a frame writes it, and gets what fails."""

    def put(self, kind, unix_ns, mono_ns, make, *, is_key=False) -> None:
        self._write(history._Item(kind, unix_ns, mono_ns, make, is_key))

    history.HistoryWriter.put = put


def main(folder: str, began_ns: str, *mutants: str) -> None:
    for mutant in mutants:
        globals()[mutant]()
    keeper = history.HistoryWriter(Path(folder), HistorySection(), 0)
    keeper.start(int(began_ns))
    for number in range(1_000_000):
        payload = number.to_bytes(8, "big") + os.urandom(2000)
        at_ns = int(began_ns) + number * S // 100
        is_key = number % 50 == 0
        for kind in (history.TICKS, history.WINDOWS)[: 2 if number % 10 == 0 else 1]:
            before = keeper._status.bytes
            keeper.put(
                kind, at_ns, number * S // 100, lambda payload=payload: payload, is_key=kind == "ticks" and is_key
            )
            while keeper._status.bytes == before:  # until it is written
                time.sleep(0.0002)
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
