"""The joint model: fitting, sampling, files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import rcjax
from rcjax._core.batching import list_pairs
from rcjax.logs import LogError
from rcjax.model.calibrated_models import FitRecord, fit_calibrated
from rcjax.model.cascade_model import load_model
from rcjax.model.fitting import fit_arrays, fit_near
from rcjax.model.marginals import Marginal
from rcjax.model.maximum_likelihood import fit_marginal

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(600, seed=1)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.mark.thorough
def test_taus_of_all_pairs_match_scipy(log, model):
    confidence = np.asarray(model.calibrate(log.logprob))
    taus = [scipy.stats.kendalltau(confidence[:, i], confidence[:, j]).statistic for i, j in list_pairs(5)]
    # Gumbel knows no negative dependence, and stops at θ = 50.
    np.testing.assert_allclose(model.copulas.tau(), np.clip(taus, 0, 0.98), atol=1e-9)


@pytest.fixture(scope="module")
def holes(log):
    """The log of three models with a third of their answers missing at random, differently for each."""
    part = log.select(log.models[:3])
    answered = np.random.default_rng(3).uniform(size=part.answered.shape) < 0.67
    return dataclasses.replace(part, answered=jnp.asarray(answered), logprob=jnp.where(answered, part.logprob, jnp.nan))


@pytest.mark.thorough
def test_a_marginal_uses_all_answers_of_its_model(holes):
    model, answered = rcjax.fit(holes), np.asarray(holes.answered)
    # A model's own answers one after the other, as if there had been no other queries; the rest is not looked at.
    own = [column[seen] for column, seen in zip(np.asarray(model.calibrate(holes.logprob)).T, answered.T, strict=True)]
    rows = np.stack([np.pad(values, (0, len(answered) - len(values))) for values in own])
    expected = jax.jit(jax.vmap(fit_marginal))(rows, np.arange(len(answered)) < answered.sum(0)[:, None])
    for field in dataclasses.fields(expected):
        ours, reference = getattr(model.marginals, field.name), getattr(expected, field.name)
        if field.name == "atoms":  # values computed from tokens have none
            assert ours is reference is None
            continue
        np.testing.assert_allclose(ours, reference, rtol=1e-3, err_msg=field.name)  # EM stops up to a step apart
    for values, bottom, top in zip(own, model.marginals.mass_lowest, model.marginals.mass_highest, strict=True):
        assert len(values) > holes.complete.sum()
        assert float(bottom) == np.mean(values == values.min())
        assert float(top) == np.mean(values == values.max())


@pytest.mark.thorough
def test_the_tau_of_a_pair_uses_the_queries_that_both_answered(holes):
    model = rcjax.fit(holes)
    confidence, answered = np.asarray(model.calibrate(holes.logprob)), np.asarray(holes.answered)
    for (i, j), ours in zip(list_pairs(3), np.asarray(model.copulas.tau()), strict=True):
        both = answered[:, i] & answered[:, j]
        assert holes.complete.sum() < both.sum() < answered[:, [i, j]].sum(0).min()
        tau = scipy.stats.kendalltau(confidence[both, i], confidence[both, j]).statistic
        assert 0 < tau < 0.98  # what a Gumbel copula can have
        assert ours == pytest.approx(tau, abs=1e-9)


@pytest.mark.parametrize("common", [0, 1])
def test_a_pair_without_two_common_queries_is_named(holes, common):
    answered = np.ones(holes.answered.shape, bool)
    answered[:300, 0] = answered[300 + common :, 2] = False
    broken = dataclasses.replace(holes, answered=jnp.asarray(answered))
    with pytest.raises(LogError, match=r"fewer than two queries .*llama3\.2-1b and llama3\.1-8b"):
        rcjax.fit(broken)


@pytest.fixture(scope="module")
def small(log):
    """(the log of three models, its fit)."""
    part = log.select(log.models[:3])
    return part, rcjax.fit(part)


def near(log, model):
    """The fit of a log from that of another one."""
    options = {"transform": "choice", "family": type(model.copulas), "method": "tau", "values": None}
    return fit_arrays((log.logprob, log.correct, log.answered), **options, start=model.marginals)


@pytest.mark.thorough
def test_a_fit_near_another_agrees_with_the_whole_fit(small):
    """Calibrators and copulas are the same; mixtures differ by what fifty steps of EM leave undone."""
    log, model = small
    draw = log.take(np.random.default_rng(5).integers(0, 600, 600))
    full, (calibrators, marginals, copulas) = rcjax.fit(draw), near(draw, model)
    for one, other in zip(jax.tree.leaves(calibrators), jax.tree.leaves(full.calibrators), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert type(copulas) is rcjax.copulas.Gumbel
    np.testing.assert_allclose(copulas.theta, full.copulas.theta, rtol=1e-9)
    for name in ("lowest", "highest", "mass_lowest", "mass_highest"):
        np.testing.assert_allclose(getattr(marginals, name), getattr(full.marginals, name), rtol=1e-12)
    confidence = full.calibrate(draw.logprob).T
    cdf, density = (jax.jit(jax.vmap(each)) for each in (Marginal.cdf, Marginal.density))
    np.testing.assert_allclose(cdf(marginals, confidence), cdf(full.marginals, confidence), atol=0.03)
    ours, reference = (np.asarray(density(each, confidence)) for each in (marginals, full.marginals))
    for one, other in zip(ours, reference, strict=True):
        inside = other > 0
        assert np.log(one[inside]).mean() > np.log(other[inside]).mean() - 0.005


def test_a_fit_near_another_uses_the_answers_of_each_model(holes):
    """As the whole fit does where some are missing."""
    model = rcjax.fit(holes)
    calibrators, marginals, copulas = near(holes, model)
    np.testing.assert_allclose(calibrators.coefficients, model.calibrators.coefficients, rtol=1e-9)
    np.testing.assert_allclose(copulas.theta, model.copulas.theta, rtol=1e-9)
    np.testing.assert_allclose(marginals.mass_highest, model.marginals.mass_highest, rtol=1e-12)
    # From the optimum itself there is nowhere to go.
    np.testing.assert_allclose(marginals.a, model.marginals.a, rtol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("values", [1, 2])
def test_a_draw_without_smooth_values_has_a_marginal(small, values):
    """Some draws of a small log hold one confidence only, or two."""
    log, model = small
    logprob = jnp.broadcast_to(jnp.where(jnp.arange(600) % values == 0, -0.1, -0.9)[:, None], log.logprob.shape)
    _, marginals, copulas = near(dataclasses.replace(log, logprob=logprob), model)
    for leaf in jax.tree.leaves((marginals, copulas)):
        assert np.isfinite(leaf).all()
    np.testing.assert_allclose(marginals.mass_lowest + marginals.mass_highest, 1, rtol=1e-12)


@pytest.mark.parametrize("method", ["tau", "likelihood"])
def test_a_fit_near_another_is_by_its_method(holes, method):
    model = rcjax.fit(holes, method=method)
    rows = holes.logprob, holes.correct, holes.answered
    fitted = fit_near(model, *rows, holes.cost)
    np.testing.assert_allclose(fitted.copulas.theta, model.copulas.theta, rtol=1e-3)  # marginals are a step of EM apart
    other = fit_near(dataclasses.replace(model, record=FitRecord()), *rows, holes.cost)  # without a record: τ
    assert np.allclose(other.copulas.theta, model.copulas.theta, rtol=1e-3) == (method == "tau")


def test_the_model_is_a_pytree_and_survives_a_file(log, model, tmp_path):
    leaves, structure = jax.tree.flatten(model)
    assert jax.tree.unflatten(structure, leaves).models == model.models
    model.save(tmp_path / "model.json")
    loaded = load_model(tmp_path / "model.json")
    for one, other in zip(leaves, jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.calibrate(log.logprob), model.calibrate(log.logprob))
    assert loaded.record == model.record


@pytest.mark.thorough
def test_fits_of_two_logs_stack_and_share_a_program(model, log, compilations):
    other = rcjax.fit(log.take(np.arange(599, -1, -1)))
    both = jax.tree.map(lambda *parts: jnp.stack(parts), model, other)
    assert (both.models, both.record) == (model.models, FitRecord())
    loss = jax.jit(lambda model: model.cost.sum())
    loss(model)
    with compilations() as compiled:
        loss(other)
    assert not compiled


@pytest.mark.parametrize("damage", ["{", "[]", "{}", {"schema_version": 99}, {"copula": "x"}, {"marginals": {}}])
def test_damaged_files_are_named(model, tmp_path, damage):
    path = tmp_path / "damaged.json"
    path.write_text(damage if isinstance(damage, str) else json.dumps({**model.to_json(), **damage}))
    with pytest.raises(ValueError, match=r"damaged\.json"):
        load_model(path)


def test_a_file_of_calibrators_alone_is_named_as_such(log, tmp_path):
    fit_calibrated(log).save(tmp_path / "model.json")
    with pytest.raises(ValueError, match=r"model\.json: a file of calibrators .*: save the model of rcjax\.fit\(log\)"):
        load_model(tmp_path / "model.json")
