"""How a victim does, as the agent on this host tells it."""

import math
from pathlib import Path
from typing import NamedTuple

from agent.api.client import connect
from whitepanda.common.errors import WhitepandaError


class Degradation(NamedTuple):
    """By how much a VM is slowed down, at least 1, and by which signal: "latency" or "cpi"."""

    ratio: float
    signal: str


def degradation_of(socket: Path, uuid: str, signal: str = "") -> Degradation | None:
    """Return by how much a VM is slowed down; None: the agent is away, or cannot tell.

    The host's own estimate (latency against undisturbed) where there is one, else CPI against the job's mean. With
    `signal` only this one: the two are not alike, so a change from one to the other says nothing about the VM.
    """
    try:
        with connect(socket) as client:
            vm = client.explain(uuid).vm
    except WhitepandaError:
        return None
    latency = vm.cloud_white.degradation.ratio if vm.HasField("cloud_white") else math.nan
    for found in (Degradation(latency, "latency"), Degradation(vm.degradation, "cpi")):
        if signal in {"", found.signal} and math.isfinite(found.ratio) and found.ratio >= 1:
            return found
    return None
