"""`models.toml`: what is in it, what is refused, which key goes where."""

from decimal import Decimal

import pytest

from rcjax._base.tokens import Price
from rcjax.logs.prices import read_prices
from rcjax.serving.models_file import read_models

WHOLE = """
["small-1.5b"]
model = "org/small"
base_url = "http://localhost:8000/v1"
key_env = "SMALL_KEY"
input = 0.1
output = 0.4
options = { max_tokens = 1, temperature = 0 }
signal = "choice"

[large]
input = 2
output = 8.5
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "models.toml"


def test_every_setting_of_a_model_is_read(path):
    path.write_text(WHOLE)
    small, large = read_models(path).values()
    assert (small.name, small.upstream_model, small.base_url, small.key_env) == (
        "small-1.5b",
        "org/small",
        "http://localhost:8000/v1",
        "SMALL_KEY",
    )
    assert (small.price, small.options, small.signal) == (
        Price(Decimal("0.1"), Decimal("0.4")),
        {"max_tokens": 1, "temperature": 0},
        "choice",
    )
    assert (large.upstream_model, large.base_url, large.key_env) == ("large", None, None)
    assert (large.options, large.signal) == ({}, None)


def test_a_file_of_models_is_a_file_of_prices_too(path):
    path.write_text(WHOLE)
    assert read_prices(path) == {"small-1.5b": Price(0.1, 0.4), "large": Price(2.0, 8.5)}


def test_keys_come_from_the_environment(path, monkeypatch):
    path.write_text(WHOLE)
    small, large = read_models(path).values()
    monkeypatch.setenv("SMALL_KEY", " one ")
    monkeypatch.setenv("OPENAI_API_KEY", "two")
    assert (small.read_key(), large.read_key()) == ("one", "two")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(
        ValueError, match="model large: the environment variable OPENAI_API_KEY with its key is not set"
    ):
        large.read_key()


def test_the_key_of_openai_does_not_go_elsewhere(path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "two")
    path.write_text('[x]\nbase_url = "http://localhost:1/v1"\ninput = 0\noutput = 0\n')
    assert read_models(path)["x"].read_key() == "none"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no models"),
        ("x = 1", "model x: give a table"),
        ("[x]\ninput = 1", "model x: no output price"),
        ("[llama3.2-1b]\ninput = 1\noutput = 1", "put a name with a dot in quotes"),
        (
            "[x]\ninput = 1\noutput = 1\nkey_evn = 'K'",
            "key_evn is not a setting of a model: there are model, base_url",
        ),
        ("[x]\ninput = '1'\noutput = 1", "x.input: must be a number, but it is '1'"),
        (
            "[x]\ninput = 1\noutput = 1\noptions.extra_headers = 3",
            "x.options.extra_headers: the header '' cannot be sent",
        ),
        ("[x]\ninput = 1\noutput = 1\nbase_url = 'localhost:1'", "x.base_url: must begin with http"),
        ("[x]\ninput = 1\noutput = 1\nsignal = 'sure'", "'sure' is not a signal: give choice, verification"),
        ("[x\n", "cannot be read"),
    ],
)
def test_invalid_files(text, says, path):
    path.write_text(text)
    with pytest.raises(ValueError) as refused:
        read_models(path)
    assert says in str(refused.value)
    assert str(refused.value).startswith("models.toml")


def test_another_kind_and_other_encodings(tmp_path, path):
    other = tmp_path / "models.yaml"
    other.write_text("x: 1")
    with pytest.raises(ValueError, match=r"models\.yaml: a file of kind '\.yaml' cannot be read"):
        read_models(other)
    path.write_bytes(b"\xff[x]")
    with pytest.raises(ValueError, match=r"models\.toml: cannot be read: 'utf-8'"):
        read_models(path)
    path.write_bytes(b"\xef\xbb\xbf[x]\r\ninput = 1\r\noutput = 2\r\n")
    assert list(read_models(path)) == ["x"]


@pytest.mark.parametrize("key", ["sk-live-1234", "AIzaSyD3xample", "AKIAIOSFODNN7EXAMPLE", "sk_live_12"])
def test_a_key_in_the_place_of_its_variable_is_not_repeated(path, key):
    path.write_text(WHOLE.replace("SMALL_KEY", key))
    with pytest.raises(
        ValueError, match="the environment variable that key_env names with its key is not set"
    ) as refused:
        read_models(path)["small-1.5b"].read_key()
    assert key not in str(refused.value)


@pytest.mark.parametrize("more", [r"\r\nx-evil: 1", r"\n", " ", r"\u0000", r"\t"])
def test_an_address_of_several_lines_is_refused(path, more):
    path.write_text(WHOLE.replace("localhost:8000/v1", f"localhost:8000/v1{more}"))
    with pytest.raises(ValueError, match=r"small-1.5b.base_url: must be one line without spaces"):
        read_models(path)
