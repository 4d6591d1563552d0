"""The agent's configuration: a TOML file into frozen structs. docs/configuration.md is made from this file."""

import ipaddress
import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from agent.analysis.contention.normalised_cpi import CERTAIN_MN_CPI
from whitepanda.common.config import MAX_PORT, address_problem, is_loopback, load_toml
from whitepanda.common.tls import TlsFiles
from whitepanda.common.window_columns import BY_NAME

Mode = Literal["off", "auto", "required"]
Level = Literal["debug", "info", "warning", "error"]

MAX_WORKERS = 4096

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_MAX_HOST = 253
_ROUNDING = 1e-6  # of decimal fractions
_MAX_PLATFORM = 512  # central keeps no longer one
#: Settings that are folders of this host.
_FOLDERS = (
    "libvirt.state_dir",
    "procfs.root",
    "cgroup.root",
    "resctrl.root",
    "qemu.proxmox_run_dir",
    "qemu.proxmox_config_dir",
    "ovs.run_dir",
)
_MAX_LABELS, _MAX_LABEL = 16, 64
_MAX_SOCKET_BYTES = 107  # sun_path, less its end


class AgentSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The daemon itself."""

    host: str = ""  # name of this host towards central; "" = the system's host name
    platform: str = ""  # CPU model that CPI is compared within; "" = that of /proc/cpuinfo
    state_dir: str = "/var/lib/whitepanda"  # spool, coefficients, baselines
    socket: str = "/run/whitepanda/agent.sock"  # the local API
    tick_s: Annotated[float, Meta(ge=0.05, le=60)] = 1.0  # how often everything is sampled, in seconds
    window_s: Annotated[float, Meta(ge=0.05, le=3600)] = 10.0  # length of a CPI window; a multiple of tick_s
    min_activity_cores: Annotated[float, Meta(ge=0, le=64)] = 0.01  # below this a window's CPI is `idle`, not a number
    log_level: Level = "info"  # least level that is logged, to standard error


class LibvirtSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """VM table, disk and network counters from libvirt."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    uri: str = "qemu:///system"  # of this host's libvirt, opened read-only
    state_dir: str = "/run/libvirt/qemu"  # the status files that name VMs and vCPU threads
    deadline_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0  # a call that takes longer makes the source stuck
    disk_poll_s: Annotated[float, Meta(ge=0.05, le=3600)] = 10.0  # period of disk counters; at least once in a window


class PerfSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hardware counters."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    scope: Literal["thread", "cgroup"] = "thread"  # per vCPU, or control group: with QEMU's own threads
    events: Literal["all", "basic"] = "all"  # basic: cycles and instructions only
    reserve_counters: Annotated[int, Meta(ge=0, le=16)] = 2  # counters per CPU left to the guests' virtual PMUs
    min_running_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.2  # windows that counted for less are dropped
    opens_per_tick: Annotated[int, Meta(ge=1, le=10_000)] = 64  # new groups per tick: many new VMs cost no spike


class ProcfsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Guest time and run-queue wait per vCPU thread, the host's CPU time."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    root: str = "/proc"  # another root is for tests


class CgroupSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pressure (PSI), throttling, quota and memory of each VM's control group; NUMA placement."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    root: str = "/sys/fs/cgroup"  # another root is for tests
    numa_poll_s: Annotated[float, Meta(ge=0.05, le=3600)] = 10.0  # how often the NUMA placement is read


class ResctrlSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cache occupancy and memory bandwidth from resctrl (Intel RDT, AMD QoS)."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    root: str = "/sys/fs/resctrl"  # where resctrl is mounted
    # at most this many groups of whitepanda; 0 = as many as RMIDs are free, less reserve_rmids
    max_groups: Annotated[int, Meta(ge=0, le=65_536)] = 0
    reserve_rmids: Annotated[int, Meta(ge=0, le=65_536)] = 4  # RMIDs left to others
    # with more VMs than groups: length of a turn; occupancy is known from its 6th second
    hold_s: Annotated[float, Meta(ge=1, le=86_400)] = 10.0


class PqosSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same from Intel's libpqos, for hosts without resctrl. Never chosen by itself: `auto` is `off` here."""

    mode: Literal["off", "required"] = "off"  # used never, or the agent does not start without it
    interface: Literal["os", "msr"] = "os"  # the kernel's resctrl, or the registers themselves
    max_groups: Annotated[int, Meta(ge=1, le=65_536)] = 64  # VMs that are monitored at once


class QemuSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """VMs without libvirt: Proxmox, and any other QEMU process."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    users: tuple[str, ...] = ("libvirt-qemu",)  # whose QEMUs count beside users below 1000; names, or numbers
    proxmox_run_dir: str = "/run/qemu-server"  # Proxmox' process ids and QMP sockets
    proxmox_config_dir: str = "/etc/pve"  # names, tags and pools of Proxmox' VMs
    deadline_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0  # a sampling that takes longer makes the source stuck
    disk_poll_s: Annotated[float, Meta(ge=0.05, le=3600)] = 10.0  # period of QMP queries; at least once in a window


class OvsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Network counters from Open vSwitch: live, where libvirt's are used for other bridges only."""

    mode: Mode = "auto"  # used never, where it works, or the agent does not start without it
    database: str = "unix:/run/openvswitch/db.sock"  # this host's OVSDB: unix:/PATH or tcp:ADDRESS:PORT
    run_dir: str = "/run/openvswitch"  # where the bridges' management sockets are
    deadline_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0  # a sampling that takes longer makes the source stuck


class SimulatedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A synthetic hypervisor, for demos, tests and load."""

    mode: Mode = "off"  # used never, where it works, or the agent does not start without it
    scenario: str = ""  # TOML file
    truth_file: str = ""  # where the simulator writes what really happens; "" = nowhere


class Sources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each source is `off`, `auto` (used where it works) or `required` (the agent does not start without it)."""

    libvirt: LibvirtSection = LibvirtSection()
    perf: PerfSection = PerfSection()
    procfs: ProcfsSection = ProcfsSection()
    cgroup: CgroupSection = CgroupSection()
    resctrl: ResctrlSection = ResctrlSection()
    pqos: PqosSection = PqosSection()
    qemu: QemuSection = QemuSection()
    ovs: OvsSection = OvsSection()
    simulated: SimulatedSection = SimulatedSection()


class UplinkSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stream to central. Without an address the agent works alone."""

    address: str = ""  # host:port of central; "" = no uplink
    server_name: str = ""  # name expected in central's certificate, where it is not the address's host
    tls: TlsFiles = TlsFiles()
    spool_max_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 256  # oldest batches are dropped beyond this
    batch_rows: Annotated[int, Meta(ge=1, le=10_000)] = 2000  # at most this many windows in a batch
    # most unacknowledged batches; 4 at first, one more with each acknowledged
    in_flight_batches: Annotated[int, Meta(ge=1, le=1000)] = 32
    reconnect_min_s: Annotated[float, Meta(ge=0.05, le=3600)] = 0.5  # pause after a lost stream; doubles, with jitter
    reconnect_max_s: Annotated[float, Meta(ge=0.05, le=86_400)] = 30.0  # longest pause
    max_message_mib: Annotated[int, Meta(ge=1, le=64)] = 4  # central's messages; a larger one ends the stream
    max_jobs: Annotated[int, Meta(ge=1, le=65_536)] = 4096  # jobs with coefficients held, 2 KiB of disk each
    # coefficients made more than this in the future are refused
    max_clock_skew_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    max_ttl_s: Annotated[float, Meta(ge=60, le=3660 * 86_400)] = 31 * 86400.0  # coefficients are never used longer


class WindowClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The windows of one class of VMs."""

    window_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0  # length, a multiple of tick_s; 0 = agent.window_s
    metrics: tuple[str, ...] = ("all",)  # sent beside cpu_usage_cores, by the names in docs/metrics.md; "all" = each


class WindowsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What central gets of each VM, by whether a job rule says `latency_sensitive`."""

    latency_sensitive: WindowClass = WindowClass()
    batch: WindowClass = WindowClass()


class HostSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What central is told of this host beside what can be read here."""

    labels: dict[str, str] = {}  # such as {rack = "r12", zone = "eu-1"}: at most 16, names and texts of up to 64


class MetricsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics for Prometheus, at /metrics. Beyond this host only over mutual TLS."""

    listen: str = ""  # host:port, such as "127.0.0.1:9747"; "" = off
    tls: TlsFiles = TlsFiles()


class HistorySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the host has measured, kept on its disk for `--at`: windows, and the last 15 minutes tick by tick."""

    days: Annotated[float, Meta(ge=0, le=3660)] = 7.0  # older windows are deleted; 0 = keep nothing
    max_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 512  # the oldest are deleted beyond this


class AnalysisSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Antagonists on the host, from the fleet's statistics and coefficients."""

    trigger: Literal["noise_scaled", "paper"] = "noise_scaled"  # by the host's own noise, or the paper's rule
    # slots in a row with a victim before paper, or noise_scaled's first hour, fires
    victim_slots: Annotated[int, Meta(ge=1, le=100)] = 3
    mn_cpi_percentile: Annotated[float, Meta(ge=50, le=100)] = 99.0  # of paper: of this host's own history
    # of paper, the least threshold; in noise_scaled's first hour, the least rise
    mn_cpi_floor: Annotated[float, Meta(ge=0, le=CERTAIN_MN_CPI)] = 1.0
    history_slots: Annotated[int, Meta(ge=1, le=100_000)] = 2016  # kept for the percentile: a week of 5-minute slots
    least_slow_down: Annotated[float, Meta(ge=1, le=100)] = 1.05  # a victim's slow-down is above this at its low end
    max_host_suspects: Annotated[int, Meta(ge=0, le=64)] = 8  # most control groups, besides VMs, that are suspects too


class CloudWhiteSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who suffers, who inflicts, and how much: found on the host alone, from each VM's own baseline."""

    detector: Literal["noise_scaled", "paper", "off"] = "noise_scaled"  # by noise, or the paper's rules
    # of noise_scaled, as the next three: 2 takes half as much noise for a sign
    sensitivity: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    hysteresis: Annotated[float, Meta(ge=0.1, le=1)] = 0.5  # a state ends below this share of what it began at
    # time constant: after it, quiet times count a third
    baseline_quiet_s: Annotated[float, Meta(ge=300, le=86_400)] = 300.0
    # the same while others inflict, so lasting harm becomes normal
    baseline_disturbed_s: Annotated[float, Meta(ge=300, le=7 * 86_400)] = 3600.0
    models: tuple[str, ...] = ()  # files of `degradation fit`; the first that can tell counts, ours come last
    event_interval_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0  # time between a VM's events, except new victims
    recent_events: Annotated[int, Meta(ge=1, le=100_000)] = 500  # changes kept in memory for `whitepanda explain`
    save_interval_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0  # period of saving baselines; also saved at the end


class ActSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`whitepanda act`, a unit of its own, which limits VMs for a while and undoes it. The agent changes nothing."""

    enabled: bool = False  # without it nothing is ever changed
    dry_run: bool = True  # say what would be done, and change nothing
    socket: str = "/run/whitepanda-act/act.sock"  # where `whitepanda act` asks; its folder's group may
    state_dir: str = "/var/lib/whitepanda-act"  # what is to be undone, and the audit log
    max_share: Annotated[float, Meta(ge=0, le=1)] = 0.1  # of the host's VMs that are limited at once; one always may be
    max_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0  # longest time; then it is undone
    cool_down_s: Annotated[float, Meta(ge=0, le=86_400)] = 600.0  # least pause between two actions on a VM
    min_cores: Annotated[float, Meta(ge=0.01, le=4096)] = 0.5  # no VM is left with less CPU
    min_bandwidth_percent: Annotated[int, Meta(ge=1, le=100)] = 20  # no VM is left with less memory bandwidth
    min_ways: Annotated[int, Meta(ge=1, le=64)] = 2  # no VM is left with fewer ways of the cache
    worse_ratio: Annotated[float, Meta(ge=1, le=10)] = 1.25  # undone if the slow-down grows by this factor, 3 looks
    watch_interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0  # how often the agent is asked how the victim does
    deadline_s: Annotated[float, Meta(ge=1, le=300)] = 10.0  # a call of libvirt's virsh that takes longer is ended


class JobRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first rule whose `pattern` is found in `fact` names the VM's job.

    Of a VM that none matches: OpenStack Nova's PROJECT/FLAVOR, else the VM's own name; it can be a victim.
    """

    pattern: str  # regular expression, searched in the fact
    job: str  # name of the job; may use the groups of the pattern
    fact: str = "name"  # "name", or a fact such as "nova:flavor", "nova:project", "title"
    latency_sensitive: bool = False  # by the fleet's statistics such VMs can suffer, others are suspects
    alert: bool | None = None  # its VMs can be victims, not only affected; without = as latency_sensitive
    owner: str = ""  # whose VM it is, made as the job; "" = Nova's project, where there is one
    # requests served at once; without = learnt, or one per vCPU
    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] | None = None


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it. `jobs` are tried in order; a VM that none matches is not latency-sensitive."""

    agent: AgentSection
    sources: Sources = Sources()
    windows: WindowsSection = WindowsSection()
    host: HostSection = HostSection()
    uplink: UplinkSection = UplinkSection()
    history: HistorySection = HistorySection()
    analysis: AnalysisSection = AnalysisSection()
    cloud_white: CloudWhiteSection = CloudWhiteSection()
    metrics: MetricsSection = MetricsSection()
    act: ActSection = ActSection()
    jobs: tuple[JobRule, ...] = ()

    @property
    def window_lengths_s(self) -> tuple[float, float]:
        """Length of the windows of batch VMs, and of latency-sensitive ones."""
        windows, default = self.windows, self.agent.window_s
        return windows.batch.window_s or default, windows.latency_sensitive.window_s or default


_OTHERS = {"central": "this is central's configuration; start it with `whitepanda central run`"}


def load(path: Path) -> AgentConfig:
    """Read and check an agent's configuration. Raises ConfigError: file, key, value and remedy of each problem."""
    return without_real_sources(load_toml(path, AgentConfig, _problems, _OTHERS))


def without_real_sources(config: AgentConfig) -> AgentConfig:
    """Switch the host's own sources from `auto` to `off` where a simulated host replaces it."""
    sources = config.sources
    if sources.simulated.mode == "off":
        return config
    off = {
        name: msgspec.structs.replace(section, mode="off")
        for name in sources.__struct_fields__
        if name != "simulated" and (section := getattr(sources, name)).mode == "auto"
    }
    return msgspec.structs.replace(config, sources=msgspec.structs.replace(sources, **off))


def _problems(config: AgentConfig, wrong: Container[str]) -> Iterator[str]:
    """Yield what types and bounds do not catch. `wrong`: keys that are reported already."""
    config = without_real_sources(config)
    agent, uplink, cloud_white = config.agent, config.uplink, config.cloud_white
    if agent.host and not _HOST.fullmatch(agent.host):
        allowed = f"at most {_MAX_HOST} letters, digits, '.', '_' and '-'"
        yield f"agent.host must be {allowed} (value {agent.host[:60]!r})"
    if len(agent.platform) > _MAX_PLATFORM or not agent.platform.isprintable():
        yield f"agent.platform must be at most {_MAX_PLATFORM} printable characters (value {agent.platform[:60]!r})"
    yield from _socket_problems("agent.socket", agent.socket)
    yield from _socket_problems("act.socket", config.act.socket)
    yield from _folder_problems("act.state_dir", config.act.state_dir)
    yield from _window_problems(config, wrong)
    yield from _label_problems(config.host.labels)
    quiet_s, disturbed_s = cloud_white.baseline_quiet_s, cloud_white.baseline_disturbed_s
    if disturbed_s < quiet_s and "cloud_white.baseline_quiet_s" not in wrong:
        yield f"cloud_white.baseline_disturbed_s must be at least baseline_quiet_s (value {disturbed_s})"
    if uplink.reconnect_max_s < uplink.reconnect_min_s and "uplink.reconnect_min_s" not in wrong:
        yield f"uplink.reconnect_max_s must be at least reconnect_min_s (value {uplink.reconnect_max_s})"
    if uplink.address and (problem := address_problem("uplink.address", uplink.address)):
        yield problem
    yield from _metrics_problems(config.metrics)
    yield from _source_problems(config.sources)
    yield from _rule_problems(config.jobs)


def _window_problems(config: AgentConfig, wrong: Container[str]) -> Iterator[str]:
    agent, tick_s = config.agent, config.agent.tick_s
    classes = {f"windows.{name}": getattr(config.windows, name) for name in config.windows.__struct_fields__}
    lengths = {"agent.window_s": agent.window_s} | {f"{key}.window_s": one.window_s for key, one in classes.items()}
    for key, length_s in lengths.items():
        ratio, is_checked = length_s / tick_s, not any(one in wrong for one in ("agent.tick_s", key))
        is_default = not length_s and key != "agent.window_s"
        if is_checked and not is_default and (ratio < 1 or abs(ratio - round(ratio)) > _ROUNDING):
            yield f"{key} must be a multiple of agent.tick_s {tick_s} (value {length_s})"
    for key, one in classes.items():
        unknown = [name for name in one.metrics if name != "all" and name not in BY_NAME]
        if unknown:
            yield f'{key}.metrics must be "all", or metrics that windows have (docs/metrics.md) (value {unknown[0]!r})'


def _label_problems(labels: Mapping[str, str]) -> Iterator[str]:
    if len(labels) > _MAX_LABELS:
        yield f"host.labels must be at most {_MAX_LABELS} (value has {len(labels)})"
    for key, text in labels.items():
        for one in (key, text):
            if not one.isprintable() or not one.strip() or len(one) > _MAX_LABEL:
                must_be = f"have names and texts of 1 to {_MAX_LABEL} printable characters"
                yield f"host.labels must {must_be} (value {one[:70]!r})"


def _source_problems(sources: Sources) -> Iterator[str]:
    simulated, libvirt, ovs = sources.simulated, sources.libvirt, sources.ovs
    if simulated.mode != "off" and not simulated.scenario:
        yield f"sources.simulated.scenario must name a file when its source's mode is {simulated.mode!r}"
    for key in _FOLDERS:
        section, _, name = key.partition(".")
        yield from _folder_problems(f"sources.{key}", getattr(getattr(sources, section), name))
    if all(getattr(sources, name).mode == "off" for name in sources.__struct_fields__):
        remedy = 'set mode = "auto" for one, such as [sources.procfs]'
        yield f"all sources are off, so nothing would be measured; {remedy}"
    if sources.pqos.mode == sources.resctrl.mode == "required":
        remedy = 'set [sources.resctrl] mode = "off" where the kernel has no resctrl, else that of [sources.pqos]'
        yield f"sources.pqos.mode and sources.resctrl.mode must not both be 'required'; {remedy}"
    for user in sources.qemu.users:
        if not user or user != user.strip() or not user.isprintable():
            yield f"sources.qemu.users must be names or numbers of users (value {user!r})"
    if libvirt.mode != "off" and not _is_local_libvirt(libvirt.uri):
        yield f'sources.libvirt.uri must be of this host, such as "qemu:///system" (value {libvirt.uri!r})'
    if ovs.mode != "off" and not _is_local_database(ovs.database):
        known = "this host's OVSDB, as unix:/PATH or tcp:ADDRESS:PORT"
        yield f"sources.ovs.database must be {known} (value {ovs.database!r})"


def _is_local_libvirt(uri: str) -> bool:
    """Whether a URI is of this host's libvirt: the VMs are those of this host's status files."""
    try:
        host = urlsplit(uri).hostname
    except ValueError:
        return False
    return not host or is_loopback(host)


def _is_local_database(address: str) -> bool:
    """Whether the library `ovs` can connect to an address without certificates; a comma would begin another one."""
    kind, _, rest = address.partition(":")
    if "," in address or "\0" in address:
        return False
    if kind == "unix":
        return rest.startswith("/")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not port.isascii() or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        return False
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return isinstance(found, ipaddress.IPv6Address) == host.startswith("[") == host.endswith("]")


def _metrics_problems(metrics: MetricsSection) -> Iterator[str]:
    if not metrics.listen:
        return
    if problem := address_problem("metrics.listen", metrics.listen):
        yield problem
    elif metrics.tls == TlsFiles() and not is_loopback(metrics.listen.rpartition(":")[0].strip("[]")):
        remedy = 'listen at "127.0.0.1:PORT", or set ca, certificate and key in [metrics.tls]'
        yield f"metrics.listen is not this host's loopback and has no TLS (value {metrics.listen!r}); {remedy}"


def _folder_problems(key: str, folder: str) -> Iterator[str]:
    if not folder.startswith("/") or "\0" in folder:
        yield f"{key} must be an absolute path (value {folder!r})"


def _socket_problems(key: str, path: str) -> Iterator[str]:
    size = len(os.fsencode(path))
    if not path or size > _MAX_SOCKET_BYTES:
        limit = f"1 to {_MAX_SOCKET_BYTES} bytes, the system's limit for sockets"
        yield f"{key} must be a path of {limit} (value {path!r}, {size} bytes)"


def _rule_problems(rules: tuple[JobRule, ...]) -> Iterator[str]:
    for index, rule in enumerate(rules):
        try:
            pattern = re.compile(rule.pattern)
        except re.error as error:
            yield f"jobs[{index}].pattern is not a regular expression (value {rule.pattern!r}): {error}"
            continue
        for key, template in (("job", rule.job), ("owner", rule.owner)):
            try:
                pattern.sub(template, "")  # parses the template, whether or not it matches
            except (re.error, IndexError) as error:
                yield f"jobs[{index}].{key} does not fit the pattern (value {template!r}): {error}"
