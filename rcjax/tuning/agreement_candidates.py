"""Policies that go by whether two models' answers are equal, judged on the queries of the log itself.

Model i is asked; where Φ_i ≤ φ, model j is asked too. Where their answers are equal, that of j is kept; where they
differ, model l is asked. Such a policy errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ, equal] + E[1 − y_l; Φ_i ≤ φ, different]

Labels are averaged with what is expected of them, as those of pairs are (`judging`); how likely an answer is right
where two are equal, or differ, `agreement_odds` tells.

Where an answer is not known the second model goes by its confidence: it asks on as many queries as would differ.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import map_entries
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.tuning.agreement_odds import by_agreement
from rcjax.tuning.candidates import Candidates
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import MOST_THRESHOLDS, CandidateRows, alone_right, refusals
from rcjax.tuning.label_refusals import spread_cuts

#: Thresholds tried for all triples together, about, and for each of many.
_MOST, _FEWEST_THRESHOLDS = 40_000, 40


def agreeing(rows: CandidateRows, judging: Judging) -> Candidates:
    """Every triple of models, by rising cost, at every threshold of its first, judged on n queries.

    Args:
        rows: of the queries, with the codes of answers.
        judging: how they are judged; with a refusal, the last model may refuse.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, money = jnp.full((3, 4), 0.5), jnp.array([1.0, 1.0, 8.0])
    >>> rows = CandidateRows(confidence, sure, right, jnp.ones((4, 3), bool), money, answer)
    >>> trial = agreeing(rows, Judging())   # as all are unsure, the second is always asked
    >>> best = int(trial.error.argmin())
    >>> float(trial.threshold[best]), float(trial.cost[best])
    (1.0, 6.0)
    """
    n, k = rows.confidence.shape
    triples = np.array([*itertools.combinations(range(k), 3)], int).reshape(-1, 3).T
    most = min(MOST_THRESHOLDS, max(_FEWEST_THRESHOLDS, _MOST // max(triples.shape[1], 1)))
    refused = None if judging.refusal is None else refusals(rows, judging)[0]
    judged = partial(_triple, rows, judging, refused, most)
    return jax.tree.map(jnp.ravel, map_entries(judged, n, (0, 0, 0))(*triples))


def _triple(
    rows: CandidateRows, judging: Judging, refused: jax.Array | None, most: int, *models: jax.Array
) -> Candidates:
    """One triple of models at M thresholds, `most` at most; `refused` (k,): up to where each refuses, as the last."""
    first, second, third = models
    counts, equal, differ, by_second, by_third = by_agreement(rows, *models)
    confidence, label = rows.confidence, judging.blend.label
    fallback = _as_often(confidence[:, second], counts & (equal | differ), differ)
    settled = equal | (~(equal | differ) & (confidence[:, second] > fallback))
    refuses, worth = jnp.zeros_like(settled), 0.0
    if refused is not None:
        refuses, worth = confidence[:, third] <= refused[third], jnp.asarray(judging.refusal, confidence.dtype)

    # How likely the answer is right: of the first model alone, and of whoever answers where the second is asked.
    alone = alone_right(rows, judging)[:, first]
    by_second = label * rows.correct[:, second] + (1 - label) * by_second
    by_third = label * rows.correct[:, third] + (1 - label) * by_third
    right = jnp.where(settled, by_second, jnp.where(refuses, worth, by_third))
    beyond = rows.charges[:, second] + jnp.where(~settled, rows.charges[:, third], 0.0)

    cuts = spread_cuts(confidence[:, first], counts, most)
    passed_on, everyone = partial(cuts.means_below, present=counts), partial(cuts.mean, present=counts)
    wrong = everyone(1 - alone, empty=1.0) - passed_on(right - alone)
    error = jnp.where(cuts.parts | cuts.every, wrong, jnp.inf)
    places, level = jnp.zeros_like(cuts.last), jnp.zeros_like(cuts.threshold)
    return Candidates(
        k=confidence.shape[1],
        first=places + first,
        second=places + second,
        third=places + third,
        threshold=cuts.threshold,
        fallback=level + fallback,
        error=error,
        cost=everyone(rows.charges[:, first]) + passed_on(beyond),
        counted=error,
        abstention=passed_on(~settled & refuses),
        refusal=None if refused is None else level + refused[third],
    )


def _as_often(confidence: jax.Array, present: jax.Array, differ: jax.Array) -> jax.Array:
    """The confidence up to which as many of the queries present lie as have different answers."""
    ordered = jnp.sort(jnp.where(present, confidence, jnp.inf))
    many, count = (present & differ).sum(), present.sum()
    below, above = ordered[jnp.maximum(many - 1, 0)], ordered[jnp.minimum(many, len(ordered) - 1)]
    between = below + (above - below) / 2
    return jnp.where(many == 0, ALWAYS_ANSWER, jnp.where(many == count, NEVER_ANSWER, between))
