"""A vCPU quota on a real VM of a real libvirt: set, felt, and undone in time, whoever is killed meanwhile."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.act.records import ActError, Apply, Undo
from agent.api.client import answers
from tests.support.act_process import ROOT, ActProcess
from tests.support.central_process import MAIN
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(240)]

NUMBER = "31"
NAME = f"wplab-busy-{NUMBER}"
UUID = "57500000-0000-4000-8000-00000000001f"
GONE = "57500000-0000-4000-8000-0000000000ff"
PERIOD = "100000"


@pytest.fixture(scope="module")
def vm(lab):
    lab.script("domain.sh", "busy", NUMBER)
    yield lab
    lab.virsh("destroy", NAME)


@pytest.fixture
def act(vm, tmp_path):
    service = ActProcess(tmp_path)
    yield service
    service.end()
    assert quota(vm) == -1  # whatever a test did, its end undoes it


def quota(lab):
    found = re.search(r"^vcpu_quota\s*:\s*(-?\d+)$", lab.virsh("schedinfo", UUID, "--live"), re.MULTILINE)
    return int(found[1])


def throttled():
    """How often the kernel has held the VM's vCPU back; of control groups v1 or v2."""
    counts = []
    for path in Path("/sys/fs/cgroup").glob(f"**/*{NAME}*/vcpu0/cpu.stat"):
        counts += re.findall(r"^nr_throttled (\d+)$", path.read_text(), re.MULTILINE)
    return max(map(int, counts))


def cap(act, seconds, vm=UUID, cores=0.5):
    (done,) = act.ask(Apply(action="cap-cpu", vm=vm, amount=cores, seconds=seconds)).done
    assert (done.result, done.before, done.after) == ("applied", f"-1/{PERIOD}", f"50000/{PERIOD}")
    return done


def undo(act):
    (done,) = act.ask(Undo(0)).done
    return done


def test_a_quota_is_set_felt_and_undone_after_its_time(vm, act):
    act.start()
    before = throttled()
    cap(act, 3600)
    assert quota(vm) == 50_000
    wait_until(lambda: throttled() > before)
    shown = act.run("list")
    assert "cap-cpu" in shown.stdout and UUID in shown.stdout and "0.5 cores" in shown.stdout
    assert undo(act).result == "undone"
    assert quota(vm) == -1
    cap(act, 1)
    wait_until(lambda: act.in_force() == ())
    assert quota(vm) == -1
    assert [(line["result"], line["why"]) for line in act.audit()] == [
        ("begun", ""),
        ("applied", ""),
        ("undone", "on request"),
        ("begun", ""),
        ("applied", ""),
        ("undone", "its time is over"),
    ]
    with pytest.raises(ActError, match=f"no VM {GONE} runs here"):
        cap(act, 900, vm=GONE)
    with pytest.raises(ActError, match="can use at most 1 cores already; give fewer"):
        cap(act, 900, cores=2.0)


def test_after_a_kill_the_next_one_undoes_in_time_and_at_once_what_is_overdue(vm, act):
    act.start()
    cap(act, 3600)
    act.end(signal.SIGKILL)
    assert quota(vm) == 50_000
    act.start()
    (one,) = act.in_force()
    assert (one.record.vm, quota(vm)) == (UUID, 50_000)
    assert undo(act).result == "undone"
    assert quota(vm) == -1
    cap(act, 1)
    act.end(signal.SIGKILL)
    act.start()
    wait_until(lambda: act.in_force() == ())
    assert quota(vm) == -1
    assert [line["result"] for line in act.audit()].count("undone") == 2


def test_what_virsh_changed_meanwhile_is_left_alone_and_its_end_undoes_the_rest(vm, act):
    act.start()
    cap(act, 3600)
    vm.virsh("schedinfo", UUID, "--live", "vcpu_quota=70000")
    try:
        done = undo(act)
        assert (done.result, quota(vm)) == ("left_alone", 70_000)
        assert f"another program has made it '70000/{PERIOD}' meanwhile" in done.detail
    finally:
        vm.virsh("schedinfo", UUID, "--live", "vcpu_quota=-1")
    cap(act, 3600)
    assert act.end(signal.SIGTERM) == 0
    assert quota(vm) == -1


def test_a_kill_of_the_agent_changes_nothing_of_it(vm, act):
    config = act.folder / "host.toml"
    config.write_text(
        f'[agent]\nsocket = "{act.folder}/agent.sock"\nstate_dir = "{act.folder}/agent"\n'
        '[sources.perf]\nmode = "off"\n[sources.resctrl]\nmode = "off"\n'
    )
    with (act.folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, *MAIN, "agent", "run", "--config", config], stdout=log, stderr=log, cwd=ROOT
        )
    try:
        wait_until(lambda: answers(act.folder / "agent.sock"))
        act.start()
        cap(act, 8)
    finally:
        agent.kill()
        agent.wait(30)
    wait_until(lambda: act.in_force() == ())
    assert (quota(vm), act.audit()[-1]["why"]) == (-1, "its time is over")
