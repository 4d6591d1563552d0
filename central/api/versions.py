"""The versions that builds made: job statistics and coefficients, page by page of one version."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
import pyarrow as pa

from central.api.names import KnownNames
from central.api.requests import ApiError, Page, Row, Token, read_page
from central.build.status import BuildStatus
from central.coefficients.versions import BuiltVersion
from central.lake.errors import LakeError
from whitepanda.v1 import fleet_pb2


class VersionToken(Token, frozen=True, array_like=True):
    """Place in a list of one version: after how many rows."""

    version: int = 0
    offset: int = 0


class StatisticsToken(VersionToken, frozen=True, array_like=True, tag="statistics"):
    """Place in the list of job statistics."""


class CoefficientsToken(VersionToken, frozen=True, array_like=True, tag="coefficients"):
    """Place in the list of coefficients."""


@dataclass(eq=False)
class Versions:
    """Lists of the version in force. All pages of a list are of the first page's version, while that is kept."""

    builder: BuildStatus
    names: KnownNames
    _older: BuiltVersion | None = None  # the last version asked for that is not in force any more

    async def list_statistics(self, request: fleet_pb2.ListJobStatisticsRequest) -> fleet_pb2.ListJobStatisticsResponse:
        """CPI statistics by job and platform; of one job where the request names one."""
        page = read_page(request, StatisticsToken, request.job)
        built = await self._version(page)
        if built is None:
            return fleet_pb2.ListJobStatisticsResponse()
        first, size = page.token.offset, page.size + 1
        of_job = built.statistics(request.job)[first : first + size] if request.job else None
        rows = built.statistics_page(first, size) if of_job is None else of_job
        shown, token = _cut(page, built, rows)
        return fleet_pb2.ListJobStatisticsResponse(version=built.version, statistics=shown, next_page_token=token)

    async def list_coefficients(self, request: fleet_pb2.ListCoefficientsRequest) -> fleet_pb2.ListCoefficientsResponse:
        """Coefficients, the largest first; of one job where the request names one."""
        page = read_page(request, CoefficientsToken, request.job)
        built = await self._version(page)
        coefficient = built.coefficient(request.job) if built and request.job else None
        if coefficient is None:
            await self.names.check(request, "job")
        if built is None:
            return fleet_pb2.ListCoefficientsResponse()
        first = page.token.offset
        if request.job:
            rows = [] if coefficient is None or first else [coefficient]
        else:
            rows = built.coefficients_page(first, page.size + 1)
        shown, token = _cut(page, built, rows)
        return fleet_pb2.ListCoefficientsResponse(version=built.version, coefficients=shown, next_page_token=token)

    async def _version(self, page: Page[Any]) -> BuiltVersion | None:
        """Return the page's version, the one in force on a first page."""
        current, wanted = self.builder.current, page.token.version
        if not wanted or (current and current.version == wanted):
            return current
        older = self._older
        if older is None or older.version != wanted:
            try:
                older = await asyncio.to_thread(self.builder.versions.read, wanted)
            except (LakeError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
                message = f"version {wanted} is no longer kept; begin again without page_token"
                raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, message, "page_token") from error
            self._older = older
        return older


def _cut(page: Page[Any], built: BuiltVersion, rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    return page.cut(rows, lambda _row: {"version": built.version, "offset": page.token.offset + page.size})
