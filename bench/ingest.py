"""Ingest: real central, real gRPC over mTLS, journal flushed to the disk. Prints ratios beside a row-wise baseline.

    python bench/ingest.py [--seconds 20] [--clients 2] [--streams 16]

The clients run on the same machine and take their share of it; samples per second of central's own CPU time is the
figure that carries over to a machine of its own. The baseline is what one writes first: a JSON object per row on the
same kind of stream, checked row by row, one commit per batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil

from tests.support.central_process import CentralProcess
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS, SERVER_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, channel_credentials, server_credentials
from whitepanda.v1 import agent_pb2

IN_FLIGHT = 32
CONNECT = "/whitepanda.v1.AgentStream/Connect"


# A client: several streams, each with batches in flight, and the latency of every acknowledgement.


def columns_batch(rows: int, seed: int) -> agent_pb2.AgentMessage:
    rng = np.random.default_rng(seed)
    batch = agent_pb2.CpiBatch(spool_id=f"{time.time_ns():032x}", task_index=range(rows))
    now = time.time_ns()
    for row in range(rows):
        batch.tasks.add(
            vm=f"{seed:08x}-0000-4000-8000-{row:012x}",
            epoch="1795213165",
            job=f"job-{row % 20}",
            name=f"vm-{row}",
        )
    batch.start_unix_ns.extend([now] * rows)
    batch.duration_ns.extend([10**10] * rows)
    for name in ("cpi", "cpu_usage_cores", "running_ratio", "run_queue_wait_ratio", "disk_bytes_per_s"):
        getattr(batch, name).extend(rng.uniform(0.1, 1.0, rows))
    batch.network_bytes_per_s.extend(rng.uniform(0, 1e9, rows))
    for name in ("cycles", "instructions"):
        getattr(batch, name).extend(rng.integers(1, 10**11, rows))
    return agent_pb2.AgentMessage(batch=batch)


def json_batch(message: agent_pb2.AgentMessage) -> dict[str, Any]:
    batch = message.batch
    names = ("start_unix_ns", "duration_ns", "cpi", "cpu_usage_cores", "cycles", "instructions", "running_ratio",
             "run_queue_wait_ratio", "disk_bytes_per_s", "network_bytes_per_s")  # fmt: skip
    columns = [list(getattr(batch, name)) for name in names]
    rows = [
        {"vm": t.vm, "epoch": t.epoch, "job": t.job, **{n: c[i] for n, c in zip(names, columns, strict=True)}}
        for i, t in enumerate(batch.tasks)
    ]
    return {"spool_id": batch.spool_id, "sequence": 0, "rows": rows}


class Stream:
    def __init__(self, options: dict[str, Any], host: str, seed: int) -> None:
        self.options = options
        self.host = host
        self.sent: dict[int, float] = {}
        self.latencies: list[float] = []
        self.room = asyncio.Semaphore(IN_FLIGHT)
        self.message = columns_batch(options["rows"], seed)
        self.as_json = json_batch(self.message) if options["baseline"] else None

    def encode(self, sequence: int) -> bytes:
        if self.as_json is not None:
            self.as_json["sequence"] = sequence
            return json.dumps(self.as_json).encode()
        self.message.batch.sequence = sequence
        return self.message.SerializeToString()

    async def run(self, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host=self.host, platform="P", protocol_version=2, min_protocol_version=1)
        await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        reader = asyncio.create_task(self.read(call))
        sequence, pause = 0, self.options["interval_s"]
        until = time.monotonic() + self.options["seconds"]
        while time.monotonic() < until and (
            not self.options["batches"] or sequence < self.options["batches"]
        ):
            await self.room.acquire()
            sequence += 1
            raw = self.encode(sequence)
            self.sent[sequence] = time.perf_counter()
            await call.write(raw)
            if pause:
                await asyncio.sleep(pause)
        await call.done_writing()
        await reader

    async def read(self, call: Any) -> None:
        while (raw := await call.read()) is not grpc.aio.EOF:
            if self.as_json is not None:
                self.done(int(raw), int(raw))
                continue
            message = agent_pb2.CentralMessage.FromString(raw)
            for one in message.ack.ranges:
                self.done(one.first, one.last)
            assert not message.ack.rejected_rows, message

    def done(self, first: int, last: int) -> None:
        now = time.perf_counter()
        for sequence in range(first, last + 1):
            self.latencies.append(now - self.sent.pop(sequence))
            self.room.release()


async def client(options: dict[str, Any]) -> None:
    credentials = channel_credentials(TlsFiles(**options["tls"]))
    streams = [Stream(options, host, seed) for seed, host in enumerate(options["hosts"])]
    channels = [
        grpc.aio.secure_channel(options["address"], credentials, options=CLIENT_CHANNEL_OPTIONS)
        for _ in streams
    ]
    await asyncio.gather(*(s.run(c) for s, c in zip(streams, channels, strict=True)))
    assert not any(stream.sent for stream in streams), "not everything was acknowledged"
    print(json.dumps([latency for stream in streams for latency in stream.latencies]))


# The baseline's server.


async def baseline_server(options: dict[str, Any]) -> None:
    db = sqlite3.connect(options["file"], isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE samples (host, spool_id, sequence, vm, epoch, job, start, duration, cpi, usage, cycles,"
               " instructions, ratio, wait, disk, network)")  # fmt: skip

    async def connect(_requests: object, context: Any) -> None:
        hello = agent_pb2.AgentMessage.FromString(await context.read()).hello
        while (raw := await context.read()) is not grpc.aio.EOF:
            batch = json.loads(raw)
            db.execute("BEGIN")
            for r in batch["rows"]:
                ok = 0 < r["cpi"] < 100 and 0 <= r["cpu_usage_cores"] < 4096 and r["duration_ns"] > 0
                if ok and r["job"] and r["vm"]:
                    db.execute(
                        "INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                        (hello.host, batch["spool_id"], batch["sequence"], *r.values()),
                    )
            db.execute("COMMIT")
            await context.write(str(batch["sequence"]).encode())

    server = grpc.aio.server(options=(*SERVER_CHANNEL_OPTIONS, ("grpc.max_receive_message_length", 64 << 20)))
    handlers = {"Connect": grpc.stream_stream_rpc_method_handler(connect)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("whitepanda.v1.AgentStream", handlers),)
    )
    port = server.add_secure_port("127.0.0.1:0", server_credentials(TlsFiles(**options["tls"])))
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


# The measurement.


class Bench:
    def __init__(self, folder: Path, clients: int, streams: int) -> None:
        self.folder, self.clients, self.streams = folder, clients, streams
        self.central = CentralProcess(folder, ingest="roll_interval_s = 3.0")
        self.hosts = [f"host-{n}" for n in range(clients * streams)]
        self.tls = self.central.client("bench", *self.hosts)

    def load(self, address: str, server: psutil.Process, **options: Any) -> dict[str, float]:
        """Run the clients against a server; its CPU time and memory are read before and after."""
        options = {"seconds": 3600.0, "batches": 0, "interval_s": 0.0, "baseline": False, **options}
        options |= {"address": address, "tls": _as_dict(self.tls)}
        before, began = server.cpu_times(), time.perf_counter()
        processes = []
        for number in range(self.clients):
            mine = self.hosts[number * self.streams : (number + 1) * self.streams]
            arguments = [sys.executable, __file__, "--client", json.dumps({**options, "hosts": mine})]
            processes.append(subprocess.Popen(arguments, stdout=subprocess.PIPE))
        latencies: list[float] = []
        for process in processes:
            out, _ = process.communicate()
            if process.returncode:
                sys.exit("a client failed")
            latencies += json.loads(out)
        took, after = time.perf_counter() - began, server.cpu_times()
        cpu = after.user + after.system - before.user - before.system
        samples = len(latencies) * options["rows"]
        p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
        return {"samples": samples, "took": took, "rate": samples / took, "per_cpu": samples / cpu, "cpu": cpu,
                "p50": p50, "p99": p99, "rss": server.memory_info().rss / 2**20}  # fmt: skip

    def baseline(self, rows: int, seconds: float) -> dict[str, float]:
        tls = {"ca": f"{self.central.pki}/ca.crt", "certificate": f"{self.central.pki}/central.crt",
               "key": f"{self.central.pki}/central.key"}  # fmt: skip
        options = {"file": str(self.folder / f"baseline-{rows}.sqlite"), "tls": tls}
        process = subprocess.Popen(
            [sys.executable, __file__, "--baseline-server", json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            port = int(process.stdout.readline())
            server = psutil.Process(process.pid)
            return self.load(f"localhost:{port}", server, rows=rows, seconds=seconds, baseline=True)
        finally:
            process.kill()
            process.wait()


def _as_dict(files: TlsFiles) -> dict[str, str]:
    return {"ca": files.ca, "certificate": files.certificate, "key": files.key}


def _show(what: str, r: dict[str, float]) -> None:
    print(
        f"{what:<44}{r['rate']:>10,.0f} samples/s {r['per_cpu']:>10,.0f} per server CPU s   "
        f"ack p50 {r['p50']:6.1f} ms  p99 {r['p99']:6.1f} ms   rss {r['rss']:4.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long it takes in all")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16, help="per client")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--baseline-server", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        return asyncio.run(client(json.loads(arguments.client)))
    if arguments.baseline_server:
        return asyncio.run(baseline_server(json.loads(arguments.baseline_server)))
    part = arguments.seconds / 10
    with tempfile.TemporaryDirectory(prefix="whitepanda-bench-", dir=".") as folder:
        bench = Bench(Path(folder).resolve(), arguments.clients, arguments.streams)
        bench.central.start()
        try:
            _measure(bench, part)
        finally:
            bench.central.end()
    return None


def _measure(bench: Bench, part: float) -> None:
    server = psutil.Process(bench.central.process.pid)
    address = bench.central.address
    count = bench.clients * bench.streams
    paced = bench.load(address, server, rows=25, seconds=part, interval_s=0.1)
    _show(f"{count} agents of 25 VMs, 10 batches/s each", paced)
    small = bench.load(address, server, rows=25, seconds=part)
    _show(f"{count} agents of 25 VMs, all they can", small)
    large = bench.load(address, server, rows=1000, seconds=part)
    _show(f"{count} importers, 1000 rows a batch", large)
    base = bench.baseline(25, part)
    _show("baseline: JSON rows, a commit a batch (25)", base)
    base_large = bench.baseline(1000, part)
    _show("baseline: JSON rows, a commit a batch (1000)", base_large)
    for rows, ours, theirs in ((25, small, base), (1000, large, base_large)):
        print(
            f"against the baseline, {rows} rows a batch: {ours['rate'] / theirs['rate']:.1f} x samples/s, "
            f"{ours['per_cpu'] / theirs['per_cpu']:.1f} x samples per server CPU second"
        )
    batches = max(5, int(large["rate"] * part / 20 / 1000 / count))
    one = bench.load(address, server, rows=1000, batches=batches)
    ten = bench.load(address, server, rows=1000, batches=10 * batches)
    print(
        f"growth: x10 rows ({one['samples']:,.0f} to {ten['samples']:,.0f}) take x{ten['cpu'] / one['cpu']:.1f} "
        f"server CPU time, memory {one['rss']:.0f} to {ten['rss']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
