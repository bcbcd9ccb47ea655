"""A report as one HTML page: its figures in words, its drawings, and the template that they go into."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePath
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from rcjax._base.wording import (
    between,
    check_figure,
    check_name,
    describe_cascade,
    figure,
    percent,
    threshold,
)
from rcjax.diagnostics.verdicts import AFFECTS, MODELLED, describe_gaps
from rcjax.frontier.hull import best_as_printed, spread
from rcjax.plots import plot_frontier
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.targets import Target
from rcjax.report.drawings import draw_checks, positions, style, to_svg
from rcjax.report.findings import Findings

_WIDTH, _HEIGHT = 4.6, 3.6  # inches: on a phone, where the page has this width, text is as large as in the page

_VERDICTS = ("bad", "doubtful", "fine")

_LEAST_SHARE = 5e-4  # of the queries, below which a rung is not worth a line


def render(report: Findings) -> str:
    """The page."""
    environment = Environment(loader=PackageLoader("rcjax.report", "."), autoescape=True, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters |= {
        "percent": percent,
        "money": lambda cost: "–" if cost is None else f"${report.money.show(cost)}",
        "called": lambda check: check_name(check.name, report.noun),
        "figured": lambda check: check_figure(check.figure, check.unit),
        "aside": lambda check: Markup(" class=aside" * (AFFECTS[check.name] == MODELLED)),
    }
    return environment.get_template("page.html.jinja").render(context(report))


def context(report: Findings) -> dict[str, Any]:
    """What the template is filled with: the report, and what of it is drawn or put into words."""
    policies = _policies(report)
    expected = [policy.expected for _, policy in policies]
    cost, error = (np.array([of[name] for of in expected], float) for name in ("cost", "error"))
    drawing, spots, corner = _frontier(report, cost, error)
    documents, shared = _documents([policy for _, policy in policies])
    points = [
        _point(report, target, policy.expected) | {"x": x, "y": y, "policy": document}
        for (target, policy), (x, y), document in zip(policies, spots.round(2).tolist(), documents, strict=True)
    ]
    best = np.array(best_as_printed(cost, error))
    folder = resources.files("rcjax.report")
    checks = sorted(report.diagnosis.checks, key=lambda check: _VERDICTS.index(check.verdict))
    return {
        "report": report,
        "style": Markup(folder.joinpath("page.css").read_text("utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text("utf-8")),
        "source": PurePath(report.log.source).name,
        "described": report.log.describe().removeprefix(f"{report.log.source}: "),
        "headline": report.headline().replace(" %", "\u00a0%"),
        "drawing": Markup(drawing),
        "corner": corner,
        "points": points,
        "shared": shared,
        "rows": [points[i] for i in best[spread(cost[best], error[best])]],
        "start": [target for target, _ in policies].index(report.start),
        "checks": checks,
        "trust": next(check.verdict for check in checks if AFFECTS[check.name] != MODELLED),
        "judged": _judged(report),
        "tried": _tried(report),
        "figures": report.drawn or draw_checks(report.diagnosis, report.model, report.judged),
    }


def _policies(report: Findings) -> list[tuple[Target, AnyPolicy]]:
    """The policies to choose from, the dearest first: that to start with, and at each other rung or point."""
    frontier, there = report.frontier, report.frontier.shares(report.start)
    curve = frontier.rungs.tolist() if report.start.is_limit else range(len(there))
    others = [report.target_of(point) for point in curve if there[point] < 1 - _LEAST_SHARE]
    targets = [report.start, *others]
    policies = [(target, report.frontier.policy(**target.to_json())) for target in targets]
    return sorted(policies, key=lambda each: -each[1].expected["cost"])  # type: ignore[operator]


def _documents(policies: Sequence[AnyPolicy]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what the JSON form of each policy has of its own, what all share)."""
    documents, reference = [policy.to_json() for policy in policies], None
    for document in documents:
        reference = document["provenance"].pop("reference", None)
    first = documents[0]
    shared = {name: first[name] for name in first if all(document.get(name) == first[name] for document in documents)}
    own = [{name: value for name, value in document.items() if name not in shared} for document in documents]
    return own, {"policy": shared, "reference": reference}


def _frontier(report: Findings, cost: np.ndarray, error: np.ndarray) -> tuple[str, np.ndarray, tuple[float, float]]:
    """(the SVG of the frontier, where policies (L,) lie on it, and the corner of its axes)."""
    single = {comparison.model: (comparison.cost, comparison.error) for comparison in report.comparisons}
    with style():
        canvas = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        ax = canvas.add_subplot()
        plot_frontier(ax, report.frontier, single)
        ax.get_legend().remove()  # type: ignore[union-attr] - the page has one, below
        what = f"{report.noun.capitalize()} against cost of the best cascades, and each model alone beside"
        drawn = to_svg(canvas, "curve", what)
        ((left, bottom),) = positions(canvas, ax, *np.array([ax.get_xlim()[:1], ax.get_ylim()[:1]])).tolist()
        return drawn, positions(canvas, ax, report.money.scale * cost, error), (round(left, 2), round(bottom, 2))


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
    parts = [report.frontier.point(point) for point in rungs]
    alone = [part.first for part in parts] if all(len(part.models) == 1 for part in parts) else []
    return {
        "cascade": ", ".join(cascades),
        "cost": f"${money.show(expected['cost'])}",
        "costs": costs or "kept by following the bill",
        "error": percent(expected["error"]),
        "errors": f"{between([expected['error_low'], expected['error_high']])} %",
        "seconds": "" if seconds is None else figure(seconds),
        "tail": "" if seconds is None else f"on average{tail}",
        "target": report.option if report.option and target is report.target else _option(target),
        "verdict": report.selection.verdict(int(np.argmax(weights)), target.to_json(), alone),
        "tried": _tried_itself(report, weights),
        "rows": rows,
    }


def _rung(report: Findings, point: int, weight: float) -> tuple[list[dict[str, str]], str]:
    """(who answers, by a point of the frontier, of a share of the queries; its cascade in words)."""
    policy, names = report.frontier.point(point), report.frontier.models
    cuts = {name: float(np.asarray(report.frontier.thresholds)[point, names.index(name)]) for name in policy.models}
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


def _option(target: Target) -> str:
    """A target as an option of a command.

    >>> [_option(Target(name, 0.00015)) for name in ("budget", "max_error", "error_cost", "lam")]
    ['--budget 150/M', '--max-error 0.00015', '--error-cost 0.00015', '--error-cost 6666.666667']
    """
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


def _tried(report: Findings) -> str:
    """How the promise of all policies fared on queries that the tuning did not see."""
    diagnosis, noun = report.diagnosis, report.noun
    if diagnosis.promise is None:
        return ""
    gaps = f"{describe_gaps(diagnosis.promise)}, mean over the curve"
    if diagnosis.held_out:
        return f"On {diagnosis.n:,} fresh queries the {noun} of the curve’s policies was {gaps}."
    return (
        f"The promise was tried: the {noun} of policies tuned in the same way on four fifths of the log was, on the "
        f"fifth left out, {gaps}. That queries to come are harder than the log, no such trial can show; only fresh "
        "ones can (rcjax report --test)."
    )


def _judged(report: Findings) -> str:
    diagnosis = report.diagnosis
    if diagnosis.held_out:
        return f"{PurePath(report.judged.source).name}, {diagnosis.n:,} queries that the tuning has not seen"
    return f"{diagnosis.n:,} queries of the log itself, each by a model fitted to the others, in five folds"
