"""Tests of the dependence between confidences, for a diagnosis: the Markov property, and the copulas of all pairs.

The Markov property (section 4.3 of the paper) holds if, given the confidence of the model asked just before, earlier
confidences carry no more information about the next. Its test needs no labels.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.copulas import Copula, OneOf
from rcjax.logs.log import Log
from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.goodness_of_fit.bootstrap import p_value
from rcjax.model.goodness_of_fit.copula_fit import copula_test

#: Queries per stratum, in which the middle model's confidence hardly varies.
_STRATUM = 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarkovTest:
    """A test of conditional independence of two models' confidences given a third's; a leading axis batches it."""

    tau: jax.Array  # () Kendall's τ-b within strata of the middle model's confidence
    p_value: jax.Array  # () two-sided, by permutations within the strata
    n: jax.Array  # () queries that all three answered


@partial(jax.jit, static_argnames="replicates")
def conditional_test(
    first: jax.Array, middle: jax.Array, last: jax.Array, present: jax.Array, key: jax.Array, replicates: int = 1000
) -> MarkovTest:
    """Conditional rank correlation of `first` and `last` given `middle`; 0 along a Markov chain. `vmap` it.

    Queries are sorted by the middle confidence, ties in random order, and cut into strata of ten. Kendall's τ-b
    compares queries of one stratum only (Agresti 1977, "Considerations in measuring partial association for ordinal
    categorical data"). Permuting `last` within strata leaves its null distribution unchanged, whichever copulas are
    right; p = (exceedances + ½)/(replicates + 1).

    Args:
        first, middle, last: (n,) confidences of three models, in the order asked.
        present: (n,) whether all three answered the query.
        key: JAX key for ties and permutations.
        replicates: number of permutations.

    >>> a, b, c = jax.random.normal(jax.random.key(0), (3, 400))
    >>> one = jnp.ones(400, bool)
    >>> chain = conditional_test(a, a + b, a + b + c, one, jax.random.key(1))
    >>> fork = conditional_test(a, b, a + b + c, one, jax.random.key(1))
    >>> bool(chain.p_value > 0.05), bool(fork.p_value < 0.01), bool(fork.tau > 0.3)
    (True, True, True)
    """
    n = first.shape[0]
    shuffle, permute = jax.random.split(key)
    order = jnp.lexsort((jax.random.uniform(shuffle, (n,)), middle, ~present))
    rows = -(-n // _STRATUM)

    def strata(values: jax.Array) -> jax.Array:
        return jnp.pad(values[order], (0, rows * _STRATUM - n)).reshape(rows, _STRATUM)

    x, y, here = strata(first), strata(last), strata(present)
    upper = np.triu(np.ones((_STRATUM, _STRATUM), bool), 1)
    both = here[:, :, None] & here[:, None, :] & upper
    sign_x = jnp.where(both, jnp.sign(x[:, :, None] - x[:, None, :]), 0.0)

    def association(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        sign_y = jnp.where(both, jnp.sign(y[:, :, None] - y[:, None, :]), 0.0)
        return (sign_x * sign_y).sum(), jnp.abs(sign_y).sum()

    def replicate(key: jax.Array) -> jax.Array:
        # Padding and unanswered queries stay at the end of the last strata.
        permutation = jnp.argsort(jnp.where(here, jax.random.uniform(key, x.shape), 2.0), axis=1)
        return association(jnp.take_along_axis(y, permutation, axis=1))[0]

    statistic, untied = association(y)
    drawn = jax.vmap(replicate)(jax.random.split(permute, replicates))
    tau = divide(statistic, jnp.sqrt(jnp.abs(sign_x).sum() * untied))
    return MarkovTest(tau, p_value(jnp.abs(statistic), jnp.abs(drawn)), present.sum())


def markov_rows(
    models: tuple[str, ...], confidence: np.ndarray, log: Log, key: jax.Array, replicates: int
) -> list[dict[str, Any]]:
    """Test all triples of neighbouring models with `conditional_test`; a row for each.

    Args:
        models: names of the k models.
        confidence: (n, k) calibrated confidence.
        log: log of the n queries.
        key: JAX key.
        replicates: permutations of each test.
    """
    if len(models) < 3:
        return []
    markov = _markov_tests(*fill_up(confidence, log.answered), key, replicates=replicates)
    return table_rows(markov, models=[models[i : i + 3] for i in range(len(models) - 2)])


@partial(compiled, static_argnames="replicates", runs="once")
def _markov_tests(confidence: jax.Array, answered: jax.Array, key: jax.Array, replicates: int) -> "MarkovTest":
    """Batch `conditional_test` over the k − 2 triples of neighbouring models."""
    k = confidence.shape[1]
    first, middle, last = (confidence.T[i : k - 2 + i] for i in range(3))
    present = jnp.broadcast_to(answered.all(1), first.shape)
    data = first, middle, last, present, jax.random.split(key, k - 2)
    # Under `vmap`, drawing random numbers would compile for seconds.
    return jax.lax.map(lambda rows: conditional_test(*rows, replicates=replicates), data)


def table_rows(batch: Any, **names: Sequence[Any]) -> list[dict[str, Any]]:
    """Turn a batched dataclass into a dictionary of numbers for each entry, with labels (`names`) in front."""
    fields = {f.name: np.asarray(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    columns = {name: values for name, values in fields.items() if values.dtype.kind in "fiub"}
    size = len(next(iter(columns.values())))
    labels = [{name: values[row] for name, values in names.items()} for row in range(size)]
    return [labels[row] | {name: values[row].item() for name, values in columns.items()} for row in range(size)]


#: Greatest number of replicates of all pairs together, and least number per pair: with more than sixty pairs, a
#: thousand per pair would take minutes.
MOST_REPLICATES, FEWEST_REPLICATES = 60_000, 100


def copula_rows(model: CascadeModel, confidence: np.ndarray, key: jax.Array, replicates: int) -> list[dict[str, Any]]:
    """Test the copulas of all pairs, in the order of `pairs`, one call per family; a row for each pair.

    Args:
        model: fitted model.
        confidence: (k, n) calibrated confidence of queries that all models answered.
        key: JAX key.
        replicates: bootstrap replicates per pair at most; fewer with many pairs (`MOST_REPLICATES`).
    """
    chosen = pairs(len(model.models))
    if not chosen:
        return []
    replicates = min(replicates, max(FEWEST_REPLICATES, MOST_REPLICATES // len(chosen)))
    families = _families(model.copulas, len(chosen))
    atoms = None if model.marginals.atoms is None else np.asarray(model.marginals.atoms.stated)
    rows: list[dict[str, Any]] = [{} for _ in chosen]
    for family in dict.fromkeys(families):
        indices = [p for p, other in enumerate(families) if other is family]
        left, right = np.array(chosen, int)[indices].T
        x, y = confidence[left], confidence[right]
        stated = None if atoms is None else (atoms[left], atoms[right])
        test = copula_test(family, x, y, np.ones(x.shape, bool), key, replicates, stated)
        tau = np.asarray(_taus(test.copula))
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
            }
    return rows


def _families(copulas: Copula, count: int) -> list[type[Copula]]:
    if isinstance(copulas, OneOf):
        return [type(copulas.members[int(number)]) for number in np.asarray(copulas.index)]
    return [type(copulas)] * count


@partial(compiled, runs="once")
def _taus(copulas: Copula) -> jax.Array:
    return jax.vmap(lambda copula: copula.tau())(copulas)
