"""Models that answer by a hash of the question: right as often as their name says, at prices and tokens that add up.

Each is a function of (model, question) alone, so that every run of a test asks the same models.
"""

import json
import math
import threading
from collections import Counter
from decimal import Decimal
from hashlib import sha256

from helpers.chat_server import KEY, Response, completion, sure

ABILITIES = {"tiny": 0.4, "small": 0.6, "medium": 0.8, "large": 0.95}
PRICES = {"tiny": (0.1, 0.3), "small": (0.5, 1.5), "medium": (2.0, 6.5), "large": (10.0, 30.0)}


def lot(*words):
    """A number in [0, 1) that hangs on the words alone."""
    return int(sha256("|".join(map(str, words)).encode()).hexdigest()[:12], 16) / 16**12


def money(name, read, written):
    """Return the cost of some tokens of a model."""
    price = [Decimal(str(one)) for one in PRICES[name]]
    return (read * price[0] + written * price[1]) / 1_000_000


def questions(n):
    """n questions of multiple choice with their right answers."""
    return [
        {
            "query": f"q{i}",
            "prompt": f"Question {i}? A or B. Reply with the letter." + " More words." * (i % 7),
            "answer": "AB"[i % 2],
            "choices": "A|B",
            "subject": "odd" if i % 2 else "even",
        }
        for i in range(n)
    ]


def write_questions(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_models(path, base_url, names=tuple(ABILITIES), more=""):
    tables = [
        f'["{name}"]\nmodel = "org/{name}"\nbase_url = "{base_url}"\nkey_env = "KEY_OF_THE_TEST"\n'
        f"input = {PRICES[name][0]}\noutput = {PRICES[name][1]}\n{more}\n"
        for name in names
    ]
    path.write_text("\n".join(tables))
    return path


ENVIRONMENT = {"KEY_OF_THE_TEST": KEY}


class Models:
    """Behaves for a `Server`: answers, and what goes wrong, by lots that hang on the question and on how often it came.

    `usage` is True for the right tokens, else a pair, or None, that is told in their place. `asked` counts the answers
    given, by (question, model); `charged` is what they cost, `lost` at most what broken connections do.
    """

    def __init__(self, failures=0.0, delay=0.0, logprobs=True, usage=True):
        self.failures, self.delay, self.logprobs, self.usage = failures, delay, logprobs, usage
        self.asked, self.charged, self.lost, self.tries = Counter(), Decimal(0), Decimal(0), Counter()
        self.changed = threading.Condition()

    def __call__(self, request, headers):
        name = request["model"].removeprefix("org/")
        prompt = request["messages"][-1]["content"]
        key = prompt, name
        self.tries[key] += 1
        draw = lot("failure", prompt, name, self.tries[key])
        if draw < self.failures:
            response = self.wrong(draw / self.failures)
            self.lost += money(name, len(prompt.encode()), 0) * response.hang
            return response
        with self.changed:
            self.asked[key] += 1
            self.changed.notify_all()
        counts = (10 + len(prompt) // 4, 1)
        self.charged += money(name, *counts)
        delay = self.delay * 2 * lot("delay", prompt, name)
        return Response(self.answer(name, prompt, counts), delay=delay)

    def answer(self, name, prompt, counts):
        counts = counts if self.usage is True else self.usage  # another pair, or None
        if not prompt.startswith("Question"):  # a probe
            return sure("A", -0.1, counts) if self.logprobs else completion("A", None, counts)
        number = int(prompt.split("?")[0].split()[1])
        right = "AB"[number % 2]
        is_right = lot("right", number, name) < ABILITIES[name]
        logprob = math.log(
            0.6 + 0.39 * lot("sure", number, name) if is_right else 0.5 + 0.35 * lot("sure", number, name)
        )
        letter = right if is_right else "AB"[1 - number % 2]
        return sure(letter, logprob, counts) if self.logprobs else completion(letter, None, counts)

    def wrong(self, draw):
        """One of the ways in which servers fail, by a number in [0, 1)."""
        if draw < 0.3:
            return Response({"error": {"message": "overloaded", "type": "server_error"}}, 503)
        if draw < 0.6:
            return Response({"error": {"code": "rate_limit_exceeded"}}, 429, {"retry-after-ms": "30"})
        if draw < 0.7:
            return Response({}, hang=True)
        if draw < 0.8:
            return Response({"error": {"type": "server_error"}}, 500)
        return Response(b"<html>not what you think</html>", 502)
