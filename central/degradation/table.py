"""The summary of a fitted regression in the layout of the paper's Table 2."""

from collections.abc import Mapping
from typing import Any

_WIDTH = 78
_LINKS = {"inverse": "inverse_power", "log": "log"}


def summary_table(estimator: Mapping[str, Any], title: str) -> str:
    """Return the table of an estimator block of kind "glm", as lines of text."""
    s = estimator["summary"]
    left = (
        ("Dep. Variable:", "perf. deg."),
        ("Model:", "GLM"),
        ("Model family:", "Gamma"),
        ("Link function:", _LINKS[estimator["link"]]),
        ("Method:", "IRLS"),
        ("No. Iterations:", f"{s['iterations']}"),
        ("Covariance type:", "nonrobust"),
    )
    right = (
        ("No. Observations:", f"{s['observations']}"),
        ("Df Residuals:", f"{s['df_residuals']}"),
        ("Df Model:", f"{s['df_model']}"),
        ("Scale:", f"{s['scale']:.5g}"),
        ("Log-Likelihood:", f"{s['log_likelihood']:.2f}"),
        ("Deviance:", f"{s['deviance']:.4f}"),
        ("Pearson chi2:", f"{s['pearson_chi2']:.2f}"),
    )
    lines = [title, "Generalized linear model regression results".center(_WIDTH).rstrip(), "=" * _WIDTH]
    for (name, value), (other, number) in zip(left, right, strict=True):
        lines.append(f"{name:<18}{value:>19}    {other:<18}{number:>19}")
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
