"""Score every candidate policy by blended labels, and cross-validate the choice of policies.

The best weights a and b (`pairs`) differ from log to log. They are estimated by cross-fitted least squares: pairs are
scored on some folds, at all thresholds, and held against the labels of the fold left out. A prior that is worth 300
labels draws both to three eighths, which does well on most logs.

A table of candidates keeps the single models, and the corners of the lower hull of the others. Three nested candidate
sets are compared: single models; with pairs; with policies that compare answers. For every price and budget, the policy
of each set is chosen on the other folds. The losses on each query give the gains of one set over another, with their
standard errors, and the optimism of each set: held-out error minus in-sample error. The more policies are searched, the
more optimistic the in-sample error of the best is.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from rcjax._core.batching import fill_up, side_by_side
from rcjax._core.compilation import compiled
from rcjax._core.pytrees import Array
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log, pairs
from rcjax.model.calibration import Calibrator, Transform, calibrate_rows
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_without, is_whole
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import Outcomes, Policies, lam_range, log_lam, lower_hull
from rcjax.tuning.agreement import expected_on_log, score_triples
from rcjax.tuning.candidates import (
    ENOUGH_QUERIES,
    Candidates,
    ChosenPolicies,
    Targets,
    are_verdicts,
    choose,
    choose_unmixed,
    concatenate,
    score_chains,
)
from rcjax.tuning.pairs import Blending, CandidateRows, recentre, score_pairs
from rcjax.tuning.replaying.walk import outcomes_on_log

FOLDS = 5  # of a log for cross-validation

_MOST_COMPARED = 50_000  # queries that policies are compared on: the gains that more would show are too small to matter


def deal_folds(complete: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Deal queries into folds at random, with as many complete queries in each: (n,) the fold of each query.

    A plain random deal of a log with gaps may leave a fold without a query that all models answered. `complete` (n,)
    bool are the queries that all models answered.

    >>> complete = np.arange(12) < 4
    >>> fold = deal_folds(complete, 4, seed=0)
    >>> np.bincount(fold[complete]).tolist(), np.bincount(fold).tolist()
    ([1, 1, 1, 1], [3, 3, 3, 3])
    """
    shuffled = np.random.default_rng(seed).permutation(len(complete))
    dealt = np.lexsort((shuffled, ~np.asarray(complete)))  # the complete ones first
    fold = np.empty(len(complete), int)
    fold[dealt] = np.arange(len(complete)) % folds
    return fold


def held_out_confidence(log: Log, model: Fitted, seed: int = 0) -> np.ndarray:
    """Calibrate each of five folds by the others: (n, k) held-out calibrated confidences; NaN for no answer.

    They give the calibration error of a log on which a model was fitted.

    Args:
        log: the log, with the models of `model`.
        model: the model that was fitted to the log.
        seed: seed of the folds.
    """
    fold, confidence = deal_folds(log.complete, FOLDS, seed), np.full_like(log.logprob, np.nan)
    how = {"transform": model.calibrators.transform, "values": model.calibrators.values}
    for number, right in enumerate(expected_without(log, fold, FOLDS)):
        out = fold == number
        calibrators, _ = calibrate_log(*fill_up(log.logprob, right, np.asarray(log.answered) & ~out[:, None]), **how)
        confidence[out] = np.asarray(calibrate_rows(calibrators, log.logprob))[out]
    return np.where(np.asarray(log.answered), confidence, np.nan)


def sample_queries(log: Log, seed: int) -> Log:
    """Take at most 50,000 queries of a log at random; return the log itself where it has no more."""
    if log.n_queries <= _MOST_COMPARED:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_queries, _MOST_COMPARED, replace=False)
    return log.take(np.sort(chosen))


_CUTS = 16  # thresholds of each model at which the weights are estimated

_PRIOR = 300  # weight of the prior, in labels


_calibrate_rows = compiled(CandidateRows.of, runs="long")


def charges(log: Log) -> np.ndarray:
    """Return the cost of each answer, and the mean cost of its model where an answer is missing: (n, k) money.

    >>> import rcjax
    >>> log = rcjax.sample_log(50, seed=0)
    >>> bool((charges(log) == np.asarray(log.query_cost)).all())
    True
    """
    return np.where(np.asarray(log.answered), np.asarray(log.query_cost), np.asarray(log.cost))


def estimate_blending(log: Log, transform: Transform, refusal: Any = None) -> Blending:
    """Estimate the blending weights (a, b) by cross-fitted least squares; the defaults for one model or few labels.

    Args:
        log: the log; its first 5,000 labelled queries at most are used.
        transform: the transform of the raw confidence.
        refusal: () worth of a refusal, in right answers; None: models do not refuse.

    >>> import rcjax
    >>> blending = estimate_blending(rcjax.sample_log(300, seed=0), "choice")
    >>> 0 <= blending.calibrated <= 1, 0 <= blending.crossed <= 1, 0 <= blending.label <= 1
    (True, True, True)
    """
    known = _ESTIMATED.setdefault(log, {})
    if transform not in known:
        known[transform] = _weights(log, transform)
    return Blending(*known[transform], refusal)


#: Weights of the logs in use: a search needs them, and its bootstrap needs them again.
_ESTIMATED: WeakKeyDictionary[Log, dict[Transform, tuple[float | Array, float | Array]]] = WeakKeyDictionary()


def _weights(log: Log, transform: Transform) -> tuple[float | Array, float | Array]:
    """Estimate (a, b) of `estimate_blending`."""
    labelled, usual = log.labelled & np.asarray(log.answered), (Blending.calibrated, Blending.crossed)
    if not labelled.any(1).all():  # queries without a label play no part, in the deal of folds either
        log, labelled = log.take(labelled.any(1)), labelled[labelled.any(1)]
    if log.n_queries > ENOUGH_QUERIES:
        log, labelled = log.take(slice(ENOUGH_QUERIES)), labelled[:ENOUGH_QUERIES]
    if len(log.models) < 2 or labelled.all(1).sum() < 2 * FOLDS:
        return usual
    fold = deal_folds(np.asarray(labelled.all(1)), FOLDS, seed=0)
    sums = [_normal_equations(log, transform, labelled, fold == number) for number in range(FOLDS)]
    square, product = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    prior = np.trace(square) / 2 * _PRIOR / labelled.all(1).sum()
    calibrated, crossed = _least_squares(square + prior * np.eye(2), product + prior * np.array(usual))
    return float(calibrated), float(crossed)


def _normal_equations(
    log: Log, transform: Transform, labelled: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations ((2, 2), (2,)) for the queries `out` (n,), predicted from the others.

    They are summed over all pairs and cuts.
    """
    logprob, right = np.asarray(log.logprob, float), np.where(labelled, np.asarray(log.correct, float), 0.0)
    train = labelled & ~out[:, None]
    rows = fill_up(np.asarray(log.logprob), np.asarray(log.correct), train)
    known = _calibrate_rows(calibrate_log(*rows, transform=transform)[0], rows)
    confidence, crossed = np.asarray(known.confidence, float), np.asarray(known.crossed, float)
    square, product = np.zeros((2, 2)), np.zeros(2)
    for pair, (i, j) in enumerate(pairs(len(log.models))):
        trained, left_out = train[:, i] & train[:, j], labelled[:, i] & labelled[:, j] & out
        if not (trained.any() and left_out.any()):
            continue
        cuts = np.unique(np.quantile(logprob[trained, i], np.linspace(0.04, 0.96, _CUTS), method="lower"))
        first = recentre(confidence[: len(out), i], right[:, i], trained) - right[:, i]
        by_itself = recentre(confidence[: len(out), j], right[:, j], trained) - right[:, j] - first
        by_first = recentre(crossed[pair, : len(out)], right[:, j], trained) - right[:, j] - first
        gain = right[:, j] - right[:, i]
        deferred = logprob[:, i, None] <= cuts
        predicted = np.stack([by_itself, by_first, gain])[:, trained] @ deferred[trained] / trained.sum()
        counted = gain[left_out] @ deferred[left_out] / left_out.sum()
        square += predicted[:2] @ predicted[:2].T
        product += predicted[:2] @ (counted - predicted[2])
    return square, product


def _least_squares(square: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Minimise x'Sx − 2x'p over x ≥ 0 with a sum of at most 1: (2,).

    >>> _least_squares(np.eye(2), np.array([0.2, 0.3])).tolist(), _least_squares(np.eye(2), np.array([2.0, 0])).tolist()
    ([0.2, 0.3], [1.0, 0.0])
    """
    along = square[0, 0] + square[1, 1] - 2 * square[0, 1]
    share = np.clip(_ratio(square[1, 1] - square[0, 1] + product[0] - product[1], along), 0, 1)
    tries = [np.zeros(2), np.array([share, 1 - share])]
    tries += [np.eye(2)[n] * np.clip(_ratio(product[n], square[n, n]), 0, 1) for n in range(2)]
    if np.linalg.matrix_rank(square) == 2:
        tries.append(np.linalg.solve(square, product))
    inside = [x for x in tries if (x >= 0).all() and x.sum() <= 1 + 1e-12]
    return min(inside, key=lambda x: float(x @ square @ x - 2 * x @ product))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0


_ROUNDING = 1e-6  # of an error, and of a bill, in single precision


def score(
    calibrators: Calibrator, rows: tuple[Any, Any, Any], charge: Any, blending: Blending, answer: Any = None
) -> Candidates:
    """Score single models and pairs on n queries; given `answer`, score policies that compare answers instead.

    Args:
        calibrators: (k,) calibrators of the models.
        rows: (logprob, correct, present), each (n, k), as `CandidateRows.of` takes them.
        charge: money of each answer (n, k), or of every answer of a model (k,).
        blending: the blending weights of labels, and the worth of a refusal.
        answer: (n, k) codes of answers.
    """
    known = CandidateRows.of(calibrators, rows, charge, answer)
    return score_pairs(known, blending) if answer is None else score_triples(known, blending)


_score_pairs = compiled(score_pairs, runs="long")
_score_triples = compiled(score_triples, runs="long")


def score_log(
    calibrators: Calibrator, rows: tuple[Any, Any, Any], charge: Any, blending: Blending, answer: Any = None
) -> Candidates:
    """Do the same as `score`, compiled for one log at a time; numpy arrays.

    Rows are filled up, so that folds, replicates and logs of similar size share one compilation.

    Args:
        calibrators, rows, charge, blending, answer: as for `score`.
    """
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    codes = None if answer is None else fill_up(answer)[0]
    known = replace(_calibrate_rows(calibrators, fill_up(*rows)), charge=money, answer=codes)
    return jax.tree.map(np.asarray, (_score_pairs if answer is None else _score_triples)(known, blending))


def score_all(
    calibrators: Calibrator,
    rows: tuple[Any, Any, Any, Any],
    charge: Any,
    blending: Blending,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Candidates, Candidates | None]:
    """Score all candidates, and keep those that are the best for some target.

    The result is (single models and pairs, policies that compare answers or None). Chains of more models are among the
    pairs where every confidence is the verdict of a check.

    Args:
        calibrators: (k,) calibrators of the models.
        rows: (logprob, correct, present, answer), each (n, k); None as `answer`: answers are not compared.
        charge: money of each answer (n, k), or of every answer of a model (k,).
        blending: the blending weights of labels, and the worth of a refusal.
        admits: function from policies (C,) to those that may be chosen, (C,) bool; None: all.
    """
    *labels, answer = rows
    pairs = score_log(calibrators, tuple(labels), charge, blending)
    pairs = _keep_corners(pairs, _undominated(pairs), admits)
    longer = None if blending.refusal is not None else _score_chains(calibrators, labels, charge, blending)
    if longer is not None:
        pairs = pairs.with_chains(_keep_corners(longer, np.arange(len(longer.cost)), admits))
    if answer is None:
        return pairs, None
    triples = score_log(calibrators, tuple(labels), charge, blending, answer)
    triples = _keep_corners(triples, np.flatnonzero(np.isfinite(triples.error)), admits)
    if longer is not None and triples.cost.size:
        triples = replace(triples, chain=np.full((len(triples.cost), triples.k), np.nan, pairs.cost.dtype))
    return pairs, triples if triples.cost.size else None


def _score_chains(calibrators: Calibrator, labels: Sequence[Any], charge: Any, blending: Blending) -> Candidates | None:
    """Score chains of more than two models, where confidences are verdicts; None elsewhere."""
    logprob, correct, present = map(np.asarray, labels)
    if not are_verdicts(logprob, present):
        return None
    confidence = np.asarray(calibrate_rows(calibrators, logprob), float)
    expected = np.stack([recentre(*of) for of in zip(confidence.T, correct.T.astype(float), present.T, strict=True)], 1)
    right = float(blending.label) * correct + (1 - float(blending.label)) * expected
    return score_chains(
        confidence, right, np.asarray(present.all(1)), np.broadcast_to(np.asarray(charge, float), logprob.shape)
    )


def _undominated(pairs: Candidates) -> np.ndarray:
    """Return the positions of candidates worth keeping: not dominated by a single model, in error as counted and cost.

    Thresholds that divide no queries are dropped too.
    """
    use, k = np.isfinite(pairs.error), pairs.k
    if pairs.refusal is None:
        rising = np.argsort(pairs.cost[:k])
        least = np.minimum.accumulate(np.append(np.inf, pairs.counted[:k][rising]))  # among the 0, 1, … cheapest models
        cheaper = np.searchsorted(pairs.cost[:k][rising], pairs.cost * (1 - _ROUNDING))
        use &= pairs.is_single | (least[cheaper] >= pairs.counted - _ROUNDING)
    return np.flatnonzero(use)


def _keep_corners(trial: Candidates, useful: np.ndarray, admits: Callable[[Policies], np.ndarray] | None) -> Candidates:
    """Keep the single models, and the corners of the lower hull of the others, among admitted `useful` positions."""
    if admits is not None and useful.size:
        useful = useful[admits(trial.take(useful).policies())]
    alone = trial.is_single[useful]
    others = useful[~alone]
    corners = others[lower_hull(trial.cost[others], trial.error[others])]
    return trial.take(np.concatenate([useful[alone], corners]))


PRICES, BUDGETS = 40, 24

_LEAST = 0.002  # least gain in error + λ·cost over all prices, as a share of it
_CONTRADICTION = 3.0  # standard errors below 0 at which the held-out labels contradict a gain


class Gain(NamedTuple):
    """The gain of one policy or candidate set over another on held-out queries; numbers, or numpy arrays."""

    mean: Any
    """Mean over the queries."""
    se: Any
    """Standard error of the mean."""

    @classmethod
    def of(cls, forms: np.ndarray) -> "Gain":
        """Return the mean gain and its standard error from the gains of m queries, in F forms of outcomes (F, …, m).

        The first form gives the mean, the last the standard error; they are the same where all answers are labelled.

        >>> float(Gain.of(np.array([[0.0, 2.0, 1.0, 1.0]])).mean)
        1.0
        """
        return cls(forms[0].mean(-1), forms[-1].std(-1, ddof=1) / np.sqrt(forms.shape[-1]))

    def at(self, index: Any) -> "Gain":
        """Return the gains at an index of the arrays."""
        return Gain(self.mean[index], self.se[index])


class Gains(NamedTuple):
    """The gains of one candidate set over another, in error + λ·cost at G prices."""

    at_prices: Gain
    """(G,) gain at each price, in errors."""
    overall: Gain
    """() gain as a share of the rival's error + λ·cost, averaged over the prices."""
    counted: Gain
    """() the same as `overall`, counted by the held-out labels alone."""

    @property
    def earned(self) -> bool:
        """Whether the candidate set gains enough to be used, and the held-out labels do not contradict the gain.

        The frontier keeps the other policies too, so a false gain costs little, and a missed gain costs much.
        """
        return bool(self.overall.mean > _LEAST and self.counted.mean > -_CONTRADICTION * self.counted.se)


@dataclasses.dataclass(frozen=True)
class CrossValidation:
    """Cross-validated gains and optimism of S nested candidate sets.

    The sets are single models; with pairs; with policies that compare answers. The policy for each target and fold is
    chosen on the other folds. Different targets may have different policies.
    """

    targets: Targets  # G prices and B budgets, each rising
    pairs: Gains  # of pairs over single models
    agreement: Gains | None  # of policies that may compare answers over pairs; None: the log has no answers
    saved: Gain  # (S, B) error of the best single model minus error of the candidate set
    alone: np.ndarray  # (k,) error of each model, by all labels
    set_optimism: np.ndarray  # (S,) optimism: held-out error minus in-sample error, mean over budgets

    @property
    def uses_agreement(self) -> np.ndarray:
        """(G,) bool: the prices at which policies that compare answers are used.

        They must gain over all prices together, and at the price: among forty prices some always look better by chance.
        """
        if self.agreement is None or not self.agreement.earned:
            return np.zeros(len(self.targets.lam), bool)
        return self.agreement.at_prices.mean > 0

    def excess_optimism(self, comparing: bool) -> float:
        """Return the optimism of cascades minus the optimism of single models, 0 at least; the mean over all budgets.

        The errors of cascades are raised by this amount before they are compared with single models, whose errors are
        as counted. A choice among many cascades is more optimistic than a choice among few models.

        Args:
            comparing: return it for policies that may compare answers, where there are any.
        """
        return max(float(self.set_optimism[self.row(comparing)] - self.set_optimism[0]), 0.0)

    def row(self, comparing: bool) -> int:
        """Return the index of the candidate set of a cascade: pairs, or all where it compares answers."""
        return len(self.set_optimism) - 1 if comparing else min(1, len(self.set_optimism) - 1)

    def gain(self, comparing: bool, target: Target, bills: np.ndarray) -> Gain:
        """Return the held-out gain of cascades over the best single model at a target, in errors.

        Args:
            comparing: return it for policies that compare answers.
            target: a budget, or a price; the gain at a price is in error + λ·cost.
            bills: (k,) dollars per query of each single model.
        """
        if target.name == "budget":
            return self.saved.at((self.row(comparing), self.at_budget(target.value, bills)))
        lam = target.value if target.name == "lam" else 1 / target.value
        place = int(self.at_price(lam))
        pairs = self.pairs.at_prices.at(place)
        if self.agreement is None or not comparing:
            return pairs
        more = self.agreement.at_prices.at(place)
        return Gain(pairs.mean + more.mean, np.hypot(pairs.se, more.se))

    def at_budget(self, budget: float, bills: Any = ()) -> int:
        """Return the position of the nearest budget, on the logarithmic scale.

        Budgets that pay for the same number of `bills` (k,), of the single models, go first: the saving of a cascade
        drops where the budget reaches the next model's bill.
        """
        ends, end, alone = (log_lam(money) for money in (self.targets.budgets, budget, bills))
        alike = (alone <= ends[:, None] + 1e-9).sum(1) == (alone <= end + 1e-9).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - end), np.inf).argmin())

    def at_price(self, lam: Any) -> np.ndarray:
        """Return the position of the price nearest to each λ, on the logarithmic scale: (…)."""
        return np.abs(log_lam(self.targets.lam) - log_lam(lam)[..., None]).argmin(-1)


class Losses(NamedTuple):
    """Losses of m held-out queries, for S candidate sets and T targets, in F forms of outcomes.

    The candidate sets are nested: single models; with pairs; with policies that compare answers, where there are any.
    """

    targets: Targets
    penalty: np.ndarray
    """(F, S, T, m) errors, and refusals at their price."""
    charge: np.ndarray
    """(S, T, m) cost, in money per query."""
    expected: np.ndarray
    """(F, S, T, m) the penalty; where answers are compared, by expected errors in place of labels."""
    promised: np.ndarray
    """(S, T) in-sample penalty."""
    folds: int
    """Number of folds."""

    def optimism(self, chosen: slice) -> np.ndarray:
        """Return held-out error minus in-sample error, as a mean over a slice of the targets: (S,).

        For a fixed policy the result is 0, as each query is held out once. Optimism falls with the number
        of labels: the choice on all folds is less optimistic than the choice without one, and the result is scaled so.
        """
        optimism = (self.penalty[-1, :, chosen].mean(-1) - self.promised[:, chosen]).mean(-1)
        return optimism * (1 - 1 / self.folds)

    def gains(self, challenger: int, rival: int, expected: bool = False) -> Gains:
        """Return the gains of one candidate set over another, in error + λ·cost at every price, over all queries.

        Args:
            challenger: index of the candidate set.
            rival: index of the candidate set that it is compared with.
            expected: use expected errors, which are far less noisy than labels: by the labels of 300 queries a gain of
                7 % has a standard error of 5 %, and two of three such gains would be missed.
        """
        pair, prices = [rival, challenger], self.targets.prices
        money = self.targets.lam[:, None] * self.charge[pair, prices]
        counted = self.penalty[:, pair, prices] + money  # (F, 2, G, m)
        loss = self.expected[:, pair, prices] + money if expected else counted
        share = np.maximum(counted[0, 0].mean(-1), np.finfo(float).tiny)[:, None]
        by_loss, by_count = (of[:, 0] - of[:, 1] for of in (loss, counted))
        return Gains(Gain.of(by_loss), *(Gain.of((gain / share).mean(-2)) for gain in (by_loss, by_count)))

    def summarise(self, alone: np.ndarray) -> CrossValidation:
        """Return the gains and the optimism of the candidate sets; `alone` (k,) is the error of each model."""
        within, sets = self.targets.within, len(self.charge)
        pair, penalty = min(1, sets - 1), self.penalty[:, :, within]
        return CrossValidation(
            self.targets,
            pairs=self.gains(pair, 0),
            agreement=self.gains(2, pair, expected=True) if sets > 2 else None,
            saved=Gain.of(penalty[:, :1] - penalty),
            alone=alone,
            set_optimism=self.optimism(within),
        )


def targets_of(log: Log) -> Targets:
    """Return prices at which policies differ, and budgets from the cheapest model's bill to 1.2 times the dearest's."""
    cost = np.asarray(log.cost, float)
    low, high = float(cost.min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    return Targets(lam_range(cost, PRICES), np.geomspace(low, 1.2 * max(high, low), BUDGETS))


def cross_validate(log: Log, model: Fitted, blending: Blending, folds: int = 5, seed: int = 0) -> Losses:
    """Return the losses of every candidate set on the complete queries of a log, each held out once.

    Where answers lack labels, gains are computed from expected outcomes. Errors, and the standard errors of gains, are
    computed from corrected outcomes (`rcjax.model.label_outcomes`).

    Args:
        log: the log, with the models of `model`.
        model: the model fitted to the log.
        blending: the blending weights of labels, and the worth of a refusal.
        folds: number of folds.
        seed: seed of the folds.
    """
    complete, price = log.complete, None if blending.refusal is None else 1 - float(blending.refusal)
    fold, targets, charge = deal_folds(complete, folds, seed), targets_of(log), charges(log)
    forms, logs = [log.correct], [log] * folds
    if not is_whole(log):  # expected outcomes of a fold's complement must not use the labels of the fold
        expected = expected_log(log)
        forms = [expected.correct, corrected_log(log).correct]
        outcomes = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
        logs = [dataclasses.replace(expected, correct=right) for right in outcomes]

    def left_out(number: int) -> tuple[Array, ...]:
        """Return `penalty`, `charge`, `expected` and `promised` of a fold, as in `Losses`."""
        calibrators, choices, likely = _choose_without(
            logs[number], fold == number, model.calibrators, targets, blending
        )
        out = complete & (fold == number)
        walked = [[_replay_fold(calibrators, choice, out, log, of, charge) for choice in choices] for of in forms]
        outcomes = Outcomes(*(np.array([[of[n] for of in form] for form in walked]) for n in range(3)))
        penalty = outcomes.penalty(price)
        expected = penalty if likely is None else penalty + (likely[..., out] - outcomes.wrong)
        return penalty, outcomes.cost[0], expected, np.stack([choice.error for choice in choices])

    *figures, promised = zip(*side_by_side(left_out, range(folds), n=log.n_queries), strict=True)
    # Sort the queries back from the order of the folds to the order of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    penalty, spent, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    promised = np.average(promised, axis=0, weights=np.bincount(fold[complete], minlength=folds))
    return Losses(targets, penalty, spent, expected, promised, folds)


def _choose_without(
    log: Log, out: np.ndarray, like: Calibrator, targets: Targets, blending: Blending
) -> tuple[Calibrator, list[ChosenPolicies], np.ndarray | None]:
    """Calibrate, and choose from each candidate set, on all queries of a log but those `out` (n,).

    The result is ((k,) calibrators of the kind of `like`, S choices, (S, T, n) probability that a query is answered
    wrongly). The last is None where answers are not compared.
    """
    rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
    calibrators, _ = calibrate_log(*fill_up(*rows), transform=like.transform, values=like.values)
    comparing = log.answer is not None and len(log.models) > 2
    pairs, answers = score_all(calibrators, (*rows, log.answer if comparing else None), charges(log), blending)
    choices = [choose_unmixed(pairs.take(np.flatnonzero(pairs.is_single)), targets)]
    if len(log.models) > 1:
        choices.append(choose(pairs, targets))
    if comparing:
        choices.append(choose(pairs if answers is None else concatenate(pairs, answers), targets))
    filled = [choice.padded() for choice in choices]
    if not comparing:
        return calibrators, filled, None
    wrong = expected_on_log(calibrators, rows, log, [choice.rungs for choice in filled])
    return calibrators, filled, np.stack([choice.weights @ of for choice, of in zip(filled, wrong, strict=True)])


def _replay_fold(calibrators: Calibrator, choice: ChosenPolicies, out: np.ndarray, *of: Any) -> Outcomes:
    """Return the outcomes (T, m) of the queries `out` (n,) of a log, under the policies chosen for the targets."""
    outcomes = outcomes_on_log(calibrators, choice.rungs.policies(), *of)
    return Outcomes(*(choice.weights @ np.asarray(figure[:, out], float) for figure in outcomes))
