"""The goodness of fit of the copulas of all pairs of a model, a row each, as a diagnosis tells it."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.copulas import Copula, OneOf
from rcjax.goodness_of_fit.bootstrap import bootstrap_size
from rcjax.goodness_of_fit.copula_fit import copula_test, paper_statistic
from rcjax.goodness_of_fit.dependence import table_rows
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting_steps import taus_of_log
from rcjax.model.pairs import pairs

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
