"""Two replicas with one lake behind a TCP balancer, agents in a network of their own, and all that goes wrong at once.

At the end every window that an agent produced is in the lake's reading view exactly once, no version ever went back,
and no agent was held up. Every kill is of a replica to which agents are sending.
"""

import asyncio
import collections
import contextlib
import json
import os
import random
import re
import subprocess
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pytest

from central.config import IngestSection
from central.journal.flush import Roller
from central.journal.writer import Journal
from central.lake.replicas import replica_of
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, segment_stem
from tests.support.central_process import MAIN, ROOT
from tests.support.chaos_fleet import Fleet, Versions, ip
from tests.support.lake_reader import windows_by_polars

pytestmark = pytest.mark.integration

MUTANTS = str(ROOT / "tests" / "support" / "central_mutants.py")
START_NS = 1_790_000_000 * 10**9
#: Of each agent's ticks all but a hundredth come that soon, on a crowded machine too: one that waits for a full disk or
#: a cut of t seconds has 2 t late ticks, the first by all of t.
MOST_LATE_S = 3.0


@pytest.fixture
def network():
    """A network namespace and a link to it; yields (namespace, our end of the link, our address)."""
    number = os.getpid() % 16384
    space, ours, theirs = f"wpchaos{number}", f"wpa{number}", f"wpb{number}"
    net = f"10.213.{number // 64}.{number % 64 * 4}".rpartition(".")
    address, other = (f"{net[0]}.{int(net[2]) + host}" for host in (1, 2))
    if ip("netns", "add", space, check=False):
        pytest.skip("network namespaces need root with CAP_SYS_ADMIN, and iproute2")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", space)
        ip("address", "add", f"{address}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", space, "address", "add", f"{other}/30", "dev", theirs)
        ip("-n", space, "link", "set", theirs, "up")
        yield space, ours, address
    finally:
        ip("link", "delete", ours, check=False)
        ip("netns", "delete", space, check=False)


@contextlib.contextmanager
def _tmpfs(folder: Path, size: str):
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def mounts(tmp_path: Path):
    """File systems of the lake, to be made read-only, and of each replica's journal, to be full."""
    with (
        _tmpfs(tmp_path / "lake", "512m") as lake,
        _tmpfs(tmp_path / "small-0", "24m") as first,
        _tmpfs(tmp_path / "small-1", "24m") as second,
    ):
        yield lake, (first, second)


async def _run(
    fleet: Fleet, *, agents: int, kills: tuple[int, int, int], outage_s: float, cut_s: float
) -> tuple[dict, Versions]:
    """Everything once. Returns what the agents tell, and the versions.

    `kills` are those at first, those of a replica while the disk of the other one is full, those at last, when all
    agents have come back after the cut.
    """
    rng = random.Random(5)
    seen = Versions(fleet.lake)
    watcher = asyncio.create_task(seen.watch())
    try:
        await fleet.start()
        await asyncio.to_thread(fleet.start_agents, agents, fleet.balancer.port)
        while min(fleet.balancer.connections) == 0:
            await asyncio.sleep(0.1)
        await fleet.kill(kills[0], rng)
        # A replica that starts refuses a folder that it cannot write: meanwhile the other one is killed, or none.
        for number in (0, 1):
            # Full until all is done: agents leave that one only when it has acknowledged nothing for a while.
            await fleet.spread()
            with fleet.full_disk(number):
                await fleet.until_commits_fail(number)
                await asyncio.gather(asyncio.sleep(outage_s / 2), fleet.kill(kills[1], rng, (1 - number,)))
        await fleet.write_protect_lake(outage_s)
        await fleet.cut_network(cut_s)
        await fleet.kill(kills[2], rng)
        await fleet.until_told()
        (fleet.folder / "stop").touch()
        assert fleet.agents is not None
        assert await asyncio.to_thread(fleet.agents.wait, 180) == 0, (fleet.folder / "agents.log").read_text()[-3000:]
        await fleet.balancer.close()
        for replica in fleet.replicas:
            assert await asyncio.to_thread(replica.stop) == 0, replica.log.read_text()[-3000:]
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        fleet.end()
    seen.look()
    return json.loads((fleet.folder / "result.json").read_text()), seen


async def _found(fleet: Fleet) -> tuple[collections.Counter, int]:
    """Finish half rolled journals; return the windows that Polars finds, with their counts, and the rows of all files.

    Polars reads by the rule of docs/open-the-lake.md; the reading view must agree.
    """
    lake = Lake(fleet.lake)
    for number, replica in enumerate(fleet.replicas):
        journal = Journal(replica.state_dir, replica=f"central-{number}", commit_interval_s=0.001)
        journal.start()
        await Roller(IngestSection(), journal, lake).roll_all()
        await journal.close()
    found = windows_by_polars(fleet.lake, START_NS)
    assert _view(lake) == found
    return found, sum(segment.rows for segment in lake.segments())


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
        for event in ("version built", "version loaded from another replica")
    )
    return built, taken


def _log_faults(seen: Versions, logs: dict[str, str]) -> list[str]:
    """Versions that not their lease's holder says to have built, or two replicas do; ones taken that never were."""
    faults, builders = [], dict[int, str]()
    for replica, log in sorted(logs.items()):
        built, taken = _told(log)
        for number in built:
            holder = seen.holders.get(seen.tokens.get(number, 0), "nobody")  # a journal, see Lease
            if replica_of(holder) != replica:
                faults.append(f"version {number} was built by {replica} under the lease of {holder}")
            if number in builders:
                faults.append(f"version {number} was built by {builders[number]} and by {replica}")
            builders[number] = replica
        faults += [f"{replica} took version {number}, which never was" for number in taken if number not in seen.tokens]
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


def _lateness(result: dict) -> dict[str, float]:
    """Return by agent the 99th percentile of how late its ticks were."""
    return {host: float(np.percentile(reported["late_s"], 99, method="higher")) for host, reported in result.items()}


def _held_up(result: dict) -> list[str]:
    """Return the agents that waited for what happened elsewhere."""
    return [host for host, late_s in _lateness(result).items() if late_s >= MOST_LATE_S]


async def _all_is_well(fleet: Fleet, result: dict, seen: Versions, kills: int) -> None:
    truth = collections.Counter(
        {(host, number): 1 for host, reported in result.items() for number in range(reported["produced"])}
    )
    found, rows = await _found(fleet)
    late_s = np.concatenate([reported["late_s"] for reported in result.values()])
    print(
        f"{len(result)} agents; {len(truth)} windows produced, {found.total()} read by Polars, {rows} in its "
        f"files: {rows - found.total()} duplicates; {len(fleet.loads)} kills, each within 0.8 s of {min(fleet.loads)} "
        f"to {max(fleet.loads)} bytes of agents; {seen.newest[-1]} versions, {len(seen.holders)} leases; "
        f"{late_s.size} ticks, late by p50 {np.median(late_s):.3f}, p99 {np.percentile(late_s, 99):.3f}, "
        f"most {late_s.max():.3f} s; worst agent's p99 {max(_lateness(result).values()):.3f} s"
    )
    assert sum(reported["dropped"] for reported in result.values()) == 0
    assert _window_faults(truth, found) == []
    assert seen.newest == sorted(seen.newest)
    assert seen.newest[-1] > 0
    assert _lease_faults(seen) == []
    logs = {f"central-{number}": replica.log.read_text() for number, replica in enumerate(fleet.replicas)}
    assert _log_faults(seen, logs) == []
    assert any(_told(log)[0] for log in logs.values())
    for reported in result.values():
        assert reported["versions"] == sorted(reported["versions"])
    assert any(reported["versions"] for reported in result.values())
    assert len(fleet.loads) == kills
    for replica in fleet.replicas:
        assert "Traceback" not in replica.log.read_text()


@pytest.mark.long
async def test_replicas_killed_disk_full_lake_read_only_network_cut(tmp_path, mounts, network) -> None:
    """The same in small, beside other tests: how late agents are is said, not judged."""
    fleet = Fleet(tmp_path, *mounts, network, MAIN)
    result, seen = await _run(fleet, agents=10, kills=(2, 0, 2), outage_s=2.0, cut_s=3.0)
    await _all_is_well(fleet, result, seen, 4)


@pytest.mark.long
@pytest.mark.alone  # it measures how late agents are, and a disk that others keep busy makes them late
@pytest.mark.timeout(900)
async def test_fifty_agents_and_fifty_kills(tmp_path, mounts, network) -> None:
    fleet = Fleet(tmp_path, *mounts, network, MAIN)
    result, seen = await _run(fleet, agents=50, kills=(23, 2, 23), outage_s=20.0, cut_s=60.0)
    await _all_is_well(fleet, result, seen, 50)
    assert _held_up(result) == []


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_chaos_notices_builders_without_a_lease(tmp_path, mounts, network) -> None:
    fleet = Fleet(tmp_path, *mounts, network, (MUTANTS, "no-lease"))
    _, seen = await _run(fleet, agents=10, kills=(2, 0, 2), outage_s=1.0, cut_s=1.0)
    assert _lease_faults(seen)


def _without_dedup(self: Lake, connection, days=None):
    return connection.read_parquet([str(segment.path) for segment in self.segments()])


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_check_notices_a_view_that_has_batches_of_two_replicas_twice(tmp_path, monkeypatch, is_broken) -> None:
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
    assert _window_faults(truth, windows_by_polars(tmp_path, START_NS)) == []
    assert _window_faults(truth + collections.Counter({("h", 99): 1}), _view(lake))[0] == "1 windows are missing"


@pytest.mark.parametrize(("waits_s", "found"), [(0.0, []), (60.0, ["host-1"])])
def test_the_check_notices_an_agent_that_waits_until_a_cut_is_over(waits_s, found) -> None:
    """Others, and it before and after, are late by a loaded machine's tenths of seconds and one stall of a second."""
    rng = np.random.default_rng(1)
    late_s = rng.exponential(0.1, (3, 400))
    late_s[:, 7] = 1.0
    late_s[1, 200:320] += np.maximum(0.0, waits_s - 0.5 * np.arange(120))
    assert _held_up({f"host-{number}": {"late_s": late.tolist()} for number, late in enumerate(late_s)}) == found


def test_the_check_notices_who_built_without_the_lease(tmp_path) -> None:
    seen = Versions(tmp_path)
    seen.tokens, seen.holders = {1: 1, 2: 2}, {1: "central-0-0a", 2: "central-1-1b"}
    line = 'timestamp=1 level=info event="version {}" component=builds version={} seconds=1.0\n'.format
    good = {
        "central-0": line("built", 1) + line("loaded from another replica", 2),
        "central-1": line("loaded from another replica", 1) + line("built", 2),
    }
    assert _log_faults(seen, good) == []
    stolen = good | {"central-0": good["central-0"] + line("built", 2)}
    assert _log_faults(seen, stolen) == [
        "version 2 was built by central-0 under the lease of central-1-1b",
        "version 2 was built by central-0 and by central-1",
    ]
    ghost = good | {"central-1": line("loaded from another replica", 9)}
    assert _log_faults(seen, ghost) == ["central-1 took version 9, which never was"]
    back = good | {"central-0": line("built", 1) + line("built", 1)}
    assert "central-0 built versions in the order [1, 1]" in _log_faults(seen, back)
