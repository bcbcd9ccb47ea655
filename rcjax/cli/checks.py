"""`rcjax check` and `rcjax diagnose`: is a policy in service still right, and is the promise of a tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import check_figure, check_meaning, check_name, count
from rcjax.cli.app import start_jax
from rcjax.cli.console import Screen, make_table, staged
from rcjax.cli.inputs import at_traffic_of, echoed, load_tuned, read_for, read_pair
from rcjax.cli.options import AsJson, CopulaFamily, File, LogFile, PolicyFile, Reading, Share
from rcjax.cli.parsers import cascade as read_cascade, models_to_read
from rcjax.cli.printing import command, conclude, shown

if TYPE_CHECKING:
    pass

_DRIFT = {"fine": "fine", "doubtful": "unclear", "bad": "drifted"}  # the verdicts of a check, in its own words

_SAMPLE = ("lacking answers", "labels")  # checks of whether the log is a fair sample

_FEW = 4  # of so many checks one is unclear, from which on a log is too small to tell


def check(
    reading: Annotated[Reading, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: LogFile,
    alarm: Share = "5%",
    retuning: bool = True,
    explain: bool = False,
    json_: AsJson = False,
) -> None:
    """Is a policy still right on fresh queries? For your CI: exit status 0 fine, 1 drifted, 2 bad input or any failure.

    Holds the calibration and the confidences of each model, and the error and the cost of the policy, to what they were
    when it was tuned, and tests whether tuning again would gain. A figure raises an alarm if it is large
    enough to matter and chance does not explain it. The queries of LOG must be answered by all models of the policy,
    and labelled.

    Example: `rcjax check policy.json last_week.csv`

    Args:
        alarm: Probability, at most, of any alarm where nothing has changed.
        retuning: Test whether tuning again would gain, in some seconds.
        explain: Say what each figure is.
    """
    if not 0 < alarm < 1:
        raise typer.BadParameter("must lie between 0 and 100%", param_hint="--alarm")
    how = reading.options()
    start_jax()
    import rcjax
    from rcjax.replaying.figures import beside_reference

    steps = staged(2)
    with steps("reading"):
        subject, followed = at_traffic_of(log, load_tuned(policy))
        fresh = read_for(subject, log, how)
    with steps("checking"):
        outcome = rcjax.check_policy(subject, fresh, retuning=retuning, alarm=alarm)
    document = outcome.to_json()
    beside = beside_reference(subject, fresh)
    document["remarks"] += [*followed, *([] if beside is None else [f"on these queries it {beside.describe()}"])]
    retune = command("retune", policy, log, **reading.as_options(), out=policy)
    conclude(document, partial(show_check, document, retune, explain=explain), as_json=json_)
    raise typer.Exit({False: 0, True: 1, None: 2}[outcome.drifted])


def diagnose(
    reading: Reading,
    log: LogFile,
    test: File = None,
    copula: CopulaFamily = None,
    cascade: Annotated[Any, typer.Option(parser=read_cascade, metavar="SEARCH")] = None,
    replicates: Annotated[int, typer.Option(min=20, max=100_000)] = 200,
    all_: bool = False,
    json_: AsJson = False,
) -> None:
    """Does the promise of a tuning hold, and is the model right on a log? And what to do if not.

    Tunes on LOG and holds the error and cost promised against queries that the tuning has not seen; fits the model
    and checks calibration, marginals, copulas, the Markov property, and its own predictions. Each check is fine,
    doubtful or bad, says what to do, and which policies it affects.

    Example: `rcjax diagnose log.csv --test fresh_log.csv`

    Args:
        test: Judge by this log, of queries that LOG does not hold. [default: LOG itself, in five folds]
        copula: How the confidences of two models depend on each other; **auto**: the best family for each pair.
            [default: gumbel]
        cascade: Judge what `rcjax tune` promises with this `--cascade`. [default: what it promises without]
        replicates: Bootstrap replicates behind each p-value.
        all_: Show every check, not only those to act on.
    """
    how = reading.options()
    start_jax()
    import rcjax

    steps = staged(3)
    with steps("reading"):
        how |= {"models": models_to_read(reading.models, cascade)}
        training, fresh = read_pair(log, test, others="only queries that every model answered are judged", **how)
    judged = fresh or training
    with steps("fitting the model"):
        model = rcjax.fit(training, copula=copula or "gumbel")
    with steps(f"testing, with {replicates:,} redrawings of the log"), echoed(rcjax.tuning.OverlapWarning):
        frontier = None if cascade is None else rcjax.solve_frontier(model, cascades=cascade)
        diagnosis = rcjax.diagnose(model, judged, training=training, replicates=replicates, frontier=frontier)
    document = diagnosis.to_json()
    conclude(document, partial(show_diagnosis, document, every=all_), as_json=json_)


@shown
def show_diagnosis(document: Mapping[str, Any], *, every: bool = False) -> None:
    """Print a diagnosis (its JSON form): whether the promise holds, what to do, then the checks.

    Checks that say nothing of the policies at hand are left out, and of several of a kind all but the worst, unless
    `every` check is wanted.
    """
    from rcjax.diagnostics.verdicts import MODELLED, describe_gaps  # which imports JAX

    screen, noun, whole = Screen(), document["counted"], document["checks"]
    promise = document.get("promise")
    every_policy = every or (promise is not None and promise["search"] != "selected")
    checks = [check for check in whole if every_policy or check["affects"] != MODELLED]
    held_out = "judged by queries that the fit has not seen" if document["held_out"] else "judged in five folds"
    models, queries = count(len(document["models"]), "model"), count(document["n"], "query")
    screen.print(f"{Path(document['source']).name}: {models}, {queries} that all answered; {held_out}\n")
    if promise is not None:
        where = "these queries" if document["held_out"] else "queries left out"
        screen.print(f"On {where}, the {noun} was {describe_gaps(promise)}, on average.", style="bold")
    todo = [check for verdict in ("bad", "doubtful") for check in checks if check["verdict"] == verdict]
    if todo:
        screen.print("What to do", style="bold")
    for verdict, name in dict.fromkeys((check["verdict"], check["name"]) for check in todo):
        first, *more = [check for check in todo if (check["verdict"], check["name"]) == (verdict, name)]
        others = [f"{check['subject']} ({check_figure(check['figure'], check['unit'])})" for check in more]
        likewise = f"; likewise {', '.join(others)}" if others else ""
        screen.hang(verdict, f"{first['advice']}{likewise} (affects {first['affects']})")
    if not every:
        kinds = dict.fromkeys(check["name"] for check in checks)
        checks = [max((check for check in checks if check["name"] == name), key=_badness) for name in kinds]
        screen.print("The worst of each kind of check:")
    _print_checks(screen, checks, noun, explain=every)
    remarks = list(document["remarks"])
    if document["tested"] < document["n"] and every:
        remarks.append(f"p-values of the fit are from {document['tested']:,} of the queries, at random")
    screen.hang("note", *remarks)
    more = "" if every else f"--all shows all {len(whole)} checks, and says what their figures are; "
    screen.next_step(f"{more}rcjax report writes a page for your team")


@shown
def show_check(facts: Mapping[str, Any], retune: str = "", *, explain: bool = False) -> None:
    """Print the check of a policy (its JSON form): what has drifted and what to do, then every figure with its limit.

    `retune` is the command that tunes the policy again; `explain` adds what each figure is.
    """
    screen = Screen()
    models, checks, noun = facts["policy_models"], facts["checks"], facts["counted"]
    of = "" if facts["reference"] == facts["tuned_on"] else f"{facts['reference']:,} of the "
    compared = f"{count(facts['n'], 'query')} against {of}{facts['tuned_on']:,} tuned on, answers"
    screen.print(f"{facts['source']}: {compared} of {', '.join(models)}\n")
    screen.print(_summary(checks, facts), style="bold")
    for verdict in ("bad", "doubtful"):
        for check in checks:
            if check["verdict"] == verdict:
                screen.hang(_word(check), check["advice"])
    level = f"{100 * facts['alarm']:.4g} %"
    chance = f", all checks considered: where nothing has changed, any drifts in {level} of logs"
    _print_checks(screen, checks, noun, _word, explain=explain, chance=chance)
    if not explain:
        screen.print("(--explain says what the figures are)")
    screen.hang("note", *facts["remarks"])
    if any(check["verdict"] == "bad" for check in checks):
        screen.next_step("tune again, where what is said above does not mend it", retune)
    elif any(check["verdict"] == "doubtful" for check in checks):
        unlabelled = facts.get("unlabelled", 0)
        without = f"the {count(unlabelled, 'logged query')} without a label" if unlabelled else "more queries"
        screen.next_step(f"label {without}, then check all together")
    else:
        screen.next_step("keep the policy; check again with fresh queries, such as next week's")


def _word(check: Mapping[str, Any]) -> str:
    """The verdict on a check of a policy in a word."""
    return "biased" if check["name"] in _SAMPLE and check["verdict"] == "bad" else _DRIFT[check["verdict"]]


def _summary(checks: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """What is known of a policy, in a line: what has drifted, else what is unclear."""
    bad, unclear = ([check for check in checks if check["verdict"] == verdict] for verdict in ("bad", "doubtful"))
    every, verb = count(len(checks), "check"), "is" if len(unclear) == 1 else "are"
    if any(_word(check) == "biased" for check in checks):
        return f"no fair sample: nothing of it is certain, whatever the other {len(checks) - 1} checks say"
    if bad:
        return f"{len(bad)} of {every}: DRIFTED" + (f"; {len(unclear)} {verb} unclear" if unclear else "")
    if not unclear:
        return f"fine: none of {every} has drifted"
    which = ", ".join(dict.fromkeys(check_name(check["name"], facts["counted"]) for check in unclear))
    if _FEW * len(unclear) < len(checks):
        return f"none of {every} has drifted, but {len(unclear)} {verb} unclear ({which})"
    few = "labels" if facts.get("unlabelled") else "queries"
    return f"too few {few} to tell: {len(unclear)} of {every} {verb} unclear ({which})"


def _badness(check: Mapping[str, Any]) -> tuple[int, float]:
    """By which the worst of several checks is found."""
    return ("fine", "doubtful", "bad").index(check["verdict"]), _beyond(check)


def _beyond(check: Mapping[str, Any]) -> float:
    """How far a figure is beyond its limit; infinitely, where there is none."""
    figure, (limit, worse) = check["figure"], check["limits"]
    return math.inf if figure is None else figure - limit if worse > limit else limit - figure


def _by_chance(check: Mapping[str, Any]) -> bool:
    """Whether a figure is beyond its limit and fine all the same, as chance explains it."""
    return 0 < _beyond(check) < math.inf and check["verdict"] == "fine"


def _print_checks(
    screen: Screen,
    checks: Sequence[Mapping[str, Any]],
    noun: str,
    word: Callable[[Mapping[str, Any]], str] = itemgetter("verdict"),
    *,
    explain: bool = False,
    chance: str = "",
) -> None:
    """Print a row for each check, with its verdict in a word.

    `explain` adds what the figures are, where their names do not say it; `chance` is what more there is to know of p.
    """
    table = make_table("verdict", "check", "of", "figure", "p", "limit", words=3, whole=True)
    table.columns[2].no_wrap = False  # names are folded, and no figure is cut
    for check in checks:
        p = "" if check["p_value"] is None else f"{check['p_value']:.2g}"
        limit, worse = check["limits"]
        held_to = f"{'≤' if worse > limit else '≥'} {check_figure(limit, check['unit'])}"
        verdict = "by chance" if _by_chance(check) else word(check)
        figure = check_figure(check["figure"], check["unit"])
        table.add_row(verdict, check_name(check["name"], noun), check["subject"], figure, p, held_to)
    screen.print(table)
    if not explain:
        return
    meanings = {check_name(name, noun): check_meaning(name, noun) for name in (check["name"] for check in checks)}
    meanings["p"] = f"how likely chance alone makes such a figure{chance}"
    if any(_by_chance(check) for check in checks):
        meanings["by chance"] = "beyond its limit, and fine all the same, as chance explains it"
    if chance and any(check["verdict"] == "doubtful" for check in checks):
        meanings["unclear"] = "so far beyond its limit that more data must tell whether chance explains it"
    for name, meaning in meanings.items():
        if meaning:
            screen.hang(name, meaning, width=19)
    screen.print()
