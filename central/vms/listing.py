"""The list of VMs that run: filtered, sorted and cut into pages, for 50,000 of them in milliseconds. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whitepanda.v1 import agent_pb2


@dataclass(frozen=True, slots=True)
class VmEntry:
    """One VM in its last windows. `cpi` is NaN if not known."""

    vm: str  # UUID
    name: str
    project: str
    job: str
    host: str
    platform: str
    cpi: float
    cpu_usage_cores: float
    last_unix_ns: int
    text: str  # all that is searched in, in lower case


@dataclass(frozen=True, slots=True)
class Part:
    """A VM's part in an open incident; `slow_down` is a victim's, if known."""

    behaviour: agent_pb2.Behaviour  # victim or inflicting
    incident: int
    since_unix_ns: int
    slow_down: agent_pb2.Degradation | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter, where "" and 0 take all, and the order, one of `ORDERS`. `text` is in lower case."""

    text: str = ""
    project: str = ""
    job: str = ""
    host: str = ""
    behaviour: int = 0
    order: str = "name"
    descending: bool = False


def entry(vm: str, name: str, project: str, row: Mapping[str, Any]) -> VmEntry:
    """Make an entry of a row with the columns of `central.api.lake_queries.Running`."""
    job, host = row["job"], row["machine"]
    cpi = row["cpi"]
    text = f"{name}\n{vm}\n{project}\n{job}\n{host}".lower()
    return VmEntry(
        vm, name, project, job, host, row["platform"], math.nan if cpi is None else cpi,
        row["cpu_usage_cores"], row["last"], text,
    )  # fmt: skip


#: What each column is sorted by.
_KEYS: Mapping[str, Callable[[VmEntry], Any]] = {
    "name": lambda each: (each.name or each.vm).lower(),
    "project": lambda each: each.project,
    "job": lambda each: each.job,
    "host": lambda each: each.host,
    "platform": lambda each: each.platform,
    "cpi": lambda each: -math.inf if math.isnan(each.cpi) else each.cpi,
    "cpu": lambda each: each.cpu_usage_cores,
    "last": lambda each: each.last_unix_ns,
}
ORDERS = (*_KEYS, "behaviour", "slow_down")


@dataclass
class VmList:
    """Entries, sorted once per column. Of those with the same value the first by name comes first."""

    entries: Sequence[VmEntry]
    _sorted: dict[tuple[str, bool], list[VmEntry]] = field(default_factory=dict)

    def of_project(self, project: str) -> list[VmEntry]:
        """Return the VMs of a project, by name."""
        return [each for each in self._by_column("name") if each.project == project]

    def page(self, wanted: Wanted, parts: Mapping[str, Part], first: int, size: int) -> tuple[list[VmEntry], int]:
        """Return up to `size` entries from place `first` on, and how many match in all.

        `parts` are those of open incidents, by UUID.
        """
        found = self._in_order(wanted, parts)
        if wanted.text or wanted.project or wanted.job or wanted.host or wanted.behaviour:
            found = [each for each in found if _matches(each, wanted, parts)]
        return list(found[first : first + size]), len(found)

    def _in_order(self, wanted: Wanted, parts: Mapping[str, Part]) -> Sequence[VmEntry]:
        if wanted.order in _KEYS:
            return self._by_column(wanted.order, descending=wanted.descending)
        by_name = self._by_column("name")
        in_parts = [each for each in by_name if each.vm in parts]
        key = _slow_down if wanted.order == "slow_down" else _behaviour
        others = [each for each in by_name if each.vm not in parts]
        in_parts.sort(key=lambda each: key(parts[each.vm]), reverse=wanted.descending)
        return [*in_parts, *others] if wanted.descending else [*others, *in_parts]

    def _by_column(self, order: str, *, descending: bool = False) -> list[VmEntry]:
        known = self._sorted.get((order, descending))
        if known is None:
            by_name = self.entries if order == "name" else self._by_column("name")
            known = self._sorted[order, descending] = sorted(by_name, key=_KEYS[order], reverse=descending)
        return known


def _slow_down(part: Part) -> float:
    if part.slow_down is None or math.isnan(part.slow_down.ratio):
        return float(part.behaviour == agent_pb2.BEHAVIOUR_VICTIM) - 1
    return part.slow_down.ratio


def _behaviour(part: Part) -> int:
    return part.behaviour


def _matches(each: VmEntry, wanted: Wanted, parts: Mapping[str, Part]) -> bool:
    if wanted.behaviour:
        part = parts.get(each.vm)
        if (part.behaviour if part else agent_pb2.BEHAVIOUR_STEADY) != wanted.behaviour:
            return False
    return (
        (not wanted.text or wanted.text in each.text)
        and (not wanted.host or each.host == wanted.host)
        and (not wanted.job or each.job == wanted.job)
        and (not wanted.project or each.project == wanted.project)
    )


def best_first(text: str, names: Iterable[str], most: int) -> list[str]:
    """Return the names that have a text (in lower case) in them: equal ones first, then those that begin with it."""
    found = [name for name in names if text in name.lower()]
    found.sort(key=lambda name: (name.lower() != text, not name.lower().startswith(text), len(name), name))
    return found[:most]
