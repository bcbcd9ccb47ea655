"""A report as one HTML page: its figures in words, the templates that they go into, and its charts.

Charts are SVG inside the page: text stays text, colours are the page's, by day and night.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import PurePath
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from rcjax._base.files import write_atomically
from rcjax._base.wording import between, check_figure, describe_cascade, figure, percent, threshold
from rcjax._core.batching import as_here
from rcjax.diagnostics import Diagnosis, diagnose
from rcjax.frontier.hull import rows_to_show
from rcjax.logs.log import Log
from rcjax.model.fitting import fit
from rcjax.plots.charts import Chart, frontier_panel, promise_panel, reliability_panel
from rcjax.policy.ladder import Period
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, Target
from rcjax.replaying.replay import replay
from rcjax.report.findings import Findings, compare
from rcjax.tuning.searches import bootstrap
from rcjax.tuning.select import select_frontier
from rcjax.tuning.tune import count_waiting, describe_models

_PANEL = 245, 230  # points of a panel beside others

_ONE = 331, 259  # points of a chart with one panel


def _reliability(diagnosis: Diagnosis) -> Chart:
    """A panel for each model."""
    (width, height), columns, panels = _PANEL, min(len(diagnosis.models), 3), []
    for j, name in enumerate(diagnosis.models):
        labelled = np.isfinite(diagnosis.correct[:, j])
        answers = diagnosis.confidence[labelled, j], diagnosis.correct[labelled, j]
        panel = reliability_panel(*answers, title=name, success=diagnosis.counted.success)
        panels.append(panel.in_box(width * (j % columns), height * (j // columns), width, height))
    return Chart(width * columns, height * -(-len(panels) // columns), panels)


def _promise(diagnosis: Diagnosis, log: Log) -> Chart:
    """The promise and what was seen, with the single models on the queries of a log that all answered."""
    assert diagnosis.promise is not None  # that of the frontier
    wrong, cost = 1 - np.nanmean(diagnosis.correct, axis=0), np.asarray(log.query_cost)[log.complete].mean(0)
    single = {name: (cost[j], wrong[j]) for j, name in enumerate(diagnosis.models)}
    return Chart(*_ONE, [promise_panel(diagnosis.promise, single, diagnosis.counted.noun).in_box(0, 0, *_ONE)])


_VERDICTS = ("bad", "doubtful", "fine")

_MOST_ROWS = 15

_LEAST_SHARE = 5e-4  # of the queries, below which a rung is not worth a line


def render(report: Findings) -> str:
    """The page."""
    environment = Environment(loader=PackageLoader("rcjax.report", "."), autoescape=True, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters |= {
        "percent": percent,
        "money": lambda cost: "–" if cost is None else f"${report.money.show(cost)}",
        "figured": lambda check: check_figure(check.figure, check.unit),
    }
    return environment.get_template("page.html.jinja").render(context(report))


def context(report: Findings) -> dict[str, Any]:
    """What the template is filled with: the report, and what of it is drawn or put into words."""
    policies = _policies(report)
    expected = [policy.expected for _, policy in policies]
    cost, error = (np.array([of[name] for of in expected], float) for name in ("cost", "error"))
    single = {comparison.model: (comparison.cost, comparison.error) for comparison in report.comparisons}
    panel = frontier_panel(report.frontier, single).in_box(0, 0, *_ONE)
    spots = panel.positions(report.money.scale * cost, error)
    documents, shared = _documents([policy for _, policy in policies])
    points = [
        _point(report, target, policy.expected) | {"x": x, "y": y, "policy": document}
        for (target, policy), (x, y), document in zip(policies, spots, documents, strict=True)
    ]
    folder = resources.files("rcjax.report")
    checks = sorted(report.diagnosis.checks, key=lambda check: _VERDICTS.index(check.verdict))
    return {
        "report": report,
        "style": Markup(folder.joinpath("page.css").read_text("utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text("utf-8")),
        "source": PurePath(report.log.source).name,
        "described": report.log.describe().removeprefix(f"{report.log.source}: "),
        "headline": report.headline().replace(" %", "\u00a0%"),
        "curve": Chart(*_ONE, [panel]),
        "points": points,
        "shared": shared,
        "rows": [points[i] for i in rows_to_show(cost, error, _MOST_ROWS)],
        "start": [target for target, _ in policies].index(report.start),
        "checks": checks,
        "judged": report.judged_by,
        "tried": report.tried,
        "reliability": _reliability(report.diagnosis),
        "promise": _promise(report.diagnosis, report.judged.select(report.model.models)),
    }


def _policies(report: Findings) -> list[tuple[Target, AnyPolicy]]:
    """The policies to choose from, the dearest first: that to start with, and at each other rung or point."""
    frontier, there = report.frontier, report.frontier.shares(report.start)
    curve = frontier.rungs.tolist() if report.start.is_limit else range(len(there))
    others = [report.target_of(point) for point in curve if there[point] < 1 - _LEAST_SHARE]
    targets = [report.start, *others]
    policies = [(target, report.frontier.policy(**target.to_json())) for target in targets]
    return sorted(policies, key=lambda pair: -pair[1].expected["cost"])  # type: ignore[operator]


def _documents(policies: Sequence[AnyPolicy]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what the JSON form of each policy has of its own, what all share)."""
    documents, reference = [policy.to_json() for policy in policies], None
    for document in documents:
        reference = document["provenance"].pop("reference", None)
    first = documents[0]
    shared = {name: first[name] for name in first if all(document.get(name) == first[name] for document in documents)}
    own = [{name: value for name, value in document.items() if name not in shared} for document in documents]
    return own, {"policy": shared, "reference": reference}


def _point(report: Findings, target: Target, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The policy for a target in words."""
    weights, money = report.frontier.shares(target), report.money
    rungs = np.flatnonzero(weights >= _LEAST_SHARE)[::-1].tolist()
    costs = " to ".join(f"${money.show(expected[name])}" for name in ("cost_low", "cost_high") if name in expected)
    rows, cascades = [], []
    for point in rungs:
        asked, cascade = _rung(report, point, float(weights[point]))
        share = f"{percent(float(weights[point]))} of the queries"
        rows += [{"model": f"{share}:", "answers": "", "share": ""}, *asked] if len(rungs) > 1 else asked
        cascades.append(f"{share}: {cascade}" if len(rungs) > 1 else cascade)
    seconds = expected.get("seconds")
    tail = f"; {figure(expected['seconds_p95'])} or less for 95 %" if expected.get("seconds_p95") else ""
    ladder = [" → ".join(report.frontier.point(point).models) for point in rungs]
    return {
        "cascade": ", ".join(cascades),
        "cost": f"${money.show(expected['cost'])}",
        "costs": costs or "kept by following the bill",
        "error": percent(expected["error"]),
        "errors": f"{between([expected['error_low'], expected['error_high']])} %",
        "seconds": "" if seconds is None else figure(seconds),
        "tail": "" if seconds is None else f"on average{tail}",
        "target": _option(target, report.spec.period if target == report.target else None),
        "verdict": report.selection.verdict(int(np.argmax(weights)), target.to_json(), ladder, expected["cost"]),
        "tried": _tried_itself(report, weights),
        "rows": rows,
    }


def _rung(report: Findings, point: int, weight: float) -> tuple[list[dict[str, str]], str]:
    """(who answers, by a point of the frontier, of a share of the queries; its cascade in words)."""
    policy, names = report.frontier.point(point), report.frontier.models
    bounds = report.frontier.policies.on_host().bounds[point]
    cuts = {name: float(bounds[names.index(name), -2]) for name in policy.models}
    agreements, rows = policy.agreements, []
    for name in policy.models:
        answers = f"above {threshold(cuts[name])}"
        if name == policy.models[-1]:
            answers = "everything that reaches it"
        elif name in agreements:
            answers = f"where {agreements[name].earlier} says the same"
        elif agreements and cuts[name] >= 1:
            answers = "nothing: its answer is compared"
        share = weight * float(report.shares[point, names.index(name)])
        rows.append({"model": name, "answers": answers, "share": percent(share)})
    return rows, describe_cascade(policy.to_json())


def _option(target: Target, period: Period | None = None) -> str:
    """A target as options of a command; of a budget, perhaps as money for a period.

    >>> [_option(Target(name, 0.00015)) for name in ("budget", "max_error", "error_cost", "lam")]
    ['--budget 150/M', '--max-error 0.00015', '--error-cost 0.00015', '--error-cost 6666.666667']
    >>> _option(Target("budget", 1e-4), Period(500.0, "month"))
    '--budget 500/month --queries 5000000/month'
    """
    if period is not None:
        return (
            f"--budget {period.money:.10g}/{period.every} --queries {period.money / target.value:.10g}/{period.every}"
        )
    if target.name == "budget":
        return f"--budget {1e6 * target.value:.10g}/M"
    if target.name == "lam":
        return f"--error-cost {1 / target.value:.10g}" if target.value > 0 else ""
    return f"--{target.name.replace('_', '-')} {target.value:.10g}"


def _tried_itself(report: Findings, weights: np.ndarray) -> str:
    """What a policy, of points with weights (L,), did on fresh queries, where there are any."""
    replayed = report.seen
    if replayed is None:
        return ""
    wrong, spent = (float(weights @ np.asarray(of, float)) for of in (replayed.error, replayed.spent))
    sentence = f"This one had {percent(wrong)} {report.noun} on them, at {report.money.full(spent)}"
    if replayed.seconds is None or not np.isfinite(mean := float(weights @ replayed.seconds.mean)):
        return f"{sentence}."
    return f"{sentence}, and took {figure(mean)} seconds on average."


@dataclasses.dataclass(frozen=True)
class Report(Findings):
    """What `make_report` came to: the findings, and the page that shows them."""

    def to_html(self) -> str:
        """The report as one HTML page that needs nothing else."""
        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; never leaves a half-written one."""
        write_atomically(path, self.to_html())


def make_report(
    log: Log,
    spec: Spec | None = None,
    *,
    test: Log | None = None,
    baseline: str | None = None,
    replicates: int = 200,
    **fields: Any,
) -> Report:
    """Tune on a log as `rcjax tune` does by default, look at how sure that is, and compare with single models.

    Args:
        log: the log to learn from.
        spec: the target, at most one, at whose policy the page opens; and what a second of waiting is worth.
        test: fresh queries to judge by; without them, the diagnosis is by five folds.
        baseline: the model that is in use today; by default the one that errs least.
        replicates: of the bootstraps, of intervals and tests alike.
        fields: of `Spec`, in place of what `spec` says: `budget`, `max_error`, `error_cost`, `lam`, `second_cost`.

    Raises ValueError for a baseline that is not a model of the log or several targets, InfeasibleError for a target
    that no policy meets, LogError as `fit`, `select_frontier` and `diagnose` do.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> report = make_report(log, replicates=50)
    >>> print(report.headline())
    Asking llama3.1-70b for everything errs on 21.0 %, at $168 per million queries. ...
    """
    spec = dataclasses.replace(spec or Spec(), **fields)
    log, test = count_waiting(log, spec.second_cost), None if test is None else test.with_waiting(spec.second_cost)
    if baseline is not None and baseline not in log.models:
        raise ValueError(f"the baseline {baseline!r} is not a model of the log; they are {', '.join(log.models)}")
    judged = log if test is None else test.select(log.models)
    model = fit(log)
    selection = select_frontier(log, model=model, target=spec.aim)
    if spec.target:
        selection.frontier.policy(**spec.target)  # refuses what cannot be met

    about = {"training": log, "replicates": replicates, "frontier": selection.frontier, "model_fit": False}
    # Side by side, as both spend most of their first run in XLA's compiler.
    with ThreadPoolExecutor(1) as beside:
        diagnosis = beside.submit(as_here(diagnose), model, judged, **about)
        bands = bootstrap(selection.frontier, log, replicates=replicates)
        own = replay(selection.frontier, log)
        frontier = dataclasses.replace(selection.frontier, bands=bands, seconds=own.seconds)
        replayed = None if test is None else replay(frontier, judged)
        alone = describe_models(log, model)
        comparisons = tuple(compare(frontier, j, 1 - one.accuracy) for j, one in enumerate(alone))
    return Report(
        log=log,
        model=model,
        frontier=frontier,
        selection=selection,
        shares=np.asarray((replayed or own).share, float),
        comparisons=comparisons,
        baseline=baseline or min(comparisons, key=lambda one: one.error).model,
        diagnosis=diagnosis.result(),
        judged=judged,
        seen=replayed,
        spec=spec,
    )
