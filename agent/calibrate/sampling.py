"""All VMs of this host, each tick, through the agent's own sources and pipeline."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from agent.analysis.signals import Tick, Values, VmKey, load_factors, signals_of
from agent.clock import SystemClock
from agent.config import AgentConfig
from agent.recording.record import troubles_of
from agent.sampling.metric_table import HostRates, VmRates
from agent.sampling.pipeline import Pipeline
from agent.sampling.scheduler import TickSchedule, first_due_ns
from agent.sampling.source_threads import STOP_WAIT_S, Slots, SourceView
from agent.sampling.startup import check_required, make_plans, wait_for
from agent.sampling.vms import Vm
from collector.base import Reason
from whitepanda.common.errors import UnavailableError
from whitepanda.common.texts import several_named

_START_WAIT_S = 10.0
_PAUSED = "paused"


class Second(NamedTuple):
    """The served VM over one tick; `values` has shape (SIGNALS,)."""

    start_ns: int
    end_ns: int
    values: Values


class Sampler:
    """Samples the host and checks which VMs run.

    Disks are read each tick, whatever `config` says, so that each second has its own values. `wanted`: names or UUIDs
    of the campaign's VMs, the served one first. `on_tick` is called with each tick's signals of all running VMs.
    `workers`: requests that the served VM serves in parallel; None: from the job rules.
    """

    def __init__(
        self,
        config: AgentConfig,
        wanted: Sequence[str],
        *,
        beside_others: bool = False,
        on_tick: Callable[[Tick], None] = lambda _tick: None,
        workers: int | None = None,
    ) -> None:
        self._config = _with_quick_disks(config)
        self._wanted = wanted
        self._beside_others = beside_others
        self._on_tick = on_tick
        self._workers = workers
        self._clock = SystemClock()
        self._slots = Slots(make_plans(self._config), self._clock)
        self._pipeline = Pipeline(self._config, self._slots)
        self._epochs: dict[str, str] = {}
        self.tick_s = config.agent.tick_s
        self.seconds: list[Second] = []

    @property
    def sources(self) -> tuple[SourceView, ...]:
        """The states of the sources."""
        return self._slots.views()

    async def open(self) -> None:
        """Start the sources and wait for the first rates; UnavailableError for missing sources, or as `check`."""
        self._slots.start()
        await wait_for(self._slots, lambda slot: slot.tried, clock=self._clock, timeout_s=_START_WAIT_S)
        check_required(self._slots, _START_WAIT_S)
        for _ in range(3):  # requested, read, and read again: then there are rates
            self._tick(self._clock.mono_ns())
            await self._clock.sleep_until(self._clock.mono_ns() + round(self.tick_s * 1e9))
        self._tick(self._clock.mono_ns())
        self._epochs = {vm.identity.uuid: vm.identity.epoch for vm in self._named()}
        self.check()

    async def run(self) -> None:
        """Sample each tick until cancelled."""
        period_ns = round(self.tick_s * 1e9)
        now_ns = self._clock.mono_ns()
        schedule = TickSchedule(period_ns, first_due_ns(now_ns, self._clock.unix_ns(), period_ns))
        while True:
            await self._clock.sleep_until(schedule.due_ns)
            now_ns = self._clock.mono_ns()
            if schedule.advance(now_ns) is not None:
                self._tick(now_ns)
                self._note(now_ns)

    def _tick(self, now_ns: int) -> None:
        self._pipeline.tick(now_ns)
        self._slots.kick()

    def check(self) -> None:
        """Raise UnavailableError unless exactly the campaign's VMs run, in the same epochs as at the start."""
        found = {vm.identity.uuid: vm for vm in self._named()}
        for name in self._wanted:
            if not any(name in (vm.identity.name, vm.identity.uuid) for vm in found.values()):
                have = ", ".join(sorted(vm.identity.name for vm in self._running())) or "none"
                raise UnavailableError(
                    f"VM '{name}' of the plan does not run here; running: {have}"
                    f"{troubles_of(self.sources) if have == 'none' else ''}"
                )
            if name not in found and len(same := [u for u, vm in found.items() if vm.identity.name == name]) > 1:
                raise UnavailableError(f"the plan's VM is ambiguous: {several_named(name, same)} in the plan")
        for uuid, vm in found.items():
            if vm.identity.epoch != self._epochs.get(uuid):
                raise UnavailableError(f"VM '{vm.identity.name}' was restarted during the campaign")
        others = sorted(vm.identity.name for vm in self._running() if vm.identity.uuid not in found)
        if others and not self._beside_others:
            raise UnavailableError(
                f"VMs outside the plan run here: {', '.join(others)}; they would be disturbed, and would "
                "disturb the measurement: stop or move them, or give --beside-others"
            )

    async def close(self) -> None:
        """Stop the sources."""
        await asyncio.to_thread(self._slots.stop, STOP_WAIT_S, time.monotonic)

    def _running(self) -> Iterator[Vm]:
        return (vm for vm in self._pipeline.table if vm.identity.state != _PAUSED)

    def _named(self) -> Iterator[Vm]:
        return (vm for vm in self._running() if vm.identity.name in self._wanted or vm.identity.uuid in self._wanted)

    def _is_served(self, vm: Vm) -> bool:
        return self._wanted[0] in (vm.identity.name, vm.identity.uuid)

    def _note(self, now_ns: int) -> None:
        """Make the tick's signals, and keep the served VM's second if it is a new one."""
        vms = list(self._running())
        workers = {vm.identity.uuid: self._workers for vm in vms if self._workers and self._is_served(vm)}
        keys = tuple(
            VmKey(vm.identity.uuid, vm.identity.epoch, vm.identity.vcpus, workers.get(vm.identity.uuid, vm.workers))
            for vm in vms
        )
        host = _known(self._pipeline.host_rates)
        values = signals_of([_known(vm.rates) for vm in vms], host, load_factors(keys))
        self._on_tick(Tick(now_ns / 1e9, keys, values))
        for vm, own in zip(vms, values, strict=True):
            cpu = Reason.INVALID_VALUE if vm.change is None else vm.change.cpu
            if not self._is_served(vm) or isinstance(cpu, Reason):
                continue
            if not self.seconds or cpu.mono_ns > self.seconds[-1].end_ns:
                self.seconds.append(Second(cpu.mono_ns - cpu.dt_ns, cpu.mono_ns, own))


def _known(rates: VmRates | HostRates | Reason) -> dict[str, float]:
    """Return the metrics that are known, by name."""
    if isinstance(rates, Reason):
        return {}
    return {name: value for name, value in rates._asdict().items() if not isinstance(value, Reason)}


def _with_quick_disks(config: AgentConfig) -> AgentConfig:
    sources, tick_s = config.sources, config.agent.tick_s
    quick = {
        name: msgspec.structs.replace(section, disk_poll_s=min(section.disk_poll_s, tick_s))
        for name, section in (("libvirt", sources.libvirt), ("qemu", sources.qemu))
    }
    return msgspec.structs.replace(config, sources=msgspec.structs.replace(sources, **quick))
