"""A service from end to end: thousands of queries, failures, money to the cent, a log to tune on."""

import asyncio
import json
from collections import Counter
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from chat_server import Response, serving, sure

import rcjax
from rcjax import signals
from rcjax._base.hashing import draw_lot
from rcjax.policy import Defer
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]
NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
PRICES = {"small": (0.1, 0.4), "middle": (0.2, 0.8), "large": (0.9, 3.6)}
QUERIES, FAILING = 2000, 0.05


class World:
    """What three models answer to queries: the letter, how sure they are, and the tokens used."""

    def __init__(self, n, seed):
        log = rcjax.sample_log(n, seed).select(NAMES)
        self.logprob, self.correct = np.asarray(log.logprob, float), np.asarray(log.correct)
        self.n = n

    def tokens(self, i):
        return 100 + 37 * i % 211, 1

    def row(self, i, model):
        j = list(PRICES).index(model)
        return {
            "query": i,
            "model": model,
            "logprob": self.logprob[i, j],
            "correct": bool(self.correct[i, j]),
            "input_tokens": self.tokens(i)[0],
            "output_tokens": self.tokens(i)[1],
        }

    def table(self, without=()):
        pairs = [(i, model) for i in range(self.n) for model in PRICES]
        return pl.DataFrame([self.row(*pair) for pair in pairs if pair not in without])

    def answer(self, i, model):
        row = self.row(i, model)
        return sure("A" if row["correct"] else "B", row["logprob"], self.tokens(i))

    @property
    def labels(self):
        return pl.DataFrame({"query": list(range(self.n)), "answer": ["a"] * self.n})

    def cost(self, i, model):
        return sum(n * Fraction(str(price)) for n, price in zip(self.tokens(i), PRICES[model], strict=True)) / 10**6


class Unreliable:
    """A world behind a server of which one request in twenty goes wrong, by a hash of the query and the model."""

    MENDED = ("limit", "overload", "hang")  # by another attempt
    KINDS = (*MENDED, "malformed", "refused")

    def __init__(self, world, delay=0.002):
        self.world, self.delay = world, delay
        self.seen, self.sent = set(), []

    def fate(self, i, model):
        lot = draw_lot("fate", f"{i}:{model}") / FAILING
        return self.KINDS[int(lot * len(self.KINDS))] if lot < 1 else None

    def lost(self, i, model):
        """Whether no attempt brings an answer."""
        return self.fate(i, model) in ("malformed", "refused")

    def __call__(self, request, headers):
        i, model = int(request["messages"][0]["content"]), request["model"]
        again, kind = (i, model) in self.seen, self.fate(i, model)
        self.seen.add((i, model))
        if kind in self.MENDED and not again:
            status = {"limit": 429, "overload": 503}.get(kind, 200)
            return Response({"error": {}}, status=status, headers={"retry-after-ms": "20"}, hang=kind == "hang")
        if self.lost(i, model):
            return Response(b'{"choices": [', status=200 if kind == "malformed" else 400)
        self.sent.append((i, model))
        return Response(self.world.answer(i, model), delay=self.delay * (1 + i % 3))


def tuned(log):
    return rcjax.solve_frontier(rcjax.fit(log), cascades="full").policy(error_cost=1e-3)


def walk(policy, behind, i):
    """(the model that answers query i or None, the models asked), in plain Python."""
    asked, model = [], policy.first
    while model is not None:
        asked.append(model)
        if behind.lost(i, model):
            later = policy.models[policy.models.index(model) + 1 :]
            model = later[0] if later else None
            continue
        decision = policy.step(model, logprob=behind.world.row(i, model)["logprob"])
        if not isinstance(decision, Defer):
            return model, asked
        model = decision.next_model
    usable = [each for each in asked if not behind.lost(i, each)]
    sureness = [policy.calibrate(each, logprob=behind.world.row(i, each)["logprob"]) for each in usable]
    return (usable[int(np.argmax(sureness))] if usable else None), asked


def charge(policy, behind, i, model):
    """What a call costs: its tokens; nothing where it was refused, and the mean where the reply was not to be read."""
    kind = behind.fate(i, model)
    if kind == "refused":
        return 0
    return Fraction(policy.cost[model]) if kind == "malformed" else behind.world.cost(i, model)


@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning", "ignore::rcjax.logs.LeftOutWarning")
def test_two_thousand_queries_with_failures(tmp_path):
    world = World(QUERIES, seed=0)
    policy = tuned(rcjax.read_log(world.table(), prices=PRICES, task="choice"))
    assert policy.models == tuple(PRICES)
    behind = Unreliable(world)

    async def main():
        async with serving(behind) as (server, client):
            with CallLog(tmp_path / "calls.jsonl") as log:
                signal = signals.Choice(choices=("A", "B"))
                cascade = Cascade(policy, client, signal=signal, log=log, shadow=1.0, concurrency=64)
                return await cascade.ask_all((i, str(i)) for i in range(QUERIES)), server

    results, server = asyncio.run(main())
    assert server.busiest <= 64

    # Every query is accounted for once, with the answer that the policy and the failures make.
    assert [result.query for result in results] == [str(i) for i in range(QUERIES)]
    for i, result in enumerate(results):
        model, asked = walk(policy, behind, i)
        assert (result.model, [call.model for call in result.calls]) == (model, asked)
        assert result.answer == (model and ("A" if world.row(i, model)["correct"] else "B"))
    kept = Counter(result.model for result in results)
    assert min(kept[model] for model in PRICES) > 50
    assert {result.status for result in results} >= {"answered", "best so far"}
    rows = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    pairs = [(int(row["query"]), row["model"]) for row in rows]
    assert len(pairs) == len({*pairs}) == 3 * QUERIES
    lost = {pair for pair in pairs if behind.lost(*pair)}
    assert {pair for pair, row in zip(pairs, rows, strict=True) if row["error"]} == lost
    assert 0.01 * len(pairs) < len(lost) < 0.03 * len(pairs)
    retried = {pair for pair in pairs if behind.fate(*pair) in Unreliable.MENDED}
    assert {pair for pair, row in zip(pairs, rows, strict=True) if row["attempts"] > 1} == retried

    # Money: of each query, in all, and as the server counts it. No answer was paid for twice.
    for result in results:
        exact = sum(charge(policy, behind, int(result.query), call.model) for call in result.calls)
        assert result.cost == pytest.approx(float(exact), rel=1e-12, abs=1e-15)
    assert len(behind.sent) == len({*behind.sent})
    billed = sum(world.cost(*pair) for pair in behind.sent)
    assert sum(row["cost"] for row in rows if not row["estimated"]) == pytest.approx(float(billed), rel=1e-12)

    # The log tunes to the policy of the world that answered.
    again = rcjax.read_log(tmp_path / "calls.jsonl", prices=PRICES, task="choice", labels=world.labels)
    again = again.take(np.argsort(again.queries))
    reference = rcjax.read_log(world.table(without=lost), prices=PRICES, task="choice")
    assert again.digest == reference.digest
    retuned, expected = tuned(again), tuned(reference)
    assert (retuned.rules, retuned.calibrations) == (expected.rules, expected.calibrations)
    assert retuned.expected == expected.expected
    assert retuned.models == policy.models
