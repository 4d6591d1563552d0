"""Push back: just the rows of the jobs that a host runs, in full first, then by what changed."""

import asyncio
import tempfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.antagonists.coefficients import CoefficientStore
from central.coefficients import publish
from central.coefficients.publish import Publisher
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, BuiltVersion, Manifest
from central.ingest.sessions import MAX_QUEUED_MESSAGES, HostStream, StreamRegistry
from whitepanda.v1 import agent_pb2


def version(number: int, statistics, coefficients, *, samples=10, coefficient_samples=10) -> BuiltVersion:
    manifest = Manifest(
        version=number,
        created_unix_ns=1_000 + number,
        slot_s=300.0,
        days=(),
        segments=0,
        segments_digest="",
        rows=0,
        job_statistics=0,
        coefficients=0,
        code_version="0",
    )
    rows = [
        dict(zip(JOB_STATISTICS.names, (job, platform, samples, mean, 0.5, None, None), strict=True))
        for job, platform, mean in statistics
    ]
    values = [
        dict(zip(COEFFICIENTS.names, (job, coefficient_samples, 1.0, value, None), strict=True))
        for job, value in coefficients
    ]
    return BuiltVersion(
        manifest, pa.Table.from_pylist(rows, JOB_STATISTICS), pa.Table.from_pylist(values, COEFFICIENTS)
    )


ONE = version(
    1, [("db", "arm", 3.0), ("db", "intel", 1.0), ("web", "intel", 2.0)], [("batch", 0.5), ("db", 0.1), ("web", -0.1)]
)
TWO = version(2, [("db", "intel", 1.5)], [("batch", 0.7), ("db", 0.2)])


class Fleet:
    """A registry, a stand-in for the builder, and a publisher that runs."""

    def __init__(self) -> None:
        self.registry = StreamRegistry()
        self.builder = SimpleNamespace(current=None, on_version=[], catch_up=self.catch_up)
        self.in_lake: list[BuiltVersion | Exception] = []  # what looks at the lake find, one after the other
        self.publisher = Publisher(self.registry, self.builder, ttl_s=60.0, min_samples=10)

    def host(self, name, *jobs, platform="intel", **more) -> HostStream:
        stream = HostStream(name, platform=platform, jobs=frozenset(jobs), **more)
        self.registry.add(stream)
        return stream

    async def catch_up(self) -> None:
        found = self.in_lake.pop(0) if self.in_lake else None
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self.built(found)

    def built(self, built: BuiltVersion) -> None:
        self.builder.current = built
        for call in self.builder.on_version:
            call(built)


@pytest.fixture
async def fleet():
    made = Fleet()
    task = asyncio.create_task(made.publisher.run())
    yield made
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def received(stream: HostStream) -> list[agent_pb2.CoefficientUpdate]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [message.coefficients for message in stream.drain()]


def content(update):
    statistics = [(row.job, row.platform, row.mean_cpi) for row in update.statistics]
    return statistics, [(row.job, row.value) for row in update.coefficients]


async def test_only_the_hosts_that_run_the_jobs(fleet):
    intel = fleet.host("intel-1", "db", "batch")
    arm = fleet.host("arm-1", "db", platform="arm")
    other = fleet.host("other", "unheard-of")
    none = fleet.host("none")
    importer = fleet.host("importer", "db", is_importer=True)
    assert await received(intel) == []  # nothing was built yet
    fleet.built(ONE)
    (update,) = await received(intel)
    assert content(update) == ([("db", "intel", 1.0)], [("batch", 0.5), ("db", 0.1)])
    assert (update.version, update.created_unix_ns, update.ttl_ns, update.slot_ns, update.full) == (
        1,
        1_001,
        60 * 10**9,
        300 * 10**9,
        True,
    )
    (update,) = await received(arm)  # the job's statistics on the host's own platform
    assert content(update) == ([("db", "arm", 3.0)], [("db", 0.1)])
    for stream in (other, none, importer):
        assert await received(stream) == []


@pytest.mark.parametrize(
    ("samples", "coefficient_samples", "sent"),
    [(10, 9, ([("db", "intel", 1.0)], [])), (9, 10, ([], [("db", 25.12)])), (9, 9, None)],
)
async def test_rows_of_few_samples_are_not_sent(fleet, samples, coefficient_samples, sent):
    thin = version(1, [("db", "intel", 1.0)], [("db", 25.12)], samples=samples, coefficient_samples=coefficient_samples)
    stream = fleet.host("h", "db")
    fleet.built(thin)
    assert [content(update) for update in await received(stream)] == ([] if sent is None else [sent])
    assert thin.coefficient("db").value == 25.12  # the fleet API shows it


async def test_rows_that_become_thin_are_taken_back(fleet, tmp_path):
    store = CoefficientStore(tmp_path / "coefficients.json")
    stream = fleet.host("h", "db")
    for built, job_count in ((ONE, 1), (version(3, [], [("db", 25.12)], coefficient_samples=2), 0)):
        fleet.built(built)
        (update,) = await received(stream)
        assert store.apply(update)
        assert len(store.jobs) == job_count
    assert store.coefficient("db", 1_003) is None


async def test_a_host_that_connects_gets_its_part(fleet):
    fleet.built(ONE)
    stream = fleet.host("h", "web")
    (update,) = await received(stream)
    assert content(update) == ([("web", "intel", 2.0)], [("web", -0.1)])
    # it reports the version that it took: nothing more is due
    fleet.registry.update(stream, coefficient_version=1)
    assert await received(stream) == []
    # an agent that does not say which rows it holds gets all of them, whatever version it claims
    again = fleet.host("h", "web", coefficient_version=1)
    (update,) = await received(again)
    assert update.full
    assert content(update) == ([("web", "intel", 2.0)], [("web", -0.1)])


async def test_jobs_that_come_and_go_are_a_delta(fleet):
    fleet.built(ONE)
    stream = fleet.host("h", "web", "batch")
    await received(stream)
    fleet.registry.update(stream, jobs=["batch", "db", "unheard-of"])
    (update,) = await received(stream)
    assert not update.full
    assert content(update) == ([("db", "intel", 1.0)], [("db", 0.1)])
    assert list(update.removed_jobs) == ["web"]
    fleet.registry.update(stream, jobs=["batch", "db"])  # central knew nothing of the one that left
    assert await received(stream) == []


async def test_a_new_version_replaces_the_old_one(fleet):
    fleet.built(ONE)
    stream, other = fleet.host("h", "db", "web"), fleet.host("other", "web")
    await received(stream)
    await received(other)
    fleet.built(TWO)
    (update,) = await received(stream)
    assert (update.version, update.full) == (2, True)
    assert content(update) == ([("db", "intel", 1.5)], [("db", 0.2)])
    (update,) = await received(other)  # its only job is gone: it must not keep the old rows
    assert (update.version, update.full, content(update)) == (2, True, ([], []))
    fleet.built(ONE)
    assert len(await received(other)) == 1


async def test_agents_end_with_what_central_means(fleet, tmp_path):
    """Full updates and deltas, applied by the agent's own store, give the rows of the host's jobs."""
    store = CoefficientStore(tmp_path / "coefficients.json")
    fleet.built(ONE)
    stream = fleet.host("h", "web")
    for jobs in (["web"], ["web", "db"], ["db", "batch"], ["batch"], ["batch", "web", "db"]):
        fleet.registry.update(stream, jobs=jobs)
        for update in await received(stream):
            assert store.apply(update)
        assert store.jobs == set(jobs)
    fleet.built(TWO)
    for update in await received(stream):
        assert store.apply(update)
    assert (store.version, store.jobs) == (2, {"batch", "db"})
    assert store.coefficient("batch", 1_002).value == 0.7


async def test_a_host_that_does_not_read_gets_it_later(fleet, monkeypatch):
    monkeypatch.setattr(publish, "_RETRY_S", 0.01)
    stream = fleet.host("h", "db")
    for _ in range(MAX_QUEUED_MESSAGES):
        assert stream.send(agent_pb2.CentralMessage())
    fleet.built(ONE)
    assert len(await received(stream)) == MAX_QUEUED_MESSAGES
    await asyncio.sleep(0.05)
    (update,) = await received(stream)
    assert (update.version, update.full) == (1, True)


async def test_closed_streams_are_forgotten(fleet):
    stream = fleet.host("h", "db")
    fleet.built(ONE)
    await received(stream)
    fleet.registry.remove(stream)
    fleet.built(TWO)
    assert await received(stream) == []
    assert fleet.publisher._sent == {}


async def test_a_large_fleet_gets_a_version_in_small_parts_with_pauses(fleet, monkeypatch):
    streams = [fleet.host(f"h{n}", "db") for n in range(40)]
    sleep, pauses = asyncio.sleep, []

    async def pause(seconds):
        pauses.append((seconds, sum(bool(stream._messages) for stream in streams)))
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    fleet.built(ONE)
    while len(pauses) < 5:
        await sleep(0)
    assert pauses == [(8 / 500, sent) for sent in (8, 16, 24, 32, 40)]


THREE = version(3, [("db", "intel", 1.0), ("web", "intel", 2.5)], [("batch", 0.5), ("db", 0.1), ("web", -0.1)])


def connect(fleet, store, *jobs, **more) -> HostStream:
    """Connect as an agent with this store does: `ingest` takes these from its Hello."""
    held = {row.job: row.tag for row in store.held_tags}
    return fleet.host("h", *jobs, coefficient_version=store.version, held_tags=held, **more)


async def exchanged(fleet, store, *jobs) -> list[agent_pb2.CoefficientUpdate]:
    """Connect, and apply what comes."""
    updates = await received(connect(fleet, store, *jobs))
    assert all(store.apply(update) for update in updates)
    return updates


async def test_a_new_version_brings_only_the_rows_that_changed(fleet):
    fleet.built(ONE)
    stream = fleet.host("h", "db", "web", "batch")
    await received(stream)
    fleet.built(THREE)
    (update,) = await received(stream)
    assert (update.version, update.full, list(update.removed_jobs)) == (3, False, [])
    assert content(update) == ([("web", "intel", 2.5)], [("web", -0.1)])


async def test_an_agent_that_was_away_catches_up_in_one_exchange(fleet, tmp_path):
    path = tmp_path / "coefficients.json"
    fleet.built(ONE)
    assert len(await exchanged(fleet, CoefficientStore(path), "db", "web", "batch")) == 1
    store = CoefficientStore(path)  # after a restart
    assert await exchanged(fleet, store, "db", "web", "batch") == []
    for number in (5, 6):  # versions that it never sees
        fleet.built(version(number, [("web", "intel", number)], []))
    fleet.built(version(7, [("db", "intel", 1.0), ("web", "intel", 2.5)], [("batch", 0.5), ("db", 0.1)]))
    (update,) = await exchanged(fleet, store, "db", "web", "new")
    assert (update.version, update.full, list(update.removed_jobs)) == (7, False, ["batch"])
    assert content(update) == ([("web", "intel", 2.5)], [])
    assert (store.version, store.jobs) == (7, {"db", "web"})
    assert store.coefficient("web", 2_000) is None  # it has none any more
    assert store.statistics("db", "intel", 2_000).mean == 1.0
    assert await exchanged(fleet, store, "db", "web", "new") == []


async def test_a_version_that_changes_nothing_of_a_host_renews_its_time_to_live(fleet, tmp_path):
    store = CoefficientStore(tmp_path / "coefficients.json")
    fleet.built(ONE)
    stream = connect(fleet, store, "db")
    assert store.apply((await received(stream))[0])
    fleet.built(THREE)
    (update,) = await received(stream)
    assert (update.full, content(update), len(update.tags)) == (False, ([], []), 0)
    assert store.apply(update)
    assert (store.version, store.created_unix_ns, store.jobs) == (3, 1_003, {"db"})


async def test_slots_of_another_length_replace_all(fleet, tmp_path):
    store = CoefficientStore(tmp_path / "coefficients.json")
    fleet.built(ONE)
    await exchanged(fleet, store, "db", "web")
    other = version(2, [("db", "intel", 1.0), ("web", "intel", 2.0)], [("db", 0.1), ("web", -0.1)])
    other.manifest = msgspec.structs.replace(other.manifest, slot_s=60.0)
    fleet.built(other)
    (update,) = await exchanged(fleet, store, "db", "web")
    assert (update.full, len(update.statistics), store.slot_ns) == (True, 2, 60 * 10**9)


async def test_a_version_that_goes_back_is_sent_in_full(fleet, tmp_path):
    """Central lost its lake: the agent takes a lower version in full only."""
    store = CoefficientStore(tmp_path / "coefficients.json")
    lost = version(9, [("db", "intel", 1.0), ("web", "intel", 2.0)], [])
    lost.manifest = msgspec.structs.replace(lost.manifest, created_unix_ns=500)
    fleet.built(lost)
    await exchanged(fleet, store, "db", "web")
    fleet.built(version(1, [("db", "intel", 1.0)], []))
    (update,) = await exchanged(fleet, store, "db", "web")
    assert (update.version, update.full, store.version, store.jobs) == (1, True, 1, {"db"})


@pytest.mark.parametrize("held", [4, 9])  # the number that is used again next, and one that comes later
async def test_after_an_older_lake_is_restored_the_next_version_is_taken(fleet, tmp_path, held):
    rows = [("db", "intel", 1.0), ("web", "intel", 2.0)]
    store = CoefficientStore(tmp_path / "coefficients.json")
    fleet.built(version(held, [("db", "intel", 7.0), ("web", "intel", 7.0)], []))
    await exchanged(fleet, store, "db", "web")
    fleet.built(version(3, rows, []))  # restored
    stream = connect(fleet, store, "db", "web")
    assert [store.apply(update) for update in await received(stream)] == [False]  # older, and made before
    built = []
    for number in (4, 5, 6):
        mean = number / 2.0
        found = version(number, [rows[0], ("web", "intel", mean)], [])
        found.manifest = msgspec.structs.replace(found.manifest, created_unix_ns=2_000 + number)
        fleet.built(found)
        (update,) = await received(stream)
        assert store.apply(update)
        assert (store.version, store.statistics("web", "intel", 2_000).mean) == (number, mean)
        assert store.statistics("db", "intel", 2_000).mean == 1.0  # not what the lost lake had
        built.append(update.full)
        fleet.registry.update(stream, coefficient_version=store.version)  # its heartbeat
        assert await received(stream) == []
    assert built == [True, False, False]


async def test_a_host_from_a_newer_replica_is_not_set_back(fleet, monkeypatch):
    monkeypatch.setattr("central.coefficients.publish._RETRY_S", 0.0)
    fleet.built(ONE)
    fleet.in_lake = [OSError("away"), TWO]
    stream = fleet.host("h", "db", coefficient_version=2)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert [(update.version, content(update)) for update in await received(stream)] == [
        (2, ([("db", "intel", 1.5)], [("db", 0.2)]))
    ]
    assert fleet.in_lake == []


async def test_a_host_whose_known_jobs_all_left_forgets_them(fleet, tmp_path):
    store = CoefficientStore(tmp_path / "coefficients.json")
    fleet.built(ONE)
    await exchanged(fleet, store, "db")
    (update,) = await exchanged(fleet, store, "unheard-of")
    assert (update.full, content(update), store.jobs) == (True, ([], []), frozenset())


HELD = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3))


@pytest.mark.long
@given(st.lists(st.tuples(HELD, st.sets(st.sampled_from("abcd")), st.booleans()), max_size=6))
def test_whatever_happened_an_exchange_leaves_just_the_rows_of_the_jobs_that_run(steps):
    """Any versions, missed or not, any jobs; an answer may be lost on its way."""

    async def scenario(store: CoefficientStore) -> None:
        made = Fleet()
        task = asyncio.create_task(made.publisher.run())
        for number, (means, jobs, is_lost) in enumerate([*steps, ({"a": 1, "b": 2}, {"a", "c"}, False)], 1):
            made.built(version(number, [(job, "intel", float(mean)) for job, mean in sorted(means.items())], []))
            updates = await received(connect(made, store, *jobs))
            if is_lost:
                continue
            assert all(store.apply(update) for update in updates)
            expected = {job: float(mean) for job, mean in means.items() if job in jobs}
            assert {job: store.statistics(job, "intel", 2_000).mean for job in store.jobs} == expected
            assert store.version == number or not (expected or store.version)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(CoefficientStore(Path(folder) / "coefficients.json")))
