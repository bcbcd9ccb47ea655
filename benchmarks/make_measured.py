"""The headline table of `rcjax/docs/measured.md`, from the files that the benchmarks wrote.

    python -m benchmarks.make_measured

Each file of benchmarks/results/ has a title, its command, the day and versions, and a table of headlines: the page
shows all of these, in the order of `ORDER`, each with a link to its file.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import rcjax
from benchmarks.record import RESULTS, TABLE
from rcjax._base.files import write_atomically

PAGE = Path(rcjax.__file__).parent / "docs" / "measured.md"
BEGIN, END = "<!-- python -m benchmarks.make_measured writes from here -->", "<!-- to here -->"

#: What people ask first: is it better, is it honest, is it fast. Files that are not named follow, by name.
ORDER = (
    *("budgets", "selection", "agreement", "votes"),
    *("labels_areas_100", "labels_areas_300", "segments", "segments_same"),
    *("paper", "coverage", "labels_intervals"),
    *("guarantee", "labels_guarantee", "latency", "latency_prices", "drift"),
    *("abstention", "few_values", "learning", "goodness_of_fit", "copula_choice", "predicted_and_observed"),
    *("precision", "speed", "start", "importing", "race", "runtime", "gateway", "attack", "fuzz"),
    *("menus", "sweeps", "big_logs"),
)


@dataclass(frozen=True)
class Result:
    """What one run of a benchmark came to."""

    name: str
    title: str
    day: str
    headlines: tuple[tuple[str, str], ...]


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


def table(results: list[Result]) -> str:
    """The table of the page."""
    lines = ["| what | figure | measured by |", "|---|---|---|"]
    for result in results:
        for number, (what, figure) in enumerate(result.headlines):
            link = f"[{result.name}](../../benchmarks/results/{result.name}.md), {result.day}"
            lines.append(f"| {what} | {figure} | {'″' if number else link} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page, with its table made anew."""
    results = [read(path) for path in RESULTS.glob("*.md")]
    results.sort(key=lambda result: (_place(result.name), result.name))
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


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
