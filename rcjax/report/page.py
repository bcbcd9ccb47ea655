"""Reports: a tuned policy, its comparison with today's and the checks, in sentences and as one HTML page.

Drawings are SVG inside the page, so that text stays text, in the light or dark colours of the page.
"""

import dataclasses
import html
import io
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
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

from rcjax._base.codec import takes
from rcjax._base.figures import (
    Money,
    capitalised,
    format_figure,
    format_interval,
    format_number,
    format_threshold,
    percent,
)
from rcjax._base.files import write_atomically
from rcjax._core.batching import as_json_values
from rcjax.logs.log import Log
from rcjax.model.fitting import fit
from rcjax.policy.comparison import MIN_SHARE, Comparison, advise
from rcjax.policy.decisions import describe_cascade, find_threshold
from rcjax.policy.policy import AbstractPolicy, Policy, models_with_thresholds
from rcjax.policy.spec import Spec, SpecError, SpecFields, Target
from rcjax.report.plots import BLUE, GREY, ORANGE, lay_out, plot_error_cost, plot_frontier, plot_reliability
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import lower_hull, thin_hull
from rcjax.tuning.diagnostics import Diagnosis, PolicyCheck, diagnose
from rcjax.tuning.diagnostics.findings import PRIMARY, Finding, FindingVerdict, merge_findings, worst_verdict
from rcjax.tuning.diagnostics.policy_check import try_check
from rcjax.tuning.replaying.comparing import compare_policy
from rcjax.tuning.replaying.replay import compare_with_reference_model, replay
from rcjax.tuning.tune import Tuned, note_predicted, tune

_MIN_BUDGET = 1e-12  # dollars per query, for a policy that costs nothing


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `make_report`: the tuned policy, its results on fresh queries, the findings, and their page."""

    tuned: Tuned
    """Result of tuning, with a policy for the given target, or for at most a point more error than today's."""
    has_target: bool
    """Whether a target was given."""
    diagnosis: Diagnosis
    """Diagnosis of the tuning on the judging log."""
    judged: Log
    """The judging log: fresh queries, or the log itself."""
    fresh: Comparison | None
    """Comparison of the policy with today's on fresh queries; None without fresh queries."""
    check: PolicyCheck | None = None
    """Check of the first policy of the page on fresh queries; None without enough fresh queries."""
    retuning: str | None = None
    """Commands that tune the first policy of the page, and tune it again on the fresh queries."""
    command: str | None = None
    """`rcjax tune` with the log and its options, without the target; None if no command made the report."""

    @property
    def log(self) -> Log:
        """The log that the policies were tuned on."""
        return self.tuned.log

    @property
    def frontier(self) -> Frontier:
        """The frontier, with bands; L points, k models."""
        return self.tuned.frontier

    @property
    def spec(self) -> Spec:
        """Options of the tuning."""
        return self.tuned.spec

    @property
    def policy(self) -> AbstractPolicy:
        """The first policy of the page."""
        assert self.tuned.policy is not None
        return self.tuned.policy

    @property
    def promised(self) -> Comparison:
        """Comparison of the first policy with today's, from the tuning."""
        assert self.tuned.comparison is not None
        return self.tuned.comparison

    @property
    def start(self) -> Target:
        """Target of the first policy of the page."""
        assert self.tuned.target is not None
        return self.tuned.target

    @property
    def aim(self) -> str:
        """Target of the first policy in words."""
        if self.spec.period is not None:
            return f"at most {self.spec.period}"
        return self.start.describe(self.log.error_kind, self.promised.rivals[0].subject)

    def target_of(self, point: int) -> Target:
        """Return a target for which `rcjax tune` chooses a point of the curve: a budget in place of a margin."""
        kind = self.start.name if self.start.name != "match" else "budget"
        cost, error, lam = (
            float(np.asarray(values)[point])
            for values in (self.frontier.cost, self.frontier.penalty, self.frontier.lam)
        )
        values = {"budget": max(cost, _MIN_BUDGET), "max_error": error, "error_cost": 1 / lam, "lam": lam}
        # A limit is rounded to seven digits, and up.
        rounded = float(f"{values[kind] * (1 + 1e-6):.7g}")
        return Target(kind, rounded if kind in ("budget", "max_error") else values[kind])

    @property
    def money(self) -> Money:
        """Unit of money on the page."""
        return self.tuned.money

    @property
    def noun(self) -> str:
        """Noun of the kind of error."""
        return self.log.error_kind.noun

    def compare(self, policy: AbstractPolicy, target: Target) -> Comparison:
        """Compare a policy with today's, on the fresh queries if there are any."""
        if policy is self.policy:
            return self.fresh or self.promised
        if self.fresh is None:
            return self.tuned.compare(policy, target)
        money = target.value if target.name == "budget" else None
        return compare_policy(policy, self.judged, self.spec.today, money=money)

    def headline(self) -> str:
        """Return the advice and the change from today's in sentences, by the fresh queries if there are any."""
        how = self.log.error_kind, self.spec.match, self.tuned.kept
        advice = advise(self.policy, self.fresh or self.promised, self.money, *how)
        names = ("error", "error_low", "error_high", "level")  # a report has intervals
        error, low, high, level = (float(self.policy.expected[name] or 0.0) for name in names)
        errs = self.log.error_kind.predicate(
            f"{percent(error)} ({100 * level:.0f} % interval {format_interval([low, high])} %)"
        )
        errs += "".join(f" ({note})" for note in note_predicted(self.frontier))
        certificate = self.tuned.certificate
        guarantee = "" if certificate is None else f" {capitalised(certificate.describe(self.noun))}."
        if self.fresh is None:
            return f"{capitalised(advice)}. It {errs}.{guarantee}"
        if self.promised.is_todays_policy:
            return f"{capitalised(advice)}. As it was tuned, it {errs}.{guarantee}"
        promised = self.promised.headline(self.money, self.log.error_kind)
        return f"{capitalised(advice)}. As it was tuned, it {promised}, and it {errs}.{guarantee}"

    @cached_property
    def reference_text(self) -> str | None:
        """Sentence on the first policy beside the reference, and by labels if any; None without a reference."""
        comparison = compare_with_reference_model(self.policy, self.judged)
        return None if comparison is None else f"The policy that this page starts with {comparison.describe()}."

    @property
    def promise_text(self) -> str:
        """Sentence on the promise of all policies on held-out queries; empty if the promise was not tested."""
        diagnosis = self.diagnosis
        if diagnosis.promise is None:
            return ""
        gaps = f"{diagnosis.promise.describe()}, mean over the curve"
        is_by_chance = all(map(diagnosis.promise.is_by_chance, ("error", "cost")))
        chance = ", which chance alone can explain" if is_by_chance else ""
        if diagnosis.held_out:
            was = f"the {self.noun} of the curve’s policies was {gaps}{chance}"
            return f"On {diagnosis.n_queries:,} fresh queries {was}."
        return (
            f"This was tried: the {self.noun} of policies tuned in the same way on four fifths of the log was, "
            f"on the fifth left out, {gaps}{chance}. No such trial can show that future queries are harder than the "
            "log; only fresh ones can (rcjax report --test)."
        )

    @property
    def verdict(self) -> FindingVerdict:
        """Verdict on the first policy: of its check on fresh queries, or else the worst of the diagnosis.

        The findings on the log and on the models that the policy asks count.
        """
        return worst_verdict(self.findings[0]) if self.check is None else self.check.verdict

    @property
    def asked(self) -> list[str]:
        """Names of the models that the first policy asks."""
        return list(dict.fromkeys(name for rung in self.policy.adjacent_rungs for name in rung.models))

    @property
    def findings(self) -> tuple[list[Finding], list[Finding]]:
        """Findings on the log and on the models that the first policy asks, and on the other models; the worst first.

        The findings of the check replace those of the diagnosis of the same name and model.
        """
        merged = merge_findings(self.diagnosis.findings, () if self.check is None else self.check.findings)
        # No threshold reads these models' confidences: that of the dearest model never, of others in this policy.
        unread = {*self.asked, self.frontier.models[-1]} - models_with_thresholds(self.policy)
        merged = [
            finding for finding in merged if (finding.name, finding.subject in unread) != ("certain answers", True)
        ]
        by_verdict = sorted(merged, key=lambda finding: _VERDICTS.index(finding.verdict))
        asked = {"", *self.asked}
        others = [finding for finding in by_verdict if finding.subject not in asked]
        return [finding for finding in by_verdict if finding.subject in asked], others

    @property
    def verdict_text(self) -> str:
        """Sentence on what the verdict is about, the models that the first policy asks; with a check, on the table."""
        models, own = ", ".join(self.asked), self.findings[0]
        about = f"on the log and on the models that the policy of this page asks ({models})"
        if self.check is not None:
            return f"The findings below explain; first those {about}."
        bad = sum(finding.verdict != "fine" for finding in own)
        return f"{f'{bad} of the' if bad else 'All'} {len(own)} findings {about} are {'not ' * bool(bad)}fine."

    @property
    def judged_by(self) -> str:
        """Description of the queries that the findings are based on."""
        queries = f"{self.diagnosis.n_queries:,} queries"
        if self.diagnosis.held_out:
            return f"{PurePath(self.judged.source).name}, {queries} that the tuning has not seen"
        return f"{queries} of the log itself, each by a model fitted to the others, in five folds"

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "models": list(self.frontier.models),
            "headline": self.headline(),
            "comparison": self.promised.to_json(),
            "fresh": self.fresh and self.fresh.to_json(),
            "error_kind": self.noun,
            **({} if self.log.reference is None else {"beside": self.reference_text}),
            "model_summary": [model.to_json() for model in self.tuned.single_models],
            "frontier": self.frontier.to_json()["frontier"],
            "target": self.start.to_json() if self.has_target else {},
            "expected": as_json_values(dict(self.policy.expected)),
            "check": self.check and self.check.to_json(),
            "verdict": self.verdict,
            "diagnosis": self.diagnosis.to_json(),
        }

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\ufffd", render(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, atomically."""
        write_atomically(path, self.to_html())


#: The CSS variables of the page for the colours of `rcjax.report.plots`.
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
    """Return the context in which figures are made: `with style(): …`."""
    return mpl.rc_context(_STYLE)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an `<svg>` element; screen readers read the description, and `name` prefixes its ids."""
    content = io.StringIO()
    with style():  # `savefig` would draw the figure twice
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(re.escape(colour) + r"\b", f"var({variable})", text, flags=re.IGNORECASE)
    # The page sets the size and the font family; the sizes of labels stay.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # a style would apply to the whole page
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def positions(figure: Figure, ax: Axes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the (n, 2) positions of points in the units of a figure's SVG, from its upper left.

    Args:
        figure: the figure.
        ax: axes of the points, laid out.
        x, y: (n,) the points in the coordinates of the axes.
    """
    pixels = ax.transData.transform(np.column_stack([x, y]))
    height = figure.get_size_inches()[1] * 72
    scaled = pixels * 72 / figure.dpi
    return np.column_stack([scaled[:, 0], height - scaled[:, 1]])


_PIXELS = 84  # pixels per inch of a figure with several panels, on a wide screen

#: Inches of a figure with one panel, and pixels per inch: the width of a phone, with text as large as the page's.
_ONE, _ONE_PIXELS = (4.6, 3.6), 120

_CAPTIONS = {
    "reliability": "{success} against calibrated confidence, held out: on the diagonal, it is as the confidence says.",
    "promise": "{noun} and cost of the policies as expected when they were tuned, and as seen on queries that the "
    "tuning left out.",
}


def draw_findings(diagnosis: Diagnosis, log: Log, money: Money) -> list[dict[str, Any]]:
    """Draw the figures of a diagnosis on a log, with a unit of money: the rows of the template."""
    nouns = {"noun": diagnosis.error_kind.noun.capitalize(), "success": diagnosis.error_kind.success.capitalize()}
    with style():
        drawings = {"reliability": _reliability(diagnosis), "promise": _promise(diagnosis, log, money)}
    rows = []
    for name, drawing in drawings.items():
        caption = _CAPTIONS[name].format(**nouns)
        is_single = name == "promise"
        width = f"{drawing.get_size_inches()[0] * (_ONE_PIXELS if is_single else _PIXELS):.0f}"
        svg = Markup(to_svg(drawing, name, caption))
        rows.append({"name": name, "caption": caption, "svg": svg, "width": width, "single": is_single})
    return rows


def _reliability(diagnosis: Diagnosis) -> Figure:
    columns = min(len(diagnosis.models), 3)
    rows = -(-len(diagnosis.models) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.2 * rows))
    for j, name in enumerate(diagnosis.models):
        labelled = np.isfinite(diagnosis.correct[:, j])
        answers = diagnosis.confidence[labelled, j], diagnosis.correct[labelled, j]
        ax = figure.add_subplot(rows, columns, j + 1)
        plot_reliability(ax, *answers, title=name, success=diagnosis.error_kind.success)
        lay_out(figure, ax, (3.4 * (j % columns), 3.2 * (rows - 1 - j // columns), 3.4, 3.2))
    return figure


def _promise(diagnosis: Diagnosis, log: Log, money: Money) -> Figure:
    """Draw the promised and the observed curve, with the single models on the queries that all models answered."""
    assert diagnosis.promise is not None  # since the diagnosis has a frontier
    answered = log.take(log.complete)
    wrong, cost = 1 - np.nanmean(diagnosis.correct, axis=0), answered.answer_cost.mean(0)
    single = {name: (cost[j], wrong[j]) for j, name in enumerate(diagnosis.models)}
    figure = Figure(figsize=_ONE)
    plot_error_cost(ax := figure.add_subplot(), diagnosis.promise, single, diagnosis.error_kind.noun, money)
    lay_out(figure, ax, (0, 0, *_ONE))
    return figure


_VERDICTS = ("bad", "doubtful", "fine")
_MAX_ROWS = 15
#: Name of the file of the policy in service in the page's command: its path is not known.
POLICY_IN_SERVICE = "IN_SERVICE.json"
_SAME_BILL = 1e-6  # relative difference of two bills up to which their policies count as one


def render(report: Report) -> str:
    """Render the page."""
    environment = Environment(loader=PackageLoader("rcjax.report", "."), autoescape=True, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters |= {
        "percent": percent,
        "capitalised": capitalised,
        "money": lambda cost: "–" if cost is None else f"${report.money.show(cost)}",
        "figured": lambda finding: format_figure(finding.figure, finding.kind.unit),
    }
    return environment.get_template("page.html.jinja").render(context(report))


def context(report: Report) -> dict[str, Any]:
    """Return the variables of the template: the report, its drawings and its sentences."""
    policies = _policies(report)
    expected = [policy.expected for _, policy in policies]
    cost, error = (np.array([figures[name] for figures in expected], float) for name in ("cost", "error"))
    drawing, spots, corner = _frontier(report, cost, error)
    documents, shared = _documents([policy for _, policy in policies])
    points = [
        _point(report, target, policy) | {"x": x, "y": y, "policy": document}
        for (target, policy), (x, y), document in zip(policies, spots.round(2).tolist(), documents, strict=True)
    ]
    costs, errors = np.array([float(f"{figure:.3g}") for figure in cost]), np.round(error, 3)  # as printed
    hull = lower_hull(costs, errors)
    bills = [part.expected["cost"] for part in (report.policy, *report.policy.adjacent_rungs)]
    own_rows = np.flatnonzero(np.isclose(cost[:, None], np.array(bills, float), rtol=1e-5, atol=0).any(1))
    shown = np.union1d(hull[thin_hull(costs[hull], errors[hull], _MAX_ROWS)], own_rows)[::-1]  # cheapest first
    folder = resources.files("rcjax.report")
    own, others = report.findings
    return {
        "report": report,
        "style": Markup(folder.joinpath("page.css").read_text("utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text("utf-8")),
        "source": PurePath(report.log.source).name,
        "described": report.log.describe().removeprefix(f"{report.log.source}: "),
        "legend": "± is one standard error; (a–b): a 90 % interval",
        "optimism": None if report.fresh else report.promised.describe_optimism(report.frontier.error_kind),
        "headline": report.headline().replace(" %", "\u00a0%"),
        "drawing": Markup(drawing),
        "corner": corner,
        "points": points,
        "shared": shared,
        "rows": [points[i] for i in shown],
        "start": [target for target, _ in policies].index(report.start),
        "primary": PRIMARY,
        "in_service": POLICY_IN_SERVICE if isinstance(report.spec.today, AbstractPolicy) else None,
        "findings": {"": own, "Models that the policy of this page does not ask": others},
        "judged": report.judged_by,
        "promise": report.promise_text,
        "figures": draw_findings(report.diagnosis, report.judged.select(report.diagnosis.models), report.money),
    }


def _policies(report: Report) -> list[tuple[Target, AbstractPolicy]]:
    """Return the policies of the page with their targets, the dearest first: one at each rung or point of the curve."""
    frontier, start = report.frontier, report.policy
    curve = frontier.rung_indices.tolist() if report.start.is_limit else range(len(frontier.lam))
    costs = np.asarray(frontier.cost, float)
    bill = float(start.expected["cost"] or 0.0)
    targets = [report.target_of(point) for point in curve if abs(costs[point] - bill) > _SAME_BILL * bill]
    policies = {start.expected["cost"]: (report.start, start)}
    for target in targets:  # several targets may have the same policy, next to a single model
        policy = report.tuned.policy_for(target)
        policies.setdefault(policy.expected["cost"], (target, policy))
    return [policies[cost] for cost in sorted(policies, key=lambda cost: -float(cost or 0.0))]


def _documents(policies: Sequence[AbstractPolicy]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Split the JSON forms of policies into (entries that differ, for each policy; entries that all share)."""
    documents = [policy.to_json() for policy in policies]
    kept_sample = [document["provenance"].pop("kept_sample", None) for document in documents][-1]
    first = documents[0]
    shared = {name: first[name] for name in first if all(document.get(name) == first[name] for document in documents)}
    different = [{name: value for name, value in document.items() if name not in shared} for document in documents]
    return different, {"policy": shared, "kept_sample": kept_sample}


def _frontier(report: Report, cost: np.ndarray, error: np.ndarray) -> tuple[str, np.ndarray, tuple[float, float]]:
    """Return (the SVG of the frontier, positions (L, 2) of policies on it, the corner of its axes)."""
    single = {model.model: (model.cost, 1 - model.accuracy) for model in report.tuned.single_models}
    with style():
        canvas = Figure(figsize=_ONE)
        plot_frontier(ax := canvas.add_subplot(), report.frontier, single, report.money)
        lay_out(canvas, ax, (0, 0, *_ONE))
        ax.get_legend().remove()  # type: ignore[union-attr] - the page has one, below
        description = f"{report.noun.capitalize()} against cost of the best cascades, and each model alone beside"
        svg = to_svg(canvas, "curve", description)
        ((left, bottom),) = positions(canvas, ax, *np.array([ax.get_xlim()[:1], ax.get_ylim()[:1]])).tolist()
        return svg, positions(canvas, ax, report.money.scale * cost, error), (round(left, 2), round(bottom, 2))


def _point(report: Report, target: Target, policy: AbstractPolicy) -> dict[str, Any]:
    expected = policy.expected
    money = report.money
    comparison = report.compare(policy, target)
    costs = " to ".join(f"${money.show(expected[name])}" for name in ("cost_low", "cost_high") if name in expected)
    rows, cascades = [], []
    rungs = zip(policy.weights, policy.adjacent_rungs, strict=True)
    parts = [(weight, rung) for weight, rung in rungs if weight >= MIN_SHARE]
    for weight, rung in parts[::-1]:
        models, cascade = _rung(rung, report.log, weight)
        share = f"{percent(weight)} of the queries"
        rows += [{"model": f"{share}:", "answers": "", "share": ""}, *models] if len(parts) > 1 else models
        cascades.append(f"{share}: {cascade}" if len(parts) > 1 else cascade)
    seconds = expected.get("seconds")
    tail = f"; {format_number(expected['seconds_p95'])} or less for 95 %" if expected.get("seconds_p95") else ""
    margin, kept = (report.spec.match, report.tuned.kept) if policy is report.policy else (None, "")
    advice = advise(policy, comparison, money, report.log.error_kind, margin, kept)
    single = comparison.single
    if (pays := comparison.describe_error_costs(report.log.error_kind)) is not None:
        advice += f". {capitalised(pays)}"
    if single is not None:
        advice += f". {single.describe(money, report.noun)}"
    return {
        "cascade": ", ".join(cascades),
        "cost": f"${money.show(expected['cost'])}",
        "costs": costs or "kept by following the bill",
        "error": percent(expected["error"]),
        "errors": f"{format_interval([expected['error_low'], expected['error_high']])} %",
        "seconds": "" if seconds is None else format_number(seconds),
        "tail": "" if seconds is None else f"on average{tail}",
        "target": _option(report, target, policy),
        "download": f"Download this policy{', against the advice' * advice.startswith('do not use')}",
        "advice": f"{capitalised(advice)}.",
        "observed": _describe_observed(report, policy, comparison),
        "rows": rows,
    }


def _describe_observed(report: Report, policy: AbstractPolicy, comparison: Comparison) -> str:
    """Return sentences on the policy on fresh queries, and on whether it lies outside of the held-out curve."""
    sentences = list[str]()
    if comparison.fresh:
        figures = f"{percent(comparison.error)} {report.noun} on them, at {report.money.full(comparison.cost)}"
        sentences.append(f"This one had {figures}.")
    promise, cost = report.diagnosis.promise, policy.expected["cost"] or 0.0
    if promise is not None:
        low, high = promise.predicted_cost.min(), promise.predicted_cost.max()
        if not low * (1 - _SAME_BILL) <= cost <= high * (1 + _SAME_BILL):
            ends = f"${report.money.show(low)} to {report.money.full(high)}"
            sentences.append(f"This one lies outside of the curve that was tried, {ends}.")
    return " ".join(sentences)


def _rung(policy: Policy, log: Log, weight: float) -> tuple[list[dict[str, str]], str]:
    """Return (rows of models with their shares of the log's answers, times a weight; the cascade in words)."""
    replayed = replay(policy, log)
    shares = dict(zip(replayed.models, np.asarray(replayed.share, float).tolist(), strict=True))
    agreements, rows = policy.agreements, []
    for name in policy.models:
        cut = find_threshold(policy.rules[name])
        if name == policy.models[-1] or cut is None:
            answers = "everything that reaches it"
        elif name in agreements:
            answers = f"where {agreements[name].earlier} says the same"
        else:
            answers = "nothing: its answer is compared" if agreements and cut >= 1 else f"above {format_threshold(cut)}"
        rows.append({"model": name, "answers": answers, "share": percent(weight * shares.get(name, 0.0))})
    return rows, describe_cascade(policy.to_json())


def _option(report: Report, target: Target, policy: AbstractPolicy) -> str:
    """Return a target as options of the command; only the first policy's budget may be for a period."""
    spec = report.spec if policy is report.policy else dataclasses.replace(report.spec, period=None)
    options = spec.options_for(target)
    if isinstance(spec.today, AbstractPolicy):
        options |= {"today": POLICY_IN_SERVICE}
    return " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items())


@takes(log=Log, spec=(Spec, None), test=(Log, None))
def make_report(
    log: Log, spec: Spec | None = None, *, test: Log | None = None, replicates: int = 200, **fields: Unpack[SpecFields]
) -> Report:
    """Tune on a log as `rcjax tune` does by default, compare with today's, and check the promise.

    Args:
        log: the log to learn from.
        spec: options of tuning. The page opens at the policy for its target; the default is the least money for at most
            a point more error than today's.
        test: fresh queries to judge by; without them, the diagnosis is by five folds.
        replicates: number of bootstrap replicates of the tests.
        fields: fields of `Spec`, which override `spec`; a target replaces the target of `spec`.

    Raises ValueError for several targets or without intervals; InfeasibleError for a target that no policy meets;
    LogError as `fit`, `select_frontier` and `diagnose` do, and for a log without today's model.

    >>> import rcjax
    >>> report = make_report(rcjax.sample_log(300, seed=0), replicates=50)
    >>> print(report.headline())
    Keep llama3.1-70b alone: by estimate ... would save only $5 ± 2 of $168 per million queries (3 %; ...
    """
    spec = Spec.merge(spec, fields)
    if not spec.intervals:
        raise SpecError("intervals", "cannot be left out of a report")
    has_target = spec.target is not None
    spec = spec.with_default_target(float(log.cost[-1]))
    tuned = tune(log, spec)
    assert tuned.policy is not None
    log = tuned.log
    judged = log if test is None else test.select(log.models)
    diagnosis = diagnose(fit(log), judged, training=log, replicates=replicates, frontier=tuned.frontier)
    money = tuned.spec.budget
    fresh = None if test is None else compare_policy(tuned.policy, judged, tuned.spec.today, money=money)
    return Report(
        tuned=tuned,
        has_target=has_target,
        diagnosis=diagnosis,
        judged=judged,
        fresh=fresh,
        check=None if test is None else try_check(tuned.policy, judged)[0],
    )
