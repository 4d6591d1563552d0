import heapq
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.simulated import contention
from collector.simulated.contention import Rates, contend, parameters, workers_of
from collector.simulated.history import simulate_days
from collector.simulated.model import Host
from collector.simulated.profiles import APPLICATIONS, HOST, NOISE, PROFILES, STRESSORS, Machine
from collector.simulated.requests import RequestQueue, expected_p95, p95
from collector.simulated.scenario import parse
from collector.simulated.truth import Role, RoleTracker
from whitepanda.common.errors import ConfigError

MIB = 1 << 20
CALM = replace(NOISE, load_std=0.0, ipc_std=0.0, counter_std=0.0, bandwidth_std=0.0, occupancy_std=0.0, wait_std=0.0)


def together(*vms: tuple[str, int, float], machine: Machine = HOST) -> Rates:
    p = parameters(machine, [(PROFILES[name], vcpus) for name, vcpus, _ in vms])
    return contend(machine, p, np.array([load for _, _, load in vms]))


# --- contention ---


@pytest.mark.parametrize("name", [name for name, app in APPLICATIONS.items() if app.working_set_mib <= 14.7])
def test_alone_an_application_is_what_its_parameters_say(name: str) -> None:
    rates = together((name, 2, 0.2))
    app = APPLICATIONS[name]
    assert 1 / rates.cpi[0] == pytest.approx(app.ipc, rel=1e-3)
    assert rates.usage_cores[0] == pytest.approx(0.4, rel=1e-3)
    assert rates.requests_per_s[0] == pytest.approx(0.4 / app.service_ms * 1e3)
    assert rates.llc_bytes[0] == pytest.approx(app.working_set_mib * MIB, rel=1e-3)


def test_a_victims_instructions_follow_its_load_and_its_cpu_time_the_contention() -> None:
    """Cloud White, section 4.1; figure 4: from 11 to 15 % of CPU beside a heavy neighbour, IPC from 1.78 down."""
    calm = together(("img-dnn", 2, 0.1), ("no-interference", 8, 0.1))
    hurt = together(("img-dnn", 2, 0.1), ("cache-memory-3", 8, 0.95))
    assert hurt.instructions_per_s[0] == pytest.approx(calm.instructions_per_s[0], rel=1e-9)
    assert calm.usage_cores[0] / 2 == pytest.approx(0.10, abs=0.001)
    assert 0.13 < hurt.usage_cores[0] / 2 < 0.17
    assert hurt.llc_misses_per_s[0] > 3 * calm.llc_misses_per_s[0]
    # A closed loop keeps its CPU time and gets less done.
    assert hurt.usage_cores[1] == pytest.approx(0.95 * 8)
    alone = together(("cache-memory-3", 8, 0.95))
    assert hurt.instructions_per_s[1] < alone.instructions_per_s[0]


def test_stressors_do_what_the_paper_says() -> None:
    """Section 5: 1.9 to 5.5 GB/s of memory, 12.5 to 14.7 MB of cache; 45 to over 100 MB/s of disk."""
    held, moved, disk = [], [], []
    for level in (1, 2, 3):
        cache, load = STRESSORS[f"cache-memory-{level}"]
        rates = together(("silo", 2, 0.1), (cache.name, 8, load), ("no-interference", 6, 0.1))
        held.append(rates.llc_bytes[1] / MIB)
        moved.append(rates.memory_bytes_per_s[1] / 1e9)
        name = f"disk-{level}"
        disk.append(together((name, 8, STRESSORS[name][1])).disk_bytes_per_s[0] / 1e6)
    assert held == pytest.approx([12.5, 13.6, 14.7], abs=0.2)
    assert moved == pytest.approx([1.9, 3.6, 5.5], abs=0.25)
    assert disk == pytest.approx([45, 75, 105])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(PROFILES)), st.floats(0.01, 1.2)), min_size=1, max_size=6))
def test_nobody_gets_more_than_there_is(vms: list[tuple[str, float]]) -> None:
    rates = together(*((name, 4, load) for name, load in vms))
    assert rates.llc_bytes.sum() <= HOST.llc_mib * MIB * (1 + 1e-6)
    limits = np.array([PROFILES[name].working_set_mib for name, _ in vms])
    assert (rates.llc_bytes <= limits * MIB * (1 + 1e-9)).all()
    assert rates.usage_cores.sum() <= HOST.vm_cpus * (1 + 1e-9)
    assert (rates.stretch >= 1).all()
    assert (rates.total_stall_per_s <= rates.cycles_per_s).all()
    for column in rates:
        assert np.isfinite(column).all()
        assert (column >= 0).all()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(APPLICATIONS)), st.floats(0.05, 0.5), st.floats(0.05, 0.85))
def test_more_of_a_stressor_never_helps(name: str, own: float, stress: float) -> None:
    less, more = (together((name, 2, own), ("cache-memory-2", 8, load)) for load in (stress, stress + 0.1))
    assert more.cpi[0] >= less.cpi[0] * (1 - 1e-3)


def test_the_fixed_point_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    vms = (("moses", 2, 0.5), ("specjbb", 4, 0.6), ("cache-memory-3", 8, 0.95), ("disk-3", 8, 0.3))
    usual = together(*vms)
    monkeypatch.setattr(contention, "_ROUNDS", 400)
    assert together(*vms).cpi == pytest.approx(usual.cpi, rel=1e-3)


def test_moments_do_not_depend_on_each_other() -> None:
    p = parameters(HOST, [(PROFILES["moses"], 2), (PROFILES["cache-memory-3"], 8)])
    loads = np.array([[0.2, 0.1], [0.2, 0.9], [0.5, 0.9]])
    at_once = contend(HOST, p, loads)
    for row, load in enumerate(loads):
        assert at_once.cpi[row] == pytest.approx(contend(HOST, p, load).cpi, rel=1e-12)


def test_too_many_cores_wanted_are_shared_and_waited_for() -> None:
    rates = together(("cache-memory-1", 16, 1.0), ("no-interference", 16, 1.0), ("silo", 2, 0.2))
    assert rates.usage_cores.sum() == pytest.approx(16.0)
    assert rates.stretch[2] > 2.0
    assert rates.wait_cores[0] == pytest.approx(rates.usage_cores[0] * (rates.stretch[0] - 1))
    assert together(("silo", 2, 0.2)).stretch[0] == pytest.approx(1.0, abs=1e-6)


def test_a_busy_disk_delays_operations_and_nobodys_cpu() -> None:
    calm, busy = (together(("specjbb", 2, 0.3), ("disk-3", 8, load)) for load in (1e-6, 0.35))
    assert calm.disk_op_s[0] == pytest.approx(0.5e-3, rel=0.05)
    # 105 of 200 MB/s: an operation takes 1 / (1 - 0.525) times as long.
    assert busy.disk_op_s[0] == pytest.approx(0.5e-3 / (1 - 0.535), rel=0.03)
    assert busy.cpi[0] == pytest.approx(calm.cpi[0], rel=0.01)


def test_a_byte_waits_on_a_link_that_has_a_speed_and_on_no_other() -> None:
    vms = (("network", 8, 0.3), ("network", 8, 0.2))  # 3300 MB/s at load 1
    link = replace(HOST, link_mb_per_s=2500.0)
    both, alone, anywhere = together(*vms, machine=link), together(vms[0], machine=link), together(*vms)
    assert alone.network_byte_s[0] == pytest.approx(1 / 2.5e9 / (1 - 990 / 2500))
    assert both.network_byte_s[0] == pytest.approx(1 / 2.5e9 / (1 - 1650 / 2500))
    assert together(("network", 8, 1.0), machine=link).network_byte_s[0] == pytest.approx(10 / 2.5e9)  # at most 90 %
    assert anywhere.network_byte_s[0] == 0.0
    assert both.network_bytes_per_s == pytest.approx(anywhere.network_bytes_per_s)


def test_the_three_stalls_are_not_multiples_of_each_other() -> None:
    ratios = []
    for name, load in (("cache-memory-1", 0.33), ("cache-memory-3", 0.95), ("disk-3", 0.35), ("specjbb", 0.5)):
        for own in (0.1, 0.5):
            r = together(("img-dnn", 2, own), (name, 8, load))
            cycles = r.cycles_per_s[0]
            ratios.append([v[0] / cycles for v in (r.memory_stall_per_s, r.core_stall_per_s, r.total_stall_per_s)])
    values = np.array(ratios)
    # None is a sum of the others and a constant: what an estimator with an intercept would see.
    assert np.linalg.matrix_rank(values - values.mean(axis=0), tol=1e-5) == 3


def test_an_impossible_ipc_is_refused() -> None:
    with pytest.raises(ValueError, match="img-dnn: an IPC of 6 leaves no cycles"):
        parameters(HOST, [(replace(APPLICATIONS["img-dnn"], ipc=6), 2)])


# --- requests ---


def deterministic_p95(load: float) -> float:
    """The 95th percentile of the time in an M/D/1 queue with service time 1 (Erlang's formula)."""

    def below(t: float) -> float:
        return (1 - load) * sum(
            (-load * (t - k)) ** k / math.factorial(k) * math.exp(load * (t - k)) for k in range(math.floor(t) + 1)
        )

    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.95 else (low, middle)
    return low + 1


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_the_expected_tail_is_that_of_a_queue_known_exactly(load: float) -> None:
    app = replace(APPLICATIONS["silo"], service_cv=1e-6, disk_ops_per_request=0.0)
    tail = expected_p95(app, 1, np.array([load]), np.array([0.0]))
    assert tail[0] == pytest.approx(deterministic_p95(load), rel=0.02)


def test_tails_grow_with_load_and_disk() -> None:
    tail = partial(expected_p95, APPLICATIONS["specjbb"], 2)
    loads = np.linspace(0.05, 0.95, 40)
    values = tail(loads, np.zeros(40))
    assert (np.diff(values) >= 0).all()
    assert values[-1] > 3 * values[0]
    assert (tail(loads, np.full(40, 16.0)) > values).all()
    assert tail(np.array([5.0]), np.array([0.0])) == tail(np.array([0.97]), np.array([0.0]))


@pytest.mark.long
@pytest.mark.parametrize(("name", "vcpus"), [("silo", 2), ("masstree", 2), ("masstree", 4)])
def test_requests_one_by_one_have_the_expected_tail(name: str, vcpus: int) -> None:
    app = APPLICATIONS[name]
    workers = workers_of(app, vcpus)
    queue = RequestQueue(app, workers, np.random.default_rng(3))
    rng = np.random.default_rng(4)
    service_s = app.service_ms / 1e3
    rate = 0.6 * workers / service_s
    measured = [p95(queue.serve(second, 1.0, int(rng.poisson(rate)), service_s, 0.5e-3)) for second in range(60)]
    expected = service_s * expected_p95(app, workers, np.array([0.6]), np.array([0.5e-3 / service_s]))[0]
    assert np.mean(measured) == pytest.approx(expected, rel=0.04)
    assert 0.01 < np.std(measured) / expected < 0.25


@pytest.mark.parametrize("workers", [1, 3])
def test_the_queue_is_first_come_first_served_across_ticks(workers: int) -> None:
    app = APPLICATIONS["moses"]
    queue = RequestQueue(app, workers, np.random.default_rng(9))
    seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    usual = queue._ends

    def spy(arrivals, services):
        ends = usual(arrivals, services)
        seen.append((arrivals, services, ends))
        return ends

    queue._ends = spy
    ended = sum(len(queue.serve(second, 1.0, 30 * workers, 0.04, 1e-3)) for second in range(5))
    free = [0.0] * workers
    for arrivals, services, ends in seen:
        for arrival, service, end in zip(arrivals, services, ends, strict=True):
            wanted = max(arrival, free[0]) + service
            heapq.heapreplace(free, wanted)
            assert end == pytest.approx(wanted)
    # Overloaded: what has not ended in its tick ends in a later one, or not yet.
    assert ended < 5 * 30 * workers
    assert ended == sum(int((ends <= 5).sum()) for _, _, ends in seen)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_on_a_vcpu_are_those_of_requests_in_service_that_do_not_wait_for_the_disk(workers: int) -> None:
    app = replace(APPLICATIONS["moses"], disk_ops_per_request=0.3)
    queue, twin = (RequestQueue(app, workers, np.random.default_rng(9)) for _ in range(2))
    free, spans, seen = [0.0] * workers, [], []
    usual = queue._ends

    def spy(arrivals, services):
        seen.append((arrivals, services))
        return usual(arrivals, services)

    queue._ends = spy
    sigma = queue._sigma
    rng = np.random.default_rng(9)
    counts = []
    for second in range(40):
        queue.serve(float(second), 1.0, 20 * workers, 0.03, 10e-3)
        twin.serve(float(second), 1.0, 20 * workers, 0.03, 10e-3)
        # The same numbers once more, to know what of each service is the disk's.
        rng.random(20 * workers)
        rng.lognormal(-(sigma**2) / 2, sigma, 20 * workers)
        slow = rng.random(20 * workers) < 0.3
        disk = np.zeros(20 * workers)
        disk[slow] = rng.exponential(10e-3, int(slow.sum()))
        for arrival, service, waits in zip(*seen[-1], disk, strict=True):
            begin = max(arrival, free[0])
            heapq.heapreplace(free, begin + service)
            spans.append((begin, begin + service - waits))
        now = second + 1.0
        counts.append(queue.running_at(now))
        assert counts[-1] == sum(begin <= now < leave for begin, leave in spans)
        assert counts[-1] == twin.running_at(now)
    assert set(counts) >= {0, workers}


def test_a_tick_without_requests_has_no_tail() -> None:
    latencies_s = RequestQueue(APPLICATIONS["silo"], 1, np.random.default_rng(1)).serve(0.0, 1.0, 0, 1e-3, 1e-3)
    assert len(latencies_s) == 0
    assert math.isnan(p95(latencies_s))


# --- truth ---


def roles(*steps: tuple[float, float], serves: bool = True) -> list[Role]:
    tracker = RoleTracker(np.array([serves]))
    return [
        tracker.step(float(t), np.array([ratio]), np.zeros(1, dtype=np.intp), np.array([degradation]))[0]
        for t, (ratio, degradation) in enumerate(steps)
    ]


def test_roles_are_as_the_page_defines_them() -> None:
    calm, grown, hurt, between = (1.0, 1.0), (1.7, 1.0), (1.0, 1.2), (1.0, 1.05)
    assert roles(*[calm] * 8) == [Role.STEADY] * 8
    # 5 s after the change nobody asks.
    assert roles(calm, *[grown] * 8)[1:] == [Role.UNSCORED] * 5 + [Role.INFLICTING] * 3
    assert roles(calm, *[hurt] * 8)[1:] == [Role.UNSCORED] * 5 + [Role.VICTIM] * 3
    assert roles(calm, *[hurt] * 8, serves=False)[1:] == [Role.UNSCORED] * 8
    assert roles(calm, *[between] * 8)[1:] == [Role.UNSCORED] * 8
    # Grown, but by less than half: neither.
    assert roles(calm, *[(1.4, 1.0)] * 8)[1:] == [Role.UNSCORED] * 8
    # Until it is back: 1.3 is not.
    assert roles(*[grown] * 6, *[(1.3, 1.0)] * 8)[6:] == [Role.INFLICTING] * 8
    assert roles(*[grown] * 6, *[(1.05, 1.0)] * 8)[6:] == [Role.UNSCORED] * 5 + [Role.STEADY] * 3


def test_a_step_of_one_vm_leaves_all_unscored() -> None:
    tracker = RoleTracker(np.array([True, False]))
    reported = [
        tracker.step(float(t), np.array([1.0, 4.0 if t else 1.0]), np.zeros(2, dtype=np.intp), np.ones(2))
        for t in range(8)
    ]
    assert [row[0] for row in reported] == [Role.STEADY] + [Role.UNSCORED] * 5 + [Role.STEADY] * 2


# --- scenarios of the live source ---


def profiled(**changes: object) -> dict[str, object]:
    vm = {"name": "a", "job": "a", "profile": "silo", **changes}
    return {"vms": [vm, {"name": "b", "job": "b", "vcpus": 8, "profile": "no-interference"}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": "redis"}, "vms[0].profile must be one of img-dnn, masstree"),
        ({"profile": ""}, "all VMs have one, or none has (value '')"),
        ({"switches": [[5, "moses"]]}, "vms[0]: a VM that serves requests cannot change its profile"),
        ({"switches": [[5, "redis"]]}, "vms[0].switches must be one of"),
        ({"load_ratio": {"ratio": 3}}, "vms[0].load_ratio.ratio must be at least 0 and at most 2"),
        ({"load_ratio": {"points": [[5, 0.1], [2, 0.2]]}}, "vms[0].load_ratio.points must have rising times"),
        ({"load_ratio": {"points": [[5, 9]]}}, "vms[0].load_ratio.points[5 s] must be at least 0"),
    ],
)
def test_wrong_profiles_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(profiled(**changes), "test.toml")
    assert message in str(error.value)


def test_days_of_profiled_vms_are_windows_too() -> None:
    scenario = parse({"noise": {"load_std": 0.0}, **profiled(load_ratio={"ratio": 0.3})}, "test.toml")
    history = simulate_days(scenario, start_unix_s=0.0, end_unix_s=600.0, every_s=60.0, window_s=10.0)
    assert len(history) == 2 * 10
    usage = [cores for cores, task in zip(history.cpu_usage_cores, history.vm_index, strict=True) if task == 0]
    assert np.mean(usage) == pytest.approx(2 * 2 * 0.3, rel=0.05)
    assert np.nanmean(history.cpi[::2]) == pytest.approx(1 / 1.4, rel=0.02)
    assert min(history.network_receive_bytes_per_s[::2]) > 0


def test_days_of_windows_of_one_step_are_those_of_as_many_steps() -> None:
    text = {
        "host": {"step_s": 2.0},
        **profiled(load_ratio={"points": [[0, 0.2], [300, 0.5]]}, start_s=120, restarts_s=[600]),
        "antagonists": [{"vm": "b", "cores": 6, "start_s": 240, "stop_s": 420, "profile": "cache-memory-3"}],
    }
    scenario = parse(text, "test.toml")
    days = simulate_days(scenario, start_unix_s=60.0, end_unix_s=1260.0, every_s=60.0, window_s=2.0)
    host, reported = Host(scenario), []
    for at_s in range(0, 1200, 60):
        host.step(at_s, 60 + at_s, 60.0)
        reported += [(vm.cpi, vm.usage_cores) for vm in host.vms if vm in host.running]
    assert len(reported) == 20 + 18 - 1  # one comes later, and is away at 600 s
    cpis, cores = zip(*reported, strict=True)
    assert days.cpi == pytest.approx(cpis, rel=1e-12)
    assert days.cpu_usage_cores == pytest.approx(cores, rel=1e-12)
