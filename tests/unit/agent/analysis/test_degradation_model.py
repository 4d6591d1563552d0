"""The model file as the agent evaluates it: the paper's published model, the choice among models, "cannot tell"."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.degradation.model import group_key, parse
from agent.analysis.degradation.relative import relative

# "Cloud White", Table 2: specjbb at 20 % CPU.
PUBLISHED = {
    "guest_ratio": -0.0207,
    "memory_bandwidth_bytes_per_s": -0.0233,
    "core_stall_ratio": -0.1674,
    "total_stall_ratio": 0.0876,
}
K = 1.0602


def estimator(terms=PUBLISHED, constant=K, link="inverse"):
    places = {name: column for column, name in enumerate(PUBLISHED)}
    return {
        "kind": "glm",
        "link": link,
        "constant": constant,
        "terms": [{"column": places[n], "name": n, "coefficient": c, "scale": 1.0} for n, c in terms.items()],
    }


def part(behaviour=None, cpu_level=None, **more):
    return {
        "behaviour": behaviour,
        "cpu_level": cpu_level,
        "rows": 425,
        "estimator": estimator(),
        "intervals": None,
        "ranges": [],
        **more,
    }


def file(*parts, rule=None, **more):
    return {
        "format": 1,
        "target": "p95_latency_s",
        "nominal": 0.9,
        "features": list(PUBLISHED),
        "rule": rule,
        "min_baseline_rows": 5,
        "baselines": {"where": "phase = 'quiet'", "group_by": ["vm"], "groups": []},
        "choice": {"method": "gamma-inverse"},
        "models": list(parts) or [part()],
        "provenance": {},
        **more,
    }


def test_the_published_model_predicts_what_its_formula_says():
    model = parse(file())
    baseline = np.array([[0.2, 3e9, 0.3, 0.5]])
    alike = model.predict(baseline, baseline)
    assert alike.degradation[0] == pytest.approx(1 / (K - 0.0207 - 0.0233 - 0.1674 + 0.0876), rel=1e-12)
    assert alike.degradation[0] == pytest.approx(1.068, abs=5e-4)
    assert alike.reasons == ("",)
    assert math.isnan(alike.low[0]) and math.isnan(alike.high[0])  # it was published without intervals

    relative_to_it = np.array([[1.1, 2.0, 1.5, 1.4]])
    hurt = model.predict(baseline * relative_to_it, baseline)
    expected = 1 / (K - 0.0207 * 1.1 - 0.0233 * 2.0 - 0.1674 * 1.5 + 0.0876 * 1.4)
    assert hurt.degradation[0] == pytest.approx(expected, rel=1e-12)
    assert hurt.degradation[0] > alike.degradation[0]


def test_a_log_link_is_the_exponential_of_the_sum():
    model = parse(file(part(estimator=estimator(link="log", terms={"core_stall_ratio": 0.3}, constant=-0.1))))
    baseline = np.full((1, 4), 2.0)
    assert model.predict(2 * baseline, baseline).degradation[0] == pytest.approx(math.exp(-0.1 + 0.3 * 2))


def test_what_is_not_known_or_too_young_is_unknown():
    model = parse(file())
    values, baseline = np.ones((5, 4)), np.ones((5, 4))
    values[1, 2] = math.nan
    baseline[2] = math.nan
    values[4, 0] = math.nan
    baseline[4] = math.nan
    reported = model.predict(values, baseline, np.array([9, 9, 0, 4, 0]))
    assert reported.reasons == ("", "missing:core_stall_ratio", "no_baseline", "baseline_young", "missing:guest_ratio")
    assert np.isfinite(reported.degradation).tolist() == [True, False, False, False, False]


def test_a_feature_that_no_term_uses_need_not_be_known():
    only_bandwidth = estimator(terms={"memory_bandwidth_bytes_per_s": -0.2})
    model = parse(file(part(estimator=only_bandwidth, uses=[1])))
    values = np.array([[math.nan, 2.0, math.nan, math.nan]])
    assert model.predict(values, values).reasons == ("",)


def test_out_of_the_training_range_is_unknown_and_the_farthest_feature_is_named():
    ranges = [
        {"column": 1, "form": "relative", "low": 0.5, "high": 2.0, "scale": 1.0},
        {"column": 3, "form": "raw", "low": 0.1, "high": 0.9, "scale": 1.0},
    ]
    model = parse(file(part(ranges=ranges)))
    baseline = np.array([[0.2, 100.0, 0.3, 0.5]] * 4)
    values = baseline.copy()
    values[1, 1] = 201.0
    values[2, 3] = 0.95
    values[3, 1], values[3, 3] = 60.0, 9.0
    reported = model.predict(values, baseline)
    bandwidth, stalls = "out_of_range:memory_bandwidth_bytes_per_s", "out_of_range:total_stall_ratio"
    assert reported.reasons == ("", bandwidth, stalls, stalls)
    assert np.isnan(reported.degradation).tolist() == [False, True, True, True]


def test_where_the_inverse_link_has_no_answer_there_is_none():
    model = parse(file())
    values = np.array([[1.0, 1.0, 40.0, 1.0]])  # K + sum x f < 0: no latency is negative
    reported = model.predict(values, np.ones((1, 4)))
    assert math.isnan(reported.degradation[0])
    assert reported.reasons == ("unlike_training",)


RULE = {
    "memory_stalls": "memory_stall_ratio",
    "total_stalls": "total_stall_ratio",
    "memory_bound_from": 0.5,
    "cpu": "guest_ratio",
}


def test_the_model_is_chosen_by_the_baselines_stalls_and_load():
    parts = (part(), part("memory-bound", 0.2), part("memory-bound", 0.5), part("cpu-bound", 0.2))
    model = parse(file(*parts, rule=RULE))
    assert model.inputs == (*PUBLISHED, "memory_stall_ratio")
    #                       guest, bandwidth, core, total, memory
    baseline = np.array([
        [0.18, 1.0, 0.1, 0.4, 0.3],
        [0.49, 1.0, 0.1, 0.4, 0.3],
        [0.18, 1.0, 0.3, 0.4, 0.1],
        [0.45, 1.0, 0.3, 0.4, 0.1],  # CPU-bound at 45 %: the only level is too far
        [0.20, 1.0, 0.3, 0.4, math.nan],
        [0.20, 1.0, 0.2, 0.4, 0.2],  # half of the stalls: memory-bound
    ])  # fmt: skip
    assert model.choose(baseline).tolist() == [1, 2, 3, 0, 0, 1]
    names = model.predict(baseline, baseline).models
    assert names[0] == "gamma-inverse memory-bound 20%"
    assert names[3] == "gamma-inverse"


def test_where_it_is_reported_the_level_is_of_the_workers_use():
    parts = (part(), part("memory-bound", 0.2), part("memory-bound", 0.5))
    features = ["guest_ratio", "vcpu_idle_ratio", "total_stall_ratio", "core_stall_ratio"]
    model = parse(file(*parts, rule=RULE, features=features))
    assert model.inputs == (*features, "memory_stall_ratio")
    #                       guest, idle, total, core, memory
    baseline = np.array([
        [0.25, 0.75, 0.4, 0.1, 0.3],  # nobody said, or one worker per vCPU
        [0.25, 0.50, 0.4, 0.1, 0.3],  # one worker on two vCPUs
        [0.40, 0.20, 0.4, 0.1, 0.3],  # likewise: the 80 % are near no level
        [0.25, math.nan, 0.4, 0.1, 0.3],
    ])  # fmt: skip
    assert model.choose(baseline).tolist() == [1, 2, 0, 0]
    without = parse(file(*parts, rule=RULE))  # whatever IDLE says: no input of this one
    assert without.choose(np.array([[0.25, 1.0, 0.1, 0.4, 0.3]])).tolist() == [1]


def test_groups_are_found_by_what_their_columns_say():
    group = {"key": ["150000", "a"], "rows": 7, "target": 0.25, "values": [1.0, None, 3.0, 4.0]}
    baselines = {"where": "x", "group_by": ["load", "vm"], "groups": [group]}
    model = parse(file(baselines=baselines))
    for key in ((150000, "a"), (150000.0, "a"), ("150000", "a")):
        found = model.groups.get(group_key(key))
        assert found is not None
        assert (found.rows, found.target, found.values[2]) == (7, 0.25, 3.0)
        assert math.isnan(found.values[1])
    assert group_key((150001, "a")) not in model.groups


@given(st.integers(-(10**15), 10**15))
def test_a_whole_number_has_one_key_however_it_is_written(number):
    assert group_key([number]) == group_key([str(number)]) == group_key([float(number)])


def test_a_baseline_of_about_0_has_a_form_of_its_own():
    scales = np.array([10.0])
    baseline = np.array([[5.0], [0.0], [0.4], [-5.0]])
    values = np.array([[10.0], [10.0], [0.4], [-10.0]])
    assert relative(values, baseline, scales)[:, 0].tolist() == [2.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "model: format 2 is not known (known: 1)"),
        (lambda d: d.pop("features"), "model: 'features' is missing"),
        (lambda d: d.update(features=[]), "columns 0 to -1"),
        (lambda d: d["models"].clear(), "model: models needs exactly one for any behaviour and CPU level"),
        (lambda d: d["models"].append(part("memory-bound")), "behaviour and cpu_level are given both or neither"),
        (lambda d: d["models"].append(part("idle", 0.1)), "behaviour must be memory-bound or cpu-bound (value idle)"),
        (lambda d: d["models"][0].update(uses=[4]), "uses and ranges must name columns 0 to 3"),
        (lambda d: d["models"][0]["estimator"].update(link="probit"), "must be one of inverse, log (value probit)"),
        (lambda d: d["models"][0]["estimator"].update(kind="oracle"), "estimator of unknown kind oracle"),
        (lambda d: d["models"][0]["estimator"].pop("constant"), "models[0]: estimator of kind glm: 'constant' is"),
        (lambda d: d["models"][0]["estimator"].update(constant=math.inf), "1e+06 (value inf)"),
        (lambda d: d["models"][0]["estimator"]["terms"][0].update(column=7), "terms must name columns 0 to 3"),
        (lambda d: d["models"][0]["estimator"]["terms"][0].update(scale=0), "terms[0]: scale must be a"),
        (lambda d: d.update(baselines=3), "model: a value is of the wrong kind"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_reported_in_one_line(change, message):
    data = copy.deepcopy(file())
    change(data)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        parse(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; write it again with `whitepanda degradation fit`")


def rich_file():
    """One of each kind of number that a file has."""
    terms = [{"column": 0, "form": "raw", "scale": 1.0}]
    trees = {"kind": "trees", "link": "identity", "base": 0.0, "factor": 1.0, "terms": terms, "trees": 1,
             "columns": "0 -1 -1", "numbers": "1.5 0.1 0.2"}  # fmt: skip
    novelty = {"terms": terms, "middles": [1.0], "widths": [0.1], "spreads": [1.0], "neighbours": 1,
               "prototypes": "0.0 1.0", "reference": 0.3, "slope": 1.0, "limit": 4.0}  # fmt: skip
    intervals = {"kind": "conformal", "nominal": 0.9, "quantile": 2.0, "floor": 0.01, "difficulty": trees,
                 "novelty": novelty}  # fmt: skip
    ranges = [{"column": 0, "form": "raw", "low": 0.1, "high": 0.9, "scale": 1.0}]
    rule = {"memory_stalls": "core_stall_ratio", "total_stalls": "total_stall_ratio", "memory_bound_from": 0.5,
            "cpu": "guest_ratio"}  # fmt: skip
    groups = [{"key": ["a"], "rows": 60, "target": 0.012, "values": [1.0, None, 2.0, 3.0]}]
    return file(
        part(intervals=intervals, ranges=ranges, uses=[0]),
        part("memory-bound", 0.2, estimator=trees),
        rule=rule,
        baselines={"where": "phase = 'quiet'", "group_by": ["vm"], "groups": groups},
    )


NOT_EVEN_A_NUMBER = (math.nan, math.inf, 1e308, -1e308, 10**400, "1", True, [])
ANY, POSITIVE, SHARE = NOT_EVEN_A_NUMBER, (*NOT_EVEN_A_NUMBER, 0, -1.0), (*NOT_EVEN_A_NUMBER, -0.1, 9)
WHOLE = (*NOT_EVEN_A_NUMBER, -1, 0.5)
ESTIMATOR, INTERVALS, NOVELTY = (
    ("models", 0, "estimator"),
    ("models", 0, "intervals"),
    ("models", 0, "intervals", "novelty"),
)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("nominal",), (*POSITIVE, 1, 9)),
        (("min_baseline_rows",), WHOLE),
        (("rule", "memory_bound_from"), SHARE),
        (("baselines", "groups", 0, "rows"), WHOLE),
        (("baselines", "groups", 0, "target"), POSITIVE),
        (("baselines", "groups", 0, "values", 0), ANY),
        (("models", 1, "cpu_level"), SHARE),
        (("models", 0, "uses", 0), (*WHOLE, 4)),
        (("models", 0, "ranges", 0, "column"), (*WHOLE, 4)),
        (("models", 0, "ranges", 0, "low"), (*ANY, None)),
        (("models", 0, "ranges", 0, "high"), (*ANY, None, 0.05)),  # below `low`: no value is within
        (("models", 0, "ranges", 0, "scale"), POSITIVE),
        ((*ESTIMATOR, "constant"), (*ANY, None)),
        ((*ESTIMATOR, "terms", 0, "coefficient"), (*ANY, None)),
        ((*ESTIMATOR, "terms", 0, "scale"), POSITIVE),
        ((*ESTIMATOR, "terms", 0, "column"), (*WHOLE, 4)),
        (("models", 1, "estimator", "base"), ANY),
        (("models", 1, "estimator", "factor"), ANY),
        (("models", 1, "estimator", "numbers"), ("1.5 1e9 0.2", "1.5 nan 0.2", "1e30 0.1 0.2")),
        (("models", 1, "estimator", "terms", 0, "scale"), POSITIVE),
        ((*INTERVALS, "nominal"), (*POSITIVE, 1, 9)),
        ((*INTERVALS, "quantile"), POSITIVE),
        ((*INTERVALS, "floor"), POSITIVE),
        ((*NOVELTY, "middles", 0), ANY),
        ((*NOVELTY, "widths", 0), POSITIVE),
        ((*NOVELTY, "spreads", 0), POSITIVE),
        ((*NOVELTY, "neighbours"), (*WHOLE, 0, 3)),
        ((*NOVELTY, "prototypes"), ("0.0 1e9", "0.0 nan")),
        ((*NOVELTY, "reference"), POSITIVE),
        ((*NOVELTY, "slope"), (*ANY, -1.0)),
        ((*NOVELTY, "limit"), POSITIVE),
    ],
)
def test_a_number_that_no_fit_can_have_given_is_refused_by_its_name(path, wrong):
    parse(rich_file())
    name = next(key for key in reversed(path) if isinstance(key, str))
    for value in wrong:
        data = copy.deepcopy(rich_file())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
            parse(data)
        text = str(caught.value)
        assert text.startswith("model: ")
        assert "\n" not in text
        assert len(text) < 300
        assert name in text, text
        assert text.endswith("; write it again with `whitepanda degradation fit`")
