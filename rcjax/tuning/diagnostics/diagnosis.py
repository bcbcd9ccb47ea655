"""Does the promise hold on this log, and is the model right on it? Every check, its figures, and what to do.

The promise is the error and cost that a search says its policies will have. A policy comes with figures
(`Frontier.error`, `Frontier.cost`), and how they were arrived at depends on the search: those of the default search
are estimates by the labels, corrected for luck; those of a search by the model are the model's predictions. Here a
search is held to its own figures. Fresh queries are answered by the frontier itself. In the log that it was tuned on,
each of five folds is left out in turn, the whole search is done again on the other four, with its correction for luck,
and the fold is answered by the policies that come of it.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from rcjax._base.checks import takes
from rcjax._base.normal_law import Z95
from rcjax._core.batching import part, side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.json_values import plain
from rcjax.copulas import OneOf
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Calibrated, Details, Fitted, calibrated_like
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.goodness_of_fit.bootstrap import MOST_QUERIES
from rcjax.model.goodness_of_fit.dependence import copula_rows, markov_rows, table_rows
from rcjax.model.goodness_of_fit.marginal_fit import marginal_test
from rcjax.model.goodness_of_fit.reliability import (
    accuracy_p_value,
    calibration_test,
    separation,
)
from rcjax.model.label_outcomes import corrected_log, expected_log
from rcjax.policy.counted import ERRORS, Counted
from rcjax.solving.frontier.frontier import Frontier
from rcjax.tuning.certify import OverlapWarning, overlap
from rcjax.tuning.diagnostics.checks import (
    CheckResult,
    ModelCalibration,
    Verdict,
    judge_copulas,
    judge_marginals,
    judge_markov,
    judge_promise,
    judge_size,
    worst,
)
from rcjax.tuning.judging import FOLDS, deal_folds, held_out_confidence
from rcjax.tuning.replaying.replay import replay
from rcjax.tuning.search import search_of, select_frontier

if TYPE_CHECKING:
    from rcjax.model.marginals import Marginal


class LeftOut(NamedTuple):
    """A model, and queries that it was not fitted to."""

    model: Fitted
    log: Log
    rest: Log | None = None
    """What it was fitted to, where that is of the same log."""


def held_out(model: Fitted, log: Log, *, folds: bool, seed: int = 0) -> list[LeftOut]:
    """Models and logs that they were not fitted to, which together hold every query of a log once.

    Args:
        model: the fitted model.
        log: the log to judge it by.
        folds: False for the model itself and the whole log; True for five models, each fitted as the model was to four
            fifths of the queries, and the fifth that each has not seen.
        seed: of the folds.
    """
    if not folds:
        return [LeftOut(model, log)]
    fold = deal_folds(log.complete, FOLDS, seed)

    def without_fold(number: int) -> LeftOut:
        rest = without(log, fold == number)
        return LeftOut(_fitted_near(model, rest), log.take(fold == number), rest)

    return side_by_side(without_fold, range(FOLDS), n=log.n_queries)


def without(log: Log, rows: np.ndarray) -> Log:
    """The log as if nobody had answered some of its queries, rows (n,) bool; costs are averaged over the others.

    Its arrays keep their shapes, so that nothing is compiled anew. A model without any answer left keeps its cost.
    """
    logprob, correct, answered, query_cost = (
        np.asarray(column) for column in (log.logprob, log.correct, log.answered, log.query_cost)
    )
    remaining = answered & ~rows[:, None]
    money, count = np.where(remaining, query_cost, 0).astype(query_cost.dtype), remaining.sum(0)
    cost = np.where(count > 0, money.sum(0) / np.maximum(count, 1), log.cost).astype(query_cost.dtype)
    columns = {
        "logprob": np.where(remaining, logprob, np.nan).astype(logprob.dtype),
        "correct": np.where(remaining, correct, False).astype(correct.dtype),
        "answered": remaining,
        "query_cost": money,
        "cost": cost,
    }
    return dataclasses.replace(log, **jax.device_put(columns))


def _fitted_near(model: Fitted, log: Log) -> Fitted:
    """The model of another log, calibrated only where this one is no more.

    Its mixtures are sought around those of the model, where its copulas come from Kendall's τ.
    """
    if not isinstance(model, CascadeModel):
        return calibrated_like(model, log)
    from rcjax.model.fitting import fit_near, refit

    if isinstance(model.copulas, OneOf) or (model.details.fit or {}).get("method", "tau") != "tau":
        return refit(model, log)
    outcomes = expected_log(log)
    fitted = fit_near(model, log.logprob, outcomes.correct, log.answered, log.cost)
    return dataclasses.replace(fitted, details=Details.of_log(log, fit=model.details.fit))


def is_training_log(model: CascadeModel, log: Log) -> bool:
    """Whether the model was fitted to this log, by the hash of its content."""
    return model.provenance.get("digest") == log.digest


def try_promise(frontier: Frontier, held: Sequence[LeftOut], trained_on: int, seed: int = 0) -> dict[str, Any]:
    """The figures of a frontier against queries that its tuning did not see, at sixteen λ.

    A single held-out log is answered by the frontier as it is; folds by what the same search finds without each.
    As `compare_frontier`, with `search`, that of the frontier.

    Args:
        frontier: what was promised.
        held: of `held_out`.
        trained_on: how many queries the frontier was tuned on.
        seed: of the folds of the search.
    """
    lam = lambdas(frontier.model)

    def judged_by(fold: LeftOut) -> tuple[Frontier, Log]:
        if fold.rest is None:
            return at_prices(frontier, lam), fold.log
        # Folds of their own: those dealt by the same seed would be the ones that are left out already.
        return search_of(frontier.spec).find(fold.rest, fold.model, lam=lam, seed=seed + 1)[0], fold.log

    judged = list(map(judged_by, held))
    # In folds, both come from the same queries: a log that is easy by chance is so for what is promised, too.
    return {"search": frontier.search, **compare_frontier(judged, trained_on if len(held) == 1 else None)}


def at_prices(frontier: Frontier, lam: np.ndarray) -> Frontier:
    """The points of a frontier that are best by its own figures for the λ (L,), without intervals.

    >>> import rcjax
    >>> frontier = rcjax.solve_frontier(rcjax.demo_model(), lam=[1.0, 10.0, 100.0])
    >>> at_prices(frontier, np.array([10.0, 100.0])).cost.tolist() == frontier.cost[1:].tolist()
    True
    """
    error, cost = (np.asarray(values, float) for values in (frontier.penalty, frontier.cost))
    best = (error + np.asarray(lam)[:, None] * cost).argmin(1)
    named = {name: getattr(frontier, name) for name in ("error", "cost", "status", "abstention", "policies")}
    points = part(jax.tree.map(np.asarray, named), best)
    points["lam"] = np.asarray(lam, np.asarray(frontier.lam).dtype)
    return dataclasses.replace(frontier, bands=None, seconds=None, **jax.device_put(points))


def compare_frontier(judged: Sequence[tuple[Frontier, Log]], trained_on: int | None) -> dict[str, Any]:
    """Frontiers of one length, as predicted and as replayed, each on the log beside it: means over the pairs.

    Arrays (L,): `lam`, `predicted_error`, `predicted_cost`, `error`, `cost`, and the half-widths of 90 % bands,
    `error_band` and `cost_band`, on the difference of predicted and seen. They count the sampling of the queries
    judged, and of the `trained_on` others that the prediction was learnt from, taken to be as variable (None if
    there are no others); not the search for the best policy, whose optimism is part of what is to be seen. A refusal
    counts as an error at its price. What is seen of a cost is the bill where that was promised, as by
    `select_frontier`, and else at the models' mean costs.
    """
    rows, errors = [], []
    for frontier, log in judged:
        replayed, price = replay(frontier, log), frontier.abstain_price or 0.0
        seen = {
            "error": np.asarray(replayed.error) + price * np.asarray(replayed.abstention),
            "cost": replayed.spent if frontier.search == "selected" else replayed.cost,
        }
        promised = {"predicted_error": frontier.penalty, "predicted_cost": frontier.cost}
        rows.append({"lam": frontier.lam} | promised | seen)
        # `cost_se` takes the mean costs of the models for known, which depend on how long these queries are.
        errors.append({"error_band": replayed.error_se, "cost_band": replayed.spent_se})
    n = sum(int(log.complete.sum()) for _, log in judged)
    widen = Z95 * np.sqrt(1 + (n / trained_on if trained_on else 0.0)) / len(judged)  # of a mean of independent parts
    means = {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
    bands = {name: widen * np.sqrt(sum(np.nan_to_num(row[name]) ** 2 for row in errors)) for name in errors[0]}
    return means | bands


def lambdas(model: Fitted) -> np.ndarray:
    """The sixteen λ (16,) at which promises are tried: an answer of the dearest model is worth 0.001 to 1 errors."""
    return np.geomspace(1e-3, 1.0, 16) / (float(np.asarray(model.cost).max()) or 1.0)


FEWEST_QUERIES = 20


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found: plain numbers and NumPy arrays. n queries, k models (in the order of `models`), L λ."""

    models: tuple[str, ...]
    source: str
    """The log that was judged."""
    n: int
    """Queries judged: those that every model answered."""
    held_out: bool
    """Whether the log was not the one that the model was fitted to; else, held-out figures come from five folds."""
    confidence: np.ndarray
    """(N, k) calibrated confidences of all queries of the log, held out; NaN for no answer. Not in the JSON form."""
    correct: np.ndarray
    """(N, k) whether the answers were right, as numbers; NaN for those without a label. Not in the JSON form."""
    calibration: tuple[ModelCalibration, ...]
    """The confidences of each model."""
    marginals: list[dict[str, Any]]
    """Where the fit was tested, by model: `trained` and `refitted` √CvM, and `trained_p`."""
    copulas: list[dict[str, Any]]
    """By pair: `family`, `parameters` (those likeliest on the ranks), `tau`; `process`, which is S_n, with
    `process_p`; `distance` = √(S_n/n)."""
    markov: list[dict[str, Any]]
    """By triple of neighbouring models: conditional `tau`, `p_value`."""
    promise: dict[str, Any] | None = None
    """The frontier that was tuned as its search promises it, and seen, with that `search`; see
    `try_promise`. None where it was not judged."""
    counted: Counted = ERRORS
    """What is counted on the log, with the words for it; in the JSON form its noun."""

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """Every check, judged."""
        return (
            *judge_size(self.n),
            *(check for model in self.calibration for check in model.checks(self.counted)),
            *judge_marginals(self.marginals),
            *judge_copulas(self.copulas),
            *judge_markov(self.markov),
            *(() if self.promise is None else judge_promise(self.promise, self.n, self.counted)),
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is worth knowing though nothing is wrong."""
        if self.held_out or self.promise is None:
            return ()
        what = "folds of one log are as hard as the rest of it"
        return (f"{what}: that queries to come are harder, only fresh ones can show (--test)",)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        return worst(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; what is not a number (NaN) becomes None."""
        left_out = ("confidence", "correct")
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        judged = {name: list(map(dataclasses.asdict, getattr(self, name))) for name in ("calibration", "checks")}
        return {"verdict": self.verdict} | plain(
            fields | judged | {"remarks": self.remarks, "counted": self.counted.noun}
        )


@takes(model=Fitted, log=Log, training=(Log, None), frontier=(Frontier, None))
def diagnose(
    model: CascadeModel,
    log: Log,
    *,
    training: Log | None = None,
    replicates: int = 200,
    seed: int = 0,
    frontier: Frontier | None = None,
    model_fit: bool = True,
) -> Diagnosis:
    """Does the promise hold, and is the model right on this log? Calibration, marginals, copulas, the Markov property.

    On a log that the model was not fitted to, held-out figures are plain; on its own training log they come from
    five folds, each judged by a model fitted to the others. Queries that lack a model are left out. Of a log that
    holds queries which the model was fitted to, an `OverlapWarning` tells how many.

    The promise is the error and cost of the policies that were tuned (`try_promise`): of `frontier`, or of what
    the default search finds on the log fitted to. Without either it is left out.

    Args:
        model: the fitted model.
        log: the log to judge it by.
        training: the log that it was fitted to; its figures are added.
        replicates: of each bootstrap, at most; they use at most 500 queries.
        seed: of the folds and the bootstraps.
        frontier: the frontier of the promise, as `select_frontier` or `solve_frontier` finds it.
        model_fit: whether to test the marginals, copulas and Markov chain, on which only policies of `solve_frontier`
            rest.

    Raises LogError where the log lacks a model, or fewer than 20 queries were answered by all of them.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    >>> diagnosis = diagnose(rcjax.fit(log), log, replicates=50)
    >>> diagnosis.n, diagnosis.held_out, sorted({check.name for check in diagnosis.checks})[:3]
    (200, False, ['Markov property', 'accuracy', 'calibration error'])
    """
    whole = log.select(model.models)
    log = _complete(whole)
    trained = is_training_log(model, whole)
    if not trained and (shared := overlap(whole, model if training is None else training)):
        what = f"{shared.describe()}, where it looks better than it is: judge by others"
        warnings.warn(f"{whole.source}: {what}", OverlapWarning, stacklevel=2)
    training = training or (whole if trained else None)
    trained_on = int(model.provenance.get("queries", log.n_queries))
    keys = _keys(seed, 4)
    chosen = np.sort(np.random.default_rng(seed).permutation(log.n_queries)[:MOST_QUERIES])
    confidence = np.asarray(model.calibrate(log.logprob))
    sample = confidence[chosen].T
    unseen = held_out_confidence(whole, model, seed) if trained else np.asarray(model.calibrate(whole))
    correct = np.where(whole.labelled, np.asarray(whole.correct, float), np.nan)
    seen_in_training = 0 if trained else min(trained_on, MOST_QUERIES)
    # At once, as they have nothing to do with each other, and compile for longer than they run: the longest first.
    checks: dict[str, Callable[[], Any]] = {
        "copulas": lambda: copula_rows(model, sample, keys[2], replicates),
        "marginals": lambda: _marginals(model, sample, seen_in_training, keys[1], replicates),
        "promise": lambda: _promise(model, whole, training, trained_on, seed, frontier),
        "markov": lambda: markov_rows(model.models, confidence, log, keys[3], replicates),
        "calibration": lambda: _calibration(model, log, unseen, correct, trained_on, keys[0], replicates),
    }
    if not model_fit:
        checks |= dict.fromkeys(("copulas", "marginals", "markov"), list)
    results = side_by_side(lambda check: check(), checks.values(), n=1, alike=False)
    return Diagnosis(
        models=model.models,
        source=log.source,
        n=log.n_queries,
        held_out=not trained,
        confidence=unseen,
        correct=correct,
        **dict(zip(checks, results, strict=True)),
        counted=log.counted,
    )


def _promise(
    model: CascadeModel, log: Log, training: Log | None, trained_on: int, seed: int, frontier: Frontier | None
) -> dict[str, Any] | None:
    if frontier is None and training is not None:
        frontier = select_frontier(training.select(model.models), model=model).frontier
    if frontier is None:
        return None
    searched_by: Fitted = model
    if frontier.search == "selected":  # by the labels, which need no more of a model
        searched_by = Calibrated(model.calibrators, model.cost, model.models, model.details)
    held = held_out(searched_by, log, folds=is_training_log(model, log), seed=seed)
    return try_promise(frontier, held, trained_on, seed)


def _keys(seed: int, count: int) -> list[jax.Array]:
    """Keys of their own: to index the array of them would compile a programme."""
    return [jax.random.wrap_key_data(bits) for bits in np.asarray(_key_data(np.int64(seed), count))]


@partial(compiled, static_argnames="count", runs="once")
def _key_data(seed: jax.Array, count: int) -> jax.Array:
    return jax.random.key_data(jax.random.split(jax.random.key(seed), count))


def _complete(log: Log) -> Log:
    complete = int(log.complete.sum())
    if complete < FEWEST_QUERIES:
        answers = np.asarray(log.answered).sum(0)
        least = int(answers.argmin())
        lacks = f"{log.models[least]}, which answered {answers[least]:,} of {log.n_queries:,}"
        raise LogError(
            f"{log.source}: {complete} queries were answered by every model, and a diagnosis needs {FEWEST_QUERIES}: "
            + (f"leave out models that lack answers, first of all {lacks}, or " if complete < log.n_queries else "")
            + "log more"
        )
    return log.take(log.complete)


def _calibration(
    model: CascadeModel,
    log: Log,
    confidence: np.ndarray,
    correct: np.ndarray,
    trained_on: int,
    key: jax.Array,
    replicates: int,
) -> tuple[ModelCalibration, ...]:
    labelled = np.isfinite(correct)
    filled = np.where(labelled, correct, 0)
    outcome = filled if log.scores is not None else filled.astype(bool)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    tests = [
        calibration_test(confidence[mask, j].astype(float), outcome[mask, j], rng, replicates)
        for j, mask in enumerate(labelled.T)
    ]
    labels = [(confidence[mask, j], filled[mask, j]) for j, mask in enumerate(labelled.T)]
    outcomes = np.asarray(corrected_log(log).correct)
    certain = (np.asarray(log.logprob) == 0).mean(0)
    stated = model.calibrators.stated
    states = np.zeros(len(model.models), bool) if stated is None else np.isfinite(stated.confidence).any(-1)
    calibrators = jax.tree.map(np.asarray, model.calibrators)
    expected = np.asarray(_mean_confidence(model.marginals))  # which a logistic regression fits to the accuracy
    return tuple(
        ModelCalibration(
            model=name,
            accuracy=float(outcomes[:, j].mean()),
            expected_accuracy=float(expected[j]),
            accuracy_p=accuracy_p_value(float(expected[j]), outcomes[:, j], trained_on),
            calibration_error=tests[j].error,
            by_chance=tests[j].by_chance,
            p_value=tests[j].p_value,
            separation=separation(*labels[j]),
            slope=float(calibrators.coefficients[j, 1]),
            slope_p=float(calibrators.slope_p[j]),
            certain=float(certain[j]),
            states=bool(np.asarray(states)[j]),
        )
        for j, name in enumerate(model.models)
    )


@partial(compiled, runs="once")
def _mean_confidence(marginals: "Marginal") -> jax.Array:
    return jax.vmap(lambda marginal: marginal.mean_above(-1.0))(marginals)


def _marginals(
    model: CascadeModel, confidence: np.ndarray, trained_on: int, key: jax.Array, replicates: int
) -> list[dict[str, Any]]:
    test = marginal_test(model.marginals, confidence, trained_on, key, replicates)
    return table_rows(test, model=model.models)
