"""The agent's process on one asyncio loop: sources, tick, windows, and the sinks.

No sink (analysis, uplink, local API) stops the tick: each is called under a guard that counts and logs its
failures, once per change. The watchdog is fed only while ticks go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.antagonists.decisions import Decisions
from agent.antagonists.update_limits import AskedJobs, Refusals
from agent.api.view import Counters, Names, StateView
from agent.clock import Clock, SystemClock, boot_id
from agent.config import AgentConfig, without_real_sources
from agent.failures import CLOUD_WHITE, Failures
from agent.host_info import platform_name
from agent.sampling.pipeline import Pipeline
from agent.sampling.runner import STOP_WAIT_S, Slots, SourcePlan
from agent.sampling.scheduler import TickSchedule, first_due_ns
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
    from agent.antagonists.reports import Trigger
    from agent.api.prometheus import MetricsServer
    from agent.detection.baselines import BaselineFile
    from agent.detection.cloud_white import CloudWhite
    from agent.sampling.host_cgroups import HostSuspects
    from agent.uplink.client import Uplink
    from whitepanda.v1 import agent_pb2


_log = log.get("agent")

_START_WAIT_S = 30.0  # a host that boots is busy
_RETRY_MIN_S, _RETRY_MAX_S = 1.0, 60.0
_GC_THRESHOLD = 50_000
_CLOCK_QUIET_NS = 60 * 1_000_000_000
_MAX_UPDATES = 3  # of coefficients that wait for the disk


def run(config: AgentConfig) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        WhitepandaError: it cannot start: a required source is not available, or a setting does not work here.

    """
    asyncio.run(Daemon(config).run())


class Daemon:
    """The agent.

    Args:
        config: all of it.
        clock: for tests.
        plans: sources instead of the configured ones.

    """

    def __init__(
        self, config: AgentConfig, clock: Clock | None = None, plans: Sequence[SourcePlan] | None = None
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._stop = asyncio.Event()
        self._turn_patience_s = config.agent.tick_s / 4  # a source that hangs costs the others no more
        self._slots = Slots(make_plans(config) if plans is None else plans, self._clock)
        self._boot_id = boot_id()
        self._period_ns = round(config.agent.tick_s * 1e9)
        pipeline = Pipeline(config, self._slots)
        schedule = TickSchedule(self._period_ns, self._first_due_ns())
        self.state = StateView(
            names=Names(
                host=config.agent.host or socket.gethostname(),
                platform=config.agent.platform or platform_name(),
                agent_version=metadata.version("whitepanda"),
                started_unix_ns=self._clock.unix_ns(),
                window_ms=round(config.agent.window_s * 1e3),
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
        self._failures = Failures(self._count_sink_error)
        self._clock_quiet_until_ns = 0
        self._baselines: BaselineFile | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_due_ns = 0
        self._events_due_ns = 0
        self._asked_jobs = AskedJobs(self._clock.mono_ns)
        self._refusals = Refusals()
        self._updates: set[asyncio.Task[bool]] = set()
        self._update_lock = asyncio.Lock()

    def stop(self) -> None:
        """Ask the daemon to end: the open windows go to the spool, the sources are closed."""
        self._stop.set()

    async def run(self) -> None:
        """Start everything, tick until `stop` or a signal, and end cleanly.

        Raises:
            WhitepandaError: as `run`.

        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._run()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            stuck = self._slots.stop(STOP_WAIT_S, lambda: self._clock.mono_ns() / 1e9)
            if stuck:
                _log.warning("sources left hanging at the end", sources=",".join(stuck))

    async def _run(self) -> None:
        self._slots.start()
        await self._wait_for_sources()
        self._start_analysis()
        self._start_cloud_white()
        self.state.decisions = Decisions(self._config, self.state.cloud_white, self.state.analysis)
        async with (
            self._running_uplink(),
            self._running_local_api(),
            self._running_metrics(),
            asyncio.TaskGroup() as tasks,
        ):
            ticking = tasks.create_task(self._tick_loop())
            watchdog = tasks.create_task(self._feed_watchdog())
            # What start made stays, and samples die by their counts of references: the collector of cycles need
            # not walk them each tick, which at 1,000 VMs costs as much as sampling does.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GC_THRESHOLD)
            sdnotify.notify("READY=1")
            _log.info("agent runs", host=self.state.names.host, platform=self.state.names.platform)
            await self._stop.wait()
            sdnotify.notify("STOPPING=1")
            ticking.cancel()
            watchdog.cancel()
            self._submit(self.state.pipeline.windows.flush())
            await self._save_baselines()
        _log.info("agent ended", ticks=self.state.schedule.ticks, missed=self.state.schedule.missed)

    async def _wait_for_sources(self) -> None:
        """Wait until the required sources were opened; the others join when they can."""
        required = [slot for slot in self._slots if slot.plan.mode == "required"]
        await wait_for(
            required, lambda slot: slot.tried or self._stop.is_set(), clock=self._clock, timeout_s=_START_WAIT_S
        )
        check_required(required, _START_WAIT_S)

    # --- the tick ---

    def _first_due_ns(self) -> int:
        return first_due_ns(self._clock.mono_ns(), self._clock.unix_ns(), self._period_ns)

    async def _tick_loop(self) -> None:
        schedule, counters, pipeline = self.state.schedule, self.state.counters, self.state.pipeline
        schedule.due_ns = self._first_due_ns()  # what start took are no missed ticks
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
            except Exception as error:  # noqa: BLE001 - the next tick may well succeed; what failed is told
                counters.tick_errors += 1
                self._failures.note("tick", error)
                windows = []
            else:
                self._failures.works("tick")
                self._run_cloud_white(now_ns)
                self._guard("verdicts", self._decide)
            # Where no VM is left there are no windows for the last events to go with.
            has_late_events = now_ns >= self._events_due_ns and self._has_events()
            if windows or has_late_events:
                self._events_due_ns = now_ns + 2 * round(self._config.agent.window_s * 1e9)
                self._submit(windows)
            if windows:
                self._tell_status()
            counters.duration_ns = self._clock.mono_ns() - now_ns
            # Now that this thread needs the interpreter no longer.
            self._slots.kick_in_turn()
            asyncio.get_running_loop().call_later(self._turn_patience_s, self._slots.kick_waiting)

    def _watch_clock(self, mono_ns: int) -> None:
        """Count and tell steps of the wall clock; a clock that steps all the time is told of once a minute."""
        step_ns = self.state.counters.clock.observe(mono_ns, self._clock.unix_ns())
        if step_ns is not None and mono_ns >= self._clock_quiet_until_ns:
            self._clock_quiet_until_ns = mono_ns + _CLOCK_QUIET_NS
            _log.warning("the wall clock stepped; windows near it may be short", seconds=round(step_ns / 1e9, 3))

    async def _feed_watchdog(self) -> None:
        """Tell the service manager that we live, as long as no tick is overdue by more than the interval."""
        interval_s = sdnotify.watchdog_interval_s()
        if interval_s is None:
            return
        while True:
            if self._clock.mono_ns() <= self.state.schedule.due_ns + round(interval_s * 1e9):
                sdnotify.notify("WATCHDOG=1")
            await asyncio.sleep(interval_s / 2)

    def _tell_status(self) -> None:
        views = self._slots.views()
        bad = [f"{view.name} {view.state}" for view in views if view.state not in {"available", "off"}]
        uplink = self.state.uplink()
        vms = len(self.state.pipeline.table)
        parts = [f"{vms} {'VM' if vms == 1 else 'VMs'}", *bad]
        if uplink.state != "off":
            parts.append(f"central {uplink.state}, {uplink.spooled_batches} batches spooled")
        sdnotify.notify("STATUS=" + "; ".join(parts))

    # --- sinks: none of them stops the tick ---

    def _submit(self, windows: list[CpiWindow]) -> None:
        decisions = self.state.decisions
        if not windows and not self._has_events():
            return
        self._guard("host suspects", self._add_host_suspects, windows)
        if windows and self.state.analysis is not None:
            end_unix_ns = max(self.state.pipeline.windows.end_unix_ns(window) for window in windows)
            self._guard("analysis", self.state.analysis.observe, windows, end_unix_ns, self._places())
        events: list[Report] = []
        if decisions is not None:
            self._guard("verdicts", self._decide)
            events += decisions.events.take()
            self._guard("reports", self._add_report, decisions, events)
        if self._uplink is not None:
            self._guard("queueing for central", self._uplink.submit, windows, events)

    def _add_report(self, decisions: Decisions, events: list[Report]) -> None:
        """Add what central has to know of victims now, if anything."""
        report = decisions.report(self._clock.unix_ns())
        if report is not None:
            events.append(self._advised(report))

    def _advised(self, trigger: Trigger) -> Trigger:
        """Add what could be done; a report without that is better than none."""
        if self.state.advisor is None:
            return trigger
        with self._failures.guard("recommendations"):
            return self.state.advisor.with_advice(trigger)
        return trigger

    def _add_host_suspects(self, windows: list[CpiWindow]) -> None:
        if self._host_suspects is not None:
            pids = [vm.identity.pid for vm in self.state.pipeline.table if vm.identity.pid > 0]
            windows += self._host_suspects.windows(self._clock.mono_ns(), windows, pids)

    def _places(self) -> dict[str, NumaPlacement]:
        """Where VMs are, as far as that is known."""
        changes = ((vm.identity.uuid, vm.change) for vm in self.state.pipeline.table if vm.change is not None)
        return {uuid: change.numa for uuid, change in changes if isinstance(change.numa, NumaPlacement)}

    def _has_events(self) -> bool:
        return self.state.decisions is not None and self.state.decisions.has_news

    def _decide(self) -> None:
        """Decide on all VMs by what both analyses say now."""
        if self.state.decisions is not None:
            now_ns, unix_ns = self._clock.mono_ns(), self._clock.unix_ns()
            self.state.decisions.tick(self.state.pipeline.table, now_ns, unix_ns)

    def _run_cloud_white(self, now_ns: int) -> None:
        """Judge the tick's rates; now and then have what was learnt of them written."""
        cloud_white, pipeline = self.state.cloud_white, self.state.pipeline
        if cloud_white is None:
            return
        began_ns = self._clock.mono_ns()
        unix_ns = self._clock.unix_ns()
        self._guard(CLOUD_WHITE, cloud_white.tick, pipeline.table, pipeline.host_rates, now_ns, unix_ns)
        self.state.counters.analysis_ns = self._clock.mono_ns() - began_ns
        if now_ns >= self._save_due_ns and (self._saving is None or self._saving.done()):
            self._save_due_ns = now_ns + round(self._config.cloud_white.save_interval_s * 1e9)
            self._saving = asyncio.create_task(self._save_baselines())

    async def _save_baselines(self) -> None:
        """Write what was learnt; the disk is not the loop's business."""
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

    async def _keep_running(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        """Run a sink's coroutine for ever: when it fails, again after a back-off."""
        wait_s = _RETRY_MIN_S
        while not self._stop.is_set():
            started_ns = self._clock.mono_ns()
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - as in Failures.guard
                if self._clock.mono_ns() - started_ns > _RETRY_MAX_S * 1e9:  # it worked in between
                    self._failures.forget(what)
                    wait_s = _RETRY_MIN_S
                self._failures.count(what, error)
            else:
                self._failures.works(what)
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)

    def _start_analysis(self) -> None:
        from agent.antagonists.advice import Advisor, limits_of
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
            self.state.analysis = HostAnalysis(
                self._config.analysis, self.state.names.platform, self._store, llc_domains()
            )
            most = self._config.analysis.max_host_suspects
            sources = without_real_sources(self._config).sources
            resctrl = Path(sources.resctrl.root) if sources.resctrl.mode != "off" else None
            self.state.advisor = Advisor(
                self.state, self._store, limits_of(resctrl, self._config.act, self._config.uplink.address)
            )
            if most and sources.cgroup.mode != "off":  # a simulated host's neighbours are not ours
                from agent.sampling.host_cgroups import HostSuspects

                self._host_suspects = HostSuspects(sources.cgroup.root, most, sources.procfs.root)

    def _start_cloud_white(self) -> None:
        section = self._config.cloud_white
        if section.detector == "off":
            return
        with self._failures.guard(f"start of {CLOUD_WHITE}"):
            from agent.detection.baselines import BaselineFile
            from agent.detection.cloud_white import CloudWhite
            from agent.detection.degradation_models import load

            cloud_white = CloudWhite(section, load(section.models))
            self._baselines = BaselineFile(Path(self._config.agent.state_dir) / "baselines.json", section.detector)
            self._restore(cloud_white, self._baselines)
            self.state.cloud_white = cloud_white
            self._save_due_ns = self._clock.mono_ns() + round(section.save_interval_s * 1e9)

    def _restore(self, cloud_white: CloudWhite, file: BaselineFile) -> None:
        saved = file.read()
        if saved is None:
            return
        try:
            cloud_white.restore(saved, self._clock.unix_ns())
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes it stumble over
            file.set_aside(repr(error))

    def _on_coefficients(self, update: agent_pb2.CoefficientUpdate) -> asyncio.Future[bool]:
        # Writing them waits for the disk, which is not the loop's business. Updates are taken one after
        # another; a stream waits for its last one, so that more than a few are of streams that ended.
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
        jobs = sorted(
            self.state.pipeline.table.jobs() | (self._host_suspects.jobs if self._host_suspects else frozenset())
        )
        self._asked_jobs.note(jobs)
        return agent_pb2.Hello(
            host=names.host,
            boot_id=self._boot_id,
            platform=names.platform,
            sent_unix_ns=self._clock.unix_ns(),
            agent_version=names.agent_version,
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
        from agent.uplink.spool import Spool

        spool = Spool(
            Path(self._config.agent.state_dir) / "spool.db",
            max_bytes=section.spool_max_mib << 20,
            boot_id=self._boot_id,
        )
        self.state.certificates["uplink.tls"] = OwnCertificate(section.tls)
        uplink = self._uplink = Uplink(section, self._hello, spool, self._on_coefficients, refusals=self._refusals)
        self.state.uplink = uplink.view
        task = asyncio.create_task(self._keep_running("uplink", uplink.run))
        try:
            yield
        finally:
            await _cancel(task)
            await uplink.close()  # what was submitted last goes to the spool
            await asyncio.to_thread(spool.close)

    @contextlib.asynccontextmanager
    async def _running_local_api(self) -> AsyncIterator[None]:
        from agent.api.server import LocalApi

        api = LocalApi(self.state, Path(self._config.agent.socket))
        started = False
        with self._failures.guard("local API", but=(WhitepandaError,)):
            await api.start()
            started = True
        retry = None if started else asyncio.create_task(self._keep_running("local API", api.start))
        try:
            yield
        finally:
            if retry is not None:
                await _cancel(retry)
            with contextlib.suppress(Exception):
                await api.stop()

    @contextlib.asynccontextmanager
    async def _running_metrics(self) -> AsyncIterator[None]:
        section = self._config.metrics
        if not section.listen:
            yield
            return
        task = asyncio.create_task(self._keep_running("metrics", self._start_metrics))
        try:
            yield
        finally:
            await _cancel(task)
            if self._metrics is not None:
                with contextlib.suppress(Exception):
                    await self._metrics.stop()

    async def _start_metrics(self) -> None:
        from agent.api.prometheus import MetricsServer

        schedule = self.state.schedule
        section, tick_s = self._config.metrics, self._config.agent.tick_s
        server = MetricsServer(section, self.state.snapshot, lambda: schedule.ticks, tick_s, self._on_refused_scrape)
        await server.start()
        self._metrics = server
        if section.tls.certificate:
            self.state.certificates["metrics.tls"] = OwnCertificate(section.tls)

    def _on_refused_scrape(self) -> None:
        self.state.counters.refused_scrapes += 1  # the server calls it under its lock


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
