"""The packages on a machine with a real systemd: install, run, upgrade, remove, purge; what is kept and what goes."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from central.pki import issue, make_ca
from tests.support.debian_packages import NEW, OLD, ROOT, Built, keep, need_debian, tool
from tests.support.fresh_machine import Fresh, fresh_machine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

HOST = "packaged"
AGENT = f"""
[agent]
host = "{HOST}"
window_s = 1.0
[sources.simulated]
mode = "required"
scenario = "/etc/whitepanda/scenario.toml"
[uplink]
address = "127.0.0.1:7443"
[uplink.tls]
ca = "/etc/whitepanda/tls/ca.crt"
certificate = "/etc/whitepanda/tls/{HOST}.crt"
key = "/etc/whitepanda/tls/{HOST}.key"
"""
SCENARIO = """
[[vms]]
name = "db"
job = "db"
latency_sensitive = true
load.cores = 2.0
[[vms]]
name = "batch"
job = "batch"
load.cores = 3.0
"""
QUERY = """
import json, sqlite3, sys
print(json.dumps(sqlite3.connect(sys.argv[1], uri=True).execute(sys.argv[2]).fetchall()))
"""
SPOOL = "select id, spool_id, sequence from batches order by id limit 5"
RECEIVED = "select host, spool_id, first, last from received"


@pytest.fixture(scope="session")
def agent(tmp_path_factory):
    need_debian()
    built = Built("agent", tmp_path_factory.mktemp("agent"))
    keep(built.old)
    return built


@pytest.fixture(scope="session")
def central(tmp_path_factory):
    need_debian()
    built = Built("central", tmp_path_factory.mktemp("central"))
    keep(built.old)
    return built


@pytest.fixture
def fresh(tmp_path):
    """A machine that never had the product; its folder's `debs` is /srv/debs there, its `pki` /srv/pki."""
    debs, pki = tmp_path / "debs", tmp_path / "pki"
    debs.mkdir()
    make_ca(pki)
    issue(pki, HOST)
    issue(pki, "central", server=True, addresses=["127.0.0.1"])
    with fresh_machine(tmp_path, mounts={"debs": debs, "pki": pki}) as machine:
        yield Packaged(machine, debs)


class Packaged(Fresh):
    """A fresh machine, and what the packages' programs leave on it."""

    def rows(self, file, query):
        return json.loads(self.run("python3", "-c", QUERY, f"file:{file}?mode=ro", query))

    def rows_of_stopped(self, unit, file, query):
        """Rows of a file that the running service keeps locked; it is as before afterwards."""
        was = self.machine.is_active(unit)
        self.run("systemctl", "stop", unit, timeout_s=60)
        found = self.rows(file, query)
        if was == "active":
            self.run("systemctl", "start", unit, timeout_s=60)
        return found

    def spooled(self):
        return self.rows_of_stopped("whitepanda-agent", "/var/lib/whitepanda/spool.db", SPOOL)

    def vms(self):
        said = self.run("whitepanda", "vms", "--json", check=False)
        return {vm["name"] for vm in json.loads(said)["vms"]} if said else set()

    def keys(self, *names, owner="root"):
        for name in names:
            mode = "600" if name.endswith(".key") else "644"
            self.run("install", "-m", mode, "-o", owner, f"/srv/pki/{name}", f"/etc/whitepanda/tls/{name}")


def simulate(packaged):
    """Give the agent two simulated VMs and a central that is not there yet, and wait until it has spooled."""
    packaged.keys("ca.crt", f"{HOST}.crt", f"{HOST}.key")
    packaged.write("/etc/whitepanda/scenario.toml", SCENARIO)
    packaged.write("/etc/whitepanda/agent.toml", AGENT)
    packaged.run("whitepanda", "check-config", "/etc/whitepanda/agent.toml")
    packaged.run("systemctl", "restart", "whitepanda-agent", timeout_s=60)
    wait_until(lambda: packaged.vms() == {"db", "batch"}, lambda: packaged.machine.journal("whitepanda-agent"))
    wait_until(lambda: spooled_batches(packaged) >= 5, lambda: packaged.machine.journal("whitepanda-agent"))


def spooled_batches(packaged):
    return json.loads(packaged.run("whitepanda", "agent", "status", "--json"))["uplink"]["spooled_batches"]


def test_agent_from_install_to_purge(fresh, agent):
    machine = fresh.machine
    fresh.install(agent.old)
    # It runs with its defaults, at once and after a boot, and the command line asks it.
    assert machine.is_active("whitepanda-agent") == "active", machine.journal("whitepanda-agent")
    assert fresh.enabled("whitepanda-agent") == "enabled"
    assert fresh.run("stat", "-c", "%U:%G %a", "/run/whitepanda/agent.sock").strip() == "root:whitepanda 660"
    assert json.loads(fresh.run("whitepanda", "agent", "status", "--json"))
    assert fresh.run("ls", "/usr/share/whitepanda/agent/grafana").split() == ["host.json"]
    assert fresh.there("/usr/share/doc/whitepanda-agent/adr/0014-packages.md")
    assert "whitepanda 0.1.0" in fresh.run("whitepanda", "--version")
    assert ".SH COMMANDS" in fresh.run("zcat", "/usr/share/man/man1/whitepanda.1.gz")
    complete = ". /usr/share/bash-completion/completions/whitepanda; COMP_WORDS=(whitepanda agent st) COMP_CWORD=2; "
    assert fresh.run("bash", "-c", f"{complete} _whitepanda; echo ${{COMPREPLY[@]}}").strip() == "status"

    simulate(fresh)
    before = fresh.spooled()
    assert len(before) == 5
    fresh.install(agent.new)
    assert fresh.dpkg("-s", "whitepanda-agent").count(f"Version: {NEW}\n") == 1
    wait_until(lambda: fresh.vms() == {"db", "batch"}, lambda: machine.journal("whitepanda-agent"))
    assert fresh.run("cat", "/etc/whitepanda/agent.toml") == AGENT
    assert fresh.run("cat", "/etc/whitepanda/agent.toml.dpkg-dist").endswith("# new in 0.2\n")
    assert fresh.spooled() == before
    assert not re.search(r"learning from scratch|level=error|Traceback", machine.journal("whitepanda-agent"))
    # Nothing that the package brought was changed by running, but the configuration by its administrator.
    assert fresh.run("dpkg", "-V", "whitepanda-agent", check=False).split("\n")[1:] == [""]

    fresh.run("systemctl", "disable", "--now", "whitepanda-agent", timeout_s=60)
    baselines = fresh.run("cat", "/var/lib/whitepanda/baselines.json")
    assert len({vm["uuid"] for vm in json.loads(baselines)["state"]["vms"]}) == 2
    fresh.install(agent.old)  # a way back; what was disabled stays so
    assert fresh.run("cat", "/var/lib/whitepanda/baselines.json") == baselines
    assert (fresh.enabled("whitepanda-agent"), machine.is_active("whitepanda-agent")) == ("disabled", "inactive")
    fresh.run("systemctl", "enable", "--now", "whitepanda-agent", timeout_s=60)

    fresh.dpkg("-r", "whitepanda-agent")
    assert machine.is_active("whitepanda-agent") != "active"
    assert not fresh.there("/usr/bin/whitepanda")
    assert not fresh.there("/opt/whitepanda")
    assert fresh.spooled() == before
    assert fresh.run("cat", "/etc/whitepanda/agent.toml") == AGENT
    fresh.install(agent.new)
    wait_until(lambda: fresh.vms() == {"db", "batch"}, lambda: machine.journal("whitepanda-agent"))
    assert fresh.spooled() == before

    fresh.dpkg("-P", "whitepanda-agent")
    left = fresh.run("find", "/etc/whitepanda", "/opt", "/var/lib", "-path", "*whitepanda*", "-type", "f")
    left = {path for path in left.split() if "lintian" not in path and "whitepanda-lab" not in path}
    # What people put there themselves.
    mine = {"scenario.toml", "tls/ca.crt", f"tls/{HOST}.crt", f"tls/{HOST}.key"}
    assert left == {f"/etc/whitepanda/{name}" for name in mine}


def test_central_beside_an_agent_from_install_to_purge(fresh, agent, central):
    machine = fresh.machine
    fresh.install(agent.old)
    simulate(fresh)
    fresh.install(central.old)
    # Without certificates there is nothing to start.
    assert (fresh.enabled("whitepanda-central"), machine.is_active("whitepanda-central")) == ("disabled", "inactive")
    assert machine.show("whitepanda-central", "NRestarts") == "0"
    fresh.keys("central.crt", "central.key", owner="whitepanda-central")
    fresh.run("systemctl", "enable", "--now", "whitepanda-central", timeout_s=120)
    journal = "/var/lib/whitepanda-central/journal.sqlite"
    first = wait_until(lambda: fresh.rows(journal, RECEIVED), lambda: machine.journal("whitepanda-agent"))
    # One command line for both, and each command where it works best.
    assert fresh.vms() == {"db", "batch"}
    fresh.run("whitepanda", "check-config", "/etc/whitepanda/agent.toml", "/etc/whitepanda/central.toml")
    assert "verify" in fresh.run("whitepanda", "lake", "--help")
    assert fresh.run("ls", "/usr/share/whitepanda").split() == ["agent", "central"]
    rules = fresh.run("ls", "/usr/share/whitepanda/central/prometheus").split()
    assert rules == ["prometheus.yml", "whitepanda.rules.test.yml", "whitepanda.rules.yml"]
    assert "\\-\\-central" in fresh.run("zcat", "/usr/share/man/man1/whitepanda-place.1.gz")

    text = fresh.run("cat", "/etc/whitepanda/central.toml") + "# mine\n"
    fresh.write("/etc/whitepanda/central.toml", text)
    fresh.install(central.new)
    assert machine.is_active("whitepanda-central") == "active", machine.journal("whitepanda-central")
    assert fresh.run("cat", "/etc/whitepanda/central.toml") == text

    def goes_on():
        """The same ranges, longer than they were: what was taken is known, and the agent's next batches join it."""
        now = {tuple(row[:3]): row[3] for row in fresh.rows(journal, RECEIVED)}
        return all(now.get(tuple(row[:3]), -1) > row[3] for row in first)

    wait_until(goes_on, lambda: str(fresh.rows(journal, RECEIVED)))
    assert not re.search(r"level=error|Traceback", machine.journal("whitepanda-central"))

    fresh.dpkg("-r", "whitepanda-agent")  # the command is central's now
    assert "verify" in fresh.run("whitepanda", "lake", "--help")
    fresh.dpkg("-r", "whitepanda-central")
    assert fresh.rows(journal, RECEIVED)
    fresh.dpkg("-P", "whitepanda-central")
    assert not fresh.there("/var/lib/whitepanda-central")
    assert not fresh.there("/etc/whitepanda/central.toml")
    assert not fresh.there("/opt/whitepanda")
    assert fresh.there("/etc/whitepanda/tls/central.key")
    assert fresh.there("/var/lib/whitepanda")  # the agent was removed, not purged


@pytest.mark.parametrize("side", ["agent", "central"])
def test_each_package_s_sbom_names_what_it_bundles_by_locked_hashes(side, request, tmp_path):
    deb = request.getfixturevalue(side).old
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    text = (tmp_path / f"usr/share/whitepanda/{side}/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["version"] == OLD
    folders = tmp_path.glob(f"opt/whitepanda/{side}/lib/python3.11/site-packages/*.dist-info")
    bundled = {tool("lock").canonical(folder.name.split("-")[0]) for folder in folders} - {"whitepanda"}
    assert {part["name"] for part in document["components"]} == bundled | {"uplot"}
    assert len(bundled) > 20
    assert all(part["licenses"] for part in document["components"])
    assert tool("deb_sbom").unlocked(document, tool("lock").every_lock()) == []
    installer = re.compile(r"\b(pip|apt-get|curl|wget)\b")  # no script of it fetches anything
    for name in ("postinst", "prerm", "postrm"):
        script = subprocess.run(["dpkg-deb", "-I", deb, name], check=True, capture_output=True, text=True)
        assert not installer.search(script.stdout), name


def test_a_script_that_takes_data_with_it_is_caught(fresh, agent, monkeypatch):
    """The mutant: `remove` deletes what only `purge` may."""
    fill = agent.package._fill
    monkeypatch.setattr(
        agent.package, "_fill", lambda name: fill(name).replace('if [ "$1" = purge ]', 'if [ "$1" = remove ]')
    )
    fresh.install(agent.package.pack(agent.out, "0.1.0-1mutant"))
    assert fresh.there("/var/lib/whitepanda")
    fresh.dpkg("-r", "whitepanda-agent")
    assert not fresh.there("/var/lib/whitepanda")


def build(folder, **variables):
    """A build as a user runs it, the agent's."""
    command = [sys.executable, ROOT / "tools/build_debs.py", "--out", folder, "--work", folder / "work", "agent"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **variables})
    (deb,) = folder.glob("*.deb")
    return deb


def test_two_builds_are_the_same_bit_for_bit(agent, tmp_path):
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "another place", TZ="Asia/Kathmandu", LANG="C", PYTHONHASHSEED="7")
    finally:
        os.umask(before)
    assert again.name == agent.old.name == f"whitepanda-agent_{OLD}_{again.stem.rpartition('_')[2]}.deb"
    assert again.read_bytes() == agent.old.read_bytes()
    # The mutant: times that are not the commit's.
    agent.package.date += 1
    other = agent.package.pack(tmp_path, OLD)
    agent.package.date -= 1
    assert other.read_bytes() != again.read_bytes()


def lint(deb):
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", deb], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.fixture
def _lintian():
    if shutil.which("lintian") is None:
        pytest.skip("needs lintian (Debian: lintian)")


@pytest.mark.usefixtures("_lintian")
def test_lintian_has_nothing_to_say_of_the_agent_beyond_the_overrides(agent):
    lint(agent.old)


@pytest.mark.usefixtures("_lintian")
def test_lintian_has_nothing_to_say_of_what_is_ours_in_central(central, tmp_path):
    """Without the libraries, of which the agent's say the same: for all of central's it takes over a minute."""
    ours = tool("build_debs").Package("central", tmp_path, central.package.date)
    libraries = shutil.ignore_patterns("site-packages")
    shutil.copytree(central.package.tree, ours.tree, symlinks=True, ignore=libraries)
    lint(ours.pack(tmp_path, OLD))
