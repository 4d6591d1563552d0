"""The fleet API's part on WSMeter: what to observe for a margin, and whether the fleet became faster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import grpc

from central.api.paging import Context, abort
from central.api.work import NotThereError, Worker
from central.journal.writer import Journal
from central.lake.segments import Lake, LakeError
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

__all__ = ["SideQueries"]

Answer = TypeVar("Answer")


class SideQueries:
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _lake: Lake
    _journal: Journal
    _heavy: Worker
    _clock_unix_ns: Callable[[], int]

    async def PlanObservation(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.PlanObservationRequest, context: Context
    ) -> fleet_pb2.ObservationPlan:
        """How many instances of which jobs to observe for a margin, at the least cost."""

        def answer() -> fleet_pb2.ObservationPlan:
            from central.api.upgrade_answers import plan_observation  # noqa: PLC0415 - scipy, only where it is asked for

            return plan_observation(self._lake, request, self._clock_unix_ns())

        return await self._told(answer, context)

    async def CompareSides(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.CompareSidesRequest, context: Context
    ) -> fleet_pb2.SideComparison:
        """The weighted metric of the jobs that both sides have, and its difference."""

        def answer() -> fleet_pb2.SideComparison:
            from central.api.upgrade_answers import compare_sides  # noqa: PLC0415 - scipy, only where it is asked for

            return compare_sides(self._lake, request, self._clock_unix_ns(), self._journal.hosts)

        return await self._told(answer, context)

    async def _told(self, call: Callable[[], Answer], context: Context) -> Answer:
        """Run it off the loop; what is wrong is one line with the names of the request's fields."""
        try:
            return await self._heavy.run(call, context)
        except NotThereError as error:
            await abort(context, grpc.StatusCode.NOT_FOUND, str(error))
        except InputError as error:
            # The command line's options are called as the fields are.
            text = re.sub(r"--([a-z-]+)", lambda found: found[1].replace("-", "_"), str(error))
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        except LakeError as error:
            await abort(context, grpc.StatusCode.INTERNAL, str(error))
