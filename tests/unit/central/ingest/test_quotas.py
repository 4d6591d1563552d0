"""What one host may send: each budget at its edge and just below, and that an honest host never meets one."""

import random

import pytest

from agent.analysis.advice import recommendations
from agent.analysis.advice.actions import recommend
from agent.config import UplinkSection
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from agent.uplink.messages import recommendation_message
from central.config import IngestSection, QuotaSection
from central.ingest.quotas import OverQuotaError, Quotas
from central.validation.triggers import TriggerRow
from whitepanda.common.window_columns import METRIC_COLUMNS
from whitepanda.v1 import agent_pb2

DAY_S = 86_400
MIB, GIB = 2**20, 2**30


class Door:
    """Quotas by a clock that is set by hand."""

    def __init__(self, **settings) -> None:
        self.now_s = 5000.0
        self.section = QuotaSection(**settings)
        self.quotas = Quotas(self.section, clock_s=lambda: self.now_s)
        self.sequence = 0

    def take(self, host: str = "h1", rows: int = 100, size: int = 1000, **fields) -> int:
        self.sequence += 1
        said = {"spool_id": "s", "sequence": self.sequence} | fields
        return self.quotas.take(host, rows=rows, size=size, **said)

    def refusal(self, host: str = "h1", **fields) -> str:
        with pytest.raises(OverQuotaError) as refused:
            self.take(host, **fields)
        assert "quotas.max_" in str(refused.value)
        self.sequence -= 1  # the agent keeps it and sends it again
        return refused.value.reason

    def report(self, size: int, count: int = 1, host: str = "h1") -> tuple[int, int]:
        """Return how many reports are kept, and how many are dropped."""
        rows = [TriggerRow(host, "s", 1, number, host, 1, b"x" * size) for number in range(count)]
        kept, dropped = self.quotas.take_reports(host, rows)
        return len(kept), dropped


def tasks(*vms: str, job: str = "j") -> list[tuple[str, str]]:
    return [(vm, job) for vm in vms]


def test_rows_of_a_minute() -> None:
    door = Door(max_rows_per_minute=6000)
    for _ in range(59):
        door.take(rows=100)
    door.take(rows=99)
    door.take(rows=100)  # something was left
    assert door.refusal(rows=1) == "over_quota_rows"
    assert len(door.quotas.refused()) == 1
    door.take("h2", rows=100)
    assert len(door.quotas.refused()) == 1, "another host has a budget of its own"
    door.now_s += 0.95
    assert door.refusal() == "over_quota_rows", "99 rows were too many, 100 come back in a second"
    door.now_s += 0.06
    door.take()
    door.now_s += 299
    assert len(door.quotas.refused()) == 1
    door.now_s += 2
    assert len(door.quotas.refused()) == 0


def test_refusals_of_the_last_five_minutes_are_counted_by_host_and_budget() -> None:
    door = Door(max_rows_per_minute=6000, max_report_mib_per_day=1)
    door.take(rows=12_000)
    for _ in range(3):
        assert door.refusal() == "over_quota_rows"
    door.report(10, 1030)
    door.take("h2")
    assert door.quotas.refused() == {"h1": {"over_quota_reports": 6, "over_quota_rows": 3}}
    door.now_s += 290
    door.take(rows=12_000)
    assert door.refusal() == "over_quota_rows"
    assert door.quotas.refused()["h1"]["over_quota_rows"] == 4
    door.now_s += 60
    assert door.quotas.refused() == {"h1": {"over_quota_rows": 1}}
    door.now_s += 300
    assert door.quotas.refused() == {}


def test_what_is_remembered_of_refusals_is_bounded() -> None:
    door = Door(max_rows_per_minute=1, max_report_mib_per_day=0.001)
    door.take(rows=10**9)
    for _ in range(2000):
        door.now_s += 7
        door.refusal()
        door.report(10, 5)
    (host,) = door.quotas._hosts.values()
    assert len(host.refused) <= 24


def test_an_empty_batch_counts_as_ten_rows() -> None:
    door = Door(max_rows_per_minute=1000)
    for _ in range(100):
        door.take(rows=0)
    assert door.refusal(rows=0) == "over_quota_rows"


def test_bytes_of_a_day() -> None:
    door = Door(max_gib_per_day=1)
    door.take(size=GIB - 1)
    door.take(size=4 * MIB)
    assert door.refusal(size=1) == "over_quota_bytes"
    door.now_s += DAY_S * (4 * MIB / GIB) - 1
    assert door.refusal(size=1) == "over_quota_bytes"
    door.now_s += 2
    door.take(size=1)


def test_vms_of_an_hour() -> None:
    door = Door(max_vms_per_hour=4)
    door.take(tasks=tasks("a", "b"))
    door.take(tasks=tasks("b", "a", "c"))
    door.take(tasks=tasks("a", job="other"))
    assert door.refusal(tasks=tasks("d")) == "over_quota_vms"
    door.take(tasks=tasks("c", "b"))
    door.take()
    door.now_s += 3599
    assert door.refusal(tasks=tasks("d")) == "over_quota_vms"
    door.now_s += 1
    door.take(tasks=tasks("d", "e"))


@pytest.mark.long
def test_a_hundred_thousand_spool_ids_leave_as_many_ranges_as_the_budget_has() -> None:
    door = Door()
    taken = 0
    for number in range(100_000):
        door.now_s += 0.001
        try:
            door.take(rows=1, size=100, spool_id=f"spool-{number}", sequence=1)
            taken += 1
        except OverQuotaError as error:
            assert error.reason == "over_quota_ranges"  # noqa: PT017 - whether it comes is not known
    assert 2000 <= taken <= 2002
    (host,) = door.quotas._hosts.values()
    assert len(host.spools) <= 8, "in memory"
    assert door.refusal(spool_id="one more", sequence=1) == "over_quota_ranges"
    door.now_s += DAY_S / 2000
    door.take(spool_id="one more", sequence=1)


def test_what_continues_in_a_known_spool_is_no_new_range() -> None:
    door = Door(max_ranges_per_day=3)
    for number in range(1, 50):
        door.take(spool_id="disk", sequence=number)
        door.take(spool_id="memory", sequence=number)
    door.take(spool_id="disk", sequence=60)
    door.take(spool_id="disk", sequence=61)
    assert door.refusal(spool_id="disk", sequence=63) == "over_quota_ranges"
    door.take(spool_id="disk", sequence=62)


def test_54_mb_of_reports_in_a_moment_leave_the_budget() -> None:
    door = Door()
    kept = 0
    for number in range(900):
        door.now_s += 1.4 / 900
        taken, dropped = door.report(60_000)
        kept += taken * 60_000
        assert taken + dropped == 1, number
    assert 16 * MIB - 60_000 < kept <= 16 * MIB + 60_000
    assert len(door.quotas.refused()) == 1
    assert door.report(60_000, host="h2") == (1, 0)
    door.take()
    door.now_s += 400
    assert len(door.quotas.refused()) == 0


def test_small_reports_cost_a_kibibyte_each() -> None:
    door = Door(max_report_mib_per_day=1)
    assert door.report(10, 1030) == (1024, 6)
    door.now_s += DAY_S / 1024 + 0.01
    assert door.report(10, 2) == (1, 1)


def test_of_one_batch_a_mebibyte_of_reports_is_kept() -> None:
    door = Door()
    assert door.report(18_000, 200) == (58, 142)
    assert door.report(4_608, 100) == (100, 0)  # as an agent's largest one


def test_hosts_that_are_quiet_for_a_day_are_forgotten() -> None:
    door = Door()
    for number in range(1000):
        door.take(f"h{number}")
    door.now_s += DAY_S - 1
    door.take("h7")
    door.take("new")
    assert len(door.quotas._hosts) == 1001
    door.now_s += 3601
    door.take("newer")
    assert len(door.quotas._hosts) == 3


def test_memory_of_a_usual_host_is_small() -> None:
    door = Door()
    door.take(tasks=tasks(*(f"{number:036d}" for number in range(300))))
    (host,) = door.quotas._hosts.values()
    assert host.tasks.nbytes == 2400


# Honest hosts. docs/security.md has the same arithmetic.

VMS, WINDOW_S, TIMES = (300, 5, 10)  # a large host, and the factor between its load and what must still be in quota


def windows(count: int) -> list[CpiWindow]:
    """Of as many VMs, with every metric known."""
    rng = random.Random(7)
    return [
        CpiWindow(
            vm=f"5f1c{number:08d}-7a2b-4c3d-8e9f-0123456789ab",
            epoch=f"{1_800_000_000 + number}",
            job=f"flavour-{number % 20}",
            latency_sensitive=number % 2 == 0,
            name=f"instance-{number:08x}",
            start_unix_ns=1_800_000_000 * 10**9,
            duration_ns=WINDOW_S * 10**9,
            cpi=rng.random(),
            cpu_usage_cores=rng.random(),
            metrics={column.name: rng.random() for column in METRIC_COLUMNS},
        )
        for number in range(count)
    ]


@pytest.mark.long
def test_ten_times_the_load_of_a_large_host_is_in_quota_all_day() -> None:
    door = Door()
    batch = encode(windows(VMS * TIMES), spool_id="s", sequence=1)
    size = batch.ByteSize()
    for number in range(DAY_S // WINDOW_S):
        door.now_s += WINDOW_S
        known = [(task.vm, task.job) for task in batch.tasks] if number % 300 == 0 else ()
        assert door.take(rows=VMS * TIMES, size=size, tasks=known) == 0, "nor is it slowed down"
    assert len(door.quotas.refused()) == 0
    (host,) = door.quotas._hosts.values()
    rows = VMS * TIMES * 60 / WINDOW_S / door.section.max_rows_per_minute
    stored = size * DAY_S / WINDOW_S / (door.section.max_gib_per_day * GIB)
    print(f"{size / VMS / TIMES:.0f} bytes a row; {rows:.0%} of the rows, {stored:.0%} of the bytes")
    assert rows <= 0.1
    assert stored <= 0.5
    assert len(host.tasks) == VMS * TIMES


@pytest.mark.parametrize("batch_rows", [3, UplinkSection().batch_rows, IngestSection().max_batch_rows])
def test_an_agent_that_comes_back_with_a_full_spool_is_slowed_down_and_never_over(batch_rows: int) -> None:
    door, section = Door(), UplinkSection()
    few = windows(min(batch_rows, 1000))
    per_row = encode(few, spool_id="s", sequence=1).ByteSize() / len(few)
    rows = int(section.spool_max_mib * MIB / per_row)
    batches = min(rows // batch_rows, 60_000)
    began_s, pace_ms, unknown = door.now_s, 0, 0
    slowest_ms, live, live_s = 0, 10**9, began_s
    for number in range(batches):
        if door.now_s - live_s >= WINDOW_S:  # what is measured meanwhile goes first
            live_s += WINDOW_S
            live += 1
            door.take(rows=VMS, size=round(per_row * VMS), spool_id="s", sequence=live)
        asked_ms = door.take(rows=batch_rows, size=round(per_row * batch_rows), spool_id="s", sequence=number + 1)
        # It sends as fast as it can, and learns of another pace when all that is in flight has been sent.
        unknown = unknown + 1 if asked_ms != pace_ms else 0
        if unknown >= section.in_flight_batches:
            pace_ms, unknown = asked_ms, 0
        door.now_s += max(pace_ms / 1000, 0.0001)
        slowest_ms = max(slowest_ms, pace_ms)
    assert len(door.quotas.refused()) == 0
    took_s = door.now_s - began_s
    print(f"{batches * batch_rows} rows in {took_s:.0f} s, {batches * batch_rows / took_s * 60:.0f} a minute")
    assert took_s <= 600
    if batch_rows > 3:
        assert slowest_ms > 0


def test_twelve_days_of_uninterrupted_contention_in_a_spool_are_in_quota() -> None:
    name = "instance-0123abcd"
    worst = recommendations.Victim("v" * 36, name, "flavour-7", 3.0, 1.0, 2.0, 1.5)
    first = recommendations.Suspect(
        "s" * 36, name, "flavour-8", 2.0, 4, 0.5, 0.1, 1.0, 2.0**24, memory_bytes_per_s=1e9, inflicts=True
    )
    advice = recommend(
        recommendations.Situation(
            victims=(worst,),
            suspects=(first,),
            mn_cpi=3.0,
            mn_cpi_threshold=2.0,
            lasted_s=900.0,
            host=recommendations.HostLimits(cache_ways=11, min_bandwidth_percent=10, central="central:7480"),
        )
    )
    known = {"epoch": "1800000000", "name": name, "job": "flavour-7", "cpu_usage_cores": 1.5}
    report = agent_pb2.Trigger(
        unix_ns=1,
        slot_ns=1,
        mn_cpi=3.0,
        mn_cpi_threshold=2.0,
        victims=[
            agent_pb2.TriggerVictim(
                vm="v" * 36,
                cpi=2.0,
                n_cpi=3.0,
                threshold_cpi=2.0,
                slow_down=agent_pb2.Degradation(ratio=2.0, low=1.5, high=2.5, model="cpi"),
                suspect="s" * 36,
                **known,
            )
        ]
        * 5,
        suspects=[agent_pb2.TriggerSuspect(vm="s" * 36, coefficient=1.0, score=1.5, **known)] * 5,
        recommendations=[recommendation_message(one) for one in advice],
    )
    size = report.ByteSize()
    print(f"{size} bytes with {len(advice)} recommendations")
    assert size <= 4608
    door = Door()
    assert [door.report(4608, 96) for _ in range(12 * 288 // 96)] == [(96, 0)] * 36
    door.now_s += DAY_S
    assert [door.report(4608) for _ in range(1440)] == [(1, 0)] * 1440, "one a minute, all day"
    assert len(door.quotas.refused()) == 0


def test_once_it_has_caught_up_it_may_send_as_it_likes() -> None:
    door = Door(max_rows_per_minute=6000)
    for _ in range(24):
        assert door.take(rows=100) == 0
    assert door.take(rows=100) == 1250, "less than 60 % are left: 100 rows at 80 % of 100 a second"
    assert door.take(rows=50) == 1250
    assert door.take(rows=200) == 2500
    door.now_s += 10
    assert door.take(rows=100) == 2500
    door.now_s += 60
    assert door.take(rows=100) == 0
