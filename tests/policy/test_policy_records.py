"""Records of a policy's tuning, tampered with: they are read, or refused with their place in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.policy_samples import edited, places, wrong
from hypothesis import HealthCheck, given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.cli import inputs
from rcjax.logs.kept_sample import read_kept_sample
from rcjax.policy.ladder import policy_from_json
from rcjax.policy.spec import recorded_count, recorded_prices, recorded_tuning
from rcjax.tuning.certify import overlap

pytestmark = pytest.mark.usefixtures("float64")
FOLDER = Path(__file__).parents[1] / "saved_files"
SAMPLES = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted(FOLDER.glob("*.json"))
    if path.stem in ("policy", "ladder")
}
PLACES = {name: list(places(data)) for name, data in SAMPLES.items()}
TUNING, KEPT_SAMPLE = ("provenance", "tuning"), ("provenance", "kept_sample")
SMALL = "llama3.2-1b"


def one_line(use, *arguments):
    """Return the result of a function; None if it refuses in one line."""
    problem = ""
    try:
        return use(*arguments)
    except ValueError as refusal:
        problem = str(refusal)
    assert len(problem.splitlines()) == 1
    assert len(problem) < 1000
    return None


@st.composite
def tampered(draw):
    """A real policy or ladder with one entry replaced by any value, or deleted; most often where it was tuned."""
    name = draw(st.sampled_from(list(PLACES)))
    recorded = [path for path in PLACES[name] if "tuning" in path or "kept_sample" in path or path[-1] == "provenance"]
    path = draw(st.sampled_from(recorded) | st.sampled_from(PLACES[name]))
    return edited(path, draw(wrong), SAMPLES[name])


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(60, seed=0).select(SAMPLES["policy"]["provenance"]["tuning"]["models"])


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=tampered())
def test_a_policy_with_any_record_is_checked_or_refused(log, data):
    policy = one_line(policy_from_json, data)
    if policy is None:
        return
    tuning = one_line(recorded_tuning, policy)
    assert tuning is None or {*tuning.restrict_to(log.models).models} <= {*log.models}
    one_line(recorded_prices, policy)
    one_line(recorded_count, policy.provenance, "complete_queries", 0)
    one_line(overlap, log, policy)
    kept = one_line(read_kept_sample, policy.provenance.get("kept_sample"), "choice")
    if kept is not None:
        assert np.isfinite(kept.query_cost).all()
        assert not (np.asarray(kept.logprob) > 0).any()


BROKEN = [
    (TUNING, None, r"provenance\.tuning: must be an object, but it is missing or null"),
    ((*TUNING, "cascade"), "best", r"tuning\.cascade: must be one of .* 'best'"),
    ((*TUNING, "cascade"), [["llama3.1-8b", SMALL]], r"tuning\.cascade\[0\]: must name some of .*in this order"),
    ((*TUNING, "budget"), 1, r"tuning: give one target, not budget and lam"),
    ((*TUNING, "prices", SMALL, "input"), "x", r"tuning\.prices\['llama3\.2-1b'\]\['input'\]: must be a number"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_a_broken_record_is_refused_with_its_place(path, value, message, tmp_path):
    policy = policy_from_json(edited(path, value, SAMPLES["policy"]))
    with pytest.raises(ValueError, match=message):
        recorded_tuning(policy)
    policy.save(tmp_path / "policy.json")
    with pytest.raises(ValueError, match=rf"policy\.json: .*{message}"):
        inputs.load_tuned(tmp_path / "policy.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*KEPT_SAMPLE, "models"), [SMALL], r"kept_sample\.columns: must hold a logprob for each query and model"),
        (("provenance", "complete_queries"), None, r"provenance\.complete_queries: must be a whole number"),
    ],
)
def test_a_check_against_broken_queries_is_refused(log, path, value, message):
    policy = policy_from_json(edited(path, value, SAMPLES["policy"]))
    fresh = rcjax.sample_log(60, seed=5).select(log.models)
    with pytest.raises(ValueError, match=message):
        rcjax.check_policy(policy, fresh, retuning=False)
