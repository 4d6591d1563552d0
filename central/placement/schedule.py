"""Places VMs one after the other, as they arrive; those that are placed run, slow each other down and end."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from central.models.dfactor import completion_times
from central.models.groups import Floats
from central.placement.fleet import Fleet, Hosts, Ranking, Request

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM to place. `host`: where it runs already (its index), `NOWHERE` to be placed.

    `request.tau_s` is its time alone, 0 for one that does not end.
    """

    name: str
    request: Request
    start_s: float = 0.0
    host: int = NOWHERE

    @property
    def tau_s(self) -> float:
        """Time alone; inf for one that does not end."""
        return self.request.tau_s or float("inf")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a VM was put and why. `totals` is P of that host just before; `host` is `NOWHERE` where none had room."""

    vm: int
    host: int
    ranking: Ranking
    totals: Floats

    @property
    def added(self) -> float:
        """Its dilation over 1 there as it is placed: p' . P."""
        return float(self.ranking.added[self.host])


@dataclass(frozen=True, slots=True)
class Schedule:
    """The result. `host` and `end_s` per VM in their order; `end_s` is inf for one that does not end."""

    placements: tuple[Placement, ...]
    host: tuple[int, ...]
    end_s: Floats

    @property
    def makespan_s(self) -> float:
        """When the last of the VMs that end has ended."""
        return float(self.end_s[np.isfinite(self.end_s)].max(initial=0.0))

    @property
    def added(self) -> float:
        """Sum of the placed VMs' dilations over 1, p' . P, and of as much by which the others' dilations rise."""
        return 2.0 * sum(each.added for each in self.placements if each.host != NOWHERE)


def place_all(
    hosts: Hosts, vms: Sequence[Vm], rule: str = "dfactor", *, top: int | None = None, largest_first: bool = False
) -> Schedule:
    """Place VMs in the order of arrival; VMs of one moment in the given order, or the longest loading vector first.

    The first state of `hosts` stays in their totals; VMs with a host run there already. `top`: hosts in a ranking.
    """
    state = _State(hosts, vms)
    placements = list[Placement]()

    def when(k: int) -> tuple[float, bool, float]:
        loading = vms[k].request.loading
        return vms[k].start_s, vms[k].host == NOWHERE, -float(loading @ loading) if largest_first else 0.0

    for k in sorted(range(len(vms)), key=when):
        state.advance(vms[k].start_s)
        host = vms[k].host
        if host == NOWHERE:
            ranking = state.fleet.rank(vms[k].request, rule, top)
            host = int(ranking.order[0]) if len(ranking.order) else NOWHERE
            placements.append(Placement(k, host, ranking, state.fleet.totals[host].copy()))
        if host != NOWHERE:
            state.put(k, host)
    return Schedule(tuple(placements), tuple(state.host), state.end_s)


class _State:
    """Where each VM runs, and when it will end if no other VM arrives."""

    def __init__(self, hosts: Hosts, vms: Sequence[Vm]) -> None:
        self.fleet = Fleet(hosts)
        self.host = [NOWHERE] * len(vms)
        self.end_s = np.full(len(vms), np.inf)
        self._vms = vms
        self._on: dict[int, list[int]] = {}
        self._gone = set[int]()
        self._ends: list[tuple[float, int]] = []  # a heap; entries with an end that has moved are skipped

    def advance(self, now_s: float) -> None:
        """Remove the VMs that have ended by then."""
        while self._ends and self._ends[0][0] <= now_s:
            end, k = heapq.heappop(self._ends)
            if k not in self._gone and end == self.end_s[k]:
                self._gone.add(k)
                self.fleet.take(self.host[k], self._vms[k].request)

    def put(self, k: int, host: int) -> None:
        """Let a VM run on a host, and recompute when those there end."""
        hosts, vms = self.fleet.hosts, self._vms
        self.host[k] = host
        self.fleet.put(host, vms[k].request)
        here = self._on.setdefault(host, [])
        here.append(k)
        if all(np.isinf(vms[other].tau_s) for other in here):
            return
        found = completion_times(
            np.array([vms[k].request.loading for k in here]),
            [vms[k].tau_s for k in here],
            [vms[k].start_s for k in here],
            hosts.units_of(host),
            hosts.totals[host],
        )
        for other, end in zip(here, found.tolist(), strict=True):
            if other not in self._gone and end != self.end_s[other]:
                self.end_s[other] = end
                heapq.heappush(self._ends, (end, other))
