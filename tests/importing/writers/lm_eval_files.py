"""Writes the samples of lm-evaluation-harness among the files beside: `python lm_eval_files.py FOLDER`.

Those that are kept were written by lm-eval 0.4.13. Two toy models choose (with and without mutual information), and do
sums thrice, under two filters. Of the results, what names the model and what it achieved is kept.
"""

import json
import random
import re
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

QUERIES = 8

CHOICE = """task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/letters.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list: [{{metric: acc}}, {{metric: acc_norm}}{more}]
"""

TEXT = """task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_target: answer
repeats: 3
generation_kwargs: {{until: ["\\n"], do_sample: true}}
filter_list:
  - {{name: first, filter: [{{function: take_first}}]}}
  - {{name: number, filter: [{{function: regex, regex_pattern: "([0-9]+)"}}, {{function: take_first}}]}}
metric_list: [{{metric: exact_match}}]
"""


@register_model("toy")
class Toy(LM):
    """A model whose replies are drawn."""

    def __init__(self, skill: float, pretrained: str, **_) -> None:
        super().__init__()
        self.skill, self.rng = skill, random.Random(int(10 * skill))

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(-self.rng.expovariate(0.5), False) for _ in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [(-1.0,) for _ in requests]

    def generate_until(self, requests, disable_tqdm=False):
        numbers = [int(request.args[0].split("+")[0]) for request in requests]
        return [str(number + (self.rng.random() < self.skill)) for number in numbers]


def write_tasks(folder: Path) -> None:
    questions = [{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(QUERIES)]
    words = {"choices": ["one", "two", "three", "four"]}
    letters = [{"question": f"What is number {i}?", "gold": i % 4, **words} for i in range(QUERIES)]
    for name, rows in (("sums", questions), ("letters", letters)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "letters.yaml").write_text(CHOICE.format(task="letters", folder=folder, more=""))
    mutual = CHOICE.format(task="letters_mi", folder=folder, more=", {metric: acc_mutual_info}")
    (folder / "letters_mi.yaml").write_text(mutual)
    (folder / "sums.yaml").write_text(TEXT.format(folder=folder))


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_tasks(Path(name))
        for skill in (0.6, 0.9):
            tracker = EvaluationTracker(output_path=str(out))
            tasks = TaskManager(include_path=name)
            results = lm_eval.simple_evaluate(
                "toy",
                {"skill": skill, "pretrained": f"org/toy-{skill}"},
                tasks=["letters", "letters_mi", "sums"],
                task_manager=tasks,
                evaluation_tracker=tracker,
            )
            samples = results.pop("samples")
            tracker.save_results_aggregated(results=results, samples=samples)
            for task in results["configs"]:
                tracker.save_results_samples(task_name=task, samples=samples[task])
    for path in out.rglob("results_*.json"):
        whole = json.loads(path.read_text())
        path.write_text(json.dumps({key: whole[key] for key in ("results", "model_name", "lm_eval_version")}, indent=1))
    assert not [path for path in out.rglob("*.json*") if re.search(r"/(tmp|root|home)/", path.read_text())]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
