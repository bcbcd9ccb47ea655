"""What operators see: counts, what is worked out of them, and labels that stay few."""

import math
import random
from collections import Counter

import pytest
from gateway_samples import MODELS, ask, make_call, make_policy, make_result
from hypothesis import given, strategies as st
from metric_pages import figures, samples
from misses import in_turn
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from rcjax.policy import Mixture, Policy
from rcjax.serving.gateway.expectations import expect
from rcjax.serving.gateway.metrics import Metrics, error_kind

POLICY = make_policy()


@pytest.fixture
def metrics():
    metrics = Metrics(None)
    metrics.take_up("support", POLICY, "abc")
    return metrics


# Counting


def test_requests_are_counted_by_policy_model_and_status(metrics):
    small, large = make_call(), make_call("large")
    for status, calls in [
        ("answered", [small]),
        ("answered", [small, large]),
        ("answered", [small, large]),
        ("best so far", [make_call("large", error="HTTP 500"), small]),
        ("abstained", [small]),
        ("failed", [make_call(text=None, logprob=None, confidence=None, error="timed out")]),
    ]:
        metrics.ended("support", "abc", make_result(status, calls), 0.5)
    metrics.passed("support", "large", "not judged", 0.5)
    metrics.passed("large", "large", "passed on", 0.5)
    assert figures(metrics, "requests_total") == {
        ("small", "support", "answered"): 1,
        ("large", "support", "answered"): 2,
        ("small", "support", "best so far"): 1,
        ("small", "support", "abstained"): 1,
        ("", "support", "failed"): 1,
        ("large", "support", "not judged"): 1,
        ("large", "large", "passed on"): 1,
    }
    assert figures(metrics, "asked_total") == {("small", "support"): 6, ("large", "support"): 3}
    assert figures(metrics, "deferrals_total") == {("small", "support"): 3, ("large", "support"): 1}
    assert figures(metrics, "request_seconds_count") == {"support": 7, "large": 1}
    assert figures(metrics, "request_seconds_sum") == {"support": 3.5, "large": 0.5}
    assert figures(metrics, "request_cost_total")["support"] == pytest.approx(9e-5)
    assert figures(metrics, "confidence_count") == {("small", "support"): 5, ("large", "support"): 3}


def test_a_confidence_is_in_its_bucket(metrics):
    for confidence in (0.0, 0.75, 0.8, 0.999, 1.0):
        metrics.ended("support", "abc", make_result(calls=[make_call(confidence=confidence)]), 0.5)
    buckets = figures(metrics, "confidence_bucket")
    ends = {end: buckets[end, "small", "support"] for end in ("0.1", "0.7", "0.8", "0.99", "1.0", "+Inf")}
    assert ends == {"0.1": 1, "0.7": 1, "0.8": 3, "0.99": 3, "1.0": 5, "+Inf": 5}


def test_calls_are_counted_by_model(metrics):
    metrics.called(make_call(seconds=2.0, attempts=3))
    metrics.called(make_call(cost=2e-5, shadow=True))  # the cascade's own, of a query that goes to all models
    metrics.called(make_call(cost=4e-5, shadow=True, added=True))
    metrics.called(make_call("large", text=None, input_tokens=None, output_tokens=None, cost=0.0, error="timed out"))
    assert figures(metrics, "call_seconds_count") == {"small": 3, "large": 1}
    assert figures(metrics, "call_seconds_sum") == {"small": 2.5, "large": 0.25}
    cost = figures(metrics, "call_cost_total")
    assert cost == {("small", "false"): pytest.approx(3e-5), ("small", "true"): 4e-5, ("large", "false"): 0}
    assert figures(metrics, "call_attempts_total") == {"small": 5, "large": 1}
    assert figures(metrics, "call_tokens_total") == {("input", "small"): 270, ("output", "small"): 3}
    assert figures(metrics, "call_errors_total") == {("timed out", "large"): 1}


def test_in_flight_goes_up_and_down(metrics):
    with metrics.in_flight.track_inprogress():
        metrics.in_flight.inc()
        assert samples(metrics.text()[0])["requests_in_flight",] == 2
    assert samples(metrics.text()[0])["requests_in_flight",] == 1


@in_turn(
    ("error", "kind"),
    [
        ("HTTP 429 (rate_limit_exceeded)", "HTTP 429"),
        ("HTTP 599", "HTTP other"),
        ("the second question: HTTP 503", "HTTP 503"),
        ("timed out", "timed out"),
        ("no connection", "no connection"),
        ("malformed answer: no choices", "malformed"),
        ("an answer without text (finish_reason length)", "no text"),
        ("an error in place of an answer (bad_thing)", "error reply"),
        ("the client failed: RuntimeError", "client failed"),
        ("the server tells no tokens: what it cost is not known", "no tokens"),
        ("APIResponseValidationError", "other"),
    ],
)
def test_errors_have_kinds(error, kind):
    assert error_kind(make_call(text=None, error=error)) == kind


def test_an_answer_without_confidence_is_an_error_of_the_signal():
    assert error_kind(make_call(error="the text states no confidence: …")) == "signal"
    assert error_kind(make_call()) is None


# The page


def test_the_page_is_in_both_formats(metrics):
    metrics.ended("support", "abc", make_result(), 0.5)
    metrics.called(make_call())
    plain, plain_type = metrics.text()
    other, other_type = metrics.text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert other_type.startswith("application/openmetrics-text")
    assert other.endswith(b"# EOF\n")
    assert samples(plain) == samples(other, open_metrics_families)


def test_every_figure_says_what_it_is(metrics):
    metrics.ended("support", "abc", make_result(), 0.5)
    metrics.called(make_call(error="timed out"))
    metrics.refuse("support")
    metrics.refused("no key", 401)
    for family in text_string_to_metric_families(metrics.text()[0].decode()):
        assert family.name.startswith("rcjax_")
        assert len(family.documentation) > 10
        assert family.type in ("counter", "gauge", "histogram")
        assert not any(sample.name.endswith("_created") for sample in family.samples)


def test_names_are_escaped_whatever_they_hold():
    metrics = Metrics(None)
    name = 'a "b" \\ c\nd é \ud800'
    metrics.take_up(name, POLICY, "abc")
    metrics.ended(name, "abc", make_result(), 0.5)
    for accept in ("", "application/openmetrics-text"):
        page, _ = metrics.text(accept)
        assert page.isascii() is False
    assert figures(metrics, "policy_requests") == {'a "b" \\ c\nd é ?': 1}


# Seen beside expected


def test_what_is_seen_is_beside_what_is_expected(metrics):
    rng = random.Random(1)
    results = [ask(POLICY, rng) for _ in range(500)]
    for result in results:
        metrics.ended("support", "abc", result, 0.5)
    expected = expect(POLICY)
    fates = Counter("" if result.status == "abstained" else result.model for result in results)
    assert fates[""] > 0
    for model in MODELS:
        assert figures(metrics, "answered_ratio")[model, "support"] == pytest.approx(fates[model] / 500)
        assert figures(metrics, "expected_answered_ratio")[model, "support"] == pytest.approx(expected.answered[model])
    assert figures(metrics, "abstained_ratio")["support"] == pytest.approx(fates[""] / 500)
    assert figures(metrics, "expected_abstained_ratio")["support"] == pytest.approx(expected.abstained)
    cost = math.fsum(result.cost for result in results) / 500
    assert figures(metrics, "cost_per_request")["support"] == pytest.approx(cost)
    assert figures(metrics, "expected_cost_per_request")["support"] == pytest.approx(expected.cost)
    asked = figures(metrics, "asked_total")
    assert figures(metrics, "drift_queries") == {(model, "support"): asked[model, "support"] for model in MODELS}


def test_the_seconds_of_calls_are_beside_those_expected():
    metrics = Metrics(None)
    metrics.take_up("support", make_policy(expected={"error": 0.1, "seconds": 0.4, "seconds_p95": 1.5}), "abc")
    metrics.ended("support", "abc", make_result(calls=[make_call(seconds=0.25), make_call("large", seconds=1.5)]), 9.0)
    metrics.ended("support", "abc", make_result(calls=[make_call(seconds=0.25)]), 9.0)
    assert figures(metrics, "seconds_per_request") == {"support": pytest.approx(1.0)}
    assert figures(metrics, "expected_seconds_per_request") == {"support": 0.4}
    assert figures(metrics, "expected_seconds_p95") == {"support": 1.5}
    metrics.take_up("support", make_policy(), "other")
    assert figures(metrics, "expected_seconds_p95") == {}


def test_requests_that_failed_are_no_part_of_the_shares(metrics):
    failed = make_call(text=None, logprob=None, confidence=None, error="timed out")
    metrics.ended("support", "abc", make_result("failed", [failed]), 0.5)
    assert figures(metrics, "answered_ratio") == {}
    assert figures(metrics, "drift") == {}
    assert figures(metrics, "cost_per_request") == {"support": pytest.approx(1e-5)}
    metrics.ended("support", "abc", make_result(), 0.5)
    assert figures(metrics, "answered_ratio")["small", "support"] == 1


def test_a_policy_without_queries_has_the_cost_that_was_promised():
    metrics = Metrics(None)
    metrics.take_up("support", make_policy(provenance={}), "abc")
    metrics.ended("support", "abc", make_result(), 0.5)
    assert figures(metrics, "expected_cost_per_request") == {"support": 3e-5}
    assert figures(metrics, "answered_ratio")["small", "support"] == 1
    assert figures(metrics, "expected_answered_ratio") == {}
    assert figures(metrics, "drift_queries") == {}


def test_a_mixture_is_served_like_a_policy():
    mixture = Mixture((POLICY, make_policy(rules={m: (make_policy().rules["large"]) for m in MODELS})), (0.5, 0.5))
    metrics = Metrics(None)
    metrics.take_up("support", mixture, "abc")
    expected = expect(mixture)
    assert expected.answered["small"] > expect(POLICY).answered["small"]
    shares = figures(metrics, "expected_answered_ratio")
    assert shares == {(model, "support"): pytest.approx(expected.answered[model]) for model in MODELS}


# New policies


def test_a_new_policy_starts_from_nothing(metrics):
    assert figures(metrics, "reloads_total") == {("taken up", "support"): 0, ("refused", "support"): 0}
    metrics.ended("support", "abc", make_result(), 0.5)
    metrics.take_up("support", POLICY, "abc")  # the file was touched
    assert figures(metrics, "policy_requests") == {"support": 1}
    metrics.take_up("support", make_policy(seed=1), "def")
    metrics.refuse("support")
    assert figures(metrics, "policy_requests") == {"support": 0}
    assert figures(metrics, "policy_info") == {("def", "support"): 1}
    assert figures(metrics, "reloads_total") == {("taken up", "support"): 1, ("refused", "support"): 1}
    metrics.ended("support", "abc", make_result(), 0.5)  # one that the policy before had begun
    assert figures(metrics, "policy_requests") == {"support": 0}
    assert figures(metrics, "requests_total") == {("small", "support", "answered"): 2}
    metrics.take_up("support", POLICY, "abc")
    assert figures(metrics, "policy_requests") == {"support": 0}


@pytest.mark.thorough
def test_many_new_policies_leave_the_page_as_short_as_it_was(metrics):
    lengths = set()
    for version in range(200):
        metrics.take_up("support", POLICY, f"{version:04}")
        metrics.ended("support", f"{version:04}", make_result(), 0.5)
        assert figures(metrics, "policy_requests") == {"support": 1}
        lengths.add(len(samples(metrics.text()[0])))
    assert len(lengths) == 1
    slots = len({labels[:2] for labels in metrics._since if isinstance(labels, tuple)})
    assert slots == 4


def test_a_damaged_policy_changes_nothing(metrics):
    metrics.ended("support", "abc", make_result(), 0.5)
    broken = Policy.from_json(POLICY.to_json() | {"provenance": {"reference": {"queries": 3}}})
    with pytest.raises(ValueError, match="damaged"):
        metrics.take_up("support", broken, "def")
    assert figures(metrics, "policy_info") == {("abc", "support"): 1}
    assert figures(metrics, "policy_requests") == {"support": 1}


# Labels stay few


@given(st.text(max_size=30), st.booleans(), st.integers(-5, 2000))
def test_kinds_of_errors_are_few(text, replied, status):
    known = {"other", "signal", "timed out", "no connection", "malformed", "no text", "error reply"}
    kind = error_kind(make_call(text="B" if replied else None, error=text))
    assert kind in known or kind.startswith("HTTP ")
    kind = error_kind(make_call(text=None, error=f"HTTP {status} {text}"))
    assert kind == "other" or kind[5:] == "other" or 100 <= int(kind[5:]) <= 511


def test_reasons_are_few(metrics):
    for i in range(1000):
        metrics.refused(f"reason {i}", i)
    refused = figures(metrics, "refused_requests_total")
    assert sum(refused.values()) == 1000
    assert len({reason for reason, _ in refused}) == 41
    assert {status for _, status in refused} < {"other", *map(str, range(100, 600))}
