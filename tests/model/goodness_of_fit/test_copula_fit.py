"""Goodness of fit of a copula: the statistic against plain counts, ties, p-values, published figures."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from benchmarks.paper.statistics import paper_statistic
from rcjax._core.numerics import kendall_tau
from rcjax.copulas import Clayton, Copula, Gumbel
from rcjax.model.calibrated import pairs
from rcjax.model.goodness_of_fit.bootstrap import p_value
from rcjax.model.goodness_of_fit.copula_fit import (
    Ties,
    copula_test,
    empirical_copula,
    fitted_process,
)

pytestmark = pytest.mark.usefixtures("float64")

#: Those of test_diagnosis too, so that either finds the other's programmes compiled.
N, REPLICATES = 200, 50


def test_the_empirical_copula_is_a_plain_count():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 12, (2, 60))
    present = rng.random(60) < 0.8
    found = np.asarray(empirical_copula(*map(jnp.asarray, (x, y, present))))
    for i in range(60):
        below = [x[j] <= x[i] and y[j] <= y[i] for j in range(60) if present[j]]
        assert found[i] == pytest.approx(np.mean(below))


drawn = jax.jit(Copula.sample, static_argnums=2)


@pytest.fixture(scope="module")
def measure(float64):
    """(copula, S_n) of Gumbel's family on N observations, those `present`."""
    fitted = jax.jit(lambda x, y, present: fitted_process(Gumbel, x, y, present, kendall_tau(x, y, present)))
    return lambda x, y, present=None: fitted(x, y, jnp.ones(N, bool) if present is None else present)


@pytest.fixture(scope="module")
def sample(float64):
    return [np.asarray(each) for each in drawn(Gumbel(2.0), jax.random.key(1), (N,))]


def plain_copula(u, v):
    return ((u[:, None] <= u) & (v[:, None] <= v)).mean(0)


@pytest.mark.thorough
@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_process_is_a_plain_sum(measure, sample, tied):
    x, y = (np.where(each < 0.2, 0.1, np.where(each > 0.9, 0.95, each)) if tied else each for each in sample)
    copula, process = measure(x, y)
    u, v = ((each <= each[:, None]).sum(1) / (N + 1) for each in (x, y))
    assert process == pytest.approx(((plain_copula(x, y) - np.asarray(copula.cdf(u, v))) ** 2).sum(), rel=1e-9)


@pytest.mark.thorough
def test_absent_observations_do_not_matter(measure, sample):
    few = 150
    present = jnp.arange(N) < few
    one, other = (
        jax.tree.leaves(measure(*(np.where(present, each, junk) for each in sample), present)) for junk in (np.nan, 0.4)
    )
    np.testing.assert_array_equal(one, other)
    shuffled = np.random.default_rng(0).permutation(N)
    moved = jax.tree.leaves(measure(*(each[shuffled] for each in sample), present[shuffled]))
    np.testing.assert_allclose(one, moved, rtol=1e-9)
    x, y = (each[:few] for each in sample)
    process = (
        (plain_copula(x, y) - Gumbel(one[0]).cdf(*((z.argsort().argsort() + 1) / (few + 1) for z in (x, y)))) ** 2
    ).sum()
    assert one[1] == pytest.approx(float(process), rel=1e-9)


@pytest.mark.thorough
def test_replicates_tie_where_the_log_does():
    rng = np.random.default_rng(3)
    values = np.concatenate([np.full(12, 0.1), np.full(7, 0.5), np.full(20, 0.9), rng.uniform(0.1, 0.9, 61)])
    values = rng.permutation(np.concatenate([values, np.full(30, np.nan)]))
    present = jnp.asarray(~np.isnan(values))
    ties = Ties.of(jnp.asarray(values), present)
    kept = np.sort(values[present])
    even = (np.arange(100) + 0.5) / 100
    imposed = np.asarray(ties.impose(jnp.asarray(even)))
    assert np.unique(imposed, return_counts=True)[1].tolist() == np.unique(kept, return_counts=True)[1].tolist()
    upper = np.searchsorted(kept, kept, side="right") / 100
    np.testing.assert_allclose(imposed, np.where(np.isin(kept, [0.1, 0.5, 0.9]), upper, even))
    draws = np.asarray(ties.impose(jnp.asarray(rng.uniform(size=4000))))
    for mass, top in ((0.12, 0.12), (0.07, upper[kept == 0.5][0]), (0.2, 1.0)):
        assert abs((draws == top).mean() - mass) < 4 * np.sqrt(mass * (1 - mass) / 4000)
    assert len(np.unique(draws)) == 3 + sum(~np.isin(draws, [0.12, upper[kept == 0.5][0], 1.0]))


def test_p_values_leave_out_what_is_not_finite():
    replicates = jnp.array([0.1, 0.2, jnp.nan, 0.4, jnp.inf])
    assert p_value(jnp.asarray(0.15), replicates) == pytest.approx(2.5 / 4)
    assert p_value(jnp.asarray(9.0), replicates) == pytest.approx(0.5 / 4)
    assert p_value(jnp.asarray(0.1), jnp.full(3, 0.1)) == pytest.approx(3.5 / 4)
    assert np.isnan(p_value(jnp.asarray(jnp.nan), replicates))


@pytest.fixture(scope="module")
def logs(sample):
    """(3, N) pairs: Gumbel's, one with ties at both ends, and Clayton's with the same τ."""
    tied = [np.where(each < 0.15, 0.0, np.where(each > 0.8, 1.0, each)) for each in sample]
    other = Clayton(2.0).sample(jax.random.key(4), (N,))
    return [jnp.stack([jnp.asarray(z[i]) for z in (sample, tied, other)]) for i in range(2)]


@pytest.fixture(scope="module")
def found(logs):
    return copula_test(Gumbel, *logs, jnp.ones((3, N), bool), jax.random.key(0), REPLICATES)


@pytest.mark.thorough
def test_its_own_family_is_accepted_and_another_rejected(found):
    assert (found.process_p[:2] > 0.05).all()
    assert found.process_p[2] == 0.5 / (REPLICATES + 1)
    np.testing.assert_allclose(found.copula.theta[:2], 2.0, rtol=0.2)
    np.testing.assert_allclose(found.distance, np.sqrt(found.process / N))
    assert (found.n == N).all()


def test_the_papers_statistic_is_a_plain_sum(sample):
    x, y = sample
    u, v = ((each.argsort().argsort() + 1) / (N + 1) for each in (x, y))
    gaps = plain_copula(x, y) - np.asarray(Gumbel(2.0).cdf(u, v))
    assert paper_statistic(Gumbel(2.0), x, y, jax.random.key(0)) == pytest.approx(np.sqrt(N) * (gaps**2).mean())
    # Ties are broken at random: a constant is as good as independent.
    constant = np.full(N, 0.5)
    near, far = (paper_statistic(Gumbel(theta), constant, y, jax.random.key(0)) for theta in (1.0, 2.0))
    assert near < 0.01 < far


@pytest.mark.parametrize(
    ("benchmark", "task"), [("mmlu", "choice"), pytest.param("triviaqa", "generation", marks=pytest.mark.thorough)]
)
def test_published_statistics(shared_data, shared_reference, benchmark, task):
    published = json.loads((shared_reference / "published_tables.json").read_text())["copula_sqrt_n_cvm_mean"]

    @jax.jit
    def statistic(x, y, key):
        return paper_statistic(Gumbel.from_tau(kendall_tau(x, y, jnp.ones(x.shape, bool))), x, y, key)

    for models, figure in published[benchmark].items():
        path = shared_data / f"{benchmark}_{models}_test.csv"
        log = rcjax.read_log(path, prices=shared_data / "prices.toml", task=task)
        columns = log.logprob.T
        figures = [statistic(columns[i], columns[j], jax.random.key(i)) for i, j in pairs(len(log.models))]
        assert np.mean(figures) == pytest.approx(figure, abs=0.004)
