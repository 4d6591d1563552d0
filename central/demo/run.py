"""The course of the demonstration, from nothing to the first suspect. Not staged: failures are reported."""

import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from central.demo import backfill, fleet
from central.demo.outcome import Outcome, Victim
from central.demo.processes import Daemons
from central.demo.show import Show
from central.demo.watch import CHANNEL_OPTIONS, LATENCY_TRUTH, AgentWatch, CentralWatch, Latency, SlotEstimate, Truth
from central.pki import issue, make_ca
from whitepanda.common.errors import UnavailableError
from whitepanda.common.tls import TlsFiles, channel_credentials

#: The same here, in the help and in the docs; tests compare them, and the demonstration with it.
DURATION = "less than a minute"
_POLL_S = 0.4
_STAY_POLL_S = 1.0
_DEADLINE_S = 100.0  # for all of it; also where others keep the machine busy
_CALM_S = 14.0  # watched with coefficients before the antagonist comes; baselines take 15 s to learn
_MIN_SLOTS = 5  # compared with the truth after the injection
_LATE_COEFFICIENT_S = 10.0  # after the trigger, until a suspect's coefficient must have come
_HURT = 1.1  # the least true degradation of a VM that is hurt
_SLOT_NS = round(fleet.SLOT_S * 1e9)
_TICK_NS = round(fleet.TICK_S * 1e9)
_OPERATOR = "operator"
_IMPORTER = "importer"


class Demo:
    """One run: `run` once, then perhaps `stay`, then always `close`.

    It works in the existing folder `work`; `sockets` is one with a short path, for the agents' sockets.
    """

    def __init__(self, seed: int, work: Path, sockets: Path, show: Show) -> None:
        self._began = time.monotonic()
        self._work = work
        self._pki = work / "pki"
        self._sockets = sockets
        self._show = show
        self._start_file = work / "inject"
        self._fleet = fleet.make_fleet(seed, self._start_file)
        self._daemons = Daemons()
        self._agents = [AgentWatch(host.name, sockets / f"{host.name}.sock") for host in self._fleet.hosts]
        self._target = next(agent for agent in self._agents if agent.name == self._fleet.target)
        self._channels: list[grpc.Channel] = []
        self._address = ""
        self._false_alarms: dict[str, None] = {}
        self._injected_unix_ns = 0

    def run(self) -> Outcome:
        """Play it. Raises UnavailableError, with the log's tail, for what did not start, ended, or was not in time."""
        self._address = address = f"127.0.0.1:{_free_port()}"
        tools = self._write_files(address)
        self._start()
        days = backfill.simulate(self._fleet, time.time())
        central = CentralWatch(self._channel(address, tools[_OPERATOR]))
        self._until("central answers", "central", lambda: central.status() is not None)
        self._show.event(
            f"central answers; {days.windows} CPI windows of {backfill.DAYS} SIMULATED days go through its ingest"
        )
        backfill.send(self._channel(address, tools[_IMPORTER]), _IMPORTER, days)
        self._show.event("all acknowledged; waiting for central to learn from them")
        self._wait_for_coefficients(central, days.windows)
        end = time.monotonic() + _CALM_S
        self._until("the hosts are watched in peace", self._target.name, lambda: time.monotonic() >= end)
        detection_s = self._inject()
        return self._conclude(days.windows, detection_s)

    def page(self) -> str:
        """Return the URL of the fleet page, on the loopback from `run` until `close`."""
        port = (self._work / "central" / "state" / "http_port").read_text(encoding="utf-8").strip()
        return f"http://127.0.0.1:{port}/"

    def asking(self) -> list[str]:
        """Return the options with which `whitepanda incidents` asks this central."""
        return ["--central", self._address, "--tls", str(self._pki)]

    def socket(self) -> Path:
        """Return the socket of the agent on the antagonist's host."""
        return self._target.socket

    def stay(self) -> None:
        """Continue until a signal ends it; raise an UnavailableError, with the log's tail, where a process ends."""
        while True:
            self._daemons.check()
            time.sleep(_STAY_POLL_S)

    def close(self) -> None:
        """Hang up and end all processes; may be called twice."""
        for agent in self._agents:
            agent.close()
        while self._channels:
            self._channels.pop().close()
        stubborn = self._daemons.stop()
        if stubborn:
            self._show.event(f"had to be killed: {', '.join(stubborn)}")

    # --- setting up ---

    def _write_files(self, address: str) -> dict[str, TlsFiles]:
        """Write certificates, scenarios and configurations; return the certificates of operator and importer."""
        pki = self._pki
        make_ca(pki)
        central = self._work / "central"
        central.mkdir()
        server = issue(pki, "central", server=True, addresses=["127.0.0.1", "localhost"])
        config = fleet.central_config(address, central / "state", server, _IMPORTER, _OPERATOR)
        (central / "central.toml").write_text(config, encoding="utf-8")
        for host, agent in zip(self._fleet.hosts, self._agents, strict=True):
            folder = self._work / host.name
            folder.mkdir()
            (folder / "scenario.toml").write_text(host.live_toml, encoding="utf-8")
            files = issue(pki, host.name)
            config = fleet.agent_config(self._fleet, host, address, folder, agent.socket, files)
            (folder / "agent.toml").write_text(config, encoding="utf-8")
        return {name: issue(pki, name) for name in (_OPERATOR, _IMPORTER)}

    def _start(self) -> None:
        for name, kind in (("central", "central"), *((agent.name, "agent") for agent in self._agents)):
            folder = self._work / name
            self._daemons.start(name, [kind, "run", "--config", str(folder / f"{kind}.toml")], folder / "log")
        seed = self._fleet.seed
        self._show.event(f"started central and {len(self._agents)} agents (seed {seed}); it takes {DURATION}")

    def _channel(self, address: str, files: TlsFiles) -> grpc.Channel:
        channel = grpc.secure_channel(address, channel_credentials(files), options=CHANNEL_OPTIONS)
        self._channels.append(channel)
        return channel

    # --- the course ---

    def _wait_for_coefficients(self, central: CentralWatch, windows: int) -> None:
        self._until(
            f"central publishes statistics of all {windows} windows",
            "central",
            lambda: central.samples_behind_statistics() >= windows,
        )
        status = central.status()
        job = self._fleet.antagonist_job
        coefficient = central.coefficient(job)
        version = status.coefficient_version if status is not None else 0
        known = "none" if coefficient is None else f"{coefficient:.2f} mnCPI per core"
        self._show.event(f"coefficient version {version} built; of {job}, which hurt elsewhere: {known}")
        self._until(
            "all hosts have coefficients",
            "central",
            lambda: all(agent.coefficient_version > 0 for agent in self._agents),
        )
        self._show.event("pushed to all hosts; watching them in peace")

    def _inject(self) -> float:
        """Start the antagonist, wait until its host's agent has found and ranked it; return the detection time, s."""
        target, injected = self._target, self._fleet.antagonist_vm
        self._injected_unix_ns = time.time_ns()
        began = time.monotonic()
        self._start_file.touch()
        self._show.event(f"INJECTED: VM {injected} (job {self._fleet.antagonist_job}) starts on {target.name}")
        self._until(f"{target.name} finds victims", target.name, lambda: bool(target.victims))
        detection_s = time.monotonic() - began
        self._show.event(f"{target.name} reports victims: {', '.join(target.victims)}")
        late = time.monotonic() + _LATE_COEFFICIENT_S

        def is_ranked() -> bool:
            # A job's coefficient comes a moment after its VM.
            return len(target.suspects) >= target.vms - len(target.services) or time.monotonic() > late

        self._until(
            f"{target.name} has ranked and measured",
            target.name,
            lambda: len(self._starts()) >= _MIN_SLOTS and is_ranked(),
        )
        return detection_s

    def _starts(self) -> list[int]:
        """Return the starts of all slots after the injection with a verdict, except while the VM boots."""
        first = self._injected_unix_ns + _SLOT_NS // 2
        return sorted({start for slots in self._target.slots.values() for start in slots if start >= first})

    def _conclude(self, past_windows: int, detection_s: float) -> Outcome:
        target = self._target
        starts = self._starts()
        truth = Truth(self._work / target.name / "truth.jsonl")
        victims = [
            self._victim(truth, vm, [slots[s] for s in starts if s in slots])
            for vm, slots in sorted(target.slots.items())
        ]
        hurt = [v for v in victims if v.flagged or (v.true_degradation or 1.0) >= _HURT]
        suspects = target.suspects
        return Outcome(
            injected_antagonist=self._fleet.antagonist_job,
            first_suspect=target.first_suspect or None,
            host=target.name,
            victims=tuple(sorted(hurt, key=lambda v: -(v.true_degradation or 0.0))),
            suspects=suspects,
            hosts=tuple(agent.name for agent in self._agents),
            windows_acknowledged=sum(agent.windows_acknowledged for agent in self._agents),
            past_windows=past_windows,
            coefficient_version=target.coefficient_version,
            detection_s=detection_s,
            compared_s=len(starts) * fleet.SLOT_S,
            false_alarms=tuple(self._false_alarms),
            seed=self._fleet.seed,
            seconds=time.monotonic() - self._began,
        )

    def _victim(self, truth: Truth, vm: str, slots: list[SlotEstimate]) -> Victim:
        """Average the agent's estimates and the truth over the same slots."""
        starts = [slot.start_unix_ns for slot in slots]
        known = {slot.start_unix_ns: slot.degradation for slot in slots if slot.degradation is not None}
        seen = [one for one in self._target.latencies.get(vm, ()) if starts and one.at_unix_ns >= min(starts)]
        estimates = [one for one in seen if not math.isnan(one.ratio)]
        reasons = Counter(one.cannot_tell for one in seen if math.isnan(one.ratio))
        course = truth.course(vm, LATENCY_TRUTH)
        return Victim(
            vm=vm,
            true_degradation=truth.degradation(vm, list(known) or starts),
            estimated_degradation=_mean(list(known.values())),
            flagged=2 * sum(slot.verdict == "victim" for slot in slots) > len(slots),
            behaviour=seen[-1].behaviour if seen else "",
            latency_degradation=_mean([one.ratio for one in estimates]),
            latency_low=_mean([one.low for one in estimates if not math.isnan(one.low)]),
            latency_high=_mean([one.high for one in estimates if not math.isnan(one.high)]),
            true_latency_degradation=truth.over(course, [(start, start + _SLOT_NS) for start in starts]),
            latency_known=len(estimates),
            latency_held=sum(_holds(truth, course, one) for one in estimates),
            latency_unknown=reasons.total(),
            cannot_tell=reasons.most_common(1)[0][0] if reasons else "",
        )

    # --- watching ---

    def _until(self, what: str, who: str, done: Callable[[], bool]) -> None:
        """Poll until `done`; all processes must live, and the deadline must not pass."""
        while True:
            self._daemons.check()
            for agent in self._agents:
                agent.poll(explain=agent is self._target and agent.coefficient_version > 0)
            self._note_false_alarms()
            self._show.refresh(self._agents)
            if done():
                return
            if time.monotonic() - self._began > _DEADLINE_S:
                raise UnavailableError(
                    f"demo: after {_DEADLINE_S:.0f} s still waiting until {what}; "
                    f"the end of {who}'s log: {self._daemons.tail(who)}"
                )
            time.sleep(_POLL_S)

    def _note_false_alarms(self) -> None:
        is_injected = self._injected_unix_ns > 0
        wrong = (each.name for each in self._agents if each.victims and not (is_injected and each is self._target))
        self._false_alarms |= dict.fromkeys(wrong)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _holds(truth: Truth, course: Sequence[tuple[int, int, float]], estimate: Latency) -> bool:
    """Whether an estimate's interval has the truth of the tick before it was asked for."""
    true = truth.over(course, [(estimate.at_unix_ns - _TICK_NS, estimate.at_unix_ns)])
    return true is not None and estimate.low <= true <= estimate.high


def _free_port() -> int:
    """Return a port that was free a moment ago: agents must know central's before it listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
