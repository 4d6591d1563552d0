"""Segments are written in a separate process: in central's it would hold up the loop that acknowledges.

Central starts it at the first roll and hands it one roll at a time, a line of JSON each way. The process only reads the
journal and writes to the lake; the journal's writer begins and finishes rolls, so the process may be killed at any
point. Its memory is bounded, and a roll is read in pieces. If it fails because of its rows, or dies, the next attempt
is careful: it first tries the batches, reporting which, and takes small pieces.

Two processes must never write the same segment. So it dies with central, and until then it holds the journal's lock,
which it inherits: the next central does not begin before.
"""

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from dataclasses import astuple
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from central import worker_process
from central.journal.tables import Roll, read_batches, read_roll
from central.lake.segments import Lake
from central.validation.samples import StoredBatch, samples_tables

_NICE = 5  # relative to central: rolls have to keep up with it, but agents wait for it
_PIECE_ROWS = 50_000  # in memory at a time, and so the most rows of a segment's row group
_PIECE_BYTES = 16 << 20  # of batches in memory at a time
_TEXT_BYTES = 96 << 20  # of rows' texts at a time
_CAREFUL = 16  # times less of each, in a careful attempt
_MEMORY_BYTES = 1 << 30  # of the process
_SPARED = 4  # this part of it is not for a single batch: writing it together with others takes more
_SPACE_BYTES = 32 << 20  # with less free memory than this it is not the batch's fault that it cannot be written
_WHY = 300  # characters

#: In place of a batch's: it is not known which batch of the pack it is.
WHOLE_PACK = -1


class Unfit(NamedTuple):
    """A batch that could not be written: its pack in the journal and its place in it, or `WHOLE_PACK`."""

    pack: int
    place: int
    what: str


class RollFaultError(OSError):
    """A roll failed: memory was short, or the process died of its rows. `unfit`: the batches at fault, if known."""

    def __init__(self, text: str, unfit: list[Unfit] | None = None) -> None:
        super().__init__(text)
        self.unfit = unfit or []


def write_roll(lake: Lake, journal: Path, roll: Roll, provenance: dict[str, str], *, careful: bool = False) -> int:
    """Write the segments of a roll, with less in memory at a time if `careful`. Return the number of their rows.

    OSError: the lake cannot be written. sqlite3.OperationalError: the journal cannot be read.
    """
    part = _CAREFUL if careful else 1

    def tables() -> Iterator[pa.Table]:
        for piece in read_roll(journal, roll, max(_PIECE_ROWS // part, 1), _PIECE_BYTES // part):
            yield from samples_tables(piece, _TEXT_BYTES // part)

    return sum(segment.rows for segment in lake.write_pieces(tables, roll.stem, provenance))


def _find_unfit(journal: Path, roll: Roll, suspects: Collection[int]) -> list[Unfit]:
    """Try the packs of a roll, and each single batch of those that fail and of `suspects`; report each attempt."""
    unfit = []
    for pack, found in groupby(read_batches(journal, roll), itemgetter(0)):
        batches = [batch for _, _, batch, _ in found]
        what = f"{len(batches)} batches from {batches[0].host} on"
        if pack not in suspects and not _fault_of(batches, Unfit(pack, WHOLE_PACK, what)):
            continue
        for place, batch in enumerate(batches):
            what = f"batch {batch.sequence} of spool {batch.spool_id!r} of {batch.host}, {len(batch.payload)} bytes"
            if why := _fault_of([batch], Unfit(pack, place, what)):
                bytearray(_SPACE_BYTES)  # a MemoryError here: nothing could be written, whatever it is
                unfit.append(Unfit(pack, place, f"{what}: {why}"))
    return unfit


def _fault_of(batches: list[StoredBatch], at: Unfit) -> str:
    """Return why batches cannot be written; "" if they can. OSError: it is the machine's fault."""
    _say({"at": at})
    try:
        for table in samples_tables(batches, _TEXT_BYTES // _CAREFUL):
            with Path(os.devnull).open("wb") as nowhere:  # given as a path it would be deleted
                pq.write_table(table, nowhere, compression="zstd")
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, these batches cause it
        return _words(error)
    finally:
        _say({"at": None})
    return ""


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_WHY]


class RollWorker:
    """The process, as central sees it, for the `lake` (folder or URL); it inherits the `lock` that holds the journal.

    `state` is central's state folder; the process may have `memory_bytes`.
    """

    def __init__(self, lake: str, state: Path, lock: IO[str], memory_bytes: int = _MEMORY_BYTES) -> None:
        self._arguments = [lake, str(state), str(memory_bytes)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = threading.Lock()

    def start(self) -> None:
        """Start the process if it does not run (OSError). For the main thread: the process ends with its caller."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = worker_process.start(
            [sys.executable, "-m", "central.journal.flush_worker", str(os.getpid()), *self._arguments],
            pass_fds=(self._lock.fileno(),),
            env=worker_process.FRUGAL | os.environ,
        )

    def write(
        self, journal: Path, roll: Roll, provenance: dict[str, str], suspects: Collection[int] | None = None
    ) -> int:
        """Do as `write_roll` does, in the process. For any thread, after `start`.

        With `suspects`, also with none of them (an empty collection), it is careful: packs are tried first, and each
        single batch of those that fail or are in `suspects`.

        Raises:
            OSError: as `write_roll`, or the process does not run.
            RollFaultError: anything else, or the process has died.
            sqlite3.OperationalError: as `write_roll`.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("the process that writes segments does not run")
        order: dict[str, Any] = {"journal": str(journal), "roll": astuple(roll), "provenance": provenance}
        order["suspects"] = None if suspects is None else list(suspects)
        with self._busy:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            at: Unfit | None = None
            answer: dict[str, Any] = {}
            while not answer and (line := process.stdout.readline()):
                said = json.loads(line)
                if "at" in said:
                    at = Unfit(*said["at"]) if said["at"] else None
                else:
                    answer = said
        if not answer:
            died = f"the process that writes segments ended with status {process.wait()}"
            unfit = [at._replace(what=f"{at.what}: {died}")] if at else []
            raise RollFaultError(unfit[0].what if unfit else died, unfit)
        if "rows" in answer:
            return int(answer["rows"])
        if answer["kind"] == "fault":
            process.kill()  # a new one has its memory in one piece
            process.wait()
            raise RollFaultError(answer["error"], [Unfit(*one) for one in answer["unfit"]])
        raise (OSError if answer["kind"] == "lake" else sqlite3.OperationalError)(answer["error"])

    def close(self) -> None:
        """End it immediately: its roll will be repeated."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            with self._busy:  # a caller that waits for an answer has seen the end
                worker_process.close_pipes(process)


def main() -> None:
    """Write rolls until central is gone."""
    if not worker_process.begin(int(sys.argv[1]), nice=_NICE):
        return
    worker_process.bound_memory(int(sys.argv[4]))
    lake: Lake | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any]
        try:
            lake = lake or Lake(sys.argv[2], copies=Path(sys.argv[3]))
            answer = _answer(lake, order)
        except (OSError, sqlite3.OperationalError) as error:
            answer = {"kind": "lake" if isinstance(error, OSError) else "journal", "error": str(error)}
        except Exception as error:  # noqa: BLE001 - central logs it, once
            answer = {"kind": "fault", "error": _words(error), "unfit": []}
        _say(answer)


def _answer(lake: Lake, order: dict[str, Any]) -> dict[str, Any]:
    journal, roll = Path(order["journal"]), Roll(*order["roll"])
    careful = order["suspects"] is not None
    if careful:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (soft - soft // _SPARED, hard))
        try:
            unfit = _find_unfit(journal, roll, order["suspects"])
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if unfit:
            return {"kind": "fault", "error": unfit[0].what, "unfit": unfit}
    return {"rows": write_roll(lake, journal, roll, order["provenance"], careful=careful)}


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
