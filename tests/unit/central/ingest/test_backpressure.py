"""Backpressure: when agents are asked to send less often, and when no more."""

from types import SimpleNamespace
from typing import cast

import pytest

from central.config import IngestSection
from central.ingest.backpressure import Backpressure, Flow
from central.ingest.peers import Peers
from central.ingest.sessions import HostStream
from central.journal.tables import HostRecord
from central.journal.writer import Journal


def a_room(max_pending_batches: int) -> tuple[Backpressure, Flow]:
    journal = SimpleNamespace(failure="", on_failure=[])
    room = Backpressure(IngestSection(max_pending_batches=max_pending_batches), cast("Journal", journal))
    return room, Flow(HostStream("h1"), HostRecord("h1"), Peers().enter((frozenset({"h1"}), "")))


async def test_agents_slow_down_from_half_of_what_may_be_pending_to_a_quarter() -> None:
    room, flow = a_room(16)
    paces = []
    for change in (room.begin,) * 8 + (room.end, room.begin) + (room.end,) * 4:
        change(flow, 10)
        paces.append((room.pending, flow.stream.min_batch_interval_ms))
    assert paces[6:] == [(7, 0), (8, 1000), (7, 1000), (8, 1000), (7, 1000), (6, 1000), (5, 1000), (4, 0)]
    # One message each way, not one per batch near the limit.
    assert [message.slow_down.min_batch_interval_ms for message in flow.stream.drain()] == [1000, 0]


async def test_the_bytes_that_are_pending_slow_agents_down_likewise() -> None:
    room, flow = a_room(10_000)
    paces = []
    for change in (room.begin,) * 4 + (room.end,) * 4:
        change(flow, 20 << 20)
        paces.append((room.pending_bytes >> 20, flow.stream.min_batch_interval_ms))
    assert paces == [(20, 0), (40, 0), (60, 0), (80, 1000), (60, 1000), (40, 1000), (20, 0), (0, 0)]


@pytest.mark.parametrize("most", [1, 2, 3, 4])
async def test_a_lone_batch_slows_nobody_down(most: int) -> None:
    room, flow = a_room(most)
    for _ in range(5):
        room.begin(flow, 10)
        room.end(flow, 10)
    assert flow.stream.drain() == []
