"""Limits on the seconds of queries, as people write them."""

import math

import pytest
from misses import in_turn

from rcjax.policy.limits import SecondsLimit


@in_turn(
    ("text", "seconds", "share"),
    [
        ("2", 2.0, None),
        (2, 2.0, None),
        (0.25, 0.25, None),
        ("p95=4", 4.0, 0.95),
        (" P50 = 1.5s ", 1.5, 0.5),
        ("p99=9", 9.0, 0.99),
    ],
)
def test_a_limit_is_a_number_or_a_share_with_one(text, seconds, share):
    limit = SecondsLimit.of(text)
    assert (limit.seconds, limit.share) == (seconds, share)
    assert SecondsLimit.of(limit.text) == limit
    assert SecondsLimit.of(limit) is limit


@in_turn("text", ["", "soon", "p95", "p95=", "p95=soon", "p90=4", "95%=4", "0", "-1", "p95=0", "inf", "nan", "4=p95"])
def test_what_is_none_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="max_seconds") as caught:
        SecondsLimit.of(text)
    assert "\n" not in str(caught.value)


def test_another_share_is_refused():
    with pytest.raises(ValueError, match="give p50, p95 or p99"):
        SecondsLimit(4.0, 0.9)
    with pytest.raises(ValueError, match="above 0"):
        SecondsLimit(math.nan)
