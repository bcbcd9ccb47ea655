"""Copulas and models as distributions of TensorFlow Probability on JAX (`tensorflow_probability.substrates.jax`).

>>> import jax
>>> from tensorflow_probability.substrates.jax import distributions as tfd
>>> from rcjax.copulas import Gumbel
>>> pair = TFPCopula(Gumbel(2.0), (tfd.Normal(0.0, 1.0), tfd.Exponential(1.0)))
>>> pair.sample(3, seed=jax.random.key(0)).shape, pair.event_shape
((3, 2), TensorShape([2]))

`rcjax.model.likelihood` defines the log density of a model's point masses. Releases up to 0.25 do not run on the JAX
that rcjax needs; `tfp-nightly` does (tested with 0.26.0.dev20261027 on JAX 0.10.2).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.codec import require_instance
from rcjax._base.extras import how_to_install, import_extra
from rcjax.copulas import Copula
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.interop import Pair, Uniform

try:
    tfp = import_extra("tensorflow_probability.substrates.jax", extra="tfp")
except AttributeError as error:  # JAX is newer than tensorflow_probability
    raise ImportError(f"this tensorflow_probability is too old ({error}): {how_to_install('tfp')}") from error
tfb, tfd = tfp.bijectors, tfp.distributions


class _TFPLaw(tfd.Distribution):
    """A pytree and distribution of vectors that takes density and draws from a `Pair` or a `Chain`."""

    law: Any  # a pair, or a chain

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _flatten, lambda others, fields: cls(*fields, **dict(others)))

    def __getitem__(self, slices: Any) -> Any:
        raise TypeError("a batch of copulas cannot be sliced: take a slice of their parameters")

    @classmethod
    def _parameter_properties(cls, dtype: Any, num_classes: Any = None) -> dict[str, Any]:
        return {}  # the parameters are pytrees, which the base class cannot describe

    def _batch_shape(self) -> Any:
        return self.law.batch_shape

    def _batch_shape_tensor(self) -> Any:
        return np.array(self.law.batch_shape, np.int32)

    def _event_shape(self) -> Any:
        return (self.law.size,)

    def _event_shape_tensor(self) -> Any:
        return np.array([self.law.size], np.int32)

    def _sample_n(self, n: Any, seed: jax.Array) -> jax.Array:
        return self.law.sample(seed, (int(n),))

    def _log_prob(self, value: jax.Array) -> jax.Array:
        return self.law.log_prob(value)


def _flatten(distribution: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    options = ("validate_args", "allow_nan_stats", "name")
    fields = tuple(value for name, value in distribution.parameters.items() if name not in options)
    return fields, tuple((name, distribution.parameters[name]) for name in options)


class TFPCopula(_TFPLaw):
    """A distribution of pairs (x, y) with two marginals, joined by a copula.

    Args:
        copula: copula of the pair; array-valued parameters are a batch.
        marginals: two univariate distributions of TensorFlow Probability that have a `cdf` and a `quantile`; None:
            uniform margins, for a distribution of ranks.
        validate_args, allow_nan_stats, name: options of every distribution of TensorFlow Probability.

    Raises TypeError for other objects, and for distributions of vectors.

    >>> from rcjax.copulas import Gaussian
    >>> standard = tfd.Normal(0.0, 1.0)
    >>> round(float(TFPCopula(Gaussian(0.0), (standard, standard)).log_prob(jnp.zeros(2))), 4)  # −log 2π
    -1.8379
    """

    def __init__(
        self,
        copula: Copula,
        marginals: tuple[Any, Any] | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "TFPCopula",
    ) -> None:
        options = {"validate_args": validate_args, "allow_nan_stats": allow_nan_stats, "name": name}
        parameters = {"copula": copula, "marginals": marginals, **options}
        self.law = Pair.join(copula, marginals)
        kind = jnp.result_type(float), tfd.FULLY_REPARAMETERIZED
        super().__init__(*kind, parameters=parameters, **options)

    def _default_event_space_bijector(self) -> Any:
        return _entries(
            [
                tfb.Sigmoid() if isinstance(margin, Uniform) else margin.experimental_default_event_space_bijector()
                for margin in self.law.margins
            ]
        )


class TFPCascade(_TFPLaw):
    """Calibrated confidences (φ_1 … φ_k) of a cascade through all models of a `CascadeModel`, in their order.

    Args:
        model: a fitted model (`rcjax.fit`); a leading axis of all its arrays is a batch.
        validate_args, allow_nan_stats, name: options of every distribution of TensorFlow Probability.

    >>> import rcjax
    >>> TFPCascade(rcjax.demo_model()).sample(100, seed=jax.random.key(0)).shape
    (100, 5)
    """

    def __init__(
        self, model: CascadeModel, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "TFPCascade"
    ) -> None:
        options = {"validate_args": validate_args, "allow_nan_stats": allow_nan_stats, "name": name}
        require_instance(model, CascadeModel, "model")
        self.model = model
        kind = jnp.result_type(float), tfd.NOT_REPARAMETERIZED
        super().__init__(*kind, parameters={"model": model, **options}, **options)

    @property
    def law(self) -> Any:
        """The chain of the confidences."""
        return self.model.chain

    def _default_event_space_bijector(self) -> Any:
        raise NotImplementedError("these values have point masses, which no transformation of the reals has")


def _entries(bijectors: list[Any]) -> Any:
    """Combine bijectors of numbers, one for each entry of the last axis, into a bijector of vectors."""

    def over_entries(method: str) -> Any:
        return lambda x: jnp.stack([getattr(bijector, method)(x[..., j]) for j, bijector in enumerate(bijectors)], -1)

    def log_determinant(method: str) -> Any:
        def total(x: jax.Array) -> jax.Array:
            terms = [getattr(bijector, method)(x[..., j], event_ndims=0) for j, bijector in enumerate(bijectors)]
            return jnp.stack(jnp.broadcast_arrays(*terms), -1).sum(-1)

        return total

    return tfb.Inline(
        forward_fn=over_entries("forward"),
        inverse_fn=over_entries("inverse"),
        forward_log_det_jacobian_fn=log_determinant("forward_log_det_jacobian"),
        inverse_log_det_jacobian_fn=log_determinant("inverse_log_det_jacobian"),
        forward_min_event_ndims=1,
    )
