"""The simulated hypervisor as a source: cumulative counters of every VM on the real clocks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collector.base import HostCounters, Probe, Reason, SourceError, SourceSample, VmIdentity
from collector.simulated.meter import Meter
from collector.simulated.model import Host, Vm
from collector.simulated.scenario import Scenario, load
from whitepanda.common.errors import WhitepandaError

if TYPE_CHECKING:
    from collector.simulated.profiled import ProfileMeter

_CATCH_UP_STEPS = 600  # a longer pause of the process is one long step, not thousands of short ones
# Made-up ids lie far above any real pid (at most 2^22), so that no other source takes them for its own.
_FIRST_PID = 10_000_000
_PIDS_PER_VM = 1000
_HOST_SYSTEM_CORES = 0.15  # what the host itself does
_HOST_USER_CORES = 0.1


class SimulatedSource:
    """A synthetic hypervisor: VMs with vCPU threads, hardware counters, disks and interfaces.

    It begins when it is opened: every counter is then 0 and the scenario's clock too. What really happens is
    written to `truth_file` (JSON lines, one per sample) for comparison; no analysis reads it.
    """

    name = "simulated"

    def __init__(
        self,
        scenario: Path,
        truth_file: Path | None = None,
        *,
        mono_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._path = scenario
        self._truth_path = truth_file
        self._mono_clock = mono_ns
        self._unix_clock = unix_ns
        self._host: Host | None = None
        self._truth: TextIO | None = None

    def probe(self) -> Probe:
        """Say whether the scenario can be read."""
        try:
            load(self._path)
        except WhitepandaError as error:
            return Probe(available=False, detail=str(error), reason=Reason.NOT_PRESENT)
        return Probe(available=True, detail=f"scenario {self._path}")

    def open(self) -> None:
        """Read the scenario and start its clock. Raises SourceError if either file cannot be used."""
        self.close()
        try:
            scenario = load(self._path)
        except WhitepandaError as error:
            raise SourceError(str(error), Reason.NOT_PRESENT) from error
        if self._truth_path is not None:
            try:
                self._truth = self._truth_path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise SourceError(
                    f"simulated: cannot write the truth file {self._truth_path}: {error.strerror}; "
                    "set sources.simulated.truth_file to a writable place or leave it empty",
                    Reason.NO_PERMISSION,
                ) from error
        self._start(scenario)

    def _start(self, scenario: Scenario) -> None:
        self._host = host = Host(scenario, truth=self._truth is not None)
        self._make_meter: Callable[..., Meter | ProfileMeter] = partial(Meter, ghz=scenario.host.ghz)
        if host.profiled is not None:
            # numpy is only loaded if it is needed.
            from collector.simulated.profiled import ProfileMeter  # noqa: PLC0415

            self._make_meter = ProfileMeter
        self._meters: dict[str, Meter | ProfileMeter] = {}
        self._opened_mono_ns = self._mono_clock()
        self._opened_unix_ns = self._unix_clock()
        self._now_ns = 0  # wall time since then
        self._step_ns = round(scenario.host.step_s * 1e9)
        self._step_end_ns = 0
        self._guest_ns = 0.0
        self._iowait_ns = self._io_pressure_ns = 0.0
        self._truth_ns = 0

    def sample(self) -> SourceSample:
        """Read all counters once. Raises SourceError: not open, or the truth file cannot be written any more."""
        host = self._host
        if host is None:
            raise SourceError("simulated: not open")
        mono_ns, unix_ns = self._mono_clock(), self._unix_clock()
        self._advance(host, max(mono_ns - self._opened_mono_ns, self._now_ns))
        meters = self._meters.values()
        sample = SourceSample(
            self.name,
            mono_ns,
            unix_ns,
            {meter.vm.uuid: meter.sample() for meter in meters},
            self._host_counters(host),
            tuple(meter.identity for meter in meters),
        )
        if self._truth is not None:
            self._write_truth(self._truth, host, unix_ns)
        return sample

    def close(self) -> None:
        """Stop; a later `open` starts the scenario from its beginning."""
        truth, self._truth, self._host = self._truth, None, None
        if truth is not None:
            truth.close()

    def _advance(self, host: Host, to_ns: int) -> None:
        """Bring all counters to `to_ns`; rates change only on the grid of steps, however often we sample."""
        while True:
            until_ns = min(to_ns, self._step_end_ns)
            if until_ns > self._now_ns:
                passed = until_ns - self._now_ns
                for meter in self._meters.values():
                    self._guest_ns += meter.integrate(passed)
                if host.profiled is not None:
                    self._iowait_ns += passed * host.profiled.iowait_cores
                    self._io_pressure_ns += passed * host.profiled.io_pressure
                self._now_ns = until_ns
            if to_ns < self._step_end_ns:
                return
            self._next_step(host, to_ns)

    def _next_step(self, host: Host, to_ns: int) -> None:
        steps = max(1, (to_ns - self._step_end_ns) // self._step_ns)
        length_ns = steps * self._step_ns if steps > _CATCH_UP_STEPS else self._step_ns
        at_s = self._step_end_ns * 1e-9 * host.scenario.speed
        host.step(at_s, self._opened_unix_ns * 1e-9 + at_s, self._step_ns * 1e-9)
        self._step_end_ns += length_ns
        self._keep_meters(host, at_s)

    def _keep_meters(self, host: Host, at_s: float) -> None:
        """One meter per running VM and epoch: VMs that are away have none, those that return begin at 0."""
        kept: dict[str, Meter | ProfileMeter] = {}
        for vm in host.running:
            generation = vm.generation_at(at_s) + 1
            meter = self._meters.get(vm.uuid)
            if meter is None or meter.opened != generation:
                identity = self._identity(host, vm, generation)
                meter = self._make_meter(vm, identity, at_s, generation)
            kept[vm.uuid] = meter
        self._meters = kept

    def _identity(self, host: Host, vm: Vm, generation: int) -> VmIdentity:
        spec = vm.spec
        pid = _FIRST_PID + (host.vms.index(vm) * 1000 + generation) * _PIDS_PER_VM
        started_unix_ns = self._opened_unix_ns + self._now_ns
        return VmIdentity(
            uuid=vm.uuid,
            name=spec.name,
            pid=pid,
            epoch=f"{generation}-{started_unix_ns}",
            vcpu_tids=tuple(range(pid + 1, pid + 1 + spec.vcpus)),
            accelerator="simulated",
            facts={
                "job": spec.job,
                "latency_sensitive": "true" if spec.latency_sensitive else "false",
                **{f"nova:{key}": text for key in ("project", "flavor") if (text := getattr(spec, key))},
            },
            memory_bytes=round(spec.memory_gib * (1 << 30)) or None,
        )

    def _host_counters(self, host: Host) -> HostCounters:
        spec, now = host.scenario.host, self._now_ns
        guest, iowait = int(self._guest_ns), int(self._iowait_ns)
        user_cores, system_cores = (0, spec.system_cores) if host.profiled else (_HOST_USER_CORES, _HOST_SYSTEM_CORES)
        user, system = int(now * user_cores), int(now * system_cores)
        return HostCounters(
            cpus=spec.cpus,
            user_ns=user,
            system_ns=system,
            idle_ns=max(0, spec.cpus * now - user - system - guest - iowait),
            iowait_ns=iowait,
            guest_ns=guest,
            steal_ns=0,
            io_some_ns=int(self._io_pressure_ns) if host.profiled is not None else None,
        )

    def _write_truth(self, file: TextIO, host: Host, unix_ns: int) -> None:
        elapsed_ns = self._now_ns - self._truth_ns
        self._truth_ns = self._now_ns
        line = {
            "unix_ns": unix_ns,
            "since_unix_ns": unix_ns - elapsed_ns,
            "vms": {meter.vm.spec.name: meter.truth(elapsed_ns) for meter in self._meters.values()},
            "antagonists": list(host.active_antagonists),
        }
        try:
            file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SourceError(f"simulated: cannot write the truth file {self._truth_path}: {error.strerror}") from error
