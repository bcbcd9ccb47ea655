"""`rcjax evaluate`: a policy or a frontier on a log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rcjax.cli.common import start_jax
from rcjax.cli.failures import conclude, reported
from rcjax.cli.inputs import at_traffic_of, load_tuned, policy_or_frontier_of, read_for
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, LogFile, Reading
from rcjax.cli.printing import command
from rcjax.policy.policy import AnyPolicy


@with_options
def evaluate(
    reading: Annotated[Reading, "prices", "labels", "answers", "reference", "same", "score_max", "really"],
    policy_or_frontier: Annotated[
        Path, typer.Argument(metavar="POLICY_OR_FRONTIER", help="What `rcjax tune` wrote, with --out or --frontier.")
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
        from rcjax.cli.console import Steps
        from rcjax.cli.replay_tables import plain_replay, predicted, show_replay

        start_jax()
        from rcjax.replaying.figures import beside_reference
        from rcjax.tuning.certify import overlap

        reading.require_plausible()
        steps = Steps(2)
        with steps("reading"):
            tuned, notes = load_tuned(policy_or_frontier, policy_or_frontier_of), list[str]()
            if isinstance(tuned, AnyPolicy):
                tuned, notes = at_traffic_of(log, tuned)
            data = read_for(tuned, log, how)
        with steps("replaying"):
            shared = overlap(data, tuned)
            beside = beside_reference(tuned, data) if isinstance(tuned, AnyPolicy) else None
            document = plain_replay(tuned, data) | {"predicted": predicted(tuned), "queries_tuned_on": shared.queries}
        document |= {"tuned_on_this_log": shared.whole} | ({} if beside is None else {"reference": beside.to_json()})
        notes += [] if beside is None else [f"on these queries it {beside.describe()}"]
        if shared:
            which = "this is the very log that it was tuned on" if shared.whole else shared.describe()
            notes.append(f"{which}, where it looks better than it is: evaluate it on others")
        # The reference is the policy's own.
        check = command("check", policy_or_frontier, log, **reading.as_options() | {"reference": None, "same": None})
        then, rungs = ("serve it (rcjax serve --help), or is a difference more than chance?", check), []
        if not isinstance(tuned, AnyPolicy):
            then = "rcjax tune with a target, such as --budget, and --out policy.json, for one of these", ""
            rungs = tuned.rungs.tolist()
            document["search"] = tuned.search
        show = partial(show_replay, data.describe(), document, notes, data.counted.noun, then, rungs)
        conclude(document, show, as_json=json_)
