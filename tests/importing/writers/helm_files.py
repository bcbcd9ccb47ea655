"""Writes the runs of HELM among the files beside: in this folder, `python helm_files.py FOLDER`.

Those that are kept were written by crfm-helm 0.5.16, whose simple model replies with log-probabilities there. One run
chooses letters, with a perturbation; another repeats numbers. Of the figures of a whole run, exact match is kept.
"""

import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

from helm.benchmark.adaptation.adapter_spec import AdapterSpec
from helm.benchmark.adaptation.common_adapter_specs import (
    get_generation_adapter_spec,
    get_multiple_choice_joint_adapter_spec,
)
from helm.benchmark.augmentations.data_augmenter import DataAugmenterSpec
from helm.benchmark.augmentations.perturbation import PerturbationSpec
from helm.benchmark.metrics.common_metric_specs import get_exact_match_metric_specs
from helm.benchmark.run import main as helm_run
from helm.benchmark.run_spec import RunSpec, run_spec_function
from helm.benchmark.scenarios.scenario import (
    CORRECT_TAG,
    TEST_SPLIT,
    Input,
    Instance,
    Output,
    Reference,
    Scenario,
    ScenarioSpec,
)
from helm.clients import simple_client
from helm.common.request import GeneratedOutput, RequestResult, Token

QUERIES = 8
LOWER_CASE = "helm.benchmark.augmentations.lowercase_perturbation.LowerCasePerturbation"


class Numbers(Scenario):
    """Numbers to name, with four words to choose from, or to repeat."""

    name, description, tags = "numbers", "numbers", ["toy"]

    def __init__(self, choices: bool) -> None:
        super().__init__()
        self.choices = choices

    def get_instances(self, output_path: str) -> list[Instance]:
        words = ["one", "two", "three", "four"]
        rows = []
        for i in range(QUERIES):
            right = words[i % 4] if self.choices else str(i)
            others = words if self.choices else [right]
            references = [Reference(Output(text=word), tags=[CORRECT_TAG] * (word == right)) for word in others]
            rows.append(Instance(Input(text=f"What is number {i}?"), references=references, split=TEST_SPLIT))
        return rows


def make_request(self, request) -> RequestResult:
    """A reply that follows from the prompt."""
    rng = random.Random(request.prompt)
    p, right = rng.uniform(0.4, 0.99), rng.random() < 0.7
    number = int(request.prompt.lower().rpartition("number ")[2].split("?")[0])
    place = number if right else number + 1
    text = f" {'ABCD'[place % 4]}" if "\nA. " in request.prompt else str(place)
    tokens = [Token(text=text, logprob=math.log(p))]
    completion = GeneratedOutput(text=text, logprob=math.log(p), tokens=tokens)
    return RequestResult(success=True, cached=False, completions=[completion], embedding=[], request_time=0.1)


def spec(name: str, choices: bool, adapter: AdapterSpec) -> RunSpec:
    scenario = ScenarioSpec(class_name="helm_files.Numbers", args={"choices": choices})
    perturbed = DataAugmenterSpec(
        perturbation_specs=[PerturbationSpec(class_name=LOWER_CASE, args={})] * choices,
        should_augment_eval_instances=choices,
        should_include_original_eval=True,
    )
    return RunSpec(
        name, scenario, adapter, get_exact_match_metric_specs(), data_augmenter_spec=perturbed, groups=[name]
    )


@run_spec_function("letters")
def letters() -> RunSpec:
    nouns = {"instructions": "Choose.", "input_noun": "Question", "output_noun": "Answer"}
    return spec("letters", True, get_multiple_choice_joint_adapter_spec(**nouns, max_train_instances=0))


@run_spec_function("repeat")
def repeat() -> RunSpec:
    return spec("repeat", False, get_generation_adapter_spec(max_train_instances=0, max_tokens=5))


def main(out: Path) -> None:
    simple_client.SimpleClient.make_request = make_request
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["helm-run", "--run-entries", "letters:model=simple/model1", "repeat:model=simple/model1"]
        sys.argv += ["--suite", "toy", "--max-eval-instances", str(QUERIES), "--num-threads", "1"]
        sys.argv += ["--output-path", folder]
        helm_run()
        for run in (Path(folder) / "runs/toy").iterdir():
            if run.is_dir() and ":" in run.name:
                target = out / run.name.partition(":")[0]
                target.mkdir(parents=True)
                for name in ("scenario_state.json", "per_instance_stats.json"):
                    target.joinpath(name).write_text(json.dumps(json.loads((run / name).read_text())))
                stats = json.loads((run / "stats.json").read_text())
                told = [stat for stat in stats if stat["name"]["name"] == "exact_match"]
                target.joinpath("stats.json").write_text(json.dumps(told))
    shutil.rmtree("prod_env", ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
