"""Writes the logs of Inspect AI among the files beside, with a toy model: `python inspect_files.py FOLDER`.

Those that are kept were written by inspect-ai 0.3.285. Two models choose letters (`.eval`); one of them does sums
thrice, with partial credit, a score that is not a number, a failure, and itself as its grader (`.json`).
"""

import json
import math
import random
import re
import sys
from pathlib import Path

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageUser,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    TopLogprob,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Score, accuracy, choice, includes, scorer
from inspect_ai.solver import generate, multiple_choice

QUERIES = 8


class Toy(ModelAPI):
    """A model whose replies follow from the question."""

    async def generate(self, input, tools, tool_choice, config):
        text, large = input[-1].text, "large" in self.model_name
        rng = random.Random(f"{text}{large}{len(input)}{self.calls(text)}")
        if "How good" in text:
            output = ModelOutput.from_content(self.model_name, "fine")
            output.usage = ModelUsage(input_tokens=500, output_tokens=50, total_tokens=550)
            return output
        if "number 13" in text:
            raise RuntimeError("the toy is broken")
        right = rng.random() < (0.9 if large else 0.6)
        if "ANSWER: $LETTER" in text:
            return self.letter("ABCD"[int(text.split("Which is ")[1][0]) % 4] if right else "A", rng.uniform(0.4, 0.99))
        number = int(text.split("+")[0].split()[-1])
        output = ModelOutput.from_content(self.model_name, f"It is {number + (1 if right else 0)}")
        output.usage = ModelUsage(input_tokens=20, input_tokens_cache_read=5, output_tokens=4, total_tokens=29)
        return output

    def letter(self, letter, p):
        output = ModelOutput.from_content(self.model_name, f"ANSWER: {letter}")
        rest = [TopLogprob(token=f" {x}", logprob=math.log((1 - p) / 3)) for x in "ABCD" if x != letter]
        top = [TopLogprob(token=f" {letter}", logprob=math.log(p)), *rest]
        tokens = [Logprob(token=token, logprob=-0.001, top_logprobs=[]) for token in ("ANSWER", ":")]
        last = Logprob(token=f" {letter}", logprob=math.log(p), top_logprobs=top)
        output.choices[0].logprobs = Logprobs(content=[*tokens, last])
        output.usage = ModelUsage(input_tokens=50, output_tokens=3, total_tokens=53)
        return output

    def calls(self, text):
        self.seen = getattr(self, "seen", {})
        self.seen[text] = self.seen.get(text, 0) + 1
        return self.seen[text]


@modelapi(name="toy")
def toy():
    return Toy


@scorer(metrics=[accuracy()])
def strange():
    async def score(state, target):
        await get_model(role="grader").generate([ChatMessageUser(content=f"How good is {state.output.completion}?")])
        right = target.text in state.output.completion
        number = int(state.sample_id)
        value = {1: "P", 2: math.nan}.get(number, "C" if right else "I")
        return Score(value=value, answer=state.output.completion)

    return score


def main(folder: str) -> None:
    quiet = {"log_dir": folder, "display": "none", "max_connections": 1, "log_realtime": False}
    letters = [
        Sample(id=i, input=f"Which is {i}?", choices=["0", "1", "2", "3"], target="ABCD"[i % 4]) for i in range(QUERIES)
    ]
    for model in ("toy/org/small", "toy/org/large"):
        task = Task(dataset=MemoryDataset(letters), solver=multiple_choice(), scorer=choice(), name="letters")
        eval(task, model=model, log_format="eval", logprobs=True, top_logprobs=4, **quiet)
    sums = [Sample(id=i, input=f"What is {i} + 1? It is number {i}.", target=f"{i + 1}") for i in (1, 2, 3, 4, 5, 13)]
    task = Task(dataset=MemoryDataset(sums), solver=generate(), scorer=[includes(), strange()], name="sums")
    grader = get_model("toy/org/small", config=GenerateConfig())
    log = {"log_format": "json", "epochs": Epochs(3, "mean"), "fail_on_error": False}
    eval(task, model="toy/org/small", model_roles={"grader": grader}, **log, **quiet)
    for path in Path(folder).iterdir():
        path = path.rename(path.with_name(re.sub(r"^.*?_(.*)_(....).*\.", r"\1_\2.", path.name)))
        if path.suffix == ".json":
            slim(path)


def slim(path: Path) -> None:
    """Take out of a log what names a machine's folders and is not read: events, and where errors came from."""
    log = json.loads(path.read_text())
    for sample in log["samples"]:
        sample |= {"events": [], "events_data": None, "error_retries": []}
        if sample.get("error"):
            sample["error"] |= {"traceback": "", "traceback_ansi": ""}
    path.write_text(json.dumps(log))


if __name__ == "__main__":
    main(sys.argv[1])
