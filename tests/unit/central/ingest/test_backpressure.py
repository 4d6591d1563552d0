"""Backpressure: when agents are asked to send less often, and when no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from central.config import IngestSection
from central.ingest.backpressure import Flow, Room
from central.ingest.peers import Peers
from central.ingest.sessions import HostStream
from central.journal.writer import HostRecord, Journal


async def test_agents_slow_down_from_half_of_what_may_be_pending_to_a_quarter() -> None:
    journal = SimpleNamespace(failure="", on_failure=[])
    room = Room(IngestSection(max_pending_batches=16), cast("Journal", journal))
    flow = Flow(HostStream("h1"), HostRecord("h1"), Peers().enter(frozenset({"h1"})))
    paces = []
    for change in (room.begin,) * 8 + (room.end, room.begin) + (room.end,) * 4:
        change(flow, 10)
        paces.append((room.pending, flow.stream.min_batch_interval_ms))
    assert paces[6:] == [(7, 0), (8, 1000), (7, 1000), (8, 1000), (7, 1000), (6, 1000), (5, 1000), (4, 0)]
    # One message each way, not one per batch near the limit.
    assert [message.slow_down.min_batch_interval_ms for message in flow.stream.drain()] == [1000, 0]
