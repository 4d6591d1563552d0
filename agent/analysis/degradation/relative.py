"""A feature relative to its baseline: value / baseline, 1 = as without interference.

If the baseline is about 0 (disk traffic of a VM that writes nothing), the quotient says nothing; then it is
1 + (value - baseline) / scale, with the feature's scale learnt in training: still 1 at the baseline, and growing with
the feature. "About 0" is below `FLOOR` of the scale.
"""

import numpy as np
from numpy.typing import NDArray

#: Baselines smaller than this share of the feature's scale are about 0.
FLOOR = 0.05


def relative(
    values: NDArray[np.float64], baseline: NDArray[np.float64], scales: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Normalise features (n, k) to their baselines, which broadcast to them; both in the features' units.

    `scales`: shape (k,), a typical magnitude of each feature, > 0. Returns shape (n, k), without unit; NaN if the
    value or its baseline is NaN.
    """
    is_about_zero = np.abs(baseline) < FLOOR * scales
    quotient = values / np.where(is_about_zero, 1.0, baseline)
    return np.where(is_about_zero, 1.0 + (values - baseline) / scales, quotient)
