"""Reads what is to be placed, and the hosts it may go to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from central.models.groups import Floats
from central.placement.fleet import Hosts, Request
from central.placement.schedule import NOWHERE, Vm
from central.placement.tables import Jobs, jobs_of, units_of
from central.tables.user_files import UserTable, refuse_twice
from whitepanda.common.errors import InputError

HOST = "host"


@dataclass(frozen=True, slots=True)
class VmTable:
    """VMs of a file. `hosts`: where each runs already, "" for one to place; `amounts` (VMs, amounts) have to fit."""

    path: Path
    jobs: Jobs
    hosts: tuple[str, ...]
    amounts: Floats

    def vms(self, hosts: Hosts) -> list[Vm]:
        """Return them as VMs of these hosts.

        Raises InputError if one runs on a host that is not there, or none is to be placed.
        """
        index = {name: k for k, name in enumerate(hosts.names)} | {"": NOWHERE}
        jobs, found = self.jobs, list[Vm]()
        tau, start = (np.zeros(len(jobs.names)) if each is None else each for each in (jobs.tau_s, jobs.start_s))
        for k, (name, host) in enumerate(zip(jobs.names, self.hosts, strict=True)):
            if host not in index:
                raise InputError(f"{self.path}: {name} runs on {host}, which is not a host of the other file")
            request = Request(jobs.loadings[k], self.amounts[k], float(tau[k]))
            found.append(Vm(name, request, float(start[k]), index[host]))
        if all(self.hosts):
            raise InputError(f"{self.path}: every row has a host; leave it empty in those to place")
        return found


def read_vms(path: Path, amounts: Sequence[str] = ()) -> VmTable:
    """Read VMs: columns job, one per resource, those of `amounts`; if known tau_s, start_s and host.

    Raises InputError for what `UserTable` and `jobs_of` refuse, or an amount that is missing or below 0.
    """
    rows = UserTable(path)
    rows.require(*amounts)
    jobs = jobs_of(rows, beside=(HOST, *amounts), can_fit=True)
    needed = np.column_stack([rows.numbers(name) for name in amounts]) if amounts else np.zeros((len(rows), 0))
    hosts = rows.texts(HOST).tolist() if HOST in rows.columns else [""] * len(rows)
    return VmTable(path, jobs, tuple(hosts), needed)


def read_hosts(
    path: Path,
    resources: Sequence[str],
    *,
    units: Mapping[str, float],
    limits: Mapping[str, float],
    amounts: Mapping[str, float],
) -> Hosts:
    """Read hosts: column host; if wanted the total loading of each resource, units.NAME, limit.NAME, used amounts.

    Where the file has no column, `units` (1 by default), `limits` of the total loading and `amounts` in all count.
    Raises InputError for what `UserTable` refuses, a column of no known name, a host twice, a number out of range.
    """
    rows = UserTable(path)
    rows.require(HOST)
    known = {HOST, *resources, *amounts}
    known |= {f"units.{name}" for name in resources} | {f"limit.{name}" for name in (*resources, *amounts)}
    for name in rows.columns:
        if name not in known:
            raise InputError(
                f"{path}: column {name}: is not a resource of the VMs ({', '.join(resources)}), --fit, {HOST}, "
                "units.NAME or limit.NAME"
            )
    for name in limits:
        if name not in resources:
            raise InputError(f"--limit {name}: the VMs have no such resource; they have {', '.join(resources)}")
    names = rows.names(HOST)
    refuse_twice(path, HOST, names)
    counts = units_of(units, resources)

    def column(name: str, otherwise: float, low: float = 0.0) -> Floats:
        if name not in rows.columns:
            return np.full(len(rows), otherwise)
        return rows.numbers(name, low=low, empty=otherwise)

    if any(f"units.{name}" in rows.columns for name in resources):  # then per host too
        by_option = zip(resources, counts.tolist(), strict=True)
        counts = np.column_stack([column(f"units.{name}", count, 1.0) for name, count in by_option])
    return Hosts(
        tuple(names.tolist()),
        tuple(resources),
        np.column_stack([column(name, 0.0) for name in resources]),
        counts,
        np.column_stack([column(f"limit.{name}", limits.get(name, np.inf)) for name in resources]),
        tuple(amounts),
        np.column_stack([column(name, 0.0) for name in amounts]) if amounts else None,
        np.column_stack([column(f"limit.{name}", room) for name, room in amounts.items()]) if amounts else None,
    )
