"""A replica of a service in a process of its own, for a simulated day: NAME URL LOG SECONDS CLOCK QUERIES FIRST.

It says when it is ready, and is told when the day began. It answers its queries evenly over a day that takes so many
seconds; its clock is wrong by CLOCK seconds. In 0 seconds its clock goes by its queries, and it waits for the other
replica whenever it is a fiftieth of the day ahead: then nothing depends on the machine. From noon on all models cost
double. Each query is logged and paid for by the code that serves.
"""

import json
import sys
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime

from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving import billing as module
from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import Call, CallLog, Handling, Query
from rcjax.serving.totals import Ledger

PLAIN = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
COSTS = {"small": 0.01, "middle": 0.05, "large": 0.5}
BUDGET, QUERIES = 0.08, 20_000
LADDER = Ladder(
    tuple(
        Policy((name,), {name: PLAIN}, {name: [Rule(1, "answer")]}, {name: cost}, expected={"error": 0.1, "cost": cost})
        for name, cost in COSTS.items()
    ),
    1.07,
    budget=BUDGET,
    period=Period(BUDGET * QUERIES, "day"),
)
DAY, START = 86_400.0, datetime(2024, 11, 6, tzinfo=UTC).timestamp()


class Clock:
    """The clock of a replica: simulated, and wrong."""

    def __init__(self, began, seconds, wrong):
        self._began, self._speed, self._wrong = began, DAY / seconds if seconds else 0.0, wrong
        self.monotonic, self.due = time.monotonic, START

    def true(self):
        if not self._speed:
            return self.due
        return START + (time.time() - self._began) * self._speed

    def time(self):
        return self.true() + self._wrong


def serve(name, url, path, began, seconds, wrong, queries, first):
    clock = module.time = Clock(began, seconds, wrong)
    log = CallLog(path, replica=name)
    ledger = None if url == "none" else Ledger(url, name)
    billing, today = SharedBill(LADDER, "policy", log, ledger), LADDER.period.bounds(START)
    for query in range(first, queries):
        clock.due = START + DAY * (query + 0.5) / queries
        time.sleep(max(0.0, (clock.due - clock.true()) * seconds / DAY))
        billing.catch_up()
        while (
            not seconds
            and ledger.total("policy policy", "day", today).last_read().queries_of_others < query - queries // 50
        ):
            time.sleep(0.005)
            billing.catch_up()
        rung = LADDER.choose(f"{name}{query}", billing.position)
        cost = rung.expected["cost"] * (0.5 + query % 2) * (2.0 if clock.true() > START + DAY / 2 else 1.0)
        ended = datetime.fromtimestamp(clock.time(), UTC).isoformat(timespec="milliseconds")
        mark = replace(billing.charge, step=1)
        call = Call(
            query=Query(str(query), (), handling=Handling(is_shadow_query=True, charge=mark)),
            model="m",
            upstream_model="m",
            text="B",
            answer="B",
            logprob=-0.1,
            confidence=0.8,
            cost=cost,
            input_tokens=9,
            output_tokens=1,
            estimated=False,
            attempts=1,
            seconds=0.0,
            time=ended,
            error=None,
        )
        log.write(call)
        billing.pay([call], rung.expected["cost"])
    if ledger is not None:
        ledger.close()


def costs_in(path):
    """Return the money that a log says was spent."""
    return sum(json.loads(line)["cost"] for line in path.read_text().splitlines())


if __name__ == "__main__":
    warnings.simplefilter("always")
    name, url, path, *numbers = sys.argv[1:]
    print("ready", flush=True)
    began = float(sys.stdin.readline())
    serve(name, url, path, began, *map(float, numbers[:2]), *map(int, numbers[2:]))
