"""The agent's process on one asyncio loop: sources, tick, windows, and the sinks.

No sink (analysis, uplink, local API) stops the tick: a guard counts its failures and logs them once per change. The
watchdog is fed only while ticks continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from agent.antagonists.decide_victims import Decisions
from agent.antagonists.update_limits import AskedJobs, Refusals
from agent.api.state import AgentState, Counters, Names
from agent.clock import Clock, SystemClock, boot_id
from agent.config import AgentConfig, without_real_sources
from agent.facts.changes import FactChanges
from agent.failures import CLOUD_WHITE, Failures
from agent.history.capture import HistoryKeeper
from agent.host_info import platform_name
from agent.sampling.pipeline import Pipeline
from agent.sampling.scheduler import TickSchedule, first_due_ns
from agent.sampling.source_threads import STOP_WAIT_S, Slots, SourcePlan
from agent.sampling.startup import check_required, make_plans, wait_for
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import Report
from collector.base import NumaPlacement
from collector.inventory.numa import llc_domains
from whitepanda.common import log, sdnotify
from whitepanda.common.errors import WhitepandaError
from whitepanda.common.protocol import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from whitepanda.common.tls import OwnCertificate

if TYPE_CHECKING:
    from agent.antagonists.coefficients import CoefficientStore
    from agent.api.metrics_server import MetricsServer
    from agent.detection.baseline_file import BaselineFile
    from agent.sampling.host_cgroups import HostSuspects
    from agent.uplink.client import Uplink
    from whitepanda.v1 import agent_pb2


_log = log.get("agent")
_START_WAIT_S = 30.0  # a host that boots is busy
_GC_THRESHOLD = 50_000
_CLOCK_QUIET_NS = 60 * 1_000_000_000
_MAX_UPDATES = 3  # of coefficients, waiting for the disk


def run(config: AgentConfig) -> None:
    """Run the agent until SIGTERM or SIGINT; WhitepandaError: a required source or a setting does not work here."""
    asyncio.run(Daemon(config).run())


class Daemon:
    """The agent. `clock` and `plans` (sources instead of the configured ones) are for tests."""

    def __init__(
        self, config: AgentConfig, clock: Clock | None = None, plans: Sequence[SourcePlan] | None = None
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._stop = asyncio.Event()
        self._slots = Slots(make_plans(config) if plans is None else plans, self._clock)
        self._boot_id = boot_id()
        self._period_ns = round(config.agent.tick_s * 1e9)
        pipeline = Pipeline(config, self._slots)
        schedule = TickSchedule(self._period_ns, self._first_due_ns())
        self.state = AgentState(
            names=Names(
                host=config.agent.host or socket.gethostname(),
                platform=config.agent.platform or platform_name(),
                agent_version=metadata.version("whitepanda"),
                started_unix_ns=self._clock.unix_ns(),
                window_ms=round(min(config.window_lengths_s) * 1e3),
            ),
            clock=self._clock,
            pipeline=pipeline,
            schedule=schedule,
            counters=Counters(),
        )
        self._store: CoefficientStore | None = None
        self._host_suspects: HostSuspects | None = None
        self._uplink: Uplink | None = None
        self._metrics: MetricsServer | None = None
        self._failures = Failures(self._count_sink_error, self._clock)
        self._history = HistoryKeeper(config, self.state, self._failures)
        self._clock_quiet_until_ns = 0
        self._baselines: BaselineFile | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_due_ns = 0
        self._events_due_ns = self._clock.mono_ns() + 2 * round(max(config.window_lengths_s) * 1e9)
        self._asked_jobs = AskedJobs(self._clock.mono_ns)
        self._refusals = Refusals()
        self._facts = FactChanges(config, self._clock, self._failures)
        self._updates: set[asyncio.Task[bool]] = set()
        self._update_lock = asyncio.Lock()

    def stop(self) -> None:
        """Ask the daemon to end: the open windows go to the spool, the sources are closed."""
        self._stop.set()

    async def run(self) -> None:
        """Start everything, tick until `stop` or a signal, and end cleanly. Raises as the function `run`."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._run()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            stuck = self._slots.stop(STOP_WAIT_S, lambda: self._clock.mono_ns() / 1e9)
            if stuck:
                _log.warning("sources still hang at the end", sources=",".join(stuck))

    async def _run(self) -> None:
        self._slots.start()
        # Required sources are waited for; the others join when they can.
        required = [slot for slot in self._slots if slot.plan.mode == "required"]
        stop, clock = self._stop, self._clock
        await wait_for(required, lambda slot: slot.tried or stop.is_set(), clock=clock, timeout_s=_START_WAIT_S)
        check_required(required, _START_WAIT_S)
        self._start_analysis()
        self._start_cloud_white()
        self.state.decisions = Decisions(self._config, self.state.cloud_white, self.state.analysis)
        async with (
            self._history.running(),
            self._running_uplink(),
            self._running_local_api(),
            self._running_metrics(),
            asyncio.TaskGroup() as tasks,
        ):
            running = [tasks.create_task(one) for one in (self._tick_loop(), self._feed_watchdog(), self._facts.run())]
            # Objects of the start stay, and samples are freed by reference counts. Walking all of them for cycles
            # would cost as much as sampling at 1,000 VMs.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GC_THRESHOLD)
            sdnotify.notify("READY=1")
            _log.info("agent started", host=self.state.names.host, platform=self.state.names.platform)
            await self._stop.wait()
            sdnotify.notify("STOPPING=1")
            for task in running:
                task.cancel()
            self._submit(self.state.pipeline.windows.flush())
            await self._save_baselines()
        _log.info("agent ended", ticks=self.state.schedule.ticks, missed=self.state.schedule.missed)

    # --- the tick ---

    def _first_due_ns(self) -> int:
        return first_due_ns(self._clock.mono_ns(), self._clock.unix_ns(), self._period_ns)

    async def _tick_loop(self) -> None:
        schedule, counters, pipeline = self.state.schedule, self.state.counters, self.state.pipeline
        schedule.due_ns = self._first_due_ns()  # the start's duration is not a missed tick
        while True:
            await self._clock.sleep_until(schedule.due_ns)
            now_ns = self._clock.mono_ns()
            lateness_ns = schedule.advance(now_ns)
            if lateness_ns is None:
                continue
            counters.lateness_ns = lateness_ns
            self._watch_clock(now_ns)
            try:
                windows = pipeline.tick(now_ns)
            except Exception as error:  # noqa: BLE001 - the next tick may well succeed
                counters.tick_errors += 1
                self._failures.note("tick", error)
                windows = []
            else:
                self._failures.works("tick")
                self._run_cloud_white(now_ns)
                self._guard("verdicts", self._decide)
                self._guard("history", self._history.tick, now_ns)
            # Without VMs there are no windows that the last events could go with.
            has_late_events = now_ns >= self._events_due_ns and self._has_events()
            if windows or has_late_events:
                self._events_due_ns = now_ns + 2 * round(max(self._config.window_lengths_s) * 1e9)
                self._submit(windows)
            if windows:
                sdnotify.notify("STATUS=" + self.state.status_line())
            counters.duration_ns = self._clock.mono_ns() - now_ns
            # Only now: this thread no longer needs the interpreter. A source that hangs delays others a quarter tick.
            self._slots.kick_in_turn()
            asyncio.get_running_loop().call_later(self._config.agent.tick_s / 4, self._slots.kick_waiting)

    def _watch_clock(self, mono_ns: int) -> None:
        """Count steps of the wall clock, and log them at most once a minute."""
        unix_ns = self._clock.unix_ns()
        step_ns = self.state.counters.clock.observe(mono_ns, unix_ns)
        if step_ns is not None:
            self._facts.clock_was_set(mono_ns, unix_ns, step_ns)
        if step_ns is not None and mono_ns >= self._clock_quiet_until_ns:
            self._clock_quiet_until_ns = mono_ns + _CLOCK_QUIET_NS
            _log.warning("the wall clock stepped; windows near it may be short", seconds=round(step_ns / 1e9, 3))

    async def _feed_watchdog(self) -> None:
        """Feed the watchdog, unless a tick is overdue by more than the interval."""
        interval_s = sdnotify.watchdog_interval_s()
        if interval_s is None:
            return
        while True:
            if self._clock.mono_ns() <= self.state.schedule.due_ns + round(interval_s * 1e9):
                sdnotify.notify("WATCHDOG=1")
            await asyncio.sleep(interval_s / 2)

    # --- sinks: none of them stops the tick ---

    def _submit(self, windows: list[CpiWindow]) -> None:
        decisions = self.state.decisions
        if not windows and not self._has_events():
            return
        self._guard("host suspects", self._add_host_suspects, windows)
        if windows and self.state.analysis is not None:
            end_unix_ns = max(self.state.pipeline.windows.end_unix_ns(window) for window in windows)
            changes = ((vm.identity.uuid, vm.change) for vm in self.state.pipeline.table if vm.change is not None)
            places = {uuid: change.numa for uuid, change in changes if isinstance(change.numa, NumaPlacement)}
            self._guard("analysis", self.state.analysis.observe, windows, end_unix_ns, places)
        events: list[Report] = []
        if decisions is not None:
            self._guard("verdicts", self._decide)
            events += decisions.events.take()
            self._guard("reports", self._add_report, decisions, events)
            with self._failures.guard("verdicts"):
                windows = decisions.with_verdicts(windows)
        self._guard("history", self._history.windows, windows)
        if self._uplink is not None:
            with self._failures.guard("facts"):
                events += self._facts.take(self.state.pipeline.table)
            self._guard("queueing for central", self._uplink.submit, windows, events)

    def _add_report(self, decisions: Decisions, events: list[Report]) -> None:
        """Add the report on victims that is due, if any, with recommendations unless these fail."""
        report = decisions.report(self._clock.unix_ns())
        if report is None:
            return
        with self._failures.guard("recommendations"):
            if self.state.advisor is not None:
                report = self.state.advisor.with_advice(report)
        events.append(report)

    def _add_host_suspects(self, windows: list[CpiWindow]) -> None:
        if self._host_suspects is not None:
            pids = [vm.identity.pid for vm in self.state.pipeline.table if vm.identity.pid > 0]
            windows += self._host_suspects.windows(self._clock.mono_ns(), windows, pids)

    def _has_events(self) -> bool:
        decisions = self.state.decisions
        return (decisions is not None and decisions.has_news) or self._facts.is_host_new

    def _decide(self) -> None:
        """Decide on all VMs by the present results of both analyses."""
        if self.state.decisions is not None:
            self.state.decisions.tick(self.state.pipeline.table, self._clock.mono_ns(), self._clock.unix_ns())

    def _run_cloud_white(self, now_ns: int) -> None:
        """Judge the tick's rates; from time to time save the baselines."""
        cloud_white, pipeline = self.state.cloud_white, self.state.pipeline
        if cloud_white is None:
            return
        began_ns, unix_ns = self._clock.mono_ns(), self._clock.unix_ns()
        self._guard(CLOUD_WHITE, cloud_white.tick, pipeline.table, pipeline.host_rates, now_ns, unix_ns)
        self.state.counters.analysis_ns = self._clock.mono_ns() - began_ns
        if now_ns >= self._save_due_ns and (self._saving is None or self._saving.done()):
            self._save_due_ns = now_ns + round(self._config.cloud_white.save_interval_s * 1e9)
            self._saving = asyncio.create_task(self._save_baselines())

    async def _save_baselines(self) -> None:
        """Write the baselines, outside the loop."""
        if self.state.cloud_white is None or self._baselines is None:
            return
        if self._saving is not None and self._saving is not asyncio.current_task():
            await asyncio.wait({self._saving})
        with self._failures.guard("saving baselines"):
            state = self.state.cloud_white.dump()
            await asyncio.to_thread(self._baselines.write, state, self._clock.unix_ns())

    def _guard(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        with self._failures.guard(what):
            call(*arguments)

    def _count_sink_error(self) -> None:
        self.state.counters.sink_errors += 1

    def _start_analysis(self) -> None:
        from agent.antagonists.advisor import Advisor, limits_of
        from agent.antagonists.coefficients import CoefficientStore
        from agent.antagonists.host_analysis import HostAnalysis

        path = Path(self._config.agent.state_dir) / "coefficients.json"
        with self._failures.guard("start of the analysis", but=(WhitepandaError,)):
            self._store = CoefficientStore(
                path,
                self._config.uplink,
                asked=self._asked_jobs,
                platform=self.state.names.platform,
                refusals=self._refusals,
                now_unix_ns=self._clock.unix_ns,
            )
            section, platform = self._config.analysis, self.state.names.platform
            self.state.analysis = HostAnalysis(section, platform, self._store, llc_domains())
            most = section.max_host_suspects
            sources = without_real_sources(self._config).sources
            resctrl = Path(sources.resctrl.root) if sources.resctrl.mode != "off" else None
            limits = limits_of(resctrl, self._config.act, self._config.uplink.address)
            self.state.advisor = Advisor(self.state, self._store, limits)
            if most and sources.cgroup.mode != "off":  # a simulated host has no control groups
                from agent.sampling.host_cgroups import HostSuspects

                self._host_suspects = HostSuspects(sources.cgroup.root, most, sources.procfs.root)

    def _start_cloud_white(self) -> None:
        section = self._config.cloud_white
        if section.detector == "off":
            return
        with self._failures.guard(f"start of {CLOUD_WHITE}"):
            from agent.detection.baseline_file import BaselineFile
            from agent.detection.cloud_white import CloudWhite
            from agent.detection.degradation_models import load

            cloud_white = CloudWhite(section, load(section.models))
            self._baselines = BaselineFile(Path(self._config.agent.state_dir) / "baselines.json", section.detector)
            if (saved := self._baselines.read()) is not None:
                try:
                    cloud_white.restore(saved, self._clock.unix_ns())
                except Exception as error:  # noqa: BLE001 - a damaged file may fail in any way
                    self._baselines.set_aside(repr(error))
            self.state.cloud_white = cloud_white
            self._save_due_ns = self._clock.mono_ns() + round(section.save_interval_s * 1e9)

    def _on_coefficients(self, update: agent_pb2.CoefficientUpdate) -> asyncio.Future[bool]:
        # Writing waits for the disk, so it is done outside the loop, one update after another. A stream waits for its
        # last update, so more than a few are of streams that ended.
        if len(self._updates) >= _MAX_UPDATES:
            self._refusals.update("waiting", "the disk has not taken the updates before it")
            refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            refused.set_result(False)
            return refused
        task = asyncio.create_task(self._take_coefficients(update))
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)
        return task

    async def _take_coefficients(self, update: agent_pb2.CoefficientUpdate) -> bool:
        """Return whether it was taken."""
        async with self._update_lock:
            if self._store is None:
                return True
            with self._failures.guard("coefficients"):
                return await asyncio.to_thread(self._store.apply, update)
            return False

    def _hello(self) -> agent_pb2.Hello:
        from whitepanda.v1 import agent_pb2

        names = self.state.names
        suspects = self._host_suspects.jobs if self._host_suspects else frozenset()
        jobs = sorted(self.state.pipeline.table.jobs() | suspects)
        self._asked_jobs.note(jobs)
        return agent_pb2.Hello(
            host=names.host,
            boot_id=self._boot_id,
            platform=names.platform,
            sent_unix_ns=self._clock.unix_ns(),
            agent_version=names.agent_version,
            agent_started_unix_ns=names.started_unix_ns,
            protocol_version=PROTOCOL_VERSION,
            min_protocol_version=MIN_PROTOCOL_VERSION,
            coefficient_version=self._store.version if self._store else 0,
            jobs=jobs,
            window_ms=names.window_ms,
            held=self._store.held_tags if self._store else (),
        )

    @contextlib.asynccontextmanager
    async def _running_uplink(self) -> AsyncIterator[None]:
        section = self._config.uplink
        if not section.address:
            yield
            return
        from agent.uplink.client import Uplink
        from agent.uplink.disk_queue import Spool

        file = Path(self._config.agent.state_dir) / "spool.db"
        spool = Spool(file, max_bytes=section.spool_max_mib << 20, boot_id=self._boot_id)
        self.state.certificates["uplink.tls"] = OwnCertificate(section.tls)
        uplink = self._uplink = Uplink(
            section, self._hello, spool, self._on_coefficients, windows=self._config.windows, refusals=self._refusals
        )
        self.state.uplink = uplink.view
        self._facts.connections = lambda: uplink.connections
        try:
            async with self._failures.kept_running("uplink", uplink.run):
                yield
        finally:
            await uplink.close()  # the last windows go to the spool
            await asyncio.to_thread(spool.close)

    @contextlib.asynccontextmanager
    async def _running_local_api(self) -> AsyncIterator[None]:
        from agent.api.server import LocalApi

        api = LocalApi(self.state, Path(self._config.agent.socket))
        running: contextlib.AbstractAsyncContextManager[None] = self._failures.kept_running("local API", api.start)
        with self._failures.guard("local API", but=(WhitepandaError,)):
            await api.start()
            running = contextlib.nullcontext()
        try:
            async with running:
                yield
        finally:
            with contextlib.suppress(Exception):
                await api.stop()

    @contextlib.asynccontextmanager
    async def _running_metrics(self) -> AsyncIterator[None]:
        section = self._config.metrics
        if not section.listen:
            yield
            return
        try:
            async with self._failures.kept_running("metrics", self._start_metrics):
                yield
        finally:
            if self._metrics is not None:
                with contextlib.suppress(Exception):
                    await self._metrics.stop()

    async def _start_metrics(self) -> None:
        from agent.api.metrics_server import MetricsServer

        schedule, section, tick_s = self.state.schedule, self._config.metrics, self._config.agent.tick_s
        server = MetricsServer(section, self.state.snapshot, lambda: schedule.ticks, tick_s, self._on_refused_scrape)
        await server.start()
        self._metrics = server
        if section.tls.certificate:
            self.state.certificates["metrics.tls"] = OwnCertificate(section.tls)

    def _on_refused_scrape(self) -> None:
        self.state.counters.refused_scrapes += 1  # the server calls it under its lock
