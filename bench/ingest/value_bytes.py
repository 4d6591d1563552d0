"""Bytes per metric value: on the wire, all in, and in the lake.

    python -m bench.ingest.value_bytes [--minutes 60] [--recording FILE ...]

Three hosts are measured, by windows that differ: values that come again and again compress to nothing. So there is a
verdict only where enough windows are distinct, and "no evidence" elsewhere.

- simulated: a host of the demonstration (collector/simulated), on a clock that runs as fast as it can;
- recorded: a real host, as `whitepanda record` wrote it down, once and no longer than it lasts. That of
  tests/fixtures lasts seconds; --recording names others;
- counters: hardware counters of a real server running 26 applications, second by second
  ($WHITEPANDA_DATA/dcslab/counters.parquet), as if ten VMs had run them with windows of 1 s. CPU
  times follow from cycles there.

Wire: gRPC messages of one stream as the agent sends them, with names, times, reasons and framing, without HTTP/2 and
TLS. Lake: one segment. A value is one that is known.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.recording.playback import Playback, cloud_white_of
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode, in_stream
from agent.uplink.outgoing import Outgoing
from central.demo.fleet import SLOT_S, TICK_S, make_fleet
from central.lake.segments import Lake, segment_stem
from central.validation.samples import StoredBatch, samples_tables
from collector.base import (
    PerfCounters,
    PerfGroup,
    RdtCounters,
    RdtDomain,
    SourceSample,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.registry import SOURCES
from collector.simulated.source import SimulatedSource
from tests.unit.agent.agent_fakes import FakeClock
from whitepanda.v1 import agent_pb2

_ROOT = Path(__file__).parents[2]
RECORDING = _ROOT / "tests" / "fixtures" / "recordings" / "three_vms.jsonl"
_GRPC_FRAME = 5
_COUNTERS = Path("dcslab") / "counters.parquet"
_COUNTERS_VMS, _CORES = 10, 8
_SECOND_NS = 10**9
#: Our events, and the server's columns.
_EVENTS = {
    "cycles": "cycles",
    "instructions": "instructions",
    "l2_misses": "l2_misses",
    "llc_misses": "l3_misses",
    "total_stall_cycles": "stall_cycles",
}
#: Windows that differ, and their share of all: with fewer, a segment is its header and repetitions.
_LEAST_DISTINCT, _LEAST_SHARE = 1000, 0.9
WIRE_BAR, LAKE_BAR = 6.0, 3.0


class Bytes(NamedTuple):
    """Bytes per value that is known, of so many windows with different values; `is_evidence`: these are enough."""

    wire: float
    lake: float
    windows: int
    distinct: int

    @property
    def is_evidence(self) -> bool:
        return self.distinct >= _LEAST_DISTINCT and self.distinct >= _LEAST_SHARE * self.windows


def demo_host(folder: Path, minutes: float) -> Iterator[list[CpiWindow]]:
    """Yield the windows of a demonstration host, those that end together."""
    host = make_fleet(1, folder / "start").hosts[0]
    (folder / "scenario.toml").write_text(host.live_toml)
    clock = FakeClock()
    source = SimulatedSource(folder / "scenario.toml", mono_ns=lambda: clock.mono, unix_ns=lambda: clock.unix)
    source.open()
    config = AgentConfig(AgentSection(tick_s=TICK_S, window_s=SLOT_S))
    pipeline = Pipeline(config, Slots((), clock))
    cloud_white = CloudWhite(config.cloud_white, load(()))
    decisions = Decisions(config, cloud_white, None)
    troubles = {spec.name: None for spec in SOURCES if spec.name == "simulated"}
    for _ in range(round(minutes * 60 / TICK_S)):
        clock.advance(round(TICK_S * 1e9))
        ended = pipeline.process(Inputs(clock.mono, [source.sample()], troubles))
        cloud_white.tick(pipeline.table, pipeline.host_rates, clock.mono, clock.unix)
        decisions.tick(pipeline.table, clock.mono, clock.unix)
        if ended:
            yield decisions.with_verdicts(ended)
    source.close()


def recorded_host(file: Path) -> Iterator[list[CpiWindow]]:
    """Yield the windows of a recorded host, those that end together, with verdicts as the agent makes them."""
    config = AgentConfig(AgentSection())
    cloud_white = cloud_white_of(config.cloud_white)
    assert cloud_white is not None
    decisions = Decisions(config, cloud_white, None)
    with Playback(file) as playback:
        pipeline = playback.pipeline
        for tick, windows in playback.ticks():
            cloud_white.tick(pipeline.table, pipeline.host_rates, tick.mono_ns, tick.unix_ns)
            decisions.tick(pipeline.table, tick.mono_ns, tick.unix_ns)
            if windows:
                yield decisions.with_verdicts(windows)
        if last := pipeline.windows.flush():
            yield last


def counted_host(file: Path) -> Iterator[list[CpiWindow]]:
    """Yield windows of a second, those that end together, made of a real server's counters; VMs share the runs out."""
    rows = pq.read_table(file).to_pylist()
    each = -(-len(rows) // _COUNTERS_VMS)
    vms = [_CountedVm(number, rows[first : first + each]) for number, first in enumerate(range(0, len(rows), each))]
    identities = tuple(vm.identity for vm in vms)
    clock = FakeClock()
    pipeline = Pipeline(AgentConfig(AgentSection(tick_s=1.0, window_s=1.0)), Slots((), clock))
    for second in range(each + 1):
        clock.advance(_SECOND_NS)
        samples = {vm.identity.uuid: vm.sample() for vm in vms}
        sample = SourceSample("simulated", clock.mono, clock.unix, samples, inventory=identities)
        if ended := pipeline.process(Inputs(clock.mono, [sample], {"simulated": None})):
            yield ended
        for vm in vms:
            vm.advance(second)
    yield pipeline.windows.flush()


class _CountedVm:
    """A VM whose counters go on by a row of the server's each second."""

    def __init__(self, number: int, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self._sums = dict.fromkeys(_EVENTS, 0)
        self._cpu_ns = self._total = self._local = self._occupied = 0
        uuid = f"5750{number:04x}-0000-4000-8000-000000000000"
        self.identity = VmIdentity(
            uuid, f"vm-{number}", 100 + number, "1", vcpu_tids=tuple(range(_CORES * number, _CORES * (number + 1)))
        )

    def advance(self, second: int) -> None:
        if second >= len(self._rows):
            return
        row = self._rows[second]
        for name, column in _EVENTS.items():
            self._sums[name] += row[column]
        self._cpu_ns += round(row["cpu_cores"] * 1e9)
        self._total += row["memory_bytes_local"] + row["memory_bytes_remote"]
        self._local += row["memory_bytes_local"]
        self._occupied = row["llc_occupancy_bytes"]

    def sample(self) -> VmSample:
        tids, cpu_ns = self.identity.vcpu_tids, self._cpu_ns // _CORES
        group = PerfGroup(1, cpu_ns, cpu_ns, tuple(count // _CORES for count in self._sums.values()))
        return VmSample(
            self.identity.epoch,
            dict.fromkeys(tids, ThreadCounters(cpu_ns, cpu_ns, None, 1)),
            PerfCounters((tuple(_EVENTS),), dict.fromkeys(tids, (group,))),
            rdt=RdtCounters(1, {"00": RdtDomain(self._occupied, self._total, self._local)}),
        )


def batches(host: Iterable[list[CpiWindow]]) -> Iterator[agent_pb2.CpiBatch]:
    """Yield a host's batches, one for the windows that end together."""
    outgoing = Outgoing(AgentConfig(AgentSection()).windows)
    for number, windows in enumerate(host, 1):
        yield encode(outgoing.prepare(windows), spool_id="0" * 32, sequence=number)


def values_in(batch: agent_pb2.CpiBatch) -> int:
    """Count the values of a batch that are known."""
    columns = (batch.cpi, batch.cpu_usage_cores, batch.metrics.values)
    return sum(not math.isnan(value) for column in columns for value in column)


def rows_of(batch: agent_pb2.CpiBatch) -> set[tuple[int, bytes]]:
    """Return each window's VM and values, without times."""
    count = len(batch.task_index)
    columns = [np.array(column, np.float64) for column in (batch.cpi, batch.cpu_usage_cores) if column]
    table = np.vstack([*columns, np.array(batch.metrics.values, np.float64).reshape(-1, count)])
    return {(task, row.tobytes()) for task, row in zip(batch.task_index, table.T, strict=True)}


def measure(name: str, host: Iterable[list[CpiWindow]], folder: Path) -> Bytes:
    """Print and return bytes per value of a host's windows: on the wire, in the lake."""
    values = wire = rows = 0
    head = b""
    stored = []
    distinct: set[tuple[int, bytes]] = set()
    for batch in batches(host):
        message, head = in_stream(batch, head)
        wire += message.ByteSize() + _GRPC_FRAME
        values += values_in(batch)
        rows += len(batch.task_index)
        distinct |= rows_of(batch)
        del batch.reasons[:]
        stored.append(StoredBatch(name, "P", batch.spool_id, batch.sequence, batch.SerializeToString()))
    (table,) = samples_tables(stored, 1 << 40)
    segments = Lake(folder / name).write_segment(table, segment_stem("central-0", "0badcafe", 1))
    size = sum(segment.path.stat().st_size for segment in segments)
    found = Bytes(wire / values, size / values, rows, len(distinct))
    print(f"{name}: {len(stored):,} batches, {rows:,} windows, {values / rows:.1f} values known of each")
    for what, each, limit in (("wire", found.wire, WIRE_BAR), ("lake", found.lake, LAKE_BAR)):
        verdict = "pass" if each <= limit else "MISS"
        if not found.is_evidence:
            verdict = f"no evidence: {found.distinct:,} distinct windows"
        print(f"  BAR {what}: {each:.2f} bytes per value <= {limit:g}: {verdict}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of the simulated host")
    parser.add_argument("--recording", type=Path, nargs="+", default=[RECORDING], help="of real hosts")
    options = parser.parse_args()
    usual = os.environ.get("WHITEPANDA_DATA", _ROOT.parent / "shared" / "data")
    counters = Path(usual) / _COUNTERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("simulated", demo_host(folder, options.minutes), folder)
        for file in options.recording:
            measure(f"recorded {file.stem}", recorded_host(file), folder)
        if counters.exists():
            measure("counters of a real server", counted_host(counters), folder)
        else:
            print(f"counters of a real server: no evidence: no data at {counters}; set WHITEPANDA_DATA")


if __name__ == "__main__":
    main()
