"""`rcjax demo`: a cascade tuned on a synthetic log, and what it saves on fresh queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import conclude, reported
from rcjax.cli.options import AsJson

if TYPE_CHECKING:
    from rcjax.logs.log import Log

#: Of the cost of always asking the largest model: what the demo may spend.
SHARE = 0.4
_FRESH = 10_000
_QUERIES_A_MONTH = 3_000_000  # 100,000 a day


def demo(
    queries: Annotated[int, typer.Option(min=50, max=1_000_000, help="Queries of the log to tune on.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Another seed samples other queries.")] = 0,
    json_: AsJson = False,
) -> None:
    """Tune a cascade of five models on a synthetic log, and follow its budget over fresh queries: no data, no network.

    The log is sampled from a model that was fitted to what five Llama models answered to real questions. The budget is
    40 % of what asking the largest one for everything costs.
    """
    with reported(as_json=json_):
        from rcjax.cli.console import Steps
        from rcjax.cli.replay_tables import plain_replay, show_demo

        start_jax()
        import rcjax

        steps = Steps(3)
        with steps("sampling queries"):
            log, fresh = logs_of_demo(queries, seed)
        with steps("tuning"):
            tuned = rcjax.tune(log, budget=budget_of_demo(log))
        assert tuned.policy is not None
        with steps("following the budget over fresh queries"):
            replayed = plain_replay(tuned.policy, fresh)
        head = {"synthetic": True, "queries": queries, "seed": seed, "models": list(log.models)}
        document = head | {"policy": tuned.policy.to_json(), "observed": replayed}
        document |= {"single_models": _alone(fresh), "queries_a_month": _QUERIES_A_MONTH}
        alone = {model.model: (1 - model.accuracy, model.cost) for model in tuned.alone}
        conclude(document, partial(show_demo, document, alone, SHARE), as_json=json_)


def logs_of_demo(queries: int = 1000, seed: int = 0) -> tuple[Log, Log]:
    """The log that the demo tunes on, and fresh queries, sampled at once."""
    import rcjax

    sample = rcjax.sample_log(queries + _FRESH, seed)
    return sample.take(slice(queries)), sample.take(slice(queries, None))


def budget_of_demo(log: Log) -> float:
    """Money per query that the demo may spend."""
    return SHARE * float(log.cost[-1])


def _alone(log: Log) -> dict[str, dict[str, Any]]:
    """The error and the cost of asking one model always, by model."""
    import numpy as np

    error, cost = 1 - np.asarray(log.correct).mean(axis=0), np.asarray(log.cost)
    pairs = zip(log.models, error.tolist(), cost.tolist(), strict=True)
    return {name: {"error": wrong, "cost": money} for name, wrong, money in pairs}
