"""A lake in S3: one version per number, one holder of the lease, every window once.

The server is moto, a fake in this process: it answers If-None-Match as S3 does, one request after another, but says
nothing of a real store's races. test_lake_ceph.py runs the same on Ceph, and WHITEPANDA_TEST_S3_URL
(s3://bucket/prefix, credentials and AWS_ENDPOINT_URL in the environment) on any other.
"""

import logging
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import duckdb
import ibis
import numpy as np
import pyarrow as pa
import pytest

from central.api.lake_queries import RecentVms
from central.build.builder import Builder
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, VersionStore
from central.config import BuildSection, PlacementSection
from central.history.queries import Scope
from central.history.reader import FleetHistory
from central.lake.lease import FencedError, Lease
from central.lake.objects import Bucket
from central.lake.schema import SAMPLES
from central.lake.segment_times import SegmentTimes
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.placement.live import LiveFleet
from central.roll_ups.compaction import compact_day, remove_superseded
from central.roll_ups.retention import drop_samples
from central.roll_ups.store import SlotStore
from central.verify.checks import problems, stats
from tests.support.lake_reader import by_polars
from tests.support.losing_proxy import losing_proxy

pytestmark = pytest.mark.integration

DAY = date(1970, 1, 1) + timedelta(days=20_000)
SLOT_NS = 300 * 10**9
SECTION = BuildSection(threads=1, memory_limit_mib=256, lease_s=60.0)


@pytest.fixture(scope="module")
def store():
    """URL of a folder in a bucket."""
    if real := os.environ.get("WHITEPANDA_TEST_S3_URL"):
        yield real
        return
    pytest.importorskip("s3fs", reason="needs the extra s3")
    moto = pytest.importorskip("moto.server", reason="needs moto")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        Bucket("s3://whitepanda-lake")._store.mkdir("whitepanda-lake")
        yield "s3://whitepanda-lake"
        server.stop()


@pytest.fixture(name="url")
def bucket_url(store) -> str:
    return f"{store}/{secrets.token_hex(4)}"


@pytest.fixture(name="lake")
def bucket_lake(url, tmp_path) -> Lake:
    return Lake(url, tmp_path / "copies")


def write(lake: Lake, number: int, origin: str = "central-0", rows: int = 48) -> None:
    """A batch, 48 slots of a database beside a scan."""
    rng = np.random.default_rng(number)
    job = np.array(["db", "scan"])[np.arange(rows) % 2]
    known = {
        "host": ["h"] * rows,
        "machine": ["h"] * rows,
        "vm": job,
        "job": job,
        "spool_id": ["s"] * rows,
        "epoch": ["1"] * rows,
        "platform": ["P"] * rows,
        "sequence": [number] * rows,
        "latency_sensitive": job == "db",
        "start_unix_ns": 20_000 * DAY_NS + np.arange(rows) // 2 * SLOT_NS + number * 10**10,
        "duration_ns": [10**10] * rows,
        "cpi": rng.lognormal(0, 0.1, rows),
        "cpu_usage_cores": rng.gamma(2.0, 0.5, rows),
    }
    arrays = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(rows, field.type)
        for field in SAMPLES
    ]
    table = pa.Table.from_arrays(arrays, schema=SAMPLES)
    lake.write_segment(table, segment_stem(origin, "0badcafe", number))


def rows_of(lake: Lake) -> list[tuple[int, int]]:
    connection = ibis.duckdb.connect(threads=1)
    found = connection.to_pyarrow(lake.samples(connection).select("sequence", "start_unix_ns", "vm"))
    return sorted(zip(*(found[name].to_pylist() for name in ("sequence", "start_unix_ns", "vm")), strict=True))


def polars_rows_of(lake: Lake) -> list[tuple[int, int]]:
    """The same, read from the bucket by Polars."""
    return sorted(by_polars(lake.name).select("sequence", "start_unix_ns", "vm").collect().iter_rows())


@pytest.mark.long
def test_an_object_is_created_once_whoever_comes_second(url, tmp_path):
    one, other = Bucket(url, tmp_path / "a"), Bucket(url, tmp_path / "b")
    one.create("versions/1", b"one")
    for bucket in (one, other):
        with pytest.raises(FileExistsError):
            bucket.create("versions/1", b"two")
    assert other.read("versions/1") == b"one"
    one.remove("versions/1")
    one.remove("versions/1")
    with pytest.raises(FileNotFoundError):
        other.read("versions/1")
    other.create("versions/1", b"two")
    assert [(each.name, each.size_bytes) for each in one.entries("versions")] == [("versions/1", 3)]
    assert list(one.entries("nothing")) == []


def test_what_the_store_refuses_is_one_line(tmp_path, store):
    with pytest.raises(OSError, match=r"^cannot create s3://no-such-bucket-of-ours/x/a: ") as error:
        Bucket("s3://no-such-bucket-of-ours/x", tmp_path).create("a", b"")
    assert "\n" not in str(error.value)


def test_a_folder_that_another_makes_meanwhile_is_no_object(url, tmp_path, monkeypatch):
    async def before(*_: object, **__: object) -> list[object]:
        return []

    bucket = Bucket(url, tmp_path)
    bucket.create("lease/1", b"")
    monkeypatch.setattr(bucket._store, "_lsdir", before)  # then s3fs asks whether there is anything below "lease"
    assert list(bucket.entries("lease")) == []


class _Answer(Exception):  # noqa: N818 - what botocore raises, of a store that says no more than Ceph
    def __init__(self, status: int, code: str) -> None:
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        super().__init__(f"An error occurred ({code}) when calling the PutObject operation: None")


@pytest.mark.parametrize(
    ("status", "code", "error", "line"),
    [
        (412, "PreconditionFailed", FileExistsError, "File exists: 'versions/1'$"),
        (409, "ConditionalRequestConflict", OSError, "^cannot create s3://.*/versions/1: the store says Condit"),
        (501, "NotImplemented", OSError, "^cannot create s3://.*/versions/1: the store says NotImplemented$"),
    ],
)
def test_refusals_of_a_store_of_few_words(url, tmp_path, monkeypatch, status, code, error, line):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(22, None) from _Answer(status, code)

    bucket = Bucket(url, tmp_path)
    monkeypatch.setattr(bucket._store, "pipe_file", refuse)
    with pytest.raises(OSError, match=line) as raised:
        bucket.create("versions/1", b"one")
    assert type(raised.value) is error


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_create_whose_answer_was_lost_is_known_for_its_own(url, tmp_path, is_taken):
    with losing_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        bucket = Bucket(url, tmp_path, {"endpoint_url": proxy.url})
        if is_taken:
            Bucket(url, tmp_path).create("versions/1", b"one")
            with pytest.raises(FileExistsError):
                bucket.create("versions/1", b"one")
        else:
            bucket.create("versions/1", b"one")
        assert proxy.conditional_puts == [412 if is_taken else 200, 412]
        assert bucket.read("versions/1") == b"one"
        with pytest.raises(FileExistsError):
            bucket.create("versions/1", b"one")


@pytest.mark.long
def test_segments_of_two_replicas_are_read_once(lake):
    for number in (1, 2, 3, 4):
        write(lake, number)
    for number in (2, 3):
        write(lake, number, "central-1")
    before = rows_of(lake)
    assert len(before) == len(set(before)) == 4 * 48
    assert polars_rows_of(lake) == before
    assert len(lake.segments()) == 6
    with duckdb.connect() as connection:
        slots = SlotStore(lake, SLOT_NS)
        manifest = slots.roll_up(DAY, connection)
        assert (manifest.samples, manifest.duplicates) == (4 * 48, 2 * 48)
        assert compact_day(lake, DAY, manifest, min_sources=2).written == 2
        assert polars_rows_of(lake) == before  # the sources are still there
        assert remove_superseded(lake, grace_s=0.0) == 6
        assert rows_of(lake) == polars_rows_of(lake) == before
        assert list(problems(lake, connection)) == []
        (day,) = stats(lake, connection, 300.0).days
        assert (day.rows, day.duplicate_rows, day.samples_in_slots) == (6 * 48, 2 * 48, 4 * 48)
        write(lake, 5)
        drop_samples(lake, {DAY: manifest, DAY + timedelta(days=9): manifest}, raw_days=3)
        assert [segment.first for segment in lake.segments()] == [5]  # not in slots yet
        assert slots.roll_up(DAY, connection).samples == 5 * 48


def test_slots_stay_whole_where_the_answer_to_their_manifest_was_lost(lake, url, tmp_path, monkeypatch):
    write(lake, 1)
    with duckdb.connect() as connection, losing_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert SlotStore(Lake(url, tmp_path / "late"), SLOT_NS).roll_up(DAY, connection).samples == 48
        assert proxy.conditional_puts == [200, 412]
        assert list(problems(lake, connection)) == []


def test_one_holds_the_lease_and_a_stalled_one_is_fenced(url, tmp_path):
    now_s = 0.0
    one, other = (
        Lease(Bucket(url, tmp_path / name), name, 10.0, monotonic_s=lambda: now_s) for name in ("one", "other")
    )
    assert one.acquire()
    assert not other.acquire()
    now_s = 9.0
    one.check()  # renews
    assert not other.acquire()
    now_s = 18.0
    assert not other.acquire()
    now_s = 19.5
    assert other.acquire()
    assert (one.token, other.token) == (1, 2)
    with pytest.raises(FencedError):
        one.check()
    other.release()
    assert one.acquire()
    assert one.token == 3


def empty_tables() -> list[pa.Table]:
    """Job statistics and coefficients of nobody."""
    return [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in (JOB_STATISTICS, COEFFICIENTS)]


def _numbers_of_two_builders(url: str, folder: Path) -> list[int]:
    """Of two builders that are at the same number at once."""
    lakes = [Lake(url, folder / name) for name in ("one", "other")]
    write(lakes[0], 1)
    assert Builder(SECTION, lakes[0], state_dir=folder / "state").build_once() == 1
    one, other = (VersionStore(lake.objects) for lake in lakes)
    manifest, inner = one.latest().manifest, []

    def in_between() -> None:
        if not inner:
            inner.append(other.write(manifest, *empty_tables()).version)

    last = one.write(manifest, *empty_tables(), check=in_between).version
    return [*inner, last, *one.numbers()]


@pytest.mark.long
def test_versions_have_one_builder_each(url, tmp_path):
    assert _numbers_of_two_builders(url, tmp_path) == [2, 3, 1, 2, 3]


def test_that_notices_manifests_that_are_not_exclusive(url, tmp_path, monkeypatch):
    def put(self: Bucket, name: str, data: bytes) -> None:
        self._store.pipe_file(self._path(name), data)

    monkeypatch.setattr(Bucket, "create", put)
    assert _numbers_of_two_builders(url, tmp_path) == [2, 2, 1, 2]


@pytest.mark.long
def test_replicas_build_from_one_bucket(url, tmp_path):
    builders = [
        Builder(
            SECTION, Lake(url, tmp_path / f"c{number}"), holder=f"central-{number}", state_dir=tmp_path / f"s{number}"
        )
        for number in range(2)
    ]
    lake = Lake(url, tmp_path / "copies")
    for number in range(1, 4):
        write(lake, number)
    assert [builder.build_once() for builder in builders] == [1, 1]
    assert builders[1].last_days_computed == 0  # it took the other's
    write(lake, 4)
    write(lake, 4, "central-1")
    assert [builder.build_once() for builder in builders[::-1]] == [2, 2]
    assert [builder.current.manifest.rows for builder in builders] == [4 * 48] * 2
    assert builders[0].current.coefficient("scan") == builders[1].current.coefficient("scan")
    assert builders[0].current.coefficient("scan").method == "whitepanda"


def test_history_reads_ranges_and_looks_again_if_a_file_was_merged_away(lake, monkeypatch):
    write(lake, 1)
    with duckdb.connect(config={"threads": 1}) as connection:
        SlotStore(lake, SLOT_NS).roll_up(DAY, connection)
    write(lake, 2)  # not in the slots
    lake.objects.drop_copies()
    history = FleetHistory(lake, SegmentTimes(lake), SLOT_NS)
    since = 20_000 * DAY_NS
    steps = history.steps(since, since + 24 * SLOT_NS, 12)
    assert steps.is_from_slots is False
    for asked in (steps, replace(steps, is_from_slots=True)):
        [found] = history.series(Scope(vms=("db",)), ["cpi"], asked, limit=1).vms
        assert (found.windows.tolist(), found.last_host) == ([4.0] * 12, "h")
    find = history._files.find

    def find_then_merge(*args, **more):
        files = find(*args, **more)
        monkeypatch.setattr(history._files, "find", find)
        compact_day(lake, DAY, None, unrolled_too=True, min_sources=2)
        remove_superseded(lake, grace_s=-60.0)
        lake.objects.drop_copies()
        return files

    monkeypatch.setattr(history._files, "find", find_then_merge)
    [found] = history.series(Scope(vms=("scan",)), ["cpi"], steps, limit=1).vms
    assert found.windows.tolist() == [4.0] * 12
    history.close()

    store, gone = lake.objects._open_ranges(), []
    read = store.open

    def open_once(path, *args, **more):
        if not gone:
            gone.append(path)
            raise FileNotFoundError(path)
        return read(path, *args, **more)

    monkeypatch.setattr(store, "open", open_once)
    monkeypatch.setattr(lake.objects, "_open_ranges", lambda: store)
    [found] = history.series(Scope(vms=("scan",)), ["cpi"], steps, limit=1).vms
    assert gone and found.windows.tolist() == [4.0] * 12
    history.close()
    assert not list(lake.objects._copies.rglob("*.parquet"))


def test_a_question_leaves_no_copies_and_keeps_out_of_others(lake, tmp_path):
    write(lake, 1)
    key = lake.segments()[0].key
    mine = lake.objects.local(key)
    with lake.objects.session():
        own = lake.objects.local(key)
        assert own != mine and own.read_bytes() == mine.read_bytes()
        with ThreadPoolExecutor(4) as threads:  # these are in no session
            assert set(threads.map(lake.objects.local, [key] * 4)) == {mine}
        lake.objects.drop_copies()
        assert own.exists() and not mine.exists()
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lake.objects.local, [key] * 4)) == {mine}
    assert not own.exists()
    lake.objects.drop_copies()
    now = 20_000 * DAY_NS + 3600 * 10**9
    found = RecentVms(lake, SegmentTimes(lake), gone_s=3600, refresh_s=60, clock_unix_ns=lambda: now)
    assert len(found.read().vms) == 2
    assert LiveFleet(lake, PlacementSection(), list, clock_unix_ns=lambda: now).snapshot().jobs
    assert not [path for path in (tmp_path / "copies").glob("*/**/*") if path.is_file()]
