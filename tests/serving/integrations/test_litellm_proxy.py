"""A policy inside LiteLLM's proxy, by the configuration of the page: the real proxy, before models that act.

The environment of LiteLLM needs not have rcjax: this checkout is put before what it has.
"""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import openai
import pytest
import yaml
from helpers.acting_models import ActingModels
from helpers.chat_server import KEY, served
from helpers.gateway_service import make_policy

from rcjax.policy.signals import Choice
from rcjax.policy.signals.records import record_signal

#: The program; RCJAX_LITELLM may name one of another environment, as its dependencies are many.
LITELLM = os.environ.get("RCJAX_LITELLM") or shutil.which("litellm")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "rcjax/docs/litellm.md").read_text("utf-8")
MASTER = "sk-0c5a3f7be1d94f2aa7718c"
MODELS = {"small": "gpt-4.1-nano", "large": "gpt-4.1"}
COSTS = {"small": 100 * 0.1e-6 + 1 * 0.4e-6, "large": 100 * 2e-6 + 1 * 8e-6}  # LiteLLM's prices, 100 and 1 tokens
BOTH = COSTS["small"] + COSTS["large"]
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
QUESTION = [{"role": "user", "content": "A or B?"}]
#: A callback that writes what the proxy records.
RECORDING = """
import json
from litellm.integrations.custom_logger import CustomLogger

class Recording(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        told = kwargs["standard_logging_object"]
        metadata = (kwargs.get("litellm_params") or {}).get("metadata") or {}
        keyed = bool((told.get("metadata") or {}).get("user_api_key_hash"))
        with open("records.jsonl", "a") as file:
            print(json.dumps([told["model_group"], told["response_cost"], keyed, metadata.get("rcjax")]), file=file)

recording = Recording()
"""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(LITELLM is None, reason="no litellm: pip install 'litellm[proxy]', or name it by RCJAX_LITELLM"),
]


class Proxy:
    """One that runs, and what is behind it."""

    def __init__(self, port, folder, server):
        self.port, self.folder, self.server, self.models = port, folder, server, server.behave
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER, max_retries=0)

    def records(self, number):
        """So many of what the proxy recorded since the last time."""
        path, end = self.folder / "records.jsonl", time.monotonic() + 60
        while not path.exists() or len(path.read_text().splitlines()) < number:
            assert time.monotonic() < end
            time.sleep(0.1)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        return rows

    def messages(self, **fields):
        """(the status, the body) of Anthropic's API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"model": "support", "max_tokens": 5, "messages": QUESTION, **fields}
        headers = {"content-type": "application/json", "x-api-key": MASTER, "anthropic-version": "2023-06-01"}
        connection.request("POST", "/v1/messages", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    told = {one["model_name"]: one["litellm_params"] for one in config["model_list"]}
    assert {name: told[name]["model"].removeprefix("openai/") for name in MODELS} == MODELS
    gone = {"model": "rcjax/gone", "policy": "gone.json"}
    config["model_list"].append({"model_name": "gone", "litellm_params": gone})
    config["router_settings"] = {"num_retries": 1, "disable_cooldowns": True}
    config["litellm_settings"]["callbacks"] = ["recording.recording"]
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    (folder / "recording.py").write_text(RECORDING)
    policy = make_policy()
    rules = {"small": (policy.rules["middle"]), "large": policy.rules["large"]}
    shorter = {"models": tuple(MODELS), "rules": rules}
    shorter |= {name: {model: getattr(policy, name)[model] for model in MODELS} for name in ("calibrations", "cost")}
    asked = {model: {**record_signal(Choice()), "options": {}} for model in MODELS}  # as rcjax collect records it
    make_policy(**shorter, provenance={"asked": asked}).save(folder / "support.json")
    with served(ActingModels()) as (server, url):
        yield from running(Proxy(free_port(), folder, server), url)


def running(proxy, url):
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "LITELLM_MASTER_KEY": MASTER}
    environment |= {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # which is else fetched
    line = [LITELLM, "--config", "config.yaml", "--port", str(proxy.port), "--host", "127.0.0.1"]
    path = proxy.folder / "log"
    with open(path, "wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, env=os.environ | environment, cwd=proxy.folder)
    try:
        end = time.monotonic() + 240
        while not listens(proxy.port):
            assert process.poll() is None, path.read_text()
            assert time.monotonic() < end, path.read_text()
            time.sleep(0.2)
        yield proxy
    finally:
        process.terminate()
        process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def listens(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(autouse=True)
def behave(proxy):
    proxy.models.unsure = ()
    (proxy.folder / "records.jsonl").unlink(missing_ok=True)


def check_records(rows, attempts, total):
    """An entry for each attempt, without a key, and one for the request, whose key is charged for all of it."""
    assert [row[0] for row in rows if not row[2]] == attempts
    assert all(row[3]["policy"] == "support" for row in rows if not row[2])
    assert [(row[0], row[1]) for row in rows if row[2]] == [("support", pytest.approx(total))]


def test_chat(proxy):
    proxy.models.unsure = (MODELS["small"],)
    asked = {"model": "support", "messages": QUESTION, "extra_body": {"policy": "gone.json"}}
    raw = proxy.client.chat.completions.with_raw_response.create(**asked, extra_headers={"x-rcjax-query": "q1"})
    answer = raw.parse()
    assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("B", 202)
    assert (answer.rcjax["models"], answer.rcjax["query"]) == (["small", "large"], "q1")
    assert float(raw.headers["x-litellm-response-cost"]) == pytest.approx(BOTH)
    check_records(proxy.records(3), ["small", "large"], BOTH)


def test_a_stream(proxy):
    proxy.models.unsure = tuple(MODELS.values())
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(proxy.client.chat.completions.create(model="support", messages=QUESTION, **options))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "A"
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [202]
    assert [chunk.rcjax["models"] for chunk in chunks if hasattr(chunk, "rcjax")] == [["small", "large"]]
    check_records(proxy.records(3), ["small", "large"], BOTH)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(proxy, stream):
    tools = [{"type": "function", "function": TOOL}]
    answer = proxy.client.chat.completions.create(model="support", messages=QUESTION, tools=tools, stream=stream)
    parts = list(answer) if stream else [answer]
    said = [choice.delta if stream else choice.message for part in parts for choice in part.choices]
    calls = [call.function for one in said for call in one.tool_calls or ()]
    assert "".join(call.name or "" for call in calls) == "look"
    assert json.loads("".join(call.arguments for call in calls)) == {"at": "é look"}
    assert [part.rcjax["not_judged"] for part in parts if hasattr(part, "rcjax")] == [["tools"]]
    check_records(proxy.records(2), ["large"], COSTS["large"])


@pytest.mark.parametrize("stream", [False, True])
def test_responses(proxy, stream):
    proxy.models.unsure = (MODELS["small"],)
    raw = proxy.client.responses.with_raw_response.create(model="support", input="A or B?", stream=stream)
    answer = list(raw.parse())[-1].response if stream else raw.parse()
    assert (answer.output_text, answer.usage.total_tokens) == ("B", 202)
    check_records(proxy.records(3), ["small", "large"], BOTH)


def test_messages(proxy):
    proxy.models.unsure = (MODELS["small"],)
    status, body = proxy.messages()
    answer = json.loads(body)
    assert (status, answer["content"][0]["text"], answer["usage"]["input_tokens"]) == (200, "B", 200)
    check_records(proxy.records(3), ["small", "large"], BOTH)
    _, body = proxy.messages(stream=True)
    assert '"text": "B"' in body or '"text":"B"' in body
    check_records(proxy.records(3), ["small", "large"], BOTH)
    tool = {"name": "look", "input_schema": TOOL["parameters"]}
    assert json.loads(proxy.messages(tools=[tool])[1])["content"][0]["input"] == {"at": "é look"}


def test_errors(proxy):
    refusals = {"too long": (openai.BadRequestError, 400, 1), "too many": (openai.RateLimitError, 429, 2)}
    for text, (kind, status, attempts) in refusals.items():
        before = len(proxy.server.requests)
        with pytest.raises(kind, match=f"large: HTTP {status}"):
            proxy.client.chat.completions.create(model="support", messages=[{"role": "user", "content": text}])
        # The router has tried each model again, as it does: the request is not tried again besides.
        assert len(proxy.server.requests) - before == attempts * len(MODELS)
    with pytest.raises(openai.InternalServerError, match=r"there is no file gone\.json .* put it there"):
        proxy.client.chat.completions.create(model="gone", messages=QUESTION)
