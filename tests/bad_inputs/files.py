"""What is wrong with a file of any kind."""

import itertools

from bad_inputs import BadFile, text_file

_KINDS = {
    "log": "csv",
    "labels": "csv",
    "said": "csv",
    "prices": "json",
    "policy": "json",
    "frontier": "json",
    "sweep": "toml",
    "evaluation": "json",
    "questions": "jsonl",
    "models": "toml",
    "answers": "jsonl",
    "rubric": "txt",
}


def _of_kind(kind: str, ending: str) -> tuple[BadFile, ...]:
    return (
        BadFile("is not there", kind, lambda folder: folder / f"absent.{ending}", (f"absent.{ending}",)),
        BadFile("is empty", kind, text_file(f"empty.{ending}", ""), (f"empty.{ending}",)),
    )


FILES = tuple(itertools.chain.from_iterable(_of_kind(*kind) for kind in _KINDS.items()))
