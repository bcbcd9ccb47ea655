"""What is no log-probability is no confidence, in every format: it is empty in the answer's row, counted, and said."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.server_replies import token

from rcjax.logs.errors import LogError
from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations

FILES = Path(__file__).parent / "files"
LM_EVAL = sorted((FILES / "lm_eval").glob("*/samples_letters_*.jsonl"))
BAD = (math.nan, 0.5, None)
WHY = "a log-probability is missing, NaN or above 0"


def unknown(evaluations):
    """(the queries without a confidence, what is said of them)."""
    frame = evaluations.frame.filter(pl.col("logprob").is_null())
    return frame["query"].to_list(), [note for note in evaluations.notes if note.startswith("no confidence")]


def said(right, why=WHY, *, answers="1 answer", labelled=1):
    return [
        f"no confidence in {answers} of small (right: {right} of {labelled}): they count as the least sure, and are "
        f"passed on ({why}: {labelled})"
    ]


def imported(*paths, **how):
    return import_evaluations(paths, ImportOptions(**how))


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def inspect_log(folder, *contents, choices=(), text="A"):
    """A log with a sample for each list of tokens."""
    samples = [
        {
            "id": number,
            "epoch": 1,
            "choices": [*choices],
            "target": "A",
            "output": {
                "completion": text,
                "choices": [{"message": {"content": text}, "logprobs": {"content": content}}],
            },
            "scores": {"s": {"value": "C", "answer": text}},
            "model_usage": {"m/small": {"input_tokens": 9, "output_tokens": 1}},
        }
        for number, content in enumerate(contents)
    ]
    evaluation = {"task": "t", "model": "m/small"}
    return write(folder / "log.json", {"version": 2, "eval": evaluation, "samples": samples})


def lm_eval_samples(folder, *likelihoods, metrics=("acc",), continuations=(" A", " B"), **more):
    """Samples with a line for each list of likelihoods."""
    lines = [
        {
            "doc_id": number,
            "target": "0",
            "arguments": {
                f"gen_args_{place}": {"arg_0": "A or B?", "arg_1": text} for place, text in enumerate(continuations)
            },
            "resps": [[[str(one), "False"]] for one in logprobs],
            "filtered_resps": [[str(one), "False"] for one in logprobs],
            "filter": "none",
            "metrics": [*metrics],
            **dict.fromkeys(metrics, 1.0),
            **more,
        }
        for number, logprobs in enumerate(likelihoods)
    ]
    folder = folder / "org__small"
    folder.mkdir(exist_ok=True)
    return write(folder / "samples_t_2026-11-24T00-47-14.7.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def results_of_promptfoo(folder, *contents):
    rows = [
        {
            "provider": {"id": "small"},
            "prompt": {"raw": f"question {number}"},
            "vars": {},
            "success": True,
            "response": {"output": "A", "logProbs": content, "tokenUsage": {"prompt": 9, "completion": 1}},
        }
        for number, content in enumerate(contents)
    ]
    return write(folder / "results.json", {"evalId": "e", "results": {"results": rows}})


def helm_run(folder, *contents, offered=(), splits=None, right=None):
    """A run with a request for each list of tokens."""
    splits, right = splits or ["test"] * len(contents), right or [1] * len(contents)
    states = [
        {
            "instance": {"id": f"id{number}", "split": split},
            "output_mapping": dict.fromkeys(offered, "x"),
            "request": {"prompt": "A or B?"},
            "result": {"success": True, "completions": [{"text": "A", "tokens": content}]},
        }
        for number, (content, split) in enumerate(zip(contents, splits, strict=True))
    ]
    stats = [
        {
            "instance_id": f"id{number}",
            "stats": [
                {"name": {"name": name, "split": split}, "mean": mean}
                for name, mean in (("exact_match", one), ("num_prompt_tokens", 9), ("num_output_tokens", 1))
            ],
        }
        for number, (one, split) in enumerate(zip(right, splits, strict=True))
    ]
    place = folder / "letters:model=small"
    place.mkdir(exist_ok=True)
    write(place / "per_instance_stats.json", stats)
    return write(place / "scenario_state.json", {"adapter_spec": {"model": "org/small"}, "request_states": states})


def of_helm(entry):
    """A token as HELM has it."""
    top = {one["token"]: one["logprob"] for one in entry["top_logprobs"]}
    return {"text": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


#: Of each format: a file of two answers, the first with a log-probability, the second with a good one of −0.1.
FORMATS = {
    "inspect": lambda folder, bad: inspect_log(folder, [token("A", bad)], [token("A", -0.1)]),
    "inspect choices": lambda folder, bad: inspect_log(
        folder, [token("A", bad, ("B", -9))], [token("A", -0.1)], choices=("x", "y")
    ),
    "lm-eval": lambda folder, bad: lm_eval_samples(folder, [math.nan if bad is None else bad, -0.3], [-0.1, -99]),
    "promptfoo": lambda folder, bad: results_of_promptfoo(folder, [bad], [-0.1]),
    "helm": lambda folder, bad: helm_run(folder, [of_helm(token("A", bad))], [of_helm(token("A", -0.1))]),
}


def test_invalid_log_probabilities_give_no_confidence(tmp_path):
    missed = {}
    for name, make in FORMATS.items():
        for bad in BAD if name != "helm" else BAD[:2]:  # HELM writes 0 where there is none
            evaluations = imported(make(tmp_path, bad))
            got = (
                evaluations.frame.height,
                evaluations.left_out,
                evaluations.frame["logprob"][0],
                unknown(evaluations)[1],
            )
            if got != (2, None, None, said(1)):
                missed[name, bad] = got
        rounded = imported(make(tmp_path, 9e-7))  # as float32 may
        if rounded.frame.height != 2 or rounded.left_out or rounded.frame["logprob"].max() > 0:
            missed[name] = rounded
    assert missed == {}


def test_tokens_of_another_text_give_no_confidence(tmp_path):
    why = "the tokens are not those of its text"
    for make in (inspect_log, lambda folder, *contents: helm_run(folder, *[[*map(of_helm, one)] for one in contents])):
        evaluations = imported(make(tmp_path, [token("C", -0.1)], [token("A", -0.1)]))
        assert unknown(evaluations)[1] == said(1, why)
        thought = [token(text, -0.4) for text in ("B", " may be a trap", "</think>")]
        frame = imported(make(tmp_path, [*thought, token("A", -0.02)])).frame
        assert frame["logprob"].to_list() == [-0.02]


def test_the_confidence_is_that_of_the_answer_given(tmp_path):
    top = (("A", -1.2), ("B", -0.4))
    contents = [[token("A", -1.2, *top)], [token("A", -0.1, ("A", -0.1))]]
    for path in (
        inspect_log(tmp_path, *contents, choices=("x", "y")),
        helm_run(tmp_path, *[[*map(of_helm, one)] for one in contents], offered="AB"),
    ):
        evaluations = imported(path)
        assert evaluations.frame["logprob"].to_list() == pytest.approx([-1.2, -0.1])


# lm-eval


def test_the_likelihood_of_one_choice_gives_no_confidence(tmp_path):
    path = lm_eval_samples(tmp_path, [-0.5], [-3.0], continuations=[" Paris"])
    with pytest.raises(LogError, match=r"no confidence can be read .*the likelihood of one choice alone: 2"):
        imported(path)
    mutual = lm_eval_samples(tmp_path, [-0.5, -0.7], metrics=["acc", "acc_mutual_info"], continuations=[" Paris"] * 2)
    with pytest.raises(LogError, match="the likelihood of one choice alone"):
        imported(mutual)


def test_impossible_choices_give_no_confidence(tmp_path):
    evaluations = imported(lm_eval_samples(tmp_path, [-math.inf, -math.inf], [-0.1, -math.inf]))
    assert evaluations.frame.select("query", "logprob").rows() == [("t/0", None), ("t/1", 0.0)]
    assert unknown(evaluations)[1] == said(1)
    mutual = [-math.inf, -math.inf, -1, -2], [-0.1, -math.inf, -1, -math.inf], [None, -1, -1, -2]
    path = lm_eval_samples(tmp_path, *mutual, metrics=["acc", "acc_mutual_info"], continuations=[" A", " B"] * 2)
    for metric in ("acc", "acc_mutual_info"):
        evaluations = imported(path, scorer=metric)
        rows = [("t/0", None, None), ("t/1", "A", 0.0), ("t/2", None, None)]
        assert evaluations.frame.select("query", "answer", "logprob").rows() == rows
        assert unknown(evaluations)[1] == said(2, answers="2 answers", labelled=2)


@pytest.mark.parametrize("path", LM_EVAL, ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
@pytest.mark.parametrize("metric", ["acc", "acc_norm", "acc_mutual_info"])
def test_letter_and_verdict_are_of_one_metric(path, metric):
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    if metric not in documents[0]["metrics"]:
        return
    rows = {row["query"].split("/")[1]: row for row in imported(path, scorer=metric).frame.to_dicts()}
    differ = 0
    for document in documents:
        row = rows[str(document["doc_id"])]
        likelihoods = np.array([float(one) for one, _ in document["filtered_resps"][:4]])
        place = "ABCD".index(row["answer"])
        assert row["correct"] == document[metric] == (place == int(document["target"]))
        assert math.exp(row["logprob"]) == pytest.approx(np.exp(likelihoods)[place] / np.exp(likelihoods).sum())
        differ += place != likelihoods.argmax()
    if metric == "acc_mutual_info":
        assert differ > 0


def test_the_metric_decides_which_choice_is_likeliest(tmp_path):
    def answer(metric, likelihoods, continuations):
        path = lm_eval_samples(tmp_path, likelihoods, metrics=["acc", metric], continuations=continuations)
        (row,) = imported(path, scorer=metric).frame.to_dicts()
        return row["answer"], row["logprob"]

    share = -6 - math.log(math.exp(-4) + math.exp(-6))
    cases = {
        ("acc", " no", " certainly"): "A",
        ("acc_norm", " no", " certainly"): "B",
        ("acc_norm", "no", "certainly"): "B",
        ("acc_norm", " abc", " abcde"): "B",  # with the space before them they would be alike
        ("acc_norm", "一二", "一二三"): "A",
        ("acc_bytes", " é", " abc"): "A",
        ("acc_norm", " é", " abc"): "B",
    }
    got = {}
    for (metric, *texts), wanted in cases.items():
        letter, logprob = answer(metric, [-4.0, -6.0], texts)
        if letter != wanted or not math.isclose(logprob, share + (2 if letter == "A" else 0)):
            got[metric, *texts] = letter, logprob
    assert got == {}


# HELM


def test_instances_of_the_test_split_count_as_helm_counts_them(tmp_path):
    tokens = [of_helm(token("A", -0.1))]
    right, splits = [1, *[0] * 9], [*["test"] * 9, "valid"]
    path = helm_run(tmp_path, *[tokens] * 10, splits=splits, right=right)
    evaluations = imported(path)
    assert evaluations.frame["correct"].mean() == pytest.approx(1 / 9)
    assert evaluations.left_out == "1 answer left out: 1 of the split valid, not test"
    path = helm_run(tmp_path, *[tokens] * 10, splits=["valid"] * 10, right=right)
    with pytest.raises(LogError, match=r"no answer can be used: 10 of the split valid, not test"):
        imported(path)


def test_cached_answers_have_neither_cost_nor_seconds(tmp_path):
    """Of a model with other answers it is 0, which a log takes for lost; where all are from the cache there is none."""
    path = results_of_promptfoo(tmp_path, [-0.1], [-0.2], [-0.3])
    content = json.loads(path.read_text())
    rows = content["results"]["results"]
    for row, cost in zip(rows, (0.02, 0.04, 0), strict=True):
        row |= {"cost": cost, "latencyMs": 340}
    rows[2]["response"] |= {"cached": True, "tokenUsage": {"cached": 10, "total": 10}}
    frame = imported(write(path, content)).frame
    assert frame["cost"].to_list() == pytest.approx([0.02, 0.04, 0.0])
    assert frame["seconds"].to_list() == [0.34, 0.34, None]
    content["results"]["results"] = rows[2:]
    assert "cost" not in imported(write(path, content)).frame.columns

    payloads = [json.loads(line) for line in (FILES / "litellm" / "calls.jsonl").read_text().splitlines()]
    hit = [payload | {"cache_hit": True, "response_cost": 0.0} for payload in payloads]
    calls = tmp_path / "calls.jsonl"
    calls.write_text("".join(json.dumps(payload) + "\n" for payload in hit))
    frame = imported(calls).frame
    assert not {"cost", "seconds"} & {*frame.columns}
    assert frame["input_tokens"].min() > 0
