"""To tune: from a log to the frontier, the policy for a target, and its comparison with today's.

The stages are always the same: split off held-out queries, fit, search, draw the log again, choose the policy, compare.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Unpack

import jax
import numpy as np

from rcjax._base.checks import takes
from rcjax._base.codec import written
from rcjax._base.wording import Money, percent
from rcjax._core.json_values import plain
from rcjax.logs.errors import LogError, OddBudgetWarning, OddLogWarning
from rcjax.logs.log import Log
from rcjax.logs.oddities import doubts, odd_budget, oddities
from rcjax.model.calibrated import Fitted
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.comparison import COMPARISON, Comparison, what_to_do
from rcjax.policy.ladder import Period, followed, with_provenance
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import TARGETS, Spec, SpecFields, Target, with_spec
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.hull import LEAST_GAIN, InfeasibleError, too_dear
from rcjax.tuning.bootstrapping import bootstrap
from rcjax.tuning.certify import Certificate, hold_out
from rcjax.tuning.contest import Contest
from rcjax.tuning.deploying import deploy, single_policy
from rcjax.tuning.judging import held_out_confidence, sample_queries
from rcjax.tuning.replaying.comparing import Today, compare_policy, default_today, errors_alone, models_of, single_for
from rcjax.tuning.replaying.replay import Replay, replay
from rcjax.tuning.search import SecondsFilter, search_of

_UNSPENT = 0.1  # of a budget: from which on it is said why


def by_bill(frontier: Frontier, log: Log) -> tuple[Frontier, list[str]]:
    """A frontier that a model tells at mean prices, at what its policies' paths cost on the log, and what to say of it.

    Queries that are passed on may be more than the model tells, and longer than others. A frontier by the labels is of
    bills as it is.
    """
    if frontier.search == "selected":
        return frontier, []
    if (replayed := _replayed(frontier, log)) is None:
        return frontier, []
    spent = np.asarray(replayed.spent, float)
    predicted = np.asarray(frontier.cost, float)
    ratio = np.where(predicted > 0, spent / np.where(predicted > 0, predicted, 1.0), 1.0)
    if np.abs(ratio - 1).max() < 1e-9:
        return frontier, []
    bands = frontier.bands
    if bands is not None:
        bands = dataclasses.replace(bands, cost=jax.device_put(np.asarray(bands.cost) * ratio[:, None]))
    frontier = dataclasses.replace(frontier, cost=jax.device_put(spent.astype(frontier.cost.dtype)), bands=bands)
    most = percent(float(np.abs(ratio - 1).max()), 0)
    other = f"which differ by up to {most} from what the model expects at mean prices"
    return frontier, [f"costs of policies are bills of this log, {other}"]


def tell_money(frontier: Frontier, policy: AnyPolicy, target: Mapping[str, float]) -> list[str]:
    """Why money is left of a budget."""
    budget, cost = target.get("budget"), float(policy.expected["cost"] or 0.0)
    if budget is None or cost >= (1 - _UNSPENT) * budget:
        return []
    return [
        f"{percent(1 - cost / budget, 0)} of the budget is left: no policy makes less {frontier.counted.noun} with it"
    ]


def with_seconds(frontier: Frontier, log: Log) -> Frontier:
    """The same frontier, with the seconds that the log it was tuned on lets expect; as it is where that has none."""
    replayed = None if log.seconds is None else _replayed(frontier, log)
    return frontier if replayed is None else dataclasses.replace(frontier, seconds=replayed.seconds)


def _replayed(frontier: Frontier, log: Log) -> Replay | None:
    """The frontier on a log; None where no query was answered by all of its models."""
    try:
        return replay(frontier, log)
    except LogError:
        return None


@dataclasses.dataclass(frozen=True)
class Alone:
    """What one model does on its own, on the log."""

    model: str
    answers: int
    accuracy: float
    """Share of its answers that are right."""
    cost: float
    """Mean money per query."""
    calibration_error: float
    """Expected calibration error of its labelled answers, each by what other folds tell; of 50,000 queries at most."""
    certain: float
    """Share of its answers whose raw confidence is 1."""
    seconds: float | None = None
    """Mean seconds of its answers, of those whose seconds are known; None where the log has none."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, the seconds only where there are any."""
        row = plain(dataclasses.asdict(self))
        return {name: value for name, value in row.items() if name != "seconds" or value is not None}


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What tuning a log came to."""

    log: Log
    """The log tuned on."""
    held_out: Log | None
    """The queries that the guarantee was tested on."""
    model: Fitted
    frontier: Frontier
    contest: Contest | None
    """The cross-validation of the default search; None for a search by the model."""
    alone: tuple[Alone, ...]
    """What each model does on its own, in the order of the models."""
    spec: Spec
    """How the log was tuned, with `today` as it was taken."""
    policy: AnyPolicy | None = None
    """The policy for the target; None without one."""
    certificate: Certificate | None = None
    """What is guaranteed of the policy; None: nothing."""
    comparison: Comparison | None = None
    """The policy beside today's and the best single model for its money; None without a policy."""
    notes: tuple[str, ...] = ()
    """What else there is to say of the policy."""

    @property
    def target(self) -> Mapping[str, float]:
        """The target by its name, as provenance keeps it; empty without one."""
        return self.spec.target

    @property
    def money(self) -> Money:
        """The unit in which money is told."""
        return self.spec.money(np.asarray(self.model.cost, float).tolist())

    @property
    def verdict(self) -> str | None:
        """What to do, in a sentence; None without a policy."""
        if self.policy is None or self.comparison is None:
            return None
        return what_to_do(self.policy, self.comparison, self.money, self.log.counted)

    def policy_for(self, target: Target) -> AnyPolicy:
        """The policy for another target on the same frontier, or the single model that it gives way to.

        Args:
            target: a budget, a limit on the error or a price.

        Raises InfeasibleError where no point meets it.
        """
        policy = self.frontier.policy(**target.to_json())
        if self.contest is None:
            return policy
        spec = dataclasses.replace(self.spec, **dict.fromkeys(TARGETS) | target.to_json())
        return _earned(policy, self.frontier, self.log, self.contest, spec)[0]

    @property
    def notes_beside(self) -> tuple[str, ...]:
        """What the last avoided error costs, the guarantee and the notes, in words."""
        last = None if self.comparison is None else self.comparison.last_error(self.log.counted)
        return (*filter(None, (last, self.promise)), *self.notes)

    @property
    def promise(self) -> str | None:
        """What is guaranteed, and by which queries, in words; None without a guarantee."""
        return None if self.certificate is None else _promise(self.certificate, self.log.counted.noun)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The verdict, the best single model, what the last avoided error costs, the guarantee and the notes."""
        single = None if self.comparison is None else self.comparison.single
        said = [] if self.verdict is None else [self.verdict]
        if single is not None:
            said.append(f"{single.title}: {self.money.full(single.cost)}, {single.own_points(self.log.counted.noun)}")
        return (*said, *self.notes_beside)

    def describe(self) -> str:
        """Return lines of text: the log, how many policies there are, the one for the target, and the remarks.

        >>> from rcjax import sample_log, tune
        >>> print(tune(sample_log(100), intervals=False).describe())
        rcjax demo (synthetic): 100 queries, 5 models (llama3.2-1b, ...), choice; every model answered every query.
        ... policies, of which none is chosen, as no target is given
        """
        if self.policy is None:
            chosen = "of which none is chosen, as no target is given"
        else:
            expected, unit = self.policy.expected, self.money
            figures = f"{percent(expected['error'])} {self.log.counted.noun} at {unit.full(expected['cost'])}"
            shares: dict[str, float] = {}
            for weight, rung in zip(self.policy.weights, self.policy.policies, strict=True):
                names = " → ".join(rung.models)
                shares[names] = shares.get(names, 0.0) + weight
            ways = ", ".join(f"{percent(share)} by {names}" for names, share in shares.items())
            chosen = f"for the target {ways if len(shares) > 1 else next(iter(shares))}: {figures}"
        return "\n".join((self.log.describe(), f"{len(self.frontier.lam):,} policies, {chosen}", *self.remarks))

    __repr__ = describe

    def to_json(self) -> dict[str, Any]:
        """The document of `rcjax tune --json`."""
        document = {
            "models": list(self.model.models),
            "counted": self.log.counted.noun,
            "model_summary": [model.to_json() for model in self.alone],
            "frontier": self.frontier.to_json()["frontier"],
        }
        if self.policy is not None:
            document["policy"], document["remarks"] = self.policy.to_json(), list(self.remarks)
        if self.comparison is not None:
            document["comparison"] = written(self.comparison)
        return document


_per_query = "budget={}e-6".format  # from an amount per million queries


@takes(log=Log, spec=(Spec, None), held_out=(Log, None))
def tune(log: Log, spec: Spec | None = None, *, held_out: Log | None = None, **fields: Unpack[SpecFields]) -> Tuned:
    """Find the best cascades for a log, at every trade-off of error and cost, and the policy for a target.

    Args:
        log: the log to learn from.
        spec: how to tune; None: by default.
        held_out: the log of the queries that a guarantee is tested on; by default half of those of `log`, drawn at
            random, or where answers lack labels, half of those labelled by hand.
        fields: those of `Spec`, in place of what `spec` says: `budget`, `max_error`, `match`, `error_cost` or `lam`,
            `today`, `cascade`, `confidence`, `intervals`, … Without a target there is a frontier, and no policy.

    Raises InfeasibleError where nothing meets the target: its `tuned` holds all but the policy, or is None where the
    budget is below the price of every model, which is told before anything is fitted. ValueError for options
    that do not go together; LogError as `fit` and `select_frontier` do. An `OddLogWarning` says what is odd about a log
    that can hardly be right, or whose policies are doubtful, and an `OddBudgetWarning` what is odd about a budget that
    any policy meets.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> tuned = rcjax.tune(log, max_error=0.3, intervals=False)
    >>> tuned.policy.expected["error"] <= 0.3, [model.model for model in tuned.alone]
    (True, ['llama3.2-1b', 'llama3.1-70b'])
    """
    for what in (*oddities(log), *doubts(log)):
        warnings.warn(f"{log.source}: {what}", OddLogWarning, stacklevel=2)
    spec = dataclasses.replace(spec or Spec(), **fields).check(held_out is not None)
    if spec.budget is not None and (what := odd_budget(spec.budget, log, _per_query)):
        warnings.warn(what, OddBudgetWarning, stacklevel=2)
    if spec.segment is not None and log.segment is None:
        advice = f"read them by rcjax.logs.with_segments(log, source, {spec.segment!r})"
        raise LogError(f"{log.source}: the log tells no segments: {advice}")
    return tune_in_stages(log, held_out, spec)


def _unnamed(log: Log) -> str:
    """What is taken for today's where nobody says what that is, in words."""
    taken = f"the model with the least {log.counted.noun}, or one within chance of it"
    if log.reference is not None and log.reference.counts == "differences":
        taken = "the model that answers are held to"
    return f"nobody has said what is in use today: taken is {taken}"


def tune_in_stages(
    log: Log,
    held_out: Log | None,
    spec: Spec,
    stage: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Tuned:
    """Tune as a spec says, entering a context for each stage of the work: `tune` without its checks of the log.

    Args:
        log: the log to learn from.
        held_out: queries for the test of a guarantee; None where they are to be split off.
        spec: how to tune.
        stage: makes the context of a stage from its description.
    """
    named = spec.today is not None
    spec = dataclasses.replace(spec, today=today_for(log, spec.today))
    tuned = _search(log, held_out, spec, stage)
    try:
        tuned = _with_policy(tuned, spec)
        return tuned if named or not tuned.target else dataclasses.replace(tuned, notes=(*tuned.notes, _unnamed(log)))
    except InfeasibleError as problem:
        if spec.max_seconds is not None:
            problem.args = (f"{problem} (among the policies that take {spec.max_seconds})",)
        problem.tuned = tuned
        raise


def _search(log: Log, held_out: Log | None, spec: Spec, stage: Callable[[str], AbstractContextManager[Any]]) -> Tuned:
    """`tune_in_stages` up to the frontier: without a policy. InfeasibleError where none keeps to a limit on seconds."""
    if spec.cascade is None and "budget" in spec.target:
        _require_affordable(log, spec.target["budget"], spec.period)
    if spec.confidence is not None:
        log, held_out = hold_out(log, held_out, spec)
    search = search_of(spec)
    with stage("fitting the model"):
        model = search.fit(log)
    limit = None if spec.max_seconds is None else SecondsFilter.of(spec.max_seconds, log.select(model.models))

    def tuned(limit: SecondsFilter | None) -> Tuned:
        if limit is not None:
            limit.require_any(model)
        frontier, contest = search.find(log, model, limit=limit)
        if spec.intervals:
            # Tuned again, policies would not keep to the limit: so they stay as they are, and only the queries vary.
            refit = None if limit is None else False
            frontier = frontier.with_bands(bootstrap(frontier, log, refit=refit))
        frontier, alone = with_seconds(frontier, log), describe_models(log, model)
        return Tuned(log, held_out, model, frontier, contest, alone, spec)

    drawing = ", and drawing the log again, 200 times" if spec.intervals else ""
    with stage(f"choosing cascades{drawing}"):
        try:
            return tuned(limit)
        except InfeasibleError as problem:  # no policy is quick enough: shown is what there is otherwise
            problem.tuned = tuned(None)
            raise


def _require_affordable(log: Log, budget: float, period: Period | None) -> None:
    """InfeasibleError for a budget that no model alone keeps to, by its mean price or its bill: before any fit."""
    cost, complete = np.asarray(log.cost, float), np.asarray(log.complete)
    bill = np.asarray(log.query_cost, float)[complete].mean(0) if complete.any() else cost
    low, high = sorted((float(cost.min()), float(bill.min())))
    if low > budget * (1 + 1e-9):
        raise InfeasibleError(too_dear(budget, high, period))


def today_for(log: Log, today: Today | None) -> Today:
    """Return what policies are compared with: as said, or the default. LogError where the log lacks its answers."""
    if today is None:
        return default_today(log)
    if absent := [name for name in models_of(today) if name not in log.models]:
        what = f"today's {absent[0]} is no model of the log: its models are {', '.join(log.models)}"
        raise LogError(f"{log.source}: {what}")
    return today


def _with_policy(tuned: Tuned, spec: Spec) -> Tuned:
    """The same with the policy for the target, if there is one, and what to say of it."""
    target = tuned.target
    if not target:
        return tuned
    frontier, correction = by_bill(tuned.frontier, tuned.log)
    policy, certificate, remarks = deploy(frontier, tuned.log, tuned.held_out, spec)
    if tuned.contest is not None:
        policy, why = _earned(policy, frontier, tuned.log, tuned.contest, spec)
        remarks = (*remarks, *why)
    policy = with_spec(followed(policy, follows=spec.follows, period=spec.period), spec)
    comparison = compare_policy(policy, tuned.log, spec.today, money=target.get("budget"), tuned=True)
    return dataclasses.replace(
        tuned,
        policy=with_provenance(policy, **{COMPARISON: written(comparison)}),
        certificate=certificate,
        comparison=comparison,
        notes=(*remarks, *tell_money(frontier, policy, target), *correction),
    )


def _earned(
    policy: AnyPolicy, frontier: Frontier, log: Log, contest: Contest, spec: Spec
) -> tuple[AnyPolicy, list[str]]:
    """The policy for a target, or the best single model where a cascade does not earn its place; and why.

    A cascade earns it where it is expected to gain a tenth of a point, and did not lose by more than a standard error
    on queries left out: below that, policies lost what they were expected to gain (`benchmarks.budgets`).
    """
    target = Target.of(**spec.target)
    limits = spec.max_seconds, spec.abstain_price, spec.confidence, spec.segment
    if target.name not in ("budget", "error_cost", "lam") or any(limit is not None for limit in limits):
        return policy, []
    costs, errors = np.asarray(log.cost, float), errors_alone(log)
    lam = 0.0 if target.name == "budget" else target.value if target.name == "lam" else 1 / target.value
    best = log.models.index(single_for(log, target.value)) if not lam else int((errors + lam * costs).argmin())
    if {name for rung in policy.policies for name in rung.models} == {log.models[best]}:
        return policy, []
    error, cost = (float(policy.expected[name] or 0.0) for name in ("error", "cost"))
    gain = errors[best] - error + lam * (costs[best] - cost)
    compares = any(rung.agreements for rung in policy.policies)
    seen = contest.gain(compares, target, costs)
    if gain >= LEAST_GAIN and seen.mean >= -seen.se:
        return policy, []
    worth = f"points of {log.counted.noun}{' and money' * bool(lam)}"
    found = f"the best is expected to gain {100 * gain:.1f} {worth}, {100 * seen.mean:.1f} ± {100 * seen.se:.1f} on"
    why = f"no cascade is shown to be better than {log.models[best]} alone here: {found} queries left out"
    return single_policy(frontier, log, log.models[best], target), [why]


def _promise(certificate: Certificate, noun: str) -> str:
    """What is guaranteed, and by which queries, in words."""
    refused, more = f" and refused {certificate.refusals:,}" if certificate.refusals else "", certificate.more
    had = f"{percent(certificate.errors / certificate.n)} {noun}"
    if more is not None:
        had += f", {abs(100 * more):.1f} points {'more' if more > 0 else 'less'} than today's"
    did = f"on {certificate.n:,} queries held out for the test it had {had}"
    sure = f"guaranteed with {100 * certificate.confidence:.4g} % confidence"
    return f"{sure}: the target is kept; {did}{refused}"


def describe_models(log: Log, model: Fitted) -> tuple[Alone, ...]:
    """What each model of a log does on its own, by the calibration of a fitted model."""
    sample = sample_queries(log, 0)
    confidence, known = held_out_confidence(sample, model), sample.labelled
    truth = np.asarray(sample.correct)
    logprob, answered = np.asarray(log.logprob), np.asarray(log.answered)
    seconds = np.full(answered.shape, np.nan) if log.seconds is None else np.asarray(log.seconds, float)
    counted = np.asarray(expected_log(log).correct)  # as the frontier counts them
    return tuple(
        Alone(
            model=name,
            answers=int(rows.sum()),
            accuracy=float(counted[rows, j].mean()),
            cost=float(np.asarray(log.cost)[j]),
            calibration_error=expected_calibration_error(confidence[known[:, j], j], truth[known[:, j], j]),
            certain=float((logprob[rows, j] == 0).mean()),
            seconds=None if np.isnan(seconds[:, j]).all() else float(np.nanmean(seconds[:, j])),
        )
        for j, (name, rows) in enumerate(zip(log.models, answered.T, strict=True))
    )
