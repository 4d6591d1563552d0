"""A campaign: each run's phases, load, stressors and samples become rows of the RUNS file."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple

from agent.analysis.signals import INDEX, Tick
from agent.calibrate.client import CommandLoad
from agent.calibrate.latency import Measured, percentile
from agent.calibrate.plan import Load, Plan, Scenario
from agent.calibrate.preflight import answer_problems, plan_problems
from agent.calibrate.requests import RequestLoad
from agent.calibrate.runs import Row, cpu_level
from agent.calibrate.sampling import Sampler
from agent.calibrate.stressors import Stressors
from agent.clock import SystemClock
from agent.config import AgentConfig
from agent.sampling.source_threads import SourceView
from whitepanda.common.errors import UnavailableError, WhitepandaError

_PHASES = ("quiet", "stress", "after")
_POLL_S = 0.1
_LATE_TICKS = 2.5  # until the samples of a phase's last second have been read
_STOP_S = 60.0  # for all stressors together, when the campaign is given up


class Run(NamedTuple):
    """One pass through the phases. `repetition` counts a scenario's runs at all loads, so that it names one run."""

    scenario: Scenario
    repetition: int
    load: Load


class Phase(NamedTuple):
    """A phase's actual time, on the monotonic clock."""

    name: str
    start_ns: int
    end_ns: int


class RunResult(NamedTuple):
    """The rows of a run, and its summary. `p95_s`: each phase's median of p95_latency_s over its seconds, if known."""

    run: Run
    rows: list[Row]
    failures: int
    trouble: str
    p95_s: dict[str, float]


def runs_of(plan: Plan) -> list[Run]:
    """Return the plan's runs in random order, so that a drift of the host biases no scenario."""
    runs = [
        Run(scenario, 1 + level * plan.repetitions + number, load)
        for scenario in plan.scenarios
        for level, load in enumerate(plan.served.loads)
        for number in range(plan.repetitions)
    ]
    random.Random(plan.seed).shuffle(runs)  # noqa: S311 - an order, no secret
    return runs


class Campaign:
    """Runs a plan on this host, with the sources and the tick of an agent's configuration.

    `beside_others`: whether VMs may run that the plan does not name. `on_tick` is called with each tick's signals of
    all running VMs, `on_progress` with what happens now and the seconds since the start.
    """

    def __init__(
        self,
        plan: Plan,
        config: AgentConfig,
        *,
        beside_others: bool = False,
        on_tick: Callable[[Tick], None] = lambda _tick: None,
        on_progress: Callable[[str, float], None] = lambda _what, _seconds: None,
    ) -> None:
        self._plan = plan
        self._clock = SystemClock()
        self._sampler = Sampler(
            config, plan.vms, beside_others=beside_others, on_tick=on_tick, workers=plan.served.workers
        )
        self._stressors = Stressors(plan.deadline_s)
        self._on_progress = on_progress
        self._started_ns = 0
        self._what = ""
        #: The sampling and the load: they must not end while a phase lasts.
        self._going: list[asyncio.Task[None]] = []
        #: The finished phases of the present run.
        self.phases: list[Phase] = []

    @property
    def sources(self) -> tuple[SourceView, ...]:
        """The states of the sources."""
        return self._sampler.sources

    async def problems(self) -> list[WhitepandaError]:
        """Return the problems that prevent a start here. Starts no load and no stressor; the server is asked once."""
        problems = list(plan_problems(self._plan, self._sampler.tick_s))
        try:
            await self._sampler.open()
        except WhitepandaError as error:
            problems.append(error)
        finally:
            await self._sampler.close()
        return problems + [problem async for problem in answer_problems(self._plan)]

    async def run(self, on_run: Callable[[RunResult], None]) -> None:
        """Run everything, and give each finished run to `on_run`; cancelled or failed, the stressors are stopped.

        Raises:
            UnavailableError: something does not run, or stopped, or another VM came.
            InputError: a phase is too short, or the user's own client prints nonsense.
        """
        try:
            for problem in plan_problems(self._plan, self._sampler.tick_s):
                raise problem
            await self._sampler.open()
            self._started_ns = self._clock.mono_ns()
            self._begin(self._sampler.run())
            for number, run in enumerate(runs_of(self._plan), 1):
                if number > 1:
                    await self._hold("cool-down", self._plan.cool_down_s)
                self._what = f"{number}/{self._plan.runs} {run.scenario.name} at {run.load.load_ratio:g}"
                on_run(await self._run(run, number))
        finally:
            await _whole(self._close())

    async def _run(self, run: Run, number: int) -> RunResult:
        plan, phases = self._plan, self._plan.phases
        served, load, sampler = plan.served, run.load, self._sampler
        client: RequestLoad | CommandLoad = CommandLoad((*served.command, *load.arguments))
        if served.requests is not None:
            client = RequestLoad(served.requests, load.requests_per_s, seed=plan.seed + number)
        sampler.seconds.clear()
        self.phases = []
        self._begin(client.run())
        try:
            await self._hold("warm-up", served.warm_up_s)
            await self._phase("quiet", phases.quiet_s)
            quiet = self.phases[-1]
            if client.over(quiet.start_ns, quiet.end_ns) is None:
                raise UnavailableError(_no_answer(plan, client))
            await self._stressors.start([s for s in plan.stressors if s.name in run.scenario.stressors])
            await self._phase("stress", phases.stress_s)
            await self._stressors.stop()
            if phases.after_s:
                await self._phase("after", phases.after_s)
            await self._hold("last samples", _LATE_TICKS * sampler.tick_s)
        finally:
            client_task = self._going.pop()
            client_task.cancel()
            await asyncio.gather(client_task, return_exceptions=True)
        rows = list(self._rows(run, client))
        measured = {name: _median(r.measured.p95_latency_s for r in rows if r.phase == name) for name in _PHASES}
        p95_s = {name: median for name, median in measured.items() if not math.isnan(median)}
        return RunResult(run, rows, client.failures, client.trouble, p95_s)

    async def _phase(self, name: str, seconds: float) -> None:
        start_ns = self._clock.mono_ns()
        await self._hold(name, seconds)
        self.phases.append(Phase(name, start_ns, self._clock.mono_ns()))

    async def _hold(self, name: str, seconds: float) -> None:
        """Let some time pass while checking load, stressors and VMs."""
        end_ns = self._clock.mono_ns() + round(seconds * 1e9)
        while True:
            now_ns = self._clock.mono_ns()
            self._on_progress(f"{self._what}: {name}", (now_ns - self._started_ns) / 1e9)
            for task in self._going:
                if task.done():
                    task.result()  # raises what ended it
            self._stressors.check()
            self._sampler.check()
            if now_ns >= end_ns:
                return
            await asyncio.sleep(min(_POLL_S, (end_ns - now_ns) / 1e9))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._going.append(asyncio.create_task(work))

    async def _close(self) -> None:
        """Stop everything; raise if a stressor could not be stopped."""
        try:
            async with asyncio.timeout(_STOP_S):
                await self._stressors.stop()
        except TimeoutError:
            raise UnavailableError(f"the stressors did not stop within {_STOP_S:g} s; stop them by hand") from None
        finally:
            for task in self._going:
                task.cancel()
            await asyncio.gather(*self._going, return_exceptions=True)
            await self._sampler.close()

    def _rows(self, run: Run, client: RequestLoad | CommandLoad) -> Iterator[Row]:
        """Join each second with what the client measured over it; seconds across phases are left out."""
        placed = [
            (phase, second)
            for phase in self.phases
            for second in self._sampler.seconds
            if phase.start_ns <= second.start_ns and second.end_ns <= phase.end_ns
        ]
        guest = (float(s.values[INDEX["guest_ratio"]]) for phase, s in placed if phase.name == "quiet")
        level = cpu_level(_median(guest))
        name, vm, load_ratio = run.scenario.name, self._plan.served.vm, run.load.load_ratio
        for phase, second in placed:
            measured = client.over(second.start_ns, second.end_ns) or Measured(math.nan)
            at_s = (second.end_ns - self.phases[0].start_ns) / 1e9
            yield Row(name, run.repetition, phase.name, at_s, vm, load_ratio, level, measured, second.values)


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Finish some work even if cancelled meanwhile (a second Ctrl-C)."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _no_answer(plan: Plan, client: RequestLoad | CommandLoad) -> str:
    if plan.served.requests is None:
        return "served.command printed nothing in the quiet phase: it has to print a JSON object per second"
    why = f": {client.trouble}" if client.trouble else ""
    return f"no answer from served.requests.address {plan.served.requests.address} in the quiet phase{why}"


def _median(numbers: Iterable[float]) -> float:
    """Return the median, by nearest rank, of the known numbers; NaN without any."""
    known = sorted(number for number in numbers if not math.isnan(number))
    return percentile(known, 0.5) if known else math.nan
