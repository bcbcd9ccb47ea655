"""The frontier of the cascades that earn their place: pairs, and longer chains only where they are shown to be better.

Policies are chosen by estimates, which are noisy: the more are searched, the luckier the best one looks. Three things
hold luck down. Pairs are judged by labels that are averaged with what is expected of them (`label_candidates`). A chain
of three models or more must beat the pair in cross-validation by more than one standard error (Breiman, Friedman,
Olshen & Stone 1984, "Classification and Regression Trees", section 3.4.3), and so must policies that go by whether two
models' answers are equal (`agreement_candidates`). And the frontier keeps all policies that are
as good as the best for all that can be known, so that a budget finds one near it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._base.arguments import check_arguments
from rcjax._base.variants import rivals
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import ABSTAIN, NEVER_ANSWER, NEVER_REFUSE, Agreements, Policies, asked_at_all
from rcjax.frontier.statuses import PointStatus
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel, of_models
from rcjax.model.fitting import fit
from rcjax.model.label_outcomes import expected_log, is_whole
from rcjax.model.pairs import barred_pairs
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.at_lambda import check_abstain_price, refusal_at
from rcjax.solving.lambda_grid import check_lam, lay_out_problem, log_lam, select, solve_at
from rcjax.solving.paths import only
from rcjax.tuning.comparison import Comparison, Rival, over_neighbours
from rcjax.tuning.cross_validation import Longer, cross_validate, longer_cascades, require_queries, sample_queries
from rcjax.tuning.trials import AgreementTrial, Trial, judge_pairs, may_refuse, near_best, spread_over
from rcjax.tuning.undominated import undominated
from rcjax.tuning.vote_words import tell_votes

_HELD = 2**25  # outcomes, queries × policies, held at a time


_LEAST_COMPLETE = 30  # queries with all answers, for cascades of three models and more to be compared on


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    comparison: Comparison

    def verdict(self, point: int) -> str:
        """Why the policy at one position of the frontier has so many models, and what votes are worth, in words.

        Differences are in percentage points of loss, error + λ·cost, on queries left out, with one standard error.
        """
        check_arguments(Selection.verdict, locals())
        models, price = self.frontier.models, self._price(point)
        votes, length = self.comparison.votes, self._length_verdict(point, price)
        if votes is None:
            return length
        members = [models[j] for j in np.flatnonzero(np.asarray(self.frontier.members)[point])]
        return f"{length}; {tell_votes(members, votes, price)}"

    def _price(self, point: int) -> int:
        return int(self.comparison.nearest(float(np.asarray(self.frontier.lam)[point])))

    def _length_verdict(self, point: int, price: int) -> str:
        frontier, comparison = self.frontier, self.comparison
        members = np.flatnonzero(np.asarray(frontier.members)[point])
        names = " → ".join(frontier.models[j] for j in members)
        agreements = frontier.policies.agreements
        if agreements is not None and np.asarray(agreements.compares)[point].any():
            does_better = _compared(comparison.agreement, price)
            return f"{_by_agreement(frontier, agreements, point)} {does_better} the best pair"
        longer = "" if comparison.lengths[-1] <= 2 else "; no longer chain is shown to do better"
        if comparison.agreement is not None and not comparison.agreeing[price]:
            chain = "neither a longer chain nor" if comparison.lengths[-1] > 2 else "not"
            longer = f"; {chain} going by whether answers agree is shown to do better"
        if len(members) == 1:
            return f"one model is enough: {names}{longer}"
        if len(members) == 2:
            return f"the pair {names} {_compared(comparison, (0, price), -1)} one model alone{longer}"
        row = int(np.searchsorted(comparison.lengths, len(members)))
        return f"the chain {names} {_compared(comparison, (row, price))} the best pair"


def _by_agreement(frontier: Frontier, agreements: Agreements, point: int) -> str:
    """What a policy that compares answers does, in words."""
    second = int(np.argmax(np.asarray(agreements.compares)[point]))
    first, third = (int(np.asarray(places)[point, second]) for places in (agreements.earlier, agreements.differ))
    names = frontier.models
    if third == ABSTAIN:
        return f"refusing where {names[first]} and {names[second]} differ"
    return f"asking {names[third]} where {names[first]} and {names[second]} differ"


def _compared(figures: Comparison | Rival | None, place: Any, sign: int = 1) -> str:
    """What `sign` times a gain on the pairs shows: "does better by … than"."""
    assert figures is not None  # as a policy of theirs was chosen
    gain, spread = 100 * sign * float(figures.gain[place]), 100 * float(figures.gain_se[place])
    told = f"{abs(gain):.2f} ± {spread:.2f} points of error + λ·cost"
    if gain <= 0:
        return f"is not shown to do better (its loss is higher by {told}) than"
    return f"{'does' if gain > 2 * spread else 'seems to do'} better (by {told}) than"


def select_frontier(
    log: Log,
    *,
    model: CascadeModel | None = None,
    lam: Any = None,
    max_length: int | None = None,
    folds: int = 5,
    seed: int = 0,
    abstain_price: float | None = None,
    abstain_early: bool = True,
    admits: Callable[[Policies, CascadeModel], np.ndarray] | None = None,
) -> Selection:
    """The error–cost frontier of the cascades that earn their place on a log.

    Single models and pairs, at every threshold, are judged by the log's own queries (`label_candidates`). Longer
    cascades have the thresholds that are best under the model, and are used only where they earn it on the queries of
    folds that were left out (`Comparison.chosen`); so are policies that go by whether answers agree, where the log
    tells answers (`Comparison.agreeing`). Variants of a model, such as "small ×3", compete as models do, and no cascade
    asks two of one model; where several samples do not earn their place (`Comparison.votes`), one sample of each
    competes alone. The frontier holds the policies that no other beats in both error and cost and that are within a
    tenth of a standard error of the best for some λ: of all policies, and of those that do not compare answers.
    `Frontier.error` and `Frontier.cost` are estimates from the log, per query; the error is raised by how much better
    the best pairs look on the queries that they were chosen on than on folds that were left out. Of more than 50,000
    queries, so many are taken at random for that and for the comparison of lengths.

    Args:
        log: the log to learn from.
        model: the model fitted to it; by default `fit(log)`.
        lam: (L,) the frontier holds the best policy for each of these λ, in error probability per unit of money.
        max_length: the most models in a cascade.
        folds: of the comparison; 2 or more.
        seed: of the folds.
        abstain_price: models may refuse to answer, at a price in errors, as in `solve_frontier`: what is minimised, and
            compared on the folds, is error + abstain_price·abstention + λ·cost.
        abstain_early: whether any model may refuse, or only the last of a cascade.
        admits: which of the policies (C,) over a model's models may be chosen from, (C,) bool; None: all may.

    Raises ValueError for `folds` below 2, for an empty or negative `lam` or a negative price; LogError where there are
    fewer queries than folds, or no query has the answers of all models.

    >>> import rcjax
    >>> selection = select_frontier(rcjax.sample_log(300, seed=0))
    >>> selection.frontier.models == rcjax.demo_model().models, selection.comparison.lengths.tolist()
    (True, [1, 2, 3, 4, 5])
    """
    check_arguments(select_frontier, locals())
    require_queries(log, folds)
    prices = None if lam is None else check_lam(lam)
    how = _How(prices, max_length, folds, seed, check_abstain_price(abstain_price), abstain_early, admits)
    model = fit(log) if model is None else model
    log = log.select(model.models)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    points, comparison = _search(log, model, how)
    frontier = _assemble(model, points, how.refusing | {"compare": log.compare})
    return Selection(dataclasses.replace(frontier, max_length=max_length), comparison)


class _How(NamedTuple):
    """How to search, as `select_frontier` takes it."""

    lam: np.ndarray | None
    max_length: int | None
    folds: int
    seed: int
    abstain_price: float | None
    abstain_early: bool
    admits: Callable[[Policies, CascadeModel], np.ndarray] | None = None

    def admitted(self, trial: Trial, model: CascadeModel) -> np.ndarray:
        """Places of the policies that may be chosen from."""
        if self.admits is None or not len(trial.cost):
            return np.arange(len(trial.cost))
        return np.flatnonzero(self.admits(trial.policies, model))

    @property
    def refusing(self) -> dict[str, Any]:
        """What `solve_frontier` takes of refusals."""
        return {"abstain_price": self.abstain_price, "abstain_early": self.abstain_early}


class _Points(NamedTuple):
    """Policies of a frontier, L of them."""

    trial: Trial
    lam: np.ndarray
    status: np.ndarray


def _search(log: Log, model: CascadeModel, how: _How) -> tuple[_Points, Comparison]:
    """The policies that earn their place on a log of the model's models, and what they were compared with."""
    longest = how.max_length if int(log.complete.sum()) >= _LEAST_COMPLETE else 2
    longer = longer_cascades(len(model.models), longest, rivals(model.models))
    refusal = refusal_at(how.abstain_price, how.abstain_early, log.cost.dtype)
    sample = sample_queries(log, how.seed)
    comparison = cross_validate(sample, model, longer, how.folds, how.seed, refusal)
    if comparison.votes is not None and not comparison.votes.earned:
        return _search_without_votes(log, model, how, comparison)
    whole, all_queries = is_whole(log), sample is log
    log = expected_log(log)
    sample = log if all_queries else expected_log(sample)
    lam = comparison.lam if how.lam is None else how.lam
    pairs = judge_pairs(log, model, lam, refusal)
    searched = pairs if sample is log else judge_pairs(sample, model, lam, refusal)
    # To given prices an answer is given by what gains more; on a frontier both are, and a budget takes its choice.
    lengths = dataclasses.replace(comparison, agreement=None) if how.lam is None else comparison
    chains, at = _chains(log, model, longer, lengths, lam, how.refusing)
    agreeing = AgreementTrial.of(log, sample, model, comparison, refusal)
    if how.admits is not None:
        pairs = near_best(pairs, lam) if refusal is not None else pairs
        pairs, rows = pairs.take(how.admitted(pairs, model)), how.admitted(chains, model)
        chains, at = chains.take(rows), at[rows]
        agreeing = agreeing and agreeing.only(how.admitted(agreeing.trial, model))
    if agreeing is not None:
        pairs, chains = pairs.comparing(), chains.comparing()
    if how.lam is None:
        others = None if agreeing is None else agreeing.near_best(pairs, log.n_queries)
        points = _Points(*undominated(pairs, chains, log.n_queries, others))
    else:
        points = _best(pairs, chains, at, how.lam)
        points = points if agreeing is None else points._replace(trial=agreeing.better(points.trial, how.lam))
    luck = _luck(comparison, searched, None if agreeing is None else agreeing.searched)
    if whole:
        luck = np.maximum(luck, 0.0)
    corrected = points.trial.penalty + np.interp(log_lam(points.lam), log_lam(comparison.lam), luck)
    if how.lam is None:
        corrected = _in_order(corrected, points.trial.penalty)
    return points._replace(trial=points.trial._replace(penalty=np.clip(corrected, 0.0, 1.0))), comparison


def _search_without_votes(
    log: Log, model: CascadeModel, how: _How, comparison: Comparison
) -> tuple[_Points, Comparison]:
    """`_search` among one sample of each model, as votes have not earned a place; its policies are of all models."""
    barred = barred_pairs(model.models, votes=False)
    assert barred is not None
    assert comparison.votes is not None
    places = np.flatnonzero(~barred.diagonal())
    alone = of_models(model, places)
    points, own = _search(log.select(alone.models), alone, how)
    trial = points.trial._replace(policies=spread_over(points.trial.policies, places, len(model.models)))
    gained, near = comparison.votes, comparison.nearest(own.lam)
    votes = dataclasses.replace(gained, gain=gained.gain[near], gain_se=gained.gain_se[near])
    return points._replace(trial=trial), dataclasses.replace(own, votes=votes)


def _chains(
    log: Log, model: CascadeModel, longer: Longer, comparison: Comparison, lam: np.ndarray, refusing: dict[str, Any]
) -> tuple[Trial, np.ndarray]:
    """The longer cascades that earn their place, and the places (C,) among the λ (L,) of those where they do.

    With the error and cost that they have on the log; `refusing` is what `solve_frontier` takes of refusals.
    """
    length = comparison.chosen[comparison.nearest(lam)]
    at = np.flatnonzero(length > 2)
    k, nothing = len(model.models), np.zeros(len(lam))
    thresholds, members = np.full((len(lam), k), NEVER_ANSWER), np.zeros((len(lam), k), bool)
    refusals = np.full((len(lam), k), NEVER_REFUSE)
    if not at.size:
        return Trial(nothing, nothing, nothing, Policies.of_cascades(thresholds, members, refusals)).take(at), at
    price = refusing["abstain_price"]
    refusal = refusal_at(price, refusing["abstain_early"], model.cost.dtype)
    problem = lay_out_problem(model, longer.plan, "exact", refusal)
    for size, paths in zip(longer.lengths, longer.rows, strict=True):
        rows = length == size
        if rows.any():
            chains = select(solve_at(problem._replace(plan=only(longer.plan, paths)), lam), refusal).policies
            thresholds[rows], members[rows] = chains.thresholds[rows], chains.members[rows]
            if chains.refusals is not None:
                refusals[rows] = chains.refusals[rows]
    # Nobody asks the models after one that always answers.
    members = asked_at_all(thresholds, members, refusals)
    policies = Policies.of_cascades(thresholds, members, None if price is None else refusals)
    expected = Outcomes(*map(np.concatenate, zip(*_means(log, model, policies), strict=True)))
    return Trial(expected.penalty(price), expected.cost, expected.refused, may_refuse(policies)).take(at), at


def _means(log: Log, model: CascadeModel, policies: Policies) -> Iterator[Outcomes]:
    """What becomes of the queries that all models answered, on average, under cascades (L,), some at a time."""
    data = model.calibrators, log.logprob, log.correct, log.answered, log.cost
    complete, size = log.complete, max(1, _HELD // log.n_queries)
    policies = jax.tree.map(lambda leaf: leaf.astype(model.cost.dtype) if leaf.dtype.kind == "f" else leaf, policies)
    for start in range(0, len(policies.first), size):
        figures = outcomes_on_log(*data, policies.take(slice(start, start + size)))
        yield Outcomes(*(np.asarray(figure, float)[:, complete].mean(1) for figure in figures))


def _luck(comparison: Comparison, pairs: Trial, agreeing: Trial | None) -> np.ndarray:
    """(G,) by how much the loss of the best pair on the queries of its choice is too low, smoothed over the prices.

    Of the best of pairs and policies that go by whether answers agree, where these have earned their place.
    """
    row = min(1, len(comparison.lengths) - 1)
    least = np.array([(pairs.penalty + lam * pairs.cost).min() for lam in comparison.lam])
    luck = comparison.error[row] + comparison.lam * comparison.cost[row] - least
    if agreeing is not None and comparison.agreement is not None:
        rival = comparison.agreement
        both = np.minimum(least, [(agreeing.penalty + lam * agreeing.cost).min() for lam in comparison.lam])
        luck = np.where(comparison.agreeing, rival.error + comparison.lam * rival.cost - both, luck)
    return over_neighbours(luck)


def _in_order(corrected: np.ndarray, error: np.ndarray) -> np.ndarray:
    """(L,) corrected errors that rise where the errors rise: halfway between the nearest rising curves on either side.

    Where the luck changes fast, a dearer policy would seem to fall behind a cheaper one; to leave it out for that, on
    the word of an estimate that is noisier than their difference, costs 4 % of area with 30 queries. A hundredth of
    the steps of the errors themselves keeps those apart that would be equal.
    """
    level = (np.maximum.accumulate(corrected) + np.minimum.accumulate(corrected[::-1])[::-1]) / 2
    return 0.99 * level + 0.01 * (error + (level - error).mean())


def _best(pairs: Trial, chains: Trial, at: np.ndarray, lam: np.ndarray) -> _Points:
    """The best pair for each λ, or the chain that earned its place there."""
    best = pairs.take(np.argmin(pairs.penalty + lam[:, None] * pairs.cost, axis=1))
    for mine, theirs in zip(jax.tree.leaves(best), jax.tree.leaves(chains), strict=True):
        mine[at] = theirs
    return _Points(best, lam, np.full(len(lam), PointStatus.CONVERGED))


def _assemble(model: CascadeModel, points: _Points, refusing: dict[str, Any]) -> Frontier:
    trial, lam, status = points
    dtype, price, own = model.cost.dtype, refusing["abstain_price"], trial.policies
    thresholds = np.where(own.members, own.thresholds, NEVER_ANSWER).astype(dtype)
    refusals = None if price is None else own.refusals.astype(dtype)
    policies = Policies.of_cascades(thresholds, own.members, refusals, agreements=own.agreements)
    wrong = np.maximum(trial.penalty - (price or 0.0) * trial.abstention, 0.0)
    lam, *figures = (np.asarray(figure, dtype) for figure in (lam, wrong, trial.cost, trial.abstention))
    return make_frontier(model, Points(lam, status, Outcomes(*figures), policies), search="selected", **refusing)
