"""`whitepanda act` in the shipped unit, under a real systemd: its sandbox lets it limit and undo; a kill is made good.

resctrl is our look-alike and the VMs are stand-ins, as in test_resctrl_in_unit.py; virsh is a script that keeps a VM's
quota in a file (a real one is in test_act_lab.py).
"""

import json

import pytest

from tests.integration import test_resctrl_in_unit as stage
from tests.integration.test_resctrl_in_unit import ROOT, UUIDS, threads_of
from tests.support.resctrl_ns import needs_lookalike
from tests.support.systemd_machine import booted
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(240)]

ACT = "whitepanda-act"
CONFIGURATION = """
[act]
enabled = true
dry_run = false
cool_down_s = 0.0
"""

# Knows every VM, and one quota; answers as virsh 9 does.
VIRSH = """#!/bin/sh
shift 3
quota=/run/whitepanda-act/quota
case "$1" in
list) printf '%s\\n' {uuids} ;;
dominfo) echo 'CPU(s):         2' ;;
schedinfo)
    case "$4" in vcpu_quota=*) echo "${{4#*=}}" >$quota ;; esac
    echo 'vcpu_period    : 100000'
    echo "vcpu_quota     : $(cat $quota 2>/dev/null || echo -1)" ;;
esac
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    needs_lookalike()
    folder = tmp_path_factory.mktemp("act")
    stage.install(folder)
    root = folder / "root"
    with (root / "etc/whitepanda/agent.toml").open("a") as file:
        file.write(CONFIGURATION)
    virsh = root / "usr/bin/virsh"
    virsh.parent.mkdir(parents=True, exist_ok=True)
    virsh.write_text(VIRSH.format(uuids=" ".join(UUIDS)))
    virsh.chmod(0o755)
    with booted(folder) as machine:
        machine.start("lookalike")
        machine.start("stand-ins")
        machine.processes = stage.write_status_files(machine)
        wait_until(lambda: "info" in machine.run("ls", ROOT), lambda: machine.journal("lookalike"))
        machine.start(ACT)
        yield machine


def act(machine, *words):
    return json.loads(machine.run("/opt/whitepanda/bin/whitepanda", "act", *words, "--json"))


def apply(machine, *words):
    (done,) = act(machine, "apply", *words)["done"]
    assert done["result"] == "applied", machine.journal(ACT)
    return done


def quota(machine):
    return machine.run("sh", "-c", "cat /run/whitepanda-act/quota 2>/dev/null || echo -1").strip()


def groups(machine):
    return {name for name in machine.run("ls", ROOT).split() if name.startswith("whitepanda-act-")}


def test_who_may_ask(machine):
    def stat(path):
        return machine.run("stat", "-c", "%U:%G %a", path).strip()

    assert stat("/run/whitepanda-act") == "root:whitepanda-act 750"
    assert stat("/run/whitepanda-act/act.sock") == "root:whitepanda-act 660"
    assert stat("/var/lib/whitepanda-act") == "root:whitepanda-act 700"
    asks = ["/opt/whitepanda/bin/whitepanda", "act", "status"]
    refused = machine.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *asks, check=False)
    assert refused == ""
    as_member = ["setpriv", "--reuid=65534", "--regid=whitepanda-act", "--clear-groups"]
    assert "max_share" in machine.run(*as_member, *asks)
    assert machine.show(ACT, "NRestarts") == "0"


def test_cache_bandwidth_and_quota_are_limited_and_undone_from_within_the_sandbox(machine):
    first, second, third = UUIDS[2:5]
    apply(machine, "limit-cache", first, "--ways", "3")
    apply(machine, "limit-bandwidth", second, "--percent", "40")
    apply(machine, "cap-cpu", third, "--cores", "0.5")
    found = {uuid: machine.run("cat", f"{ROOT}/whitepanda-act-{uuid}/schemata") for uuid in (first, second)}
    assert "L3:0=007;2=007\n" in found[first]
    assert "MB:0= 40;2= 40\n" in found[second]
    tasks = machine.run("cat", f"{ROOT}/whitepanda-act-{first}/tasks").split()
    assert sorted(map(int, tasks)) == sorted(threads_of(machine, first))
    assert (quota(machine), len(act(machine, "list")["in_force"])) == ("25000", 3)
    undone = act(machine, "undo", "all")["done"]
    assert {done["result"] for done in undone} == {"undone"}
    assert (quota(machine), groups(machine)) == ("-1", set())


def test_after_a_kill_it_is_started_again_and_undoes_in_time(machine):
    apply(machine, "limit-cache", UUIDS[2], "--ways", "3", "--seconds", "8")
    apply(machine, "limit-cache", UUIDS[3], "--ways", "3")
    machine.run("systemctl", "kill", "--signal=KILL", ACT)
    wait_until(lambda: machine.show(ACT, "NRestarts") == "1", lambda: machine.journal(ACT))
    left = {f"whitepanda-act-{UUIDS[3]}"}
    wait_until(lambda: groups(machine) == left, lambda: machine.journal(ACT))
    machine.run("systemctl", "stop", ACT)
    assert groups(machine) == set()
    assert "Traceback" not in machine.journal(ACT)
