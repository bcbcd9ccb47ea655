"""Copulas and models as distributions of NumPyro, for `numpyro.sample`, with gradients for its samplers.

>>> import jax, numpyro
>>> from numpyro import distributions as dist
>>> from rcjax.copulas import Gumbel
>>> pair = NumPyroCopula(Gumbel(2.0), (dist.Normal(0.0, 1.0), dist.Exponential(1.0)))
>>> pair.sample(jax.random.key(0), (3,)).shape, pair.event_shape
((3, 2), (2,))

`rcjax.model.likelihood` defines the log density of a model's point masses.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._base.codec import require_instance
from rcjax._base.extras import import_extra
from rcjax.copulas import Copula
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.interop import Pair, Uniform

dist = import_extra("numpyro.distributions", extra="posterior")
constraints = import_extra("numpyro.distributions.constraints", extra="posterior")
transforms = import_extra("numpyro.distributions.transforms", extra="posterior")
validate_sample = import_extra("numpyro.distributions.util", extra="posterior").validate_sample


class _NumPyroLaw(dist.Distribution):
    """A NumPyro distribution of vectors that takes density and draws from a `Pair` or a `Chain`."""

    arg_constraints = {}  # noqa: RUF012 - as NumPyro has it; copulas check their own parameters
    pytree_data_fields = ("law",)
    law: Any  # a pair, or a chain

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw vectors: (*sample_shape, *batch_shape, k)."""
        return self.law.sample(key, tuple(sample_shape))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        """Return the log density of values (…, k)."""
        return self.law.log_prob(value)


class NumPyroCopula(_NumPyroLaw):
    """A distribution of pairs (x, y) with two marginals, joined by a copula.

    Args:
        copula: copula of the pair; array-valued parameters are a batch.
        marginals: two univariate distributions of NumPyro that have a `cdf` and an `icdf`; None: uniform margins, for a
            distribution of ranks.
        validate_args: NumPyro's check of arguments and values.

    Raises TypeError for other objects, and for distributions of vectors.

    >>> from rcjax.copulas import Gaussian
    >>> standard = dist.Normal(0.0, 1.0)
    >>> round(float(NumPyroCopula(Gaussian(0.0), (standard, standard)).log_prob(jnp.zeros(2))), 4)  # −log 2π
    -1.8379
    """

    def __init__(
        self, copula: Copula, marginals: tuple[Any, Any] | None = None, *, validate_args: bool | None = None
    ) -> None:
        self.law = Pair.join(copula, marginals)
        super().__init__(self.law.batch_shape, (2,), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """The product of the margins' supports."""
        supports = [
            constraints.unit_interval if isinstance(margin, Uniform) else margin.support for margin in self.law.margins
        ]
        ahead = [jax.tree.map(lambda bound: jnp.asarray(bound)[..., None], support) for support in supports]
        return constraints.independent(constraints.cat(ahead, dim=-1), 1)


class _Observed(constraints.Constraint):
    """Vectors of confidences: no transformation of the reals has their point masses."""

    event_dim = 1

    def __init__(self, low: jax.Array, high: jax.Array) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Any) -> Any:
        return ((x >= self.low) & (x <= self.high)).all(-1)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.broadcast_to(self.low, jnp.shape(prototype))

    def tree_flatten(self) -> Any:
        return (self.low, self.high), (("low", "high"), {})


@transforms.biject_to.register(_Observed)
def _biject_to_observed(constraint: _Observed) -> None:
    raise NotImplementedError("these values have point masses: they can be observed (obs=), but not sampled by NUTS")


class NumPyroCascade(_NumPyroLaw):
    """Calibrated confidences (φ_1 … φ_k) of a cascade through all models of a `CascadeModel`, in their order.

    Args:
        model: a fitted model (`rcjax.fit`); a leading axis of all its arrays is a batch.
        validate_args: NumPyro's check of arguments and values.

    >>> import rcjax
    >>> NumPyroCascade(rcjax.demo_model()).sample(jax.random.key(0), (3,)).shape
    (3, 5)
    """

    has_rsample = False  # point masses make draws non-differentiable

    def __init__(self, model: CascadeModel, *, validate_args: bool | None = None) -> None:
        require_instance(model, CascadeModel, "model")
        self.law = model.chain
        super().__init__(self.law.batch_shape, (self.law.size,), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """The box from φ_min to φ_max of every model."""
        return _Observed(self.law.marginals.lowest, self.law.marginals.highest)
