"""How policies are judged by labels: how far these are averaged with what is expected of them.

A mean over n labels is noisy, and the best of many noisy figures is the luckiest one. So each label of a pair is
averaged with what is expected of it, by its own confidence and by that of the model asked before:

    ŷ_j = (1 − a − b) y_j + a Φ_j + b P(y_j = 1 | ξ_i)        ŷ_i = (1 − a − b) y_i + (a + b) Φ_i

What is expected takes away noise and adds a bias, where confidences tell little: `label_weights` estimates a and b.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import map_entries
from rcjax.model.calibration import Transform, fit_calibrator
from rcjax.model.pairs import pairs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blend:
    """Weights of what is expected of a label; the label itself has the rest."""

    calibrated: Any
    """() of the model's own calibrated confidence, a."""
    crossed: Any
    """() of the probability that the confidence of the model before tells, b."""

    @property
    def label(self) -> Any:
        """() of the label itself."""
        return 1 - self.calibrated - self.crossed


#: The weights that do well on most logs.
USUAL = Blend(0.375, 0.375)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("blend", "refusal"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True)
class Judging:
    """How policies are judged."""

    blend: Blend = USUAL
    """How far labels are averaged with what is expected of them."""
    refusal: jax.Array | None = None
    """() what a refusal is worth, in right answers; None: nobody refuses."""


#: As most logs are judged.
AS_USUAL = Judging()


def cross_calibrate(
    logprob: jax.Array, correct: jax.Array, present: jax.Array, transform: Transform, answered: jax.Array | None = None
) -> jax.Array:
    """(P, n) probability that the second model of each pair is right, by the confidence of the first.

    As `fit_calibrator`, with the labels of another model.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        present: (n, k) whether there is an answer and the query is to count.
        transform: that of the raw confidence.
        answered: (n, k) which log-probabilities to predict from; by default those that count.
    """
    left, right = np.array(pairs(logprob.shape[1]), int).reshape(-1, 2).T

    def one(left: jax.Array, right: jax.Array) -> jax.Array:
        raw, both = logprob[:, left], present[:, left] & present[:, right]
        mask = both if answered is None else answered[:, left]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(mask, raw, -1.0))

    return map_entries(one, len(logprob), (0, 0))(left, right)


def centred(expected: Any, right: Any, present: Any, xp: Any = np) -> Any:
    """(n,) what is expected of labels, moved so that its mean is that of the labels.

    Args:
        expected: (n,)
        right: (n,) the labels.
        present: (n,) the queries that the means are over.
        xp: numpy, or jax.numpy within a jitted function.
    """
    count = xp.maximum(present.sum(), 1)
    return expected + xp.where(present, right - expected, 0.0).sum() / count
