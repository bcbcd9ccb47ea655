"""The cause that a log shows for a deviation, and the single model that is better: what a decision says first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import compress
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rcjax._base.figures import format_number, percent
from rcjax.logs.errors import join_names
from rcjax.logs.log import Log
from rcjax.logs.oddities import find_inverted
from rcjax.logs.prices import price_factors
from rcjax.policy.comparison import Comparison, describe_gap
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import recorded_tuning
from rcjax.tuning.diagnostics.decision import KEPT, PolicyDecision
from rcjax.tuning.diagnostics.findings import ALARM
from rcjax.tuning.replaying.comparing import compare_policy, list_models, name_today

_DEARER, _ALIKE = 1.1, 1.25  # least factor of all costs, and most ratio of two factors, for a rise of all costs alike


class Cause(NamedTuple):
    """A change that a log shows, with the first remedy."""

    clause: str
    """The change, in words."""
    advice: str
    """First remedy, in words."""
    models: frozenset[str] = frozenset()
    """Names of the models that have changed; others may take their place."""
    in_labels: bool = False
    """Whether the labels look wrong, so that no figure counts."""
    in_costs: bool = False
    """Whether all models cost more alike, so that only the saving counts."""


def changed_prices(policy: AbstractPolicy, log: Log) -> dict[str, float]:
    """Return the factor of each price that differs from that of the tuning, by model of the policy."""
    return price_factors(recorded_tuning(policy).prices or {}, log.prices or {}, policy.models)


def find_cause(
    policy: AbstractPolicy, log: Log, changed: Sequence[tuple[str, str]], *, is_dearer: bool = True
) -> Cause | None:
    """Return the first cause of these: labels, a model, prices, costs of all models; None without any.

    `changed` are the models whose accuracy or confidences have changed, with the change in words; `is_dearer` says
    whether the cost has risen by more than chance explains. Changed prices are told beside a changed model.
    """
    inverted = [name for name, _ in find_inverted(log)]
    if 2 * len(inverted) > len(log.models):
        clause = f"check the labels first: the surer {join_names(inverted)} are, the more often they are wrong"
        return Cause(clause, "check the labels, then check again", in_labels=True)
    prices = changed_prices(policy, log)
    by_price = join_names(f"{name} (times {format_number(factor)})" for name, factor in prices.items())
    repriced = [f"prices have changed: {by_price}"] * bool(prices)
    if 0 < len(changed) < max(len(policy.models), 2):
        models = (f"model {name} has changed ({change})" for name, change in changed)
        return Cause("; ".join([*models, *repriced]), "", frozenset(name for name, _ in changed))
    if changed:
        clause = "; ".join(["all models have changed", *repriced])
        return Cause(clause, "see whether questions, prompts or labels have changed")
    if repriced:
        return Cause(repriced[0], "")
    if not is_dearer:
        return None
    known = [(log.cost[log.models.index(name)], policy.cost[name]) for name in policy.models]
    factors = [float(now / before) for now, before in known if before]
    if len(factors) > 1 and min(factors) >= _DEARER and max(factors) <= _ALIKE * min(factors):
        often = f"all models cost {math.exp(np.log(factors).mean()):.2g} times as much"
        return Cause(f"{often}: check prices and lengths first", "check prices and lengths first", in_costs=True)
    return None


def explain_decision(
    decision: PolicyDecision, cause: Cause | None, policy: AbstractPolicy, log: Log, looks: float
) -> PolicyDecision:
    """Open a decision with its cause, and name the single model with less error for less money, by more than chance.

    The cheaper models and the looks share the level. A model beyond the budget is not named. Today's is advised too if
    it has no more error for no more money, as by `rcjax report`. An alarm, or a retuning that gains, keeps its advice.

    Args:
        decision: the decision by the figures.
        cause: the cause of a deviation; None without one.
        policy: the policy.
        log: the fresh log.
        looks: number of separate looks in a year.
    """
    if cause is not None and cause.in_labels and decision.state != "no fair sample":
        return dataclasses.replace(decision, cause=cause.clause, advice=cause.advice)
    spec, noun = recorded_tuning(policy).spec, log.error_kind.noun
    today, most = spec.today, policy.budget or spec.budget or math.inf
    subjects = [*log.models, *([] if today is None or isinstance(today, str) else [today])]
    asked = [{*policy.models, *list_models(subject)} for subject in subjects]
    known = [names <= {*log.models} and log.select([*names]).complete.any() for names in asked]
    compared = [compare_policy(policy, log, subject) for subject in compress(subjects, known)]
    todays = [beside for beside in compared if today is not None and beside.rivals[0].subject == name_today(today)]
    usable = [beside for beside in compared if beside.rivals[0].cost <= most]
    cheaper = [beside.rivals[0] for beside in usable if beside.rivals[0].cost < beside.cost]
    sure = NormalDist().inv_cdf((1 - ALARM / max(len(cheaper), 1)) ** (1 / looks))
    better = [rival for rival in cheaper if rival.error_difference > sure * rival.se]
    advice, reasons = "", decision.reasons
    if any(beside.is_dominated for beside in todays if beside in usable):
        rival = todays[0].rivals[0]
        advice = f"use {rival.subject}: it has no more {noun} on these queries, for no more money"
    if better:
        rival = max(better, key=lambda rival: rival.error_difference)
        gap = describe_gap(-rival.error_difference, rival.se, noun)
        reasons = (f"{rival.subject} has {gap} the policy on these queries, for less money", *reasons)
        advice = f"use {rival.subject}: it has less {noun} on these queries, for less money"
    if not advice or decision.alarm or decision.tune_again:
        advice = decision.advice
    if cause is None or decision.state == "no fair sample":
        return dataclasses.replace(decision, advice=advice, reasons=reasons)
    clause, then = cause.clause, "tune again" if decision.tune_again else "check again"
    if cause.models:
        advice = f"{_replace_changed(cause, usable, todays)}; {'or' if decision.tune_again else 'then'} {then}"
    elif cause.advice:
        advice = f"{cause.advice}, then {then}{': nothing better is shown yet' * (not decision.tune_again)}"
    if cause.in_costs and todays and (saved := 1 - todays[0].cost / todays[0].rivals[0].cost) > 0:
        clause = f"{clause}; the policy still saves {percent(saved, 0)}"
    if decision.title == KEPT and today is not None and cause.models & {*list_models(today)}:
        decision = dataclasses.replace(decision, title="beside today's, which has changed, a margin tells little")
    return dataclasses.replace(decision, cause=clause, advice=advice, reasons=reasons)


def _replace_changed(cause: Cause, compared: Sequence[Comparison], todays: Sequence[Comparison]) -> str:
    """Name the single model to use until changed models are mended: the one with the fewest errors, or none."""
    most = max((side for beside in todays for side in (beside.cost, beside.rivals[0].cost)), default=math.inf)
    rivals = [beside.rivals[0] for beside in compared]
    rivals = [rival for rival in rivals if rival.name not in cause.models and rival.cost <= most]
    best = max(rivals, key=lambda rival: rival.error_difference, default=None)
    instead = "keep the policy" if best is None or best.error_difference <= 0 else f"use {best.subject}"
    are = "is" if len(cause.models) == 1 else "are"
    return f"until {join_names(sorted(cause.models))} {are} mended, {instead}"
