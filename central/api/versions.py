"""The versions that builds made: job statistics and coefficients, page by page of one version."""

import asyncio
from collections.abc import Sequence

import grpc
import msgspec
import pyarrow as pa

from central.api.context import Context
from central.api.names import check_names
from central.api.requests import ApiError, Page, Row, read_page
from central.api.vms import of_project
from central.coefficients.versions import BuiltVersion
from central.lake.errors import LakeError
from whitepanda.v1 import fleet_pb2

# All pages of a list are of the first page's version, while that is kept. A place is the version and a number of rows.
_FIRST = (0, 0)


async def list_statistics(
    context: Context, request: fleet_pb2.ListJobStatisticsRequest
) -> fleet_pb2.ListJobStatisticsResponse:
    """CPI statistics by job and platform; of one job if the request names one, or of those of a project."""
    page = read_page(request, "statistics", _FIRST, repr((request.job, request.project)))
    built = await _version(context, page)
    if built is None:
        return fleet_pb2.ListJobStatisticsResponse()
    first, size = page.place[1], page.size + 1
    if request.job or request.project:
        jobs = {request.job} if request.job else set()
        if request.project:
            running = {each.job for each in await of_project(context, request.project)}
            jobs = jobs & running if jobs else running
        rows = [row for job in sorted(jobs) for row in built.statistics(job)][first : first + size]
    else:
        rows = built.statistics_page(first, size)
    shown, token = _cut(page, built, rows)
    return fleet_pb2.ListJobStatisticsResponse(version=built.version, statistics=shown, next_page_token=token)


async def list_coefficients(
    context: Context, request: fleet_pb2.ListCoefficientsRequest
) -> fleet_pb2.ListCoefficientsResponse:
    """Coefficients, the largest first; of one job if the request names one."""
    page = read_page(request, "coefficients", _FIRST, request.job)
    built = await _version(context, page)
    coefficient = built.coefficient(request.job) if built and request.job else None
    if coefficient is None:
        await check_names(context, request, "job")
    if built is None:
        return fleet_pb2.ListCoefficientsResponse()
    first = page.place[1]
    if request.job:
        rows = [] if coefficient is None or first else [coefficient]
    else:
        rows = built.coefficients_page(first, page.size + 1)
    shown, token = _cut(page, built, rows)
    return fleet_pb2.ListCoefficientsResponse(version=built.version, coefficients=shown, next_page_token=token)


async def _version(context: Context, page: Page) -> BuiltVersion | None:
    """Return the page's version; on a first page the current one."""
    current, wanted = context.builder.current, page.place[0]
    if not wanted or (current and current.version == wanted):
        return current
    older = context.older
    if older is None or older.version != wanted:
        try:
            older = await asyncio.to_thread(context.builder.versions.read, wanted)
        except (LakeError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
            message = f"version {wanted} is no longer kept; begin again without page_token"
            raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, message, "page_token") from error
        context.older = older
    return older


def _cut(page: Page, built: BuiltVersion, rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    return page.cut(rows, lambda _row: (built.version, page.place[1] + page.size))
