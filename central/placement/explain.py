"""Why a VM was put where it was, as one JSON object."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from central.placement.fleet import DECIMALS, Hosts
from central.placement.schedule import NOWHERE, Placement, Schedule, Vm


def explained(hosts: Hosts, vms: Sequence[Vm], schedule: Schedule, rule: str) -> dict[str, Any]:
    """Return each choice with its reason.

    `dilation` is D-Factor's prediction for the VM on that host at that moment, whatever the rule; `by_resource` is each
    resource's addition to 1; `others` is the total rise of the dilations of the VMs there.
    """
    rows = [_row(hosts, vms[each.vm], each, rule) for each in schedule.placements]
    found = {"rule": rule, "hosts": len(hosts.names), "placements": rows, "added_dilation": schedule.added}
    if all(vm.request.tau_s for vm in vms):
        for row, each in zip(rows, schedule.placements, strict=True):
            row["end_s"] = float(schedule.end_s[each.vm])
        found["makespan_s"] = schedule.makespan_s
    return found


def _row(hosts: Hosts, vm: Vm, placement: Placement, rule: str) -> dict[str, Any]:
    ranking = placement.ranking
    row: dict[str, Any] = {"job": vm.name, "host": None, "dilation": None, "by_resource": {}, "others": None}
    row |= {"ranked": [], "full": ranking.full}
    if placement.host == NOWHERE:
        return row | {"why": f"no host has room: {_full_words(ranking.full)}"}
    parts = vm.request.loading * placement.totals / hosts.units_of(placement.host)
    return row | {
        "host": hosts.names[placement.host],
        "dilation": 1.0 + placement.added,
        "by_resource": dict(zip(hosts.resources, parts.tolist(), strict=True)),
        "others": placement.added,
        "ranked": [{"host": hosts.names[k], "dilation": 1.0 + float(ranking.added[k])} for k in ranking.order],
        "why": _why(hosts, placement, parts, rule),
    }


def _why(hosts: Hosts, placement: Placement, parts: Any, rule: str) -> str:
    ranking, name = placement.ranking, hosts.names[placement.host]
    slow = 1.0 + placement.added
    if slow == 1.0:
        words = f"{name}: no VM there competes with it"
    else:
        costs = [f"{hosts.resources[k]} {parts[k]:.3g}" for k in np.argsort(-parts, kind="stable") if parts[k] > 0]
        words = f"{name}: {slow:.4g} times as long as alone ({', '.join(costs)})"
    if rule != "dfactor":
        words += f", chosen by {rule}"
    if len(ranking.order) > 1:
        then = int(ranking.order[1])
        cost = np.round(ranking.added[ranking.order], DECIMALS)
        ties = int((cost[1:] == cost[0]).sum()) if rule == "dfactor" else 0
        tied = f"ties with {hosts.names[then]}{' and others' if ties > 1 else ''}; the first in the file"
        words += "; " + (tied if ties else f"next is {hosts.names[then]} with {1 + float(ranking.added[then]):.4g}")
    if ranking.full:
        words += f"; no room on {sum(ranking.full.values())} hosts: {_full_words(ranking.full)}"
    return words


def _full_words(full: dict[str, int]) -> str:
    return ", ".join(f"{count} lack {name}" for name, count in full.items())
