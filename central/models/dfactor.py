"""D-Factor: how much jobs that share a machine slow each other down. Pure numpy.

Source: Lim et al., "D-Factor: a quantitative model of application slow-down in multi-resource shared systems"
(SIGMETRICS 2012). A job's loading vector p has, per resource, the share of its time alone that it spends there;
what is missing to 1 it idles. On a machine with P = sum of the loading vectors of all jobs,

    lambda_j = 1 + p_j . P - p_j . p_j

is how many times longer job j takes than alone (its dilation). Unlike the paper, a resource of c equal units counts as
c elements of p / c each, so products of that resource are divided by c. A pair of jobs cannot exceed 2.
"""

import numpy as np
import numpy.typing as npt

from central.models.groups import Floats

#: How far above 1 the shares of a loading vector may sum, for rounding.
SUM_TOLERANCE = 1e-9


def dilations(loadings: npt.ArrayLike, units: npt.ArrayLike = 1.0) -> Floats:
    """Dilation lambda of each job, >= 1, while all are on one machine: equation (5); (14) has their sum.

    The result has shape (jobs,). `loadings` are shares of time, shape (jobs, resources), each 0 to 1; a row sums to 1
    (busy) or less (idle). `units` are equal units of each resource, shape (resources,) or one number.
    """
    p = np.asarray(loadings, dtype=np.float64)
    return np.asarray(1.0 + (p * (p.sum(axis=0) - p) / units).sum(axis=1), dtype=np.float64)


def added_dilation(loading: npt.ArrayLike, totals: npt.ArrayLike, units: npt.ArrayLike = 1.0) -> Floats:
    """Return p' . P of each machine, equation (15), shape (machines,): the new job's dilation there, less 1.

    By symmetry it is also the sum by which the dilations of the jobs there would rise. Shapes: `loading` (resources,),
    `totals`, P of each machine, (machines, resources), `units` either.
    """
    weights = np.asarray(loading, dtype=np.float64) / np.asarray(units, dtype=np.float64)
    table = np.asarray(totals, dtype=np.float64)
    return table @ weights if weights.ndim == 1 else np.einsum("mr,mr->m", table, weights)


def completion_times(
    loadings: npt.ArrayLike,
    neutral_s: npt.ArrayLike,
    start_s: npt.ArrayLike = 0.0,
    units: npt.ArrayLike = 1.0,
    background: npt.ArrayLike = 0.0,
) -> Floats:
    """Return when jobs on one machine end, on the clock of the starts, by events; shape (jobs,).

    Between two events (a job arrives or ends) the jobs there have constant dilations, and the neutral work that is
    left of each falls by 1 / lambda per second. `loadings` and `units` are as in `dilations`; `neutral_s` is the time
    that each takes alone, above 0, inf for one that does not end, `start_s` when it arrives, shapes (jobs,);
    `background` the sum of the loading vectors of others that are there all the time, shape (resources,).
    """
    p = np.asarray(loadings, dtype=np.float64)
    beside = added_dilation(np.broadcast_to(background, p.shape[1:]), p, units)
    left = np.array(neutral_s, dtype=np.float64)
    start = np.broadcast_to(np.asarray(start_s, dtype=np.float64), left.shape)
    end = np.zeros(len(left))
    arrivals = np.argsort(start, kind="stable").tolist()
    here = list[int]()
    now = 0.0
    while arrivals or here:
        if not here:
            now = float(start[arrivals[0]])
        while arrivals and start[arrivals[0]] <= now:
            here.append(arrivals.pop(0))
        slow = dilations(p[here], units) + beside[here]
        ends = left[here] * slow
        step = float(ends.min())
        if arrivals and start[arrivals[0]] - now < step:
            step = float(start[arrivals[0]] - now)
        if step == np.inf:
            end[here] = np.inf
            break
        left[here] -= step / slow
        now = float(start[arrivals[0]]) if arrivals and step < ends.min() else now + step
        done = {here[k] for k in np.flatnonzero(ends <= step)}
        end[list(done)] = now
        here = [job for job in here if job not in done]
    return end


def linear_sum_s(neutral_s: npt.ArrayLike) -> float:
    """Completion time of all jobs by the linear sum model, equation (7): right if all want one resource alone."""
    return float(np.asarray(neutral_s, dtype=np.float64).sum())


def n_copies_roots(dilation: float, copies: int) -> tuple[float, float]:
    """Both loading vectors (p, 1 - p) of a busy job of two resources, equation (13): the two values of p.

    The model cannot distinguish them. They are real if lambda >= (n + 1) / 2. Raises ValueError if they are
    not: the job is idle at times, or uses more than two resources.
    """
    inside = 1.0 - 2.0 * (copies - dilation) / (copies - 1)
    if inside < 0:
        least = (copies + 1) / 2
        raise ValueError(f"{copies} busy copies of two resources dilate to {least:g} or more, not {dilation:g}")
    root = inside**0.5 / 2
    return 0.5 - root, 0.5 + root
