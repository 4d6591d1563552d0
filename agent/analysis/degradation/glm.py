"""Gamma regression at run time: y = 1 / (K + sum x_i f_i), or exp of the sum, over features relative to the baseline.

Source: "Cloud White", section 6.3, equations (1) and (2). Fitted by `central.degradation.glm`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model_numbers import MOST_COLUMNS, SCALE, TERM, number, whole
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
        """Read an estimator block: {"kind": "glm", "link", "constant", "terms": [{"column", "coefficient", "scale"}]}.

        Raises:
            ValueError: a key is missing or its value is wrong; says which.

        """
        try:
            link, constant = str(data["link"]), number(data, "constant", TERM)
            terms = [cls._term(at, term) for at, term in enumerate(data["terms"])]
        except KeyError as error:
            raise ValueError(f"estimator of kind glm: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"estimator of kind glm: {error}") from error
        if link not in LINKS:
            raise ValueError(f"estimator of kind glm: link must be one of {', '.join(LINKS)} (value {link})")
        return cls(
            link=link,
            constant=constant,
            columns=tuple(column for column, _, _ in terms),
            coefficients=np.array([c for _, c, _ in terms], dtype=np.float64),
            scales=np.array([s for _, _, s in terms], dtype=np.float64),
        )

    @staticmethod
    def _term(at: int, term: Mapping[str, Any]) -> tuple[int, float, float]:
        try:
            return (
                whole(term, "column", 0, MOST_COLUMNS),
                number(term, "coefficient", TERM),
                number(term, "scale", SCALE),
            )
        except ValueError as error:
            raise ValueError(f"terms[{at}]: {error}") from error

    def predict(self, values: NDArray[np.float64], baseline: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the degradation.

        Args:
            values: shape (n, k), the model's features in their own units.
            baseline: the same of each row's VM without interference.

        Returns:
            Shape (n,): the target relative to the baseline, 1 = as without interference. NaN where a term is not
            known, and where the inverse link leaves its domain (a sum of 0 or less: no latency has that).

        """
        columns = list(self.columns)
        terms = relative(values[:, columns], baseline[:, columns], self.scales)
        linear: NDArray[np.float64] = self.constant + terms @ self.coefficients
        if self.link == "log":
            return np.exp(np.minimum(linear, 700.0))
        result = np.full(len(linear), math.nan)
        np.divide(1.0, linear, out=result, where=linear > 0)
        return result
