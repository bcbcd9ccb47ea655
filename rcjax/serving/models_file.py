"""Settings of models: their file, `models.toml`, and their record in a log. Standard library only.

["small-1.5b"]
model = "org/small-1.5b-instruct"      # at the endpoint; by default the name above
base_url = "http://localhost:8000/v1"  # by default OpenAI's
key_env = "SMALL_KEY"                  # the environment variable that holds the key
input = 0.1                            # money per million tokens; without input and output those of genai-prices
output = 0.4
cached_input = 0.01                    # input from a cache; by default as other input
cache_write = 0.125                    # input that is put into a cache; likewise
options = { max_tokens = 1, temperature = 0 }
signal = "choice"                      # by default the command's
samples = 3                            # answers to each question of `rcjax collect`; by default the command's

A log keeps only the options of an allow-list, because other options may hold a prompt or a secret. A digest of the
other options tells different settings apart. A policy tuned on the log keeps the record
(`rcjax.policy.spec.recorded_request_settings`), and `Cascade` follows it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from rcjax._base.codec import Between, Reads, Record, read_table, read_value, require
from rcjax._base.tokens import PRICES, Price
from rcjax.policy.signals.answers import PLAIN_FORM
from rcjax.policy.signals.reply_checks import ReplyCheck
from rcjax.policy.signals.signal import record_signal, require_signal_name
from rcjax.serving.price_lists import GenaiPrices, ListedPrice

_OPENAI_KEY = "OPENAI_API_KEY"

#: Largest number of a model's answers to one question.
MAX_SAMPLES = 1000


@dataclass(frozen=True)
class ServedModel:
    """The settings of a model in service."""

    name: str
    """The model's name in logs and policies."""
    upstream_model: str
    """The name by which the endpoint knows the model."""
    price: Price | None = None
    """Money per million tokens; None for the policy's own price."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of `chat.completions.create`."""
    signal: str | None = None
    """The name of the signal or check that reads the confidence; None for the usual signal."""
    fixed: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Options of the model that a question may not replace; a question may lower a limit on tokens."""
    max_tokens: int | None = field(default=None, kw_only=True)
    """Limit on the tokens of all answers to a question, votes included; higher limits in options are lowered."""


_FREE = Price(0, 0)

_AS_IS = Reads(lambda value, place: value)  # a field that this module makes


def _read_address(url: str, where: str) -> str:
    parts = urlsplit(url)
    right = parts.scheme in ("http", "https") and parts.netloc
    require(bool(right), where, "must begin with http:// or https://, such as http://localhost:8000/v1", url)
    require(url.isprintable() and " " not in url, where, "must be one line without spaces", url)
    return url


def _read_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    headers = options.get("extra_headers", {})
    for header, value in headers.items() if isinstance(headers, Mapping) else [("", headers)]:
        if not (isinstance(value, str) and is_sendable(header) and is_sendable(value)):
            advice = "give one line of ASCII signs, in quotes"
            raise ValueError(f"{where}.extra_headers: the header {header!r} cannot be sent: {advice}")
    return dict(options)


def _read_signal_name(name: str, where: str) -> str:
    try:
        require_signal_name(name)
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
    return name


@dataclass(frozen=True)
class ModelEntry(ServedModel, Record):
    """The entry of a model in a `models.toml`."""

    price: Annotated[Price, _AS_IS] = _FREE
    options: Annotated[Mapping[str, object], _read_options] = field(default_factory=dict)
    signal: Annotated[str, _read_signal_name] | None = None
    fixed: Annotated[frozenset[str], _AS_IS] = field(default=frozenset(), kw_only=True)
    max_tokens: Annotated[int | None, _AS_IS] = field(default=None, kw_only=True)
    base_url: Annotated[str, _read_address] | None = None
    """The endpoint's address; None is OpenAI's."""
    key_env: str | None = None
    """The environment variable that holds the key."""
    samples: Annotated[int, Between(1, MAX_SAMPLES)] | None = None
    """Number of answers to each question of `rcjax collect`; None for the command's own number."""
    listed: str | None = None
    """The price in words if it is by genai-prices; None if it is in the file."""

    def read_key(self) -> str:
        """Return the key from the environment. Raises ValueError if the variable is not set, or no header can hold it.

        Without `key_env`, OpenAI gets the key in `OPENAI_API_KEY`, and another endpoint gets none.
        """
        variable = self.key_env or (_OPENAI_KEY if self.base_url is None else None)
        if variable is None:
            return "none"
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ValueError(f"model {self.name}: {describe_variable(variable)} with its key is not set: set it")
        if not is_sendable(key):
            problem = f"the key in {describe_variable(variable)} cannot be sent"
            raise ValueError(f"model {self.name}: {problem}: it must be one line of ASCII signs: copy it anew")
        return key

    def address(self) -> tuple[str | None, dict[str, object]]:
        """Return (`base_url` without its query, its query). Raises ValueError for an address that cannot be used."""
        if self.base_url is None:
            return None, {}
        parts = urlsplit(self.base_url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        query: dict[str, object] = dict(pairs)
        if len(query) < len(pairs) or parts.fragment:
            problem = "has a # in it" if parts.fragment else "has one name twice in its query"
            raise ValueError(f"model {self.name}: base_url {problem}, which no request can have: correct it")
        return urlunsplit(parts._replace(query="")), query


def describe_variable(name: str) -> str:
    """Describe an environment variable for a message. An unusual name is not quoted, as it may be the key itself.

    >>> describe_variable("SMALL_KEY"), describe_variable("sk-1234")
    ('the environment variable SMALL_KEY', 'the environment variable that key_env names')
    """
    is_usual = re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name) is not None and not re.search(r"[A-Z0-9]{16}", name)
    return f"the environment variable {name if is_usual else 'that key_env names'}"


def is_sendable(text: str) -> bool:
    """Return whether a header of HTTP can hold a text.

    >>> is_sendable("sk-1"), is_sendable("sk-\u201c1\u201d"), is_sendable("sk-1\\nsk-2")
    (True, False, False)
    """
    return text.isascii() and text.isprintable()


def read_models(path: str | os.PathLike[str]) -> dict[str, ModelEntry]:
    """Read the models of a TOML file, in its order, by name.

    Raises ValueError, which names the file, the model and if possible the line, for invalid settings, and OSError if
    the file cannot be read.
    """
    path = Path(path)
    table = read_table(path)
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f'{path.name}: no models: give a table for each, such as ["small"] with input and output')
    return {name: _read_settings(name, entry, f"{path.name}, model {name}") for name, entry in table.items()}


SETTINGS = ("model", "base_url", "key_env", *PRICES, "options", "signal", "samples")

_Money = Annotated[float, Between(0.0, 1e18)]


def _read_settings(name: str, table: Any, where: str) -> ModelEntry:
    """Read the table of a model, with the listed price if the table has no price."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: give a table with input and output, its price")
    is_listed = not {*PRICES} & {*table}
    for key in () if is_listed else PRICES[:2]:
        if key not in table:
            raise ValueError(f"{where}: no {key} price: {_PRICE_FORM}")
    for key in table:
        if key not in SETTINGS:
            more = f"no input price: {_PRICE_FORM}; and " if is_listed else ""
            raise ValueError(f"{where}: {more}{key} is not a setting of a model: there are {', '.join(SETTINGS)}")
    kinds = zip(PRICES, (_Money, _Money, _Money | None, _Money | None), strict=True)
    price = (
        _FREE
        if is_listed
        else Price(*(read_value(kind, table.get(key), f"{where}.{key}") for key, kind in kinds)).exact
    )
    upstream_model = read_value(str | None, table.get("model"), f"{where}.model") or name
    settings = read_value(ModelEntry, {**table, "name": name, "upstream_model": upstream_model, "price": price}, where)
    if not is_listed:
        return settings
    listed = listed_price(settings.upstream_model, settings.base_url, where)
    return replace(settings, price=listed.price.exact, listed=listed.describe())


def describe_listed(models: Iterable[ModelEntry]) -> list[str]:
    """Describe the prices taken from genai-prices, one in a line, after a line on the list; [] without such prices."""
    lines = [f"{model.name}: {model.listed}" for model in models if model.listed is not None]
    return [f"prices per million tokens by {GenaiPrices().name}", *lines] if lines else []


#: Advice on a table without a price; TOML reads the bare header [llama3.2-1b] as table 2-1b within llama3.
_PRICE_FORM = "give input and output (0 for what costs nothing), and put a name with a dot in quotes"

_OPENAI = "https://api.openai.com/v1"


def listed_price(upstream_model: str, base_url: str | None, where: str) -> ListedPrice:
    """Return the price of a model at an endpoint by genai-prices; the endpoint None is OpenAI's.

    Raises ValueError, which names the place `where`, if genai-prices has no price, or is not installed.
    """
    try:
        listed = GenaiPrices(base_url or _OPENAI).find(upstream_model)
    except ImportError as problem:
        raise ValueError(
            f"{where}: no input price: {_PRICE_FORM}; or, for prices by the model's name, {problem}"
        ) from None
    if listed is None:
        names = difflib.get_close_matches(upstream_model, [*GenaiPrices()], n=3, cutoff=0.55)
        close = f"; the nearest that it knows are {', '.join(names)}" if names else ""
        problem = f"genai-prices knows no {upstream_model} at {base_url or _OPENAI}{close}"
        raise ValueError(f"{where}: no input price: {problem}: {_PRICE_FORM}")
    return listed


_SERVER_NAMES = """
    add_generation_prompt cache_prompt continue_final_message do_sample dynatemp_exponent dynatemp_range enable_thinking
    ignore_eos include_stop_str_in_output length_penalty min_p min_tokens mirostat mirostat_eta mirostat_mode
    mirostat_tau n_probs penalize_newline penalize_nl prompt_logprobs reasoning_format repeat_last_n repeat_penalty
    repetition_penalty safe_prompt separate_reasoning skip_special_tokens spaces_between_special_tokens stop_token_ids
    stream_reasoning tfs_z top_a top_k truncate_prompt_tokens typical_p
"""

#: Sampling options of servers beyond OpenAI's: a log keeps them, and clients of a gateway may send them.
SERVER_OPTIONS = frozenset(_SERVER_NAMES.split())

_RECORDED_NAMES = """
    best_of budget_tokens early_stopping echo effort enabled exclude frequency_penalty logprobs low_latency
    max_completion_tokens max_new_tokens max_tokens max_tokens_per_turn min_keep modalities n n_ctx n_predict
    no_repeat_ngram_size num_beams num_ctx num_predict parallel_tool_calls presence_penalty priority reasoning_budget
    reasoning_effort seed service_tier store temperature think thinking_budget thinking_budget_tokens timeout
    tool_choice top_logprobs top_p truncate type use_beam_search verbosity
"""

#: Options that a log keeps: `SERVER_OPTIONS`, OpenAI's options without text, and options that only an operator sets.
_RECORDED = SERVER_OPTIONS.union(_RECORDED_NAMES.split())

#: Options that hold further options.
_NESTED = frozenset(
    {"chat_template_kwargs", "extra_body", "options", "reasoning", "response_format", "sampling_params", "thinking"}
)

#: Options of an endpoint, not of the question.
_ROUTING = frozenset({"extra_headers", "extra_query"})

#: Parts of names of options that may hold a secret.
_SECRET = ("key", "token", "secret", "password", "auth", "credential")

_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{0,32}")

_MAX_ENTRIES = 64  # entries of a list or of biases

_MAX_STOP_LENGTH, _MAX_NUMBER = 32, 10**15

_MAX_OPTIONS_LENGTH = 8192  # characters of the options that are kept: longer options are no sampling options


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return (the options that a log and a policy keep, a digest of the others or None).

    Sampling options are kept; headers, content and secrets are not. The digest leaves out options of the endpoint, and
    options with a secret's name, so that a new key leaves the record as it is.

    >>> split_options({"max_tokens": 1, "extra_headers": {"X": "y"}, "extra_body": {"top_k": 2, "api_key": "k"}})
    ({'max_tokens': 1, 'extra_body': {'top_k': 2}}, None)
    >>> split_options({"documents": ["…"]})
    ({}, '92bfece5a8f34ae4')
    """
    kept, others = _split(options)
    if len(str(kept)) > _MAX_OPTIONS_LENGTH:
        kept, others = {}, others | {"kept": kept}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return kept, hashlib.sha256(text.encode()).hexdigest()[:16] if others else None


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the options that are kept, the others), both without secrets and options of the endpoint."""
    recorded: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in options.items():
        if name in _ROUTING or _is_secret(name):
            continue
        if name in _NESTED and isinstance(value, Mapping):
            inner, rest = _split(value)
            recorded |= {name: inner} if inner else {}
            others |= {name: rest} if rest else {}
        elif _is_plain(name, value):
            recorded[name] = value
        else:
            others[name] = value
    return recorded, others


def _is_plain(name: str, value: Any) -> bool:
    """Return whether an option is a sampling option with a usual value, not a text that somebody wrote."""
    if name == "stop":
        texts = value if isinstance(value, list | tuple) else [value]
        return len(texts) <= _MAX_ENTRIES and all(
            isinstance(text, str) and len(text) <= _MAX_STOP_LENGTH for text in texts
        )
    if name == "logit_bias":
        pairs = value.items() if isinstance(value, Mapping) and len(value) <= _MAX_ENTRIES else [("", None)]
        return all(str(token).isdigit() and len(str(token)) < 10 and _is_number(bias) for token, bias in pairs)
    if name not in _RECORDED:
        return False
    values = value if isinstance(value, list | tuple) else [value]
    scalars = [item is None or _is_number(item) or (isinstance(item, str) and _WORD.fullmatch(item)) for item in values]
    return len(values) <= _MAX_ENTRIES and all(scalars)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and -_MAX_NUMBER <= value <= _MAX_NUMBER


def _is_secret(name: str) -> bool:
    if name in _RECORDED:
        return False
    plain = name.casefold()
    return any(part in plain for part in _SECRET) and not plain.endswith("tokens")


def format_request_settings(
    signal: Any, options: Mapping[str, Any], price: Price | None, request_form: str = PLAIN_FORM
) -> str:
    """Return a model's signal, options and price as JSON for a log, without values that JSON cannot hold.

    The options are those of an allow-list (`rcjax.serving.models_file`), with a digest of the `others`.

    Args:
        signal: the signal that reads the confidence.
        options: the options of each request, without the signal's own.
        price: money per million tokens, if known.
        request_form: the form of the request (`rcjax.policy.signals.answers`), recorded if a check judges it.

    >>> from rcjax.policy.signals import Choice
    >>> format_request_settings(Choice(("A", "B")), {"max_tokens": 1}, Price(1, 2))  # doctest: +NORMALIZE_WHITESPACE
    '{"choices": ["A", "B"], "options": {"max_tokens": 1}, "prices": {"input": 1.0, "output": 2.0}, "signal": "choice",
    "top": 20}'
    """
    # Leave out an entry, such as second_options, of which a log keeps only a part: it would describe another signal.
    entries = record_signal(signal).items()
    entries = {k: v for k, v in entries if not isinstance(v, Mapping) or split_options(v)[0] == v}
    kept, others = split_options(_json_safe(options))
    more: dict[str, Any] = {"others": others, "prices": None if price is None else price.record()}
    if isinstance(signal, ReplyCheck) and (request_form != PLAIN_FORM or signal.kind == "call"):
        more["requests"] = request_form
    record = {**_json_safe(entries), "options": kept}
    return json.dumps(record | {name: value for name, value in more.items() if value is not None}, sort_keys=True)


def _json_safe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that JSON can hold."""
    plain = {}
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            continue
        plain[name] = value
    return plain
