"""What `study` stands beside: Prometheus receives the same values by remote write, batched as it likes best.

Each value of a VM's window is a sample, each of a series of its own. A request has 10,000 samples, snappy as
the protocol asks, on a connection that stays open. The first round of samples makes the series and is not counted;
there are no more series than of the hosts given, which is in Prometheus' favour: 4 million of them need 12 GB.
"""

import http.client
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa

from bench.ingest.agents import values_of, varint

_SAMPLES = 10_000  # of a request
_STEP_MS = 10_000
_VARIANTS = 16


def version() -> str | None:
    """Return what Prometheus calls itself, None where it is not installed."""
    if shutil.which("prometheus") is None:
        return None
    known = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    return (known.stdout + known.stderr).split(",")[1].split("(")[0].strip()


def _series(hosts: int, vms: int, count: int) -> list[bytes]:
    """Return each series' labels, and what comes before its one sample."""
    names = list(values_of(0, 1, count))
    found = []
    for host in range(hosts):
        for vm in range(vms):
            labels = {"epoch": "1795213165", "host": f"host-{host}", "job": f"job-{(host + vm) % 500}"}
            labels["vm"] = f"{host:08x}-0000-4000-8000-{vm:012x}"
            for name in names:
                texts = [(k.encode(), v.encode()) for k, v in [("__name__", f"vm_{name}"), *labels.items()]]
                pairs = [b"\x0a" + varint(len(k)) + k + b"\x12" + varint(len(v)) + v for k, v in texts]
                block = b"".join(b"\x0a" + varint(len(pair)) + pair for pair in pairs)
                found.append(b"\x0a" + varint(len(block) + 18) + block + b"\x12\x10\x09")
    return found


def _requests(series: list[bytes], hosts: int, vms: int, count: int, seed: int, unix_ms: int) -> list[bytes]:
    """Return the requests of one round: a sample of each series."""
    stamp = b"\x10" + varint(unix_ms)
    values: list[bytes] = []
    for host in range(hosts):
        columns = values_of((host + seed) % _VARIANTS, vms, count).values()
        values += [struct.pack("<d", value) for row in zip(*columns, strict=True) for value in row]
    codec = pa.Codec("snappy")
    each = [head + value + stamp for head, value in zip(series, values, strict=True)]
    return [codec.compress(b"".join(each[at : at + _SAMPLES]), asbytes=True) for at in range(0, len(each), _SAMPLES)]


class Prometheus:
    """A server of its own, in `folder`."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        folder.mkdir()
        (folder / "prometheus.yml").write_text("global: {}\n")
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                "--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def __enter__(self) -> Self:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def windows_per_cpu_s(self, *, hosts: int, vms: int, values: int, rounds: int) -> float:
        """Write a round that is not counted and then `rounds` more; returns VM windows per CPU second."""
        series = _series(hosts, vms, values)
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }  # fmt: skip
        first_ms = int(time.time() * 1000) - (rounds + 1) * _STEP_MS
        server = psutil.Process(self.process.pid)
        cpu = 0.0
        for number in range(rounds + 1):
            requests = _requests(series, hosts, vms, values, number, first_ms + number * _STEP_MS)
            before = server.cpu_times()
            for body in requests:
                connection.request("POST", "/api/v1/write", body, headers)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status not in (200, 204):
                    raise RuntimeError(f"Prometheus answers {answer.status}: {text[:200]!r}")
            after = server.cpu_times()
            if number:
                cpu += after.user + after.system - before.user - before.system
        return hosts * vms * rounds / cpu
