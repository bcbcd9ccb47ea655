"""A report as one HTML page: its figures in words, its drawings, and the template that they go into."""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from rcjax._base.wording import (
    Money,
    between,
    check_figure,
    check_name,
    describe_cascade,
    figure,
    percent,
    threshold,
)
from rcjax._core.thinning import best_as_printed, spread
from rcjax.diagnostics.verdicts import SCOPES, Check, describe_gaps
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.plots import plot_frontier
from rcjax.policy.counted import BY_ANSWER
from rcjax.policy.targets import Target
from rcjax.report.drawings import draw_checks, positions, style, to_svg
from rcjax.report.findings import Findings

_WIDTH, _HEIGHT = 4.6, 3.6  # inches: on a phone, where the page has this width, text is as large as in the page


_VERDICTS = ("bad", "doubtful", "fine")


def render(report: Findings) -> str:
    """The page."""
    environment = Environment(loader=PackageLoader("rcjax.report", "."), autoescape=True, trim_blocks=True)
    environment.lstrip_blocks = True
    return environment.get_template("page.html.jinja").render(context(report))


def context(report: Findings) -> dict[str, Any]:
    """What the template is filled with: strings, and lists and mappings of them."""
    money = report.money
    drawing, spots, corner = _frontier(report)
    raw = _raw(report)
    points = [_point(report, index, spot, raw[index], money) for index, spot in enumerate(spots.tolist())]
    folder = resources.files("rcjax.report")
    start = report.chosen
    checks = _sorted(report.diagnosis.checks)
    counting = [check.verdict for check in checks if SCOPES[check.name] != "modelled"]
    return {
        "style": Markup(folder.joinpath("page.css").read_text("utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text("utf-8")),
        "source": PurePath(report.log.source).name,
        "described": f"{report.log.n_queries:,} queries and {len(report.frontier.models)} models",
        "beside": report.beside,
        "command": report.command or _command(report.log),
        "typed": report.command is not None,
        "headline": report.headline().replace(" %", "\u00a0%"),
        "replicates": report.frontier.bands.replicates,  # type: ignore[union-attr]
        "money": money,
        "level": f"{100 * report.frontier.bands.level:.0f} %",  # type: ignore[union-attr]
        "drawing": Markup(drawing),
        "corner": corner,
        "points": points,
        "rows": [points[i] for i in _shown(report.frontier)],
        "start": start,
        "timed": report.frontier.seconds is not None,
        "second_cost": report.log.second_cost and f"${report.log.second_cost:.4g}",
        "compares": report.frontier.policies.agreements is not None,
        "noun": report.log.counted.noun,
        "success": report.log.counted.success,
        "aim": report.target.describe(report.log.counted) if report.target else None,
        "met": report.target is not None and not report.target.is_limit,
        "models": [_model(report, j, money) for j in range(len(report.frontier.models))],
        "checks": [_check(check, report.log.counted.noun) for check in checks],
        "trust": counting[0],
        "judged": _judged(report),
        "tried": _tried(report),
        "figures": report.drawn or draw_checks(report.diagnosis, report.model, report.judged),
        "more_labels": report.more_labels(),
        "provenance": report.model.provenance,
        "reference": report.model.reference,
    }


def _shown(frontier: Frontier) -> list[int]:
    """Positions of points for a table: of those that no other one beats as they are printed."""
    cost, error = np.asarray(frontier.cost, float), np.asarray(frontier.penalty, float)
    best = np.array(best_as_printed(cost, error))
    return best[spread(cost[best], error[best])].tolist()


def _command(log: Log) -> str:
    """The command that tunes a log, as far as the log tells how it was read."""
    reference, scores = log.reference, log.scores
    options = {
        "--task": "choice" if log.task == "choice" else None,
        "--reference": reference and reference.model,
        "--same": reference.same if reference and reference.same != BY_ANSWER else None,
        "--score-max": f"{scores.most:g}" if scores and scores.most != 1 else None,
    }
    words = [word for option, value in options.items() if value is not None for word in (option, value)]
    return shlex.join(["rcjax", "tune", PurePath(log.source).name, *words])


def _frontier(report: Findings) -> tuple[str, np.ndarray, tuple[float, float]]:
    """(the SVG of the frontier, where its points lie on it, and the corner of its axes)."""
    single = {comparison.model: (comparison.cost, comparison.error) for comparison in report.comparisons}
    with style():
        canvas = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        ax = canvas.add_subplot()
        plot_frontier(ax, report.frontier, single)
        ax.get_legend().remove()  # type: ignore[union-attr] - the page has one, below
        what = f"{report.log.counted.noun.capitalize()} against cost of the best cascades, and each model alone beside"
        drawn = to_svg(canvas, "curve", what)
        cost, error = np.asarray(report.frontier.cost, float), np.asarray(report.frontier.error, float)
        ((left, bottom),) = positions(canvas, ax, *np.array([ax.get_xlim()[:1], ax.get_ylim()[:1]])).tolist()
        return drawn, positions(canvas, ax, report.money.scale * cost, error), (round(left, 2), round(bottom, 2))


def _point(report: Findings, index: int, spot: list[float], raw: np.ndarray, money: Money) -> dict[str, Any]:
    """One point of the frontier in words, with its policy to deploy and its place in the drawing.

    `raw` (k,): its thresholds as raw probabilities.
    """
    frontier, policy = report.frontier, report.frontier.point(index)
    document = policy.to_json()
    document["provenance"].pop("reference", None)  # which all points share: the page holds it once
    expected: Mapping[str, Any] = policy.expected
    costs = " to ".join(f"${money.show(expected[end])}" for end in ("cost_low", "cost_high"))
    members = [j for j, name in enumerate(frontier.models) if name in policy.models]
    cuts = np.asarray(frontier.thresholds)[index]
    rows = []
    agreements = policy.agreements
    for j in members:
        last = j == members[-1]
        agreement = agreements.get(frontier.models[j])
        answers = "everything that reaches it" if last else f"above {threshold(float(cuts[j]))}"
        if agreement is not None:
            answers = f"where {agreement.earlier} says the same"
        elif agreements and not last and cuts[j] >= 1:
            answers = "nothing: its answer is compared"
        plain = last or agreement is not None or cuts[j] >= 1
        rows.append(
            {
                "model": frontier.models[j],
                "answers": answers,
                "raw": "" if plain else f"as logged: above {threshold(float(raw[j]))}",
                "share": percent(float(report.shares[index, j])),
            }
        )
    return {
        "x": round(spot[0], 2),
        "y": round(spot[1], 2),
        "cascade": describe_cascade(
            {
                "models": list(policy.models),
                "thresholds": {frontier.models[j]: float(cuts[j]) for j in members},
                "agreements": document.get("agreements", {}),
            }
        ),
        "cost": f"${money.show(expected['cost'])}",
        "costs": costs,
        "error": percent(expected["error"]),
        "errors": f"{between([expected['error_low'], expected['error_high']])} %",
        "target": _target(report, index),
        **_waits(expected),
        "verdict": _verdict(report, index),
        "tried": _tried_itself(report, index),
        "rows": rows,
        "policy": document,
    }


def _waits(expected: Mapping[str, Any]) -> dict[str, str]:
    """The seconds that a policy lets expect; empty texts where they are not known."""
    if expected.get("seconds") is None:
        return {"seconds": "", "tail": ""}
    tail = f"on average; {figure(expected['seconds_p95'])} or less for 95 %"
    return {"seconds": figure(expected["seconds"]), "tail": tail}


def _target(report: Findings, index: int) -> str:
    """The target by which `rcjax tune` chooses a point; empty where none of the report's kind does.

    Another kind would not do: the errors of cascades are corrected for the kind that they were tuned for.
    """
    frontier, asked = report.frontier, report.target
    if asked is not None and index == report.chosen:
        return report.option or _option(asked)
    kind, lam = report.selection.target, float(np.asarray(frontier.lam)[index])
    values = {  # so much above them that seven digits cut off nothing
        "budget": float(np.asarray(frontier.cost)[index]) * (1 + 1e-6),
        "max_error": float(np.asarray(frontier.penalty)[index]) * (1 + 1e-6),
        "error_cost": 1 / lam if lam > 0 else math.inf,
        "lam": lam,
    }
    target = Target(kind, float(f"{values[kind]:.7g}")) if math.isfinite(values[kind]) else None
    chooses = target is not None and frontier.choose(**target.to_json()) == index
    return _option(target) if target is not None and chooses else ""


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


def _verdict(report: Findings, index: int) -> str:
    """What to do, by the target of the report, or at the price of the point."""
    if report.target and index == report.chosen:
        return report.selection.verdict(index, report.target.to_json())
    return report.selection.verdict(index)


def _sorted(checks: Sequence[Check]) -> list[Check]:
    """The worst first."""
    return sorted(checks, key=lambda check: _VERDICTS.index(check.verdict))


def _tried_itself(report: Findings, index: int) -> str:
    """What the policy at a point did on fresh queries, where there are any."""
    replayed = report.seen
    if replayed is None:
        return ""
    wrong, cost = percent(float(replayed.error[index])), report.money.show(float(replayed.cost[index]))
    sentence = f"This one had {wrong} {report.log.counted.noun} on them, at ${cost} per {report.money.name}"
    if replayed.seconds is None or not np.isfinite(replayed.seconds.mean[index]):
        return f"{sentence}."
    mean, tail = (figure(float(values[index])) for values in (replayed.seconds.mean, replayed.seconds.p95))
    return f"{sentence}, and took {mean} seconds on average, {tail} or less for 95 % of them."


def _tried(report: Findings) -> str:
    """How the promise of all policies fared on queries that the tuning did not see."""
    diagnosis, noun = report.diagnosis, report.log.counted.noun
    if diagnosis.promise is None:
        return ""
    gaps = f"{describe_gaps(diagnosis.promise)}, mean over the curve"
    if diagnosis.held_out:
        return f"On {diagnosis.n:,} fresh queries the {noun} of the curve’s policies was {gaps}."
    return (
        f"The promise was tried: the {noun} of policies tuned in the same way on four fifths of the log was, on the "
        f"fifth left out, {gaps}. That queries to come are harder than the log, no such trial can "
        "show; only fresh ones can (rcjax report --test)."
    )


def _raw(report: Findings) -> np.ndarray:
    """(L, k) the raw probabilities whose calibrated confidences are the thresholds."""
    invert = jax.jit(jax.vmap(Calibrator.inverse, (0, 1), 1))
    return np.exp(np.asarray(invert(report.model.calibrators, report.frontier.thresholds), float))


def _model(report: Findings, j: int, money: Money) -> dict[str, str]:
    """A row of the table of single models."""
    against, calibration = report.comparisons[j], report.diagnosis.calibration[j]
    return {
        "model": against.model,
        "error": percent(against.error),
        "cost": f"${money.show(against.cost)}",
        "calibration": percent(calibration["training_error"]),
        "separation": percent(calibration["separation"], 0),
        "same_cost": "–" if against.at_its_cost is None else percent(against.at_its_cost),
        "same_error": "–" if against.at_its_error is None else f"${money.show(against.at_its_error)}",
    }


def _check(check: Check, noun: str) -> dict[str, str]:
    words = {name: str(value) for name, value in dataclasses.asdict(check).items()}
    words |= {"aside": " class=aside" if SCOPES[check.name] == "modelled" else ""}
    return words | {"title": check_name(check.name, noun), "figure": check_figure(check.figure, check.unit)}


def _judged(report: Findings) -> str:
    diagnosis = report.diagnosis
    if diagnosis.held_out:
        return f"{PurePath(report.judged.source).name}, {diagnosis.n:,} queries that the tuning has not seen"
    return f"{diagnosis.n:,} queries of the log itself, each by a model fitted to the others, in five folds"
