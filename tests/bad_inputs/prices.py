"""What is wrong with prices."""

import json

from bad_inputs import BadFile, text_file


def _of(price: object) -> str:
    return json.dumps({"small": {"input": price, "output": 1.0}})


PRICES = (
    BadFile(
        "is nested too deep", "prices", text_file("deep.json", '{"small": ' + "[" * 100_000), ("deep.json", "nested")
    ),
    BadFile("is TOML nested too deep", "prices", text_file("deep.toml", "small = " + "[" * 100_000), ("nested",)),
    BadFile("has a price of 1e200", "prices", text_file("dear.json", _of(1e200)), ("model small", "1e+200", "1e+18")),
    BadFile("has a price of 1e-300", "prices", text_file("cheap.json", _of(1e-300)), ("model small", "from 1e-12")),
    BadFile("has a price of 400 digits", "prices", text_file("digits.json", _of(10**400)), ("model small", "1e+18")),
    BadFile(
        "has a price of 5,000 digits", "prices", text_file("more.json", '{"a": [1' + "0" * 5000 + ", 1]}"), ("more",)
    ),
    BadFile("is UTF-16 cut off", "prices", text_file("odd.json", _of(1).encode("utf-16")[:-1]), ("odd.json",)),
    BadFile(
        "names a model twice", "prices", text_file("two.json", '{"a": [1, 1], "a": [2, 2]}'), ("'a' is there twice",)
    ),
    BadFile(
        "is a list of images",
        "prices",
        text_file("images.json", '{"dall-e": {"litellm_provider": "openai", "mode": "image_generation"}}'),
        ("images.json: none of its 1 entries has prices of tokens",),
    ),
    BadFile(
        "is a list of routers",
        "prices",
        text_file("routers.json", '{"data": [{"id": "auto", "pricing": {"prompt": "-1", "completion": "-1"}}]}'),
        ("routers.json: none of its 1 entries has prices of tokens",),
    ),
)
