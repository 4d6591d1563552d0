"""Segments are written in a process of their own: what it takes would hold up the loop that acknowledges.

Central starts it at the first roll and hands it one roll at a time, a line of JSON each way. It reads the journal as
any reader does and writes to the lake; what begins and finishes a roll stays with the journal's writer, so the process
may be killed at any point like central itself.

Two processes must never write the same segment. So it dies with central, and until it is dead it holds the journal's
lock, which it inherits: the next central does not begin before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from central import worker_process
from central.journal.tables import Roll, read_roll
from central.lake.segments import Lake
from central.validation.rows import samples_table

__all__ = ["RollWorker", "main", "write_roll"]

_NICE = 5  # than central: rolls have to keep up with it, but agents wait for it
_PIECE_ROWS = 50_000  # in memory at a time, and so the rows of a segment's row group at most


def write_roll(lake: Lake, journal: Path, roll: Roll, provenance: dict[str, str]) -> int:
    """Write the segments of a roll and return the number of their rows.

    Raises:
        OSError: the lake cannot be written.
        sqlite3.OperationalError: the journal cannot be read.

    """
    segments = lake.write_pieces(
        lambda: map(samples_table, read_roll(journal, roll, _PIECE_ROWS)), roll.stem, provenance
    )
    return sum(segment.rows for segment in segments)


class RollWorker:
    """The process, as central sees it.

    Args:
        lake: folder or URL of the lake.
        state: central's state folder.
        lock: the open file by which central holds the journal.

    """

    def __init__(self, lake: str, state: Path, lock: IO[str]) -> None:
        self._arguments = [lake, str(state)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = threading.Lock()

    def start(self) -> None:
        """Start the process if it does not run. To be called by the main thread: the process ends with the caller.

        Raises:
            OSError: it cannot be started.

        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = worker_process.start(
            [sys.executable, "-m", "central.journal.flush_worker", str(os.getpid()), *self._arguments],
            pass_fds=(self._lock.fileno(),),
        )

    def write(self, journal: Path, roll: Roll, provenance: dict[str, str]) -> int:
        """Do as `write_roll` does, over there. For any thread, after `start`.

        Raises:
            OSError: as `write_roll`, or the process has died.
            sqlite3.OperationalError: as `write_roll`.

        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("the process that writes segments does not run")
        order = {
            "journal": str(journal),
            "roll": [roll.stem, roll.first, roll.last],
            "provenance": provenance,
        }
        with self._busy:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise OSError(f"the process that writes segments ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "rows" in answer:
            return int(answer["rows"])
        raise (OSError if answer["kind"] == "lake" else sqlite3.OperationalError)(answer["error"])

    def close(self) -> None:
        """End it at once: a roll that it is at will be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with self._busy:  # who waits for an answer has seen the end
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def main() -> None:
    """Write rolls until central is gone."""
    if not worker_process.begin(int(sys.argv[1]), nice=_NICE):
        return
    lake = Lake(sys.argv[2], copies=Path(sys.argv[3]))
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any]
        try:
            rows = write_roll(lake, Path(order["journal"]), Roll(*order["roll"]), order["provenance"])
            answer = {"rows": rows}
        except OSError as error:
            answer = {"kind": "lake", "error": str(error)}
        except sqlite3.OperationalError as error:
            answer = {"kind": "journal", "error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
