"""What could be done about contention: how much is taken, what is expected of it, in which order, in which words."""

import itertools
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.advice.actions import MAX_RECOMMENDATIONS, recommend
from agent.analysis.advice.effects import MATERIAL_SHARE, NEAR_SHARE
from agent.analysis.advice.recommendations import HostLimits, Situation, Suspect, Victim, quota_us
from agent.uplink.messages import recommendation_message
from whitepanda.common.recommendations import effect_text, recommendation_lines

UUID = "00000000-0000-4000-8000-000000000007"
VICTIM = Victim("uuid-web", "web-1", "web", cpi=3.0, mean_cpi=1.2, threshold_cpi=1.9, degradation=2.5)
SCAN = Suspect(UUID, "scan-1", "scan", 4.0, vcpus=4, coefficient=0.5, standard_error=0.05, score=2.0)
RDT = HostLimits(cache_ways=12, min_ways=1, min_bandwidth_percent=10, central="central.example:7443")


def situation(*suspects, **changes):
    return replace(Situation((VICTIM,), suspects or (SCAN,), mn_cpi=2.0, mn_cpi_threshold=1.0), **changes)


def actions(found):
    return [one.action for one in found]


def by_action(found, action):
    return next(one for one in found if one.action == action)


def test_so_much_is_taken_that_mn_cpi_falls_to_its_threshold_by_the_coefficients_lower_end():
    first = recommend(situation())[0]
    low = 0.5 - 1.959964 * 0.05
    cores = 4.0 - (2.0 - 1.0) / low
    assert (first.action, first.vm, first.unit) == ("cap_cpu", UUID, "cores")
    assert first.amount == pytest.approx(cores, abs=1e-3)
    assert first.amount <= cores  # rounded to what is still enough
    effect = first.effect
    assert effect.after == pytest.approx(2.0 - 0.5 * (4.0 - cores), abs=1e-3)
    assert effect.high == pytest.approx(1.0, abs=1e-3)  # the interval's end: enough in 39 of 40 cases
    assert effect.low == pytest.approx(effect.after - (effect.high - effect.after))
    assert (effect.signal, effect.before, effect.threshold, effect.unknown_because) == ("mn_cpi", 2.0, 1.0, "")
    assert "score 2 = coefficient 0.5 of job scan * 4 cores" in first.evidence


def test_without_a_standard_error_there_is_an_effect_without_an_interval_and_its_reason():
    effect = recommend(situation(replace(SCAN, standard_error=None)))[0].effect
    assert (effect.after, effect.low, effect.high) == (pytest.approx(1.0), None, None)
    assert "no interval" in effect.unknown_because


@given(st.floats(1.01, 5), st.floats(0.2, 2))
def test_what_is_reckoned_to_be_enough_is_said_to_be_enough(mn_cpi, coefficient):
    usage = (mn_cpi - 1.0) / coefficient + 1.0
    suspect = replace(SCAN, cpu_usage_cores=usage, coefficient=coefficient, standard_error=None, score=1.0)
    first = recommend(situation(suspect, mn_cpi=mn_cpi))[0]
    assert (first.action, first.effect.helps) == ("cap_cpu", True)


def test_what_the_host_alone_found_has_no_expected_effect_but_a_first_step():
    culprit = Suspect(UUID, "scan-1", "scan", 4.0, vcpus=4, inflicts=True)
    found = recommend(situation(culprit, mn_cpi=None, mn_cpi_threshold=None))
    cap = by_action(found, "cap_cpu")
    assert cap.amount == 2.0
    assert (cap.effect.signal, cap.effect.before, cap.effect.after) == ("degradation", 2.5, None)
    assert cap.effect.unknown_because
    unknown_job = recommend(situation(replace(culprit, score=None)))
    assert "no coefficient of job scan" in by_action(unknown_job, "cap_cpu").effect.unknown_because


def test_to_do_nothing_is_better_than_what_leaves_most_of_it_and_worse_than_what_comes_near():
    weak = replace(SCAN, coefficient=0.1, standard_error=0.01, score=0.4)
    found = recommend(situation(weak))
    assert actions(found) == ["nothing", "migrate_victim", "cap_cpu", "migrate_suspect"]
    cap = by_action(found, "cap_cpu")
    assert cap.amount == pytest.approx(0.1)  # no VM is starved for it
    assert cap.effect.after > cap.effect.threshold
    ends_there = recommend(situation(replace(weak, score=2.0, vm="uuid-2", coefficient=0.5), weak))
    assert actions(ends_there)[-3:] == ["nothing", "cap_cpu", "migrate_suspect"]
    after_what_cannot_be_told = ["migrate_victim", "cap_cpu", "migrate_suspect", "nothing"]
    near = replace(weak, coefficient=0.8 / 4, standard_error=0.001, score=0.8)
    for better in (near, replace(weak, inflicts=True)):
        one = recommend(situation(better))
        assert actions(one) == after_what_cannot_be_told
        assert by_action(one, "cap_cpu").effect.helps is False


def train(**changes):
    """Of the demonstration: nearly a whole host's CPU, and a coefficient that hardly accuses it."""
    usual = Suspect(
        "uuid-train", "train-1", "train", 20.9, vcpus=24, coefficient=0.026, standard_error=0.001, score=0.543
    )
    return replace(usual, **changes)


def test_whom_the_host_finds_innocent_is_left_alone_while_another_one_inflicts():
    """20.9 cores were to be cut to half a core, for mnCPI 2.47 instead of 3: just above a quarter of the way."""
    scan = replace(SCAN, cpu_usage_cores=14.0, score=7.0, inflicts=True)

    def against_train(*suspects):
        found = recommend(situation(*suspects, mn_cpi=3.0))
        return [one.action for one in found if one.vm == "uuid-train"]

    for known in ({"mn_cpi": 3.0}, {"mn_cpi": None, "mn_cpi_threshold": None}):
        heavy = train(is_cleared=True, llc_bytes=6e6, all_llc_bytes=1e7)
        found = recommend(situation(heavy, scan, host=RDT, **known))
        assert (found[0].action, found[0].vm) == ("cap_cpu", UUID)
        assert "uuid-train" not in {one.vm for one in found}
        said = "not limited, as this host blames another (score): train-1 0.543"
        assert said in found[-1].evidence
    # The host knows nothing of it, or of nobody who inflicts: the coefficient alone says so.
    assert against_train(scan, train()) == ["cap_cpu", "migrate_suspect"]
    assert against_train(replace(scan, inflicts=False), train(is_cleared=True))
    # It brings mnCPI near its threshold: the host may be wrong.
    strong = {"is_cleared": True, "standard_error": 0.0001}
    assert against_train(scan, train(coefficient=NEAR_SHARE * 2 / 20.9 + 1e-9, **strong))
    assert not against_train(scan, train(coefficient=NEAR_SHARE * 2 / 20.9 - 1e-9, **strong))


def test_who_is_left_alone_takes_nobodys_place():
    innocents = [train(vm=f"uuid-{n}", score=9.0, is_cleared=True) for n in range(4)]
    late = replace(SCAN, coefficient=None, score=None, inflicts=True)
    assert recommend(situation(*innocents, late, mn_cpi=3.0))[0].vm == UUID


def test_a_cap_says_from_how_many_cores_to_how_many():
    cap = by_action(recommend(situation(train(), mn_cpi=3.0, host=HostLimits(min_cores=0.5))), "cap_cpu")
    assert (cap.amount, cap.evidence[0]) == (0.5, "from 20.9 to 0.5 cores")


def test_whose_whole_cpu_is_a_small_part_of_it_is_not_starved_for_nothing():
    """24 vCPUs in full use were to be cut to half a core, for mnCPI 2.59 instead of 3."""
    small = Suspect(UUID, "train-1", "train", 18.3, vcpus=24, coefficient=0.0224, standard_error=0.001, score=0.41)
    alone = recommend(situation(small, mn_cpi=3.0))
    assert actions(alone) == ["nothing", "migrate_victim"]
    assert "too small a share to limit (score): train-1 0.41" in alone[0].evidence
    worse = replace(SCAN, vm="uuid-2")
    both = recommend(situation(worse, small, mn_cpi=3.0))
    assert {one.vm for one in both} == {"uuid-2", "uuid-web", ""}
    assert both[-1].action == "nothing"
    assert "it lasts until the suspect changes its behaviour" in both[-1].evidence
    enough = replace(small, coefficient=MATERIAL_SHARE * 2.0 / 18.3 + 1e-9)
    assert "cap_cpu" in actions(recommend(situation(enough, mn_cpi=3.0)))


def test_of_a_small_part_what_nobody_knows_the_effect_of_stays_and_so_does_what_the_host_found():
    small = replace(SCAN, coefficient=0.01, standard_error=0.001, score=0.04, llc_bytes=6e6, all_llc_bytes=1e7)
    assert actions(recommend(situation(small, host=RDT))) == ["limit_cache", "migrate_victim", "nothing"]
    cap = by_action(recommend(situation(replace(small, inflicts=True))), "cap_cpu")
    assert cap.amount == 2.0  # a first step: its coefficient does not say how much


def test_nothing_is_promised_below_what_is_usual():
    effect = by_action(recommend(situation(replace(SCAN, score=4.0, coefficient=1.0))), "migrate_suspect").effect
    assert (effect.low, effect.after, effect.high) == (0.0, 0.0, 0.0)


def test_of_an_n_cpi_that_was_cut_it_is_said_that_more_may_be_needed():
    strong = replace(SCAN, coefficient=0.9225, standard_error=0.01, score=3.69)
    found = recommend(situation(strong, mn_cpi=3.0, is_cut=True))
    assert actions(found) == ["cap_cpu", "migrate_suspect", "migrate_victim", "nothing"]
    for one in found[:2]:
        assert one.effect.helps is None  # the line says enough, but of a value that may be more
        assert one.effect.after >= 0
        assert (one.effect.low, one.effect.high) == (None, None)
        assert one.effect.unknown_because.startswith("at least: nCPI is cut at 3")
    weak = recommend(situation(replace(SCAN, coefficient=0.15, score=0.6), mn_cpi=3.0, is_cut=True))
    assert by_action(weak, "cap_cpu").effect.helps is False
    said = "\n".join(recommendation_lines(map(recommendation_message, found)))
    effect = "expected mnCPI at least 0 instead of at least 3 (nCPI is cut at 3), threshold 1; more may be needed"
    assert effect in said


def test_cache_and_bandwidth_are_limited_where_the_host_can_and_the_evidence_is_of_that_kind():
    heavy = replace(SCAN, llc_bytes=6e6, all_llc_bytes=1e7, memory_bytes_per_s=9e9, all_memory_bytes_per_s=1e10)
    with_rdt = recommend(situation(heavy, host=RDT))
    assert actions(with_rdt) == [
        "cap_cpu",
        "migrate_suspect",
        "limit_cache",
        "limit_bandwidth",
        "migrate_victim",
        "nothing",
    ]
    cache, bandwidth = by_action(with_rdt, "limit_cache"), by_action(with_rdt, "limit_bandwidth")
    assert (cache.amount, cache.unit) == (2.0, "ways")
    assert "it has 60% of the cache" in cache.evidence[0]
    assert "leave 10 to web-1" in cache.evidence[1]
    assert (bandwidth.amount, bandwidth.unit) == (30.0, "percent")  # what is left of its CPU: 38 %, in steps of 10
    assert cache.effect.after is None
    assert cache.effect.unknown_because
    without = {"limit_cache", "limit_bandwidth"}
    assert not without & set(actions(recommend(situation(heavy))))
    light = replace(heavy, llc_bytes=1e6, memory_bytes_per_s=1e9)
    assert not without & set(actions(recommend(situation(light, host=RDT))))


def test_the_least_bandwidth_is_a_step_of_this_cpu():
    heavy = replace(SCAN, cpu_usage_cores=99.0, memory_bytes_per_s=9e9, all_memory_bytes_per_s=1e10)

    def percent(least, step):
        host = replace(RDT, min_bandwidth_percent=least, bandwidth_step_percent=step, min_cores=1.0)
        found = recommend(situation(replace(heavy, cpu_usage_cores=2.0), host=host))
        return [one.amount for one in found if one.action == "limit_bandwidth"]

    assert percent(55, 10) == [60.0]  # and not 55, of which the kernel makes 60
    assert percent(20, 10) == [50.0]
    assert percent(91, 10) == percent(0, 10) == []


def test_each_command_is_what_an_operator_would_run():
    found = recommend(situation(replace(SCAN, standard_error=None), host=RDT))
    ours, by_hand, undo = (c.words for c in by_action(found, "cap_cpu").commands)
    assert shlex.join(ours) == (f"whitepanda act apply cap-cpu {UUID} --cores 2 --seconds 900 --victim uuid-web")
    assert by_hand[:7] == ("virsh", "-c", "qemu:///system", "schedinfo", UUID, "--live", "--config")
    assert by_hand[7:] == ("vcpu_period=100000", "vcpu_quota=50000")
    assert undo == (*by_hand[:7], "vcpu_quota=-1")
    lifts, ranks, migrates = (c.words for c in by_action(found, "migrate_suspect").commands)
    assert lifts == ("whitepanda", "act", "undo", "--vm", UUID)
    assert ranks == ("whitepanda", "place", "--central=central.example:7443", "--tls=DIR", "--job=scan")
    assert migrates[3:6] == ("migrate", "--live", "--persistent")
    assert migrates[6:] == ("--undefinesource", UUID, "qemu+ssh://HOST/system")


def test_no_vm_takes_a_limit_of_ours_along():
    """A live quota migrates with the VM, to where nobody undoes it."""
    found = recommend(situation(SCAN, replace(SCAN, vm="uuid-2", name="scan-2", score=1.0), host=RDT))
    migrations = [one for one in found if one.action.startswith("migrate")]
    assert [one.vm for one in migrations] == [UUID, "uuid-2", "uuid-web"]
    for one in migrations:
        lifts, *others = (c.words for c in one.commands)
        assert lifts == ("whitepanda", "act", "undo", "--vm", one.vm)
        assert others[-1][3] == "migrate"


def test_the_quota_of_a_vms_owner_is_not_undone_by_hand():
    cap = by_action(recommend(situation(replace(SCAN, has_quota=True))), "cap_cpu")
    assert [c.words[:3] for c in cap.commands] == [("whitepanda", "act", "apply")]


def managed(manager, **changes):
    """What is recommended where somebody manages the suspect and the victim: Proxmox' numbers are 101 and 102."""
    suspect = replace(SCAN, standard_error=None, manager=manager, vmid="101" * (manager == "proxmox"), **changes)
    victim = replace(VICTIM, manager=manager, vmid="102" * (manager == "proxmox"))
    return recommend(situation(suspect, victims=(victim,), host=RDT))


def lines(found, action):
    return [shlex.join(command.words) for command in by_action(found, action).commands]


NOVA = "openstack --os-compute-api-version 2.30 server migrate --live-migration --host HOST"


@pytest.mark.parametrize(
    ("manager", "suspect", "victim", "lifts"),
    [
        ("nova", f"{NOVA} {UUID}", f"{NOVA} uuid-web", True),
        ("proxmox", "qm migrate 101 NODE --online", "qm migrate 102 NODE --online", False),
    ],
)
def test_a_vm_is_migrated_by_who_manages_it(manager, suspect, victim, lifts):
    found = managed(manager)
    for action, vm, command in (("migrate_suspect", UUID, suspect), ("migrate_victim", "uuid-web", victim)):
        said = lines(found, action)
        assert said[-1] == command
        # Only a quota of libvirt's moves along; a control group stays behind.
        assert (f"whitepanda act undo --vm {vm}" in said) is lifts
        assert any(line.startswith("whitepanda place ") for line in said)


@pytest.mark.parametrize("manager", ["qemu", ""])
def test_what_nobody_manages_gets_no_command_but_the_reason(manager):
    found = managed(manager)
    for action in ("migrate_suspect", "migrate_victim"):
        assert [line.split()[:2] for line in lines(found, action)] == [["whitepanda", "place"]]
        assert "no command migrates it: " in by_action(found, action).evidence[-1]


@pytest.mark.parametrize("manager", ["nova", "proxmox", "qemu", ""])
def test_virsh_is_for_vms_that_libvirt_alone_manages(manager):
    """A VM of Nova that is moved or limited past Nova is lost to it, and others are not virsh's at all."""
    commands = [command.words for one in managed(manager) for command in one.commands]
    assert commands
    assert not any("virsh" in words for words in commands)


LOST = "what act sets is lost with a restart of the VM, and with a migration"
OURS = f"whitepanda act apply cap-cpu {UUID} --cores 2 --seconds 900 --victim uuid-web"


@pytest.mark.parametrize(
    ("manager", "commands", "note"),
    [
        (
            "nova",
            [
                "openstack flavor set --property quota:cpu_period=100000 --property quota:cpu_quota=50000 FLAVOR",
                f"openstack server resize --flavor FLAVOR {UUID}",
            ],
            "what act sets ends with a hard reboot or resize by Nova, and moves along with a live migration",
        ),
        ("proxmox", ["qm set 101 --cpulimit 2", "qm set 101 --delete cpulimit"], LOST),
        ("qemu", [], f"{LOST}; no manager of this QEMU is known, so no setting that lasts is"),
        (
            "libvirt",
            [
                f"virsh -c qemu:///system schedinfo {UUID} --live --config vcpu_period=100000 vcpu_quota=50000",
                f"virsh -c qemu:///system schedinfo {UUID} --live --config vcpu_quota=-1",
            ],
            "what act sets ends with a restart of the VM, and moves along with a live migration",
        ),
    ],
)
def test_a_cap_is_ours_for_a_while_and_its_managers_for_good_and_says_what_survives(manager, commands, note):
    found = managed(manager)
    assert lines(found, "cap_cpu") == [OURS, *commands]
    assert by_action(found, "cap_cpu").evidence[-1] == note
    kept = [c.purpose for c in by_action(found, "cap_cpu").commands if "kept over restarts and migrations" in c.purpose]
    assert len(kept) == (manager != "qemu")
    assert lines(managed(manager, has_quota=True), "cap_cpu") == [OURS]


def test_a_vm_that_shares_its_control_group_is_not_offered_a_limit_that_act_refuses():
    found = managed("qemu", has_own_group=False)
    assert lines(found, "cap_cpu") == []
    assert "no control group of its own" in by_action(found, "cap_cpu").evidence[-1]
    assert lines(managed("libvirt", has_own_group=False), "cap_cpu")[0] == OURS  # libvirt limits it, by its own


def test_cache_and_bandwidth_are_limited_whoever_manages_the_vm():
    heavy = {"llc_bytes": 6e6, "all_llc_bytes": 1e7, "memory_bytes_per_s": 9e9, "all_memory_bytes_per_s": 1e10}
    found = managed("proxmox", **heavy)
    assert {"limit_cache", "limit_bandwidth"} <= set(actions(found))


def test_it_is_said_that_a_quota_is_per_vcpu():
    said = "the quota is per vCPU: busy on one of its 4 vCPUs only, it gets 0.378 cores"
    assert said in recommend(situation())[0].evidence
    assert not any("per vCPU" in line for line in recommend(situation(replace(SCAN, vcpus=1)))[0].evidence)


@given(st.text(min_size=1))
def test_names_of_others_are_words_for_every_shell(job):
    found = recommend(situation(replace(SCAN, job=job, name=job)))
    for one in found:
        for command in one.commands:
            assert shlex.split(shlex.join(command.words)) == list(command.words)
    assert by_action(found, "migrate_suspect").commands[1].words[-1] == f"--job={job}"


def test_a_control_group_beside_the_vms_is_capped_by_systemd_and_cannot_migrate():
    ceph = replace(SCAN, vm="host:ceph-osd@3.service", name="ceph-osd@3.service", vcpus=None)
    found = recommend(situation(ceph))
    assert actions(found) == ["cap_cpu", "migrate_victim", "nothing"]
    words = found[0].commands[0].words
    assert words[:4] == ("systemctl", "set-property", "--runtime", "--")
    assert words[4:] == ("ceph-osd@3.service", "CPUQuota=151%")


def test_who_is_not_suspected_is_left_alone():
    innocent = replace(SCAN, coefficient=-0.1, score=-0.4)
    found = recommend(situation(innocent))
    assert actions(found) == ["nothing", "migrate_victim"]
    assert "the wrong one" in found[0].evidence[-1]
    assert recommend(situation(victims=())) == ()


def test_a_vm_whose_vcpus_are_not_known_or_that_is_nearly_idle_is_not_capped():
    assert "cap_cpu" not in actions(recommend(situation(replace(SCAN, vcpus=None))))
    assert "cap_cpu" not in actions(recommend(situation(replace(SCAN, cpu_usage_cores=0.05))))


def test_the_list_is_bounded_and_the_worse_suspect_comes_first():
    many = tuple(replace(SCAN, vm=f"u{n}", name=f"s{n}", score=5.0 - n) for n in range(5))
    found = recommend(situation(*many))
    assert len(found) == MAX_RECOMMENDATIONS
    assert [one.vm for one in found[:4]] == ["u0", "u0", "u1", "u1"]
    assert found[-1].action == "nothing"


@given(st.integers(1, 128), st.floats(0.6, 64), st.floats(0.02, 2))
def test_what_is_recommended_is_what_act_would_do(vcpus, usage, coefficient):
    """No less than it is allowed, and no less than the quota that libvirt takes."""
    suspect = replace(SCAN, vcpus=vcpus, cpu_usage_cores=usage, coefficient=coefficient, score=usage * coefficient)
    allowed = HostLimits(min_cores=0.5, max_seconds=60.0)
    found = [one for one in recommend(situation(suspect, host=allowed)) if one.action == "cap_cpu"]
    for cap in found:
        words = cap.commands[0].words
        assert 0.5 <= cap.amount == float(words[words.index("--cores") + 1])
        assert words[words.index("--seconds") + 1] == "60"
        quota = int(cap.commands[1].words[-1].removeprefix("vcpu_quota="))
        assert quota * vcpus == pytest.approx(cap.amount * 100_000, abs=vcpus)


@given(st.floats(0.01, 512), st.integers(1, 512), st.integers(1000, 1_000_000))
def test_a_quota_is_never_less_than_libvirt_takes(cores, vcpus, period_us):
    assert quota_us(cores, vcpus, period_us) >= 1000


def test_doing_nothing_says_what_happens_then():
    nothing = recommend(situation(lasted_s=600.0))[-1]
    assert nothing.action == "nothing"
    assert "CPI 3 of web-1 is above 1.9 of job web, mean 1.2" in nothing.evidence
    assert "it has lasted 600 s" in nothing.evidence
    assert nothing.effect.after == nothing.effect.before == 2.0


def test_what_is_cut_is_at_least_so_much_in_every_line():
    found = recommend(situation(is_cut=True))
    known = [one.effect for one in found if one.effect.after is not None]
    assert len(known) >= 2 and all(effect.is_at_least for effect in known)
    said = [effect_text(recommendation_message(one).effect) for one in found if one.effect in known]
    assert all("at least" in text for text in said)
    assert [text.endswith("more may be needed") for text in said] == [True] * (len(said) - 1) + [False]  # nothing
    assert not any(one.effect.is_at_least for one in recommend(situation()))


def test_a_cpi_that_is_not_above_its_threshold_is_not_said_to_be():
    victim = replace(VICTIM, cpi=1.4, threshold_cpi=1.55)
    (*_, nothing) = recommend(situation(SCAN, victims=(victim,)))
    assert any(line.startswith("CPI 1.4 of web-1 is within 1.55 of job web") for line in nothing.evidence)
    assert "above" not in " ".join(nothing.evidence)


def test_a_coefficient_of_little_data_does_not_speak_for_a_vm_that_the_host_finds_to_inflict():
    """It was: migrate the victim, as without the one that inflicts mnCPI would be as high."""
    scan = replace(SCAN, coefficient=0.0002, standard_error=0.0001, score=0.001, inflicts=True)
    for is_cut in (False, True):
        found = recommend(situation(scan, is_cut=is_cut))
        assert actions(found) == ["cap_cpu", "migrate_suspect", "migrate_victim", "nothing"]
        effect = by_action(found, "cap_cpu").effect
        assert effect.after is None
        assert effect.unknown_because == (
            "this host finds that it inflicts, the fleet's coefficient of job scan that it hardly matters"
        )


def test_the_guides_example_is_what_is_said():
    guide = (Path(__file__).resolve().parents[4] / "docs" / "act.md").read_text(encoding="utf-8")
    said = recommendation_lines(map(recommendation_message, recommend(situation())))
    for line in itertools.islice(said, 8):
        assert f"    {line.replace(UUID, 'UUID').replace('uuid-web', 'UUID')}\n" in guide
