"""Disk and network counters and the state of the VMs, from libvirt: one bulk call per sample, read-only.

libvirt may block for ever (a stopped daemon, a lock held by a migration), so this source runs in a thread
with a deadline like every other; keep-alive messages free a call to a silent daemon after 4 s. VMs are joined
to their epochs by the status files (`collector.identity`), not by asking libvirt.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from collector.base import (
    DiskCounters,
    InterfaceCounters,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    VmIdentity,
    VmSample,
)
from collector.identity import Inventory

__all__ = ["LibvirtSource", "parse_disks", "parse_interfaces"]

_KEEPALIVE_INTERVAL_S = 1
_KEEPALIVE_COUNT = 3
# Domains are seen before their status file is written; only a lasting difference is a wrong folder.
_UNKNOWN_SAMPLES = 3

# virDomainState, in the words of libvirt's status files.
_STATES = ("nostate", "running", "blocked", "paused", "shutdown", "shutoff", "crashed", "pmsuspended")

_NO_BINDING = (
    "this Python has no libvirt binding; install whitepanda's extra `host` into its environment "
    "(needs gcc, pkg-config and libvirt-dev; Debian's python3-libvirt is not visible from there)"
)


class LibvirtSource:
    """The libvirt source (`collector.base.Source`). Not safe for use by several threads at once.

    Directions of the interfaces are the guest's: libvirt itself swaps what the host sees of a tap device.

    Args:
        uri: libvirt's address of the hypervisor, such as "qemu:///system".
        inventory: the VMs and their epochs.
        deadline_s: how long `probe` waits for libvirt's answer.
        disk_poll_s: how often disk counters are asked for.
        binding: the module `libvirt`; None: imported when first used.

    """

    name = "libvirt"

    def __init__(
        self,
        uri: str,
        *,
        inventory: Inventory,
        deadline_s: float = 2.0,
        disk_poll_s: float = 10.0,
        binding: Any = None,
    ) -> None:
        self._uri = uri
        self._inventory = inventory
        self._deadline_s = deadline_s
        self._disk_poll_ns = round(disk_poll_s * 1e9)
        self._libvirt = binding
        self._connection: Any = None
        self._prober: threading.Thread | None = None
        self._unknown = 0

    def probe(self) -> Probe:
        """Connect, ask for the version and disconnect, in a thread because libvirt may never answer."""
        if self._prober is not None and self._prober.is_alive():
            return self._silent()
        results: list[Probe] = []
        self._prober = threading.Thread(
            target=lambda: results.append(self._try()), name="libvirt-probe", daemon=True
        )
        self._prober.start()
        self._prober.join(self._deadline_s)
        return results[0] if results else self._silent()

    def open(self) -> None:
        """Connect, with keep-alive."""
        if self._connection is None:
            self._connection = self._connect()

    def sample(self) -> SourceSample:
        """Read state, disks and interfaces of all running VMs in one call; connects anew where needed.

        Raises:
            SourceError: libvirt cannot be reached, or knows VMs that the status files do not name.

        """
        mono_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        before = {vm.uuid: vm.epoch for vm in self._inventory.vms()}
        records = self._statistics()
        inventory = self._inventory.vms()
        self._check_known(len(records), len(inventory))
        vms: dict[str, VmSample] = {}
        identities = []
        for vm in inventory:
            record = records.get(vm.uuid)
            identities.append(_with_state(vm, record))
            if vm.uuid in records:
                # Started or restored while libvirt answered: whose counters these are is not known.
                vms[vm.uuid] = (
                    _parse_vm(vm.epoch, record)
                    if before.get(vm.uuid) == vm.epoch
                    else _absent(vm.epoch, Reason.VM_STARTING)
                )
        return SourceSample(self.name, mono_ns, unix_ns, vms, inventory=tuple(identities))

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._module().libvirtError):
                connection.close()

    def _module(self) -> Any:
        if self._libvirt is None:
            try:
                self._libvirt = importlib.import_module("libvirt")
            except ImportError as error:
                raise SourceError(_NO_BINDING, Reason.NOT_PRESENT) from error
        return self._libvirt

    def _silent(self) -> Probe:
        detail = f"{self._uri}: no answer within {self._deadline_s:g} s; is libvirt's daemon hung or stopped?"
        return Probe(available=False, detail=detail, reason=Reason.STUCK)

    def _try(self) -> Probe:
        try:
            module = self._module()
            module.registerErrorHandler(_quiet, None)
            connection = module.openReadOnly(self._uri)
            try:
                version = connection.getLibVersion()
            finally:
                connection.close()
        except SourceError as error:
            return Probe(available=False, detail=str(error), reason=error.reason)
        except Exception as error:  # noqa: BLE001 - libvirtError, of a module that is only known here
            failure = self._explain(error, opening=True)
            return Probe(available=False, detail=str(failure), reason=failure.reason)
        vms = self._inventory.probe()
        if not vms.available:
            return vms
        text = f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
        return Probe(available=True, detail=f"{self._uri}, libvirt {text}")

    def _connect(self) -> Any:
        module = self._module()
        module.registerErrorHandler(_quiet, None)
        _start_event_loop(module)
        try:
            connection = module.openReadOnly(self._uri)
        except module.libvirtError as error:
            raise self._explain(error, opening=True) from error
        try:
            connection.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)
        except module.libvirtError as error:
            # A driver without a daemon (such as test:///) knows no keep-alive and needs none.
            if error.get_error_code() != module.VIR_ERR_NO_SUPPORT:
                with contextlib.suppress(module.libvirtError):
                    connection.close()
                raise self._explain(error) from error
        return connection

    def _statistics(self) -> dict[str, Mapping[str, Any] | None]:
        """Return libvirt's record per VM, None where that VM's could not be read."""
        module = self._module()
        for attempt in (1, 2):
            self.open()
            try:
                return self._bulk(module)
            except module.libvirtError as error:
                if self._alive(module):
                    return self._one_by_one(module, error)
                self.close()
                failure = self._explain(error)
                # A daemon that was restarted closed the old connection and answers on a new one. One that is
                # silent would block the new one: say so first.
                if attempt == 2 or failure.reason is Reason.STUCK:  # noqa: PLR2004 - the last
                    raise failure from error
        raise AssertionError  # the loop returns or raises

    def _bulk(self, module: Any) -> dict[str, Mapping[str, Any] | None]:
        flags = module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
        flags |= module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        found = self._connection.getAllDomainStats(_wanted(module), flags)
        return {domain.UUIDString(): record for domain, record in found}

    def _one_by_one(self, module: Any, cause: Exception) -> dict[str, Mapping[str, Any] | None]:
        """Ask for each domain alone: one that fails the bulk call costs nobody else's sample."""
        records: dict[str, Mapping[str, Any] | None] = {}
        flags = module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        try:
            domains = self._connection.listAllDomains(module.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        except module.libvirtError as error:
            raise self._explain(error) from cause
        for domain in domains:
            uuid = domain.UUIDString()
            records[uuid] = None
            with contextlib.suppress(module.libvirtError):
                for _, record in self._connection.domainListGetStats([domain], _wanted(module), flags):
                    records[uuid] = record
        if records and all(record is None for record in records.values()):
            raise self._explain(cause) from cause
        return records

    def _alive(self, module: Any) -> bool:
        try:
            return bool(self._connection.isAlive())
        except module.libvirtError:
            return False

    def _check_known(self, domains: int, identities: int) -> None:
        self._unknown = self._unknown + 1 if domains and not identities else 0
        if self._unknown >= _UNKNOWN_SAMPLES:
            raise SourceError(
                f"{self._uri} runs {domains} VMs, but their status files were not found; "
                "set sources.libvirt.state_dir to the folder with libvirt's NAME.xml of running VMs"
            )

    def _explain(self, error: Exception, *, opening: bool = False) -> SourceError:
        """Make one line with the remedy of libvirt's error. `opening`: there is no connection yet."""
        text = str(error).strip().rstrip(".")
        lower = text.lower()
        if any(words in lower for words in ("permission denied", "authentication", "access denied")):
            remedy, reason = "run the agent as root or in the group libvirt", Reason.NO_PERMISSION
        elif any(words in lower for words in ("no such file", "connection refused", "unable to connect")):
            remedy, reason = "is libvirtd (or virtqemud) running?", Reason.SOURCE_FAILED
        elif "keepalive timeout" in lower:
            remedy, reason = "libvirt's daemon does not answer; is it hung or stopped?", Reason.STUCK
        elif opening:
            remedy, reason = "is sources.libvirt.uri right?", Reason.SOURCE_FAILED
        else:
            remedy, reason = "connecting anew at the next tick", Reason.SOURCE_FAILED
        return SourceError(f"{self._uri}: {text}; {remedy}", reason)


def parse_disks(record: Mapping[str, Any]) -> dict[str, DiskCounters]:
    """Return the disks of a record that have counters, by target name (`vda`). An empty drive has none."""
    return {
        record[f"block.{index}.name"]: DiskCounters(
            read_bytes=record[f"block.{index}.rd.bytes"],
            write_bytes=record[f"block.{index}.wr.bytes"],
            read_ops=record[f"block.{index}.rd.reqs"],
            write_ops=record[f"block.{index}.wr.reqs"],
        )
        for index in range(record.get("block.count", 0))
        if f"block.{index}.rd.bytes" in record
    }


def parse_interfaces(record: Mapping[str, Any]) -> dict[str, InterfaceCounters]:
    """Return the interfaces of a record that have counters, by host device (`vnet0`)."""
    return {
        record[f"net.{index}.name"]: InterfaceCounters(
            receive_bytes=record[f"net.{index}.rx.bytes"],
            transmit_bytes=record[f"net.{index}.tx.bytes"],
            receive_packets=record[f"net.{index}.rx.pkts"],
            transmit_packets=record[f"net.{index}.tx.pkts"],
            receive_drops=record[f"net.{index}.rx.drop"],
            transmit_drops=record[f"net.{index}.tx.drop"],
        )
        for index in range(record.get("net.count", 0))
        if f"net.{index}.rx.bytes" in record
    }


def _parse_vm(epoch: str, record: Mapping[str, Any] | None) -> VmSample:
    if record is None:
        return _absent(epoch, Reason.SOURCE_FAILED)
    absent: dict[str, Reason] = {}
    disks: dict[str, DiskCounters] | None = None
    interfaces: dict[str, InterfaceCounters] | None = None
    try:
        disks = parse_disks(record)
    except (KeyError, TypeError):
        absent["disks"] = Reason.INVALID_VALUE
    try:
        interfaces = parse_interfaces(record)
    except (KeyError, TypeError):
        absent["interfaces"] = Reason.INVALID_VALUE
    # NOWAIT: of a VM that another call holds (a migration, a save) libvirt does not ask QEMU.
    if disks == {} and record.get("block.count") != 0:
        disks, absent["disks"] = None, Reason.STALE
    if interfaces == {} and record.get("net.count") != 0:
        interfaces, absent["interfaces"] = None, Reason.NOT_PRESENT
    return VmSample(epoch, disks=disks, interfaces=interfaces, absent=absent)


def _absent(epoch: str, reason: Reason) -> VmSample:
    return VmSample(epoch, absent={"disks": reason, "interfaces": reason})


def _with_state(vm: VmIdentity, record: Mapping[str, Any] | None) -> VmIdentity:
    number = (record or {}).get("state.state")
    if not isinstance(number, int) or not 0 <= number < len(_STATES) or _STATES[number] == vm.state:
        return vm
    return replace(vm, state=_STATES[number])


def _wanted(module: Any) -> int:
    statistics: Iterable[int] = (
        module.VIR_DOMAIN_STATS_STATE,
        module.VIR_DOMAIN_STATS_INTERFACE,
        module.VIR_DOMAIN_STATS_BLOCK,
    )
    return sum(statistics)


def _quiet(_context: object, _error: object) -> None:
    """Keep libvirt from printing errors that are raised as well."""


_event_loop: threading.Thread | None = None
_event_loop_lock = threading.Lock()


def _start_event_loop(module: Any) -> None:
    """Run libvirt's event loop, which keep-alive needs, in a daemon thread. It cannot be stopped."""
    global _event_loop  # noqa: PLW0603 - libvirt has one event loop per process

    def run() -> None:
        while True:
            module.virEventRunDefaultImpl()

    with _event_loop_lock:
        if _event_loop is None:
            module.virEventRegisterDefaultImpl()
            _event_loop = threading.Thread(target=run, name="libvirt-events", daemon=True)
            _event_loop.start()
