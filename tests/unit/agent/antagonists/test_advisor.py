"""The facts that recommendations stand on, from the agent's state to the message and the lines for people."""

import asyncio
import contextlib
import json
import math
import sys
from dataclasses import replace

import pytest

from agent.analysis.advice.recommendations import HostLimits
from agent.analysis.contention.normalised_cpi import ROBUST_CLIP
from agent.analysis.verdict import Degradation
from agent.analysis.verdict import Verdict as Suffering
from agent.antagonists.advisor import Advisor, limits_of
from agent.api.server import LocalApi
from agent.config import ActSection, AnalysisSection
from agent.uplink.messages import trigger_message
from tests.unit.agent.antagonists.test_host_analysis import CALM, SCAN, VICTIM, Host, update
from tests.unit.agent.canned_agents import HOST, Quiet, State, canned_vm, changed
from whitepanda.common import cli
from whitepanda.common.recommendations import recommendation_json, recommendation_lines
from whitepanda.v1 import host_pb2

RDT = HostLimits(cache_ways=12, min_bandwidth_percent=10, central="central:7443")


def view(name, job, *, ls=False, **metrics):
    shown = tuple(host_pb2.Metric(name=key, value=value) for key, value in metrics.items())
    return canned_vm(name, job, shown, ls=ls, epoch="1", vcpus=8)


VMS = (
    view("web-1", "web", ls=True, llc_occupancy_bytes=1e6, memory_bandwidth_bytes_per_s=1e8),
    view("scan-1", "scan", llc_occupancy_bytes=9e6, memory_bandwidth_bytes_per_s=9e8, cpu_usage_cores=4.0),
)


@pytest.fixture
def host(tmp_path):
    found = Host(tmp_path, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    sent = update()
    sent.coefficients[0].standard_error = 0.05
    sent.coefficients[1].standard_error = math.nan
    assert found.store.apply(sent)
    found.run(9, VICTIM, CALM, SCAN)
    return found


def advisor(host, cloud_white=None):
    return Advisor(State(changed(HOST, now_unix_ns=host.now), VMS, host.analysis, cloud_white), host.store, RDT)


def test_a_report_takes_along_what_could_be_done(host):
    (reported,) = host.reports
    message = trigger_message(advisor(host).with_advice(reported))
    cap = message.recommendations[0]
    assert (cap.action, cap.vm, cap.victim, cap.unit) == (1, "uuid-scan-1", "uuid-web-1", "cores")
    assert cap.effect.before == pytest.approx(reported.mn_cpi)
    assert cap.effect.low < cap.effect.after < cap.effect.high
    assert [one.action for one in message.recommendations][-1] == 6
    assert {3, 2} <= {one.action for one in message.recommendations}  # 90 % of cache and traffic are its own
    assert trigger_message(reported).recommendations == []


def test_explain_has_what_could_be_done_for_this_vm_only_while_it_suffers(host):
    found = advisor(host).for_vm("uuid-web-1")
    assert found[0].action == "cap_cpu"
    assert found[0].effect.threshold == host.explain("web-1").mn_cpi_threshold
    assert advisor(host).for_vm("uuid-scan-1") == ()
    assert advisor(host).for_vm("nobody") == ()


def test_an_n_cpi_that_was_cut_is_known_from_the_report_and_from_the_analysis(host, monkeypatch):
    (reported,) = host.reports
    cut = replace(reported, victims=tuple(replace(v, n_cpi=ROBUST_CLIP) for v in reported.victims))

    def says_at_least(found):
        return "nCPI is cut" in found[0].effect.unknown_because

    assert says_at_least(advisor(host).with_advice(cut).recommendations)
    assert not says_at_least(advisor(host).with_advice(reported).recommendations)
    assert not says_at_least(advisor(host).for_vm("uuid-web-1"))
    slot = replace(host.analysis.slot("uuid-web-1"), n_cpi=ROBUST_CLIP)
    monkeypatch.setattr(host.analysis, "slot", lambda _uuid: slot)
    assert says_at_least(advisor(host).for_vm("uuid-web-1"))


def test_who_runs_a_vm_and_whether_its_owner_has_set_a_quota_is_taken_into_account(host):
    def commands(*, manager="libvirt", **changes):
        metrics = {one.name: one.value for one in VMS[1].metrics}
        suspect = view("scan-1", "scan", **metrics)
        suspect.identity.manager = manager
        vars(suspect).update(changes)
        vms = (VMS[0], suspect)
        state = State(changed(HOST, now_unix_ns=host.now), vms, host.analysis, None)
        cap = Advisor(state, host.store, RDT).for_vm("uuid-web-1")[0]
        return [one.words[0] for one in cap.commands]

    assert commands(quota_cores=8.0) == commands() == ["whitepanda", "virsh", "virsh"]  # 8 vCPUs: none
    assert commands(quota_cores=4.0) == ["whitepanda"]
    assert commands(manager="qemu") == []  # whose control group nobody knows
    assert commands(manager="qemu", quota_cores=8.0) == ["whitepanda"]
    assert commands(manager="proxmox", vmid="101", quota_cores=8.0) == ["whitepanda", "qm", "qm"]
    assert commands(manager="nova") == ["whitepanda", "openstack", "openstack"]


class CloudWhiteSays(Quiet):
    """The host finds that web-1 suffers, and from whom."""

    def verdict(self, uuid):
        if uuid == "uuid-web-1":
            return Suffering("victim", "it suffers", 0, culprits=("uuid-scan-1", "uuid-gone"))
        return Suffering("steady", "it does not", 0)


def test_whom_the_host_itself_found_is_a_suspect_without_central(tmp_path):
    alone = Host(tmp_path)
    found = advisor(alone, CloudWhiteSays()).for_vm("uuid-web-1")
    cap = found[0]
    assert (cap.action, cap.vm, cap.amount) == ("cap_cpu", "uuid-scan-1", 2.0)
    assert "this host's own analysis finds it inflicting" in cap.evidence
    assert cap.effect.after is None


def test_a_report_and_explain_decide_alike_by_what_the_host_itself_has_found(host):
    class OnlyTheOtherOne(CloudWhiteSays):
        """The host holds scan-1, which has the coefficient, for steady, and finds another one."""

        def verdict(self, uuid):
            if uuid == "uuid-web-1":
                estimate = Degradation(1.62, 1.35, 1.94)
                return Suffering("victim", "", 0, culprits=("uuid-noisy-1",), degradation=estimate)
            return Suffering("steady", "", 0)

    sent = update(version=9)
    sent.coefficients[0].value = 0.3  # by which scan-1 is two thirds of what is too much
    assert host.store.apply(sent)

    def against(cloud_white):
        vms = (*VMS, view("noisy-1", "noisy", cpu_usage_cores=3.0))
        state = State(changed(HOST, now_unix_ns=host.now), vms, host.analysis, cloud_white)
        both = Advisor(state, host.store, HostLimits())
        report = both.with_advice(state.decisions.report(host.now)).recommendations
        explained = both.for_vm("uuid-web-1")
        assert [(one.action, one.vm) for one in report] == [(one.action, one.vm) for one in explained]
        of_the_victim = [[one.evidence for one in each if one.vm == "uuid-web-1"] for each in (report, explained)]
        assert of_the_victim[0] == of_the_victim[1] != []
        return report

    found = against(OnlyTheOtherOne())
    assert {one.vm for one in found} == {"uuid-noisy-1", "uuid-web-1", ""}
    # Its slow-down is of the CPI, as central's statistics found it before the host did.
    assert not any("times as slow" in line for line in found[-1].evidence)
    assert "CPI 3.1 of web-1 is above 1.9 of job web, mean 1.2" in found[-1].evidence
    assert any(one.vm == "uuid-scan-1" for one in against(None))

    class OnOthers(CloudWhiteSays):
        """It inflicts, but web-1 is a victim by central's statistics only."""

        def verdict(self, uuid):
            return Suffering("inflicting" if uuid == "uuid-scan-1" else "steady", "", 0)

    for found_here in (CloudWhiteSays(), OnOthers()):
        cap = next(one for one in against(found_here) if one.action == "cap_cpu")
        assert cap.vm == "uuid-scan-1"
        assert "this host's own analysis finds it inflicting" in cap.evidence


def test_for_an_affected_vm_and_against_whom_it_suffers_from_nothing_is_advised(tmp_path):
    class MayBeNothing(CloudWhiteSays):
        def verdict(self, uuid):
            return replace(super().verdict(uuid), degradation=Degradation(1.2, 0.9, 1.6))

    state = State(HOST, VMS, None, MayBeNothing())
    alone = Advisor(state, Host(tmp_path).store, RDT)
    assert state.decisions.vm("uuid-web-1").verdict == "affected"
    assert alone.for_vm("uuid-web-1") == alone.for_vm("uuid-scan-1") == ()


def test_the_end_of_a_report_advises_nothing(host):
    host.run(9, {**VICTIM, "cpi": 1.2}, CALM, SCAN)
    end = host.reports[-1]
    assert end.ended
    assert advisor(host).with_advice(end) is end


def test_of_a_vm_that_inflicts_it_is_said_what_could_be_done_against_it(tmp_path):
    alone = Host(tmp_path)
    found = advisor(alone, CloudWhiteSays()).for_vm("uuid-scan-1")
    assert [one.action for one in found] == ["cap_cpu", "limit_cache", "limit_bandwidth", "migrate_suspect"]
    assert {(one.vm, one.victim) for one in found} == {("uuid-scan-1", "uuid-web-1")}


def test_of_whom_the_host_found_just_now_the_usage_counts_that_it_has_now(tmp_path):
    alone = Host(tmp_path)
    alone.run(2, VICTIM, {**SCAN, "usage": 0.1})  # over the slot; at this moment 4 cores
    assert [s.cpu_usage_cores for s in alone.suspects("web-1")] == [pytest.approx(0.1)]
    cap = advisor(alone, CloudWhiteSays()).for_vm("uuid-web-1")[0]
    assert (cap.action, cap.vm, cap.amount) == ("cap_cpu", "uuid-scan-1", 2.0)


def test_lines_for_people_have_commands_that_a_shell_takes_and_json_has_null_for_unknown(host):
    (reported,) = host.reports
    message = trigger_message(advisor(host).with_advice(reported))
    text = "\n".join(recommendation_lines(message.recommendations))
    assert "1. cap the CPU of scan-1 to " in text
    assert "   $ whitepanda act apply cap-cpu uuid-scan-1 --cores " in text
    assert "effect not known: no coefficient says" in text
    nothing = recommendation_json(message.recommendations[-1])
    assert (nothing["action"], nothing["amount"], nothing["effect"]["low"]) == ("nothing", None, None)


def test_limits_are_read_from_resctrl_and_are_0_without_it(tmp_path):
    for name, text in {
        "L3/cbm_mask": "7ff",
        "L3/min_cbm_bits": "2",
        "MB/min_bandwidth": "10",
        "MB/bandwidth_gran": "5",
    }.items():
        path = tmp_path / "info" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    lax = ActSection(min_cores=0.2, max_seconds=60.0, min_bandwidth_percent=5, min_ways=1)
    assert limits_of(tmp_path, lax, "c:1") == HostLimits(11, 2, 10, 5, 0.2, 60.0, "c:1")
    strict = limits_of(tmp_path, ActSection(min_bandwidth_percent=40, min_ways=3))
    assert (strict.min_bandwidth_percent, strict.min_ways, strict.min_cores) == (40, 3, 0.5)
    for nothing in (limits_of(tmp_path / "none", ActSection()), limits_of(None, ActSection())):
        assert (nothing.cache_ways, nothing.min_bandwidth_percent, nothing.min_cores) == (0, 0, 0.5)


async def test_explain_shows_them_to_people_and_programs(host, tmp_path_factory, monkeypatch, capsys):
    path = tmp_path_factory.mktemp("s") / "a.sock"
    state = State(changed(HOST, now_unix_ns=host.now), VMS, host.analysis)
    state.advisor = advisor(host)
    api = LocalApi(state, path)
    await api.start()

    def explain(*arguments):
        monkeypatch.setattr(sys, "argv", ["whitepanda", "explain", "web-1", "--socket", str(path), *arguments])
        with contextlib.suppress(SystemExit):
            cli.main()
        return capsys.readouterr().out

    try:
        text = await asyncio.to_thread(explain)
        reported = json.loads(await asyncio.to_thread(explain, "--json"))
    finally:
        await api.stop(0)
    assert "what could be done, the best first:\n1. cap the CPU of scan-1 to " in text
    assert "   $ whitepanda act apply cap-cpu uuid-scan-1 --cores " in text
    assert reported["recommendations"][0]["action"] == "cap_cpu"
