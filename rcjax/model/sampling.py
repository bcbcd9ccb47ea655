"""Confidences drawn from a model by their number."""

import jax

from rcjax._base.arguments import check_arguments
from rcjax.model.cascade_model import CascadeModel


def sample_confidences(model: CascadeModel, key: jax.Array, n: int) -> jax.Array:
    """(n, k) calibrated confidences drawn from the chain through all models, in their order: `CascadeModel.sample`."""
    check_arguments(sample_confidences, locals())
    return model.sample(key, (n,))
