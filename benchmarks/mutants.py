"""Mutation tests: put small faults into the package, one at a time, and run the tests that should find them.

    python -m benchmarks.mutants --list mutants.json [--count 160] [--seed 0]
    python -m benchmarks.mutants --run mutants.json --out killed.json [--tier default|thorough|all]
        [--before killed.json] [--limit 300] [--workers 2]

`--list` draws faults over all packages: a comparison, a sign, a constant, a condition, a return value. `--run` puts
each fault into a copy of the tree and runs the tests of the package's own folder, then those of the folders above it,
until a test fails. With `--before`, only the faults that an earlier run found are run, each with the test that failed
then first. A fault is identified by the text of its line, so that later code has the same faults; faults whose line is
gone are counted.
"""

import argparse
import ast
import concurrent.futures
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SWAPS = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.FloorDiv: "/"},
    **{ast.And: "or", ast.Or: "and"},
}
TIERS = {"default": [], "thorough": ["-m", "thorough"], "all": ["-m", "thorough or not thorough"]}
#: What the children of the runner share, imported once; rcjax is imported by each child, with its fault.
PRELOADED = ("jax", "jax.numpy", "jax.scipy.special", "scipy.stats", "polars", "pandas", "pytest", "hypothesis")


@dataclass(frozen=True)
class Mutant:
    """A fault: in a module, a line of that text, the how-manieth with it, becomes another."""

    module: str
    line: str
    nth: int
    becomes: str

    def applied(self, source: str) -> str | None:
        """The module with the fault; None where the line is not there any more."""
        lines = source.split("\n")
        places = [i for i, line in enumerate(lines) if line == self.line]
        if self.nth >= len(places):
            return None
        lines[places[self.nth]] = self.becomes
        return "\n".join(lines)


def replacements(node: ast.AST, source: str) -> Iterator[tuple[ast.expr, str]]:
    """(what is replaced, by what) for the faults that a node of the syntax tree allows."""
    text = lambda part: ast.get_source_segment(source, part)  # noqa: E731
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPS:
            yield node, f"{text(left)} {SWAPS[type(op)]} {text(right)}"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            if not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in (left, right)):
                yield node, f"{text(left)} {SWAPS[type(op)]} {text(right)}"
        case ast.BoolOp(op=op, values=[left, right]):
            yield node, f"{text(left)} {SWAPS[type(op)]} {text(right)}"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield node, f"({text(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"not ({text(test)})"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"


def mutants(path: Path) -> Iterator[Mutant]:
    """The faults of a module that stand within a line of a function's body."""
    source = path.read_text("utf-8")
    lines = source.split("\n")
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                for part, becomes in replacements(node, source):
                    if part.lineno != part.end_lineno:
                        continue
                    place = part.lineno - 1
                    line = lines[place]
                    head, tail = line.encode()[: part.col_offset], line.encode()[part.end_col_offset :]
                    faulty = head.decode() + becomes + tail.decode()
                    yield Mutant(str(path.relative_to(ROOT)), line, lines[:place].count(line), faulty)


def draw(count: int, seed: int) -> list[Mutant]:
    """Faults over all packages: by the root of how many each allows, and at least two."""
    by_package: dict[str, list[Mutant]] = {}
    for path in sorted((ROOT / "rcjax").rglob("*.py")):
        if not path.name.startswith("__"):
            package = path.relative_to(ROOT / "rcjax").parts[0]
            by_package.setdefault(package, []).extend(dict.fromkeys(mutants(path)))
    generator = random.Random(seed)
    weights = {package: math.sqrt(len(faults)) for package, faults in by_package.items()}
    share = count / sum(weights.values())
    return [
        fault
        for package, faults in by_package.items()
        for fault in generator.sample(faults, min(len(faults), max(2, round(share * weights[package]))))
    ]


def tests_of(module: str, tree: Path) -> list[str]:
    """The tests of a module's folder, then those of the folders above, then its own examples."""
    folder = Path("tests") / Path(module).parent.relative_to("rcjax")
    paths: list[str] = []
    if (tree / folder).is_dir() and folder != Path("tests"):
        paths.append(str(folder))
        folder = folder.parent
    while folder != Path("."):
        paths += sorted(str(path.relative_to(tree)) for path in (tree / folder).glob("test_*.py"))
        folder = folder.parent
    return [*paths, module]


def run_tests(tree: Path, tests: list[str], options: list[str], limit: float) -> tuple[str, str]:
    """(killed, survived or unfinished; the test that failed), from a child that is stopped after so many seconds."""
    log = tree / "log.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        sys.path[:0] = [str(tree), str(tree / "tests")]
        os.environ["PYTHONPATH"] = str(tree)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        import pytest

        status = 2
        try:
            status = int(pytest.main(["-x", "-q", "-rf", "--no-header", "--tb=line", *options, *tests]))
        finally:
            os._exit(status)
    stop = time.monotonic() + limit
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            told = [
                line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            # 4: there is no such test (any more); 5: none was left, as all of them are of the other tier.
            outcome = "survived" if os.waitstatus_to_exitcode(status) in (0, 4, 5) else "killed"
            return outcome, told[0].split()[1] if told else ""
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "unfinished", ""


def try_mutant(mutant: Mutant, tree: Path, first: list[str], options: list[str], limit: float) -> dict[str, object]:
    """What the tests say of a fault, in a copy of the tree, which is then as it was."""
    path = tree / mutant.module
    source = path.read_text("utf-8")
    faulty = mutant.applied(source)
    result: dict[str, object] = {**asdict(mutant), "outcome": "gone", "test": "", "seconds": 0.0}
    if faulty is None:
        return result
    path.write_text(faulty, "utf-8")
    start = time.monotonic()
    try:
        outcome, test = "survived", ""
        present = [test for test in first if (tree / test.partition("::")[0]).is_file()]
        for tests in ([*present], tests_of(mutant.module, tree)):
            left = limit - (time.monotonic() - start)
            if tests and outcome == "survived":
                outcome, test = run_tests(tree, tests, options, left)
        return {**result, "outcome": outcome, "test": test, "seconds": round(time.monotonic() - start, 1)}
    finally:
        path.write_text(source, "utf-8")


def work(arguments: argparse.Namespace, share: list[tuple[Mutant, list[str]]], number: int) -> list[dict[str, object]]:
    """One worker's faults, one after the other, in a copy of the tree of its own."""
    cache = arguments.out.resolve().parent / "mutants_cache"
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignore = shutil.ignore_patterns(".git", "__pycache__", ".venv", ".pytest_cache", "results")
        shutil.copytree(ROOT, tree, ignore=ignore)
        if (shared := ROOT.parent / "shared").is_dir():
            (Path(folder) / "shared").symlink_to(shared)
        options = [*TIERS[arguments.tier], "-o", f"cache_dir={cache}", *arguments.options]
        results = []
        for mutant, first in share:
            results.append(try_mutant(mutant, tree, first, options, arguments.limit))
            with open(f"{arguments.out}.{number}", "a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(f"{results[-1]['outcome']:10} {results[-1]['seconds']:6} s  {mutant.module}", file=sys.stderr)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path, help="results of an earlier run: its killers first, its kills alone")
    parser.add_argument("--tier", choices=TIERS, default="default")
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a fault")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("options", nargs="*", help="of pytest, after --")
    arguments = parser.parse_args()
    if arguments.list:
        arguments.list.write_text(json.dumps([asdict(mutant) for mutant in draw(arguments.count, arguments.seed)]))
        return
    if not arguments.run or not arguments.out:
        parser.error("give --list FILE, or --run FILE with --out FILE")
    wanted = [Mutant(**fields) for fields in json.loads(arguments.run.read_text())]
    first: dict[Mutant, list[str]] = {}
    if arguments.before:
        for row in json.loads(arguments.before.read_text()):
            if row["outcome"] == "killed":
                mutant = Mutant(row["module"], row["line"], row["nth"], row["becomes"])
                first[mutant] = [test for test in (row["test"].partition("[")[0],) if test]
        wanted = [mutant for mutant in wanted if mutant in first]
    shares = [[(m, first.get(m, [])) for m in wanted[i :: arguments.workers]] for i in range(arguments.workers)]
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        rows = [row for rows in pool.map(work, [arguments] * len(shares), shares, range(len(shares))) for row in rows]
    arguments.out.write_text(json.dumps(rows, indent=1))
    print(subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%h"], capture_output=True, text=True).stdout)
    print(dict(Counter(row["outcome"] for row in rows)))


if __name__ == "__main__":
    main()
