"""`rcjax retune`: a policy tuned again on a fresh log."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import PolicyFile, _load, _read
from rcjax.cli.options import Answers, AsJson, Labels, LogFile, Prices
from rcjax.cli.plausible import Really, require_plausible_prices

__all__ = ["retune"]


def retune(
    policy: PolicyFile,
    log: LogFile,
    prices: Prices = None,
    labels: Labels = None,
    answers: Answers = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the new policy here; it may be POLICY."),
    ] = None,
    bands: Annotated[
        bool | None, typer.Option("--bands/--no-bands", help="Intervals by the bootstrap. [default: as before]")
    ] = None,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Tune a policy again on a fresh log, for the same target and with the same options, and show what changes."""
    inputs = [
        ("LOG", log),
        ("--prices", prices),
        ("--labels", labels),
        ("--answers", answers),
    ]  # it may be that of POLICY
    require_distinct([("--out", out)], inputs)
    with reported(as_json=json_):
        from rcjax._core.json_values import plain
        from rcjax.cli.console import busy
        from rcjax.cli.replay_tables import plain_replay, show_retuning

        require_writable(out)
        start_jax()
        import rcjax
        from rcjax.tuning.retune import held_out_gain

        require_plausible_prices(prices, really)
        with busy("reading"):
            old = _load(policy)
            fresh = _read(old, log, prices, labels, answers)
        with busy("tuning again"):
            retuned = rcjax.retune(old, fresh, bands=bands)
        with busy("replaying both"):
            gain = None if isinstance(old, rcjax.SegmentedPolicy) else held_out_gain(old, fresh)
            known = set(old.models) <= set(fresh.models)
            replays = {
                name: plain_replay(rcjax.replay(subject, fresh)) if name == "after" or known else None
                for name, subject in (("before", old), ("after", retuned.policy))
            }
        problem = attempt(partial(retuned.policy.save, out)) if out else None
        written = None if problem else out
        document = {
            "before": old.to_json(),
            "policy": retuned.policy.to_json(),
            "replayed": replays,
            "gain": None if gain is None else plain(dataclasses.asdict(gain) | {"share": gain.share}),
            "remarks": list(retuned.remarks),
        }
        show = partial(show_retuning, fresh.describe(), document, written)
        told = {"written": str(written)} if written else {}
        conclude(document | told, show, as_json=json_, problem=problem)
