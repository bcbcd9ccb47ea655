"""The diagnosis of a tuning on a log: its promise and the calibration of confidences, with figures and advice.

The promise is the error and cost that a search expects of its policies (`Frontier.error`, `Frontier.cost`). The default
search estimates these figures by the labels, and corrects them for optimism. A search by the paper's model predicts
them by the model. The promise is compared with held-out queries. On a fresh log, the frontier itself answers the
queries. On the log tuned on, each of five folds is left out in turn: the whole search is repeated on the other four,
with its correction for optimism, and its policies answer the fold.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from rcjax._base.codec import takes
from rcjax._base.figures import Z_ONE_SIDED_95, percent
from rcjax._core.batching import as_json_values, map_in_threads
from rcjax._core.compilation import compiled
from rcjax.logs.errors import LogError, warn_caller
from rcjax.logs.log import Log
from rcjax.logs.oddities import area_under_roc
from rcjax.model.calibrated_models import CalibratedModels, FitRecord, FittedModel, refit_calibrated
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.goodness_of_fit.bootstrap import SIGNIFICANCE_LEVEL
from rcjax.model.goodness_of_fit.reliability import accuracy_p_value, calibration_test
from rcjax.model.label_outcomes import FOLDS, corrected_log, deal_folds, expected_log
from rcjax.policy.error_kind import ERRORS, ErrorKind, penalised
from rcjax.policy.spec import CascadeSet
from rcjax.solving.frontier.frontier import Frontier
from rcjax.tuning.certify import OverlapWarning, overlap
from rcjax.tuning.cross_validation import held_out_confidence
from rcjax.tuning.diagnostics.findings import (
    FINDING_KINDS,
    Finding,
    FindingVerdict,
    assess_figure,
    worst_verdict,
)
from rcjax.tuning.replaying.replay import replay
from rcjax.tuning.search import make_search, select_frontier

if TYPE_CHECKING:
    from rcjax.model.marginals import Marginal


def _assess(
    name: str,
    subject: str,
    figure: float,
    advice: str,
    *,
    p_value: float | None = None,
    verdict: FindingVerdict | None = None,
    noun: str = ERRORS.noun,
) -> Finding:
    """Make a finding, by default with the verdict of its limits; a fine figure gets no advice."""
    by_chance = p_value is not None and not p_value < SIGNIFICANCE_LEVEL
    verdict = verdict or assess_figure(name, figure, by_chance=by_chance)
    advice = "" if verdict == "fine" else advice
    return FINDING_KINDS[name].finding(subject, figure, advice, p_value=p_value, verdict=verdict, noun=noun)


def assess_size(n: int) -> Finding:
    """Assess whether a log has enough queries."""
    rough = f"{n} queries were answered by every model: every figure here is rough; label more, 300 if you can"
    return _assess("queries", "", float(n), rough)


@dataclasses.dataclass(frozen=True)
class ModelCalibration:
    """Accuracy and calibration of one model on a log."""

    model: str
    """Name of the model."""
    accuracy: float
    """Share of right answers."""
    expected_accuracy: float
    """Share of right answers on the log that was fitted."""
    accuracy_p: float
    """p-value of `accuracy` − `expected_accuracy`."""
    calibration_error: float
    """Held-out expected calibration error of all labelled answers."""
    calibration_error_by_chance: float
    """Calibration error of perfectly calibrated confidences with as many answers."""
    calibration_p: float
    """p-value of the calibration error."""
    separation: float
    """Probability that the better of two answers has the higher confidence; NaN if no answer is better."""
    slope: float
    """Slope of the logistic regression of labels on confidences."""
    separation_p: float
    """p-value of the separation (Kendall's test)."""
    certain_share: float
    """Share of answers with probability 1."""
    states_confidence: bool
    """Whether the model states its confidences."""

    def findings(self, error_kind: ErrorKind = ERRORS) -> Iterator[Finding]:
        """Assess accuracy, calibration error, the separation of better answers, and the share of certain answers."""
        yield self._accuracy_finding(error_kind.noun)
        yield self._calibration_finding()
        yield self._separation_finding()
        yield self._certain_finding()

    def _accuracy_finding(self, noun: str) -> Finding:
        gap = self.accuracy - self.expected_accuracy
        advice = (
            f"the {noun} of {self.model} is {percent(1 - self.accuracy)} here, and "
            f"{percent(1 - self.expected_accuracy)} on the queries fitted to: these queries are "
            f"{'harder' if gap < 0 else 'easier'}, or the model has changed; tune on queries like those to come"
        )
        return _assess("accuracy", self.model, abs(gap), advice, p_value=self.accuracy_p, noun=noun)

    def _calibration_finding(self) -> Finding:
        chance = percent(self.calibration_error_by_chance)
        why = f"more than the {chance} that chance explains: label more queries, or drop the model"
        if self.calibration_p >= SIGNIFICANCE_LEVEL:
            label_more = "label more before you trust its confidence"
            why = f"but so few queries give {chance} to a perfect calibration: {label_more}"
        advice = f"the calibration error of {self.model} is {percent(self.calibration_error)}, {why}"
        return _assess("calibration error", self.model, self.calibration_error, advice, p_value=self.calibration_p)

    def _separation_finding(self) -> Finding:
        name, figure = self.model, self.separation
        by_chance = not self.separation_p < SIGNIFICANCE_LEVEL
        verdict = limit = assess_figure("separation", figure)
        if self.slope < 0 or by_chance:
            verdict = "doubtful" if self.slope >= 0 and limit == "fine" else "bad"
        if np.isnan(figure):
            advice = (
                f"no answer of {name} is better than another here: its confidence cannot be judged; label more queries"
            )
        elif self.slope < 0 and not by_chance:
            advice = f"the surer {name} is, the worse it answers: are its log-probabilities and labels not mixed up?"
        else:
            hint = "deferring by its confidence gains little; get it another signal, or leave it out"
            if limit == "fine":
                hint = "but chance alone can make that with so few queries; label more before you trust its confidence"
            share = f"in {percent(figure)} of cases (by chance 50 %)"
            advice = f"the better of two answers of {name} has the higher confidence {share}: {hint}"
        return _assess("separation", name, figure, advice, p_value=self.separation_p, verdict=verdict)

    def _certain_finding(self) -> Finding:
        remedy = "use another signal, such as votes" if self.states_confidence else "log more digits, or another signal"
        advice = (
            f"{percent(self.certain_share, 0)} of the answers of {self.model} have probability 1, and no threshold can "
            f"tell these answers apart: {remedy}"
        )
        return _assess("certain answers", self.model, self.certain_share, advice)


class _Gap(NamedTuple):
    """The observed figure minus the promised one, over sixteen λ."""

    figure: float  # mean absolute gap; for costs, as a share of the promised cost
    direction: str  # "higher" or "lower", by the mean gap
    by_chance: bool  # at most a quarter of the gaps lie outside their bands


@dataclasses.dataclass(frozen=True)
class Promise:
    """Promised and observed figures of a search at L values of λ; numpy arrays (L,)."""

    search: CascadeSet | Literal["labels", "objective"]
    """Search that found the policies, as `Frontier.search`."""
    lam: np.ndarray
    predicted_error: np.ndarray
    predicted_cost: np.ndarray
    error: np.ndarray
    cost: np.ndarray
    error_band: np.ndarray
    """Half-width of the 90 % band of `error` − `predicted_error`."""
    cost_band: np.ndarray
    """Half-width of the 90 % band of `cost` − `predicted_cost`."""

    def findings(self, error_kind: ErrorKind = ERRORS) -> Iterator[Finding]:
        """Assess whether the error and the cost of policies are no higher than promised when they were tuned."""
        for name, noun in (("error", error_kind.noun), ("cost", "cost")):
            gap = self._gap(name)
            off = f"{100 * gap.figure:.1f} points" if name == "error" else percent(gap.figure)
            why = "go by what rcjax evaluate shows on fresh queries, and tune on queries like those to come"
            if gap.by_chance:
                why = "chance alone can explain that; label more queries before you rely on it"
            finding = f"on queries not seen, the {noun} of policies tuned in this way is {off} {gap.direction}"
            advice = f"{finding} than expected, mean over the curve: {why}"
            is_lower = gap.direction == "lower"  # which no service regrets
            verdict = "fine" if is_lower else assess_figure(f"predicted {name}", gap.figure, by_chance=gap.by_chance)
            yield _assess(f"predicted {name}", "", gap.figure, advice, verdict=verdict, noun=error_kind.noun)

    def describe(self) -> str:
        """Describe in words how far error and cost are from the promise.

        >>> figures = {"predicted_error": [0.2], "predicted_cost": [1.0], "error": [0.3], "cost": [0.9]}
        >>> Promise("labels", [1.0], **figures, error_band=[0.1], cost_band=[0.1]).describe()
        '10.0 points off the expected, mostly higher, and the cost 10.0 %, mostly lower'
        """
        error, cost = (self._gap(name) for name in ("error", "cost"))
        points = f"{100 * error.figure:.1f} points off the expected, mostly {error.direction}"
        return f"{points}, and the cost {percent(cost.figure)}, mostly {cost.direction}"

    def is_by_chance(self, name: str) -> bool:
        """Return whether chance alone can explain the gap of "error" or "cost"."""
        return self._gap(name).by_chance

    def _gap(self, name: str) -> _Gap:
        fields = (name, f"predicted_{name}", f"{name}_band")
        observed, promised, band = (np.asarray(getattr(self, field)) for field in fields)
        gap = observed - promised
        outside = np.abs(gap) > band
        # If all costs are 0, the gap is 0 on any scale.
        scale = (float(promised.mean()) or 1.0) if name == "cost" else 1.0
        figure = float(np.abs(gap).mean()) / scale
        return _Gap(figure, "higher" if gap.mean() > 0 else "lower", bool(outside.mean() <= 0.25))


class HeldOutPart(NamedTuple):
    """A part of a log, or a whole log, with a model that was not fitted to it."""

    model: FittedModel
    """Model that was not fitted to `log`."""
    log: Log
    """Held-out queries."""
    rest: Log | None = None
    """Other queries of the same log, which the model was fitted to; None if it was fitted to another log."""


def held_out_parts(model: FittedModel, log: Log, *, folds: bool, seed: int = 0) -> list[HeldOutPart]:
    """Return models with held-out queries; the parts together hold every query of a log once.

    Args:
        model: the fitted model.
        log: the log to assess the model on.
        folds: False: the model itself, with the whole log. True: five models, each fitted to four fifths of the log,
            with the fifth that it has not seen.
        seed: seed of the folds.
    """
    if not folds:
        return [HeldOutPart(model, log)]
    fold = deal_folds(log.queries, log.complete, seed)

    def without_fold(number: int) -> HeldOutPart:
        rest = without(log, fold == number)
        return HeldOutPart(_fitted_near(model, rest), log.take(fold == number), rest)

    return map_in_threads(without_fold, range(FOLDS), n=log.n_queries)


def without(log: Log, rows: np.ndarray) -> Log:
    """Mark the queries `rows`, (n,) bool, as unanswered; the models' costs are averaged over the others.

    The arrays keep their shapes, so that nothing is compiled again. A model without an answer left keeps its cost.
    """
    logprob, correct, answered, query_cost = (
        np.asarray(column) for column in (log.logprob, log.correct, log.answered, log.query_cost)
    )
    remaining = answered & ~rows[:, None]
    money, answers = np.where(remaining, query_cost, 0).astype(query_cost.dtype), remaining.sum(0)
    cost = np.where(answers > 0, money.sum(0) / np.maximum(answers, 1), log.cost).astype(query_cost.dtype)
    columns = {
        "logprob": np.where(remaining, logprob, np.nan).astype(logprob.dtype),
        "correct": np.where(remaining, correct, False).astype(correct.dtype),
        "answered": remaining,
        "query_cost": money,
        "signal_cost": None if log.signal_cost is None else np.where(remaining, log.signal_cost, 0),
        "cost": cost,
    }
    return dataclasses.replace(log, **jax.device_put(columns))


def _fitted_near(model: FittedModel, log: Log) -> FittedModel:
    """Fit a model of the same kind to another log: calibration alone, or the whole of the paper's model."""
    if not isinstance(model, CascadeModel):
        return refit_calibrated(model, log)
    from rcjax.model.fitting import fit_near

    outcomes = expected_log(log)
    fitted = fit_near(model, log.logprob, outcomes.correct, log.answered, log.cost)
    return dataclasses.replace(fitted, record=FitRecord.of_log(log, fit=model.record.fit))


def is_training_log(model: FittedModel, log: Log) -> bool:
    """Return whether the model was fitted to this log, by the hash of its content."""
    return model.provenance.get("digest") == log.digest


def measure_promise(frontier: Frontier, held: Sequence[HeldOutPart], trained_on: int, seed: int = 0) -> Promise:
    """Compare the figures of a frontier with held-out queries, at sixteen λ.

    The frontier itself answers a separate log. Each fold is answered by the frontier of the same search without it.

    Args:
        frontier: the frontier with the promised figures.
        held: models with held-out queries, of `held_out_parts`.
        trained_on: number of queries that the frontier was tuned on.
        seed: seed of the folds of the search.
    """
    # A call of the dearest model costs 0.001 to 1 errors.
    lam = np.geomspace(1e-3, 1.0, 16) / (float(np.asarray(frontier.model.cost).max()) or 1.0)

    def held_out_frontier(part: HeldOutPart) -> Frontier:
        if part.rest is None:
            return at_lam(frontier, lam)
        # Another seed, so that inner folds differ from the outer ones.
        return make_search(frontier.spec).find(part.rest, part.model, lam=lam, seed=seed + 1).frontier

    comparisons = [(held_out_frontier(part), part.log) for part in held]
    # In folds, promise and outcome come from the same queries, so chance in the log affects both alike.
    return compare_frontier(comparisons, trained_on if len(held) == 1 else None)


def at_lam(frontier: Frontier, lam: np.ndarray) -> Frontier:
    """Return the points of a frontier that are the best by its figures for the λ (L,), without intervals.

    >>> import rcjax
    >>> frontier = rcjax.solve_frontier(rcjax.demo_model(), lam=[100.0, 1000.0])
    >>> at_lam(frontier, np.array([1000.0])).cost.tolist() == frontier.cost[1:].tolist()
    True
    """
    error, cost = (np.asarray(values, float) for values in (frontier.penalty, frontier.cost))
    best = (error + np.asarray(lam)[:, None] * cost).argmin(1)
    return dataclasses.replace(frontier.take(best), lam=jax.device_put(np.asarray(lam, frontier.lam.dtype)))


def compare_frontier(comparisons: Sequence[tuple[Frontier, Log]], trained_on: int | None) -> Promise:
    """Replay frontiers of one length, each on its log, and compare them with their figures: means over the pairs.

    The bands count the sampling errors of the queries of the logs, and of the `trained_on` queries that the prediction
    was learnt from, with the same variance (None: the same queries). The bands leave out the optimism of the search,
    which the comparison is to show.

    An abstention counts as errors at its price. The cost is the bill if the search promises bills, as `select_frontier`
    does; otherwise it is at the models' mean costs.
    """
    rows, errors = [], []
    for frontier, log in comparisons:
        replayed = replay(frontier, log)
        error, abstention = np.asarray(replayed.error), np.asarray(replayed.abstention)
        observed = {
            "error": penalised(error, abstention, frontier.abstain_price),
            "cost": replayed.promised_cost(frontier.is_by_labels),
        }
        promised = {"predicted_error": frontier.penalty, "predicted_cost": frontier.cost}
        rows.append({"lam": frontier.lam} | promised | observed)
        # `cost_se` ignores the sampling error of the models' mean costs; `spent_se` includes it.
        errors.append({"error_band": replayed.error_se, "cost_band": replayed.spent_se})
    n = sum(int(log.complete.sum()) for _, log in comparisons)
    # The standard error of the mean of independent parts, widened for the queries that the prediction was learnt from.
    widen = Z_ONE_SIDED_95 * np.sqrt(1 + (n / trained_on if trained_on else 0.0)) / len(comparisons)
    means = {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
    bands = {name: widen * np.sqrt(sum(np.nan_to_num(row[name]) ** 2 for row in errors)) for name in errors[0]}
    return Promise(comparisons[0][0].search, **means, **bands)


#: Queries answered by every model, below which there is no diagnosis.
MIN_QUERIES_FOR_DIAGNOSIS = 20


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings of `diagnose`, as numbers and numpy arrays, for k models."""

    models: tuple[str, ...]
    """Names of the k models."""
    source: str
    """Name of the log that the model was assessed on."""
    n_queries: int
    """Number of queries that every model answered."""
    held_out: bool
    """Whether the model was fitted to another log; otherwise held-out figures come from five folds."""
    confidence: np.ndarray
    """(N, k) held-out calibrated confidences of all queries of the log; NaN for no answer. Not in JSON."""
    correct: np.ndarray
    """(N, k) labels of all queries, as numbers; NaN without a label. Not in JSON."""
    calibration: tuple[ModelCalibration, ...]
    """Calibration of each model."""
    promise: Promise | None = None
    """Promised and observed figures of the tuned frontier; None without a frontier."""
    error_kind: ErrorKind = ERRORS
    """Kind of error, with its words; in JSON its noun."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the size of the log, on each model, and on the promise."""
        return (
            assess_size(self.n_queries),
            *(finding for model in self.calibration for finding in model.findings(self.error_kind)),
            *(() if self.promise is None else self.promise.findings(self.error_kind)),
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on figures that are fine."""
        if self.held_out or self.promise is None:
            return ()
        return ("folds of one log are equally hard: only fresh queries (--test) can show that future ones are harder",)

    @property
    def verdict(self) -> FindingVerdict:
        """Worst verdict of all findings."""
        return worst_verdict(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, findings and remarks as JSON values; None for NaN."""
        document = dataclasses.asdict(self)
        del document["confidence"], document["correct"]
        document |= {"error_kind": self.error_kind.noun, "findings": [finding.to_json() for finding in self.findings]}
        return {"verdict": self.verdict} | as_json_values(document | {"remarks": self.remarks})


@takes(model=FittedModel, log=Log, training=(Log, None), frontier=(Frontier, None))
def diagnose(
    model: FittedModel,
    log: Log,
    *,
    training: Log | None = None,
    replicates: int = 200,
    seed: int = 0,
    frontier: Frontier | None = None,
) -> Diagnosis:
    """Test on a log whether the promise of a tuning holds, and whether confidences are calibrated.

    On another log than the training log, the figures are held-out figures. On the training log, they come from five
    folds, each with a model fitted to the others. Queries that lack the answer of a model are left out. An
    `OverlapWarning` counts queries of another log that the model was fitted to.

    The promise is the error and cost of the tuned policies (`measure_promise`), from `frontier` or from the default
    search on the training log. Without a frontier and a training log, no promise is tested.

    Args:
        model: the fitted model.
        log: the log to assess the model on.
        training: the training log of the model; the default search is made on it for the promise. A model of the
            default search needs it, as the model does not know its accuracy there; None: `log`, if it is that log.
        replicates: number of replicates of the calibration errors by chance.
        seed: seed of the folds and the replicates.
        frontier: the frontier of the promise, of `select_frontier` or `solve_frontier`.

    Raises LogError if the log lacks a model, or fewer than 20 queries were answered by all models; ValueError without
    the training log that a model of the default search needs.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> frontier = rcjax.solve_frontier(model, lam=[100.0, 1000.0])
    >>> diagnosis = diagnose(model, rcjax.sample_log(300, seed=0), frontier=frontier)
    >>> diagnosis.n_queries, diagnosis.held_out, sorted({finding.name for finding in diagnosis.findings})[:2]
    (300, True, ['accuracy', 'calibration error'])
    """
    every_query = log.select(model.models)
    log = _take_complete(every_query)
    trained = is_training_log(model, every_query)
    if not trained:
        _warn_of_overlap(every_query, model if training is None else training)
    training = training or (every_query if trained else None)
    expected = _expected_accuracy(model, training)
    trained_on = int(model.provenance.get("queries", log.n_queries))
    unseen = held_out_confidence(every_query, model, seed) if trained else np.asarray(model.calibrate(every_query))
    correct = np.where(every_query.labelled, np.asarray(every_query.correct, float), np.nan)
    # The two run at the same time: they are independent, and compile for longer than they run.
    parts: list[Callable[[], Any]] = [
        lambda: _test_promise(model, every_query, training, trained_on, seed, frontier),
        lambda: _test_calibration(model, log, unseen, correct, (expected, trained_on), seed, replicates),
    ]
    promise, calibration = map_in_threads(lambda part: part(), parts, n=1, same_programs=False)
    return Diagnosis(
        models=model.models,
        source=log.source,
        n_queries=log.n_queries,
        held_out=not trained,
        confidence=unseen,
        correct=correct,
        calibration=calibration,
        promise=promise,
        error_kind=log.error_kind,
    )


def _warn_of_overlap(log: Log, tuned: FittedModel | Log) -> None:
    """Warn the caller of `diagnose` of queries that the model was fitted to."""
    if shared := overlap(log, tuned):
        problem = f"{shared.describe()}, where the model looks better than it is: give other queries"
        warn_caller(f"{log.source}: {problem}", OverlapWarning)


def _expected_accuracy(model: FittedModel, training: Log | None) -> np.ndarray:
    """Return the accuracy of each model on the training log: (k,); without the log, by the paper's model.

    Raises ValueError for a model of the default search without its training log.
    """
    if training is None:
        if isinstance(model, CascadeModel):
            return np.asarray(_mean_confidence(model.marginals))
        raise ValueError("a model of the default search does not know its accuracy: give its training log (training=)")
    right = expected_log(training.select(model.models))
    answered = np.asarray(right.answered)
    return np.where(answered, np.asarray(right.correct, float), 0.0).sum(0) / np.maximum(answered.sum(0), 1)


def _test_promise(
    model: FittedModel, log: Log, training: Log | None, trained_on: int, seed: int, frontier: Frontier | None
) -> Promise | None:
    if frontier is None and training is not None:
        frontier = select_frontier(training.select(model.models), model=model).frontier
    if frontier is None:
        return None
    searched_by = model
    if frontier.is_by_labels:  # the search by labels needs only the calibration
        searched_by = CalibratedModels(model.calibrators, model.cost, model.models, model.record)
    held = held_out_parts(searched_by, log, folds=is_training_log(model, log), seed=seed)
    return measure_promise(frontier, held, trained_on, seed)


def _take_complete(log: Log) -> Log:
    complete = int(log.complete.sum())
    if complete < MIN_QUERIES_FOR_DIAGNOSIS:
        answers = np.asarray(log.answered).sum(0)
        least = int(answers.argmin())
        lacks = f"{log.models[least]}, which answered {answers[least]:,} of {log.n_queries:,}"
        raise LogError(
            f"{log.source}: {complete} queries were answered by every model, and "
            f"a diagnosis needs {MIN_QUERIES_FOR_DIAGNOSIS}: "
            + (f"leave out models that lack answers, first of all {lacks}, or " if complete < log.n_queries else "")
            + "log more"
        )
    return log.take(log.complete)


def _test_calibration(
    model: FittedModel,
    log: Log,
    confidence: np.ndarray,
    correct: np.ndarray,
    training: tuple[np.ndarray, int],
    seed: int,
    replicates: int,
) -> tuple[ModelCalibration, ...]:
    """Judge the calibration of each model on a log; `training` is (accuracies (k,), queries) of the training log."""
    expected, trained_on = training
    from scipy.stats import kendalltau  # importing scipy.stats takes nearly as long as JAX

    rng = np.random.default_rng(seed)
    labels = [(confidence[mask, j], correct[mask, j]) for j, mask in enumerate(np.isfinite(correct).T)]
    kind = bool if log.scores is None else float
    tests = [calibration_test(phi.astype(float), right.astype(kind), rng, replicates) for phi, right in labels]
    separation_p: list[Any] = [kendalltau(*label, method="asymptotic")[1] for label in labels]
    outcomes = np.asarray(corrected_log(log).correct)
    certain = (np.asarray(log.logprob) == 0).mean(0)
    stated = model.calibrators.stated
    states = [False] * len(labels) if stated is None else np.isfinite(np.asarray(stated.confidence)).any(-1)
    calibrators = jax.tree.map(np.asarray, model.calibrators)
    return tuple(
        ModelCalibration(
            model=name,
            accuracy=float(outcomes[:, j].mean()),
            expected_accuracy=float(expected[j]),
            accuracy_p=accuracy_p_value(float(expected[j]), outcomes[:, j], trained_on),
            calibration_error=tests[j].error,
            calibration_error_by_chance=tests[j].by_chance,
            calibration_p=tests[j].p_value,
            separation=area_under_roc(*labels[j]),
            slope=float(calibrators.coefficients[j, 1]),
            separation_p=float(separation_p[j]),
            certain_share=float(certain[j]),
            states_confidence=bool(np.asarray(states)[j]),
        )
        for j, name in enumerate(model.models)
    )


@partial(compiled, runs="once")
def _mean_confidence(marginals: "Marginal") -> jax.Array:
    return jax.vmap(lambda marginal: marginal.mean_above(-1.0))(marginals)
