"""Gamma regression, fitted as the paper does: candidates by correlation, IRLS, backward elimination by significance.

Source: "Cloud White", section 6.3. statsmodels fits; `agent.analysis.degradation.glm` evaluates what is written here.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent.analysis.degradation.glm import LINKS
from agent.analysis.degradation.relative import relative
from central.models.groups import Floats
from whitepanda.common.errors import UnavailableError
from whitepanda.common.extras import how_to_install

#: Candidates are the features whose correlation with the degradation is at least this, either way (section 6.3).
MIN_CORRELATION = 0.4
#: A term less significant than this is eliminated (section 6.3).
MAX_P = 0.05
#: Stalls in the core, on memory, and in total are collinear where one is derived from the others: so many at most.
MAX_STALL_FEATURES = 2
_STALLS = frozenset({"memory_stall_ratio", "core_stall_ratio", "total_stall_ratio"})
#: A feature adds only noise if less than this share of it is new against the candidates before it.
_MIN_NEW_SHARE = 1e-6
_WIDTH = 78  # of the summary
_LINK_NAMES = {"inverse": "inverse_power", "log": "log"}


class FitError(Exception):
    """This estimator cannot be fitted to these rows; the message says why. Another one may."""


def scales_of(values: Floats) -> Floats:
    """Return a typical magnitude of each feature (n, k): the median of what is not 0; 1 where all is 0 or unknown."""
    scales = np.ones(values.shape[1])
    for column in range(values.shape[1]):
        magnitudes = np.abs(values[:, column])
        magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
        if len(magnitudes):
            scales[column] = float(np.median(magnitudes))
    return scales


def regress(terms: Floats, degradation: Floats, names: Sequence[str], link: str) -> dict[str, Any]:
    """Fit a constant and terms (n, k), relative to the baseline, by iteratively reweighted least squares.

    `link` is "inverse" or "log". Returns what the paper's Table 2 reports, for the model file: `terms[0]` is the
    constant, each has its coefficient, standard error, Wald statistic, significance and 95 % interval. Raises FitError
    for too few rows, or if the iteration diverges or leaves the link's domain, UnavailableError if statsmodels is not
    installed.
    """
    try:
        import statsmodels.api as sm  # noqa: PLC0415 - takes a second, and is in the extra `train` only
    except ImportError as error:
        raise UnavailableError(f"fitting needs '{error.name}'; {how_to_install('train')}") from error
    if link not in LINKS:
        raise ValueError(f"link must be one of {', '.join(LINKS)} (value {link})")
    rows, count = terms.shape
    if rows <= count + 1:
        raise FitError(f"{rows} rows are too few for {count} terms and a constant")
    links = {"inverse": sm.families.links.InversePower, "log": sm.families.links.Log}
    design = np.column_stack((np.ones(rows), terms))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # statsmodels warns of every inverse link; what matters is checked below
        try:
            result = sm.GLM(degradation, design, family=sm.families.Gamma(links[link]())).fit(method="IRLS", tol=1e-10)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
            raise FitError(f"IRLS failed: {error}") from error
        interval = result.conf_int(0.05)
        columns = (result.params, result.bse, result.tvalues, result.pvalues, *interval.T)
        log_likelihood = float(result.llf)
    numbers = np.array(columns, dtype=np.float64)
    if not result.converged or not np.isfinite(numbers).all() or not (np.asarray(result.fittedvalues) > 0).all():
        raise FitError("IRLS does not converge within the link's domain")
    keys = ("coef", "std_err", "z", "p", "low", "high")
    return {
        "observations": rows,
        "df_residuals": int(result.df_resid),
        "df_model": int(result.df_model),
        "scale": float(result.scale),
        "log_likelihood": log_likelihood,
        "deviance": float(result.deviance),
        "pearson_chi2": float(result.pearson_chi2),
        "iterations": int(result.fit_history["iteration"]),
        "terms": [
            {"name": name, **dict(zip(keys, each, strict=True))}
            for name, each in zip(("const", *names), numbers.T.tolist(), strict=True)
        ],
    }


def candidates(terms: Floats, degradation: Floats, names: Sequence[str]) -> list[int]:
    """Choose the features that a model starts with: strongest correlation first, none redundant.

    Features with |correlation| > `MIN_CORRELATION`, else the strongest one, with at most `MAX_STALL_FEATURES` stalls.
    A linear combination of earlier features is left out: coefficients would have no meaning. Raises FitError if no
    feature varies, or the degradation does not.
    """
    centred = terms - terms.mean(axis=0)
    spread = np.sqrt((centred**2).mean(axis=0))
    response = degradation - degradation.mean()
    response_spread = float(np.sqrt((response**2).mean()))
    varying = np.flatnonzero(spread > 1e-9 * np.maximum(np.abs(terms).mean(axis=0), 1e-300))
    if not len(varying) or response_spread <= 0:
        raise FitError("nothing to regress: no feature varies, or the degradation does not")
    correlation = np.zeros(terms.shape[1])
    covariance = (centred * response[:, None]).mean(axis=0)
    correlation[varying] = covariance[varying] / (spread[varying] * response_spread)
    order = sorted(varying.tolist(), key=lambda c: -abs(correlation[c]))
    strong = [c for c in order if abs(correlation[c]) > MIN_CORRELATION] or order[:1]
    chosen: list[int] = []
    basis = np.empty((len(terms), 0))
    for column in strong:
        if names[column] in _STALLS and sum(names[c] in _STALLS for c in chosen) == MAX_STALL_FEATURES:
            continue
        unit = centred[:, column] / np.linalg.norm(centred[:, column])
        rest = unit - basis @ (basis.T @ unit)
        rest -= basis @ (basis.T @ rest)
        if float(rest @ rest) < _MIN_NEW_SHARE:
            continue
        basis = np.column_stack((basis, rest / np.linalg.norm(rest)))
        chosen.append(column)
    return chosen


def fit(values: Floats, baseline: Floats, degradation: Floats, names: Sequence[str], link: str) -> dict[str, Any]:
    """Fit a model of the paper's kind; return its estimator block, see `agent.analysis.degradation.glm`.

    `values` and `baseline` have shape (n, k), in their own units, all known; `degradation` (n,) is above 0; `link` is
    "inverse" or "log". Raises FitError as `regress` and `candidates`.
    """
    scales = scales_of(values)
    terms = relative(values, baseline, scales)
    columns = candidates(terms, degradation, names)
    eliminated: list[str] = []
    while True:
        try:
            regression = regress(terms[:, columns], degradation, [names[c] for c in columns], link)
        except FitError:
            # Too many terms can drive an inverse link out of its domain: drop the weakest candidate.
            if len(columns) <= 1:
                raise
            eliminated.append(names[columns.pop()])
            continue
        weakest = max(range(1, len(columns) + 1), key=lambda i: regression["terms"][i]["p"], default=None)
        if weakest is None or regression["terms"][weakest]["p"] <= MAX_P:
            break
        eliminated.append(names[columns.pop(weakest - 1)])
    constant, *coefficients = (term["coef"] for term in regression["terms"])
    return {
        "kind": "glm",
        "link": link,
        "constant": constant,
        "terms": [
            {"column": c, "name": names[c], "coefficient": coefficient, "scale": float(scales[c])}
            for c, coefficient in zip(columns, coefficients, strict=True)
        ],
        "summary": regression | {"eliminated": eliminated},
    }


def summary_table(estimator: Mapping[str, Any], title: str) -> str:
    """Return an estimator block of kind "glm" in the layout of the paper's Table 2."""
    s = estimator["summary"]
    head = (
        ("Dep. Variable:", "perf. deg.", "No. Observations:", s["observations"]),
        ("Model:", "GLM", "Df Residuals:", s["df_residuals"]),
        ("Model family:", "Gamma", "Df Model:", s["df_model"]),
        ("Link function:", _LINK_NAMES[estimator["link"]], "Scale:", f"{s['scale']:.5g}"),
        ("Method:", "IRLS", "Log-Likelihood:", f"{s['log_likelihood']:.2f}"),
        ("No. Iterations:", s["iterations"], "Deviance:", f"{s['deviance']:.4f}"),
        ("Covariance type:", "nonrobust", "Pearson chi2:", f"{s['pearson_chi2']:.2f}"),
    )
    lines = [title, "Generalized linear model regression results".center(_WIDTH).rstrip(), "=" * _WIDTH]
    lines += [f"{name:<18}{value:>19}    {other:<18}{number:>19}" for name, value, other, number in head]
    lines += ["=" * _WIDTH, f"{'':<28}{'coef':>9}{'std err':>9}{'z':>9}{'P>|z|':>7}{'[0.025':>8}{'0.975]':>8}"]
    lines.append("-" * _WIDTH)
    lines += [
        f"{t['name'][:28]:<28}{t['coef']:>9.4f}{t['std_err']:>9.3f}{t['z']:>9.3f}{t['p']:>7.3f}{t['low']:>8.3f}{t['high']:>8.3f}"
        for t in s["terms"]
    ]
    lines.append("=" * _WIDTH)
    if s["eliminated"]:
        lines.append("eliminated: " + ", ".join(s["eliminated"]))
    return "\n".join(lines)


def summary_tables(model: Mapping[str, Any]) -> str:
    """Return the tables of all regressions of a model file, one below the other; "" where it has none."""
    tables = []
    for part in model["models"]:
        which = "any VM" if part["cpu_level"] is None else f"{part['behaviour']}, {part['cpu_level']:.0%} CPU"
        if "summary" in part["estimator"]:
            tables.append(summary_table(part["estimator"], f"{model['choice']['method']}: {which}"))
    return "\n\n".join(tables)
