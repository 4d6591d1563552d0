"""Fit a model of runtimes: baseline, members, difficulty, and calibration rows that nothing else saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from central.models.groups import Floats
from central.models.pitot import Members, Rows, Shape, linear_baseline, log_runtimes
from central.models.pitot_bounds import Difficulty, pools
from central.runtimes.checkpoint import Checkpoint, Member, digest_of
from central.runtimes.model import Model
from central.runtimes.tables import Features
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.extras import how_to_install

if TYPE_CHECKING:
    from central.models.pitot_training import Options


#: Fewer rows are too few to fit and to calibrate.
_MIN_ROWS = 100
#: Steps per row that is trained on, if the schedule is shortened for few rows.
_STEPS_PER_ROW = 0.2
_MIN_STEPS = 600


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How to fit."""

    members: int = 8
    quantiles: tuple[float, ...] = (0.8, 0.95)  # of the heads trained like members, for the scale of bounds
    calibration: float = 0.1  # share of rows that only calibrate the bounds
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)  # overrides of the trainer's options
    baseline: bool = True  # members learn what the linear scaling baseline leaves, not all of the logarithm


def fit(
    rows: Rows,
    log_us: Floats,
    workloads: Features,
    platforms: Features,
    options: FitOptions,
    provenance: Mapping[str, Any],
    progress: Callable[[float], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> Model:
    """Fit a model to rows whose places are in the features' names, and logarithms of their runtimes in us, shape (n,).

    `provenance` goes into the model as it is; `progress` is called with the share that is done. `checkpoint` keeps what
    is trained, and returns what a stopped fit to the same rows with the same options has trained, so that the model is
    the same; it is not removed. Raises InputError for too few rows, UnavailableError if JAX or optax is not installed.
    """
    if len(rows) < _MIN_ROWS:
        raise InputError(f"{len(rows)} rows are too few to fit runtimes; at least {_MIN_ROWS} are needed")
    order = np.random.default_rng(options.seed).permutation(len(rows))
    kept = max(1, round(len(rows) * options.calibration))
    calibrating, training = np.sort(order[:kept]), np.sort(order[kept:])
    trained, trained_log = rows.take(training), log_us[training]
    sizes = (len(workloads.names), len(platforms.names))
    a, b = linear_baseline(trained, trained_log, *sizes)
    if not options.baseline:
        a, b = np.full_like(a, trained_log.mean()), np.zeros_like(b)
    left = trained_log - a[trained.workload] - b[trained.platform]
    training_options = _training_options(options, len(trained))
    features = (workloads.values, platforms.values)
    wanted = [training_options] * options.members
    wanted += [replace(training_options, quantile=quantile) for quantile in options.quantiles]
    done = _trained(wanted, options.seed, trained, left, features, progress, checkpoint)
    members, heads = (
        _members(training_options.shape, some, *sizes) for some in (done[: options.members], done[options.members :])
    )
    residuals = left - log_runtimes(members, trained).mean(axis=0, dtype=np.float64)
    difficulty = Difficulty.fit(trained, residuals, *sizes)
    settings = {
        "members": options.members,
        "calibration": options.calibration,
        "seed": options.seed,
        "rows": {"trained": len(training), "calibrated": len(calibrating)},
        **provenance,
    }
    model = Model(workloads.names, platforms.names, a, b, members, heads, difficulty, {}, settings)
    held_out = rows.take(calibrating)
    estimates = model.estimate(held_out)
    residuals = log_us[calibrating] - estimates.log_us
    return replace(model, pools=pools(held_out, residuals, estimates.scatter))


def _training_options(options: FitOptions, rows: int) -> Options:
    try:
        from central.models.pitot_training import Options  # noqa: PLC0415 - the extra `predict` only
    except ImportError as error:
        raise UnavailableError(f"runtime fit needs '{error.name}'; {how_to_install('predict')}") from error
    found = Options(**options.training)
    if "steps" in options.training:
        return found
    return replace(found, steps=int(min(found.steps, max(_MIN_STEPS, _STEPS_PER_ROW * rows))))


def _trained(
    wanted: list[Options],
    seed: int,
    rows: Rows,
    left: Floats,
    features: tuple[Floats, Floats],
    progress: Callable[[float], None],
    checkpoint: Checkpoint | None,
) -> list[Member]:
    """Train the members, then the quantile heads, those that the checkpoint does not have."""
    from central.models.pitot_training import Trainer, engine  # noqa: PLC0415 - the extra `predict` only

    done = list[Member]()
    digest = ""
    if checkpoint is not None:
        # Another engine, or its other release, trains other members.
        arrays = (rows.workload, rows.platform, rows.interferers, left, *features)
        digest = digest_of((engine(), metadata.version("whitepanda"), seed, wanted), arrays)
        done = checkpoint.read(digest, len(wanted))
    for place in range(len(done), len(wanted)):

        def on_share(share: float, place: int = place) -> None:
            progress((place + share) / len(wanted))

        one = Trainer(wanted[place], rows, left, *features).member(seed * 1000 + place, on_share)
        done.append((one.workload, one.platform, one.loss))
        if checkpoint is not None:
            checkpoint.write(digest, done)
    return done


def _members(shape: Shape, done: list[Member], workloads: int, platforms: int) -> Members:
    workload, platform = (np.array([member[k] for member in done], dtype=np.float32) for k in (0, 1))
    sizes = (len(done), workloads, shape.workload_width), (len(done), platforms, shape.platform_width)
    return Members(shape, workload.reshape(sizes[0]), platform.reshape(sizes[1]))
