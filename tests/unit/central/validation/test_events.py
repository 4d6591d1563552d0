"""Events of VMs at central: checked one by one, counted once, kept up to a cap, listed to operators."""

import asyncio
import math

import pytest

from agent.analysis.verdict import Degradation, Evidence
from agent.antagonists.vm_events import VmEvent
from agent.uplink.batches import encode
from central.journal.tables import Submission
from central.journal.writer import Journal
from central.validation.events import check_events
from central.validation.rows import Limits, Sender
from whitepanda.v1 import agent_pb2

NOW = 1_800_000_000 * 10**9
DAY = 86_400 * 10**9


def event(**changes) -> VmEvent:
    values = {
        "vm": "u1",
        "epoch": "e1",
        "name": "web-1",
        "job": "web",
        "latency_sensitive": True,
        "unix_ns": NOW - 10**9,
        "behaviour": "victim",
        "before": "steady",
        "lasted_ns": 5 * 10**9,
        "reason": "ipc 0.5 is below 0.9",
        "evidence": (Evidence("ipc", 0.5, 1.0, 0.9),),
        "degradation": Degradation(1.4, 1.3, 1.6, model="m: glm"),
        "culprits": ("u2",),
    }
    return VmEvent(**(values | changes))


def batch_of(*events: VmEvent) -> agent_pb2.CpiBatch:
    return encode([], spool_id="s", sequence=1, events=events)


def checked(batch: agent_pb2.CpiBatch, *, host: str = "h1", is_importer: bool = False):
    return check_events(batch, Sender(host, "", is_importer=is_importer, limits=Limits(), now_unix_ns=NOW))


def test_an_event_arrives_as_it_was_found() -> None:
    (row,), rejected = checked(batch_of(event()))
    assert rejected == {}
    assert (row.host, row.unix_ns, row.vm, row.name) == ("h1", NOW - 10**9, "u1", "web-1")
    found = agent_pb2.VmEvent.FromString(row.payload)
    assert (found.behaviour, found.before) == (agent_pb2.BEHAVIOUR_VICTIM, agent_pb2.BEHAVIOUR_STEADY)
    assert (found.lasted_ns, found.reason, list(found.culprits)) == (5 * 10**9, "ipc 0.5 is below 0.9", ["u2"])
    assert (found.degradation.ratio, found.degradation.low, found.degradation.high) == (1.4, 1.3, 1.6)
    assert (found.evidence[0].signal, found.evidence[0].threshold) == ("ipc", 0.9)
    (row,), _ = checked(batch_of(event(degradation=None)))
    assert not agent_pb2.VmEvent.FromString(row.payload).HasField("degradation")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vm": ""}, "bad_event"),
        ({"vm": "x" * 600}, "bad_event"),
        ({"name": "a\nb"}, "bad_event"),
        ({"reason": "\x1b[31m"}, "bad_event"),
        ({"reason": "x" * 20_000}, "bad_event"),
        ({"culprits": ("a\x00",)}, "bad_event"),
        ({"unix_ns": NOW + 2 * 3600 * 10**9}, "bad_event_time"),
        ({"unix_ns": NOW - 401 * DAY}, "bad_event_time"),
    ],
)
def test_what_cannot_be_used_costs_itself_only(changes: dict, reason: str) -> None:
    taken, rejected = checked(batch_of(event(vm="before"), event(**changes), event(vm="after")))
    assert [row.vm for row in taken] == ["before", "after"]
    assert rejected == {reason: 1}


def test_an_event_must_say_what_began() -> None:
    batch = batch_of(event())
    batch.events[0].behaviour = agent_pb2.BEHAVIOUR_UNSPECIFIED
    assert checked(batch) == ([], {"bad_event": 1})


def test_only_importers_speak_for_others_and_of_any_time() -> None:
    batch = batch_of(event(unix_ns=5))
    batch.events[0].machine = "h2"
    assert checked(batch) == ([], {"bad_event": 1})
    (row,), _ = checked(batch, is_importer=True)
    assert (row.host, row.unix_ns) == ("h2", 5)


def test_a_flood_is_cut() -> None:
    taken, rejected = checked(batch_of(*[event()] * 1003))
    assert (len(taken), rejected) == (1000, {"too_many_events": 3})


class Kept:
    """A journal that is given batches of events only."""

    def __init__(self, folder, **more) -> None:
        self.journal = Journal(folder, replica="central-0", commit_interval_s=0.001, **more)
        self.journal.start()

    async def take(self, sequence: int, *events: VmEvent, **rejected: int) -> bool:
        return await self.take_of("h1", sequence, *events, **rejected)

    async def take_of(self, host: str, sequence: int, *events: VmEvent, **rejected: int) -> bool:
        rows, _ = checked(batch_of(*events), host=host)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.journal.submit(
            Submission(host, "P", "s", sequence, NOW, b"", 0, 0, {}, None, done.set_result, "", tuple(rows), rejected)
        )
        return await asyncio.wait_for(done, 10)

    def vms(self, **wanted) -> list[str]:
        found = self.journal.read_events(**({"before_id": 2**62, "limit": 100} | wanted))
        return [row.vm for _, row in found]


def test_a_vm_that_is_affected_is_an_event_and_an_unknown_analysis_none() -> None:
    batch = batch_of(event(vm="good"), event(vm="bad"))
    for one in batch.events:
        one.behaviour = agent_pb2.BEHAVIOUR_AFFECTED
    batch.events[0].found_by.append(agent_pb2.ANALYSIS_FLEET)
    batch.events[1].found_by.append(9)
    (row,), rejected = checked(batch)
    assert (row.vm, row.behaviour, rejected) == ("good", agent_pb2.BEHAVIOUR_AFFECTED, {"bad_event": 1})


async def test_a_batch_that_comes_twice_counts_once_also_over_a_restart(tmp_path) -> None:
    kept = Kept(tmp_path)
    assert await kept.take(1, event(vm="a"), event(vm="b"), bad_event=2) is True
    assert await kept.take(1, event(vm="a"), event(vm="b"), bad_event=2) is False
    assert await kept.take(2, event(vm="c")) is True
    assert kept.vms() == ["c", "b", "a"]
    assert (kept.journal.stats.accepted_events, kept.journal.stats.rejected_events) == (3, {"bad_event": 2})
    await kept.journal.close()
    again = Kept(tmp_path)
    assert await again.take(2, event(vm="c")) is False
    assert again.vms() == ["c", "b", "a"]
    assert (again.journal.stats.accepted_events, again.journal.stats.rejected_events) == (3, {"bad_event": 2})
    await again.journal.close()


async def test_the_oldest_go_at_the_cap(tmp_path) -> None:
    kept = Kept(tmp_path, max_events=3)
    for number in range(5):
        await kept.take(number + 1, event(vm=f"v{number}"))
    assert kept.vms() == ["v4", "v3", "v2"]
    assert kept.journal.stats.accepted_events == 5
    await kept.journal.close()


async def test_what_is_looked_for(tmp_path) -> None:
    kept = Kept(tmp_path)
    await kept.take(
        1,
        event(vm="a", name="x", unix_ns=NOW - 3),
        event(vm="b", behaviour="inflicting", unix_ns=NOW - 2),
        event(vm="c", behaviour="steady", before="inflicting", unix_ns=NOW - 1),
    )
    assert kept.vms(vm="x") == kept.vms(vm="a") == ["a"]
    assert kept.vms(behaviour=int(agent_pb2.BEHAVIOUR_INFLICTING)) == ["c", "b"]
    assert kept.vms(since_unix_ns=NOW - 2) == ["c", "b"]
    assert kept.vms(until_unix_ns=NOW - 1) == ["b", "a"]
    assert kept.vms(host="other") == []
    assert kept.vms(limit=2) == ["c", "b"]
    await kept.journal.close()


def test_nan_travels() -> None:
    (row,), _ = checked(batch_of(event(degradation=Degradation(cannot_tell="no_model"))))
    found = agent_pb2.VmEvent.FromString(row.payload).degradation
    assert (math.isnan(found.ratio), found.cannot_tell) == (True, "no_model")


async def test_a_host_cannot_push_out_the_events_of_others(tmp_path) -> None:
    kept = Kept(tmp_path, max_events=100, max_events_per_host=10)
    await kept.take_of("quiet", 1, *[event(vm=f"q{number}") for number in range(10)])
    for sequence in range(1, 41):
        await kept.take_of("loud", sequence, *[event(vm=f"{sequence}.{number}") for number in range(5)])
    assert kept.vms(host="quiet") == [f"q{number}" for number in reversed(range(10))]
    last = [f"{sequence}.{number}" for sequence in (40, 39) for number in reversed(range(5))]
    assert kept.vms(host="loud") == last
    assert kept.journal.stats.rejected_events == {"over_quota_events": 190}
    assert kept.journal.stats.accepted_events == 210
    for sequence in range(2, 11):  # of many hosts together the oldest go, as before
        await kept.take_of(f"host-{sequence}", 1, *[event(vm=f"{sequence}")] * 9)
    assert len(kept.vms(limit=1000)) == 100
    assert kept.vms(host="quiet") == [f"q{number}" for number in reversed(range(1, 10))]
    await kept.journal.close()


@pytest.mark.long
async def test_with_a_large_cap_the_oldest_go_a_hundredth_at_a_time(tmp_path) -> None:
    kept = Kept(tmp_path, max_events=1000, max_events_per_host=2000)
    counts = []
    for sequence in range(1, 240):
        await kept.take(sequence, *[event()] * 7)
        counts.append(len(kept.vms(limit=5000)))
    assert max(counts) <= 1000 + 10 + 7
    assert min(counts[150:]) >= 1000
    await kept.journal.close()
