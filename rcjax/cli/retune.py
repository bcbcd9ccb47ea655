"""`rcjax retune`: a policy tuned again on a fresh log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import PolicyFile, _load, _read
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, LogFile, Reading

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.tuning.retune import RetuningGain


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
        bool, typer.Option("--anyway", help="Write it even where queries left out do not show that it is no worse.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Tune a policy again on a fresh log, for the same target and with the same options, and show what changes.

    It is written where it does no worse than POLICY on queries that it was not tuned on; else the exit status is 1.
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
        from rcjax.tuning.retune import held_out_gain

        reading.require_plausible()
        steps = Steps(3)
        with steps("reading"):
            old = _load(policy)
            fresh = _read(old, log, how)
        with steps("tuning again"):
            retuned = rcjax.retune(old, fresh, bands=bands)
        with steps("replaying both"):
            gain = held_out_gain(old, fresh)
            comparable = set(old.models) <= set(fresh.models)
            replays = {
                name: plain_replay(subject, fresh) if name == "after" or comparable else None
                for name, subject in (("before", old), ("after", retuned.policy))
            }
        remarks, unshown = _what_is_shown(old, fresh, gain)
        if out and unshown and not anyway:
            advice = "log more queries, or write it all the same with --anyway"
            problem: Exception | None = ValueError(f"{out}: not written: {unshown}: {advice}")
        else:
            problem = attempt(partial(retuned.policy.save, out)) if out else None
        written = None if problem else out
        document = {
            "before": old.to_json(),
            "policy": retuned.policy.to_json(),
            "replayed": replays,
            "gain": None if gain is None else plain(gain.to_json()),
            "remarks": [*retuned.remarks, *remarks],
        }
        show = partial(show_retuning, fresh.describe(), document, written, fresh.counted.noun, done=problem is None)
        files = {"written": str(written)} if written else {}
        conclude(document | files, show, as_json=json_, problem=problem)


def _what_is_shown(old: Any, fresh: Log, gain: RetuningGain | None) -> tuple[tuple[str, ...], str | None]:
    """(remarks on what was not tested; why it is not shown that the new policy is no worse, in words, or None)."""
    from rcjax._base.wording import percent
    from rcjax.tuning.retune import why_untested

    if gain is None:
        why, mendable = why_untested(old, fresh)
        untested = f"whether it gains on queries left out was not tested: {why}"
        return (untested,), (untested if mendable else None)
    if gain.not_worse:
        return (), None
    more, spread = (
        (percent(-gain.share), percent(gain.gain.se / gain.loss))
        if gain.loss > 0
        else (f"{-gain.gain.mean:.3g}", f"{gain.gain.se:.3g}")
    )
    return (), f"on queries left out policies tuned again raise {fresh.counted.noun} + λ·cost by {more} ± {spread}"
