"""Make graders from their names on the command line: `exact`, `choice`, `number`, `contains`, `regex:…`, `python:…`.

Each kind of question may have its grader: `math=number`, `essay=judge:large`. The column `grade` of a question names
its kind. Only the command can name a grader that runs code or costs money; a file of questions can only select one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rcjax._base.wording import count
from rcjax.collecting.grader import Attempt, Function, Grader, GraderError, Matching, ProcessGrader, Program
from rcjax.collecting.questions import Question
from rcjax.collecting.text_graders import (
    Ask,
    ComparisonGrader,
    JsonGrader,
    Judge,
    NumberGrader,
    contains,
    exact,
    is_number,
    right_call,
    right_choice,
)

#: Graders that compare texts, by name.
COMPARISONS: dict[str, Callable[[Attempt], bool]] = {"exact": exact, "choice": right_choice, "contains": contains}

_FAILURES = 10  # in a row, after which grading ends

_LONG = 300  # characters of an error in a message

_FORMS = (
    "exact",
    "choice",
    "number",
    "contains",
    "call",
    "json",
    "regex:…",
    "python:module:function",
    "command:…",
    "judge:MODEL",
)


@dataclass(frozen=True, slots=True)
class Graders:
    """The graders of a run: the common grader, and graders by kind of question."""

    common: str | None
    """Name of the common grader; None to choose a grader by the form of the question."""
    by_name: Mapping[str, Grader] = field(default_factory=dict)
    """All graders by name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Names of graders by kind of question."""
    _failures: dict[str, list[str]] = field(default_factory=dict)
    """Descriptions of failures by grader."""
    _in_a_row: Counter[str] = field(default_factory=Counter)

    def named(self, question: Question) -> str | None:
        """Return the name of a question's grader; None if no grader can grade it."""
        if question.grade is not None:
            name: str | None = self.kinds.get(question.grade, question.grade)
        else:
            name = self.common or suited_grader(question)
        if name is None or (self.by_name[name].needs_reference and not question.reference):
            return None
        return name

    def note_failure(self, name: str, where: str, error: Exception) -> GraderError | None:
        """Record a grader's failure on an answer; return an error after ten failures in a row, else None.

        Args:
            name: name of the grader.
            where: description of the answer.
            error: the failure.
        """
        why = str(error) if isinstance(error, GraderError) else f"{name} failed: {type(error).__name__}: {error}"
        line = f"{where}: {' '.join(why.split())[:_LONG]}"
        self._failures.setdefault(name, []).append(line)
        self._in_a_row[name] += 1
        if self._in_a_row[name] < _FAILURES:
            return None
        return GraderError(f"{_FAILURES} answers in a row without a verdict, as {name} failed, the last one {line}")

    def note_success(self, name: str) -> None:
        """Record that a grader worked on an answer."""
        self._in_a_row[name] = 0

    def require(self, questions: Iterable[Question]) -> None:
        """Raise GraderError for a kind of question without a grader, and for a missing library."""
        for question in questions:
            if question.grade is not None and self.kinds.get(question.grade, question.grade) not in self.by_name:
                kind = question.grade
                raise GraderError(f"query {question.query}: no grader for the kind {kind!r}: give --grade {kind}=…")
            grader = self.by_name.get(self.named(question) or "")
            if isinstance(grader, ProcessGrader):
                grader.require()

    def remarks(self) -> list[str]:
        """Return sentences about answers without a verdict: unreadable replies of judges, and failures."""
        unread = [
            f"{name}: asked twice, no verdict on {count(one.unread, 'answer')}: "
            f"it must reply with {one.form} alone on its last line"
            for name, one in self.by_name.items()
            if isinstance(one, Judge) and one.unread
        ]
        failures = [
            f"no verdict on {count(len(lines), 'answer')}, as {name} failed; the first one is {lines[0]}"
            for name, lines in self._failures.items()
        ]
        return unread + failures

    async def close(self) -> None:
        """End the graders' processes."""
        for grader in self.by_name.values():
            if isinstance(grader, ProcessGrader):
                await grader.close()


def suited_grader(question: Question) -> str | None:
    """Choose a grader by the form of a question: call, json, choice, number or exact; None without a right answer.

    >>> suited_grader(Question("q", (), ("1,200",))), suited_grader(Question("q", (), ("Paris",)))
    ('number', 'exact')
    """
    if not question.reference:
        return None
    if question.options:
        return "call" if question.options.get("tools") else "json"
    if question.choices:
        return "choice"
    return "number" if all(is_number(text) for text in question.reference) else "exact"


def make_graders(
    named: Sequence[str],
    ask: Callable[[str], Ask] | None = None,
    template: str | None = None,
    score_max: float | None = None,
    whole: bool = False,
) -> Graders:
    """Make the graders that a command names.

    Args:
        named: graders in the notation of the command line, such as `["exact", "math=number"]`.
        ask: returns the `Ask` of a judge, from the name of a model; None without models.
        template: template of a judge's prompt; None for the built-in one.
        score_max: full score of judges, functions and programs; None if judges and `json` say right or wrong, and the
            scores of others go from 0 to 1.
        whole: whether functions and programs, too, must say right or wrong.

    Raises GraderError for an unknown name, two common graders, and a full score that no grader uses.
    """

    def judge(model: str) -> Judge:
        if ask is None:
            raise GraderError(f"judge:{model}: a judge is a model: give --models models.toml")
        return Judge(ask(model), template, score_max)

    most = None if whole else score_max or 1.0
    by_name: dict[str, Grader] = {name: ComparisonGrader(compare) for name, compare in COMPARISONS.items()}
    by_name["number"] = NumberGrader()
    by_name["call"] = ComparisonGrader(right_call)
    by_name["json"] = JsonGrader(scores=score_max is not None)
    kinds: dict[str, str] = {}
    common: str | None = None
    for text in named:
        kind = re.match(r"([\w-]+)=(?=\S)", text)
        name = text[kind.end() :] if kind else text
        if kind:
            kinds[kind[1]] = name
        elif common is not None:
            raise GraderError(f"--grade {common} and {name}: one for all; for a kind of question give KIND={name}")
        else:
            common = name
        if name not in by_name:
            by_name[name] = _make(name, most, judge)
    scoring = re.compile(r"(?:judge|python|command):|json\Z")
    if score_max is not None and not any(scoring.match(name) for name in [*kinds.values(), common or ""]):
        what = "is the full score of judge:MODEL, python:module:function, command:… or json: name one"
        raise GraderError(f"--score-max {score_max:g}: {what}, or leave it out")
    return Graders(common, by_name, kinds)


def _make(name: str, most: float | None, judge: Callable[[str], Judge]) -> Grader:
    form, _, rest = name.partition(":")
    makers = {"regex": lambda: Matching(rest), "judge": lambda: judge(rest)}
    makers |= {"python": lambda: Function(name, most), "command": lambda: Program(name, most)}
    if form not in makers or not rest:
        raise GraderError(f"{name!r} is no grader: give {', '.join(_FORMS)}")
    return makers[form]()
