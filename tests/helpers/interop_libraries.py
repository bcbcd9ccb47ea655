"""NumPyro and TensorFlow Probability under the same names, for tests that hold for both."""

import importlib

import jax
import pytest

NAMES = ("numpyro", "tfp")
_HOMES = {"numpyro": "numpyro", "tfp": "tensorflow_probability.substrates.jax"}


class Library:
    """One library: its distributions, rcjax's classes for it, and its calls for draws and for unconstrained reals."""

    def __init__(self, name):
        self.name = name
        home = pytest.importorskip(_HOMES[name], reason=f"{_HOMES[name]} is not installed")
        self.dist = home.distributions
        ours, prefix = (
            importlib.import_module(f"rcjax.model.interop.{name}"),
            {"numpyro": "NumPyro", "tfp": "TFP"}[name],
        )
        self.copula, self.cascade = getattr(ours, f"{prefix}Copula"), getattr(ours, f"{prefix}Cascade")

    def normal(self, mean, scale):
        return self.dist.Normal(mean, scale)

    def student_t(self, degrees):
        return self.dist.StudentT(degrees, 0.0, 1.0)

    def sample(self, distribution, seed, shape):
        key = jax.random.key(seed)
        return distribution.sample(key, shape) if self.name == "numpyro" else distribution.sample(shape, seed=key)

    def from_reals(self, distribution):
        """(function from vectors of reals to the support, log of its Jacobian's determinant)."""
        if self.name == "numpyro":
            transform = self.dist.biject_to(distribution.support)
            return transform, lambda x: transform.log_abs_det_jacobian(x, transform(x))
        bijector = distribution.experimental_default_event_space_bijector()
        return bijector.forward, lambda x: bijector.forward_log_det_jacobian(x, event_ndims=1)
