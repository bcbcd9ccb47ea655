"""The README and the pages of documentation: their code runs, their commands exist, their links lead somewhere."""

import functools
import io
import re
import shlex
from pathlib import Path

import pytest
import typer

from benchmarks import make_reference
from rcjax.cli.app import app, load
from rcjax.collecting.questions import read_questions
from rcjax.collecting.right_answers import is_right_call
from rcjax.collecting.user_graders import Submission
from rcjax.logs import read_log
from rcjax.policy import Calibration, Policy, Rule
from rcjax.serving.models_file import read_models
from rcjax.tuning.diagnostics import FINDING_KINDS

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "rcjax" / "docs"
PAGES = [README, *sorted((ROOT / ".github").glob("*.md")), *sorted(DOCS.glob("*.md"))]


#: Those of a first policy are followed in test_first_policies, their commands too.
BY_ITSELF = [page for page in PAGES if not page.stem.startswith("first_policy_from_")]
#: Words that people meet in tables and on pages, each explained in the glossary.
WORDS = (
    *("threshold", "cascade", "calibrated confidence", "separation", "marginal", "copula", "Markov", "τ", "Brier"),
    *("optimism", "guarantee", "calibration error", "ECE", "frontier", "λ", "certain", "by hand", "interval", "±"),
    *("bill", "error cost", "points", "√CvM", "θ", "bootstrap", "shadow", "judge", "drift", "signal", "replay"),
    *("held out", "fold", "cross-validation", "ladder", "posterior", "p-value", "area", "agreement"),
)
#: Pages that use them, and lead there.
EXPLAINED = ("commands", "diagnosis", "labels", "limits", "logging", "measured", "python", "recipes", "uncertainty")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands():
    """Every `rcjax COMMAND …` of the shell blocks, alone or at the end of a one-liner."""
    lines = "\n".join(block for page in PAGES for block in blocks(page, "sh")).replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return sorted({part for part in parts if re.match("rcjax [a-z]", part)})


def make_policy():
    calibration = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
    return Policy(
        models=("small", "large"),
        calibrations={"small": calibration, "large": calibration},
        rules={"small": [Rule(0.7, "ask", "large"), Rule(1, "answer")], "large": [Rule(1, "answer")]},
        cost={"small": 1e-5, "large": 2e-4},
    )


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in BY_ITSELF if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_blocks_of_the_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "4 ", "reference": ["4"]}'))  # of a grader
    make_policy().save("policy.json")
    namespace = {}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, python block {number}", "exec"), namespace)
        if "def answer" in block:
            assert namespace["answer"]("?", lambda model, query: (model, -1e-9)) == "small"
            assert namespace["answer"]("?", lambda model, query: (model, -2.0)) == "large"
    assert "nan" not in capsys.readouterr().out


@functools.cache
def parsers():
    """Return the parser of each command, by name."""
    return {name: load(name) for name in typer.main.get_command(app).commands}


@pytest.mark.parametrize("command", list(commands()))
def test_options_on_the_pages_exist(command):
    _, name, *arguments = shlex.split(command)
    known = {option for parameter in parsers()[name].params for option in [*parameter.opts, *parameter.secondary_opts]}
    assert {one for one in arguments if one.startswith("-") and one != "-"} <= known


def test_every_command_is_shown():
    assert {shlex.split(command)[1] for command in commands()} == set(parsers())


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, *sorted(DOCS.glob("reference/*.md"))], ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)]*)\)", page.read_text("utf-8"))
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_readme():
    reached, left = set(), [README]
    while left:
        page = left.pop()
        if page not in reached:
            reached.add(page)
            paths = re.findall(r"\]\((?!https?:)([^)#]*\.md)", page.read_text("utf-8"))
            left += [(page.parent / path).resolve() for path in paths]
    assert [page.name for page in PAGES if page.resolve() not in reached] == []


def test_no_reader_tunes_into_the_file_of_a_running_service():
    """The service would deploy the policy before the reader has seen whether it is good enough."""
    page = (DOCS / "first_policy_from_an_endpoint.md").read_text("utf-8")
    for text in (page, *README.read_text("utf-8").split("\n## ")):
        served = set()
        for line in re.findall(r"^rcjax .*", text, re.MULTILINE):
            served |= {*re.findall(r"^rcjax serve (\S+)", line)}
            assert served.isdisjoint(re.findall(r"^rcjax tune .*--out (\S+)", line)), line


def test_the_readme_is_short_and_each_way_in_has_four_commands_at_most():
    text = README.read_text("utf-8")
    assert len(text.split()) <= 700
    doors = re.findall(r"^## I have (.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert len(doors) == 4
    for door in doors:
        (block,) = re.findall(r"^```sh\n(.*?)^```", door, re.DOTALL | re.MULTILINE)
        assert len(block.splitlines()) <= 4


def test_the_glossary_has_the_words_that_pages_are_full_of():
    text = (DOCS / "glossary.md").read_text("utf-8")
    said = re.sub(r"[*`]", "", text).lower()
    assert [word for word in WORDS if word.lower() not in said] == []
    entries = re.findall(r"^### (.*)\n+(.*(?:\n(?!#).+)*)", text, re.MULTILINE)
    assert len(entries) == len({name.lower() for name, _ in entries}) == text.count("\n### ")
    assert [name for name, words in entries if len(words.split()) > 60] == []
    short = [README, *sorted(DOCS.glob("first_policy_*.md")), *(DOCS / f"{name}.md" for name in EXPLAINED)]
    assert [page.name for page in short if "glossary.md" not in page.read_text("utf-8")] == []


def test_the_limits_on_the_page_are_those_of_the_checks():
    text = (DOCS / "diagnosis.md").read_text("utf-8")
    for name, kind in FINDING_KINDS.items():
        (cells,) = re.findall(rf"^\| {name} \|.*\|(.*)\|(.*)\|$", text, re.MULTILINE)
        for cell, limit in zip(cells, kind.limits, strict=True):
            number, percent = re.search(r"([\d.]+)( %| points)?", cell).groups()
            assert float(number) / (100 if percent else 1) == pytest.approx(limit), name


def test_the_page_has_the_benchmarks_table_of_peers():
    """Each of its figures is in the record of `benchmarks.peers`, for the method that it names."""
    record = (ROOT / "benchmarks" / "results" / "peers.md").read_text("utf-8")
    text = (DOCS / "beside.md").read_text("utf-8").partition("## Side by side")[2]
    rows = re.findall(r"^\| (.+?) \| ([-+]?[\d.]+(?: ± [\d.]+)?) \| ([\d.]+ ± [\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for method, errors, overspent in rows:
        name = method.partition(", default")[0]
        assert f"logs with log-probabilities: budgets overspent by over 3 %, {name}, % | {overspent} " in record
        if name != "rcjax":
            told = f"logs with log-probabilities: error that budgets get, {name} against rcjax's default, % | {errors} "
            assert told in record


def test_the_example_files_can_be_read(tmp_path):
    page = DOCS / "first_policy_from_a_log.md"
    (csv,), (toml,) = blocks(page, "csv"), blocks(page, "toml")
    (tmp_path / "log.csv").write_text(csv)
    (tmp_path / "prices.toml").write_text(toml)
    log = read_log(tmp_path / "log.csv", prices=tmp_path / "prices.toml", task="choice")
    assert log.models == ("small-1.5b", "large")
    assert log.n_queries == 2


def test_the_example_models_can_be_read(tmp_path):
    first, usual = blocks(DOCS / "collecting.md", "toml")
    for text in (first, usual):
        (tmp_path / "models.toml").write_text(text)
        assert len(read_models(tmp_path / "models.toml")) == len(re.findall(r"^\[", text, re.MULTILINE))


def test_the_example_questions_can_be_read(tmp_path):
    rows, with_tools = blocks(DOCS / "collecting.md", "json")
    (tmp_path / "questions.jsonl").write_text(rows)
    assert [question.reference for question in read_questions(tmp_path / "questions.jsonl")] == [("51",), ("B",)]
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": {"name": "weather"}}]')
    (tmp_path / "questions.jsonl").write_text(with_tools)
    (question,) = read_questions(tmp_path / "questions.jsonl")
    said = '[{"name": "weather", "arguments": {"city": "Paris", "note": "now"}}]'
    assert is_right_call(Submission(question, said, said))


def test_the_reference_is_up_to_date():
    """But for signatures, which Python's versions write differently."""

    def without_signatures(text):
        return re.sub(r"```text\n.*?```", "", text, flags=re.DOTALL)

    message = "run `python -m benchmarks.make_reference`"
    pages = make_reference.pages()
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.glob("reference/*.md")} == {*pages} - {"reference.md"}
    for path, text in pages.items():
        assert without_signatures((DOCS / path).read_text("utf-8")) == without_signatures(text), f"{path}: {message}"
