"""`whitepanda place`: which host a new VM should run on, by D-Factor, and why."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType

from central.cli.shared.fleet_client import asking
from central.cli.shared.outputs import PICTURES, JsonOption, check_output, grid, report
from central.placement.explain import explained
from central.placement.fleet import RULES, Hosts
from central.placement.plots import plot_added
from central.placement.requests import read_hosts, read_vms
from central.placement.schedule import NOWHERE, Vm, place_all
from central.placement.tables import numbers_by_name
from central.plotting.figures import bar
from whitepanda.common.errors import InputError
from whitepanda.common.fleets import CENTRAL
from whitepanda.common.tls_options import OPERATOR, Operator, operator_options
from whitepanda.v1 import fleet_pb2

_TOP = 5
_BAR_WIDTH = 20
_MOST = 1000  # hosts in one answer of central
_DEADLINE_S = 30.0
_GIB = 1 << 30
_UNPLACED = 1  # exit status: scripts must not start what has no host


@operator_options
def place(
    vms: Annotated[
        Path | None,
        typer.Argument(
            metavar="VMS.csv", help="Columns job, one per resource; if known tau_s, start_s, host.", show_default=False
        ),
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(metavar="HOSTS.csv", help="Column host; loadings there; units.NAME, limit.NAME.")
    ] = None,
    central: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help=f"Instead of files: the live fleet, asked of central; or {CENTRAL}."),
    ] = "",
    job: Annotated[str, typer.Option(help="The job of the new VM, for the live fleet.")] = "",
    loading: Annotated[
        str,
        typer.Option(
            metavar="NAME=P,...",
            help="For the live fleet: the VM's loadings, as cpu=0.5,disk=0.2: the share of its time at each, 0 to 1.",
        ),
    ] = "",
    vcpus: Annotated[
        float, typer.Option(min=0.0, max=1e4, help="For the live fleet: the VM's vCPUs; 0: as its job's largest VM.")
    ] = 0.0,
    memory_gib: Annotated[
        float, typer.Option(min=0.0, max=1e6, help="For the live fleet: the VM's memory; 0: as its job's largest VM.")
    ] = 0.0,
    operator: Operator = OPERATOR,
    units: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Equal units of a resource on each host, as cpu=8; repeatable."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MAX", help="The most that a host's total loading may be; repeatable."),
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=CAPACITY", help="A column that has to fit, as memory_gib=256; repeatable."),
    ] = None,
    rule: Annotated[str, typer.Option(help="dfactor, graham, first-fit or least-loaded.")] = "dfactor",
    order: Annotated[str, typer.Option(help="Order of VMs that arrive together: given, or largest first.")] = "given",
    top: Annotated[int, typer.Option(min=0, help="Hosts to list per VM; 0: all with room.")] = _TOP,
    compare: Annotated[bool, typer.Option("--compare", help="Also show the other rules' results.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: what resources add, by VM or host.")] = None,
    json: JsonOption = False,
) -> None:
    """Rank hosts for new VMs by what they would suffer there.

    dfactor takes the host with the least p . P (p: the VM's loading vector, P: the sum of those on the host), ties
    go to the first. This is its dilation above 1, and equally the cost to the others there. graham
    is the list scheduler, by the sum of times alone (tau_s). A row of VMS.csv with a host runs there already. With
    tau_s, VMs arrive at start_s and end.

    Of the live fleet, hosts without room (vCPUs and memory, by facts and central's overcommit) are listed last.

    The exit status is 1 if a VM found no host with room; the output is complete anyway.
    """
    check_output(plot, "--plot", PICTURES, others={"VMS": vms, "HOSTS": hosts})
    if central or operator.fleet or ((job or loading) and vms is None and hosts is None):
        _refuse_for_live(vms, hosts, {"--units": units, "--limit": limit, "--fit": fit, "--compare": compare})
        if job and loading:
            raise InputError("--job and --loading: name the VM's job or its loading, not both")
        with asking(operator.address(central), _DEADLINE_S) as ask:
            request = fleet_pb2.RankHostsRequest(
                job=job, loading=loading, top=top or _MOST, vcpus=vcpus, memory_bytes=_bytes_of(memory_gib)
            )
            live = ask("RankHosts", request)
        if plot is not None:
            plot_added(plot, [(each.host, _by_resource(live, each)) for each in live.hosts])
        _show_live(live, job or "a VM", json=json)
        if live.hosts and live.hosts[0].full:  # full hosts come last
            raise typer.Exit(_UNPLACED)
        return
    if vms is None or hosts is None:
        raise InputError("VMS.csv and --hosts HOSTS.csv are needed, or --job or --loading for the live fleet")
    _check_words(rule, order, {"--job": job, "--loading": loading, "--vcpus": vcpus, "--memory-gib": memory_gib})
    amounts = numbers_by_name(fit or [], "--fit")
    wanted = read_vms(vms, tuple(amounts))
    there = read_hosts(
        hosts,
        wanted.jobs.resources,
        units=numbers_by_name(units or [], "--units"),
        limits=numbers_by_name(limit or [], "--limit"),
        amounts=amounts,
    )
    to_place = wanted.vms(there)
    if rule == "graham" and not all(vm.request.tau_s for vm in to_place):
        raise InputError(f"{vms}: --rule graham needs the column tau_s, above 0 in every row")
    found = place_all(there, to_place, rule, top=top or None, largest_first=order == "largest")
    summary = explained(there, to_place, found, rule)
    if plot is not None:
        placed = [row for row in summary["placements"] if row["host"] is not None]
        plot_added(plot, [(f"{row['job']} on {row['host']}", row["by_resource"]) for row in placed])
    if compare:
        summary["compare"] = _compared(there, to_place, order == "largest")
    report(summary, _shown(summary), json=json)
    if any(host == NOWHERE for host in found.host):
        raise typer.Exit(_UNPLACED)


def _refuse_for_live(vms: Path | None, hosts: Path | None, options: dict[str, object]) -> None:
    if vms is not None or hosts is not None:
        raise InputError("--central or --fleet asks for the live fleet; omit VMS.csv and --hosts")
    if unused := [option for option, value in options.items() if value]:
        raise InputError(f"{unused[0]}: is for files, not for the live fleet; omit it")


def _bytes_of(memory_gib: float) -> int:
    if not math.isfinite(memory_gib):
        raise InputError(f"--memory-gib: must be a number (value {memory_gib})")
    return round(memory_gib * _GIB)


def _check_words(rule: str, order: str, of_the_fleet: dict[str, object]) -> None:
    if given := [option for option, value in of_the_fleet.items() if value]:
        raise InputError(f"{given[0]}: is for the live fleet; the VMs are those of VMS.csv")
    if rule not in RULES:
        raise InputError(f"--rule {rule}: must be one of {', '.join(RULES)}")
    if order not in ("given", "largest"):
        raise InputError(f"--order {order}: must be given or largest")


def _by_resource(found: fleet_pb2.HostRanking, host: fleet_pb2.RankedHost) -> dict[str, float]:
    return dict(zip(found.resources, host.by_resource, strict=True))


def _show_live(found: fleet_pb2.HostRanking, what: str, *, json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "host": host.host,
            "dilation": 1.0 + host.added,
            "by_resource": _by_resource(found, host),
            "vms": host.vms,
            "full": host.full,
            "room_unknown": host.room_unknown,
        }
        for host in found.hosts
    ]
    result = {
        "loading": dict(zip(found.resources, found.loading, strict=True)),
        "vcpus": found.vcpus,
        "memory_bytes": found.memory_bytes,
        "hosts_in_all": found.hosts_in_all,
        "ranked": rows,
        "unmeasured": {each.resource: each.why for each in found.unmeasured},
        "since_unix_ns": found.since_unix_ns,
        "until_unix_ns": found.until_unix_ns,
    }
    titles = ("host", ">dilation", *(f">{name}" for name in found.resources), ">VMs", "room")
    table = grid(*titles, title=f"Hosts for {what}")
    for row in rows:
        parts = [f"{row['by_resource'][each]:.3g}" for each in found.resources]
        room = f"full: {row['full']}" if row["full"] else "cannot tell" if row["room_unknown"] else "yes"
        table.add_row(row["host"], f"{row['dilation']:.4f}", *parts, str(row["vms"]), room)
    doubts = Counter(row["room_unknown"] for row in rows if row["room_unknown"])
    unknown = [f"cannot tell whether there is room on {count} hosts: {why}" for why, count in doubts.items()]
    left_out = [f"left out: {each.resource}: {each.why}" for each in found.unmeasured]
    report(result, (table, f"{len(rows)} of {found.hosts_in_all} hosts", *unknown, *left_out), json=json)


def _compared(fleet: Hosts, vms: list[Vm], largest_first: bool) -> dict[str, Any]:  # noqa: FBT001 - of a private function
    """Return the outcome of each rule."""
    has_times = all(vm.request.tau_s for vm in vms)
    found: dict[str, Any] = {}
    for rule in RULES:
        if rule == "graham" and not has_times:
            continue
        done = place_all(fleet, vms, rule, top=1, largest_first=largest_first)
        found[rule] = {"added_dilation": done.added, "unplaced": sum(host == NOWHERE for host in done.host)}
        if has_times:
            found[rule]["makespan_s"] = done.makespan_s
            ran = [k for k, host in enumerate(done.host) if host != NOWHERE]
            dilations = [(done.end_s[k] - vms[k].start_s) / vms[k].request.tau_s for k in ran]
            found[rule]["mean_dilation"] = float(np.mean(dilations))
    return found


def _shown(summary: dict[str, Any]) -> Iterator[RenderableType]:
    for row in summary["placements"]:
        yield f"{row['job']}: {row['why']}"
        if len(row["ranked"]) > 1:
            table = grid("host", ">dilation", "over 1", box=None)
            most = max(host["dilation"] for host in row["ranked"]) - 1.0
            for host in row["ranked"]:
                added = bar(host["dilation"] - 1.0, most, _BAR_WIDTH)
                table.add_row(host["host"], f"{host['dilation']:.4f}", added)
            yield table
    placed = sum(row["host"] is not None for row in summary["placements"])
    added = f"added dilation {summary['added_dilation']:.4g} (over 1 of each new VM, and what the others rise by)"
    line = f"{placed} of {len(summary['placements'])} placed; {added}"
    if "makespan_s" in summary:
        line += f"; the last ends at {summary['makespan_s']:.2f} s"
    yield line
    if compare := summary.get("compare"):
        names = list(next(iter(compare.values())))
        rows = ((rule, *(f"{row[name]:.6g}" for name in names)) for rule, row in compare.items())
        yield grid("rule", *(f">{name.replace('_', ' ')}" for name in names), rows=rows, title="By rule")
