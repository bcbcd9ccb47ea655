"""Endpoints that hold a call, send too much, or send it elsewhere; secrets go where they belong alone."""

import asyncio
import json
import zlib

import pytest
from helpers.chat_server import completion, raw_server, sure
from helpers.collecting_runs import lines
from helpers.command_line import run
from helpers.sample_models import questions, write_models, write_questions

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


GOOD = json.dumps(sure("A", -0.1)).encode()


async def drip(head, reader, writer):
    """A byte now and then, so that no read ever takes long."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


def test_an_attempt_ends_though_bytes_keep_arriving(place):
    """The limit was one of each read: a byte every half second held a call for ever."""
    with raw_server(drip) as (came, url):
        result = collect(place, url, "--timeout", 0.4, n=1)
    assert result.exit_code == 1
    assert 1 <= len(came) <= 5  # where the machine is slow, the time of one is over before it is sent
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


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (large(10_000_000_000), "malformed answer: larger than 5,000,000 bytes"),
        (plain(PACKED, "200 OK", "content-encoding: deflate"), "malformed answer: compressed"),
        (
            plain(json.dumps(completion(LONG)).encode()),
            "a reply of 1,000,001 characters, of which no more than 1,000,000",
        ),
    ],
    ids=["endless", "packed", "long"],
)
def test_a_reply_has_a_limit(answer, says, place, monkeypatch):
    """One of 50 MB was a line of 100 MB."""
    monkeypatch.setattr("rcjax.serving.openai_client.MAX_REPLY_BYTES", 5_000_000)
    with raw_server(answer) as (came, url):
        result = collect(place, url, n=1)
    assert result.exit_code == 1
    (row,) = lines(place)
    assert says in row["error"]
    assert len(came) == 1  # asking again would bring the same
    assert (place / "answers.jsonl").stat().st_size < 10_000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_costs_nothing(status, place):
    """The question, and headers of the user's own, went to whatever host a server named."""
    with raw_server(plain(GOOD)) as (elsewhere, other):
        answer = plain(b"{}", f"{status} x", f"location: {other}/chat/completions")
        with raw_server(answer) as (came, url):
            result = collect(
                place, url, "--concurrency", 1, more='options = { extra_headers = { "X-Own" = "s3cret" } }'
            )
    assert result.exit_code == 1
    assert f"tiny: HTTP {status}: its server redirects: set base_url to the new address" in " ".join(
        result.stdout.split()
    )
    assert (len(came), elsewhere) == (1, [])
    assert [row["at_most"] for row in lines(place)] == [0.0]


@pytest.mark.parametrize("key", ["sk-“quoted”", "sk-one\nsk-two", "sk-é", "sk-\x00"[:3] + "\x7f"])
def test_an_invalid_key_is_refused_before_the_first_question(key, place, monkeypatch):
    """It booked the worst case 17 times, and said that the client failed."""
    monkeypatch.setenv("KEY_OF_THE_TEST", key)
    with raw_server(plain(GOOD)) as (came, url):
        result = collect(place, url)
    assert result.exit_code == 1
    assert "model tiny: the key in the environment variable KEY_OF_THE_TEST cannot be sent" in result.stderr
    assert key not in result.stderr
    assert (came, (place / "answers.jsonl").exists()) == ([], False)
