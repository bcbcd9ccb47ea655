"""Plan a run: its options, clients and graders, the signal of each model, and estimates of the cost.

`probe` finds out what a model supports, by one small question.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax._base.tokens import Tokens
from rcjax.collecting.answer_file import LOST_CALL, AnswerFile, AnswerRows
from rcjax.collecting.grading import GraderTable, make_ask_judge, make_graders
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import (
    Budget,
    CollectedModel,
    Expense,
    Respondent,
    StoppedError,
    describe_failure,
    max_costs,
    max_input_tokens,
    max_output_tokens,
    usual_input_tokens,
)
from rcjax.collecting.user_graders import GraderError
from rcjax.policy.signals import ReplyCheck
from rcjax.policy.signals.reply_checks import is_reply_check
from rcjax.serving.call_log import VERSION, has_failed
from rcjax.serving.check_processes import CheckRunner, require_runnable
from rcjax.serving.completions import read_reply
from rcjax.serving.endpoints import SECOND_QUESTION_TOKENS, require_options, within_token_limit
from rcjax.serving.failures import CallError, NotCoveredError
from rcjax.serving.models_file import ModelEntry
from rcjax.serving.usage import TOKEN_LIMITS, CallUsage, reply_samples, token_limit

_PROBE_MESSAGES = [
    {"role": "user", "content": "Which is larger? A: the Sun. B: the Moon. Reply with the letter alone."}
]

#: Options that a probe tries in turn, until the endpoint accepts some.
_PROBED_OPTIONS: tuple[dict[str, Any], ...] = (
    {"logprobs": True, "top_logprobs": 20, "n": 2},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": True, "top_logprobs": 5},
    {"n": 2},
    {},
)


_PROBE_ATTEMPTS = 2  # few, since the run waits for the probe


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features that a model supports, as found by a probe."""

    model: str
    error: str | None = None
    """Error of the probe; None if the model answers."""
    logprobs: bool = False
    """Whether replies have log-probabilities of their tokens."""
    top: int = 0
    """Number of likeliest tokens that a reply gives for each position."""
    samples: bool = False
    """Whether a request can have several answers."""
    counted: bool = False
    """Whether replies count their tokens."""
    seconds: float = 0.0
    """Duration of the probe."""
    cost: float = 0.0
    """Money for the probe."""
    unusable: str | None = None
    """Reason why the log-probabilities cannot be used; None if they can, or there are none."""

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals that the model supports, the most informative first."""
        if self.error is not None:
            return ()
        by_tokens = ("choice", "verification") if self.top > 1 else ()
        votes = ("votes",) if self.samples else ()
        return (*by_tokens, *votes, "stated", *(("mean",) if self.logprobs else ()))


def default_signal(capabilities: Capabilities, with_choices: bool) -> str:
    """Return the signal of a model for which the user chose none.

    >>> default_signal(Capabilities("small", logprobs=True, top=5), True), default_signal(Capabilities("small"), True)
    ('choice', 'stated')
    """
    if capabilities.top > 1:
        return "choice" if with_choices else "verification"
    return "stated"


async def probe(respondent: Respondent, options: Mapping[str, Any], usage: CallUsage, expense: Expense) -> Capabilities:
    """Find out what a model supports; if its server fails, the result holds the error.

    Args:
        respondent: the model.
        options: options of its requests.
        usage: usage to which the usage of the probe is added.
        expense: expense that pays for the probe.

    Raises NotCoveredError if the budget does not cover the probe.
    """
    start, problem, reply = time.perf_counter(), "", None
    for probed in _PROBED_OPTIONS:
        request = respondent.make_request(_PROBE_MESSAGES, {**probed, **options})
        try:
            reply = read_reply(await respondent.send(request, usage, expense=expense, attempts=_PROBE_ATTEMPTS))
            break
        except CallError as error:
            problem = respondent.why_stopped or describe_failure(error)
            if error.failure.status not in (400, 422):
                break
        except StoppedError as error:
            problem = problem or str(error)
            break
    name, cost = respondent.settings.name, float(expense.spent)
    if reply is None:
        return Capabilities(name, error=problem, cost=cost)
    tokens = reply.tokens or ()
    return Capabilities(
        name,
        logprobs=bool(tokens),
        top=max((len(token.top) for token in tokens), default=0),
        samples=len(reply.texts) > 1,
        counted=len(usage.reported) == usage.replies > 0,
        seconds=time.perf_counter() - start,
        cost=cost,
        unusable=reply.tokens_problem,
    )


_PROBE_ERROR = "a probe of the model's abilities, not one of the questions"

_TEXT_TOKENS, _CHOICE_TOKENS = 1024, 16  # default limits of an answer's tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a run."""

    models: Mapping[str, ModelEntry]
    """Settings of the models to ask, by name."""
    judges: Mapping[str, ModelEntry] = field(default_factory=dict)
    """Settings of the models that may be judges, by name: all models of the file."""
    signal: str | None = None
    """Name of the common signal; None to choose one by the questions and the model."""
    graders: Sequence[str] = ()
    """Graders in the notation of the command line."""
    rubric: str | None = None
    """Template of a judge's prompt; None for the built-in one."""
    budget: float | None = None
    """Limit of the money spent, over all runs that write to one file; None for no limit."""
    max_tokens: int | None = None
    """Limit of tokens of an answer; None to choose it by the questions."""
    timeout: float = 60.0
    """Seconds per attempt."""
    samples: int = 1
    """Number of answers of a model to each question, unless its settings say otherwise."""
    score_max: float | None = None
    """Full score of graders; None if judges say right or wrong, and the scores of other graders go up to 1."""
    is_binary: bool = False
    """Whether graders must say right or wrong, and may not give scores."""
    unasked: Collection[str] = ()
    """Ids of the questions of the file that are not in the sample."""


class RunResources:
    """The clients of a run's models, its budget, its graders and its runner of checks.

    Raises ValueError if a key is not in the environment, and GraderError for unknown graders.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.budget = plan, Budget(None if plan.budget is None else Decimal(str(plan.budget)))
        self._respondents: dict[str, Respondent] = {}
        self.respondents = {name: self._respondent(name) for name in plan.models}
        scale = plan.score_max, plan.is_binary
        self.graders: GraderTable = make_graders(
            plan.graders, lambda name: make_ask_judge(self._respondent(name)), plan.rubric, *scale
        )
        self.checks = CheckRunner(plan.timeout)
        self._checks: dict[str, ReplyCheck] = {}

    def _respondent(self, name: str) -> Respondent:
        settings = {**self.plan.judges, **self.plan.models}
        if name not in settings:
            raise GraderError(f"judge:{name}: no model of this name: there are {', '.join(settings)}")
        if name not in self._respondents:
            _require_options(name, settings[name].options)
            self._respondents[name] = Respondent(settings[name], self.plan.timeout)
        return self._respondents[name]

    def resume(self, answers: AnswerRows) -> None:
        """Continue earlier runs: count the money that they spent, and their highest cost of a call."""
        self.budget.spent = answers.spent
        for name, respondent in self.respondents.items():
            respondent.highest_cost = answers.highest_cost(name)

    def judge_of(self, question: Question) -> Respondent | None:
        """Return the model that judges answers to a question; None without a judge."""
        kind, _, model = (self.graders.grader_name(question) or "").partition(":")
        return self._respondent(model) if kind == "judge" else None

    def check_of(self, name: str) -> ReplyCheck | None:
        """Return the check with a signal's name; None for other signals. Raises ValueError if it cannot be run."""
        if is_reply_check(name) and name not in self._checks:
            require_runnable([ReplyCheck(name)])
            self._checks[name] = ReplyCheck(name)
        return self._checks.get(name)

    def remarks(self) -> list[str]:
        """Return sentences about failures of graders and checks."""
        return [*self.graders.remarks(), *self.checks.remarks()]

    def options_of(self, name: str, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the options of a model's requests, with a limit of tokens."""
        options, limit = dict(self.plan.models[name].options), self.plan.max_tokens
        if token_limit(options) is None:
            options["max_tokens"] = limit or (_CHOICE_TOKENS if _all_have_choices(questions) else _TEXT_TOKENS)
        return within_token_limit(options, limit and limit * reply_samples(options))

    def samples_of(self, name: str) -> int:
        """Return the number of answers of a model to each question."""
        return self.respondents[name].settings.samples or self.plan.samples

    async def aclose(self) -> None:
        """Close all clients, and end checks and graders."""
        for respondent in self._respondents.values():
            await respondent.close()
        await self.checks.close()
        await self.graders.close()


def _require_options(name: str, options: Mapping[str, Any]) -> None:
    try:
        require_options(options)
    except ValueError as problem:
        raise ValueError(f"model {name}: {problem}") from None
    for limit in TOKEN_LIMITS:
        value = options.get(limit, 1)
        if type(value) is not int or value < 1:
            raise ValueError(f"model {name}: options: {limit} must be a whole number, 1 or more")
    for option in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if type(options.get(option, 0)) not in (int, float):
            raise ValueError(f"model {name}: options: {option} must be a number")


async def probe_all(plan: Plan) -> list[Capabilities]:
    """Probe all models of a plan."""

    async def ask(name: str, respondent: Respondent) -> Capabilities:
        async with resources.budget.expense(lambda _: None) as expense:
            try:
                return await probe(respondent, resources.options_of(name, ()), CallUsage(), expense)
            except NotCoveredError:
                return Capabilities(name, error="the budget does not cover a probe", cost=float(expense.spent))

    async with aclosing(RunResources(plan)) as resources:
        return list(await asyncio.gather(*(ask(*pair) for pair in resources.respondents.items())))


def assume_signals(resources: RunResources, questions: Sequence[Question], answers: AnswerRows) -> list[CollectedModel]:
    """Return the presumed request settings of each model, for a forecast.

    A model without a known signal is presumed to give log-probabilities.
    """
    usual = _usual_signal(questions)
    known = {name: _known_signal(resources, name, questions, answers) or usual for name in resources.respondents}
    return [_bind_settings(resources, name, signal, questions, answers) for name, signal in known.items()]


def _usual_signal(questions: Sequence[Question]) -> str:
    """Return the signal of a model that gives log-probabilities."""
    return default_signal(Capabilities("", logprobs=True, top=20), _all_have_choices(questions))


async def choose_signals(
    resources: RunResources, questions: Sequence[Question], file: AnswerFile
) -> tuple[list[CollectedModel], list[str]]:
    """Choose the signal of each model; return (models with request settings, sentences about the choices).

    The signal is that of the model's settings, of the command, or of existing answers; without these, the questions and
    a probe of the model decide.
    """

    async def choose(name: str) -> tuple[CollectedModel, str | None]:
        signal, reason = _known_signal(resources, name, questions, file.answers), None
        if signal is None:
            signal, reason = await _probe_signal(resources, name, questions, file)
        return _bind_settings(resources, name, signal, questions, file.answers), reason

    chosen = await asyncio.gather(*map(choose, resources.respondents))
    models: dict[str, list[str]] = {}
    for collected, reason in chosen:
        if reason is not None:
            models.setdefault(reason, []).append(collected.name)
    return [collected for collected, _ in chosen], [f"{', '.join(names)}: {reason}" for reason, names in models.items()]


def _bind_settings(
    resources: RunResources, name: str, signal: str, questions: Sequence[Question], answers: AnswerRows
) -> CollectedModel:
    """Return a model with its request settings.

    Raises ValueError for several samples if an existing answer is already the vote of several answers.
    """
    samples, before = resources.samples_of(name), _earlier_settings(answers, name)
    if samples > 1 and signal == before.get("signal") == "votes" and not before.get("separate"):
        fact = (
            f"an answer of the existing log is the vote of several, and each of {samples} samples would be one answer"
        )
        raise ValueError(f"model {name}: {fact}: write another log, with another --out")
    separate = signal == "votes" and (samples > 1 or bool(before.get("separate")))
    options = resources.options_of(name, questions)
    return CollectedModel(
        resources.respondents[name], signal, options, resources.checks, samples, separate, resources.check_of(signal)
    )


def _all_have_choices(questions: Sequence[Question]) -> bool:
    """Return whether there are questions, and all have choices."""
    return bool(questions) and all(question.choices for question in questions)


def _known_signal(resources: RunResources, name: str, questions: Sequence[Question], answers: AnswerRows) -> str | None:
    """Return the signal by the model's settings, the command, existing answers or the questions; None if unknown.

    Several samples vote, unless the model has a signal: they need no confidence of their own. If all questions have
    tools, the signal is the check `call`, and if all have a schema, `json`.
    """
    before = _earlier_settings(answers, name).get("signal")
    if signal := resources.respondents[name].settings.signal or resources.plan.signal or before:
        return signal
    if resources.samples_of(name) > 1:
        return "votes"
    checks = {"tools": "call", "response_format": "json"}
    fitting = [check for option, check in checks.items() if all(question.options.get(option) for question in questions)]
    return fitting[0] if questions and fitting else None


def _earlier_settings(answers: AnswerRows, model: str) -> dict[str, Any]:
    """Return the request settings of a model's existing answers; {} without any."""
    row = next((row for (_, name, _), row in answers.answered.items() if name == model), None)
    return {} if row is None else json.loads(row["request_settings"])


async def _probe_signal(
    resources: RunResources, model: str, questions: Sequence[Question], file: AnswerFile
) -> tuple[str, str]:
    """Probe a model and return (a signal that it supports, the reason); the probe is paid and logged like a call."""
    respondent = resources.respondents[model]
    name = uuid.uuid4().hex[:16]
    usage = CallUsage()
    async with resources.budget.expense(partial(file.begin, name, "", model)) as expense:
        try:
            capabilities = await probe(respondent, resources.options_of(model, questions), usage, expense)
        except NotCoveredError:  # the run will not ask this model either
            file.end(name)
            signal = _usual_signal(questions)
            return signal, f"signal {signal}: the budget does not cover a probe"
    cost = {"cost": float(respondent.counted_money(usage)), "at_most": float(expense.spent)}
    more = {"attempts": usage.attempts, "estimated": False, "shadow": True, "error": _PROBE_ERROR}
    file.write({"call_log": VERSION, "call": name, "query": "", "model": model, **cost, **more})
    signal = default_signal(capabilities, _all_have_choices(questions))
    if capabilities.error is not None:
        respondent.stop(capabilities.error)
        return signal, f"does not answer: {capabilities.error}"
    gives = "gives log-probabilities" if capabilities.top > 1 else capabilities.unusable or "gives no log-probabilities"
    votes = "; --samples 5 has the share of five answers that agree, and costs five" if signal == "stated" else ""
    return signal, f"{gives}: signal {signal}{votes}"


#: Assumed tokens of an answer in words, and of a choice, until a model has answered.
USUAL_TEXT_TOKENS, USUAL_CHOICE_TOKENS = 200, 2

_RUBRIC_TOKENS, _VERDICT_TOKENS = 300, 8  # tokens of a judge's rubric, and of its reply


JudgeOf = Callable[[Question], Respondent | None]
"""Returns the model that judges answers to a question; None without a judge."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The missing answers of a model, and estimates of their cost."""

    model: str
    questions: int
    """Number of questions with a missing answer."""
    calls: int
    """Number of missing answers."""
    requests: int
    """Number of requests for these, with the second questions of the signal."""
    likely_cost: float
    """Expected cost, judges and failures included: a prior from usual lengths, corrected by the observed costs."""
    max_cost: float
    """Largest possible cost, judges included."""


def estimate(
    collected: CollectedModel, questions: Sequence[Question], answers: AnswerRows, judge_of: JudgeOf
) -> Estimate:
    """Estimate the cost of a model's missing answers.

    Args:
        collected: the model and its request settings.
        questions: questions of the run.
        answers: existing answers.
        judge_of: returns the model that judges answers to a question, or None.
    """
    waiting = [question for question, _ in collected.missing_answers(questions, answers.answered)]
    worst = sum(
        (sum(max_costs(collected, question), judging_cost(collected, question, judge_of)) for question in waiting),
        _ZERO,
    )
    usual = sum((_usual_cost(collected, question, judge_of) for question in waiting), _ZERO)
    observed = _observed_ratio(collected, questions, answers, judge_of)
    distinct = len({question.query for question in waiting})
    requests = sum(1 if collected.signal_for(question).second_options is None else 2 for question in waiting)
    costs = float(min(usual * observed, worst)), float(worst)
    return Estimate(collected.name, distinct, len(waiting), requests, *costs)


_ZERO = Decimal(0)

_PRIOR_ANSWERS = Decimal("0.25")  # weight of the prior ratio


def _observed_ratio(
    collected: CollectedModel,
    questions: Sequence[Question],
    answers: AnswerRows,
    judge_of: JudgeOf,
) -> Decimal:
    """Return the ratio of a model's observed costs, failures and judges included, to the usual costs.

    A prior ratio of 1 counts as a quarter of an answer: the usual length of an answer may be ten times too large.
    """
    by_query = {question.query: question for question in questions}
    rows = [row for row in answers.rows.values() if row["model"] == collected.name and row["query"] in by_query]
    rows = [row for row in rows if row.get("error") != LOST_CALL]  # of a lost call only the worst case is known
    usual = [_usual_cost(collected, by_query[row["query"]], judge_of) for row in rows if not has_failed(row)]
    if not sum(usual):
        return Decimal(1)
    prior = _PRIOR_ANSWERS * sum(usual, _ZERO) / len(usual)
    # A call without a bill counts by its estimated cost, not by its upper bound.
    paid = [Decimal(str(row.get(name) or 0)) for row in rows for name in ("cost", "grading_cost")]
    return (sum(paid, _ZERO) + prior) / (sum(usual, _ZERO) + prior)


def _usual_cost(collected: CollectedModel, question: Question, judge_of: JudgeOf) -> Decimal:
    """Return the usual cost of a call and its judge, from the length of the question."""
    endpoint = collected.make_endpoint(question)
    read, written = usual_input_tokens(question.messages, question.options), _usual_output(question, endpoint.options)
    second = endpoint.second_options
    if second is not None:
        read += read + written + SECOND_QUESTION_TOKENS
        written += min(4, max_output_tokens(second))
    price = collected.respondent.settings.price
    return price.money(Tokens(read, written)) + judging_cost(collected, question, judge_of, worst=False)


def _usual_output(question: Question, options: Mapping[str, Any]) -> int:
    """Return the usual number of output tokens, over all samples of a request."""
    usual = (USUAL_CHOICE_TOKENS if question.choices else USUAL_TEXT_TOKENS) * (options.get("n") or 1)
    return min(usual, max_output_tokens(options))


def judging_cost(collected: CollectedModel, question: Question, judge_of: JudgeOf, *, worst: bool = True) -> Decimal:
    """Return the cost of judging one answer, in money.

    Args:
        collected: the model that answers, and its request settings.
        question: the question.
        judge_of: returns the model that judges answers to a question, or None.
        worst: assume the longest answer, judged twice; else a usual answer, judged once.
    """
    respondent = judge_of(question)
    if respondent is None:
        return _ZERO
    options, price = collected.make_endpoint(question).options, respondent.settings.price
    if worst:
        read = 2 * (max_input_tokens(question.messages) + 4 * (max_output_tokens(options) + _RUBRIC_TOKENS))
    else:
        read = usual_input_tokens(question.messages) + _usual_output(question, options) + _RUBRIC_TOKENS
    by_price = price.money(Tokens(read, 2 * _VERDICT_TOKENS if worst else 1, cache_write=read if worst else 0))
    return max(2 * respondent.highest_cost, by_price) if worst else by_price
