"""`rcjax collect` against a real gateway: LiteLLM's proxy, with replies that it makes up itself."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from decimal import Decimal

import pytest
from command_line import run
from models_of_a_test import PRICES, write_models, write_questions

#: The program; RCJAX_LITELLM may name one of another environment, as its dependencies are many.
LITELLM = os.environ.get("RCJAX_LITELLM") or shutil.which("litellm")
KEY = "sk-gateway-of-the-test"
REPLIES = {"tiny": "80%", "small": "Confidence: 90%", "medium": "95%", "large": "60%"}
TOKENS = 10, 20  # that LiteLLM counts for a reply of its own

pytestmark = [
    pytest.mark.usefixtures("own_settings"),
    pytest.mark.skipif(LITELLM is None, reason="no litellm: pip install 'litellm[proxy]', or name it by RCJAX_LITELLM"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway")
    models = [
        {
            "model_name": f"org/{name}",
            "litellm_params": {"model": f"openai/{name}", "api_key": "x", "mock_response": reply},
        }
        for name, reply in REPLIES.items()
    ]
    config = folder / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [LITELLM, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log)
    try:
        for _ in range(600):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def test_three_hundred_questions_to_four_models(gateway, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
    models = write_models(tmp_path / "models.toml", gateway)
    rows = [{"query": f"q{i}", "prompt": f"How sure of {i}?", "answer": "80%" if i % 3 else "90%"} for i in range(300)]
    asked = write_questions(tmp_path / "questions.jsonl", rows)
    probe = json.loads(run("collect", "--probe", "--models", models, "--json").stdout)["models"]
    assert {(row["logprobs"], row["samples"], row["counted"]) for row in probe} == {(False, True, True)}
    out = tmp_path / "answers.jsonl"
    result = run("collect", asked, "--models", models, "--out", out, "--grade", "exact", "--budget", 20, "--json")
    assert result.exit_code == 0, result.stderr
    answers = [row for row in map(json.loads, out.read_text().splitlines()) if row["error"] is None]
    assert {*Counter((row["query"], row["model"]) for row in answers).values()} == {1}
    assert len(answers) == 1200
    assert {row["correct"] for row in answers if row["model"] == "tiny" and int(row["query"][1:]) % 3} == {True}
    read, written = (2 * count for count in TOKENS)  # the question, and how sure
    for name, price in PRICES.items():
        cost = (read * Decimal(str(price[0])) + written * Decimal(str(price[1]))) / 1_000_000
        assert {Decimal(str(row["cost"])) for row in answers if row["model"] == name} == {cost}
    assert KEY not in out.read_text() + result.stdout + result.stderr
