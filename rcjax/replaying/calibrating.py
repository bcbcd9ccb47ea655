"""Calibrated confidences of a log's answers, by calibrators whose models may differ in their transform."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.model.calibration import Calibrator, Transform
from rcjax.model.stated import StatedValues


def calibrated(transforms: tuple[Transform, ...], calibrators: tuple[Any, ...], logprob: jax.Array) -> jax.Array:
    """(k, n) calibrated confidences; models may differ in their transform."""
    phi = jnp.zeros_like(logprob)
    line, low, high, stated = calibrators
    for transform in sorted(set(transforms)):
        chosen = np.asarray([other == transform for other in transforms])[:, None]
        calibrate = jax.vmap(partial(_calibrate, transform))
        phi = jnp.where(chosen, calibrate(line, low, high, stated, logprob), phi)
    return phi


def _calibrate(
    transform: Transform,
    coefficients: jax.Array,
    smallest: jax.Array,
    largest: jax.Array,
    stated: StatedValues | None,
    logprob: jax.Array,
) -> jax.Array:
    unknown: Any = jnp.nan  # the standard errors and the status of the fit, which play no part here
    return Calibrator(coefficients, smallest, largest, unknown, unknown, unknown, transform, stated)(logprob)
