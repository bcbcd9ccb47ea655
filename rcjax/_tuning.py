"""What `rcjax tune` does, from the log to the files and tables."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rcjax._failures import attempt, conclude
from rcjax._options import as_search, models_to_read
from rcjax._overlap import overlap, require_unseen
from rcjax._replay import replay
from rcjax._shell import read_file
from rcjax._terminal import busy, show_copulas, show_policy, show_tuning, too_dear
from rcjax._wording import choose_unit, percent
from rcjax.choice import Selection
from rcjax.frontier import Frontier, InfeasibleError
from rcjax.guarantee import Certificate, certify
from rcjax.joint import CascadeModel, fit
from rcjax.logs import Log, LogError, read_log
from rcjax.mixture import Mixture
from rcjax.policy import Policy
from rcjax.retuning import find_frontier
from rcjax.two_samples import calibration_error

_BILL = 0.01  # from which difference on the bill is worth a word
_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given


class Wanted(NamedTuple):
    """What the command line asks for."""

    target: dict[str, float]  # at most one, by the name that `Frontier.policy` has for it
    abstain_price: float | None  # what a refusal costs, in errors; None: models may not refuse
    confidence: float | None  # of the guarantee; None for none
    held_out: Path | None  # the log to test the guarantee on
    mix: bool  # two points, so that the target is met exactly
    bands: bool
    posterior: bool  # policies of least expected loss
    out: Path | None  # where to write the policy
    frontier: Path | None  # and the frontier
    plot: Path | None  # and a figure of it
    as_json: bool


def tune(
    path: Path,
    wanted: Wanted,
    *,
    prices: Path | None,
    labels: Path | None,
    task: str,
    models: tuple[str, ...] | None,
    cascade: tuple[str, ...] | None,
    copula: str | None,
) -> None:
    """Read the log, find the frontier and the policy, write and show them; InfeasibleError or OSError then."""
    others = "the others are used where they can be"
    with busy("reading the log"):
        chosen = models_to_read(models, cascade)
        log = read_file(read_log, path, others, prices=prices, labels=labels, models=chosen, task=task)
        fresh = None
        if wanted.held_out:
            options = {"prices": prices, "labels": labels, "models": log.models, "task": task}
            fresh = read_file(read_log, wanted.held_out, others, **options)
            require_unseen(fresh, overlap(fresh, log))
        elif wanted.confidence:
            fresh, log = log.split(_HELD_OUT, seed=0)
    with busy("fitting the model"):
        model = fit(log, copula=copula or "gumbel")
    drawing = ", and drawing the log again, 200 times" if wanted.bands else ""
    with busy(f"choosing cascades{drawing}"):
        frontier, selection = _search(log, model, cascade, wanted)
    heading = log.describe()
    if fresh is not None:
        heading += f" {fresh.n_queries:,} other queries are held out for the test of the guarantee."
    policy, remarks, infeasible = None, [], None
    try:
        policy, remarks = _policy(frontier, selection, wanted, log, fresh)
    except InfeasibleError as problem:
        infeasible = problem
    tuned = Tuned(heading, model, frontier, summarise(log, model), policy, remarks)
    problems = _write(tuned, wanted)
    problem = next(filter(None, [*problems.values(), infeasible]), None)
    show = partial(_show, tuned, wanted, lambda path: None if path in problems else path)
    conclude(tuned.to_json(), show, as_json=wanted.as_json, problem=problem)


class Tuned(NamedTuple):
    """What the tuning of a log came to."""

    heading: str
    model: CascadeModel
    frontier: Frontier
    rows: list[dict[str, Any]]  # of `summarise`
    policy: Policy | Mixture | None  # None without a target, and where nothing meets it
    remarks: list[str]  # on the policy

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        points = self.frontier.to_json()["frontier"]
        document = {"models": list(self.model.models), "model_summary": self.rows, "frontier": points}
        copulas = {"copulas": self.model.copula_table} if self.model.copula_table else {}
        chosen = {"policy": self.policy.to_json(), "remarks": self.remarks} if self.policy else {}
        return document | copulas | chosen


def _write(tuned: Tuned, wanted: Wanted) -> dict[Path, OSError]:
    """Write the files that are asked for; what went wrong, by file."""
    saves: dict[Path, Callable[[], None]] = {}
    if wanted.frontier:
        saves[wanted.frontier] = partial(tuned.frontier.save, wanted.frontier)
    if wanted.plot:
        saves[wanted.plot] = partial(_draw, tuned.frontier, tuned.rows, wanted.plot)
    if wanted.out and tuned.policy:
        saves[wanted.out] = partial(tuned.policy.save, wanted.out)
    outcomes = {path: attempt(save) for path, save in saves.items()}
    return {path: problem for path, problem in outcomes.items() if problem}


def _search(
    log: Log, model: CascadeModel, cascade: tuple[str, ...] | None, wanted: Wanted
) -> tuple[Frontier, Selection | None]:
    named = as_search(cascade or ("all",))
    search = "expected" if wanted.posterior else "selected" if cascade is None else named
    options: dict[str, Any] = {"abstain_price": wanted.abstain_price, "bands": wanted.bands}
    return find_frontier(log, model, search, expected=named, **options)


def _draw(frontier: Frontier, rows: list[dict[str, Any]], path: Path) -> None:
    from rcjax.plots import frontier_figure, save_figure

    save_figure(frontier_figure(frontier, {row["model"]: (row["cost"], 1 - row["accuracy"]) for row in rows}), path)


def _policy(
    frontier: Frontier, selection: Selection | None, wanted: Wanted, log: Log, fresh: Log | None
) -> tuple[Policy | Mixture | None, list[str]]:
    """The policy for the target, or a mixture, and remarks on it."""
    target = wanted.target
    if not target:
        return None, []
    promise = []
    if wanted.confidence is not None and fresh is not None:
        limits: dict[str, Any] = {"max_error": target.get("max_error"), "max_cost": target.get("budget")}
        found = certify(frontier, fresh, **limits, confidence=wanted.confidence)
        index, policy, promise = found.index, found.policy, [_promise(found)]
    else:
        index = _choose(frontier, target)
        policy = frontier.mixture(**target) if wanted.mix else frontier.point(index, target)
        if isinstance(policy, Mixture) and len(policy.policies) == 1:
            policy, promise = policy.policies[0], ["nothing to mix: a single point of the frontier is best here"]
    verdict = [] if selection is None else [selection.verdict(index)]
    return policy, [*verdict, *promise, *_bill(policy, log)]


def _bill(policy: Policy | Mixture, log: Log) -> list[str]:
    """What the expected cost leaves out: queries that are passed on may be longer than the mean."""
    try:
        seen = replay(policy, log)
    except LogError:  # no query was answered by all of its models
        return []
    more = float(seen.spent) / float(seen.cost) - 1 if float(seen.cost) > 0 else 0.0
    if more < _BILL:
        return []
    expected = float(policy.expected["cost"])  # type: ignore[arg-type]
    return [
        f"queries that are passed on are longer than others: expect a bill {percent(more, 0)} higher, "
        f"{choose_unit([expected]).full(expected * (1 + more))}"
    ]


def _choose(frontier: Frontier, target: dict[str, float]) -> int:
    try:
        return frontier.choose(**target)
    except InfeasibleError:
        if "budget" not in target:
            raise
        raise InfeasibleError(too_dear(target["budget"], float(frontier.cost.min()))) from None


def _promise(found: Certificate) -> str:
    refused = f" and refused {found.refusals:,}" if found.refusals else ""
    seen = f"of {found.n:,} queries held out for the test it got {found.errors:,} wrong{refused}"
    return f"guaranteed with {100 * found.confidence:.4g} % confidence: the target is kept; {seen}"


def _show(tuned: Tuned, wanted: Wanted, written: Callable[[Path | None], Path | None]) -> None:
    """Print what was found as tables; `written` says of a file whether it is there, by None where it is not."""
    points, corrected = tuned.frontier.to_json()["frontier"], tuned.frontier.search == "selected"
    options: dict[str, Any] = {"chosen": tuned.policy.expected if tuned.policy else None, "corrected": corrected}
    show_tuning(tuned.heading, tuned.rows, points, written(wanted.frontier), **options)
    if tuned.model.copula_table:
        show_copulas(tuned.model.copula_table)
    if tuned.policy:
        policy, saved = tuned.policy.to_json(), written(wanted.out)
        show_policy(policy, wanted.target, tuned.rows, saved, tuned.remarks, corrected=corrected)


def summarise(log: Log, model: CascadeModel) -> list[dict[str, Any]]:
    """Describe each model alone: accuracy, cost per query, calibration error, certain answers (shares)."""
    confidence = np.asarray(model.calibrate(log.logprob))
    logprob, correct, answered = (np.asarray(each) for each in (log.logprob, log.correct, log.answered))
    rows = []
    for j, name in enumerate(log.models):
        seen = answered[:, j]
        rows.append(
            {
                "model": name,
                "answers": int(seen.sum()),
                "accuracy": float(correct[seen, j].mean()),
                "cost": float(np.asarray(log.cost)[j]),
                "calibration_error": calibration_error(confidence[seen, j], correct[seen, j]),
                "certain": float((logprob[seen, j] == 0).mean()),
            }
        )
    return rows
