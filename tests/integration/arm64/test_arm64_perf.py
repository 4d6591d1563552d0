"""The perf source against a real kernel PMU: inside an emulated arm64 machine whose CPU takes 2 cycles per instruction.

One boot (about 10 s) runs guest_perf.py with the repository's own `collector` package; the tests read its results.
"""

import itertools
import shutil
from pathlib import Path

import pytest

from tests.support.arm64_guest import run_in_guest

pytestmark = [pytest.mark.long, pytest.mark.integration, pytest.mark.timeout(700)]

HERE = Path(__file__).resolve().parent
BITS_OFF = ("inherit", "pinned", "exclude_kernel", "exclude_hv", "exclude_host", "exclude_guest")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guest")
    (folder / "app").mkdir()
    shutil.copy(HERE.parents[1] / "support" / "perf_attr.py", folder / "app")
    rows = run_in_guest(folder, HERE / "guest_perf.py")
    found = {row["experiment"]: row["result"] for row in rows}
    for name, result in found.items():
        assert "error" not in result, f"{name}: {result['error']}"
    return found


def counts_guests_and_shares_the_pmu(attrs):
    """What has to hold of every event that reaches the kernel. The mutants below show that it can fail."""
    return bool(attrs) and not any(attr[bit] for attr in attrs for bit in BITS_OFF)


def test_probe_says_what_it_found_and_the_remedy(results):
    probes = results["probes"]
    assert probes["root"]["available"]
    assert not probes["nobody_3"]["available"]
    assert probes["nobody_3"]["reason"] == "paranoid"
    assert "kernel.perf_event_paranoid is 3; give the agent CAP_PERFMON or set it to 1" in probes["nobody_3"]["detail"]
    assert probes["nobody_1"]["available"]  # the remedy that it names is one


def test_ipc_of_a_vcpu_thread_is_the_machines(results):
    for thread in results["ipc"]["busy"]:
        assert thread["ipc"] == pytest.approx(0.5, rel=0.01)
        assert thread["running_ratio"] == 1.0
        # 1 GHz, two busy threads on one CPU for 0.5 s
        assert thread["counts"][0] == pytest.approx(0.25e9, rel=0.1)


def test_a_thread_that_slept_is_zero_and_not_missing(results):
    assert results["ipc"]["idle"] == {"ipc": None, "counts": [0.0, 0.0], "running_ratio": 1.0, "enabled_ns": 0}


def test_bits_that_reach_the_kernel(results):
    attrs, tids = results["ipc"]["attrs"], results["ipc"]["tids"]
    assert counts_guests_and_shares_the_pmu(attrs)
    # One real group per thread: cycles lead, and wait for the instructions; both hardware events; over all CPUs.
    expected = [
        {"pid": tid, "cpu": -1, "type": 0, "config": config, "leader": config == 0, "disabled": config == 0}
        for tid in tids
        for config in (0, 1)
    ]
    assert [{key: attr[key] for key in expected[0]} for attr in attrs] == expected
    assert all(attr["cloexec"] for attr in attrs)


@pytest.mark.parametrize("bit", ["exclude_guest", "inherit", "pinned"])
def test_a_flipped_bit_would_be_seen(results, bit):
    attrs = results["mutants"][bit]
    assert attrs
    assert all(attr[bit] for attr in attrs)
    assert not counts_guests_and_shares_the_pmu(attrs)


def test_pinning_would_starve_events(results):
    assert results["pinned_mutant"]["ours"] == 0
    assert results["pinned_mutant"]["pinned"] > 0


@pytest.mark.parametrize("scope", ["multiplexed", "multiplexed_cgroup"])
def test_multiplexed_counts_are_true_after_scaling(results, scope):
    found = results[scope]
    true_instructions = found["cpu_ns"] / 2  # 2 ns each, by -icount shift=1
    assert found["source"]["running_ratio"] < 0.5
    assert found["source"]["counts"][1] == pytest.approx(true_instructions, rel=0.02)
    assert found["source"]["ipc"] == pytest.approx(0.5, rel=0.001)
    assert len(found["groups"]) == 12
    for group in found["groups"]:
        assert 0.05 < group["running_ns"] / group["enabled_ns"] < 0.5
        scaled = group["values"][1] * group["enabled_ns"] / group["running_ns"]
        assert scaled == pytest.approx(true_instructions, rel=0.02)
        # Unscaled, each would be at most half of the truth: the test above is not satisfied by chance.
        assert group["values"][1] < 0.5 * true_instructions


@pytest.mark.parametrize("scope", ["multiplexed", "multiplexed_cgroup"])
def test_grouped_events_keep_their_ratio_and_ungrouped_ones_drift(results, scope):
    found = results[scope]

    def true(instructions, cycles):
        return instructions / cycles == pytest.approx(0.5, rel=0.001)

    assert all(true(group["values"][1], group["values"][0]) for group in found["groups"])
    ungrouped = [(i["values"][0], c["values"][0]) for c, i in found["ungrouped"]]
    # Some may be right by chance: both of a pair were on in the same moments.
    assert max(abs(instructions / cycles / 0.5 - 1) for instructions, cycles in ungrouped) > 0.05


def test_a_control_groups_events_are_its_own_on_one_cpu_and_count_guests(results):
    attrs = results["multiplexed_cgroup"]["attrs"]
    assert counts_guests_and_shares_the_pmu(attrs)
    assert len(attrs) == 2
    for attr in attrs:
        assert (attr["cgroup"], attr["cpu"], attr["cloexec"]) == (True, 0, True)


def test_groups_are_on_in_turns(results):
    found = results["time_sliced"]
    rank = ["llc_misses", "memory_stall_cycles", "l2_misses", "total_stall_cycles"]
    rank += ["reference_cycles", "core_stall_cycles"]
    assert found["layout"] == [["cycles", "instructions", name] for name in rank]
    assert found["missing"] == {}
    ticks = found["ticks"]
    turns = []
    for now, last in itertools.pairwise(ticks):
        moved = [i for i, (a, b) in enumerate(zip(now["groups"], last["groups"], strict=True)) if a != b]
        assert len(moved) == 1
        turns += moved
        new, old = now["groups"][moved[0]], last["groups"][moved[0]]
        enabled_ns = new["time_enabled_ns"] - old["time_enabled_ns"]
        # The one that was on was on for all that the thread ran, and no other group took counters from it.
        assert enabled_ns == pytest.approx(now["cpu_ns"] - last["cpu_ns"], rel=0.05)
        assert new["time_running_ns"] - old["time_running_ns"] == enabled_ns
        cycles, instructions, event = (a - b for a, b in zip(new["counts"], old["counts"], strict=True))
        assert instructions / cycles == pytest.approx(0.5, rel=0.001)
        # The same thing counted by its raw number; this machine's stalls are always 0.
        same = {"llc_misses": instructions, "memory_stall_cycles": instructions}
        same |= {"l2_misses": cycles, "reference_cycles": cycles}
        assert event == pytest.approx(same.get(rank[moved[0]], 0), rel=0.001)
    assert turns == [1, 2, 3, 4, 5, 0, 1]


def test_a_plan_shrinks_to_what_the_kernel_runs(results):
    found = results["plan_is_fitted"]
    names = {name for group in found["layout"] for name in group}
    assert len(names) == 8  # nothing is lost: what does not fit is in a further group
    assert len(found["layout"]) > 1
    assert all(group[:2] == ["cycles", "instructions"] for group in found["layout"])
    assert found["delta"]["ipc"] == pytest.approx(0.5, rel=0.001)
    assert found["delta"]["running_ratio"] == 1.0
    # Without a catalog of ours: by the kernel's own table in sysfs.
    assert found["own_layout"] == [["cycles", "instructions", "total_stall_cycles"]]
    assert "llc_misses (no_event)" in found["own"]


def test_control_groups_of_vms(results):
    found = results["cgroups"]
    shared = {"perf": None, "absent": {"perf": "shared"}}
    alone = {"perf": [0], "absent": {}}
    assert found["first"] == {"alone": alone, "first": shared, "second": shared, "root": shared}
    assert found["fds"] == 3  # two events and the group's folder
    assert found["opened"][0] < found["opened"][1]  # it was moved: another group is another epoch
    assert found["leak"] == 0


def test_threads_end_and_appear(results):
    story = results["lives_and_deaths"]
    first, last = story["listed"]["first"], story["listed"]["last"]
    assert story["start"] == {"perf": first, "absent": {}}
    assert story["one_ended"] == {"perf": first[1:], "absent": {}}  # its last counts do not pass for an idle thread
    assert story["one_appeared"] == {"perf": last, "absent": {}}
    assert story["fds_while_open"] == 9  # three threads: two events and the /proc file each
    assert story["killed"] == {"perf": None, "absent": {"perf": "not_present"}}
    assert story["fds_after_kill"] == 0


def test_a_thread_number_used_again_is_another_thread(results):
    reused = results["lives_and_deaths"]["reused"]
    assert reused["same_number"]
    assert reused["opened"][0] != reused["opened"][1]
    assert reused["delta"] == {"reason": "counter_reset"}


def test_opens_are_spread_and_failures_stay_with_their_vm(results):
    found = results["spread_and_isolated"]
    tids, other = found["tids"], found["other"]
    starting, bad, gone = (
        {"perf": None, "absent": {"perf": reason}} for reason in ("vm_starting", "invalid_value", "not_present")
    )
    first, second, third, fourth = found["ticks"]
    assert first == {"bad": bad, "gone": gone, "u1": starting, "u2": starting}  # 3 opens a tick, 7 are wanted
    assert second == {"bad": bad, "gone": gone, "u1": {"perf": tids, "absent": {}}, "u2": starting}
    assert third == second | {"u2": {"perf": other, "absent": {}}}
    assert fourth == third


def test_a_full_file_table_costs_only_whom_it_hits(results):
    found = results["spread_and_isolated"]
    whole = {"u1": {"perf": found["tids"], "absent": {}}, "u2": {"perf": found["other"], "absent": {}}}
    assert found["full"] == whole | {"u2": {"perf": None, "absent": {"perf": "fd_limit"}}}
    assert found["healed"] == whole
    assert found["leak"] == 0
