"""An endpoint that pretends: two models that multiply, the small one often wrongly, for pages that are followed.

    python tests/pretend_endpoint.py 8000

It takes `How much is 17 · 23?`, with lettered choices below or without, and whether an answer to that is right. With
tools it books tables and looks up the weather, for which there is a third model. What a model says is drawn by a hash
of model and question: every run is alike.
"""

import json
import math
import re
import sys
import time
from hashlib import sha256

from helpers.chat_server import Response, completion, served, sure

KEY = "pretend"
ABILITIES = {"small": 0.7, "other": 0.75, "large": 0.95}


def lot(*words):
    """A number in [0, 1) that hangs on the words alone."""
    return int(sha256("|".join(words).encode()).hexdigest()[:12], 16) / 16**12


def call_tool(name, text):
    """The call that a text asks for, which a model may get wrong in its own way; words where it asks for none."""
    table = re.search(r"a table for (\d+) at ([\w ]+) on (\w+)", text)
    place = re.search(r"weather in (\w+)", text)
    if table is None and place is None:
        return Response(completion("You are welcome.", usage=(60, 5)))
    wrong = lot("right", name, text) >= ABILITIES[name]
    if place is not None:
        function, arguments = "get_weather", {"city": place[1]} | ({"days": ord(name[0]) % 7} if wrong else {})
    else:
        people = int(table[1]) + (wrong and ord(name[0]) % 5 + 1)
        function, arguments = "book_table", {"people": people, "restaurant": table[2], "day": table[3]}
    body = completion(None, usage=(90, 20))
    call = {"id": "call_1", "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
    body["choices"][0]["message"]["tool_calls"] = [call]
    body["choices"][0]["finish_reason"] = "tool_calls"
    return Response(body)


def behave(request, headers):
    """The product or a number beside it, as a letter or in digits; yes to a second question, with how sure it is; the
    truth as a judge; else A."""
    text, name = request["messages"][-1]["content"], request["model"]
    if request.get("tools"):
        return call_tool(name, text)
    asked, usage = re.search(r"(\d+) · (\d+)", text), (len(text) // 4, 1)
    if asked is None:
        return Response(sure("A", -0.1, usage))
    product = int(asked[1]) * int(asked[2])
    is_right = lot("right", name, asked[0]) < ABILITIES[name]
    doubt = lot("doubt", name, asked[0])
    sureness = math.log(1 - 0.5 * (doubt**1.5 if is_right else doubt**0.5))
    choices = re.findall(r"^\W*([A-Z])\W+(\d+)$", text, re.MULTILINE)
    if choices:
        letters = [letter for letter, number in choices if (int(number) == product) == is_right]
        return Response(sure(letters[0], sureness, usage))
    if "no if it is not" in text:  # a judge
        return Response(sure("Yes" if re.search(rf"\b{product}\b", text) else "No", sureness, usage))
    if re.search(r"yes|correct", text, re.IGNORECASE):
        return Response(sure("Yes", sureness, usage))
    answer = str(product if is_right else product + 10)
    return Response(completion(answer, [(answer, {answer: sureness})], usage))


if __name__ == "__main__":
    with served(behave, KEY, int(sys.argv[1])) as (_, url):
        print(url, flush=True)
        while True:
            time.sleep(60)
