"""Prices per token in a file of models, which holds them per million."""

import pytest
from command_line import run
from models_of_a_test import questions, write_models, write_questions

pytestmark = pytest.mark.usefixtures("own_settings")


def test_prices_per_token_in_a_file_of_models_are_asked_about(tmp_path):
    models = write_models(tmp_path / "models.toml", "http://localhost:9/v1", ["tiny"])
    models.write_text(models.read_text().replace("input = 0.1", "input = 1e-7"))
    asked = write_questions(tmp_path / "questions.jsonl", questions(2))
    lines = [
        ("collect", asked, "--models", models, "--out", tmp_path / "answers.jsonl", "--dry-run"),
        ("grade", write_questions(tmp_path / "answers.jsonl", []), "--grade", "judge:tiny", "--models", models),
        ("serve", tmp_path / "policy.json", "--models", models),
    ]
    said = {line[0]: " ".join(run(*line).stderr.split()) for line in lines}
    misses = {name for name, words in said.items() if "models.toml, model tiny: input price 1e-07 is" not in words}
    assert not misses
