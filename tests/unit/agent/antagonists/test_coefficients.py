"""What the host keeps of central's knowledge: versions, deltas, the end of their life, the file."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.analysis.contention.normalised_cpi import CpiStatistics, RobustLogCpi
from agent.antagonists.coefficients import Coefficient, CoefficientStore
from whitepanda.common.job_tags import tag_of
from whitepanda.v1 import agent_pb2

NOW = 1_800_000_000 * 10**9
S = 10**9
DAY = 86_400 * S
SLOT = 300 * 10**9


def kept(path, *, now=NOW, limits=None, **options):
    return CoefficientStore(path, limits, now_unix_ns=lambda: now, **options)


def update(
    version, *, full=True, created=NOW, slot_ns=SLOT, ttl_ns=7 * DAY, jobs=("web",), removed=(), mean=1.2, a=0.5
):
    return agent_pb2.CoefficientUpdate(
        version=version,
        created_unix_ns=created,
        ttl_ns=ttl_ns,
        slot_ns=slot_ns,
        full=full,
        removed_jobs=removed,
        statistics=[
            agent_pb2.JobStatistics(job=job, platform="cpu-a", samples=100, mean_cpi=mean, std_cpi=0.35) for job in jobs
        ],
        coefficients=[agent_pb2.Coefficient(job=job, value=a, samples=90, standard_error=math.nan) for job in jobs],
    )


@pytest.fixture
def store(tmp_path):
    return kept(tmp_path / "state" / "coefficients.json")


def test_an_empty_store_knows_nothing(store):
    assert (store.version, store.slot_ns, store.age_ns(NOW), store.jobs) == (0, 0, 0, frozenset())
    assert not store.expired(NOW)
    assert store.statistics("web", "cpu-a", NOW) is None
    assert store.coefficient("web", NOW) is None


def test_a_full_update_is_held_and_survives_a_restart(store, tmp_path):
    assert store.apply(update(7))
    again = kept(tmp_path / "state" / "coefficients.json")
    for held in (store, again):
        assert (held.version, held.slot_ns, held.ttl_ns, held.created_unix_ns) == (7, SLOT, 7 * DAY, NOW)
        assert held.statistics("web", "cpu-a", NOW) == CpiStatistics(1.2, 0.35, 100)
        assert held.statistics("web", "cpu-b", NOW) is None
        assert held.coefficient("web", NOW) == Coefficient(0.5, 90, None)
        assert held.jobs == {"web"}


def test_a_full_update_replaces_all(store):
    store.apply(update(7, jobs=("web", "db")))
    assert store.apply(update(8, jobs=("db",)))
    assert store.jobs == {"db"}


def test_a_delta_is_merged_and_removes_jobs(store):
    store.apply(update(7, jobs=("web", "db", "old")))
    assert store.apply(update(8, full=False, jobs=("db", "new"), removed=("old",), mean=2.0, a=0.75))
    assert store.version == 8
    assert store.jobs == {"web", "db", "new"}
    assert store.statistics("web", "cpu-a", NOW).mean == 1.2
    assert store.statistics("db", "cpu-a", NOW).mean == 2.0
    assert store.coefficient("db", NOW).value == 0.75
    assert store.coefficient("old", NOW) is None


def test_a_delta_of_the_held_version_brings_jobs_that_came_to_this_host(store):
    store.apply(update(7))
    assert store.apply(update(7, full=False, jobs=("db",)))
    assert (store.version, store.jobs) == (7, {"web", "db"})


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (update(6, full=False, jobs=("x",)), "older than what is held"),
        (update(6, full=False, jobs=("x",), created=NOW + S), "older than what is held"),
        (update(6, jobs=("x",)), "older than what is held, and not made later"),
        (update(6, jobs=("x",), created=NOW - 1), "older than what is held, and not made later"),
        (update(0, jobs=("x",), created=NOW + S), "invalid version 0"),
        (update(8, jobs=("x",), slot_ns=0), "slots of 0 ns; they last 0.1 s to a day"),
        (
            update(8, full=False, jobs=("x",), slot_ns=10**9),
            f"of {10**9} ns slots, beside statistics of {SLOT} ns slots",
        ),
    ],
)
def test_versions_never_go_backwards_and_unlike_slots_never_mix(store, late, why):
    store.apply(update(7))
    with capture_logs() as logs:
        assert not store.apply(late)
    assert logs[0]["why"] == why
    assert (store.version, store.jobs) == (7, {"web"})


def test_central_that_lost_its_lake_starts_again_with_a_lower_version(store):
    store.apply(update(700))
    assert store.apply(update(1, created=NOW + 1, jobs=("db",)))
    assert (store.version, store.jobs) == (1, {"db"})


def test_nothing_is_used_after_the_time_to_live(store):
    store.apply(update(7, ttl_ns=DAY))
    assert store.age_ns(NOW + DAY) == DAY
    assert store.statistics("web", "cpu-a", NOW + DAY) is not None
    assert store.expired(NOW + DAY + 1)
    assert store.statistics("web", "cpu-a", NOW + DAY + 1) is None
    assert store.coefficient("web", NOW + DAY + 1) is None


@pytest.mark.parametrize("ttl_ns", [0, 32 * DAY, 2**64 - 1])
def test_no_or_a_longer_time_to_live_is_the_agents_own(store, ttl_ns):
    store.apply(update(7, ttl_ns=ttl_ns))
    assert store.ttl_ns == 31 * DAY
    assert not store.expired(NOW + 31 * DAY)
    assert store.expired(NOW + 31 * DAY + 1)


def test_a_clock_behind_within_what_is_allowed_is_age_0(store):
    store.apply(update(7))
    assert store.age_ns(NOW - 300 * S) == 0
    assert not store.expired(NOW - 300 * S)
    assert store.expired(NOW - 301 * S)  # by this clock it was made in the future


def test_absurd_values_are_left_out_and_counted_in_one_line(store):
    bad = update(7, jobs=("web", "nan", "negative", "inf"))
    bad.statistics[1].std_cpi = math.nan
    bad.statistics[2].mean_cpi = -1.0
    bad.coefficients[3].value = math.inf
    with capture_logs() as logs:
        assert store.apply(bad)
    assert [(entry["event"], entry["rows"]) for entry in logs] == [("rows of a coefficient update left out", 3)]
    assert store.statistics("nan", "cpu-a", NOW) is None
    assert store.statistics("negative", "cpu-a", NOW) is None
    assert store.coefficient("inf", NOW) is None
    assert store.coefficient("nan", NOW) is not None


OF_A_JOB = b'{"version": 3, "slot_ns": 1000000000, "statistics": [{"job": "a", "platform": "b", "samples": 9, %s}]}'
OF_A_COEFFICIENT = b'{"version": 3, "slot_ns": 1000000000, "coefficients": {"a": %s}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"version": "x"}',
        b'{"format": 99, "version": 3}',
        b'{"version": 99999999999999999999999, "slot_ns": 1000000000}',
        b'{"version": -1, "slot_ns": 1000000000}',
        b'{"version": 3, "slot_ns": 1000000000, "created_unix_ns": -1}',
        b'{"version": 3, "slot_ns": 1000000000, "ttl_ns": -1}',
        b'{"version": 3, "slot_ns": 0}',
        b'{"version": 3, "slot_ns": 18446744073709551616}',
        OF_A_JOB % b'"mean_cpi": -1e300, "std_cpi": 0.5',
        OF_A_JOB % b'"mean_cpi": 0, "std_cpi": 0.5',
        OF_A_JOB % b'"mean_cpi": 1e999, "std_cpi": 0.5',
        OF_A_JOB % b'"mean_cpi": 1.5, "std_cpi": -0.5',
        OF_A_JOB.replace(b"9", b"-9") % b'"mean_cpi": 1.5, "std_cpi": 0.5',
        OF_A_COEFFICIENT % b'{"value": 1e999, "samples": 1}',
        OF_A_COEFFICIENT % b'{"value": 1, "samples": -1}',
    ],
)
def test_a_damaged_file_is_warned_of_and_the_store_starts_empty(tmp_path, content):
    path = tmp_path / "coefficients.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        store = kept(path)
    assert (store.version, [entry["log_level"] for entry in logs]) == (0, ["warning"] * 2)
    assert store.apply(update(3))
    assert kept(path).version == 3


def test_a_file_that_cannot_be_read_is_warned_of(tmp_path):
    path = tmp_path / "coefficients.json"
    path.mkdir()
    with capture_logs() as logs:
        assert kept(path).version == 0
    assert logs[0]["error"] == "Is a directory"


def test_a_file_that_cannot_be_written_costs_only_the_restart(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = kept(tmp_path / "file" / "coefficients.json")
    with capture_logs() as logs:
        assert store.apply(update(3))
    assert store.version == 3
    assert logs[-1]["event"] == "coefficients are not kept over a restart"


def test_a_write_that_dies_leaves_the_version_before(store, tmp_path, monkeypatch):
    """The file is replaced only after the new content is on the disk: fsync comes before the rename."""
    path = tmp_path / "state" / "coefficients.json"
    store.apply(update(7))
    before = path.read_bytes()
    events = []

    def fsync(_fd):
        events.append(("fsync", path.read_bytes() == before))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.apply(update(8))
    assert events == [("fsync", True)]
    assert path.read_bytes() == before
    assert kept(path).version == 7


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(0, 3)), max_size=12))
@pytest.mark.long
def test_version_or_creation_time_never_both_go_back(tmp_path_factory, updates):
    store = kept(tmp_path_factory.mktemp("c") / "coefficients.json")
    for version, full, created in updates:
        before = (store.version, store.created_unix_ns)
        taken = store.apply(update(version, full=full, created=NOW + created))
        if not taken:
            assert (store.version, store.created_unix_ns) == before
        elif store.version < before[0]:
            assert full
            assert store.created_unix_ns > before[1]


def test_the_file_is_plain_json(store, tmp_path):
    store.apply(update(7))
    text = Path(tmp_path / "state" / "coefficients.json").read_text()
    assert '"version":7' in text
    assert '"standard_error":null' in text


def tagged(sent):
    """Add the tags as central makes them."""
    for job in {row.job for row in sent.statistics}:
        rows = agent_pb2.CoefficientUpdate(
            slot_ns=sent.slot_ns,
            statistics=[row for row in sent.statistics if row.job == job],
            coefficients=[row for row in sent.coefficients if row.job == job],
        )
        sent.tags.add(job=job, tag=tag_of(rows))
    return sent


def test_tags_are_kept_with_the_rows_that_they_stand_for(store, tmp_path):
    first = tagged(update(7, jobs=("web", "db", "old")))
    store.apply(first)
    delta = tagged(update(8, full=False, jobs=("db",), removed=("web",), mean=3.0))
    store.apply(delta)
    old = next(row.tag for row in first.tags if row.job == "old")
    for held in (store, kept(tmp_path / "state" / "coefficients.json")):
        assert {row.job: row.tag for row in held.held_tags} == {"db": delta.tags[0].tag, "old": old}
    store.apply(update(9, full=False, jobs=("db",)))  # a central without tags: nobody knows what these rows are
    assert [row.job for row in store.held_tags] == ["old"]
    store.apply(update(10))
    assert store.held_tags == ()


def test_false_rows_under_the_right_tag_are_not_held_as_the_right_ones(store):
    """A later central sends a job's rows only where the tag in the Hello differs from its own."""
    good = tagged(update(7))
    poison = update(7, mean=9.0)
    poison.tags.extend(good.tags)
    store.apply(poison)
    assert store.held_tags == ()
    store.apply(good)
    assert list(store.held_tags) == list(good.tags)


def test_a_tag_replaces_all_rows_of_its_job(store):
    store.apply(update(7, jobs=("web", "db")))
    store.apply(agent_pb2.CoefficientUpdate(version=8, slot_ns=SLOT, tags=[agent_pb2.JobTag(job="web", tag=3)]))
    assert store.jobs == {"db"}


def test_robust_statistics_and_the_method_are_kept(store, tmp_path):
    sent = update(7)
    sent.statistics[0].location_log_cpi, sent.statistics[0].scale_log_cpi = -0.25, 0.125
    sent.coefficients[0].method = "whitepanda"
    store.apply(sent)
    for held in (store, kept(tmp_path / "state" / "coefficients.json")):
        assert held.statistics("web", "cpu-a", NOW) == CpiStatistics(1.2, 0.35, 100, RobustLogCpi(-0.25, 0.125))
        assert held.coefficient("web", NOW) == Coefficient(0.5, 90, None, "whitepanda")
