"""Ensembles of regression trees at run time: extra-trees and gradient boosting, in numpy alone.

Fitted by `central.degradation.trees`, which writes the block that `Trees.from_json` reads:

    {"kind": "trees",
     "link": "log",                        how sums become degradation: one of `LINKS`
     "base": 0.0, "factor": 0.01,          sum = base + factor * (the leaves that a row falls into, one per tree)
     "terms": [{"column": 3, "form": "raw" | "baseline" | "relative", "scale": 1.0}, ...],
     "trees": 100,
     "columns": "2 -1 0 -1 -1 ...",        node by node: the term that it splits, -1 for a leaf
     "numbers": "0.5 1.2 7.25 ..."}        node by node: the split's threshold, or the leaf's value

A tree is written in preorder: a split, then all of its left side (term <= threshold), then all of its right side. That
says where each side begins, so there are no pointers that could be wrong. Terms are rounded to single precision, as
scikit-learn's trees do, and thresholds are numbers of that precision.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model_numbers import FEATURE, MAX_COLUMNS, SCALE, TERM, number, reading, whole
from agent.analysis.degradation.relative import relative
from agent.analysis.signals import Floats

#: How a sum z becomes the degradation: z, exp(z), 1 / z, 1 / z^2.
LINKS = ("identity", "log", "inverse", "inverse-square-root")
FORMS = ("raw", "baseline", "relative")
_LARGEST_EXPONENT = 700.0
#: Levels of descent between two checks which rows have arrived.
_LEVELS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What trees split on: raw features, baselines, or features relative to baselines."""

    columns: NDArray[np.int64]
    forms: tuple[str, ...]
    scales: Floats

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read `terms`; ValueError says what is wrong."""
        with reading("terms"):
            columns = [whole(term, "column", 0, MAX_COLUMNS) for term in data]
            forms = tuple(str(term["form"]) for term in data)
            scales = [number(term, "scale", SCALE) for term in data]
            if not columns:
                raise ValueError("there must be one or more")
            if wrong := [form for form in forms if form not in FORMS]:
                raise ValueError(f"form must be one of {', '.join(FORMS)} (value {wrong[0]})")
        return cls(np.array(columns, dtype=np.int64), forms, np.array(scales, dtype=np.float64))

    def to_json(self) -> list[dict[str, Any]]:
        """Return `terms` as `from_json` reads it."""
        rows = zip(self.columns.tolist(), self.forms, self.scales.tolist(), strict=True)
        return [{"column": column, "form": form, "scale": scale} for column, form, scale in rows]

    def of(self, values: Floats, baseline: Floats) -> Floats:
        """Return the terms (n, terms) of features and baselines (n, k); single precision, NaN: not known."""
        if len(values) and int(self.columns.max()) >= values.shape[1]:
            raise ValueError(f"terms: column {int(self.columns.max())} of {values.shape[1]} features")
        raw, base = values[:, self.columns], baseline[:, self.columns]
        result = raw.copy()
        as_baseline, as_relative = ([i for i, f in enumerate(self.forms) if f == form] for form in FORMS[1:])
        result[:, as_baseline] = base[:, as_baseline]
        if as_relative:
            result[:, as_relative] = relative(raw[:, as_relative], base[:, as_relative], self.scales[as_relative])
        return _single(result)


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted ensemble. Node arrays are of shape (nodes,); both children of a leaf are the leaf itself."""

    link: str
    base: float
    factor: float
    terms: Terms
    roots: NDArray[np.int64]
    columns: NDArray[np.int64]
    thresholds: Floats
    children: NDArray[np.int64]
    leaves: Floats
    is_leaf: NDArray[np.bool_]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read an estimator block; ValueError says what is missing, wrong or cut off."""
        with reading("estimator of kind trees"):
            return cls._read(data)

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        link, base, factor = str(data["link"]), number(data, "base", TERM), number(data, "factor", TERM)
        if link not in LINKS:
            raise ValueError(f"link must be one of {', '.join(LINKS)} (value {link})")
        terms = Terms.from_json(data["terms"])
        columns = numbers_of(data["columns"], "columns", np.int64)
        numbers = numbers_of(data["numbers"], "numbers", np.float64)
        if len(columns) != len(numbers):
            raise ValueError(f"{len(columns)} columns for {len(numbers)} numbers")
        if len(columns) and not (columns.min() >= -1 and columns.max() < len(terms.forms)):
            raise ValueError(f"columns must be -1 to {len(terms.forms) - 1}")
        roots, right = _right_sides(columns)
        if len(roots) != int(data["trees"]) or not len(roots):
            raise ValueError(f"columns holds {len(roots)} whole trees, not {data['trees']}")
        is_leaf = columns < 0
        parts = (("leaves", numbers[is_leaf], TERM), ("thresholds", numbers[~is_leaf], FEATURE))
        for what, found, (low, high) in parts:
            worst = found[(found < low) | (found > high)]
            if len(worst):
                raise ValueError(f"numbers: {what} must be from {low:g} to {high:g} (value {worst[0]:g})")
        places = np.arange(len(columns))
        children = np.stack((np.where(is_leaf, places, places + 1), np.where(is_leaf, places, right)), axis=1)
        # The shortest text of a single, "0.1", is another number in double precision.
        thresholds, nodes = _single(numbers), np.where(is_leaf, 0, columns)
        leaves = np.where(is_leaf, numbers, 0.0)
        return cls(link, base, factor, terms, roots, nodes, thresholds, children.ravel(), leaves, is_leaf)

    def predict(self, values: Floats, baseline: Floats) -> Floats:
        """Estimate the degradation from features (n, k) in their own units and the same without interference.

        Returns shape (n,), relative to the baseline: 1 = as without interference. NaN if a term is not known, and
        where the sum is outside the link's domain.
        """
        terms = self.terms.of(values, baseline)
        known = ~np.isnan(terms).any(axis=1)
        result = np.full(len(terms), math.nan)
        if known.any():
            result[known] = degradation_of(self._sums(terms[known]), self.link)
        return result

    def _sums(self, terms: Floats) -> Floats:
        """Return base + factor * the sum of leaves, for all rows and trees together, level by level."""
        rows, trees = len(terms), len(self.roots)
        at = np.tile(self.roots, rows)
        offset = np.repeat(np.arange(rows) * terms.shape[1], trees)
        flat = terms.ravel()
        arrived = np.empty(rows * trees, dtype=np.int64)
        places = np.arange(rows * trees)
        while len(at):
            for _ in range(_LEVELS_AT_ONCE):
                goes_right = flat[offset + self.columns[at]] > self.thresholds[at]
                at = self.children[2 * at + goes_right]
            done = self.is_leaf[at]
            arrived[places[done]] = at[done]
            on = ~done
            at, offset, places = at[on], offset[on], places[on]
        sums = self.leaves[arrived].reshape(rows, trees).sum(axis=1)
        return np.asarray(self.base + self.factor * sums)


def degradation_of(sums: Floats, link: str) -> Floats:
    """Apply a link of `LINKS` to sums (n,); NaN outside its domain."""
    if link == "identity":
        return sums
    if link == "log":
        return np.exp(np.minimum(sums, _LARGEST_EXPONENT))
    inverse: Floats = np.divide(1.0, sums, out=np.full(len(sums), math.nan), where=sums > 0)
    return inverse if link == "inverse" else inverse * inverse


def _single(numbers: Floats) -> Floats:
    """Round to single precision."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(numbers, -largest, largest).astype(np.float32).astype(np.float64)


def numbers_of(text: Any, name: str, kind: type[np.generic]) -> NDArray[Any]:
    """Read numbers separated by spaces; ValueError for other text, or a number that is not finite."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text of numbers")  # noqa: TRY004 - the reader's one kind of error
    with reading(name):
        numbers = np.array(text.split(), dtype=kind)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite")
    return numbers


def _right_sides(columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the roots of the trees in preorder, and each split's right side; ValueError if one is cut off."""
    right = np.zeros(len(columns), dtype=np.int64)
    whole: list[int] = []  # where the trees begin that are read so far, from the end; the last is the leftmost
    for place, column in zip(range(len(columns) - 1, -1, -1), columns[::-1].tolist(), strict=True):
        if column >= 0:
            if len(whole) < 2:  # noqa: PLR2004 - two sides
                raise ValueError(f"columns is cut off: the split at node {place} has no two sides")
            whole.pop()
            right[place] = whole.pop()
        whole.append(place)
    return np.array(whole[::-1], dtype=np.int64), right
