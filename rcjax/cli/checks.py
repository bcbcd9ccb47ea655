"""`rcjax check`, `diagnose` and `report`: a policy in service, the promise of a tuning; the decision on screens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.codec import read_value
from rcjax._base.figures import Money, capitalised, choose_unit, count, format_figure
from rcjax.cli.app import start_jax
from rcjax.cli.console import (
    Screen,
    attempt,
    command,
    comparison_table,
    conclude,
    escape_arguments,
    fold_names,
    make_table,
    staged,
    warn,
)
from rcjax.cli.inputs import (
    cascade as read_cascade,
    load_tuned,
    models_to_read,
    read_dated,
    read_for,
    read_pair,
    require_libraries,
    require_outputs,
    require_plausible_target,
    with_budget_per_query,
)
from rcjax.cli.options import (
    AsJson,
    BudgetOptions,
    Count,
    File,
    InUse,
    LogFile,
    LogFiles,
    LogOptions,
    PolicyFile,
)
from rcjax.policy.comparison import Comparison, recorded_comparison
from rcjax.policy.error_kind import BY_ANSWER, recorded_error_kind, recorded_reference
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import MARGIN, Spec, Target, recorded_tuning

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.logs.sources import JoinedTable
    from rcjax.tuning.replaying.comparing import ModelOrPolicy


def next_file(policy: Path) -> str:
    """Return a name for a new policy's file in advised commands: the policy in service stays."""
    return "next.json" if policy.name != "next.json" else "next-2.json"


def compare_fresh(
    policy: AbstractPolicy, log: Log, today: ModelOrPolicy | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Compare a policy with today's on a log; return ({"comparison", "promised": the tuning's, "change"}, remarks).

    "change" is the observed change from today's, in words; empty without a comparison.

    Queries that were tuned on are left out. Remarks give the reason if no comparison is possible.

    Args:
        today: today's model or policy; None for the one that the policy was tuned with.
    """
    from rcjax.logs.errors import LogError
    from rcjax.tuning.certify import overlap
    from rcjax.tuning.diagnostics.causes import changed_prices
    from rcjax.tuning.replaying.comparing import compare_policy, decides_alike

    shared, spec = overlap(log, policy), recorded_tuning(policy).spec
    log = shared.leave_out(log)
    rival = spec.today if today is None else today
    as_tuned = today is None and recorded_error_kind(policy.provenance).noun == log.error_kind.noun
    promised = recorded_comparison(policy.provenance) if as_tuned else None
    try:
        comparison = compare_policy(policy, log, rival, money=policy.budget)
        comparison = dataclasses.replace(comparison, fresh=not shared.covers_log)
    except LogError as problem:
        return {"comparison": None, "promised": promised and promised.to_json(), "change": ""}, [
            f"it is not compared with today's: {problem}"
        ]
    is_repriced = bool(changed_prices(policy, log))  # which the decision tells
    rise = None if promised is None or is_repriced else comparison.shared_rise(promised)
    remarks = [*filter(None, [comparison.describe_error_costs(log.error_kind), rise])]
    change = f"on these queries it {comparison.headline(spec.money([comparison.cost]), log.error_kind)}"
    if rival is not None and decides_alike(policy, rival):
        change = "it answers every query as today's does"
    document = {"comparison": comparison.to_json(), "promised": promised and promised.to_json()}
    return document | {"change": change}, remarks


def show_comparison(screen: Screen, document: Mapping[str, Any], money: Money, noun: str) -> None:
    """Print the `comparison` of a document, if there is any, beside the comparison of the tuning."""
    if document.get("comparison"):
        fresh, promised = (
            read_value(Comparison | None, document.get(name), name) for name in ("comparison", "promised")
        )
        is_expected = not fresh.fresh and not document.get("tuned_on_this_log")
        screen.print(comparison_table(fresh, money, noun, promised, is_expected=is_expected))


def show_decision(
    screen: Screen, document: Mapping[str, Any], *, change: str = "", reasons: bool = True, action: str = "Tune again"
) -> None:
    """Print the decision and, with `reasons`, the effect of tuning again, or the objections to it.

    `change` is the observed change from today's, in words; `action` what to do if a new policy is better.
    """
    from rcjax.tuning.diagnostics.decision import ELSE_HAS_CHANGED, NOT_SHOWN

    decision, window, headline = document["decision"], document["window"], document["decision"]["headline"]
    start = f"{action}. " if decision["tune_again"] and not decision["cause"] else ""
    if action != "Tune again":  # of a new policy: the state is that of the policy before
        if not (decision["tune_again"] or decision["cause"] or document["drifted"]):
            start = "Keep the policy. "
        headline = f"before: {headline}"
    elif start and decision["gain"]:
        start, keep = "", "Tuning" if decision["title"] == NOT_SHOWN else "Fine to keep; tuning"
        headline = f"{headline}. {keep} again would {decision['gain']}"
    screen.print(f"{start}{capitalised(headline)}.", style="bold")
    if change and decision["state"] != ELSE_HAS_CHANGED:  # no figure counts before the labels are mended
        screen.print(f"{capitalised(change)}.")
    if window["since"]:
        screen.print(f"The deviation is largest from the week of {window['since']} on.")
    screen.hang("note", *(decision["reasons"] if reasons else ()))


def advise_next(document: Mapping[str, Any], retune: str) -> tuple[str, str]:
    """Return (advice of the decision, command); the command is empty unless the advice is to tune again."""
    decision = document["decision"]
    return decision["advice"], retune if decision["tune_again"] else ""


def _note_default(spec: Spec) -> None:
    """Say which target is taken if none is given."""
    if spec.target is None and spec.is_by_labels:
        warn(f"no target given: --match {100 * MARGIN:g}%", "note")


def tune_and_retune(log: Path, test: Path, reading: LogOptions, spec: Spec, target: Target) -> str:
    """Return the commands that tune a policy, and tune it again on fresh queries, if no file holds the policy yet.

    Empty if today's is a policy: its file is not known, and without it the commands would match another rival.

    Args:
        log, test: files of the log and of the fresh queries.
    """
    if isinstance(spec.today, AbstractPolicy):
        return ""
    retune_reading = dataclasses.replace(reading, task="generation", models=None, reference=None, same=None)
    policy = Path("policy.json")
    tune = command("tune", log, **reading.as_options() | spec.options_for(target), out=policy)
    return f"{tune} && {command('retune', policy, test, **retune_reading.as_options(), out=next_file(policy))}"


#: The findings on the sample: their bad verdict is "biased".
_BIASED = ("lacking answers", "labels")


def check(
    reading: Annotated[LogOptions, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: LogFiles,
    today: InUse = None,
    looks: Count = None,
    against: InUse = None,
    retuning: bool = True,
    json_: AsJson = False,
) -> None:
    """Test whether a policy is still right on fresh queries. For CI: exit status 0 fine, 1 drifted, 2 any failure.

    Compares the error and the cost of the policy with the figures that the tuning expects, and says whether `rcjax
    retune` would write a better policy. An error or a cost raises an alarm if it exceeds the expected one by enough to
    matter, and by more than chance explains; changed confidences of a model explain the alarm.

    All models of the policy must have answered the queries of LOG, and the answers need labels. Without labels, a call
    log is checked by the confidences, bills, tokens and failed calls of all traffic. If LOG has times, its last eight
    weeks are checked, and earlier weeks without an alarm join the queries that were tuned on.

    Example: `rcjax check policy.json calls/ --labels labels.csv`

    Args:
        today: The model of LOG, or the policy file, in use today. [default: as when tuning]
        looks: Number of checks a year: at most 5 % of the years without a change have a false alarm. [default: 52 if
            LOG has times; else 1]
        against: Instead, test whether this policy, or model, is better than POLICY, by the queries of LOG that the two
            answer differently (`rcjax label --between`); exit status 1 if it is worse.
        retuning: Test whether tuning again would gain, which takes some seconds.
    """
    options = reading.options()
    start_jax()
    import rcjax
    from rcjax.logs.sources import join_parts, main_file, read_column_names
    from rcjax.tuning.diagnostics.weeks import check_traffic, is_call_log, last_weeks
    from rcjax.tuning.replaying.replay import compare_with_reference_model

    if against is not None:
        raise typer.Exit(_check_against(policy, against, log, options, as_json=json_))
    steps, document = staged(2), dict[str, Any]()
    with steps("reading"):
        tuned, source = load_tuned(policy), join_parts(log)
        subject, followed = with_budget_per_query(tuned, main_file(log))
        columns = read_column_names(source)
        traffic = check_traffic(subject, source, looks) if is_call_log(columns) else None
        is_needed = traffic is None or reading.labels is not None
        fresh, reason = _read_labelled(subject, log, source, options, is_needed=is_needed, columns=columns)
    retune = command("retune", policy, *log, **reading.as_options(), out=next_file(policy))
    money = recorded_tuning(subject).spec.money([subject.expected.get("cost") or 0.0])
    if fresh is not None:
        with steps("checking"):
            document = rcjax.check_policy(subject, fresh, retuning=retuning, looks=looks).to_json()
        recent = last_weeks(fresh)
        comparison, remarks = compare_fresh(subject, recent, today)
        if (beside := compare_with_reference_model(subject, recent)) is not None:
            remarks.append(f"on these queries it {beside.describe()}")
        document |= comparison | {"remarks": [*document["remarks"], *followed, *remarks]}
    document["traffic"] = traffic and traffic.to_json()
    show = partial(show_check, document, retune, money)
    if fresh is None and traffic is not None:
        document |= {"drifted": traffic.changed, "without_labels": reason}
        step = _labelling_step(subject, main_file(log))
        show = partial(show_traffic, document["traffic"], reason, step)
    conclude(document, show, as_json=json_)
    raise typer.Exit({False: 0, True: 1}[document["drifted"]])


def _read_labelled(
    policy: AbstractPolicy,
    files: Sequence[Path],
    source: Path | JoinedTable,
    options: Mapping[str, Any],
    *,
    is_needed: bool,
    columns: Collection[str],
) -> tuple[Log | None, str]:
    """Read a log with labels; return (the log with times, ""), or (None, the reason) if it cannot be read.

    An unreadable log is an error if the log `is_needed`, as there is nothing else to check, or if it has labels.

    Args:
        columns: the columns of the log.
    """
    from rcjax.logs.errors import UnlabelledError

    try:
        return read_dated(policy, files, source, options), ""
    except ValueError as unreadable:
        if is_needed or ("correct" in columns and not isinstance(unreadable, UnlabelledError)):
            raise
        return None, str(unreadable)


def _labelling_step(policy: AbstractPolicy, log: object) -> tuple[str, str]:
    """Return how to label a call log as the policy's log was labelled: by its grader, or by hand; and the command."""
    reference = recorded_reference(policy.provenance)
    if reference is None or reference.same == BY_ANSWER:
        drawn = command("label", log, n=100, out="to_label.csv")
        return "label a hundred of these queries, then check again with --labels to_label.csv", drawn
    models = "models.toml" if reference.same.startswith("judge:") else None
    graded = command("grade", log, reference=reference.model, grade=reference.same, models=models)
    return "compare the answers by the grader that the policy was tuned with, then check the log that it writes", graded


def _check_against(
    policy: Path, rival: ModelOrPolicy, log: Sequence[Path], options: Mapping[str, Any], *, as_json: bool
) -> int:
    """Compare a policy or a model with the policy in a file on the queries where they differ; return the status."""
    from rcjax.logs.sources import join_parts
    from rcjax.tuning.replaying.comparing import Disagreements

    steps = staged(1)
    with steps("comparing"):
        subject = load_tuned(policy)
        data = read_for(subject, join_parts(log), {**options, "unlabelled": True})
        difference = Disagreements.of(subject, rival, data).difference()
    lam = subject.expected.get("lam") or 0.0
    verdict, exchange = difference.verdict_at(lam), difference.describe_exchange(lam, data.error_kind)
    document = difference.to_json() | {"verdict": verdict, "error_kind": data.error_kind.noun}
    conclude(document, partial(_show_against, difference.describe(data.error_kind), exchange, verdict), as_json=as_json)
    return int(verdict == "worse")


@escape_arguments
def _show_against(described: str, exchange: str, verdict: str) -> None:
    words, advice = {
        "better": ("better", "put it in the place of the policy in service"),
        "worse": ("worse", "keep the policy in service"),
        "alike": (
            "not shown to be better or worse",
            "keep either, or label more where they differ (rcjax label --between)",
        ),
    }[verdict]
    screen = Screen()
    screen.print(f"The policy or model of --against is {words}.", style="bold")
    screen.print(f"It {described} than the policy in service.")
    if exchange:
        screen.print(f"{capitalised(exchange)}.")
    screen.next_step(advice)


def diagnose(
    *,
    budget_options: BudgetOptions,
    spec: Annotated[Spec, "max_error", "match", "today", "error_cost"],
    reading: LogOptions,
    log: LogFile,
    test: File = None,
    cascade: Annotated[str | tuple[tuple[str, ...]] | None, typer.Option(parser=read_cascade, metavar="SEARCH")] = None,
    all_: bool = False,
    json_: AsJson = False,
) -> None:
    """Test whether policies err and cost on held-out queries as their tuning expects, and advise what to do if not.

    Tunes on LOG, and compares the expected error and cost, and the calibration of each model, with held-out queries.
    Each finding is fine, doubtful or bad. With `--test`, it also gives the decision of `rcjax check` on the policy for
    your target; the default target is the least money for at most a point more error than today's.

    Example: `rcjax diagnose log.csv --test fresh_log.csv --budget 150/M`

    Args:
        test: Log of other queries to test on. [default: LOG itself, in five folds]
        cascade: Test the policies of `rcjax tune` with this `--cascade`. [default: those of the default search]
        all_: Show every finding, not only the worst of each kind.
    """
    spec = replace(budget_options.add_to(spec, log), cascade=cascade, intervals=False)
    options = reading.options()
    start_jax()
    import rcjax
    from rcjax.tuning.diagnostics.findings import merge_findings, worst_verdict
    from rcjax.tuning.diagnostics.policy_check import try_check

    steps = staged(3 + (test is not None))
    with steps("reading"):
        options |= {"models": models_to_read(reading.models, cascade)}
        training, fresh = read_pair(log, test, effect="only queries that every model answered are judged", **options)
    examined = fresh or training
    with steps("fitting the model"):
        model = rcjax.fit(training)
    with steps("testing"):
        frontier = None if cascade is None else rcjax.solve_frontier(model, cascades=cascade)
        diagnosis = rcjax.diagnose(model, examined, training=training, frontier=frontier)
    document, retune = diagnosis.to_json(), ""
    if test is not None and fresh is not None:
        _note_default(spec)
        spec = spec.with_default_target(float(training.cost[-1]))
        with steps("checking the policy"):
            policy = rcjax.tune(training, spec).policy
            assert policy is not None  # as there is a target
            checked, _ = try_check(policy, fresh)
        document["check"] = checked and checked.to_json()
        if checked is not None:
            findings = merge_findings(diagnosis.findings, checked.findings)
            document |= {"findings": [finding.to_json() for finding in findings], "verdict": worst_verdict(findings)}
        assert spec.target is not None  # the default at least
        retune = tune_and_retune(log, test, reading, spec, spec.target)
    conclude(document, partial(show_diagnosis, document, retune, show_all=all_), as_json=json_)


@escape_arguments
def show_diagnosis(document: Mapping[str, Any], retune: str = "", *, show_all: bool = False) -> None:
    """Print a diagnosis (its JSON form): the decision, the promise, the advice, then the findings.

    Only the worst finding of each kind is printed, unless `show_all` is set. `retune` is the command that tunes again.
    """
    from rcjax.tuning.diagnostics.diagnosis import Promise  # which imports JAX

    screen, noun, findings = Screen(), document["error_kind"], document["findings"]
    held_out = "judged by queries that the fit has not seen" if document["held_out"] else "judged in five folds"
    models, queries = count(len(document["models"]), "model"), count(document["n_queries"], "query")
    screen.print(f"{Path(document['source']).name}: {models}, {queries} that all answered; {held_out}\n")
    check = document.get("check")
    if check:
        show_decision(screen, check)
        screen.print()
    if document.get("promise") is not None:
        queries_in_words = "these queries" if document["held_out"] else "queries left out"
        gaps = Promise(**document["promise"]).describe()
        screen.print(
            f"On {queries_in_words}, the {noun} of the frontier's policies was {gaps}, on average.",
            style="" if check else "bold",
        )
    todo = [finding for verdict in ("bad", "doubtful") for finding in findings if finding["verdict"] == verdict]
    if todo:
        screen.print("What the models and the whole frontier show" if check else "What to do", style="bold")
    for verdict, name in dict.fromkeys((finding["verdict"], finding["name"]) for finding in todo):
        first, *more = [finding for finding in todo if (finding["verdict"], finding["name"]) == (verdict, name)]
        similar = [f"{finding['subject']} ({format_figure(finding['figure'], finding['unit'])})" for finding in more]
        screen.hang(verdict, "; likewise ".join(filter(None, (first["advice"], ", ".join(similar)))))
    if not show_all:
        kinds = dict.fromkeys(finding["name"] for finding in findings)
        findings = [max((finding for finding in findings if finding["name"] == name), key=_severity) for name in kinds]
        screen.print("The worst finding of each kind:")
    _print_findings(screen, findings)
    screen.hang("note", *document["remarks"])
    if check:
        screen.next_step(*advise_next(check, retune))
        return
    more = "" if show_all else f"--all shows all {len(document['findings'])} findings; "
    screen.next_step(f"{more}rcjax report writes a page for your team")


@escape_arguments
def show_check(document: Mapping[str, Any], retune: str = "", money: Money | None = None) -> None:
    """Print the check of a policy: the decision, the comparison with today's, each figure with its limit, the advice.

    Args:
        retune: command that tunes the policy again.
    """
    from rcjax.tuning.diagnostics.decision import ELSE_HAS_CHANGED, NOT_SHOWN

    screen = Screen()
    findings, window = document["findings"], document["window"]
    carried = "" if document["carried"] == document["tuned_on"] else f"{document['carried']:,} of the "
    compared = f"{count(document['n_queries'], 'query')} against {carried}{document['tuned_on']:,} tuned on"
    screen.print(f"{document['source']}: {compared}, answers of {', '.join(document['policy_models'])}")
    if window["described"]:
        screen.print(window["described"])
    screen.print()
    show_decision(screen, document, change=document.get("change", ""))
    if document["decision"]["state"] == ELSE_HAS_CHANGED:
        findings = [finding for finding in findings if finding["verdict"] != "fine"]
    show_comparison(screen, document, money or choose_unit([0.0]), document["error_kind"])
    for finding in findings:
        if finding["verdict"] == "bad" and not finding["primary"] and finding["name"] not in _BIASED:
            screen.hang("changed", finding["advice"])
    not_shown = document["decision"]["title"] == NOT_SHOWN
    _print_findings(screen, findings, partial(_verdict_in_words, not_shown=not_shown))
    if document.get("traffic"):
        _print_traffic(screen, document["traffic"])
    screen.hang("note", *document["remarks"])
    screen.next_step(*advise_next(document, retune))


@escape_arguments
def show_traffic(traffic: Mapping[str, Any], reason: str, step: tuple[str, str]) -> None:
    """Print the check of all traffic of a call log, the reason for missing labels, and the next step."""
    screen = Screen()
    changed = [finding["advice"] for finding in traffic["findings"] if finding["verdict"] == "bad"]
    summary = f"{count(len(changed), 'figure') if changed else 'no figure'} of all traffic changed"
    if not traffic["findings"]:
        summary = "nothing was tested, as no model has twenty calls on each side to compare"
    screen.print(f"Without labels: {summary}; only labels tell how often it errs.", style="bold")
    screen.hang("changed", *changed)
    _print_traffic(screen, traffic)
    screen.hang("note", reason)
    screen.next_step(*step)


def _print_traffic(screen: Screen, traffic: Mapping[str, Any]) -> None:
    """Print the checks that need no labels: the last week of all traffic against the weeks before."""
    screen.print(f"All traffic, which needs no labels: {traffic['described']}")
    if traffic["findings"]:
        _print_findings(screen, traffic["findings"], _verdict_in_words)
    if traffic["expensive_calls_note"]:
        screen.print(traffic["expensive_calls_note"])


def _verdict_in_words(finding: Mapping[str, Any], *, not_shown: bool = False) -> str:
    if not_shown and finding["name"] == "difference" and finding["verdict"] == "fine":
        return "not shown"
    bad = "biased" if finding["name"] in _BIASED else "DRIFTED" if finding["primary"] else "changed"
    return bad if finding["verdict"] == "bad" else finding["verdict"]


def _severity(finding: Mapping[str, Any]) -> tuple[int, float]:
    return ("fine", "doubtful", "bad").index(finding["verdict"]), _excess(finding)


def _excess(finding: Mapping[str, Any]) -> float:
    """Return the excess of a figure over its limit; infinity for a missing figure."""
    figure, (limit, worse) = finding["figure"], finding["limits"].values()
    return math.inf if figure is None else figure - limit if worse > limit else limit - figure


#: The meaning of each verdict but "fine", for the line below a table of findings.
_LEGEND = {
    "not shown": "within its limit, and at worst (95 %) beyond it",
    "by chance": "beyond its limit, which chance explains",
    "doubtful": "beyond its limit, perhaps by chance",
    "bad": "far beyond its limit, by more than chance explains",
    "changed": "beyond its limit; it explains, and raises no alarm",
    "biased": "the queries are no fair sample",
    "DRIFTED": "beyond its limit, which raises the alarm",
}


def _print_findings(
    screen: Screen,
    findings: Sequence[Mapping[str, Any]],
    word: Callable[[Mapping[str, Any]], str] = itemgetter("verdict"),
) -> None:
    table = make_table("verdict", "finding", "figure", "p", "limit", text_columns=2, unbroken=True)
    fold_names(table, 1)
    words = list[str]()
    for finding in findings:
        p = "" if finding["p_value"] is None else f"{finding['p_value']:.2g}"
        limit, worse = finding["limits"].values()
        held_to = f"{'≤' if worse > limit else '≥'} {format_figure(limit, finding['unit'])}"
        is_by_chance = finding["verdict"] == "fine" and 0 < _excess(finding) < math.inf  # beyond the limit, but fine
        words.append("by chance" if is_by_chance else word(finding))
        figure = format_figure(finding["figure"], finding["unit"])
        table.add_row(words[-1], ", ".join(filter(None, (finding["label"], finding["subject"]))), figure, p, held_to)
    screen.print(table)
    if legend := "; ".join(f"{word}: {_LEGEND[word]}" for word in dict.fromkeys(words) if word != "fine"):
        screen.hang("verdict", legend)
    if any(finding.get("adjusted_p") is not None for finding in findings):
        screen.hang("p", "of each test by itself; verdicts adjust it for the number of tests and looks")
    if label := next((finding["label"] for finding in findings if finding["name"] == "separation"), ""):
        meaning = "a confidence that tells nothing would do as well: small is good there"
        screen.hang("p", f"the probability that chance explains the figure; of {label}, that {meaning}")


def report(
    *,
    budget_options: BudgetOptions,
    spec: Annotated[Spec, "max_error", "match", "today", "error_cost"],
    reading: LogOptions,
    log: LogFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")] = Path("report.html"),
    test: File = None,
    json_: AsJson = False,
) -> None:
    """Write one HTML page for your team: the policies to choose from, how far to trust them, how to deploy one.

    Tunes as `rcjax tune` does by default, with intervals, and checks as `rcjax diagnose` does. The page opens at the
    policy for a target, one of `--match`, `--budget`, `--max-error` and `--error-cost`; the default target is the least
    money for at most a point more error than today's. The page needs no network and no other file.

    Example: `rcjax report log.csv --test fresh_log.csv --out report.html`

    Args:
        out: Write the page here.
        test: Log of other queries to test on. [default: LOG itself, in five folds]
    """
    spec = budget_options.add_to(spec, log)
    options = reading.options() | {"models": reading.models}
    require_libraries("a report", "report", "matplotlib", "jinja2")
    require_outputs({"--out": out}, reading.inputs(log) | {"--test": test}, {"--out": "HTML page"})
    start_jax()
    import rcjax

    Thread(target=import_module, args=["rcjax.report.page"]).start()  # matplotlib, needed last
    steps = staged(3)
    with steps("reading"):
        training, fresh = read_pair(log, test, **options)
    require_plausible_target(spec.target, training, reading.really)
    with steps("tuning, drawing the log again, and checking"):
        findings = rcjax.make_report(training, spec, test=fresh)
    _note_default(spec)
    findings = dataclasses.replace(findings, command=command("tune", log, **reading.as_options()))
    check, retune = None if findings.check is None else findings.check.to_json(), ""
    if test is not None:
        retune = tune_and_retune(log, test, reading, spec, findings.start)
        findings = dataclasses.replace(findings, retuning=retune)
    with steps("writing the page"):
        problem = attempt(lambda: findings.save(out))
    document = findings.to_json() | ({} if problem else {"written": str(out)})
    show = partial(_show_report, findings.headline(), None if problem else out, check, retune)
    conclude(document, show, as_json=json_, problem=problem)


@escape_arguments
def _show_report(headline: str, written: Path | None, check: Mapping[str, Any] | None, retune: str) -> None:
    from rcjax.tuning.diagnostics.decision import ELSE_HAS_CHANGED

    screen = Screen()
    if check:
        show_decision(screen, check)
    if not check or check["decision"]["state"] != ELSE_HAS_CHANGED:  # else no figure counts
        screen.print(headline)
    if written:
        screen.print_path(f"Report written to {written}")
        if check and check["decision"]["tune_again"]:
            screen.next_step(*advise_next(check, retune))
        else:
            screen.next_step("open it in a browser; it needs no network, and can be sent as it is")
