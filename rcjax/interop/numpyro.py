"""Copulas and models as distributions of NumPyro, for `numpyro.sample`, with gradients for its samplers.

>>> import jax, numpyro
>>> from numpyro import distributions as dist
>>> from rcjax.copulas import Gumbel
>>> pair = CopulaDistribution(Gumbel(2.0), (dist.Normal(0.0, 1.0), dist.Exponential(1.0)))
>>> pair.sample(jax.random.key(0), (3,)).shape, pair.event_shape
((3, 2), (2,))

What log_prob is where marginals have point masses is said at the head of `rcjax.model.chain`.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._base.checks import instance
from rcjax._base.extras import required
from rcjax.copulas import Copula, OneOf
from rcjax.interop import Uniform, pair
from rcjax.model import chain as chains
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.chain import Chain
from rcjax.model.marginals import Marginal

dist = required("numpyro.distributions", extra="posterior")
constraints = required("numpyro.distributions.constraints", extra="posterior")
transforms = required("numpyro.distributions.transforms", extra="posterior")
validate_sample = required("numpyro.distributions.util", extra="posterior").validate_sample


class _Supported(constraints.ParameterFreeConstraint):
    """Copulas whose parameters lie in their family's supports."""

    def __call__(self, x: Any) -> Any:
        if isinstance(x, OneOf):
            return jnp.all(jnp.stack([jnp.all(self(member)) for member in x.members]))
        inside = [(getattr(x, name) >= low) & (getattr(x, name) <= high) for name, (low, high) in x.supports.items()]
        return jnp.all(jnp.stack([jnp.all(part) for part in inside])) if inside else jnp.asarray(True)


class _EntryWise:
    """One of NumPyro's objects for each entry of the last axis, as one of vectors."""

    def __init__(self, entries: tuple[Any, ...]) -> None:
        self.entries = entries

    def tree_flatten(self) -> Any:
        return (self.entries,), (("entries",), {})

    def eq(self, other: Any, static: bool = False) -> Any:
        same = type(other) is type(self) and len(self.entries) == len(other.entries)
        return same and all(one.eq(two, static=static) for one, two in zip(self.entries, other.entries, strict=True))


class _Entries(_EntryWise, constraints.Constraint):
    """A constraint for each entry of the last axis."""

    event_dim = 1

    def __call__(self, x: Any) -> Any:
        return jnp.stack([entry(x[..., j]) for j, entry in enumerate(self.entries)], -1).all(-1)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.stack([entry.feasible_like(prototype[..., j]) for j, entry in enumerate(self.entries)], -1)


class _EntriesTransform(_EntryWise, transforms.ParameterFreeTransform):
    """A transformation for each entry of the last axis."""

    domain, codomain = constraints.real_vector, constraints.real_vector

    def __call__(self, x: Any) -> Any:
        return jnp.stack([entry(x[..., j]) for j, entry in enumerate(self.entries)], -1)

    def _inverse(self, y: Any) -> Any:
        return jnp.stack([entry.inv(y[..., j]) for j, entry in enumerate(self.entries)], -1)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        terms = [entry.log_abs_det_jacobian(x[..., j], y[..., j]) for j, entry in enumerate(self.entries)]
        return jnp.stack(jnp.broadcast_arrays(*terms), -1).sum(-1)


class _Observed(_Entries):
    """What can be observed alone: its values have point masses, which no transformation of the reals has."""


@transforms.biject_to.register(_Observed)
def _biject_to_observed(constraint: _Observed) -> None:
    raise NotImplementedError("these values have point masses: they can be observed (obs=), but not sampled by NUTS")


@transforms.biject_to.register(_Entries)
def _biject_to_entries(constraint: _Entries) -> _EntriesTransform:
    return _EntriesTransform(tuple(transforms.biject_to(entry) for entry in constraint.entries))


class _NumpyroChain(dist.Distribution):
    """A chain of margins and copulas as a distribution of vectors."""

    if TYPE_CHECKING:  # what the classes below say of themselves

        def _chain(self) -> Chain: ...

        def _massed(self) -> bool: ...

    def _set_up(self, validate_args: bool | None) -> None:
        chain = self._chain()
        super().__init__(chain.batch_shape, (chain.size,), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """Each margin's own support: from φ_min to φ_max of a `Marginal`."""
        entries = tuple(entry for margin in self._chain().margins for entry in _supports(margin))
        return _Observed(entries) if self._massed() else _Entries(entries)

    @property
    def has_rsample(self) -> bool:
        """Whether draws are differentiable in the parameters: not where margins have point masses."""
        return not self._massed()

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws of shape (*sample_shape, *batch_shape, k)."""
        return chains.sample(self._chain(), key, sample_shape)

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        """Log density of values (…, k), with masses as at the head of `rcjax.model.chain`."""
        return chains.log_prob(self._chain(), value)


class CopulaDistribution(_NumpyroChain):
    """Pairs (x, y) with two marginals, joined by a copula.

    Args:
        copula: the copula; arrays of parameters are a batch.
        marginals: two univariate distributions of NumPyro that have a `cdf` and an `icdf`, or a model's
            `rcjax.model.marginals.Marginal`s; None: uniform ones, so that it is a distribution of ranks.
        validate_args: as of every distribution of NumPyro.

    Raises TypeError for what is neither, ValueError for parameters outside their support.

    >>> from rcjax.copulas import Gaussian
    >>> standard = dist.Normal(0.0, 1.0)
    >>> round(float(CopulaDistribution(Gaussian(0.0), (standard, standard)).log_prob(jnp.zeros(2))), 4)  # −log 2π
    -1.8379
    """

    arg_constraints = {"copula": _Supported()}  # noqa: RUF012 - as NumPyro has it
    pytree_data_fields = ("copula", "marginals")
    reparametrized_params = ["copula"]  # noqa: RUF012

    def __init__(
        self, copula: Copula, marginals: tuple[Any, Any] | None = None, *, validate_args: bool | None = None
    ) -> None:
        self.copula, self.marginals = copula, marginals
        self._set_up(validate_args)

    def _chain(self) -> Chain:
        return pair(self.copula, self.marginals)

    def _massed(self) -> bool:
        return chains.have_masses(*(self.marginals or ()))


class CascadeDistribution(_NumpyroChain):
    """The calibrated confidences (φ_1 … φ_k) of a cascade through all models of a model, in their order.

    Args:
        model: what `rcjax.fit` gives. A leading axis of all its arrays is a batch.
        validate_args: as of every distribution of NumPyro.

    >>> import rcjax
    >>> CascadeDistribution(rcjax.demo_model()).sample(jax.random.key(0), (100,)).shape
    (100, 5)
    """

    arg_constraints = {}  # noqa: RUF012
    pytree_data_fields = ("model",)

    def __init__(self, model: CascadeModel, *, validate_args: bool | None = None) -> None:
        instance(model, CascadeModel, "model")
        self.model = model
        self._set_up(validate_args)

    def _chain(self) -> Chain:
        return chains.through(self.model.marginals, self.model.copulas)

    def _massed(self) -> bool:
        return chains.have_masses(self.model.marginals)


def _supports(margin: Any) -> list[Any]:
    """Constraints of the entries of a chain that are a margin's."""
    if isinstance(margin, Uniform):
        return [constraints.unit_interval]
    if isinstance(margin, Marginal):
        ends = jnp.moveaxis(jnp.asarray(margin.lowest), -1, 0), jnp.moveaxis(jnp.asarray(margin.highest), -1, 0)
        return [constraints.interval(low, high) for low, high in zip(*ends, strict=True)]
    return [margin.support]
