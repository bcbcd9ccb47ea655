"""What the model predicts against what queries that it did not see show: along the frontier, and down the chain.

A log that the model was not fitted to is replayed as it is. The log it was fitted to is cut in five: each part is
replayed under a model fitted to the other four, and the parts are put together.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax._core.threads import side_by_side
from rcjax.copulas import OneOf
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near, refit
from rcjax.model.label_outcomes import expected_log
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.model.provenance import Details
from rcjax.replaying.replay import replay
from rcjax.solving.frontiers import solve_problem
from rcjax.solving.lambda_grid import check_lam, lay_out_problem
from rcjax.solving.objective import evaluate
from rcjax.solving.paths import make_plan, only
from rcjax.tuning.resampling import deal_folds, without

if TYPE_CHECKING:
    from rcjax.copulas import Copula
    from rcjax.frontier.outcomes import Outcomes
    from rcjax.frontier.searches import Chain
    from rcjax.solving.objective import Tables

#: Models up to which the predictions are those of all cascades.
MOST_MODELS = 12
FOLDS = 5
#: λ times the cost of the dearest model: what one answer of it may cost, in errors.
SCALED_LAMBDAS = np.geomspace(1e-3, 1.0, 16)


class HeldOut(NamedTuple):
    """A model, and queries that it was not fitted to."""

    model: CascadeModel
    log: Log
    rest: Log | None = None
    """What it was fitted to, where that is of the same log."""


def held_out(model: CascadeModel, log: Log, *, folds: bool, seed: int = 0) -> list[HeldOut]:
    """Models and logs that they were not fitted to, which together hold every query of a log once.

    Args:
        model: the fitted model.
        log: the log to judge it by.
        folds: False for the model itself and the whole log; True for five models, each fitted as the model was to four
            fifths of the queries, and the fifth that each has not seen.
        seed: of the folds.
    """
    if not folds:
        return [HeldOut(model, log)]
    fold = deal_folds(log.complete, FOLDS, seed)

    def without_fold(number: int) -> HeldOut:
        rest = without(log, fold == number)
        return HeldOut(_fitted_near(model, rest), log.take(fold == number), rest)

    return side_by_side(without_fold, range(FOLDS), n=log.n_queries)


def _fitted_near(model: CascadeModel, log: Log) -> CascadeModel:
    """`refit`, with mixtures that are sought around those of the model, where its copulas come from Kendall's τ."""
    if isinstance(model.copulas, OneOf) or model.options.get("method", "tau") != "tau":
        return refit(model, log)
    outcomes = expected_log(log)
    fitted = fit_near(model, log.logprob, outcomes.correct, log.answered, log.cost)
    return dataclasses.replace(fitted, details=Details.of_log(log, fit=model.options))


def is_training_log(model: CascadeModel, log: Log) -> bool:
    """Whether the model was fitted to this log, by the hash of its content."""
    return model.provenance.get("digest") == log.digest


def held_out_confidence(held: Sequence[HeldOut]) -> tuple[np.ndarray, np.ndarray]:
    """(calibrated confidences, correctness), each (n, k), of the queries that all models answered, held out.

    Of a log some of whose answers have no label, correctness is a number, NaN for those.
    """
    confidence = [np.asarray(fold.model.calibrate(fold.log.logprob))[fold.log.complete] for fold in held]
    return np.concatenate(confidence), np.concatenate([_labels(fold.log)[fold.log.complete] for fold in held])


def _labels(log: Log) -> np.ndarray:
    correct = np.asarray(log.correct)
    labelled = log.labelled
    return correct if labelled[np.asarray(log.answered)].all() else np.where(labelled, correct, np.nan)


class Prediction(NamedTuple):
    """What a model predicts, and the queries that it was not fitted to; L lambdas."""

    log: Log
    every: Frontier  # of all cascades
    full: Frontier  # of the one that asks every model in turn
    chains: dict[str, Any]  # of the full cascade, by chain: `error`, `cost` and `deferred`, each (L,)


def predict(held: Sequence[HeldOut]) -> list[Prediction]:
    """What each model predicts at sixteen λ. One layout and one programme serve all cascades and the full one."""
    return [_predict(fold.model, fold.log) for fold in held]


def _cascades(models: tuple[str, ...]) -> list[tuple[int, ...]]:
    """All cascades; of so many models that these are too many, single ones, pairs and the full cascade."""
    k = len(models)
    lengths = range(1, k + 1) if k <= MOST_MODELS else sorted({1, min(2, k), k})
    return [path for length in lengths for path in itertools.combinations(range(k), length)]


def _predict(model: CascadeModel, log: Log) -> Prediction:
    lam, plan = check_lam(lambdas(model)), make_plan(_cascades(model.models), len(model.models))
    problem = lay_out_problem(model, plan, "exact", None)
    everyone = int(np.asarray(plan.members).all(1).argmax())
    alone = problem._replace(plan=only(plan, np.full(plan.ends.shape[0], everyone)))
    full = dataclasses.replace(solve_problem(model, alone, lam), search="full")
    figures = _by_chain(model.marginals, model.copulas, problem.tables, full.thresholds)
    return Prediction(log, solve_problem(model, problem, lam), full, figures)


def compare_frontier(judged: Sequence[tuple[Frontier, Log]], trained_on: int | None) -> dict[str, Any]:
    """Frontiers of one length, as predicted and as replayed, each on the log beside it: means over the pairs.

    Arrays (L,): `lam`, `predicted_error`, `predicted_cost`, `error`, `cost`, `spent` (as billed), and the half-widths
    of 95 % bands, `error_band` and `cost_band`, on the difference of predicted and seen. They count the sampling of
    the queries judged, and of the `trained_on` others that the prediction was learnt from, taken to be as variable
    (None where there are no others); not the search for the best policy, whose optimism is part of what is to be seen.
    A refusal counts as an error at its price. What is seen of a cost is the bill where that was promised, as by
    `select_frontier`, and else at the models' mean costs.
    """
    pooled = _pool([_replayed_and_predicted(frontier, log) for frontier, log in judged])
    n = sum(int(log.complete.sum()) for _, log in judged)
    widen = 1.96 * np.sqrt(1 + (n / trained_on if trained_on else 0.0))
    bands = {f"{name}_band": widen * pooled.pop(f"{name}_se") for name in ("error", "cost")}
    return pooled | bands


def _replayed_and_predicted(frontier: Frontier, log: Log) -> dict[str, Any]:
    replayed, price = replay(frontier, log), frontier.abstain_price or 0.0
    # `cost_se` takes the mean costs of the models for known, which depend on how long these queries are.
    figures = {
        "cost": replayed.spent if frontier.search == "selected" else replayed.cost,
        "spent": replayed.spent,
        "error_se": replayed.error_se,
        "cost_se": replayed.spent_se,
    }
    predicted = {"predicted_error": frontier.penalty, "predicted_cost": frontier.cost}
    return {"lam": frontier.lam, **predicted, "error": replayed.error + price * replayed.abstention, **figures}


def compare_chain(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The full cascade at its best thresholds: the two chains' predictions against what was seen, at sixteen λ.

    Arrays (L,): `lam`; under "exact" and "paper" a dictionary of `error`, `cost` and `deferred`, the probability that
    all models but the last defer; under "seen" the same with `error_band` and `deferred_band`, half-widths of 95 %
    intervals of the sampling of these queries. Thresholds are those of the exact chain. The gap from "paper" to
    "exact" is what forgetting all but the last deferral costs; that from "exact" to "seen" is what the Markov
    property and the copulas cost, with calibration and chance.
    """

    def one(prediction: Prediction) -> dict[str, jax.Array | dict[str, Any]]:
        replayed = replay(prediction.full, prediction.log)
        deferred = np.asarray(replayed.share)[:, -1]
        spread = np.sqrt(deferred * (1 - deferred) / replayed.n)
        named = {"error": replayed.error, "cost": replayed.cost, "deferred": deferred}
        figures: dict[str, Any] = {"lam": prediction.full.lam, **prediction.chains}
        return figures | {"seen": named | {"error_se": replayed.error_se, "deferred_se": spread}}

    pooled = _pool([one(prediction) for prediction in predictions])
    for name in ("error", "deferred"):
        pooled["seen"][f"{name}_band"] = 1.96 * pooled["seen"].pop(f"{name}_se")
    return pooled


@partial(compiled, runs="once")
def _by_chain(
    marginals: Marginal, copulas: "Copula", tables: "Tables", thresholds: jax.Array
) -> dict[str, dict[str, jax.Array]]:
    """What either chain predicts for the full cascade at thresholds (L, k), from the tables of all pairs."""
    k = thresholds.shape[1]
    index = {pair: p for p, pair in enumerate(pairs(k))}
    used = np.array([index[j, j + 1] for j in range(k - 1)], int)
    neighbours = {"left": np.arange(k - 1), "right": np.arange(1, k), "kernel": tables.kernel[used]}
    tables = dataclasses.replace(tables, **neighbours, copulas=part(copulas, used))
    last = jnp.zeros_like(tables.cost).at[-1].set(1.0)  # as its cost is one for the last model, it counts its queries
    thresholds = thresholds.at[:, -1].set(ALWAYS_ANSWER)

    def under(chain: "Chain") -> dict[str, jax.Array]:
        def single(thresholds: jax.Array) -> "Outcomes":
            u, _, above = jax.vmap(Marginal.profile)(marginals, thresholds)
            links, first = jnp.ones(k - 1, bool), jnp.zeros((), int)

            def priced(cost: jax.Array) -> "Outcomes":
                return evaluate(dataclasses.replace(tables, cost=cost), u, links, first, chain=chain, above=above)

            return jax.vmap(priced)(jnp.stack([tables.cost, last]))

        expected = jax.vmap(single)(thresholds)
        return {"error": expected.wrong[:, 0], "cost": expected.cost[:, 0], "deferred": expected.cost[:, 1]}

    return {chain: under(chain) for chain in ("exact", "paper")}


def lambdas(model: CascadeModel) -> np.ndarray:
    """The sixteen λ (16,) at which predictions are compared, for the costs of a model."""
    return SCALED_LAMBDAS / (float(np.asarray(model.cost).max()) or 1.0)


def _pool(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the parts; of standard errors ("…_se"), that of a mean of parts that are independent."""
    pooled = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        if isinstance(first, dict):
            pooled[name] = _pool(values)
        elif name.endswith("_se"):
            pooled[name] = np.sqrt((np.nan_to_num(values) ** 2).sum(0)) / len(parts)
        else:
            pooled[name] = np.mean(values, axis=0)
    return pooled
