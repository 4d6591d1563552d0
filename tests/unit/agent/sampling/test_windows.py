from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.sampling.changes import CgroupDelta, EventDelta, PerfDelta, RdtDelta, VmDelta
from agent.sampling.deltas import delta
from agent.sampling.rates import Limits
from agent.sampling.windows import CpiWindow, WindowAccumulator
from collector.base import NumaPlacement, Reason
from tests.unit.agent.agent_fakes import UNIX0, S, joined, threads
from whitepanda.common.window_columns import METRIC_COLUMNS

W = 10 * S
HERE = [("u1", "e1")]
#: What `second` says of each metric.
KNOWN = {
    "cycles": 20 * S,
    "instructions": round(12.5 * S),
    "gips": 1.25,
    "running_ratio": 1.0,
    "guest_ratio": 0.45,
    "run_queue_wait_ratio": 0.05,
    "disk_read_bytes_per_s": 10_000.0,
    "disk_write_bytes_per_s": 20_000.0,
    "disk_read_ops_per_s": 1000.0,
    "disk_write_ops_per_s": 2000.0,
    "network_receive_bytes_per_s": 3000.0,
    "network_transmit_bytes_per_s": 4000.0,
    "network_receive_packets_per_s": 1000.0,
    "network_transmit_packets_per_s": 2000.0,
    "network_receive_drops_per_s": 100.0,
    "network_transmit_drops_per_s": 0.0,
}


def of(window: CpiWindow, name: str) -> float | None:
    """A metric of a window; None where it has a reason instead."""
    value = window.metrics[name]
    return None if isinstance(value, Reason) else value


def accumulator(**limits: float) -> WindowAccumulator:
    return WindowAccumulator((W, W), 3 * S // 2, Limits(**limits))


def add(windows: WindowAccumulator, change: VmDelta, epoch: str = "e1") -> None:
    windows.add("u1", epoch, ("vm1", "job1", True), change)


def second(index: int, *, shift_unix_ns: int = 0) -> VmDelta:
    """The deltas from second `index` to the next one; Unix time starts at a window's border."""
    change = delta(joined(index + 1), joined(index))
    if not shift_unix_ns:
        return change
    parts = change[:4]  # what windows take
    return VmDelta(*(part._replace(unix_ns=part.unix_ns + shift_unix_ns) for part in parts))


def test_a_window_has_the_sums_of_its_ten_seconds():
    windows = accumulator()
    for index in range(12):
        add(windows, second(index))
    assert windows.close(round(11.4 * S), HERE) == []
    (window,) = windows.close(round(11.5 * S), HERE)
    metrics = dict(window.metrics)
    assert window == CpiWindow(
        vm="u1",
        epoch="e1",
        name="vm1",
        job="job1",
        latency_sensitive=True,
        start_unix_ns=UNIX0,
        duration_ns=W,
        cpu_usage_cores=1.0,
        cpi=pytest.approx(1.6),
        cpi_reason=Reason.UNSPECIFIED,
        cycles=20 * S,
        instructions=round(12.5 * S),
        metrics=metrics,
    )
    assert {name: value for name, value in metrics.items() if not isinstance(value, Reason)} == KNOWN
    assert {metrics[name] for name in metrics.keys() - KNOWN} == {Reason.NOT_PRESENT, Reason.SOURCE_OFF}
    kept = {column.name for column in METRIC_COLUMNS}
    assert kept - metrics.keys() == {"slow_down_ratio", "slow_down_low_ratio", "slow_down_high_ratio", "verdict"}
    assert windows.closed == 1
    assert windows.end_unix_ns(window) == UNIX0 + W


def test_cpi_is_the_quotient_of_sums_not_the_mean_of_quotients():
    windows = accumulator()
    first, then = second(0), second(1)
    busy = then.perf._replace(cycles=then.perf.cycles * 9, instructions=then.perf.instructions)
    add(windows, first)
    add(windows, then._replace(perf=busy))
    (window,) = windows.flush()
    assert window.cpi == pytest.approx(1.6 * 10 / 2)


def test_missed_ticks_show_in_the_duration():
    windows = accumulator()
    for index in (0, 1, 2, 6, 7):
        add(windows, second(index))
    (window,) = windows.flush()
    assert (window.duration_ns, window.cpu_usage_cores) == (5 * S, pytest.approx(1.0))


def test_the_same_delta_is_counted_once():
    windows = accumulator()
    for _ in range(3):
        add(windows, second(0))
    (window,) = windows.flush()
    assert (window.duration_ns, window.cycles) == (S, 2 * S)


def test_a_new_epoch_cuts_the_window():
    windows = accumulator()
    for index in range(4):
        add(windows, second(index))
    for index in range(6, 10):
        add(windows, second(index), "e2")
    rows = windows.flush()
    assert [(row.epoch, row.start_unix_ns, row.duration_ns) for row in rows] == [
        ("e1", UNIX0, 4 * S),
        ("e2", UNIX0, 4 * S),
    ]


def test_a_clock_set_back_by_an_hour_moves_labels_not_durations_and_delays_nothing():
    windows = accumulator()
    hour = 3600 * S
    for index in range(5):
        add(windows, second(index))
    for index in range(5, 12):
        add(windows, second(index, shift_unix_ns=-hour))
    rows = windows.close(round(11.5 * S), HERE)  # all that ended by the monotonic clock
    assert {(row.start_unix_ns - UNIX0, row.duration_ns) for row in rows} == {(0, 5 * S), (-hour, 5 * S)}
    assert sum(row.cycles for row in rows) == 20 * S


def test_a_clock_set_back_by_some_seconds_makes_no_window_longer():
    windows = accumulator()
    rows = []
    for index in range(25):
        add(windows, second(index, shift_unix_ns=-5 * S if index >= 8 else 0))
        rows += windows.close((index + 1) * S, HERE)
    rows += windows.flush()
    assert [(row.start_unix_ns - UNIX0, row.duration_ns) for row in rows] == [
        (0, 10 * S),  # labels 0 to 8 and 3 to 5
        (0, 5 * S),  # labels 5 to 10: what the clock's step doubled
        (W, 10 * S),
    ]


def test_a_clock_set_ahead_closes_windows_in_time():
    windows = accumulator()
    for index in range(12):
        add(windows, second(index, shift_unix_ns=3600 * S if index >= 5 else 0))
    rows = windows.close(round(11.5 * S), HERE)
    assert [(row.start_unix_ns - UNIX0, row.duration_ns) for row in rows] == [(0, 5 * S), (3600 * S, 5 * S)]


def test_below_the_activity_floor_a_window_is_idle_and_keeps_its_counts():
    windows = accumulator(min_activity_cores=1.5)
    add(windows, second(0))
    (window,) = windows.flush()
    assert (window.cpi, window.cpi_reason, window.cycles) == (None, Reason.IDLE, 2 * S)


def with_waits(change: VmDelta, stalled: float | None, waited_ns: int | Reason) -> VmDelta:
    """The same second with memory stalls counted (None: not in it), and that much waited for a disk."""
    perf, end = change.perf, change.cpu
    events = {"memory_stall_cycles": EventDelta(stalled, 1.0 * S, 0.6 * S)} if stalled is not None else {}
    nothing = (Reason.NOT_PRESENT,) * 3
    group = CgroupDelta(S, end.mono_ns, end.unix_ns, *nothing, waited_ns, *nothing, Reason.NOT_PRESENT)
    return change._replace(perf=perf._replace(events=events), cgroup=group)


def test_memory_stalls_and_waits_for_a_disk_are_shares_of_what_was_watched():
    windows = accumulator()
    for index, (stalled, waited_ns) in enumerate([(0.2 * S, S // 4), (None, Reason.COUNTER_RESET), (0.4 * S, S // 2)]):
        add(windows, with_waits(second(index), stalled, waited_ns))
    (window,) = windows.flush()
    assert of(window, "memory_stall_ratio") == pytest.approx(0.6 / 2)  # of the cycles beside it, in two of three ticks
    assert of(window, "pressure_io_some_ratio") == 0.375


def test_the_same_wait_is_counted_once_and_shares_end_at_1():
    windows = accumulator()
    for _ in range(2):
        add(windows, with_waits(second(0), 1.01 * S, S + 5000))
    add(windows, with_waits(second(1), 1.0 * S, S))
    (window,) = windows.flush()
    assert (of(window, "memory_stall_ratio"), of(window, "pressure_io_some_ratio")) == (1.0, 1.0)


def test_waits_that_nobody_reported_are_not_known():
    windows = accumulator()
    add(windows, second(0))
    add(windows, with_waits(second(1), None, Reason.NOT_PRESENT))
    (window,) = windows.flush()
    assert (of(window, "memory_stall_ratio"), of(window, "pressure_io_some_ratio")) == (None, None)


def with_rdt(change: VmDelta, held: int | Reason, moved: int | Reason, dt_ns: int = S) -> VmDelta:
    """The same second with what the cache held at its end, and what was moved from and to memory in it."""
    end = change.cpu
    return change._replace(rdt=RdtDelta(dt_ns, end.mono_ns, end.unix_ns, held, moved, 0))


def test_cache_and_memory_bandwidth_are_means_over_the_time_in_which_they_were_known():
    windows = accumulator()
    for index, reported in enumerate([(4 << 20, 3000), (1 << 20, 6000, 3 * S), (Reason.NO_RMID, Reason.STALE)]):
        for _ in range(2):  # a sample that is seen again counts once
            add(windows, with_rdt(second(index), *reported))
    (window,) = windows.flush()
    assert of(window, "llc_occupancy_bytes") == 1_835_000  # of 1.75 MiB four digits
    assert of(window, "memory_bandwidth_bytes_per_s") == (3000 + 6000) / 4


def test_a_cpu_that_only_knows_one_of_them_reports_one():
    windows = accumulator()
    add(windows, with_rdt(second(0), 0, Reason.NOT_PRESENT))
    (window,) = windows.flush()
    assert (of(window, "llc_occupancy_bytes"), of(window, "memory_bandwidth_bytes_per_s")) == (0.0, None)
    add(windows, with_rdt(second(11), Reason.NOT_PRESENT, 0))
    (window,) = windows.flush()
    assert (of(window, "llc_occupancy_bytes"), of(window, "memory_bandwidth_bytes_per_s")) == (None, 0.0)


def test_each_rule_sums_up_its_metric():
    windows = accumulator()
    for index, share in enumerate((1, 3)):
        change = second(index)
        end = change.cpu
        events = {
            "llc_misses": EventDelta(share * 1000.0, 2.0 * S, share * 1e6),
            "total_stall_cycles": EventDelta(share * 0.1 * S, share * S, 1e6),
            "core_stall_cycles": EventDelta(share**2 * 0.1 * S, share * S, 1e6),
            "reference_cycles": EventDelta(1.0 * S, share * S, 1e6),
        }
        group = (S // 4 * share, S // 8, S // 8 * share, S // 10, S // 10 * share, S // 5 * share, 2.0, share << 30)
        change = change._replace(
            perf=change.perf._replace(events=events, missing={"l2_misses": Reason.NO_EVENT}),
            cgroup=CgroupDelta(S, end.mono_ns, end.unix_ns, *group),
            numa=NumaPlacement({0: 1, 1: share}, {0: 2}),
        )
        add(windows, change)
    (window,) = windows.flush()
    expected = {
        "llc_mpki": 1.0,  # of the sums
        "total_stall_ratio": 0.1,
        "core_stall_ratio": 0.25,  # of the sums
        "frequency_ratio": 2.0,  # cycles / reference cycles
        "pressure_cpu_some_ratio": 0.5,  # mean over time
        "pressure_memory_full_ratio": 0.25,
        "pressure_io_full_ratio": 0.2,
        "cpu_throttled_ratio": 0.4,
        "memory_charged_bytes": float(f"{3 << 30:.4g}"),  # the last
        "numa_remote_memory_ratio": 0.75,
        "l2_mpki": Reason.NO_EVENT,
    }
    assert {name: window.metrics[name] for name in expected} == expected


def test_each_class_has_its_own_length():
    windows = WindowAccumulator((2 * W, W), 3 * S // 2, Limits())
    rows = []
    for index in range(24):
        windows.add("u1", "e1", ("vm1", "job1", True), second(index))
        windows.add("u2", "e1", ("vm2", "job2", False), second(index))
        rows += windows.close((index + 1) * S, [*HERE, ("u2", "e1")])
    found = [(row.vm, row.start_unix_ns - UNIX0, row.duration_ns) for row in rows]
    assert found == [("u1", 0, W), ("u1", W, W), ("u2", 0, 2 * W)] or found == [
        ("u1", 0, W),
        ("u2", 0, 2 * W),
        ("u1", W, W),
    ]
    assert [windows.end_unix_ns(row) - UNIX0 for row in rows if row.vm == "u2"] == [2 * W]


@pytest.mark.parametrize("rdt", [Reason.NO_RDT, RdtDelta(0, S, UNIX0 + S, 7, *(Reason.VM_STARTING,) * 2)])
def test_a_cache_that_was_not_watched_is_not_known(rdt):
    windows = accumulator()
    add(windows, second(0)._replace(rdt=rdt))
    (window,) = windows.flush()
    assert (of(window, "llc_occupancy_bytes"), of(window, "memory_bandwidth_bytes_per_s")) == (None, None)


@pytest.mark.parametrize("limits", [{"min_activity_cores": 1.5}, {"min_running_ratio": 1.1}])
def test_stalls_of_a_cpi_that_is_not_to_be_believed_are_not_known(limits):
    windows = accumulator(**limits)
    add(windows, with_waits(second(0), 0.2 * S, 0))
    (window,) = windows.flush()
    assert (of(window, "memory_stall_ratio"), of(window, "pressure_io_some_ratio")) == (None, 0.0)


def test_counters_that_ran_too_little_are_multiplexed():
    windows = accumulator()
    change = second(0)
    add(windows, change._replace(perf=change.perf._replace(running_ns=change.perf.enabled_ns * 0.19)))
    (window,) = windows.flush()
    assert (window.cpi, window.cpi_reason, window.cycles, window.instructions) == (None, Reason.MULTIPLEXED, None, None)
    assert of(window, "running_ratio") == pytest.approx(0.19)


def test_ticks_in_which_no_counter_ran_are_scaled_for_and_lower_the_ratio():
    windows = accumulator()
    for index in range(4):
        change = second(index)
        if index == 3:
            starved = change.perf._replace(cycles=0.0, instructions=0.0, running_ns=0.0)
            change = change._replace(perf=starved)
        add(windows, change)
    (window,) = windows.flush()
    assert (window.cycles, of(window, "running_ratio"), window.cpi) == (8 * S, pytest.approx(0.75), pytest.approx(1.6))


def test_counts_that_lack_a_thread_are_not_reported_but_their_quotient_is():
    windows = accumulator()
    change = second(0)
    add(windows, change._replace(perf=change.perf._replace(incomplete=Reason.VM_STARTING)))
    (window,) = windows.flush()
    assert (window.cycles, window.instructions, window.cpi) == (None, None, pytest.approx(1.6))


def test_without_counters_the_reason_is_reported():
    windows = accumulator()
    add(windows, second(0)._replace(perf=Reason.PARANOID, disk=Reason.SOURCE_OFF, network=Reason.STALE))
    (window,) = windows.flush()
    assert (window.cpi, window.cpi_reason, of(window, "running_ratio")) == (None, Reason.PARANOID, None)
    names = ("gips", "llc_mpki", "running_ratio", "disk_read_bytes_per_s", "network_receive_drops_per_s")
    whys = (Reason.PARANOID, Reason.PARANOID, Reason.PARANOID, Reason.SOURCE_OFF, Reason.STALE)
    assert tuple(window.metrics[name] for name in names) == whys


def test_a_window_without_cpu_usage_is_dropped_and_counted():
    windows = accumulator()
    add(windows, second(0)._replace(cpu=Reason.SOURCE_FAILED))
    assert windows.flush() == []
    assert (windows.closed, windows.without_cpu) == (0, 1)


def test_a_delta_longer_than_a_window_and_a_half_belongs_to_none():
    windows = accumulator()
    add(windows, delta(joined(16), joined(0)))
    assert windows.flush() == []
    add(windows, delta(joined(36), joined(21)))  # 15 s: just not too long
    assert [row.duration_ns for row in windows.flush()] == [15 * S]


def test_waits_unknown_for_a_part_of_the_window_are_the_mean_of_the_rest():
    windows = accumulator()
    mute = {tid: replace(t, run_queue_wait_ns=None) for tid, t in threads(1).items()}
    now = joined(1)
    add(windows, delta(now._replace(threads=now.threads._replace(value=mute)), joined(0)))
    add(windows, second(1))
    (window,) = windows.flush()
    assert of(window, "run_queue_wait_ratio") == pytest.approx(0.05)


def test_vms_that_left_are_forgotten_once_their_window_is_closed():
    windows = accumulator()
    add(windows, second(0))
    assert len(windows.close(12 * S, [])) == 1
    assert (windows._seen, windows._open) == ({}, {})


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(-2 * W, 2 * W))
def test_every_delta_is_in_just_one_window(taken, step_ns):
    """Whatever ticks are missed and wherever Unix time steps to half way, the windows' sums are the sums."""
    windows = accumulator()
    rows, cycles, duration = [], 0.0, 0
    for index, take in enumerate(taken):
        if take:
            change = second(index, shift_unix_ns=step_ns if index > len(taken) // 2 else 0)
            assert isinstance(change.perf, PerfDelta)
            cycles += change.perf.cycles
            duration += change.perf.dt_ns
            add(windows, change)
        rows += windows.close((index + 1) * S, HERE)
    rows += windows.flush()
    assert sum(row.duration_ns for row in rows) == duration
    assert sum(row.cycles or 0 for row in rows) == pytest.approx(cycles)
    assert all(row.start_unix_ns % W == 0 and row.duration_ns <= W + S for row in rows)
