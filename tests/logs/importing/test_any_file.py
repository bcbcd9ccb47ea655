"""Whatever stands in a file of another program: it is imported, or refused in one line, and nothing else happens."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.logs.errors import LogError
from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations

FILES = Path(__file__).parent / "files"
LM_EVAL = FILES / "lm_eval" / "org__toy-0.6"

#: By format: a file that its program wrote, the name that it must have, and how it is read.
SOURCES = {
    "inspect": (next((FILES / "inspect").glob("*.json")), "log.json", {"scorer": "includes"}),
    "lm-eval choices": (next(LM_EVAL.glob("samples_letters_2*")), "samples_letters.jsonl", {}),
    "lm-eval texts": (next(LM_EVAL.glob("samples_sums_*")), "samples_sums.jsonl", {"scorer": "first"}),
    "helm": (FILES / "helm" / "repeat" / "scenario_state.json", "scenario_state.json", {}),
    "promptfoo": (FILES / "promptfoo" / "results.json", "results.json", {}),
    "litellm": (FILES / "litellm" / "calls.jsonl", "calls.jsonl", {}),
    "openai-batch": (FILES / "openai_batch" / "chat_toy-large.jsonl", "batch.jsonl", {}),
}
ODD = st.sampled_from([None, True, -1, 1e400, float("nan"), 2.5, "", "x", "\ud800", [], [None], {}, {"a": []}, [[]]])


def places(value, path=()):
    """Where something stands in a value of JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def changed(value, path, odd):
    """The value with something else at a place."""
    if not path:
        return odd
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], odd)
    return value


def refusal(path, **how):
    """Why a file cannot be used; nothing where it can."""
    try:
        import_evaluations([path], ImportOptions(**how))
    except LogError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_with_something_else_in_it_is_read_or_refused(name, tmp_path):
    source, file, how = SOURCES[name]
    text = source.read_text()
    lines = [json.loads(line) for line in text.splitlines()] if source.suffix == ".jsonl" else [json.loads(text)]
    if name == "helm":
        (tmp_path / "per_instance_stats.json").write_text((source.parent / "per_instance_stats.json").read_text())
    where = [(number, place) for number, line in enumerate(lines[:6]) for place in places(line)]

    @settings(max_examples=examples(80), database=None)
    @given(st.sampled_from(where), ODD, st.booleans())
    def holds(where, odd, cut):
        number, place = where
        written = [json.dumps(line) for line in lines]
        written[number] = json.dumps(changed(lines[number], place, odd))
        content = "\n".join(written)
        (tmp_path / file).write_text(content[: len(content) // 2] if cut and number % 2 else content)
        assert "\n" not in refusal(tmp_path / file, format=name.split()[0], **how)

    holds()


@settings(max_examples=examples(80), database=None)
@given(st.binary(max_size=40), st.integers(0, 20_000), st.booleans())
def test_a_broken_archive_is_refused(tmp_path_factory, junk, place, ends):
    source = sorted((FILES / "inspect").glob("*.eval"))[0].read_bytes()
    path = tmp_path_factory.getbasetemp() / "bad.eval"
    path.write_bytes(source[:place] + junk + (b"" if ends else source[place + len(junk) :]))
    assert "\n" not in refusal(path)
