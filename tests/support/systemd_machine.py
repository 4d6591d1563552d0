"""A machine with a real systemd, in namespaces over a throw-away layer of this one (tests/lab/systemd_ns.sh).

The product is in /opt/whitepanda there, on this checkout's code; this checkout is /opt/whitepanda-source.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"


def interpreter(prepare):
    """Which Python /opt/whitepanda stands on: Debian's where it fits, else this one, where units can see it."""
    debian = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    if debian.exists():
        return debian
    prepare += [
        "mkdir -p opt/whitepanda-python",
        f"mount --bind {sys.base_prefix} opt/whitepanda-python",
        "echo /opt/whitepanda-python/lib > etc/ld.so.conf.d/whitepanda-test.conf",
        "ldconfig -r .",
    ]
    return Path(f"/opt/whitepanda-python/bin/python3.{sys.version_info.minor}")


def install_product(folder):
    """The virtual environment /opt/whitepanda, with this checkout's code and libraries."""
    prepare = []
    python = interpreter(prepare)
    site = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    packages = f"opt/whitepanda/lib/python3.{sys.version_info.minor}/site-packages"
    prepare += [
        f"mkdir -p opt/whitepanda/bin {packages} opt/whitepanda-source opt/whitepanda-libraries",
        f"mount --bind {ROOT} opt/whitepanda-source",
        f"mount --bind {site} opt/whitepanda-libraries",
        f"ln -sf {python} opt/whitepanda/bin/python",
        f"echo 'home = {python.parent}' > opt/whitepanda/pyvenv.cfg",
        f"printf '/opt/whitepanda-%s\\n' libraries source source/proto > {packages}/whitepanda.pth",
        "chmod 755 opt/whitepanda/bin/whitepanda",
    ]
    (folder / "prepare").write_text("\n".join(prepare) + "\n")
    program = folder / "root/opt/whitepanda/bin/whitepanda"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/opt/whitepanda/bin/python\nfrom agent.start import main\n\nmain()\n")


class Machine:
    """The systemd in the namespaces."""

    def __init__(self, pid):
        self.pid = pid
        self.inside = ("nsenter", "-t", str(pid), "-a")
        self.root = Path(f"/proc/{pid}/root")

    def run(self, *command, check=True, timeout_s=30, stdin=""):
        result = subprocess.run(
            [*self.inside, *command],
            capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin,
        )  # fmt: skip
        if check:
            assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    def start(self, unit):
        try:
            self.run("systemctl", "start", unit, timeout_s=60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal(unit)}") from error

    def show(self, unit, name):
        return self.run("systemctl", "show", unit, "-p", name, "--value").strip()

    def journal(self, unit):
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, check=False)

    def is_active(self, unit):
        return self.run("systemctl", "is-active", unit, check=False).strip()

    def python(self, code):
        """Ask the agent by its own client; `code` prints JSON of `client`."""
        head = "import json,sys,pathlib\nfrom agent.api.client import connect\n"
        with_client = f"with connect(pathlib.Path('/run/whitepanda/agent.sock')) as client:\n    {code}\n"
        return json.loads(self.run("/opt/whitepanda/bin/python", "-c", head + with_client))

    def sources(self):
        rows = self.python("print(json.dumps({s.name: [s.state, s.detail] for s in client.status().sources}))")
        return {name: tuple(row) for name, row in rows.items()}

    def vms(self):
        text = self.run("/opt/whitepanda/bin/whitepanda", "vms", "--json")
        return {vm["name"]: vm for vm in json.loads(text)["vms"]}

    def override(self, unit, text):
        """Run `unit` with a drop-in (None: without)."""
        folder = f"/run/systemd/system/{unit}.service.d"
        if text is None:
            self.run("rm", "-rf", folder)
        else:
            self.run("mkdir", "-p", folder)
            self.run("tee", f"{folder}/test.conf", stdin=f"[Service]\n{text}\n")
        self.run("systemctl", "daemon-reload")


def install_units(root):
    """Everything in systemd/ where docs/operate.md says."""
    places = {
        "whitepanda-act.service": "etc/systemd/system",
        "whitepanda-agent.service": "etc/systemd/system",
        "whitepanda-central.service": "etc/systemd/system",
        "tmpfiles.conf": "usr/lib/tmpfiles.d/whitepanda.conf",
        "sysusers.conf": "usr/lib/sysusers.d/whitepanda.conf",
    }
    for name, place in places.items():
        target = root / place if place.endswith(".conf") else root / place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(UNITS / name, target)


@contextmanager
def booted(folder, *needs):
    """Boot what is in `folder`; where the product's units are (`install_units`), its users are too.

    With "cpu" VMs in there can be limited whatever version of control groups this machine has that controller in.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces, mounts and a control group")
    for tool in ("/lib/systemd/systemd", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: systemd, util-linux)")
    process = subprocess.Popen(
        [ROOT / "tests/lab/systemd_ns.sh", folder, *needs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("PID "), process.communicate()[1] + (folder / "systemd.log").read_text()
        machine = Machine(int(line.split()[1]))
        wait_until(
            lambda: machine.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded"),
            "systemd does not come up",
        )
        if (folder / "root/usr/lib/sysusers.d/whitepanda.conf").exists():
            machine.run("systemd-sysusers", "/usr/lib/sysusers.d/whitepanda.conf")
        yield machine
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
