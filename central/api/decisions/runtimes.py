"""Pitot: how long a job would run on a host as it is now, or on a platform beside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc
import numpy as np

from central.api.context import Context
from central.api.limits import MAX_BESIDE, MAX_EPSILON, MAX_EPSILONS
from central.api.requests import ApiError, at_most, unknown, wrong, wrong_field
from central.models.pitot import ALONE, Rows
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

if TYPE_CHECKING:
    from central.runtimes.model import Model


_EPSILONS = (0.1, 0.05, 0.01)


async def predict(context: Context, request: fleet_pb2.PredictRuntimeRequest) -> fleet_pb2.RuntimePrediction:
    """How long a job would run, and bounds that a share of runs does not exceed."""
    epsilons = tuple(request.epsilons) or _EPSILONS
    _check(request, epsilons)
    try:
        model = await context.predicting.run(context.models.read)
    except InputError as error:
        raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
    platform, beside = request.platform, list(request.beside)
    if request.host:
        platform, beside = await _host(context, request.host)
    strangers = sorted({job for job in beside if job not in model.workloads.places})
    for field, what, name, names in (
        ("job", "job", request.job, model.workloads.places),
        ("platform", "platform", platform, model.platforms.places),
        # Unknown jobs on a host are left out; those that a request names are refused.
        *(("beside", "job", job, model.workloads.places) for job in strangers if not request.host),
    ):
        if name not in names:
            missing = f"the model knows no {what} {name[:80]!r}"
            raise unknown(f"{missing}; `whitepanda runtime update` adds it from a few runs", field)
    known = [job for job in beside if job in model.workloads.places]
    try:
        predicted, bounds = await context.predicting.run(
            lambda: _predict(model, request.job, platform, known, epsilons)
        )
    except ValueError as error:
        raise wrong(f"epsilons: {error}", "epsilons") from error
    return fleet_pb2.RuntimePrediction(
        platform=platform,
        beside=known,
        not_known=strangers,
        predicted_us=predicted,
        bounds=[
            # No bound holds beside jobs that were left out.
            fleet_pb2.RuntimeBound(epsilon=epsilon, bound_us=np.nan if strangers else bound)
            for epsilon, bound in zip(epsilons, bounds, strict=True)
        ],
    )


async def _host(context: Context, host: str) -> tuple[str, list[str]]:
    """Return a host's platform, and the job of each VM that was seen there lately."""
    record = context.journal.hosts.get(host)
    problem = "never connected"
    if record is not None:
        now = await context.snapshot.get()
        if host in now.hosts.names:
            return record.platform, list(now.running[now.hosts.names.index(host)])
        problem = "is away, and sent no window lately"
    raise unknown(f"host {host[:80]!r} {problem}; give platform and beside instead", "host")


def _check(request: fleet_pb2.PredictRuntimeRequest, epsilons: Sequence[float]) -> None:
    """Refuse a request that contradicts itself or asks for too much."""
    if not request.job:
        raise wrong("name the job", "job")
    if bool(request.host) == bool(request.platform):
        raise wrong("name either the host, or the platform and the jobs beside", "host")
    if request.host and request.beside:
        raise wrong_field("beside", "goes with platform; a host's VMs are known")
    at_most("beside", len(request.beside), MAX_BESIDE)
    at_most("epsilons", len(epsilons), MAX_EPSILONS)
    for epsilon in epsilons:
        if not 0 < epsilon <= MAX_EPSILON:
            raise wrong_field("epsilons", f"must be above 0 and up to {MAX_EPSILON:g} (value {epsilon:g})")


def _predict(
    model: Model, job: str, platform: str, beside: Sequence[str], epsilons: Sequence[float]
) -> tuple[float, list[float]]:
    """Return the runtime and its bounds, NaN for numbers of co-runners that the fit never saw."""
    places = model.workloads.places
    rows = Rows(
        np.array([places[job]], dtype=np.int64),
        np.array([model.platforms.places[platform]], dtype=np.int64),
        np.array([[places[name] for name in beside] or [ALONE]], dtype=np.int64),
    )
    estimates = model.estimate(rows)
    bounds = model.bounds(rows, estimates, epsilons)
    return float(np.exp(estimates.log_us[0])), np.exp(bounds[:, 0]).tolist()
