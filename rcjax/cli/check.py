"""`rcjax check`: is a policy in service still right."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import conclude, reported
from rcjax.cli.inputs import PolicyFile, _load, _read
from rcjax.cli.options import Answers, AsJson, Labels, LogFile, Prices, ScoreMax, as_options, scoring
from rcjax.cli.parsers import fraction
from rcjax.cli.plausible import Really, require_plausible_prices
from rcjax.cli.printing import command


def check(
    policy: PolicyFile,
    log: LogFile,
    prices: Prices = None,
    labels: Labels = None,
    answers: Answers = None,
    score_max: ScoreMax = None,
    tuned_on: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The log that the policy was tuned on. [default: the queries of it that the policy carries]",
        ),
    ] = None,
    alarm: Annotated[
        Any,
        typer.Option(
            parser=fraction,
            metavar="SHARE",
            help="Probability, at most, of any alarm where nothing has changed. [default: 5%]",
        ),
    ] = None,
    retuning: Annotated[
        bool, typer.Option("--retuning/--no-retuning", help="Test whether tuning again would gain, in some seconds.")
    ] = True,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Is a policy still right on fresh queries? For your CI: exit status 0 fine, 1 drifted, 2 bad input or any failure.

    Holds the calibration and the confidences of each model, and the error and the cost of the policy, to what they were
    when it was tuned, and tests whether tuning again would gain. A figure alarms where it is large enough to matter and
    chance does not explain it. The queries of LOG must be answered by all models of the policy, and labelled.
    """
    if alarm is not None and not 0 < alarm < 1:
        raise typer.BadParameter("must lie between 0 and 100%", param_hint="--alarm")
    scale, drifted = scoring(score_max), None
    with reported(as_json=json_, status=2):
        from rcjax.cli.check_tables import show_check
        from rcjax.cli.console import Steps
        from rcjax.replaying.beside_reference import tell_beside

        start_jax()
        import rcjax

        require_plausible_prices(prices, really)
        steps = Steps(2)
        with steps("reading"):
            subject = _load(policy)
            fresh = _read(subject, log, prices, labels, answers, scale)
            old = _read(subject, tuned_on, prices, reading=scale) if tuned_on else None
        with steps("checking"):
            options = {"tuned_on": old, "retuning": retuning, "alarm": 0.05 if alarm is None else alarm}
            outcome = rcjax.check_policy(subject, fresh, **options)
            files = {"prices": prices, "labels": labels, "answers": answers, **as_options(scale)}
            show = partial(show_check, retune=command("retune", policy, log, **files, out=policy))
        drifted, document = outcome.drifted, outcome.to_json()
        document["remarks"] = [*document["remarks"], *tell_beside(subject, fresh)]
        conclude(document, partial(show, document), as_json=json_)
    raise typer.Exit({False: 0, True: 1, None: 2}[drifted])
