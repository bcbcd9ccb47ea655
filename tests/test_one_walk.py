"""One walk: what becomes of a query by `policy.step`, by `replay` and by `Cascade` is the same, whatever the policy.

And what a service logs of it, with labels that come later, is the log of the same queries.
"""

import asyncio
import re

import numpy as np
import polars as pl
import pytest
from helpers.chat_server import Response, serving, sure
from helpers.gateway_service import MODELS
from helpers.policy_samples import make_ladder
from helpers.scripted_cascade import make_cascade
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.logs import Log
from rcjax.policy import Agreement, Answer, Calibration, Policy, Rule, signals
from rcjax.serving.call_log import CallLog

pytestmark = pytest.mark.usefixtures("float64")

N, LETTERS = 12, "ABC"
PRICES = {name: {"input": price, "output": 4 * price} for name, price in zip(MODELS, (0.1, 0.5, 3.0), strict=True)}
COST = dict(zip(MODELS, (1e-5, 5e-5, 3e-4), strict=True))


def drawn_policy(rng, calibrations) -> Policy:
    """Rules of up to three intervals, each to keep, to abstain or to ask a larger model, and comparisons of answers."""
    rules, agreements = {}, {}
    for j, name in enumerate(MODELS):
        later = MODELS[j + 1 :]
        ends = [*np.sort(rng.uniform(0.1, 0.9, rng.integers(0, 3))).tolist(), 1.0]
        acts = [str(rng.choice(["answer", "abstain", *["ask"] * 3 * bool(later)])) for _ in ends]
        rules[name] = [
            Rule(end, act, str(rng.choice(later)) if act == "ask" else None)
            for end, act in zip(ends, acts, strict=True)
        ]
    if rng.random() < 0.5:
        agreements["middle"] = Agreement("small", "large", "choice")
    return Policy(MODELS, calibrations, rules, COST, PRICES, agreements=agreements)


def drawn_ladder(rng, position):
    """Two such policies, which calibrate alike."""
    lines = {name: Calibration("choice", rng.normal(), rng.normal(1, 0.5), 0.01, 9.0) for name in MODELS}
    return make_ladder([drawn_policy(rng, lines) for _ in range(2)], position)


def drawn_log(rng, verified) -> tuple[Log, np.ndarray]:
    """A log of answers that are letters, of which A is right, and the tokens of both questions: (N, 3, 2, 2).

    Models that are `verified` are asked a second question, whether their answer is right.
    """
    tokens = rng.integers(1, 500, (N, 3, 2, 2))
    price = np.array([[PRICES[name]["input"], PRICES[name]["output"]] for name in MODELS])
    cost, signal_cost = np.moveaxis((tokens * price[:, None]).sum(-1) / 1e6, -1, 0)
    cost, signal_cost = (cost + signal_cost, signal_cost) if verified else (cost, None)
    answer = rng.integers(0, len(LETTERS), (N, 3)).astype(np.int32)
    matrices = {"logprob": np.log(rng.uniform(0.05, 0.999, (N, 3))), "correct": answer == 0, "query_cost": cost}
    matrices |= {"answered": np.ones((N, 3), bool), "answer": answer, "signal_cost": signal_cost}
    facts = {"models": MODELS, "queries": tuple(f"q{i}" for i in range(N)), "task": "choice", "source": "drawn"}
    return Log(**matrices, cost=cost.mean(0), **facts), tokens


def by_steps(policy, log, i):
    """(who answers, or None where the policy abstains; the models asked)."""
    name, asked, said = policy.first_model, [], {}
    while True:
        j = MODELS.index(name)
        asked.append(name)
        own = LETTERS[log.answer[i, j]]
        decision = policy.step(name, logprob=float(log.logprob[i, j]), answer=own, answers=said)
        if not hasattr(decision, "next_model"):
            return (name if isinstance(decision, Answer) else None), asked
        said[name], name = own, decision.next_model


def bill_of(log, i, asked, policy=None):
    """What the models asked cost. By a policy nobody asks whether an answer is right if it is kept in any case."""
    bill, last = float(sum(log.query_cost[i, MODELS.index(name)] for name in asked)), asked[-1]
    if log.signal_cost is None or policy is None or last in policy.agreements:
        return bill
    is_kept = {rule.action for rule in policy.rules[last]} == {"answer"}
    return bill - is_kept * float(log.signal_cost[i, MODELS.index(last)])


async def served(policy, log, tokens, path, *, shadow=1.0):
    """By query: (who answers, the models asked, the bill) of a cascade, which logs its calls."""

    def behave(request, headers):
        text, j = request["messages"][-1]["content"], MODELS.index(request["model"])
        second = re.search(r"Question:\n(\d+)", text)
        i = int(second[1] if second else text)
        usage = tuple(tokens[i, j, int(bool(second))].tolist())
        return Response(sure("Y" if second else LETTERS[log.answer[i, j]], float(log.logprob[i, j]), usage))

    signal = signals.Choice() if log.signal_cost is None else signals.Verification()
    with CallLog(path) as calls:
        async with (
            serving(behave) as (_, client),
            make_cascade(policy, client, signal=signal, log=calls, shadow=shadow) as cascade,
        ):
            results = await asyncio.gather(*(cascade.ask(str(i), query) for i, query in enumerate(log.queries)))
            await cascade.close()
    return [
        (one.model if one.status == "answered" else None, [call.model for call in one.calls], one.cost)
        for one in results
    ]


def check_log(path, log):
    """The log of the service, with the right answers, is the log that was served."""
    labels = {"query": list(log.queries), "answer": ["A"] * N}
    logged = rcjax.read_log(path, labels=pl.DataFrame(labels), models=list(MODELS), task="choice")
    order = np.array([logged.queries.index(query) for query in log.queries])
    assert logged.models == MODELS
    np.testing.assert_array_equal(logged.correct[order], log.correct)
    np.testing.assert_allclose(logged.logprob[order], log.logprob, rtol=1e-6)
    np.testing.assert_allclose(logged.query_cost[order], log.query_cost, rtol=1e-6)
    if log.signal_cost is None:
        assert logged.signal_cost is None
    else:
        np.testing.assert_allclose(logged.signal_cost[order], log.signal_cost, rtol=1e-6)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.4, 1.0]), st.booleans())
def test_step_replay_and_service_decide_alike(tmp_path_factory, seed, position, verified):
    rng = np.random.default_rng(seed)
    (log, tokens), ladder = drawn_log(rng, verified), drawn_ladder(rng, position)
    replayed, expected = rcjax.replay(ladder, log), dict.fromkeys(("error", "spent", "abstention"), 0.0)
    rungs = ladder.adjacent_rungs
    walks = [[by_steps(policy, log, i) for i in range(N)] for policy in rungs]
    for weight, policy, fates in zip(ladder.weights, rungs, walks, strict=True):
        for i, (who, asked) in enumerate(fates):
            expected["error"] += weight / N * (who is not None and not log.correct[i, MODELS.index(who)])
            expected["spent"] += weight / N * bill_of(log, i, asked, policy)
            expected["abstention"] += weight / N * (who is None)
    for name, value in expected.items():
        assert float(getattr(replayed, name)) == pytest.approx(value, abs=1e-12), name
    path = tmp_path_factory.mktemp("served") / "calls.jsonl"
    for i, (who, asked, bill) in enumerate(asyncio.run(served(ladder, log, tokens, path))):
        assert (who, asked) in [fates[i] for fates in walks]
        assert bill == pytest.approx(bill_of(log, i, asked), rel=1e-9)
    check_log(path, log)
    if verified:  # without shadow queries, whose log needs every confidence, a service is as dear as its replay
        alone = asyncio.run(served(ladder, log, tokens, path.with_name("alone.jsonl"), shadow=0.0))
        for i, (who, asked, bill) in enumerate(alone):
            bills = [bill_of(log, i, asked, rungs[r]) for r in range(len(rungs)) if walks[r][i] == (who, asked)]
            assert any(bill == pytest.approx(one, rel=1e-9) for one in bills)
