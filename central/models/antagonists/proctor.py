"""Proctor: whose CPU usage correlates with a victim's CPI in a representative random part of a window. Pure numpy.

Source: Kannan et al., "Proctor: Detecting and investigating interference in shared datacenters" (ISPASS 2018), as
PANDA's section 5.2 evaluates it: one random hour of the last two, three CPI categories, a chi-square threshold of 1.
Where it is silent, the categories are the window's terciles, and draws are capped.
"""

import numpy as np
import numpy.typing as npt

from central.models.groups import Floats, Ints

CATEGORIES = 3
CHI_SQUARE_LIMIT = 1.0
MAX_DRAWS = 100
SAMPLED_RATIO = 0.5


def representative(values: Floats, rng: np.random.Generator) -> Ints:
    """Draw half of `values`, again until its categories match the whole's; return sorted positions.

    The categories are terciles; the statistic is sum (drawn - expected)^2 / expected. After `MAX_DRAWS` draws the one
    with the least statistic counts.
    """
    size = round(len(values) * SAMPLED_RATIO)
    if not size:
        return np.empty(0, np.int64)
    edges = np.quantile(values, np.arange(1, CATEGORIES) / CATEGORIES)
    category = np.searchsorted(edges, values, side="left")
    whole = np.bincount(category, minlength=CATEGORIES)
    expected = whole[whole > 0] * (size / len(values))
    best, least = np.empty(0, np.int64), np.inf
    for _ in range(MAX_DRAWS):
        drawn = rng.choice(len(values), size, replace=False)
        counts = np.bincount(category[drawn], minlength=CATEGORIES)[whole > 0]
        statistic = float(((counts - expected) ** 2 / expected).sum())
        if statistic < least:
            best, least = drawn, statistic
        if statistic <= CHI_SQUARE_LIMIT:
            break
    return np.sort(best)


def suspect_scores(victim_cpi: Floats, usage: Floats, rng: np.random.Generator) -> Floats:
    """Pearson's correlation of each suspect's usage with one victim's CPI over a random half of the window.

    Arguments are as in `cpi2.suspect_scores`, and `rng` seeded. 0 if one of the two does not vary.
    """
    known = np.flatnonzero(~np.isnan(victim_cpi))
    drawn = known[representative(victim_cpi[known], rng)]
    if not len(drawn):
        return np.zeros(len(usage))
    c: npt.NDArray[np.float64] = victim_cpi[drawn] - victim_cpi[drawn].mean()
    u = usage[:, drawn] - usage[:, drawn].mean(axis=1, keepdims=True)
    scale = np.sqrt((c @ c) * (u * u).sum(axis=1))
    floor = 1e-12 * np.abs(usage[:, drawn]).sum(axis=1) * np.abs(victim_cpi[drawn]).sum()
    return np.asarray(np.divide(u @ c, scale, out=np.zeros(len(usage)), where=scale > floor), dtype=np.float64)
