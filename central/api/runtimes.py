"""The fleet API's part on Pitot: how long a job would run on a host as it is now, or on a platform beside others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from central.api.limits import MAX_BESIDE, MAX_EPSILON, MAX_EPSILONS
from central.api.paging import Context, abort
from central.api.work import Worker
from central.journal.writer import Journal
from central.models.pitot import ALONE, Rows
from central.own_threads import SharedAnswer
from central.placement.live import Snapshot
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

if TYPE_CHECKING:
    from central.runtimes.model import Model

__all__ = ["ModelFile", "RuntimeQueries"]

_EPSILONS = (0.1, 0.05, 0.01)


class ModelFile:
    """The model of runtimes that the configuration names, read again when its file is another one. Safe in threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int, int], Model] | None = None

    def read(self) -> Model:
        """Return the model.

        Raises:
            InputError: none is named, or its file is no model.

        """
        if not self._path:
            raise InputError(
                "no model of runtimes: make one with `whitepanda runtime fit`, name its file as runtime.model in "
                "central's configuration"
            )
        from central.runtimes.model import read_model  # noqa: PLC0415 - costs memory, only where it is asked for

        with self._lock:
            try:
                found = Path(self._path).stat()
            except OSError as error:
                raise InputError(f"runtime.model {self._path}: {error.strerror}") from error
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._known is None or self._known[0] != stamp:
                self._known = (stamp, read_model(Path(self._path)))
            return self._known[1]


class RuntimeQueries:
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _journal: Journal
    _snapshot: SharedAnswer[Snapshot]
    _models: ModelFile
    _predicting: Worker

    async def PredictRuntime(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.PredictRuntimeRequest, context: Context
    ) -> fleet_pb2.RuntimePrediction:
        """How long a job would run, and bounds that a share of runs does not exceed."""
        epsilons = tuple(request.epsilons) or _EPSILONS
        problem = _problem(request, epsilons)
        if problem:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        try:
            model = await self._predicting.run(self._models.read, context)
        except InputError as error:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        platform, beside = request.platform, list(request.beside)
        if request.host:
            platform, beside = await self._host(request.host, context)
        strangers = sorted({job for job in beside if job not in model.workloads.places})
        for what, name, names in (
            ("job", request.job, model.workloads.places),
            ("platform", platform, model.platforms.places),
            # On a host there is what there is; whoever names jobs wants these.
            *(("job", job, model.workloads.places) for job in strangers if not request.host),
        ):
            if name not in names:
                missing = f"the model knows no {what} {name[:80]!r}"
                message = f"{missing}; `whitepanda runtime update` adds it from a few runs"
                await abort(context, grpc.StatusCode.NOT_FOUND, message)
        known = [job for job in beside if job in model.workloads.places]
        try:
            predicted, bounds = await self._predicting.run(
                lambda: _predict(model, request.job, platform, known, epsilons), context
            )
        except ValueError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"epsilons: {error}")
        return fleet_pb2.RuntimePrediction(
            platform=platform,
            beside=known,
            not_known=strangers,
            predicted_us=predicted,
            bounds=[
                # What was left out may slow it down: nothing is promised then.
                fleet_pb2.RuntimeBound(epsilon=epsilon, bound_us=np.nan if strangers else bound)
                for epsilon, bound in zip(epsilons, bounds, strict=True)
            ],
        )

    async def _host(self, host: str, context: Context) -> tuple[str, list[str]]:
        """Return a host's platform, and the job of each VM that was seen there lately."""
        record = self._journal.hosts.get(host)
        if record is None:
            message = f"host {host[:80]!r} never connected; give platform and beside instead"
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        now = await self._snapshot.get()
        if host not in now.hosts.names:
            message = (
                f"host {host[:80]!r} is away, and sent no window lately; give platform and beside instead"
            )
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        return record.platform, list(now.running[now.hosts.names.index(host)])


def _problem(request: fleet_pb2.PredictRuntimeRequest, epsilons: Sequence[float]) -> str:
    """Return what is wrong with a request; "" if nothing."""
    if not request.job:
        return "name the job"
    if bool(request.host) == bool(request.platform):
        return "name either the host, or the platform and the jobs beside"
    if request.host and request.beside:
        return "beside goes with platform; a host's VMs are known"
    for name, values, most in (
        ("beside", request.beside, MAX_BESIDE),
        ("epsilons", epsilons, MAX_EPSILONS),
    ):
        if len(values) > most:
            return f"{name} must be at most {most} (value {len(values)})"
    wrong = next((epsilon for epsilon in epsilons if not 0 < epsilon <= MAX_EPSILON), None)
    if wrong is not None:
        return f"epsilons must be above 0 and up to {MAX_EPSILON:g} (value {wrong:g})"
    return ""


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
