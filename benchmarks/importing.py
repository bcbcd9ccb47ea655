"""Time and memory to import 10,000 samples of Inspect AI, with the log-probabilities of a hundred tokens each.

    python -m benchmarks.importing [--samples 10000]

The samples are one that Inspect wrote, among the files of the tests, again and again. A process for each file.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

from benchmarks import record
from rcjax.logs.importing.harnesses import zipfile

_FILES = Path(__file__).parents[1] / "tests" / "logs" / "importing" / "files" / "inspect"
_TOKENS = 100


def write_logs(folder: Path, samples: int) -> list[Path]:
    """A log of so many samples, as `.eval` and as `.json`."""
    source = zipfile.ZipFile(next(iter(sorted(_FILES.glob("*.eval")))))
    header = json.loads(source.read("header.json"))
    sample = json.loads(source.read(next(name for name in source.namelist() if name.startswith("samples/"))))
    logprobs = sample["output"]["choices"][0]["logprobs"]
    first, *_, last = logprobs["content"]
    logprobs["content"] = [first | {"top_logprobs": last["top_logprobs"]}] * _TOKENS + logprobs["content"]
    archive, plain = folder / "log.eval", folder / "log.json"
    with zipfile.ZipFile(archive, "w", source.infolist()[0].compress_type) as zipped, open(plain, "w") as file:
        zipped.writestr("header.json", json.dumps(header))
        file.write(f'{{"version": 2, "eval": {json.dumps(header["eval"])}, "samples": [')
        for number in range(samples):
            text = json.dumps(sample | {"id": number})
            zipped.writestr(f"samples/{number}_epoch_1.json", text)
            file.write((", " if number else "") + text)
        file.write("]}")
    return [archive, plain]


def main() -> None:
    """Measure, and print the table."""
    options = record.parser(__doc__)
    options.add_argument("--samples", type=int, default=10_000, help="how many")
    chosen = options.parse_args()
    print("| file | MB | s | GiB |\n|---|--:|--:|--:|")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for path in write_logs(Path(folder), chosen.samples):
            start = time.perf_counter()
            command = "import sys; from rcjax.cli import main; sys.argv[1:] = ['import', *sys.argv[1:]]; main()"
            out = ["--out", str(path.with_suffix(".parquet"))]
            process = Popen([sys.executable, "-c", command, str(path), *out], stdout=DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"importing {path.name} failed")
            seconds, memory = time.perf_counter() - start, usage.ru_maxrss / 2**20
            print(f"| `{path.suffix}` | {path.stat().st_size / 1e6:.0f} | {seconds:.1f} | {memory:.2f} |")
            figures.append(f"{seconds:.1f} s, {memory:.2f} GiB")
    what = f"`rcjax import` of {chosen.samples:,} samples of Inspect AI: `.eval`; `.json`"
    record.headline(what, "; ".join(figures))


if __name__ == "__main__":
    record.run(main)
