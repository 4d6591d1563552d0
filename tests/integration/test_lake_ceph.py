"""A lake on a real S3 server, Ceph's: the tests of test_lake_s3.py, and what a fake cannot show.

Which PUT comes first is settled between threads of the gateway and the OSD here, not by one Python interpreter.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from central.build.builder import Builder
from central.coefficients.versions import VersionStore
from central.lake.lease import Lease
from central.lake.objects import Bucket
from central.lake.segments import Lake
from tests.integration.test_lake_s3 import (  # noqa: F401 - the same tests, on this module's store
    SECTION,
    bucket_lake,
    bucket_url,
    empty_tables,
    test_a_create_whose_answer_was_lost_is_known_for_its_own,
    test_an_object_is_created_once_whoever_comes_second,
    test_one_holds_the_lease_and_a_stalled_one_is_fenced,
    test_replicas_build_from_one_bucket,
    test_segments_of_two_replicas_are_read_once,
    test_slots_stay_whole_where_the_answer_to_their_manifest_was_lost,
    test_that_notices_manifests_that_are_not_exclusive,
    test_versions_have_one_builder_each,
    test_what_the_store_refuses_is_one_line,
    write,
)
from tests.support.ceph import Gateway, gateway

pytestmark = [pytest.mark.integration, pytest.mark.long]

RACERS = 8
ROUNDS = 25


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="needs the extra s3")
    with gateway() as found:
        yield found


@pytest.fixture(scope="module")
def store(server: Gateway):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        Bucket("s3://whitepanda-lake")._store.mkdir("whitepanda-lake")
        yield "s3://whitepanda-lake"


@pytest.fixture
def buckets(url: str, tmp_path: Path) -> list[Bucket]:
    """One per racer, with connections of its own."""
    return [Bucket(url, tmp_path / str(number)) for number in range(RACERS)]


def at_once(works: list[Callable[[], object]]) -> list[object]:
    """Do each in a thread of its own, all from one moment on."""
    ready = threading.Barrier(len(works))

    def work(each: Callable[[], object]) -> object:
        ready.wait()
        return each()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(work, works))


def winners(racers: list[Bucket], number: int) -> list[bytes]:
    """What those wrote who believe that they created the object."""

    def create(bucket: Bucket, data: bytes) -> bytes | None:
        try:
            bucket.create(f"race/{number}", data)
        except FileExistsError:
            return None
        return data

    works = [partial(create, bucket, f"of {place}".encode()) for place, bucket in enumerate(racers)]
    return [each for each in at_once(works) if each is not None]


def test_the_server_itself_refuses_a_second_create(url, tmp_path):
    bucket = Bucket(url, tmp_path)
    where = dict(zip(("Bucket", "Key"), f"{url}/a".removeprefix("s3://").split("/", 1), strict=True))
    put = partial(bucket._store.call_s3, "put_object", **where)
    put(Body=b"one", IfNoneMatch="*")
    with pytest.raises(OSError, match="Errno 22") as refused:
        put(Body=b"two", IfNoneMatch="*")
    answer = refused.value.__cause__.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert answer["Error"]["Code"] == "PreconditionFailed"
    assert "Condition" not in answer["Error"]  # what Amazon sends and s3fs looks at
    assert bucket.read("a") == b"one"
    put(Body=b"three")
    assert bucket.read("a") == b"three"


def test_of_all_who_create_at_once_one_does(buckets):
    for number in range(ROUNDS):
        (won,) = winners(buckets, number)
        assert {bucket.read(f"race/{number}") for bucket in buckets} == {won}


def test_that_race_notices_who_looks_and_then_writes(buckets, monkeypatch):
    def look_and_put(self: Bucket, name: str, data: bytes) -> None:
        if self._store.exists(self._path(name)):
            raise FileExistsError
        self._store.pipe_file(self._path(name), data)

    monkeypatch.setattr(Bucket, "create", look_and_put)
    assert any(len(winners(buckets, number)) > 1 for number in range(ROUNDS))


def test_of_all_who_want_the_lease_at_once_one_has_it(buckets):
    leases = [Lease(bucket, f"central-{number}", 600.0) for number, bucket in enumerate(buckets)]
    for number in range(1, 11):
        got = at_once([lease.acquire for lease in leases])
        assert got.count(True) == 1
        holder = leases[got.index(True)]
        assert [lease.token for lease in leases if lease.token] == [holder.token] == [number]
        assert {lease.holder() for lease in leases} == {f"central-{leases.index(holder)}"}
        holder.check()
        holder.release()


def test_of_builders_at_once_each_number_is_one_builders(buckets, lake, tmp_path):
    write(lake, 1)
    assert Builder(SECTION, lake, state_dir=tmp_path / "state").build_once() == 1
    stores = [VersionStore(bucket) for bucket in buckets[:4]]
    manifest = stores[0].latest().manifest
    built = at_once([partial(each.write, manifest, *empty_tables()) for each in stores])
    numbers = sorted(each.version for each in built)
    assert numbers == [2, 3, 4, 5]
    assert {each.version: each.manifest.files for each in built} == {
        number: stores[-1].manifest(number).files for number in numbers
    }


def test_two_builders_race_for_each_version(url, tmp_path):
    lake_of = {name: Lake(url, tmp_path / name) for name in ("one", "other", "writer")}
    builders = [
        Builder(SECTION, lake_of[name], holder=name, state_dir=tmp_path / f"state-{name}") for name in ("one", "other")
    ]
    for number in range(1, 7):
        write(lake_of["writer"], number)
        # Both are at the last version. Who finds the lease taken builds nothing; who comes later takes the other's.
        built = at_once([builder.build_once for builder in builders])
        assert set(built) - {None} == {number}
        assert {builder.build_once() for builder in builders} <= {number, None}
        one, other = (builder.current.manifest for builder in builders)
        assert one == other
        assert (one.version, one.rows) == (number, number * 48)
    assert VersionStore(lake_of["writer"].objects).numbers()[-1] == 6


def test_what_was_written_is_listed_at_once(buckets):
    one, other = buckets[:2]
    for number in range(20):
        one.create(f"seen/{number:02}", b"x")
        assert [each.name for each in other.entries("seen")][-1] == f"seen/{number:02}"
    for number in range(20):
        one.remove(f"seen/{number:02}")
        assert len(list(other.entries("seen"))) == 19 - number


def test_more_objects_than_a_page_lists(url, tmp_path):
    bucket = Bucket(url, tmp_path)
    names = [f"many/{number:04}" for number in range(1100)]
    bucket._store.pipe({bucket._path(name): b"x" for name in names})
    assert sorted(each.name for each in bucket.entries("many")) == names


def test_an_object_in_parts_is_whole(url, tmp_path):
    bucket = Bucket(url, tmp_path)
    part = os.urandom(1 << 20)
    draft = bucket.draft("large")
    with draft.open("wb") as file:
        for _ in range(110):
            file.write(part)
        file.write(b"end")
    bucket.publish(draft, "large")
    assert [(each.name, each.size_bytes) for each in bucket.entries("")] == [("large", (110 << 20) + 3)]
    assert "-" in bucket._store.info(bucket._path("large"))["ETag"]  # it went in parts
    with bucket.open("large") as file:
        file.seek(100 << 20)
        assert file.read(1 << 20) == part
        file.seek(110 << 20)
        assert file.read() == b"end"
    assert bucket.local("large").stat().st_size == (110 << 20) + 3


def test_wrong_keys_are_one_line(url, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(OSError, match=r"^cannot create s3://.*/a: .*SignatureDoesNotMatch") as error:
        Bucket(url, tmp_path).create("a", b"")
    assert "\n" not in str(error.value)
