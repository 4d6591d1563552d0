"""A new operator on a fresh machine with a real systemd: the packages, the first incident, the first action.

What is run there is what docs/packages.md and docs/first-hour.md tell. The incident is simulated, and seen on the
command line, in `top`, on the page and in Prometheus. The action is on a real VM, a neighbour of a server whose
latencies are truly measured: its vCPU quota is set by the words that `explain` recommends, and undone in time whoever
is killed.
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.api.client import connect
from agent.calibrate.plan import Requests
from agent.display.render import behaviour_word
from tests.support import inner_lab
from tests.support.browser import chromium, watched
from tests.support.debian_packages import ROOT, packages
from tests.support.doc_commands import scripts
from tests.support.fresh_machine import Fresh, fresh_machine
from tests.support.inner_lab import Client, InnerLab, said, seconds_until
from tests.support.terminal import Terminal, has
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(900)]

AGENT, CENTRAL, ACT = "whitepanda-agent", "whitepanda-central", "whitepanda-act"
SECTION = "From the package to the first action"
FOLDER = "/srv/operator"  # where the operator works
PAGE = "http://127.0.0.1:7480"
SERVER, STRESSOR = "wplab-server-1", "wplab-stressor-2"
SERVER_UUID, STRESSOR_UUID = (f"57500000-0000-4000-8000-0000000000{number:02x}" for number in (1, 2))
REQUESTS = Requests("10.77.0.101:80", send="/8000")  # each takes the server's vCPU some 13 ms
SLOW_PER_S = 3  # so few that hardly any waits for another
USED_CORES = 0.3  # of the server's vCPU, by the requests: on any machine less than a cap leaves it
CONTROL = "10.77.0.102:9000"
STRESS = "cpu 4"
# Each VM has a control group: with equal shares the smaller one would always get what it needs. A share per vCPU, as
# flavors have them, leaves the server a fifth of two CPUs.
SHARES = 4096
MEASURED_S = 8.0
ACTION_S = 100.0  # long enough to see that the server recovers, once it has answered what had piled up
SUFFERS_AGAIN_S = 90.0
# From an action's end until its quota is gone: a killed service is started after 5 s, and reads what it left.
GRACE_S = 20.0


def reported(page: str, section: str = "") -> list[str]:
    """The scripts (fenced `sh`) of a page's section, as a reader copies them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [script.text for script in scripts(text) if script.text.count("\n") > 1]


INSTALL, FIRST_INCIDENT, ALLOW_ACTIONS = reported("packages.md", SECTION)
(FIRST_HOUR_FILES,) = [text for text in reported("first-hour.md") if text.startswith("cat > central.toml")]


class Operator(Fresh):
    """Who works in a shell on the machine."""

    def shell(self, text: str, timeout_s: float = 60) -> str:
        """Run a script as it stands in a login's environment; fails with what it said."""
        environment = ("env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS=200")
        return self.run(*environment, "bash", "-euc", f"cd {FOLDER}\n{text}", timeout_s=timeout_s)

    def behaviours(self) -> dict[str, str]:
        """Return what the agent says that each VM does; by its socket, as a command for each look would be a load."""
        with connect(self.machine.root / "run/whitepanda/agent.sock") as client:
            return {vm.name: behaviour_word(vm.cloud_white.behaviour) for vm in client.vms().vms}


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    """A fresh machine that has the packages' files, nothing installed; and the lab's guests."""
    folder = tmp_path_factory.mktemp("operator")
    inner_lab.prepare(folder / "lab")
    built = packages(tmp_path_factory.mktemp("debs"))
    work = folder / "operator"
    work.mkdir()
    for deb in built:
        shutil.copy(deb, work)
    mounts = {"operator": work, "lab": folder / "lab", "lab-scripts": ROOT / "tests/lab"}
    with fresh_machine(folder, "cpu", mounts=mounts) as machine:
        found = Operator(machine, work)
        print(found.shell(INSTALL, timeout_s=300))
        assert machine.is_active(AGENT) == "active", machine.journal(AGENT)
        yield found


def prometheus_configuration() -> str:
    """The shipped example, merged as an operator would on one machine: its targets, no TLS on loopback, often."""
    text = (ROOT / "packaging/prometheus/prometheus.yml").read_text(encoding="utf-8")
    text = re.sub(r"    scheme: https\n    tls_config:\n(?:      .*\n)+", "", text)
    text = text.replace("          - node2.example.net:9747\n", "").replace("interval: 15s", "interval: 1s")
    text = text.replace("node1.example.net", "127.0.0.1").replace("central.example.net", "127.0.0.1")
    assert "example.net" not in text and "https" not in text
    return text


def query(operator: Operator, expression: str) -> list[dict]:
    """Ask the machine's Prometheus."""
    ask = ("curl", "-sfG", "--data-urlencode", f"query={expression}", "http://127.0.0.1:9090/api/v1/query")
    return json.loads(operator.run(*ask))["data"]["result"]


async def test_from_the_packages_to_an_incident_that_is_seen_everywhere(operator, tmp_path):
    machine = operator.machine
    operator.write("/etc/prometheus/prometheus.yml", prometheus_configuration())
    rules = ROOT / "packaging/prometheus/whitepanda.rules.yml"
    operator.write("/etc/prometheus/whitepanda.rules.yml", rules.read_text(encoding="utf-8"))
    machine.start("prometheus")
    operator.shell(FIRST_HOUR_FILES)
    listed = operator.shell(FIRST_INCIDENT, timeout_s=240)
    assert re.search(r"^ *1 +node1 +open .* store-1 +scan-1 of job scan ", listed, re.MULTILINE), listed

    terminal = Terminal(Path("/run"), width=120, height=30, inside=machine.inside)
    terminal.type(f"cd {FOLDER}; whitepanda top", "Enter")
    lines = terminal.until(has("● live", "▼ victim", "▲ inflicting"))
    assert has("store-1")([line for line in lines if "▼ victim" in line])
    terminal.type("q")
    terminal.close()

    browser_inside = tmp_path / "chromium"
    network = f"/proc/{machine.pid}/ns/net"
    browser_inside.write_text(f'#!/bin/sh\nexec nsenter --net={network} "{shutil.which("chromium")}" "$@"\n')
    browser_inside.chmod(0o755)
    async with chromium(program=browser_inside) as browser, watched(browser, PAGE) as seen:
        await seen.open("#/incidents")
        await seen.page.locator("main a[href='#/incident/1']").first.click()
        await seen.page.wait_for_function("() => location.hash === '#/incident/1'")
        await seen.settled()
        assert await seen.page.inner_text("h1") == "Incident 1"
        text = await seen.page.inner_text("main")
        assert "store-1" in text and "node1" in text
        assert (seen.errors, seen.foreign) == ([], [])

    wait_until(lambda: query(operator, 'whitepanda_vm_victim{name="store-1"} == 1'), "no victim in Prometheus")
    alerts = wait_until(
        lambda: query(operator, 'ALERTS{alertname="WhitepandaIncidentsOpen"}'), "no alert of the incident"
    )
    assert alerts[0]["metric"]["alertstate"] in ("pending", "firing")
    machine.run("systemctl", "stop", "prometheus")


@pytest.fixture(scope="module")
def vms(operator):
    """The lab on that machine: a server's VM and one that computes when told, and the agent that may act."""
    lab = InnerLab(operator.machine, "/srv/lab", "/srv/lab-scripts")
    lab.script("up.sh", "server")
    lab.script("domain.sh", "stressor", "2", "4")
    lab.virsh("schedinfo", STRESSOR, "--live", f"cpu_shares={SHARES}")
    operator.shell(ALLOW_ACTIONS)
    return lab


def requests_per_s(machine) -> float:
    """Return how many requests use `USED_CORES` of the server's vCPU here."""
    client = Client(machine, REQUESTS, SLOW_PER_S)
    client.start()
    try:
        took_s = client.p95_s(MEASURED_S)
    finally:
        client.stop()
    print(f"a request takes {took_s:.4f} s")
    return USED_CORES / took_s


def measured_until(client: Client, holds: Callable[[float], bool], deadline_s: float) -> float:
    """Measure the 95th percentile until something is true of it, or the time is over."""
    while not holds(p95_s := client.p95_s(MEASURED_S)) and time.monotonic() < deadline_s:
        print(f"not yet: {p95_s=:.4f}")
    return p95_s


def until_victim(operator: Operator) -> None:
    """Wait until the server suffers, as it does whenever the stressor is not capped."""
    victim = {SERVER: "victim", STRESSOR: "inflicting"}
    wait_until(lambda: operator.behaviours() == victim, lambda: operator.shell(f"whitepanda explain {SERVER}"))


def recommended(operator: Operator, seconds: float) -> list[str]:
    """The command that `explain` puts first of the suffering server, as it stands but for its duration."""

    def first_of_all() -> dict | None:
        found = said(operator.machine, "explain", SERVER)["recommendations"]
        # In its first second the stressor may not have used enough yet for anything to be taken.
        return found[0] if found and found[0]["action"] == "cap_cpu" else None

    first = wait_until(first_of_all, lambda: operator.shell(f"whitepanda explain {SERVER}"))
    assert (first["vm"], first["victim"]) == (STRESSOR_UUID, SERVER_UUID), first
    words = first["commands"][0]["words"]
    assert words[:4] == ["whitepanda", "act", "apply", "cap-cpu"]
    words[words.index("--seconds") + 1] = f"{seconds:g}"
    return words


def apply(operator: Operator, words: list[str]) -> None:
    (done,) = json.loads(operator.run(*words, "--json", timeout_s=60))["done"]
    assert done["result"] == "applied", done


def cap(operator: Operator, seconds: float) -> None:
    """The same by hand, whoever suffers."""
    words = ["whitepanda", "act", "apply", "cap-cpu", STRESSOR_UUID, "--cores", "0.9", "--seconds"]
    apply(operator, [*words, str(seconds)])


def undone_in_s(lab: InnerLab, seconds: float) -> float | None:
    """The guarantee: after so many seconds, and a little, the quota is gone. When; None: it is broken."""
    return seconds_until(lambda: lab.quota(STRESSOR_UUID) == -1, seconds + GRACE_S)


def test_the_recommendation_helps_and_is_undone_after_its_time(operator, vms):
    machine = operator.machine
    client = Client(machine, REQUESTS, requests_per_s(machine))
    client.start()
    try:
        steady = {SERVER: "steady", STRESSOR: "steady"}
        wait_until(lambda: operator.behaviours() == steady, operator.behaviours)
        quiet_s = client.p95_s(MEASURED_S)
        assert quiet_s < REQUESTS.timeout_s / 10, f"{quiet_s=}: something else uses the CPUs"
        vms.tell(CONTROL, STRESS)
        until_victim(operator)
        stressed_s = client.p95_s(MEASURED_S)
        middle_s = (quiet_s + stressed_s) / 2
        words = recommended(operator, ACTION_S)
        print(operator.shell(f"whitepanda explain {SERVER}"))
        apply(operator, words)
        began_s = time.monotonic()
        quota = vms.quota(STRESSOR_UUID)
        print(quota, operator.shell("whitepanda act list"))
        # Recovered is closer to undisturbed than to stressed, once what had piled up is answered.
        capped_s = measured_until(client, lambda p95_s: p95_s < middle_s, began_s + ACTION_S - 40)
        # What the agent says is printed only: a server that still waits more than before is a victim to it.
        said_s = seconds_until(lambda: operator.behaviours()[SERVER] == "steady", 20)
        print(f"recovered after {time.monotonic() - began_s:.0f} s; the agent's word for it {said_s} s later")
        assert vms.quota(STRESSOR_UUID) == quota, "it was undone before it was looked at"
        lasted_s = undone_in_s(vms, ACTION_S)
        # Uncapped it suffers again: a cap that does nothing would not be noticed otherwise. Requests pile up slowly.
        again_s = measured_until(client, lambda p95_s: p95_s > middle_s, time.monotonic() + SUFFERS_AGAIN_S)
    finally:
        client.stop()
    print(f"p95: {quiet_s=:.4f} {stressed_s=:.4f} {capped_s=:.4f} {again_s=:.4f}, {quota=}, {lasted_s=}")
    assert 0 < quota < 100_000
    assert lasted_s is not None
    # Else there was nothing to mend.
    assert stressed_s > 1.3 * quiet_s
    assert capped_s < middle_s
    assert again_s > middle_s


def kill(machine, *units: str) -> None:
    machine.run("systemctl", "kill", "--signal=KILL", *units)


def test_a_kill_of_all_that_could_undo_it_changes_nothing(operator, vms):
    machine = operator.machine
    cap(operator, 10)
    kill(machine, AGENT, ACT)
    assert vms.quota(STRESSOR_UUID) > 0
    lasted_s = undone_in_s(vms, 10)
    print(f"after the kill undone in {lasted_s} s")
    assert lasted_s is not None
    wait_until(lambda: machine.is_active(AGENT) == "active", lambda: machine.journal(AGENT))
    assert [machine.show(unit, "NRestarts") for unit in (AGENT, ACT)] == ["1", "1"]
    audit = operator.run("cat", "/var/lib/whitepanda-act/audit.jsonl").splitlines()
    last = json.loads(audit[-1])
    assert (last["result"], last["vm"]) == ("undone", STRESSOR_UUID)


def test_a_service_that_nobody_starts_again_is_caught(operator, vms):
    """The mutant: after the kill nothing undoes what is in force; the guarantee's check says so."""
    machine = operator.machine
    machine.override(ACT, "Restart=no")
    try:
        cap(operator, 5)
        kill(machine, ACT)
        assert undone_in_s(vms, 5) is None
        assert vms.quota(STRESSOR_UUID) > 0
    finally:
        machine.override(ACT, None)
    machine.run("systemctl", "reset-failed", ACT)
    machine.start(ACT)  # at once: it is overdue
    wait_until(lambda: vms.quota(STRESSOR_UUID) == -1, lambda: machine.journal(ACT))


def test_the_package_goes_only_once_nothing_is_limited(operator, vms):
    cap(operator, 900)
    vms.end_libvirtd()
    refused = operator.run("sh", "-c", f"dpkg -r {AGENT} 2>&1; true", timeout_s=300)
    assert "limits on VMs are still in force" in refused, refused
    assert operator.there("/opt/whitepanda/agent/bin/whitepanda")
    vms.script("libvirtd.sh")
    assert vms.quota(STRESSOR_UUID) > 0
    operator.dpkg("-r", AGENT)
    assert vms.quota(STRESSOR_UUID) == -1
    assert not operator.there("/opt/whitepanda/agent")
    assert operator.there("/var/lib/whitepanda-act/audit.jsonl")
