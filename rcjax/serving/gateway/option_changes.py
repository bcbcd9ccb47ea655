"""Which options of a request are not those that a policy was tuned with: by them its confidences may mean less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rcjax.serving.asked import NEUTRAL


def changed_options(options: Mapping[str, Any], recorded: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The options that are not those of the log that a policy was tuned on, as far as it tells them.

    Args:
        options: of a request.
        recorded: of the log, by model.

    >>> changed_options({"temperature": 1, "user": "me"}, [{"temperature": 0}, {}])
    ('temperature',)
    """
    records = [_flat(one) for one in recorded]
    relevant = {name: value for name, value in _flat(options).items() if name not in NEUTRAL}
    return tuple(name for name, value in relevant.items() if any(record.get(name) != value for record in records))


def replaced_options(options: Mapping[str, Any], needed: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The options for which a signal needs others, so that they are not sent.

    Log-probabilities are none of them: a client gets as many as it asked for.

    >>> replaced_options({"temperature": 0}, [{"n": 5, "temperature": 0.7}])
    ('temperature',)
    """
    signals = [*needed]
    relevant = {name: value for name, value in options.items() if name not in NEUTRAL}
    return tuple(name for name, value in relevant.items() if any(value != one.get(name, value) for one in signals))


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that they have in a request."""
    others = options.get("extra_body")
    named = {name: value for name, value in options.items() if name != "extra_body"}
    return {**named, **others} if isinstance(others, Mapping) else named
