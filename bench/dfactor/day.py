"""A simulated day of VM arrivals for bench/dfactor/study.py: placement knows loading vectors, the truth is another."""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from central.models.groups import Floats
from central.placement.fleet import Fleet, Hosts, Request

HOSTS, ARRIVALS, DAY_H = 200, 5000, 24.0
RESOURCES, UNITS = ("cpu", "memory", "disk", "network"), (16.0, 4.0, 2.0, 2.0)
#: How VMs are placed. fewest-vms and fewest-vcpus are least-loaded by what schedulers commonly count.
RULES = ("dfactor", "first-fit", "fewest-vms", "fewest-vcpus", "least-loaded", "random")
#: model: what placement believes is true. noisy: each VM's vector is wrong by a factor of its own per resource.
#: other: also, what a VM suffers and causes differ, causing goes with its vCPUs, contention grows faster than the load
#: above half of a resource, and VMs are busy only at times.
TRUTHS = ("model", "noisy", "other")
_KINDS, _LIFE_H, _VCPUS, _VCPU_SHARES = 60, 6.0, (1, 2, 4, 8), (0.4, 0.3, 0.2, 0.1)
_HOST_VCPUS, _NOISE, _LOOKS = 48.0, 0.4, 96


@dataclass(frozen=True, slots=True)
class Day:
    """VMs of a day, as columns in the order of arrival; `kind` is the job of each."""

    start_h: Floats
    end_h: Floats
    loading: Floats
    vcpus: Floats


def make_day(seed: int) -> Day:
    rng = np.random.default_rng(seed)
    # Idle at times, and mostly of one or two resources.
    kinds = rng.dirichlet([0.5] * (len(RESOURCES) + 1), _KINDS)[:, : len(RESOURCES)]
    start = np.sort(rng.random(ARRIVALS) * DAY_H)
    return Day(
        start,
        start + rng.exponential(_LIFE_H, ARRIVALS),
        kinds[rng.integers(0, _KINDS, ARRIVALS)],
        rng.choice(_VCPUS, ARRIVALS, p=_VCPU_SHARES).astype(np.float64),
    )


def place(day: Day, rule: str, seed: int) -> tuple[Any, int]:
    """Place the VMs as they arrive; return the host of each (-1: no room) and how many found none."""
    shape = (HOSTS, len(RESOURCES))
    fleet = Fleet(
        Hosts(
            tuple(f"host-{k}" for k in range(HOSTS)),
            RESOURCES,
            np.zeros(shape),
            np.array(UNITS),
            np.full(shape, np.inf),
            ("vcpus",),
            np.zeros((HOSTS, 1)),
            np.full((HOSTS, 1), _HOST_VCPUS),
        )
    )
    rng = np.random.default_rng(seed)
    running, where = np.zeros(HOSTS), np.full(ARRIVALS, -1)
    ends = list[tuple[float, int]]()
    requests = [Request(day.loading[k], day.vcpus[k : k + 1]) for k in range(ARRIVALS)]
    for k, request in enumerate(requests):
        while ends and ends[0][0] <= day.start_h[k]:
            _, gone = heapq.heappop(ends)
            fleet.take(where[gone], requests[gone])
            running[where[gone]] -= 1
        if rule in ("dfactor", "first-fit", "least-loaded"):
            order = fleet.rank(request, rule, top=1).order
        else:
            room = fleet.rank(request, "first-fit").order
            cost = {"fewest-vms": running, "fewest-vcpus": fleet.used[:, 0], "random": rng.random(HOSTS)}[rule]
            order = room[np.argsort(cost[room], kind="stable")]
        if len(order):
            where[k] = order[0]
            fleet.put(int(order[0]), request)
            running[order[0]] += 1
            heapq.heappush(ends, (float(day.end_h[k]), k))
    return where, int((where < 0).sum())


def excess(day: Day, where: Any, truth: str, seed: int) -> float:
    """Mean slow-down over 1 of the VMs that run, over looks at the day from its second hour on."""
    rng = np.random.default_rng(10_000 + seed)
    factors = np.exp(_NOISE * rng.normal(size=(2, *day.loading.shape)))
    busy = rng.random((_LOOKS, ARRIVALS)) < 0.7
    suffers, causes = day.loading, day.loading
    if truth == "noisy":
        suffers = causes = day.loading * factors[0]
    elif truth == "other":
        suffers = day.loading * factors[0]
        causes = day.loading * factors[1] * np.sqrt(day.vcpus)[:, None]
    found = list[Floats]()
    for look, at_h in enumerate(np.linspace(2.0, DAY_H, _LOOKS)):
        here = (where >= 0) & (day.start_h <= at_h) & (day.end_h > at_h)
        if truth == "other":
            here &= busy[look]
        rows = np.flatnonzero(here)
        total = np.zeros((HOSTS, len(RESOURCES)))
        np.add.at(total, where[rows], causes[rows])
        load = (total[where[rows]] - causes[rows]) / np.array(UNITS)
        if truth == "other":
            load = load + np.maximum(load - 0.5, 0.0) ** 2
        found.append((suffers[rows] * load).sum(axis=1))
    return float(np.concatenate(found).mean())


def evaluate(seed: int) -> dict[str, Any]:
    """One day by every rule, under every truth."""
    day = make_day(seed)
    found: dict[str, Any] = {"seed": seed, "excess": {}, "without_room": {}}
    for rule in RULES:
        where, lost = place(day, rule, seed)
        found["without_room"][rule] = lost
        found["excess"][rule] = {truth: excess(day, where, truth, seed) for truth in TRUTHS}
    return found
