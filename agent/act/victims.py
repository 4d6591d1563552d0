"""How a victim does, as the agent on this host tells it."""

from __future__ import annotations

import math
from pathlib import Path

from agent.local_client import connect
from whitepanda.common.errors import WhitepandaError

__all__ = ["degradation_of"]


def degradation_of(socket: Path, uuid: str) -> float | None:
    """Return by how much a VM is slowed down, at least 1; None: the agent is away, or cannot tell.

    The host's own estimate (latency against undisturbed) where there is one, else CPI against the job's mean.
    """
    try:
        with connect(socket) as client:
            vm = client.explain(uuid).vm
    except WhitepandaError:
        return None
    for ratio in (
        vm.cloud_white.degradation.ratio if vm.HasField("cloud_white") else math.nan,
        vm.degradation,
    ):
        if math.isfinite(ratio) and ratio >= 1:
            return ratio
    return None
