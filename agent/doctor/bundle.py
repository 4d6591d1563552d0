"""The support bundle: what somebody else needs to see of this host to help, without secrets, as one tar.gz.

It never has a key or a certificate, nor the address and names of central. With pseudonyms, which is the default, it has
no name, UUID or MAC address of a VM, nor facts about its owner, either.
"""

import asyncio
import contextlib
import errno
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from agent.api.client import connect
from agent.config import AgentConfig
from agent.doctor.anonymous import anonymous_sample, learn_device, learn_host, learn_identity, vocabulary
from agent.doctor.findings import Check
from agent.doctor.pseudonyms import Pseudonyms
from agent.recording.format import Reader, RecordedTick, Recorder
from agent.recording.playback import header_of
from agent.recording.record import Recording, beside_agent
from collector.base import SourceSample
from collector.registry import make_inventory
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError
from whitepanda.common.files.durable import replacing
from whitepanda.v1 import host_pb2

_REDACTED = "(redacted)"
_COMMAND_S = 3.0
_MAX_FILE = 1 << 20
_PACKAGES = ("grpcio", "libvirt-python", "msgspec", "ovs", "pqos", "prometheus-client", "protobuf", "psutil")
#: Kernel files, below the root; a folder's are read with what is below it.
_FACTS = (
    "proc/sys/kernel/perf_event_paranoid",
    "proc/sys/kernel/nmi_watchdog",
    "proc/sys/kernel/perf_event_mlock_kb",
    "proc/sys/fs/file-max",
    "proc/sys/fs/inotify/max_user_watches",
    "proc/self/limits",
    "proc/pressure/cpu",
    "proc/pressure/memory",
    "proc/pressure/io",
    "sys/fs/cgroup/cgroup.controllers",
    "sys/fs/resctrl/info",
    "sys/module/kvm/parameters/enable_mediated_pmu",
    "sys/module/kvm/parameters/enable_pmu",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
)
#: Addresses as Open vSwitch writes them, such as ssl:10.0.0.1:6640; those without a host in them.
_REMOTE = re.compile(r"(?P<kind>[a-z]+):(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>\d+))?")
_LOCAL = re.compile(r"/|p?unix:|(?:127(?:\.\d+){3}|\[::1\]|localhost):")
_FILESYSTEMS = {"cgroup", "cgroup2", "resctrl"}


@dataclass(slots=True)
class Bundle:
    """What is put into the file: a name, what it is, and the content. `notes` say what could not be had, and why."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, what: str, content: object) -> None:
        """Add a file: text and bytes as they are, all else as JSON."""
        if isinstance(content, str):
            data = content.encode("utf-8", "replace")
        elif isinstance(content, bytes):
            data = content
        else:
            data = json.dumps(content, indent=2).encode("ascii") + b"\n"  # names need not be UTF-8
        self.files[name] = (what, data)


def make_bundle(
    config: AgentConfig,
    findings: Sequence[Check],
    *,
    anonymise: bool = True,
    record_s: float = 5.0,
    root: Path = Path("/"),
) -> Bundle:
    """Collect everything. What cannot be had is noted, never an error.

    Args:
        config: what the agent runs with.
        findings: doctor's.
        anonymise: whether names are replaced by pseudonyms.
        record_s: how long the sources are recorded; 0: not.
        root: prefix of /proc and /sys, for tests.

    """
    bundle = Bundle()
    names = Pseudonyms(enabled=anonymise, vocabulary=vocabulary())
    _learn(config, names, root)
    answers = _ask_agent(config, bundle.notes, names)
    with tempfile.TemporaryDirectory(prefix="whitepanda-bundle-") as folder:
        recording = _record(config, Path(folder), record_s, bundle.notes)
        if recording is not None:
            bundle.add("recording.jsonl", "what the sources said", _anonymous(recording, names))
    checks = [
        {
            "name": check.name,
            "state": check.state,
            "required": check.required,
            "reason": check.reason.code if check.reason else None,
            "detail": names.text(check.detail),
        }
        for check in findings
    ]
    bundle.add("doctor.json", "doctor's findings", checks)
    lines = [f"{check.name:<20} {check.state:<8} {names.text(check.detail)}\n" for check in findings]
    bundle.add("doctor.txt", "the same for people", "".join(lines))
    bundle.add("versions.json", "versions of what is installed", names.walk(versions()))
    bundle.add("config.json", "the configuration, all settings", names.walk(redacted(config, names)))
    bundle.add("kernel.json", "what the kernel offers", names.walk(kernel_facts(root)))
    for name, (what, answer) in answers.items():
        bundle.add(name, what, names.walk(answer))
    bundle.notes = [names.text(note) for note in bundle.notes]
    manifest = {
        "format": "whitepanda-bundle",
        "version": 1,
        "made_unix_ns": time.time_ns(),
        "pseudonyms": anonymise,
        "files": {name: {"bytes": len(data), "what": what} for name, (what, data) in sorted(bundle.files.items())},
        "notes": bundle.notes,
    }
    bundle.add("manifest.json", "what is in here", manifest)
    return bundle


def write_bundle(bundle: Bundle, file: Path) -> None:
    """Write the bundle, readable by its owner only: whole or not at all.

    Raises:
        InputError: the file exists already.
        UnavailableError: it cannot be written.

    """
    if os.path.lexists(file):
        raise InputError(f"{file}: exists already; give another name")
    try:
        with replacing(file, mode=0o600, fresh=True) as stream:
            _pack(bundle, stream)
    except OSError as error:
        why = "exists already" if error.errno == errno.EEXIST else error.strerror
        raise UnavailableError(f"{file}: cannot write: {why}") from error


def _pack(bundle: Bundle, stream: Any) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, (_, data) in sorted(bundle.files.items()):
            entry = tarfile.TarInfo(f"whitepanda-bundle/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))


# -- names


def _learn(config: AgentConfig, names: Pseudonyms, root: Path) -> None:
    """Learn the names that are known without asking anybody: the hosts', central's, the VMs', the devices'."""
    for host in (config.agent.host, socket.gethostname()):
        learn_host(names, host)
    learn_host(names, _host_of(config.uplink.address), "central", always=True)
    learn_host(names, config.uplink.server_name, "central", always=True)
    learn_host(names, _host_of(config.metrics.listen))
    for remote in config.sources.ovs.database.split(","):
        if (found := _REMOTE.fullmatch(remote.strip())) is not None:
            learn_host(names, found["host"])
    for setting in _texts(msgspec.to_builtins(config.sources)):
        if "://" in setting:
            user, _, address = re.split("[/?]", setting.partition("://")[2], maxsplit=1)[0].rpartition("@")
            names.learn("user", user, always=True)
            learn_host(names, re.sub(r":\d+$", "", address))
    for rule in config.jobs:
        names.learn("job", rule.job)
    for device in (root / "sys/class/net").glob("*"):
        learn_device(names, device.name)
    with contextlib.suppress(Exception):  # no inventory: then no names are known here, and none can be told
        for identity in make_inventory(config.sources).vms():
            learn_identity(identity, names)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _texts(sections: dict[str, dict[str, Any]]) -> Iterator[str]:
    return (value for section in sections.values() for value in section.values() if isinstance(value, str))


# -- the configuration


def redacted(config: AgentConfig, names: Pseudonyms) -> dict[str, Any]:
    """Return all settings, without central's names and what addresses tell; with pseudonyms without the job rules."""
    settings: dict[str, Any] = msgspec.to_builtins(config)
    settings["agent"]["host"] = names.learn("host", config.agent.host)
    uplink = settings["uplink"]
    if uplink["address"]:
        uplink["address"] = f"{_REDACTED}:{uplink['address'].rpartition(':')[2]}"
    uplink["server_name"] = uplink["server_name"] and _REDACTED
    settings["metrics"]["listen"] = _redacted_address(settings["metrics"]["listen"])
    for section in settings["sources"].values():
        section |= {key: _redacted_address(value) for key, value in section.items() if isinstance(value, str)}
    if names.enabled:
        for rule in settings["jobs"]:
            rule.update({key: _REDACTED for key in ("pattern", "job", "owner") if rule.get(key)})
    return settings


def _redacted_address(value: str) -> str:
    """Return a setting with nothing of its addresses but the kind and the port; paths and words stay."""
    if "://" in value:
        return re.sub(r"://[^/?]+", f"://{_REDACTED}", value).partition("?")[0]
    return ",".join(_redacted_remote(remote) for remote in value.split(","))


def _redacted_remote(remote: str) -> str:
    if ":" not in remote or _LOCAL.match(remote):
        return remote
    found = _REMOTE.fullmatch(remote.strip())
    if found is None:
        return f"{_REDACTED}:{remote.rpartition(':')[2]}"
    return f"{found['kind']}:{_REDACTED}" + (f":{found['port']}" if found["port"] else "")


# -- the host


def versions() -> dict[str, str | None]:
    """Return the versions of the agent, of what it stands on and of what it measures; None where it is not found."""
    found: dict[str, str | None] = {
        "whitepanda": metadata.version("whitepanda"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    programs = {
        "libvirtd": ("libvirtd", "virtqemud"),
        "qemu": (f"qemu-system-{platform.machine()}", "/usr/libexec/qemu-kvm", "kvm"),
        "openvswitch": ("ovs-vswitchd",),
    }
    return found | {name: _version_of(tried) for name, tried in programs.items()}


def _version_of(programs: Sequence[str]) -> str | None:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for program in programs:
        found = shutil.which(program, path=path)
        if found is None:
            continue
        try:
            done = subprocess.run(
                [found, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMMAND_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        return (done.stdout or done.stderr).strip().partition("\n")[0][:200] or None
    return None


def kernel_facts(root: Path = Path("/")) -> dict[str, Any]:
    """Return what the kernel says of itself, by file; None where there is no such file."""
    facts: dict[str, Any] = {}
    for name in _FACTS:
        path = root / name
        paths = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
        facts |= {str(item.relative_to(root)): _read(item) for item in paths}
    cpuinfo = _read(root / "proc/cpuinfo") or ""
    facts["proc/cpuinfo, first CPU"] = cpuinfo.strip().partition("\n\n")[0]
    mounts = (_read(root / "proc/self/mountinfo") or "").splitlines()
    facts["proc/self/mountinfo, cgroup and resctrl"] = [line for line in mounts if _filesystem(line) in _FILESYSTEMS]
    devices = root / "sys/bus/event_source/devices"
    facts["sys/bus/event_source/devices"] = sorted(item.name for item in devices.glob("*"))
    status = (_read(root / "proc/self/status") or "").splitlines()
    facts["proc/self/status"] = [line for line in status if line.startswith(("Cap", "NoNewPrivs", "Seccomp"))]
    return facts


def _filesystem(line: str) -> str:
    return (line.partition(" - ")[2].split() or [""])[0]


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(_MAX_FILE).decode("utf-8", "replace").strip()
    except OSError:
        return None


# -- the agent


def _hide_suspect(one: host_pb2.Suspect, names: Pseudonyms) -> None:
    one.uuid, one.name = names.learn("vm", one.uuid), names.learn("vm", one.name)
    one.job = names.learn("job", one.job)


def _ask_agent(config: AgentConfig, notes: list[str], names: Pseudonyms) -> dict[str, tuple[str, dict[str, Any]]]:
    try:
        with connect(Path(config.agent.socket)) as client:
            status, listed = client.status(), client.vms()
    except WhitepandaError as error:
        notes.append(f"agent: {error}")
        return {}
    learn_host(names, status.host)
    learn_host(names, _host_of(status.uplink.address), "central", always=True)
    status.host = names.learn("host", status.host)
    listed.host = names.learn("host", listed.host)
    for vm in listed.vms:
        names.learn("vm", vm.uuid)
        names.learn("vm", vm.name)
        names.learn("job", vm.job)
        names.learn("owner", vm.owner)
        names.learn("epoch", vm.epoch)
    for vm in listed.vms:  # whatever they are called
        vm.uuid, vm.name = names.learn("vm", vm.uuid), names.learn("vm", vm.name)
        vm.job, vm.owner = names.learn("job", vm.job), names.learn("owner", vm.owner)
        vm.epoch = names.learn("epoch", vm.epoch)
        for one in vm.decision.suspects:
            _hide_suspect(one, names)
    if listed.decision.HasField("suspect"):
        _hide_suspect(listed.decision.suspect, names)
    if status.uplink.address:
        status.uplink.address = _REDACTED
        # gRPC's words have the address in them.
        status.uplink.last_error = status.uplink.last_error and _REDACTED
    return {
        "agent/status.json": ("what the agent says of itself", _plain(status)),
        "agent/vms.json": ("its VMs and their metrics", _plain(listed)),
    }


def _plain(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


# -- the recording


def _record(config: AgentConfig, folder: Path, seconds: float, notes: list[str]) -> Path | None:
    if seconds <= 0:
        notes.append("recording: none was wanted")
        return None
    settings, left = beside_agent(config)
    notes += [f"recording: {name} was left to the agent that runs here" for name in left]
    file = folder / "true.jsonl"
    recorder = Recorder(file, header_of(settings))
    try:
        result = asyncio.run(Recording(settings).run(recorder, seconds))
        recorder.close()
        if result.trouble:
            notes.append(f"recording: {result.trouble}; it ends after {result.seconds:.0f} s")
    except (WhitepandaError, OSError) as error:
        recorder.discard()
        notes.append(f"recording: {error}")
        return None
    return file


def _anonymous(file: Path, names: Pseudonyms) -> bytes:
    """Return the recording with pseudonyms: it replays to the same numbers."""
    if not names.enabled:
        return file.read_bytes()
    known: dict[str, tuple[SourceSample, SourceSample]] = {}
    copy = file.with_name("anonymous.jsonl")
    with Reader(file) as reader, Recorder(copy, reader.header) as recorder:
        while (tick := reader.next()) is not None:
            for sample in tick.samples:
                if sample.source not in known or known[sample.source][0] is not sample:
                    known[sample.source] = (sample, anonymous_sample(sample, names))
            samples = tuple(known[sample.source][1] for sample in tick.samples)
            recorder.write(RecordedTick(tick.mono_ns, tick.unix_ns, samples, tick.sources))
    return copy.read_bytes()
