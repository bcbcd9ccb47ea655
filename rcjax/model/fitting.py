"""Fitting the Markov-copula model to a log, and again to others much like it."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.batching import fill_up, map_entries
from rcjax._core.compilation import compiled
from rcjax._core.kendall import FEW_ENTRIES, kendall_tau, kendall_taus
from rcjax.copulas import Copula, Gaussian, OneOf
from rcjax.copulas.families import FAMILIES, as_family
from rcjax.logs.log import Log
from rcjax.model.calibrated import calibrate_log, check_overlap, stated_in
from rcjax.model.calibration import Calibrator, Transform, calibrate_rows
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.copula_choice import Criterion, pair_ranks, select_copulas
from rcjax.model.copula_fitting import fit_pairs
from rcjax.model.label_outcomes import expected_log
from rcjax.model.marginal_fitting import fit_marginal, refit_marginal
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs, pairs_by_likelihood
from rcjax.model.provenance import Details
from rcjax.policy.decisions import NO_CONFIDENCE


def fit_marginals(
    confidence: jax.Array,
    answered: jax.Array,
    near: Marginal | None = None,
    stated: jax.Array | None = None,
) -> Marginal:
    """The marginals of the confidences of a log.

    Args:
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        near: the marginals of a like log: mixtures are sought around theirs.
        stated: (k, A) the confidences that are to be atoms (`stated_confidences`); None: those of `near`, if any.
    """
    rows = confidence, answered

    if near is None:
        return map_entries(fit_marginal, len(confidence), (1, 1, 0))(*rows, stated)
    return map_entries(refit_marginal, len(confidence), (0, 1, 1, 0))(near, *rows, stated)


def stated_confidences(calibrators: Calibrator) -> jax.Array | None:
    """(k, V) the calibrated confidences of the values that models state, infinite behind; None if no model does.

    In place of that of no confidence, which is the least of all, the next one, which others may share.
    """
    stated = calibrators.stated
    if stated is None:
        return None
    confidence = jnp.where(stated.logprob == NO_CONFIDENCE, stated.least()[:, None], stated.confidence)
    return jnp.where(jnp.isnan(stated.logprob), jnp.inf, confidence)


def pair_taus(confidence: jax.Array, answered: jax.Array, left: ArrayLike, right: ArrayLike) -> jax.Array:
    """(P,) Kendall's τ of the confidences of pairs, on the queries that both models answered.

    Args:
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        left, right: (P,) the models of each pair, by position.
    """

    def tau(left: jax.Array, right: jax.Array) -> jax.Array:
        return kendall_tau(confidence[:, left], confidence[:, right], answered[:, left] & answered[:, right])

    return map_entries(tau, len(confidence), (0, 0))(left, right)


# The steps of a fit, compiled one by one: all who fit logs of one size share them.
marginals_of_log = compiled(fit_marginals)


@partial(compiled, runs="long")
def taus_of_log(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """`pair_taus` of all pairs, (P,)."""
    left, right = np.array(pairs(confidence.shape[1]), int).reshape(-1, 2).T
    if len(confidence) <= FEW_ENTRIES:
        return kendall_taus(confidence, answered)[left, right]
    return pair_taus(confidence, answered, left, right)


Method = Literal["tau", "likelihood"]


def fit(
    log: Log,
    *,
    copula: str | type[Copula] | Sequence[str | type[Copula]] = "gumbel",
    method: Method = "tau",
    criterion: Criterion = "aic",
    transform: Transform | Literal["auto"] = "auto",
) -> CascadeModel:
    """Fit the Markov-copula model to a log: calibrators, marginals, copulas of all pairs, costs.

    Calibrators and marginals learn from all of a model's answers, the copula of a pair from the queries that both
    answered. Arrays have jax's default float type.

    Args:
        log: the log to learn from.
        copula: a family's name or class. With "auto", or several families, each pair takes the one that is best by
            `criterion`, fitted by likelihood; `CascadeModel.copula_table` tells how the others did.
        method: "tau" inverts Kendall's τ-b, as the paper does, but where few values hold many of a model's answers,
            which bias τ: such pairs are fitted by "likelihood", which is exact for point masses
            (`CascadeModel.pair_methods` tells which).
        criterion: "aic" or "cv" (`rcjax.model.copula_choice`).
        transform: that of the raw confidence; "auto": by the log's task.

    Raises LogError where a model has no answers, or a pair has no query in common; ValueError for a family, method or
    criterion that does not exist.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> model.models[0], model.copulas.theta.shape
    ('llama3.2-1b', (10,))
    """
    check_overlap(log)
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    transform = log.task if transform == "auto" else transform
    arrays = log.logprob, expected_log(log).correct, log.answered, transform
    values = stated_in(log)
    if isinstance(copula, type) or (isinstance(copula, str) and copula != "auto"):
        calibrators, marginals, joined = fit_arrays(*arrays, as_family(copula), method, values=values)
        details = Details.of_log(log, fit={"copula": as_family(copula).__name__, "method": method})
        return CascadeModel(calibrators, marginals, joined, log.cost, log.models, details)
    candidates = FAMILIES if copula == "auto" else tuple(as_family(family) for family in copula)
    calibrators, marginals, starts = fit_arrays(*arrays, Gaussian, "tau", values=values)
    confidence = calibrate_rows(calibrators, log.logprob, log.answered)
    chosen = pairs(len(log.models))
    joined, table = select_copulas(marginals, confidence, log.answered, chosen, starts.tau(), candidates, criterion)
    named = [row | {"pair": [log.models[j] for j in chosen[row["pair"]]]} for row in table]
    settings = {"copula": [family.__name__ for family in candidates], "criterion": criterion}
    details = Details.of_log(log, fit=settings, copulas=named)
    return CascadeModel(calibrators, marginals, joined, log.cost, log.models, details)


def refit(model: CascadeModel, log: Log) -> CascadeModel:
    """The model fitted to another log of its models, with the same options as the first time."""
    family = "auto" if isinstance(model.copulas, OneOf) else type(model.copulas)
    options = model.options or {"copula": family}
    return fit(log.select(model.models), transform=model.calibrators.transform, **options)


def fit_arrays(
    logprob: ArrayLike,
    correct: ArrayLike,
    answered: ArrayLike,
    transform: Transform,
    family: type[Copula] | Copula,
    method: Method = "tau",
    near: Marginal | None = None,
    values: ArrayLike | None = None,
) -> tuple[Calibrator, Marginal, Copula]:
    """The fit of arrays, step by step: each step is a compiled program that later logs of this size share.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: that of the raw confidence.
        family: of the copulas; or the copulas of a like log: each pair keeps the family that it has there (by "tau").
        method: as `fit` takes it.
        near: the marginals of a like log: mixtures are sought around theirs, which is quicker.
        values: (k, V) raw log-probabilities that models state (`stated_logprobs`); None: no model does.
    """
    logprob, correct, answered = fill_up(logprob, correct, answered)
    if values is not None:
        values = jnp.asarray(values, jnp.result_type(float))
    calibrators, confidence = calibrate_log(logprob, correct, answered, transform=transform, values=values)
    marginals = marginals_of_log(confidence, answered, near, stated_confidences(calibrators))
    taus = taus_of_log(confidence, answered)
    rows = marginals, confidence, answered, taus
    if not isinstance(family, Copula) and method == "likelihood":
        return calibrators, marginals, _likeliest(*rows, family=family)
    copulas, tied = _from_taus(family, taus), np.asarray(pairs_by_likelihood(marginals))
    return calibrators, marginals, _likeliest_where(tied, copulas, *rows) if tied.any() else copulas


def fit_near(
    model: CascadeModel, logprob: ArrayLike, correct: ArrayLike, answered: ArrayLike, cost: jax.Array
) -> CascadeModel:
    """The model fitted to other arrays much like its own: `fit_arrays` near it.

    Args:
        model: the model of the other arrays.
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        cost: (k,) money per answer.
    """
    how = model.calibrators.transform, model.copulas
    near = {"near": model.marginals, "values": model.calibrators.values}
    calibrators, marginals, copulas = fit_arrays(logprob, correct, answered, *how, **near)
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


def copulas_of(
    family: type[Copula], marginals: Marginal, confidence: jax.Array, answered: jax.Array, taus: jax.Array
) -> Copula:
    """(P,) the copulas of all pairs as `fit` has them by "tau", while jax traces: likelihoods are always taken.

    Args:
        family: of the copulas.
        marginals: (k,) of the models.
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        taus: (P,) Kendall's τ of the pairs.
    """
    rows = marginals, confidence, answered, taus
    return _likeliest_where(pairs_by_likelihood(marginals), _from_taus(family, taus), *rows)


@partial(compiled, static_argnames="family")
def _likeliest(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, taus: jax.Array, family: type[Copula]
) -> Copula:
    ranked = pair_ranks(marginals, confidence, answered, pairs(confidence.shape[1]))
    return fit_pairs(family, *ranked, taus).copula


def _likeliest_where(tied: ArrayLike, copulas: Copula, *rows: Any) -> Copula:
    """The copulas (P,), those of pairs that are `tied` (P,) by likelihood: `rows` are what `_likeliest` takes."""
    if isinstance(copulas, OneOf):
        members = tuple(_likeliest_where(tied, member, *rows) for member in copulas.members)
        return dataclasses.replace(copulas, members=members)
    likeliest = _likeliest(*rows, family=type(copulas))
    return jax.tree.map(lambda exact, inverted: jnp.where(tied, exact, inverted), likeliest, copulas)


def _from_taus(family: type[Copula] | Copula, taus: jax.Array) -> Copula:
    if isinstance(family, OneOf):
        members = tuple(_from_taus(type(member), taus) for member in family.members)
        return dataclasses.replace(family, members=members)
    return _invert(taus, family=family if isinstance(family, type) else type(family))


@partial(compiled, static_argnames="family")
def _invert(taus: jax.Array, family: type[Copula]) -> Any:
    return jax.vmap(family.from_tau)(taus)
