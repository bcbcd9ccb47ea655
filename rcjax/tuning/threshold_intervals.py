"""Intervals of thresholds from replicates, each of which is calibrated in its own way: on one scale of confidence."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.model.calibration import Calibrator

_LEAST_REPLICATES = 10  # that must have a threshold for its interval to be given


def threshold_intervals(frontier: Frontier, policies: Policies, calibrators: Calibrator, level: float) -> np.ndarray:
    """(G, k, 2) on the confidence scale of the frontier's model; NaN for a model that hardly any replicate defers.

    Args:
        frontier: whose thresholds have the intervals.
        policies: (B, G) those of the replicates, with thresholds in the confidence of theirs.
        calibrators: (B, k) of the replicates.
        level: of the intervals.
    """
    if frontier.thresholds is None:
        return np.full((*policies.members.shape[1:], 2), np.nan)
    cuts = jnp.asarray(policies.bounds)[..., -2]
    thresholds = np.asarray(on_scale(cuts, calibrators, frontier.model.calibrators), float)
    last = len(frontier.models) - 1 - np.asarray(policies.members)[..., ::-1].argmax(-1)
    defers = np.asarray(policies.members) & (np.arange(len(frontier.models)) != last[..., None])
    values = np.where(defers & np.isfinite(thresholds), thresholds, np.nan)
    enough = np.isfinite(values).sum(0) >= _LEAST_REPLICATES
    filled = np.where(enough, values, 0.5)
    ends = np.nanquantile(filled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.moveaxis(np.where(enough, ends, np.nan), 0, -1)


@partial(compiled, runs="once")
def on_scale(threshold: jax.Array, own: Calibrator, scale: Calibrator) -> jax.Array:
    """Thresholds (B, G, k) in the confidence of their replicate's calibrators (B, k), in that of the frontier's (k,).

    Between two values that a model states, a threshold stays as far along the way from one to the other.
    """
    line = own.coefficients[:, None]
    feature = divide(special.logit(threshold) - line[..., 0], line[..., 1], jnp.nan)
    curve = special.expit(scale.coefficients[:, 0] + scale.coefficients[:, 1] * feature)
    if own.stated is None or scale.stated is None:
        return curve
    by_model = jax.vmap(_between_values, (-1, 0, 0), -1)
    along = jax.vmap(by_model, (0, 0, None))(threshold, own.stated.confidence, scale.stated.confidence)
    return jnp.where(jnp.isnan(scale.stated.confidence).all(-1), curve, along)


def _between_values(threshold: jax.Array, own: jax.Array, scale: jax.Array) -> jax.Array:
    """Thresholds (G,) among values (V,) on one scale, as far along among the same values (V,) on the other."""
    ends = jnp.zeros(1, own.dtype), jnp.ones(1, own.dtype)
    # The last values are missing, and at the end of either scale.
    places = (jnp.concatenate([ends[0], jnp.sort(jnp.nan_to_num(x, nan=1.0)), ends[1]]) for x in (own, scale))
    return jnp.interp(threshold, *places)
