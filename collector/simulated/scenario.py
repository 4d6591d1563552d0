"""The scenario file of the simulated hypervisor: TOML into frozen structs; errors name the key."""

import math
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from collector.simulated.profiles import PROFILES
from whitepanda.common.config import convert, load_toml
from whitepanda.common.errors import ConfigError

#: UUIDs of simulated VMs are made in this name space, so that the same scenario always has the same ones.
_NAMESPACE = uuid.UUID("6f0a6f2c-6a4c-5d6e-9a2b-77686974651a")
_MAX_GIB = 1 << 20
_MAX_VCPUS = 288  # QEMU's own limit for most machine types
_Limits = dict[str, tuple[float, float]]  # the lowest and highest value that is allowed, by name


class HostSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hypervisor, shared by its VMs."""

    name: str = "simulated"  # makes the UUIDs of its VMs different from another host's
    platform: str = "Simulated CPU"  # for people; central gets the agent's agent.platform
    cpus: int = 32
    ghz: float = 2.5
    llc_mib: float = 36.0  # last-level cache, shared by all VMs
    memory_gib_per_s: float = 100.0  # bandwidth of the memory, shared by all VMs
    memory_gib: float = 256.0  # as a fact for central
    step_s: float = 1.0  # the model's rates are constant over a step
    # Only if the VMs have profiles:
    vm_cpus: int = 0  # how many of the CPUs VMs run on; 0 = all
    system_cores: float = 0.25  # what the host itself uses of the CPUs
    disk_mb_per_s: float = 200.0  # what the disk that all share can do, MB = 1e6 bytes


class NoiseSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise is log-normal with mean 1, its logarithm an AR(1) process: a slow VM stays slow for a while."""

    load_std: float = 0.05  # of the logarithm
    correlation_s: float = 10.0  # after this time the correlation has fallen to 1/e


class Course(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a level changes over time: `points` of [at_s, level] as steps (phases) or a ramp, and the hour of the day."""

    diurnal: float = 0.0  # relative amplitude of a daily sine around it; 0 = none, below 1
    peak_hour: float = 15.0  # UTC
    shape: Literal["step", "ramp"] = "step"
    points: tuple[tuple[float, float], ...] = ()  # before the first one the constant level holds
    repeat_s: float = 0.0  # the points start again after this time; 0 = never


class Profile(Course, frozen=True, forbid_unknown_fields=True):
    """CPU demand over time, in cores."""

    cores: float = 1.0


class LoadRatio(Course, frozen=True, forbid_unknown_fields=True):
    """Load of a VM with a profile over time: how busy its vCPUs would be undisturbed."""

    ratio: float = 0.2  # its baseline


class VmSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One VM. Its demands on shared resources grow with the cores it uses."""

    name: str
    job: str
    vcpus: int = 4
    latency_sensitive: bool = False
    cpi: float = 1.0  # cycles per instruction while undisturbed
    cpi_noise_std: float = 0.03  # of the logarithm
    sensitivity: float = 0.0  # CPI grows by this fraction per unit of the others' pressure
    cache_mib_per_core: float = 1.0  # what it would like to hold in the last-level cache, per core used
    memory_gib_per_s_per_core: float = 0.5
    disk_mib_per_s_per_core: float = 1.0
    network_mib_per_s_per_core: float = 1.0
    load: Profile = Profile()
    start_s: float = 0.0  # the VM is there from here ...
    stop_s: float = float("inf")  # ... to here
    restarts_s: tuple[float, ...] = ()  # at each of these it stops and begins a new epoch
    restart_gap_s: float = 2.0  # how long it is away then
    memory_gib: float = 4.0  # as facts for central, these
    project: str = ""
    flavor: str = ""
    quota_cores: float = 0.0  # of its control group, with a profile; it is not throttled by it; 0 = none
    pmu: bool = True  # False: its hardware counters are absent with the reason no_pmu
    multiplexing_ratio: float = 1.0  # time_running / time_enabled of its counters
    # With a profile (docs/simulated.md has their names) contention is the study's, and cpi, sensitivity, load and the
    # values per core do not count. All VMs of a host have one, or none has.
    profile: str = ""
    load_ratio: LoadRatio = LoadRatio()
    switches: tuple[tuple[float, str], ...] = ()  # [at_s, profile]: what it runs from there on


class Antagonist(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A VM that is idle but for the times given here, when it uses `cores`. Without times it always does.

    With `start_file` it is active while that file exists: a demonstration can inject it by hand. With `boots`
    the VM is not even there before it is active for the first time.
    """

    vm: str
    cores: float
    start_s: float = 0.0
    stop_s: float = float("inf")
    repeat_s: float = 0.0  # the times are taken modulo this; 0 = once
    start_file: str = ""
    idle_cores: float = 0.05
    boots: bool = False
    profile: str = ""  # what a VM with a profile runs while it is active; "" = the same as else


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host, its VMs and its antagonists."""

    seed: int = 1
    speed: float = 1.0  # of phases, days and antagonists; counters always advance with the wall clock
    host: HostSpec = HostSpec()
    noise: NoiseSpec = NoiseSpec()
    vms: tuple[VmSpec, ...] = ()
    antagonists: tuple[Antagonist, ...] = ()

    @property
    def profiled(self) -> bool:
        """Whether its VMs have profiles."""
        return any(vm.profile for vm in self.vms)


def vm_uuid(scenario: Scenario, name: str) -> str:
    """Return the UUID of a VM, which depends on seed, host and VM name only."""
    return str(uuid.uuid5(_NAMESPACE, f"{scenario.seed}/{scenario.host.name}/{name}"))


def load(path: Path) -> Scenario:
    """Read and check a scenario file. Raises ConfigError: names the file, the key, its value and what it must be."""
    return _checked(load_toml(path, Scenario), str(path))


def parse(data: dict[str, object], where: str) -> Scenario:
    """Make a scenario of parsed TOML. Errors as in `load`, naming `where`."""
    return _checked(convert(data, Scenario, where), where)


def _checked(scenario: Scenario, where: str) -> Scenario:
    for problem in _problems(scenario):
        raise ConfigError(f"{where}: {problem}")
    return scenario


def _between(key: str, value: float, low: float, high: float, *, above: bool = False) -> Iterator[str]:
    """Yield a problem unless low <= value <= high (with `above`: low < value). NaN is outside of everything."""
    if not low <= value <= high or (above and value == low):
        yield f"{key} must be {'above' if above else 'at least'} {low:g} and at most {high:g} (value {value})"


def _each_between(key: str, table: object, limits: _Limits, *, above: bool = False) -> Iterator[str]:
    """Yield the problems of `table`'s values, as `_between`."""
    for name, (low, high) in limits.items():
        yield from _between(f"{key}{name}", getattr(table, name), low, high, above=above)


def _problems(scenario: Scenario) -> Iterator[str]:
    host = scenario.host
    yield from _each_between("", scenario, {"speed": (0, 1e6)}, above=True)
    yield from _each_between("host.", host, {"cpus": (1, 4096)})
    above_0: _Limits = {"ghz": (0, 10), "llc_mib": (0, 1e5), "memory_gib_per_s": (0, 1e5), "disk_mb_per_s": (0, 1e6)}
    yield from _each_between("host.", host, above_0, above=True)
    yield from _each_between(
        "host.", host, {"step_s": (0.01, 60), "vm_cpus": (0, host.cpus), "system_cores": (0, host.cpus)}
    )
    yield from _each_between("host.", host, {"memory_gib": (0, _MAX_GIB)}, above=True)
    yield from _each_between("noise.", scenario.noise, {"load_std": (0, 2)})
    yield from _each_between("noise.", scenario.noise, {"correlation_s": (0, 1e6)}, above=True)
    if not scenario.vms:
        yield "vms: a scenario needs at least one [[vms]] table"
    seen: set[str] = set()
    for index, vm in enumerate(scenario.vms):
        if not vm.name or vm.name in seen:
            yield f"vms[{index}].name must be given and unique (value {vm.name!r})"
        seen.add(vm.name)
        yield from _vm_problems(f"vms[{index}]", vm)
    for index, antagonist in enumerate(scenario.antagonists):
        key = f"antagonists[{index}]"
        if antagonist.vm not in seen:
            yield f"{key}.vm must be the name of one of the vms (value {antagonist.vm!r})"
        yield from _each_between(f"{key}.", antagonist, {"cores": (0, _MAX_VCPUS)}, above=True)
        yield from _each_between(f"{key}.", antagonist, {"idle_cores": (0, _MAX_VCPUS), "start_s": (0, math.inf)})
        yield from _each_between(f"{key}.", antagonist, {"stop_s": (antagonist.start_s, math.inf)}, above=True)
        yield from _each_between(f"{key}.", antagonist, {"repeat_s": (0, math.inf)})
    if scenario.profiled:
        yield from _profile_problems(scenario)


def _vm_problems(key: str, vm: VmSpec) -> Iterator[str]:
    if not vm.job:
        yield f"{key}.job must not be empty"
    limits: _Limits = {"vcpus": (1, _MAX_VCPUS), "cpi": (0.05, 100), "cpi_noise_std": (0, 2), "sensitivity": (0, 100)}
    per_core = ("cache_mib", "memory_gib_per_s", "disk_mib_per_s", "network_mib_per_s")
    limits |= {f"{name}_per_core": (0, 1e5) for name in per_core}
    limits |= {"start_s": (0, math.inf), "memory_gib": (0, _MAX_GIB), "quota_cores": (0, _MAX_VCPUS)}
    yield from _each_between(f"{key}.", vm, limits)
    yield from _each_between(f"{key}.", vm, {"stop_s": (vm.start_s, math.inf), "restart_gap_s": (0, 1e6)}, above=True)
    yield from _each_between(f"{key}.", vm, {"multiplexing_ratio": (0, 1)})
    if list(vm.restarts_s) != sorted(set(vm.restarts_s)) or any(not vm.start_s < at for at in vm.restarts_s):
        yield f"{key}.restarts_s must rise and come after start_s (value {list(vm.restarts_s)})"
    load = vm.load
    yield from _load_problems(f"{key}.load", load, "cores", _MAX_VCPUS)
    if load.repeat_s and load.points and load.points[-1][0] >= load.repeat_s:
        yield f"{key}.load.repeat_s must be later than the last of points (value {load.repeat_s})"


def _load_problems(key: str, load: Profile | LoadRatio, level: str, most: float) -> Iterator[str]:
    limits: _Limits = {level: (0, most), "diurnal": (0, 0.95), "peak_hour": (0, 24), "repeat_s": (0, math.inf)}
    yield from _each_between(f"{key}.", load, limits)
    yield from _time_problems(f"{key}.points", load.points)
    for at_s, value in load.points:
        yield from _between(f"{key}.points[{at_s:g} s]", value, 0, most)


def _time_problems(key: str, points: Sequence[tuple[float, object]]) -> Iterator[str]:
    times = [at for at, _ in points]
    if times != sorted(set(times)) or any(not at >= 0 for at in times):
        yield f"{key} must have rising times from 0 on (value {times})"


def _profile_problems(scenario: Scenario) -> Iterator[str]:
    """Yield problems of profiles: of some VMs only, unknown ones, changed ones of a VM that serves requests."""
    active = {antagonist.vm: antagonist.profile for antagonist in scenario.antagonists if antagonist.profile}
    for index, vm in enumerate(scenario.vms):
        key = f"vms[{index}]"
        switched = [(f"{key}.switches", name) for _, name in vm.switches]
        if vm.name in active:
            switched.append((f"the profile of {vm.name}'s antagonist", active[vm.name]))
        for where, name in ((f"{key}.profile", vm.profile), *switched):
            if name not in PROFILES:
                yield f"{where} must be one of {', '.join(PROFILES)}; all VMs have one, or none has (value {name!r})"
                return
        if any(PROFILES[name].service_ms for _, name in (*switched, ("", vm.profile)) if switched):
            yield f"{key}: a VM that serves requests cannot change its profile (value {vm.profile!r})"
        yield from _load_problems(f"{key}.load_ratio", vm.load_ratio, "ratio", 2)
        yield from _time_problems(f"{key}.switches", vm.switches)
