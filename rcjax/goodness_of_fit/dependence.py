"""How confidences depend on each other: correlations, the paper's test, and that of neighbouring models."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.goodness_of_fit.markov import conditional_test, logistic_test, rank_correlations
from rcjax.logs.log import Log

if TYPE_CHECKING:
    from rcjax.goodness_of_fit.markov import MarkovTest


def check_dependence(
    models: tuple[str, ...], confidence: np.ndarray, log: Log, key: jax.Array, replicates: int
) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Correlations of all pairs, the paper's test, and the rows of the neighbouring triples.

    Args:
        models: names of the k models.
        confidence: (n, k) calibrated.
        log: the log that they are of.
        key: of JAX.
        replicates: permutations of each test.
    """
    k = len(models)
    labelled = log.labelled
    correlations = rank_correlations(confidence, log.correct, log.answered)
    if not labelled[np.asarray(log.answered)].all():  # of those that are right, and wrong, the ones that are known
        correlations[1:] = rank_correlations(confidence, log.correct, labelled)[1:]
    if log.scores is not None:  # of answers with scores there are no two groups, right and wrong
        correlations[1:] = np.where(np.eye(k, dtype=bool), 1.0, np.nan)
    rows = fill_up(confidence, log.correct, log.answered, labelled)
    logistic, markov = _dependence_tests(*rows, key, replicates=replicates)
    triples = table_rows(markov, models=[models[i : i + 3] for i in range(k - 2)]) if k > 2 else []
    return correlations, np.asarray(logistic), triples


@partial(compiled, static_argnames="replicates", runs="once")
def _dependence_tests(
    confidence: jax.Array, correct: jax.Array, answered: jax.Array, labelled: jax.Array, key: jax.Array, replicates: int
) -> "tuple[jax.Array, MarkovTest | None]":
    """`logistic_test`, and `conditional_test` of neighbouring models.

    The neighbours are those of the full cascade, whose chain skips nobody.
    """
    logistic = logistic_test(confidence, correct, labelled)
    k = confidence.shape[1]
    if k < 3:
        return logistic, None
    first, middle, last = (confidence.T[i : k - 2 + i] for i in range(3))
    present = jnp.broadcast_to(answered.all(1), first.shape)
    data = first, middle, last, present, jax.random.split(key, k - 2)
    # Not vmapped, which draws random numbers in a form that compiles for seconds.
    return logistic, jax.lax.map(lambda rows: conditional_test(*rows, replicates=replicates), data)


def table_rows(batch: Any, **names: Sequence[Any]) -> list[dict[str, Any]]:
    """A batched dataclass as one dictionary of numbers for each entry, with what names it."""
    fields = {f.name: np.asarray(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    columns = {name: values for name, values in fields.items() if values.dtype.kind in "fiub"}
    size = len(next(iter(columns.values())))
    labels = [{name: values[row] for name, values in names.items()} for row in range(size)]
    return [labels[row] | {name: values[row].item() for name, values in columns.items()} for row in range(size)]
