"""Fitting the Markov-copula model to a log, and refitting it to similar logs."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import takes
from rcjax._core.batching import fill_up, map_entries, part, side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.numerics import FEW_ENTRIES, kendall_tau, kendall_taus
from rcjax._core.pytrees import plain
from rcjax.copulas import Copula, Gaussian, Independence, OneOf
from rcjax.copulas.families import FAMILIES, as_family
from rcjax.logs.log import Log
from rcjax.model.calibrated import Details, calibrate_log, check_overlap, pairs, stated_in
from rcjax.model.calibration import Calibrator, Transform, calibrate_rows
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import expected_log
from rcjax.model.likelihood import Ranks, pairs_by_likelihood, ranks
from rcjax.model.marginals import BetaMixture, Marginal, as_marginal
from rcjax.model.maximum_likelihood import (
    CopulaFit,
    FitStatus,
    Maximum,
    count_parameters,
    fit_marginal,
    fit_pair,
    likeliest_marginal,
)
from rcjax.policy.decisions import NO_CONFIDENCE


def fit_marginals(
    confidence: jax.Array, answered: jax.Array, near: Marginal | None = None, stated: jax.Array | None = None
) -> Marginal:
    """Fit a marginal to each model's confidences.

    Args:
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer.
        near: marginals of a similar log, at which the fit of mixtures starts.
        stated: (k, A) confidences that become atoms (`stated_confidences`); None: the atoms of `near`, if any.
    """
    return map_entries(fit_marginal, len(confidence), (1, 1, 0, 0))(confidence, answered, stated, near)


def stated_confidences(calibrators: Calibrator) -> jax.Array | None:
    """Calibrated confidences of the stated values, padded with infinity; None: no stated values; (k, V).

    The value of missing confidences is replaced by the next larger one, which other answers may share.
    """
    stated = calibrators.stated
    if stated is None:
        return None
    confidence = jnp.where(stated.logprob == NO_CONFIDENCE, stated.least()[:, None], stated.confidence)
    return jnp.where(jnp.isnan(stated.logprob), jnp.inf, confidence)


def pair_taus(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """Kendall's τ of all pairs of models, on the queries that both answered; (P,).

    Args:
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer.
    """

    def tau(left: jax.Array, right: jax.Array) -> jax.Array:
        return kendall_tau(confidence[:, left], confidence[:, right], answered[:, left] & answered[:, right])

    return map_entries(tau, len(confidence), (0, 0))(*np.triu_indices(confidence.shape[1], 1))


# The steps of a fit are compiled separately, so that all fits of logs of one size share them.
marginals_of_log = compiled(fit_marginals)


@partial(compiled, runs="long")
def taus_of_log(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """`pair_taus`, faster for short logs."""
    if len(confidence) <= FEW_ENTRIES:
        return kendall_taus(confidence, answered)[np.triu_indices(confidence.shape[1], 1)]
    return pair_taus(confidence, answered)


Method = Literal["tau", "likelihood"]


@takes(log=Log)
def fit(
    log: Log,
    *,
    copula: str | type[Copula] | Sequence[str | type[Copula]] = "gumbel",
    method: Method = "tau",
    marginal: str | type[Marginal] = "beta-mixture",
    transform: Transform | Literal["auto"] = "auto",
) -> CascadeModel:
    """Fit the Markov-copula model to a log: calibrators, marginals, copulas of all pairs, costs.

    Calibrators and marginals use all answers of a model; the copula of a pair uses the queries that both answered.
    Arrays have JAX's default float type.

    Args:
        log: training log.
        copula: name or class of a family. With "auto", or several families, each pair takes the family with the least
            AIC, fitted by likelihood; `CascadeModel.copula_table` lists all fits.
        method: "tau" inverts Kendall's τ-b, as the paper does. Pairs with a model that gives few values, which bias τ,
            are fitted by "likelihood" nevertheless, which is exact for point masses.
        marginal: name or class of a family; any but the paper's mixture of betas is fitted by likelihood
            (`CascadeModel.marginal_table`).
        transform: transform of the raw confidence; "auto": by the log's task.

    Raises LogError if a model has no answers, or a pair fewer than two queries in common; ValueError for an unknown
    family or method.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> model.models[0], model.copulas.theta.shape
    ('llama3.2-1b', (10,))
    """
    check_overlap(log)
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    transform = log.task if transform == "auto" else transform
    law = as_marginal(marginal)
    near = None if law is BetaMixture else _defaults(law, len(log.models))
    fit_as = partial(
        *(fit_arrays, log.logprob, expected_log(log).correct, log.answered, transform), values=stated_in(log), near=near
    )
    if isinstance(copula, type) or (isinstance(copula, str) and copula != "auto"):
        family = as_family(copula)
        fitted = fit_as(family, method)
        marginal_rows = _marginal_rows(log, *fitted[:2])
        details = Details.of_log(log, fit={"copula": family.__name__, "method": method}, marginals=marginal_rows)
        return CascadeModel(*fitted, log.cost, log.models, details)
    families = FAMILIES if copula == "auto" else tuple(as_family(family) for family in copula)
    calibrators, marginals, starts = fit_as(Gaussian)
    confidence = calibrate_rows(calibrators, log.logprob, log.answered)
    copulas, table = select_copulas(marginals, confidence, log.answered, starts.tau(), families)
    named = [row | {"pair": [log.models[j] for j in row["pair"]]} for row in table]
    marginal_rows = _marginal_rows(log, calibrators, marginals)
    kept: Any = {"copulas": named, "marginals": marginal_rows}
    details = Details.of_log(log, fit={"copula": [family.__name__ for family in families]}, **kept)
    return CascadeModel(calibrators, marginals, copulas, log.cost, log.models, details)


def refit(model: CascadeModel, log: Log) -> CascadeModel:
    """Fit a model anew to another log of its models, with the options of its first fit."""
    family = "auto" if isinstance(model.copulas, OneOf) else type(model.copulas)
    options: Any = model.details.fit or {"copula": family}
    same: Any = {"marginal": type(model.marginals), "transform": model.calibrators.transform}
    return fit(log.select(model.models), **same, **options)


def _defaults(family: type[Marginal], k: int) -> Marginal:
    """k marginals with the default parameters of a family; (k,)."""
    return jax.tree.map(lambda leaf: jnp.full(k, leaf, jnp.result_type(float)), family())


@compiled
def _likeliest_marginals(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, stated: jax.Array | None
) -> tuple[Maximum[Marginal], jax.Array]:
    """Fit each marginal by likelihood, starting from `marginals`; (the fits (k,), numbers of smooth values (k,))."""
    atoms = None if marginals.atoms is None else marginals.atoms.stated

    def of_model(marginal: Marginal, x: jax.Array, there: jax.Array, stated: jax.Array | None) -> Any:
        inside = there & (x > marginal.lowest) & (x < marginal.highest)
        if marginal.atoms is not None:
            inside &= ~marginal.at_atom(x).any(-1)
        return likeliest_marginal(type(marginal), x, there, stated, marginal), inside.sum()

    return jax.vmap(of_model, (0, 1, 1, 0))(marginals, confidence, answered, atoms if stated is None else stated)


def _marginal_rows(log: Log, calibrators: Calibrator, marginals: Marginal) -> tuple[dict[str, Any], ...] | None:
    """Rows of `CascadeModel.marginal_table`; None for mixtures of betas."""
    if isinstance(marginals, BetaMixture):
        return None
    confidence = calibrate_rows(calibrators, log.logprob, log.answered)
    rows = fill_up(confidence, log.answered)
    fits, count = jax.device_get(_likeliest_marginals(marginals, *rows, stated_confidences(calibrators)))
    table, names = [], type(marginals).free
    for number, model in enumerate(log.models):
        maximum: Any = part(fits, number)
        value = None if maximum.status == FitStatus.FAILED else float(maximum.mean * count[number])
        table.append(
            {
                "model": model,
                "family": type(marginals).__name__,
                "parameters": {name: float(getattr(maximum.member, name)) for name in names},
                "standard_errors": {name: plain(maximum.standard_errors[name]) for name in names},
                "log_likelihood": value,
                "aic": None if value is None else 2 * len(names) - 2 * value,
                "status": FitStatus(int(maximum.status)).message,
            }
        )
    return tuple(table)


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
    """Fit calibrators, marginals and copulas to arrays, in compiled steps that later logs of this size share.

    Args:
        logprob: (n, k) raw log-probability.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: transform of the raw confidence.
        family: family of the copulas; or copulas of a similar log, whose families the pairs keep (by "tau").
        method: "tau" or "likelihood", as in `fit`.
        near: marginals of a similar log, at which the fit of mixtures starts, which is faster.
        values: (k, V) raw log-probabilities that models state (`stated_logprobs`); None: no stated values.
    """
    logprob, correct, answered = fill_up(logprob, correct, answered)
    if values is not None:
        values = jnp.asarray(values, jnp.result_type(float))
    calibrators, confidence = calibrate_log(logprob, correct, answered, transform=transform, values=values)
    marginals = marginals_of_log(confidence, answered, near, stated_confidences(calibrators))
    taus = taus_of_log(confidence, answered)
    rows = marginals, confidence, answered, taus
    if not isinstance(family, Copula) and method == "likelihood":
        return calibrators, marginals, fit_family(*rows, family=family)[0].copula
    copulas = from_taus(family, taus)
    tied = np.asarray(pairs_by_likelihood(marginals))
    return calibrators, marginals, _likeliest_where(tied, copulas, *rows) if tied.any() else copulas


def fit_near(
    model: CascadeModel, logprob: ArrayLike, correct: ArrayLike, answered: ArrayLike, cost: jax.Array
) -> CascadeModel:
    """Refit a model to similar arrays with `fit_arrays`, starting from its marginals and keeping its families.

    Args:
        model: model fitted to the earlier arrays.
        logprob: (n, k) raw log-probability.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        cost: (k,) mean money per answer.
    """
    how = model.calibrators.transform, model.copulas, "tau", model.marginals, model.calibrators.values
    calibrators, marginals, copulas = fit_arrays(logprob, correct, answered, *how)
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


def copulas_of(
    family: type[Copula], marginals: Marginal, confidence: jax.Array, answered: jax.Array, taus: jax.Array
) -> Copula:
    """Fit the copulas of all pairs as `fit` does by "tau", for use under a trace; (P,).

    The likelihood fit is always computed, since the choice between the methods is not known while JAX traces.

    Args:
        family: family of the copulas.
        marginals: (k,) marginals of the models.
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer.
        taus: (P,) Kendall's τ of the pairs.
    """
    rows = marginals, confidence, answered, taus
    return _likeliest_where(pairs_by_likelihood(marginals), from_taus(family, taus), *rows)


def _likeliest_where(tied: ArrayLike, copulas: Copula, *rows: Any) -> Copula:
    """Replace the copulas (P,) of `tied` pairs (P,) by likelihood fits; `rows` are the arguments of `fit_family`."""
    if isinstance(copulas, OneOf):
        members = tuple(_likeliest_where(tied, member, *rows) for member in copulas.members)
        return dataclasses.replace(copulas, members=members)
    likeliest = fit_family(*rows, family=type(copulas))[0].copula
    return jax.tree.map(lambda exact, inverted: jnp.where(tied, exact, inverted), likeliest, copulas)


def from_taus(family: type[Copula] | Copula, taus: jax.Array) -> Any:
    """Copulas with Kendall's τ (P,), of a family, or of the families that other copulas have pair by pair; (P,)."""
    if isinstance(family, OneOf):
        return dataclasses.replace(family, members=tuple(from_taus(member, taus) for member in family.members))
    return _invert(taus, family=family if isinstance(family, type) else type(family))


@partial(compiled, static_argnames="family")
def _invert(taus: jax.Array, family: type[Copula]) -> Any:
    return jax.vmap(family.from_tau)(taus)


def select_copulas(
    marginals: Marginal,
    confidence: jax.Array,
    answered: jax.Array,
    taus: jax.Array,
    families: Sequence[type[Copula]] = FAMILIES,
) -> tuple[Copula, list[dict[str, Any]]]:
    """Choose a family for every pair by AIC, and return (the copulas (P,), rows of all pairs and families).

    Every family is fitted to all pairs by maximum likelihood, in one jitted call each; the least −2 log L + 2 ×
    parameters wins. Independence always competes; failed fits do not.

    Args:
        marginals: (k,) fitted marginals.
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer.
        taus: (P,) Kendall's τ at which the fits start.
        families: candidate families.
    """
    families = tuple(dict.fromkeys((Independence, *families)))
    slowest_first = sorted(families, key=count_parameters, reverse=True)
    fit_to_all = partial(fit_family, marginals, confidence, answered, taus)
    fitted = side_by_side(fit_to_all, slowest_first, n=confidence.shape[0], alike=False)
    host = dict(zip(slowest_first, jax.tree.map(np.asarray, fitted), strict=True))  # numpy: read entry by entry
    fits = {family: host[family] for family in families}
    table = [_rows(fits, number, pair) for number, pair in enumerate(pairs(len(answered[0])))]
    best = [next(place for place, row in enumerate(rows) if row["chosen"]) for rows in table]
    used = sorted(set(best))
    members = jax.device_put(tuple(host[families[place]][0].copula for place in used))
    index = jax.device_put(np.array([used.index(place) for place in best]))
    return (members[0] if len(members) == 1 else OneOf(index, members)), [row for rows in table for row in rows]


def pair_ranks(marginals: Marginal, confidence: jax.Array, answered: jax.Array) -> tuple[Ranks, Ranks, jax.Array]:
    """(ranks of the first models, ranks of the second models, weights) of all pairs, each with leading axis P.

    Args:
        marginals: (k,) fitted marginals.
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer; a query counts for a pair if both models answered it.
    """
    left, right = np.triu_indices(confidence.shape[1], 1)
    placed = jax.vmap(ranks, in_axes=(0, 1))(marginals, confidence)
    weights = (answered[:, left] & answered[:, right]).T.astype(confidence.dtype)
    return part(placed, left), part(placed, right), weights


@partial(compiled, static_argnames="family")
def fit_family(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, taus: jax.Array, family: type[Copula]
) -> tuple[CopulaFit, jax.Array]:
    """Fit a family to all pairs by maximum likelihood, and return (the fits (P,), their Kendall's τ (P,)).

    Args:
        marginals, confidence, answered, taus: as in `select_copulas`.
        family: family of copulas.
    """
    fits = jax.vmap(partial(fit_pair, family))(*pair_ranks(marginals, confidence, answered), taus)
    return fits, jax.vmap(lambda copula: copula.tau(), axis_size=len(taus))(fits.copula)


def _rows(
    fitted: dict[type[Copula], tuple[CopulaFit, np.ndarray]], number: int, pair: tuple[int, int]
) -> list[dict[str, Any]]:
    """Rows of one pair, by its number, for all families, from the fits and τ of all pairs."""
    rows = []
    for family, (fits, taus) in fitted.items():
        fit = part(fits, number)
        names = (*family.free, *family.grids)
        value = None if fit.status == FitStatus.FAILED else float(fit.log_likelihood)
        rows.append(
            {
                "pair": pair,
                "family": family.__name__,
                "parameters": {name: float(getattr(fit.copula, name)) for name in names},
                "standard_errors": {name: plain(fit.standard_errors[name]) for name in names},
                "tau": float(taus[number]),
                "log_likelihood": value,
                "aic": None if value is None else 2 * count_parameters(family) - 2 * value,
                "status": FitStatus(int(fit.status)).message,
            }
        )
    aic = [np.inf if row["aic"] is None else row["aic"] for row in rows]
    best = int(np.argmin(aic))
    return [
        row | {"delta_aic": plain(own - min(aic)), "chosen": place == best}
        for place, (row, own) in enumerate(zip(rows, aic, strict=True))
    ]
