"""The summary of a fitted regression in the layout of the paper's Table 2."""

from collections.abc import Mapping
from typing import Any

_WIDTH = 78
_LINKS = {"inverse": "inverse_power", "log": "log"}


def summary_table(estimator: Mapping[str, Any], title: str) -> str:
    """Return the table of an estimator block of kind "glm", as lines of text."""
    s = estimator["summary"]
    head = (
        ("Dep. Variable:", "perf. deg.", "No. Observations:", s["observations"]),
        ("Model:", "GLM", "Df Residuals:", s["df_residuals"]),
        ("Model family:", "Gamma", "Df Model:", s["df_model"]),
        ("Link function:", _LINKS[estimator["link"]], "Scale:", f"{s['scale']:.5g}"),
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
        if part["estimator"]["kind"] != "glm" or "summary" not in part["estimator"]:
            continue
        which = "any VM" if part["cpu_level"] is None else f"{part['behaviour']}, {part['cpu_level']:.0%} CPU"
        tables.append(summary_table(part["estimator"], f"{model['choice']['method']}: {which}"))
    return "\n\n".join(tables)
