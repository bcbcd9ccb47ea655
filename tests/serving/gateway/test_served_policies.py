"""Policies behind the gateway: every signal, abstention, failures, ladders, several at once, names of any kind."""

import re
import threading

import pytest
from helpers.chat_server import Response, completion, sure
from helpers.gateway_service import MODELS, SURE, UNSURE, gateway, make_policy
from openai import OpenAI

from rcjax.policy import Policy, Rule

SIGNALS = ("choice", "verification", "votes")
ANSWERS = {"small": "B: Lyon, says small", "middle": "B: Nice, says middle", "large": "B: Paris, says large"}


def in_tokens(text, logprob):
    return [(word, {word: logprob}) for word in re.findall(r"\S+\s*", text)]


class Upstream:
    """Answers in the form of a signal; models in `unsure` are unsure, models in `failing` fail."""

    def __init__(self, signal="choice"):
        self.signal, self.unsure, self.failing = signal, (), ()
        self.second = lambda: None  # what happens before a second question is answered

    def __call__(self, request, headers):
        model = request["model"].removeprefix("org/")
        if model in self.failing:
            return Response({"error": {"message": "x"}}, 500)
        share = 0.4 if model in self.unsure else 1.0
        logprob = UNSURE if model in self.unsure else SURE
        text, last = ANSWERS.get(model, "B: Rome"), request["messages"][-1]["content"]
        if "Is the proposed answer correct?" in last:
            self.second()
            assert text in last
            return Response(sure("Y", logprob))
        return Response(getattr(self, f"_{self.signal}")(text, logprob, share))

    def _choice(self, text, logprob, share):
        return completion(text, [(text[:1], {text[:1]: logprob}), *in_tokens(text[1:], -0.1)])

    def _verification(self, text, logprob, share):
        return completion(text)

    def _votes(self, text, logprob, share):
        choice = completion(text)["choices"][0]
        others = [f"of another opinion: {i}" for i in range(5)]
        texts = [text if i < round(5 * share) else others[i] for i in range(5)][::-1]
        choices = [
            {**choice, "index": i, "message": {**choice["message"], "content": one}} for i, one in enumerate(texts)
        ]
        return completion(text) | {"choices": choices}


@pytest.fixture(scope="module", params=SIGNALS)
def service(request):
    with gateway(behave=Upstream(request.param), signal=request.param, limits={"retries": 0}) as service:
        yield service


ASKED = [((), "small", 1), (("small",), "middle", 2), (("small", "middle"), "large", 3)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("unsure", "model", "asked"), ASKED)
def test_every_signal(service, unsure, model, asked, stream):
    """The client gets the answer of the sure model, whole or in chunks, and no draft of an earlier model.

    The answer of the last model is kept in any case: the model is not asked whether it is right.
    """
    upstream, before = service.server.behave, len(service.server.requests)
    upstream.unsure, upstream.failing = unsure, ()
    reply = service.ask("Which city?", stream=stream)
    service.wait_until_idle()
    requests = service.server.requests[before:]
    needless = upstream.signal == "verification" and model == "large"
    questions = [1 + (upstream.signal == "verification" and name != "large") for name in MODELS[:asked]]
    names = [f"org/{name}" for name, number in zip(MODELS, questions, strict=False) for _ in range(number)]
    assert [one["model"] for one in requests] == names
    streamed = stream and model == "large" and upstream.signal != "votes"
    assert [one.get("stream", False) for one in requests if one["model"] == "org/large"][:1] == [streamed] * (asked > 2)
    assert not any(one.get("stream") for one in requests if one["model"] != "org/large")
    if stream:
        *events, done = reply.events
        assert done == "[DONE]"
        assert reply.text == ANSWERS[model]
        report = events[-1]["rcjax"]
        assert {choice["index"] for event in events for choice in event["choices"]} == {0}
    else:
        (choice,) = reply.json["choices"]
        assert (choice["index"], choice["message"]["content"]) == (0, ANSWERS[model])
        report = reply.json["rcjax"]
        assert reply.json["usage"]["prompt_tokens"] == 100 * len(requests)
    assert (report["status"], report["model"], report["models"]) == ("answered", model, [*MODELS[:asked]])
    assert reply.headers["x-rcjax-models"] == ",".join(MODELS[:asked])
    assert not any(draft in reply.body.decode() for name, draft in ANSWERS.items() if name != model)
    if not streamed:
        assert report["confidence"] is None if needless else 0.8 < report["confidence"] < 0.9
        assert report["cost"] == float(reply.headers["x-rcjax-cost"]) > 0


@pytest.mark.parametrize("unsure", [(), ("small", "middle")])
@pytest.mark.parametrize("usage", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_has_one_report(service, unsure, usage):
    """A client may add up the costs of all chunks. The report is in the last chunk, whether or not models stream."""
    service.server.behave.unsure, service.server.behave.failing = unsure, ()
    *events, done = service.ask("Which city?", stream=True, **usage).events
    assert done == "[DONE]"
    assert ["rcjax" in event for event in events] == [*[False] * (len(events) - 1), True]


def test_a_second_question_keeps_nobody_waiting():
    """The last model's answer to a shadow query is complete before the confidence, which only the log needs."""
    go_on = threading.Event()
    upstream = Upstream("verification")
    upstream.unsure = ("small", "middle")
    upstream.second = lambda: go_on.wait(120) if service.server.requests[-2]["model"] == "org/large" else None
    with gateway(behave=upstream, signal="verification", shadow=1.0) as service:
        reply = service.ask(stream=True)
        assert not go_on.is_set()
        go_on.set()
        assert reply.text == ANSWERS["large"]
        assert reply.events[-1] == "[DONE]"
    assert len(service.server.requests) == 6


def test_nobody_asks_whether_an_answer_is_right_that_is_kept_in_any_case():
    """A confidence that decides nothing and that no log needs is not paid for, and its lack is no failure."""
    upstream = Upstream("verification")
    upstream.unsure = ("small", "middle")
    with gateway(behave=upstream, signal="verification") as service:
        reply = service.ask()
        *drafts, last = service.log_rows()
        errors = [line for line in service.get("/metrics").body.decode().splitlines() if "call_errors_total{" in line]
    assert [one["model"] for one in service.server.requests] == [*["org/small"] * 2, *["org/middle"] * 2, "org/large"]
    assert (reply.json["rcjax"]["status"], reply.json["rcjax"]["model"]) == ("answered", "large")
    assert [(row["attempts"], row["cost"] > row["signal_cost"] > 0) for row in drafts] == [(2, True)] * 2
    assert (last["attempts"], last["answer"], last["logprob"], last["error"]) == (1, ANSWERS["large"], None, None)
    assert not {"signal_cost", "has_no_confidence"} & {*last}
    assert errors == []


def test_a_shadow_query_has_the_confidence_of_every_model():
    with gateway(behave=Upstream("verification"), signal="verification", shadow=1.0) as service:
        service.ask()
        rows = service.logged(3)
    assert all(row["logprob"] is not None and row["cost"] > row["signal_cost"] > 0 for row in rows)


RULES = {
    "small": (Rule(0.5, "abstain"), Rule(1.0, "answer")),
    "middle": (Rule(0.5, "ask", "large"), Rule(1.0, "answer")),
    "large": (Rule(1.0, "answer"),),
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_policy_that_abstains(stream):
    upstream, own = Upstream(), "Ask “somebody”: 人."
    upstream.unsure = ("small",)
    with gateway(make_policy(rules=RULES), upstream, abstain_text=own) as service:
        reply = service.ask(stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        assert len(service.log_rows()) == 1
    text = reply.text if stream else reply.json["choices"][0]["message"]["content"]
    end = (reply.events[-3] if stream else reply.json)["choices"][0]["finish_reason"]
    assert (text, end) == (own, "stop")
    last = reply.events[-2] if stream else reply.json
    assert (last["rcjax"]["status"], last["usage"]["total_tokens"], last["model"]) == ("abstained", 101, "small")
    assert ANSWERS["small"] not in reply.body.decode()


def test_models_of_any_name():
    """Policies and models have any names, also in headers."""
    names, plain = ("org/ö x", "日本,語"), make_policy().calibrations["small"]
    rules = {names[0]: (Rule(0.5, "ask", names[1]), Rule(1.0, "answer")), names[1]: (Rule(1.0, "answer"),)}
    odd = Policy(names, dict.fromkeys(names, plain), rules, dict.fromkeys(names, 1e-5))
    upstream = Upstream()
    upstream.unsure = (names[0],)
    with gateway({"support": make_policy(), "code.v2 ": odd}, upstream, tables=dict.fromkeys(names, "")) as service:
        with OpenAI(api_key="none", base_url=f"{service.url}/v1", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["support", "code.v2 ", *MODELS, *names]
            assert client.models.retrieve(names[0]).id == names[0]
        for name, model in (("support", "small"), ("code.v2 ", names[1]), (names[0], names[0])):
            assert service.ask(model=name).json["model"] == model
            assert {event["model"] for event in service.ask(model=name, stream=True).events[:-1]} == {model}
        reply = service.ask(model="code.v2 ")
        assert reply.headers["x-rcjax-models"] == "org/%C3%B6 x,%E6%97%A5%E6%9C%AC%2C%E8%AA%9E"
        assert reply.json["rcjax"]["models"] == [*names]
        assert [service.get(path).status for path in ("/v1/chat/completions", "/v1/responses")] == [405] * 2
        assert service.post({}, "/v1/embeddings").json["error"]["code"] == "unknown_path"
        wrong_method = service.get("/v1/chat/completions")
        assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "POST")
        assert wrong_method.json["error"]["message"] == "this path accepts POST only"


def test_shadow_calls_keep_no_answer_waiting():
    """The largest model, which only shadow queries go to, answers once the client has its answer."""
    gate, waited = threading.Event(), []

    def behave(request, headers):
        if request["model"] == "org/large":
            waited.append(gate.wait(120))
        return Response(sure("A", SURE))

    with gateway(behave=behave, shadow=1.0) as service:
        assert service.ask().json["rcjax"]["models"] == ["small"]
        gate.set()
        assert {row["model"] for row in service.logged(3)} == {*MODELS}
    assert waited == [True]


def test_options_of_the_signal_override_the_options_of_the_client():
    """Votes are taken at a temperature of their own."""
    with gateway(behave=Upstream("votes"), signal="votes") as service:
        service.ask(temperature=0, seed=3)
        assert (service.server.requests[-1]["temperature"], service.server.requests[-1]["seed"]) == (0.7, 3)
        service.ask(model="small", temperature=0)
        assert service.server.requests[-1]["temperature"] == 0


def test_options_of_the_file_of_models_apply_to_judged_answers():
    """A limit of one token would cut off a call of a tool; `extra_*` options apply to all answers."""
    line = 'options = { max_tokens = 1, extra_body = { route = "x" } }'
    tables = dict.fromkeys(("small", "middle", "large"), line)
    with gateway(behave=lambda request, headers: Response(sure("A", -0.1)), tables=tables) as service:
        service.ask()
        service.ask(tools=[{"type": "function", "function": {"name": "f"}}])
        service.ask(model="large")
        judged, *others = service.server.requests
    assert (judged["max_tokens"], judged["route"]) == (1, "x")
    assert [(request.get("max_tokens"), request["route"]) for request in others] == [(None, "x")] * 2
