"""The marginal of a confidence: its functions agree, its fit matches samples and the paper."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import rcjax
from rcjax.model.marginals import Marginal, cramer_von_mises, lay_out_probes
from rcjax.model.maximum_likelihood import BLOCK_SIZE, fit_beta_mixture, fit_marginal, stack_columns

pytestmark = pytest.mark.usefixtures("float64")

#: lowest, highest, masses, proportion, a, b: smooth, steep, U-shaped, tiny and huge masses.
CASES = (
    (0.2, 0.95, 0.1, 0.2, (0.3, 0.7), (2.0, 8.0), (5.0, 1.5)),
    (0.0, 1.0, 0.0, 0.0, (0.5, 0.5), (0.4, 3.0), (0.6, 1.0)),
    (0.4, 0.99, 0.01, 0.76, (0.9, 0.1), (1.0, 300.0), (1.0, 60.0)),
    (0.1, 0.8, 0.003, 0.003, (0.01, 0.99), (0.05, 20.0), (0.3, 4.0)),
)
#: A few high confidences among many low ones, or the other way about.
RARE = ((0.95, 0.05), (4.0, 1.2), (2.0, 30.0))
U = np.linspace(0.0, 1.0, 41)


def marginals():
    return Marginal(*(jnp.asarray(np.array(column, float)) for column in zip(*CASES, strict=True)))


def single(j):
    return jax.tree.map(lambda leaf: leaf[j], marginals())


def batched(method):
    return jax.jit(jax.vmap(method, in_axes=(0, None)))


cdf, density, quantile, mean_above = map(
    batched, (Marginal.cdf, Marginal.density, Marginal.quantile, Marginal.mean_above)
)
fit_batch = jax.jit(jax.vmap(fit_marginal))
distance = jax.jit(jax.vmap(cramer_von_mises))


def test_quantile_inverts_the_cdf_and_is_flat_at_the_masses():
    m, q = marginals(), np.asarray(quantile(marginals(), U))
    assert np.all(np.diff(q, axis=1) >= 0)
    back = np.asarray(jax.jit(jax.vmap(Marginal.cdf))(m, q))
    for j, (lowest, highest, bottom, top, *_) in enumerate(CASES):
        inside = (bottom < U) & (1 - top > U)
        np.testing.assert_allclose(back[j, inside], U[inside], atol=1e-9)
        assert np.all(q[j, bottom >= U] == lowest)
        assert np.all(q[j, 1 - top <= U] == highest)
        assert np.all(back[j] >= U - 1e-9)


@pytest.mark.parametrize(("a", "b"), [(1e5, 1e5), (300.0, 60.0), (3e3, 1.0)])
def test_probes_cover_every_component(a, b):
    own = Marginal(0.0, 1.0, 0.0, 0.0, jnp.array([0.5, 0.5]), jnp.array([a, 2.0]), jnp.array([b, 2.0]))
    assert np.diff(jax.jit(lay_out_probes)(own).components, axis=0).max() < 0.2


def test_cdf_is_the_mixture_of_scipys_betas():
    points = np.linspace(-0.1, 1.1, 61)
    for ours, (lowest, highest, bottom, top, share, a, b) in zip(cdf(marginals(), points), CASES, strict=True):
        x = np.clip((points - lowest) / (highest - lowest), 0, 1)
        smooth = sum(s * scipy.stats.beta(*shape).cdf(x) for s, *shape in zip(share, a, b, strict=True))
        expected = (points >= lowest) * (bottom + (1 - bottom - top) * smooth) + (points >= highest) * top
        np.testing.assert_allclose(ours, expected, atol=1e-11)


@pytest.mark.thorough
def test_density_is_the_slope_of_the_cdf_and_integrates_with_the_masses_to_one():
    points = np.linspace(0.41, 0.79, 33)
    slope = jax.jit(jax.vmap(jax.vmap(jax.grad(Marginal.cdf, argnums=1), (None, 0)), (0, None)))
    np.testing.assert_allclose(slope(marginals(), points), density(marginals(), points), rtol=1e-9, atol=1e-12)
    assert np.all(density(marginals(), np.array([-1.0, 2.0])) == 0)
    for j in (0, 2):
        lowest, highest, bottom, top, *_ = CASES[j]
        grid = np.linspace(lowest, highest, 20_002)
        middle = (grid[1:] + grid[:-1]) / 2
        total = np.asarray(jax.jit(Marginal.density)(single(j), middle)).mean() * (highest - lowest)
        assert total == pytest.approx(1 - bottom - top, abs=1e-6)


def test_mean_above_is_the_integral_of_the_tail():
    for j in (0, 2):
        lowest, highest, bottom, top, *_ = CASES[j]
        grid = np.linspace(lowest, highest, 4001)
        values = np.asarray(jax.jit(Marginal.density)(single(j), grid)) * grid
        for at in (-0.5, lowest, 0.5, 0.9, highest):
            start = np.clip(at, lowest, highest)
            fine = np.linspace(start, highest, 4001)
            tail = scipy.integrate.trapezoid(np.interp(fine, grid, values), fine)
            expected = tail + (at < highest) * top * highest + (at < lowest) * bottom * lowest
            assert float(mean_above(marginals(), np.array([at]))[j, 0]) == pytest.approx(expected, abs=2e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cdf", pytest.param("quantile", marks=pytest.mark.thorough), "mean_above"])
def test_gradients_in_every_parameter_agree_with_differences(name):
    method, at = getattr(Marginal, name), np.array([0.45, 0.6, 0.7])
    m = single(0)
    slopes = jax.jit(jax.jacrev(method))(m, at)
    evaluate, step = jax.jit(method), 1e-5
    for field in dataclasses.fields(Marginal):
        if field.name == "atoms":
            continue
        value = getattr(m, field.name)
        ours = np.asarray(getattr(slopes, field.name)).reshape(3, -1)
        for i in range(value.size):
            ends = [
                evaluate(
                    dataclasses.replace(m, **{field.name: value.ravel().at[i].add(h).reshape(value.shape)}),
                    at,
                )
                for h in (step, -step)
            ]
            np.testing.assert_allclose(ours[:, i], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_values_at_the_ends_have_finite_logarithms_and_many_go_in_blocks():
    x, there = np.linspace(0.0, 1.0, BLOCK_SIZE + 1), np.arange(BLOCK_SIZE + 1) > 0
    columns = stack_columns(jnp.asarray(x), jnp.asarray(there))
    assert columns.shape == (2, 3, BLOCK_SIZE)
    assert np.isfinite(columns).all()
    in_order = np.moveaxis(columns, 1, 0).reshape(3, -1)
    np.testing.assert_array_equal(in_order[0], np.pad(there, (0, BLOCK_SIZE - 1)))
    np.testing.assert_allclose(in_order[1:, 1 : len(x) - 1], [np.log(x[1:-1]), np.log1p(-x[1:-1])])


@pytest.mark.thorough
def test_fit_recovers_a_mixture():
    rng = np.random.default_rng(0)
    n = 8000
    inner = np.where(rng.uniform(size=n) < 0.3, rng.beta(2, 8, n), rng.beta(12, 3, n))
    values = np.where((mark := rng.uniform(size=n)) < 0.1, 0.2, np.where(mark > 0.8, 0.9, 0.2 + 0.7 * inner))
    m = jax.tree.map(lambda leaf: leaf[0], fit_batch(values[None], np.ones((1, n), bool)))
    assert (float(m.lowest), float(m.highest)) == (0.2, 0.9)
    assert float(m.mass_lowest) == (values == 0.2).mean()
    assert float(m.mass_highest) == (values == 0.9).mean()
    order = np.argsort(m.a)
    # Four standard errors or so of 5 600 inner values.
    np.testing.assert_allclose(m.proportion[order], [0.3, 0.7], atol=0.03)
    np.testing.assert_allclose(m.a[order], [2, 12], rtol=0.15)
    np.testing.assert_allclose(m.b[order], [8, 3], rtol=0.15)


def draw_mixture(mixture, n, seed=0):
    rng = np.random.default_rng(seed)
    component = rng.choice(2, n, p=mixture[0])
    return rng.beta(*(np.array(shape)[component] for shape in mixture[1:]))


def mean_log_likelihood(x, proportion, a, b):
    return np.log(sum(p * scipy.stats.beta(*shape).pdf(x) for p, *shape in zip(proportion, a, b, strict=True))).mean()


#: EM stops where a step gains less than 1e-9: even if steps shrink by as little as 0.1 % each, 1e-6 is out of reach.
UNCONVERGED = 1e-6


@pytest.mark.thorough
def test_the_fit_finds_a_rare_component():
    samples = np.stack([draw_mixture(RARE, 1000, seed) for seed in range(20)])
    fits = jax.jit(jax.vmap(fit_beta_mixture))(samples, np.ones(samples.shape, bool))
    for x, *fitted in zip(samples, *map(np.asarray, fits), strict=True):
        assert mean_log_likelihood(x, *fitted) >= mean_log_likelihood(x, *RARE) - UNCONVERGED


def test_degenerate_values_give_finite_fits():
    rows = (
        [0.7] * 6,
        [0.3, 0.3, 0.8, 0.8, 0.8, 0.3],
        [0.8, 0.9, 0.95, 0.9, 0.9, 0.8],
        [0.1, 0.5, 0.9, 0.1, 0.9, 0.9],
    )
    values = np.array([*rows, [0.4, 0.6, 0, 0, 0, 0], [0.5, 0, 0, 0, 0, 0]])
    answered = np.ones((6, 6), bool)
    answered[4, 2:] = answered[5, 1:] = False
    fitted = fit_batch(values, answered)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(fitted))
    for four in (slice(4), slice(2, 6)):  # as many as there are cases: compiled
        some = jax.tree.map(lambda leaf, four=four: leaf[four], fitted)
        for method in (cdf, density, quantile, mean_above):
            assert np.all(np.isfinite(method(some, U)))
        assert np.all(np.diff(cdf(some, U)) >= 0)
        assert np.all(np.diff(quantile(some, U)) >= 0)
    assert (float(fitted.mass_lowest[0]), float(fitted.mass_highest[0])) == (0, 1)
    assert (float(fitted.mass_lowest[1]), float(fitted.mass_highest[1])) == (0.5, 0.5)


@pytest.mark.thorough
def test_published_distances(shared_data, shared_reference):
    published = json.loads((shared_reference / "published_tables.json").read_text())
    gaps = []
    for benchmark, task in (("mmlu", "choice"), ("triviaqa", "generation")):
        for family in ("llama", "qwen_oai"):
            read = {"prices": shared_data / "prices.toml", "task": task}
            train = rcjax.read_log(shared_data / f"{benchmark}_{family}_train.csv", **read)
            test = rcjax.read_log(shared_data / f"{benchmark}_{family}_test.csv", **read).select(train.models)
            model = rcjax.fit(train)
            seen = model.calibrate(test.logprob).T
            for kind, m in (("trained", model.marginals), ("refitted", fit_batch(seen, test.answered.T))):
                for name, ours in zip(train.models, distance(m, seen), strict=True):
                    column = published[f"marginal_sqrt_cvm_{kind}"][benchmark]
                    gaps.append(float(ours) - column[published["models"].index(name)])
    assert len(gaps) == 36
    assert sum(abs(gap) <= 0.002 for gap in gaps) >= 30
    assert max(gaps) <= 0.005
