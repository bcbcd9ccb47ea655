"""The reference of all public names, `rcjax/docs/reference.md` and its pages, from their docstrings.

    python -m benchmarks.make_reference

pdoc finds members, signatures and the docstrings of attributes; this puts them on pages that any viewer of Markdown
shows: one for what belongs together, and a first one that lists every name with its first sentence.
"""

import importlib
import re
from functools import cache
from pathlib import Path

import pdoc.doc

import rcjax

DOCS = Path(rcjax.__file__).parent / "docs"
#: The pages: what belongs together, in the order in which data flows.
SECTIONS = {
    "The four verbs": ["read_log", "tune", "Tuned", "replay", "Replay", "Seconds", "check_policy", "PolicyCheck"],
    "Logs": [
        "Log",
        "HandLabels",
        "read_evaluations",
        "LogError",
        "IncompleteLogWarning",
        "LeftOutWarning",
        "UnlabelledWarning",
        "NoConfidenceWarning",
        "PricesWarning",
        "OverlapWarning",
        "sample_log",
    ],
    "How a log is tuned": ["Reference", "Scores", "Spec", "Target"],
    "What is deployed": ["Policy", "Ladder", "load_policy"],
    "In service": ["Cascade", "ServiceOptions", "CascadeError", "CallLog", "retune"],
    "The fitted model": [
        "fit",
        "fit_copula",
        "CascadeModel",
        "load_model",
        "demo_model",
        "Marginal",
    ],
    "Frontiers": [
        *("solve_frontier", "error_and_cost", "Frontier", "load_frontier", "InfeasibleError", "area_under_curve"),
    ],
    "The frontier as a pure function": ["solve", "Solution"],
    "Objectives of your own": ["minimise", "Outcome", "outcomes", "smoothed_quantile"],
    "Selection, intervals, guarantees": [
        "select_frontier",
        "Selection",
        "Comparison",
        "bootstrap",
        "Bands",
        "certify",
        "Certificate",
        "expected_calibration_error",
    ],
    "The posterior": ["sample_posterior", "Posterior", "Priors", "posterior_figures", "credible_bands"],
    "Goodness of fit": [
        *("compare_copulas", "CopulaResult"),
        *("copula_test", "CopulaTest", "conditional_test", "MarkovTest", "marginal_test", "MarginalTest"),
        *("calibration_test", "CalibrationTest", "reliability_curve"),
    ],
    "Checks and the report": ["diagnose", "Diagnosis", "make_report", "Report"],
    "Many logs": ["sweep", "SweepSettings", "Sweep"],
    "Copulas": [
        "Copula",
        "TailDependence",
        "check_copula",
        "param",
        "Independence",
        "Gumbel",
        "SurvivalGumbel",
        "Clayton",
        "SurvivalClayton",
        "Frank",
        "Joe",
        "SurvivalJoe",
        "Gaussian",
        "StudentT",
        *("BB1", "BB7", "Tawn"),
        *("Plackett", "FGM"),
        "NegativeClayton",
        "Rotation",
    ],
}
#: Where names are that the top does not export.
PACKAGES = (
    *(
        "bayes",
        "copulas",
        "logs",
        "logs.importing",
        "model",
        "model.goodness_of_fit",
        "policy",
        "report",
    ),
    *(
        "serving",
        "solving",
        "solving.frontier",
        "testing",
        "tuning",
        "tuning.diagnostics",
        "tuning.replaying",
        "tuning.sweeps",
    ),
)
#: A link to a page beside those of the reference's first one.
LINK = re.compile(r"\]\((?!\w+:|#)")


def pages() -> dict[str, str]:
    """The text of each page, by its path under `rcjax/docs`."""
    members = {name: _documented(package).members[name] for name, package in homes().items()}
    lists = ["# Reference", "Every public name; made from the docstrings by `python -m benchmarks.make_reference`."]
    texts = {}
    for section, names in SECTIONS.items():
        path = f"reference/{section.lower().replace(',', '').replace(' ', '-')}.md"
        parts = [f"# {section}", *(part for name in names for part in describe(members[name], name))]
        texts[path] = LINK.sub("](../", "\n\n".join(parts) + "\n")
        items = [f"- [`{_full(name)}`]({path}#{name.lower()}): {_first(members[name])}" for name in names]
        lists += [f"## {section}", "\n".join(items)]
    return {"reference.md": "\n\n".join(lists) + "\n", **texts}


@cache
def homes() -> dict[str, str]:
    """The package of every name on these pages."""
    packages = ["rcjax", *(f"rcjax.{package}" for package in PACKAGES)]
    exported = {package: importlib.import_module(package).__all__ for package in packages}
    names = [name for listed in SECTIONS.values() for name in listed]
    return {name: next(package for package in packages if name in exported[package]) for name in names}


@cache
def _documented(package: str) -> pdoc.doc.Module:
    module = importlib.import_module(package)
    for name in module.__all__:  # which are imported when they are first used
        getattr(module, name)
    return pdoc.doc.Module(module)


def _full(name: str) -> str:
    """A name as it is written after `import rcjax`."""
    return f"{homes()[name]}.{name}"


def _first(member: pdoc.doc.Doc) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join(member.docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0]


def describe(member: pdoc.doc.Doc, name: str) -> list[str]:
    """The parts of one name: heading with its signature, docstring, and for a class its members."""
    signature = str(member.signature) if isinstance(member, pdoc.doc.Function) else ""
    parts = [f"## `{name}`", *code(f"{_full(name)}{_short(signature)}"), *prose(member.docstring)]
    if isinstance(member, pdoc.doc.Class) and not issubclass(member.obj, BaseException):
        own = [part for part in (*member.own_members, *_inherited(member)) if part.docstring and part.name[0] != "_"]
        parts += [text for part in own for text in _describe_member(name, part)]
    return parts


def _inherited(member: pdoc.doc.Class) -> list[pdoc.doc.Doc]:
    """Members from classes of ours that have no entry of their own, and that no entry of another base tells of."""
    told = {name for base in member.obj.__mro__[1:] if base.__name__ in homes() for name in dir(base)}
    own = {source: parts for source, parts in member.inherited_members.items() if source[0].startswith("rcjax.")}
    bases = [parts for source, parts in own.items() if source[1] not in homes()]
    return [part for parts in bases for part in parts if part.name not in told]


def _describe_member(owner: str, member: pdoc.doc.Doc) -> list[str]:
    if isinstance(member, pdoc.doc.Variable) or _is_described_of_a_base(member):
        return [f"- **`{owner}.{member.name}`**: {_first(member)}"]
    signature = _short(str(member.signature)) if isinstance(member, pdoc.doc.Function) else ""
    return [f"### `{owner}.{member.name}`", *code(f"{member.name}{signature}"), *prose(member.docstring, False)]


def _is_described_of_a_base(member: pdoc.doc.Doc) -> bool:
    """Whether a base with an entry of its own has this member: its signature stands there."""
    module, _, path = member.fullname.removesuffix(f".{member.name}").rpartition(".")
    bases = getattr(importlib.import_module(module), path).__mro__[1:]
    return any(base.__name__ in homes() and member.name in vars(base) for base in bases)


def _short(signature: str) -> str:
    """A signature without self and the modules of its types; what is taken for an array is one word."""
    signature = re.sub(r"^\(\s*(?:self|cls)(?:, ?|(?=\)))", "(", signature)
    signature = re.sub(r"\*<class '[\w.]*\.(\w+)'>", r"Unpack[\1]", signature)
    signature = re.sub(r"Union\[numpy\._typing.*?\](?=,\n|\n| =)", "ArrayLike", signature)
    array = "Union[Array, numpy.ndarray, numpy.bool, numpy.number, bool, int, float, complex]"
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", signature).replace(array, "ArrayLike")


def code(text: str) -> list[str]:
    """A fenced block, if there is anything in it."""
    return [f"```text\n{text}\n```"] if text else []


def prose(docstring: str, with_examples: bool = True) -> list[str]:
    """A docstring as Markdown, without what pages explain: its first paragraph, its parameters, what it raises.

    Args:
        docstring: of a name, or a member.
        with_examples: whether its examples are there, fenced.
    """
    parts = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", docstring.strip())):
        lines = paragraph.split("\n")
        if lines[0].strip() == "Args:":
            parts.append(parameters(lines[1:]))
            continue
        if number and not lines[0].lstrip().startswith(">>>"):
            parts += re.findall(r"(?:^|(?<=[.:;] ))Raises [A-Z].*", " ".join(paragraph.split()))
            continue
        examples = [i for i, line in enumerate(lines) if line.lstrip().startswith(">>>")]
        cut = examples[0] if examples else len(lines)
        text = "\n".join(lines[:cut]).strip()
        parts += [text] if text else []
        if examples and with_examples:
            margin = len(lines[cut]) - len(lines[cut].lstrip())
            parts.append("```pycon\n" + "\n".join(line[margin:] for line in lines[cut:]) + "\n```")
    return parts


def parameters(lines: list[str]) -> str:
    """The lines below `Args:` as a list: a parameter, or several that share a description, in each item."""
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    items: list[str] = []
    for line in lines:
        named = re.match(r"(\*{0,2}\w[\w, *]*): ", line[margin:])  # what goes on from the line before is indented
        if named:
            names = ", ".join(f"`{name.strip()}`" for name in named[1].split(","))
            items.append(f"- {names}: {line[margin + named.end() :]}")
        else:
            items[-1] += f"\n  {line.strip()}"
    return "\n".join(items)


if __name__ == "__main__":
    made = pages()
    for old in (DOCS / "reference").glob("*.md"):
        old.unlink()
    for path, text in made.items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
