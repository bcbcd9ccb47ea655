"""Tuning: from a log to the frontier, the policy for a target, and its comparison with today's; and tuning again.

The stages are always the same: split off held-out queries, fit, search, bootstrap, choose the policy, compare. To tune
a policy again, `retune` adds the queries that the policy carries to the fresh log. Tuned on one week's labels alone, a
policy is worse than the old policy in half of the weeks; with the carried queries, seldom (`benchmarks.year`).
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Unpack

import jax
import numpy as np

from rcjax._base.codec import Record, takes, to_json_value
from rcjax._base.figures import Money, count, percent
from rcjax.logs.errors import LogError, OddBudgetWarning, OddLogWarning, join_names, suggest_name, warn_caller
from rcjax.logs.kept_sample import carried_log, with_carried_queries
from rcjax.logs.log import Log, sort_by_name
from rcjax.logs.oddities import MAX_CERTAIN, MIN_QUERIES, describe_doubts, describe_oddities, odd_budget
from rcjax.logs.prices import reprice
from rcjax.model.calibrated_models import FittedModel
from rcjax.model.calibration import expected_calibration_error
from rcjax.policy.comparison import (
    COMPARISON,
    MIN_GAIN,
    Comparison,
    UnsupportedGain,
    advise,
    describe_abstention,
    describe_rungs,
)
from rcjax.policy.ladder import Period, penalty, with_following, with_provenance
from rcjax.policy.policy import AbstractPolicy, models_with_thresholds
from rcjax.policy.spec import (
    Spec,
    SpecFields,
    Target,
    Tuning,
    recorded_request_settings,
    recorded_tuning,
    with_spec,
)
from rcjax.solving.frontier.frontier import Frontier, InfeasibleError, over_budget_message
from rcjax.tuning.bootstrapping import REPLICATES, bootstrap
from rcjax.tuning.certify import Certificate, hold_out
from rcjax.tuning.cross_validation import (
    CandidateSet,
    CrossValidation,
    held_out_confidence,
    sample_queries,
)
from rcjax.tuning.replaying.comparing import (
    ModelOrPolicy,
    best_single_for,
    compare_policy,
    default_today,
    list_models,
    single_model_errors,
)
from rcjax.tuning.replaying.replay import Replay, replay
from rcjax.tuning.search import SecondsFilter, make_search
from rcjax.tuning.target_policy import STAYS, TargetPolicy, note_known_today, policy_for_target, single_policy

_COMPARED = ("budget", "error_cost", "lam")  # targets at which cross-validation compares cascades with single models
_UNSPENT = 0.1  # least unspent share of a budget that gets a note
_AT_LIMIT = 0.99  # share of a limit on the error from which an error counts as at the limit
_TOLERANCE = 1e-7  # absolute for errors, relative for costs


@dataclasses.dataclass(frozen=True)
class SingleModel(Record):
    """Figures of a single model on the log."""

    model: str
    """Name of the model."""
    answers: int
    """Number of its answers."""
    accuracy: float
    """Share of its answers to the comparable queries that are right."""
    cost: float
    """Mean cost, in money per query, of the comparable queries."""
    calibration_error: float | None
    """Held-out expected calibration error of its labelled answers, on 50,000 queries at most; None without a label."""
    seconds: float | None = None
    """Mean of the known seconds of its answers to the comparable queries; None if the log has no seconds."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """The result of tuning a log."""

    log: Log
    """Log that was tuned on."""
    held_out: Log | None
    """Queries that the guarantee was tested on; None without a guarantee."""
    model: FittedModel
    """Fitted model of the search."""
    frontier: Frontier
    """Frontier of the search. The default search corrects the errors of cascades for optimism. A search by the paper's
    model (`spec.cascade`) has the errors that the model predicts; only their intervals are corrected."""
    cross_validation: CrossValidation | None
    """Cross-validation of the default search; None for a search by the paper's model."""
    single_models: tuple[SingleModel, ...]
    """Figures of each single model, in the order of the models."""
    spec: Spec
    """Options of the tuning, with `today` filled in."""
    replayed: Replay | None = None
    """Replay of the frontier on the log, for bills or seconds; None if no query was answered by all models, and for the
    default search on a log without seconds."""
    policy: AbstractPolicy | None = None
    """Policy for the target; None without a target."""
    certificate: Certificate | None = None
    """Guarantee of the policy; None without a guarantee."""
    comparison: Comparison | None = None
    """Comparison of the policy with today's, and with the best single model for its money; None without a policy."""
    notes: tuple[str, ...] = ()
    """Notes on the policy: the cost of the next avoided error, the guarantee, and decisions of the tuning."""

    @property
    def target(self) -> Target | None:
        """Target of the policy; None without a target."""
        return self.spec.target

    @property
    def money(self) -> Money:
        """Unit in which money is printed."""
        return self.spec.money(np.asarray(self.model.cost, float).tolist())

    @property
    def kept(self) -> str:
        """Note on why today's stays, such as ": …" or " until more is labelled: …"; empty if it does not stay."""
        return next((note.removeprefix(STAYS) for note in self.notes if note.startswith(STAYS)), "")

    @property
    def advice(self) -> str | None:
        """Advice in a sentence; None without a policy."""
        if self.policy is None or self.comparison is None:
            return None
        return advise(self.policy, self.comparison, self.money, self.log.error_kind, kept=self.kept)

    def policy_for(self, target: Target) -> AbstractPolicy:
        """Return the policy for another target on the same frontier; no guarantee is tested for it.

        At a price, a single model replaces a cascade whose gain held-out queries do not support.

        Raises InfeasibleError if no policy meets the target; ValueError for a margin, which needs a tuning of its own.
        """
        if target.name == "match":
            raise ValueError("a margin needs a tuning of its own: tune(log, match=...)")
        return _choose_policy(dataclasses.replace(self, spec=self.spec.with_target(target))).policy

    def compare(self, policy: AbstractPolicy, target: Target) -> Comparison:
        """Compare a policy of the frontier with today's and the best single model for its money, as tuned."""
        budget = target.value if target.name == "budget" else None
        comparison = compare_policy(policy, self.log, self.spec.today, money=budget, tuned=True)
        gain = None if budget is None else self.unsupported_gain(policy, target)
        replayed = comparison.replayed_error if self.frontier.is_by_labels else None  # else the error is a prediction
        next_cost = self._next_error_cost(policy)
        return dataclasses.replace(
            comparison, unsupported_gain=gain, next_error_cost=next_cost, replayed_error=replayed
        )

    def _next_error_cost(self, policy: AbstractPolicy) -> float | None:
        """Return the dollars per error that the next dearer policy avoids; None if it is not known.

        The other policies are the rungs of the policy or, if it has one, the points of the frontier.
        """
        if len(policy.rungs) > 1:
            costs, errors = np.array([(rung.expected["cost"], penalty(rung.expected)) for rung in policy.rungs]).T
        elif policy.segment_column is None:
            frontier, _ = with_bills(self.frontier, self.replayed)
            costs, errors = np.asarray(frontier.cost, float), np.asarray(frontier.penalty, float)
        else:
            return None
        extra_cost, avoided_errors = costs - policy.expected["cost"], (penalty(policy.expected) or 0.0) - errors
        is_dearer, has_fewer = extra_cost > _TOLERANCE * costs, avoided_errors > _TOLERANCE
        if (has_fewer & ~is_dearer).any():  # today's policy may lie above the frontier
            return None
        is_cheaper = (extra_cost < -_TOLERANCE * costs) & (avoided_errors < -_TOLERANCE)
        prices_of_dearer, prices_of_cheaper = (
            (extra_cost[side] / avoided_errors[side]).tolist() for side in (is_dearer & has_fewer, is_cheaper)
        )
        next_cost, last_cost = min(prices_of_dearer, default=None), max(prices_of_cheaper, default=None)
        if next_cost is not None and last_cost is not None and next_cost < last_cost * (1 - _TOLERANCE):
            return None  # a single model may lie above the hull
        return next_cost

    def unsupported_gain(self, policy: AbstractPolicy, target: Target) -> UnsupportedGain | None:
        """Return the gain of a policy over the best single model if held-out queries do not support it, else None.

        A gain is supported if it is 0.001 or more, and its held-out estimate is not below minus one standard error.
        Only gains at a budget or a price are known.
        """
        spec, log = self.spec, self.log
        uncompared_options = spec.max_seconds, spec.abstain_price, spec.segment
        is_compared = target.name in _COMPARED and all(option is None for option in uncompared_options)
        if self.cross_validation is None or not is_compared:
            return None
        costs, errors = np.asarray(log.comparable.single_cost, float), single_model_errors(log)
        if target.name == "budget":
            best = log.models.index(best_single_for(log, target.value))
        else:
            best = int((errors + target.lam * costs).argmin())
        if {name for rung in policy.adjacent_rungs for name in rung.models} == {log.models[best]}:
            return None
        error, cost = (float(policy.expected[name] or 0.0) for name in ("error", "cost"))
        expected = float(errors[best] - error + target.lam * (costs[best] - cost))
        has_agreement = any(rung.agreements for rung in policy.adjacent_rungs)
        candidate_set = CandidateSet.AGREEMENT if has_agreement else CandidateSet.PAIRS
        held_out, se = map(float, self.cross_validation.gain(candidate_set, target, costs))
        is_supported = expected >= MIN_GAIN and held_out >= -se
        return None if is_supported else UnsupportedGain(log.models[best], expected, held_out, se)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The advice, the best single model and the notes."""
        single = None if self.comparison is None else self.comparison.single
        if self.comparison is None or single is None:
            return (*filter(None, (self.advice,)), *self.notes)
        noun = f"{self.log.error_kind.noun}{self.comparison.price_clause}"
        return (*filter(None, (self.advice, single.describe(self.money, noun))), *self.notes)

    def describe(self) -> str:
        """Return lines of text: the log, the number of policies, the policy for the target, and the remarks.

        >>> from rcjax import sample_log, tune
        >>> print(tune(sample_log(300), intervals=False).describe())
        rcjax demo (synthetic): 300 queries, 5 models (llama3.2-1b, ...), task choice; every model answered every query.
        ... policies, of which none is chosen, as no target is given
        """
        if self.policy is None:
            chosen = "of which none is chosen, as no target is given"
        else:
            expected, unit = self.policy.expected, self.money
            figures = f"{percent(expected['error'])} {self.log.error_kind.noun} at {unit.full(expected['cost'])}"
            chosen = f"for the target {describe_rungs(self.policy)}: {figures}{describe_abstention(self.policy)}"
        return "\n".join((self.log.describe(), f"{count(len(self.frontier.lam), 'policy')}, {chosen}", *self.remarks))

    __repr__ = describe

    def to_json(self) -> dict[str, Any]:
        """Return the document of `rcjax tune --json`."""
        document = {
            "models": list(self.model.models),
            "error_kind": self.log.error_kind.noun,
            "model_summary": [model.to_json() for model in self.single_models],
            "frontier": self.frontier.to_json()["frontier"],
        }
        if self.policy is not None:
            document["policy"], document["remarks"] = self.policy.to_json(), list(self.remarks)
        if self.comparison is not None:
            document["comparison"] = self.comparison.to_json()
        return document


@takes(log=Log, spec=(Spec, None), held_out=(Log, None))
def tune(log: Log, spec: Spec | None = None, *, held_out: Log | None = None, **fields: Unpack[SpecFields]) -> Tuned:
    """Find the best cascades for a log, at every trade-off of error and cost, and the policy for a target.

    Args:
        log: the log to learn from.
        spec: options of the tuning; None: the defaults.
        held_out: queries that a guarantee is tested on. By default half of the queries of `log`, drawn at random; where
            answers lack labels, half of the queries labelled by hand.
        fields: fields of `Spec`, which override `spec`; a target replaces the target of `spec`: `budget`, `max_error`,
            `match`, `error_cost` or `lam`, `today`, `cascade`, `confidence`, `intervals`, … Without a target the result
            has a frontier, and no policy.

    Raises InfeasibleError if no policy meets the target. Its `tuned` has everything but the policy; it is None if the
    default search finds, before any fit, that the budget is below the price of every model. Raises ValueError for
    options that exclude each other; LogError as `fit` and `select_frontier` do. Warns by `OddLogWarning` of a log that
    is probably wrong, or whose policies are doubtful; by `OddBudgetWarning` of a budget that any policy meets.

    >>> import rcjax
    >>> tuned = rcjax.tune(rcjax.sample_log(300, seed=0), max_error=0.3, intervals=False)
    >>> tuned.policy.expected["error"] <= 0.3, tuned.single_models[0].model
    (True, 'llama3.2-1b')
    """
    _warn_of_oddities(log)
    spec = Spec.merge(spec, fields).check(held_out is not None)
    if spec.budget is not None and (oddity := odd_budget(spec.budget, log, "budget={}e-6".format)):
        warn_caller(oddity, OddBudgetWarning)
    return tune_in_stages(log, held_out, spec)


def _warn_of_oddities(log: Log) -> None:
    for oddity in (*describe_oddities(log), *describe_doubts(log)):
        warn_caller(f"{log.source}: {oddity}", OddLogWarning)


def tune_in_stages(
    log: Log,
    held_out: Log | None,
    spec: Spec,
    stage: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Tuned:
    """Tune as `tune` does, without its checks of the log, and enter a context for each stage of the work.

    Args:
        log: the log to learn from.
        held_out: queries for the test of a guarantee; None: they are split off where needed.
        spec: options of the tuning.
        stage: function from the description of a stage to its context.
    """
    if spec.segment is not None and log.segment is None:
        advice = f"add them with rcjax.logs.with_segments(log, source, {spec.segment!r})"
        raise LogError(f"{log.source}: the log has no segments: {advice}")
    is_today_default = spec.today is None
    log, held_out = sort_by_name(log), None if held_out is None else sort_by_name(held_out)
    if spec.confidence is not None:
        log, held_out = hold_out(log, held_out, spec)
    spec = dataclasses.replace(spec, today=resolve_today(log, spec.today))  # before the held-out queries are seen
    tuned = _search(log, held_out, spec, stage)
    try:
        return _with_policy(tuned, is_today_default)
    except InfeasibleError as problem:
        if spec.max_seconds is not None:
            problem.args = (f"{problem} (among the policies that take {spec.max_seconds})",)
        problem.tuned = tuned
        raise


def _search(log: Log, held_out: Log | None, spec: Spec, stage: Callable[[str], AbstractContextManager[Any]]) -> Tuned:
    """Find the frontier, without a policy. Raises InfeasibleError if no policy keeps to a limit on seconds."""
    if spec.cascade is None and spec.budget is not None:
        _require_affordable(log, spec.budget, spec.period)
    with stage("fitting the model"):
        model = make_search(spec).fit(log)
    limit = None if spec.max_seconds is None else SecondsFilter.of(spec.max_seconds, log.select(model.models))
    drawing = f", and drawing the log again, {REPLICATES} times" if spec.intervals else ""
    with stage(f"choosing cascades{drawing}"):
        try:
            return _tune_frontier(log, held_out, spec, model, limit)
        except InfeasibleError as problem:  # no policy is quick enough: carry the frontier without the limit
            problem.tuned = _tune_frontier(log, held_out, spec, model, None)
            raise


def _tune_frontier(
    log: Log, held_out: Log | None, spec: Spec, model: FittedModel, limit: SecondsFilter | None
) -> Tuned:
    """Find the frontier of the policies that keep to a limit on seconds; None: of all policies."""
    if limit is not None:
        limit.require_any(model)
    selection = make_search(spec).find(log, model, limit=limit)
    frontier, cross_validation = selection.frontier, selection.cross_validation
    if spec.intervals and log.has_enough_complete:
        # Policies tuned on draws might not keep to the limit, so only the queries vary.
        refit = None if limit is None else False
        bands = bootstrap(frontier, log, refit=refit, cross_validation=cross_validation)
        frontier = dataclasses.replace(frontier, bands=bands)
    replayed = None
    if (log.seconds is not None or not frontier.is_by_labels) and log.select(frontier.models).complete.any():
        replayed = replay(frontier, log.comparable)
        if log.has_enough_complete:  # else the few complete queries have other seconds than the models alone
            frontier = dataclasses.replace(frontier, seconds=replayed.seconds)
    return Tuned(log, held_out, model, frontier, cross_validation, summarise_single_models(log, model), spec, replayed)


def _require_affordable(log: Log, budget: float, period: Period | None) -> None:
    """Raise InfeasibleError if the cheapest model is over the budget, by all its answers and by the comparable queries.

    The message gives the larger of the two costs.
    """
    low, high = sorted(float(part.single_cost.min()) for part in (log, log.comparable))
    if low > budget * (1 + 1e-9):
        raise InfeasibleError(over_budget_message(budget, high, period))


def resolve_today(log: Log, today: ModelOrPolicy | None) -> ModelOrPolicy:
    """Return today's model or policy: the given one, or the default. Raises LogError if the log lacks its answers."""
    if today is None:
        return default_today(log)
    if absent := [name for name in list_models(today) if name not in log.models]:
        problem = f"today's {absent[0]} is not a model of the log{suggest_name(absent[0], log.models)}"
        problem += f": its models are {', '.join(log.models)}"
        raise LogError(f"{log.source}: {problem}")
    return today


def _with_policy(tuned: Tuned, is_today_default: bool) -> Tuned:
    """Add the policy for the target, if there is one, with its comparison and notes.

    `is_today_default`: today's model is the default, not given.
    """
    if tuned.target is None:
        return tuned
    policy, certificate, notes = _choose_policy(tuned)
    comparison, error_kind = tuned.compare(policy, tuned.target), tuned.log.error_kind
    comparison = dataclasses.replace(comparison, is_today_default=is_today_default)
    guarantee = None if certificate is None else certificate.describe(error_kind.noun)
    remarks = comparison.describe_error_costs(error_kind), guarantee
    return dataclasses.replace(
        tuned,
        policy=with_provenance(policy, **{COMPARISON: to_json_value(comparison)}),
        certificate=certificate,
        comparison=comparison,
        notes=(*filter(None, (comparison.describe_optimism(error_kind), *remarks)), *notes),
    )


def _choose_policy(tuned: Tuned) -> TargetPolicy:
    """Return the policy of a tuned frontier for its target, with notes on the choice.

    At a price, the best single model replaces a cascade whose gain is not supported. At a budget the ladder stays: it
    follows its bill, which a single model cannot. Its error differs by −0.1 ± 0.2 % from the single model's (nine logs,
    100 to 1,000 labels).
    """
    frontier, cost_notes = with_bills(tuned.frontier, tuned.replayed)
    spec, target = tuned.spec, tuned.target
    assert target is not None
    policy, certificate, notes = policy_for_target(frontier, tuned.log, tuned.held_out, spec)
    if target.name == "budget":  # if today's policy is kept, its own `follows` and `period` stay
        policy = with_following(policy, follows=spec.follows, period=spec.period)
    elif (gain := tuned.unsupported_gain(policy, target)) is not None:
        policy = single_policy(frontier, tuned.log, gain.model, target)
        notes = (*notes, gain.describe(f"points of {tuned.log.error_kind.noun} and money"))
    notes = (*note_known_today(spec.today, tuned.log), *notes, *note_certain(tuned.log, policy))
    limits = (*note_unspent(frontier, policy, target), *note_unsure_limit(frontier, policy, spec))
    notes = (*notes, *limits, *cost_notes, *note_predicted(frontier))
    return TargetPolicy(with_spec(policy, spec), certificate, notes)


def with_bills(frontier: Frontier, replayed: Replay | None) -> tuple[Frontier, list[str]]:
    """Replace the costs that the paper's model predicts by the bills of the policies; return (frontier, notes).

    More queries may be deferred than the model predicts, and deferred queries may be longer than others. The costs of
    the default search are bills already. Intervals are around replayed costs at mean prices, so they only need prices.
    `replayed` is the replay on the log tuned on; None if no query was answered by all models.
    """
    if frontier.is_by_labels or replayed is None:
        return frontier, []
    spent, predicted, at_means = (np.asarray(cost, float) for cost in (replayed.spent, frontier.cost, replayed.cost))
    ratio, price_ratio = (np.divide(spent, cost, np.ones_like(spent), where=cost > 0) for cost in (predicted, at_means))
    if np.abs(ratio - 1).max() < 1e-9:
        return frontier, []
    bands = frontier.bands
    if bands is not None:
        bands = dataclasses.replace(bands, cost=jax.device_put(np.asarray(bands.cost) * price_ratio[:, None]))
    frontier = dataclasses.replace(frontier, cost=jax.device_put(spent.astype(frontier.cost.dtype)), bands=bands)
    most = percent(float(np.abs(ratio - 1).max()), 0)
    other = f"which differ by up to {most} from what the model expects at mean prices"
    return frontier, [f"costs of policies are bills of this log, {other}"]


def note_certain(log: Log, policy: AbstractPolicy) -> list[str]:
    """Return a note for each model whose threshold cannot tell most of its answers apart: their confidence is 1."""
    answers = np.maximum(np.asarray(log.comparable.answered).sum(0), 1)
    certain = (np.asarray(log.comparable.logprob) == 0).sum(0) / answers
    with_thresholds = models_with_thresholds(policy) if log.has_confidences else set()
    return [
        f"{percent(share, 0)} of the answers of {name} have confidence 1: its threshold cannot tell these apart"
        for name, share in zip(log.models, certain.tolist(), strict=True)
        if name in with_thresholds and share > MAX_CERTAIN
    ]


def note_predicted(frontier: Frontier) -> list[str]:
    """Return a note if errors are predictions of the paper's model, and the intervals beside them are by labels."""
    if frontier.is_by_labels or frontier.bands is None:
        return []
    predicted = f"the {frontier.error_kind.noun} of a policy is a prediction of the model"
    return [f"{predicted}, its interval is by the labels of this log: the prediction may lie outside"]


def note_unspent(frontier: Frontier, policy: AbstractPolicy, target: Target) -> list[str]:
    """Return a note if a tenth of a budget or more is left unspent."""
    if target.name != "budget" or (cost := float(policy.expected["cost"] or 0.0)) >= (1 - _UNSPENT) * target.value:
        return []
    left = percent(1 - cost / target.value, 0)
    return [f"{left} of the budget is left: no policy has less {frontier.error_kind.noun} for it"]


def note_unsure_limit(frontier: Frontier, policy: AbstractPolicy, spec: Spec) -> list[str]:
    """Return a note if the expected error of a policy is at its limit, and no test guarantees the limit."""
    limit = spec.max_error
    if limit is None or spec.confidence is not None or (penalty(policy.expected) or 0.0) < _AT_LIMIT * limit:
        return []
    limited = f"the {frontier.error_kind.noun} may be above {100 * limit:.4g} % as often as below"
    return [f"{limited}: --confidence 95% guarantees the limit"]


def summarise_single_models(log: Log, model: FittedModel) -> tuple[SingleModel, ...]:
    """Return the figures of each single model on a log, by calibrators like those of a fitted model."""
    sample = sample_queries(log, 0)
    confidence = held_out_confidence(sample, model)
    known = sample.labelled
    truth = np.asarray(sample.correct)
    answers, errors, costs = np.asarray(log.answered).sum(0), single_model_errors(log), log.comparable.single_cost
    seconds = np.full(known.shape, np.nan) if log.seconds is None else np.asarray(log.comparable.seconds, float)
    return tuple(
        SingleModel(
            model=name,
            answers=int(answers[j]),
            accuracy=float(1 - errors[j]),
            cost=float(costs[j]),
            calibration_error=expected_calibration_error(confidence[rows, j], truth[rows, j]) if rows.any() else None,
            seconds=None if np.isnan(seconds[:, j]).all() else float(np.nanmean(seconds[:, j])),
        )
        for j, (name, rows) in enumerate(zip(log.models, known.T, strict=True))
    )


@takes(policy=AbstractPolicy, log=(Log, None))
def retune(
    policy: AbstractPolicy, log: Log | None = None, *, intervals: bool | None = None, prices: Any = None
) -> Tuned:
    """Tune a policy again on a fresh log and the queries that it carries: for the same target, by the same search.

    The target is the recorded one or, without a record, the policy's λ. The models are those of the first tuning that
    the log has. Carried queries cost the means of the log. A guarantee is tested again, on half of the fresh queries.

    Args:
        policy: the policy in service.
        log: the fresh log; None: the carried queries alone, at new prices.
        intervals: estimate intervals; None: as in the first tuning.
        prices: today's prices of tokens, without a log; a log has its own.

    Raises ValueError for a policy that records neither target nor λ, or a policy of `minimise`, whose objective is not
    in its file; InfeasibleError, a ValueError, if no policy meets the target on this log; LogError if the log has fewer
    than two of the models, and as `fit` does. Warns by `OddLogWarning` as `tune` does.

    >>> import rcjax
    >>> old, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> tuned = rcjax.retune(rcjax.tune(old, error_cost=0.001, intervals=False).policy, fresh)
    >>> tuned.policy.provenance["tuning"]["error_cost"], tuned.log.n_queries
    (0.001, 600)
    """
    before = recorded_tuning(policy)
    if before.spec.target is None:
        raise ValueError("the policy records neither a target nor its λ: tune a new one with rcjax tune")
    if before.spec.has_own_objective:
        raise ValueError(
            "the policy minimises an objective that its file does not hold: call rcjax.solving.minimise again"
        )
    if log is not None and prices is not None:
        raise ValueError("give a log or prices, not both: read the log with these prices")
    log = reprice(carried_log(policy), before.prices, prices) if log is None else log
    tuning, remarks = _restrict(log, before, intervals)
    spec = tuning.spec
    if log.answer is None and any(part.agreements for part in policy.rungs):
        remarks.append("the policy compares answers, and the log has none: tuned without")
    fresh = _with_request_settings(log.select(tuning.models), policy)
    held_out = None
    if spec.confidence is not None:  # carried queries were tuned on, and cannot guarantee anything
        fresh, held_out = hold_out(fresh, None, spec)
    training_log = with_carried_queries(policy, fresh)
    # Too few fresh queries to check: check all.
    _warn_of_oddities(fresh if fresh.n_queries >= MIN_QUERIES else training_log)
    if added := training_log.n_queries - fresh.n_queries:
        carried = f"{added:,} that the policy carries, priced as the fresh ones"
        remarks.append(f"tuned on {fresh.n_queries:,} queries of the log and {carried}")
    if spec.today is None and before.spec.today is not None:
        spec = dataclasses.replace(spec, today=default_today(training_log))
        absent = before.spec.today if isinstance(before.spec.today, str) else "a model of the policy in service"
        remarks.append(f"the log lacks {absent}, today's when it was tuned: compared with {spec.today}")
    tuned = tune_in_stages(training_log, held_out, spec)
    return dataclasses.replace(tuned, notes=(*tuned.notes, *remarks))


def _restrict(log: Log, tuning: Tuning, intervals: bool | None) -> tuple[Tuning, list[str]]:
    """Restrict a tuning to the models of a log; return (the tuning, remarks on the models that the log lacks).

    `intervals` as for `retune`. Raises LogError if fewer than two models are left.
    """
    restricted = tuning.restrict_to(log.models)
    absent = join_names([name for name in tuning.models if name not in restricted.models])
    if not restricted.can_search:
        raise LogError(f"{log.source}: it lacks {absent}: there are no two models left to tune")
    if intervals is not None:
        restricted = dataclasses.replace(restricted, spec=dataclasses.replace(restricted.spec, intervals=intervals))
    return restricted, [f"the log lacks {absent}: tuned without"] if absent else []


def _with_request_settings(log: Log, policy: AbstractPolicy) -> Log:
    """Add the request options that a policy records for its models, where the log has none for them."""
    recorded = {model: how for model, how in recorded_request_settings(policy).items() if model in log.models}
    return dataclasses.replace(log, request_settings={**recorded, **(log.request_settings or {})} or None)
