"""`whitepanda calibrate`: a campaign on a test host, whose RUNS file `whitepanda degradation fit` learns from."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.api.client import find_config
from agent.calibrate.campaign import Campaign, RunResult
from agent.calibrate.plan import Plan, load
from agent.calibrate.preflight import file_problem
from agent.calibrate.runs import RunsFile
from agent.cli._options import JsonOption, SourcesOption, print_left, print_problem, progress_bar, sources_json
from agent.recording.record import T, beside_agent, until_signal
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import UnavailableError, WhitepandaError

_INTERRUPTED = 130


def calibrate(
    plan: Annotated[Path, typer.Argument(help="The campaign's plan: TOML, see docs/calibrate.md.")],
    runs: Annotated[Path, typer.Argument(help="Where to: the RUNS file, CSV.")],
    *,
    config: SourcesOption = None,
    beside_others: Annotated[
        bool, typer.Option("--beside-others", help="Also where VMs run that the plan does not name.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Tell what hinders its start here; start nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace RUNS if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Disturb a served VM on purpose and measure what that does to its latency. For test hosts only.

    Each run has a quiet phase, a stressed one and one after it; its seconds become rows of RUNS. The file comes into
    being when all runs are done. Ctrl-C stops the stressors; finished runs stay in RUNS.part.
    """
    log.configure("error")  # the summary reports the sources
    what = load(plan)
    settings, left = beside_agent(find_config(config)[0])
    problem = file_problem(runs, replace=force)
    if check:
        campaign = Campaign(what, settings, beside_others=beside_others)
        problems = [*([] if problem is None else [problem]), *_until_signal(campaign.problems())]
        _show_check(what, campaign, problems, as_json=json)
        if problems:
            raise typer.Exit(problems[0].exit_code)
        return
    if problem is not None:
        raise problem
    try:
        file = RunsFile(runs, replace=force)
    except OSError as error:
        raise UnavailableError(f"{runs}: cannot write: {error.strerror}") from error
    results: list[RunResult] = []

    def take(result: RunResult) -> None:
        file.add(result.rows)
        results.append(result)
        _print_run(result, f"{len(results)}/{what.runs}")

    with progress_bar("starting", what.seconds) as bar:
        campaign = Campaign(
            what,
            settings,
            beside_others=beside_others,
            on_progress=lambda text, seconds: bar(description=text, completed=seconds),
        )
        try:
            _until_signal(campaign.run(take))
            file.close()
        except OSError as error:
            raise UnavailableError(f"{runs}: cannot write: {error.strerror}{_left(file)}") from error
        except KeyboardInterrupt:
            errors.print(f"stopped; {runs} was not written{_left(file)}", soft_wrap=True)
            raise typer.Exit(_INTERRUPTED) from None
        except WhitepandaError as error:
            raise type(error)(f"{error}; {runs} was not written{_left(file)}") from error
        except BaseException:
            _left(file)
            raise
    _show(file, results, campaign, left, as_json=json)


def _print_run(result: RunResult, number: str) -> None:
    p95 = ", ".join(f"{phase} {p95_s * 1000:.3g} ms" for phase, p95_s in result.p95_s.items()) or "unknown"
    failed = f"; {result.failures:,} requests failed ({result.trouble})" if result.failures else ""
    where = f"{number} {result.run.scenario.name} at load {result.run.load.load_ratio:g}"
    errors.print(f"{where}: p95 {p95}{failed}", soft_wrap=True)


def _left(file: RunsFile) -> str:
    return f"; the finished runs are in {file.part}" if file.leave() else ""


def _until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, or until SIGINT or SIGTERM: a KeyboardInterrupt once everything is undone."""
    try:
        return asyncio.run(until_signal(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show_check(plan: Plan, campaign: Campaign, problems: Sequence[WhitepandaError], *, as_json: bool) -> None:
    if as_json:
        found = [str(problem) for problem in problems]
        print_json({"runs": plan.runs, "seconds": plan.seconds, "vms": plan.vms, "problems": found})
        return
    for problem in problems:
        print_problem("error", str(problem))
    if problems:
        return
    size = f"{plan.runs:,} runs of {len(plan.vms)} VMs, about {plan.seconds / 3600:.2g} h"
    console.print(f"{size}; ready to start", soft_wrap=True)
    _show_sources(campaign)


def _show(file: RunsFile, results: list[RunResult], campaign: Campaign, left: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        runs = [
            {
                "scenario": result.run.scenario.name,
                "repetition": result.run.repetition,
                "load_ratio": result.run.load.load_ratio,
                "rows": len(result.rows),
                "failures": result.failures,
                "p95_latency_s": result.p95_s,
            }
            for result in results
        ]
        sources = {"sources": sources_json(campaign.sources), "left_to_agent": list(left)}
        print_json({"file": str(file.path), "rows": file.rows, "runs": runs, **sources})
        return
    console.print(f"{file.path!s}: {file.rows:,} rows of {len(results):,} runs", soft_wrap=True)
    _show_sources(campaign)
    print_left(left)


def _show_sources(campaign: Campaign) -> None:
    for source in campaign.sources:
        if source.state not in ("off", "available"):
            console.print(f"  {source.name}: {source.state}: {source.detail}", soft_wrap=True)
