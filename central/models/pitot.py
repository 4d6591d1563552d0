"""Pitot: how long a workload runs on a platform, alone or beside others (Interference-Aware Edge Runtime Prediction).

Section 3 of the paper: log C = a_i + b_j + w_i.p_j + sum_t (s_i.v_jt) * leaky(sum_k u_k.g_jt), with a_i + b_j the
linear scaling baseline. Unlike the paper, every workload has separate embeddings as the victim (s) and as the
interferer (u), the embeddings are a tower over the features plus a free part, and a model is several such members,
whose mean counts. Only numpy is needed to predict; `central.models.pitot_training` trains.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from central.models.groups import Floats

Singles = NDArray[np.float32]
Ids = NDArray[np.int64]

#: No interferer, in `Rows.interferers`.
ALONE = -1
#: Slope of the interference activation below 0 (the paper's leaky ReLU).
LEAK = 0.1
#: Pairs in one table of dot products: 32 MiB of them.
_MAX_PAIRS = 8_000_000
_ITERATIONS = 50
#: Weight in the baseline of a row beside others: it counts only where there is nothing else.
_BESIDE = 1e-4
_REGULARISATION = 1e-3  # pulls names with few rows to the mean


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Workloads on platforms beside interferers, as places in lists of names.

    Shapes: workload and platform (n,), interferers (n, most at once), `ALONE` where there are fewer.
    """

    workload: Ids
    platform: Ids
    interferers: Ids

    def __len__(self) -> int:
        return len(self.workload)

    def take(self, rows: Ids | NDArray[np.bool_]) -> "Rows":
        """Return some of the rows."""
        return Rows(self.workload[rows], self.platform[rows], self.interferers[rows])

    @property
    def co_runners(self) -> Ids:
        """Number of interferers of each row, shape (n,)."""
        count: Ids = (self.interferers != ALONE).sum(axis=1)
        return count


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the embeddings: `rank` of w.p, `interference_rank` and `interference_types` of the interference term.

    `leak`: slope of the interference activation below 0; 1 is not a activation.
    """

    rank: int
    interference_rank: int
    interference_types: int
    leak: float = LEAK

    @property
    def workload_width(self) -> int:
        """Width of a workload's embedding: w, s, u, and a scalar."""
        return self.rank + 2 * self.interference_rank + 1

    @property
    def platform_width(self) -> int:
        """Width of a platform's embedding: p, v of each type, g of each type, and a scalar."""
        return self.rank + 2 * self.interference_types * self.interference_rank + 1

    def workload_parts(self, w: Singles) -> tuple[Singles, Singles, Singles, Singles]:
        """Split embeddings (..., workload_width) into w, s, u and the scalar (...)."""
        r, q = self.rank, self.interference_rank
        return w[..., :r], w[..., r : r + q], w[..., r + q : r + 2 * q], w[..., -1]

    def platform_parts(self, p: Singles) -> tuple[Singles, Singles, Singles, Singles]:
        """Split embeddings (..., platform_width) into p, v and g (..., types, interference_rank) and the scalar."""
        r, size = self.rank, self.interference_types * self.interference_rank
        types = (*p.shape[:-1], self.interference_types, self.interference_rank)
        v, g = p[..., r : r + size], p[..., r + size : r + 2 * size]
        return p[..., :r], v.reshape(types), g.reshape(types), p[..., -1]


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Embeddings of all members: workload (members, workloads, width), platform (members, platforms, width).

    They are scaled so that the dot products are those of equations 5 and 9, without further factors.
    """

    shape: Shape
    workload: Singles
    platform: Singles

    def __len__(self) -> int:
        return len(self.workload)


def linear_baseline(rows: Rows, log_us: Floats, workloads: int, platforms: int) -> tuple[Floats, Floats]:
    """Fit log C = a_i + b_j by alternating means (appendix B.1), on rows alone.

    Rows beside others count, less their mean slow-down, only where a workload or platform was never seen alone.
    `log_us` are logarithms of the rows' runtimes, shape (n,). Returns a (workloads,) and b (platforms,); a name without
    a row gets the mean.
    """
    is_beside = rows.co_runners > 0
    weight = np.where(is_beside, _BESIDE, 1.0)
    values = np.array(log_us, dtype=np.float64)
    i, j = rows.workload, rows.platform
    a, b = np.zeros(workloads), np.zeros(platforms)
    mean = float(np.average(values, weights=weight))
    slow_down = 0.0
    in_workload = np.bincount(i, weight, workloads) + _REGULARISATION * _BESIDE
    in_platform = np.bincount(j, weight, platforms) + _REGULARISATION * _BESIDE
    for _ in range(_ITERATIONS):
        left = values - mean - slow_down * is_beside
        a = np.bincount(i, weight * (left - b[j]), workloads) / in_workload
        b = np.bincount(j, weight * (left - a[i]), platforms) / in_platform
        if is_beside.any() and not is_beside.all():
            slow_down = float((values - mean - a[i] - b[j])[is_beside].mean())
    return a + mean, b


def log_runtimes(members: Members, rows: Rows) -> Singles:
    """Predict each row's addition to the baseline by every member: logarithms of factors, shape (members, n)."""
    found = np.empty((len(members), len(rows)), dtype=np.float32)
    i, workloads = _places(rows.workload)
    j, platforms = _places(rows.platform)
    k, disturbers = _places(rows.interferers)
    is_there = rows.interferers != ALONE
    pairs = max(len(workloads), len(disturbers)) * len(platforms)
    is_dense = pairs <= min(_MAX_PAIRS, 16 * max(len(rows), 1))
    for member in range(len(members)):
        w, s, _, a = members.shape.workload_parts(members.workload[member, workloads])
        _, _, u, _ = members.shape.workload_parts(members.workload[member, disturbers])
        p, v, g, b = members.shape.platform_parts(members.platform[member, platforms])
        total = a[i] + b[j]
        total += (w @ p.T)[i, j] if is_dense else np.einsum("nr,nr->n", w[i], p[j])
        for kind in range(members.shape.interference_types if is_there.any() else 0):
            if is_dense:
                strength = ((u @ g[:, kind].T)[k, j[:, None]] * is_there).sum(axis=1)
                factor = (s @ v[:, kind].T)[i, j]
            else:
                strength = (np.einsum("nkr,nr->nk", u[k], g[j, kind]) * is_there).sum(axis=1)
                factor = np.einsum("nr,nr->n", s[i], v[j, kind])
            total += factor * np.where(strength > 0, strength, members.shape.leak * strength)
        found[member] = total
    return found


def _places(ids: Ids) -> tuple[Ids, Ids]:
    """Return each id's place among those that occur, and these (`ALONE` stands for the first workload: masked)."""
    known, places = np.unique(np.maximum(ids, 0), return_inverse=True)
    return places.reshape(ids.shape), known
