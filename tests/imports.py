"""The imports between modules of rcjax, read from the files: at run time, lazily, and for types.

python tests/imports.py     # modules, arrows, circles and floors; long files and functions; vague names
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "rcjax"

#: Packages in order, by what they are about, as in the table of CONTRIBUTING.md.
GROUPS = {
    "foundations": ["_base", "_core"],
    "the service": ["policy.signals", "policy", "serving"],
    "logs, which all read": ["logs", "collecting", "logs.importing"],
    "the toolkit": [
        *("copulas", "model", "testing", "model.goodness_of_fit", "model.interop"),
        *("solving.frontier", "solving", "bayes"),
    ],
    "the product": ["tuning.replaying", "tuning", "tuning.diagnostics", "tuning.sweeps", "report"],
    "commands": ["cli"],
}
#: Each package imports from those before it, and from itself.
LAYERS = [layer for layers in GROUPS.values() for layer in layers]
#: Names that say nothing of a value.
VAGUE = ("each", "found", "seen")


def modules() -> dict[str, Path]:
    """Return the file of every module but the root, by name below rcjax: `"model.fitting"`, `"model"` for a package."""
    names = {path: path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items() if name != "__init__"}


def layer(name: str) -> str:
    """Return the package of a module that is a row of the table: `"model.goodness_of_fit"` before `"model"`."""
    parts = name.split(".")
    ways = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((way for way in ways if way in LAYERS), parts[0])


def imported(path: Path, known: set[str]) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of each import of rcjax in a file; `""` is the root."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rcjax":
                    yield alias.name.removeprefix("rcjax").removeprefix("."), node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rcjax":
            source = (node.module or "").removeprefix("rcjax").removeprefix(".")
            for alias in node.names:
                inner = f"{source}.{alias.name}".removeprefix(".")
                yield inner if inner in known else exported(source).get(alias.name, source), node.lineno


@cache
def exported(package: str) -> dict[str, str]:
    """Return the public names of a package with their modules, by its stub; {} for a module and for the root."""
    stub = ROOT.joinpath(*package.split(".")) / "__init__.pyi"
    if not package or not stub.exists():
        return {}
    nodes = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: (node.module or "").removeprefix("rcjax.") for node in nodes for alias in node.names}


def arrows() -> dict[str, set[str]]:
    """Return the modules that each module imports, without the root, which holds the public names alone."""
    paths = modules()
    return {name: {target for target, _ in imported(path, {*paths})} - {name, ""} for name, path in paths.items()}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    reach = {name: set(targets) & {*graph} for name, targets in graph.items()}
    for middle in graph:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    rings = {frozenset(n for n in targets if name in reach[n]) for name, targets in reach.items() if name in targets}
    return [set(ring) for ring in rings]


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return a module and all that it imports, directly or through others."""
    reach, rest = {start}, [start]
    while rest:
        new = (graph[rest.pop()] & {*graph}) - reach
        reach |= new
        rest += new
    return reach


def floors(graph: dict[str, set[str]]) -> int:
    """Return the length of the longest chain of imports, in modules; a circle is left where it is entered."""
    height: dict[str, int] = {}

    def climb(name: str, path: frozenset[str]) -> int:
        if name not in height:
            below = [climb(target, path | {name}) for target in graph[name] if target in graph and target not in path]
            height[name] = 1 + max(below, default=0)
        return height[name]

    return max(climb(name, frozenset()) for name in graph)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with the name of its module."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node


def unannotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a parameter or the result has no annotation."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    named = [argument for argument in arguments if argument.arg not in ("self", "cls", "_")]
    return function.returns is None or any(argument.annotation is None for argument in named)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    lines, first = (function.end_lineno or 0) - function.lineno + 1, function.body[0]
    return lines - ((first.end_lineno or 0) - first.lineno + 1) * (ast.get_docstring(function) is not None)


def vague_names() -> int:
    """Count the bindings whose name says nothing of the value."""
    pattern = re.compile(rf"\b({'|'.join(VAGUE)})\b *(=[^=]|,.*=[^=]| in |:)")
    return sum(bool(pattern.search(line)) for path in ROOT.rglob("*.py") for line in path.read_text().splitlines())


def main() -> None:
    """Print the figures of the house."""
    graph = arrows()
    print(f"{len(graph)} modules, {sum(map(len, graph.values()))} arrows, {floors(graph)} floors")
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    for start in ("tuning.tune", "tuning.candidate_scores"):
        reach = reached(graph, start)
        print(f"reached from {start}: {len(reach)} modules, {sum(lines[name] for name in reach):,} lines")
    print(f"circles: {[sorted(ring) for ring in circles(graph)]}")
    lengths = sorted((count, name) for name, count in lines.items())
    print(f"longest files: {lengths[:-6:-1]}; the median has {lengths[len(lengths) // 2][0]} lines")
    long = [code_lines(node) for _, node in functions()]
    print(
        f"functions: {len(long)}, of more than 40 lines without their docstring {sum(length > 40 for length in long)}"
    )
    print(f"not fully annotated: {sum(unannotated(node) for _, node in functions())}")
    print(f"bindings named {', '.join(VAGUE)}: {vague_names()}")


if __name__ == "__main__":
    main()
