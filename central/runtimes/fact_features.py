"""Features of workloads and platforms from facts: sizes, as a fit can read them.

A size is the logarithm of its mean over the VMs or hosts of one name, standardised over the names. Where it is not
known it is 0, the mean, and a column `NAME_known` says so.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from central.models.groups import Floats

#: Facts that are features: of VMs for workloads, of hosts for platforms.
VM_FACTS = ("vcpus", "cpu_quota_cores", "memory_bytes")
HOST_FACTS = ("cpus", "memory_bytes", "llc_bytes", "llc_domains")


def columns_of(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Floats]:
    """Return columns of features of a row per name; a fact that all have alike, or none has, is no feature."""
    found = dict[str, Floats]()
    for name in dict.fromkeys(name for row in rows for name in row):
        sizes = [row.get(name) for row in rows]
        values = np.array([math.log(size) if size else math.nan for size in sizes])
        known = np.isfinite(values)
        if not known.any():
            continue
        spread = values[known].std()
        if spread > 0:
            found[name] = np.where(known, (values - values[known].mean()) / spread, 0.0)
        if not known.all():
            found[f"{name}_known"] = known.astype(np.float64)
    return found
