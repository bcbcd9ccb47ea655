"""A report as one HTML page: its figures in words, the template that they go into, and its drawings.

Drawings are SVG inside the page: text stays text, colours are the page's, by day and night.
"""

import dataclasses
import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import PurePath
from typing import Any, Unpack

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rcjax._base.checks import takes
from rcjax._base.files import write_atomically
from rcjax._base.wording import between, capitalised, check_figure, describe_cascade, figure, percent, threshold
from rcjax.diagnostics import Diagnosis, PolicyCheck, check_policy, diagnose
from rcjax.frontier.hull import rows_to_show
from rcjax.logs.log import Log
from rcjax.model.fitting import fit
from rcjax.plots import plot_error_cost, plot_frontier, plot_reliability
from rcjax.plots.drawings import BLUE, GREY, ORANGE, lay_out
from rcjax.policy.comparison import LEAST_SHARE, Comparison, what_to_do
from rcjax.policy.decisions import threshold_of
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.spec import Spec, SpecError, SpecFields, Target
from rcjax.replaying.comparing import compare_policy
from rcjax.replaying.replay import replay
from rcjax.report.findings import Findings, compare
from rcjax.tuning.tune import tune

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


_SAME = 1e-6  # of a bill, up to which two policies are one


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
        _point(report, target, policy) | {"x": x, "y": y, "policy": document}
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
    frontier, start = report.frontier, report.policy
    curve = frontier.rungs.tolist() if report.start.is_limit else range(len(frontier.lam))
    costs = np.asarray(frontier.cost, float)
    bill = float(start.expected["cost"] or 0.0)
    others = [report.target_of(point) for point in curve if abs(costs[point] - bill) > _SAME * bill]
    policies = {start.expected["cost"]: (report.start, start)}
    for target in others:  # where a cascade gives way to a single model, several targets have one policy
        policy = report.tuned.policy_for(target)
        policies.setdefault(policy.expected["cost"], (target, policy))
    return [policies[cost] for cost in sorted(policies, key=lambda cost: -float(cost or 0.0))]


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


def _point(report: Findings, target: Target, policy: AnyPolicy) -> dict[str, Any]:
    """The policy for a target in words."""
    expected, money, comparison = policy.expected, report.money, report.compare(policy, target)
    costs = " to ".join(f"${money.show(expected[name])}" for name in ("cost_low", "cost_high") if name in expected)
    rows, cascades = [], []
    every = zip(policy.weights, policy.policies, strict=True)
    parts = [(weight, rung) for weight, rung in every if weight >= LEAST_SHARE]
    for weight, rung in parts[::-1]:
        asked, cascade = _rung(rung, report.log, weight)
        share = f"{percent(weight)} of the queries"
        rows += [{"model": f"{share}:", "answers": "", "share": ""}, *asked] if len(parts) > 1 else asked
        cascades.append(f"{share}: {cascade}" if len(parts) > 1 else cascade)
    seconds = expected.get("seconds")
    tail = f"; {figure(expected['seconds_p95'])} or less for 95 %" if expected.get("seconds_p95") else ""
    margin = report.spec.match if policy is report.policy else None
    verdict = what_to_do(policy, comparison, money, report.log.counted, margin)
    single = comparison.single
    if single is not None:
        verdict += f". {single.title}: {money.full(single.cost)}, {single.own_points(report.noun)}"
    return {
        "cascade": ", ".join(cascades),
        "cost": f"${money.show(expected['cost'])}",
        "costs": costs or "kept by following the bill",
        "error": percent(expected["error"]),
        "errors": f"{between([expected['error_low'], expected['error_high']])} %",
        "seconds": "" if seconds is None else figure(seconds),
        "tail": "" if seconds is None else f"on average{tail}",
        "target": _option(report, target, policy),
        "verdict": f"{capitalised(verdict)}.",
        "tried": _tried_itself(report, comparison),
        "rows": rows,
    }


def _rung(policy: Policy, log: Log, weight: float) -> tuple[list[dict[str, str]], str]:
    """(who answers of a share of the queries that go by a rung, by the log tuned on; its cascade in words)."""
    replayed = replay(policy, log)
    shares = dict(zip(replayed.models, np.asarray(replayed.share, float).tolist(), strict=True))
    agreements, rows = policy.agreements, []
    for name in policy.models:
        cut = threshold_of(policy.rules[name])
        if name == policy.models[-1] or cut is None:
            answers = "everything that reaches it"
        elif name in agreements:
            answers = f"where {agreements[name].earlier} says the same"
        else:
            answers = "nothing: its answer is compared" if agreements and cut >= 1 else f"above {threshold(cut)}"
        rows.append({"model": name, "answers": answers, "share": percent(weight * shares.get(name, 0.0))})
    return rows, describe_cascade(policy.to_json())


def _option(report: Findings, target: Target, policy: AnyPolicy) -> str:
    """A target as options of the command; only that of the policy asked for is money for a period."""
    spec = report.spec if policy is report.policy else dataclasses.replace(report.spec, period=None)
    return " ".join(f"--{name} {value}" for name, value in spec.options_for(target).items())


def _tried_itself(report: Findings, comparison: Comparison) -> str:
    """What a policy did on fresh queries, where there are any."""
    if not comparison.fresh:
        return ""
    return f"This one had {percent(comparison.error)} {report.noun} on them, at {report.money.full(comparison.cost)}."


@dataclasses.dataclass(frozen=True)
class Report(Findings):
    """What `make_report` came to: the findings, and the page that shows them."""

    def to_html(self) -> str:
        """The report as one HTML page that needs nothing else, and holds nothing that a terminal obeys."""
        return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\ufffd", render(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; never leaves a half-written one."""
        write_atomically(path, self.to_html())


@takes(log=Log, spec=(Spec, None), test=(Log, None))
def make_report(
    log: Log, spec: Spec | None = None, *, test: Log | None = None, replicates: int = 200, **fields: Unpack[SpecFields]
) -> Report:
    """Tune on a log as `rcjax tune` does by default, compare with today's, and look at how far to trust that.

    Args:
        log: the log to learn from.
        spec: the target, at most one, at whose policy the page opens, and what is in use today. Without a target the
            page opens at the least money for at most a point more error than today's.
        test: fresh queries to judge by; without them, the diagnosis is by five folds.
        replicates: of the bootstraps of the tests.
        fields: of `Spec`, in place of what `spec` says: `budget`, `max_error`, `match`, `today`, `error_cost`, …

    Raises ValueError for several targets and without intervals, InfeasibleError for a target that no policy meets,
    LogError as `fit`, `select_frontier` and `diagnose` do, and where the log lacks today's model.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> report = make_report(log, replicates=50)
    >>> print(report.headline())
    Use llama3.2-1b → llama3.1-70b for 5 % of the queries and llama3.1-70b alone for the others: it saves $1.09 of ...
    """
    spec = dataclasses.replace(spec or Spec(), **fields)
    if not spec.intervals:
        raise SpecError("intervals", "cannot be left out of a report")
    asked = bool(spec.target)
    spec = spec.with_some_target(float(log.cost[-1]))
    tuned = tune(log, spec)
    assert tuned.policy is not None
    log, model = tuned.log, fit(tuned.log)
    judged = log if test is None else test.select(log.models)
    about = {"replicates": replicates, "frontier": tuned.frontier, "model_fit": False}
    diagnosis = diagnose(model, judged, training=log, **about)
    budget = tuned.target.get("budget")
    fresh = None if test is None else compare_policy(tuned.policy, judged, tuned.spec.today, money=budget)
    return Report(
        tuned=tuned,
        asked=asked,
        model=model,
        comparisons=tuple(compare(tuned.frontier, j, 1 - one.accuracy) for j, one in enumerate(tuned.alone)),
        diagnosis=diagnosis,
        judged=judged,
        fresh=fresh,
        check=None if test is None else _checked(tuned.policy, judged),
        drawn=draw_checks(diagnosis, judged.select(model.models)),
    )


def _checked(policy: AnyPolicy, log: Log) -> PolicyCheck | None:
    """The verdict on a policy by a fresh log; None where it cannot be checked."""
    try:
        return check_policy(policy, log)
    except ValueError:  # too few labels to check by, say, or tuned on
        return None
