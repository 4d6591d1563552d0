"""gRPC's own core writes no raw lines between ours, whoever knocks at central and whatever a tool's files are."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from central.pki import issue, make_ca
from tests.support.central_process import MAIN, ROOT, CentralProcess
from whitepanda.common.cli import GRPC_EXPERIMENTS
from whitepanda.common.tls import TlsFiles


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory):
    """One for all: each test looks only at what it does itself."""
    central = CentralProcess(tmp_path_factory.mktemp("quiet"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRPC_VERBOSITY", raising=False)  # what a test before may have left
        central.start()
        yield central
    central.end()


@pytest.fixture(scope="module")
def importer(central: CentralProcess) -> TlsFiles:
    return central.client("importer")


@pytest.fixture(scope="module")
def other(central: CentralProcess) -> TlsFiles:
    return central.client("other")


def replay(central: CentralProcess, files: TlsFiles, *more: str) -> subprocess.CompletedProcess[str]:
    trace = central.folder / "trace.csv"
    trace.write_text(
        "collection_id,instance_index,machine_id,start_time,end_time,avg_cpu,cycles_per_instruction,priority,"
        "scheduling_class\n1,0,1,300000000,600000000,0.1,1.5,200,3\n"
    )
    options = ["--ca", files.ca, "--cert", files.certificate, "--key", files.key, "--patience", "3", *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    return subprocess.run(
        [sys.executable, *MAIN, "replay", str(trace), "--central", central.address, *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )


@pytest.mark.long
def test_central_writes_no_raw_line_whoever_knocks(central: CentralProcess, importer: TlsFiles, tmp_path: Path) -> None:
    before = central.log.read_text().splitlines()
    for _ in range(20):
        with socket.create_connection(("localhost", central.port), timeout=5) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            plain.settimeout(5)
            try:
                while plain.recv(4096):
                    pass
            except OSError:
                continue
    make_ca(tmp_path / "other")
    foreign = issue(tmp_path / "other", "importer")
    mixed = TlsFiles(ca=str(central.pki / "ca.crt"), certificate=foreign.certificate, key=foreign.key)
    assert replay(central, mixed).returncode == 5
    assert replay(central, importer).returncode == 0
    said = central.log.read_text().splitlines()[len(before) :]
    assert [line for line in said if "E0000" in line or ".cc:" in line or "absl" in line] == []
    assert len(said) < 10, said


@pytest.mark.parametrize("wrong", ["ca", "key", "foreign", "away"])
def test_a_tool_ends_in_one_line_with_the_remedy(
    central: CentralProcess, importer: TlsFiles, other: TlsFiles, tmp_path: Path, wrong: str
) -> None:
    make_ca(tmp_path / "other")
    foreign = issue(tmp_path / "other", "importer")
    files, code, says = {
        "ca": (
            TlsFiles(ca=foreign.ca, certificate=foreign.certificate, key=foreign.key),
            5,
            f"the certificate of central {central.address} is not of the CA in",
        ),
        "key": (
            TlsFiles(ca=importer.ca, certificate=importer.certificate, key=other.key),
            5,
            f"--cert: {importer.certificate} and --key: {other.key} cannot be used together",
        ),
        "foreign": (
            TlsFiles(ca=importer.ca, certificate=foreign.certificate, key=foreign.key),
            5,
            f"--cert: {foreign.certificate} is not signed by the CA in --ca ({importer.ca})",
        ),
        "away": (importer, 4, "is away: unavailable: "),
    }[wrong]
    more = []
    if wrong == "away":
        central.kill()
        more = ["--patience", "0"]
    result = replay(central, files, *more)
    if wrong == "away":
        central.start()
    assert (result.returncode, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_the_pinned_core_knows_the_experiment_that_central_switches_off() -> None:
    program = "import asyncio, grpc.aio\nasync def f(): grpc.aio.server()\nasyncio.run(f())"
    made = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GRPC_EXPERIMENTS": GRPC_EXPERIMENTS, "GRPC_VERBOSITY": "INFO"},
    )
    assert "experiment" not in made.stderr.lower()


@pytest.mark.parametrize(("command", "found"), [("central", GRPC_EXPERIMENTS), ("incidents", None)])
def test_central_alone_switches_it_off_before_the_core_is_loaded(tmp_path: Path, command: str, found: str) -> None:
    program = (
        "import os, sys\nfrom whitepanda.common import cli\n"
        "cli.command = lambda: print(os.environ.get('GRPC_EXPERIMENTS'), 'grpc' in sys.modules) or (lambda **_: None)\n"
        "cli.main()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    made = subprocess.run(
        [sys.executable, "-c", program, command],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])},
        cwd=tmp_path,
    )
    assert made.stdout == f"{found} False\n"
