"""The screens of commands: their order, their words, their progress, and the next step."""

import dataclasses
import re
from pathlib import Path
from threading import Event

import pytest
from helpers.command_line import run, succeed, write_folder

import rcjax
from rcjax._base.figures import Money
from rcjax.cli import console
from rcjax.cli.app import COMMANDS, load
from rcjax.cli.checks import next_file, tune_and_retune
from rcjax.cli.options import LogOptions
from rcjax.policy import Calibration, Policy, Rule
from rcjax.policy.comparison import Comparison, Rival
from rcjax.policy.spec import Spec, Target

COLUMNS = "80"
pytestmark = pytest.mark.usefixtures("own_settings")

JARGON = ("certain", "separation", "marginal", "copula", "Markov", "τ", "Brier", "optimism", "by hand", "errors cost")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


def test_tune_ends_with_the_policy_and_the_next_command(folder, tmp_path):
    tune = ["tune", folder / "train.csv", "--task", "choice", "--no-bands", "--error-cost", "0.001"]
    out = succeed(*tune, "--out", tmp_path / "policy.json")
    parts = ("train.csv: ", "each model alone", "The frontier", "What to do", "Policy for your target (one error costs")
    order = [out.index(words) for words in (*parts, "Next:")]
    assert order == sorted(order)
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line and str(folder) not in line) <= 80
    assert " → large" in out
    assert "(>: an answer stays if its calibrated confidence" in out
    assert out.splitlines()[-1].strip() == f"rcjax evaluate {tmp_path / 'policy.json'} NEW_LOG.csv"
    assert re.search(r"^Watching it: 200 shadow queries a week cost \$[\d.]+ a month \(rcjax serve", out, re.MULTILINE)
    assert "Next: before you deploy it, is it as good on queries that are not in this log?" in out
    assert len(out.splitlines()) < 55
    assert not [word for word in JARGON if word in out]
    whole = succeed("tune", folder / "train.csv", "--task", "choice", "--no-bands")
    assert "Next: the same command with a target, such as --budget" in whole


def test_the_next_step_of_advice_to_keep_todays_is_to_keep_it_or_to_label(folder, tmp_path):
    """And not to deploy another policy."""
    tune = ["tune", folder / "train.csv", "--task", "choice", "--no-bands", "--out", tmp_path / "policy.json"]
    again = "once more queries are logged and labelled, run the same command again"
    label = "log and label as many queries more as said above, then run the same command again"
    for target, step in (
        (["--budget", "240/M", "--today", "large"], f"keep large alone: this log shows nothing better; {again}"),
        (["--match", "0%"], label),
        (["--match", "0.1%", "--today", "small"], "keep small alone: this log shows nothing better"),
    ):
        out = " ".join(succeed(*tune, *target).split())
        assert "What to do Keep " in out
        assert out.rpartition("Next: ")[2] == step


def test_an_infeasible_target_is_the_last_line_and_no_advice_precedes_it(folder):
    result = run("tune", folder / "train.csv", "--task", "choice", "--no-bands", "--max-error", "0.1%")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) < 30
    assert not [word for word in ("What to do", "Policy for", "Next") if word in result.stdout]
    assert result.stderr.startswith("error: no cascade errs on")


# -- help


def test_every_command_has_its_help_with_an_example():
    listed = succeed("--help")
    for name in COMMANDS:
        assert f"│ {name} " in listed
        lines = succeed(name, "--help").splitlines()
        assert f"Example: rcjax {name} " in "\n".join(lines)
        assert max(map(len, lines)) <= 80
        assert not [line for line in (*lines, *listed.splitlines()) if "<bool>" in line]  # a flag takes no value
        for option in load(name).params:
            assert option.help or option.name == "help", (name, option.name)


def test_the_first_screen_of_help_is_enough_for_most():
    lines = succeed("tune", "--help").splitlines()
    panels = [line.split("─ ")[1].split(" ─")[0] for line in lines if line.startswith("╭")]
    expected = ["Arguments", "Options", "Target: give one", "Output"]
    assert panels == expected
    first = "\n".join(lines[:40])
    assert all(option in first for option in ("--prices", "--budget", "--match", "--today", "--out"))
    whole = succeed("tune", "--help-all")
    assert all(panel in whole for panel in (*expected, "What LOG holds", "Models and search", "Promises", "Waiting"))
    assert len(set(re.findall(r"│ (--[\w-]+)", whole)) - {"--help", "--help-all"}) <= 26


# -- progress


class Asked(Event):
    """The progress of some work, in words; an event that is set when the second line is due."""

    def __init__(self, words=""):
        super().__init__()
        self.words, self.times = words, 0

    def __call__(self):
        self.times += 1
        if self.times > 1:
            self.set()
        return self.words


def test_a_pipe_gets_lines_of_progress(monkeypatch, capfd):
    monkeypatch.setattr(console, "PROGRESS_INTERVAL", 0.01)
    for words, line in (("", "solving: 0 s so far"), ("30 of 120", "solving: 30 of 120")):
        asked = Asked(words)
        with console.busy("solving", progress=asked):
            assert asked.wait(60)
        assert capfd.readouterr().err.splitlines()[0] == line
    console.COMPILES.set()
    asked = Asked("half")
    with console.busy("fitting", progress=asked):
        assert asked.wait(60)
    assert capfd.readouterr().err.splitlines()[:2] == [f"fitting: {console.COMPILING}", "fitting: half"]
    monkeypatch.setattr(console, "PROGRESS_INTERVAL", 60)
    with console.staged(3)("quick"):
        pass
    assert capfd.readouterr().err == ""


def test_a_terminal_shows_the_stage_and_its_seconds(monkeypatch, capfd):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    asked = Asked("half")
    with console.busy("fitting", after=0.0, progress=asked):
        assert asked.wait(60)
    assert "fitting … half 0 s" in capfd.readouterr().err


def test_no_command_to_tune_again_is_shown_if_todays_is_a_policy():
    policy = Policy(
        ("large",), {"large": Calibration("none", 0, 1, -9, 0)}, {"large": [Rule(1, "answer")]}, {"large": 1}
    )
    specs = [Spec(match=0.01, today=today) for today in (policy, "large")]
    again = [
        tune_and_retune(Path("log.csv"), Path("new.csv"), LogOptions(), one, Target("match", 0.01)) for one in specs
    ]
    assert again[0] == ""
    assert "--today large" in again[1]
    assert again[1].endswith(" --out next.json")  # the policy in service stays
    assert [next_file(Path(name)) for name in ("a/policy.json", "a/next.json")] == ["next.json", "next-2.json"]


def test_the_table_has_the_sign_of_the_sentence_and_names_what_stood_when_tuned():
    rival = Rival("large", "today", 0.12, 2e-4, 0.003, 0.004)
    promised = Comparison(0.123, 5e-5, 300, False, (rival,))
    fresh = dataclasses.replace(promised, fresh=True)
    table = console.comparison_table(fresh, Money(1e6, "million"), "error", promised)
    heads, cells = zip(*((column.header, [*column.cells][-1]) for column in table.columns), strict=True)
    assert heads[-2:] == ("policy minus\nmodel, points", "error when tuned\n(minus model)")
    assert cells[-2:] == ("+0.3 ± 0.4", "12.0 %\n(+0.3 ± 0.4)")
    assert "0.3 ± 0.4 points more error than large alone" in fresh.headline(Money(1e6, "million"))


def test_a_table_says_whether_its_figures_are_expected_or_counted_and_on_which_queries():
    rival = Rival("large", "today", 0.12, 2e-4, 0.003, 0.004)
    tuned, unit = Comparison(0.123, 5e-5, 300, False, (rival,)), Money(1e6, "million")
    fresh = dataclasses.replace(tuned, fresh=True)
    tables = [console.comparison_table(one, unit, "error", is_expected=one is tuned) for one in (tuned, fresh)]
    own = console.comparison_table(tuned, unit, "error")
    assert [table.title for table in (*tables, own)] == [
        "Expected on fresh queries, from the 300 queries tuned on (± one standard error):",
        "On the same 300 fresh queries (± one standard error):",
        "Replayed on the 300 queries tuned on (± one standard error):",
    ]


def test_a_table_whose_errors_count_abstentions_says_so():
    log = rcjax.sample_log(384, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    tuned = rcjax.tune(log, budget=1e-4, abstain_price=0.3, intervals=False)
    title = console.comparison_table(tuned.comparison, tuned.money, "error", is_expected=True).title
    assert title.endswith(" tuned on (± one standard error; each abstention counts as 0.3):")
    plain = dataclasses.replace(tuned.comparison, abstain_price=None)
    assert "abstention" not in console.comparison_table(plain, tuned.money, "error").title
