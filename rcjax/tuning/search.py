"""The searches for a frontier, by labels and by the paper's model.

The default search returns the frontier of single models, and of cascades that beat single models after correction for
optimism: pairs, agreement policies, and chains if confidences are verdicts of a check. The estimates that choose these
cascades are noisy: the more cascades are searched, the more optimistic the best estimate is. Three measures limit the
optimism. Labels of pairs are averaged with their probabilities (`candidate_scores`). Agreement policies are used only
at prices where they gain on pairs in `cross_validation`. And the errors of cascades are raised by their optimism
(`CrossValidation.excess_optimism`), while the errors of single models are counted by labels. So a cascade leaves the
frontier if a single model does better.

The best weights of that average, a and b, differ from log to log. Cross-fitted least squares estimate them: the gain of
each pair at sixteen thresholds is predicted from four folds, and compared with the labels of the fifth fold. A prior
that is worth 300 labels draws both weights to three eighths, which does well on most logs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.codec import takes
from rcjax._base.figures import percent
from rcjax._core.batching import join, list_pairs, map_in_chunks
from rcjax.logs.errors import LogError, OddLogWarning, warn_caller
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import FittedModel, fit_calibrated, refit_calibrators
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, deal_folds, expected_log
from rcjax.policy.spec import CascadeSet, SecondsLimit, Spec
from rcjax.solving.frontier.frontier import Frontier, InfeasibleError, make_frontier
from rcjax.solving.frontier.points import (
    LossTerms,
    Points,
    PointStatus,
    Policies,
    abstain_worth_at,
    check_lam,
    lower_hull,
)
from rcjax.tuning.candidate_scores import (
    Blending,
    TrainingRows,
    calibrate_training_rows,
    recentre,
    score_candidates,
)
from rcjax.tuning.candidate_table import Candidates
from rcjax.tuning.cross_validation import (
    ENOUGH_QUERIES,
    CandidateSet,
    CrossValidation,
    cross_validate,
    draw_enough,
    make_training_rows,
    sample_queries,
)
from rcjax.tuning.replaying.walk import require_complete, waiting_times_on_log


@dataclasses.dataclass(frozen=True)
class Selection:
    """The result of a search: a frontier and its cross-validation."""

    frontier: Frontier
    cross_validation: CrossValidation | None
    """Cross-validation of the cascades; None for a search by the paper's model, and if too few queries are complete."""


_LAM_GRID = 400  # λ for which the best agreement policies are kept


@takes(log=Log)
def select_frontier(
    log: Log,
    *,
    model: FittedModel | None = None,
    lam: Any = None,
    seed: int = 0,
    abstain_price: float | None = None,
    admits: Callable[[Policies, FittedModel], np.ndarray] | None = None,
) -> Selection:
    """Select the error–cost frontier of single models and cascades that beat them after correction for optimism.

    Single models and pairs, at up to 400 thresholds, are scored on the queries of the log (`candidate_scores`).
    Agreement policies are used if the log has answers and they gain on held-out folds
    (`CrossValidation.uses_agreement`). The frontier has the corners of the lower hull. Each corner is the best policy
    at some λ; a position of a ladder lies between two corners.

    All figures are of the complete queries (`Log.comparable`), and other answers only calibrate. `Frontier.cost` is the
    bill. `Frontier.error` is counted by labels for single models, and raised by the optimism for cascades: held-out
    error minus in-sample error. Optimism and gains are estimated on at most 50,000 queries, drawn at random, and not at
    all if too few are complete; there are no agreement policies then.

    Args:
        log: the log to learn from.
        model: the fitted model, of `fit` or `fit_calibrated`; None: `fit_calibrated(log)`.
        lam: (L,) λ to return the best policies for, in error probability per unit of money; None: every corner.
        seed: seed of the folds.
        abstain_price: price of an abstention, in errors, as in `solve_frontier`: the last model of a cascade may
            abstain, and the loss is error + abstain_price·abstention + λ·cost; None: models do not abstain.
        admits: function from policies (C,) and the model to a mask of the policies to choose from, (C,); None: all. The
            cross-validation always chooses from all policies, so the optimism is that of the larger choice.

    Raises ValueError for an empty or negative `lam` or a negative price; LogError if there are fewer queries than
    folds, or no query has the answers of all models.

    >>> import rcjax
    >>> selection = select_frontier(rcjax.sample_log(300, seed=0))
    >>> selection.frontier.models == rcjax.demo_model().models, int(selection.frontier.members.sum(1).max())
    (True, 2)
    """
    if log.n_queries < FOLDS:
        needs = f"the search needs at least {FOLDS} queries, and about a hundred to be useful"
        raise LogError(f"{log.source}: too few queries, {log.n_queries}: {needs}: log more")
    lam = None if lam is None else check_lam(lam)
    abstain_price = Spec(abstain_price=abstain_price).abstain_price
    model = fit_calibrated(log) if model is None else model
    log = log.select(model.models)
    require_complete(log, "the search")
    sample = sample_queries(log, seed)
    blending = estimate_blending(sample, model.calibrators)
    cross_validation = None
    if sample.has_enough_complete:
        cross_validation = cross_validate(sample, model, blending, abstain_price, seed).summarise()
    admitted = None if admits is None else lambda policies: admits(policies, model)
    table = _candidates(log, model, blending, abstain_price, cross_validation, admitted)
    table = table if cross_validation is None else add_optimism(table, cross_validation)
    corners = table.take(lower_hull(table.cost, table.penalty)[::-1])
    best, lam = (corners, _corner_lam(corners)) if lam is None else (corners.best(lam), lam)
    return Selection(_make_label_frontier(model, best, lam, abstain_price, log.compare), cross_validation)


def _candidates(
    log: Log,
    model: FittedModel,
    blending: Blending,
    abstain_price: float | None,
    cross_validation: CrossValidation | None,
    admits: Callable[[Policies], np.ndarray] | None,
) -> Candidates:
    """Score single models and pairs on a log, and agreement policies at the λ where they gain."""
    log = expected_log(log)
    uses_agreement = np.zeros(0, bool) if cross_validation is None else cross_validation.uses_agreement
    training, only_complete = make_training_rows(log, compare=bool(uses_agreement.any())), log.has_enough_complete
    table, agreement = score_candidates(model.calibrators, training, blending, abstain_price, only_complete, admits)
    if agreement is None or cross_validation is None:
        return table
    lam = np.geomspace(cross_validation.targets.lam[0], cross_validation.targets.lam[-1], _LAM_GRID)
    nearest = cross_validation.nearest_lam(lam)
    return join([table, agreement.best(lam[uses_agreement[nearest]])])


def add_optimism(table: Candidates, cross_validation: CrossValidation) -> Candidates:
    """Return the candidates, with the penalties of cascades raised by their optimism."""
    of_pairs, of_agreement = map(cross_validation.excess_optimism, (CandidateSet.PAIRS, CandidateSet.AGREEMENT))
    optimism = np.where(table.is_agreement, of_agreement, of_pairs) * ~table.is_single
    return dataclasses.replace(table, penalty=np.clip(table.penalty + optimism, 0.0, 1.0))


def _corner_lam(corners: Candidates) -> np.ndarray:
    """Return a λ at which each corner of a hull is the best, the dearest corner first: (L,).

    The λ is the geometric mean of the slopes on both sides of the corner.
    """
    slopes = -np.diff(corners.penalty) / np.diff(corners.cost)
    if not slopes.size:
        return np.where(corners.cost > 0, 1 / np.where(corners.cost > 0, corners.cost, 1.0), 1.0)
    around = np.concatenate([[slopes[0] / 4], slopes, [4 * slopes[-1]]])
    return np.sqrt(around[:-1] * around[1:])


def _make_label_frontier(
    model: FittedModel, table: Candidates, lam: np.ndarray, abstain_price: float | None, compare: Any
) -> Frontier:
    """Make the frontier of some candidates; `compare` is the form in which answers are compared."""
    wrong = np.maximum(table.penalty - (abstain_price or 0.0) * table.abstention, 0.0)
    figures = (np.asarray(figure, model.cost.dtype) for figure in (lam, wrong, table.cost, table.abstention))
    lam, *expected = figures
    solved = Points(lam, np.full(len(lam), PointStatus.CONVERGED), LossTerms(*expected), table.policies())
    return make_frontier(model, solved, Spec(abstain_price=abstain_price), compare)


_THRESHOLDS = 16  # thresholds of each model at which the weights are estimated
_PRIOR = 300  # weight of the prior, in labels
#: Least sum of squared predictions of gains by confidences, below which rounding errors alone would set the weights, as
#: where each model has one confidence.
_MIN_INFORMATION = 1e-9


def estimate_blending(log: Log, fitted: Calibrator) -> Blending:
    """Estimate the blending weights (a, b) by cross-fitted least squares.

    The defaults stand for one model, for few labels, and where confidences predict no gain of any pair. At most 5,000
    labelled queries are drawn at random. The transform and the stated values are those of `fitted` (k,).

    >>> import rcjax
    >>> from rcjax.model.calibrated_models import fit_calibrated
    >>> log = rcjax.sample_log(300, seed=0)
    >>> blending = estimate_blending(log, fit_calibrated(log).calibrators)
    >>> 0 <= blending.calibrated <= 1, 0 <= blending.conditional <= 1, 0 <= blending.label <= 1
    (True, True, True)
    """
    labelled = log.labelled & np.asarray(log.answered)
    if not labelled.any(1).all():  # drop queries without labels first, so that folds have equal numbers of labels
        log, labelled = log.take(labelled.any(1)), labelled[labelled.any(1)]
    if log.n_queries > ENOUGH_QUERIES:
        rows = draw_enough(np.arange(log.n_queries))
        log, labelled = log.take(rows), labelled[rows]
    if len(log.models) < 2 or labelled.all(1).sum() < 2 * FOLDS:
        return Blending()
    fold = deal_folds(log.queries, np.asarray(labelled.all(1)))
    sums = [_normal_equations(log, fitted, labelled, fold == number) for number in range(FOLDS)]
    square, product = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    if np.trace(square) < _MIN_INFORMATION:
        return Blending()
    prior = np.trace(square) / 2 * _PRIOR / labelled.all(1).sum()
    calibrated, conditional = _least_squares(
        square + prior * np.eye(2), product + prior * np.array([Blending.calibrated, Blending.conditional])
    )
    return Blending(float(calibrated), float(conditional))


def _normal_equations(
    log: Log, fitted: Calibrator, labelled: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations ((2, 2), (2,)), summed over pairs and thresholds.

    Gains of the queries `out` (n,) are predicted from the other queries.
    """
    logprob = np.asarray(log.logprob, float)
    right = np.where(labelled, np.asarray(log.correct, float), 0.0)
    train = labelled & ~out[:, None]
    training = TrainingRows(np.asarray(log.logprob), np.asarray(log.correct), train)
    rows = calibrate_training_rows(refit_calibrators(fitted, training[:3]), training.padded())
    confidence, conditional = np.asarray(rows.confidence, float), np.asarray(rows.conditional, float)
    square, product = np.zeros((2, 2)), np.zeros(2)
    for pair, (i, j) in enumerate(list_pairs(len(log.models))):
        trained, tested = train[:, i] & train[:, j], labelled[:, i] & labelled[:, j] & out
        if not (trained.any() and tested.any()):
            continue
        thresholds = np.unique(np.quantile(logprob[trained, i], np.linspace(0.04, 0.96, _THRESHOLDS), method="lower"))
        first_by_itself = recentre(confidence[: len(out), i], right[:, i], trained) - right[:, i]
        second_by_itself = recentre(confidence[: len(out), j], right[:, j], trained) - right[:, j]
        second_by_first = recentre(conditional[pair, : len(out)], right[:, j], trained) - right[:, j]
        changes = second_by_itself - first_by_itself, second_by_first - first_by_itself
        gain = right[:, j] - right[:, i]
        deferred = logprob[:, i, None] <= thresholds
        predicted = np.stack([*changes, gain])[:, trained] @ deferred[trained] / trained.sum()
        observed = gain[tested] @ deferred[tested] / tested.sum()
        square += predicted[:2] @ predicted[:2].T
        product += predicted[:2] @ (observed - predicted[2])
    return square, product


def _least_squares(square: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Minimise x'Sx − 2x'p over x ≥ 0 with a sum of at most 1: (2,).

    >>> _least_squares(np.eye(2), np.array([0.2, 0.3])).tolist(), _least_squares(np.eye(2), np.array([2.0, 0])).tolist()
    ([0.2, 0.3], [1.0, 0.0])
    """
    # The minimum is inside, on one of the three edges, or at the origin.
    curvature = square[0, 0] + square[1, 1] - 2 * square[0, 1]
    share = np.clip(_ratio(square[1, 1] - square[0, 1] + product[0] - product[1], curvature), 0, 1)
    tries = [np.zeros(2), np.array([share, 1 - share])]
    tries += [np.eye(2)[n] * np.clip(_ratio(product[n], square[n, n]), 0, 1) for n in range(2)]
    if np.linalg.matrix_rank(square) == 2:
        tries.append(np.linalg.solve(square, product))
    feasible = [x for x in tries if (x >= 0).all() and x.sum() <= 1 + 1e-12]
    return min(feasible, key=lambda x: float(x @ square @ x - 2 * x @ product))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0


_TAIL_SHARE = 0.05  # share of the queries that may exceed a limit on the 95th percentile
_POLICIES_AT_ONCE = 64  # policies that are replayed at a time, to limit the memory
_MAX_UNTIMED = 0.05  # share of a model's answers without seconds, above which a limit on seconds is doubtful


@dataclasses.dataclass(frozen=True)
class SecondsFilter:
    """A limit on the seconds of policies, checked on the queries of a log."""

    limit: SecondsLimit
    log: Log

    @classmethod
    def of(cls, limit: SecondsLimit, log: Log) -> SecondsFilter:
        """Take at most 5,000 complete queries of a log. Raises LogError if the log lacks the seconds of a model.

        Warns by `OddLogWarning` if over 5 % of the answers of a model have no seconds.

        >>> import rcjax
        >>> SecondsFilter.of(SecondsLimit.of("p95=4"), rcjax.sample_log(300, seed=0))
        Traceback (most recent call last):
        ...
        rcjax.logs.errors.LogError: ...: no column seconds (or latency_ms): a limit on the seconds needs it
        """
        if log.seconds is None:
            raise LogError(f"{log.source}: no column seconds (or latency_ms): a limit on the seconds needs it")
        require_complete(log, "a limit on the seconds")
        if unknown := [log.models[j] for j in np.flatnonzero(np.isnan(log.seconds).all(0))]:
            advice = "log them, or leave the model out (models=, --models)"
            raise LogError(f"{log.source}: no answer of {unknown[0]} has its seconds, which a limit needs: {advice}")
        lacking = np.isnan(log.seconds)[log.complete].mean(0)
        if lacking.max() > _MAX_UNTIMED:
            j = int(lacking.argmax())
            effect = "the limit on the seconds judges it by the others, which may be its fast ones"
            problem = f"{percent(float(lacking[j]))} of the answers of {log.models[j]} have no seconds: {effect}"
            warn_caller(f"{log.source}: {problem}: log the seconds of all answers", OddLogWarning)
        return cls(limit, log.take(draw_enough(np.flatnonzero(log.complete))))

    def admits(self, policies: Policies, model: FittedModel) -> np.ndarray:
        """Return which policies keep to the limit with one standard error to spare: (C,) bool."""
        figure, se = self.measure(policies, model)
        return figure + se <= (_TAIL_SHARE if self.limit.tail else self.limit.seconds) * (1 + 1e-9)

    def measure(self, policies: Policies, model: FittedModel) -> tuple[np.ndarray, np.ndarray]:
        """Return (share of the queries beyond the limit, or mean seconds; its standard error), (C,) each.

        Only queries with known seconds count; the first figure of a policy without any is infinite.
        """
        log = self.log.select(model.models)

        def measure_some(some: Policies) -> tuple[np.ndarray, np.ndarray]:
            waits = waiting_times_on_log(model.calibrators, some, log)
            known = ~np.isnan(waits)
            n = np.maximum(known.sum(1), 1)
            values = np.where(known, waits > self.limit.seconds if self.limit.tail else waits, 0.0)
            mean = values.sum(1) / n
            spread = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(1) / n
            return np.where(known.any(1), mean, np.inf), np.sqrt(spread / n)

        return map_in_chunks(measure_some, policies.on_host(), _POLICIES_AT_ONCE)

    def require_any(self, model: FittedModel) -> None:
        """Raise InfeasibleError if no policy over the models keeps to the limit.

        Only single models are tried, as no policy that asks several models is faster than all of them.
        """
        k = len(model.models)
        singles = Policies.from_cascades(np.zeros((k, k)), np.eye(k, dtype=bool))
        if not self.admits(singles, model).any():
            figure, _ = self.measure(singles, model)
            fastest = int(figure.argmin())
            takes = f"takes {figure[fastest]:.3g} seconds on average"
            if self.limit.tail:
                takes = f"takes longer for {percent(float(figure[fastest]))} of the queries"
            problem = f"no policy takes {self.limit} with one standard error to spare"
            raise InfeasibleError(f"{problem}; the fastest, {model.models[fastest]} alone, {takes}")

    def within(self, frontier: Frontier) -> Frontier:
        """Return the points of a frontier that keep to the limit. Raises InfeasibleError if there are none."""
        indices = np.flatnonzero(self.admits(frontier.policies, frontier.model))
        if not indices.size:
            raise InfeasibleError(f"no policy of this frontier takes {self.limit} with one standard error to spare")
        return frontier.take(indices)


#: Quadrature panels for replicates of many cascades; the error, 5e-6, is far below their spread.
_FEW_PANELS = 9

#: A function that tunes on drawn rows (n,) of a log, and returns calibrators (k,) and G policies: the rungs of a
#: ladder, or the best policy at each of G λ.
DrawTuner = Callable[[np.ndarray], tuple[Calibrator, Policies]]


@dataclasses.dataclass(frozen=True)
class LabelSearch:
    """The search among single models, pairs, agreement policies and chains of verdicts, scored by labels."""

    spec: Spec

    def fit(self, log: Log) -> FittedModel:
        """Calibrate the models of a log."""
        return fit_calibrated(log, self.spec.transform)

    def find(
        self, log: Log, model: FittedModel, *, limit: SecondsFilter | None = None, lam: Any = None, seed: int = 0
    ) -> Selection:
        """Select the frontier by `select_frontier`.

        Args:
            log: the log.
            model: the model that `fit` returned.
            limit: limit on the seconds of policies; None: no limit.
            lam: (L,) the λ of the frontier; None: the search chooses them.
            seed: seed of the folds of the cross-validation.
        """
        admits, price = None if limit is None else limit.admits, self.spec.abstain_price
        return select_frontier(log, model=model, lam=lam, seed=seed, abstain_price=price, admits=admits)

    def draw_tuner(
        self, frontier: Frontier, log: Log, points: np.ndarray | None = None, blending: Blending | None = None
    ) -> DrawTuner:
        """Return the function that tunes on a draw to the best policies at some λ, or to the rungs of a ladder.

        Args:
            frontier: the frontier that was tuned.
            log: the log that the frontier was tuned on.
            points: (G,) indices of the points whose λ the draws are tuned for; None: the function returns the rungs of
                the draw's own ladder, by rising cost, with the last rung repeated up to `RESAMPLED_RUNGS`.
            blending: the blending weights of the cross-validation; None: they are estimated on the whole log.
        """
        agreements, lam = frontier.policies.agreements, np.asarray(frontier.lam, float)
        agreement_lam = lam[[] if agreements is None else np.asarray(agreements.compares).any(1)]
        fitted = frontier.model.calibrators
        if blending is None:
            blending = estimate_blending(log, fitted)

        def tune_draw(queries: np.ndarray) -> tuple[Calibrator, Policies]:
            training = take_training_rows(log, queries)
            calibrators = refit_calibrators(fitted, training[:3])
            training = training if agreement_lam.size else training._replace(answer=None)
            price, only_complete = frontier.abstain_price, log.has_enough_complete
            table, agreement = score_candidates(calibrators, training, blending, price, only_complete)
            if agreement is not None:
                table = join([table, agreement.best(agreement_lam)])
            chosen = table.rungs().padded() if points is None else table.best(lam[points])
            return calibrators, chosen.policies(agreement=training.answer is not None)

        return tune_draw


@dataclasses.dataclass(frozen=True)
class ModelSearch:
    """The search among the cascades that a spec names, by the paper's model."""

    spec: Spec
    cascades: CascadeSet

    def fit(self, log: Log) -> FittedModel:
        """Fit the paper's model, after a check that the spec's cascades exist."""
        from rcjax.model.fitting import fit
        from rcjax.solving.bellman import list_cascades

        list_cascades(log.models, self.cascades)
        options = {"copula": self.spec.copula, "method": self.spec.method}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return fit(log, transform=self.spec.transform, **given)

    def find(
        self, log: Log, model: Any, *, limit: SecondsFilter | None = None, lam: Any = None, seed: int = 0
    ) -> Selection:
        """Solve the frontier of the model, by `solve_frontier`; InfeasibleError if no policy keeps to the limit.

        Args:
            log, model, limit, lam, seed: as in `LabelSearch.find`; `log` and `seed` are not used.
        """
        from rcjax.solving.tradeoff import solve_frontier

        frontier = solve_frontier(model, lam=lam, cascades=self.cascades, abstain_price=self.spec.abstain_price)
        return Selection(frontier if limit is None else limit.within(frontier), None)

    def draw_tuner(
        self, frontier: Frontier, log: Log, points: np.ndarray | None = None, blending: Blending | None = None
    ) -> DrawTuner:
        """Return the function that fits the model to a draw, and solves it at the λ of some points.

        Args:
            frontier, log: as for `LabelSearch.draw_tuner`.
            points: (G,) indices of the points; None: all points, as a draw has no ladder of its own.
            blending: not used, as the model is not fitted to blended labels.
        """
        from rcjax.model.cascade_model import CascadeModel
        from rcjax.model.fitting import fit_near
        from rcjax.solving.bellman import MANY_STEPS, plan_cascades
        from rcjax.solving.quadrature import PANELS
        from rcjax.solving.tradeoff import build_search_tables, solve_at

        model = frontier.model
        assert isinstance(model, CascadeModel)  # as the search fitted it
        lam = np.asarray(frontier.lam)[slice(None) if points is None else points]
        abstain_worth = abstain_worth_at(frontier.abstain_price, log.cost.dtype)
        plan = plan_cascades(model.models, self.cascades)  # None for adaptive policies
        panels = _FEW_PANELS if plan is not None and len(plan.steps) > MANY_STEPS else PANELS

        def tune_draw(queries: np.ndarray) -> tuple[Calibrator, Policies]:
            logprob, correct, answered, *_, query_cost = take_training_rows(log, queries)
            assert query_cost is not None
            cost = (query_cost * answered).sum(0) / np.maximum(answered.sum(0), 1)
            fitted = fit_near(model, logprob, correct, answered, jnp.asarray(cost, log.cost.dtype))
            problem = build_search_tables(fitted, plan, abstain_worth, panels)
            return fitted.calibrators, solve_at(problem, lam).policies

        return tune_draw


def make_search(spec: Spec) -> LabelSearch | ModelSearch:
    """Return the search that a spec names. Raises ValueError for a search by `minimise`: a spec has no objective."""
    if spec.has_own_objective:
        raise ValueError("to search again rcjax.solving.minimise needs its objective: give held-out queries instead")
    return LabelSearch(spec) if spec.cascade is None else ModelSearch(spec, spec.cascade)


def take_training_rows(log: Log, queries: np.ndarray) -> TrainingRows:
    """Return the training rows of a draw of a log's queries: (n,) rows of the log, which may repeat.

    Answers without a label get the outcome expected from the labels of the draw.
    """
    training = jax.tree.map(lambda column: np.asarray(column)[queries], make_training_rows(log))
    if log.hand_labels is None:
        return training
    return training._replace(correct=np.asarray(expected_log(log.take(queries)).correct))
