"""New workloads and platforms in a fitted model, from a few runs of each, without fitting again."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from central.models.groups import Floats
from central.models.pitot import Ids, Members, Rows, Singles
from central.models.pitot_bounds import Difficulty
from central.models.pitot_update import new_platform, new_workload
from central.runtimes.model import Model
from central.runtimes.tables import NamedRows, Names, means_alone
from whitepanda.common.errors import InputError

#: Of a normal distribution: deviation over median absolute value.
_NORMAL = 1.4826
_MIN_NOISE = 0.005

#: Embeddings of a new name by member, and its baseline.
_Embedding = tuple[Singles, float]
_Estimate = Callable[[Members, Floats, Floats, Rows, Floats, float], _Embedding]


@dataclass(frozen=True, slots=True)
class Updated:
    """New names, the number of rows used for them, and of rows left out: of known names, or beside new ones."""

    workloads: tuple[str, ...]
    platforms: tuple[str, ...]
    rows_used: int
    rows_left_out: int


def update(model: Model, named: NamedRows, log_us: Floats) -> tuple[Model, Updated]:
    """Return the model with the workloads and platforms of these rows added, and what was added.

    Each of the n runs is of a new workload on a known platform or of a known workload on a new one; `log_us` (n,) has
    the logarithms of their runtimes in us. Bounds stay those of the fit's rows: nothing calibrates new names. Raises
    InputError if nothing is new, workload and platform of a row both are, or a new name is seen beside new ones only.
    """
    workloads, platforms = model.workloads, model.platforms
    added_w = tuple(name for name in named.workloads if name not in workloads.places)
    added_p = tuple(name for name in named.platforms if name not in platforms.places)
    if not added_w and not added_p:
        raise InputError(f"{named.path}: the model already knows all its workloads and platforms; nothing to add")
    strangers = tuple(
        name
        for name in named.interferers
        if name not in workloads.places and name not in added_w and not means_alone(name)
    )
    all_w = Names.of((*workloads.names, *added_w, *strangers))
    rows = named.placed(all_w, Names.of((*platforms.names, *added_p)), "")
    is_new_w, is_new_p = rows.workload >= len(workloads), rows.platform >= len(platforms)
    for row in np.flatnonzero(is_new_w & is_new_p):
        raise InputError(
            f"{named.path}: row {row + 1} has a workload and a platform that are both new; "
            "add the platform first, with runs of known workloads"
        )
    usable = (is_new_w | is_new_p) & (rows.interferers < len(workloads)).all(axis=1)
    # Members and quantile heads are one here: both learned what the same baseline leaves.
    members = Members(
        model.members.shape,
        np.concatenate([model.members.workload, model.quantiles.workload]),
        np.concatenate([model.members.platform, model.quantiles.platform]),
    )
    noise = noise_of(model)

    def estimated(names: tuple[str, ...], places: Ids, first: int, estimate: _Estimate) -> list[_Embedding]:
        found = []
        for place, name in enumerate(names, first):
            here = usable & (places == place)
            if not here.any():
                raise InputError(
                    f"{named.path}: {name!r} was seen beside unknown workloads only; give other runs of it"
                )
            baselines = (model.baseline_workload, model.baseline_platform)
            found.append(estimate(members, *baselines, rows.take(here), log_us[here], noise))
        return found

    found = (
        estimated(added_w, rows.workload, len(workloads), new_workload),
        estimated(added_p, rows.platform, len(platforms), new_platform),
    )
    # New names are behind the old ones; their difficulty is the average.
    (w, baseline_w), (p, baseline_p) = (([part[0] for part in parts], [part[1] for part in parts]) for parts in found)
    more = {"workload": len(w), "platform": len(p), "interferer": len(w)}
    grown = replace(
        model,
        workloads=Names.of((*workloads.names, *added_w)),
        platforms=Names.of((*platforms.names, *added_p)),
        baseline_workload=np.append(model.baseline_workload, baseline_w),
        baseline_platform=np.append(model.baseline_platform, baseline_p),
        members=_with(model.members, w, p, 0),
        quantiles=_with(model.quantiles, w, p, len(model.members)),
        difficulty=Difficulty(**{k: np.append(getattr(model.difficulty, k), np.zeros(n)) for k, n in more.items()}),
    )
    return grown, Updated(added_w, added_p, int(usable.sum()), int((~usable).sum()))


def noise_of(model: Model) -> float:
    """Return the robust deviation of the calibration rows' logarithms around their predictions."""
    residuals = np.concatenate([pool.residuals for pool in model.pools.values()])
    return max(_MIN_NOISE, _NORMAL * float(np.median(np.abs(residuals))))


def _with(members: Members, workloads: list[Singles], platforms: list[Singles], first: int) -> Members:
    """Return members with the embeddings of new names, whose members from `first` on are used."""
    here = slice(first, first + len(members))
    return Members(
        members.shape,
        np.concatenate([members.workload, *(part[here, None] for part in workloads)], axis=1),
        np.concatenate([members.platform, *(part[here, None] for part in platforms)], axis=1),
    )
