"""`rcjax check`: is a policy in service still right."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import conclude, reported
from rcjax.cli.inputs import PolicyFile, at_traffic_of, load_tuned, read_for
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, LogFile, Reading
from rcjax.cli.parsers import fraction
from rcjax.cli.printing import command


@with_options
def check(
    reading: Annotated[Reading, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: LogFile,
    tuned_on: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
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
    explain: Annotated[bool, typer.Option("--explain", help="Say what each figure is.")] = False,
    json_: AsJson = False,
) -> None:
    """Is a policy still right on fresh queries? For your CI: exit status 0 fine, 1 drifted, 2 bad input or any failure.

    Holds the calibration and the confidences of each model, and the error and the cost of the policy, to what they were
    when it was tuned, and tests whether tuning again would gain. A figure raises an alarm if it is large
    enough to matter and chance does not explain it. The queries of LOG must be answered by all models of the policy,
    and labelled.
    """
    if alarm is not None and not 0 < alarm < 1:
        raise typer.BadParameter("must lie between 0 and 100%", param_hint="--alarm")
    how, drifted = reading.options(), None
    with reported(as_json=json_, status=2):
        from rcjax.cli.check_tables import show_check
        from rcjax.cli.console import Steps
        from rcjax.replaying.figures import tell_beside

        start_jax()
        import rcjax

        reading.require_plausible()
        steps = Steps(2)
        with steps("reading"):
            subject, followed = at_traffic_of(log, load_tuned(policy))
            fresh = read_for(subject, log, how)
            old = read_for(subject, tuned_on, how | {"labels": None, "answers": None}) if tuned_on else None
        with steps("checking"):
            options = {"tuned_on": old, "retuning": retuning, "alarm": 0.05 if alarm is None else alarm}
            outcome = rcjax.check_policy(subject, fresh, **options)
            retune = command("retune", policy, log, **reading.as_options(), out=policy)
        drifted, document = outcome.drifted, outcome.to_json()
        document["remarks"] = [*document["remarks"], *followed, *tell_beside(subject, fresh)]
        conclude(document, partial(show_check, document, retune, explain=explain), as_json=json_)
    raise typer.Exit({False: 0, True: 1, None: 2}[drifted])
