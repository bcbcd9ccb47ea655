"""When a search may end: what is sure after one round is what all rounds find, and no cuts beat the bounds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from cascade_references import random_models, take

from rcjax.solving import bellman, error_and_cost
from rcjax.solving.at_lambda import lay_out
from rcjax.solving.bellman import best_cascades
from rcjax.solving.paths import candidate_paths, make_plan

pytestmark = pytest.mark.usefixtures("float64")

#: Costs of the random models lie between 1 and 30.
LAM = np.geomspace(1e-3, 0.1, 40)

laid_out = jax.jit(lay_out, static_argnums=4)
quantiles = jax.jit(lambda marginal: marginal.quantile(jnp.linspace(0, 1, 30)))


def problem(model, panels=None):
    """(tables, plan) of every subcascade of a model, on so many panels of quadrature."""
    k = len(model.models)
    plan = make_plan(candidate_paths(model.models, "all"), k)
    indices = np.asarray(plan.pairs)
    left, right = np.triu_indices(k, 1)
    return laid_out(model.marginals, model.copulas, model.cost, (left[indices], right[indices], indices), panels), plan


@pytest.fixture(scope="module")
def fours(float64):
    models = random_models(57, 4, 6)
    return [take(models, n) for n in range(6 if tiers.EVERYTHING[0] else 3)]


@pytest.mark.thorough
@pytest.mark.parametrize("price", [pytest.param(None, marks=pytest.mark.thorough), 0.4])
def test_what_is_sure_after_one_round_is_what_all_rounds_find(fours, price, monkeypatch):
    refusal = None if price is None else jnp.asarray(1 - price)
    lam, shares = jnp.asarray(LAM), []

    @jax.jit
    def searched(tables, plan):
        *_, sure = bellman._best_paths(tables, lam, plan, jnp.ones((len(lam), *tables.grid.u.shape)), refusal)
        return sure.mean(), best_cascades(tables, lam, plan, refusal)

    @jax.jit
    def searched_to_the_end(tables, plan):
        with monkeypatch.context() as patch:
            patch.setattr(bellman, "_is_sure", lambda values, to_gain, plan: jnp.zeros(values.shape[1], bool))
            return best_cascades(tables, lam, plan, refusal)

    for model in fours:
        tables, plan = problem(model)
        share, (path, cut, gain) = searched(tables, plan)
        whole_path, whole_cut, _ = searched_to_the_end(tables, plan)
        members = np.asarray(plan.defers)[path]
        np.testing.assert_array_equal(path, whole_path)
        np.testing.assert_allclose(np.where(members, cut.u, 0), np.where(members, whole_cut.u, 0), rtol=0, atol=1e-9)
        assert (np.asarray(gain) < 1e-8).all()
        shares.append(float(share))
    assert 0 < np.mean(shares) < 1  # or one of the two ways to end is not tried


@pytest.mark.thorough
@pytest.mark.parametrize("panels", [9, None])
def test_optimised_programmes_are_sure_of_as_much(fours, panels):
    """With LLVM's optimisations sums that are worked out twice may differ, and none then be the largest."""
    tables, plan = problem(fours[0], panels)
    density = np.random.default_rng(0).uniform(0.5, 1.5, (len(LAM), *tables.grid.u.shape))

    def compiled(level):
        programme = jax.jit(bellman._best_paths, compiler_options={"xla_backend_optimization_level": level})
        return programme(tables, jnp.asarray(LAM), plan, density, None)

    (_, path, cut, sure), (_, same_path, same_cut, as_sure) = compiled(0), compiled(1)
    np.testing.assert_array_equal(as_sure, sure)
    np.testing.assert_array_equal(same_path, path)
    np.testing.assert_allclose(same_cut.u, cut.u, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_no_cuts_beat_the_bounds(float64, monkeypatch):
    """Of every path, by an exhaustive grid of thresholds; a bound is near, too, where all cuts are sure."""
    lam, unsure, is_sure = LAM[::8], 0, bellman._is_sure

    @jax.jit
    def bounds(tables, density, plan):
        """What `_best_paths` asks `_is_sure` of."""
        told = []
        with monkeypatch.context() as patch:
            patch.setattr(bellman, "_is_sure", lambda *arguments: told.append(arguments[:2]) or is_sure(*arguments))
            bellman._best_paths(tables, lam, plan, jnp.broadcast_to(density, (len(lam), *density.shape)), None)
        return told[-1]

    for model in (take(random_models(58, 3, 4), n) for n in range(4)):
        tables, plan = problem(model)
        # Few arrive where confidence is high: the cuts are then poor, and bounds are needed.
        density = jnp.where(tables.grid.u < 0.5, 1.0, 1e-6)
        values, to_gain = (np.asarray(array) for array in bounds(tables, density, plan))
        steps = np.asarray(plan.cuts)[plan.ends]
        gains = np.where((steps >= 0)[..., None], to_gain[steps], 0.0).sum(1)
        unsure += (gains > 1e-12).sum()
        for number, path in enumerate(candidate_paths(model.models, "all")):
            if len(path) == 1:
                continue
            inside = [quantiles(take(model.marginals, j)) for j in path[:-1]]
            cuts = np.array(list(itertools.product(*(np.concatenate([[0.0], cut, [1.0]]) for cut in inside))))
            names = tuple(model.models[j] for j in path)
            error, cost = (np.asarray(figure) for figure in error_and_cost(model, cuts, names))
            worth = (1 - error - lam[:, None] * cost).max(1)
            assert (worth <= values[number] + gains[number] + 1e-6).all()
    assert unsure
