"""The client of OpenAI asks a gateway; and what the events of a response must hold to."""

import json
from operator import attrgetter

from openai import OpenAI
from openai.types import responses
from pydantic import TypeAdapter

KEY = "sk-of-a-client"
QUESTION = {"model": "policy", "input": "A or B?"}
EVENTS = TypeAdapter(responses.ResponseStreamEvent)


class Sync:
    """Calls, each by a client of its own; of chat completions, if these are asked with."""

    def __init__(self, service, api="responses", question=QUESTION, **options):
        self._options = {"api_key": KEY, "base_url": f"{service.url}/v1", "max_retries": 0, **options}
        self._of, self._question = attrgetter(api), question

    def create(self, **fields):
        with OpenAI(**self._options) as client:
            return self._of(client).create(**self._question | fields)

    def events(self, **fields):
        with OpenAI(**self._options) as client:
            return [*self._of(client).create(**self._question | fields, stream=True)]

    def whole(self, **fields):
        """Return the response that the client itself builds from the events."""
        with OpenAI(**self._options) as client, self._of(client).stream(**self._question | fields) as stream:
            return (getattr(stream, "get_final_response", None) or stream.get_final_completion)()

    def parse(self, **fields):
        with OpenAI(**self._options) as client:
            return self._of(client).parse(**self._question | fields)


def sent(service, **fields):
    """(the reply, what reached the upstream for it)."""
    before = len(service.server.requests)
    reply = service.post(QUESTION | fields, "/v1/responses")
    return reply, service.server.requests[before:]


def events_of(reply):
    """The events of a stream as JSON, each named as its data are."""
    blocks = [block.split(b"\n") for block in reply.body.split(b"\n\n") if block]
    assert all(len(block) == 2 for block in blocks)
    events = [json.loads(data.removeprefix(b"data: ")) for _, data in blocks]
    assert [name.removeprefix(b"event: ").decode() for name, _ in blocks] == [event["type"] for event in events]
    return events


def check_events(events):
    """What the protocol of a stream says, of events as JSON; the last one's response."""
    for number, event in enumerate(events):
        EVENTS.validate_python(event)
        assert event["sequence_number"] == number
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]["response"]
    responses.Response.model_validate(last)
    assert events[-1]["type"] == f"response.{last['status']}"
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    for index, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert [own[0]["type"], own[-1]["type"]] == ["response.output_item.added", "response.output_item.done"]
        assert own[-1]["item"] == item
        assert own[0]["item"]["status"] == "in_progress"
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        if item["type"] == "function_call":
            assert "".join(one["delta"] for one in own if one["type"].endswith("delta")) == item["arguments"]
            continue
        for place, part in enumerate(item["content"]):
            of_part = [event for event in own if event.get("content_index") == place]
            name = "refusal" if part["type"] == "refusal" else "text"
            kinds = [event["type"].removeprefix("response.") for event in of_part]
            between = [f"{part['type']}.delta"] * (len(of_part) - 3)
            assert kinds == ["content_part.added", *between, f"{part['type']}.done", "content_part.done"]
            assert "".join(event["delta"] for event in of_part[1:-2]) == part[name] == of_part[-2][name]
            assert of_part[-1]["part"] == part
    return last
