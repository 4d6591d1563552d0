import contextlib
import itertools
import json
import math
import statistics
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.base import PerfGroup, Reason, Source, SourceError, SourceSample
from collector.simulated.history import simulate_days
from collector.simulated.model import Host, level_at
from collector.simulated.scenario import Antagonist, HostSpec, NoiseSpec, Profile, Scenario, VmSpec, load, parse
from collector.simulated.source import SimulatedSource
from whitepanda.common.errors import ConfigError

S = 1_000_000_000
UNIX_NS = 1_750_000_000 * S

TWO_VMS = """
seed = 5
[host]
name = "h"
cpus = 16
ghz = 2.0
llc_mib = 30
memory_gib_per_s = 100
step_s = 1.0
[[vms]]
name = "victim"
job = "web"
vcpus = 4
latency_sensitive = true
cpi = 1.2
sensitivity = 0.5
load = {cores = 2.0}
[[vms]]
name = "hog"
job = "scan"
vcpus = 8
cpi = 2.0
cache_mib_per_core = 10
memory_gib_per_s_per_core = 10
[[antagonists]]
vm = "hog"
cores = 6.0
start_s = 30
stop_s = 60
"""


def scenario(text: str) -> Scenario:
    return parse(tomllib.loads(text), "test.toml")


class Clock:
    def __init__(self) -> None:
        self.ns = 77 * S

    def mono(self) -> int:
        return self.ns

    def unix(self) -> int:
        return UNIX_NS + self.ns


def source(tmp_path: Path, text: str, truth: Path | None = None) -> tuple[SimulatedSource, Clock]:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    clock = Clock()
    made = SimulatedSource(path, truth, mono_ns=clock.mono, unix_ns=clock.unix)
    made.open()
    return made, clock


def at(made: SimulatedSource, clock: Clock, seconds: float) -> SourceSample:
    clock.ns = 77 * S + round(seconds * S)
    return made.sample()


def by_name(sample: SourceSample) -> dict[str, str]:
    assert sample.inventory is not None
    return {identity.name: identity.uuid for identity in sample.inventory}


def groups(sample: SourceSample, uuid: str) -> dict[int, PerfGroup]:
    perf = sample.vms[uuid].perf
    assert perf is not None
    return {tid: group for tid, (group,) in perf.groups.items()}


def cpi_between(first: SourceSample, last: SourceSample, uuid: str) -> float:
    cycles = instructions = 0
    before = groups(first, uuid)
    for tid, group in groups(last, uuid).items():
        cycles += group.counts[0] - before[tid].counts[0]
        instructions += group.counts[1] - before[tid].counts[1]
    return cycles / instructions


# --- scenario file ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('cpi = 1.2\n"colour" = 3', "test.toml: unknown key 'vms[0].colour' (value 3); known here: cache_mib"),
        ("cpi = 0.0", "vms[0].cpi must be at least 0.05 and at most 100 (value 0.0)"),
        ("cpi = nan", "vms[0].cpi must be a finite number (value nan)"),
        ('cpi = "fast"', "vms[0].cpi must be a number, got 'fast'"),
        ("cpi = 1.2\nmultiplexing_ratio = 1.5", "vms[0].multiplexing_ratio must be at least 0 and at most 1"),
        ("cpi = 1.2\nrestarts_s = [9, 5]", "vms[0].restarts_s must rise and come after start_s (value [9.0, 5.0])"),
        ("cpi = 1.2\nstop_s = 0", "vms[0].stop_s must be above 0 and at most inf (value 0.0)"),
    ],
)
def test_wrong_scenarios_name_the_key_and_the_value(change: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        scenario(TWO_VMS.replace("cpi = 1.2", change))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('vm = "hog"', 'vm = "nobody"', "antagonists[0].vm must be the name of one of the vms (value 'nobody')"),
        ('name = "hog"', 'name = "victim"', "vms[1].name must be given and unique (value 'victim')"),
        ("stop_s = 60", "stop_s = 20", "antagonists[0].stop_s must be above 30 and at most inf (value 20.0)"),
        ("ghz = 2.0", "ghz = -2.0", "host.ghz must be above 0 and at most 10 (value -2.0)"),
        ("load = {cores = 2.0}", "load = {points = [[5, 1], [2, 1]]}", "vms[0].load.points must have rising times"),
        ("load = {cores = 2.0}", "load = {points = [[5, -1]]}", "vms[0].load.points[5 s] must be at least 0"),
        (
            "load = {cores = 2.0}",
            "load = {points = [[5, 1]], repeat_s = 5}",
            "vms[0].load.repeat_s must be later than the last of points (value 5.0)",
        ),
    ],
)
def test_inconsistent_scenarios_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^test\.toml: ") as error:
        scenario(TWO_VMS.replace(old, new))
    assert message in str(error.value)


def test_a_scenario_without_vms_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=r"empty.toml: vms: a scenario needs at least one \[\[vms\]\] table"):
        load(path)


# --- model ---


def test_contention_follows_the_formulas_of_the_models_text() -> None:
    host = Host(scenario(TWO_VMS + "\n[noise]\nload_std = 0.0\n"))
    host.step(40, 0, 1)
    victim = next(vm for vm in host.vms if vm.spec.name == "victim")
    # W = 2*1 + 6*10 MiB of 30; r = (2*0.5 + 6*10)/100; alone the victim would lose nothing, r_i = 0.01.
    lost = 1 - 30 / 62
    growth = 0.61**2 / (2 * 0.39) - 0.01**2 / (2 * 0.99)
    assert victim.cpi_multiplier == pytest.approx(1 + 0.5 * (lost + growth), rel=1e-12)
    assert victim.cpi == pytest.approx(victim.cpi_uncontended * victim.cpi_multiplier, rel=1e-12)


def test_alone_nothing_is_contended_whatever_it_does() -> None:
    text = TWO_VMS.split('[[vms]]\nname = "hog"', maxsplit=1)[0].replace(
        "sensitivity = 0.5", "sensitivity = 9\ncache_mib_per_core = 500\nmemory_gib_per_s_per_core = 80"
    )
    host = Host(scenario(text))
    for second in range(20):
        host.step(second, second, 1)
        assert host.vms[0].cpi_multiplier == 1.0
        assert host.vms[0].cpu_slowdown == 1.0


def test_what_a_vm_does_to_itself_is_not_the_others_doing() -> None:
    # It alone would lose half of what it wants and load the memory by 0.6; the other adds a tenth to each.
    text = TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\ncache_mib_per_core = 30\nmemory_gib_per_s_per_core = 30")
    text = text.replace("cache_mib_per_core = 10", "cache_mib_per_core = 1")
    text = text.replace("gib_per_s_per_core = 10", "gib_per_s_per_core = 1")
    host = Host(scenario(text + "\n[noise]\nload_std = 0.0\n"))
    host.step(40, 0, 1)
    lost = (1 - 30 / 66) - (1 - 30 / 60)
    growth = 0.66**2 / (2 * 0.34) - 0.6**2 / (2 * 0.4)
    assert host.vms[0].cpi_multiplier == pytest.approx(1 + 0.5 * (lost + growth), rel=1e-12)


def test_a_vm_that_is_not_sensitive_is_not_hurt_and_idle_neighbours_do_not_hurt() -> None:
    host = Host(scenario(TWO_VMS))
    host.step(40, 0, 1)
    assert {vm.spec.name: vm.cpi_multiplier > 1 for vm in host.vms} == {"victim": True, "hog": False}
    host.step(70, 0, 1)
    assert next(vm for vm in host.vms if vm.spec.name == "victim").cpi_multiplier == pytest.approx(1, abs=0.001)


def test_more_demand_than_cpus_is_shared_and_waits() -> None:
    text = TWO_VMS.replace("cpus = 16", "cpus = 4") + "\n[noise]\nload_std = 0.0\n"
    host = Host(scenario(text))
    host.step(40, 0, 1)
    assert [vm.demand_cores for vm in host.vms] == [2.0, 6.0]
    assert [vm.usage_cores for vm in host.vms] == [1.0, 3.0]
    assert [vm.cpu_slowdown for vm in host.vms] == [2.0, 2.0]


def test_noise_has_the_mean_and_spread_it_is_given() -> None:
    host = Host(scenario(TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\ncpi_noise_std = 0.2")))
    values = []
    for index in range(4000):
        host.step(0, 0, 1000.0)  # far apart: independent draws
        values.append(math.log(host.vms[0].cpi_uncontended / 1.2))
        assert index >= 0
    assert statistics.fmean(math.exp(v) for v in values) == pytest.approx(1.0, abs=0.015)
    assert statistics.pstdev(values) == pytest.approx(0.2, abs=0.01)


def test_noise_remembers_for_its_correlation_time() -> None:
    host = Host(scenario(TWO_VMS))
    values = []
    for _ in range(8000):
        host.step(0, 0, 5.0)
        values.append(math.log(host.vms[0].cpi_uncontended))
    mean = statistics.fmean(values)
    lag1 = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    assert lag1 / sum((a - mean) ** 2 for a in values) == pytest.approx(math.exp(-5 / 10), abs=0.05)
    assert statistics.pstdev(values) == pytest.approx(0.03, rel=0.05)  # remembering does not widen it


def test_one_more_vm_leaves_the_others_noise_alone() -> None:
    more = TWO_VMS + '\n[[vms]]\nname = "third"\njob = "x"\n'
    hosts = [Host(scenario(TWO_VMS)), Host(scenario(more))]
    for second in range(10):
        for host in hosts:
            host.step(second, second, 1)
        assert hosts[0].vms[0].cpi_uncontended == hosts[1].vms[0].cpi_uncontended


@pytest.mark.parametrize(
    ("profile", "at_s", "cores"),
    [
        (Profile(cores=2), 99, 2),
        (Profile(cores=2, points=((10, 5), (20, 1))), 9.9, 2),
        (Profile(cores=2, points=((10, 5), (20, 1))), 10, 5),
        (Profile(cores=2, points=((10, 5), (20, 1))), 25, 1),
        (Profile(cores=2, points=((0, 5), (20, 1)), repeat_s=30), 65, 5),
        (Profile(cores=2, points=((0, 0), (20, 4)), shape="ramp"), 5, 1),
        (Profile(cores=2, points=((0, 0), (20, 4)), shape="ramp"), 50, 4),
        (Profile(cores=2, points=((10, 0), (20, 4)), shape="ramp"), 5, 2),
    ],
)
def test_load_profiles(profile: Profile, at_s: float, cores: float) -> None:
    assert level_at(profile.cores, profile, at_s, 0) == pytest.approx(cores)


def test_a_day_peaks_at_its_hour() -> None:
    profile = Profile(cores=2, diurnal=0.5, peak_hour=15)
    assert level_at(profile.cores, profile, 0, 15 * 3600) == pytest.approx(3)
    assert level_at(profile.cores, profile, 0, 3 * 3600) == pytest.approx(1)


# --- source ---


def test_it_is_a_source_and_says_what_it_simulates(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS)
    assert isinstance(made, Source)
    assert made.probe().available
    sample = at(made, clock, 1)
    assert sample.source == "simulated"
    assert (sample.mono_ns, sample.unix_ns) == (78 * S, UNIX_NS + 78 * S)
    assert sample.inventory is not None
    victim = sample.inventory[0]
    assert (victim.name, victim.vcpus, victim.accelerator) == ("victim", 4, "simulated")
    assert victim.facts == {"job": "web", "latency_sensitive": "true"}
    assert set(sample.vms) == {identity.uuid for identity in sample.inventory}
    assert all(sample.vms[i.uuid].epoch == i.epoch for i in sample.inventory)


def test_a_bad_scenario_is_an_unavailable_source_with_one_line(tmp_path: Path) -> None:
    made = SimulatedSource(tmp_path / "none.toml")
    probe = made.probe()
    assert not probe.available
    assert "none.toml: cannot read: No such file or directory" in probe.detail
    with pytest.raises(SourceError, match=r"none.toml: cannot read"):
        made.open()
    with pytest.raises(SourceError, match="simulated: not open"):
        made.sample()
    made.close()


def test_a_truth_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(TWO_VMS)
    made = SimulatedSource(tmp_path / "scenario.toml", tmp_path / "missing" / "truth.jsonl")
    with pytest.raises(SourceError, match=r"cannot write the truth file .*missing/truth.jsonl: No such file"):
        made.open()


def test_the_same_scenario_gives_the_same_counters_however_often_it_is_sampled(tmp_path: Path) -> None:
    often, clock = source(tmp_path, TWO_VMS)
    for tick in range(1, 451):
        last = at(often, clock, tick * 0.1)
    seldom, clock = source(tmp_path, TWO_VMS)
    at(seldom, clock, 0)
    once = at(seldom, clock, 45)
    for uuid, vm in once.vms.items():
        assert vm.perf is not None
        for tid, group in groups(once, uuid).items():
            assert group.counts == pytest.approx(groups(last, uuid)[tid].counts, rel=1e-9)
    assert [i.uuid for i in once.inventory or ()] == [i.uuid for i in last.inventory or ()]


def test_another_seed_is_another_run_with_other_uuids(tmp_path: Path) -> None:
    first, clock = source(tmp_path, TWO_VMS)
    a = at(first, clock, 20)
    second, clock = source(tmp_path, TWO_VMS.replace("seed = 5", "seed = 6"))
    b = at(second, clock, 20)
    assert not set(a.vms) & set(b.vms)
    zero_a, zero_b = by_name(a)["victim"], by_name(b)["victim"]
    seen = list(groups(a, zero_a).values())
    assert not [group for group in groups(b, zero_b).values() if group in seen]


def test_threads_add_up_to_the_vm_and_to_the_host(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS + "\n[noise]\nload_std = 0.0\n")
    sample = at(made, clock, 20)
    uuids = by_name(sample)
    threads = sample.vms[uuids["victim"]].threads
    assert threads is not None
    assert sum(t.cpu_ns for t in threads.values()) == pytest.approx(2.0 * 20 * S, rel=1e-9)
    assert sum(t.guest_ns for t in threads.values()) == pytest.approx(0.98 * 2.0 * 20 * S, rel=1e-9)
    assert len({t.cpu_ns for t in threads.values()}) == 4  # the load is not even
    perf = groups(sample, uuids["victim"])
    assert sum(p.counts[0] for p in perf.values()) == pytest.approx(2.0 * 20 * S * 2.0, rel=1e-9)
    assert all(p.time_enabled_ns == threads[tid].cpu_ns for tid, p in perf.items())
    host = sample.host
    assert host is not None
    everyone = sum(t.cpu_ns for vm in sample.vms.values() for t in (vm.threads or {}).values())
    assert host.guest_ns == pytest.approx(everyone, rel=1e-9)
    total = host.user_ns + host.system_ns + host.idle_ns + host.iowait_ns + host.guest_ns + host.steal_ns
    assert total == 16 * 20 * S


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.floats(0.0, 3.0), min_size=2, max_size=40),
    ratio=st.sampled_from([1.0, 0.4, 0.0]),
    cores=st.floats(0, 8),
)
def test_no_counter_ever_falls_and_no_thread_exceeds_a_cpu(gaps: list[float], ratio: float, cores: float) -> None:
    made = SimulatedSource(Path("unused"), mono_ns=lambda: clock.ns, unix_ns=lambda: UNIX_NS)
    clock = Clock()
    text = TWO_VMS.replace("cpi = 1.2", f"cpi = 1.2\nmultiplexing_ratio = {ratio}")
    made._start(scenario(text.replace("load = {cores = 2.0}", f"load = {{cores = {cores}}}")))
    last = made.sample()
    for gap in gaps:
        clock.ns += round(gap * S)
        now = made.sample()
        for uuid, vm in now.vms.items():
            before = last.vms[uuid]
            for tid, thread in (vm.threads or {}).items():
                old = before.threads[tid]  # type: ignore[index]
                assert 0 <= thread.cpu_ns - old.cpu_ns <= round(gap * S) + 1
                assert thread.guest_ns >= old.guest_ns
                assert (thread.run_queue_wait_ns or 0) >= (old.run_queue_wait_ns or 0)
            for tid, group in groups(now, uuid).items():
                earlier = groups(last, uuid)[tid]
                assert all(a >= b for a, b in zip(group.counts, earlier.counts, strict=True))
                assert group.time_running_ns <= group.time_enabled_ns
            for device, disk in (vm.disks or {}).items():
                assert disk.write_bytes >= before.disks[device].write_bytes  # type: ignore[index]
        last = now


def test_cpi_of_the_counters_is_the_truth_times_the_uncontended_one(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    text = TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\ncpi_noise_std = 0.0")
    made, clock = source(tmp_path, text, truth)
    samples = {second: at(made, clock, second) for second in (0, 25, 35, 55)}
    victim = by_name(samples[0])["victim"]
    lines = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [line["unix_ns"] - UNIX_NS - 77 * S for line in lines] == [0, 25 * S, 35 * S, 55 * S]
    assert [line["antagonists"] for line in lines] == [[], [], ["hog"], ["hog"]]
    calm, _, contended = (line["vms"]["victim"] for line in lines[1:])
    assert calm["true_degradation"] == pytest.approx(1.0, abs=1e-3)
    assert contended["true_degradation"] > 1.4
    measured = cpi_between(samples[35], samples[55], victim)
    assert measured / 1.2 == pytest.approx(contended["true_degradation"], rel=1e-6)
    assert lines[3]["since_unix_ns"] == lines[2]["unix_ns"]
    assert contended["job"] == "web"
    assert contended["cpu_usage_cores"] == pytest.approx(2.0, rel=0.1)


def test_multiplexed_counters_give_the_same_cpi_and_say_their_ratio(tmp_path: Path) -> None:
    full, clock = source(tmp_path, TWO_VMS)
    a = at(full, clock, 20)
    part, clock = source(tmp_path, TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\nmultiplexing_ratio = 0.25"))
    b = at(part, clock, 20)
    uuid = by_name(a)["victim"]
    for tid, group in groups(a, uuid).items():
        other = groups(b, uuid)[tid]
        assert other.time_running_ns == pytest.approx(0.25 * group.time_running_ns, rel=1e-6)
        assert other.counts == pytest.approx([0.25 * count for count in group.counts], rel=1e-6, abs=1)


def test_a_vm_without_pmu_has_a_reason_and_no_counters(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\npmu = false"))
    sample = at(made, clock, 3)
    vm = sample.vms[by_name(sample)["victim"]]
    assert vm.perf is None
    assert vm.absent == {"perf": Reason.NO_PMU}
    assert vm.threads is not None


def test_a_restart_is_a_new_epoch_with_new_threads_and_counters_from_zero(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\nrestarts_s = [10]\nrestart_gap_s = 3"))
    before, away, after = at(made, clock, 9), at(made, clock, 11.5), at(made, clock, 14)
    assert set(by_name(away)) == {"hog"}
    uuid = by_name(before)["victim"]
    old = next(i for i in before.inventory or () if i.uuid == uuid)
    new = next(i for i in after.inventory or () if i.uuid == uuid)
    assert old.epoch != new.epoch
    assert not set(old.vcpu_tids) & set(new.vcpu_tids)
    assert sum(t.cpu_ns for t in (after.vms[uuid].threads or {}).values()) < 1.5 * 2.0 * S
    assert {p.opened for p in groups(after, uuid).values()} == {2}


def test_vms_come_and_go_at_their_times(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\nstart_s = 5\nstop_s = 8"))
    seen = {second: set(by_name(at(made, clock, second))) for second in (0, 4, 6, 9)}
    assert seen == {0: {"hog"}, 4: {"hog"}, 6: {"hog", "victim"}, 9: {"hog"}}


def test_an_antagonist_with_a_start_file_boots_when_the_file_appears(tmp_path: Path) -> None:
    file = tmp_path / "go"
    text = TWO_VMS.replace("start_s = 30\nstop_s = 60", f'boots = true\nstart_file = "{file}"')
    made, clock = source(tmp_path, text)
    assert set(by_name(at(made, clock, 5))) == {"victim"}
    file.touch()
    at(made, clock, 6)
    busy = at(made, clock, 8)
    uuid = by_name(busy)["hog"]
    assert sum(t.cpu_ns for t in (busy.vms[uuid].threads or {}).values()) > 5 * S
    file.unlink()
    at(made, clock, 9)
    idle = [at(made, clock, second).vms[uuid] for second in (10, 12)]
    spent = [sum(t.cpu_ns for t in (vm.threads or {}).values()) for vm in idle]
    assert spent[1] - spent[0] == pytest.approx(2 * 0.05 * S, rel=0.2)


def test_speed_makes_the_scenario_pass_faster_but_not_the_counters(tmp_path: Path) -> None:
    made, clock = source(tmp_path, "speed = 10.0\n" + TWO_VMS + "\n[noise]\nload_std = 0.0\n")
    first, last = (at(made, clock, 4), at(made, clock, 5))  # 40 to 50 s of the scenario: the antagonist is active
    hog = by_name(first)["hog"]
    spent = [sum(t.cpu_ns for t in (sample.vms[hog].threads or {}).values()) for sample in (first, last)]
    assert spent[1] - spent[0] == pytest.approx(6.0 * S, rel=1e-6)


@contextlib.contextmanager
def calls_counted() -> Iterator[list[str]]:
    """One entry per call of a function within, Python's own included."""
    events: list[str] = []

    def note(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            events.append(event)

    sys.setprofile(note)
    try:
        yield events
    finally:
        sys.setprofile(None)


def test_a_long_pause_is_caught_up_at_once(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS)
    at(made, clock, 1)
    with calls_counted() as count:
        sample = at(made, clock, 30 * 86400)
    assert len(count) < 1000  # measured 177, as after a second: no loop over what has passed
    threads = sample.vms[by_name(sample)["victim"]].threads
    assert sum(t.cpu_ns for t in (threads or {}).values()) == pytest.approx(2.0 * 30 * 86400 * S, rel=0.3)


def test_opening_again_starts_from_the_beginning_with_new_epochs(tmp_path: Path) -> None:
    made, clock = source(tmp_path, TWO_VMS)
    first = at(made, clock, 10)
    made.close()
    made.close()
    made.open()
    again = made.sample()
    assert {i.epoch for i in first.inventory or ()}.isdisjoint({i.epoch for i in again.inventory or ()})
    assert all(t.cpu_ns == 0 for vm in again.vms.values() for t in (vm.threads or {}).values())


def big(vms: int) -> str:
    load = "load = {{cores = 3.0, diurnal = 0.2}}"
    table = f'[[vms]]\nname = "v{{0}}"\njob = "j{{0}}"\nvcpus = 8\nsensitivity = 0.5\n{load}\n'
    return f"[host]\ncpus = {vms * 4}\n" + "".join(table.format(i) for i in range(vms))


def calls(tmp_path: Path, vms: int) -> int:
    """How many functions one sample calls; bench/agent_cost/tick.py measures the time."""
    made, clock = source(tmp_path, big(vms))
    at(made, clock, 0)
    with calls_counted() as count:
        at(made, clock, 1)
    return len(count)


def test_work_grows_in_proportion_to_the_vms(tmp_path: Path) -> None:
    assert calls(tmp_path, 400) <= 4.1 * calls(tmp_path, 100)


# --- days ---


def test_days_have_one_window_per_vm_and_step_of_the_grid() -> None:
    history = simulate_days(
        scenario(TWO_VMS), start_unix_s=1_750_000_200, end_unix_s=1_750_003_800, every_s=300, window_s=2
    )
    assert len(history) == 2 * 12
    assert history.start_unix_ns[:4] == [1_750_000_200 * S] * 2 + [1_750_000_500 * S] * 2
    assert history.window_ns == 2 * S
    assert [vm.spec.name for vm in history.vms] == ["victim", "hog"]
    index = history.vm_index.index(0)
    assert history.cycles[index] / history.instructions[index] == pytest.approx(history.cpi[index], rel=1e-6)
    assert history.cycles[index] == pytest.approx(history.cpu_usage_cores[index] * 2 * S * 2.0, rel=1e-6)


def test_days_are_what_the_live_source_would_have_reported(tmp_path: Path) -> None:
    text = TWO_VMS + "\n[noise]\ncorrelation_s = 1.0\n"
    days = simulate_days(scenario(text), start_unix_s=0, end_unix_s=3000, every_s=1.0, window_s=1.0)
    made, clock = source(tmp_path, text)
    live = []
    last = at(made, clock, 0)
    uuid = by_name(last)["victim"]
    for second in range(1, 3001):
        now = at(made, clock, second)
        live.append(cpi_between(last, now, uuid))
        last = now
    simulated = [cpi for cpi, task in zip(days.cpi, days.vm_index, strict=True) if task == 0]
    assert statistics.fmean(simulated) == pytest.approx(statistics.fmean(live), rel=1e-6)
    assert statistics.pstdev(simulated) == pytest.approx(statistics.pstdev(live), rel=1e-3)


def test_noise_is_forgotten_between_windows_far_apart_but_not_within() -> None:
    def lag1(every_s: float) -> float:
        calm = scenario(TWO_VMS.replace("cores = 6.0", "cores = 0.01"))
        days = simulate_days(calm, start_unix_s=0, end_unix_s=3000 * every_s, every_s=every_s, window_s=2)
        values = [math.log(cpi) for cpi, task in zip(days.cpi, days.vm_index, strict=True) if task == 0]
        mean = statistics.fmean(values)
        products = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
        return products / sum((a - mean) ** 2 for a in values)

    assert lag1(2.0) > 0.75
    assert abs(lag1(300.0)) < 0.08


def test_days_repeat_and_antagonists_of_the_days_hurt() -> None:
    text = TWO_VMS.replace("start_s = 30\nstop_s = 60", "start_s = 3600\nstop_s = 7200\nrepeat_s = 21600")
    arguments = {"start_unix_s": 0.0, "end_unix_s": 86400.0, "every_s": 300.0, "window_s": 2.0}
    history = simulate_days(scenario(text), **arguments)
    assert history == simulate_days(scenario(text), **arguments)
    rows = [
        (start // S % 21600, cpi)
        for start, cpi, task in zip(history.start_unix_ns, history.cpi, history.vm_index, strict=True)
        if task == 0
    ]
    hurt = statistics.fmean(cpi for phase, cpi in rows if 3600 <= phase < 7200)
    calm = statistics.fmean(cpi for phase, cpi in rows if not 3600 <= phase < 7200)
    assert calm == pytest.approx(1.2, rel=0.02)
    assert hurt / calm == pytest.approx(1.5, abs=0.1)


def test_days_leave_out_what_was_not_there_and_mark_what_has_no_counters() -> None:
    text = TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\nstart_s = 301\npmu = false")
    history = simulate_days(scenario(text), start_unix_s=0, end_unix_s=900, every_s=300, window_s=2)
    victims = [i for i, task in enumerate(history.vm_index) if task == 0]
    assert [history.start_unix_ns[i] for i in victims] == [600 * S]
    assert all(math.isnan(history.cpi[i]) for i in victims)


@pytest.mark.parametrize(("every_s", "window_s"), [(1.0, 2.0), (1.0, 0.0)])
def test_days_refuse_windows_that_overlap(every_s: float, window_s: float) -> None:
    with pytest.raises(ValueError, match="need 0 < window_s <= every_s"):
        simulate_days(scenario(TWO_VMS), start_unix_s=0, end_unix_s=9, every_s=every_s, window_s=window_s)


# --- the page ---


def test_the_page_names_every_key_and_its_example_is_a_scenario() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "simulated.md").read_text(encoding="utf-8")
    structs = (Scenario, HostSpec, NoiseSpec, VmSpec, Profile, Antagonist)
    keys = {field for kind in structs for field in kind.__struct_fields__}
    assert sorted(key for key in keys if f"`{key}`" not in page) == []
    example = page.split("## A scenario\n\n```toml\n")[1].split("```")[0]
    assert [vm.job for vm in scenario(example).vms] == ["web", "reports", "scan"]


def test_contention_shows_in_misses_stalls_and_cache(tmp_path: Path) -> None:
    text = TWO_VMS.replace("cpi = 1.2", "cpi = 1.2\ncpi_noise_std = 0.0")
    made, clock = source(tmp_path, text, tmp_path / "truth.jsonl")
    samples = {second: at(made, clock, second) for second in (5, 25, 35, 55)}
    uuid = by_name(samples[5])["victim"]

    def between(a: int, b: int) -> list[float]:
        first, last = groups(samples[a], uuid), groups(samples[b], uuid)
        return [
            float(sum(group.counts[i] - first[tid].counts[i] for tid, group in last.items()))
            for i in range(len(next(iter(last.values())).counts))
        ]

    layout = samples[5].vms[uuid].perf.layout[0]  # type: ignore[union-attr]
    assert layout[:5] == ("cycles", "instructions", "reference_cycles", "l2_misses", "llc_misses")
    calm, hurt = between(5, 25), between(35, 55)
    truth = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    slow = truth[3]["vms"]["victim"]["true_degradation"]
    assert calm[5] / calm[0] == pytest.approx(0.3, rel=1e-3)
    assert calm[6] / calm[0] == pytest.approx(0.4, rel=1e-3)
    assert hurt[5] / hurt[0] == pytest.approx(1 - 0.7 / slow, rel=1e-3)
    # The same traffic while fewer instructions come to their end: more misses for each of them.
    assert (hurt[4] / hurt[1]) / (calm[4] / calm[1]) == pytest.approx(slow, rel=1e-3)
    assert hurt[3] == pytest.approx(3 * hurt[4], rel=1e-6)
    moved = [samples[s].vms[uuid].rdt.domains["00"].mbm_total_bytes for s in (35, 55)]  # type: ignore[union-attr]
    assert moved[1] - moved[0] == pytest.approx(64 * hurt[4], rel=1e-3)  # type: ignore[operator]
    held = {s: samples[s].vms[uuid].rdt.domains["00"].llc_occupancy_bytes for s in (25, 55)}  # type: ignore[union-attr]
    assert 0 < held[55] < held[25]  # type: ignore[operator]
