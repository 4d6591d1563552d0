"""Finds problems before a campaign begins: in the plan, the RUNS file, and the addresses that must answer."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent.calibrate.plan import Plan
from agent.calibrate.requests import ask_once
from agent.calibrate.runs import check_writable
from agent.calibrate.stressors import connect, why_of
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError

#: Samples come at moments of their own, so that only a phase of two ticks is sure to hold a whole one.
_MIN_TICKS = 2


def plan_problems(plan: Plan, tick_s: float) -> Iterator[WhitepandaError]:
    """Yield phases that are too short for the sources' tick, and commands that are missing."""
    least_s = _MIN_TICKS * tick_s
    for key, seconds in msgspec.structs.asdict(plan.phases).items():
        if seconds < least_s and (key != "after_s" or seconds):
            yield InputError(
                f"phases.{key} is too short for agent.tick_s (values {seconds:g}, {tick_s:g}): a phase has to be "
                f"{least_s:g} s at least to hold a whole sample"
            )
    if plan.served.command:
        yield from _command_problems("served.command", plan.served.command)
    for stressor in plan.stressors:
        for key, command in (("run", stressor.run), ("start", stressor.start), ("stop", stressor.stop)):
            if command:
                yield from _command_problems(f"stressor '{stressor.name}': {key}", command)


def _command_problems(where: str, command: Sequence[str]) -> Iterator[WhitepandaError]:
    name = command[0]
    if shutil.which(name) is None:
        remedy = "is not a command" if "/" in name else "is not in PATH"
        yield UnavailableError(f"{where}: {name!r} {remedy}; install it, or give its whole path")


def file_problem(runs: Path, *, replace: bool) -> WhitepandaError | None:
    """Return why RUNS cannot be made; None: it can. Leaves nothing there."""
    if runs.suffix == ".parquet":
        return InputError(f"{runs}: calibrate writes CSV; name it .csv")
    try:
        check_writable(runs, replace=replace)
    except FileExistsError:
        return InputError(f"{runs}: exists already; give another name, or --force to replace it")
    except IsADirectoryError:
        return InputError(f"{runs}: is a folder; give the name of a file")
    except OSError as error:
        return UnavailableError(f"{runs}: cannot write: {error.strerror}")
    return None


async def answer_problems(plan: Plan) -> AsyncIterator[WhitepandaError]:
    """Ask the served VM once, and connect to the stressors' control ports without sending anything."""
    limit_s, requests = plan.deadline_s, plan.served.requests
    if requests is not None:
        served_s = min(requests.timeout_s, limit_s)
        if why := await _trouble(ask_once(requests), served_s, "none"):
            yield UnavailableError(f"served.requests.address {requests.address}: no answer: {why}")
    for stressor in plan.stressors:
        if stressor.control and (why := await _trouble(_open(stressor.control), limit_s, "no answer")):
            yield UnavailableError(f"stressor '{stressor.name}': control {stressor.control}: {why}")


async def _open(address: str) -> None:
    _, writer = await connect(address)
    writer.close()


async def _trouble(attempt: Coroutine[Any, Any, None], limit_s: float, silent: str) -> str:
    try:
        async with asyncio.timeout(limit_s):
            await attempt
    except TimeoutError:
        return f"{silent} within {limit_s:g} s"
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        return why_of(error)
    return ""
