"""Workloads and platforms that the fit never saw: their embeddings from a few runs, without fitting again.

The logarithm of a runtime is linear in the embedding of the workload that is measured, and, except for the interference
magnitude g, in the platform's. So the embedding's posterior is closed: the prior is a normal distribution with the mean
and covariance of the fit's embeddings; u (how much a new workload disturbs) and g follow by their covariance with the
rest, and every run is an observation with the noise of the calibration rows.
"""

import numpy as np

from central.models.groups import Floats
from central.models.pitot import ALONE, Members, Rows, Singles

#: Share of the prior's mean variance that is added to each direction: fewer names than dimensions have none in some.
_RIDGE = 0.02
_PASSES = 3


def new_workload(
    members: Members, baseline: Floats, platform_baseline: Floats, rows: Rows, log_us: Floats, noise: float
) -> tuple[Singles, float]:
    """Return a workload's embeddings (members, width), and its baseline.

    `baseline` and `platform_baseline` are the fit's, shapes (workloads,) and (platforms,); `rows` n runs of the new
    workload, without `rows.workload`; `log_us` logarithms of their runtimes, shape (n,), which deviate by `noise` from
    the prediction.
    """
    shape = members.shape
    found = np.empty((len(members), shape.workload_width), dtype=np.float32)
    middle = float(baseline.mean())
    for m in range(len(members)):
        p, v, g, b = shape.platform_parts(members.platform[m, rows.platform])
        susceptible = np.einsum("nt,ntq->nq", _strength(members, m, rows, g), v)
        nothing = np.zeros((len(rows), shape.interference_rank))
        inputs = np.column_stack((p, susceptible, nothing, np.ones(len(rows))))
        known = members.workload[m].astype(np.float64)
        known[:, -1] += baseline - middle
        left = log_us - middle - platform_baseline[rows.platform] - b
        found[m] = _posterior(known, inputs, left, noise)
    return found, middle


def new_platform(
    members: Members, workload_baseline: Floats, baseline: Floats, rows: Rows, log_us: Floats, noise: float
) -> tuple[Singles, float]:
    """Estimate a platform's embeddings: see `new_workload`, with the parts of workload and platform exchanged."""
    shape = members.shape
    q, types = shape.interference_rank, shape.interference_types
    found = np.empty((len(members), shape.platform_width), dtype=np.float32)
    middle = float(baseline.mean())
    for m in range(len(members)):
        w, s, _, a = shape.workload_parts(members.workload[m, rows.workload])
        known = members.platform[m].astype(np.float64)
        known[:, -1] += baseline - middle
        left = log_us - middle - workload_baseline[rows.workload] - a
        value = known.mean(axis=0)
        nothing = np.zeros((len(rows), types * q))
        for _ in range(_PASSES):
            g = np.broadcast_to(shape.platform_parts(value.astype(np.float32))[2], (len(rows), types, q))
            harm = (_strength(members, m, rows, g)[:, :, None] * s[:, None, :]).reshape(len(rows), -1)
            value = _posterior(known, np.column_stack((w, harm, nothing, np.ones(len(rows)))), left, noise)
        found[m] = value
    return found, middle


def _strength(members: Members, m: int, rows: Rows, g: Singles) -> Singles:
    """Return what a member's interferers do by each kind, activated: shape (n, types)."""
    _, _, u, _ = members.shape.workload_parts(members.workload[m, np.maximum(rows.interferers, 0)])
    total = (u * (rows.interferers != ALONE)[:, :, None]).sum(axis=1)
    strength = np.einsum("ntq,nq->nt", g, total)
    return np.asarray(np.where(strength > 0, strength, members.shape.leak * strength), dtype=np.float32)


def _posterior(known: Floats, inputs: Floats, values: Floats, noise: float) -> Floats:
    """Return a vector's posterior mean, given inputs @ it; its prior has the moments of `known` (names, width)."""
    mean = known.mean(axis=0)
    centred = known - mean
    covariance = centred.T @ centred / max(1, len(known) - 1)
    covariance += np.diag(np.full(len(mean), _RIDGE * np.trace(covariance) / len(mean)))
    gain = inputs @ covariance
    seen = gain @ inputs.T + noise**2 * np.eye(len(values))
    return np.asarray(mean + gain.T @ np.linalg.solve(seen, values - inputs @ mean), dtype=np.float64)
