"""Where a policy of a frontier comes from: what it takes to check it, and to tune it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcjax._core.json_values import plain


def describe_tuning(frontier: Any, target: Mapping[str, float] | None) -> dict[str, Any]:
    """Where a policy of a `rcjax.Frontier` comes from, and all that it takes to check it and to tune it again.

    What its model says of the log (`describe_fit`); `tuning`: the `target`, where there was one, the `models` to choose
    from and their `prices`, the `search`, `chain`, `bands` and `abstain_price` of the frontier, and the options of the
    `fit`; and `reference`: queries of that log.
    """
    model = frontier.model
    tuning = {
        "target": dict(target or {}),
        "models": list(model.models),
        "prices": model.prices,
        "search": plain(frontier.search),
        "chain": frontier.chain,
        "bands": frontier.bands is not None,
        "abstain_price": frontier.abstain_price,
        "fit": model.options,
    }
    provenance = {**model.provenance, "tuning": tuning}
    return provenance if model.reference is None else provenance | {"reference": model.reference}
