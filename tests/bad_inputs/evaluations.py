"""What is wrong with files of evaluations: a fault a format or two; `importing/test_any_file` has all others."""

from collections.abc import Callable
from pathlib import Path

from bad_inputs import BadFile, text_file

_FILES = Path(__file__).parents[1] / "importing" / "files"
(_SUMS,) = (_FILES / "inspect").glob("*.json")
_EVAL, *_ = (_FILES / "inspect").glob("*.eval")
_STATE = _FILES / "helm" / "repeat" / "scenario_state.json"
_CALLS = _FILES / "litellm" / "calls.jsonl"
_SPANS = _FILES / "otel" / "messages.jsonl"
_RESULTS = _FILES / "promptfoo" / "results.json"


def _changed(source: Path, change: Callable[[bytes], bytes], name: str = "") -> Callable[[Path], Path]:
    """A writer of a good file with something changed."""

    def write(folder: Path) -> Path:
        path = folder / f"changed_{name or source.name}"
        path.write_bytes(change(source.read_bytes()))
        return path

    return write


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _redacted(content: bytes) -> bytes:
    return content.replace(b'"content": "What', b'"content": "redacted-by-litellm", "was": "What')


_TABLE = "query,model,correct,confidence,cost\n1,a,perhaps,0.5,1\n"
_EMPTY = '{"version": 2, "eval": {"model": "m"}, "samples": []}'
_NOBODY = '{"version": 2, "eval": {}, "samples": [{"id": 1}]}'
_GET = '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /"}]}]}]}\n'
_FAILED = '{"custom_id": "1", "response": null, "error": {"code": "batch_expired"}}\n'

_FAULTS: tuple[tuple[str, Callable[[Path], Path], tuple[str, ...]], ...] = (
    ("is another JSON", text_file("other.json", '{"a": 1}'), ("other.json", "of no format that is known")),
    ("is an archive of something else", text_file("other.zip", b"PK\x05\x06" + bytes(18)), ("other.zip",)),
    ("is half a log of Inspect", _changed(_SUMS, lambda c: c[:3000]), ("sums", "cannot be read after 0 samples")),
    ("is half an archive of Inspect", _changed(_EVAL, _half), ("letters", "cannot be read", "is it whole?")),
    ("is a log of Inspect without samples", text_file("none.json", _EMPTY), ("none.json", "holds no samples")),
    ("is a log of Inspect without a model", text_file("none.json", _NOBODY), ("no evaluation of a model",)),
    ("is a run of HELM without its figures", _changed(_STATE, bytes, "scenario_state.json"), ("in one folder",)),
    ("is half a file of promptfoo", _changed(_RESULTS, _half), ("cannot be read as results of promptfoo",)),
    ("is nested deeply", text_file("deep.json", '{"evalId": 1, "results": ' + "[" * 100_000), ("cannot be read",)),
    ("lacks columns", text_file("table.csv", "a,b\n1,2\n"), ("table.csv: no column query", "--column query=")),
    ("has a score that is none", text_file("table.csv", _TABLE), ("table.csv", "'perhaps' is neither")),
    ("is a redacted log of LiteLLM", _changed(_CALLS, _redacted, "hidden.jsonl"), ("redacted (turn_off_message",)),
    ("is half a file of spans", _changed(_SPANS, _half), ("messages.jsonl, line", "is not as OpenTelemetry writes")),
    ("is spans of something else", text_file("spans.jsonl", _GET), ("no answers in the files",)),
    ("is the output of a batch that failed", text_file("failed.jsonl", _FAILED), ("can be used: 1 with an error",)),
    ("is an array of numbers", text_file("numbers.json", "[1, 2]"), ("numbers.json: is no array of JSON objects",)),
)

EVALUATIONS = tuple(BadFile(fault, "evaluation", write, says) for fault, write, says in _FAULTS)
