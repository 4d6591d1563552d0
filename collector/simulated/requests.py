"""Tail latency of an application's requests, from a queue with as many servers as it has workers.

Twice: request by request for what a client measures, and a long simulation tabulated once for what is expected.
"""

import heapq
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collector.simulated.profiles import Application

Array = NDArray[np.float64]

_PERCENTILE = 0.95
_LANES = 32
_STEPS = 3000
_WARM_UP = 400
#: Beyond the last one no queue is stable; its tail holds for all larger loads.
_LOADS = np.concatenate([np.linspace(0.02, 0.8, 27), np.linspace(0.82, 0.97, 10)])
#: Time of a disk operation over the mean service time.
_DISK_TIMES = np.array([0.0, 0.5, 2.0, 8.0, 32.0])
_SEED = 20220812  # of the tables; the paper's day of acceptance


class RequestQueue:
    """First come, first served, by `workers`; carries over from tick to tick what has not ended."""

    def __init__(self, application: Application, workers: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._sigma = math.sqrt(math.log1p(application.service_cv**2))
        self._disk = application.disk_ops_per_request
        self._free_at_s = [0.0] * workers
        self._workers = workers
        # Of requests that have not ended: their ends and latencies, and from when to when each is on a vCPU; (4, n).
        self._open: Array = np.empty((4, 0))

    def running_at(self, at_s: float) -> int:
        """Return how many workers are on a vCPU at an instant, the end of the last tick.

        A request is on a vCPU (or waits for a CPU, which its time there includes) first, then waits for the disk.
        """
        _, _, begins_s, leaves_s = self._open
        running = (begins_s <= at_s) & (at_s < leaves_s)
        return min(int(running.sum()), self._workers)  # at the very instant of a change rounding may show both

    def serve(self, from_s: float, step_s: float, requests: int, service_s: float, disk_op_s: float) -> Array:
        """Let `requests` arrive in a tick (uniformly); return the latencies of those that ended, in seconds.

        The tick begins at `from_s`, not before the end of the last one. `service_s` is the mean time on a vCPU of the
        new requests, `disk_op_s` of a disk operation.
        """
        rng = self._rng
        arrivals = from_s + step_s * np.sort(rng.random(requests))
        services = service_s * rng.lognormal(-(self._sigma**2) / 2, self._sigma, requests)
        slow = rng.random(requests) < self._disk
        disk = np.zeros(requests)
        disk[slow] = rng.exponential(disk_op_s, int(slow.sum()))
        services += disk
        new = self._ends(arrivals, services)
        every = np.concatenate([self._open, np.stack([new, new - arrivals, new - services, new - disk])], axis=1)
        done = every[0] <= from_s + step_s
        self._open = every[:, ~done]
        latencies: Array = every[1, done]
        return latencies

    def _ends(self, arrivals: Array, services: Array) -> Array:
        free = self._free_at_s
        if len(free) == 1:
            # Lindley: end_i = max(arrival_i, end_{i-1}) + service_i, as a running maximum.
            before = np.cumsum(services) - services
            begin = np.maximum.accumulate(np.concatenate([[free[0]], arrivals - before]))[1:]
            ends: Array = begin + before + services
            if len(ends):
                free[0] = float(ends[-1])
            return ends
        made = []
        for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
            end = max(arrival, free[0]) + service
            heapq.heapreplace(free, end)
            made.append(end)
        return np.array(made)


def p95(latencies: Array) -> float:
    """Return the 95th percentile; NaN of no latencies."""
    return float(np.quantile(latencies, _PERCENTILE)) if len(latencies) else math.nan


def expected_p95(application: Application, workers: int, load: Array, disk_time: Array) -> Array:
    """Return the expected 95th percentile in units of the mean service time.

    Interpolates (bilinear, held at the edges) a table that is made at the first call. `load` is per worker, `disk_time`
    the time of a disk operation over the mean service time.
    """
    t = _table(workers, application.service_cv, application.disk_ops_per_request)
    row, row_part = _place(_LOADS, load)
    column, column_part = _place(_DISK_TIMES, disk_time)
    low = t[row, column] * (1 - column_part) + t[row, column + 1] * column_part
    high = t[row + 1, column] * (1 - column_part) + t[row + 1, column + 1] * column_part
    tail: Array = low * (1 - row_part) + high * row_part
    return tail


def _place(grid: Array, at: Array) -> tuple[NDArray[np.intp], Array]:
    at = np.clip(at, grid[0], grid[-1])
    index = np.clip(np.searchsorted(grid, at, side="right") - 1, 0, len(grid) - 2)
    return index, (at - grid[index]) / (grid[index + 1] - grid[index])


@lru_cache(maxsize=64)
def _table(workers: int, service_cv: float, disk_ops: float) -> Array:
    """Simulate many queues together (Kiefer and Wolfowitz); return 95th percentiles, shape (loads, disk times).

    The random numbers are the same for all loads, so the table is smooth in the load, and quotients of its values are
    more precise than the values.
    """
    rng = np.random.default_rng(_SEED)
    sigma = math.sqrt(math.log1p(service_cv**2))
    disk_times = _DISK_TIMES if disk_ops else _DISK_TIMES[:1]
    between = 1 / (_LOADS[:, None, None] * workers)  # mean service time 1
    waits = np.zeros((workers, len(_LOADS), len(disk_times), _LANES))
    sojourns = np.empty((_STEPS - _WARM_UP, len(_LOADS), len(disk_times), _LANES), dtype=np.float32)
    for step in range(_STEPS):
        work = rng.lognormal(-(sigma**2) / 2, sigma, _LANES)
        disk = np.where(rng.random(_LANES) < disk_ops, rng.exponential(1.0, _LANES), 0.0)
        service = work + disk * disk_times[:, None]
        sojourn = waits[0] + service
        if step >= _WARM_UP:
            sojourns[step - _WARM_UP] = sojourn
        waits[0] = sojourn
        waits = np.maximum(waits - between * rng.exponential(1.0, _LANES), 0.0)
        if workers == 2:  # noqa: PLR2004 - the usual case, and a sort of two
            waits = np.stack([np.minimum(waits[0], waits[1]), np.maximum(waits[0], waits[1])])
        elif workers > 1:
            waits.sort(axis=0)
    table = np.quantile(sojourns.transpose(1, 2, 0, 3).reshape(len(_LOADS), len(disk_times), -1), _PERCENTILE, axis=-1)
    if not disk_ops:
        table = np.repeat(table, len(_DISK_TIMES), axis=1)
    rising: Array = np.maximum.accumulate(table, axis=0).astype(np.float64)
    return rising
