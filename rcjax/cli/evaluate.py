"""`rcjax evaluate`: a policy or a frontier on a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import reported
from rcjax.cli.inputs import is_training_log, load_tuned, read_for
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, LogFile, Reading
from rcjax.cli.printing import command, print_json
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_tuning


@with_options
def evaluate(
    reading: Annotated[Reading, "prices", "labels", "answers", "reference", "same", "score_max", "really"],
    policy_or_frontier: Annotated[
        Path,
        typer.Argument(metavar="POLICY_OR_FRONTIER", help="What `rcjax tune` wrote."),
    ],
    log: LogFile,
    json_: AsJson = False,
) -> None:
    """Answer the queries of a log by a policy or a frontier: the error and cost seen, beside those predicted.

    For a policy that follows its bill also what following it does with these queries, in their order. Use
    queries that were not in the log for tuning. Models of the log that the policy does not know are ignored;
    without `--prices`, token counts are priced as when tuning.
    """
    how = reading.options()
    with reported(as_json=json_):
        from rcjax.cli.console import Screen, Steps, hang
        from rcjax.cli.replay_tables import expectation, plain_replay, show_next_of_replay, show_replay

        start_jax()
        from rcjax.replaying.beside_reference import beside_reference
        from rcjax.tuning.overlap import overlap

        reading.require_plausible()
        steps = Steps(2)
        with steps("reading"):
            subject = load_tuned(policy_or_frontier)
            data = read_for(subject, log, how)
        with steps("replaying"):
            beside = beside_reference(subject, data) if isinstance(subject, AnyPolicy) else None
            replayed = plain_replay(subject, data)
        predicted, shared = expectation(subject), overlap(data, subject)
        tuned_here = shared.whole or is_training_log(subject, data, log, how)
        if json_:
            counts = {"queries_tuned_on": shared.queries}
            parts = {} if beside is None else {"reference": beside.to_json()}
            print_json(replayed | {"predicted": predicted, "tuned_on_this_log": tuned_here} | counts | parts)
        else:
            search = recorded_tuning(subject).spec.search if isinstance(subject, AnyPolicy) else subject.search
            billed = search == "selected"
            show_replay(data.describe(), predicted, replayed, tuned_here, data.counted.noun, billed=billed)
            if beside is not None:
                hang(Screen(), "note", f"on these queries it {beside.describe()}")
            if shared and not tuned_here:
                hang(Screen(), "note", f"{shared.describe()}, where it looks better than it is: evaluate it on others")
            is_policy = not isinstance(replayed["cost"], list)
            show_next_of_replay(_check(policy_or_frontier, log, reading) if is_policy else None)


def _check(policy: Path, log: Path, reading: Reading) -> str:
    """The command that checks a policy on a log read alike; the reference is the policy's own."""
    return command("check", policy, log, **reading.as_options() | {"reference": None, "same": None})
