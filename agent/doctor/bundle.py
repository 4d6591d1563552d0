"""The support bundle: what a helper needs to know of this host, without secrets, as one tar.gz.

It never has a key, a certificate, or the address and names of central. By default it has pseudonyms for names, UUIDs
and MAC addresses of VMs and facts about their owners, and no text that might hold them.
"""

import asyncio
import contextlib
import errno
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from agent.api.client import connect
from agent.config import AgentConfig, LibvirtSection
from agent.doctor.findings import Check
from agent.doctor.pseudonyms import REDACTED, Pseudonyms
from agent.recording.format import Reader, RecordedTick, Recorder
from agent.recording.playback import header_of
from agent.recording.record import Recording, beside_agent
from collector.base import SourceSample
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError
from whitepanda.common.files.durable import replacing

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
_FILESYSTEMS = {"cgroup", "cgroup2", "resctrl"}


@dataclass(slots=True)
class Bundle:
    """The content: by file name what it is, and its bytes. `notes` say what is not in it, and why."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, what: str, content: object) -> None:
        """Add a file: text and bytes as they are, all else as JSON."""
        if not isinstance(content, str | bytes):
            content = json.dumps(content, indent=2) + "\n"  # ASCII: names need not be UTF-8
        self.files[name] = (what, content.encode("utf-8", "replace") if isinstance(content, str) else content)


def make_bundle(
    config: AgentConfig,
    findings: Sequence[Check],
    *,
    anonymise: bool = True,
    record_s: float = 5.0,
    root: Path = Path("/"),
) -> Bundle:
    """Collect everything. What is not available is noted, never an error.

    Args:
        config: what the agent runs with.
        findings: doctor's.
        anonymise: whether names are replaced by pseudonyms.
        record_s: how long the sources are recorded; 0: not.
        root: prefix of /proc and /sys, for tests.

    """
    bundle = Bundle()
    names = Pseudonyms(enabled=anonymise)
    _ask_agent(config, bundle, names)
    _record(config, bundle, names, record_s)
    checks = [_shown(check, names) for check in findings]
    bundle.add("doctor.json", "doctor's findings", [check.as_json() for check in checks])
    lines = [f"{check.name:<20} {check.state:<8} {check.detail}\n" for check in checks]
    bundle.add("doctor.txt", "the same for people", "".join(lines))
    bundle.add("versions.json", "versions of what is installed", versions())
    bundle.add("config.json", "the configuration, all settings", names.settings(config))
    bundle.add("kernel.json", "what the kernel offers", kernel_facts(root))
    manifest = {
        "format": "whitepanda-bundle",
        "version": 1,
        "made_unix_ns": time.time_ns(),
        "pseudonyms": anonymise,
        "files": {name: {"bytes": len(data), "what": what} for name, (what, data) in sorted(bundle.files.items())},
        # The rest of a note is an error's text, which may have names or an address with credentials in it.
        "notes": [note.partition(":")[0] if anonymise or _has_own_uri(config) else note for note in bundle.notes],
    }
    bundle.add("manifest.json", "what is in here", manifest)
    return bundle


def _has_own_uri(config: AgentConfig) -> bool:
    """Whether libvirt's errors may repeat credentials."""
    return config.sources.libvirt.uri != LibvirtSection().uri


def _shown(check: Check, names: Pseudonyms) -> Check:
    is_hidden = check.privacy == "secret" or (names.enabled and check.privacy != "public")
    return replace(check, detail=REDACTED) if is_hidden else check


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
        if not file.parent.is_dir():
            why = f"there is no folder {file.parent}"
        raise UnavailableError(f"{file}: cannot write: {why}") from error


def _pack(bundle: Bundle, stream: Any) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, (_, data) in sorted(bundle.files.items()):
            entry = tarfile.TarInfo(f"whitepanda-bundle/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))


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
        found[package] = None
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    programs = {
        "libvirtd": ("libvirtd", "virtqemud"),
        "qemu": (f"qemu-system-{platform.machine()}", "/usr/libexec/qemu-kvm", "kvm"),
        "openvswitch": ("ovs-vswitchd",),
    }
    return found | {name: _version_of(tried) for name, tried in programs.items()}


def _version_of(programs: Sequence[str]) -> str | None:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    options: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL, "text": True, "errors": "replace"}
    for found in filter(None, (shutil.which(program, path=path) for program in programs)):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([found, "--version"], timeout=_COMMAND_S, check=False, **options)
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
    facts["proc/self/mountinfo, cgroup and resctrl"] = [shown for line in mounts if (shown := _mount(line))]
    devices = root / "sys/bus/event_source/devices"
    facts["sys/bus/event_source/devices"] = sorted(item.name for item in devices.glob("*"))
    status = (_read(root / "proc/self/status") or "").splitlines()
    facts["proc/self/status"] = [line for line in status if line.startswith(("Cap", "NoNewPrivs", "Seccomp"))]
    return facts


def _mount(line: str) -> str:
    """Return the place, type and options of a mount; "" of other file systems. Its root may be named after a VM."""
    mount, _, rest = line.partition(" - ")
    kind, *others = rest.split() or [""]
    return " ".join([mount.split()[4], kind, *others[1:]]) if kind in _FILESYSTEMS else ""


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(_MAX_FILE).decode("utf-8", "replace").strip()
    except OSError:
        return None


# -- the agent


def _ask_agent(config: AgentConfig, bundle: Bundle, names: Pseudonyms) -> None:
    try:
        with connect(Path(config.agent.socket)) as client:
            status, listed = client.status(), client.vms()
    except WhitepandaError as error:
        bundle.notes.append(f"agent: {error}")
        return
    if _has_own_uri(config):
        for source in status.sources:
            if source.name == "libvirt":
                source.detail = REDACTED  # it may repeat credentials
    for name, what, message in (
        ("agent/status.json", "what the agent says of itself", status),
        ("agent/vms.json", "its VMs and their metrics", listed),
    ):
        names.hide(message)
        bundle.add(name, what, json_format.MessageToDict(message, preserving_proto_field_name=True))


# -- the recording


def _record(config: AgentConfig, bundle: Bundle, names: Pseudonyms, seconds: float) -> None:
    if seconds <= 0:
        bundle.notes.append("recording: none was wanted")
        return
    settings, left = beside_agent(config)
    bundle.notes += [f"recording: {name} was left to the agent that runs here" for name in left]
    with tempfile.TemporaryDirectory(prefix="whitepanda-bundle-") as folder:
        file = Path(folder, "true.jsonl")
        try:
            with Recorder(file, header_of(settings)) as recorder:
                result = asyncio.run(Recording(settings).run(recorder, seconds))
            if result.trouble:
                bundle.notes.append(f"recording: {result.trouble}; it ends after {result.seconds:.0f} s")
            bundle.add("recording.jsonl", "what the sources said", _anonymous(file, names))
        except (WhitepandaError, OSError) as error:
            bundle.notes.append(f"recording: {error}")


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
                    known[sample.source] = (sample, names.sample(sample))
            samples = tuple(known[sample.source][1] for sample in tick.samples)
            recorder.write(RecordedTick(tick.mono_ns, tick.unix_ns, samples, tick.sources))
    return copy.read_bytes()
