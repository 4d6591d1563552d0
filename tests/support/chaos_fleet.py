"""The processes of a chaos run: two replicas with one lake, a balancer before them, agents; and what goes wrong."""

import asyncio
import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.balancer import Balancer
from tests.support.central_process import ROOT, CentralProcess

#: Sent by agents to a replica in the last tenths of a second before it is killed: a batch, or a handshake before one.
LEAST_LOAD_BYTES = 200
# The small disks have no room for a reserve: test_journal_full_disk.py is of that.
_INGEST = """
roll_interval_s = 0.5
roll_rows = 2000
commit_interval_ms = 5
max_past_days = 36500.0
journal_reserve_mib = 0
"""
_BUILD = "interval_s = 2.0\nlease_s = 3.0\ndays = 3660\nmin_samples = 1\nthreads = 1\nmemory_limit_mib = 256"


def ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode


def _remount(mode: str, folder: Path) -> int:
    command = ["mount", "-o", f"remount,{mode}", folder]
    return subprocess.run(command, check=False, capture_output=True).returncode


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

    def __init__(self, folder: Path, lake: Path, small: tuple[Path, Path], network: tuple[str, str, str], main) -> None:
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
                state_dir=small[number] / "state",
            )
            replica.lake_dir = lake
            self.replicas.append(replica)
        self.agents: subprocess.Popen[bytes] | None = None
        self.balancer: Balancer | None = None
        self.loads: list[int] = []  # bytes that agents sent to a replica within 0.8 s before each kill

    async def start(self) -> None:
        for replica in self.replicas:
            await asyncio.to_thread(replica.start, main=self.main)
        self.balancer = Balancer(self.address, [replica.port for replica in self.replicas])
        await self.balancer.start()

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

    async def kill(self, times: int, rng: random.Random, numbers: tuple[int, ...] = (0, 1)) -> None:
        """Kill replicas of these numbers that agents are sending to; now and then both at once."""
        while times > 0:
            busy = await self.busy(rng.uniform(0.1, 0.8), numbers)
            if times == 1 or rng.random() < 0.7:
                busy = dict([rng.choice(list(busy.items()))])
            for number in busy:
                self.replicas[number].kill()
            self.loads += busy.values()
            # At the same time, so that agents come back to both.
            await asyncio.gather(*(asyncio.to_thread(self.replicas[n].start, main=self.main) for n in busy))
            times -= len(busy)

    async def busy(self, for_s: float, numbers: tuple[int, ...]) -> dict[int, int]:
        """Wait until agents have sent to some of these replicas within the last so many seconds; how many bytes."""
        async with asyncio.timeout(120):
            while True:
                before = list(self.balancer.sent_bytes)
                await asyncio.sleep(for_s)
                sent = {number: self.balancer.sent_bytes[number] - before[number] for number in numbers}
                if busy := {number: size for number, size in sent.items() if size >= LEAST_LOAD_BYTES}:
                    return busy

    async def spread(self) -> None:
        """Have agents send to both replicas: kills may have brought all of them to one."""
        self.balancer.reset()
        for number in (0, 1):
            await self.busy(0.5, (number,))

    async def cut_network(self, for_s: float) -> None:
        ip("link", "set", self.link, "down")
        await asyncio.sleep(for_s)
        ip("link", "set", self.link, "up")

    @contextlib.contextmanager
    def full_disk(self, number: int) -> Iterator[None]:
        """Leave no room for a replica's journal meanwhile.

        Somebody reads it, as a backup would: else what has left for the lake makes room for what comes.
        """
        reader = sqlite3.connect(self.small[number] / "state" / "journal.sqlite")
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchone()
        ballast = self.small[number] / "ballast"
        # Without a buffer, whose rest could not be written at the file's end either.
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        yield
        ballast.unlink()
        reader.close()

    async def until_commits_fail(self, number: int) -> None:
        """Agents are sending to that replica, whose disk is full."""
        log = self.replicas[number].log
        async with asyncio.timeout(60):
            while "commit failed" not in log.read_text():
                await asyncio.sleep(0.1)

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
