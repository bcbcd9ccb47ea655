"""The verdict on a policy, in the form that every screen shows, and the next step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcjax._base.codec import read, written
from rcjax._base.wording import Money, capitalised
from rcjax.cli.console import Screen, comparison_table
from rcjax.cli.options import LogOptions
from rcjax.cli.printing import command
from rcjax.policy.comparison import Comparison, recorded_comparison
from rcjax.policy.counted import recorded_counted
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_tuning
from rcjax.policy.spec import Spec, Target

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.tuning.diagnostics.replacement import Replacement
    from rcjax.tuning.replaying.comparing import Today


def judge_policy(
    policy: AnyPolicy, log: Log, retuning: bool | Replacement = True
) -> tuple[Mapping[str, Any] | None, str]:
    """Check a policy on a log; return (the check as JSON values, ""), or (None, the reason against a check)."""
    from rcjax.tuning.diagnostics.policy_check import check_policy

    try:
        return check_policy(policy, log, retuning=retuning).to_json(), ""
    except ValueError as problem:  # made by hand, tuned on this very log, too few labels
        return None, str(problem)


def compare_fresh(policy: AnyPolicy, log: Log, today: Today | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return ({"comparison", "promised"}, remarks): the comparison with today's on a log, and that of the tuning.

    A remark gives the reason if no comparison is possible.

    Args:
        policy: the policy.
        log: the log.
        today: today's model or policy; None for the one that the policy was tuned with.
    """
    from rcjax.logs.errors import LogError
    from rcjax.tuning.replaying.comparing import compare_policy

    rival = recorded_tuning(policy).spec.today if today is None else today
    as_tuned = today is None and recorded_counted(policy.provenance).noun == log.counted.noun
    promised = written(recorded_comparison(policy.provenance)) if as_tuned else None
    try:
        return {
            "comparison": written(compare_policy(policy, log, rival, money=policy.budget)),
            "promised": promised,
        }, []
    except LogError as problem:
        return {"comparison": None, "promised": promised}, [f"it is not compared with today's: {problem}"]


def show_comparison(screen: Screen, document: Mapping[str, Any], money: Money, noun: str) -> None:
    """Print the `comparison` of a document, if it has one, with that of the tuning."""
    if document.get("comparison"):
        now, then = (read(Comparison | None, document.get(name), name) for name in ("comparison", "promised"))
        screen.print(comparison_table(now, money, noun, then))
        if now is not None and then is not None and (reversal := now.reversal(then, noun)):
            screen.hang("note", reversal)


def show_verdict(screen: Screen, facts: Mapping[str, Any], *, reasons: bool = True) -> None:
    """Print the verdict and, with `reasons`, the gain expected of tuning again, or the objections to it."""
    decision, looked = facts["decision"], facts["looked"]
    screen.print(f"{capitalised(decision['headline'])}.", style="bold")
    if looked["since"]:
        screen.print(f"The deviation is largest from the week of {looked['since']} on.")
    screen.hang("note", *(decision["reasons"] if reasons else ()))


def next_of(facts: Mapping[str, Any], retune: str) -> tuple[str, str]:
    """Return (advice of the verdict, command); the command is empty unless the advice is to tune again."""
    decision = facts["decision"]
    return decision["advice"], retune if decision["tune_again"] else ""


def tune_and_again(log: Path, test: Path, reading: LogOptions, spec: Spec, target: Target) -> str:
    """Return the commands that tune a policy, and tune it again on fresh queries, if no file holds the policy yet.

    Empty if today's is a policy: its file is not known, and without it the commands would match another rival.

    Args:
        log, test: files of the log and of the fresh queries.
        reading: options of reading them.
        spec: options of tuning.
        target: target of tuning.
    """
    if isinstance(spec.today, AnyPolicy):
        return ""
    options = dict(spec.options_for(target)) | {"today": spec.today}
    again = dataclasses.replace(reading, task="generation", models=None, reference=None, same=None)
    tune = command("tune", log, **reading.as_options() | options, out="policy.json")
    return f"{tune} && {command('retune', 'policy.json', test, **again.as_options(), out='policy.json')}"
