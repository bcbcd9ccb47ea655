"""What a report says, as figures: the frontier with its intervals, single models beside it, and the checks."""

import dataclasses
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from rcjax._arguments import check_arguments
from rcjax._files import write_atomically
from rcjax._json import plain
from rcjax._replay import Replay, replay
from rcjax._targets import Target
from rcjax._threads import as_here
from rcjax._wording import Money, choose_unit, percent
from rcjax.choice import Selection, select_frontier
from rcjax.diagnostics import Check, Diagnosis, diagnose
from rcjax.diagnostics.prediction import held_out, is_training_log
from rcjax.diagnostics.promise import try_promise
from rcjax.diagnostics.scope import concerns
from rcjax.frontier import Frontier
from rcjax.joint import CascadeModel, fit
from rcjax.learning import LearningCurve, learning_curve
from rcjax.logs import Log, LogError
from rcjax.resampling import bootstrap

_TIES = 1e-9  # sums of money this close are one
_REPEATS = 5  # of the learning curve, whose standard errors more deals of the same log would lower by 4 % at most


@dataclasses.dataclass(frozen=True)
class Against:
    """A frontier against one model that answers everything; positions are those of the frontier's points."""

    model: str
    error: float
    """How often the model is wrong on the log."""
    cost: float
    """Its mean cost, in money per query."""
    at_its_cost: int | None
    """The point of least error among those that cost no more than it; None where each costs more."""
    at_its_error: int | None
    """The cheapest point among those that err no more often; None where each errs more."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What there is to report. The frontier has bands; L points, k models."""

    log: Log
    """The log that everything was tuned on."""
    model: CascadeModel
    frontier: Frontier
    selection: Selection
    """What longer cascades were compared by; its frontier is this one without bands."""
    shares: np.ndarray
    """(L, k) of the queries, answered by each model."""
    comparisons: tuple[Against, ...]
    """With every model on its own, in the order of the models."""
    baseline: str
    """The model that the headline compares with."""
    diagnosis: Diagnosis
    """Of the model, on the log that was judged."""
    judged: Log
    """That log: fresh queries, or the log itself."""
    seen: Replay | None
    """The frontier's policies on fresh queries, where there are any."""
    learning: LearningCurve | None
    """What more labels would bring; None where the log is too small to tell."""
    target: Target | None
    """The target that a policy was chosen for, where there is one."""
    drawn: list[dict[str, Any]] | None = None
    """The figures of the diagnosis, where they were drawn meanwhile."""

    @property
    def chosen(self) -> int:
        """The point to start with: that for the target; without one, the cheapest as good as the baseline; or one
        amid the others."""
        if self.target:
            return self.frontier.choose(**self.target.to_json())
        best = self.against.at_its_error
        return len(np.asarray(self.frontier.lam)) // 2 if best is None else best

    def concerns(self, check: Check, point: int) -> bool:
        """Whether a check says something of the policy at a point, and not only of others."""
        members, models = np.asarray(self.frontier.members)[point], self.frontier.models
        asked = [name for name, member in zip(models, members, strict=True) if member]
        return concerns(check, asked, models, self.diagnosis.by_model)

    @property
    def against(self) -> Against:
        """The comparison with the baseline."""
        return next(each for each in self.comparisons if each.model == self.baseline)

    @property
    def money(self) -> Money:
        """The unit in which people read the costs."""
        return choose_unit([each.cost for each in self.comparisons])

    def headline(self) -> str:
        """What the frontier is worth against the baseline, in two sentences."""
        against, money = self.against, self.money
        frontier = jax.tree.map(np.asarray, self.frontier)
        start = f"Asking {against.model} for everything is wrong on {percent(against.error)}"
        start += f" of the queries, at {money.full(against.cost)}."
        gains = []
        if against.at_its_cost is not None and against.error > 0:
            error = float(frontier.error[against.at_its_cost])
            fewer = 1 - error / against.error
            if fewer >= 0.005:
                gains.append(f"make {percent(fewer, 0)} fewer errors at today’s spend")
        if against.at_its_error is not None:
            share = float(frontier.cost[against.at_its_error]) / against.cost if against.cost > 0 else 1.0
            if share <= 0.995:
                gains.append(f"keep today’s error at {percent(share, 0)} of the cost")
        if gains:
            return f"{start} With a cascade you could {', or '.join(gains)}."
        best = int(np.argmin(np.asarray(frontier.error, float)))
        error, cost = percent(float(frontier.error[best])), float(frontier.cost[best])
        if cost < 0.995 * against.cost:
            share = percent(cost / against.cost, 0)
            return f"{start} The best cascade is expected to be wrong on {error}, at {share} of the cost."
        return f"{start} No cascade of these models is expected to do better at its price or its error."

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        curve = self.learning
        learning = None if curve is None else curve.to_json() | {"advice": curve.advice(curve.labels)}
        return {
            "models": list(self.frontier.models),
            "baseline": self.baseline,
            "headline": self.headline(),
            "comparisons": [plain(dataclasses.asdict(each)) for each in self.comparisons],
            "frontier": self.frontier.to_json()["frontier"],
            "target": {} if self.target is None else self.target.to_json(),
            "chosen": self.chosen,
            "shares": np.asarray(self.shares).tolist(),
            "diagnosis": self.diagnosis.to_json(),
            "learning_curve": learning,
        }


@dataclasses.dataclass(frozen=True)
class Report(Findings):
    """What `make_report` came to: the findings, and the page that shows them."""

    def to_html(self) -> str:
        """The report as one HTML page that needs nothing else. Raises ImportError without matplotlib or Jinja2."""
        from rcjax.report.page import render

        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; never leaves a half-written one."""
        write_atomically(path, self.to_html())


def make_report(
    log: Log,
    *,
    test: Log | None = None,
    copula: str = "gumbel",
    baseline: str | None = None,
    replicates: int = 200,
    seed: int = 0,
    budget: float | None = None,
    max_error: float | None = None,
    error_cost: float | None = None,
    lam: float | None = None,
    draw: bool = False,
) -> Report:
    """Tune on a log as `rcjax tune` does by default, look at how sure that is, and compare with single models.

    `test`: fresh queries to judge by; without them, the diagnosis is by five folds. `baseline`: the model that is in
    use today, by default the one that errs least. `replicates` of the bootstraps, of intervals and tests alike.
    The page opens at the policy for the target, where there is one: one of `budget`, `max_error`, `error_cost` and
    `lam`, as `Frontier.policy` takes them. With `draw`, figures are drawn meanwhile, in another thread, and the page is
    there sooner. Raises ValueError for a baseline that is not a model of the log or several targets, InfeasibleError
    for one that no policy meets, LogError as `fit`, `select_frontier` and `diagnose` do.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> report = make_report(log, replicates=50)
    >>> print(report.headline())
    Asking llama3.1-70b for everything is wrong on 21.0 % of the queries, at $168 per million queries. ...
    """
    check_arguments(make_report, locals())
    accuracy = np.asarray(log.correct, float).sum(0) / np.asarray(log.answered).sum(0)
    if baseline is not None and baseline not in log.models:
        raise ValueError(f"the baseline {baseline!r} is not a model of the log; they are {', '.join(log.models)}")
    target = Target.at_most_one(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam)
    judged = log if test is None else test.select(log.models)
    # Side by side, as all of these spend most of their first run in XLA's compiler.
    with ThreadPoolExecutor(4) as beside:
        learning = beside.submit(as_here(_learning), log, seed)
        model = fit(log, copula=copula)
        options: dict[str, Any] = {"training": log, "replicates": replicates, "seed": seed, "search": None}
        checked = beside.submit(as_here(diagnose), model, judged, **options)
        selection = select_frontier(log, model=model, seed=seed)
        if target:
            selection.frontier.choose(**target.to_json())  # refuses what cannot be met
        promise = beside.submit(as_here(_promise), selection.frontier, judged, log, seed)
        whole = beside.submit(as_here(_diagnosis), checked, promise, model, judged, draw)
        bands = bootstrap(selection.frontier, log, replicates=replicates, seed=seed)
        frontier = selection.frontier.with_bands(bands)
        seen = None if test is None else replay(frontier, judged)
        shares = (seen or replay(frontier, log)).share
        diagnosis, drawn = whole.result()
    return Report(
        log=log,
        model=model,
        frontier=frontier,
        selection=selection,
        shares=np.asarray(shares, float),
        comparisons=tuple(compare(frontier, j, 1 - float(accuracy[j])) for j in range(len(log.models))),
        baseline=baseline or log.models[int(np.argmax(accuracy))],
        diagnosis=diagnosis,
        judged=judged,
        seen=seen,
        learning=learning.result(),
        target=target,
        drawn=drawn,
    )


def compare(frontier: Frontier, j: int, error: float) -> Against:
    """A frontier against its model j alone, which errs so often."""
    errors, costs = np.asarray(frontier.error, float), np.asarray(frontier.cost, float)
    cost = float(np.asarray(frontier.model.cost)[j])
    affordable, good = costs <= cost * (1 + _TIES), errors <= error + _TIES
    at_cost = int(np.argmin(np.where(affordable, errors, np.inf))) if affordable.any() else None
    at_error = int(np.argmin(np.where(good, costs, np.inf))) if good.any() else None
    return Against(frontier.models[j], error, cost, at_cost, at_error)


def _promise(frontier: Frontier, log: Log, training: Log, seed: int) -> dict[str, Any]:
    """The promise of a frontier, tried on a log of other queries, or in folds of the log that it was tuned on."""
    model = frontier.model
    held = held_out(model, log, folds=is_training_log(model, log), seed=seed)
    return try_promise(frontier, log, held, training.n_queries, seed)


def _diagnosis(
    checked: Future[Diagnosis], promise: Future[dict[str, Any]], model: CascadeModel, log: Log, draw: bool
) -> tuple[Diagnosis, list[dict[str, Any]] | None]:
    """The diagnosis with the promise, and its figures if wanted."""
    found = dataclasses.replace(checked.result(), promise=promise.result())
    if not draw:
        return found, None
    from rcjax.report.page import draw_checks

    return found, draw_checks(found, model, log)


def _learning(log: Log, seed: int) -> LearningCurve | None:
    try:
        return learning_curve(log, repeats=_REPEATS, seed=seed)
    except LogError:
        return None
