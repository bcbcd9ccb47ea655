"""The one verdict on a policy, in the one form in which every screen shows it, and what to do next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcjax.cli.console import Screen
from rcjax.cli.options import Reading
from rcjax.cli.printing import command
from rcjax.policy.spec import Spec, Target

if TYPE_CHECKING:
    from rcjax.diagnostics.replacement import Replacement
    from rcjax.logs.log import Log
    from rcjax.policy.policy import AnyPolicy


def judge_policy(
    policy: AnyPolicy, log: Log, retuning: bool | Replacement = True
) -> tuple[Mapping[str, Any] | None, str]:
    """(the check of a policy on a log as JSON values, ""), or (None, why it cannot be checked)."""
    from rcjax.diagnostics.policy_check import check_policy

    try:
        return check_policy(policy, log, retuning=retuning).to_json(), ""
    except ValueError as problem:  # made by hand, tuned on this very log, too few labels
        return None, str(problem)


def show_verdict(screen: Screen, facts: Mapping[str, Any], *, reasons: bool = True) -> None:
    """Print the verdict, and the `reasons`: what tuning again would gain, or what speaks against that."""
    decision, looked = facts["decision"], facts["looked"]
    headline = decision["headline"]
    screen.print(f"{headline[:1].upper()}{headline[1:]}.", style="bold")
    if looked["since"]:
        screen.print(f"That is highest from the week of {looked['since']} on.")
    screen.hang("", *(decision["reasons"] if reasons else ()))


def next_of(facts: Mapping[str, Any], retune: str) -> tuple[str, str]:
    """What to do by the verdict, in words, and the command where that is to tune again."""
    decision = facts["decision"]
    return decision["advice"], retune if decision["tune_again"] else ""


def tune_and_again(log: Path, test: Path, reading: Reading, spec: Spec, target: Target) -> str:
    """The commands that tune a policy, and then tune it again on fresh queries, where no file holds the policy yet.

    Args:
        log, test: the files of the log and of the fresh queries.
        reading: how they are read.
        spec: how the log is tuned.
        target: for what.
    """
    options = dict(target_option(target, spec)) | {"second-cost": spec.second_cost or None}
    again = dataclasses.replace(reading, task="generation", models=None, reference=None, same=None)
    tune = command("tune", log, **reading.as_options() | options, out="policy.json")
    return f"{tune} && {command('retune', 'policy.json', test, **again.as_options(), out='policy.json')}"


def target_option(target: Target, spec: Spec) -> Mapping[str, str]:
    """A target as options of `rcjax tune`; of a budget, perhaps as money for a period."""
    if spec.period is not None and target.name == "budget":
        period = spec.period
        queries = f"{period.money / target.value:.10g}/{period.every}"
        return {"budget": f"{period.money:.10g}/{period.every}", "queries": queries}
    if target.name == "budget":
        return {"budget": f"{1e6 * target.value:.10g}/M"}
    name, value = ("error-cost", 1 / target.value) if target.name == "lam" else (target.name, target.value)
    return {name.replace("_", "-"): f"{value:.10g}"}
