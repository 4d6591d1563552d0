"""Intervals around estimates at run time: wider if the model erred in training, or a row is unlike it.

Fitted by `central.degradation.intervals`. With d the estimate, the interval is d / e^h to d * e^h where

    h = quantile * difficulty * (1 + slope * max(0, novelty - 1))
    difficulty = floor + the expected |log error|, by trees, from the features and log d
    novelty = the mean distance to the nearest rows of training / what that was in training for most rows

A row with a novelty above `limit` is too unlike the training data: no estimate. The block:

    {"kind": "conformal", "nominal": 0.9, "quantile": 2.1, "floor": 0.01,
     "difficulty": {"kind": "trees", ...}, over the features and one column more, log d
     "novelty": {"terms": [...], "middles": [...], "widths": [...], "spreads": [...], "neighbours": 5,
                 "prototypes": "0.1 0.2 ...", "reference": 0.3, "slope": 1.0, "limit": 4.0}}

Distances are Euclidean over terms t, each as asinh((t - middle) / width) / spread: straight near the middle,
logarithmic far out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model_numbers import FEATURE, NOMINAL, SCALE, number, numbers_from, reading, whole
from agent.analysis.degradation.trees import Terms, Trees, numbers_of
from agent.analysis.signals import Floats

_MAX = 1e6  # of numbers relative to the rows of training
_MAX_NEIGHBOURS = 10_000
#: Rows whose distances are computed together: bounds the memory.
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class Novelty:
    """How far rows are from those of training. `prototypes`: shape (m, terms), transformed; the rest: (terms,)."""

    terms: Terms
    middles: Floats
    widths: Floats
    spreads: Floats
    neighbours: int
    prototypes: Floats
    reference: float
    slope: float
    limit: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the block's `novelty`; errors as of `Intervals.from_json`."""
        terms = Terms.from_json(data["terms"])
        count = len(terms.forms)
        middles = numbers_from(data, "middles", FEATURE)
        widths, spreads = numbers_from(data, "widths", SCALE), numbers_from(data, "spreads", SCALE)
        prototypes = numbers_of(data["prototypes"], "prototypes", np.float64)
        neighbours, slope = whole(data, "neighbours", 1, _MAX_NEIGHBOURS), number(data, "slope", (0, _MAX))
        reference, limit = number(data, "reference", (1e-9, _MAX)), number(data, "limit", (1e-9, _MAX))
        if not len(middles) == len(widths) == len(spreads) == count or len(prototypes) % count:
            raise ValueError(f"middles, widths, spreads and prototypes must have {count} numbers per row")
        if len(prototypes) and not np.abs(prototypes).max() <= _MAX:
            raise ValueError(f"prototypes must be from {-_MAX:g} to {_MAX:g} (value {np.abs(prototypes).max():g})")
        rows = prototypes.reshape(-1, count)
        if neighbours > len(rows):
            raise ValueError(f"neighbours must be 1 to the number of prototypes, {len(rows)} (value {neighbours})")
        return cls(terms, middles, widths, spreads, neighbours, rows, reference, slope, limit)

    def places(self, values: Floats, baseline: Floats) -> Floats:
        """Return where rows lie, shape (n, terms): their terms, transformed as above."""
        return np.asarray(np.arcsinh((self.terms.of(values, baseline) - self.middles) / self.widths) / self.spreads)

    def of(self, values: Floats, baseline: Floats) -> Floats:
        """Return the novelty of rows, shape (n,): about 1 at most for rows as in training; NaN: a term is missing."""
        return mean_distance(self.places(values, baseline), self.prototypes, self.neighbours) / self.reference

    def factor(self, novelty: Floats) -> Floats:
        """Return by how much intervals are wider for it, shape (n,)."""
        return 1.0 + self.slope * np.maximum(novelty - 1.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Calibrated intervals."""

    nominal: float
    quantile: float
    floor: float
    difficulty: Trees
    novelty: Novelty

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read an intervals block; ValueError says what is missing or wrong."""
        with reading("intervals"):
            if data.get("kind") != "conformal":
                raise ValueError(f"of unknown kind {data.get('kind')}")
            block = data["novelty"]
            with reading("novelty"):
                novelty = Novelty.from_json(block)
            nominal, positive = number(data, "nominal", NOMINAL), (1e-9, _MAX)
            quantile, floor = number(data, "quantile", positive), number(data, "floor", positive)
            return cls(nominal, quantile, floor, Trees.from_json(data["difficulty"]), novelty)

    def bounds(self, values: Floats, baseline: Floats, degradation: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return low and high of estimates, and whether their rows are like those of training; each of shape (n,).

        Features `values` and `baseline` have shape (n, k), in their own units. If a row is unlike training, or a
        feature or the estimate is missing, the numbers are void.
        """
        difficulty = self.expected_error(values, baseline, degradation)
        novelty = self.novelty.of(values, baseline)
        half = self.quantile * difficulty * self.novelty.factor(novelty)
        is_known = np.isfinite(half) & (novelty <= self.novelty.limit)
        spread = np.exp(np.minimum(half, 700.0))
        with np.errstate(over="ignore"):  # infinite far from training, and then not used
            return degradation / spread, degradation * spread, is_known

    def expected_error(self, values: Floats, baseline: Floats, degradation: Floats) -> Floats:
        """Return the difficulty of rows, the |log error| expected of such as training had, shape (n,)."""
        return self.floor + self.difficulty.predict(*with_log(values, baseline, degradation))


def with_log(values: Floats, baseline: Floats, degradation: Floats) -> tuple[Floats, Floats]:
    """Return features and baselines with one column more: the log of the estimate, NaN if there is none."""
    is_positive = degradation > 0
    log = np.full(len(degradation), math.nan)
    log[is_positive] = np.log(degradation[is_positive])
    return np.column_stack((values, log)), np.column_stack((baseline, log))


def mean_distance(places: Floats, prototypes: Floats, neighbours: int) -> Floats:
    """Return the mean distance of places (n, terms) to the nearest `neighbours` of prototypes (m, terms).

    Shape (n,), per square root of a term; NaN if a place has a NaN.
    """
    result = np.empty(len(places))
    lengths = (prototypes**2).sum(axis=1)
    for start in range(0, len(places), _ROWS_AT_ONCE):
        part = places[start : start + _ROWS_AT_ONCE]
        # |a - b|^2 as products of matrices: no array of n x m x terms.
        squares = (part**2).sum(axis=1)[:, None] + lengths
        squares -= 2.0 * part @ prototypes.T
        np.maximum(squares, 0.0, out=squares)
        squares.partition(neighbours - 1, axis=1)
        nearest = squares[:, :neighbours]
        result[start : start + _ROWS_AT_ONCE] = np.sqrt(nearest / places.shape[1]).mean(axis=1)
    result[np.isnan(places).any(axis=1)] = math.nan
    return result
