"""What `top` is tested with: looks at a host made by hand, and a feed that tells them when a test says so."""

import math

import pytest

from agent.display.words import AFFECTED, INFLICTING, VICTIM, word_of
from agent.top.app import TopApp
from agent.top.columns import METRICS
from agent.top.feed import Came
from agent.top.model import Frame
from collector.base import Reason
from whitepanda.v1 import agent_pb2, host_pb2

S = 10**9
UNIX0 = 1_700_000_000 * S
NO_RDT = "this CPU has no RDT"
SUSPECT = host_pb2.Suspect(
    uuid="uuid-scan-1", name="scan-1", job="scan", coefficient=0.5, cpu_usage_cores=6.0, score=3.0, inflicts=True
)

#: VMs as (name, job, CPU, CPI, behaviour); scan-1 inflicts what web-2 suffers.
FEW = (
    ("web-1", "web", 0.5, 1.0, "STEADY"),
    ("web-2", "web", 2.0, 2.5, "VICTIM"),
    ("scan-1", "scan", 6.0, 0.9, "INFLICTING"),
    ("db-1", "db", 1.0, 1.5, "STEADY"),
    ("new-1", "db", None, None, "UNSPECIFIED"),
)


def metric(name, value):
    if value is None or name.startswith(("llc_", "memory_")):
        reason, source = (Reason.NO_RDT, "resctrl") if value is not None else (Reason.IDLE, "perf")
        return host_pb2.Metric(name=name, value=math.nan, reason=int(reason), source=source)
    return host_pb2.Metric(name=name, value=value, source="perf")


def vm(name, job, cpu, cpi, behaviour, *, job_mean_cpi=math.nan, rdt=False, state="running"):
    """A VM's summary; without CPU all its numbers are unknown."""
    known = {"cpu_usage_cores": cpu, "cpi": cpi, "gips": cpu and 2 * cpu, "run_queue_wait_ratio": 0.01}
    rest = 1e6 if cpu is not None else None
    metrics = [metric(one, known.get(one, rest) if cpu is not None else None) for one in sorted(METRICS)]
    if rdt:
        metrics = [
            host_pb2.Metric(name=m.name, value=rest, source="resctrl") if math.isnan(m.value) else m for m in metrics
        ]
    suffers = behaviour in ("VICTIM", "AFFECTED")
    number = agent_pb2.Behaviour.Value(f"BEHAVIOUR_{behaviour}")
    found = host_pb2.CloudWhite(
        behaviour=agent_pb2.BEHAVIOUR_VICTIM if suffers else number,
        reason="IPC 0.4 instead of 1.0 (limit 0.9)" if suffers else "as at its baseline",
        culprits=["scan-1"] if suffers else [],
        baseline_ticks=120,
        baseline_ready=True,
    )
    decision = host_pb2.VmDecision(verdict=number, reason=found.reason)
    if suffers:
        low = 1.3 if behaviour == "VICTIM" else 0.9
        found.degradation.CopyFrom(agent_pb2.Degradation(ratio=1.42, low=low, high=1.58, model="m"))
        decision.MergeFrom(
            host_pb2.VmDecision(slow_down=found.degradation, found_by=[agent_pb2.ANALYSIS_HOST], suspects=[SUSPECT])
        )
    return host_pb2.VmSummary(
        uuid=f"uuid-{name}",
        name=name,
        job=job,
        epoch="e1",
        state=state,
        vcpus=4,
        metrics=metrics,
        verdict="unknown",
        degradation=math.nan,
        job_mean_cpi=job_mean_cpi,
        cloud_white=found,
        decision=decision,
    )


def frame(rows=FEW, at=0, **options):
    """A look at the host, `at` seconds after the first one."""
    answer = host_pb2.ListVmsResponse(
        host="node1", now_unix_ns=UNIX0 + at * S, vms=[vm(*row, **options) for row in rows]
    )
    words = [word_of(vm) for vm in answer.vms]
    answer.decision.victims, answer.decision.affected, answer.decision.inflicting = map(
        words.count, (VICTIM, AFFECTED, INFLICTING)
    )
    if answer.decision.victims:
        answer.decision.suspect.CopyFrom(SUSPECT)
    status = host_pb2.HostStatus(
        host="node1",
        sources=[host_pb2.SourceStatus(name="resctrl", state="unavailable", detail=NO_RDT)],
        host_metrics=[host_pb2.Metric(name="host_cpu_idle_ratio", value=0.25)],
    )
    return Frame(answer, status)


def explanation(name="web-2", row=FEW[1]):
    """As the agent explains a victim."""
    answer = host_pb2.VmExplanation(
        vm=vm(name, *row[1:]),
        cpi=math.nan,
        n_cpi=math.nan,
        mn_cpi=math.nan,
        detector="noise_scaled",
        evidence=[agent_pb2.Evidence(signal="ipc", value=0.4, baseline=1.0, threshold=0.9)],
        signals=[host_pb2.Signal(name="ipc", value=0.4, baseline=1.0, learnt=1.1)],
        suspects=[SUSPECT],
    )
    answer.vm.name = name
    return answer


class FakeFeed:
    """Tells what the test says."""

    def __init__(self):
        self.wanted = []
        self.stopped = False

    def start(self, tell):
        self.tell = tell

    def want(self, uuid):
        self.wanted.append(uuid)

    def stop(self):
        self.stopped = True


class FakeTape(FakeFeed):
    """The same of a recording."""

    def toggle(self):
        pass

    def wind(self, by_s):
        pass

    def step(self, by):
        pass

    def seek(self, share):
        pass

    def change_speed(self, step):
        pass


class Shown:
    """The view in a terminal of a test: keys in, lines out. An async context manager."""

    def __init__(self, feed=None, size=(120, 30), model=None):
        self.feed = feed or FakeFeed()
        self.now_s = 0.0  # stands still unless a test moves it
        self.app = TopApp(self.feed, lambda: self.now_s)
        if model is not None:
            self.app.model = model
        self._running = self.app.run_test(size=size)

    async def __aenter__(self):
        self.pilot = await self._running.__aenter__()
        await self.pilot.pause()
        return self

    async def __aexit__(self, *error):
        await self._running.__aexit__(*error)

    async def tell(self, news):
        self.feed.tell(Came((news,)) if isinstance(news, Frame) else news)
        await self.pilot.pause()

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition):
        """Wait for what other threads do; fail with the screen after 20 s."""
        for _ in range(2000):
            if condition():
                return
            await self.pilot.pause(0.01)
        pytest.fail(f"did not come true:\n{self.text()}")

    def lines(self):
        """Return the screen's lines as they are seen, stripped at the right."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    def text(self):
        return "\n".join(self.lines())

    def names(self):
        """Return the VMs in the order in which they stand."""
        below = self.lines()[self.titled() + 1 :]
        known = [line.split()[0] for line in below if line.startswith(" ") and line.split()]
        return [word for word in known if word.split("-")[0] in ("web", "scan", "db", "new") and "-" in word]

    def head(self):
        """Return the titles of the columns."""
        return self.lines()[self.titled()].split()

    def titled(self):
        """Return which line has the titles of the columns."""
        return next((at for at, line in enumerate(self.lines()) if line.startswith(" NAME")), 2)
