"""What the command line shows to people: tables and figures, from plain numbers, without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from rcjax._base.wording import Money, between, choose_unit, describe_cascade, figure, percent
from rcjax._core.thinning import spread
from rcjax.cli.ascii_plot import sketch
from rcjax.cli.console import Screen, hang, make_table
from rcjax.cli.printing import shown
from rcjax.cli.replay_tables import LEVEL, _indent, _parts, _point
from rcjax.cli.seconds_words import brief_seconds, tell_seconds
from rcjax.policy.targets import Target

__all__ = ["show_policy", "show_report", "show_tuning"]


_CHAIN_WIDTH, _BAND_WIDTH, _REFUSED_WIDTH = 43, 12, 8  # leave room for the other columns on a terminal of 80


_SECONDS_WIDTH, _MONEY_WIDTH, _LEAST_WIDTH = 13, 8, 20


@shown
def show_tuning(
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    saved: Path | None,
    *,
    chosen: Mapping[str, Any] | None = None,
    known: str | None = None,
) -> None:
    """Print what was read, the models, and the frontier, as a table and drawn.

    `points` are the entries of its JSON form. `chosen` is the error and cost of the policy for a target, whose row is
    marked with an asterisk; a mixture of two points has none. `known` says how the errors of single models are known,
    such as "counted", where those of cascades are higher, for the luck of the choice.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    money = choose_unit([row["cost"] for row in rows])
    screen.print(_models_table(rows, money))
    shown = spread([point["cost"] for point in points], [point["error"] for point in points])
    mine = _place(points, chosen)
    if mine is not None and mine not in shown:  # in place of the point that is nearest to it
        nearest = min(shown, key=lambda i: abs(points[i]["cost"] - points[mine]["cost"]))
        shown = [mine if i == nearest else i for i in shown]
    some = f" ({len(shown)} of {len(points)} points)" if len(shown) < len(points) else ""
    starred = "" if mine is None else "; * is the policy for your target"
    screen.print(f"The error-cost frontier, as estimated from the log{some}{starred}:")
    screen.print(_frontier_table([points[i] for i in shown], money, screen.width, [i == mine for i in shown]))
    if not all(points[i].get("supported", True) for i in shown):
        screen.print(
            "~ No price leads there, only a budget or a limit on the error; at such a price its neighbours are best."
        )
    if known:
        screen.print(
            f"Errors of single models are as {known}; those of cascades are corrected for the luck of the choice.\n"
        )
    colour = screen.is_terminal and not screen.no_color
    screen.out(sketch(points, rows, money, chosen, colour=colour) + "\n", highlight=False)
    if saved:
        screen.print(f"Frontier written to {saved}", soft_wrap=True)


@shown
def show_copulas(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the family chosen for each pair of models, and how far behind the next best one is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("models", "copula"):
        table.add_column(heading, no_wrap=heading == "copula")
    table.add_column("Kendall's τ", justify="right")
    table.add_column("next best, and its AIC above")
    for row in (row for row in rows if row["chosen"]):
        others = [r for r in rows if r["pair"] == row["pair"] and not r["chosen"] and r["aic"] is not None]
        ranked = [f"{r['family']}, {figure(r['aic'] - row['aic'], 2)}" for r in sorted(others, key=lambda r: r["aic"])]
        table.add_row(" & ".join(row["pair"]), row["family"], f"{row['tau']:.2f}", *ranked[:1])
    Screen().print(table)


@shown
def show_policy(
    policy: Mapping[str, Any],
    target: Target,
    rows: Sequence[Mapping[str, Any]],
    saved: Path | None,
    remarks: Sequence[str] = (),
    *,
    known: str | None = None,
) -> None:
    """Print the policy or mixture chosen, given as its JSON form, beside single models, and remarks on it.

    `known` says how the error of a single model is known, such as "counted", where the policy's is higher than that.
    """
    screen = Screen()
    money = choose_unit([row["cost"] for row in rows])
    expected = policy["expected"]
    screen.print(f"Policy for your target ({target}):", style="bold")
    for share, part in _parts(policy):
        if share < 1:
            screen.print(f"  for {percent(share)} of the queries, told by a hash of their names:")
        screen.print(_indent(describe_cascade(_point(part), width=76)))
    apart = "" if expected.get("money") is None else f", with waiting; money alone ${money.show(expected['money'])}"
    screen.print(f"  expected cost   {money.full(expected['cost'])}{apart}")
    several = len(policy.get("policies", [])) > 1 or len(policy.get("models", [])) > 1
    luck = f", {'corrected for the luck of the choice' if several else f'as {known}'}" if known else ""
    screen.print(f"  expected error  {percent(expected['error'])}{luck}")
    if expected.get("abstention") is not None:
        screen.print(f"  without answer  {percent(expected['abstention'])} of the queries,", end=" ")
        screen.print(f"each counted as {expected['abstain_price']:.3g} errors")
    if expected.get("level"):
        costs = "–".join(f"${money.show(expected[end])}" for end in ("cost_low", "cost_high"))
        errors = between([expected["error_low"], expected["error_high"]])
        screen.print(f"  {100 * expected['level']:.4g} % intervals  {costs} and {errors} %")
    if expected.get("seconds") is not None:
        hang(screen, "seconds", tell_seconds(expected))
    for model, words in _alone(rows, target).items():
        row = next(row for row in rows if row["model"] == model)
        how = f" as {known}" if known else ""
        figures = f"{percent(1 - row['accuracy'])} wrong{how} at ${money.show(row['cost'])}"
        hang(screen, "alone", f"{model}: {figures}, {words}")
    screen.print("  (thresholds of calibrated confidence; policy.step takes yours as logged)")
    for remark in remarks:
        hang(screen, "note", remark)
    if saved:
        screen.print(f"Policy written to {saved}", soft_wrap=True)


def _alone(rows: Sequence[Mapping[str, Any]], target: Target) -> dict[str, str]:
    """The single models to compare a policy with, and why: the best within the target, and the one that errs least."""
    name, value, price = target.name, target.value, target.error_cost or 0.0
    near = {
        "budget": [row for row in rows if row["cost"] <= value],
        "max_error": [row for row in rows if 1 - row["accuracy"] <= value],
    }.get(name, rows)

    def merit(row: Mapping[str, Any]) -> tuple[float, float]:
        wrong = 1 - row["accuracy"]
        return {"budget": (wrong, row["cost"]), "max_error": (row["cost"], wrong)}.get(
            name, (row["cost"] + price * wrong, wrong)
        )

    marks = {min(near, key=merit)["model"]: "the best of them within the target"} if near else {}
    return {min(rows, key=lambda row: (1 - row["accuracy"], row["cost"]))["model"]: "the fewest errors"} | marks


@shown
def show_report(headline: str, written: Path | None) -> None:
    """Print what a report comes to, and where it is."""
    screen = Screen()
    screen.print(headline)
    if written:
        screen.print(f"Report written to {written}", soft_wrap=True)


def _models_table(rows: Sequence[Mapping[str, Any]], money: Money) -> Table:
    """One row per model: what it is worth by itself, and how far its confidence can be trusted."""
    timed = any(row.get("seconds") is not None for row in rows)
    heads = ["accuracy", f"$ per {money.name}", *["seconds"] * timed, "calibration error", "certain"]
    table = make_table("model", *heads)
    for row in rows:
        shares = [percent(row[name]) for name in ("accuracy", "calibration_error", "certain")]
        waits = [brief_seconds(row.get("seconds"))] if timed else []
        table.add_row(row["model"], shares[0], money.show(row["cost"]), *waits, *shares[1:])
    return table


def _place(points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None) -> int | None:
    """The position of the point chosen; None where there is none, as for a mixture."""
    if chosen is None:
        return None
    alike = [(point["cost"], point["error"]) == (chosen["cost"], chosen["error"]) for point in points]
    return alike.index(True) if True in alike else None


def _frontier_table(
    points: Sequence[Mapping[str, Any]], money: Money, width: int, starred: Sequence[bool] = ()
) -> Table:
    sure = all("error_interval" in point for point in points)
    refusing = any(point.get("abstention") for point in points)
    timed, waiting = (any(point.get(name) is not None for point in points) for name in ("seconds", "money"))
    heads = [f"$ per\n{money.name}", *["of it\nmoney"] * waiting, "error", *[f"{100 * LEVEL:.0f} %\ninterval"] * sure]
    heads += [*["no\nanswer"] * refusing, *["seconds:\nmean, 95 %"] * timed]
    table = make_table(*heads, numbers=len(heads))
    table.columns[-1].no_wrap = sure or refusing or timed
    simple = all(point.get("thresholds") for point in points)
    what = "models, answering above a confidence" if simple else "models, and what they do at a confidence"
    what = what.replace(", ", ",\n", 1).replace(" a ", "\na ") if timed else what
    table.add_column(what, no_wrap=True)
    table.add_column("best if 1,000\nerrors cost", justify="right")  # the cost of one is often a fraction of a cent
    for number, point in enumerate(points):
        star = "* " if number < len(starred) and starred[number] else ""
        gap = "" if point.get("supported", True) else "~"
        price = f"{gap}${figure(_rounded(1000 / point['lam']), 2)}" if point["lam"] else "more"
        room = max(width, 80) - 80 + _CHAIN_WIDTH - _BAND_WIDTH * sure - _REFUSED_WIDTH * refusing
        room -= _SECONDS_WIDTH * timed + _MONEY_WIDTH * waiting
        chain = describe_cascade(point, width=max(room, _LEAST_WIDTH) if timed else room)
        band = [between(point["error_interval"])] if sure else []
        band += [percent(point["abstention"])] if refusing else []
        band += [", ".join(brief_seconds(point.get(name)) for name in ("seconds", "seconds_p95"))] if timed else []
        alone = [money.show(point["money"])] if waiting else []
        cells = (star + money.show(point["cost"]), *alone, percent(point["error"]), *band, chain, price)
        table.add_row(*cells, style="bold" if star else None)
    return table


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
