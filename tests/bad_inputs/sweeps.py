"""What is wrong with the file of a sweep."""

from bad_inputs import BadFile, text_file

_LOGS = 'logs = ["log.csv"]\n'


def _wrong(fault: str, setting: str, *says: str) -> BadFile:
    return BadFile(fault, "sweep", text_file("wrong.toml", _LOGS + setting), ("wrong.toml", *says))


SWEEPS = (
    BadFile(
        "is nested deeply", "sweep", text_file("deep.toml", "logs = " + "[" * 100_000), ("deep.toml", "cannot be read")
    ),
    _wrong("has a setting that is nested deeply", "lam" + ".a" * 3_000 + " = 1", "lam", "nested more than"),
    BadFile("is no text", "sweep", text_file("bytes.toml", b'logs = "\xff"'), ("bytes.toml", "cannot be read")),
    _wrong("sweeps over a date", "seeds = 2020-01-01", "seeds: must be a JSON value"),
    _wrong("trains on NaN", "train = nan", "train: must be between"),
    _wrong("trains on a text", 'train = "x"', "train is 'x'"),
    _wrong("replicates a table", "replicates = {a = 1}", "replicates is {'a': 1}"),
    _wrong("has a list of lists of prices", "lam = [[1], [2, 3]]", "lam is [[1], [2, 3]]"),
    _wrong("has a number for cascades", "cascades = 5", "cascades: '5' is no search"),
    _wrong("has a number for a copula", "copulas = 5", "unknown copula 5"),
    _wrong("has an unknown task", 'task = "x"', "task is 'x'"),
    _wrong("has a price that is a text", 'prices = {a = {input = "x", output = 1}}', "input price 'x'"),
    _wrong("has half a batch", "batch = 0.5", "batch is 0.5"),
    _wrong("has a truth for panels", "panels = true", "panels is True"),
    _wrong("writes to a number", "out = 5", "out is 5: give a folder"),
)
