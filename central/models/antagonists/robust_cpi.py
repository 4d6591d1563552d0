"""How hosts normalise CPI for whitepanda's coefficients: location and scale of ln CPI over days. Pure numpy.

`central.models.antagonists.whitepanda` normalises each day's CPI by that day's own median and interquartile range, so
its coefficients are rises in such units. A host needs one location and one scale for the days to come: the medians over
the days, each day weighed by its samples. Neither a corrupted day nor a drift over the days reaches the scale.
"""

from dataclasses import dataclass

import numpy as np

from central.models.groups import Column, Floats, Ints, group


@dataclass(frozen=True, slots=True)
class RobustScales:
    """Location and scale of ln CPI per job and platform, sorted by these."""

    job: Column
    platform: Column
    location: Floats
    scale: Floats


def over_days(job: Column, platform: Column, samples: Ints, location: Floats, scale: Floats) -> RobustScales:
    """Return the weighted medians over days of locations and scales, per job and platform.

    Columns have shape (n,), a row per job, platform (CPU model) and day: `samples`, its task slots, at least 1, is its
    weight; `location` the median of ln CPI on that day; `scale` its interquartile range / 1.349.
    """
    keys, code = group(job, platform)
    return RobustScales(*keys, *(_weighted_medians(code, samples, each, len(keys[0])) for each in (location, scale)))


def _weighted_medians(code: Ints, weight: Ints, value: Floats, count: int) -> Floats:
    """Return per group the least value at which half of the group's weight is reached."""
    order = np.lexsort((value, code))
    reached = np.cumsum(weight[order])
    last = np.searchsorted(code[order], np.arange(count), "right") - 1
    before = np.concatenate([[0], reached[last]])[:count]
    half = before + (reached[last] - before + 1) // 2
    return np.asarray(value[order][np.searchsorted(reached, half)], dtype=np.float64)
