"""The page of a service for operators, `GET /`, from the last requests of the worker that draws it.

It has no script, and shows no prompt, no answer and no key.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from html import escape

from rcjax._base.figures import Money, choose_unit, count, figure, percent
from rcjax.policy.comparison import recorded_comparison
from rcjax.policy.counted import recorded_counted
from rcjax.policy.following import DAY, Bill, PeriodBill
from rcjax.policy.policy import AnyPolicy
from rcjax.serving.gateway.catalog import Catalog, ServedPolicy
from rcjax.serving.gateway.clients import ClientUsage
from rcjax.serving.gateway.metrics import Ended, Shift, Shifts

_POINTS, _WIDTH, _HEIGHT, _MARGIN = 40, 420.0, 150.0, 22.0
_UNEVEN = 1.2  # ratio to an even pace, or its inverse, from which on the pace is uneven
_FEWEST = 20  # requests for a comparison of mean costs
_UNLIKELY = 0.001  # p-value below which a shift is more than chance; it is small, as the page is read often
_CLOCK = "%Y-%m-%d %H:%M UTC"

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>rcjax serve</title><style>
:root {{ --ink: #1c2128; --soft: #5b6470; --line: #d8dde3; --paper: #fff; --mark: #1f6feb }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e9ed; --soft: #9aa4b0; --line: #343b44; --paper: #14181d; --mark: #6cb0ff }}
}}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem }}
h1 {{ font-size: 1.3rem }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .2rem; overflow-wrap: anywhere }}
p {{ margin: .3rem 0; color: var(--soft); overflow-wrap: anywhere }} strong {{ color: var(--ink) }}
svg {{ width: 100%; max-width: 38rem; height: auto; font-size: 11px; fill: var(--soft) }}
polyline {{ fill: none; stroke: var(--mark); stroke-width: 2 }} circle {{ fill: var(--mark) }}
line {{ stroke: var(--soft); stroke-dasharray: 5 4 }}
table {{ border-collapse: collapse; width: 100%; margin: .8rem 0; font-variant-numeric: tabular-nums }}
caption {{ text-align: left; font-weight: 600; padding-bottom: .2rem }}
th, td {{ text-align: left; padding: .25rem .5rem .25rem 0; border-bottom: 1px solid var(--line) }}
td {{ overflow-wrap: anywhere }} td:last-child {{ white-space: nowrap }}
th {{ font-weight: 400; color: var(--soft) }} td + td, th + th {{ text-align: right }}
:nth-child(2):nth-last-child(3) {{ text-align: left }} .here td {{ font-weight: 600 }}
</style><main><h1>rcjax serve</h1><p>{worker}</p>{policies}</main></html>
"""


def draw_page(
    catalog: Catalog,
    requests: Sequence[Ended],
    shifts: Shifts | None = None,
    clients: Sequence[ClientUsage] = (),
    away: float | None = None,
) -> str:
    """Draw the page, as HTML.

    Args:
        catalog: the policies and models in service.
        requests: the last requests, from old to new.
        shifts: the shifts of confidences, if counted.
        clients: the usage of clients with names.
        away: time, in seconds since 1970, since when the replicas' ledger does not answer; None if it does.
    """
    last = f"the last {count(len(requests), 'request')} of this worker"
    which = last if requests else "no request to this worker yet"
    worker = f"{time.strftime(_CLOCK, time.gmtime())}: {which}. Load it again for news."
    if away is not None:
        since = time.strftime(_CLOCK, time.gmtime(away))
        worker += f" The ledger does not answer since {since}: money is as this worker counts it."
    drawn = [_policy(served, requests, shifts or Shifts()) for served in catalog.policies.values()]
    others = [request for request in requests if request.name not in catalog.policies]
    passed = _answers("Passed on, by the name of a model", others) if others else ""
    return _PAGE.format(worker=escape(worker), policies="".join(drawn) + passed + _clients(clients))


def _clients(clients: Sequence[ClientUsage]) -> str:
    """Draw the usage and the limit of each client, over all workers."""
    if not clients:
        return ""
    rows = list[tuple[str, ...]]()
    heads = ("client", "period", "requests", "paid", "of")
    for used in clients:
        money = used.client.money
        limit = "no limit" if money is None else f"${figure(money.money)}"
        rows.append(
            (used.client.name or "", f"this {used.every}", f"{used.requests:,}", f"${figure(used.money)}", limit)
        )
    return "<h2>Clients</h2>" + _table("What they have used", heads, rows, [False] * len(rows))


def _policy(served: ServedPolicy, recent: Sequence[Ended], shifts: Shifts) -> str:
    """Draw a policy and its requests, without requests to an earlier policy of its name."""
    policy, billing = served.policy, served.cascade.billing
    requests = [request for request in recent if (request.name, request.digest) == (served.name, served.digest)]
    which = "no policy yet: everything passes" if served.is_untuned else f"policy {served.digest}"
    about = [" → ".join(policy.models), which]
    if requests:
        since = time.strftime(_CLOCK, time.gmtime(requests[0].time))
        about.append(f"{count(len(requests), 'request')} since {since}")
    budget, bill = policy.budget, billing.bill
    paid = sum(request.cost for request in requests) / len(requests) if requests else 0.0
    unit = choose_unit([rung.expected.get("cost") or 0.0 for rung in policy.rungs] + [paid, budget or 0.0])
    money = [f"<strong>{unit.full(paid)}</strong> paid" if requests else "nothing asked yet"]
    money += [] if budget is None else [f"budget {unit.full(budget)}"]
    if isinstance(bill, Bill):
        state = "overspent" if bill.balance < 0 else "in hand"
        money.append(f"{state} ${abs(bill.balance):.3g}, to even out over the next {bill.window:g} queries")
    if (beside := served.shadow_cost) is not None:
        shadow = served.cascade.shadow
        which = f"{shadow}" if not isinstance(shadow, float) else percent(shadow)
        money.append(f"shadow queries ({which}) {escape(beside.describe(shadow))}")
    parts = [f"<h2>{escape(served.name)}</h2><p>{escape(' · '.join(about))}</p><p>{' · '.join(money)}</p>"]
    parts += (
        [f"<p>{_period(bill, time.time(), stops=billing.stops_at_budget)}</p>"] if isinstance(bill, PeriodBill) else []
    )
    parts.append(_comparison(policy, unit))
    if len(requests) > 1:
        parts.append(_chart([request.cost * unit.scale for request in requests], budget and budget * unit.scale))
    answering = _answers("Who answers", requests) if requests else ""
    moved = _shifts([*shifts.of(f"{served.name} {served.digest}", time.time())])
    return "".join([*parts, _cost_check(requests), moved, _ladder(served, billing.position, unit), answering])


def _period(bill: PeriodBill, now: float, *, stops: bool) -> str:
    """Describe the day, week or month, the money and the time left in it, and the consequence for queries."""
    period, left = bill.period, bill.left(now)
    start, end = period.bounds(now)
    month, days = time.strftime("%B %Y", time.gmtime(start)), (end - now) / DAY
    day = f"{time.gmtime(start).tm_mday} {month}"
    which = {"day": day, "week": f"The week from {day} on", "month": month}[period.every]
    until = f"{days:.1f} of {(end - start) / DAY:.0f} days" if period.every != "day" else f"{24 * days:.1f} of 24 hours"
    text = f"{which} (UTC): <strong>${figure(max(left, 0.0))} of ${figure(period.money)} left</strong>, for {until}"
    if left <= 0:
        then = "requests are refused" if stops else "the cheapest rung answers"
        return f"{text}. All is spent: {then} until the {period.every} ends."
    pace = left / period.money * (end - start) / (end - now)
    if 1 / _UNEVEN <= pace <= _UNEVEN:
        return f"{text}, at an even pace."
    means = f"Queries go by cheaper rungs until the {period.every} ends."
    if pace > 1:
        means = f"What a {period.every} has not spent is for the rest of it, as where a service starts late in it; "
        means += "its queries go by dearer rungs."
    return f"{text}: {figure(pace, 2)} times an even pace. {means}"


def _comparison(policy: AnyPolicy, unit: Money) -> str:
    """Describe the change from today's model that was measured when the policy was tuned; "" if none was."""
    comparison = recorded_comparison(policy.provenance)
    if comparison is None:
        return ""
    headline = comparison.headline(unit, recorded_counted(policy.provenance))
    return f"<p>As it was tuned, it {escape(headline)}.</p>"


def _cost_check(requests: Sequence[Ended]) -> str:
    """Compare the mean cost of requests with the cost that their rungs were tuned to, which needs no label."""
    pairs = [(request.cost, request.tuned) for request in requests if request.tuned]
    if len(pairs) < _FEWEST:
        return ""
    paid, tuned = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    spread = 1.645 * math.sqrt(sum((a - b - paid + tuned) ** 2 for a, b in pairs)) / len(pairs)
    off, ends = paid / tuned - 1, f"± {100 * spread / tuned:.1f} points"
    explained = "which chance explains" if abs(paid - tuned) <= spread else "more than chance explains"
    text = f"The last {count(len(pairs), 'judged request')} cost {percent(abs(off))} {'more' if off > 0 else 'less'}"
    text = f"{text} than their rungs did when they were tuned, {explained} ({ends})."
    return f"<p>{text} Whether answers are right, <code>rcjax check</code> tells by labels.</p>"


def _shifts(shifts: Sequence[Shift]) -> str:
    """Describe the shifts of confidences over all traffic, which need no label."""
    if not shifts:
        return ""
    listed = [
        f"{shift.model} {shift.distance:.2f} "
        f"({'chance explains it' if shift.p_value > _UNLIKELY else 'more than chance'})"
        for shift in shifts
    ]
    counts = f"{count(shifts[0].now, 'answer')} beside {shifts[0].before:,}"
    text = f"Confidences of this week beside the eight before have moved by: {', '.join(listed)}; {counts}."
    return f"<p>{escape(text)} <code>rcjax check</code> of the call log tells more.</p>"


def _chart(costs: Sequence[float], budget: float | None) -> str:
    """Chart the money per request, in means of successive requests, beside the budget."""
    size = -(-len(costs) // _POINTS)
    means = [sum(part) / len(part) for part in (costs[i : i + size] for i in range(0, len(costs), size))]
    most = max(*means, budget or 0.0, 1e-12) * 1.1
    heights = [_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * value / most for value in (*means, budget or 0.0)]
    line = " ".join(f"{_WIDTH * i / max(len(means) - 1, 1):.1f},{y:.1f}" for i, y in enumerate(heights[:-1]))
    marks = f'<text x="2" y="11">up to ${max(means):.3g}{"" if budget is None else "; dashed: the budget"}</text>'
    marks += f'<polyline points="{line}"/><circle cx="{_WIDTH - 4}" cy="{heights[-2]:.1f}" r="4"/>'
    if budget is not None:
        marks += f'<line x1="0" y1="{heights[-1]:.1f}" x2="{_WIDTH}" y2="{heights[-1]:.1f}"/>'
    marks += f'<text x="0" y="{_HEIGHT - 4}">older</text>'
    marks += f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">now</text>'
    label = f"money per request, the last {len(costs)} requests in turn"
    return f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}">{marks}</svg>'


def _ladder(served: ServedPolicy, position: float, unit: Money) -> str:
    """Draw the cost and the error of each rung, and the rungs of the next requests."""
    rows = []
    for number, rung in enumerate(served.policy.rungs):
        cost, error = (rung.expected.get(name) for name in ("cost", "error"))
        if cost is None or error is None:
            return ""
        rows.append((str(number), " → ".join(rung.models), f"${unit.show(cost)}", percent(error)))
    low, share = int(position), position % 1
    above = f", {percent(share, 0)} by rung {low + 1}" if share else ""
    to = f"{percent(1 - share, 0)} of the queries go by rung {low}{above}"
    ladder = f"The ladder of {len(rows)} rungs, as it was tuned; now at {position:.3g}: {to}"
    where = ladder if len(rows) > 1 else "As it was tuned"
    heads = ("rung", "asks", f"costs per {unit.name}", "errs")
    return _table(where, heads, rows, [abs(number - position) < 1 < len(rows) for number in range(len(rows))])


def _answers(caption: str, requests: Sequence[Ended]) -> str:
    """Draw the models that answered, the reasons not to judge, and the failures."""

    def table(title: str, names: Sequence[str]) -> str:
        rows = [(name, f"{number:,}", percent(number / len(requests))) for name, number in Counter(names).most_common()]
        return _table(title, ("which", "requests", "share"), rows, [False] * len(rows))

    failures = [request.status for request in requests if request.status in ("failed", "best so far")]
    drawn = table("Failures", failures) if failures else "<p>Failures: none</p>"
    reasons = [request.reason for request in requests if request.reason is not None]
    unjudged = table("Not judged: the largest or the cheapest model answers, by reason", reasons) if reasons else ""
    return table(caption, [request.model or "nobody" for request in requests]) + unjudged + drawn


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], here: Sequence[bool]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr{' class=here' if mark else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row, mark in zip(rows, here, strict=True)
    )
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"
