"""What commands show to people, from plain numbers, without JAX: tables, figures, the frontier in characters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from rich.padding import Padding
from rich.table import Table

from rcjax._base.wording import Money, between, choose_unit, describe_cascade, figure, percent
from rcjax._core.thinning import best_as_printed, spread
from rcjax.cli.console import Screen, hang, make_table, next_step
from rcjax.cli.printing import command, shown
from rcjax.cli.replay_tables import LEVEL, cascade_lines, facts_table
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.facts import brief_seconds, facts
from rcjax.policy.following import Period
from rcjax.policy.targets import Target

_GAP = 3  # between two columns of a table


_TERMINAL, _LEAST_WIDTH = 80, 20  # columns of a terminal, at least, and of a cascade in a table


_POINTS, _POINTS_DRAWN = 5, 7  # of the frontier, with a target and without


_CERTAIN = 0.5  # of a model's answers at confidence 1, from where it is worth a line


@shown
def show_tuning(
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    *,
    chosen: Mapping[str, Any] | None = None,
    drawn: bool = False,
    noun: str = ERRORS.noun,
) -> None:
    """Print what was read, the models, and some points of the frontier.

    `points` are the entries of its JSON form. `chosen` is the error and cost of the policy for a target, whose row is
    marked with an asterisk; one between two points has none. `drawn` adds a drawing of it, and more of its points.
    `noun` is what is counted.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    money = choose_unit([row["cost"] for row in rows])
    screen.print(_models_table(rows, money, noun))
    for row in rows[:-1]:  # no threshold decides about the last
        if row["certain"] >= _CERTAIN:
            what = f"{percent(row['certain'], 0)} of the answers of {row['model']} have the confidence 1"
            hang(screen, "note", f"{what}: no threshold parts them")
    best = _best(points)
    costs, errors = ([points[i][name] for i in best] for name in ("cost", "error"))
    shown = [best[i] for i in spread(costs, errors, _POINTS_DRAWN if drawn else _POINTS)]
    mine = _place(points, chosen)
    if mine is not None and mine not in shown:  # in place of the point that is nearest to it
        nearest = min(shown, key=lambda i: abs(points[i]["cost"] - points[mine]["cost"]))
        shown = [mine if i == nearest else i for i in shown]
    some = f" ({len(shown)} of {len(points)})" if len(shown) < len(points) else ""
    starred = "" if mine is None else "; * is that for your target"
    screen.print(f"The frontier, the best policies of these models from cheap to dear{some}{starred}:")
    screen.print(_frontier_table([points[i] for i in shown], money, screen.width, [i == mine for i in shown], noun))
    if drawn:
        colour = screen.is_terminal and not screen.no_color
        screen.out(sketch(points, rows, money, chosen, noun, colour=colour) + "\n", highlight=False)


@shown
def show_policy(
    policy: Mapping[str, Any],
    target: Target,
    rows: Sequence[Mapping[str, Any]],
    verdict: str | None,
    notes: Sequence[str] = (),
    counted: Counted = ERRORS,
) -> None:
    """Print what to do for a target, what else there is to say, then the policy, given as its JSON form."""
    screen, money = Screen(), choose_unit([row["cost"] for row in rows])
    if verdict:
        screen.print("What to do", style="bold")
        screen.print(Padding(verdict, (0, 2)))
    rival = _best_alone(rows, target)
    if rival is not None:
        figures = f"{percent(1 - rival['accuracy'])} {counted.noun} at ${money.show(rival['cost'])}"
        hang(screen, "alone", f"{rival['model']}: {figures}, the best single model for your target")
    for note in notes:
        hang(screen, "note", note)
    period = None if policy.get("period") is None else Period(**policy["period"])
    aim = target.describe(counted) if period is None else f"at most {period}"
    screen.print(f"\nPolicy for your target ({aim}):", style="bold")
    for line in cascade_lines(policy):
        screen.print(line)
    screen.print(f"  (> and ≤: the calibrated confidence, the {counted.success} among answers that sure)")
    expected = policy["expected"]
    level = expected.get("level")
    head = f"in brackets, {100 * level:.4g} % intervals" if level else ""
    screen.print(facts_table({"expected": [*facts(expected, money, counted.noun)]}, money, head))
    if period is not None:
        dearest, queries = max(rows, key=lambda row: row["cost"]), period.money / policy["budget"]
        alone = f"{dearest['model']} alone costs ${figure(queries * dearest['cost'])}"
        hang(screen, "money", f"a service keeps to {period} (UTC); {alone} for the same {figure(queries)} queries")


@shown
def show_next(policy: Path | None, budget: str | None) -> None:
    """Print the file of the policy, if it is written, and the command after `rcjax tune`.

    Args:
        policy: the file of the policy, where it is written.
        budget: one to try, where there was no target.
    """
    screen = Screen()
    if policy is not None:
        screen.print_path(f"Policy written to {policy}")
        words = "is it as good on queries that are not in this log?"
        next_step(screen, words, command("evaluate", policy, "NEW_LOG.csv"))
    elif budget is not None:
        target = f"a target, such as --budget {budget}"
        next_step(screen, f"the same command with {target}, and --out policy.json, chooses a policy")
    else:
        next_step(screen, "the same command with --out policy.json writes this policy")


def _best_alone(rows: Sequence[Mapping[str, Any]], target: Target) -> Mapping[str, Any] | None:
    """The best single model for a target; None where none is within it."""
    if target.name == "budget":
        within = [row for row in rows if row["cost"] <= target.value]
        return max(within, key=lambda row: (row["accuracy"], -row["cost"]), default=None)
    if target.name == "max_error":
        within = [row for row in rows if 1 - row["accuracy"] <= target.value]
        return min(within, key=lambda row: (row["cost"], -row["accuracy"]), default=None)
    return min(rows, key=lambda row: row["cost"] + (target.error_cost or 0.0) * (1 - row["accuracy"]))


@shown
def show_report(headline: str, written: Path | None) -> None:
    """Print what a report comes to, and where it is."""
    screen = Screen()
    screen.print(headline)
    if written:
        screen.print_path(f"Report written to {written}")
        next_step(screen, "open it in a browser; it needs no network, and can be sent as it is")


def _models_table(rows: Sequence[Mapping[str, Any]], money: Money, noun: str) -> Table:
    """One row per model: what it does by itself, and by how much its confidence is off, on average."""
    timed = any(row.get("seconds") is not None for row in rows)
    heads = [noun, f"$ per {money.name}", *["seconds"] * timed, "confidence\noff by"]
    table = make_table("each model alone", *heads)
    for row in rows:
        waits = [brief_seconds(row.get("seconds"))] if timed else []
        wrong, off = percent(1 - row["accuracy"]), percent(row["calibration_error"])
        table.add_row(row["model"], wrong, money.show(row["cost"]), *waits, off)
    return table


def _place(points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None) -> int | None:
    """The position of the point chosen; None where there is none, as between two."""
    if chosen is None:
        return None
    alike = [(point["cost"], point["error"]) == (chosen["cost"], chosen["error"]) for point in points]
    return alike.index(True) if True in alike else None


def _best(points: Sequence[Mapping[str, Any]]) -> list[int]:
    """Positions of the points that no other one beats as they are printed; all where refusals are a third figure."""
    if any(point.get("abstention") for point in points):
        return list(range(len(points)))
    return best_as_printed(*([point[name] for point in points] for name in ("cost", "error")))


def _frontier_table(
    points: Sequence[Mapping[str, Any]], money: Money, width: int, starred: Sequence[bool], noun: str
) -> Table:
    sure = all("error_interval" in point for point in points)
    refusing = any(point.get("abstention") for point in points)
    timed = any(point.get("seconds") is not None for point in points)
    heads = [f"$ per\n{money.name}", noun, *[f"{100 * LEVEL:.0f} %\ninterval"] * sure]
    heads += [*["no\nanswer"] * refusing, *["seconds:\nmean, 95 %"] * timed]
    simple = all(point.get("thresholds") for point in points)
    what = "models, answering above a confidence" if simple else "models, and what they do at a confidence"
    rows = []
    for number, point in enumerate(points):
        star = "* " if number < len(starred) and starred[number] else ""
        band = [between(point["error_interval"])] if sure else []
        band += [percent(point["abstention"])] if refusing else []
        band += [", ".join(brief_seconds(point.get(name)) for name in ("seconds", "seconds_p95"))] if timed else []
        rows.append((star + money.show(point["cost"]), percent(point["error"]), *band))
    room = max(max(width, _TERMINAL) - _width_of(heads, rows) - _GAP, _LEAST_WIDTH)
    table = _numbers_table(heads)
    # Where even one name has no room, it is folded, and no figure is cut.
    table.add_column(what.replace(", ", ",\n", 1) if len(what) > room else what, overflow="fold")
    for cells, point in zip(rows, points, strict=True):
        style = "bold" if cells[0].startswith("*") else None
        table.add_row(*cells, describe_cascade(point, width=room), style=style)
    return table


def _numbers_table(heads: Sequence[str]) -> Table:
    table = make_table(*heads, numbers=len(heads))
    for column in table.columns:
        column.no_wrap = True
    return table


def _width_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide a table of numbers is, whatever the words of its heads are."""
    table = _numbers_table(heads)
    for row in rows:
        table.add_row(*row)
    return Screen().measure(table).maximum


_CURVE, _CHOSEN = "·", "◆"


_WIDTH, _HEIGHT = 64, 10  # characters, without the frame: it fits a terminal of 80


_DECIMALS = 4  # of errors in per cent, far below what a log can tell


_NARROWEST = 0.01  # points of error on an axis


_SAME = 1e-4  # costs that differ by this share are one


def sketch(
    points: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    money: Money,
    chosen: Mapping[str, Any] | None = None,
    noun: str = "error",
    *,
    colour: bool = False,
) -> str:
    """Draw the error, in per cent, against the cost: the frontier, each model alone as a letter, the point chosen.

    `points` and `chosen` hold `cost` and `error`, `rows` `model`, `cost` and `accuracy` of each model. Series differ
    by their characters; `colour` adds to that only. Models far from the frontier are
    named, not drawn. `noun` is what is counted.
    """
    from uniplot import plot_to_string  # where something is drawn only: it takes a moment to import

    curve = sorted((point["cost"], point["error"]) for point in points)
    letters = dict(zip(ascii_uppercase, rows, strict=False))
    beyond = {letter for letter, row in letters.items() if not _is_near(row["cost"], 1 - row["accuracy"], curve)}
    series = [curve, *([(row["cost"], 1 - row["accuracy"])] for letter, row in letters.items() if letter not in beyond)]
    marks = [_CURVE, *(letter for letter in letters if letter not in beyond)]
    if chosen:
        series.append([(chosen["cost"], chosen["error"])])
        marks.append(_CHOSEN)
    xs = [[float(f"{money.scale * cost:.6g}") for cost, _ in curve] for curve in series]
    ys = [[round(100 * error, _DECIMALS) for _, error in curve] for curve in series]
    drawing = plot_to_string(
        xs=xs,
        ys=ys,
        **_window("x", xs, 0.0),
        **_window("y", ys, _NARROWEST),
        lines=[True] + [False] * (len(series) - 1),
        width=_WIDTH,
        height=_HEIGHT,
        y_unit=" %",
        x_gridlines=[],
        y_gridlines=[],
        color=["blue", *["red"] * (len(letters) - len(beyond)), "green"][: len(series)] if colour else False,
        character_set="ascii",
        force_ascii_characters=marks,
    )
    text = drawing if isinstance(drawing, str) else "\n".join(drawing)
    legend = _legend(letters, beyond, money, bool(chosen), noun)
    return "\n".join([*(line.rstrip() for line in text.splitlines()), *legend])


def _window(axis: str, values: Sequence[Sequence[float]], narrowest: float) -> dict[str, float]:
    """The ends of an axis where all values are nearly one: else its labels would be of what rounding leaves."""
    numbers = list(itertools.chain.from_iterable(values))
    low, high = min(numbers), max(numbers)
    if high - low > max(narrowest, _SAME * high):
        return {}
    margin = max(narrowest, 0.1 * high) or 1.0
    return {f"{axis}_min": max(low - margin, 0.0), f"{axis}_max": high + margin}


def _is_near(cost: float, error: float, curve: Sequence[tuple[float, float]]) -> bool:
    """Whether a point would leave the frontier at least half of the drawing, both ways."""
    costs, errors = zip(*curve, strict=True)
    most = max(costs) + (max(costs) - min(costs)), max(errors) + (max(errors) - min(errors))
    return cost <= most[0] and error <= most[1]


def _legend(
    letters: Mapping[str, Mapping[str, Any]], beyond: Set[str], money: Money, chosen: bool, noun: str
) -> list[str]:
    """What the characters stand for, in lines as wide as the drawing."""
    pieces = [f"{_CURVE} the frontier", *([f"{_CHOSEN} your target"] if chosen else [])]
    pieces += [f"{letter} {row['model']}{' (far off)' * (letter in beyond)}" for letter, row in letters.items()]
    lines = [f" {noun} against $ per {money.name} queries:"]
    for piece in pieces:
        if len(lines[-1]) + len(piece) + 2 > _WIDTH:
            lines.append("")
        lines[-1] += f"  {piece}"
    return lines
