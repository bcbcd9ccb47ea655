"""The commands, with every file that each of them reads or writes."""

from helpers.bad_inputs import Command, Slot

_LOG = Slot("", "log")
_PRICES = Slot("--prices", "prices")
_LABELS = Slot("--labels", "labels")
_JUDGING = (_PRICES, _LABELS, Slot("--answers", "said"))

COMMANDS = (
    Command(
        "tune",
        (_LOG, *_JUDGING, Slot("--out", "output")),
        "--task choice --max-error 40% --no-bands",
    ),
    Command(
        "label",
        (Slot("", "log", good="unlabelled"), _PRICES, _LABELS, Slot("--questions", "questions"), Slot("--out", "new")),
        "--task choice --n 20 --out {folder}/drawn.csv",
    ),
    Command("evaluate", (Slot("", "policy"), _LOG, *_JUDGING)),
    Command("diagnose", (_LOG, Slot("--test", "log"), *_JUDGING), "--task choice"),
    Command("report", (_LOG, Slot("--test", "log"), *_JUDGING, Slot("--out", "output")), "--task choice"),
    Command("check", (Slot("", "policy"), _LOG, *_JUDGING), status=2),
    Command("retune", (Slot("", "policy"), _LOG, *_JUDGING, Slot("--out", "output")), "--anyway"),
    Command("sweep", (Slot("", "sweep"),)),
    Command(
        "collect", (Slot("", "questions"), Slot("--models", "models"), Slot("--rubric", "rubric")), "{models} --dry-run"
    ),
    Command(
        "grade",
        (Slot("", "answers"), Slot("--questions", "questions"), Slot("--models", "models"), Slot("--rubric", "rubric")),
    ),
    Command("serve", (Slot("", "policy"), Slot("--models", "models"), Slot("--log", "lines")), "{models} --port 0"),
    Command("import", (Slot("", "evaluation"), Slot("--out", "output")), "--out imported.csv"),
)
