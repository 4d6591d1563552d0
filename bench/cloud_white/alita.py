"""Alita's rule for polluters of the last-level cache, as Cloud White states it: a comparison, not a part of whitepanda.

A VM may hold the share of the cache that its vCPUs are of the host's CPUs; one that holds more is called a polluter.
The rule samples at space alone, so it accuses a VM that fills an otherwise idle cache and hurts nobody, and acquits one
that streams through it, holding little and evicting everybody.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def quota_bytes(llc_bytes: float, vcpus: ArrayLike, host_cpus: int) -> NDArray[np.float64]:
    """Return each VM's quota: llc_bytes * vcpus / host_cpus.

    Args:
        llc_bytes: size of the last-level cache, of all domains that VMs run on, in bytes.
        vcpus: shape (VMs,): how many vCPUs each has.
        host_cpus: logical CPUs of the host, at least 1.

    Raises:
        ValueError: a host without CPUs or cache.

    """
    if host_cpus < 1 or not llc_bytes > 0:
        raise ValueError(f"a quota needs a cache and CPUs (llc_bytes {llc_bytes:g}, host_cpus {host_cpus})")
    return llc_bytes * np.asarray(vcpus, np.float64) / host_cpus


def polluters(occupancy_bytes: ArrayLike, vcpus: ArrayLike, *, llc_bytes: float, host_cpus: int) -> NDArray[np.bool_]:
    """Tell which VMs hold more than their quota; one whose occupancy is not known (NaN) is none.

    Args:
        occupancy_bytes: shape (VMs,): what each holds of the last-level cache (metric llc_occupancy_bytes).
        vcpus: shape (VMs,): how many vCPUs each has.
        llc_bytes: as for `quota_bytes`.
        host_cpus: as for `quota_bytes`.

    """
    return np.asarray(occupancy_bytes, np.float64) > quota_bytes(llc_bytes, vcpus, host_cpus)
