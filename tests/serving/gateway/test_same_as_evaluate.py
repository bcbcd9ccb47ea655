"""What a gateway answers, who answers and what it costs is what replaying the policy on the same log says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chat_server import Response, sure
from gateway_service import MODELS, gateway, make_policy

import rcjax
from rcjax.policy import Answer, Calibration, Rule

QUERIES, AT_ONCE = 2000, 32
#: Money per million tokens, as `gateway_service` has them.
PRICES = {
    "small": {"input": 0.1, "output": 0.4},
    "middle": {"input": 0.5, "output": 1.5},
    "large": {"input": 3, "output": 15},
}

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def rows():
    """A row per query and model, with confidences of the demo's model and tokens by chance; A is right."""
    source = rcjax.sample_log(QUERIES, seed=5)
    columns = [0, 2, 4]
    rng = np.random.default_rng(3)
    tokens = rng.integers((20, 1), (2000, 300), size=(QUERIES, 2))
    return [
        {
            "query": f"q{i}",
            "model": model,
            "logprob": float(source.logprob[i, j]),
            "correct": bool(source.correct[i, j]),
            "input_tokens": int(tokens[i, 0]),
            "output_tokens": int(tokens[i, 1]) + k,
        }
        for i in range(QUERIES)
        for k, (model, j) in enumerate(zip(MODELS, columns, strict=True))
    ]


@pytest.fixture(scope="module")
def policy():
    """Calibrated roughly, as it need not be right, with all three models in use."""
    calibration = Calibration("choice", intercept=-1.0, slope=0.8, smallest=0.0, largest=14.0)
    rules = {
        "small": (Rule(0.55, "ask", "middle"), Rule(0.62, "ask", "large"), Rule(1.0, "answer")),
        "middle": (Rule(0.6, "ask", "large"), Rule(1.0, "answer")),
        "large": (Rule(1.0, "answer"),),
    }
    return make_policy(calibrations=dict.fromkeys(MODELS, calibration), rules=rules)


@pytest.fixture(scope="module")
def answers(rows):
    """The upstream: the letter and the confidence of each query and model."""
    replies = {
        (row["query"], f"org/{row['model']}"): sure(
            "A" if row["correct"] else "B", row["logprob"], (row["input_tokens"], row["output_tokens"])
        )
        for row in rows
    }
    return lambda request, headers: Response(replies[request["messages"][-1]["content"], request["model"]])


def ask_all(service, queries, **fields):
    """The reply to each query, so many at once."""

    def ask(query):
        reply = service.ask(query, **fields)
        assert reply.status == 200, reply.body
        return reply

    with ThreadPoolExecutor(AT_ONCE) as callers:
        return [*callers.map(ask, queries)]


def price_of(row):
    price = PRICES[row["model"]]
    return (row["input_tokens"] * price["input"] + row["output_tokens"] * price["output"]) / 1e6


def expected_walk(policy, rows):
    """By query: (letter, model, models asked, cost), each step by `Policy.step`."""
    by_query: dict[str, dict] = {}
    for row in rows:
        by_query.setdefault(row["query"], {})[row["model"]] = row
    walks = {}
    for query, by_model in by_query.items():
        model, path = policy.first, []
        while True:
            path.append(model)
            decision = policy.step(model, logprob=by_model[model]["logprob"])
            if isinstance(decision, Answer):
                break
            model = decision.next_model
        cost = sum(price_of(by_model[name]) for name in path)
        walks[query] = "A" if by_model[model]["correct"] else "B", model, path, cost
    return walks


def read_plain(reply):
    body = reply.json
    return body["choices"][0]["message"]["content"], body["model"], body["rcjax"]["models"], body["rcjax"]["cost"]


def read_stream(reply):
    *events, end = reply.events
    assert end == "[DONE]"
    told = events[-1]["rcjax"]
    assert {event["model"] for event in events} == {told["model"]}
    return reply.text, told["model"], told["models"], told["cost"]


@pytest.mark.parametrize(
    ("fields", "read"),
    [({}, read_plain), ({"stream": True, "stream_options": {"include_usage": True}}, read_stream)],
    ids=["whole", "streamed"],
)
def test_the_same_answers_models_and_money_as_evaluate(policy, rows, answers, fields, read, tmp_path):
    walks = expected_walk(policy, rows)
    assert min(np.unique([model for _, model, _, _ in walks.values()], return_counts=True)[1]) > 100  # all are in use
    with gateway(policy, answers) as service:
        replies = ask_all(service, walks, **fields)
        service.settle()
        logged = service.log_rows()
    money = []
    for reply, (letter, model, path, cost) in zip(replies, walks.values(), strict=True):
        answer = read(reply)
        assert answer[:3] == (letter, model, path)
        assert answer[3] == pytest.approx(cost, rel=1e-12)
        money.append(answer[3])
    log = rcjax.read_log(_frame(rows), prices=PRICES, task="choice")
    replay = rcjax.replay(policy, log)
    letters = [read(reply)[0] for reply in replies]
    assert letters.count("B") / QUERIES == pytest.approx(float(replay.error), abs=1e-6)
    assert np.mean(money) == pytest.approx(float(replay.spent), rel=1e-6)
    names = {reply.headers["x-rcjax-query"]: query for reply, query in zip(replies, walks, strict=True)}
    assert sorted((names[row["query"]], row["model"]) for row in logged) == sorted(
        (query, model) for query, (_, _, path, _) in walks.items() for model in path
    )


def _frame(rows):
    import polars

    return polars.DataFrame(rows)
