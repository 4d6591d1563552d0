"""The lab (tests/lab) in a machine of its own: libvirtd, Open vSwitch and QEMU VMs in a booted machine's namespaces."""

import asyncio
import ctypes
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.calibrate.plan import Requests
from agent.calibrate.requests import RequestLoad
from tests.support.lab_tools import need_tools
from tests.support.systemd_machine import Machine

SCRIPTS = Path(__file__).resolve().parents[1] / "lab"
_CLONE_NEWNET = 0x40000000
_QUOTA = re.compile(r"^vcpu_quota\s*:\s*(-?\d+)$", re.MULTILINE)


def prepare(folder: Path) -> None:
    """Copy the guest, which is built once for all labs of this machine, to where the machine's lab is to find it."""
    need_tools("tmux", "prometheus")
    if not Path("/usr/lib/python3/dist-packages/libvirt.py").exists():
        pytest.skip("tests/lab/packages.sh did not install all: no python3-libvirt")
    built = subprocess.run([SCRIPTS / "guest.sh"], capture_output=True, text=True, timeout=400, check=False)
    assert built.returncode == 0, built.stderr
    vm = Path(os.environ.get("WHITEPANDA_LAB", "/var/lib/whitepanda-lab")) / "vm"
    (folder / "vm").mkdir(parents=True)
    for name in ("vmlinuz", "initrd.gz", "built"):
        shutil.copy(vm / name, folder / "vm")
    folder.chmod(0o755)


class InnerLab:
    """VMs of a machine; it has the lab's folder at `folder` and its scripts at `scripts`, in its own words.

    They are started by its systemd, so that they are in its control groups.
    """

    def __init__(self, machine: Machine, folder: str, scripts: str) -> None:
        self.machine = machine
        self._folder = folder
        self._scripts = scripts
        self._begun = 0

    def script(self, name: str, *arguments: str) -> None:
        """Run one of the lab's scripts; what it leaves running stays."""
        self._begun += 1
        unit = f"lab-{self._begun}"
        # "RemainAfterExit" keeps what the script has left running, and a failed one's journal.
        self.machine.run(
            "systemd-run",
            f"--unit={unit}",
            f"--setenv=WHITEPANDA_LAB={self._folder}",
            "--property=Type=oneshot",
            "--property=RemainAfterExit=yes",
            "--property=Delegate=yes",
            "--quiet",
            f"{self._scripts}/{name}",
            *arguments,
            check=False,
            timeout_s=420,  # a guest is given 120 s, three times
        )
        assert self.machine.is_active(unit) == "active", self.machine.journal(unit)

    def end_libvirtd(self) -> None:
        """Stop libvirtd; its VMs go on."""
        stop = f". {self._scripts}/lib.sh; stop libvirtd"
        self.machine.run("env", f"WHITEPANDA_LAB={self._folder}", "bash", "-c", stop)

    def virsh(self, *words: str) -> str:
        """Run virsh there."""
        return self.machine.run("virsh", "-q", "-c", "qemu:///system", *words, timeout_s=60)

    def quota(self, vm: str) -> int:
        """Return the quota of each vCPU in microseconds of its period; -1: none."""
        found = _QUOTA.search(self.virsh("schedinfo", vm, "--live"))
        assert found is not None
        return int(found[1])

    def tell(self, address: str, line: str) -> None:
        """Send a line to a guest's port, and see that it obeys."""
        say = 'exec 3<>"/dev/tcp/$1/$2"; echo "$3" >&3; read -r answer <&3; test "$answer" = ok'
        host, _, port = address.rpartition(":")
        network = ("nsenter", "--net=/run/netns/wplab")
        self.machine.run(*network, "bash", "-c", say, "tell", host, port, line)


class Client(threading.Thread):
    """Sends requests to a VM, from the host's side of its network, until `stop`.

    Args:
        machine: whose lab it is.
        requests: whom to ask for what.
        requests_per_s: how often.

    """

    def __init__(self, machine: Machine, requests: Requests, requests_per_s: float) -> None:
        super().__init__(daemon=True)
        self.load = RequestLoad(requests, requests_per_s, seed=1)
        self._network = machine.root / "run/netns/wplab"
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self.load.run())

    def run(self) -> None:
        """What the thread does."""
        with self._network.open() as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNET) == 0
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    def stop(self) -> None:
        """End it."""
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self.join(20)

    def p95_s(self, over_s: float) -> float:
        """Measure the 95th percentile of the latencies of the next `over_s` seconds."""
        begin_ns = time.monotonic_ns()
        time.sleep(over_s)
        assert self.is_alive() and not self.load.failures, self.load.trouble
        measured = self.load.over(begin_ns, time.monotonic_ns())
        assert measured is not None
        return measured.p95_latency_s


def seconds_until(condition: Callable[[], bool], at_most_s: float) -> float | None:
    """Return after how many seconds something came true; None: not within `at_most_s`."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > at_most_s:
            return None
        time.sleep(0.5)  # each look is a process or two
    return time.monotonic() - begin


def said(machine: Machine, *words: str) -> dict:
    """Return what `whitepanda ... --json` says there."""
    return json.loads(machine.run("whitepanda", *words, "--json"))
