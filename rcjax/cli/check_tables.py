"""What the command line shows of checks: those of a diagnosis, and those of a policy in service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.table import Table

from rcjax._base.wording import check_figure, check_meaning, check_name, count
from rcjax.cli.console import Screen, hang, make_table, next_step
from rcjax.cli.printing import shown

_DRIFT = {"fine": "fine", "doubtful": "unclear", "bad": "drifted"}  # the verdicts of a check, in its own words

_SAMPLE = ("lacking answers", "labels")  # checks of whether the log is a fair sample

_GRADES = ("fine", "doubtful", "bad")

_FEW = 4  # of so many checks one is unclear, from which on a log is too small to tell


@shown
def show_diagnosis(document: Mapping[str, Any], *, every: bool = False, plots: Path | None = None) -> None:
    """Print a diagnosis (its JSON form): whether the promise holds, what to do, then the checks.

    Checks that say nothing of the policies at hand are left out, unless `every` check is wanted.
    """
    from rcjax.diagnostics.verdicts import MODELLED, describe_gaps  # which imports JAX

    screen, noun, whole = Screen(), document["counted"], document["checks"]
    checks = [check for check in whole if every or check["affects"] != MODELLED]
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
        likewise = f"; likewise {', '.join(others)}" if others else ""
        hang(screen, f"{verdict:<9}", f"{first['advice']}{likewise} (affects {first['affects']})")
    screen.print(_checks_table(checks, noun) if every else _summary_table(checks, noun))
    if every:
        _explain(screen, checks, noun)
    remarks = list(document["remarks"])
    if document["tested"] < document["n"] and len(checks) == len(whole):
        remarks.append(f"p-values of the fit are from {document['tested']:,} of the queries, at random")
    for remark in remarks:
        hang(screen, "note", remark)
    if plots:
        screen.print(f"figures: {plots}")
    more = "" if every else f"--all shows all {len(whole)} checks, and says what their figures are; "
    next_step(screen, f"{more}rcjax report writes a page for your team")


def _explain(screen: Screen, checks: Sequence[Mapping[str, Any]], noun: str, chance: str = "") -> None:
    """What the figure of each check is, where its name does not say it, what p is, and what verdicts are."""
    table = Table.grid(padding=(0, 1))
    for name in dict.fromkeys(check["name"] for check in checks):
        if check_meaning(name):
            table.add_row(f"  {check_name(name, noun)}", check_meaning(name, noun))
    table.add_row("  p", f"how likely chance alone makes such a figure{chance}")
    if any(_by_chance(check) for check in checks):
        table.add_row("  by chance", "beyond its limit, and fine all the same, as chance explains it")
    if chance and any(check["verdict"] == "doubtful" for check in checks):
        table.add_row("  unclear", "so far beyond its limit that more data must tell whether chance explains it")
    screen.print(table)
    screen.print()


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
    alarms = sum(check["verdict"] == "bad" for check in checks)
    screen.print(_summary(checks, facts), style="bold")
    for verdict in ("bad", "doubtful"):
        for check in checks:
            if check["verdict"] == verdict:
                hang(screen, f"{_word(check):<9}", check["advice"])
    screen.print(_checks_table(checks, noun, _word))
    if explain:
        level = f"{100 * facts['alarm']:.4g} %"
        chance = f", all checks considered: where nothing has changed, any drifts in {level} of logs"
        _explain(screen, checks, noun, chance)
    else:
        screen.print("(--explain says what the figures are)")
    for remark in facts["remarks"]:
        hang(screen, "note", remark)
    if alarms:
        next_step(screen, "tune again, where what is said above does not mend it", retune)
    elif any(check["verdict"] == "doubtful" for check in checks):
        unlabelled = facts.get("unlabelled", 0)
        without = f"the {count(unlabelled, 'logged query')} without a label" if unlabelled else "more queries"
        next_step(screen, f"label {without}, then check all together")
    else:
        next_step(screen, "keep the policy; check again with fresh queries, such as next week's")


def _word(check: Mapping[str, Any]) -> str:
    """The verdict on a check of a policy in a word."""
    return "biased" if check["name"] in _SAMPLE and check["verdict"] == "bad" else _DRIFT[check["verdict"]]


def _summary(checks: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """What is known of a policy, in a line: what has drifted, else what is unclear."""
    number = {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in _GRADES}
    every, unclear = count(len(checks), "check"), number["doubtful"]
    verb = "is" if unclear == 1 else "are"
    open_ = f"{unclear} {verb} unclear"
    if any(_word(check) == "biased" for check in checks):
        return f"no fair sample: nothing of it is certain, whatever the other {len(checks) - 1} checks say"
    if number["bad"]:
        return f"{number['bad']} of {every}: DRIFTED{f'; {open_}' if unclear else ''}"
    if not unclear:
        return f"fine: none of {every} has drifted"
    names = [check_name(check["name"], facts["counted"]) for check in checks if check["verdict"] == "doubtful"]
    which = ", ".join(dict.fromkeys(names))
    if _FEW * unclear < len(checks):
        return f"none of {every} has drifted, but {open_} ({which})"
    few = "labels" if facts.get("unlabelled") else "queries"
    return f"too few {few} to tell: {unclear} of {every} {verb} unclear ({which})"


def _summary_table(checks: Sequence[Mapping[str, Any]], noun: str) -> Table:
    """A row for each kind of check: how many are fine, and the worst figure beside the limit that it is held to."""
    table = make_table("check", "fine", "doubtful", "bad", "worst", "limit", numbers=0)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for name in dict.fromkeys(check["name"] for check in checks):
        group = [check for check in checks if check["name"] == name]
        counts = [sum(check["verdict"] == verdict for check in group) for verdict in _GRADES]
        worst = max(group, key=_badness)
        cells = (str(count or "") for count in counts)
        figure = f"{check_figure(worst['figure'], worst['unit'])}{' by chance' * _by_chance(worst)}"
        table.add_row(check_name(name, noun), *cells, figure, _check_limit(worst))
    return table


def _badness(check: Mapping[str, Any]) -> tuple[int, float]:
    figure = check["figure"]
    away = math.inf if figure is None else figure if _upwards(check) else -figure
    return _GRADES.index(check["verdict"]), away


def _upwards(check: Mapping[str, Any]) -> bool:
    low, high = check["limits"]
    return high > low


def _checks_table(
    checks: Sequence[Mapping[str, Any]], noun: str, word: Callable[[Mapping[str, Any]], str] = itemgetter("verdict")
) -> Table:
    """A row for each check, with its verdict in a word."""
    table = make_table("verdict", "check", "of", "figure", "p", "limit")
    for column in table.columns[1:3]:
        column.justify = "left"
    for check in checks:
        p = "" if check["p_value"] is None else f"{check['p_value']:.2g}"
        verdict = "by chance" if _by_chance(check) else word(check)
        figure = check_figure(check["figure"], check["unit"])
        table.add_row(verdict, check_name(check["name"], noun), check["subject"], figure, p, _check_limit(check))
    return table


def _by_chance(check: Mapping[str, Any]) -> bool:
    """Whether a figure is beyond its limit and fine all the same, as chance explains it."""
    figure, limit = check["figure"], check["limits"][0]
    beyond = figure is not None and (figure > limit if _upwards(check) else figure < limit)
    return beyond and check["verdict"] == "fine"


def _check_limit(check: Mapping[str, Any]) -> str:
    """Up to where a figure does not matter."""
    return f"{'≤' if _upwards(check) else '≥'} {check_figure(check['limits'][0], check['unit'])}"
