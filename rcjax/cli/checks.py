"""`rcjax check` and `rcjax diagnose`: is a policy in service still right, and is the promise of a tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from rcjax._base.wording import check_figure, count
from rcjax.cli.app import start_jax
from rcjax.cli.console import Screen, make_table, staged
from rcjax.cli.inputs import at_traffic_of, load_tuned, read_for, read_pair
from rcjax.cli.options import AsJson, CopulaFamily, File, LogFile, PolicyFile, Reading
from rcjax.cli.parsers import cascade as read_cascade, models_to_read
from rcjax.cli.printing import command, conclude, shown

#: What is wrong where a check is bad, if it is not that a figure has drifted.
_WRONG = {"lacking answers": "biased", "labels": "biased", "re-tuning": "would gain"}

_FEW = 4  # of so many checks one is unclear, from which on a log is too small to tell


def check(
    reading: Annotated[Reading, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: LogFile,
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
        retuning: Test whether tuning again would gain, in some seconds.
        explain: Say what each figure is.
    """
    how = reading.options()
    start_jax()
    import rcjax
    from rcjax.replaying.figures import beside_reference

    steps = staged(2)
    with steps("reading"):
        subject, followed = at_traffic_of(log, load_tuned(policy))
        fresh = read_for(subject, log, how)
    with steps("checking"):
        outcome = rcjax.check_policy(subject, fresh, retuning=retuning)
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
    cascade: Annotated[Any, typer.Option(parser=read_cascade, metavar="SEARCH")] = None,
    copula: CopulaFamily = None,
    replicates: Annotated[int, typer.Option(min=20, max=100_000)] = 200,
    all_: bool = False,
    json_: AsJson = False,
) -> None:
    """Does the promise of a tuning hold on a log, and do confidences mean what they say? And what to do if not.

    Tunes on LOG and holds the error and cost promised against queries that the tuning has not seen. With `--cascade`
    it also checks the fitted model: marginals, copulas and the Markov property. Each check is fine, doubtful or bad,
    and says what to do.

    Example: `rcjax diagnose log.csv --test fresh_log.csv`

    Args:
        test: Judge by this log, of queries that LOG does not hold. [default: LOG itself, in five folds]
        cascade: Judge what `rcjax tune` promises with this `--cascade`, and the model that it rests on. [default: what
            it promises without]
        copula: With `--cascade`, how the confidences of two models depend on each other; **auto**: the best family for
            each pair. [default: gumbel]
        replicates: Bootstrap replicates behind each p-value.
        all_: Show every check, not only those to act on.
    """
    if copula is not None and cascade is None:
        what = "goes with --cascade: policies that are found without it rest on no copula"
        raise typer.BadParameter(what, param_hint="--copula")
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
    with steps(f"testing, with {replicates:,} redrawings of the log"):
        frontier = None if cascade is None else rcjax.solve_frontier(model, cascades=cascade)
        about = {"replicates": replicates, "frontier": frontier, "model_fit": cascade is not None}
        diagnosis = rcjax.diagnose(model, judged, training=training, **about)
    document = diagnosis.to_json()
    conclude(document, partial(show_diagnosis, document, every=all_), as_json=json_)


@shown
def show_diagnosis(document: Mapping[str, Any], *, every: bool = False) -> None:
    """Print a diagnosis (its JSON form): whether the promise holds, what to do, then the checks.

    Of several checks of a kind all but the worst are left out, unless `every` check is wanted.
    """
    from rcjax.diagnostics.verdicts import describe_gaps  # which imports JAX

    screen, noun, checks = Screen(), document["counted"], document["checks"]
    held_out = "judged by queries that the fit has not seen" if document["held_out"] else "judged in five folds"
    models, queries = count(len(document["models"]), "model"), count(document["n"], "query")
    screen.print(f"{Path(document['source']).name}: {models}, {queries} that all answered; {held_out}\n")
    if document.get("promise") is not None:
        where = "these queries" if document["held_out"] else "queries left out"
        screen.print(f"On {where}, the {noun} was {describe_gaps(document['promise'])}, on average.", style="bold")
    todo = [check for verdict in ("bad", "doubtful") for check in checks if check["verdict"] == verdict]
    if todo:
        screen.print("What to do", style="bold")
    for verdict, name in dict.fromkeys((check["verdict"], check["name"]) for check in todo):
        first, *more = [check for check in todo if (check["verdict"], check["name"]) == (verdict, name)]
        others = [f"{check['subject']} ({check_figure(check['figure'], check['unit'])})" for check in more]
        screen.hang(verdict, "; likewise ".join(filter(None, (first["advice"], ", ".join(others)))))
    if not every:
        kinds = dict.fromkeys(check["name"] for check in checks)
        checks = [max((check for check in checks if check["name"] == name), key=_badness) for name in kinds]
        screen.print("The worst of each kind of check:")
    _print_checks(screen, checks, explain=every)
    screen.hang("note", *document["remarks"])
    more = "" if every else f"--all shows all {len(document['checks'])} checks, and says what their figures are; "
    screen.next_step(f"{more}rcjax report writes a page for your team")


@shown
def show_check(facts: Mapping[str, Any], retune: str = "", *, explain: bool = False) -> None:
    """Print the check of a policy (its JSON form): what has drifted and what to do, then every figure with its limit.

    `retune` is the command that tunes the policy again; `explain` adds what each figure is.
    """
    screen = Screen()
    models, checks = facts["policy_models"], facts["checks"]
    of = "" if facts["reference"] == facts["tuned_on"] else f"{facts['reference']:,} of the "
    compared = f"{count(facts['n'], 'query')} against {of}{facts['tuned_on']:,} tuned on, answers"
    screen.print(f"{facts['source']}: {compared} of {', '.join(models)}\n")
    screen.print(_summary(checks, facts.get("unlabelled", 0)), style="bold")
    for verdict in ("bad", "doubtful"):
        for check in checks:
            if check["verdict"] == verdict:
                screen.hang(_word(check), check["advice"])
    chance = ", all checks considered: where nothing has changed, any drifts in at most 5 % of logs"
    _print_checks(screen, checks, _word, explain=explain, chance=chance)
    if not explain:
        screen.print("(--explain says what the figures are)")
    screen.hang("note", *facts["remarks"])
    verdicts = {check["verdict"] for check in checks}
    if "biased" in {_word(check) for check in checks}:
        screen.next_step("mend the log, as said above, then check again")
    elif "bad" in verdicts and not (facts.get("retuning") or {}).get("worth_it", True):
        why = "tuned again on these queries, it is not shown to be better"
        screen.next_step(f"see what has changed, and keep the policy: {why}; check again with more")
    elif "bad" in verdicts:
        screen.next_step("see what has changed; if it is to stay so, tune again", retune)
    elif "doubtful" in verdicts:
        unlabelled = facts.get("unlabelled", 0)
        without = f"label the {count(unlabelled, 'logged query')} without a label"
        more = without if unlabelled else "log and label more queries that all models answer"
        screen.next_step(f"{more}, then check all together")
    else:
        screen.next_step("keep the policy; check again with fresh queries, such as next week's")


def _word(check: Mapping[str, Any]) -> str:
    """The verdict on a check of a policy in a word."""
    words = {"fine": "fine", "doubtful": "too few", "bad": _WRONG.get(check["name"], "drifted")}
    return words[check["verdict"]]


def _summary(checks: Sequence[Mapping[str, Any]], unlabelled: int) -> str:
    """What is known of a policy, in a line: what is wrong, else what is unclear."""
    wrong = [_word(check) for check in checks if check["verdict"] == "bad"]
    unclear = [check["label"] for check in checks if check["verdict"] == "doubtful"]
    every, few = count(len(checks), "check"), "labels" if unlabelled else "queries"
    if "biased" in wrong:
        return f"no fair sample: nothing of it is certain, whatever the other {len(checks) - 1} checks say"
    if "drifted" in wrong:
        more = f"; for {len(unclear)} the {few} are too few" if unclear else ""
        return f"{wrong.count('drifted')} of {every}: DRIFTED{more}"
    gain = ", but tuning again would gain" if wrong else ""
    if not unclear:
        return f"{'' if gain else 'fine: '}none of {every} has drifted{gain}"
    which = f"({', '.join(dict.fromkeys(unclear))})"
    if _FEW * len(unclear) < len(checks):
        return f"none of {every} has drifted{gain}; for {len(unclear)} the {few} are too few {which}"
    return f"too few {few} to tell, for {len(unclear)} of {every} {which}{gain}"


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
        table.add_row(verdict, check["label"], check["subject"], figure, p, held_to)
    screen.print(table)
    if not explain:
        return
    meanings = {check["label"]: check["meaning"] for check in checks}
    meanings["p"] = f"how likely chance alone makes such a figure{chance}"
    if any(_by_chance(check) for check in checks):
        meanings["by chance"] = "beyond its limit, and fine all the same, as chance explains it"
    if chance and any(check["verdict"] == "doubtful" for check in checks):
        meanings["too few"] = "so far beyond its limit that more queries must tell whether chance explains it"
    for name, meaning in meanings.items():
        screen.hang(name, meaning, width=20)
    screen.print()
