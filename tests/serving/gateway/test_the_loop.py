"""The loop closes: log, labels, check, retune in place; the service answers by the new policy, and by today's again."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from helpers.chat_server import Response, completion, sure
from helpers.command_line import run
from helpers.gateway_service import PRICES, gateway_process, until

import rcjax
from rcjax.policy import Defer, Policy
from rcjax.serving.gateway.catalog import digest_of

NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
TUNED_ON, SERVED = 300, 300
SHADOW = "100%"  # of less, each service draws other queries
pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("own_settings")]


@dataclass(frozen=True)
class World:
    """Questions, and the answers of each model, drawn from the model of the demo."""

    logprob: np.ndarray
    correct: np.ndarray

    def answer(self, i):
        """The right letter of a question."""
        return "ABCD"[i % 4]

    def said(self, i, model):
        """The letter that a model chooses: the right one, or the next."""
        j = list(NAMES.values()).index(model)
        return "ABCD"[(i + (not self.correct[i, j])) % 4]

    def confidence(self, i, model):
        """The log of the probability of that letter."""
        return float(self.logprob[i, list(NAMES.values()).index(model)])

    def path(self, policy, i):
        """The models that a policy asks a question, in order."""
        models = [policy.first_model]
        while isinstance(decision := policy.step(models[-1], logprob=self.confidence(i, models[-1])), Defer):
            models.append(decision.next_model)
        return models


def draw_world(n, seed, *, changed=False):
    """The world as it was, or changed: then the small model is sure of one wrong answer in three."""
    log = rcjax.sample_log(n, seed).select(NAMES)
    logprob, correct = np.array(log.logprob), np.array(log.correct)
    if changed:
        correct[:, 0] &= np.random.default_rng(seed).random(n) > 1 / 3
        logprob[:, 0] /= 2
    return World(logprob, correct)


def write_first_policy(path, folder):
    """A policy tuned on a log from before the service."""
    world = draw_world(TUNED_ON, seed=0)
    lines = ["query,model,logprob,correct,input_tokens,output_tokens"]
    for i in range(TUNED_ON):
        for j, model in enumerate(NAMES.values()):
            lines.append(f"t{i},{model},{world.confidence(i, model)!r},{int(world.correct[i, j])},100,1")
    (folder / "log.csv").write_text("\n".join(lines))
    prices = {model: dict(zip(("input", "output"), PRICES[model], strict=True)) for model in NAMES.values()}
    (folder / "prices.json").write_text(json.dumps(prices))
    tune = ["tune", folder / "log.csv", "--prices", folder / "prices.json", "--task", "choice"]
    # Every model in turn: what changes is in the small one.
    result = run(*tune, "--cascade", "full", "--error-cost", "0.002", "--no-bands", "--out", path)
    assert result.exit_code == 0, result.stderr


def upstream(world, request, _):
    """An endpoint with the models of this world."""
    if request.get("tools"):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        choice = {"role": "assistant", "content": None, "tool_calls": [call]}
        return Response(
            completion(None) | {"choices": [{"index": 0, "message": choice, "finish_reason": "tool_calls"}]}
        )
    i, model = int(request["messages"][-1]["content"].split()[-1]), request["model"].removeprefix("org/")
    return Response(sure(world.said(i, model), world.confidence(i, model)))


def ask_all(service, world, policy, queries, at_once=1):
    """Ask all questions in turn, and compare the answers with those of the policy."""
    digest = digest_of(policy)

    def ask(i):
        reply = service.post(
            {"model": "policy", "messages": [{"role": "user", "content": f"question {i}"}]}, x_rcjax_query=f"q{i}"
        )
        path = world.path(policy, i)
        assert reply.status == 200
        assert reply.headers["x-rcjax-policy-hash"] == digest
        assert (reply.headers["x-rcjax-models"], reply.json["model"]) == (",".join(path), path[-1])
        assert reply.json["choices"][0]["message"]["content"] == world.said(i, path[-1])

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(ask, queries))


def served_hash(service):
    (entry,) = [one for one in service.get("/v1/models").json["data"] if one["id"] == "policy"]
    return entry["rcjax"]["policy_hash"]


def shadows_are_whole(service):
    """Return whether all models have answered every shadow query."""
    calls = Counter(row["query"] for row in service.log_rows() if row["shadow"])
    return {*calls.values()} == {len(NAMES)}


def as_json(*arguments):
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_the_loop_closes(tmp_path):
    write_first_policy(tmp_path / "first.json", tmp_path)
    first = Policy.load(tmp_path / "first.json")
    world = draw_world(SERVED, seed=1, changed=True)
    tables = dict.fromkeys(NAMES.values(), "options = { max_tokens = 1 }")
    with gateway_process(first, partial(upstream, world), "--shadow", SHADOW, tables=tables) as service:
        policy, log = service.folder / "policy.json", service.folder / "calls.jsonl"
        assert served_hash(service) == digest_of(first)
        ask_all(service, world, first, range(SERVED))
        service.ask("question 1", tools=[{"type": "function", "function": {"name": "f"}}])
        service.ask("question 1", model="large")
        until(lambda: shadows_are_whole(service))
        labels = tmp_path / "labels.csv"
        labels.write_text("\n".join(["query,answer", *(f"q{i},{world.answer(i)}" for i in range(SERVED))]))

        status, document, printed = as_json("check", policy, log, "--labels", labels)
        decision = document["decision"]  # of 8 ± 4 points in one of 52 weeks a year: no alarm, but a gain to be had
        assert (status, decision["state"], decision["tune_again"]) == (0, "doubtful", True), printed

        status, document, printed = as_json("retune", policy, log, "--labels", labels, "--out", policy)
        assert status == 0, printed
        assert "2 that no policy judges" in printed
        second = Policy.load(policy)
        assert digest_of(second) != digest_of(first)

        until(lambda: served_hash(service) == digest_of(second))
        assert service.process.poll() is None
        ask_all(service, world, second, range(60), at_once=8)
        assert 'rcjax_reloads_total{outcome="taken up",policy="policy"} 1.0' in service.get("/metrics").body.decode()

        fresh = draw_world(SERVED, seed=2, changed=True)
        assert loss(fresh, second) < loss(fresh, first)

        back = service.folder / "today.json"
        asked = ["tune", log, "--labels", labels, "--models", "large", "--match", "1%", "--no-bands", "--out", back]
        assert run(*asked).exit_code == 0
        today = Policy.load(back)
        back.replace(policy)
        until(lambda: served_hash(service) == digest_of(today))
        assert service.ask("question 1").json["rcjax"]["models"] == ["large"]


def loss(world, policy):
    """Return errors and money per question, with an error at the price of the tuning."""
    total = 0.0
    for i in range(SERVED):
        path = world.path(policy, i)
        wrong = world.said(i, path[-1]) != world.answer(i)
        total += 0.002 * wrong + sum(policy.cost[model] for model in path)
    return total / SERVED
