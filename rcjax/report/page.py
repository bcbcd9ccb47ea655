"""A report as one HTML page: its figures in words, the template that they go into, and its drawings.

Drawings are SVG inside the page: text stays text, colours are the page's, by day and night.
"""

import dataclasses
import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import PurePath
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rcjax._base.files import write_atomically
from rcjax._base.wording import between, check_figure, describe_cascade, figure, percent, threshold
from rcjax._core.batching import as_here
from rcjax.diagnostics import Diagnosis, PolicyCheck, check_policy, diagnose
from rcjax.frontier.hull import rows_to_show
from rcjax.logs.log import Log
from rcjax.model.fitting import fit
from rcjax.plots import plot_error_cost, plot_frontier, plot_reliability
from rcjax.plots.drawings import BLUE, GREY, ORANGE, lay_out
from rcjax.policy.ladder import Period, followed
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, Target, with_spec
from rcjax.replaying.replay import replay
from rcjax.report.findings import Findings, compare
from rcjax.tuning.searches import bootstrap
from rcjax.tuning.select import select_frontier
from rcjax.tuning.tune import count_waiting, describe_models

#: Colours of `rcjax.plots` by the variable of the page's style that stands for them.
VARIABLES: Mapping[str, str] = {
    "#000000": "--ink",
    "#ffffff": "--paper",
    "#dddddd": "--line",
    "#cccccc": "--line",
    GREY: "--muted",
    BLUE: "--blue",
    ORANGE: "--orange",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titley": 1.0,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def style() -> AbstractContextManager[None]:
    """The context to make figures in: `with style(): …`."""
    return mpl.rc_context(_STYLE)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """An `<svg>` element that a screen reader reads as its description; `name` keeps its ids apart from others'."""
    content = io.StringIO()
    with style():
        # Not by `savefig`, which goes through everything twice.
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(re.escape(colour) + r"\b", f"var({variable})", text, flags=re.IGNORECASE)
    # The page sizes it, and its fonts: only families are replaced, so that no label grows.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # which would hold for all of the page
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def positions(figure: Figure, ax: Axes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n, 2) where points lie in the units of a figure's SVG, from its upper left.

    Args:
        figure: the figure.
        ax: the axes that the points are drawn in, laid out.
        x, y: (n,) the points, as the axes have them.
    """
    pixels = ax.transData.transform(np.column_stack([x, y]))
    height = figure.get_size_inches()[1] * 72
    scaled = pixels * 72 / figure.dpi
    return np.column_stack([scaled[:, 0], height - scaled[:, 1]])


_PIXELS = 84  # of an inch of a figure with several panels, on a wide screen

#: Inches of a figure with one panel, and the pixels of one: a phone is as wide, with text as large as in the page.
_ONE, _ONE_PIXELS = (4.6, 3.6), 120

_CAPTIONS = {
    "reliability": "{success} against calibrated confidence, held out: on the diagonal, it is as the confidence says.",
    "promise": "{noun} and cost of the policies as promised when they were tuned, and as seen on queries that the "
    "tuning left out.",
}


def draw_checks(diagnosis: Diagnosis, log: Log) -> list[dict[str, Any]]:
    """The figures of a diagnosis on a log, as the template takes them."""
    words = {"noun": diagnosis.counted.noun.capitalize(), "success": diagnosis.counted.success.capitalize()}
    with style():
        drawn = {"reliability": _reliability(diagnosis), "promise": _promise(diagnosis, log)}
    rows = []
    for name, drawing in drawn.items():
        caption, single = _CAPTIONS[name].format(**words), name == "promise"
        width = f"{drawing.get_size_inches()[0] * (_ONE_PIXELS if single else _PIXELS):.0f}"
        svg = Markup(to_svg(drawing, name, caption))
        rows.append({"name": name, "caption": caption, "svg": svg, "width": width, "single": single})
    return rows


def _reliability(diagnosis: Diagnosis) -> Figure:
    """A panel for each model."""
    columns = min(len(diagnosis.models), 3)
    rows = -(-len(diagnosis.models) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.2 * rows))
    for j, name in enumerate(diagnosis.models):
        labelled = np.isfinite(diagnosis.correct[:, j])
        answers = diagnosis.confidence[labelled, j], diagnosis.correct[labelled, j]
        ax = figure.add_subplot(rows, columns, j + 1)
        plot_reliability(ax, *answers, title=name, success=diagnosis.counted.success)
        lay_out(figure, ax, (3.4 * (j % columns), 3.2 * (rows - 1 - j // columns), 3.4, 3.2))
    return figure


def _promise(diagnosis: Diagnosis, log: Log) -> Figure:
    """The promise and what was seen, with the single models on the queries that all answered."""
    assert diagnosis.promise is not None  # that of the frontier
    answered = log.take(log.complete)
    wrong, cost = 1 - np.nanmean(diagnosis.correct, axis=0), np.asarray(answered.query_cost).mean(0)
    single = {name: (cost[j], wrong[j]) for j, name in enumerate(diagnosis.models)}
    figure = Figure(figsize=_ONE)
    plot_error_cost(ax := figure.add_subplot(), diagnosis.promise, single, diagnosis.counted.noun)
    lay_out(figure, ax, (0, 0, *_ONE))
    return figure


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
    drawing, spots, corner = _frontier(report, cost, error)
    documents, shared = _documents([policy for _, policy in policies])
    points = [
        _point(report, target, policy.expected) | {"x": x, "y": y, "policy": document}
        for (target, policy), (x, y), document in zip(policies, spots.round(2).tolist(), documents, strict=True)
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
        "drawing": Markup(drawing),
        "corner": corner,
        "points": points,
        "shared": shared,
        "rows": [points[i] for i in rows_to_show(cost, error, _MOST_ROWS)],
        "start": [target for target, _ in policies].index(report.start),
        "checks": checks,
        "judged": report.judged_by,
        "tried": report.tried,
        "figures": report.drawn,
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


def _frontier(report: Findings, cost: np.ndarray, error: np.ndarray) -> tuple[str, np.ndarray, tuple[float, float]]:
    """(the SVG of the frontier, where policies (L,) lie on it, and the corner of its axes)."""
    single = {comparison.model: (comparison.cost, comparison.error) for comparison in report.comparisons}
    with style():
        canvas = Figure(figsize=_ONE)
        plot_frontier(ax := canvas.add_subplot(), report.frontier, single)
        lay_out(canvas, ax, (0, 0, *_ONE))
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

    def checked() -> tuple[Diagnosis, list[dict[str, Any]]]:
        about = {"replicates": replicates, "frontier": selection.frontier, "model_fit": False}
        diagnosis = diagnose(model, judged, training=log, **about)
        return diagnosis, draw_checks(diagnosis, judged.select(model.models))

    # Side by side, as both spend most of their first run in XLA's compiler.
    with ThreadPoolExecutor(1) as beside:
        checks = beside.submit(as_here(checked))
        bands = bootstrap(selection.frontier, log, replicates=replicates)
        own = replay(selection.frontier, log)
        frontier = dataclasses.replace(selection.frontier, bands=bands, seconds=own.seconds)
        replayed = None if test is None else replay(frontier, judged)
        alone = describe_models(log, model)
        comparisons = tuple(compare(frontier, j, 1 - one.accuracy) for j, one in enumerate(alone))
        diagnosis, drawn = checks.result()
    report = Report(
        log=log,
        model=model,
        frontier=frontier,
        selection=selection,
        shares=np.asarray((replayed or own).share, float),
        comparisons=comparisons,
        baseline=baseline or min(comparisons, key=lambda one: one.error).model,
        diagnosis=diagnosis,
        judged=judged,
        seen=replayed,
        spec=spec,
        drawn=drawn,
    )
    return report if test is None else dataclasses.replace(report, check=_checked(report))


def _checked(report: Report) -> PolicyCheck | None:
    """The verdict on the policy that the page starts with, by the log that it is judged by."""
    policy = followed(report.frontier.policy(**report.start.to_json()), follows=True, period=report.spec.period)
    spec = dataclasses.replace(report.spec, intervals=False, **report.start.to_json())
    try:
        return check_policy(with_spec(policy, spec), report.judged)
    except ValueError:  # too few labels to check by, say, or tuned on
        return None
