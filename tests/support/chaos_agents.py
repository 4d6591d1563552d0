"""Many agents' real uplinks and spools in one process, with simulated windows: `chaos_agents.py FOLDER`.

FOLDER/agents.json says what to run. FOLDER/told is there when a version reached one of them. Once FOLDER/stop is there
they produce nothing more, drain, and FOLDER/result.json tells per host what was produced and dropped, how late each of
its ticks was, and the versions that central sent.
"""

import asyncio
import json
import sys
from pathlib import Path

from agent.config import UplinkSection
from agent.sampling.windows import CpiWindow
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.stream import Timing
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

TICK_S = 0.5
ROWS = 4
START_S = 1_790_000_000


class Agent:
    """One uplink, its spool, and the truth of what went into it."""

    def __init__(self, folder: Path, name: str, address: str, tls: dict[str, str]) -> None:
        section = UplinkSection(
            address=address, tls=TlsFiles(**tls), server_name="localhost", reconnect_min_s=0.05, reconnect_max_s=1.0
        )
        self.name = name
        self._told = folder / "told"
        self.versions: list[int] = []
        self.produced = 0
        self.late_s: list[float] = []  # of each tick
        self.spool = Spool(folder / f"{name}.spool", max_bytes=1 << 26, boot_id="b")
        timing = Timing(acknowledgement_s=10.0, poll_s=0.2)
        self.uplink = Uplink(section, self._hello, self.spool, self._take, timing=timing)

    def _hello(self) -> agent_pb2.Hello:
        held = max(self.versions, default=0)
        return agent_pb2.Hello(host=self.name, platform="P", jobs=["job"], coefficient_version=held)

    def _take(self, update: agent_pb2.CoefficientUpdate) -> None:
        self.versions.append(update.version)
        self._told.touch()

    async def tick(self, stop: Path) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.exists():  # noqa: ASYNC240 - a look at a local folder
            self.late_s.append(max(0.0, loop.time() - due))
            first = START_S * 10**9 + self.produced
            self.uplink.submit(
                [
                    CpiWindow("vm", "e", "vm", "job", True, first + row, 10**10, cpu_usage_cores=1.0, cpi=1.5 + row)
                    for row in range(ROWS)
                ]
            )
            self.produced += ROWS
            due += TICK_S
            await asyncio.sleep(max(0.0, due - loop.time()))

    def is_drained(self) -> bool:
        return not (self.spool.counts().batches or self.uplink._pending)


async def main(folder: Path) -> None:
    given = json.loads((folder / "agents.json").read_text())
    agents = [Agent(folder, name, given["address"], tls) for name, tls in given["hosts"].items()]
    uplinks = [asyncio.create_task(agent.uplink.run()) for agent in agents]
    await asyncio.gather(*(agent.tick(folder / "stop") for agent in agents))
    while not all(agent.is_drained() for agent in agents):
        await asyncio.sleep(0.1)
    for task in uplinks:
        task.cancel()
    await asyncio.gather(*uplinks, return_exceptions=True)
    result = {}
    for agent in agents:
        dropped = agent.uplink.view().dropped_batches
        result[agent.name] = {
            "produced": agent.produced,
            "dropped": dropped,
            "late_s": agent.late_s,
            "versions": agent.versions,
        }
        await agent.uplink.close()
        agent.spool.close()
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
