"""What a gateway is told on the command line, as one record that workers can be started with."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much and how long."""

    deadline: float = 120.0
    """Seconds for a whole request, from the first byte of its body to the last of its answer."""
    timeout: float = 60.0
    """Seconds for one attempt at a model."""
    retries: int = 2
    """How often an attempt is repeated."""
    concurrency: int = 256
    """Requests at once, of one worker; more are told to come again."""
    body_bytes: int = 10_000_000
    """Of a request."""
    body_seconds: float = 30.0
    """In which a request must have come."""
    drain_seconds: float = 30.0
    """For what is under way, after the signal to stop."""


@dataclass(frozen=True, slots=True)
class Logging:
    """What is written down of the calls."""

    path: Path | None = None
    """The call log."""
    answers: bool = True
    """With what was answered."""
    prompts: bool = False
    """With what was asked."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """What a client is told where the policy refuses."""

    text: str = "I am not sure enough to answer this."
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Access:
    """From where a gateway may be called, besides its key."""

    hosts: tuple[str, ...] | None = None
    """By which names, besides those of this machine; None for any."""
    origins: tuple[str, ...] = ()
    """From which web pages; "*" for all."""
    guarded: bool = False
    """What a web page could send without being asked is refused: there is no key that it would have to know."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a gateway is told."""

    policies: Mapping[str, Path | None]
    """The file of each policy, by the name that clients call it by; None of one that is only to come."""
    models: Path
    """The file of the models."""
    passing: str | None = None
    """The model that answers as long as the file of a policy is not there; None if there must be one."""
    unjudged: str | None = None
    """The model of requests that cannot be judged; None for the largest of the policy."""
    shadow: float = 0.0
    """Share of queries that all models are asked about."""
    shadow_models: tuple[str, ...] = ()
    """Models that these are asked of besides."""
    follow: bool = True
    """Whether policies move along their ladders, as their files say; else they keep their positions."""
    key_env: str | None = None
    """The environment variable with the keys of clients, separated by commas; None if none is needed."""
    access: Access = field(default_factory=Access)
    limits: RequestLimits = field(default_factory=RequestLimits)
    logging: Logging = field(default_factory=Logging)
    refusals: Refusals = field(default_factory=Refusals)
    salt: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """By which lots are drawn: no client knows it."""

    def keys(self) -> tuple[str, ...]:
        """The keys of clients. Raises ValueError where the variable holds none."""
        if self.key_env is None:
            return ()
        keys = tuple(key.strip() for key in os.environ.get(self.key_env, "").split(",") if key.strip())
        if not keys:
            raise ValueError(f"--key-env: the environment variable {self.key_env} with the key is not set: set it")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            raise ValueError(f"--key-env: a key in {self.key_env} has characters that no header can have: use others")
        return keys


def is_local(host: str) -> bool:
    """Whether only this machine can call an address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("::1"), is_local("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
