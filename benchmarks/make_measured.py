"""The tables of `rcjax/docs/measured.md`, from the files that the benchmarks wrote.

    python -m benchmarks.make_measured

Each file of benchmarks/results/ has a title, its command, the day and versions, and a table of headlines. The page
shows the figures of `CHOSEN`, each beside its neighbour, and then a link to every file, in the order of `ORDER`.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rcjax
from benchmarks.record import RESULTS, TABLE
from rcjax._base.files import write_atomically

PAGE = Path(rcjax.__file__).parent / "docs" / "measured.md"
BEGIN, END = "<!-- python -m benchmarks.make_measured writes from here -->", "<!-- to here -->"

#: What people ask first: is it better, is it honest, is it fast. Files that are not named follow, by name.
ORDER = (
    *("budgets", "peers", "selection", "agreement"),
    *("labels_areas_100", "labels_areas_300"),
    *("paper", "coverage", "labels_intervals"),
    *("guarantee", "labels_guarantee", "latency", "drift"),
    *("few_values", "goodness_of_fit", "copula_choice", "predicted_and_observed"),
    *("precision", "speed", "start", "race", "runtime", "gateway", "attack", "fuzz"),
    *("menus", "sweeps", "gpu", "big_logs"),
)


@dataclass(frozen=True)
class Headline:
    """A figure of a file of results, by how its line begins, and what to call it here."""

    file: str
    beginning: str
    words: str = ""


@dataclass(frozen=True)
class Choice:
    """A figure that somebody who chooses needs, the least flattering one beside it, and what they were measured on."""

    question: str
    figure: Headline
    neighbour: Headline
    on: str


_REAL = "logs with log-probabilities: "
CHOSEN = (
    Choice(
        "where another of nine methods gets fewer errors for the same budgets than rcjax's default, log by log",
        Headline("peers", "logs on which another method"),
        Headline("peers", f"{_REAL}the best of all others", "the best of the nine on average"),
        "six public logs and two of programming tasks, three splits; the default follows its bill",
    ),
    Choice(
        "errors for a budget that nobody follows, against a plain pair",
        Headline("budgets", f"{_REAL}error that budgets get, the default against a plain pair"),
        Headline("budgets", f"{_REAL}budgets overspent", "overspent by over 3 %: by rcjax; a plain pair"),
        "six public logs, three splits; who follows the bill overspends none",
    ),
    Choice(
        "errors for a budget, where confidences have three values",
        Headline("budgets", "firstpass_k5: error that budgets get"),
        Headline("budgets", "sampled logs: error at the worst budget", "at the worst budget, above a plain pair"),
        "a log of programming tasks; beside it simulated logs",
    ),
    Choice(
        "how often 90 % intervals of policies for budgets hold the true error; the cost",
        Headline("coverage", "90 % intervals of policies by labels, for budgets"),
        Headline("coverage", "90 % intervals of policies by labels cover", "for prices of an error"),
        "resplits of real logs, and simulated ones that break every assumption",
    ),
    Choice(
        "promises with 95 % confidence that are false on real logs",
        Headline("guarantee", "promises on real logs that are false, 300 queries held out: certify"),
        Headline(
            "guarantee",
            "promises on real logs that are false, 300 queries held out: by prediction",
            "going by prediction",
        ),
        "held-out logs of 300 queries",
    ),
    Choice(
        "going by whether answers agree: area; error for budgets",
        Headline("agreement", "gsm8k_llama"),
        Headline("agreement", "triviaqa_qwen_oai", "on the log where it does worst"),
        "GSM8K, five Llama models; on the other five logs nothing is gained",
    ),
    Choice(
        "`rcjax check` raises an alarm where accuracy fell by 10 points, or tokens doubled",
        Headline("drift", "alarms where accuracy fell"),
        Headline("drift", "alarms of `rcjax check` where nothing has changed", "where nothing has changed"),
        "MMLU; halves of seven logs",
    ),
    Choice(
        "`rcjax tune`, five models, 285 queries: first time; again; another log",
        Headline("start", "`rcjax tune`, five models"),
        Headline("start", "`rcjax tune`, eleven models", "eleven models: first time; another log"),
        "two quick CPU cores",
    ),
    Choice(
        "milliseconds that `rcjax serve` adds to a call, 64 in flight: median; one in a hundred",
        Headline("gateway", "a policy of one model by `rcjax serve`"),
        Headline("gateway", "the same, the model taking no time", "requests per second at most; per second of CPU"),
        "an upstream on the same two cores",
    ),
)


@dataclass(frozen=True)
class Result:
    """What one run of a benchmark came to."""

    name: str
    title: str
    day: str
    headlines: tuple[tuple[str, str], ...]

    @property
    def link(self) -> str:
        """To its file, from the page."""
        return f"[{self.name}](../../benchmarks/results/{self.name}.md)"


def read(path: Path) -> Result:
    """The head of a file of results."""
    text = path.read_text("utf-8")
    head, *paragraphs = text.split("\n\n")
    circumstances = next(part for part in paragraphs if not part.startswith("    "))
    table = next((part for part in paragraphs if part.startswith(TABLE)), TABLE)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return Result(
        path.stem, head.removeprefix("# "), circumstances[:10], tuple((what, figure) for what, figure in rows)
    )


def figure_of(headline: Headline, results: Mapping[str, Result]) -> str:
    """The figure of the one headline that begins so; LookupError where none does, or several do."""
    figures = [told for what, told in results[headline.file].headlines if what.startswith(headline.beginning)]
    if len(figures) != 1:
        count = len(figures)
        raise LookupError(f"{headline.file}.md: {count} headlines begin with {headline.beginning!r}: mend CHOSEN")
    return figures[0]


def chosen_figures(results: Mapping[str, Result]) -> str:
    """The figures that somebody who chooses needs, as a list: a table of them is too wide for a phone."""
    items = []
    for number, choice in enumerate(CHOSEN, 1):
        figure, neighbour = (figure_of(one, results) for one in (choice.figure, choice.neighbour))
        result = results[choice.figure.file]
        beside = f"*Beside it*, {choice.neighbour.words}: {neighbour}."
        source = f"On {choice.on} ({result.link}, {result.day})."
        question = choice.question[0].upper() + choice.question[1:]
        items.append(f"{number}. **{question}**: {figure}. {beside} {source}")
    return "\n".join(items).replace(", 6 logs)", ")").replace(", 4 logs)", ")")


def list_of_files(results: Mapping[str, Result]) -> str:
    """Links to all files of results."""
    return "All figures: " + ", ".join(result.link for result in results.values()) + "."


def page(text: str) -> str:
    """The page, with its tables made anew."""
    results = sorted(map(read, RESULTS.glob("*.md")), key=lambda result: (_place(result.name), result.name))
    by_name = {result.name: result for result in results}
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{chosen_figures(by_name)}\n\n{list_of_files(by_name)}\n\n{END}{after}"


def _place(name: str) -> int:
    """Where a file comes: by its benchmark, of which it may be a part (`drift_power`)."""
    places = [place for place, known in enumerate(ORDER) if name == known or name.startswith(f"{known}_")]
    return places[0] if places else len(ORDER)


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_atomically(PAGE, page(PAGE.read_text("utf-8")))


if __name__ == "__main__":
    main()
