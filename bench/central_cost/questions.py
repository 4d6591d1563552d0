"""What a flood of questions costs central: 240 connections ask by HTTP without a pause, on a lake of many small files.

    python -m bench.central_cost.questions [--seconds 30] [--clients 240] [--segments 16000]
    [--paths /v1/status,/v1/data-health]

Printed, alone and beside the flood: the times of /metrics and /healthz, an honest host's time to the acknowledgement,
the longest time without a new version (central builds every two seconds), how long a revocation took (central reads
the list every 5 s), and central's memory. The connections come from several addresses of this machine: central takes
64 of one.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from central import pki
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from tests.support.central_process import CentralProcess
from tests.support.honest_host import HonestHost, memory_mib

_FOLDER = Path(__file__).parents[2] / "build"  # git ignores it
PATHS = (
    "/v1/status", "/v1/data-health", "/v1/hosts", "/v1/incidents", "/v1/overview", "/v1/events", "/v1/job?job=web",
    "/v1/suspect-jobs", "/v1/job-statistics", "/v1/coefficients", "/v1/job-loadings", "/v1/host-timeline?host=host-0",
    "/v1/observation-plan?margin_percent=1", "/v1/vms/nobody/history", "/openapi.json",
)  # fmt: skip
_PER_ADDRESS = 60
_VMS, _INTERVAL_S = 20, 0.05  # of the honest host's batches
_DAYS = 100  # of the lake, older than builds look
_REVOKED_S = 150.0  # a revocation that is not in force by then never will be
_BEGINS_S, _SETTLED_S = 2.0, 10.0  # for the flood to begin, and for what it left to be done


def write_lake(lake: Lake, segments: int) -> None:
    """Fill days that no build reads with segments of one row."""
    today = int(time.time_ns() // DAY_NS)
    for day in range(_DAYS):
        start = (today - 400 + day) * DAY_NS
        known = {"sequence": 1, "start_unix_ns": start, "duration_ns": 10**10, "latency_sensitive": True}
        known |= {"cpu_usage_cores": 1.0, "cpi": 1.5}
        row = {field.name: "x" if field.type == pa.string() else None for field in SAMPLES} | known
        [first] = lake.write_segment(pa.Table.from_pylist([row], schema=SAMPLES), segment_stem("old", "0badcafe", 1))
        for number in range(2, segments // _DAYS + 1):
            os.link(first.path, first.path.with_name(segment_stem("old", "0badcafe", number) + ".parquet"))


async def flood(port: int, clients: int, paths: list[str]) -> None:
    """Ask until killed; print the number of answers by status whenever a line comes on standard input."""
    said: Counter[str] = Counter()

    async def ask(number: int) -> None:
        address = f"127.0.1.{1 + number // _PER_ADDRESS}"
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
                try:
                    for turn in range(10**9):
                        path = paths[(number + turn) % len(paths)]
                        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                        head = await reader.readuntil(b"\r\n\r\n")
                        await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
                        said[head[9:12].decode()] += 1
                finally:
                    writer.transport.abort()
            said["ended"] += 1
            await asyncio.sleep(0.1)

    asking = [asyncio.create_task(ask(number)) for number in range(clients)]
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(said), flush=True)
    for task in asking:
        task.cancel()


def fetch(port: int, path: str, timeout_s: float = 300.0) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
        found: bytes = answer.read()
        return found


class Times:
    """How long answers take, in ms, one after the other with a pause, until closed."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.found: list[float] = []
        self._ask, self._ended = ask, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            began = time.perf_counter()
            try:
                self._ask()
            except OSError as error:
                print(f"  failed after {time.perf_counter() - began:.1f} s: {error}")
            self.found.append((time.perf_counter() - began) * 1e3)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def _line(name: str, times: list[float] | np.ndarray) -> str:
    p50, p99 = np.percentile(times, [50, 99])
    return f"{name} {p50:.0f}/{p99:.0f}/{np.max(times):.0f}"


def versions(central: CentralProcess) -> list[float]:
    """When versions were built, in seconds since 1970."""
    found = re.findall(r"^timestamp=(\S+) .*version built", central.log.read_text(), re.MULTILINE)
    return [datetime.fromisoformat(each).timestamp() for each in found]


def revoke(central: CentralProcess, port: int) -> float:
    """Revoke a certificate; return after how many seconds central has it in force.

    Raises:
        TimeoutError: it is not within `_REVOKED_S`, or central does not answer.

    """
    serials = central.folder / "revoked"
    known = len(serials.read_text().splitlines())
    began = time.perf_counter()
    pki.revoke(Path(pki.issue(central.pki, f"revoked-{known}").certificate), serials)
    wanted = f"revoked_certificates {known + 1}.0".encode()
    while wanted not in fetch(port, "/metrics", _REVOKED_S):
        if time.perf_counter() - began > _REVOKED_S:
            raise TimeoutError(f"a revocation is not in force after {_REVOKED_S:g} s")
        time.sleep(0.05)
    return time.perf_counter() - began


def measure(central: CentralProcess, honest: HonestHost, port: int, what: str, seconds: float) -> None:
    """Print how central does meanwhile."""
    began = time.time()
    totals = Times(lambda: fetch(port, "/metrics"))
    health = Times(lambda: fetch(port, "/healthz"))
    revoked: list[float] = []
    revoking = threading.Thread(target=lambda: revoked.append(revoke(central, port)))
    revoking.start()
    acks = honest.latencies_ms(seconds, _INTERVAL_S)
    revoking.join()
    for each in (totals, health):
        each.close()
    ended = time.time()
    built = [began, *(at for at in versions(central) if began < at < ended), ended]
    print(
        f"{what}: p50/p99/most ms: {_line('/metrics', totals.found)}, {_line('/healthz', health.found)}, "
        f"{_line('acknowledgements', acks)}; revoked after {revoked[0]:.1f} s; {len(built) - 2} versions in "
        f"{ended - began:.0f} s, at most {np.max(np.diff(built)):.1f} s apart; rss {memory_mib(central):.0f} MiB",
        flush=True,
    )


@contextmanager
def started(folder: Path, segments: int) -> Iterator[tuple[CentralProcess, int]]:
    """Run a central below a folder, with a lake of so many files; yields it and its HTTP port."""
    revoked = folder / "revoked"
    revoked.touch()
    central = CentralProcess(
        folder, central=f'revoked_serials = "{revoked}"', ingest="roll_interval_s = 1", build="interval_s = 2"
    )
    central.http_listen = "127.0.0.1:0"
    write_lake(Lake(central.lake_dir), segments)
    try:
        central.start(timeout_s=120)
        yield central, int((central.state_dir / "http_port").read_text())
    finally:
        central.end()


@contextmanager
def flooding(port: int, clients: int, paths: Sequence[str]) -> Iterator[Callable[[], dict[str, int]]]:
    """Have another process ask meanwhile; what is yielded ends that and returns the number of answers by status."""
    command = [sys.executable, __file__, "--flood", str(port), f"--clients={clients}", f"--paths={','.join(paths)}"]
    asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> dict[str, int]:
        said, _ = asking.communicate("\n")
        found: dict[str, int] = json.loads(said)
        return found

    try:
        yield end
    finally:
        asking.kill()
        asking.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=240)
    parser.add_argument("--segments", type=int, default=16_000)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)  # the port: only ask
    arguments = parser.parse_args()
    paths = arguments.paths.split(",")
    if arguments.flood:
        asyncio.run(flood(arguments.flood, arguments.clients, paths))
        return
    _FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="whitepanda-bench-", dir=_FOLDER) as folder, ExitStack() as stack:
        central, port = stack.enter_context(started(Path(folder).resolve(), arguments.segments))
        honest = stack.enter_context(closing(HonestHost(central, _VMS)))
        honest.latencies_ms(5, _INTERVAL_S)
        fetch(port, "/metrics")  # reads every footer
        measure(central, honest, port, "alone", arguments.seconds)
        answers = stack.enter_context(flooding(port, arguments.clients, paths))
        time.sleep(_BEGINS_S)
        measure(central, honest, port, "beside the flood", arguments.seconds)
        said = answers()
        time.sleep(_SETTLED_S)
        print(f"answers: {said}; rss {_SETTLED_S:.0f} s later {memory_mib(central):.0f} MiB")
        log = central.log.read_text()
        if "Traceback" in log:
            sys.exit(f"central's log has a traceback: {log[log.index('Traceback') :][:2000]}")


if __name__ == "__main__":
    main()
