"""What the command line shows of checks: those of a diagnosis, and those of a policy in service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from rcjax._base.wording import check_figure, count, percent
from rcjax.cli.console import Screen, hang, make_table
from rcjax.cli.printing import shown

__all__ = ["show_check", "show_diagnosis"]


_DRIFT = {"fine": "fine", "doubtful": "unclear", "bad": "drifted"}  # the verdicts of a check, in its own words


@shown
def show_diagnosis(facts: Mapping[str, Any], *, every: bool = False, plots: Path | None = None) -> None:
    """Print a diagnosis (its JSON form): how many checks are fine, what to act on, or `every` check."""
    screen = Screen()
    models, checks = facts["models"], facts["checks"]
    held_out = "queries that the fit has not seen" if facts["held_out"] else "held-out figures from five folds"
    name = Path(facts["source"]).name
    screen.print(f"{name}: {count(len(models), 'model')}, {count(facts['n'], 'query')} that all answered; {held_out}\n")
    screen.print(_checks_table(checks) if every else _summary_table(checks))
    todo = [check for verdict in ("bad", "doubtful") for check in checks if check["verdict"] == verdict]
    if todo:
        screen.print("What to do")
    for verdict, name in dict.fromkeys((check["verdict"], check["name"]) for check in todo):
        group = [check for check in todo if (check["verdict"], check["name"]) == (verdict, name)]
        others = [f"{check['subject']} ({check_figure(check['figure'], check['unit'])})" for check in group[1:]]
        said = "; likewise ".join([group[0]["advice"], ", ".join(others)][: 1 + bool(others)])
        hang(screen, f"{verdict:<9}", f"{said} (affects {group[0]['affects']})")
    if facts.get("agreement") and every:
        screen.print("Does agreement tell right answers from wrong ones? Areas under the ROC curve, 95 % intervals:")
        screen.print(_agreement_table(facts["agreement"]))
    remarks = list(facts["remarks"])
    if facts["tested"] < facts["n"]:
        remarks.append(f"p-values of marginals and copulas are from {facts['tested']:,} of the queries, at random")
    if remarks:
        screen.print("\nWorth knowing" if todo else "Worth knowing")
    for remark in remarks:
        hang(screen, "", remark)
    if plots:
        screen.print(f"\nfigures: {plots}")


@shown
def show_check(facts: Mapping[str, Any]) -> None:
    """Print the check of a policy (its JSON form): every figure with its limit, and what to do."""
    screen = Screen()
    models, checks = facts["policy_models"], facts["checks"]
    compared = f"{count(facts['n'], 'query')} against {facts['reference']:,} tuned on, answers"
    screen.print(f"{facts['source']}: {compared} of {', '.join(models)}")
    screen.print(_checks_table([check | {"verdict": _DRIFT[check["verdict"]]} for check in checks]))
    alarms = sum(check["verdict"] == "bad" for check in checks)
    every = count(len(checks), "check")
    told = f"{alarms} of {every}: DRIFTED" if alarms else f"fine: none of {every} has drifted"
    screen.print(told, style="bold")
    for verdict in ("bad", "doubtful"):
        for check in checks:
            if check["verdict"] == verdict:
                hang(screen, f"{_DRIFT[verdict]:<9}", check["advice"])
    for remark in facts["remarks"]:
        hang(screen, "", remark)
    level = f"{100 * facts['alarm']:.4g} %"
    screen.print(
        f"p is adjusted for all checks: where nothing has changed, any of them alarms in {level} of logs at most."
    )


def _summary_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("check", "fine", "doubtful", "bad", "worst", "limit")
    for name in dict.fromkeys(check["name"] for check in checks):
        group = [check for check in checks if check["name"] == name]
        counts = [sum(check["verdict"] == verdict for check in group) for verdict in ("fine", "doubtful", "bad")]
        worst = max(group, key=_badness)
        cells = (str(count or "") for count in counts)
        table.add_row(name, *cells, check_figure(worst["figure"], worst["unit"]), _check_limit(worst))
    return table


def _agreement_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("of the second", "equal", "agreement", "confidence")
    for row in rows:
        areas = (_area(row, name) for name in ("agreement", "confidence"))
        table.add_row(" & ".join(row["pair"]), percent(row["equal"], 0), *areas)
    return table


def _area(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return "–"
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.2f} ({low:.2f}–{high:.2f})"


def _badness(check: Mapping[str, Any]) -> tuple[int, float]:
    low, high = check["limits"]
    figure = check["figure"]
    away = math.inf if figure is None else figure if high > low else -figure
    return ("fine", "doubtful", "bad").index(check["verdict"]), away


def _checks_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("verdict", "check", "of", "figure", "p", "limit")
    for column in table.columns[1:3]:
        column.justify = "left"
    for check in checks:
        p = "" if check["p_value"] is None else f"{check['p_value']:.2g}"
        figure = check_figure(check["figure"], check["unit"])
        table.add_row(check["verdict"], check["name"], check["subject"], figure, p, _check_limit(check))
    return table


def _check_limit(check: Mapping[str, Any]) -> str:
    low, high = check["limits"]
    return f"{'<' if high < low else '>'} {check_figure(low, check['unit'])}"
