"""Faults that check_copula once passed, each caught with its law and point; and what it once refused."""

# Parameters are annotated as arrays.
# pyright: reportArgumentType=false, reportCallIssue=false

import re

import jax
import jax.numpy as jnp
import pytest

from rcjax.copulas import Clayton, Copula, Gumbel, Independence, param
from rcjax.testing import check_copula


class NoNumber(Clayton):
    """A log-density that is no number near (1, 1)."""

    def log_density(self, u, v):
        return jnp.where(jnp.minimum(u, v) > 1 - 1e-5, jnp.nan, super().log_density(u, v))


class OtherTail(Clayton):
    """The tail dependence of the other corner."""

    def tail_dependence(self):
        return super().tail_dependence()[::-1]


class Dent(Independence):
    """A density below 0 in a dent between 0.27 and 0.38, where few look."""

    def cdf(self, u, v):
        def bump(t):
            return jnp.maximum((t - 0.27) * (0.38 - t), 0.0) ** 3 * 1e6

        return u * v + 2 * bump(u) * bump(v)


class Tawn(Copula):
    """Not exchangeable (Tawn 1988), though it says so."""

    exchangeable = True
    theta: jax.Array = param(3.0, support=(1.0, 20.0))

    def cdf(self, u, v):
        x, y = -jnp.log(u), -jnp.log(v)
        return u**0.7 * v**0.1 * jnp.exp(-(((0.3 * x) ** self.theta + (0.9 * y) ** self.theta) ** (1 / self.theta)))


class NaiveGalambos(Copula):
    """As it is printed (Joe 2014, 4.9): powers of small numbers that overflow."""

    theta: jax.Array = param(1.0, support=(0.05, float("inf")))

    def cdf(self, u, v):
        x, y = -jnp.log(u), -jnp.log(v)
        return u * v * jnp.exp((x**-self.theta + y**-self.theta) ** (-1 / self.theta))


class Galambos(NaiveGalambos):
    """In log-space."""

    def cdf(self, u, v):
        x, y = -jnp.log(u), -jnp.log(v)
        apart = jnp.maximum(x, y) / jnp.minimum(x, y)
        gain = jnp.minimum(x, y) * jnp.exp(-jnp.log1p(apart**-self.theta) / self.theta)
        return jnp.exp(gain - x - y)


class OnlyCdf(Copula):
    """Gumbel's, of which nothing but the cdf is known."""

    theta: jax.Array = param(2.0, support=(1.0, float("inf")))

    def cdf(self, u, v):
        return Gumbel(self.theta).cdf(u, v)


def report(copula):
    with pytest.raises(AssertionError) as failure:
        check_copula(copula)
    return str(failure.value)


FAULTS = [
    (NoNumber(2.0), r"log_density is a number, or −∞ fails at u = 0\.999999, v = 0\.999999, theta = 2: nan"),
    (
        OtherTail(2.0),
        r"tail dependence \(lower\) is the limit of the diagonal fails at u = 1e-09, v = 1e-09, theta = 2: 0",
    ),
    (Dent(), r"2-increasing \(the volume of the narrow cell below\) fails at u = 0\.[23]\d+, v = 0\.[23]\d+, "),
    (Tawn(3.0), r"exchangeable: C\(u, v\) = C\(v, u\) fails at u = "),
    (NaiveGalambos(40.0), r"tail dependence \(upper\) is the limit of the diagonal fails at u = 0\.999999999, "),
    (NaiveGalambos(70.0), r"gradients of cdf are finite fails at u = "),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("copula", "line"), FAULTS, ids=lambda value: str(value) if isinstance(value, Copula) else "")
def test_a_fault_is_named_with_its_point(copula, line):
    text = report(copula)
    assert re.search(f"^- {line}", text, re.MULTILINE), text


@pytest.mark.thorough
def test_a_family_is_looked_at_as_far_as_a_fit_goes():
    class Fading(Clayton):
        """No number where dependence is stronger than τ = 0.97."""

        def cdf(self, u, v):
            return jnp.where(self.theta > 65, jnp.nan, super().cdf(u, v))

    text = report(Fading)
    assert re.search(r"^- C\(u, 0\) = 0 fails at .*theta = 302: nan|theta = 300: nan", text, re.MULTILINE), text
    check_copula(Fading(60.0))


@pytest.mark.thorough
@pytest.mark.parametrize("copula", [Galambos(20.0), OnlyCdf(20.0), OnlyCdf(50.0)], ids=str)
def test_a_family_given_by_its_cdf_passes_where_dependence_is_strong(copula):
    check_copula(copula)
