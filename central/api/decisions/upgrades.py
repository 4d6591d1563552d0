"""WSMeter: what to observe for a margin, and whether the fleet became faster."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from central.api.context import Context
from central.api.requests import ApiError, wrong, wrong_field
from central.lake.errors import LakeError
from whitepanda.common.errors import FieldError, InputError
from whitepanda.v1 import fleet_pb2

Answer = TypeVar("Answer")


async def plan(context: Context, request: fleet_pb2.PlanObservationRequest) -> fleet_pb2.ObservationPlan:
    """How many instances of which jobs to observe for a margin, at the least cost."""
    return await _run(context, lambda answers: answers.plan_observation(context.lake, request, context.clock_unix_ns()))


async def compare(context: Context, request: fleet_pb2.CompareSidesRequest) -> fleet_pb2.SideComparison:
    """The weighted metric of the jobs that both sides have, and its difference."""
    lake, hosts = context.lake, context.journal.hosts
    return await _run(context, lambda answers: answers.compare_sides(lake, request, context.clock_unix_ns(), hosts))


async def _run(context: Context, ask: Callable[[Any], Answer]) -> Answer:
    """Ask the answers' module, in the worker."""

    def answer() -> Answer:
        from central.api.decisions import upgrade_answers  # noqa: PLC0415 - scipy costs memory

        return ask(upgrade_answers)

    try:
        return await context.comparing.run(answer)
    except FieldError as error:
        raise wrong_field(error.field, error.problem) from error
    except InputError as error:
        raise wrong(str(error)) from error
    except LakeError as error:
        raise ApiError(grpc.StatusCode.INTERNAL, str(error)) from error
