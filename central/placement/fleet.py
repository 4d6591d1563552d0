"""Hosts with what runs on them, ranked for a new VM. A host is its index here; ties go to the lowest."""

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
    limits: Floats  # the most that the total loading may become, inf for no limit; shape (hosts, resources)
    amounts: tuple[str, ...] = ()  # names of what only has to fit, such as memory
    used: Floats | None = None  # of the amounts, shape (hosts, amounts)
    room: Floats | None = None  # of the amounts in all, shape (hosts, amounts)


@dataclass(frozen=True, slots=True)
class Request:
    """What a VM brings: its loading vector, the amounts that have to fit, its time alone (0 where not known)."""

    loading: Floats
    amounts: Floats
    tau_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hosts for a VM, best first.

    `order` has those with room. `added` is p' . P of all hosts, shape (hosts,): what the VM would suffer there over 1.
    `full` counts the hosts without room by the first resource or amount that is lacking.
    """

    order: Ints
    added: Floats
    full: dict[str, int]


class Fleet:
    """What runs on hosts now.

    Args:
        hosts: as they are at first.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        n = len(hosts.names)
        self.totals = hosts.totals.copy()
        self.used = np.zeros((n, 0)) if hosts.used is None else hosts.used.copy()
        self._room = np.zeros((n, 0)) if hosts.room is None else hosts.room
        self.sizes_s = np.zeros(n)

    def put(self, host: int, vm: Request) -> None:
        """Let a VM run on a host."""
        self.totals[host] += vm.loading
        self.used[host] += vm.amounts
        self.sizes_s[host] += vm.tau_s

    def take(self, host: int, vm: Request) -> None:
        """Let a VM end that was put on a host."""
        self.totals[host] -= vm.loading
        self.used[host] -= vm.amounts
        self.sizes_s[host] -= vm.tau_s

    def rank(self, vm: Request, rule: str = "dfactor", top: int | None = None) -> Ranking:
        """Rank the hosts for a VM.

        Args:
            vm: the new one.
            rule: one of `RULES`.
            top: so many hosts are enough; None: all.
        """
        added = added_dilation(vm.loading, self.totals, self.hosts.units)
        cost = np.round(RULES[rule](self, vm, added), DECIMALS)
        fits, full = self._fits(vm)
        index = np.arange(len(cost)) if fits is None else np.flatnonzero(fits)
        cost = cost[index]
        if top is not None and top < len(index):
            # Only what is no dearer than the last one wanted has to be sorted.
            kept = np.flatnonzero(cost <= np.partition(cost, top - 1)[top - 1])
            index, cost = index[kept], cost[kept]
        order = index[np.argsort(cost, kind="stable")][:top]
        return Ranking(order, added, full)

    def _fits(self, vm: Request) -> tuple[npt.NDArray[np.bool_] | None, dict[str, int]]:
        """Say which hosts have room (None: all), and count the others by what they lack."""
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


def _dfactor(_fleet: Fleet, _vm: Request, added: Floats) -> Floats:
    return added


def _graham(fleet: Fleet, vm: Request, _added: Floats) -> Floats:
    cost: Floats = fleet.sizes_s + vm.tau_s
    return cost


def _first_fit(fleet: Fleet, _vm: Request, _added: Floats) -> Floats:
    return np.zeros(len(fleet.totals))


def _least_loaded(fleet: Fleet, _vm: Request, _added: Floats) -> Floats:
    cost: Floats = (fleet.totals / fleet.hosts.units).sum(axis=1)
    return cost


#: What a host costs a VM; the cheapest is taken. dfactor: p' . P, equation (15), the list scheduler with loading
#: vectors. graham: the list scheduler, equation (16): sum of the times alone of what runs there. first-fit: the first
#: host with room. least-loaded: least sum of all loadings per unit.
RULES: dict[str, _Rule] = {
    "dfactor": _dfactor,
    "graham": _graham,
    "first-fit": _first_fit,
    "least-loaded": _least_loaded,
}
