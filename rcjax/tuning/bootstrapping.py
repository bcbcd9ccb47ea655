"""How sure we are of a frontier: the bootstrap, from the queries of the log to the policies, end to end.

The queries are drawn again with replacement; calibrators, marginals and copulas are fitted again, cascades and
thresholds chosen again; and the policies of each replicate answer the queries of their own draw, those of the log, and
those that were not drawn (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 17). That tells how far
the figures on the log are from those in service: by the luck of the sample, and by the luck of the search. It does not
rest on the model being right.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._base.arguments import check_arguments
from rcjax._core.batching import part, stack
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up, size_class
from rcjax._core.threads import side_by_side
from rcjax.frontier.bands import Bands, check_level, frequencies
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies, either
from rcjax.frontier.refusal import refusal_at
from rcjax.frontier.searches import gone_search
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator, calibrate_all
from rcjax.model.fitting import fit_near
from rcjax.model.fitting_steps import calibrate_log
from rcjax.model.label_outcomes import corrected_log, expected_log
from rcjax.replaying.packing import require_answers
from rcjax.replaying.replay import replay
from rcjax.replaying.walk import walk
from rcjax.solving.lambda_grid import lay_out_problem, solve_at
from rcjax.solving.paths import MANY_STEPS, Plan, only, plan_cascades
from rcjax.tuning.choices import Targets, choose, judge_all
from rcjax.tuning.cross_validation import longer_cascades
from rcjax.tuning.intervals import mean_of_known, quantiles, sample_noise, search_luck, threshold_intervals
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_weights import charges, judging_of

_ROUND = 16


_BLOCK = 2**14  # queries that are drawn again at a time where policies stay as they are


_PANELS = 9  # of quadrature, for replicates of many cascades: 5e-6 of error is far below what replicates differ by
_PRICES = 48  # λ at which replicates are solved; between them, what they show is interpolated


_MOST_QUERIES = 5_000  # up to here everything is fitted again by default


def bootstrap(
    frontier: Frontier,
    log: Log,
    *,
    replicates: int = 200,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
) -> Bands:
    """Intervals around every point of a frontier, from the log that it was tuned on.

    For error and the bill: where the figures of the policy in service will lie, with a probability of about `level`, by
    expanded percentiles around the figures on the log and the luck of the search in them. Replicates tell that by how
    much worse their policies do on queries that they were not tuned on; for the error of policies of
    `select_frontier`, the mean is taken of this and of what cross-validation has told. Thresholds are on the scale of
    the frontier's model. Where models may refuse to answer, the share of queries without one has intervals as well.

    Args:
        frontier: the frontier, of L points.
        log: the log that it was tuned on.
        replicates: how often the log's queries are drawn again, with replacement; 20 or more.
        level: the probability that each interval is to have, in (0, 1).
        refit: whether each replicate does all that led to the frontier over (`Frontier.search`), with copulas by
            Kendall's τ. With False policies stay as they are and only the queries vary, which is right for policies
            that were fixed before this log was seen, and all but right for a large one; None does so above 5,000
            queries.
        seed: of the draws.

    Raises ValueError for fewer than 20 replicates, a level outside (0, 1), or a frontier of `minimise` or, from files
    of before, of least expected loss or a named cascade that compares answers, if it is to be solved again; LogError
    where no query was answered by all models of the frontier.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[300.0, 3000.0])
    >>> bands = rcjax.tuning.bootstrap(frontier, log, replicates=20)
    >>> bands.error.shape, bool((bands.error[:, 0] < bands.error[:, 1]).all())
    ((2, 2), True)
    """
    check_arguments(bootstrap, locals())
    if replicates < 20:
        raise ValueError(f"replicates is {replicates}; take at least 20, or 200 for intervals that are stable")
    check_level(level)
    refit = log.n_queries <= _MOST_QUERIES if refit is None else refit
    if refit and frontier.search == "minimised":
        raise ValueError("policies of an objective of your own are not solved again: use refit=False")
    if refit and (gone := gone_search(frontier)):
        raise ValueError(f"{gone}: tune again, or use refit=False")
    log = log.select(frontier.models)
    told = corrected_log(log)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to draw again")
    places = _spread(frontier)
    fixed = _as_they_are(frontier, places, replicates)
    require_answers(frontier.policies, log)
    if not refit:
        own = _recount(part(fixed, 0), told, replicates, seed)
        twice = Outcomes(*(np.stack([figure, figure]) for figure in own))
        return _bands(frontier, log, _Replicates(places, fixed, twice, again=False), level)
    draws = np.random.default_rng(seed).integers(0, log.n_queries, (replicates, log.n_queries))
    weights = np.stack([np.bincount(draw, minlength=log.n_queries) for draw in draws]) * log.complete
    tuned = tune_again(frontier, log, draws, places)
    # One after the other, as both are of one shape: one programme.
    weights, tuned = weights.astype(log.cost.dtype), jax.tree.map(np.asarray, tuned)
    filled = *fill_up(*_data(told)), *fill_up(weights, axis=1)
    codes = _codes(frontier, log)
    both = [_judge(*filled, _comparable(policies), codes) for policies in (fixed, tuned)]
    outcomes = jax.tree.map(lambda *figures: np.stack(figures), *both)
    return _bands(frontier, log, _Replicates(places, tuned, outcomes, again=True), level)


class _Tuned(NamedTuple):
    """What each replicate would do; B replicates, G prices."""

    calibrators: Calibrator  # leading axes (B, k)
    policies: Policies  # (B, G)


class _Replicates(NamedTuple):
    """What came of all replicates."""

    places: np.ndarray  # (G,) of the frontier's points
    tuned: _Tuned
    outcomes: Outcomes  # (2, B, G, 3) of the frontier's policies and of each replicate's: as `_judge`
    again: bool  # whether replicates were tuned again


def _comparable(tuned: _Tuned) -> _Tuned:
    """Without what walking does not need: so the policies kept and those tuned again are of one shape."""
    own = tuned.policies
    kept = Policies(own.first, own.bounds, own.actions, own.members, agreements=own.agreements, shares=own.shares)
    return tuned._replace(policies=kept)


def _codes(frontier: Frontier, log: Log) -> np.ndarray | None:
    """(n, k) codes of answers, filled up, for policies that compare answers; None for others."""
    return None if frontier.policies.agreements is None else fill_up(np.asarray(log.answer))[0]


def _data(log: Log) -> tuple[jax.Array, ...]:
    return log.logprob, log.correct, log.answered, log.query_cost


def _spread(frontier: Frontier) -> np.ndarray:
    """Places of at most so many points, evenly along the frontier; some repeat, so that few numbers of them occur."""
    places = np.arange(len(frontier.lam))
    if frontier.search != "selected":  # of one λ there is one policy
        places = np.sort(np.unique(np.asarray(frontier.lam), return_index=True)[1])
    if len(places) == 1:
        return places
    size = min(_PRICES, -(-len(places) // _ROUND) * _ROUND)
    return places[np.linspace(0, len(places) - 1, size).round().astype(int)]


def _as_they_are(frontier: Frontier, places: np.ndarray, replicates: int) -> _Tuned:
    # By numpy, as all that follows up to `_judge`: jax compiles a programme for each shape of each step.
    fixed = _Tuned(frontier.model.calibrators, frontier.policies.on_host().take(places))
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (replicates, *np.shape(leaf))), fixed)


def tune_again(frontier: Frontier, log: Log, draws: np.ndarray, places: np.ndarray, by_price: bool = False) -> _Tuned:
    """The policies of a frontier, tuned again on draws of a log's queries by all that led to it (`Frontier.search`).

    Args:
        frontier: the frontier.
        log: the log that it was tuned on.
        draws: (B, n) its rows.
        places: (G,) of the frontier's points: solved again are their λ, or where the labels chose, what is best within
            their costs.
        by_price: take their λ in any case, as the costs of the points do not count; policies are then judged as each
            draw says, not the whole log.
    """
    model, lam = frontier.model, np.asarray(frontier.lam)[places]
    selected = frontier.search == "selected"
    agreements = frontier.policies.agreements
    comparing = np.zeros(len(places), bool)
    if agreements is not None:
        comparing = np.asarray(np.asarray(agreements.compares)[places].any(1))
    longer = selected & (np.asarray(frontier.members)[places].sum(1) > 2) & ~comparing
    refusal = refusal_at(frontier.abstain_price, log.cost.dtype)
    plan = _plan_again(frontier, places[longer]) if longer.any() or not selected else None
    panels = _PANELS if plan is not None and len(plan.steps) > MANY_STEPS else None
    data = [np.asarray(column) for column in _data(log)]
    data[3] = charges(log)
    codes = np.asarray(log.answer)
    judging = judging_of(log, model.calibrators.transform, refusal) if selected else Judging(refusal=refusal)
    targets = Targets(lam=lam) if by_price else Targets(budgets=_budgets(frontier, places))

    def again(draw: np.ndarray) -> tuple[Calibrator, Policies]:
        logprob, correct, answered, charge = (column[draw] for column in data)
        if log.hand is not None:
            correct = np.asarray(expected_log(log.take(draw)).correct)
        cost = (charge * answered).sum(0) / np.maximum(answered.sum(0), 1)
        cost, rows = jnp.asarray(cost, log.cost.dtype), (logprob, correct, answered)
        if selected and not longer.any():
            calibrators, _ = calibrate_log(*fill_up(*rows), transform=model.calibrators.transform)
        else:
            fitted = fit_near(model, *rows, cost)
            calibrators = fitted.calibrators
            by_model = solve_at(lay_out_problem(fitted, plan, frontier.chain, refusal, panels), lam).policies
        if not selected:
            return calibrators, by_model
        # A few draws are judged as their own queries say, so that those left out have no part in it.
        alone = judging_of(log.take(draw), model.calibrators.transform, refusal) if by_price else judging
        answers = None if agreements is None else codes[draw]
        judged = judge_all(calibrators, (*rows, answers), charge, lam, alone)
        policies, both = (choose(judged[0], also, targets, len(model.models)).policies for also in (None, judged[1]))
        policies = _replaced(policies, by_model.on_host(), longer) if longer.any() else policies
        return calibrators, policies if answers is None else _replaced(policies, both, comparing)

    calibrators, policies = zip(*side_by_side(again, draws, n=log.n_queries), strict=True)
    if any(own.shares is not None for own in policies):
        policies = [own.on_host().splitting() for own in policies]
    return _Tuned(stack(calibrators), stack(policies))


def _budgets(frontier: Frontier, places: np.ndarray) -> np.ndarray:
    """(G,) the budgets that points are the best for: their costs, and what is kept in hand."""
    needed = np.asarray(frontier.cost, float)[places]
    kept = 0.0 if frontier.reserve is None else np.asarray(frontier.reserve, float)[places]
    return (needed + kept) * (1 + 1e-9)


def _replaced(policies: Policies, others: Policies, where: np.ndarray) -> Policies:
    """Cascades (G,), at some places (G,) bool those of others; their intervals alone."""
    if policies.refusals is None or others.refusals is None:
        policies, others = (_without_refusals(own) for own in (policies, others))
    return either(others, policies, where)


def _without_refusals(own: Policies) -> Policies:
    if own.refusals is None:
        return own
    return Policies.of_cascades(own.thresholds, own.members, agreements=own.agreements, splits=own.splits)


def _plan_again(frontier: Frontier, chains: np.ndarray) -> Plan | None:
    """The cascades of a frontier's search; where it selected, all as long as those `chains` that earned their place."""
    model = frontier.model
    if frontier.search != "selected":
        return plan_cascades(model, frontier.search)
    lengths = set(np.asarray(frontier.members)[chains].sum(1).tolist())
    k = len(model.models)
    longer = longer_cascades(k, None)
    if not lengths <= set(longer.lengths):
        longer = longer_cascades(k, max(lengths))
    chosen = [np.unique(rows) for length, rows in zip(longer.lengths, longer.rows, strict=True) if length in lengths]
    return only(longer.plan, np.resize(np.concatenate(chosen), longer.rows.shape[1]))


@partial(compiled, runs="long")
def _judge(
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    query_cost: jax.Array,
    weights: jax.Array,
    tuned: _Tuned,
    codes: jax.Array | None = None,
) -> Outcomes:
    """(B, G, 3) what becomes of queries under each replicate's policies: on the log, in the bag, out of it; or NaN.

    weights (B, n): how often a query is in the bag, 0 for those that some model has not answered.
    """
    whole = answered.all(1).astype(query_cost.dtype)

    def judge(one: tuple[jax.Array, _Tuned]) -> Outcomes:
        weight, own = one
        confidence = calibrate_all(own.calibrators, logprob, answered).T
        shares = jnp.stack([whole, weight, whole * (weight == 0)])
        shares = divide(shares, shares.sum(1, keepdims=True), jnp.nan)  # of no queries, nothing is known

        def answer(policy: Policies) -> Outcomes:
            where = walk(confidence, policy, None if codes is None else codes.T)
            wrong, refused = (shares @ fate.astype(shares.dtype) for fate in (where.wrong(correct.T), where.refused))
            return Outcomes(wrong, shares @ (where.asked * query_cost.T).sum(0), refused)

        return jax.vmap(answer)(own.policies)

    return lax.map(judge, (weights, tuned))


def _recount(tuned: _Tuned, log: Log, replicates: int, seed: int) -> Outcomes:
    """`_judge` of policies that no replicate changes, a block of queries at a time: one walk serves all replicates.

    So many of a replicate's draws fall in each block as a multinomial variate says, and there as chance will have it:
    that is drawing n of n queries, without weights (B, n) in memory.
    """
    n = log.n_queries
    rng = np.random.default_rng(seed)
    starts = np.arange(0, n, _BLOCK)
    sizes = np.minimum(_BLOCK, n - starts)
    drawn = rng.multinomial(n, sizes / n, replicates) if len(starts) > 1 else np.full((replicates, 1), n)
    width = min(_BLOCK, size_class(n))
    data = [np.asarray(column) for column in _data(log)]
    codes = () if tuned.policies.agreements is None else (np.asarray(log.answer),)
    sums = None
    for start, size, count in zip(starts, sizes, drawn.T, strict=True):
        rows = [np.pad(column[start : start + size], ((0, width - size), (0, 0))) for column in (*data, *codes)]
        weights = np.stack([np.bincount(rng.integers(0, size, queries), minlength=width) for queries in count])
        counts = weights.astype(np.float32)
        block = [np.asarray(figure, float) for figure in _count(*rows[:4], counts, tuned, *rows[4:])]
        sums = block if sums is None else [old + new for old, new in zip(sums, block, strict=True)]
    queries, counts, money = sums or []
    with np.errstate(invalid="ignore", divide="ignore"):  # of no queries, nothing is known
        shares, money = counts / queries[:, None], money / queries[:, None]
    shares = shares.reshape(len(shares), -1, 2)
    figures = shares[..., 0], money, shares[..., 1]
    return Outcomes(
        *(
            np.stack([np.broadcast_to(figure[0], (replicates, *figure.shape[1:])), *np.split(figure[1:], 2)], axis=-1)
            for figure in figures
        )
    )


@compiled
def _count(
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    query_cost: jax.Array,
    weights: jax.Array,
    tuned: _Tuned,
    codes: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sums over queries (n,): how many, (1 + 2B,), of which (1 + 2B, G·2) went wrong, were refused, and what they cost,
    (1 + 2B, G): of the log, in each bag of weights (B, n), out of each.
    """
    confidence = calibrate_all(tuned.calibrators, logprob, answered).T
    whole = answered.all(1)
    bags = jnp.concatenate([whole[None], weights * whole, whole & (weights == 0)])

    def answer(policy: Policies) -> tuple[jax.Array, jax.Array]:
        where = walk(confidence, policy, None if codes is None else codes.T)
        return jnp.stack([where.wrong(correct.T), where.refused]), (where.asked * query_cost.T).sum(0)

    fates, bills = jax.vmap(answer)(tuned.policies)
    # Whole numbers, but for shares of queries; single precision holds them exactly up to 2²⁴.
    counts = jnp.matmul(bags, fates.reshape(-1, len(whole)).T.astype(bags.dtype), precision="highest")
    return bags.sum(1), counts, jnp.matmul(bags.astype(query_cost.dtype), bills.T, precision="highest")


def _bands(frontier: Frontier, log: Log, replicates: _Replicates, level: float) -> Bands:
    places, tuned, outcomes, again = replicates
    replayed = replay(frontier, log)
    bill = replayed.spent if frontier.search == "selected" else replayed.cost  # as the frontier's own costs are
    labels = max(2, round(float(log.labelled[log.complete].mean(1).sum())))  # queries that have one
    lam = np.asarray(frontier.lam, float)
    known, at = places.astype(float), np.arange(len(lam), dtype=float)
    ends = []
    for figure, own in zip(outcomes, (replayed.error, bill, replayed.abstention), strict=True):
        noise = np.stack([np.interp(at, known, row) for row in sample_noise(figure[0])])
        moved = np.asarray(own, float) + np.interp(at, known, search_luck(*figure))
        if figure is outcomes.wrong and again and frontier.search == "selected":
            # By cross-validation these have told their luck as well: of two estimates the mean is nearer.
            moved = (moved + np.asarray(frontier.error, float)) / 2
        ends.append(moved[:, None] + quantiles(noise, labels, level))
    error, cost, abstention = ends
    # Not one error (or right answer) among n labels says no more than this, also where no replicate can have one.
    least = 1 - ((1 - level) / 2) ** (1 / labels)
    error = np.stack([np.minimum(error[:, 0], 1 - least), np.maximum(error[:, 1], least)], axis=-1)
    refusing = frontier.abstain_price is not None
    loss = part(outcomes, 1).loss(lam[places][:, None], frontier.abstain_price)
    nearest = np.abs(known - at[:, None]).argmin(1)
    cascades, frequency = frequencies(np.asarray(tuned.policies.members), frontier.models)
    figures: dict[str, Any] = {
        "error": np.clip(error, 0.0, 1.0),
        "cost": np.maximum(cost, 0.0),
        "abstention": np.clip(abstention, 0.0, 1.0) if refusing else None,
        "thresholds": threshold_intervals(frontier, tuned.policies, tuned.calibrators, level)[nearest],
        "optimism": np.interp(at, known, mean_of_known(loss[..., 2] - loss[..., 1])),
        "frequency": frequency[nearest],
    }
    return Bands(**jax.device_put(figures), cascades=cascades, level=level, replicates=len(tuned.policies.first))
