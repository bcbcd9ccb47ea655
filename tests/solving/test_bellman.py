"""When a search may end: what is sure after one round is what all rounds find, and no cuts beat the bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from helpers.cascade_references import random_models, take

from rcjax.solving import bellman
from rcjax.solving.bellman import SearchTables, best_cascades, list_cascades, make_plan
from rcjax.solving.optimum import build_pair_tables
from rcjax.solving.quadrature import PANELS

pytestmark = pytest.mark.usefixtures("float64")

#: Costs of the random models lie between 1 and 30.
LAM = np.geomspace(1e-3, 0.1, 40)

laid_out = jax.jit(build_pair_tables, static_argnums=4)
quantiles = jax.jit(lambda marginal: marginal.quantile(jnp.linspace(0, 1, 30)))


def problem(model, panels=PANELS):
    """(tables, plan) of every subcascade of a model, on so many panels of quadrature."""
    plan = make_plan(list_cascades(model.models, "all"), len(model.models))
    return laid_out(model.marginals, model.copulas, model.cost, plan.pairs, panels), plan


@pytest.fixture(scope="module")
def fours(float64):
    models = random_models(57, 4, 6)
    return [take(models, n) for n in range(6 if tiers.EVERYTHING[0] else 3)]


@pytest.mark.thorough
def test_padded_steps_change_nothing(fours, monkeypatch):
    """An accelerator takes them all, the padded ones included."""
    plan = make_plan([(0, 1, 2), (1, 3), (2,)], 4)
    assert plan.count < plan.steps.shape[0]
    tables = laid_out(fours[0].marginals, fours[0].copulas, fours[0].cost, plan.pairs, 9)
    needed = jax.jit(lambda *arrays: best_cascades(*arrays))(SearchTables(tables, plan), LAM)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    every = jax.jit(lambda *arrays: best_cascades(*arrays))(SearchTables(tables, plan), LAM)
    for name in ("cascade", "cut", "gain"):
        jax.tree.map(np.testing.assert_array_equal, getattr(every, name), getattr(needed, name))


@pytest.mark.thorough
@pytest.mark.parametrize("price", [pytest.param(None, marks=pytest.mark.thorough), 0.4])
def test_a_cascade_proven_after_one_round_is_the_cascade_of_all_rounds(fours, price, monkeypatch):
    abstain_worth = None if price is None else jnp.asarray(1 - price)
    lam, shares = jnp.asarray(LAM), []

    @jax.jit
    def searched(tables, plan):
        search = SearchTables(tables, plan, abstain_worth)
        uniform = jnp.ones((len(lam), *tables.grid.u.shape))
        return bellman._best_for_densities(search, lam, uniform).proven.mean(), best_cascades(search, lam)

    @jax.jit
    def searched_to_the_end(tables, plan):
        with monkeypatch.context() as patch:
            patch.setattr(bellman, "is_proven", lambda values, possible_gain, plan: jnp.zeros(values.shape[1], bool))
            return best_cascades(SearchTables(tables, plan, abstain_worth), lam)

    for model in fours:
        tables, plan = problem(model)
        share, found = searched(tables, plan)
        expected = searched_to_the_end(tables, plan)
        defers = np.asarray(plan.defers)[found.cascade]
        np.testing.assert_array_equal(found.cascade, expected.cascade)
        cuts = (np.where(defers, result.cut.u, 0) for result in (found, expected))
        np.testing.assert_allclose(*cuts, rtol=0, atol=1e-9)
        assert (np.asarray(found.gain) < 1e-8).all()
        shares.append(float(share))
    assert 0 < np.mean(shares) < 1  # or one of the two ways to end is not tried


@pytest.mark.thorough
@pytest.mark.parametrize("panels", [9, PANELS])
def test_optimised_programmes_prove_as_much(fours, panels):
    """With LLVM's optimisations sums that are worked out twice may differ, and none then be the largest."""
    tables, plan = problem(fours[0], panels)
    density = np.random.default_rng(0).uniform(0.5, 1.5, (len(LAM), *tables.grid.u.shape))

    def compiled(level):
        programme = jax.jit(bellman._best_for_densities, compiler_options={"xla_backend_optimization_level": level})
        return programme(SearchTables(tables, plan), jnp.asarray(LAM), density)

    plain, optimised = compiled(0), compiled(1)
    np.testing.assert_array_equal(optimised.proven, plain.proven)
    np.testing.assert_array_equal(optimised.cascade, plain.cascade)
    np.testing.assert_allclose(optimised.cut.u, plain.cut.u, rtol=0, atol=1e-12)
