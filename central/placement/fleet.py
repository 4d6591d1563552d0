"""Hosts and their load, ranked for a new VM. A host is its index here; ties go to the lowest."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from central.models.dfactor import added_dilation
from central.models.groups import Floats, Ints

#: Costs that differ by less are ties: sums of shares that came and went leave rounding behind.
DECIMALS = 12
# How much of a limit may be exceeded, for the same reason.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts as they are at first."""

    names: tuple[str, ...]  # of the hosts
    resources: tuple[str, ...]  # names of the resources that jobs contend for
    totals: Floats  # P, sum of the loading vectors of what runs there; shape (hosts, resources)
    units: Floats  # equal units of each resource, shape (resources,) or (hosts, resources)
    limits: Floats  # largest total loading allowed, inf for no limit; shape (hosts, resources)
    amounts: tuple[str, ...] = ()  # names of what only has to fit, such as memory
    used: Floats | None = None  # of the amounts, shape (hosts, amounts)
    room: Floats | None = None  # of the amounts in all, shape (hosts, amounts)

    def units_of(self, host: int) -> Floats:
        """Return a host's units of each resource."""
        return self.units if self.units.ndim == 1 else self.units[host]


@dataclass(frozen=True, slots=True)
class Request:
    """A VM's loading vector, the amounts that have to fit, its time alone (0 where not known)."""

    loading: Floats
    amounts: Floats
    tau_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hosts for a VM, best first."""

    order: Ints  # those with room
    added: Floats  # p' . P of all hosts, shape (hosts,): the VM's dilation there, less 1
    full: dict[str, int]  # hosts without room, by the first resource or amount that is lacking


class Fleet:
    """The hosts' present load. `hosts` is the first state."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        n = len(hosts.names)
        self.totals = hosts.totals.copy()
        self.used = np.zeros((n, 0)) if hosts.used is None else hosts.used.copy()
        self._room = np.zeros((n, 0)) if hosts.room is None else hosts.room
        self.sizes_s = np.zeros(n)

    def put(self, host: int, vm: Request) -> None:
        """Start a VM on a host."""
        self.totals[host] += vm.loading
        self.used[host] += vm.amounts
        self.sizes_s[host] += vm.tau_s

    def take(self, host: int, vm: Request) -> None:
        """End a VM on a host."""
        self.totals[host] -= vm.loading
        self.used[host] -= vm.amounts
        self.sizes_s[host] -= vm.tau_s

    def rank(self, vm: Request, rule: str = "dfactor", top: int | None = None) -> Ranking:
        """Rank the hosts for a VM by one of `RULES`; `top` of them, or all."""
        added = added_dilation(vm.loading, self.totals, self.hosts.units)
        cost = np.round(RULES[rule](self, vm, added), DECIMALS)
        fits, full = self._fits(vm)
        index = np.arange(len(cost)) if fits is None else np.flatnonzero(fits)
        cost = cost[index]
        if top is not None and top < len(index):
            # Only hosts whose cost is at most the last wanted one's have to be sorted.
            kept = np.flatnonzero(cost <= np.partition(cost, top - 1)[top - 1])
            index, cost = index[kept], cost[kept]
        order = index[np.argsort(cost, kind="stable")][:top]
        return Ranking(order, added, full)

    def _fits(self, vm: Request) -> tuple[npt.NDArray[np.bool_] | None, dict[str, int]]:
        """Return which hosts have room (None: all), and the number of the others by what they lack."""
        lacks = list[tuple[str, npt.NDArray[np.bool_]]]()
        for k, name in enumerate(self.hosts.resources):
            limit = self.hosts.limits[:, k]
            if np.isfinite(limit).any():
                lacks.append((name, self.totals[:, k] + vm.loading[k] > limit + _ROUNDING))
        for k, name in enumerate(self.hosts.amounts):
            room = self._room[:, k]
            lacks.append((name, self.used[:, k] + vm.amounts[k] > room + _ROUNDING * np.abs(room)))
        if not lacks:
            return None, {}
        fits = np.ones(len(self.totals), dtype=np.bool_)
        full: dict[str, int] = {}
        for name, lack in lacks:
            if count := int((fits & lack).sum()):
                full[name] = count
            fits &= ~lack
        return fits, full


_Rule = Callable[[Fleet, Request, Floats], Floats]


#: A host's cost for a VM; the cheapest is taken. dfactor: p' . P, equation (15), the list scheduler with loading
#: vectors. graham: the list scheduler, equation (16): sum of the times alone of what runs there. first-fit: the first
#: host with room. least-loaded: least sum of all loadings per unit.
RULES: dict[str, _Rule] = {
    "dfactor": lambda _fleet, _vm, added: added,
    "graham": lambda fleet, vm, _added: fleet.sizes_s + vm.tau_s,
    "first-fit": lambda fleet, _vm, _added: np.zeros(len(fleet.totals)),
    "least-loaded": lambda fleet, _vm, _added: (fleet.totals / fleet.hosts.units).sum(axis=1),
}
