"""WSMeter: what to observe for a margin, and whether the fleet became faster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from central.api.admission import Worker
from central.api.requests import ApiError, wrong, wrong_field
from central.journal.writer import Journal
from central.lake.errors import LakeError
from central.lake.segments import Lake
from whitepanda.common.errors import FieldError, InputError
from whitepanda.v1 import fleet_pb2

Answer = TypeVar("Answer")


@dataclass(eq=False)
class Upgrades:
    """Answers on upgrades."""

    lake: Lake
    journal: Journal
    clock_unix_ns: Callable[[], int]
    worker: Worker

    async def plan(self, request: fleet_pb2.PlanObservationRequest) -> fleet_pb2.ObservationPlan:
        """How many instances of which jobs to observe for a margin, at the least cost."""
        return await self._run(lambda answers: answers.plan_observation(self.lake, request, self.clock_unix_ns()))

    async def compare(self, request: fleet_pb2.CompareSidesRequest) -> fleet_pb2.SideComparison:
        """The weighted metric of the jobs that both sides have, and its difference."""
        hosts = self.journal.hosts
        return await self._run(lambda answers: answers.compare_sides(self.lake, request, self.clock_unix_ns(), hosts))

    async def _run(self, ask: Callable[[Any], Answer]) -> Answer:
        """Ask the answers' module, in the worker."""

        def answer() -> Answer:
            from central.api import upgrade_answers  # noqa: PLC0415 - scipy, only where it is asked for

            return ask(upgrade_answers)

        try:
            return await self.worker.run(answer)
        except FieldError as error:
            raise wrong_field(error.field, error.problem) from error
        except InputError as error:
            raise wrong(str(error)) from error
        except LakeError as error:
            raise ApiError(grpc.StatusCode.INTERNAL, str(error)) from error
