from dataclasses import replace

import pytest
import structlog

from agent.config import JobRule
from agent.sampling.changes import PerfDelta
from agent.sampling.metric_table import VmRates
from agent.sampling.rates import Limits
from agent.sampling.vms import JobRules, VmTable
from collector.base import (
    CgroupCounters,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    Reason,
    SourceSample,
    Stamp,
    ThreadCounters,
    VmSample,
)
from tests.unit.agent.agent_fakes import UNIX0, S, identity, vm_sample


class Host:
    """A VM table fed by hand, second by second."""

    def __init__(self, *rules: JobRule, slow: dict[str, int] | None = None) -> None:
        self.troubles: dict[str, Reason | None] = {
            "procfs": Reason.SOURCE_OFF,
            "perf": Reason.SOURCE_OFF,
            "libvirt": Reason.SOURCE_OFF,
        }
        self.table = VmTable(JobRules(rules), Limits(), 5 * S, self.troubles.get, slow or {})

    def at(self, second: float, *samples: SourceSample) -> None:
        self.table.update(samples, round(second * S))

    @property
    def vms(self):
        return {vm.identity.uuid: vm for vm in self.table}


def sample(second: float, vms: dict[str, VmSample], *inventory, source: str = "simulated") -> SourceSample:
    mono_ns = round(second * S)
    return SourceSample(source, mono_ns, UNIX0 + mono_ns, vms, None, tuple(inventory) or None)


def whole(second: float, *uuids: str, epoch: str = "e1", since: float = 0) -> SourceSample:
    vms = {uuid: vm_sample(second - since, epoch) for uuid in uuids}
    return sample(second, vms, *(identity(uuid, epoch, name=uuid) for uuid in uuids))


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("db-prod-7", {}, ("database-prod", True, "team-prod")),
        ("db-prod-7", {"nova:project": "shop"}, ("database-prod", True, "team-prod")),
        ("web-1", {"nova:flavor": "m1.large"}, ("m1", False, "")),
        ("web-1", {"nova:flavor": "m1.large", "nova:project": "shop"}, ("m1", False, "shop")),
        # No rule: of Nova's VMs project and flavor make the job, of others and halves the name.
        ("web-1", {"nova:flavor": "tiny", "nova:project": "shop"}, ("shop/tiny", False, "shop")),
        ("web-1", {"nova:flavor": "tiny"}, ("web-1", False, "")),
        ("web-1", {"nova:project": "shop"}, ("web-1", False, "shop")),
        ("web-1", {}, ("web-1", False, "")),
        ("opt-", {}, ("opt-", False, "")),  # the template came out empty: not this rule
        ("own-", {"nova:project": "shop"}, ("mine", False, "shop")),  # the owner's came out empty: Nova's project
    ],
)
def test_the_first_rule_that_is_found_names_the_job(name, facts, expected):
    rules = JobRules(
        [
            JobRule(r"^opt-(x)?$", r"\1"),
            JobRule(r"^own-(x)?$", "mine", owner=r"\1"),
            JobRule(r"db-(\w+)-\d", r"database-\1", latency_sensitive=True, owner=r"team-\1"),
            JobRule(r"^(\w+)\.", r"\1", fact="nova:flavor"),
            JobRule("prod", "never reached", fact="name"),
        ]
    )
    assert rules.job_of(replace(identity(name=name), facts=facts))[:3] == expected


def test_what_a_tenant_wrote_is_clean_as_job_and_owner():
    facts = {"nova:name": "\x9b2Jweb" + "x" * 500, "nova:project": "pro\x1bject", "nova:flavor": "tiny"}
    vm = replace(identity(), facts=facts)
    job, _, owner, *_ = JobRules([JobRule("(.+)", r"\1", fact="nova:name")]).job_of(vm)
    assert (len(job), job[:8], owner) == (256, r"\x9b2Jwe", r"pro\x1bject")
    assert JobRules([]).job_of(vm)[:3] == (r"pro\x1bject/tiny", False, r"pro\x1bject")
    owned = JobRules([JobRule("x", "mine", owner=r"\g<0>\n", fact="nova:name")]).job_of(vm)
    assert owned.owner == "x"


def test_a_rule_may_tell_how_many_requests_a_vm_serves_at_once():
    rules = JobRules([JobRule("^silo", "silo", workers=1), JobRule("(.+)", r"\1")])
    assert rules.job_of(identity(name="silo-1")).workers == 1
    assert rules.job_of(identity(name="web-1")).workers is None


@pytest.mark.parametrize(
    ("rule", "alert"),
    [
        (None, True),  # nobody said that nobody waits for it
        ({}, False),
        ({"latency_sensitive": True}, True),
        ({"alert": True}, True),
        ({"alert": False}, False),
        ({"latency_sensitive": True, "alert": False}, False),
    ],
)
def test_who_is_waited_for_can_be_a_victim(rule, alert):
    host = Host(*([] if rule is None else [JobRule(".", "web", **rule)]))
    host.at(10, whole(10, "u1"))
    assert host.vms["u1"].alert is alert


def test_two_readings_make_rates():
    host = Host()
    host.at(10, whole(10, "u1", "u2"))
    assert set(host.vms["u1"].rates[:24]) == {Reason.VM_STARTING}
    host.at(11, whole(11, "u1", "u2"))
    for vm in host.vms.values():
        assert vm.rates.cpi == pytest.approx(1.6)
        assert vm.rates.cpu_usage_cores == pytest.approx(1.0)


def test_no_delta_crosses_a_restart():
    host = Host()
    host.at(10, whole(10, "u1"))
    host.at(11, whole(11, "u1"))
    host.at(12, whole(12, "u1", epoch="e2", since=-1000))  # counters went on from somewhere much higher
    assert set(host.vms["u1"].rates[:24]) == {Reason.VM_STARTING}
    host.at(13, whole(13, "u1", epoch="e2", since=-1000))
    assert host.vms["u1"].rates.cpu_usage_cores == pytest.approx(1.0)


def test_a_sample_of_the_former_epoch_is_not_joined():
    host = Host()
    host.troubles["procfs"] = None
    here = sample(10, {}, identity("u1", "e2"), source="libvirt")
    host.at(10, here, sample(10, {"u1": vm_sample(10, "e1")}, source="procfs"))
    assert host.vms["u1"].now.threads is Reason.VM_STARTING


def test_vms_that_left_are_forgotten():
    host = Host()
    host.at(10, whole(10, "u1", "u2"))
    host.at(11, whole(11, "u2"))
    assert list(host.vms) == ["u2"]
    assert host.table.jobs() == {"u2"}
    host.at(12, sample(12, {}))  # no inventory at all: no VM
    assert len(host.table) == 0


def test_the_list_of_a_source_that_hangs_holds_no_vm_that_another_knows_to_be_gone():
    host = Host()
    host.troubles.update(procfs=None, libvirt=Reason.STUCK)
    old = sample(10, {}, identity("u1"), identity("u2"), source="libvirt")
    host.at(11, old, sample(11, {}, identity("u1"), identity("u2"), source="procfs"))
    host.at(17, old, sample(17, {}, identity("u2"), source="procfs"))
    assert list(host.vms) == ["u2"]


def test_the_list_of_the_only_source_stays_while_it_hangs():
    host = Host()
    host.at(10, sample(10, {}, identity("u1"), source="libvirt"))
    host.at(60, sample(10, {}, identity("u1"), source="libvirt"))
    assert list(host.vms) == ["u1"]


def test_parts_come_from_several_sources_each_with_its_own_time():
    host = Host()
    host.troubles.update(procfs=None, perf=None, libvirt=None)
    for second in (10, 11):
        host.at(
            second,
            sample(
                second - 0.3,
                {"u1": vm_sample(second, perf=Reason.NO_PMU, threads=Reason.NO_PMU)},
                identity(),
                source="libvirt",
            ),
            sample(second, {"u1": VmSample("e1", perf=vm_sample(second).perf)}, source="perf"),
            sample(second, {"u1": VmSample("e1", threads=vm_sample(second).threads)}, identity(), source="procfs"),
        )
    vm = host.vms["u1"]
    assert [part.source for part in vm.now[2:6]] == ["procfs", "perf", "libvirt", "libvirt"]
    assert vm.rates.cpi == pytest.approx(1.6)
    assert vm.rates.disk_read_bytes_per_s == pytest.approx(10_000)


def test_the_reason_that_a_source_gives_for_a_vm_is_reported():
    host = Host()
    for second in (10, 11):
        host.at(second, sample(second, {"u1": vm_sample(second, perf=Reason.FD_LIMIT)}, identity()))
    vm = host.vms["u1"]
    assert vm.rates.cpi is Reason.FD_LIMIT
    assert vm.rates.cpu_usage_cores == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(Reason.PARANOID, Reason.PARANOID), (None, Reason.VM_STARTING), (Reason.SOURCE_OFF, Reason.SOURCE_OFF)],
)
def test_without_a_reading_the_sources_state_is_the_reason(trouble, reason):
    host = Host()
    host.troubles.update(perf=trouble, simulated=Reason.SOURCE_OFF)
    host.at(10, sample(10, {"u1": VmSample("e1", threads={})}, identity(), source="procfs"))
    assert host.vms["u1"].now.perf is reason


def test_the_same_sample_again_keeps_its_rates_until_it_is_stale():
    host = Host()
    host.at(10, whole(10, "u1"))
    last = whole(11, "u1")
    host.at(11, last)
    for second in (12, 13, 16):
        host.at(second, last)
        assert host.vms["u1"].rates.cpi == pytest.approx(1.6)
        change = host.vms["u1"].change
        assert isinstance(change.perf, PerfDelta)
        assert change.perf.mono_ns == 11 * S  # by which the windows know that they have it
    host.at(16.1, last)
    assert set(host.vms["u1"].rates) == {Reason.STALE}
    host.at(17, whole(17, "u1"))  # 6 s after the last: too long a gap for a delta
    assert set(host.vms["u1"].rates[:24]) == {Reason.STALE}
    assert set(host.vms["u1"].rates[24:]) == {Reason.NOT_PRESENT}  # this source never tells them
    host.at(18, whole(18, "u1"))
    assert host.vms["u1"].rates.cpi == pytest.approx(1.6)


def test_a_sample_that_is_handed_on_keeps_what_was_made_of_it():
    host = Host()
    host.at(10, whole(10, "u1"))
    last = whole(11, "u1")
    host.at(11, last)
    made = host.vms["u1"].change
    host.at(12, last)
    again = host.vms["u1"].change
    assert [one is other for one, other in zip(again[:4], made[:4], strict=True)] == [True] * 4
    host.at(13, whole(13, "u1"))
    assert [part.dt_ns for part in host.vms["u1"].change[:4]] == [2 * S] * 4


def test_a_sample_of_before_a_vcpu_was_plugged_in_reports_nothing_of_the_vm_with_it():
    host = Host()
    host.at(10, whole(10, "u1"))
    last = whole(11, "u1")
    host.at(11, last)
    host.at(12, replace(last, inventory=(identity(name="u1", vcpus=3),)))
    rates = host.vms["u1"].rates
    assert (rates.cpu_usage_cores, rates.cpi) == (Reason.VM_STARTING, Reason.VM_STARTING)
    assert rates.network_receive_bytes_per_s == pytest.approx(3000)


def test_running_vcpus_of_before_one_was_unplugged_are_not_reported_of_the_vm_without_it():
    host = Host()
    for second in (10, 11):
        last = whole(second, "u1")
        process = ProcessCounters(second * S, 1, vcpus_running=2)
        last = replace(last, vms={"u1": replace(last.vms["u1"], process=process)})
        host.at(second, last)
    assert host.vms["u1"].rates.vcpus_running == 2
    host.at(12, replace(last, inventory=(identity(name="u1", vcpus=1),)))
    assert host.vms["u1"].rates.vcpus_running is Reason.VM_STARTING
    assert host.vms["u1"].rates.emulator_cpu_cores is Reason.VM_STARTING  # as there is no CPU time either


def test_after_bad_data_differences_are_from_the_last_readings_that_made_sense():
    host = Host()
    host.at(10, whole(10, "u1"))
    good = whole(11, "u1")
    host.at(11, good)
    bad = VmSample("e1", threads={101: None}, disks=good.vms["u1"].disks)  # type: ignore[dict-item]
    host.at(12, replace(whole(12, "u1"), vms={"u1": bad}))
    assert host.vms["u1"].change is None
    host.at(13, whole(13, "u1"))
    change = host.vms["u1"].change
    assert [part.dt_ns for part in change[:4]] == [2 * S] * 4


def test_a_short_failure_of_one_part_is_bridged():
    host = Host()
    host.at(10, whole(10, "u1"))
    host.at(11, sample(11, {"u1": vm_sample(11, perf=Reason.SOURCE_FAILED)}, identity()))
    assert host.vms["u1"].rates.cpi is Reason.SOURCE_FAILED
    host.at(12, sample(12, {"u1": vm_sample(12)}, identity()))
    change = host.vms["u1"].change
    assert isinstance(change.perf, PerfDelta)
    assert (change.perf.dt_ns, change.perf.cycles) == (2 * S, 4 * S)


def test_one_vms_bad_data_costs_nobody_else_and_is_reported_once():
    host = Host()
    nonsense = VmSample("e1", threads={101: ThreadCounters("a", None, 0, 7), 102: None})  # type: ignore[arg-type]

    def bad(second: float) -> SourceSample:
        good = whole(second, "u1", "u2")
        return replace(good, vms={**good.vms, "u1": nonsense})

    host.at(9, whole(9, "u1", "u2"))
    with structlog.testing.capture_logs() as logs:
        for second in (10, 11, 12):
            host.at(second, bad(second))
            assert host.vms["u2"].rates.cpi == pytest.approx(1.6)
            assert (set(host.vms["u1"].rates), host.vms["u1"].change) == ({Reason.INVALID_VALUE}, None)
        host.at(13, whole(13, "u1", "u2"))
        host.at(14, whole(14, "u1", "u2"))
    assert host.vms["u1"].rates.cpi == pytest.approx(1.6)
    assert host.table.errors == 3
    assert [entry["event"] for entry in logs] == ["VM left out: inconsistent data", "VM's data is consistent again"]


def test_a_renamed_vm_gets_its_job_again_and_keeps_its_epoch():
    host = Host(JobRule("^(a|b)", r"job-\1"))
    host.at(10, sample(10, {"u1": vm_sample(10)}, identity(name="a1")))
    assert host.vms["u1"].owner == ""
    host.at(11, sample(11, {"u1": vm_sample(11)}, identity(name="b1", **{"nova:project": "shop"})))
    vm = host.vms["u1"]
    assert (vm.job, vm.identity.name, vm.owner) == ("job-b", "b1", "shop")
    assert vm.rates.cpi == pytest.approx(1.6)


def test_the_first_source_that_knows_a_vm_wins():
    host = Host()
    first = sample(10, {}, identity(name="by-libvirt"), source="libvirt")
    second = sample(10, {}, identity(name="by-procfs"), identity("u2"), source="procfs")
    host.at(10, first, second)
    assert {uuid: vm.identity.name for uuid, vm in host.vms.items()} == {"u1": "by-libvirt", "u2": "vm1"}


def test_a_part_that_is_polled_slowly_has_its_own_moment_and_rates():
    host = Host(slow={"disks": 25 * S})

    def at(second, polled):
        base = vm_sample(second)
        vm = replace(base, disks=vm_sample(polled).disks, stamps={"disks": Stamp(polled * S, UNIX0 + polled * S)})
        host.at(second, sample(second, {"u1": vm}, identity()))
        return host.vms["u1"]

    at(10, 10)
    assert at(19, 10).rates.disk_read_bytes_per_s is Reason.VM_STARTING
    vm = at(20, 20)
    assert vm.rates.disk_read_bytes_per_s == pytest.approx(10_000)
    assert vm.change.disk[:2] == (10 * S, 20 * S)
    vm = at(29, 20)
    assert vm.rates.disk_read_bytes_per_s == pytest.approx(10_000)  # stands until the next poll
    assert vm.now.disks.mono_ns == 20 * S
    at(50, 50)
    assert host.vms["u1"].rates.disk_read_bytes_per_s is Reason.STALE  # 30 s without a poll


def test_counters_in_turns_keep_their_last_value_and_its_age():
    host = Host()
    layout = (("cycles", "instructions", "llc_misses"), ("cycles", "instructions", "l2_misses"))

    def at(second, a, b):
        groups = (
            PerfGroup(1, a * S, a * S, (2 * a * S, a * S, a * S // 100)),
            PerfGroup(2, b * S, b * S, (2 * b * S, b * S, b * S // 10)),
        )
        vm = replace(vm_sample(second, vcpus=1), perf=PerfCounters(layout, {101: groups}))
        host.at(second, sample(second, {"u1": vm}, identity(vcpus=1)))
        return host.vms["u1"]

    llc, l2 = VmRates._fields.index("llc_mpki"), VmRates._fields.index("l2_mpki")
    at(10, 0, 0)
    vm = at(11, 1, 0)
    assert (vm.rates.llc_mpki, vm.rates.l2_mpki, vm.held) == (10.0, Reason.TIME_SLICED, {})
    vm = at(12, 1, 1)
    assert (vm.rates.llc_mpki, vm.rates.l2_mpki, vm.held) == (10.0, 100.0, {llc: 11 * S})
    vm = at(13, 2, 1)
    assert (vm.rates.llc_mpki, vm.rates.l2_mpki, vm.held) == (10.0, 100.0, {l2: 12 * S})
    for second in range(14, 18):  # its turn does not come any more
        vm = at(second, second - 11, 1)
    assert (vm.rates.l2_mpki, vm.held[l2]) == (100.0, 12 * S)
    vm = at(18, 7, 1)
    assert vm.rates.l2_mpki is Reason.TIME_SLICED


def test_the_quota_is_the_control_groups_and_the_number_of_vcpus_only_where_it_has_none():
    host = Host()
    quotas = {"u1": 0.5, "u2": None, "u3": None, "u4": None}
    vms = {
        uuid: replace(vm_sample(10), cgroup=CgroupCounters(opened=1, quota_cores=quota))
        for uuid, quota in quotas.items()
    }
    vms["u3"] = vm_sample(10)
    vms["u4"] = replace(vm_sample(10), absent={"cgroup": Reason.SHARED})
    host.at(10, sample(10, vms, *(identity(uuid, vcpus=4) for uuid in vms)))
    assert {uuid: vm.quota_cores for uuid, vm in host.vms.items()} == {
        "u1": 0.5,
        "u2": 4.0,
        "u3": None,  # nobody told whether there is one
        "u4": None,
    }


def test_a_source_that_says_that_a_part_is_starting_is_believed():
    host = Host()
    host.troubles["perf"] = None
    starting = VmSample("e1", absent={"perf": Reason.VM_STARTING})
    host.at(1, sample(1, {"u1": starting}, identity(), source="perf"))
    assert host.vms["u1"].now.perf is Reason.VM_STARTING
    host.at(2, sample(2, {"u1": VmSample("e1")}, identity(), source="perf"))
    assert host.vms["u1"].now.perf is Reason.NOT_PRESENT
