"""Whether labels and answers are of one alphabet: of two (`Billing` and `B`, 0 and 1 for a first choice), few match."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping

from rcjax._base.wording import count, percent
from rcjax._core.binomial import binomial_tail
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed

_FEWEST = 6  # answers, of which one should be right: three queries of two models

_MOST_CHOICES = 100  # different answers of a model, above which nobody chooses among them

_RARE = 1e-3  # how rarely a model that guesses is right as seldom as the worst of them

_EXAMPLES = 3  # of each side, in a message

_MANY = 0.05  # share of the queries, from which labels that nobody gives are hardly right answers that all missed


class Alphabets:
    """Counts how often answers are right by labels, and how often they would be by luck.

    Args:
        source: of the labels, for messages.
        labels: as they are written, by how they are compared.
    """

    def __init__(self, source: str, labels: Mapping[str, str]) -> None:
        self._source, self._labels = source, labels
        self._any_equal, self._number, self._within = False, 0, 0
        self._answers: dict[str, Counter[str]] = {}
        self._right: Counter[str] = Counter()
        self._wanted: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._queries: dict[str, frozenset[str]] = {}

    def add(self, query: str, model: str, answer: str, words: str, right: Collection[str]) -> None:
        """Count an answer.

        Args:
            query: that was answered.
            model: that gave it.
            answer: as it was written.
            words: the same as it is compared.
            right: the labels of its query.
        """
        self._any_equal = self._any_equal or words in self._labels
        self._queries.setdefault(query, frozenset(right))
        self._number += 1
        self._within += words not in right and any(_stands_in(label, words) for label in right)
        answers = self._answers.setdefault(model, Counter())
        if len(answers) <= _MOST_CHOICES:  # else the counts are not used
            answers[words] += 1
            self._right[model] += words in right
            self._wanted.update(right)
        if len(self._examples) <= _EXAMPLES:
            self._examples.setdefault(words, answer)

    def require_one(self) -> None:
        """Raise LogError where no label equals any answer, or every model is right less often than by guessing."""
        if not self._answers:
            return
        both = f"labels: {_few(self._labels)}; answers: {_few(self._examples)}"
        advice = "write labels and answers alike"
        if not self._any_equal and self._number >= _FEWEST:
            raise LogError(f"{self._source}: no label equals any answer ({both}): {advice}")
        if any(len(answers) > _MOST_CHOICES for answers in self._answers.values()):
            return
        lucky = {model: guessing(answers, self._wanted) for model, answers in self._answers.items()}
        shares = {model: self._right[model] / self._answers[model].total() for model in lucky}
        by_chance = [self._by_chance(model, luck) for model, luck in lucky.items()]
        if all(shares[model] < luck for model, luck in lucky.items()) and min(by_chance) < _RARE:
            models = listed(f"{model} {percent(share)}" for model, share in shares.items())
            guess = percent(min(lucky.values()))
            what = f"every model is right less often than by guessing ({models}; guessing {guess}"
            sure = "if they are, give the labels by query, model and correct"
            raise LogError(f"{self._source}: {what}; {both}): {advice}; {sure}")

    def foreign(self) -> str | None:
        """That many queries have labels which nobody ever answers, in words; None where few do, or nobody chooses."""
        if any(len(answers) > _MOST_CHOICES for answers in self._answers.values()):
            return None
        all_answers = {*itertools.chain.from_iterable(self._answers.values())}
        strange = {query: right for query, right in self._queries.items() if right.isdisjoint(all_answers)}
        if len(strange) < max(_FEWEST, _MANY * len(self._queries)):
            return None
        examples = {words: self._labels[words] for words in itertools.chain.from_iterable(strange.values())}
        queries = count(len(self._queries), "labelled query")
        what = f"{len(strange):,} of {queries} have a label that no model ever gives"
        return f"{self._source}: {what} ({_few(examples)}), and all are wrong there: write labels and answers alike"

    def among_words(self) -> str | None:
        """That many wrong answers have the right one among other words, in words; None where few do."""
        if self._within < max(_FEWEST, _MANY * self._number):
            return None
        what = (
            f"{self._within:,} of {count(self._number, 'answer')} are wrong that have the right one among other words"
        )
        advice = "labels are compared with whole answers: grade the log instead (rcjax grade LOG --grade contains)"
        return f"{self._source}: {what}; {advice}"

    def _by_chance(self, model: str, luck: float) -> float:
        """How likely a model that guesses is to be right as seldom."""
        return binomial_tail(self._right[model], self._answers[model].total(), luck)


def guessing(answers: Counter[str], wanted: Counter[str]) -> float:
    """How often answers are right that have nothing to do with the questions, at least.

    It is the chance that an answer drawn from a model's, and a label drawn by itself, are equal (as Cohen's κ takes
    it), or 1/K for K different ones where that is less: labels that are mostly of one kind make honest models look
    worse than the one, those that are hardly answered the other.

    Args:
        answers: how often a model gave each answer.
        wanted: how often each was right.

    >>> guessing(Counter(A=5, B=5), Counter(A=5, B=5)), guessing(Counter(A=5), Counter(B=5))
    (0.5, 0.0)
    """
    rows, all_wanted = answers.total(), wanted.total()
    met = sum(number * wanted[words] for words, number in answers.items()) / (rows * max(1, all_wanted))
    return min(met, 1 / len({*answers, *wanted}))


def _stands_in(label: str, words: str) -> bool:
    """Whether a label stands in an answer as words, or a number, of its own.

    >>> [_stands_in("paris", words) for words in ("it is paris.", "comparison", "paris")]
    [True, False, True]
    >>> _stands_in("4", "8 - 4 = 4"), _stands_in("4", "1.4"), _stands_in("", "a")
    (True, False, False)
    """
    if not label or label not in words:  # which is quicker than to look at what is around it
        return False
    return re.search(rf"(?<![\w.,]){re.escape(label)}(?![\w]|[.,]\d)", words) is not None


def _few(written: Mapping[str, str]) -> str:
    """The first examples, with … where there are more."""
    first = ", ".join(map(brief, itertools.islice(written.values(), _EXAMPLES)))
    return f"{first}…" if len(written) > _EXAMPLES else first
