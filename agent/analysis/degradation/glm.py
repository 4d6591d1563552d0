"""Gamma regression at run time: y = 1 / (K + sum x_i f_i), or exp of the sum, over features relative to the baseline.

Source: "Cloud White", section 6.3, equations (1) and (2). Fitted by `central.degradation.glm`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model_numbers import MAX_COLUMNS, SCALE, TERM, number, read_all, reading, whole
from agent.analysis.degradation.relative import relative

LINKS = ("inverse", "log")


@dataclass(frozen=True, slots=True, eq=False)
class Glm:
    """A fitted model. `columns` are the terms' places among the model's features, in the order of `coefficients`."""

    link: str
    constant: float
    columns: tuple[int, ...]
    coefficients: NDArray[np.float64]
    scales: NDArray[np.float64]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read {"kind": "glm", "link", "constant", "terms": [{"column", "coefficient", "scale"}]}.

        ValueError says which key is missing or wrong.
        """
        with reading("estimator of kind glm"):
            link, constant = str(data["link"]), number(data, "constant", TERM)
            terms = list(read_all("terms", data["terms"], _term))
            if link not in LINKS:
                raise ValueError(f"link must be one of {', '.join(LINKS)} (value {link})")
        columns, coefficients, scales = zip(*terms, strict=True) if terms else ((), (), ())
        return cls(link, constant, columns, np.array(coefficients, np.float64), np.array(scales, np.float64))

    def predict(self, values: NDArray[np.float64], baseline: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the degradation from features (n, k) in their own units and the same without interference.

        Returns shape (n,), relative to the baseline: 1 = as without interference. NaN if a term is not known, and
        where the inverse link's sum is 0 or less.
        """
        columns = list(self.columns)
        terms = relative(values[:, columns], baseline[:, columns], self.scales)
        linear: NDArray[np.float64] = self.constant + terms @ self.coefficients
        if self.link == "log":
            return np.exp(np.minimum(linear, 700.0))
        result = np.full(len(linear), math.nan)
        np.divide(1.0, linear, out=result, where=linear > 0)
        return result


def _term(data: Mapping[str, Any]) -> tuple[int, float, float]:
    column, coefficient = whole(data, "column", 0, MAX_COLUMNS), number(data, "coefficient", TERM)
    return column, coefficient, number(data, "scale", SCALE)
