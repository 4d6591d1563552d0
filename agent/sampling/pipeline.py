"""One tick's work, from samples to rates and windows, without the loop and the sinks.

A tick takes what the sources delivered since the last tick, then asks them for new samples: it waits for none, and what
it computes is one tick old, as each sample's age shows.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.config import AgentConfig, Sources
from agent.sampling.metric_table import HostRates
from agent.sampling.rates import Limits, derive_host
from agent.sampling.source_threads import Slots
from agent.sampling.vms import JobRules, VmTable
from agent.sampling.windows import CpiWindow, WindowAccumulator
from collector.base import HostCounters, Reason, SourceSample
from collector.registry import SOURCES

#: A sample older than this many ticks is stale, and no delta is made across a longer gap.
STALE_TICKS = 5
# A window waits this many ticks for its last samples: one as they are read a tick later, half of one for a slow source.
_GRACE_TICKS = 1.5
_SLOW_POLLS = 2.5


class Inputs(NamedTuple):
    """All that one tick works on: of the same inputs it makes the same rates and windows, live or replayed.

    `troubles` says of each source why it has nothing new, None where it works; a source that is not there is off.
    """

    mono_ns: int
    samples: Sequence[SourceSample]
    troubles: Mapping[str, Reason | None]


def take(slots: Slots, mono_ns: int) -> Inputs:
    """Take what the sources delivered since the last tick; does not ask them for more."""
    return Inputs(mono_ns, slots.samples(), {spec.name: slots.trouble(spec.name) for spec in SOURCES})


class Pipeline:
    """Slots, VM table and windows of one host. The slots' owner starts and stops them."""

    def __init__(self, config: AgentConfig, slots: Slots) -> None:
        tick_ns = round(config.agent.tick_s * 1e9)
        limits = Limits(config.sources.perf.min_running_ratio, config.agent.min_activity_cores)
        self.slots = slots
        self.stale_after_ns = STALE_TICKS * tick_ns
        self.table = VmTable(JobRules(config.jobs), limits, self.stale_after_ns, self._trouble, _slow_parts(config))
        lengths_ns = tuple(round(seconds * 1e9) for seconds in config.window_lengths_s)
        self.windows = WindowAccumulator((lengths_ns[0], lengths_ns[1]), round(_GRACE_TICKS * tick_ns), limits)
        self.host_rates: HostRates | Reason = Reason.VM_STARTING
        self.host_source = ""
        self.host_mono_ns = 0
        self._host: tuple[SourceSample, HostCounters] | None = None
        self._troubles: Mapping[str, Reason | None] = {}

    def tick(self, mono_ns: int) -> list[CpiWindow]:
        """Read all slots, make rates; return the windows that ended. The caller asks for new samples."""
        return self.process(take(self.slots, mono_ns))

    def process(self, inputs: Inputs) -> list[CpiWindow]:
        """Make rates of a tick's inputs; return the windows that ended."""
        mono_ns, samples, self._troubles = inputs
        self.table.update(samples, mono_ns)
        self._update_host(samples, mono_ns)
        for vm in self.table:
            if vm.change is not None:
                labels = (vm.identity.name, vm.job, vm.latency_sensitive)
                self.windows.add(vm.identity.uuid, vm.identity.epoch, labels, vm.change, vm.rates)
        return self.windows.close(mono_ns, ((vm.identity.uuid, vm.identity.epoch) for vm in self.table))

    def _trouble(self, source: str) -> Reason | None:
        return self._troubles.get(source, Reason.SOURCE_OFF)

    def _update_host(self, samples: Sequence[SourceSample], mono_ns: int) -> None:
        sample = next((sample for sample in samples if sample.host is not None), None)
        if sample is None or sample.host is None:
            self.host_rates = self._trouble("procfs") or Reason.VM_STARTING
            return
        if mono_ns - sample.mono_ns > self.stale_after_ns:
            self.host_rates = Reason.STALE
            return
        last, self._host = self._host, (sample, sample.host)
        if last is None or last[0].source != sample.source:
            self.host_rates = Reason.VM_STARTING
        elif last[0].mono_ns != sample.mono_ns:  # else the same sample again: its rates stand
            self.host_rates = derive_host(sample.host, last[1], sample.mono_ns - last[0].mono_ns)
        self.host_source, self.host_mono_ns = sample.source, sample.mono_ns


def timely_sources(config: AgentConfig) -> Sources:
    """Return the sources' settings with disks polled at least once in each window: else a window would have none."""
    polls = {}
    for name, section in (("libvirt", config.sources.libvirt), ("qemu", config.sources.qemu)):
        polls[name] = msgspec.structs.replace(section, disk_poll_s=min(section.disk_poll_s, *config.window_lengths_s))
    return msgspec.structs.replace(config.sources, **polls)


def _slow_parts(config: AgentConfig) -> dict[str, int]:
    """How old a reading of a part that is polled slowly may become, in nanoseconds: two polls and a half."""
    sources = timely_sources(config)
    polls_s = {"disks": max(sources.libvirt.disk_poll_s, sources.qemu.disk_poll_s), "numa": sources.cgroup.numa_poll_s}
    return {part: round(_SLOW_POLLS * seconds * 1e9) for part, seconds in polls_s.items()}
