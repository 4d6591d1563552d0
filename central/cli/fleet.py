"""`whitepanda fleet`: WSMeter (what to observe for a margin, on which machines, and whether it helped), and facts."""

import json as json_module
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from central.cli.shared.fleet_client import NotKnownError, asking
from central.cli.shared.fleet_tables import comparison_json, comparison_shown, drawn_shown, facts_shown, plan_shown
from central.cli.shared.outputs import (
    PICTURES,
    TABLES,
    JsonOption,
    check_lake,
    check_output,
    people_console,
    report,
    say_warning,
)
from central.lake.segments import Lake
from central.models.wsmeter import MIN_INSTANCES, Comparison, Observed, TooLittleCovered
from central.models.wsmeter import compare as compare_sides
from central.upgrades import tables
from central.upgrades.draw import DrawOptions
from central.upgrades.draw import draw as draw_machines
from central.upgrades.lake_rows import WEIGHTS, parse_side, parse_sides, parse_time, read_side
from central.upgrades.messages import comparison_of, comparison_request, jobs_of_plan, plan_of, plan_request
from central.upgrades.plan import PlanOptions, make_plan
from central.upgrades.plots import plot_comparison, plot_plan
from central.upgrades.simulated import CPU_UPGRADE, simulate_fleet
from central.web.openapi import to_json
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.tls_options import OPERATOR, CentralOption, Operator, operator_options
from whitepanda.v1 import fleet_pb2

app = typer.Typer(
    help="Did the upgrade help? WSMeter: plan, draw, compare. And facts of VMs and hosts.", no_args_is_help=True
)

#: Share of CURRENT's weight that a comparison needs; the paper's clusters covered 82 to 91 %.
MIN_COVERAGE = 0.8

#: Percents, standard errors and factors beyond this or its inverse are refused as mistakes.
_MOST = 1e6
_MOST_INSTANCES = 2**53

#: Central reads its lake for an answer, and answers one such question at a time.
_DEADLINE_S = 300.0
_FACTS_DEADLINE_S = 10.0

_MinInstances = Annotated[int, typer.Option(min=2, help="Leave out jobs with fewer instances.")]
_MinCoverage = Annotated[float, typer.Option(min=0.0, max=1.0, help="Refuse if jobs have less of the weight.")]
_Metric = Annotated[str, typer.Option(metavar="COL", help="Column of the metric; default: value, ipc or mips.")]
_Central = Annotated[str, typer.Option(metavar="HOST:PORT", help="Use central's lake instead of files.")]
_Top = Annotated[int | None, typer.Option(min=1, help="Only this many of the heaviest jobs.")]
_WeighBy = Annotated[
    str,
    typer.Option(
        help="With --central or --lake: jobs weigh their VMs' CPU quota, or the cores they use: quota or use."
    ),
]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="PNG to write.")]


@app.command()
@operator_options
def plan(
    margin_percent: Annotated[float, typer.Option(help="Half width of the interval wanted, % of the metric.")],
    jobs: Annotated[
        str,
        typer.Argument(
            metavar="[JOBS]",
            help="CSV or Parquet: job, weight, mean, std, instances, cost; with --central a side, see below.",
            show_default=False,
        ),
    ] = "",
    t: Annotated[float, typer.Option(help="Standard errors in it; 2: about 95 %.")] = 2.0,
    min_instances: _MinInstances = MIN_INSTANCES,
    top: _Top = None,
    coverage: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Only the heaviest, of this weight.")] = None,
    design_effect: Annotated[
        float, typer.Option(min=1.0, help="Multiplies variances: instances of a machine are not independent.")
    ] = 1.0,
    observed: Annotated[Path | None, typer.Option(metavar="ROWS", help="What was observed: is it enough?")] = None,
    metric: _Metric = "",
    machine_std_percent: Annotated[
        float | None, typer.Option(min=0.0, help="Of machines' means: shows what the baseline would need.")
    ] = None,
    weigh_by: _WeighBy = "",
    central: _Central = "",
    operator: Operator = OPERATOR,
    plot: _Plot = None,
    json: JsonOption = False,
) -> None:
    """Plan how many instances of which jobs to observe for a margin, at the least cost.

    The integer optimum, proven. With --observed it is held against the margin (by machines), and planned again with
    the larger of the old and new variances. Without a column cost, an instance costs its share of all weight.

    With --central the jobs are those of its lake, and JOBS, if given, says of which samples: keys with commas between,
    platform=NAME, from=TIME, until=TIME; the week before its end without a beginning.
    """
    for option, value in (("--margin-percent", margin_percent), ("--t", t)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{option}: must be above 0 (value {value:g})")
        if not 1.0 / _MOST <= value <= _MOST:
            raise InputError(f"{option}: must be from {1.0 / _MOST:g} to {_MOST:g} (value {value:g})")
    for option, value in (("--design-effect", design_effect), ("--machine-std-percent", machine_std_percent or 0.0)):
        if not value <= _MOST:
            raise InputError(f"{option}: must be at most {_MOST:g} (value {value:g})")
    is_live = bool(central or operator.fleet)
    if not (jobs or is_live):
        raise InputError("JOBS is needed, or --central HOST:PORT or --fleet NAME for the jobs of its lake")
    _check_weight(weigh_by, is_live=is_live)
    file = None if is_live else Path(jobs)
    check_output(plot, "--plot", PICTURES, others={"JOBS": file, "--observed": observed})
    options = PlanOptions(margin_percent, t, min_instances, top, coverage, design_effect, machine_std_percent or None)
    seen = None if observed is None else tables.read_rows(observed, metric).observed
    if file is None:
        request = plan_request(parse_side(jobs), metric, options, weigh_by)
        with asking(operator.address(central), _DEADLINE_S) as ask:
            answer = ask("PlanObservation", request)
        table = jobs_of_plan(answer)
        made = plan_of(answer, table, options, seen)
        options = replace(options, top=None, coverage=None)  # central has chosen the jobs
    else:
        table = tables.read_jobs(file)
        made = make_plan(table, options, seen)
    if plot is not None:
        plot_plan(plot, made, *_costs(table, options))
    report(made.as_json(), plan_shown(made), json=json)


@app.command()
@operator_options
def compare(
    current: Annotated[
        str, typer.Argument(metavar="CURRENT", help="File of instances; with --lake or --central a side, see below.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same, with the upgrade.")],
    metric: _Metric = "",
    lake: Annotated[str, typer.Option(metavar="LAKE", help="Central's lake, a folder or s3://bucket/prefix.")] = "",
    min_instances: _MinInstances = MIN_INSTANCES,
    min_coverage: _MinCoverage = MIN_COVERAGE,
    top: _Top = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence of the intervals.")] = 0.95,
    weigh_by: _WeighBy = "",
    central: _Central = "",
    operator: Operator = OPERATOR,
    plot: _Plot = None,
    json: JsonOption = False,
) -> None:
    """Compare two sides of a fleet: the weighted metric of the jobs that both have.

    Files: CSV or Parquet with machine, job, the metric; and weight (the job's) or quota (the instance's), of CURRENT.
    With --lake or --central, a side is keys with commas between: hosts=FILE, platform=NAME, from=TIME, until=TIME, rest
    (the hosts that the other side's file does not name); central takes the week before its end for a side without a
    beginning. Intervals know that instances of one machine are alike; a machine on both sides is compared with itself.
    """
    is_live = bool(central or operator.fleet)
    if lake and is_live:
        raise InputError("--lake is read here, and --central reads its own lake; give one of them")
    _check_weight(weigh_by, is_live=is_live, lake=lake)
    files = {} if lake or is_live else {"CURRENT": Path(current), "NEW": Path(new)}
    check_output(plot, "--plot", PICTURES, others=files)
    options: dict[str, Any] = {
        "min_instances": min_instances,
        "min_coverage": min_coverage,
        "top": top,
        "confidence": confidence,
    }
    if is_live:
        request = comparison_request(parse_sides(current, new), metric, **options, weigh_by=weigh_by)
        with asking(operator.address(central), _DEADLINE_S) as ask:
            answer = ask("CompareSides", request)
        found, metric, weighed_by, in_all = comparison_of(answer), answer.metric, answer.weighed_by, answer.jobs_in_all
    else:
        if not lake and Path(current).exists() and Path(new).exists() and Path(current).samefile(new):
            say_warning("CURRENT and NEW are the same file")
        rows = _read_sides(current, new, metric, lake)
        found = _compared(*rows, options)
        metric, weighed_by, in_all = rows[0].metric, rows[0].weighed_by, len(found.jobs)
    if plot is not None:
        plot_comparison(plot, found, metric)
    about = {"metric": metric, "weighed_by": weighed_by, "jobs_in_all": in_all}
    report(about | comparison_json(found), comparison_shown(found, metric, weighed_by, in_all), json=json)


@app.command()
def draw(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Instances of the fleet: machine, job; any metric.")],
    machines: Annotated[int | None, typer.Option(help="This many; default: what the plan needs.")] = None,
    plan: Annotated[  # noqa: A002, RUF100 - the option's name
        Path | None, typer.Option(metavar="PLAN.json", help="From `fleet plan --json`.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV or Parquet: the machines.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    min_instances: _MinInstances = MIN_INSTANCES,
    min_coverage: _MinCoverage = MIN_COVERAGE,
    max_imbalance: Annotated[
        float, typer.Option(min=0.1, help="Draw again if the metric is now off by more standard errors.")
    ] = 2.0,
    max_draws: Annotated[int, typer.Option(min=1, help="Give up after this many.")] = 1000,
    metric: _Metric = "",
    json: JsonOption = False,
) -> None:
    """Draw the machines of the test cluster at random.

    Again, if the jobs with enough instances on them have too little of the weight, or if their metric is now already
    unlike the fleet's (if ROWS has it).
    """
    check_output(out, suffixes=TABLES, others={"ROWS": rows, "--plan": plan})
    planned = None if plan is None else _read_plan(plan)
    options = DrawOptions(machines, seed, min_instances, min_coverage, max_imbalance, max_draws)
    drawn = draw_machines(tables.read_rows(rows, metric, needs_metric=False), options, planned)
    if out is not None:
        tables.write_machines(out, drawn.machines)
    report(drawn.as_json(seed), drawn_shown(drawn, out), json=json)


@app.command("jobs")
def make_jobs(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Every instance of the fleet, measured.")],
    out: Annotated[Path, typer.Option(metavar="JOBS", help="CSV or Parquet to write, for `fleet plan`.")],
    metric: _Metric = "",
    json: JsonOption = False,
) -> None:
    """Make the table of jobs that `fleet plan` reads from the instances of a fleet."""
    check_output(out, suffixes=TABLES, others={"ROWS": rows})
    seen = tables.read_rows(rows, metric)
    jobs = tables.jobs_of(seen)
    if not len(jobs.job):
        raise InputError(f"{rows}: no job's {seen.metric} varies; there is nothing to plan")
    tables.write_jobs(out, jobs)
    flat = len(np.unique(seen.observed.job)) - len(jobs.job)
    counts = f"{len(jobs.job):,} jobs, {int(jobs.instances.sum()):,} instances, metric {seen.metric}"
    shown = f"{counts}; {flat:,} jobs without any spread left out; written to {out}"
    found = {"out": str(out), "metric": seen.metric, "jobs": len(jobs.job), "without_spread": flat}
    report(found, [shown], json=json, to=people_console(out))


@app.command()
def simulate(
    out: Annotated[Path, typer.Argument(metavar="ROWS", help="CSV or Parquet to write.")],
    machines: Annotated[int, typer.Option(min=10, help="Machines of the fleet.")] = 1000,
    jobs: Annotated[int, typer.Option(min=5, help="Its jobs.")] = 200,
    instances: Annotated[int, typer.Option(min=50, help="Their instances, about.")] = 20_000,
    effect_percent: Annotated[float, typer.Option(help="By how much the upgrade raises the metric.")] = 7.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the fleet.")] = 0,
    upgraded: Annotated[Path | None, typer.Option(metavar="MACHINES", help="Only these machines, upgraded.")] = None,
    json: JsonOption = False,
) -> None:
    """Write the instances of a simulated fleet, to try the other commands on."""
    check_output(out, "ROWS", TABLES, others={"--upgraded": upgraded})
    if not 0.0 < 1.0 + effect_percent / 100.0 <= _MOST:
        raise InputError(f"--effect-percent: must be above -100 (value {effect_percent:g})")
    settings = replace(CPU_UPGRADE, machines=machines, jobs=jobs, instances=instances, effect=effect_percent / 100.0)
    fleet = simulate_fleet(settings, seed)
    chosen = None
    if upgraded is not None:
        names = tables.read_machines(upgraded)
        places = {f"m{number:05d}": number for number in range(machines)}
        unknown = next((name for name in names if name not in places), None)
        if unknown is not None:
            raise InputError(f"{upgraded}: machine {unknown} is not in this fleet, which has m00000 to {max(places)}")
        chosen = np.array([places[name] for name in names], dtype=np.int64)
    rng = np.random.default_rng((seed, 0 if upgraded is None else 1))
    seen = fleet.measure(rng, chosen, is_upgraded=upgraded is not None)
    named = Observed(
        np.array([f"m{number:05d}" for number in seen.machine]),
        np.array([f"job-{number:04d}" for number in seen.job]),
        seen.value,
    )
    tables.write_rows(out, named)
    found = {"out": str(out), "rows": len(named.job), "true_effect_percent": 100.0 * fleet.true_effect()}
    report(found, [f"{len(named.job):,} instances written to {out}"], json=json)


def _check_weight(weigh_by: str, *, is_live: bool, lake: str = "") -> None:
    if weigh_by and not (is_live or lake):
        raise InputError("--weigh-by: is for a lake; a file has a column weight or quota")
    if weigh_by not in ("", *WEIGHTS):
        raise InputError(f"--weigh-by {weigh_by}: must be {' or '.join(WEIGHTS)}")
    if lake and weigh_by != "use":
        raise InputError("--lake: a lake has no CPU quotas, central knows them: ask with --central, or --weigh-by use")


@app.command("facts")
@operator_options
def show_facts(
    what: Annotated[str, typer.Argument(metavar="VM|HOST", help="A VM's UUID or name, or a host's name.")],
    at: Annotated[str, typer.Option(metavar="TIME", help="As it was then, such as 2026-11-21T03:10Z.")] = "",
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    json: JsonOption = False,
) -> None:
    """Show what a VM or host is, or was: size, owner, place, devices, and when it changed. Times are UTC."""
    at_unix_ns = parse_time("--at", at) if at else 0
    if not 0 <= at_unix_ns < 2**63:
        raise InputError(f"--at: must be after 1970 and before 2262 (value {at})")
    with asking(operator.address(central), _FACTS_DEADLINE_S) as ask:
        try:
            found = ask("GetFacts", fleet_pb2.GetFactsRequest(vm=what, at_unix_ns=at_unix_ns))
        except NotKnownError:
            found = ask("GetFacts", fleet_pb2.GetFactsRequest(host=what, at_unix_ns=at_unix_ns))
    report(to_json(found), facts_shown(found), json=json)


def _read_sides(current: str, new: str, metric: str, lake: str) -> tuple[tables.Rows, tables.Rows]:
    """Read the instances of both sides, from files or a lake."""
    if not lake:
        rows = tables.read_rows(Path(current), metric)
        return rows, tables.read_rows(Path(new), rows.metric)
    check_lake(lake)
    opened, sides = Lake(lake), parse_sides(current, new)
    if not opened.days():
        raise UnavailableError(f"lake {lake}: has no samples; is it central.lake_dir, or lake in central.state_dir?")
    return read_side(opened, sides[0], metric or "ipc", None), read_side(opened, sides[1], metric or "ipc", None)


def _compared(current: tables.Rows, new: tables.Rows, options: dict[str, Any]) -> Comparison:
    try:
        return compare_sides(current.observed, new.observed, current.weights, **options)
    except TooLittleCovered as error:
        raise InputError(
            f"{error.jobs} job{' has' if error.jobs == 1 else 's have'} {options['min_instances']} instances on two "
            f"machines of both sides, {error.coverage:.1%} of CURRENT's weight, less than "
            f"{options['min_coverage']:.0%}; observe more, or lower --min-coverage or --min-instances"
        ) from error


def _costs(jobs: tables.Jobs, options: PlanOptions) -> tuple[list[float], list[float]]:
    """Return margins around the plan's, and what each costs."""
    margins = (options.margin_percent * np.geomspace(0.4, 2.5, 25)).tolist()
    costs = []
    for margin in margins:
        try:
            changed = replace(options, margin_percent=margin, machine_std_percent=None)
            costs.append(make_plan(jobs, changed).solution.cost)
        except InputError:
            costs.append(math.nan)
    return margins, costs


def _read_plan(path: Path) -> dict[str, int]:
    """Return the instances to observe, by job."""
    planned = dict[str, int]()
    try:
        found = json_module.loads(path.read_text(encoding="utf-8"))
        rows = [(str(row["job"]), row["observe"]) for row in found["jobs"]]
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: is not a plan; make one with whitepanda fleet plan --json") from error
    problem = "" if rows else "it has no jobs"
    for job, observe in rows:
        if type(observe) is not int or not 1 <= observe <= _MOST_INSTANCES:
            problem = f"job {job}: observe must be a whole number above 0 (value {str(observe)[:30]})"
        elif job in planned:
            problem = f"job {job} appears more than once"
        if problem:
            break
        planned[job] = observe
    if problem:
        raise InputError(f"{path}: is not a plan: {problem}")
    return planned
