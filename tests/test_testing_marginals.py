"""check_marginal passes what keeps the contract, and of what breaks it names the law and the point."""

# Parameters are annotated as arrays.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import pytest
from helpers.own_marginals import Kumaraswamy, LogitNormal, OneBeta
from tiers import thorough

from rcjax.model import BetaMixture, Marginal, param
from rcjax.testing import check_marginal


class Falling(Marginal):
    """It turns back in the middle."""

    depth: jax.Array = param(0.5, support=(0.0, 2.0))

    def smooth_cdf(self, x):
        return x + self.depth * jnp.sin(2 * jnp.pi * x)


class Python(Marginal):
    """An `if` that jax cannot trace."""

    def smooth_cdf(self, x):
        return x if x < 0.5 else x**1.0  # pyright: ignore[reportOperatorIssue]


class WrongMean(Kumaraswamy):
    """Its mean is that of a uniform law."""

    def smooth_mean_above(self, x):
        return (1 - jnp.asarray(x) ** 2) / 2


class WrongQuantile(Kumaraswamy):
    """Its quantile has a and b in each other's places."""

    def smooth_quantile(self, z):
        return (1 - (1 - jnp.asarray(z)) ** (1 / self.a)) ** (1 / self.b)


class WrongDensity(Kumaraswamy):
    """Its density lacks a factor."""

    def smooth_density(self, x):
        return self.b * jnp.asarray(x) ** (self.a - 1) * (1 - jnp.asarray(x) ** self.a) ** (self.b - 1)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Falling(depth=1.0), "smooth_cdf rises fails at x = "),
        (Python(), "smooth_cdf(x) cannot be traced by jax: ValueError: The truth value"),
        (WrongMean(a=2.0, b=3.0), "smooth_mean_above is ∫ₓ¹ t dG fails at x = 0.65, a = 2, b = 3: 0.28875, "),
        (WrongQuantile(a=2.0, b=3.0), "smooth_cdf(smooth_quantile(z)) = z, with x = z, fails at x = "),
        (WrongDensity(a=2.0, b=3.0), "smooth_density is the slope of smooth_cdf fails at x = "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Marginal) else "",
)
def test_the_law_that_fails_is_named_with_its_point(broken, law):
    with pytest.raises(AssertionError) as report:
        check_marginal(broken)
    assert law in str(report.value)


GOOD = [Kumaraswamy(a=0.7, b=2.0), Kumaraswamy, OneBeta, LogitNormal]


@pytest.mark.parametrize("good", thorough(GOOD, where=lambda row: isinstance(row, type)))
def test_a_marginal_passes(good):
    check_marginal(good)


@pytest.mark.thorough
def test_the_mixture_of_betas_keeps_the_contract():
    check_marginal(BetaMixture(proportion=jnp.array([0.3, 0.7]), a=jnp.array([2.0, 8.0]), b=jnp.array([5.0, 1.5])))


@pytest.mark.parametrize("method", ["cdf", "quantile", "profile", "sample"])
def test_what_is_made_of_masses_and_smooth_part_is_not_overridden_in_silence(method):
    with pytest.raises(TypeError, match=f"Own overrides {method}, .* define smooth_cdf"):
        type("Own", (Marginal,), {method: lambda self, x: x})
