"""The plan of a campaign: TOML into frozen structs; errors name the key. docs/calibrate.md has an example."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.config import MAX_WORKERS
from whitepanda.common.config import address_problem, load_toml
from whitepanda.common.errors import ConfigError

Arguments = tuple[str, ...]

_DAY_S = 86_400
_MAX_REQUESTS_PER_S = 100_000  # far beyond what the built-in client makes


class Phases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long each phase of a run is, in seconds."""

    quiet_s: Annotated[float, Meta(ge=0.5, le=_DAY_S)] = 60.0  # no stressor: the baseline
    stress_s: Annotated[float, Meta(ge=0.5, le=_DAY_S)] = 50.0  # the scenario's stressors run
    after_s: Annotated[float, Meta(ge=0, le=_DAY_S)] = 30.0  # they are stopped again


class Requests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The built-in client: requests at a given rate, however slow the answers."""

    address: str  # host:port of the server in the VM
    protocol: Literal["http", "line"] = "http"  # line: one line out, one line back
    send: str = "/"  # the requested path, or the line that is sent
    # kept open; waiting for a free one counts as latency
    connections: Annotated[int, Meta(ge=1, le=1000)] = 16
    timeout_s: float = 10.0  # an answer that takes longer counts as this long
    arrivals: Literal["poisson", "even"] = "poisson"  # gaps exponentially distributed, or all the same


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One level of load of the served VM."""

    load_ratio: float  # nominal load: the share of what the server can do, for RUNS
    requests_per_s: float = 0.0  # for the built-in client
    arguments: Arguments = ()  # appended to the command of an external client


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The latency-critical VM, and its client: `requests` (built in) or `command` (your own)."""

    vm: str  # name or UUID
    loads: tuple[Load, ...]
    requests: Requests | None = None
    command: Arguments = ()  # runs for a whole run; one JSON object per line: {"p95_latency_s": ...}
    warm_up_s: float = 5.0  # from the load's beginning to the first phase
    # requests that the VM serves in parallel; default: from the job rules
    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] | None = None


class Stressor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An interfering load, started and stopped in one of three ways.

    `run`: a long-running command, ended (SIGTERM) with the phase; then `stop` runs if given. `start` and
    `stop`: commands that return. `control`, `on` and `off`: lines sent to a TCP port, each answered by "ok ...".
    """

    name: str
    vm: str  # name or UUID of the VM that it runs in
    run: Arguments = ()
    start: Arguments = ()
    stop: Arguments = ()
    control: str = ""  # host:port
    on: str = ""
    off: str = ""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stressors of the stress phase, running together; none for a run without interference."""

    name: str
    stressors: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole campaign: every scenario at every load, `repetitions` times, in an order drawn by `seed`."""

    served: Served
    scenarios: tuple[Scenario, ...]
    stressors: tuple[Stressor, ...] = ()
    phases: Phases = Phases()
    repetitions: Annotated[int, Meta(ge=1, le=10_000)] = 3
    cool_down_s: Annotated[float, Meta(ge=0, le=_DAY_S)] = 15.0  # between two runs, without load
    # a command or a control line that takes longer has failed
    deadline_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    seed: int = 1  # of the order of the runs, and of when requests are due

    @property
    def vms(self) -> tuple[str, ...]:
        """All VMs of the plan, by name or UUID, the served one first."""
        return tuple(dict.fromkeys((self.served.vm, *(stressor.vm for stressor in self.stressors))))

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.scenarios) * len(self.served.loads) * self.repetitions

    @property
    def seconds(self) -> float:
        """How long all runs take, about."""
        phases = self.phases
        one_s = self.served.warm_up_s + phases.quiet_s + phases.stress_s + phases.after_s
        return self.runs * (one_s + self.cool_down_s) - self.cool_down_s


def load(path: Path) -> Plan:
    """Read a plan; ConfigError names the file, the key and the value of the first wrong setting."""
    plan = load_toml(path, Plan)
    for problem in _problems(plan):
        raise ConfigError(f"{path}: {problem}")
    return plan


def _wrong(*checks: tuple[bool, str]) -> Iterator[str]:
    return (problem for is_wrong, problem in checks if is_wrong)


def _problems(plan: Plan) -> Iterator[str]:
    yield from _served_problems(plan.served)
    for index, stressor in enumerate(plan.stressors):
        yield from _stressor_problems(f"stressors[{index}]", stressor)
        if stressor.vm == plan.served.vm:
            yield f"stressors[{index}].vm must not be the served VM (value {stressor.vm!r}): it would disturb itself"
    for key, tables in (("stressors", plan.stressors), ("scenarios", plan.scenarios)):
        names = [one.name for one in tables]
        for index, name in enumerate(names):
            yield from _wrong(
                (not name.strip(), f"{key}[{index}].name must not be empty"),
                (names.index(name) != index, f"{key}[{index}].name '{name}' is not unique"),
            )
    if not plan.scenarios:
        yield "scenarios must have at least one (a scenario without stressors is one without interference)"
    known = {stressor.name for stressor in plan.stressors}
    have = ", ".join(sorted(known)) or "none"
    for index, scenario in enumerate(plan.scenarios):
        for name in scenario.stressors:
            if name not in known:
                yield f"scenarios[{index}].stressors names '{name}', which is not a stressor; there is: {have}"


def _served_problems(served: Served) -> Iterator[str]:
    requests, warm_up_s = served.requests, served.warm_up_s
    is_ambiguous = (requests is None) == (not served.command)
    yield from _wrong(
        (not served.vm, "served.vm must not be empty: it is the name or the UUID of the latency-critical VM"),
        (is_ambiguous, "served must have either requests (the built-in client) or command (your own), and not both"),
        (not served.loads, "served.loads must have at least one"),
        (warm_up_s < 0, f"served.warm_up_s must be 0 or more (value {warm_up_s})"),
    )
    if requests is not None:
        yield from _request_problems(requests)
    for index, level in enumerate(served.loads):
        key, ratio, rate = f"served.loads[{index}]", level.load_ratio, level.requests_per_s
        if not 0 < ratio <= 1:
            yield f"{key}.load_ratio must be > 0 and <= 1 (value {ratio})"
        if requests is not None and not 0 < rate <= _MAX_REQUESTS_PER_S:
            yield f"{key}.requests_per_s must be > 0 and <= {_MAX_REQUESTS_PER_S} (value {rate:g})"
        if requests is not None and level.arguments:
            yield f"{key}.arguments is for served.command, which is not set"


def _request_problems(requests: Requests) -> Iterator[str]:
    key, send, timeout_s = "served.requests", requests.send, requests.timeout_s
    if problem := address_problem(f"{key}.address", requests.address):
        yield problem
    is_path = requests.protocol == "line" or (send.startswith("/") and " " not in send)
    yield from _wrong(
        (timeout_s <= 0, f"{key}.timeout_s must be more than 0 (value {timeout_s})"),
        (any(sign < " " for sign in send), f"{key}.send must be one line (value {send!r})"),
        (not is_path, f"{key}.send must be a path such as /search?q=1 (value {send!r})"),
    )


def _stressor_problems(key: str, stressor: Stressor) -> Iterator[str]:
    on, off = stressor.on, stressor.off
    ways = bool(stressor.run) + bool(stressor.start) + bool(stressor.control)
    yield from _wrong(
        (not stressor.vm, f"{key}.vm must not be empty: it is the name or the UUID of the VM that it runs in"),
        (ways != 1, f"{key} must have one of run, start (with stop) and control (with on and off)"),
        (bool(stressor.start) and not stressor.stop, f"{key} has start ({shlex.join(stressor.start)}) and no stop"),
    )
    if stressor.control:
        if problem := address_problem(f"{key}.control", stressor.control):
            yield problem
        if not on or not off or "\n" in on + off:
            yield f"{key}.on and {key}.off must be a line each (values {on!r}, {off!r})"
