"""check_copula passes what keeps the contract, and of what breaks it names the law and the point."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from rcjax import copulas
from rcjax.copulas import Clayton, Copula, Gumbel, Independence, param
from rcjax.testing import check_copula


class Ungrounded(Copula):
    """C(u, 0) is not 0."""

    theta: jax.Array = param(0.1, support=(0.0, 1.0))

    def cdf(self, u, v):
        return u * v + self.theta * (1 - u) * (1 - v)


class Margin(Copula):
    """V is not uniform."""

    theta: jax.Array = param(0.5, support=(0.1, 2.0))

    def cdf(self, u, v):
        return u * v**self.theta


class Wide(Copula):
    """FGM where its θ is not held to [−1, 1]: at 1.5 it puts negative mass into the corners."""

    theta: jax.Array = 1.5  # pyright: ignore[reportAssignmentType]

    def cdf(self, u, v):
        return u * v * (1 + self.theta * (1 - u) * (1 - v))


class Python(Copula):
    """An `if` that jax cannot trace."""

    theta: jax.Array = param(0.5, support=(0.0, 1.0))

    def cdf(self, u, v):
        return u * v if u < v else v * u  # pyright: ignore[reportOperatorIssue]


class Rigid(Copula):
    """Its values do not broadcast."""

    theta: jax.Array = param(0.5, support=(0.0, 1.0))

    def cdf(self, u, v):
        return jnp.sum(u) * jnp.sum(v)


class Inverse(Clayton):
    """The inverse of another θ."""

    def inverse_conditional(self, u, p):
        return Clayton(self.theta + 1).inverse_conditional(u, p)


class Density(Clayton):
    """A constant forgotten."""

    def log_density(self, u, v):
        return super().log_density(u, v) - jnp.log1p(self.theta)


class Falling(Clayton):
    """P(V > v) for P(V ≤ v)."""

    def conditional_on_v(self, u, v):
        return 1 - super().conditional_on_v(u, v)


class Tau(Clayton):
    """Spearman's ρ, say."""

    def tau(self):
        return 1.4 * super().tau()


class Sample(Clayton):
    """Draws of another θ."""

    def sample(self, key, shape=()):
        return Clayton(3 * self.theta).sample(key, shape)


class FromTau(Clayton):
    """Gumbel's."""

    @classmethod
    def from_tau(cls, tau):
        return cls(1 / (1 - jnp.clip(tau, 0.0, cls.MAX_TAU)))


class Corner(Clayton):
    """A gradient that is infinite or NaN in a corner, though no value is."""

    def cdf(self, u, v):
        return super().cdf(u, v) + 0 * jnp.sqrt(jnp.maximum(self.theta - 2, 0.0)) * u


class Half(Independence):
    """Half precision where it is given single precision."""

    def cdf(self, u, v):
        product = jnp.asarray(u * v)
        return product.astype(jnp.float16) if product.dtype == jnp.float32 else product


class Seen(Clayton):
    """Another value under vmap and jit than alone: it looks whether jax traces."""

    def conditional(self, u, v):
        h = super().conditional(u, v)
        return h if isinstance(self.theta, Tracer) else h**2


class NoNumber(Clayton):
    """A log-density that is no number near (1, 1)."""

    def log_density(self, u, v):
        return jnp.where(jnp.minimum(u, v) > 1 - 1e-5, jnp.nan, super().log_density(u, v))


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
    """The formula as printed (Joe 2014, 4.9): powers of small numbers overflow."""

    theta: jax.Array = param(1.0, support=(0.05, float("inf")))

    def cdf(self, u, v):
        x, y = -jnp.log(u), -jnp.log(v)
        return u * v * jnp.exp((x**-self.theta + y**-self.theta) ** (-1 / self.theta))


class Galambos(NaiveGalambos):
    """The same formula in log-space."""

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


class Fading(Clayton):
    """No number where dependence is stronger than τ = 0.97: a class is looked at as far as a fit goes."""

    def cdf(self, u, v):
        return jnp.where(self.theta > 65, jnp.nan, super().cdf(u, v))


#: The law each of them breaks, in the words of the report, and the member at which it is looked at.
BROKEN = [
    (Ungrounded(0.1), r"C\(u, 0\) = 0 fails at u = "),
    (Ungrounded(0.1), r"C\(0, v\) = 0 fails at u = 1e-12, v = "),
    (Margin(0.5), r"C\(1, v\) = v fails at u = 1, v = .*theta = 0\.5"),
    (Wide(1.5), r"2-increasing \(the volume of the cell below\) fails at u = "),
    (Wide(1.5), r"conditional within \[0, 1\] fails at u = "),
    (Inverse(2.0), r"conditional\(u, inverse_conditional\(u, p\)\) = p, with v = p, fails at u = "),
    (Density(2.0), r"exp\(log_density\) is ∂²C/∂u∂v fails at u = "),
    (Density(2.0), r"the density between quantiles 0\.01 and 0\.99 of V has mass 0\.98 fails at u = "),
    (Falling(2.0), r"conditional_on_v monotone fails at u = "),
    (Tau(2.0), r"tau\(\) is 4 E\[C\(U, V\)\] − 1 fails at "),
    (Sample(2.0), r"samples have the τ fails at "),
    (FromTau(6.0), r"from_tau\(0\.75\) has τ "),
    (Corner(2.0), r"gradients of cdf are finite fails at u = "),
    (Half(), r"cdf in float32 keeps its type fails at u = "),
    (Seen(2.0), r"vmap and jit change conditional, at u = "),
    # Faults that were passed once.
    (NoNumber(2.0), r"log_density is a number, or −∞ fails at u = 0\.999999, v = 0\.999999, theta = 2: nan"),
    (Dent(), r"2-increasing \(the volume of the narrow cell below\) fails at u = 0\.[23]\d+, v = 0\.[23]\d+, "),
    (Tawn(3.0), r"exchangeable: C\(u, v\) = C\(v, u\) fails at u = "),
    (NaiveGalambos(70.0), r"gradients of cdf are finite fails at u = "),
    (Fading, r"(C\(u, 0\) = 0 fails at .*theta = 302: nan|.*theta = 300: nan)"),
]
#: The report on each member, made once: most of a check is compilation.
REPORTS = {}


def report(copula):
    key = repr(copula)
    if key not in REPORTS:
        with pytest.raises(AssertionError) as failure:
            check_copula(copula)
        REPORTS[key] = str(failure.value)
    return REPORTS[key]


@pytest.mark.thorough
@pytest.mark.parametrize(("copula", "line"), BROKEN, ids=str)
def test_a_broken_law_is_named_with_its_point(copula, line):
    text, family = report(copula), copula if isinstance(copula, type) else type(copula)
    assert text.startswith(f"{family.__name__} is not a copula as it stands:\n- ")
    assert re.search(f"^- {line}", text, re.MULTILINE), text


def test_only_failed_laws_are_named_with_their_worst_point():
    # h = v (1 + θ (1 − 2u)(1 − v)) leaves [0, 1] most at u = 1, v = 1/6 and at u = 0, v = 5/6, between grid points.
    laws = [
        "C(u, v) ≤ min(u, v)",
        *(f"2-increasing (the volume of the {cell} below)" for cell in ("cell", "narrow cell")),
    ]
    laws += [f"{name} {law}" for name in ("conditional", "conditional_on_v") for law in ("within [0, 1]", "monotone")]
    laws += ["∂²C/∂u∂v ≥ 0", "exp(log_density) is ∂²C/∂u∂v", "log_density is a number, or −∞"]
    lines = report(Wide(1.5)).splitlines()[1:]
    assert [line.partition(" fails at")[0] for line in lines] == [f"- {law}" for law in laws]
    line = lines[3]
    u, v = (float(number) for number in re.findall(r"[uv] = ([\d.e-]+),", line))
    assert min(u, 1 - u) < 1e-8
    assert v == (0.1 if u > 0.5 else 0.9)


UNUSABLE = {
    Python: "cdf(u, v) cannot be traced by jax: ",
    Rigid: "cdf(u, v) of shapes (3, 1) and (2,) has shape (); it must have (3, 2)",
}


@pytest.mark.parametrize("family", UNUSABLE)
def test_a_cdf_that_jax_cannot_trace_is_refused_at_once(family):
    text = report(family(0.5))
    assert text.count("\n- ") == 1
    assert UNUSABLE[family] in text


def test_a_class_without_a_cdf_is_refused():
    class Empty(Copula):
        pass

    assert Margin(0.5).log_density(0.5, np.array([-0.1, 1.5])).tolist() == [-np.inf] * 2  # of one with a cdf alone
    with pytest.raises(AssertionError, match=r"TypeError: Empty defines no cdf\(self, u, v\)"):
        check_copula(Empty())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "copula",
    [
        *(Independence(), Gumbel(np.array([[1.0, 3.0], [8.0, 50.0]])), Fading(60.0), Galambos(20.0), OnlyCdf(50.0)),
        copulas.Tawn(np.array([20.0, 50.0]), 0.3, 0.9),  # a ridge that begins between quantiles was once an accusation
    ],
    ids=str,
)
def test_a_family_that_keeps_the_contract_passes(copula):
    """Also a batch, and a family given by its cdf alone where dependence is strong."""
    check_copula(copula)
