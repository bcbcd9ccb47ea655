"""Does the promise hold on this log, and is the model right on it? Every check, its figures, and what to do."""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rcjax._base.checks import takes
from rcjax._core.batching import side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.json_values import plain
from rcjax.diagnostics import model_checks
from rcjax.diagnostics.checks import CheckResult, Verdict, worst
from rcjax.diagnostics.promise import held_out, is_training_log, try_promise
from rcjax.frontier.frontier import Frontier
from rcjax.goodness_of_fit.bootstrap import MOST_QUERIES
from rcjax.goodness_of_fit.dependence import copula_rows, markov_rows, table_rows
from rcjax.goodness_of_fit.marginal_fit import marginal_test
from rcjax.goodness_of_fit.reliability import (
    accuracy_p_value,
    calibration_test,
    separation,
)
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Calibrated, Fitted
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.counted import ERRORS, Counted
from rcjax.tuning.certify import OverlapWarning, overlap
from rcjax.tuning.judging import held_out_confidence
from rcjax.tuning.select import select_frontier

if TYPE_CHECKING:
    from rcjax.model.marginals import Marginal

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
    calibration: list[dict[str, Any]]
    """By model: `accuracy`, `expected_accuracy` on the log fitted to, `accuracy_p` of their difference; the expected
    `calibration_error` of all labelled answers, held out, with `by_chance` and `p_value`; `separation`; `slope`
    with `slope_p`; `certain`, the share of answers with probability 1, and whether the model `states` its values."""
    marginals: list[dict[str, Any]]
    """Where the fit was tested, by model: `trained` and `refitted` √CvM, and `trained_p`."""
    copulas: list[dict[str, Any]]
    """By pair: `family`, `parameters` (those likeliest on the ranks), `tau`; `process`, which is S_n, with
    `process_p`; `distance` = √(S_n/n)."""
    markov: list[dict[str, Any]]
    """By triple of neighbouring models: conditional `tau`, `p_value`."""
    promise: dict[str, Any] | None = None
    """The frontier that was tuned as its search promises it, and seen, with that `search`; see
    `diagnostics.promise.try_promise`. None where it was not judged."""
    counted: Counted = ERRORS
    """What is counted on the log, with the words for it; in the JSON form its noun."""

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """Every check, judged."""
        return (
            *model_checks.judge_size(self.n),
            *model_checks.judge_calibration(self.calibration, self.counted),
            *model_checks.judge_marginals(self.marginals),
            *model_checks.judge_copulas(self.copulas),
            *model_checks.judge_markov(self.markov),
            *(() if self.promise is None else model_checks.judge_promise(self.promise, self.n, self.counted)),
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
        judged = {"checks": [dataclasses.asdict(check) for check in self.checks], "remarks": self.remarks}
        return {"verdict": self.verdict} | plain(fields | judged | {"counted": self.counted.noun})


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

    The promise is the error and cost of the policies that were tuned (`diagnostics.promise`): of `frontier`, or of what
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
) -> list[dict[str, Any]]:
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
    return [
        {
            "model": name,
            "accuracy": float(outcomes[:, j].mean()),
            "expected_accuracy": float(expected[j]),
            "accuracy_p": accuracy_p_value(float(expected[j]), outcomes[:, j], trained_on),
            "calibration_error": tests[j].error,
            "by_chance": tests[j].by_chance,
            "p_value": tests[j].p_value,
            "separation": separation(*labels[j]),
            "slope": float(calibrators.coefficients[j, 1]),
            "slope_p": float(calibrators.slope_p[j]),
            "certain": float(certain[j]),
            "states": bool(np.asarray(states)[j]),
        }
        for j, name in enumerate(model.models)
    ]


@partial(compiled, runs="once")
def _mean_confidence(marginals: "Marginal") -> jax.Array:
    return jax.vmap(lambda marginal: marginal.mean_above(-1.0))(marginals)


def _marginals(
    model: CascadeModel, confidence: np.ndarray, trained_on: int, key: jax.Array, replicates: int
) -> list[dict[str, Any]]:
    test = marginal_test(model.marginals, confidence, trained_on, key, replicates)
    return table_rows(test, model=model.models)
