"""An incident in words, the same ones in webhooks and on the command line."""

import math
from collections.abc import Iterable

from whitepanda.v1 import agent_pb2, fleet_pb2

_ANALYSES = {agent_pb2.ANALYSIS_HOST: "the host's own analysis", agent_pb2.ANALYSIS_FLEET: "the fleet's statistics"}


def slow_down(one: agent_pb2.Degradation) -> str:
    """Return a slow-down with its interval: "1.52x [1.31, 1.78]", of CPI "1.52x CPI [1.31, 1.78]"; "": not known."""
    if not one.ratio > 0:
        return ""
    interval = "" if math.isnan(one.low) or math.isnan(one.high) else f" [{one.low:.2f}, {one.high:.2f}]"
    return f"{one.ratio:.2f}x{' CPI' if one.model == 'cpi' else ''}{interval}"


def slow_down_or_why(one: agent_pb2.Degradation) -> str:
    """Return a slow-down with its interval; "-" if it is not known, with the reason if known."""
    return slow_down(one) or (f"- ({one.cannot_tell})" if one.cannot_tell else "-")


def found_by(analyses: Iterable[int]) -> str:
    """Return which analyses found a victim; "" if no report said so."""
    return " and ".join(f"by {words}" for analysis, words in _ANALYSES.items() if analysis in set(analyses))


def named(vm: fleet_pb2.IncidentVm) -> str:
    """Return a VM's name (its UUID if it has none) and its job."""
    return f"{vm.name or vm.vm} of job {vm.job}"
