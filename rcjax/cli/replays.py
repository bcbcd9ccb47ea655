"""`rcjax evaluate`, `retune` and `demo`: policies on logged queries, beside today's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.figures import Money, capitalised, count, interval_half_width, percent
from rcjax.cli.app import start_jax
from rcjax.cli.checks import advise_next, compare_fresh, next_file, show_comparison, show_decision
from rcjax.cli.console import (
    LEVEL,
    Fact,
    Screen,
    attempt,
    cascade_lines,
    command,
    conclude,
    escape_arguments,
    facts,
    facts_table,
    make_table,
    staged,
)
from rcjax.cli.inputs import (
    load_tuned,
    read_dated,
    read_for,
    require_outputs,
    require_plausible_prices,
    sort_by_time,
    with_budget_per_query,
)
from rcjax.cli.options import AsJson, InUse, LogFile, LogOptions, Model, Output, PolicyFile
from rcjax.policy.comparison import advise
from rcjax.policy.error_kind import recorded_error_kind
from rcjax.policy.ladder import Queries
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import MARGIN, Spec, recorded_tuning

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.solving.frontier.frontier import Frontier
    from rcjax.tuning.diagnostics.decision import Replacement
    from rcjax.tuning.tune import Tuned

FRESH = 10_000  # fresh queries of the demo
_FRESH = "Log of fresh queries, as for rcjax check; without it, only the prices are new."
_QUERIES_A_MONTH = 3_000_000  # 100,000 a day


def evaluate(
    reading: Annotated[LogOptions, "prices", "labels", "answers", "reference", "same", "score_max", "really"],
    policy_or_frontier: Annotated[Path, typer.Argument(metavar="POLICY_OR_FRONTIER")],
    log: LogFile,
    today: InUse = None,
    json_: AsJson = False,
) -> None:
    """Test a policy, or a frontier, on the queries of a log: its error and cost beside the prediction and today's.

    The answers come from the log: no model is asked. Use queries that the policy was not tuned on; those that it
    carries are left out. The decision is that of `rcjax check` at one look; the exit status is 0 whatever it is. A
    policy that follows its bill is replayed with its bill, too. Models that the policy does not know are ignored.
    Without `--prices`, tokens have the prices of the tuning.

    Example: `rcjax evaluate policy.json fresh_log.csv`

    Args:
        policy_or_frontier: File of `rcjax tune`, by --out or --frontier.
        today: The model of LOG, or the policy file, in use today. [default: as when tuning]
    """
    options = reading.options()
    start_jax()
    from rcjax.tuning.diagnostics.policy_check import try_check

    steps = staged(3)
    with steps("reading"):
        tuned, notes = load_tuned(policy_or_frontier, frontiers=True), list[str]()
        if isinstance(tuned, AbstractPolicy):
            tuned, notes = with_budget_per_query(tuned, log)
        data = sort_by_time(read_for(tuned, log, options), log)
    with steps("replaying"):
        document, remarks = _evaluation(tuned, data)
    notes += remarks
    if isinstance(tuned, AbstractPolicy):
        is_same_log, rungs = document["tuned_on_this_log"], list[int]()
        reprice = reading.prices is not None and _has_new_prices(tuned, reading.prices)
        notes += ["prices have changed since it was tuned: the prediction is for the old ones"] * reprice
        comparison, uncompared = compare_fresh(tuned, data, today)
        document, notes = document | comparison, [*notes, *uncompared]
        with steps("checking"):
            checked, reason = try_check(tuned, data)
            document["check"] = check_document = checked and checked.to_json()
        if check_document is None and not is_same_log:
            notes.append(f"it cannot be checked: {reason}")
        step = _advise_next(policy_or_frontier, log, reading, check_document, is_same_log=is_same_log, reprice=reprice)
        money = recorded_tuning(tuned).spec.money([document["spent"]])
    else:
        step = "rcjax tune with a target, such as --budget, and --out policy.json, for one of these", ""
        rungs, money = tuned.rung_indices.tolist(), Spec().money(document["cost"])
        document["search"] = tuned.search
    heading, noun = data.describe(confidences=False), data.error_kind.noun
    conclude(document, partial(_show_replay, heading, document, notes, noun, step, rungs, money), as_json=json_)


def _evaluation(tuned: AbstractPolicy | Frontier, log: Log) -> tuple[dict[str, Any], list[str]]:
    """Replay a policy or a frontier; return (its figures and the predicted figures, as JSON values; remarks)."""
    from rcjax.tuning.certify import overlap
    from rcjax.tuning.replaying.replay import compare_with_reference_model

    shared = overlap(log, tuned)
    log = shared.leave_out(log)
    comparison = compare_with_reference_model(tuned, log) if isinstance(tuned, AbstractPolicy) else None
    document = replay_on(tuned, log) | {"predicted": _predicted(tuned, log), "queries_tuned_on": shared.queries}
    document |= {"tuned_on_this_log": shared.covers_log}
    document |= {} if comparison is None else {"reference": comparison.to_json()}
    document["single_models"] = _single_models(log)
    notes = [] if comparison is None else [f"on these queries it {comparison.describe()}"]
    notes += [shared.describe_left_out()] * (bool(shared) and not shared.covers_log)
    return document, notes


def _has_new_prices(policy: AbstractPolicy, path: Path) -> bool:
    """Return whether a file of prices differs from the known prices of a policy's tuning."""
    from rcjax.logs.prices import read_prices

    before, now = recorded_tuning(policy).prices, read_prices(path)
    return bool(before) and any(name in now and now[name] != price for name, price in read_prices(before).items())


def _advise_next(
    file: Path,
    log: Path,
    reading: LogOptions,
    check_document: Mapping[str, Any] | None,
    *,
    is_same_log: bool,
    reprice: bool,
) -> tuple[str, str]:
    """Return (advice, command) after a replay.

    Args:
        file, log, reading: file of the policy, the log, and the options of reading it.
        check_document: check of the policy; None if it cannot be checked.
        is_same_log: whether the policy was tuned on this very log.
        reprice: whether prices have changed since the tuning.
    """
    options = reading.as_options() | {"reference": None, "same": None}  # the policy records these
    if reprice:
        return "which policy is best at these prices?", command("retune", file, log, **options)
    if is_same_log:
        return "is it as good on queries that are not in this log?", command("evaluate", file, "NEW_LOG.csv")
    if check_document is None:
        return "evaluate it on a log of fresh queries with labels", command("evaluate", file, "NEW_LOG.csv")
    advice, retune = advise_next(check_document, command("retune", file, log, **options, out=next_file(file)))
    if advice.startswith("keep the policy;"):
        advice = advice.replace("keep the policy;", "keep the policy, or deploy it (rcjax serve --help);")
    return advice, retune


def _single_models(log: Log) -> dict[str, dict[str, float]]:
    from rcjax.model.label_outcomes import corrected_log
    from rcjax.tuning.replaying.comparing import single_model_errors

    errors = single_model_errors(corrected_log(log.comparable))  # as the replay of a policy estimates missing labels
    figures = zip(log.models, errors.tolist(), log.comparable.single_cost.tolist(), strict=True)
    return {name: {"error": error, "cost": cost} for name, error, cost in figures}


def _predicted(tuned: AbstractPolicy | Frontier, log: Log) -> dict[str, Any]:
    """Return the figures expected at the time of tuning, as JSON values: lists of figures for a frontier.

    The error is left out if the log counts another quantity.
    """
    from rcjax._core.batching import as_json_values

    if isinstance(tuned, AbstractPolicy):
        is_same = recorded_error_kind(tuned.provenance).noun == log.error_kind.noun
        return {name: figure for name, figure in tuned.expected.items() if is_same or not name.startswith("error")}
    figures = {"error": tuned.error, "cost": tuned.cost, "abstention": tuned.abstention}
    return {name: as_json_values(values) for name, values in figures.items() if values is not None}


def replay_on(tuned: AbstractPolicy | Frontier, log: Log) -> dict[str, Any]:
    """Replay a policy on a log; return figures as JSON values, with 90 % intervals of the true error and cost.

    The figures of a frontier are lists with a value for each point. For a ladder that follows its bill, `followed` has
    the figures of following the bill on these queries, in their order.
    """
    import numpy as np

    from rcjax._core.batching import as_json_values
    from rcjax.tuning.replaying.replay import error_interval, replay as replay_, replay_stream

    log = log.comparable
    replay = replay_(tuned, log)
    names = ("cost", "error", "cost_se", "error_se", "spent", "spent_se", "share", "abstention", "error_answered")
    figures = {name: as_json_values(getattr(replay, name)) for name in names} | {
        "n": replay.n_queries,
        "models": list(replay.models),
    }
    spread = np.array([-1, 1]) * interval_half_width(LEVEL)
    intervals = {"error_interval": error_interval(replay, log, LEVEL)}
    for name in ("cost", "spent"):
        mean, se = (np.asarray(figures[part])[..., None] for part in (name, f"{name}_se"))
        intervals[f"{name}_interval"] = np.maximum(mean + spread * se, 0.0)
    seconds = {} if replay.seconds is None else replay.seconds.to_json()
    followed = {}
    if isinstance(tuned, AbstractPolicy) and (stream := replay_stream(tuned, log)) is not None:
        se = stream.wrong.std() / math.sqrt(len(stream.wrong))
        served = dataclasses.replace(replay, error=stream.wrong.mean(), error_se=se)
        interval = {"error_interval": as_json_values(error_interval(served, log, LEVEL))}
        followed = {"followed": stream.to_json() | interval | {"tuned": tuned.position}}
    return figures | as_json_values(intervals) | {"level": LEVEL} | seconds | followed


def _replayed(replayed: Mapping[str, Any], money: Money, noun: str) -> dict[str, list[Fact]]:
    """Return the facts of a replay of `replay_on`, in columns: the policy in service first.

    For a ladder that follows its bill, the second column has the tuned position, with its cost but without its error:
    a screen shows one error of a policy.
    """
    abstains, followed = replayed["abstention"] > 0, replayed.get("followed")
    as_tuned = {name: replayed[name] for name in replayed if abstains or name not in ("abstention", "error_answered")}
    as_tuned |= {"cost": replayed["spent"], "cost_interval": replayed["spent_interval"]}
    shares = dict(zip(replayed["models"], replayed["share"], strict=True))
    by_model = [Fact(f"by {name}", share, "share") for name, share in shares.items() if share]
    if followed is None:
        return {"observed": [*facts(as_tuned, money, noun), *by_model]}
    as_followed = followed | {"cost": followed["bill"], "abstention": followed["abstention"] if abstains else None}
    as_tuned |= {"error": None, "abstention": None, "error_answered": None, "position": followed["tuned"]}
    return {
        "observed,\nfollowing\nits budget": [*facts(as_followed, money, noun)],
        "at the rung\nof the tuning": [*facts(as_tuned, money, noun), *by_model],
    }


@escape_arguments
def _show_replay(
    heading: str,
    document: Mapping[str, Any],
    notes: Sequence[str],
    noun: str,
    step: tuple[str, str],
    rungs: Any,
    money: Money,
) -> None:
    """Print the decision on a policy and its replay, with today's and the promise; or the `rungs` of a frontier."""
    screen = Screen()
    screen.print(heading)
    if document["tuned_on_this_log"]:
        tuned_on = "No verdict: this is the very log that it was tuned on, which is no test of it."
        screen.print(tuned_on, style="bold")
    if document.get("check"):
        show_decision(screen, document["check"], change=document["change"])
    show_comparison(screen, document, money, noun)
    labelled = (document.get("comparison") or {}).get("labelled")
    estimated = "" if labelled is None else f", {labelled:,} labelled"
    screen.print(f"Replayed on {count(document['n'], 'query')}{estimated}; (a–b): a {100 * LEVEL:.0f} % interval.")
    if rungs:
        expected, interval = document["predicted"], document["error_interval"]
        table = make_table(f"predicted {money.label}", "observed", f"predicted {noun}", "observed", text_columns=0)
        paid = "spent" if document["search"] == "labels" else "cost"  # the promise is of bills, or of mean costs
        for i in rungs:
            costs = (money.show(cost[i]) for cost in (expected["cost"], document[paid]))
            observed = Fact(noun, document["error"][i], "share", tuple(interval[i])).show(money)
            table.add_row(*costs, percent(expected["error"][i]), observed)
    else:
        expected = {"predicted": [*facts(document["predicted"], money, noun)]}
        table = facts_table(expected | _replayed(document, money, noun), money)
    screen.print(table)
    single = [
        f"{name} {percent(figures['error'])} at ${money.show(figures['cost'])}"
        for name, figures in document["single_models"].items()
    ]
    screen.hang("alone", *([] if rungs else ["; ".join(single)]))
    screen.hang("note", *notes)
    screen.next_step(*step)


def retune(
    reading: Annotated[LogOptions, "prices", "labels", "answers", "score_max", "really"],
    policy: PolicyFile,
    log: Annotated[list[Path] | None, typer.Argument(metavar="LOG", help=_FRESH)] = None,
    out: Output = None,
    intervals: Annotated[bool | None, typer.Option("--bands/--no-bands")] = None,
    anyway: bool = False,
    json_: AsJson = False,
) -> None:
    """Tune a policy again, on fresh queries and those that it carries, and show what changes.

    The target and the options stay. If LOG has times, its last eight weeks count. Without LOG, `--prices` tunes the
    policy again for new prices. The new policy is written if it gains the equivalent of half a point of error on all
    known queries, and loses nothing on held-out ones; or if POLICY exceeds its limit or is worse than expected, and the
    new policy is not.

    The exit status is 0 even if the new policy is not written because it gains too little. It is 1 if the new policy
    is worse than expected on the queries that POLICY carries, or if LOG is no fair sample: over 5 % of its queries lack
    answers, or its labels are not drawn at random.

    Example: `rcjax retune policy.json calls/ --labels labels.csv --out policy.json`

    Args:
        out: Write the new policy here; the file may be POLICY.
        intervals: Intervals by the bootstrap. [default: as before]
        anyway: Write the new policy even if it gains too little, or LOG is no fair sample.
    """
    options = reading.options()
    if not log and reading.prices is None:
        problem = "is missing: give a log of fresh queries, or --prices for new prices alone"
        raise typer.BadParameter(problem, param_hint="LOG")
    inputs = reading.inputs(log[0] if log else policy)
    require_outputs({"--out": out}, inputs, {"--out": "policy"})  # it may be the file of POLICY
    start_jax()
    import rcjax
    from rcjax._core.batching import as_json_values

    steps = staged(3)
    with steps("reading"):
        old = load_tuned(policy)
        every_week, fresh = _read_fresh(old, log or (), reading, options)
    with steps("tuning again"):
        retuned = rcjax.retune(old, fresh, intervals=intervals)
        new = retuned.policy
        assert new is not None  # as there is a target
        assert retuned.comparison is not None
    with steps("replaying both, and checking"):
        replacement, check_document = _assess_retuning(old, retuned, every_week, fresh, log or ())
        has_old_models = set(old.models) <= set(fresh.models)
        replays = {"before": replay_on(old, fresh) if has_old_models else None, "after": replay_on(new, fresh)}
    renewed = not log and reading.prices is not None and _has_new_prices(old, reading.prices)
    grounds = _Grounds.of(replacement, check_document, fresh, renewed=renewed)
    written_to, problem = (None, None) if out is None else grounds.write(new, out, anyway=anyway)
    same = [] if log or renewed else ["these prices are those of the tuning"]
    remarks = [*same, *retuned.notes, *(grounds.reasons if check_document is None and problem is None else ())]
    if out and problem is None and written_to is None:
        remarks.append("nothing is written, as said above: --anyway writes the new policy all the same")
    document = {"before": old.to_json(), "policy": new.to_json(), "replayed": replays, "check": check_document}
    document |= {"replacement": as_json_values(replacement.to_json()), "comparison": retuned.comparison.to_json()}
    change = retuned.comparison.headline(retuned.money, retuned.log.error_kind)
    document |= {"change": f"it {change}", "remarks": remarks, "refused": grounds.refused and not anyway}
    document |= {"accepted": grounds.accepted}
    document |= {"written": str(written_to)} if written_to else {}
    again = command("retune", policy, *(log or ()), **reading.as_options(), out=next_file(policy))
    step = (
        ("", "")
        if problem
        else grounds.next_step(again)
        if check_document is None
        else advise_next(check_document, again)
    )
    deploy = "deploy it: rcjax serve takes up a new version of the file that it serves by itself", ""
    if written_to is not None and not written_to.samefile(policy):
        question = f"before you deploy it, in place of {policy}, is it as good on queries that it was not tuned on?"
        deploy = question, command("evaluate", written_to, "NEW_LOG.csv")
    heading = fresh.describe(confidences=False)
    show = partial(_show_retuning, heading, document, fresh.error_kind.noun, step, deploy, retuned.money)
    conclude(document, show, as_json=json_, problem=problem)


def _read_fresh(
    policy: AbstractPolicy, log: Sequence[Path], reading: LogOptions, options: Mapping[str, Any]
) -> tuple[Log, Log]:
    """Read a log; return (it, its last weeks), or twice the queries that the policy carries, at new prices."""
    from rcjax.logs.kept_sample import carried_log
    from rcjax.logs.prices import reprice
    from rcjax.logs.sources import join_parts
    from rcjax.tuning.diagnostics.weeks import last_weeks

    if log:
        every_week = read_dated(policy, log, join_parts(log), options)
        return every_week, last_weeks(every_week)
    require_plausible_prices(reading.prices, reading.really)
    carried = reprice(carried_log(policy), recorded_tuning(policy).prices, reading.prices)
    return carried, carried


def _assess_retuning(
    old: AbstractPolicy, retuned: Tuned, every_week: Log, fresh: Log, files: Sequence[Path]
) -> tuple[Replacement, Mapping[str, Any] | None]:
    """Return (the replacement of a policy by a new one; the check of the old one as JSON values, None without one).

    The old policy is taken at the traffic of the log, as `rcjax check` takes it; without files, only prices are new.
    """
    from rcjax.logs.sources import main_file
    from rcjax.tuning.diagnostics.decision import assess_replacement
    from rcjax.tuning.diagnostics.policy_check import try_check

    subject, _ = with_budget_per_query(old, main_file(files)) if files else (old, [])
    assert retuned.policy is not None  # as there is a target
    replacement = assess_replacement(subject, retuned.policy, fresh, retuned.log)
    checked, _ = try_check(subject, every_week, replacement)
    return replacement, checked and checked.to_json()


@dataclass(frozen=True)
class _Grounds:
    """The grounds for writing a new policy.

    Args:
        accepted: whether it gains enough.
        refused: whether it breaks its promise, or the log is no fair sample.
        reasons: reasons in words.
        advice: what to do if nothing is written.
    """

    accepted: bool
    refused: bool
    reasons: Sequence[str]
    advice: str = "keep the policy in service"

    @classmethod
    def of(
        cls, replacement: Replacement, check_document: Mapping[str, Any] | None, log: Log, *, renewed: bool
    ) -> _Grounds:
        """Weigh a replacement, by the check of the old policy if there is one; `renewed`: only prices have changed."""
        if check_document is None:
            saving = replacement.saving  # within its limit, a policy is replaced by none that is dearer
            renewed = renewed and (saving is None or saving.saved_share >= 0)
            accepted = replacement.replaces(broken=renewed)
            return cls(accepted, bool(replacement.faults), replacement.describe(log.error_kind, broken=renewed))
        from rcjax.tuning.diagnostics.decision import ELSE_HAS_CHANGED

        decision = check_document["decision"]
        refused = decision["state"] in ("no fair sample", ELSE_HAS_CHANGED) or bool(replacement.faults)
        return cls(decision["tune_again"], refused, decision["reasons"], decision["advice"])

    def write(self, policy: AbstractPolicy, out: Path, *, anyway: bool) -> tuple[Path | None, Exception | None]:
        """Write the new policy, if it is accepted or `anyway`; return (its file or None, the problem or None)."""
        if self.refused and not anyway:
            advice = f"{self.advice}; --anyway writes the new policy all the same"
            return None, ValueError(f"{out}: not written: {'; '.join(self.reasons)}: {advice}")
        if not self.accepted and not anyway:
            return None, None
        problem = attempt(partial(policy.save, out))
        return None if problem else out, problem

    def next_step(self, retune: str) -> tuple[str, str]:
        """Return (advice, command) without a check of the old policy; `retune` is the command that tunes again."""
        return ("tune again", retune) if self.accepted else ("keep the policy in service", "")


@escape_arguments
def _show_retuning(
    heading: str, document: Mapping[str, Any], noun: str, step: tuple[str, str], deploy: tuple[str, str], money: Money
) -> None:
    """Print the decision on a policy, its comparison with the new policy, the new policy's with today's, the next step.

    Args:
        step: (advice, command) for the next step; empty after a problem.
        deploy: (advice, command) for the next step if the new policy is written.
    """
    screen = Screen()
    screen.print(heading)
    if document["check"]:  # if writing was refused, the error repeats the reasons
        reasons = any(step) or "written" in document
        show_decision(screen, document["check"], reasons=reasons, action="Replace the policy")
    elif not document["refused"]:
        screen.print(f"{'Replace' if document['accepted'] else 'Keep'} the policy.", style="bold")
    policies, replays = {"before": document["before"], "after": document["policy"]}, document["replayed"]
    for name, policy in policies.items():
        for line in cascade_lines(policy, name):
            screen.print(line)
    columns: dict[str, list[Fact]] = {}
    for name, policy in policies.items():
        columns[f"{name},\nexpected"] = [*facts(policy["expected"], money, noun)]
        replayed = _replayed(replays[name], money, noun) if replays[name] else {"": []}
        columns[f"{name},\non these"] = next(iter(replayed.values()))
    short = {  # rungs of two ladders do not compare, and intervals have no room
        name: [fact._replace(interval=None) for fact in column if fact.unit != "rung"]
        for name, column in columns.items()
    }
    screen.print(facts_table(short, money))
    screen.print("The new policy was tuned on these queries, where it looks a little better than it is.")
    if not document["refused"]:
        screen.print(f"What to expect of the new policy: {document['change']}.")
        show_comparison(screen, document, money, noun)
    screen.hang("note", *document["remarks"])
    if "written" in document:
        screen.print_path(f"Policy written to {document['written']}")
        screen.next_step(*deploy)
    elif any(step):
        screen.next_step(*step)


def demo(
    queries: Annotated[int, typer.Option(min=50, max=1_000_000, metavar="N")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, metavar="N")] = 2,
    today: Model = None,
    json_: AsJson = False,
) -> None:
    """Tune on synthetic queries, without data or network: a policy of five models, as good as today's, for less.

    The queries imitate the answers of five Llama models to real questions. The policy may have one point more error
    than today's model, and is tested on fresh queries.

    Example: `rcjax demo --queries 300 --seed 7`

    Args:
        queries: Number of queries to tune on.
        seed: Seed of the sampled queries.
        today: The model in use today. [default: the largest]
    """
    start_jax()
    import rcjax
    from rcjax.tuning.replaying.comparing import compare_policy

    steps = staged(3)
    with steps("sampling queries"):
        sample = rcjax.sample_log(queries + FRESH, seed)
        log, fresh = sample.take(slice(queries)), sample.take(slice(queries, None))
    with steps("tuning"):
        tuned = rcjax.tune(log, match=MARGIN, today=today or log.models[-1], queries=Queries(_QUERIES_A_MONTH, "month"))
    assert tuned.policy is not None
    assert tuned.comparison is not None
    with steps("answering fresh queries"):
        comparison = compare_policy(tuned.policy, fresh, tuned.spec.today)
    document = {"synthetic": True, "queries": queries, "seed": seed, "models": list(log.models)}
    document |= {"policy": tuned.policy.to_json(), "model_summary": [model.to_json() for model in tuned.single_models]}
    document |= {"promised": tuned.comparison.to_json(), "comparison": comparison.to_json()}
    advice = capitalised(advise(tuned.policy, comparison, tuned.money, margin=MARGIN))
    conclude(document, partial(_show_demo, document, advice, tuned.money), as_json=json_)


@escape_arguments
def _show_demo(document: Mapping[str, Any], advice: str, money: Money) -> None:
    screen, policy = Screen(), document["policy"]
    today = document["promised"]["rivals"][0]["name"]
    screen.print("SYNTHETIC: queries sampled from a model of five LLMs; no LLM is asked.")
    screen.print(f"As good as {today}, within a point of error, for less:", style="bold")
    screen.print(f"On {document['queries']:,} tuning queries, at {_QUERIES_A_MONTH:,} queries a month:")
    rows = [(row["model"], percent(1 - row["accuracy"]), money.show(row["cost"])) for row in document["model_summary"]]
    screen.print(make_table("each model alone", "error", money.label, rows=rows, lines=False))
    screen.print("\nThe policy (the first answers if it is surer than that, else the next):")
    for line in cascade_lines(policy):
        screen.print(line)
    show_comparison(screen, document, money, "error")
    screen.print(f"{advice}.")
    screen.print("With questions: rcjax collect --help. With an endpoint: rcjax serve --help.")
    screen.next_step("with a log of your own", "rcjax tune log.csv --prices prices.toml --match 1% --out policy.json")
