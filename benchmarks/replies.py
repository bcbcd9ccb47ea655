"""Replies of providers, played against the parts that read replies: `collect`, `serve` in both APIs, and `import`.

    python -m benchmarks.replies [--only "finish_reason error"]

Each quirk of `benchmarks.gateway.quirks` is the reply of a small model; a large one answers well. A policy of both is
served before a server on loopback. The table says what came of each quirk, whole and streamed, judged and not: the
answer B; a failed call, after which a policy asks the next model; or an answer that is held back, which reaches clients
with its finish reason where nobody judges. Money is the same in the log, the header and the figures, and is what the
reply says, or `≠`. Ends with status 1 where something is not as it must be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gateway.quirks import GOOD, QUIRKS, Quirk, stream_of, whole
from benchmarks.gateway.servers import free_port, running
from rcjax.policy import Calibration, Policy, Rule

_RCJAX = str(Path(sys.executable).parent / "rcjax")
_PRICES = {"small": (1.0, 2.0), "large": (10.0, 20.0)}  # per million tokens
_OUTCOMES = {"answer": "B", "failed": "failed", "held back": "held back"}


class _Upstream(BaseHTTPRequestHandler):
    """Replies as the quirk that the question names, or well."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Reply to a request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        quirk = QUIRKS[request["messages"][0]["content"].partition("\n")[0]]
        quirk = quirk if request["model"] == "small" else GOOD
        body, kind = quirk.whole, "application/json"
        if request.get("stream") and quirk.events is not None:
            body, kind = stream_of(quirk.events), "text/event-stream"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def _policy() -> Policy:
    plain = Calibration("none", intercept=2.0, slope=4.0, smallest=-9.0, largest=0.0)
    rules = {"small": (Rule(0.5, "ask", "large"), Rule(1.0, "answer")), "large": (Rule(1.0, "answer"),)}
    return Policy(("small", "large"), dict.fromkeys(rules, plain), rules, {"small": 1e-5, "large": 1e-4})


def _models(folder: Path, url: str) -> Path:
    tables = (
        f'[{name}]\nbase_url = "{url}"\ninput = {price[0]}\noutput = {price[1]}\nsignal = "choice"\n'
        for name, price in _PRICES.items()
    )
    (folder / "models.toml").write_text("".join(tables))
    return folder / "models.toml"


class Service:
    """`rcjax serve`, its log and its figures.

    Args:
        folder: of its files.
        port: where it listens.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._log, self._url = folder / "calls.jsonl", f"http://127.0.0.1:{port}"

    def ask(self, path: str, model: str, name: str, *, stream: bool) -> tuple[int, bytes, Mapping[str, str]]:
        """(status, body, headers) of the answer to a question."""
        asked = {"input": name} if "responses" in path else {"messages": [{"role": "user", "content": name}]}
        data = json.dumps({"model": model, "stream": stream, **asked}).encode()
        request = urllib.request.Request(self._url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read(), reply.headers
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read(), problem.headers

    def rows(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def spent(self) -> float:
        """Money by the figures."""
        page = urllib.request.urlopen(self._url + "/metrics", timeout=60).read().decode()
        lines = [line for line in page.splitlines() if line.startswith("rcjax_request_cost_total{")]
        return sum(float(line.split()[-1]) for line in lines)


@contextmanager
def _serving(folder: Path, url: str) -> Iterator[Service]:
    _policy().save(folder / "policy.json")
    port = free_port()
    words = [_RCJAX, "serve", "policy.json", "--models", str(_models(folder, url)), "--port", str(port)]
    with running([*words, "--log", "calls.jsonl", "--retries", "0"], port, folder / "output"):
        yield Service(folder, port)


def _ending(body: bytes, path: str) -> str:
    """How a stream ends, in the words of the table."""
    data = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    if "responses" in path:
        status = json.loads(data[-1]).get("response", {}).get("status", "failed")
        reason = (json.loads(data[-1]).get("response", {}).get("incomplete_details") or {}).get("reason")
        return {"failed": "failed", "incomplete": "held back" if reason == "content_filter" else "B"}.get(status, "B")
    if data[-1] != "[DONE]":
        return "failed"
    reasons = [choice.get("finish_reason") for one in data[:-1] for choice in json.loads(one).get("choices", ())]
    return "held back" if any(_is_held(reason) for reason in reasons) else "B"


def _is_held(reason: Any) -> bool:
    held = [one for name, one in QUIRKS.items() if one.outcome == "held back"]
    known = {str(quirk.whole["choices"][0]["finish_reason"]) for quirk in held if isinstance(quirk.whole, Mapping)}
    return str(reason) in known


def _served(service: Service, name: str, path: str, *, judged: bool, stream: bool) -> tuple[str, bool]:
    """(what came of a quirk, whether the money is the same everywhere) in service."""
    before, money = len(service.rows()), service.spent()
    status, body, headers = service.ask(path, "policy" if judged else "small", name, stream=stream)
    for _ in range(100):
        rows = service.rows()[before:]
        if abs(service.spent() - money - sum(row["cost"] for row in rows)) < 1e-9 and rows:
            break
        time.sleep(0.02)
    same = abs(service.spent() - money - sum(row["cost"] for row in rows)) < 1e-9
    if "x-rcjax-cost" in headers:  # of a stream it is known at the end alone
        same &= abs(float(headers["x-rcjax-cost"]) - sum(row["cost"] for row in rows)) < 1e-9
    same &= stream or status != 200 or "x-rcjax-cost" in headers
    quirk = QUIRKS[name]
    wanted = quirk.cost if quirk.cost is not None else quirk.tokens and (quirk.tokens[0] + 2 * quirk.tokens[1]) / 1e6
    same &= wanted is None or abs(rows[0]["cost"] - wanted) < 1e-9
    if judged:
        asked = [row["model"] for row in rows]
        is_held = "held back" in (rows[0]["error"] or "")
        return ("B" if asked == ["small"] else "held back" if is_held else "failed"), same and status == 200
    if status != 200:
        return "failed", same
    if stream:
        return _ending(body, path), same
    document = json.loads(body)
    if "responses" in path:
        reason = (document["incomplete_details"] or {}).get("reason")
        return ("held back" if reason == "content_filter" else "B"), same
    return ("held back" if _is_held(document["choices"][0].get("finish_reason")) else "B"), same


def _collected(folder: Path, url: str, names: list[str]) -> dict[str, str]:
    """What came of each quirk in `rcjax collect`."""
    rows = [{"query": name, "prompt": name, "choices": ["A", "B"], "answer": "B"} for name in names]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = _models(folder, url).read_text().partition("[large]")[0]
    (folder / "models.toml").write_text(text)
    out: dict[str, str] = {}
    while len(out) < len(names):  # a model is left alone after ten failures in a row: the next ones are another run
        left = [row for row in rows if row["query"] not in out]
        (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))
        words = [_RCJAX, "collect", "questions.jsonl", "--models", "models.toml", "--out", f"log{len(out)}.jsonl"]
        subprocess.run([*words, "--json"], cwd=folder, capture_output=True, check=False)
        for line in (folder / f"log{len(out)}.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["query"]:
                held = "held back" in (row["error"] or "")
                out[row["query"]] = "held back" if held else "failed" if row["error"] else row["answer"]
    return out


def _imported(folder: Path, name: str, quirk: Quirk) -> str:
    """What came of a quirk in `rcjax import`, as a line of an OpenAI batch beside a good one."""
    bodies = {"a": quirk.whole, "b": whole()}
    lines = []
    for key, body in bodies.items():
        read = json.loads(body) if isinstance(body, bytes) else body
        response = {"status_code": 200, "body": {"model": "m", **(read or {})}}
        lines.append(json.dumps({"id": key, "custom_id": key, "response": response, "error": None}))
    (folder / "batch.jsonl").write_text("\n".join(lines) + "\n")
    words = [_RCJAX, "import", "batch.jsonl", "--out", "log.jsonl", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    answers = {}
    if (folder / "log.jsonl").exists():
        rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        answers = {str(row["query"]): row["answer"] for row in rows}
        (folder / "log.jsonl").unlink()
    return answers.get("a") or ("left out" if "left out" in done.stdout + done.stderr else f"? {done.stderr[-200:]}")


_WAYS = {
    "chat": ("/v1/chat/completions", False),
    "chat, streamed": ("/v1/chat/completions", True),
    "responses": ("/v1/responses", False),
    "responses, streamed": ("/v1/responses", True),
}


def main() -> None:
    """Play all, and print the table."""
    options = record.parser(__doc__)
    options.add_argument("--only", choices=[*QUIRKS], help="one of them")
    chosen = options.parse_args()
    quirks = {name: quirk for name, quirk in QUIRKS.items() if chosen.only in (None, name)}
    wrong, rows = 0, []
    with tempfile.TemporaryDirectory() as place, _upstream() as url:
        os.environ.setdefault("OPENAI_API_KEY", "none")
        folders = [Path(place, name) for name in ("serve", "collect", "import")]
        for folder in folders:
            folder.mkdir()
        collected = _collected(folders[1], url, [name for name, quirk in quirks.items() if quirk.whole is not None])
        with _serving(folders[0], url) as service:
            for name, quirk in quirks.items():
                cells, same = [collected.get(name, "–")], True
                for judged in (True, False):
                    for path, stream in _WAYS.values():
                        sent = quirk.events if stream and not judged else quirk.whole
                        got, alike = (
                            ("–", True) if sent is None else _served(service, name, path, judged=judged, stream=stream)
                        )
                        cells, same = [*cells, got], same and alike
                cells.append("–" if quirk.whole is None else _imported(folders[2], name, quirk))
                wanted = _OUTCOMES[quirk.outcome]
                bad = [cell for cell in cells[:-1] if cell not in ("–", wanted)]
                is_wrong = bool(bad) or not same or cells[-1] not in ("–", "B" if wanted == "B" else "left out")
                wrong += is_wrong
                rows.append(
                    [name, quirk.source, wanted, *cells, "same" if same else "≠", "**no**" if is_wrong else "yes"]
                )
    ways = [f"{way}{how}" for how in ("", ", not judged") for way in _WAYS]
    head = ["reply", "documented", "must be", "collect", *ways, "import", "money", "right"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(f"\n{len(rows)} replies, {wrong} of which came to something else than they must.")
    record.headline("replies of providers, each in eleven ways; wrong", f"{len(rows)}; {wrong}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    record.run(main)
