"""LiteLLM's real proxy with the files of the page: its models in a policy, and a policy among its models."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
import yaml
from helpers.acting_models import ActingModels
from helpers.chat_server import KEY, served
from helpers.gateway_service import make_policy

from rcjax.policy.signals import Choice
from rcjax.policy.signals.signal import record_signal

#: The program; RCJAX_LITELLM may name one of another environment, as its dependencies are many.
LITELLM = os.environ.get("RCJAX_LITELLM") or shutil.which("litellm")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "rcjax/docs/litellm.md").read_text("utf-8")
MASTER = "sk-0c5a3f7be1d94f2aa7718c"
MODELS = {"small": "gpt-4.1-nano", "large": "gpt-4.1"}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(LITELLM is None, reason="no litellm: pip install 'litellm[proxy]', or name it by RCJAX_LITELLM"),
]


def block(kind):
    """The page's block in a language."""
    return re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1]


@contextlib.contextmanager
def process(line, folder, environment):
    """Run a process in a folder until the end of the block."""
    with open(folder / "said", "wb") as said, open(folder / "log", "ab") as log:
        started = subprocess.Popen(line, stdout=said, stderr=log, env=os.environ | environment, cwd=folder)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def until(condition, folder, started):
    end = time.monotonic() + 240
    while not condition():
        assert started.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.2)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def listens(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def write_policy(path):
    """small → large, as rcjax tune writes it for a log of rcjax collect."""
    policy = make_policy()
    rules = {"small": policy.rules["middle"], "large": policy.rules["large"]}
    parts = {name: {model: getattr(policy, name)[model] for model in MODELS} for name in ("calibrations", "cost")}
    asked = {model: {**record_signal(Choice()), "options": {}} for model in MODELS}
    make_policy(models=tuple(MODELS), rules=rules, **parts, provenance={"request_settings": asked}).save(path)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """(the upstream, the folder of rcjax serve, a client of the proxy)."""
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    write_policy(folder / "support.json")
    (folder / "models.toml").write_text(block("toml").replace("localhost:4000", f"127.0.0.1:{port}"))
    serve = [sys.executable, "-c", "from rcjax.cli import main; main()", "serve", "--policy", "support=support.json"]
    serve += ["--models", "models.toml", "--log", "calls.jsonl", "--port", "0", "--json"]
    secrets = {"LITELLM_MASTER_KEY": MASTER, "RCJAX_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with served(ActingModels()) as (server, url), process(serve, folder, secrets | {"PYTHONPATH": str(ROOT)}) as own:
        until((folder / "said").read_text, folder, own)
        config = yaml.safe_load(
            block("yaml").replace("http://localhost:8080", json.loads((folder / "said").read_text())["url"])
        )
        upstream = {"api_base": url, "api_key": KEY}
        config["model_list"] += [
            {"model_name": name, "litellm_params": {"model": f"openai/{name}", **upstream}} for name in MODELS.values()
        ]
        config["general_settings"] = {"master_key": "os.environ/LITELLM_MASTER_KEY"}
        (folder / "proxy").mkdir()
        (folder / "proxy" / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        line = [LITELLM, "--config", "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
        with process(line, folder / "proxy", secrets) as proxy:
            until(lambda: listens(port), folder / "proxy", proxy)
            yield server, folder, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_policy_among_the_proxys_models_asks_others_of_them(service, stream):
    server, folder, client = service
    server.behave.unsure = (MODELS["small"],)
    before = len(server.requests)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    messages = [{"role": "user", "content": "A or B?"}]
    answer = client.chat.completions.create(model="support", messages=messages, **options)
    parts = list(answer) if stream else [answer]
    choices = [choice for part in parts for choice in part.choices]
    assert "".join((choice.delta if stream else choice.message).content or "" for choice in choices) == "B"
    assert [part.usage.total_tokens for part in parts if part.usage] == [202]
    assert [request["model"] for request in server.requests[before:]] == [*MODELS.values()]
    rows = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()][-2:]
    assert [(row["model"], row["error"]) for row in rows] == [("small", None), ("large", None)]
    assert rows[0]["logprob"] < rows[1]["logprob"]
    assert [row["cost"] for row in rows] == pytest.approx([100 * 0.1e-6 + 0.4e-6, 100 * 2e-6 + 8e-6])
