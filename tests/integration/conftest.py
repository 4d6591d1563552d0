"""The lab (tests/lab): real libvirtd, Open vSwitch and QEMU VMs on this machine, once per session.

And centrals in the test's process, for streams that a test speaks by hand.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from central.pki import issue, make_ca
from tests.support.lab_tools import need_tools
from tests.support.spoken_streams import Centrals
from whitepanda.common.tls import TlsFiles

SCRIPTS = Path(__file__).resolve().parents[1] / "lab"


@dataclass(frozen=True)
class Lab:
    """The running lab. VMs are named wplab-LOAD-NUMBER."""

    state: Path

    def script(self, name: str, *arguments: str, timeout_s: float = 150, **variables: str) -> None:
        done = subprocess.run(
            [SCRIPTS / name, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    def virsh(self, *arguments: str, timeout_s: float = 60) -> str:
        command = ["virsh", "-q", "-c", "qemu:///system", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"virsh {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def in_network(self, *command: str) -> None:
        """Run a command in the network namespace that the VMs are attached to (10.77.0.0/24)."""
        subprocess.run(["nsenter", "--net=/run/netns/wplab", *command], check=True, timeout=60)

    @property
    def libvirtd_pid(self) -> int:
        return int((self.state / "run" / "libvirtd.pid").read_text())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the lab runs alone: the machine has one, and its VMs' shares of the CPUs are measured.

    It runs last: the lab's VMs work until the run ends, and others measure shares of the CPUs, too.
    """
    users = [item for item in items if "lab" in getattr(item, "fixturenames", ())]
    for item in users:
        item.add_marker(pytest.mark.alone)
    files = {item.path for item in users}
    items.sort(key=lambda item: item.path in files)


@pytest.fixture(scope="session")
def lab():
    if os.geteuid() != 0:
        pytest.skip("needs root: starts libvirtd and QEMU")
    need_tools()
    if importlib.util.find_spec("libvirt") is None:
        pytest.skip("no libvirt binding; `python3 tools/bootstrap.py host` builds it")
    up = subprocess.run([SCRIPTS / "up.sh"], capture_output=True, text=True, timeout=400, check=False)
    try:
        said = up.stderr.strip()[-2000:]
        if "it does not start here" in said:
            pytest.skip(said)
        assert up.returncode == 0, said
        yield Lab(Path(os.environ.get("WHITEPANDA_LAB", "/var/lib/whitepanda-lab")))
    finally:
        if not os.environ.get("WHITEPANDA_LAB_KEEP"):
            subprocess.run([SCRIPTS / "down.sh"], timeout=120, check=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """Certificates of one CA: of a central, two hosts, an importer and an operator."""
    folder = tmp_path_factory.mktemp("pki")
    make_ca(folder)
    files = {name: issue(folder, name) for name in ("h1", "h2", "importer", "operator")}
    return files | {"central": issue(folder, "central", server=True, addresses=["localhost"])}


@pytest.fixture
def renewed(tmp_path: Path, pki: dict[str, TlsFiles]) -> Callable[[str], TlsFiles]:
    """Issue a second certificate of a name."""

    def issued(name: str) -> TlsFiles:
        folder = tmp_path / "renewed"
        shutil.copytree(Path(pki[name].ca).parent, folder)
        return issue(folder, name, force=True)

    return issued


@pytest.fixture
async def make(tmp_path: Path, pki: dict[str, TlsFiles]):
    """Start centrals with settings; peers by certificate. All are ended."""
    made = Centrals(tmp_path, pki)
    yield made
    await made.close()
