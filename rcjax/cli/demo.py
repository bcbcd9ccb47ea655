"""`rcjax demo`: a cascade tuned on a synthetic log."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import reported
from rcjax.cli.options import AsJson
from rcjax.cli.printing import print_json

if TYPE_CHECKING:
    from rcjax.logs.log import Log

_DEMO_SHARE = 0.4  # of the cost of always asking the largest model: what `rcjax demo` may spend


_DEMO_FRESH = 10_000


def demo(
    queries: Annotated[int, typer.Option(min=50, max=1_000_000, help="Queries of the log to tune on.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Another seed samples other queries.")] = 0,
    json_: AsJson = False,
) -> None:
    """Tune a cascade of five models on a synthetic log and check it on fresh queries: no data, no network.

    The log is sampled from a model that was fitted to what five Llama models answered to real questions.
    """
    with reported(as_json=json_):
        from rcjax.cli.console import Steps
        from rcjax.cli.replay_tables import expectation, plain_replay, show_demo
        from rcjax.cli.tables import show_policy, show_tuning
        from rcjax.tuning.tune import describe_models

        start_jax()
        import numpy as np

        import rcjax
        from rcjax.policy.targets import Target

        steps = Steps(2)
        with steps("sampling, fitting and solving"):
            sample = rcjax.sample_log(queries + _DEMO_FRESH, seed)  # at once: two sizes would be compiled twice
            log, fresh = sample.take(slice(queries)), sample.take(slice(queries, None))
            model = rcjax.fit(log)
            frontier = rcjax.solve_frontier(model)
            budget = _DEMO_SHARE * float(np.asarray(log.cost)[-1])
            policy = frontier.policy(budget=budget)
        with steps("replaying on fresh queries"):
            replayed = plain_replay(policy, fresh)
        rows = [dataclasses.asdict(model_alone) for model_alone in describe_models(log, model)]
        alone = _alone(fresh)
        if json_:
            facts = {"synthetic": True, "queries": queries, "seed": seed, "models": list(log.models)}
            results = {"predicted": expectation(policy), "observed": replayed, "single_models": alone}
            print_json(facts | {"policy": policy.to_json()} | results)
        else:
            points = frontier.to_json()["frontier"]
            show_tuning(log.describe(), rows, points, chosen=policy.expected, drawn=True)
            show_policy(policy.to_json(), Target("budget", budget), rows)
            show_demo(policy.to_json(), replayed, alone)


def _alone(log: Log) -> dict[str, dict[str, float]]:
    """Return the error and the cost of asking one model always, by model."""
    import numpy as np

    error, cost = 1 - np.asarray(log.correct).mean(axis=0), np.asarray(log.cost)
    pairs = zip(log.models, error.tolist(), cost.tolist(), strict=True)
    return {name: {"error": wrong, "cost": money} for name, wrong, money in pairs}
