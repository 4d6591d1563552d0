"""Central with a stopwatch, for `study`: how long a batch is in the server, and what Python's collector takes.

From the moment that the message is handed to Python until its acknowledgement is handed to gRPC: a commit interval, the
flush, and the wait for each other of acknowledgements on one stream are in it; TLS and HTTP/2 are not. The collector's
times are CPU time. At SIGUSR1 what was measured since the last one is written, as JSON, to the file that STOPWATCH
names. It costs about 2 us a batch.
"""

import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from central.ingest.batches import Intake
from central.ingest.sessions import HostStream
from whitepanda.common import cli

_taken: dict[tuple[int, int], float] = {}  # (stream, sequence) -> when
_seconds: list[float] = []
_pauses: list[float] = []


def _watch_batches() -> None:
    quick, batch, drain = Intake.take_quick, Intake.take_batch, HostStream.drain

    def take_quick(self: Intake, flow: Any, layout: Any, sequence: int, raw: bytes) -> None:
        _taken[id(flow.stream), sequence] = time.perf_counter()
        quick(self, flow, layout, sequence, raw)

    def take_batch(self: Intake, flow: Any, message: Any, raw: bytes) -> Any:
        _taken.setdefault((id(flow.stream), message.sequence), time.perf_counter())
        return batch(self, flow, message, raw)

    def drained(self: HostStream) -> Any:
        now, me = time.perf_counter(), id(self)
        for ack in self._acks.values():
            _seconds.extend(now - _taken.pop((me, sequence), now) for sequence in ack.sequences)
        return drain(self)

    Intake.take_quick, Intake.take_batch, HostStream.drain = take_quick, take_batch, drained


def _watch_collector(phase: str, _facts: dict[str, int]) -> None:
    if phase == "start":
        _pauses.append(-time.thread_time())
    else:
        _pauses[-1] += time.thread_time()


def _tell(*_: object) -> None:
    path = Path(os.environ["STOPWATCH"])
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"seconds": _seconds, "pauses": _pauses}))
    _seconds.clear()
    _pauses.clear()
    unfinished.rename(path)


if __name__ == "__main__":
    _watch_batches()
    gc.callbacks.append(_watch_collector)
    signal.signal(signal.SIGUSR1, _tell)
    cli.main()
