"""Of a request's options a log keeps those of an allow-list, and a digest of the others: no content, no secret."""

import json

import pytest

from rcjax import signals
from rcjax._base.tokens import Price
from rcjax.serving.asked import digest_of_others, record_asked, recorded_options
from rcjax.signals.records import signal_from_record

#: Where a client, or a file of models, may put what was asked, or a key.
HIDDEN = {
    "documents": {"documents": [{"text": "s3cret"}]},
    "metadata": {"metadata": {"note": "s3cret"}},
    "session": {"extra_body": {"session": "s3cret"}},
    "api base": {"extra_body": {"api_base": "http://s3cret"}},
    "a key in a list": {"extra_body": {"models": [{"api_key": "s3cret"}]}},
    "tools": {"tools": [{"type": "mcp", "headers": {"Authorization": "s3cret"}}]},
    "the name of a field": {"extra_body": {"s3cret": 1}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"description": "s3cret"}}},
    "text for a number": {"temperature": "s3cret: a text with spaces"},
    "text in a template": {"extra_body": {"chat_template_kwargs": {"enable_thinking": False, "persona": "s3cret"}}},
    "long ends": {"stop": ["s3cret" * 10]},
    "biases by text": {"logit_bias": {"s3cret": 1}},
    "a prediction": {"prediction": {"type": "content", "content": "s3cret"}},
    "numbers that are large": {"seed": 10**4000},
    "many biases": {"logit_bias": {str(i): 1 for i in range(30_000)}},
    "many ends": {"stop": ["s3cret"] * 100},
    "nested": {"extra_body": {"options": {"top_k": 1, "deep": {"options": {"x": "s3cret"}}}}},
}

#: What is kept as it is: by it a policy is asked again.
KEPT = [
    {"max_tokens": 1, "temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["\n", "##"], "n": 1},
    {"reasoning_effort": "low", "response_format": {"type": "json_object"}, "logit_bias": {"17": -100}},
    {"extra_body": {"top_k": 2, "think": False, "chat_template_kwargs": {"enable_thinking": False}}},
    {"extra_body": {"options": {"num_ctx": 4096}, "reasoning": {"effort": "low", "exclude": True}}},
    {"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 100}, "stop_token_ids": [1, 2]}},
]


@pytest.mark.parametrize("options", list(HIDDEN.values()), ids=list(HIDDEN))
def test_what_is_not_in_the_list_is_a_digest(options):
    text = record_asked(signals.Choice(), {"max_tokens": 1, **options}, Price(1, 2))
    assert "s3cret" not in text
    assert len(text) < 1000
    record = json.loads(text)
    assert len(record["others"]) == 16
    assert record["options"]["max_tokens"] == 1
    assert signal_from_record(record) == signals.Choice()
    assert recorded_options(record["options"]) == record["options"]


@pytest.mark.parametrize("options", KEPT)
def test_how_an_answer_is_drawn_is_kept(options):
    assert recorded_options(options) == options
    assert digest_of_others(options) is None


def test_other_ways_of_asking_have_other_digests_and_another_key_is_no_other_way():
    one, other = ({"documents": [text], "extra_headers": {"a": text}} for text in "ab")
    assert digest_of_others(one) != digest_of_others(other)
    assert digest_of_others(one) == digest_of_others({"documents": ["a"]})
    assert digest_of_others({"extra_body": {"api_key": "k"}}) is None
