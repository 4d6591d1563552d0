"""Proxmox VE's configuration of VMs: /etc/pve, its own file system (pmxcfs).

It may block while the cluster has no quorum or its daemon hangs, so it is read in the poller's thread. A file is parsed
again only when it changed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whitepanda.common.files.bounded import read_bounded

_MAX_BYTES = 1 << 20  # of a file
_KEYS = ("tags", "agent")


@dataclass(frozen=True, slots=True)
class ProxmoxVm:
    """A VM's configuration: its name and the facts for the job rules."""

    name: str = ""
    facts: dict[str, str] = field(default_factory=dict)


class ProxmoxConfig:
    """Reads VMs from pmxcfs, mounted at `folder`, on this `node` of the cluster; what cannot be read is left out."""

    def __init__(self, folder: str = "/etc/pve", node: str = "") -> None:
        self._folder = Path(folder)
        self._node = node or os.uname().nodename.partition(".")[0]
        self._parsed: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def vm(self, vmid: str) -> ProxmoxVm:
        """Return a VM's configuration; at least its `pve:vmid`."""
        places = (self._folder, self._folder / "nodes" / self._node)
        files = (place / "qemu-server" / f"{vmid}.conf" for place in places)
        found = next((vm for vm in (self._read(file, parse_vm) for file in files) if vm), ProxmoxVm())
        pools: dict[str, str] = self._read(self._folder / "user.cfg", parse_pools) or {}
        facts = {"pve:vmid": vmid, **found.facts}
        if vmid in pools:
            facts["pve:pool"] = pools[vmid]
        return ProxmoxVm(found.name, facts)

    def _read(self, path: Path, parse: Callable[[str], Any]) -> Any:
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._parsed.get(path)
            if known is None or known[0] != stamp:
                known = self._parsed[path] = (stamp, parse(read_bounded(path, _MAX_BYTES).decode(errors="replace")))
        except OSError:
            self._parsed.pop(path, None)
            return None
        return known[1]


def parse_vm(text: str) -> ProxmoxVm:
    """Parse a VM's file: `key: value` lines, up to the first `[section]`, which is a snapshot."""
    values = {}
    for line in text.splitlines():
        if line.startswith("["):
            break
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            values[key.strip()] = value.strip()
    facts = {f"pve:{key}": values[key] for key in _KEYS if values.get(key)}
    return ProxmoxVm(values.get("name", ""), facts)


def parse_pools(text: str) -> dict[str, str]:
    """Return the pool by VM of user.cfg: lines `pool:NAME:COMMENT:VM,VM:STORAGES:`."""
    pools = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(":")
        fields = rest.split(":")
        if kind == "pool" and len(fields) > 2:  # noqa: PLR2004 - the third has the VMs
            pools.update({vmid.strip(): fields[0] for vmid in fields[2].split(",") if vmid.strip()})
    return pools
