"""Values that models state: which are, their estimates, and calibrators with them against the policy's plain Python."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.stated_samples import KINDS, stated, stated_log
from hypothesis import given, strategies as st
from scipy.optimize import isotonic_regression
from tiers import thorough

import rcjax
from rcjax.model.calibration import fit_calibrator
from rcjax.model.stated import CURVE, SIZES, StatedValues, find_stated_logprobs, isotonic
from rcjax.policy import Calibration

pytestmark = pytest.mark.usefixtures("float64")


def column(values):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, float))[:, None]


def found_in(values):
    """The probabilities that a model with these values states."""
    own = find_stated_logprobs(column(values), np.ones((len(values), 1), bool))
    return [] if own is None else np.exp(own[0][~np.isnan(own[0])]).round(6).tolist()


def test_computed_probabilities_are_no_stated_values():
    rng = np.random.default_rng(0)
    assert found_in(rng.uniform(size=2000)) == []
    assert found_in(1 - np.float32(rng.exponential(1e-6, 300))) == []  # tied near certainty by single precision
    assert found_in(np.where(rng.random(300) < 0.6, 1.0, rng.uniform(size=300))) == []  # certainty alone
    assert found_in(rng.beta(2, 1, 300).round(2)) == []  # percents


@pytest.mark.parametrize(("kind", "count"), [("votes", 6), ("stated", 5), ("scale", 10), ("certain", 2)])
def test_a_model_of_few_values_states_all_of_them_certainty_included(kind, count):
    values = stated(np.random.default_rng(1).uniform(size=3000), kind)
    assert found_in(values) == sorted(set(values.round(6)))
    assert len(set(values)) == count


@pytest.mark.thorough
def test_confidences_of_zero_and_one_are_stated_if_few_others_occur():
    """A rare third value made all three nothing, and every answer of one confidence; an answer never rounds to 0."""
    gate = np.repeat([0.0, 0.5, 1.0], [16, 1, 83])
    assert found_in(gate) == [0, 1]
    assert found_in(np.repeat([0.0, 0.5, 1.0], [13, 2, 85])) == [0, 1]
    assert found_in(np.repeat([0.0, 0.5, 1.0], [1, 2, 97])) == []  # one answer at 0 is no value
    assert found_in(np.append(np.ones(95), np.linspace(0.6, 0.99, 5))) == []  # rounded to certainty
    right = gate == 1
    values = find_stated_logprobs(column(gate), np.ones((100, 1), bool))[0]
    fitted = fit_calibrator(column(gate)[:, 0], right, np.ones(100, bool), "generation", values=jnp.asarray(values))
    low, _, high = np.unique(np.asarray(fitted(column(gate)[:, 0])))
    assert low < 0.4
    assert high > 0.9


def test_the_most_frequent_values_are_kept():
    rng = np.random.default_rng(3)
    places = np.arange(1, 46) / 46
    own = found_in(rng.permutation(np.repeat(places, np.arange(1, 46) + 60)))
    assert own == places[-SIZES[-1] :].round(6).tolist()
    assert len(own) == SIZES[-1]


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.1, 5)), min_size=1, max_size=12),
)
def test_isotonic_regression_is_scipys(pairs):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    ours = isotonic(jnp.asarray(values), jnp.asarray(weights))
    np.testing.assert_allclose(ours, isotonic_regression(values, weights=weights).x, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("falling", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_an_estimate_is_the_mean_of_answers_and_curve(falling):
    """Where the means are monotone of themselves."""
    share = {0.5: 0.3, 0.8: 0.6, 0.95: 0.9}
    if falling:
        share = {value: 1 - right for value, right in share.items()}
    values = np.repeat(list(share), 100)
    right = np.concatenate([np.arange(100) < 100 * part for part in share.values()])
    logprob = np.log(values)
    own = np.append(np.log(list(share)), np.nan)
    calibrator = fit_calibrator(logprob, right, np.ones(300, bool), transform="choice", values=jnp.asarray(own))
    curve = np.asarray(calibrator.curve(own[:3]))
    expected = (100 * np.array(list(share.values())) + CURVE * curve) / (100 + CURVE)
    np.testing.assert_allclose(calibrator.stated.confidence[:3], expected, atol=1e-9)
    assert np.isnan(calibrator.stated.confidence[3])
    np.testing.assert_allclose(calibrator(np.log([0.5002, 0.8, 0.9498])), expected, atol=1e-9)
    low, high = sorted(expected[:2])
    assert low <= float(calibrator(np.log(0.7))) <= high


calibrations = st.builds(
    lambda raw, confidence, falling: tuple(
        zip(sorted(raw), sorted(confidence[: len(raw)], reverse=falling), strict=True)
    ),
    st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=1, max_size=7, unique=True),
    st.lists(st.floats(0.01, 0.99), min_size=7, max_size=7),
    st.booleans(),
)


@pytest.mark.thorough
@given(pairs=calibrations, raw=st.lists(st.floats(0, 1) | st.integers(0, 100).map(lambda n: n / 100), min_size=1))
def test_a_policy_calibrates_as_the_model_does(pairs, raw):
    line = Calibration("generation", 0.25, 0.75, -6.0, 5.5, stated=pairs)
    own = StatedValues(column([p for p, _ in pairs])[:, 0], np.array([phi for _, phi in pairs]))
    curve = Calibration("generation", 0.25, 0.75, -6.0, 5.5)
    for p in raw:
        logprob = math.log(p) if p > 0 else -math.inf
        ours = float(own.amend(logprob, jnp.asarray(curve(logprob))))
        assert line(logprob) == pytest.approx(ours, abs=1e-12)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (((0.9, 0.5), (0.8, 0.6)), "stated: must have its raw confidences in rising order"),
        (((0.7, 0.5), (0.8, 0.6), (0.9, 0.55)), "stated: must have calibrated confidences that rise, or that fall"),
        (((0.7, 1.5),), r"stated\[0\]\[1\]: must be"),
        (((0.7,),), r"stated\[0\]: must"),
    ],
)
def test_invalid_stated_values_of_a_policy_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        Calibration("choice", 0.0, 1.0, 0.0, 5.0, stated=pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", thorough(KINDS, lambda kind: kind != "stated"))
def test_a_model_of_few_values_survives_its_file_and_its_policy(kind, tmp_path):
    log = stated_log(kind)
    model = rcjax.fit(log)
    model.save(tmp_path / "model.json")
    loaded = rcjax.model.load_model(tmp_path / "model.json")
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
    policy = rcjax.solve_frontier(model, lam=[300.0, 3000.0]).policy(lam=300.0)
    policy.save(tmp_path / "policy.json")
    phi = np.asarray(model.calibrate(log))
    for row in range(20):
        for j, name in enumerate(log.models):
            logprob = float(log.logprob[row, j])
            if name in policy.calibrations:
                assert rcjax.load_policy(tmp_path / "policy.json").calibrate(name, logprob=logprob) == pytest.approx(
                    phi[row, j], abs=1e-12
                )


@pytest.fixture(scope="module")
def file():
    """What the file of a model holds whose models state two values."""
    file = rcjax.demo_model().to_json()
    stated = [calibrator | {"stated": [[0.4, 0.5], [0.8, 0.6]]} for calibrator in file["calibrators"]]
    file |= {"calibrators": stated, "marginals": [own | {"atoms": [[0.6, 0.1]]} for own in file["marginals"]]}
    assert rcjax.model.cascade_model.model_from_json(file).to_json() == file
    return file


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        ("calibrators.stated", [[0.9, 0.5], [0.8, 0.6]], r"must have its raw confidences in rising order"),
        ("calibrators.stated", [[place / 40, 0.5] for place in range(40)], "must have at most 32"),
        ("calibrators.transform", "none", "must have one transform"),
        ("marginals.atoms", [[0.1, 0.0]] * 40, "must have at most 32"),
    ],
)
def test_damaged_values_are_named(file, place, change, message, tmp_path):
    part, name = place.split(".")
    path = tmp_path / "model.json"
    first, *others = file[part]
    path.write_text(json.dumps(file | {part: [first | {name: change}, *others]}))
    with pytest.raises(ValueError, match=message) as caught:
        rcjax.model.load_model(path)
    assert part in str(caught.value)
