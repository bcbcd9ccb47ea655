"""One verb: from a log to the frontier, the policy for a target, and what there is to say of both.

`tune` is what `rcjax tune` does; `retune` is the same with what a policy's provenance recorded.
"""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from rcjax._base.codec import written
from rcjax._base.wording import Money, percent
from rcjax._core.json_values import plain
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.hull import LEAST_GAIN, InfeasibleError, too_dear
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.comparison import COMPARISON, Comparison, what_to_do
from rcjax.policy.ladder import Period, followed, with_provenance
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import TARGETS, Spec, Target, with_spec
from rcjax.replaying.comparing import Today, compare_policy, default_today, errors_alone, models_of, single_for
from rcjax.replaying.replay import replay
from rcjax.tuning.bootstrapping import draw_bands
from rcjax.tuning.certify import Certificate
from rcjax.tuning.contest import Contest
from rcjax.tuning.judging import held_out_confidence, sample_queries
from rcjax.tuning.matching import single_policy
from rcjax.tuning.select import BY_LABELS, SearchedBy, SecondsFilter, Selection

_UNSPENT = 0.1  # of a budget: from which on it is said why


def by_bill(frontier: Frontier, log: Log) -> tuple[Frontier, list[str]]:
    """A frontier that a model tells at mean prices, at what its policies' paths cost on the log, and what to say of it.

    Queries that are passed on may be more than the model tells, and longer than others. A frontier by the labels is of
    bills as it is.
    """
    if frontier.search == "selected":
        return frontier, []
    try:
        spent = np.asarray(replay(frontier, log).spent, float)
    except LogError:  # no query was answered by all of its models
        return frontier, []
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
    if log.seconds is None:
        return frontier
    try:
        return dataclasses.replace(frontier, seconds=replay(frontier, log).seconds)
    except LogError:  # no query was answered by all of its models
        return frontier


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
    selection: Selection | None
    """What cascades were compared with; None for another search than the default."""
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
        if self.selection is None:
            return policy
        spec = dataclasses.replace(self.spec, **dict.fromkeys(TARGETS) | target.to_json())
        return _earned(policy, self.frontier, self.log, self.selection.contest, spec)[0]

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
    by: SearchedBy = BY_LABELS,
) -> Tuned:
    """`tune` as a spec says, telling what it is at.

    Args:
        log: the log to learn from.
        held_out: queries for the test of a guarantee; None where they are to be split off.
        spec: how to tune.
        stage: entered for each part of the work, with what it is in words.
        by: the way to search that the spec names (`rcjax.tuning.searches.as_specified`).
    """
    named = spec.today is not None
    spec = dataclasses.replace(spec, today=today_for(log, spec.today))
    tuned = _search(log, held_out, spec, stage, by)
    try:
        tuned = _with_policy(tuned, spec, by)
        return tuned if named or not tuned.target else dataclasses.replace(tuned, notes=(*tuned.notes, _unnamed(log)))
    except InfeasibleError as problem:
        if spec.max_seconds is not None:
            problem.args = (f"{problem} (among the policies that take {spec.max_seconds})",)
        problem.tuned = tuned
        raise


def _search(
    log: Log, held_out: Log | None, spec: Spec, stage: Callable[[str], AbstractContextManager[Any]], by: SearchedBy
) -> Tuned:
    """`tune_in_stages` up to the frontier: without a policy. InfeasibleError where none keeps to a limit on seconds."""
    if spec.cascade is None and "budget" in spec.target:
        _require_affordable(log, spec.target["budget"], spec.period)
    log, held_out = by.hold_out(log, held_out, spec)
    with stage("fitting the model"):
        model = by.fit(log, spec)
    limit = None if spec.max_seconds is None else SecondsFilter.of(spec.max_seconds, log.select(model.models))

    def tuned(limit: SecondsFilter | None) -> Tuned:
        if limit is not None:
            limit.require_any(model)
        frontier, selection = by.find(log, model, spec, limit)
        if spec.intervals:
            # Tuned again, policies would not keep to the limit: so they stay as they are, and only the queries vary.
            refit = None if limit is None else False
            frontier = frontier.with_bands(draw_bands(frontier, log, by.again, refit=refit))
        frontier, alone = with_seconds(frontier, log), describe_models(log, model)
        return Tuned(log, held_out, model, frontier, selection, alone, spec)

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


def _with_policy(tuned: Tuned, spec: Spec, by: SearchedBy) -> Tuned:
    """The same with the policy for the target, if there is one, and what to say of it."""
    target = tuned.target
    if not target:
        return tuned
    frontier, correction = by_bill(tuned.frontier, tuned.log)
    policy, certificate, remarks = by.deploy(frontier, tuned.log, tuned.held_out, spec)
    if tuned.selection is not None:
        policy, why = _earned(policy, frontier, tuned.log, tuned.selection.contest, spec)
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
    gain = errors[best] - policy.expected["error"] + lam * (costs[best] - policy.expected["cost"])  # type: ignore[operator]
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
