"""Targets: one of four, with a value that makes sense, told in words and in JSON."""

import math

import pytest

from rcjax.policy.spec import Target


@pytest.mark.parametrize(
    ("target", "words", "error_cost"),
    [
        (Target("budget", 150e-6), "at most $150 per million queries", None),
        (Target("budget", 1.5), "at most $1,500 per thousand queries", None),
        (Target("max_error", 0.05), "at most 5 % error", None),
        (Target("error_cost", 0.02), "one error costs $0.02", 0.02),
        (Target("lam", 50), "one error costs $0.02", 0.02),
    ],
)
def test_a_target_in_words(target, words, error_cost):
    assert str(target) == words
    assert target.error_cost == error_cost
    assert target.is_limit == (error_cost is None)
    assert Target.of(**target.to_json()) == target


@pytest.mark.parametrize(
    ("name", "value"),
    [("budget", -1.0), ("lam", math.inf), ("max_error", math.nan), ("error_cost", 0.0), ("price", 1.0)],
)
def test_what_is_no_target_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Target(name, value)


def test_one_target_at_a_time():
    with pytest.raises(ValueError, match="give exactly one of budget, max_error, error_cost, lam; 0 were given"):
        Target.of()


def test_the_cost_of_an_error_at_no_price():
    assert Target("lam", 0.0).error_cost is None
