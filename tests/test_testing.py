"""check_copula passes what keeps the contract, and of what breaks it names the law and the point."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

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


class Tails(Clayton):
    """More than a probability."""

    def tail_dependence(self):
        lower, upper = super().tail_dependence()
        return 2 * lower, upper


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


#: The law each of them breaks, in the words of the report, and the member at which it is looked at.
BROKEN = [
    (Ungrounded(0.1), "C(u, 0) = 0 fails at u = "),
    (Ungrounded(0.1), "C(0, v) = 0 fails at u = 1e-12, v = "),
    (Margin(0.5), "C(1, v) = v fails at u = 1, v = "),
    (Wide(1.5), "2-increasing (the volume of the cell below) fails at u = "),
    (Wide(1.5), "conditional within [0, 1] fails at u = "),
    (Inverse(2.0), "conditional(u, inverse_conditional(u, p)) = p, with v = p, fails at u = "),
    (Density(2.0), "exp(log_density) is ∂²C/∂u∂v fails at u = "),
    (Density(2.0), "the density between quantiles 0.01 and 0.99 of V has mass 0.98 fails at u = "),
    (Falling(2.0), "conditional_on_v monotone fails at u = "),
    (Tau(2.0), "tau() is 4 E[C(U, V)] − 1 fails at "),
    (Sample(2.0), "samples have the τ fails at "),
    (Tails(2.0), "tail dependence within [0, 1] fails at "),
    (FromTau(6.0), "from_tau(0.75) has τ "),
    (Corner(2.0), "gradients of cdf are finite fails at u = "),
    (Half(), "cdf in float32 keeps its type fails at u = "),
    (Seen(2.0), "vmap and jit change conditional, at u = "),
]
#: The report on each member, made once: most of a check is compilation.
REPORTS = {}


def report(copula):
    key = repr(copula)
    if key not in REPORTS:
        try:
            check_copula(copula)
        except AssertionError as failure:
            REPORTS[key] = str(failure)
        else:
            REPORTS[key] = "nothing"
    return REPORTS[key]


@pytest.mark.thorough
@pytest.mark.parametrize(("copula", "law"), BROKEN, ids=str)
def test_a_broken_law_is_named_with_its_point(copula, law):
    text = report(copula)
    assert text.startswith(f"{type(copula).__name__} is no copula as it stands:\n- ")
    line = next((line for line in text.splitlines() if line.startswith(f"- {law}")), None)
    assert line is not None, text
    if "theta" in type(copula).supports and "from_tau" not in law:
        theta = f"{float(copula.theta):.6g}"
        assert f"theta = {theta}" in line
        assert re.search(r"u = [\d.e-]+, v = [\d.e-]+", line)


def test_the_worst_point_is_named():
    # h = v (1 + θ (1 − 2u)(1 − v)) leaves [0, 1] most at u = 1, v = 1/6 and at u = 0, v = 5/6, between grid points.
    line = next(line for line in report(Wide(1.5)).splitlines() if line.startswith("- conditional within"))
    u, v = (float(number) for number in re.findall(r"[uv] = ([\d.e-]+),", line))
    assert min(u, 1 - u) < 1e-8
    assert v == (0.1 if u > 0.5 else 0.9)


UNUSABLE = {
    Python: "cdf(u, v) cannot be traced by jax: ",
    Rigid: "cdf(u, v) of shapes (3, 1) and (2,) has shape (); it must have (3, 2)",
}


@pytest.mark.parametrize("family", UNUSABLE)
def test_a_cdf_that_jax_cannot_use_is_said_at_once(family):
    text = report(family(0.5))
    assert text.count("\n- ") == 1
    assert UNUSABLE[family] in text


def test_a_class_without_a_cdf_says_so():
    class Empty(Copula):
        pass

    with pytest.raises(AssertionError, match=r"TypeError: Empty defines no cdf\(self, u, v\)"):
        check_copula(Empty())


@pytest.mark.thorough
def test_a_member_and_a_batch_that_keep_the_contract_pass():
    check_copula(Independence())
    check_copula(Gumbel(np.array([[1.0, 3.0], [8.0, 50.0]])))
