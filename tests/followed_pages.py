"""Pages of documentation, followed as they are written: their files saved, their commands given, one after the other.

    python tests/followed_pages.py

writes what the commands print into the pages' blocks of text. A block holds stretches of what the command before it
prints, with a line "…" between them: each begins at its first line, figures apart, and stays as long as it is.

What a reader does that no page can write is a function of the test, told by a line of the page that says so: send
traffic, fill in labels. Addresses of the pages become those of the test; installing is left out.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pretend_endpoint
from helpers.chat_server import served

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "rcjax" / "docs"
PAGES = [DOCS / f"first_policy_from_{what}.md" for what in ("a_log", "questions", "an_endpoint", "tools")]
LEFT_OUT = "…"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass
class Reader:
    """A person who follows a page, in an empty folder and home, with an environment that holds nothing else."""

    folder: Path
    programs: Path
    """Where compiled programmes are kept."""
    upstream: int
    """The port of the endpoint that pages call localhost:8000."""
    port: int = field(default_factory=lambda: free_port())
    """The port of `rcjax serve`."""
    service: subprocess.Popen | None = None
    printed: list[str] = field(default_factory=list)
    """By each block of commands."""

    def __post_init__(self):
        for name, run in (("rcjax", '-c "from rcjax.cli import main; main()"'), ("python", "")):
            path = self.folder / ".bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {run} "$@"\n')
            path.chmod(0o755)

    @property
    def environment(self):
        return {
            "PATH": f"{self.folder / '.bin'}{os.pathsep}{os.defpath}",
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "RCJAX_CACHE_DIR": str(self.programs),
            "ENDPOINT_KEY": pretend_endpoint.KEY,
        }

    def at_our_ports(self, text):
        return text.replace("localhost:8000", f"localhost:{self.upstream}").replace(
            "localhost:8080", f"localhost:{self.port}"
        )

    def save(self, prose, text):
        """A block is the file that is named last before it."""
        name = re.findall(r"`([\w.]+\.(?:csv|toml|jsonl?))`", prose)[-1]
        (self.folder / name).write_text(self.at_our_ports(text))

    def give(self, commands):
        """Give commands; a service goes on beside the reader."""
        lines = [line for line in commands.replace("\\\n", " ").splitlines() if not line.startswith("pip install")]
        for line in lines:
            if line.startswith("rcjax serve"):
                self.serve(line)
        script = "\n".join(line for line in lines if not line.startswith("rcjax serve"))
        self.printed.append(self.run("sh", "-ec", self.at_our_ports(script)))

    def run(self, *command):
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, line):
        command = [str(self.folder / ".bin" / "rcjax"), *shlex.split(line)[1:], "--port", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.service = subprocess.Popen(command, cwd=self.folder, env=self.environment, **quiet)
        end = time.monotonic() + 60
        while not self.is_ready():
            assert time.monotonic() < end
            assert self.service.poll() is None, line
            time.sleep(0.2)

    def is_ready(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://localhost:{self.port}/ready", timeout=5).status == 200
        return False

    def ask(self, text):
        """An application's call; the answer."""
        body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
        url = f"http://localhost:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=60).read())

    def stop(self):
        if self.service is not None:
            self.service.terminate()
            self.service.wait(60)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def reader(folder, programs):
    """A person who follows a page, with an endpoint to ask."""
    with served(pretend_endpoint.behave, pretend_endpoint.KEY) as (server, _):
        one = Reader(folder, programs, server.port)
        try:
            yield one
        finally:
            one.stop()


def follow(page, one, deeds=()):
    """Follow a page to its end; the pairs of what its blocks of text show, and what was printed.

    Args:
        page: the file.
        one: who follows it.
        deeds: what a reader does by hand: pairs of words of the page and a function of the reader, called where the
            prose before a block has these words.
    """
    text, place, shown = page.read_text("utf-8"), 0, []
    left = dict(deeds)
    for block in BLOCK.finditer(text):
        prose, language, body = text[place : block.start()], block[1], block[2]
        place = block.end()
        for words in [words for words in left if words in prose]:
            left.pop(words)(one)
        if language == "sh":
            one.give(body)
        elif language == "python":
            one.printed.append(one.run(str(one.folder / ".bin" / "python"), "-c", one.at_our_ports(body)))
        elif language == "text":
            shown.append((body, one.printed[-1]))
        else:
            one.save(prose, body)
    assert not left, f"{page.name} does not say any more: {', '.join(left)}"
    return shown


def words_alone(text):
    """Without figures and the widths of columns: they hang on versions, machines and the order of answers a little.

    So does the side of a small difference.
    """
    words = re.sub(r"[─\s]+", " ", re.sub(r"[\d.,]*\d", "#", text)).strip()
    return re.sub(r"the same error \(± # points\) as|# ± # points (more|less) error than", "an error beside", words)


def printed_there(body, printed):
    """What a block of text should be: of each of its stretches as many lines, from where the first one was printed."""
    lines = [line.rstrip() for line in printed.splitlines()]
    heads, stretches = [words_alone(line) for line in lines], []
    for stretch in body.removesuffix("\n").split(f"\n{LEFT_OUT}\n"):
        first, *rest = stretch.splitlines()
        assert words_alone(first) in heads, f"not printed any more: {first}\n{printed}"
        start = heads.index(words_alone(first))
        stretches.append("\n".join(lines[start : start + 1 + len(rest)]))
    return f"\n{LEFT_OUT}\n".join(stretches) + "\n"


def refresh(page, shown):
    """Write what was printed into the page."""
    text = page.read_text("utf-8")
    for body, printed in shown:
        text = text.replace(f"```text\n{body}```", f"```text\n{printed_there(body, printed)}```", 1)
    page.write_text(text, encoding="utf-8")


def send_traffic(one):
    """The requests of applications."""
    for i in range(200):
        one.ask(f"How much is {11 + i % 89} · {13 + 7 * i % 83}?")
    end = time.monotonic() + 300  # shadow calls come after the answers
    while len((one.folder / "calls.jsonl").read_text().splitlines()) < 2 * 200:  # the page has two models
        assert time.monotonic() < end
        time.sleep(0.1)


def fill_in_labels(one):
    """Label the table as a person does: 1 if the answer is right, else 0."""
    path = one.folder / "to_label.csv"
    head, *rows = path.read_text("utf-8").splitlines()
    columns = head.split(",")
    filled = []
    for row in rows:
        a, b = map(int, re.search(r"(\d+) (?:·|\\u00b7) (\d+)", row).groups())
        before, answer, _, *rest = row.rsplit(",", len(columns) - columns.index("answer"))
        filled.append(",".join([before, answer, str(int(a * b == int(answer))), *rest]))
    path.write_text("\n".join([head, *filled]) + "\n", encoding="utf-8")


DEEDS = {"an_endpoint": [("few hundred queries", send_traffic), ("Fill in", fill_in_labels)]}


def deeds_of(page):
    return DEEDS.get(page.stem.removeprefix("first_policy_from_"), [])


def main():
    """Follow all pages, or those of these names, and write what was printed."""
    for page in [page for page in PAGES if page.stem in (sys.argv[1:] or page.stem)]:
        with tempfile.TemporaryDirectory() as folder, reader(Path(folder), Path(folder) / "programs") as one:
            refresh(page, follow(page, one, deeds_of(page)))


if __name__ == "__main__":
    main()
