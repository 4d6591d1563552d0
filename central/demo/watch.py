"""What the demonstration watches: the agents (local sockets), central (fleet API), and the truth."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc

from central.demo.fleet import SLOT_S
from whitepanda.common.errors import UnavailableError
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc, host_pb2, host_pb2_grpc

#: The simulator's name for the true slow-down of a VM's requests, beside that of its CPI.
LATENCY_TRUTH = "true_latency_degradation"

#: A server that appears later is tried again soon, not after gRPC's usual back-off of seconds.
CHANNEL_OPTIONS = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100)]

_DEADLINE_S = 2.0
_SLOT_NS = round(SLOT_S * 1e9)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A suspect as an agent ranked it."""

    vm: str
    job: str
    cpu_usage_cores: float
    coefficient: float
    score: float


@dataclass(frozen=True, slots=True)
class SlotEstimate:
    """An agent's estimate of a VM over one slot. `degradation` None: unknown."""

    start_unix_ns: int
    degradation: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Latency:
    """An agent's estimate at a moment of how much longer a VM's requests take, with the interval.

    NaN without an estimate: `cannot_tell` is then why.
    """

    at_unix_ns: int
    behaviour: str
    ratio: float
    low: float
    high: float
    cannot_tell: str


@dataclass(slots=True)
class AgentWatch:
    """One agent, as last seen. NaN and 0 mean that it does not know yet."""

    name: str
    socket: Path
    answers: bool = False
    uplink: str = ""
    vms: int = 0
    windows_acknowledged: int = 0
    coefficient_version: int = 0
    mn_cpi: float = math.nan
    victims: tuple[str, ...] = ()
    first_suspect: str = ""  # its job
    services: tuple[str, ...] = ()
    suspects: tuple[Ranked, ...] = ()
    slots: dict[str, dict[int, SlotEstimate]] = field(default_factory=dict)
    latencies: dict[str, list[Latency]] = field(default_factory=dict)
    _channel: grpc.Channel | None = None

    def poll(self, *, explain: bool) -> None:
        """Ask the agent, with `explain` also about every latency-sensitive VM. Not being up yet is not an error."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=CHANNEL_OPTIONS)
        stub = host_pb2_grpc.LocalHostStub(self._channel)
        try:
            status = stub.GetStatus(host_pb2.GetStatusRequest(), timeout=_DEADLINE_S)
            self.uplink = status.uplink.state
            self.windows_acknowledged = status.uplink.acknowledged_windows
            self.coefficient_version = status.coefficient_version
            self.mn_cpi = status.mn_cpi
            self._take_vms(stub.ListVms(host_pb2.ListVmsRequest(), timeout=_DEADLINE_S))
            if explain:
                for vm in self.services:
                    self._take_explanation(stub.ExplainVm(host_pb2.ExplainVmRequest(vm=vm), timeout=_DEADLINE_S))
        except grpc.RpcError as error:
            _only_passing(error, f"the agent of {self.name}")
            self.answers = False
            return
        self.answers = True

    def close(self) -> None:
        """Hang up; may be called twice."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _take_vms(self, listed: Any) -> None:
        self.vms = len(listed.vms)
        self.victims = tuple(vm.name for vm in listed.vms if vm.decision.verdict == agent_pb2.BEHAVIOUR_VICTIM)
        self.first_suspect = listed.decision.suspect.job or self.first_suspect
        self.services = tuple(vm.name for vm in listed.vms if vm.latency_sensitive)

    def _take_explanation(self, explanation: Any) -> None:
        vm = explanation.vm
        if vm.HasField("cloud_white"):
            self._take_latency(vm)
        suspects = [
            Ranked(s.name, s.job, s.cpu_usage_cores, s.coefficient, s.score)
            for s in explanation.suspects
            if not math.isnan(s.score)
        ]
        if suspects:
            self.suspects = tuple(suspects)
        last = explanation.history[-1] if explanation.history else None
        # The verdict is on the newest slot; the history has that one only from when the slot was over.
        if last is None or last.cpi != explanation.cpi:
            return
        degradation = None if math.isnan(vm.degradation) else vm.degradation
        estimate = SlotEstimate(last.start_unix_ns, degradation, _verdict(vm))
        self.slots.setdefault(vm.name, {})[last.start_unix_ns] = estimate

    def _take_latency(self, vm: Any) -> None:
        found, behaviour = vm.cloud_white, _verdict(vm)
        estimate = found.degradation
        if not found.HasField("degradation"):  # a VM that inflicts, or was never estimated: no reason of a model
            why = f"no estimate of a VM that is {behaviour}"
            estimate = agent_pb2.Degradation(ratio=math.nan, low=math.nan, high=math.nan, cannot_tell=why)
        numbers = (estimate.ratio, estimate.low, estimate.high)
        seen = Latency(time.time_ns(), behaviour, *numbers, estimate.cannot_tell)
        self.latencies.setdefault(vm.name, []).append(seen)


def _verdict(vm: Any) -> str:
    return agent_pb2.Behaviour.Name(vm.decision.verdict).removeprefix("BEHAVIOUR_").lower()


_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,  # the VM went meanwhile
)


def _only_passing(error: grpc.RpcError, who: str) -> None:
    """Ignore passing errors; anything else is an error of the server."""
    call = cast("grpc.Call", error)
    if call.code() not in _PASSING:
        raise UnavailableError(f"demo: {who} answers {call.code().name}: {call.details()}") from error


class CentralWatch:
    """Central's fleet API. Every answer is None while central does not answer."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = fleet_pb2_grpc.FleetStub(channel)

    def status(self) -> Any | None:
        """Return central's `FleetStatus`."""
        return self._ask(self._stub.GetFleetStatus, fleet_pb2.GetFleetStatusRequest())

    def samples_behind_statistics(self) -> int:
        """Return the number of CPI windows behind the published statistics; 0 before the first version."""
        answer = self._ask(self._stub.ListJobStatistics, fleet_pb2.ListJobStatisticsRequest(page_size=1000))
        return sum(row.samples for row in answer.statistics) if answer is not None else 0

    def coefficient(self, job: str) -> float | None:
        """Return A_k of a job in the published version, or None."""
        answer = self._ask(self._stub.ListCoefficients, fleet_pb2.ListCoefficientsRequest(job=job))
        return answer.coefficients[0].value if answer is not None and answer.coefficients else None

    def _ask(self, method: Any, request: Any) -> Any | None:
        try:
            return method(request, timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            _only_passing(error, "central")
            return None


class Truth:
    """The simulator's own record of one host, for comparison only."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def degradation(self, vm: str, starts_unix_ns: list[int], what: str = "true_degradation") -> float | None:
        """Return the true degradation of a VM, averaged over slots; None where nothing is recorded."""
        spans = [(start, start + _SLOT_NS) for start in starts_unix_ns]
        return self.over(self.course(vm, what), spans)

    @staticmethod
    def over(course: Sequence[tuple[int, int, float]], spans: Sequence[tuple[int, int]]) -> float | None:
        """Average a course over spans of time [first, last[; None without overlap."""
        total = weight = 0.0
        for first, last, value in course:
            for start, end in spans:
                shared = min(last, end) - max(first, start)
                if shared > 0:
                    total += shared * value
                    weight += shared
        return total / weight if weight else None

    def course(self, vm: str, what: str) -> list[tuple[int, int, float]]:
        """Return the records of a VM: begin, end (nanoseconds since 1970), and value."""
        text = self._file.read_text(encoding="utf-8")
        records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]  # all whole ones
        values = [(each, each["vms"].get(vm, {}).get(what)) for each in records]
        return [(each["since_unix_ns"], each["unix_ns"], value) for each, value in values if value is not None]
