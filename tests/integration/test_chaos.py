"""Two replicas with one lake behind a TCP balancer, agents in a network of their own, and all that goes wrong at once.

At the end every window that an agent produced is in the lake's reading view exactly once, no version ever went back,
and no agent was held up.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import ibis
import pyarrow as pa
import pytest

from central.config import IngestSection
from central.journal import Journal
from central.lake import Lake, segment_stem
from central.rolls import Roller
from central.schema import SAMPLES
from tests.support.balancer import Balancer
from tests.support.central_process import MAIN, ROOT, CentralProcess

pytestmark = pytest.mark.integration

MUTANTS = str(ROOT / "tests" / "support" / "central_mutants.py")
START_NS = 1_790_000_000 * 10**9
#: A tick of an agent may be so late on a crowded machine; one that waited for a cut or a full disk is later.
MOST_LATE_S = 10.0
_INGEST = "roll_interval_s = 0.5\nroll_rows = 2000\ncommit_interval_ms = 5\nmax_past_days = 36500.0"
_BUILD = "interval_s = 2.0\nlease_s = 3.0\ndays = 3660\nmin_samples = 1\nthreads = 1\nmemory_limit_mib = 256"


def _ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode


@pytest.fixture
def network():
    """A network namespace and a link to it; yields (namespace, our end of the link, our address)."""
    number = os.getpid() % 16384
    space, ours, theirs = f"wpchaos{number}", f"wpa{number}", f"wpb{number}"
    net = f"10.213.{number // 64}.{number % 64 * 4}".rpartition(".")
    address, other = (f"{net[0]}.{int(net[2]) + host}" for host in (1, 2))
    if _ip("netns", "add", space, check=False):
        pytest.skip("network namespaces need root with CAP_SYS_ADMIN, and iproute2")
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", space)
        _ip("address", "add", f"{address}/30", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", space, "address", "add", f"{other}/30", "dev", theirs)
        _ip("-n", space, "link", "set", theirs, "up")
        yield space, ours, address
    finally:
        _ip("link", "delete", ours, check=False)
        _ip("netns", "delete", space, check=False)


def _remount(mode: str, folder: Path) -> int:
    command = ["mount", "-o", f"remount,{mode}", folder]
    return subprocess.run(command, check=False, capture_output=True).returncode


@contextlib.contextmanager
def _tmpfs(folder: Path, size: str):
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False
    ).returncode:
        pytest.skip("mounting a tmpfs needs root with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def mounts(tmp_path: Path):
    """File systems of the lake and of one replica's journal, to be made read-only and full."""
    with _tmpfs(tmp_path / "lake", "512m") as lake, _tmpfs(tmp_path / "small", "24m") as small:
        yield lake, small


class Versions:
    """What the lake showed over time: its versions and who held the lease."""

    def __init__(self, lake: Path) -> None:
        self.newest: list[int] = []
        self.tokens: dict[int, int] = {}
        self.holders: dict[int, str] = {}
        self.wrong: list[str] = []
        self._lake = lake

    def look(self) -> None:
        for path in sorted((self._lake / "lease").glob("*.json")):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                holder = json.loads(path.read_text())["holder"]
                if self.holders.setdefault(int(path.stem), holder) != holder:
                    self.wrong.append(f"token {path.stem} of {holder} too")
        found = [0]
        for path in (self._lake / "versions").glob("*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):
                manifest = json.loads(path.read_text())
                number = manifest["version"]
                found.append(number)
                if self.tokens.setdefault(number, manifest["token"]) != manifest["token"]:
                    self.wrong.append(f"version {number} was written twice")
        self.newest.append(max(found))

    async def watch(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(0.25)


class Fleet:
    """All the processes of one run."""

    def __init__(self, folder: Path, lake: Path, small: Path, network: tuple[str, str, str], main) -> None:
        self.folder, self.lake, self.small = folder, lake, small
        self.space, self.link, self.address = network
        self.main = main
        self.replicas = []
        for number in range(2):
            home = folder / f"replica-{number}"
            home.mkdir()
            if number:
                (home / "pki").symlink_to(self.replicas[0].pki)
            replica = CentralProcess(
                home,
                ingest=_INGEST,
                central=f'replica = "central-{number}"',
                build=_BUILD,
                state_dir=small / "state" if number else None,
            )
            replica.lake_dir = lake
            self.replicas.append(replica)
        self.agents: subprocess.Popen[bytes] | None = None

    def start_agents(self, count: int, port: int) -> None:
        names = [f"host-{number}" for number in range(count)]
        tls = {name: self.replicas[0].client(name) for name in names}
        given = {
            "address": f"{self.address}:{port}",
            "hosts": {
                name: {"ca": str(each.ca), "certificate": str(each.certificate), "key": str(each.key)}
                for name, each in tls.items()
            },
        }
        (self.folder / "agents.json").write_text(json.dumps(given))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
        script = ROOT / "tests" / "support" / "chaos_agents.py"
        with (self.folder / "agents.log").open("wb") as log:
            self.agents = subprocess.Popen(
                ["ip", "netns", "exec", self.space, sys.executable, script, self.folder],
                stdout=log,
                stderr=log,
                env=environment,
            )

    async def kill(self, times: int, rng: random.Random) -> None:
        for _ in range(times):
            replica = rng.choice(self.replicas)
            await asyncio.sleep(rng.uniform(0.0, 0.8))
            replica.kill()
            await asyncio.to_thread(replica.start, main=self.main)

    async def cut_network(self, for_s: float) -> None:
        _ip("link", "set", self.link, "down")
        await asyncio.sleep(for_s)
        _ip("link", "set", self.link, "up")

    async def fill_disk(self, for_s: float) -> None:
        """No room for the second replica's journal."""
        ballast = self.small / "ballast"
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        await asyncio.sleep(for_s)
        ballast.unlink()

    async def write_protect_lake(self, for_s: float) -> None:
        while _remount("ro", self.lake):
            await asyncio.sleep(0.02)  # a file is just being written
        await asyncio.sleep(for_s)
        assert _remount("rw", self.lake) == 0

    async def until_told(self, timeout_s: float = 120.0) -> None:
        """A version reached an agent: on a crowded machine none may have been built while all went wrong."""
        async with asyncio.timeout(timeout_s):
            while not (self.folder / "told").exists():
                await asyncio.sleep(0.1)

    def end(self) -> None:
        if self.agents is not None and self.agents.poll() is None:
            self.agents.kill()
            self.agents.wait()
        for replica in self.replicas:
            replica.end()


async def _run(
    fleet: Fleet, *, agents: int, kills: int, outage_s: float, cut_s: float
) -> tuple[dict, Versions]:
    """Everything once, half of the kills before and half after. Returns what the agents tell, and the versions."""
    rng = random.Random(5)
    seen = Versions(fleet.lake)
    watcher = asyncio.create_task(seen.watch())
    try:
        for replica in fleet.replicas:
            await asyncio.to_thread(replica.start, main=fleet.main)
        balancer = Balancer(fleet.address, [replica.port for replica in fleet.replicas])
        await balancer.start()
        await asyncio.to_thread(fleet.start_agents, agents, balancer.port)
        while min(balancer.connections) == 0:
            await asyncio.sleep(0.1)
        await fleet.kill(kills // 2, rng)
        # A replica that starts refuses a folder that it cannot write, so none is killed meanwhile.
        await fleet.fill_disk(outage_s)
        await fleet.write_protect_lake(outage_s)
        await asyncio.gather(fleet.cut_network(cut_s), fleet.kill(kills - kills // 2, rng))
        await fleet.until_told()
        (fleet.folder / "stop").touch()
        assert fleet.agents is not None
        assert await asyncio.to_thread(fleet.agents.wait, 180) == 0, (
            fleet.folder / "agents.log"
        ).read_text()[-3000:]
        await balancer.close()
        for replica in fleet.replicas:
            assert await asyncio.to_thread(replica.stop) == 0, replica.log.read_text()[-3000:]
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        fleet.end()
    seen.look()
    return json.loads((fleet.folder / "result.json").read_text()), seen


async def _found(fleet: Fleet) -> tuple[collections.Counter, int]:
    """Finish half rolled journals; return the reading view's windows with their counts, and the rows of all files."""
    lake = Lake(fleet.lake)
    for number, replica in enumerate(fleet.replicas):
        journal = Journal(replica.state_dir, replica=f"central-{number}", commit_interval_s=0.001)
        journal.start()
        await Roller(IngestSection(), journal, lake).roll_all()
        await journal.close()
    return _view(lake), sum(segment.rows for segment in lake.segments())


def _view(lake: Lake) -> collections.Counter:
    """Return the reading view's windows with their counts."""
    rows = lake.samples(ibis.duckdb.connect()).select("host", "start_unix_ns").to_pyarrow()
    numbers = [start - START_NS for start in rows["start_unix_ns"].to_pylist()]
    return collections.Counter(zip(rows["host"].to_pylist(), numbers, strict=True))


def _window_faults(truth: collections.Counter, found: collections.Counter) -> list[str]:
    """What is wrong with the windows that were found."""
    missing, doubled = (truth - found).total(), (found - truth).total()
    return [f"{missing} windows are missing"] * bool(missing) + [f"{doubled} too many"] * bool(doubled)


def _told(log: str) -> tuple[list[int], list[int]]:
    """Return the versions that a replica's log says it built, and those that it took from another one."""
    built, taken = (
        [int(number) for number in re.findall(rf'event="{event}" component=builds version=(\d+)', log)]
        for event in ("version built", "version of another replica taken")
    )
    return built, taken


def _log_faults(seen: Versions, logs: dict[str, str]) -> list[str]:
    """Versions that not their lease's holder says to have built, or two replicas do; ones taken that never were."""
    faults, builders = [], dict[int, str]()
    for replica, log in sorted(logs.items()):
        built, taken = _told(log)
        for number in built:
            holder = seen.holders.get(seen.tokens.get(number, 0), "nobody")
            if holder != replica:
                faults.append(f"version {number} was built by {replica} under the lease of {holder}")
            if number in builders:
                faults.append(f"version {number} was built by {builders[number]} and by {replica}")
            builders[number] = replica
        faults += [
            f"{replica} took version {number}, which never was"
            for number in taken
            if number not in seen.tokens
        ]
        if built != sorted(set(built)):
            faults.append(f"{replica} built versions in the order {built}")
    return faults


def _lease_faults(seen: Versions) -> list[str]:
    """Versions under a token that no lease had, or under an older one than a version before them."""
    faults, last = list(seen.wrong), 0
    for number, token in sorted(seen.tokens.items()):
        if token not in seen.holders:
            faults.append(f"version {number} has token {token}, which nobody held")
        if token < last:
            faults.append(f"version {number} has token {token}, one before it has {last}")
        last = token
    return faults


async def _all_is_well(fleet: Fleet, result: dict, seen: Versions) -> None:
    truth = collections.Counter(
        {(host, number): 1 for host, told in result.items() for number in range(told["produced"])}
    )
    found, rows = await _found(fleet)
    late_s = max(told["late_s"] for told in result.values())
    print(
        f"{len(truth)} windows, {sum(found.values())} in the view, {rows} in all files; {seen.newest[-1]} versions, "
        f"{len(seen.holders)} leases; latest tick {late_s:.2f} s"
    )
    assert sum(told["dropped"] for told in result.values()) == 0
    assert _window_faults(truth, found) == []
    assert seen.newest == sorted(seen.newest)
    assert seen.newest[-1] > 0
    assert _lease_faults(seen) == []
    logs = {f"central-{number}": replica.log.read_text() for number, replica in enumerate(fleet.replicas)}
    assert _log_faults(seen, logs) == []
    assert any(_told(log)[0] for log in logs.values())
    for told in result.values():
        assert told["versions"] == sorted(told["versions"])
    assert any(told["versions"] for told in result.values())
    assert late_s < MOST_LATE_S
    for replica in fleet.replicas:
        assert "Traceback" not in replica.log.read_text()


async def test_replicas_killed_disk_full_lake_read_only_network_cut(tmp_path, mounts, network) -> None:
    fleet = Fleet(tmp_path, *mounts, network, MAIN)
    result, seen = await _run(fleet, agents=10, kills=4, outage_s=2.0, cut_s=3.0)
    await _all_is_well(fleet, result, seen)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_fifty_agents_and_fifty_kills(tmp_path, mounts, network) -> None:
    fleet = Fleet(tmp_path, *mounts, network, MAIN)
    result, seen = await _run(fleet, agents=50, kills=50, outage_s=20.0, cut_s=60.0)
    await _all_is_well(fleet, result, seen)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_chaos_notices_builders_without_a_lease(tmp_path, mounts, network) -> None:
    fleet = Fleet(tmp_path, *mounts, network, (MUTANTS, "no-lease"))
    _, seen = await _run(fleet, agents=10, kills=4, outage_s=1.0, cut_s=1.0)
    assert _lease_faults(seen)


def _without_dedup(self: Lake, connection, days=None):
    return connection.read_parquet([str(segment.path) for segment in self.segments()])


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_check_notices_a_view_that_has_batches_of_two_replicas_twice(
    tmp_path, monkeypatch, is_broken
) -> None:
    """Agents change replicas between a commit and its acknowledgement: the same batch is in both journals."""
    lake, truth = Lake(tmp_path), collections.Counter()
    for origin, sequences in (("central-0", (1, 2, 3)), ("central-1", (3, 4))):
        for sequence in sequences:
            known = {
                "host": ["h"] * 2,
                "spool_id": ["s"] * 2,
                "sequence": [sequence] * 2,
                "start_unix_ns": [START_NS + 2 * sequence, START_NS + 2 * sequence + 1],
                "latency_sensitive": [True] * 2,
                "duration_ns": [1] * 2,
                "cpu_usage_cores": [1.0] * 2,
            }
            filled = {field.name: ["x" if field.type == pa.string() else None] * 2 for field in SAMPLES}
            table = pa.table({**filled, **known}, schema=SAMPLES)
            lake.write_segment(table, segment_stem(origin, "0badcafe", sequence))
            truth.update({("h", start - START_NS): 1 for start in known["start_unix_ns"]})
    truth = collections.Counter(dict.fromkeys(truth, 1))
    if is_broken:
        monkeypatch.setattr(Lake, "samples", _without_dedup)
    assert _window_faults(truth, _view(lake)) == (["2 too many"] if is_broken else [])
    assert (
        _window_faults(truth + collections.Counter({("h", 99): 1}), _view(lake))[0] == "1 windows are missing"
    )


def test_the_check_notices_who_built_without_the_lease(tmp_path) -> None:
    seen = Versions(tmp_path)
    seen.tokens, seen.holders = {1: 1, 2: 2}, {1: "central-0", 2: "central-1"}
    line = 'timestamp=1 level=info event="version {}" component=builds version={} seconds=1.0\n'.format
    good = {
        "central-0": line("built", 1) + line("of another replica taken", 2),
        "central-1": line("of another replica taken", 1) + line("built", 2),
    }
    assert _log_faults(seen, good) == []
    stolen = good | {"central-0": good["central-0"] + line("built", 2)}
    assert _log_faults(seen, stolen) == [
        "version 2 was built by central-0 under the lease of central-1",
        "version 2 was built by central-0 and by central-1",
    ]
    ghost = good | {"central-1": line("of another replica taken", 9)}
    assert _log_faults(seen, ghost) == ["central-1 took version 9, which never was"]
    back = good | {"central-0": line("built", 1) + line("built", 1)}
    assert "central-0 built versions in the order [1, 1]" in _log_faults(seen, back)
