"""The slow-down of a victim, from the agent on this host."""

import math
from pathlib import Path
from typing import NamedTuple

from agent.api.client import connect
from whitepanda.common.errors import WhitepandaError


class Degradation(NamedTuple):
    """The slow-down of a VM, at least 1, and its signal: "latency" or "cpi"."""

    ratio: float
    signal: str


def degradation_of(socket: Path, uuid: str, signal: str = "") -> Degradation | None:
    """Return a VM's slow-down; None: the agent is away, or does not know.

    It is the host's own estimate (latency against undisturbed) if there is one, else CPI over the job's mean. With
    `signal` only that one: the two cannot be compared.
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
