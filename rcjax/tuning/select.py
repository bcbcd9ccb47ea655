"""The frontier of the cascades that earn their place: pairs, and longer chains only where they are shown to be better.

Policies are chosen by estimates, which are noisy: the more are searched, the luckier the best one looks. Three things
hold luck down. Pairs are judged by labels that are averaged with what is expected of them (`judging`). A chain of three
models or more must beat the pair in the contest by more than one standard error (Breiman, Friedman, Olshen & Stone
1984, "Classification and Regression Trees", section 3.4.3), and so must policies that go by whether two models' answers
are equal (`agreement_candidates`). And what was chosen among many has its error raised by the luck of that
(`Comparison.luckier`), where a single model is counted: so no cascade stands beside a model that does better.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.point_statuses import PointStatus
from rcjax.frontier.points import Points
from rcjax.frontier.policies import NEVER_ANSWER, NEVER_REFUSE, Policies, Splits, asked_at_all
from rcjax.frontier.refusal import check_abstain_price, refusal_at
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.record import EXPECTED_IS_GONE, refuse_early
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target, TargetName
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.frontiers import solve_frontier
from rcjax.solving.lambda_grid import check_lam, lay_out_problem, select, solve_at
from rcjax.solving.paths import only
from rcjax.tuning.bootstrapping import bootstrap
from rcjax.tuning.choices import RESERVE
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.cross_validation import Longer, cross_validate, longer_cascades
from rcjax.tuning.label_weights import charges, judging_of
from rcjax.tuning.resampling import require_queries, sample_queries
from rcjax.tuning.seconds_limit import Admission, within
from rcjax.tuning.trials import (
    AgreementTrial,
    Trial,
    all_trials,
    judge_pairs,
    may_refuse,
    near_best,
    raised_by_luck,
    undominated,
)
from rcjax.tuning.verdict import tell_choice

_HELD = 2**25  # outcomes, queries × policies, held at a time


_LEAST_COMPLETE = 30  # queries with all answers, for cascades of three models and more to be compared on


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    comparison: Comparison
    target: TargetName = "budget"
    """The kind of target that errors of cascades are corrected for."""

    def verdict(self, point: int, target: Mapping[str, float] | None = None) -> str:
        """What to do, and why, in words: `point` is a place of the frontier.

        Differences are on queries left out, with one standard error: in percentage points of errors where `target` is a
        budget or a limit on the error, by its name; else of loss, error + λ·cost, at the λ of the point.
        """
        return tell_choice(self.frontier, self.comparison, point, target or {})


def select_frontier(
    log: Log,
    *,
    model: CascadeModel | None = None,
    lam: Any = None,
    max_length: int | None = None,
    folds: int = 5,
    seed: int = 0,
    abstain_price: float | None = None,
    abstain_early: Any = None,
    admits: Callable[[Policies, CascadeModel], np.ndarray] | None = None,
    target: TargetName = "budget",
) -> Selection:
    """The error–cost frontier of the cascades that earn their place on a log.

    Single models and pairs, at every threshold, are judged by the log's own queries (`label_candidates`). Longer
    cascades have the thresholds that are best under the model, and are used only where they earn it on the queries of
    folds that were left out (`Comparison.chosen`); so are policies that go by whether answers agree, where the log
    tells answers (`Comparison.agreeing`). The frontier holds the policies that no other beats in both error and cost:
    the corners of their convex hull (`PointStatus.CONVERGED`), which some λ leads to, and between them what budgets and
    limits on the error can have there (`PointStatus.INTERPOLATED`). `Frontier.cost` is the bill of the log's queries.
    `Frontier.error` is counted for single models; of others it is raised by how much better the best for such a target
    look on the queries that they were chosen on than on folds that were left out. A budget keeps `Frontier.reserve` in
    hand. Of more than 50,000 queries, so many are taken at random for that and for the comparison of lengths.

    Args:
        log: the log to learn from.
        model: the model fitted to it; by default `fit(log)`.
        lam: (L,) the frontier holds the best policy for each of these λ, in error probability per unit of money.
        max_length: the most models in a cascade.
        folds: of the comparison; 2 or more.
        seed: of the folds.
        abstain_price: the last model of a cascade may refuse to answer, at a price in errors, as in `solve_frontier`:
            what is minimised, and compared on the folds, is error + abstain_price·abstention + λ·cost.
        abstain_early: leave it out: refusals by models before the last were measured to bring nothing, and are gone.
        admits: which of the policies (C,) over a model's models may be chosen from, (C,) bool; None: all may.
        target: the kind of target that policies are to be chosen for, whose luck errors are raised by; a price where
            `lam` is given.

    Raises ValueError for `folds` below 2, for an empty or negative `lam`, a negative price or a target that is none;
    LogError where there are fewer queries than folds, or no query has the answers of all models.

    >>> import rcjax
    >>> selection = select_frontier(rcjax.sample_log(300, seed=0))
    >>> selection.frontier.models == rcjax.demo_model().models, selection.comparison.lengths.tolist()
    (True, [1, 2, 3, 4, 5])
    """
    refuse_early(abstain_early)
    require_queries(log, folds)
    prices = None if lam is None else check_lam(lam)
    Target(target, 1.0)  # refuses a name that is none
    target = target if lam is None else "lam"
    how = _How(prices, max_length, folds, seed, check_abstain_price(abstain_price), admits, target)
    model = fit(log) if model is None else model
    log = log.select(model.models)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    points, comparison = _search(log, model, how)
    frontier = _assemble(model, points, how.abstain_price, log.compare)
    return Selection(dataclasses.replace(frontier, max_length=max_length), comparison, target)


def find_frontier(
    log: Log, model: CascadeModel, spec: Spec, admitted: Admission | None = None
) -> tuple[Frontier, Selection | None]:
    """The frontier of a model fitted to a log, with what its policies were compared with, where they were.

    Args:
        log: the log.
        model: the model fitted to it.
        spec: how to search.
        admitted: which policies may be chosen from; None: all may. By the labels it is searched among these, and of a
            search by the model alone the points stay that are among them.

    Raises InfeasibleError where none is admitted; ValueError for a search that is gone.
    """
    if spec.search == "expected":
        raise ValueError(f"{EXPECTED_IS_GONE}: leave it out")
    selection = None
    if admitted is not None:
        admitted.require_any(model)
    if spec.search == "selected":
        selection = select_frontier(
            log,
            model=model,
            max_length=spec.max_length,
            abstain_price=spec.abstain_price,
            admits=None if admitted is None else admitted.admits,
            target=spec.aim,
        )
        frontier = selection.frontier
    else:
        frontier = solve_frontier(model, cascades=spec.search, chain=spec.chain, abstain_price=spec.abstain_price)
        frontier = frontier if admitted is None else within(frontier, admitted)
    if spec.intervals and frontier.bands is None:
        # Tuned again, policies would not keep to the limit: so they stay as they are, and only the queries vary.
        refit = None if admitted is None else False
        frontier = frontier.with_bands(bootstrap(frontier, log, refit=refit))
    return frontier, selection


class _How(NamedTuple):
    """How to search, as `select_frontier` takes it."""

    lam: np.ndarray | None
    max_length: int | None
    folds: int
    seed: int
    abstain_price: float | None
    admits: Callable[[Policies, CascadeModel], np.ndarray] | None
    target: TargetName

    def admitted(self, trial: Trial, model: CascadeModel) -> np.ndarray:
        """The positions of the policies that may be chosen from."""
        if self.admits is None or not len(trial.cost):
            return np.arange(len(trial.cost))
        return np.flatnonzero(self.admits(trial.policies, model))


class _Points(NamedTuple):
    """Policies of a frontier, L of them."""

    trial: Trial
    lam: np.ndarray
    status: np.ndarray


class _Earned(NamedTuple):
    """The policies that have earned a place, for L prices λ."""

    pairs: Trial
    """Single models and pairs."""
    chains: Trial
    """Longer cascades, for some of the prices."""
    at: np.ndarray
    """The positions of the prices of the chains."""
    agreeing: AgreementTrial | None
    """Policies that go by whether answers agree; None where these have earned no place."""

    def admitted(self, how: _How, model: CascadeModel) -> "_Earned":
        """Those that may be chosen from."""
        rows = how.admitted(self.chains, model)
        agreeing = self.agreeing and self.agreeing.only(how.admitted(self.agreeing.trial, model))
        pairs = self.pairs.take(how.admitted(self.pairs, model))
        return _Earned(pairs, self.chains.take(rows), self.at[rows], agreeing)

    def together(self, n: int) -> Trial:
        """One after the other, judged on n queries."""
        agreeing = [] if self.agreeing is None else [self.agreeing.near_best(self.pairs, n)]
        return all_trials(self.pairs, self.chains, *agreeing)

    def best(self, lam: np.ndarray) -> Trial:
        """(L,) for each price the best pair, the chain that stands in its place, or what beats it by agreement."""
        shares = self.pairs.policies.shares
        whole = self.pairs if shares is None else self.pairs.take(np.flatnonzero((shares == 1).all((1, 2))))
        pairs = whole.take(np.argmin(whole.loss(lam), axis=1))
        rows = np.arange(len(lam))
        rows[self.at] = len(lam) + np.arange(len(self.at))
        best = all_trials(pairs, self.chains).take(rows)
        return best if self.agreeing is None else self.agreeing.better(best, lam)


def _search(log: Log, model: CascadeModel, how: _How) -> tuple[_Points, Comparison]:
    """The policies that earn their place on a log of the model's models, and what they were compared with."""
    longest = how.max_length if int(log.complete.sum()) >= _LEAST_COMPLETE else 2
    longer = longer_cascades(len(model.models), longest)
    refusal = refusal_at(how.abstain_price, log.cost.dtype)
    sample = sample_queries(log, how.seed)
    judging = judging_of(sample, model.calibrators.transform, refusal)
    comparison = cross_validate(sample, model, longer, judging, how.folds, how.seed)
    log = expected_log(log)
    lam = comparison.lam if how.lam is None else how.lam
    pairs = judge_pairs(log, model, lam, judging)
    if how.admits is not None and refusal is not None:
        pairs = near_best(pairs, lam)
    # For a price there is one policy, of what gains more; a frontier has chains and agreement, and a budget chooses.
    rivals = dataclasses.replace(comparison, agreement=None) if how.lam is None else comparison
    chains, at = _chains(log, model, longer, rivals.chosen[rivals.nearest(lam)], lam, how.abstain_price)
    earned = _Earned(pairs, chains, at, AgreementTrial.of(log, model, comparison, judging))
    earned = earned if how.admits is None else earned.admitted(how, model)
    if how.lam is None:
        trial = raised_by_luck(earned.together(log.n_queries), comparison, how.target)
        return _Points(*undominated(trial)), comparison
    trial = raised_by_luck(earned.best(how.lam), comparison, how.target)
    return _Points(trial, how.lam, np.full(len(how.lam), PointStatus.CONVERGED)), comparison


def _chains(
    log: Log, model: CascadeModel, longer: Longer, length: np.ndarray, lam: np.ndarray, price: float | None
) -> tuple[Trial, np.ndarray]:
    """The longer cascades that earn their place, and the positions (C,) among the λ (L,) of those where they do.

    With the error and cost that they have on the log. `length` (L,) is how long a cascade may be at each λ, 2 where no
    chain has earned its place; `price` is that of a refusal, in errors.
    """
    at = np.flatnonzero(length > 2)
    k, nothing = len(model.models), np.zeros(len(lam))
    thresholds, members = np.full((len(lam), k), NEVER_ANSWER), np.zeros((len(lam), k), bool)
    refusals = np.full((len(lam), k), NEVER_REFUSE)
    if not at.size:
        none = Policies.of_cascades(thresholds, members, refusals)
        return Trial(nothing, nothing, nothing, nothing, none).take(at), at
    refusal = refusal_at(price, model.cost.dtype)
    problem = lay_out_problem(model, longer.plan, "exact", refusal)
    for size, paths in zip(longer.lengths, longer.rows, strict=True):
        rows = length == size
        if rows.any():
            chains = select(solve_at(problem._replace(plan=only(longer.plan, paths)), lam), refusal).policies
            thresholds[rows], members[rows] = chains.thresholds[rows], chains.members[rows]
            if chains.refusals is not None:
                refusals[rows] = chains.refusals[rows]
    # Nobody asks the models after one that always answers.
    members = asked_at_all(thresholds, members)
    policies = Policies.of_cascades(thresholds, members, None if price is None else refusals)
    expected, spread = _means(log, model, policies)
    figures = expected.penalty(price), expected.cost, RESERVE * spread, expected.refused
    return Trial(*figures, may_refuse(policies)).take(at), at


def _means(log: Log, model: CascadeModel, policies: Policies) -> tuple[Outcomes, np.ndarray]:
    """(what becomes of the complete queries, on average, under cascades (L,), the standard error of the cost)."""
    data = model.calibrators, log.logprob, log.correct, log.answered, charges(log)
    complete, size = log.complete, max(1, _HELD // log.n_queries)
    policies = jax.tree.map(lambda leaf: leaf.astype(model.cost.dtype) if leaf.dtype.kind == "f" else leaf, policies)
    means, spreads = [], []
    for start in range(0, len(policies.first), size):  # some at a time
        figures = outcomes_on_log(*data, policies.take(slice(start, start + size)))
        wrong, cost, refused = (np.asarray(figure, float)[:, complete] for figure in figures)
        means.append([figure.mean(1) for figure in (wrong, cost, refused)])
        spreads.append(cost.std(1) / np.sqrt(complete.sum()))
    return Outcomes(*(np.concatenate(some) for some in zip(*means, strict=True))), np.concatenate(spreads)


def _assemble(model: CascadeModel, points: _Points, price: float | None, compare: Any) -> Frontier:
    """The frontier of some policies; `price` is that of a refusal, `compare` how answers are compared."""
    trial, dtype = points.trial, model.cost.dtype
    chosen, splits = trial.policies, trial.policies.splits
    policies = Policies.of_cascades(
        np.where(chosen.members, chosen.thresholds, NEVER_ANSWER).astype(dtype),
        chosen.members,
        None if price is None else chosen.refusals.astype(dtype),
        agreements=chosen.agreements,
        splits=None if splits is None else Splits(*(part.astype(dtype) for part in splits)),
    )
    wrong = np.maximum(trial.penalty - (price or 0.0) * trial.abstention, 0.0)
    lam, *figures = (np.asarray(figure, dtype) for figure in (points.lam, wrong, trial.cost, trial.abstention))
    solved = Points(lam, points.status, Outcomes(*figures), policies.simplest())
    frontier = make_frontier(model, solved, search="selected", abstain_price=price, compare=compare)
    return dataclasses.replace(frontier, reserve=jax.device_put(trial.reserve.astype(dtype)))
