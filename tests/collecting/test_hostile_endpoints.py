"""Endpoints that hold a call, send too much, or send it elsewhere; secrets go where they belong alone."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import zlib

import pytest
from chat_server import KEY, Response, completion, raw_server, served, sure
from command_line import run
from misses import in_turn
from models_of_a_test import Models, questions, write_models, write_questions

from rcjax.collecting import respondent

pytestmark = pytest.mark.usefixtures("own_settings")


def plain(body, status="200 OK", *lines):
    """An answer with these lines in its head."""

    async def answer(head, reader, writer):
        told = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *lines]
        writer.write("\r\n".join(told).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return answer


def collect(place, url, *options, n=2, more="", rows=None):
    asked = write_questions(place / "questions.jsonl", rows or questions(n))
    models = write_models(place / "models.toml", url, ["tiny"], more)
    line = [asked, "--models", models, "--out", place / "answers.jsonl", "--signal", "choice"]
    return run("collect", *line, *options)


def lines(place):
    return [json.loads(line) for line in (place / "answers.jsonl").read_text().splitlines()]


GOOD = json.dumps(sure("A", -0.1)).encode()


async def drip(head, reader, writer):
    """A byte now and then, so that no read ever takes long."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


def test_an_attempt_has_an_end_whatever_drips_in(place):
    """The limit was one of each read: a byte every half second held a call for ever."""
    with raw_server(drip) as (came, url):
        start = time.perf_counter()
        result = collect(place, url, "--timeout", 0.4, n=1)
        assert time.perf_counter() - start < 60
    assert result.exit_code == 1
    assert len(came) == 5
    (row,) = lines(place)
    assert (row["error"], row["attempts"]) == ("timed out", 5)
    assert row["at_most"] > 0  # it may have been worked on


LONG = "x" * 1_000_001


def large(size, *lines_):
    """A reply without an end, as far as anybody reads it."""

    async def answer(head, reader, writer):
        told = ["HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {size}", *lines_]
        writer.write("\r\n".join(told).encode() + b"\r\n\r\n")
        sent = 0
        while sent < size:
            writer.write(b" " * 65_536)
            sent += 65_536
            await writer.drain()

    return answer


PACKED = zlib.compress(b" " * 30_000_000)


@in_turn(
    ("answer", "says"),
    [
        (large(10_000_000_000), "a reply of more than 1 megabytes"),
        (plain(PACKED, "200 OK", "content-encoding: deflate"), "a reply of more than 1 megabytes"),
        (
            plain(json.dumps(completion(LONG)).encode()),
            "a reply of 1,000,001 characters, of which no more than 1,000,000",
        ),
    ],
    ids=["endless", "packed", "long"],
)
def test_a_reply_has_a_limit(answer, says, place, monkeypatch):
    """One of 50 MB was a line of 100 MB."""
    monkeypatch.setattr(respondent, "MOST_BYTES", 2**20)
    monkeypatch.setattr(respondent, "MOST_BYTES", 2**22 if "characters" in says else 2**20)
    with raw_server(answer) as (came, url):
        result = collect(place, url, n=1)
    assert result.exit_code == 1
    (row,) = lines(place)
    assert says in row["error"]
    assert len(came) == 1  # asking again would bring the same
    assert (place / "answers.jsonl").stat().st_size < 10_000


@in_turn("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_costs_nothing(status, place):
    """The question, and headers of the user's own, went to whatever host a server named."""
    with raw_server(plain(GOOD)) as (elsewhere, other):
        answer = plain(b"{}", f"{status} x", f"location: {other}/chat/completions")
        with raw_server(answer) as (came, url):
            result = collect(
                place, url, "--concurrency", 1, more='options = { extra_headers = { "X-Own" = "s3cret" } }'
            )
    assert result.exit_code == 1
    assert f"tiny: HTTP {status}: it is to be asked elsewhere, which base_url must say" in " ".join(
        result.stdout.split()
    )
    assert (len(came), elsewhere) == (1, [])
    assert [row["at_most"] for row in lines(place)] == [0.0]


@in_turn("key", ["sk-“quoted”", "sk-one\nsk-two", "sk-é", "sk-\x00"[:3] + "\x7f"])
def test_a_key_that_cannot_be_sent_is_told_before_anything_is_asked(key, place, monkeypatch):
    """It booked the worst case 17 times, and said that the client failed."""
    monkeypatch.setenv("KEY_OF_THE_TEST", key)
    with raw_server(plain(GOOD)) as (came, url):
        result = collect(place, url)
    assert result.exit_code == 1
    assert "model tiny: the key in the environment variable KEY_OF_THE_TEST cannot be sent" in result.stderr
    assert key not in result.stderr
    assert (came, (place / "answers.jsonl").exists()) == ([], False)


def test_what_is_for_openai_goes_to_openai_alone(place, monkeypatch):
    told = {"OPENAI_ORG_ID": "s3cret-org", "OPENAI_PROJECT_ID": "s3cret-project"}
    told |= {"OPENAI_CUSTOM_HEADERS": "X-Custom: s3cret\nAuthorization: Bearer s3cret"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with raw_server(plain(GOOD)) as (came, url):
        result = collect(place, url, more='options = { extra_headers = { "X-Own" = "mine" } }')
    assert result.exit_code == 0, result.stdout
    assert {name: os.environ[name] for name in told} == told
    heads = [head for head, _ in came]
    assert heads
    assert not any("s3cret" in head for head in heads)
    assert all(f"bearer {KEY}" in head.lower() and "x-own: mine" in head.lower() for head in heads)


@in_turn("value", ['"one\\ntwo"', "3"])
def test_a_header_that_cannot_be_sent_is_told_too(value, place):
    result = collect(place, "http://127.0.0.1:9/v1", more=f'options = {{ extra_headers = {{ "X-Own" = {value} }} }}')
    assert result.exit_code == 1
    assert "model tiny: options: extra_headers: the header 'X-Own' cannot be sent" in result.stderr


@in_turn(
    "more",
    [
        'options = { extra_body = { servers = [ { headers = { Authorization = "s3cret" } } ] } }',
        'options = { tools = [ { type = "mcp", api_key = "s3cret" } ] }',
        'options = { extra_body = { providers = [ [ { token = "s3cret" } ] ] } }',
        'options = { metadata = { note = "s3cret" } }',
    ],
)
def test_secrets_in_lists_get_into_no_log(more, place):
    with raw_server(plain(GOOD)) as (_, url):
        assert collect(place, url, more=more).exit_code == 0
        assert "s3cret" not in (place / "answers.jsonl").read_text()
        record = json.loads(lines(place)[0]["asked"])
        assert len(record["others"]) == 16
        assert collect(place, url, more=more).exit_code == 0  # the same way of asking
        other = collect(place, url, more=more.replace("s3cret", "n3w") if "note" in more else "")
        assert other.exit_code == 1
        assert "the other options of digest" in " ".join(other.stderr.split())


def test_a_base_url_may_have_a_query(place):
    with raw_server(plain(GOOD)) as (came, url):
        result = collect(place, f"{url}?api-version=2024-10-21&x=a%20b", more="options = { extra_query = { y = 1 } }")
    assert result.exit_code == 0, result.stdout
    paths = {head.split()[1] for head, _ in came}
    assert {path.partition("?")[0] for path in paths} == {"/v1/chat/completions"}
    assert {frozenset(path.partition("?")[2].replace("+", "%20").split("&")) for path in paths} == {
        frozenset({"api-version=2024-10-21", "x=a%20b", "y=1"})
    }


def test_a_model_that_answers_nothing_is_no_success(place):
    """36 of 60 models answered nothing, and the exit status was 0."""

    class Half(Models):
        def __call__(self, request, headers):
            return super().__call__(request, headers) if "large" in request["model"] else Response({}, 400)

    asked = write_questions(place / "questions.jsonl", questions(3))
    with served(Half()) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        line = [asked, "--models", models, "--out", place / "answers.jsonl", "--signal", "choice"]
        result = run("collect", *line)
        assert json.loads(run("collect", *line, "--json").stdout)["silent"] == ["tiny"]
    assert result.exit_code == 1
    assert "no answer at all: tiny" in " ".join(result.stdout.split())


def test_what_a_table_has_instead_of_numbers_is_no_crash(place):
    rows = [row | {"size": float(size)} for row, size in zip(questions(3), ("nan", "inf", "1"), strict=True)]
    with raw_server(plain(GOOD)) as (_, url):
        assert collect(place, url, rows=rows).exit_code == 0
    assert {row["query"]: row["size"] for row in lines(place)} == {"q0": None, "q1": "inf", "q2": 1.0}


#: Bodies that no server should send; none may end a run.
BODIES = {
    "half a pair": completion("\ud800"),
    "nested": b"[" * 100_000,
    "digits": b'{"choices": [{"message": {"content": "A"}}], "usage": {"prompt_tokens": ' + b"9" * 5000 + b"}}",
    "an infinite usage": b'{"choices": [{"message": {"content": "A"}}], "usage": {"prompt_tokens": 1e999}}',
    "negative tokens": completion("A", None, (-5, 10**40)),
    "numbers for texts": completion(7),
    "lists": {"choices": [[[]]]},
    "no texts": completion(None),
    "a wordy end": completion("A", finish_reason={"a": "b"}),
    "certain beyond all": completion("A", [("A", {"A": 1e300})]),
    "another text's tokens": completion("A", [("B", {"B": -0.1})]),
}


@in_turn("body", list(BODIES.values()), ids=list(BODIES))
def test_no_reply_ends_a_run(body, place):
    async def answer(head, reader, writer):
        await plain(body if isinstance(body, bytes) else json.dumps(body).encode())(head, reader, writer)

    with raw_server(answer) as (_, url):
        for how in ("stated", "choice"):
            result = collect(place, url, "--signal", how, "--again", n=1)
            assert result.exit_code in (0, 1)
            assert not isinstance(result.exception, ValueError), result.exception
            assert "unexpected" not in result.stderr
    assert {row["query"] for row in lines(place)} == {"q0"}


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_sigterm_finishes_the_calls_under_way(place):
    behave = Models(delay=0.2)
    write_questions(place / "questions.jsonl", questions(400))
    with served(behave) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        line = [sys.executable, "-c", "from rcjax.cli import main; main()", "collect", place / "questions.jsonl"]
        line += ["--models", models, "--out", place / "answers.jsonl", "--signal", "choice"]
        process = subprocess.Popen(
            [str(word) for word in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while sum(behave.asked.values()) < 10 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "finishing the calls under way" in told
    assert len([row for row in lines(place) if row["error"] is None]) == sum(behave.asked.values())
    assert not (place / "answers.jsonl.under-way").exists()
