"""`rcjax retune`: a policy tuned again on a fresh log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import PolicyFile, load_tuned, read_for
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, LogFile, Reading


@with_options
def retune(
    reading: Annotated[Reading, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: LogFile,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the new policy here; it may be POLICY."),
    ] = None,
    bands: Annotated[
        bool | None, typer.Option("--bands/--no-bands", help="Intervals by the bootstrap. [default: as before]")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Write it even where it is not shown to be better, or the log is biased."),
    ] = False,
    json_: AsJson = False,
) -> None:
    """Tune a policy again on a fresh log, for the same target and with the same options, and show what changes.

    The new policy is written if it does better than POLICY on queries that it was not tuned on, and keeps its promise
    on those that POLICY carries, too. Otherwise, and if LOG is no fair sample (answers are missing for over 5 % of
    the queries, or labels are not drawn at random), the exit status is 1.
    """
    how = reading.options()
    require_distinct([("--out", out)], reading.inputs(log))  # it may be the file of POLICY
    with reported(as_json=json_):
        from rcjax._core.json_values import plain
        from rcjax.cli.console import Steps
        from rcjax.cli.replay_tables import plain_replay, show_retuning

        require_writable(out)
        start_jax()
        import rcjax
        from rcjax.diagnostics.replacement import why_not
        from rcjax.tuning.retune import held_out_gain, why_untested

        reading.require_plausible()
        steps = Steps(3)
        with steps("reading"):
            old = load_tuned(policy)
            fresh = read_for(old, log, how)
        with steps("tuning again"):
            retuned = rcjax.retune(old, fresh, bands=bands)
            new = retuned.policy
            assert new is not None  # as there is a target
        with steps("replaying both"):
            gain = held_out_gain(old, fresh)
            comparable = set(old.models) <= set(fresh.models)
            replays = {
                name: plain_replay(subject, fresh) if name == "after" or comparable else None
                for name, subject in (("before", old), ("after", new))
            }
        reasons = why_not(old, new, fresh, gain)
        if gain is None:
            tested = f"whether it gains was not tested: {why_untested(old, fresh)[0]}"
        else:
            tested = f"on queries left out, policies tuned again {gain.describe(fresh.counted.noun)}"
        refused = bool(out and reasons and not anyway)
        if refused:
            advice = "keep the policy in service, or write it all the same with --anyway"
            problem: Exception | None = ValueError(f"{out}: not written: {'; '.join(reasons)}: {advice}")
        else:
            problem = attempt(partial(new.save, out)) if out else None
        written = None if problem else out
        document = {
            "before": old.to_json(),
            "policy": new.to_json(),
            "replayed": replays,
            "gain": None if gain is None else plain(gain.to_json()),
            "reasons_against": reasons,
            "remarks": [*retuned.remarks, *([] if refused else reasons or [tested])],
        }
        show = partial(show_retuning, fresh.describe(), document, written, fresh.counted.noun, done=problem is None)
        files = {"written": str(written)} if written else {}
        conclude(document | files, show, as_json=json_, problem=problem)
