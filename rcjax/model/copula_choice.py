"""Which copula family suits each pair of models: every family fitted to every pair, compared and chosen."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import part, side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.json_values import plain
from rcjax.copulas import Copula, Independence, OneOf
from rcjax.copulas.families import FAMILIES
from rcjax.model.copula_fitting import CopulaFit, FitStatus, count_parameters, fit_pairs
from rcjax.model.marginals import Marginal
from rcjax.model.pair_likelihood import Ranks, log_likelihood, ranks

Criterion = Literal["aic", "cv"]

FOLDS = 5


def select_copulas(
    marginals: Marginal,
    confidence: jax.Array,
    answered: jax.Array,
    chosen: Sequence[tuple[int, int]],
    taus: jax.Array,
    families: Sequence[type[Copula]] = FAMILIES,
    criterion: Criterion = "aic",
) -> tuple[Copula, list[dict[str, Any]]]:
    """(the copulas of the chosen pairs, each of its best family; the table of all pairs and families).

    Every family is fitted to every pair by maximum likelihood, in one jitted call each. Independence always competes; a
    family whose fit failed does not.

    Args:
        marginals: (k,) the fitted marginals.
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        chosen: the pairs of models, by position.
        taus: (pairs,) Kendall's τ, where the searches start.
        families: those that compete.
        criterion: "aic": least −2 log L + 2 × parameters. "cv": greatest mean log-likelihood on the queries left out,
            over five folds; the margins stay those of the whole log.

    Raises ValueError for another criterion.
    """
    if criterion not in ("aic", "cv"):
        raise ValueError(f"criterion is {criterion!r}; it is 'aic' or 'cv'")
    families = tuple(dict.fromkeys((Independence, *families)))
    slowest_first = sorted(families, key=count_parameters, reverse=True)
    fit_family = partial(_fit_and_score, marginals, confidence, answered, taus, tuple(chosen))
    fitted = side_by_side(fit_family, slowest_first, n=confidence.shape[0], alike=False)
    host = dict(zip(slowest_first, jax.tree.map(np.asarray, fitted), strict=True))  # to be looked at one by one
    fits, of_fits, scores = zip(*(host[family] for family in families), strict=True)
    by_pair = [[*_rows(families, fits, of_fits, scores, p, criterion)] for p in range(len(chosen))]
    best = [next(f for f, row in enumerate(rows) if row["chosen"]) for rows in by_pair]
    used = sorted(set(best))
    members = jax.device_put(tuple(fits[f].copula for f in used))
    index = jax.device_put(np.array([used.index(f) for f in best]))
    return (members[0] if len(members) == 1 else OneOf(index, members)), [row for rows in by_pair for row in rows]


def pair_ranks(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, chosen: Sequence[tuple[int, int]]
) -> tuple[Ranks, Ranks, jax.Array]:
    """(ranks of the first models, of the second ones, weights), each with leading axis pairs.

    Args:
        marginals: (k,) the fitted marginals.
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer; a query counts for a pair where both models answered it.
        chosen: the pairs, by position.
    """
    left, right = np.array(chosen, int).reshape(-1, 2).T
    placed = jax.vmap(ranks, in_axes=(0, 1))(marginals, confidence)
    weights = (answered[:, left] & answered[:, right]).T.astype(confidence.dtype)
    return part(placed, left), part(placed, right), weights


@partial(compiled, static_argnames=("chosen", "family"))
def _fit_and_score(
    marginals: Marginal,
    confidence: jax.Array,
    answered: jax.Array,
    taus: jax.Array,
    chosen: tuple[tuple[int, int], ...],
    family: type[Copula],
) -> tuple[CopulaFit, jax.Array, jax.Array]:
    """The fits of a family to all pairs, their τ and their cross-validated scores, each (pairs,)."""
    first, second, weights = pair_ranks(marginals, confidence, answered, chosen)
    # A fixed shuffle, so that the order of a log plays no part.
    fold = np.random.default_rng(0).permutation(confidence.shape[0]) % FOLDS
    held = jnp.asarray(fold == np.arange(FOLDS)[:, None], weights.dtype)[:, None]
    fits = fit_pairs(family, first, second, jnp.concatenate([weights[None], weights * (1 - held)]), taus)
    whole, without = part(fits, 0), part(fits, slice(1, None))
    terms = jax.vmap(jax.vmap(log_likelihood), (0, None, None))(without.copula, first, second)
    left_out = weights * held
    score = jnp.where(left_out > 0, terms, 0.0).sum((0, -1)) / jnp.maximum(left_out.sum((0, -1)), 1.0)
    return whole, jax.vmap(lambda copula: copula.tau(), axis_size=len(chosen))(whole.copula), score


def _rows(
    families: tuple[type[Copula], ...],
    fits: Sequence[CopulaFit],
    taus: Sequence[np.ndarray],
    scores: Sequence[np.ndarray],
    pair: int,
    criterion: str,
) -> Iterator[dict[str, Any]]:
    fitted = zip(families, fits, taus, scores, strict=True)
    rows = [_row(family, fit, tau[pair], score[pair], pair) for family, fit, tau, score in fitted]
    aic = [np.inf if row["aic"] is None else row["aic"] for row in rows]
    loss = aic if criterion == "aic" else [np.inf if row["cv_score"] is None else -row["cv_score"] for row in rows]
    best = int(np.argmin(loss))
    for number, row in enumerate(rows):
        yield row | {"delta_aic": plain(aic[number] - min(aic)), "chosen": number == best}


def _row(family: type[Copula], fit: CopulaFit, tau: float, score: float, pair: int) -> dict[str, Any]:
    copula = part(fit.copula, pair)
    status = int(fit.status[pair])
    failed = status == FitStatus.FAILED
    value = None if failed else float(fit.log_likelihood[pair])
    names = (*family.free, *family.grids)
    return {
        "pair": pair,
        "family": family.__name__,
        "parameters": {name: float(getattr(copula, name)) for name in names},
        "standard_errors": {name: plain(fit.standard_errors[name][pair]) for name in names},
        "tau": float(tau),
        "log_likelihood": value,
        "aic": None if value is None else 2 * count_parameters(family) - 2 * value,
        "cv_score": None if failed else plain(score),
        "status": FitStatus(int(status)).message,
    }
