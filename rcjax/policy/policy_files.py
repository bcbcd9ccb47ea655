"""Policy files: a policy or a ladder of policies, whichever the file holds. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rcjax._base import json_checks as check
from rcjax.policy.ladder import Ladder
from rcjax.policy.policy import AnyPolicy, Policy

#: The classes by the "format" of their files.
KINDS: dict[Any, type[AnyPolicy]] = {kind.FORMAT: kind for kind in (Policy, Ladder)}


def load_policy(path: str | os.PathLike[str]) -> AnyPolicy:
    """Read a policy or a ladder of policies from a file: `Policy.load(path)` and its like.

    The "format" in the file says which of the two it is.
    """
    return check.load(path, policy_from_json)


def policy_from_json(data: Any) -> AnyPolicy:
    """A policy or a ladder from the object of its `to_json`, as its "format" says; problems a ValueError."""
    form = data.get("format") if isinstance(data, Mapping) else None
    return KINDS.get(form if isinstance(form, str) else "", Policy).from_json(data)
