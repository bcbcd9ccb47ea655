"""Fitting the Markov-copula model to a log, and again to others much like it."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.checks import takes
from rcjax._core.batching import fill_up, map_entries, part, side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.json_values import plain
from rcjax._core.kendall import FEW_ENTRIES, kendall_tau, kendall_taus
from rcjax.copulas import Copula, Gaussian, Independence, OneOf
from rcjax.copulas.families import FAMILIES, as_family
from rcjax.logs.log import Log
from rcjax.model.ascent import Ascent, FitStatus
from rcjax.model.beta_mixture import BetaMixture
from rcjax.model.calibrated import Details, calibrate_log, check_overlap, pairs, stated_in
from rcjax.model.calibration import Calibrator, Transform, calibrate_rows
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.copula_fitting import CopulaFit, count_parameters, fit_pair
from rcjax.model.label_outcomes import expected_log
from rcjax.model.marginal_fitting import fit_marginal, likeliest_marginal
from rcjax.model.marginals import Marginal, as_marginal
from rcjax.model.pair_likelihood import Ranks, pairs_by_likelihood, ranks
from rcjax.policy.decisions import NO_CONFIDENCE


def fit_marginals(
    confidence: jax.Array, answered: jax.Array, near: Marginal | None = None, stated: jax.Array | None = None
) -> Marginal:
    """The marginals of the confidences of a log.

    Args:
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        near: the marginals of a like log: mixtures are sought around theirs.
        stated: (k, A) the confidences that are to be atoms (`stated_confidences`); None: those of `near`, if any.
    """
    return map_entries(fit_marginal, len(confidence), (1, 1, 0, 0))(confidence, answered, stated, near)


def stated_confidences(calibrators: Calibrator) -> jax.Array | None:
    """(k, V) the calibrated confidences of the values that models state, infinite behind; None if no model does.

    In place of that of no confidence, which is the least of all, the next one, which others may share.
    """
    stated = calibrators.stated
    if stated is None:
        return None
    confidence = jnp.where(stated.logprob == NO_CONFIDENCE, stated.least()[:, None], stated.confidence)
    return jnp.where(jnp.isnan(stated.logprob), jnp.inf, confidence)


def pair_taus(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """(P,) Kendall's τ of the confidences of all pairs, on the queries that both models answered.

    confidence (n, k) calibrated, answered (n, k).
    """

    def tau(left: jax.Array, right: jax.Array) -> jax.Array:
        return kendall_tau(confidence[:, left], confidence[:, right], answered[:, left] & answered[:, right])

    return map_entries(tau, len(confidence), (0, 0))(*np.triu_indices(confidence.shape[1], 1))


# The steps of a fit, compiled one by one: all who fit logs of one size share them.
marginals_of_log = compiled(fit_marginals)


@partial(compiled, runs="long")
def taus_of_log(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """`pair_taus`, quicker for logs of few queries."""
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

    Calibrators and marginals learn from all of a model's answers, the copula of a pair from the queries that both
    answered. Arrays have jax's default float type.

    Args:
        log: the log to learn from.
        copula: a family's name or class. With "auto", or several families, each pair takes the one that is best by
            Akaike's criterion, fitted by likelihood; `CascadeModel.copula_table` tells how the others did.
        method: "tau" inverts Kendall's τ-b, as the paper does, but where few values hold many of a model's answers,
            which bias τ: such pairs are fitted by "likelihood", which is exact for point masses.
        marginal: a family's name or class; any but the paper's mixture of betas is fitted by likelihood
            (`CascadeModel.marginal_table`).
        transform: that of the raw confidence; "auto": by the log's task.

    Raises LogError where a model has no answers, or a pair has no query in common; ValueError for a family or
    method that does not exist.

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
        told = _marginal_rows(log, *fitted[:2])
        details = Details.of_log(log, fit={"copula": family.__name__, "method": method}, marginals=told)
        return CascadeModel(*fitted, log.cost, log.models, details)
    families = FAMILIES if copula == "auto" else tuple(as_family(family) for family in copula)
    calibrators, marginals, starts = fit_as(Gaussian)
    confidence = calibrate_rows(calibrators, log.logprob, log.answered)
    joined, table = select_copulas(marginals, confidence, log.answered, starts.tau(), families)
    named = [row | {"pair": [log.models[j] for j in row["pair"]]} for row in table]
    told = _marginal_rows(log, calibrators, marginals)
    kept: Any = {"copulas": named, "marginals": told}
    details = Details.of_log(log, fit={"copula": [family.__name__ for family in families]}, **kept)
    return CascadeModel(calibrators, marginals, joined, log.cost, log.models, details)


def refit(model: CascadeModel, log: Log) -> CascadeModel:
    """The model fitted to another log of its models, with the same options as the first time."""
    family = "auto" if isinstance(model.copulas, OneOf) else type(model.copulas)
    options = model.details.fit or {"copula": family}
    same: Any = {"marginal": type(model.marginals), "transform": model.calibrators.transform}
    return fit(log.select(model.models), **same, **options)


def _defaults(family: type[Marginal], k: int) -> Marginal:
    """(k,) marginals with the default parameters of a family."""
    return jax.tree.map(lambda leaf: jnp.full(k, leaf, jnp.result_type(float)), family())


@compiled
def _likeliest_marginals(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, stated: jax.Array | None
) -> tuple[Ascent, jax.Array]:
    """(the ascents to the marginals (k,) from near them, how many values are smooth (k,))."""
    atoms = None if marginals.atoms is None else marginals.atoms.stated

    def of_model(marginal: Marginal, x: jax.Array, there: jax.Array, stated: jax.Array | None) -> Any:
        inside = there & (x > marginal.lowest) & (x < marginal.highest)
        if marginal.atoms is not None:
            inside &= ~marginal.at_atom(x).any(-1)
        return likeliest_marginal(type(marginal), x, there, stated, marginal), inside.sum()

    return jax.vmap(of_model, (0, 1, 1, 0))(marginals, confidence, answered, atoms if stated is None else stated)


def _marginal_rows(log: Log, calibrators: Calibrator, marginals: Marginal) -> tuple[dict[str, Any], ...] | None:
    """What the fit of each model's marginal says of itself; None for mixtures of betas."""
    if isinstance(marginals, BetaMixture):
        return None
    confidence = calibrate_rows(calibrators, log.logprob, log.answered)
    rows = fill_up(confidence, log.answered)
    fits, count = jax.device_get(_likeliest_marginals(marginals, *rows, stated_confidences(calibrators)))
    table, names = [], type(marginals).free
    for number, model in enumerate(log.models):
        ascent: Any = part(fits, number)
        value = None if ascent.status == FitStatus.FAILED else float(ascent.mean * count[number])
        table.append(
            {
                "model": model,
                "family": type(marginals).__name__,
                "parameters": {name: float(getattr(ascent.member, name)) for name in names},
                "standard_errors": {name: plain(ascent.standard_errors[name]) for name in names},
                "log_likelihood": value,
                "aic": None if value is None else 2 * len(names) - 2 * value,
                "status": FitStatus(int(ascent.status)).message,
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
        return calibrators, marginals, fit_family(*rows, family=family)[0].copula
    copulas, tied = from_taus(family, taus), np.asarray(pairs_by_likelihood(marginals))
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
    how = model.calibrators.transform, model.copulas, "tau", model.marginals, model.calibrators.values
    calibrators, marginals, copulas = fit_arrays(logprob, correct, answered, *how)
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
    return _likeliest_where(pairs_by_likelihood(marginals), from_taus(family, taus), *rows)


def _likeliest_where(tied: ArrayLike, copulas: Copula, *rows: Any) -> Copula:
    """The copulas (P,), those of pairs that are `tied` (P,) by likelihood: `rows` are what `fit_family` takes."""
    if isinstance(copulas, OneOf):
        members = tuple(_likeliest_where(tied, member, *rows) for member in copulas.members)
        return dataclasses.replace(copulas, members=members)
    likeliest = fit_family(*rows, family=type(copulas))[0].copula
    return jax.tree.map(lambda exact, inverted: jnp.where(tied, exact, inverted), likeliest, copulas)


def from_taus(family: type[Copula] | Copula, taus: jax.Array) -> Any:
    """(P,) the copulas with Kendall's τ (P,): of a family, or each of the family that it has among other copulas."""
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
    """(the copulas of all pairs, each of its best family; the table of all pairs and families).

    Every family is fitted to every pair by maximum likelihood, in one jitted call each; that with the least
    −2 log L + 2 × parameters is the best. Independence always competes; a family whose fit failed does not.

    Args:
        marginals: (k,) the fitted marginals.
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        taus: (P,) Kendall's τ, where the searches start.
        families: those that compete.
    """
    families = tuple(dict.fromkeys((Independence, *families)))
    slowest_first = sorted(families, key=count_parameters, reverse=True)
    fit_to_all = partial(fit_family, marginals, confidence, answered, taus)
    fitted = side_by_side(fit_to_all, slowest_first, n=confidence.shape[0], alike=False)
    host = dict(zip(slowest_first, jax.tree.map(np.asarray, fitted), strict=True))  # to be looked at one by one
    fits = {family: host[family] for family in families}
    table = [_rows(fits, number, pair) for number, pair in enumerate(pairs(len(answered[0])))]
    best = [next(place for place, row in enumerate(rows) if row["chosen"]) for rows in table]
    used = sorted(set(best))
    members = jax.device_put(tuple(host[families[place]][0].copula for place in used))
    index = jax.device_put(np.array([used.index(place) for place in best]))
    return (members[0] if len(members) == 1 else OneOf(index, members)), [row for rows in table for row in rows]


def pair_ranks(marginals: Marginal, confidence: jax.Array, answered: jax.Array) -> tuple[Ranks, Ranks, jax.Array]:
    """(ranks of the first models, of the second ones, weights) of all pairs, each with leading axis P.

    Args:
        marginals: (k,) the fitted marginals.
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer; a query counts for a pair where both models answered it.
    """
    left, right = np.triu_indices(confidence.shape[1], 1)
    placed = jax.vmap(ranks, in_axes=(0, 1))(marginals, confidence)
    weights = (answered[:, left] & answered[:, right]).T.astype(confidence.dtype)
    return part(placed, left), part(placed, right), weights


@partial(compiled, static_argnames="family")
def fit_family(
    marginals: Marginal, confidence: jax.Array, answered: jax.Array, taus: jax.Array, family: type[Copula]
) -> tuple[CopulaFit, jax.Array]:
    """(P,) the likeliest members of a family for all pairs, and their τ.

    Args:
        marginals, confidence, answered, taus: as of `select_copulas`.
        family: the copulas among which the likeliest is sought.
    """
    fits = jax.vmap(partial(fit_pair, family))(*pair_ranks(marginals, confidence, answered), taus)
    return fits, jax.vmap(lambda copula: copula.tau(), axis_size=len(taus))(fits.copula)


def _rows(
    fitted: dict[type[Copula], tuple[CopulaFit, np.ndarray]], number: int, pair: tuple[int, int]
) -> list[dict[str, Any]]:
    """The rows of the pair of this number, one for each family, from the fits and τ of all pairs."""
    rows = []
    for family, (fits, taus) in fitted.items():
        fit, names = part(fits, number), (*family.free, *family.grids)
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
