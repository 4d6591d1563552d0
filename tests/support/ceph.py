"""A real S3 server: Ceph's object gateway over one monitor and one OSD that keeps all in memory.

Debian's radosgw, ceph-mon and ceph-osd, in the foreground in one temporary folder, on ports of 127.0.0.1 of their own,
without authentication among themselves, without a manager (whose statistics nobody asks for here) and without systemd.
"""

import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGES = "radosgw ceph-mon ceph-osd"
TOOLS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "setpriv")
START_S = 300.0  # 2.4 s on two idle cores, 16 s beside a load of 16

_CONFIGURATION = """\
[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{monitor}/0
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = {folder}
admin_socket = {folder}/$name.asok
pid_file =
crash_dir = {folder}
log_file = {folder}/$name.log
log_to_stderr = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_data_avail_crit = 0
mon_cluster_log_to_file = false
ms_mon_client_mode = crc
paxos_propose_interval = 0.05
mon_data = {folder}/mon
osd_data = {folder}/osd
osd_journal =
osd_objectstore = memstore
rgw_data = {folder}
rgw_rados_pool_pg_num_min = 1
rgw_thread_pool_size = 32
rgw_frontends = beast endpoint=127.0.0.1:{gateway}
[osd]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the server answers, and a user's keys."""

    url: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """What the clients of S3 read."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def skip_unless_installed() -> None:
    """Skip with what is to be installed."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install --no-install-recommends {PACKAGES}")


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A server that answers, with a user; nothing of it is left afterwards."""
    skip_unless_installed()
    # Not below pytest's folder: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="wp-ceph-", dir="/tmp") as name, ExitStack() as running:
        yield _Cluster(Path(name), running).start()


class _Cluster:
    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._folder = folder
        self._running = running
        self._end = time.monotonic() + START_S
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._monitor_port, self._gateway_port = _free_ports(2)
        self._configuration = folder / "ceph.conf"
        self._fsid = str(uuid.uuid4())
        text = _CONFIGURATION.format(
            fsid=self._fsid, folder=folder, monitor=self._monitor_port, gateway=self._gateway_port
        )
        self._configuration.write_text(text)

    def start(self) -> Gateway:
        monitors = str(self._folder / "monmap")
        where = f"[v2:127.0.0.1:{self._monitor_port}/0]"
        self._run("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", where, monitors)
        self._run("ceph-mon", "--mkfs", "--id", "a", "--monmap", monitors)
        self._daemon("ceph-mon", "--id", "a")
        self._wait_for_port(self._monitor_port)
        osd = str(uuid.uuid4())
        number = self._run("ceph", "osd", "new", osd).strip()
        (self._folder / "osd").mkdir()
        self._run("ceph-osd", "--mkfs", "--id", number, "--osd-uuid", osd)
        self._daemon("ceph-osd", "--id", number)
        access, secret = secrets.token_hex(10), secrets.token_hex(20)
        self._run(  # waits for the OSD, and makes the pools
            "radosgw-admin", "user", "create", "--uid=whitepanda", "--display-name=whitepanda",
            f"--access-key={access}", f"--secret-key={secret}",
        )  # fmt: skip
        self._daemon("radosgw", "--name", "client.rgw")
        self._wait_for_port(self._gateway_port)
        return Gateway(f"http://127.0.0.1:{self._gateway_port}", access, secret)

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [name, "--conf", str(self._configuration), *arguments]

    def _run(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            self._command(name, *arguments),
            check=False, capture_output=True, text=True, timeout=max(1.0, self._end - time.monotonic()),
        )  # fmt: skip
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stderr}{self._said()}"
        return done.stdout

    def _daemon(self, name: str, *arguments: str) -> None:
        """Start one that ends when this process does, however that ends."""
        command = ["setpriv", "--pdeathsig", "KILL", "--", *self._command(name, "--foreground", *arguments)]
        output = self._running.enter_context((self._folder / f"{name}.out").open("wb"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._daemons.append(process)

        def stop() -> None:
            process.kill()  # what it has is not to outlive it
            process.wait()

        self._running.callback(stop)

    def _wait_for_port(self, port: int) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                ended = [each.args for each in self._daemons if each.poll() is not None]
                assert not ended, f"{ended} ended: {self._said()}"
                assert time.monotonic() < self._end, f"nobody answers on port {port}: {self._said()}"
                time.sleep(0.1)
            else:
                return

    def _said(self) -> str:
        """The end of what each daemon said."""
        logs = sorted([*self._folder.glob("*.log"), *self._folder.glob("*.out")])
        return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
