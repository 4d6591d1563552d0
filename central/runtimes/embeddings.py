"""Embeddings of a model's workloads and platforms: as a table, and how well they separate groups (suites)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from central.models.groups import Floats
from central.models.pitot import Singles
from central.runtimes.model import Model
from central.runtimes.tables import Names
from central.tables.user_files import UserTable
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.extras import how_to_install

#: The first of these ends a name's group: cortex/kmeans_l is of cortex, wasm3-i:hc-11 of wasm3-i.
_SEPARATORS = "/:"
_OTHER = "other"
#: Neighbours that t-SNE uses: scikit-learn's own choice, and the share of few names that it may be at most.
_PERPLEXITY, _MAX_OF_NAMES = 30.0, 1 / 3
_MIN_NAMES = 4
_SHUFFLES = 2000
_SHOWN_SHARE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Embeddings of one kind of names: `kind` is workload or platform, values (names, dimensions)."""

    kind: str
    names: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Neighbours:
    """How often the nearest name is of the same group."""

    names: int
    groups: int
    share: float  # of all names
    chance: float  # mean share if names are assigned to the groups at random
    chance_low: float  # 95 % of these shares are from here
    chance_high: float  # to here
    p: float  # share of such assignments that reach `share` (one of them is the real one)


def embed(model: Model) -> tuple[Embedded, Embedded]:
    """Return the embeddings of workloads and of platforms whose products are the runtimes alone (equation 5).

    Those of all members are side by side, divided by the root of their number: products and squared distances are then
    means over members; dimensions are members * rank. Neither the linear scaling baseline nor interference is in them.
    """
    members, rank = model.members, model.members.shape.rank

    def embedded(kind: str, names: Names, values: Singles) -> Embedded:
        """Turn values (members, names, width) into (names, members * rank)."""
        found: Floats = values[..., :rank].astype(np.float64).transpose(1, 0, 2).reshape(len(names), -1)
        found /= np.sqrt(len(members))
        return Embedded(kind, names.names, found)

    workloads = embedded("workload", model.workloads, members.workload)
    return workloads, embedded("platform", model.platforms, members.platform)


def as_table(parts: Sequence[Embedded]) -> pa.Table:
    """Return a table of kind, name, and a column for each dimension."""
    columns: dict[str, Any] = {
        "kind": [part.kind for part in parts for _ in part.names],
        "name": [name for part in parts for name in part.names],
    }
    values = np.concatenate([part.values for part in parts])
    columns |= {f"dimension_{place}": values[:, place] for place in range(values.shape[1])}
    return pa.table(columns)


def read_groups(path: Path) -> dict[tuple[str, str], str]:
    """Read groups of names: columns name and group, and kind (workload, platform) if names may be of both.

    Returns groups by (kind, name), kind "" without the column. Raises InputError if the file cannot be read, a column
    or a value is missing, or a name has two groups.
    """
    table = UserTable(path)
    table.require("name", "group")
    names, groups = table.names("name"), table.names("group")
    kinds = table.texts("kind") if "kind" in table.columns else np.full(len(names), "")
    found: dict[tuple[str, str], str] = {}
    for row, (kind, name, group) in enumerate(zip(kinds.tolist(), names.tolist(), groups.tolist(), strict=True), 1):
        if kind not in ("", "workload", "platform"):
            raise InputError(f"{path}: row {row}: kind must be workload or platform (value {kind})")
        if found.setdefault((kind, name), group) != group:
            raise InputError(f"{path}: row {row}: {name!r} is of {found[kind, name]!r} already; give one group")
    return found


def groups_of(part: Embedded, given: dict[tuple[str, str], str] | None) -> tuple[str, ...]:
    """Return the group of each name: as given ("other" of names that are not), else its part before `/` or `:`."""
    if given is not None:
        return tuple(given.get((part.kind, name), given.get(("", name), _OTHER)) for name in part.names)
    ends = ([place for place in map(name.find, _SEPARATORS) if place > 0] for name in part.names)
    return tuple(name[: min(found)] if found else name for name, found in zip(part.names, ends, strict=True))


def neighbours(values: Floats, groups: Sequence[str], seed: int) -> Neighbours:
    """Count names whose nearest other one (Euclidean) is of the same group, against groups dealt out at random.

    `values` has shape (n, dimensions), n >= 2; `seed` is of the deals.
    """
    labels = np.unique(np.asarray(groups), return_inverse=True)[1]
    squares = (values**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * values @ values.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(axis=1)
    sizes = np.bincount(labels)
    n = len(labels)
    share = float((labels == labels[nearest]).mean())
    random = np.random.default_rng(seed)
    deals = (random.permutation(labels) for _ in range(_SHUFFLES))
    dealt = np.array([(some == some[nearest]).mean() for some in deals])
    low, high = np.quantile(dealt, [(1 - _SHOWN_SHARE) / 2, (1 + _SHOWN_SHARE) / 2])
    chance = float((sizes * (sizes - 1)).sum() / (n * (n - 1)))
    p = float((1 + (dealt >= share).sum()) / (1 + _SHUFFLES))
    return Neighbours(n, len(sizes), share, chance, float(low), float(high), p)


def project(part: Embedded, seed: int) -> Floats:
    """Lay names out in a plane by t-SNE, with scikit-learn's defaults, from the principal components; shape (names, 2).

    Neither axes nor large distances mean anything. The same seed gives the same map on the same machine. Raises
    InputError for too few names, UnavailableError if scikit-learn is not installed.
    """
    if len(part.names) < _MIN_NAMES:
        raise InputError(f"--plot: {len(part.names)} {part.kind}s are too few for a map; {_MIN_NAMES} are needed")
    try:
        from sklearn.manifold import TSNE  # noqa: PLC0415 - in the extra `train` only
    except ImportError as error:
        raise UnavailableError(f"--plot needs '{error.name}'; {how_to_install('train')}") from error
    perplexity = min(_PERPLEXITY, len(part.names) * _MAX_OF_NAMES)
    found: Floats = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(part.values)
    return found
