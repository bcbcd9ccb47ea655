"""How confidences depend on each other, as a diagnosis tells it: correlations, the paper's test, that of neighbouring
models, and the goodness of fit of the copulas of all pairs, a row each.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.copulas import Copula, OneOf
from rcjax.goodness_of_fit.bootstrap import bootstrap_size
from rcjax.goodness_of_fit.copula_fit import copula_test, paper_statistic
from rcjax.goodness_of_fit.markov import MarkovTest, conditional_test, logistic_test, rank_correlations
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting_steps import taus_of_log
from rcjax.model.pairs import pairs


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


#: Replicates of all pairs together, and of each at least: beyond sixty pairs, a thousand of each would take minutes.
MOST_REPLICATES, FEWEST_REPLICATES = 60_000, 100


def copula_rows(model: CascadeModel, confidence: np.ndarray, key: jax.Array, replicates: int) -> list[dict[str, Any]]:
    """The rows of all pairs, in the order of `pairs`; the pairs of one family are tested in one call.

    Args:
        model: the fitted model.
        confidence: (k, n) calibrated, of queries that all models answered.
        key: of JAX.
        replicates: of the bootstrap, at most, for all pairs together once these are many.
    """
    chosen = pairs(len(model.models))
    if not chosen:
        return []
    replicates = min(replicates, max(FEWEST_REPLICATES, MOST_REPLICATES // len(chosen)))
    families = _families(model.copulas, len(chosen))
    taus = np.asarray(taus_of_log(*fill_up(confidence.T, np.ones(confidence.T.shape, bool))))
    present = np.ones(confidence.shape[1], bool)
    size = bootstrap_size(len(present))
    atoms = None if model.marginals.atoms is None else np.asarray(model.marginals.atoms.stated)
    rows: list[dict[str, Any]] = [{} for _ in chosen]
    for family in dict.fromkeys(families):
        indices = [p for p, other in enumerate(families) if other is family]
        left, right = np.array(chosen, int)[indices].T
        x, y = confidence[left], confidence[right]
        stated = None if atoms is None else (atoms[left], atoms[right])
        test = copula_test(family, x, y, np.ones(x.shape, bool), key, replicates, taus[indices], stated)
        filled = fill_up(x, y, axis=1, size=size) + fill_up(present, size=size)
        paper, tau = map(np.asarray, _paper_statistics(test.copula, *filled, taus[indices], key, family=family))
        parameters = {name: np.asarray(getattr(test.copula, name)) for name in family.supports}
        for row, (index, fitted) in enumerate(
            zip(indices, table_rows(dataclasses.replace(test, copula=None)), strict=True)
        ):
            rows[index] = {
                "pair": tuple(model.models[j] for j in chosen[index]),
                "family": family.__name__,
                "parameters": {name: float(value[row]) for name, value in parameters.items()},
                "tau": float(tau[row]),
                **fitted,
                "paper_statistic": float(paper[row]),
            }
    return rows


def _families(copulas: Copula, count: int) -> list[type[Copula]]:
    if isinstance(copulas, OneOf):
        return [type(copulas.members[int(number)]) for number in np.asarray(copulas.index)]
    return [type(copulas)] * count


@partial(compiled, static_argnames="family", runs="once")
def _paper_statistics(
    fitted: Copula,
    x: jax.Array,
    y: jax.Array,
    present: jax.Array,
    taus: jax.Array,
    key: jax.Array,
    family: type[Copula],
) -> tuple[jax.Array, jax.Array]:
    """The paper's statistic of each pair, and Kendall's τ of its copula."""

    def one(x: jax.Array, y: jax.Array, tau: jax.Array, key: jax.Array) -> jax.Array:
        return paper_statistic(family.from_tau(tau), x, y, key, present)

    return jax.vmap(one)(x, y, taus, jax.random.split(key, x.shape[0])), jax.vmap(lambda copula: copula.tau())(fitted)
