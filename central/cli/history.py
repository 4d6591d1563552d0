"""`whitepanda history`: what VMs did at any time, as central's lake has it, and the VMs that lead by a metric."""

import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import RenderableType

from central.cli.shared.fleet_client import asking
from central.cli.shared.outputs import PICTURES, JsonOption, check_output, grid, report, short
from central.plotting import history as figures
from central.tables.csv_files import write_csv, write_table
from central.web.openapi import to_json
from whitepanda.common.errors import InputError
from whitepanda.common.tls_options import OPERATOR, CentralOption, Operator, operator_options
from whitepanda.v1 import fleet_pb2

_DEADLINE_S = 60.0
_METRICS = ("cpi", "cpu_usage_cores")
_POINTS = 300
_SHOWN_POINTS = 24  # of a table for people
_MOST_VMS = 1000
_MAX_S = 2**63 / 10**9  # the protocol's times
_S_NS = 10**9
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TOP_BY = {"mean": fleet_pb2.TOP_BY_MEAN, "max": fleet_pb2.TOP_BY_MAX}
_TIME = "-6h (s, m, h, d or w ago) or 2026-11-29T03:00 (UTC unless it says otherwise)"
_PARQUET = (".parquet", ".pq")


@operator_options
def history(
    vm: Annotated[str, typer.Argument(metavar="[VM]", help="UUID or name, also of a VM that is gone.")] = "",
    *,
    central: CentralOption = "",
    operator: Operator = OPERATOR,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric of windows; repeatable. Default: cpi and cpu_usage_cores.")
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"From when on: {_TIME}.")] = "-1h",
    until: Annotated[str, typer.Option(metavar="TIME", help="Until when; the same forms. Default: now.")] = "",
    host: Annotated[list[str] | None, typer.Option(help="VMs on this host; repeatable.")] = None,
    job: Annotated[list[str] | None, typer.Option(help="VMs of this job; repeatable.")] = None,
    project: Annotated[list[str] | None, typer.Option(help="VMs of this project; repeatable.")] = None,
    points: Annotated[
        int | None, typer.Option(min=2, max=10_000, help="Steps at most; default 300, 24 in a table for people.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Instead: the VMs with the greatest values of the metric.")
    ] = None,
    by: Annotated[str, typer.Option(help="Of --top: mean, or max.")] = "mean",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: a line per VM, a picture per metric.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="A row per VM, metric and step, on standard output.")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="The same rows as a Parquet file.")] = None,
    json: JsonOption = False,
) -> None:
    """Show metrics of VMs over time, in steps with mean, least and greatest value.

    Up to two hours are made of single windows, longer times of slots (build.slot_s). A step without a value has the
    reason. At most 1000 VMs are shown.
    """
    if sum((plot is not None, csv, parquet is not None, json)) > 1:
        raise InputError("give one of --plot, --csv, --parquet and --json")
    check_output(plot, "--plot", PICTURES)
    check_output(parquet, "--parquet", _PARQUET)
    now = time.time_ns()
    scope: dict[str, Any] = {
        "hosts": host or [],
        "jobs": job or [],
        "projects": project or [],
        "since_unix_ns": read_time(since, "--since", now),
        "until_unix_ns": read_time(until, "--until", now) if until else now,
    }
    if top is not None:
        if vm or plot is not None or len(metric or ()) > 1:
            raise InputError("--top ranks VMs by one --metric: omit VM and --plot")
        if by not in _TOP_BY:
            raise InputError(f"--by {by}: must be {' or '.join(_TOP_BY)}")
        wanted = (metric or [_METRICS[1]])[0]
        request = fleet_pb2.TopVmsRequest(metric=wanted, by=_TOP_BY[by], top=top, **scope)
        with asking(operator.address(central), _DEADLINE_S) as ask:
            leaders = ask("TopVms", request)
        _put(
            _leaders_table(leaders),
            to_json(leaders),
            _leaders_shown(leaders, wanted),
            csv=csv,
            parquet=parquet,
            json=json,
        )
        return
    if not (vm or host or job or project):
        raise InputError("VM, --host, --job or --project: name whose history, or --top N for the fleet's greatest")
    is_for_people = plot is None and not csv and parquet is None and not json
    names = metric or list(_METRICS)
    most = points or (_SHOWN_POINTS if is_for_people else min(_POINTS, 10_000 // len(names)))
    query = fleet_pb2.QuerySeriesRequest(metrics=names, vms=[vm] if vm else [], points=most, **scope)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        found = ask("QuerySeries", query)
        while (token := found.next_page_token) and len(found.vms) < _MOST_VMS:
            query.page_token = token
            page = ask("QuerySeries", query)
            found.vms.extend(page.vms)
            found.next_page_token = page.next_page_token
    if plot is not None:
        figures.plot(plot, _starts(found) / 1e9, _pictures(found, names))
        return
    _put(_series_table(found), to_json(found), _series_shown(found), csv=csv, parquet=parquet, json=json)


def read_time(text: str, option: str, now_unix_ns: int) -> int:
    """Return a time, relative to now or of ISO 8601, in nanoseconds since 1970; raises InputError."""
    if back := re.fullmatch(r"-([0-9]{1,9})([smhdw])", text):
        return max(now_unix_ns - int(back[1]) * _UNITS_S[back[2]] * _S_NS, 1)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{option} {text}: must be {_TIME}") from error
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not 0 < found.timestamp() < _MAX_S:
        raise InputError(f"{option} {text}: must be after 1970 and before 2262")
    return round(found.timestamp() * 1e6) * 1000


def _put(
    table: pa.Table, value: Any, shown: Iterator[RenderableType], *, csv: bool, parquet: Path | None, json: bool
) -> None:
    if parquet is not None:
        write_table(parquet, table)
    elif csv:
        if "start" in table.column_names:
            seconds = table.column("start").cast(pa.timestamp("s", "UTC"))
            table = table.set_column(0, "start", pc.strftime(seconds, "%Y-%m-%dT%H:%M:%SZ"))
        write_csv(table, sys.stdout.buffer)
    else:
        report(value, shown, json=json)


def _starts(found: fleet_pb2.QuerySeriesResponse) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(found.since_unix_ns, found.until_unix_ns, found.step_ns, dtype=np.int64)


def _by_step(found: fleet_pb2.QuerySeriesResponse, spans: Any, field: str) -> list[str]:
    """Return for each step the text of the span that it is in; "" for none."""
    texts = [""] * ((found.until_unix_ns - found.since_unix_ns) // found.step_ns)
    for span in spans:
        for step in range(
            (span.since_unix_ns - found.since_unix_ns) // found.step_ns,
            (span.until_unix_ns - found.since_unix_ns) // found.step_ns,
        ):
            texts[step] = getattr(span, field)
    return texts


def _series_table(found: fleet_pb2.QuerySeriesResponse) -> pa.Table:
    """Return a row per VM, metric and step; null: not known, with the reason."""
    starts = pa.array(_starts(found), pa.timestamp("ns", "UTC"))
    tables = []
    for vm in found.vms:
        hosts = _by_step(found, vm.places, "host")
        for series in vm.metrics:
            same = {"vm": vm.vm, "name": vm.name, "job": vm.job, "metric": series.metric, "unit": series.unit}
            columns = {
                "start": starts,
                **{name: pa.array([text] * len(starts), pa.string()) for name, text in same.items()},
                "host": pa.array(hosts, pa.string()),
                **{
                    name: pa.array(np.array(getattr(series, name)), pa.float64(), from_pandas=True)
                    for name in ("mean", "min", "max")
                },
                "count": pa.array(list(series.count), pa.int64()),
                "reason": pa.array(_by_step(found, series.absences, "reason"), pa.string()),
            }
            tables.append(pa.table(columns))
    if tables:
        return pa.concat_tables(tables)
    texts = ("vm", "name", "job", "metric", "unit", "host")
    kinds = [("start", starts.type), *((name, pa.string()) for name in texts)]
    return pa.schema(
        [
            *kinds,
            ("mean", pa.float64()),
            ("min", pa.float64()),
            ("max", pa.float64()),
            ("count", pa.int64()),
            ("reason", pa.string()),
        ]
    ).empty_table()


def _series_shown(found: fleet_pb2.QuerySeriesResponse) -> Iterator[RenderableType]:
    starts = _starts(found)
    source = f"slots of {found.slot_ns / _S_NS:g} s" if found.slot_ns else "single windows"
    yield f"steps of {found.step_ns / _S_NS:g} s from {source}; mean (least to greatest)"
    if not found.vms:
        yield "no windows in this time"
    for vm in found.vms:
        titles = (f">{series.metric}" for series in vm.metrics)
        label = f"{vm.name or vm.vm}{f' ({vm.vm})' if vm.name else ''}, job {vm.job}"
        table = grid("BEGIN (UTC)", "HOST", *titles, title=label, box=None, pad_edge=False)
        hosts = _by_step(found, vm.places, "host")
        reasons = [_by_step(found, series.absences, "reason") for series in vm.metrics]
        for step, start in enumerate(starts.tolist()):
            cells = [
                f"{short(series.mean[step])} ({short(series.min[step])} to {short(series.max[step])})"
                if series.count[step]
                else reasons[number][step].replace("_", " ")
                for number, series in enumerate(vm.metrics)
            ]
            table.add_row(f"{datetime.fromtimestamp(start // _S_NS, UTC):%m-%d %H:%M:%S}", hosts[step], *cells)
        yield table
    if found.next_page_token:
        yield f"the first {len(found.vms)} VMs; there are more: name hosts, jobs or VMs"


def _pictures(found: fleet_pb2.QuerySeriesResponse, metrics: list[str]) -> list[tuple[str, list[figures.Line]]]:
    pictures = []
    for number, metric in enumerate(dict.fromkeys(metrics)):
        lines = [
            figures.Line(
                vm.name or vm.vm,
                *(np.array(getattr(vm.metrics[number], name), dtype=np.float64) for name in ("mean", "min", "max")),
            )
            for vm in found.vms
        ]
        unit = found.vms[0].metrics[number].unit if found.vms else ""
        pictures.append((f"{metric}, {unit}" if unit else metric, lines))
    return pictures


def _leaders_table(found: fleet_pb2.TopVmsResponse) -> pa.Table:
    rows = [to_json(each) for each in found.vms]
    kinds = {"count": pa.int64(), **dict.fromkeys(("mean", "min", "max"), pa.float64())}
    names = [field.name for field in fleet_pb2.TopVm.DESCRIPTOR.fields]
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds.get(name, pa.string())) for name in names]))


def _leaders_shown(found: fleet_pb2.TopVmsResponse, metric: str) -> Iterator[RenderableType]:
    rows = (
        (each.name or each.vm, each.host, each.job, *map(short, (each.mean, each.min, each.max)), str(each.count))
        for each in found.vms
    )
    titles = ("VM", "HOST", "JOB", ">MEAN", ">LEAST", ">GREATEST", ">WINDOWS")
    yield grid(*titles, rows=rows, title=f"{metric}, {found.unit}", box=None, pad_edge=False)
    begin, end = (datetime.fromtimestamp(at // _S_NS, UTC) for at in (found.since_unix_ns, found.until_unix_ns))
    yield f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"
