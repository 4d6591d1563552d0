"""Bytes per metric value: on the wire, all in, and in the lake.

    python -m bench.ingest.value_bytes [--minutes 60]

Two hosts are measured: one of the demonstration, simulated on a clock that runs as fast as it can, and the recorded one
of tests/fixtures, whose ticks are played again and again. Wire: gRPC messages of one stream as the agent sends them,
with names, times, reasons and framing, without HTTP/2 and TLS. Lake: one segment. A value is one that is known.
"""

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.recording.replay import RecordedRows
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode, in_stream
from agent.uplink.outgoing import Outgoing
from central.demo.fleet import SLOT_S, TICK_S, make_fleet
from central.lake.segments import Lake, segment_stem
from central.validation.samples import StoredBatch, samples_tables
from collector.registry import SOURCES
from collector.simulated.source import SimulatedSource
from tests.unit.agent.agent_fakes import FakeClock
from whitepanda.v1 import agent_pb2

_ROOT = Path(__file__).parents[2]
_RECORDING = _ROOT / "tests" / "fixtures" / "recordings" / "three_vms.jsonl"
_GRPC_FRAME = 5
_WINDOW_NS = 10 * 10**9
WIRE_BAR, LAKE_BAR = 6.0, 3.0


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


def demo_batches(folder: Path, minutes: float) -> Iterator[agent_pb2.CpiBatch]:
    """Yield the batches of a demonstration host."""
    outgoing = Outgoing(AgentConfig(AgentSection()).windows)
    for number, windows in enumerate(demo_host(folder, minutes), 1):
        yield encode(outgoing.prepare(windows), spool_id="0" * 32, sequence=number)


def recorded_batches(minutes: float) -> Iterator[agent_pb2.CpiBatch]:
    """Yield the recorded host's batches again and again, each time a window later."""
    (recorded,) = RecordedRows([_RECORDING]).batches("0" * 32)
    del recorded.events[:]
    for number in range(1, round(minutes * 6) + 1):
        batch = agent_pb2.CpiBatch()
        batch.CopyFrom(recorded)
        batch.sequence = number
        batch.start_unix_ns[:] = [start + number * _WINDOW_NS for start in recorded.start_unix_ns]
        if number > 1:
            del batch.reasons[:]
        yield batch


def values_in(batch: agent_pb2.CpiBatch) -> int:
    """Count the values of a batch that are known."""
    columns = (batch.cpi, batch.cpu_usage_cores, batch.metrics.values)
    return sum(not math.isnan(value) for column in columns for value in column)


def measure(name: str, batches: Iterable[agent_pb2.CpiBatch], folder: Path) -> tuple[float, float]:
    """Print and return bytes per value of a host's batches: on the wire, in the lake."""
    values = wire = rows = 0
    head = b""
    stored = []
    for batch in batches:
        message, head = in_stream(batch, head)
        wire += message.ByteSize() + _GRPC_FRAME
        values += values_in(batch)
        rows += len(batch.task_index)
        del batch.reasons[:]
        stored.append(StoredBatch(name, "P", batch.spool_id, batch.sequence, batch.SerializeToString()))
    (table,) = samples_tables(stored, 1 << 40)
    segments = Lake(folder / name).write_segment(table, segment_stem("central-0", "0badcafe", 1))
    size = sum(segment.path.stat().st_size for segment in segments)
    print(f"{name}: {len(stored):,} batches, {rows:,} windows, {values / rows:.1f} values known of each")
    for what, found, limit in (("wire", wire / values, WIRE_BAR), ("lake", size / values, LAKE_BAR)):
        print(f"  BAR {what}: {found:.2f} bytes per value <= {limit:g}: {'pass' if found <= limit else 'MISS'}")
    return wire / values, size / values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("demo", demo_batches(folder, minutes), folder)
        measure("recorded", recorded_batches(minutes), folder)


if __name__ == "__main__":
    main()
