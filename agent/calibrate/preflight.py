"""What would end a campaign, found before it begins: in the plan, the RUNS file, and the addresses that must answer."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from agent.calibrate.plan import Plan, Requests
from agent.calibrate.requests import ask_once
from agent.calibrate.runs import check_writable
from agent.calibrate.stressors import connect, why_of
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError

#: Samples come at moments of their own, so that only a phase of two ticks is sure to hold a whole one.
_LEAST_TICKS = 2


def plan_problems(plan: Plan, tick_s: float) -> Iterator[WhitepandaError]:
    """Yield phases that are too short for the sources' tick, and commands that are missing."""
    least_s = _LEAST_TICKS * tick_s
    phases = plan.phases
    for key, seconds in (("quiet_s", phases.quiet_s), ("stress_s", phases.stress_s), ("after_s", phases.after_s)):
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
        remedy = "is no command there" if "/" in name else "is not in PATH"
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
    if plan.served.requests is not None:
        why = await _no_answer(plan.served.requests, plan.deadline_s)
        if why:
            yield UnavailableError(f"served.requests.address {plan.served.requests.address}: no answer: {why}")
    for stressor in plan.stressors:
        why = await _closed(stressor.control, plan.deadline_s) if stressor.control else ""
        if why:
            yield UnavailableError(f"stressor '{stressor.name}': control {stressor.control}: {why}")


async def _no_answer(requests: Requests, deadline_s: float) -> str:
    limit_s = min(requests.timeout_s, deadline_s)
    try:
        async with asyncio.timeout(limit_s):
            await ask_once(requests)
    except TimeoutError:
        return f"none within {limit_s:g} s"
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        return why_of(error)
    return ""


async def _closed(address: str, deadline_s: float) -> str:
    try:
        async with asyncio.timeout(deadline_s):
            _, writer = await connect(address)
    except TimeoutError:
        return f"no answer within {deadline_s:g} s"
    except OSError as error:
        return why_of(error)
    writer.close()
    return ""
