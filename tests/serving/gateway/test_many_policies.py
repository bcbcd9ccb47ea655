"""Policies of every kind under load, with one log: each request by its own policy, each call logged once."""

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from chat_server import Response, sure
from gateway_service import MODELS, SURE, UNSURE, gateway, make_policy, until
from policy_samples import make_ladder

from rcjax.policy import Policy, Rule

WHOLE = make_policy()
PAIR = Policy(
    ("small", "large"),
    {name: WHOLE.calibrations[name] for name in ("small", "large")},
    {"small": (Rule(0.5, "ask", "large"), Rule(1.0, "answer")), "large": (Rule(1.0, "answer"),)},
    {"small": 1e-5, "large": 3e-4},
)
LARGE = Policy(("large",), {"large": WHOLE.calibrations["large"]}, {"large": [Rule(1, "answer")]}, {"large": 3e-4})
KINDS = {"whole": WHOLE, "pair": PAIR, "ladder": make_ladder((WHOLE, LARGE), 0.5)}


def behave(request, headers):
    """The small model is unsure of every other question, the middle one of every fourth."""
    number = int(request["messages"][-1]["content"].split()[-1])
    unsure = {"org/small": number % 2 == 0, "org/middle": number % 4 == 0}.get(request["model"], False)
    return Response(sure("A", UNSURE if unsure else SURE))


def paths_of(subject, number):
    """Who may be asked by a policy, from what the models say: a path for each rung that it may go by."""
    unsure = {"small": number % 2 == 0, "middle": number % 4 == 0, "large": False}
    found = []
    for policy in subject.policies:
        asked = [policy.first]
        while unsure[asked[-1]] and asked[-1] != policy.models[-1]:
            asked.append(policy.models[policy.models.index(asked[-1]) + 1])
        found.append(asked)
    return found


@pytest.mark.thorough
def test_every_kind_under_load():
    misses = []
    with gateway(KINDS, behave, shadow=0.3) as service:

        def ask(i):
            name = [*KINDS][i % 3]
            body = {
                "model": name,
                "messages": [{"role": "user", "content": f"question {i // 3}"}],
                "stream": i % 2 == 0,
            }
            reply = service.post(body, x_rcjax_query=f"q{i}")
            said = reply.headers.get("x-rcjax-models", "").split(",")
            expected = paths_of(KINDS[name], i // 3)
            if (reply.status, said in expected, reply.headers["x-rcjax-policy"]) != (200, True, name):
                misses.append((i, name, reply.status, said, expected))
            return f"q{i}", said

        with ThreadPoolExecutor(16) as pool:
            paths = dict(pool.map(ask, range(240)))
        until(lambda: whole(service.log_rows()))
        rows = service.log_rows()
        page = service.get("/metrics").body.decode()
    assert misses == []
    assert {*Counter((row["query"], row["model"]) for row in rows).values()} == {1}
    asked = defaultdict(list)
    for row in rows:
        if not row["shadow"] or row["model"] in paths[row["query"]]:
            asked[row["query"]].append(row["model"])
    assert {query: sorted(models) for query, models in asked.items()} == {q: sorted(p) for q, p in paths.items()}
    for name in KINDS:
        counts = [line for line in page.splitlines() if line.startswith("rcjax_request_seconds_count")]
        assert f'rcjax_request_seconds_count{{policy="{name}"}} 80.0' in counts


def whole(rows):
    """Whether all shadow queries have been asked of all models of their policies."""
    models = defaultdict(set)
    for row in rows:
        if row["shadow"]:
            models[row["query"]].add(row["model"])
    return all(asked == {*KINDS[[*KINDS][int(q[1:]) % 3]].models} for q, asked in models.items())


def test_shadow_calls_keep_no_answer_waiting():
    """With models of which the largest, that only shadow queries go to, takes two seconds."""

    def slow(request, headers):
        return replace(behave(request, headers), delay=2.0 if request["model"] == "org/large" else 0.0)

    with gateway(behave=slow, shadow=1.0) as service:
        assert service.ask("question 1").json["rcjax"]["models"] == [MODELS[0]]
        assert MODELS[2] not in {row["model"] for row in service.log_rows()}
        until(lambda: {row["model"] for row in service.log_rows()} == {*MODELS})
