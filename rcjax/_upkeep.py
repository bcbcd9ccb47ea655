"""`rcjax check` and `rcjax retune`: is a policy in service still right, and a new one where it is not."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._failures import attempt, conclude, reported
from rcjax._options import AsJson, Labels, LogFile, Prices, fraction
from rcjax._shell import load_tuned, read_file, require_distinct, require_writable, start_jax

if TYPE_CHECKING:
    from rcjax.logs import Log
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy

__all__ = ["check", "retune"]

_OTHERS = "the others are used where they can be"

PolicyFile = Annotated[
    Path, typer.Argument(show_default=False, metavar="POLICY", help="What `rcjax tune --out` wrote.")
]


def check(
    policy: PolicyFile,
    log: LogFile,
    prices: Prices = None,
    labels: Labels = None,
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
    json_: AsJson = False,
) -> None:
    """Is a policy still right on fresh queries? For your CI: exit status 0 fine, 1 drifted, 2 bad input or any failure.

    Holds the calibration and the confidences of each model, and the error and the cost of the policy, to what they were
    when it was tuned, and tests whether tuning again would gain. A figure alarms where it is large enough to matter and
    chance does not explain it. The queries of LOG must be answered by all models of the policy, and labelled.
    """
    if alarm is not None and not 0 < alarm < 1:
        raise typer.BadParameter("must lie between 0 and 100%", param_hint="--alarm")
    drifted = None
    with reported(as_json=json_, status=2):
        from rcjax._terminal import busy
        from rcjax._terminal_checks import show_check

        start_jax()
        import rcjax

        with busy("reading"):
            subject = _load(policy)
            fresh = _read(subject, log, prices, labels)
            old = _read(subject, tuned_on, prices, None) if tuned_on else None
        with busy("checking"):
            options = {"tuned_on": old, "retuning": retuning, "alarm": 0.05 if alarm is None else alarm}
            found = rcjax.check_policy(subject, fresh, **options)
        drifted, document = found.drifted, found.to_json()
        conclude(document, partial(show_check, document), as_json=json_)
    raise typer.Exit({False: 0, True: 1, None: 2}[drifted])


def retune(
    policy: PolicyFile,
    log: LogFile,
    prices: Prices = None,
    labels: Labels = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the new policy here; it may be POLICY."),
    ] = None,
    bands: Annotated[
        bool | None, typer.Option("--bands/--no-bands", help="Intervals by the bootstrap. [default: as before]")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Tune a policy again on a fresh log, for the same target and with the same options, and show what changes."""
    inputs = [("LOG", log), ("--prices", prices), ("--labels", labels)]  # it may be that of POLICY
    require_distinct([("--out", out)], inputs)
    with reported(as_json=json_):
        from rcjax._json import plain
        from rcjax._terminal import busy, plain_replay, show_retuning

        require_writable(out)
        start_jax()
        import rcjax
        from rcjax.retuning import held_out_gain

        with busy("reading"):
            old = _load(policy)
            fresh = _read(old, log, prices, labels)
        with busy("tuning again"):
            found = rcjax.retune(old, fresh, bands=bands)
        with busy("replaying both"):
            gain = held_out_gain(old, fresh)
            known = set(old.models) <= set(fresh.models)
            replays = {
                name: plain_replay(rcjax.replay(each, fresh)) if name == "after" or known else None
                for name, each in (("before", old), ("after", found.policy))
            }
        problem = attempt(partial(found.policy.save, out)) if out else None
        written = None if problem else out
        document = {
            "before": old.to_json(),
            "policy": found.policy.to_json(),
            "replayed": replays,
            "gain": None if gain is None else plain(dataclasses.asdict(gain) | {"share": gain.share}),
            "remarks": list(found.remarks),
        }
        show = partial(show_retuning, fresh.describe(), document, written)
        told = {"written": str(written)} if written else {}
        conclude(document | told, show, as_json=json_, problem=problem)


def _load(path: Path) -> Policy | Mixture:
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy

    found = load_tuned(path)
    if not isinstance(found, Policy | Mixture):
        kind = type(found).__name__.lower()
        raise ValueError(f"{path}: it is a {kind}: give a policy, which rcjax tune writes with --out")
    return found


def _read(policy: Policy | Mixture, path: Path, prices: Path | None, labels: Path | None) -> Log:
    """The answers of all models that the policy was chosen from, or where the log lacks one, of its own models."""
    from rcjax.logs import LogError, MissingPricesError, read_answers
    from rcjax.retuning import recorded_tuning

    tuning = recorded_tuning(policy)
    task = "choice" if tuning.transform == "choice" else "generation"
    read = partial(read_file, read_answers, path, _OTHERS, task=task, labels=labels)

    def priced(models: tuple[str, ...]) -> Log:
        try:
            return read(models=models, prices=prices)
        except MissingPricesError:
            if not tuning.prices:
                raise
            return read(models=models, prices=tuning.prices)

    try:
        return priced(tuning.models)
    except LogError:
        return priced(policy.models)
