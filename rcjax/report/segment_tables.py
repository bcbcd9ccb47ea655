"""What a report says of segments: a table of all, and what each one's policy does."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rcjax._base.wording import Money, answered_above, percent
from rcjax.policy.policy import Policy
from rcjax.policy.rules import split_of
from rcjax.replaying.by_segment import UNKNOWN
from rcjax.replaying.replay import Replay
from rcjax.tuning.tuned_segments import SegmentFigures, TunedSegments

__all__ = ["segments_context"]


_COMMON = "every segment that has none of its own, and queries of no known segment"


def segments_context(tuned: TunedSegments, replayed: Mapping[str, Replay], money: Money) -> dict[str, Any]:
    """What the template needs of segments: strings, and lists and mappings of them.

    Args:
        tuned: the policies of segments.
        replayed: what each did on fresh queries, by segment; empty without any.
        money: the unit of costs.
    """
    expected, policy = tuned.policy.expected, tuned.policy
    parts = [] if not policy.sharing and len(policy.own) == len(policy.segments) else [("common", policy.common)]
    parts += [(name, policy.segment(name)) for name in policy.own]
    content = base64.b64encode(json.dumps(policy.to_json(), indent=1).encode()).decode("ascii")
    return {
        "by": policy.by,
        "fresh": bool(replayed),
        "rows": [_row(one, replayed.get(one.name), money) for one in tuned.figures],
        "error": percent(float(expected["error"] or 0.0)),
        "cost": f"${money.show(float(expected['cost'] or 0.0))}",
        "remarks": list(tuned.remarks),
        "unknown": f"{replayed[UNKNOWN].n:,} fresh queries are of no known segment." if UNKNOWN in replayed else "",
        "policies": [
            {"name": name, "of": _COMMON if name == "common" else "", "rows": _members(part)} for name, part in parts
        ],
        "file": f"data:application/json;base64,{content}",
    }


def _row(one: SegmentFigures, replayed: Replay | None, money: Money) -> dict[str, str]:
    tried = one.weight is not None
    wrong = cost = "–"
    if replayed is not None:
        spread = np.nan_to_num(np.array([replayed.error_se, replayed.cost_se], float))
        wrong = f"{percent(float(replayed.error))} ± {100 * spread[0]:.1f}"
        cost = f"${money.show(float(replayed.cost))}"
    return {
        "name": one.name,
        "queries": f"{one.queries:,}",
        "share": percent(one.share),
        "error": percent(one.error),
        "cost": f"${money.show(one.cost)}",
        "gain": f"{100 * one.gain + 0:.1f} ± {percent(one.gain_se)}" if tried else "too few queries",
        "policy": "its own" if one.own else "common",
        "fresh_error": wrong,
        "fresh_cost": cost,
    }


def _members(policy: Policy) -> list[dict[str, str]]:
    """Who answers under a policy, at which confidence."""
    rows, cuts = [], policy.thresholds
    for name in policy.models:
        agreement, cut = policy.agreements.get(name), cuts[name]
        if agreement is not None:
            answers = f"where {agreement.earlier} says the same"
        elif name == policy.models[-1]:
            answers = "everything that reaches it"
        else:
            intervals = "by several intervals of its confidence"
            answers = intervals if cut is None else answered_above(cut, split_of(policy.rules[name]))
        rows.append({"model": name, "answers": answers})
    return rows
