"""Policies: calibration, steps, values."""

import math

import pytest
from helpers.bare_python import run_bare
from helpers.policy_samples import CHOICE, GENERATION, PLAIN, make_policy
from hypothesis import given, strategies as st

from rcjax.policy import Answer, Calibration, Defer, Rule

# Calibration


def xi(transform, p):
    if transform == "none":
        return math.log(p)
    if transform == "choice":
        return math.log(1 / (1 - p))
    return math.log(1 / (1 - p)) - math.log(2) if p >= 0.5 else math.log(p) + math.log(2)


@pytest.mark.parametrize("calibration", [GENERATION, CHOICE, PLAIN], ids=lambda c: c.transform)
@given(p=st.floats(1e-6, 1 - 1e-6))
def test_calibration_is_the_formula(calibration, p):
    log_odds = calibration.intercept + calibration.slope * xi(calibration.transform, p)
    assert calibration(math.log(p)) == pytest.approx(1 / (1 + math.exp(-log_odds)), rel=1e-8)


def logistic(x):
    return 1 / (1 + math.exp(-x))


def test_infinities_take_the_training_extremes():
    assert GENERATION(0.0) == pytest.approx(logistic(0.25 + 0.75 * 5.5), rel=1e-15)
    assert GENERATION(-math.inf) == pytest.approx(logistic(0.25 - 0.75 * 6.0), rel=1e-15)
    assert CHOICE(0.0) == pytest.approx(logistic(-1 + 0.5 * 10.0), rel=1e-15)
    assert CHOICE(-math.inf) == pytest.approx(logistic(-1.0), rel=1e-15)  # log 1/(1−0) = 0 is finite
    assert PLAIN(0.0) == pytest.approx(logistic(2.0), rel=1e-15)
    assert PLAIN(-math.inf) == pytest.approx(logistic(-10.0), rel=1e-15)


def test_logprobs_next_to_zero_keep_their_precision():
    identity = Calibration("choice", 0.0, 0.01, 0.0, 1.0)
    assert identity(-1e-300) == pytest.approx(logistic(0.01 * 300 * math.log(10)), rel=1e-12)


@pytest.mark.parametrize("intercept", [-1e100, 1e100])
@pytest.mark.parametrize("slope", [-1e100, 0.0, 1e100])
def test_the_largest_coefficients_do_not_overflow(intercept, slope):
    for logprob in (0.0, -1e-320, -0.1, -1e308, -math.inf):
        for transform in ("choice", "generation", "none"):
            assert 0 <= Calibration(transform, intercept, slope, -1e100, 1e100)(logprob) <= 1


@pytest.mark.parametrize("logprob", [-3.0, -0.2, 0.0, -math.inf])
def test_a_confidence_at_the_threshold_defers_and_the_next_above_answers(logprob):
    phi = CHOICE(logprob)

    def step(threshold):
        rules = {**make_policy().rules, "médium": (Rule(threshold, "ask", "large"), Rule(1, "answer"))}
        return make_policy(rules=rules).step("médium", logprob=logprob)

    assert step(phi) == Defer("large", phi)
    assert step(math.nextafter(phi, 1)) == Defer("large", phi)
    assert step(math.nextafter(phi, 0)) == Answer("médium", phi)


def test_thresholds_are_those_of_models_that_answer_above_them():
    assert make_policy().thresholds == {"small": None, "médium": 0.6, "large": None}
    never = {**make_policy().rules, "small": [Rule(1.0, "ask", "large")]}
    assert make_policy(rules=never).thresholds["small"] == 1.0
    upside_down = {**make_policy().rules, "small": [Rule(0.5, "answer"), Rule(1.0, "ask", "large")]}
    assert make_policy(rules=upside_down).thresholds["small"] is None


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("huge", {"logprob": -1.0}, "unknown model 'huge'; this policy has small, médium, large"),
        ("small", {}, "exactly one"),
        ("small", {"logprob": -1.0, "confidence": 0.5}, "exactly one"),
        ("small", {"logprob": 0.1}, "at most 0"),
        ("small", {"logprob": math.nan}, "at most 0"),
        ("small", {"confidence": 1.1}, r"in \[0, 1\], not 1.1"),
        ("small", {"confidence": math.nan}, r"in \[0, 1\], not nan"),
    ],
)
def test_bad_arguments_of_step_are_refused(model, arguments, message):
    for method in (make_policy().step, make_policy().calibrate):
        with pytest.raises(ValueError, match=message):
            method(model, **arguments)


def test_policies_do_not_share_what_they_were_built_from():
    cost, provenance = dict(make_policy().cost), {"notes": [1]}
    policy = make_policy(cost=cost, provenance=provenance)
    cost["small"] = 9.0
    provenance["notes"].append(2)
    policy.to_json()["provenance"]["notes"].append(3)
    assert policy == make_policy(provenance={"notes": [1]})


def test_a_service_needs_only_the_standard_library(tmp_path):
    """Without site-packages: load, step, save."""
    make_policy().save(tmp_path / "policy.json")
    found = run_bare(
        """
import importlib.util
assert not any(importlib.util.find_spec(name) for name in ("numpy", "jax", "polars", "openai"))
from rcjax.policy import Policy, load_policy
policy = load_policy(sys.argv[1])
policy.save(sys.argv[2])
print(policy.step("small", logprob=-0.05))
""",
        tmp_path / "policy.json",
        tmp_path / "again.json",
    )
    assert found == repr(make_policy().step("small", logprob=-0.05))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "policy.json").read_bytes()
