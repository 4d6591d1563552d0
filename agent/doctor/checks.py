"""What this host can measure and what it would take to measure the rest; works without a running agent.

Nothing is changed: sources are probed, sockets connected to and closed again.
"""

import contextlib
import datetime as dt
import os
import platform
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agent.config import AgentConfig, LibvirtSection, OvsSection, ResctrlSection, UplinkSection
from agent.doctor.findings import Check, Privacy, State
from agent.doctor.vms import examine_vms
from collector.base import Reason
from collector.inventory.inventory import Inventory
from collector.perf.host import CAP_PERFMON, CAP_SYS_ADMIN
from collector.registry import SOURCES, SourceSpec, make_inventory
from whitepanda.common.texts import counted
from whitepanda.common.tls import (
    CERTIFICATE_CRITICAL_DAYS,
    CERTIFICATE_WARN_DAYS,
    OwnCertificate,
    client_context,
    not_grpc,
    problems,
    reason_text,
    warnings,
)

_DEADLINE_S = 3.0
_WITHOUT_CENTRAL = "the agent starts and spools, but reaches no central"
_PARANOID_MAX = 2  # above it (some distributions' patch) even own processes are closed


def examine(config: AgentConfig, file: Path | None, root: Path = Path("/")) -> Iterator[Check]:
    """Look at this host, one finding after the other.

    Args:
        config: what the agent would run with.
        file: where `config` is from; None: the defaults, and then the state directory is not required.
        root: prefix of /proc, /sys, /dev and /run, for tests.

    """
    versions = f"Linux {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    yield _public("host", "info", versions)
    yield Check("configuration", "info", str(file) if file else "none, these are the defaults")
    inventory = make_inventory(config.sources)
    yield from _sources(config, inventory)
    yield from examine_vms(config.sources, inventory)
    yield _paranoid(root)
    yield _pmu(root)
    yield _kvm(root)
    yield _libvirt(root, config.sources.libvirt)
    yield _resctrl(root, config.sources.resctrl)
    yield _ovs(root, config.sources.ovs)
    yield _state_dir(Path(config.agent.state_dir), required=file is not None)
    yield from _uplink(config.uplink)
    yield from _certificates(config)


# --- sources ---


def _sources(config: AgentConfig, inventory: Inventory) -> Iterator[Check]:
    for spec in SOURCES:
        section = getattr(config.sources, spec.name)
        name = f"source {spec.name}"
        if section.mode == "off":
            yield _public(name, "off", f"sources.{spec.name}.mode is off: {spec.help}")
        else:
            yield _source(name, spec, section, inventory)


def _source(name: str, spec: SourceSpec, section: Any, inventory: Inventory) -> Check:
    required = section.mode == "required"
    privacy = _privacy(section) if isinstance(section, LibvirtSection) else "names"
    try:
        probe = spec.factory(section, inventory).probe()
    except Exception as error:  # noqa: BLE001 - one source's defect must not hide the others' findings
        detail = f"failed: {type(error).__name__}: {error}"
        return Check(name, "missing", detail, required, Reason.SOURCE_FAILED, privacy)
    state: State = "ok" if probe.available else "missing"
    return Check(name, state, probe.detail or spec.help, required, probe.reason, privacy)


def _privacy(section: LibvirtSection) -> Privacy:
    return "names" if section.uri == LibvirtSection().uri else "secret"  # it may have credentials


def _public(name: str, state: State, detail: str, reason: Reason = Reason.UNSPECIFIED) -> Check:
    return Check(name, state, detail, reason=reason, privacy="public")


# --- the kernel ---


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _paranoid(root: Path) -> Check:
    name = "perf_event_paranoid"
    text = _read(root / "proc/sys/kernel/perf_event_paranoid")
    if text is None:
        detail = "no /proc/sys/kernel/perf_event_paranoid: this kernel has no perf events"
        return _public(name, "missing", detail, Reason.NO_PMU)
    value = int(text) if text.lstrip("-").isdigit() else _PARANOID_MAX + 1
    lines = (_read(root / "proc/self/status") or "").splitlines()
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    if effective & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN):
        return _public(name, "ok", f"{text}; we may measure other users' threads whatever it says (CAP_PERFMON)")
    if value < 0:
        return _public(name, "ok", f"{text}: everybody may measure")
    detail = f"{text}, and we lack CAP_PERFMON: VMs are of another user; run as root or by the unit"
    return _public(name, "missing", detail, Reason.PARANOID)


def _pmu(root: Path) -> Check:
    devices = root / "sys/bus/event_source/devices"
    found = sorted(p.name for p in devices.glob("*") if p.name == "cpu" or p.name.startswith(("cpu_", "armv8")))
    if found:
        return _public("PMU", "ok", f"the CPU's counters are there: {', '.join(found)}")
    remedy = "if this host is a VM, give it a PMU (-cpu host,pmu=on); CPU time, waits, disk and network need none"
    return _public("PMU", "missing", f"this kernel sees no CPU counters, so no CPI; {remedy}", Reason.NO_PMU)


def _kvm(root: Path) -> Check:
    if (root / "dev/kvm").exists():
        return _public("KVM", "ok", "/dev/kvm is there")
    detail = "no /dev/kvm: virtualisation is off in the firmware, or kvm_intel or kvm_amd is not loaded"
    return _public("KVM", "missing", detail)


# --- what else may run here ---


def _answers(address: Path | str) -> str:
    """Return "" where a program answers at a unix socket (a path) or at ADDRESS:PORT, else why not."""
    try:
        if isinstance(address, Path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(_DEADLINE_S)
                probe.connect(str(address))
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _DEADLINE_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or "no answer"
    return ""


def _libvirt(root: Path, section: LibvirtSection) -> Check:
    name = "libvirt socket"
    if section.mode == "off":
        return _public(name, "off", "sources.libvirt.mode is off")
    privacy = _privacy(section)
    uri = urlsplit(section.uri)
    if given := parse_qs(uri.query).get("socket"):
        sockets = given[-1:]
    elif uri.scheme in {"qemu", "qemu+unix"} and uri.path == "/system":
        # The monolithic daemon, or the modular one of QEMU.
        sockets = ["/run/libvirt/libvirt-sock-ro", "/run/libvirt/virtqemud-sock-ro"]
    else:
        return Check(name, "info", f"whether {section.uri} answers: see source libvirt", privacy=privacy)
    tried = []
    for path in (_under(root, one) for one in sockets):
        why = _answers(path)
        if not why:
            return Check(name, "ok", f"a daemon answers at {path}", privacy=privacy)
        tried.append(f"{path}: {why}")
    remedy = "start libvirtd or virtqemud if libvirt manages VMs here; Proxmox' and bare QEMUs need neither"
    return Check(name, "missing", f"{'; '.join(tried)}; {remedy}", reason=Reason.NOT_PRESENT, privacy=privacy)


def _resctrl(root: Path, section: ResctrlSection) -> Check:
    name = "resctrl"
    if section.mode == "off":
        return _public(name, "off", "sources.resctrl.mode is off")
    listed = {line.split()[-1] for line in (_read(root / "proc/filesystems") or "").splitlines() if line.split()}
    if "resctrl" not in listed:
        detail = "not in this kernel or CPU (no Intel RDT, AMD QoS): no cache occupancy, no memory bandwidth"
        return _public(name, "info", detail)
    mounts = [line.split() for line in (_read(root / "proc/mounts") or "").splitlines()]
    places = [fields[1] for fields in mounts if fields[2:3] == ["resctrl"]]
    if not places:
        return Check(name, "info", f"there, not mounted (mount -t resctrl resctrl {section.root})")
    place = section.root.rstrip("/")
    if place not in places:
        detail = f"mounted at {', '.join(places)}, not at {place}; set sources.resctrl.root"
        return Check(name, "missing", detail, reason=Reason.NOT_PRESENT)
    monitoring = _under(root, place) / "info/L3_MON"
    features = (_read(monitoring / "mon_features") or "").split()
    if not features:
        return _public(name, "info", "mounted, but this CPU or kernel monitors neither cache nor bandwidth")
    rmids = _read(monitoring / "num_rmids") or "?"
    return _public(name, "info", f"mounted: {', '.join(features)}; {rmids} monitoring ids")


def _ovs(root: Path, section: OvsSection) -> Check:
    name = "Open vSwitch"
    if section.mode == "off":
        return _public(name, "off", "sources.ovs.mode is off")
    kind, _, rest = section.database.partition(":")
    where = str(_under(root, rest)) if kind == "unix" else section.database
    if why := _answers(Path(where) if kind == "unix" else rest):
        return Check(name, "info", f"not here ({where}: {why}); network counters are libvirt's")
    return Check(name, "info", f"answers at {where}; for the data read there see source ovs")


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _state_dir(path: Path, *, required: bool) -> Check:
    name = "state directory"
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir():
        return Check(name, "missing", f"{existing} is not a folder; set agent.state_dir", required)
    if not os.access(existing, os.W_OK | os.X_OK):
        detail = f"{existing} may not be written by user {os.geteuid()}: windows and coefficients need it"
        return Check(name, "missing", f"{detail}; run as root, or set agent.state_dir", required)
    free_mib = shutil.disk_usage(existing).free >> 20
    return Check(name, "ok", f"{path}, {free_mib} MiB free" + ("" if existing == path else ", made at start"))


# --- central ---


def _uplink(uplink: UplinkSection) -> Iterator[Check]:
    if not uplink.address:
        detail = "uplink.address is not set: the agent works alone, without statistics and coefficients"
        yield _public("central", "off", detail)
        return
    wrong = problems(uplink.tls, server=False, prefix="uplink.tls")
    doubts = warnings(uplink.tls, server=False, prefix="uplink.tls")
    name = "TLS files"
    if wrong and wrong != doubts:
        # Not required: the agent measures and spools all the same.
        yield Check(name, "missing", f"{'; '.join(wrong)}; {_WITHOUT_CENTRAL}")
        return
    central = _central(uplink)
    if not doubts:
        fit = f"{uplink.tls.certificate} and its key fit; certificates signed by {uplink.tls.ca} are trusted"
        yield Check(name, "ok", fit)
    elif central.state == "ok":
        yield Check(name, "ok", f"central accepts them, but {doubts[0]}")
    else:
        yield Check(name, "missing", f"{doubts[0]}; {_WITHOUT_CENTRAL}")
    yield central


def _certificates(config: AgentConfig) -> Iterator[Check]:
    """Say when the agent's own certificates expire. Not required: without them it measures and spools."""
    used = (
        ("uplink.tls", config.uplink.tls, config.uplink.address),
        ("metrics.tls", config.metrics.tls, config.metrics.listen),
    )
    for setting, files, address in used:
        expiry_s = OwnCertificate(files).expiry_unix_s() if address and files.certificate else None
        if expiry_s is None:  # not used, or no certificate: the check of the files says why
            continue
        days = int((expiry_s - time.time()) // 86400)
        when = f"{dt.datetime.fromtimestamp(expiry_s, dt.UTC):%Y-%m-%d %H:%M} UTC"
        detail = f"{files.certificate} {'expired' if days < 0 else 'expires'} on {when}"
        state: State = "ok"
        if days < CERTIFICATE_WARN_DAYS:
            state = "missing" if days < CERTIFICATE_CRITICAL_DAYS else "info"
            left = f", in {counted(days, 'day')}" if days >= 0 else ""
            detail += f"{left}; renew it with `whitepanda pki renew` and put the new one in its place"
        yield Check(f"certificate {setting}", state, detail)


def _central(uplink: UplinkSection) -> Check:
    """Connect to central by TCP and TLS, both sides verified. Not required: the agent spools."""
    version = ""
    try:
        version, why = _handshake(uplink)
    except ssl.SSLCertVerificationError as error:
        remedy = "see uplink.tls.ca and uplink.server_name"
        why = f": its certificate does not pass: {error.verify_message}; {remedy}"
    except ssl.SSLError as error:
        reason = reason_text(error)
        other = not_grpc(reason)
        failed = f": TLS failed: {reason}; does central trust the CA of uplink.tls.certificate?"
        why = f" {other}; see uplink.address" if other else failed
    except OSError as error:
        remedy = "the agent spools until it answers; see uplink.address and the firewall"
        why = f": {error.strerror or str(error) or 'no answer'}; {remedy}"
    if why:
        return Check("central", "missing", f"{uplink.address}{why}", privacy="secret")
    detail = f"{uplink.address} answers, {version}, both certificates accepted"
    return Check("central", "ok", detail, privacy="secret")


def _handshake(uplink: UplinkSection) -> tuple[str, str]:
    """Return the TLS version, and what is wrong: "" where central answers."""
    host, _, port = uplink.address.rpartition(":")
    host = host.strip("[]")
    with (
        socket.create_connection((host, int(port)), _DEADLINE_S) as plain,
        client_context(uplink.tls).wrap_socket(plain, server_hostname=uplink.server_name or host) as stream,
    ):
        if stream.selected_alpn_protocol() is None:
            return "", f" {not_grpc('alpn')}; see uplink.address"
        # With TLS 1.3 a refusal of our certificate comes only after our handshake: wait for the first bytes.
        with contextlib.suppress(TimeoutError):
            if not stream.recv(1):
                return "", " closed the connection: is it central?"
        return str(stream.version()), ""
