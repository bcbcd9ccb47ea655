"""The effect of one client's expensive requests on other clients: one bill for all, a bound or a bill for each name.

    python -m benchmarks.clients [--queries 20000] [--services 10]

Eight clients ask a service whose ladder follows its bill, in random order; the answers of a rung cost 60 % more or less
than its mean. From the first quarter of the queries to the third, the first client is greedy: its requests are a
hundred times or ten times as expensive, or ten times as many. The ways to keep the budget are the code of the service
(`rcjax.policy.ladder`): one bill for all, as in a service without names; a bound, by which each name moves the common
balance by at most one eighth of a window's budgets; and a bill for each name (`client_bill`), as in a service with
names, also with a limit of a quarter of a month's money for each name. The tables have the position of the seven other
clients on the ladder, while the first client is greedy and afterwards; the position of the greedy client; and the share
of the money that was spent, for a budget per query and for a month's money. Errors of the rungs are those of four
models in turn: 30, 22, 15 and 10 %. ± is one standard error over services.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import record
from benchmarks.report import with_error
from rcjax.policy.bills import DAY, AbstractBill, Bill, PeriodBill, client_bill
from rcjax.policy.ladder import Period

_COSTS, _ERRORS = (2e-5, 5e-5, 1e-4, 3e-4), (0.30, 0.22, 0.15, 0.10)
_BUDGET, _CLIENTS = 8e-5, 8
_START, _MONTH = 1_798_761_600.0, 31 * DAY

#: What the greedy client does: its requests cost so many times as much, and it sends so many times as many.
_GREEDY = {
    "is as the others": (1.0, 1),
    "asks what is 100 times as dear": (100.0, 1),
    "asks what is 10 times as dear": (10.0, 1),
    "asks 10 times as often": (1.0, 10),
}


@dataclass
class OneBill:
    """One bill for all."""

    bill: AbstractBill

    def position(self, client: int, time: float) -> float:
        """Where the next query of a client finds the ladder."""
        return self.bill.position(_COSTS, time)

    def pay(self, client: int, cost: float, expected: float, time: float) -> None:
        """Count a query."""
        self.bill = self.bill.after_query(cost, expected, time)

    def refuses(self, client: int) -> bool:
        """Whether a client is answered no more."""
        return False


@dataclass
class Bounded(OneBill):
    """One bill for all, which each name can move so far and no further."""

    def __post_init__(self) -> None:
        self.moved = [0.0] * _CLIENTS

    def pay(self, client: int, cost: float, expected: float, time: float) -> None:
        """Count a query, as far as its client may still move the bill."""
        aim = self.bill.budget if isinstance(self.bill, Bill) else self.bill.target_cost(time)
        most = 400 * aim / _CLIENTS
        after = max(-most, min(self.moved[client] + aim - cost, most))
        counted = aim - (after - self.moved[client])
        self.moved[client] = after
        spent = self.bill.after_query(max(counted, 0.0), expected, time)
        self.bill = (
            replace(spent, spent=spent.spent + cost - max(counted, 0.0)) if isinstance(spent, PeriodBill) else spent
        )


@dataclass
class OwnBills(OneBill):
    """A bill for each name."""

    def __post_init__(self) -> None:
        self.own: dict[int, Bill] = {}

    def position(self, client: int, time: float) -> float:
        """Where the next query of a client finds the ladder."""
        mine = client_bill(self.bill, self.own.get(client), time)
        return 0.0 if mine is None else mine.position(_COSTS, time)

    def pay(self, client: int, cost: float, expected: float, time: float) -> None:
        """Count a query, in both bills."""
        mine = client_bill(self.bill, self.own.get(client), time)
        if mine is not None:
            self.own[client] = mine.after_query(cost, expected, time)
        self.bill = self.bill.after_query(cost, expected, time)


@dataclass
class Limited(OwnBills):
    """A bill for each name, whose own money is a quarter of what all have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spent = [0.0] * _CLIENTS

    def refuses(self, client: int) -> bool:
        """Whether a client has spent its money."""
        return isinstance(self.bill, PeriodBill) and self.spent[client] >= self.bill.period.money / 4

    def pay(self, client: int, cost: float, expected: float, time: float) -> None:
        """Count a query, in all bills."""
        self.spent[client] += cost
        super().pay(client, cost, expected, time)


_WAYS: dict[str, Callable[[AbstractBill], OneBill]] = {
    "one bill": OneBill,
    "a bound for each name": Bounded,
    "a bill for each name": OwnBills,
    "the same, and a limit": Limited,
}


def play(way: OneBill, greedy: tuple[float, int], queries: int, rng: np.random.Generator) -> list[float]:
    """(others' position and error meanwhile, the greedy one's, others' position after, money over the budgets)."""
    dearer, many = greedy
    begin, end = queries // 4, 3 * queries // 4
    usual, weights = np.full(_CLIENTS, 1 / _CLIENTS), np.array([many, *[1] * (_CLIENTS - 1)]) / (many + _CLIENTS - 1)
    lots, noise = rng.random(queries), rng.choice([0.4, 1.6], queries)
    who = np.where(
        (np.arange(queries) >= begin) & (np.arange(queries) < end),
        rng.choice(_CLIENTS, queries, p=weights),
        rng.choice(_CLIENTS, queries, p=usual),
    )
    positions, errors, paid = np.zeros(queries), np.zeros(queries), 0.0
    for place in range(queries):
        client, now = int(who[place]), _START + _MONTH * place / queries
        if way.refuses(client):
            positions[place], errors[place] = math.nan, math.nan
            continue
        positions[place] = way.position(client, now)
        low, share = divmod(positions[place], 1)
        rung = int(low) + (lots[place] < share)
        cost = _COSTS[rung] * noise[place] * (dearer if client == 0 and begin <= place < end else 1.0)
        way.pay(client, cost, _COSTS[rung], now)
        errors[place], paid = _ERRORS[rung], paid + cost
    during, others = np.arange(queries) // (queries // 4), who != 0
    meanwhile = (during == 1) | (during == 2)
    after = others & (np.arange(queries) >= end) & (np.arange(queries) < end + 1000)
    rows = [positions[meanwhile & others], errors[meanwhile & others], positions[meanwhile & ~others], positions[after]]
    means = (float(np.nanmean(one)) if np.isfinite(one).any() else math.nan for one in rows)
    return [*means, paid / queries / _BUDGET]


_FIGURES = ("others stand at", "others err, %", "it stands at", "others, 1,000 queries after", "money, of the budgets")


def main() -> None:
    """Play all, and print a Markdown table."""
    options = record.parser(__doc__)
    options.add_argument("--queries", type=int, default=20_000)
    options.add_argument("--services", type=int, default=10)
    chosen = options.parse_args()
    bills: dict[str, Callable[[], AbstractBill]] = {
        "per query": lambda: Bill.open(_BUDGET),
        "a month": lambda: PeriodBill.open(Period(_BUDGET * chosen.queries, "month"), _BUDGET, _START),
    }
    rows = []
    for kind, bill in bills.items():
        for greedy, what in _GREEDY.items():
            for name, way in _WAYS.items():
                played = np.array(
                    [play(way(bill()), what, chosen.queries, np.random.default_rng(n)) for n in range(chosen.services)]
                ) * np.array([1, 100, 1, 1, 1])
                figures = [with_error(played[:, j], "") for j in range(len(_FIGURES))]
                rows.append([kind, greedy, name, *figures])
                if greedy == "asks what is 100 times as dear" and kind == "per query":
                    told = f"{played[:, 0].mean():.2f}"
                    record.headline(f"eight clients, the requests of one {greedy}, {name}: the others stand at", told)
    heads = ["budget", "the greedy client", "way", *_FIGURES]
    print(f"| {' | '.join(heads)} |\n|{'---|' * 3}{'--:|' * len(_FIGURES)}")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    record.run(main)
