"""What is wrong with the file of an evaluation that another program ran."""

from collections.abc import Callable
from pathlib import Path

from bad_inputs import BadFile, text_file

_FILES = Path(__file__).parents[1] / "importing" / "files"
(_SUMS,) = (_FILES / "inspect").glob("*.json")
_EVAL, *_ = (_FILES / "inspect").glob("*.eval")
_LINES, *_ = (_FILES / "lm_eval" / "org__toy-0.6").glob("samples_letters_2*.jsonl")
_STATE = _FILES / "helm" / "repeat" / "scenario_state.json"
_CALLS = _FILES / "litellm" / "calls.jsonl"
_SPANS = _FILES / "otel" / "messages.jsonl"
_BATCH = _FILES / "openai_batch" / "chat_toy-large.jsonl"
_RESULTS = _FILES / "promptfoo" / "results.json"


def _changed(source: Path, change: Callable[[bytes], bytes], name: str = "") -> Callable[[Path], Path]:
    """A writer of a good file with something changed."""

    def write(folder: Path) -> Path:
        path = folder / f"changed_{name or source.name}"
        path.write_bytes(change(source.read_bytes()))
        return path

    return write


def _bad(fault: str, write: Callable[[Path], Path], *says: str) -> BadFile:
    return BadFile(fault, "evaluation", write, says)


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


EVALUATIONS = (
    _bad("is a text", text_file("letter.json", "Dear all"), "letter.json", "of no format that is known"),
    _bad("is another JSON", text_file("other.json", '{"a": 1}'), "other.json", "of no format that is known"),
    _bad("is no text", text_file("bytes.json", b"\xff\xfe\x00{"), "bytes.json", "of no format that is known"),
    _bad("is an archive of something else", text_file("other.zip", b"PK\x05\x06" + bytes(18)), "other.zip"),
    _bad(
        "is half a log of Inspect",
        _changed(_SUMS, lambda content: content[:3000]),
        "sums",
        "cannot be read after 0 samples",
    ),
    _bad("is half an archive of Inspect", _changed(_EVAL, _half), "letters", "cannot be read", "is it whole?"),
    _bad(
        "is an archive of Inspect with a damaged sample",
        _changed(_EVAL, lambda content: content[:500] + bytes(400) + content[900:]),
        "letters",
        "cannot be read",
    ),
    _bad(
        "is a log of Inspect without samples",
        text_file("none.json", '{"version": 2, "eval": {"model": "m"}, "samples": []}'),
        "none.json",
        "holds no samples",
    ),
    _bad(
        "is a log of Inspect without a model",
        text_file("none.json", '{"version": 2, "eval": {}, "samples": [{"id": 1}]}'),
        "none.json",
        "no evaluation of a model",
    ),
    _bad(
        "is a log of Inspect with a strange sample",
        text_file("odd.json", '{"version": 2, "eval": {"model": "m"}, "samples": [{"id": 1, "output": 5}]}'),
        "odd.json, sample 1, epoch 1",
        "is not as Inspect writes it",
    ),
    _bad(
        "is half the samples of lm-eval", _changed(_LINES, lambda c: c[:-300]), "line 8", "is not as lm-eval writes it"
    ),
    _bad(
        "is samples of lm-eval without a score",
        _changed(_LINES, lambda content: content.replace(b'"metrics": [', b'"metrics": ["absent"], "others": [')),
        "line 1",
        "has no metric",
    ),
    _bad("is a run of HELM without its figures", _changed(_STATE, bytes, "scenario_state.json"), "in one folder"),
    _bad("is half a file of promptfoo", _changed(_RESULTS, _half), "cannot be read as results of promptfoo"),
    _bad(
        "is results of promptfoo without any",
        text_file("none.json", '{"evalId": 1, "results": {"results": []}}'),
        "no results",
    ),
    _bad(
        "is nested deeply",
        text_file("deep.json", '{"evalId": 1, "results": ' + "[" * 100_000),
        "deep.json",
        "cannot be read",
    ),
    _bad("lacks columns", text_file("table.csv", "a,b\n1,2\n"), "table.csv: no column query", "--column query="),
    _bad(
        "has a score that is none",
        text_file("table.csv", "query,model,correct,confidence,cost\n1,a,perhaps,0.5,1\n"),
        "table.csv",
        "'perhaps' is neither",
    ),
    _bad("is half a log of LiteLLM", _changed(_CALLS, _half), "calls.jsonl, line", "is not as LiteLLM writes it"),
    _bad(
        "is a log of LiteLLM with a strange call",
        text_file("odd.jsonl", '{"call_type": "completion", "response_cost": 1, "model_group": "m", "messages": 5}\n'),
        "odd.jsonl, line 1: is not as LiteLLM writes it",
    ),
    _bad(
        "is a redacted log of LiteLLM",
        _changed(
            _CALLS,
            lambda content: content.replace(b'"content": "What', b'"content": "redacted-by-litellm", "was": "What'),
            "hidden.jsonl",
        ),
        "no answer can be used",
        "redacted (turn_off_message_logging)",
    ),
    _bad("is half a file of spans", _changed(_SPANS, _half), "messages.jsonl, line", "is not as OpenTelemetry writes"),
    _bad(
        "is spans of something else",
        text_file("spans.jsonl", '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /"}]}]}]}\n'),
        "no answers in the files",
    ),
    _bad(
        "is a span without an end",
        _changed(_SPANS, lambda content: content.replace(b"endTimeUnixNano", b"end"), "endless.jsonl"),
        "endless.jsonl, line 1",
        "is not as OpenTelemetry writes it (KeyError('endTimeUnixNano'))",
    ),
    _bad("is half the output of a batch", _changed(_BATCH, lambda c: c[:-300]), "line 8", "is not as OpenAI writes it"),
    _bad(
        "is the output of a batch that failed",
        text_file("failed.jsonl", '{"custom_id": "1", "response": null, "error": {"code": "batch_expired"}}\n'),
        "no answer can be used: 1 with an error",
    ),
    _bad(
        "is the output of a batch of embeddings",
        text_file(
            "vectors.jsonl",
            '{"custom_id": "1", "response": {"status_code": 200, "body": {"object": "list"}}, "error": null}',
        ),
        "1 of another kind of call (list)",
    ),
    _bad("is an array of numbers", text_file("numbers.json", "[1, 2]"), "numbers.json: is no array of JSON objects"),
)
