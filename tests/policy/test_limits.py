"""Limits on the seconds of queries, as people write them."""

import math

import pytest

from rcjax.policy.spec import SecondsLimit


@pytest.mark.parametrize(
    ("text", "seconds", "tail"),
    [("2", 2.0, False), (2, 2.0, False), (0.25, 0.25, False), ("p95=4", 4.0, True), (" P95= 1.5 ", 1.5, True)],
)
def test_a_limit_is_of_the_mean_or_of_the_tail(text, seconds, tail):
    limit = SecondsLimit.of(text)
    assert (limit.seconds, limit.tail) == (seconds, tail)
    assert SecondsLimit.of(limit.text) == limit
    assert SecondsLimit.of(limit) is limit


@pytest.mark.parametrize(
    "text", ["", "soon", "p95", "p95=", "p95=soon", "p90=4", "95%=4", "0", "-1", "p95=0", "inf", "nan", "4=p95"]
)
def test_what_is_none_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="max_seconds") as caught:
        SecondsLimit.of(text)
    assert "\n" not in str(caught.value)


def test_no_number_above_0_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        SecondsLimit(math.nan)
