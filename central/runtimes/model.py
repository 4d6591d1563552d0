"""A fitted model of runtimes and its file: an .npz archive of plain arrays, with a JSON header; no pickle."""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from central.models.groups import Floats
from central.models.pitot import Members, Rows, Shape, log_runtimes
from central.models.pitot_bounds import Difficulty, Pool, Scatter, disagreement, gap
from central.runtimes.tables import Names
from whitepanda.common.errors import InputError
from whitepanda.common.files.durable import writing

FORMAT = "whitepanda-runtime-1"
#: Rows that are predicted together; limits memory.
_AT_ONCE = 65_536
_REMEDY = "write it again with `whitepanda runtime fit`"


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Log of n rows' runtimes in us, shape (n,), and measures of how far they may be off."""

    log_us: Floats
    scatter: Scatter


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The content of a model file."""

    workloads: Names
    platforms: Names
    baseline_workload: Floats
    baseline_platform: Floats
    members: Members
    quantiles: Members
    difficulty: Difficulty
    pools: Mapping[int, Pool]
    provenance: Mapping[str, Any]

    def estimate(self, rows: Rows) -> Estimates:
        """Estimate rows, whose ids are places in `workloads` and `platforms`."""
        log_us, spread, above = np.empty((3, len(rows)))
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            some = Rows(rows.workload[part], rows.platform[part], rows.interferers[part])
            found = log_runtimes(self.members, some)
            spread[part] = disagreement(found)
            log_us[part] = found.mean(axis=0, dtype=np.float64)
            above[part] = gap(log_runtimes(self.quantiles, some), log_us[part])
        log_us += self.baseline_workload[rows.workload] + self.baseline_platform[rows.platform]
        return Estimates(log_us, Scatter(self.difficulty.of(rows), spread, above))

    def bounds(self, rows: Rows, estimates: Estimates, epsilons: Sequence[float]) -> Floats:
        """Return logarithms of bounds in us, shape (epsilons, n), that a share epsilon of runs may exceed.

        NaN for numbers of co-runners that the fit never saw. A row's bound for a smaller epsilon is never below its
        bound for a larger one: each epsilon takes the head that costs it least, and where heads cross, the higher bound
        counts for both, which takes nothing from their coverage. Raises ValueError for too few calibration rows.
        """
        found = np.full((len(epsilons), len(rows)), np.nan)
        counts = rows.co_runners
        for count in np.unique(counts):
            pool = self.pools.get(int(count))
            if pool is None:
                continue
            here = np.flatnonzero(counts == count)
            for place, epsilon in enumerate(epsilons):
                try:
                    head = pool.head(epsilon)
                except ValueError as error:
                    raise ValueError(f"with {count} co-runners: {error}") from error
                found[place, here] = head.bound(estimates.log_us[here], estimates.scatter.take(here))
        largest_first = np.argsort(-np.asarray(epsilons, dtype=np.float64), kind="stable")
        found[largest_first] = np.maximum.accumulate(found[largest_first], axis=0)
        return found


def write_model(path: Path, model: Model) -> None:
    """Write a model file, whole or not at all. Raises InputError if it cannot be written."""
    shape = model.members.shape
    header = {
        "format": FORMAT,
        "shape": [shape.rank, shape.interference_rank, shape.interference_types],
        "leak": shape.leak,
        "members": len(model.members),
        "quantiles": len(model.quantiles),
        "workloads": model.workloads.names,
        "platforms": model.platforms.names,
        "pools": sorted(model.pools),
        "provenance": dict(model.provenance),
    }
    arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for what in ("workload", "platform"):
        arrays |= {f"baseline_{what}": getattr(model, f"baseline_{what}"), what: getattr(model.members, what)}
        arrays[f"quantile_{what}"] = getattr(model.quantiles, what)
        arrays[f"difficulty_{what}"] = getattr(model.difficulty, what)
    arrays["difficulty_interferer"] = model.difficulty.interferer
    for count, pool in model.pools.items():
        scatter = pool.scatter
        arrays[f"pool_{count}"] = np.stack((pool.residuals, scatter.difficulty, scatter.disagreement, scatter.gap))
    with writing(path, mode=0o644) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_model(path: Path) -> Model:
    """Read a model file. Raises InputError if it is not there, or no whitepanda model; says what is wrong with it."""
    try:
        return _parsed(read_arrays(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        problem = f"{error} is missing"
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # numpy's advice about pickles is not a remedy here.
        problem = "an array in it is not of plain numbers" if "pickle" in str(error) else str(error)
    raise InputError(f"{path}: is not a model of runtimes: {problem}; {_REMEDY}")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read an .npz archive. Raises OSError if it cannot be read, ValueError if it is not one or is damaged."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is not an archive of arrays")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def _parsed(arrays: Mapping[str, NDArray[Any]]) -> Model:
    header = json.loads(arrays["header"].tobytes())
    if not isinstance(header, dict):
        raise TypeError("its header is not a JSON object")
    if header.get("format") != FORMAT:
        raise ValueError(f"format {header.get('format')} is not known (known: {FORMAT})")
    rank, inner, types = (_whole(size, "shape", 1, 4096) for size in header["shape"])
    leak = header["leak"]
    if not isinstance(leak, float) or not 0 <= leak <= 1:
        raise ValueError(f"leak must be 0 to 1 (value {leak})")
    shape = Shape(rank, inner, types, leak)
    workloads, platforms = (_names(header, what) for what in ("workloads", "platforms"))
    members = _whole(header["members"], "members", 1, 1024)
    quantiles = _whole(header["quantiles"], "quantiles", 0, 1024)
    w, p = len(workloads), len(platforms)

    def embeddings(kind: str, count: int) -> Members:
        by_workload = _array(arrays, f"{kind}workload", (count, w, shape.workload_width))
        by_platform = _array(arrays, f"{kind}platform", (count, p, shape.platform_width))
        return Members(shape, by_workload.astype(np.float32), by_platform.astype(np.float32))

    a, b = _array(arrays, "baseline_workload", (w,)), _array(arrays, "baseline_platform", (p,))
    found = embeddings("", members), embeddings("quantile_", quantiles)
    kinds = (("workload", w), ("platform", p), ("interferer", w))
    difficulty = Difficulty(*(_array(arrays, f"difficulty_{what}", (size,)) for what, size in kinds))
    pools = {}
    for count in [_whole(count, "pools", 0, 64) for count in header["pools"]]:
        values = _array(arrays, f"pool_{count}", (4, arrays[f"pool_{count}"].shape[-1]))
        pools[count] = Pool(values[0], Scatter(*values[1:]))
    return Model(workloads, platforms, a, b, *found, difficulty, pools, dict(header["provenance"]))


def _whole(value: object, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be whole numbers of {low} to {high} (value {value})")
    return value


def _names(header: Mapping[str, Any], what: str) -> Names:
    names = tuple(str(name) for name in header[what])
    found = Names.of(names)
    if not names or len(found.places) != len(names):
        raise ValueError(f"{what} must be named, each once")
    return found


def _array(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> Floats:
    values = arrays[name]
    if values.dtype.kind != "f" or values.shape != shape:
        raise ValueError(f"{name} must be numbers of shape {shape} (value {values.dtype} {values.shape})")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has values that are not finite")
    return values.astype(np.float64)
