"""What a service serves: its settings, and the policies and models as their files have them at one time.

New files are taken up while the service runs, on a signal and where one has changed; a broken one changes nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import secrets
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rcjax._base.wording import visible
from rcjax.policy.counted import recorded_reference
from rcjax.policy.decisions import Rule
from rcjax.policy.following import PeriodBill
from rcjax.policy.ladder import Period, followed, load_policy
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.record import recorded_asked, recorded_tuning
from rcjax.policy.signals import Check, Signal
from rcjax.policy.signals.records import signal_by_name, signal_from_record
from rcjax.serving.asker import Caller
from rcjax.serving.asking import Endpoint, checked_options
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade
from rcjax.serving.endpoint import DirectClient, direct_client
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.keys import KeyRing
from rcjax.serving.ledger import Ledger
from rcjax.serving.models_file import ModelSettings, ServedModel, describe_variable, read_models
from rcjax.serving.pace import LIMITS, most_written
from rcjax.serving.shadowing import ShadowCost, ShadowRate
from rcjax.serving.totals import FileTotals

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several workers count together: that of Prometheus's client."""

#: Options that say what an answer costs, which are the operator's where `models.toml` or the policy has them.
_OPERATORS = frozenset({"reasoning_effort", "service_tier"})

#: Options of a model that no client replaces.
FIXED = _OPERATORS.union(LIMITS)


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
    body_bytes: int = 4_000_000
    """Of a request."""
    held_bytes: int = 32_000_000
    """Of all requests that one worker reads and works on, and of the replies to them; more are refused."""
    body_seconds: float = 30.0
    """In which a request must have come."""
    drain_seconds: float = 30.0
    """For what is under way, after the signal to stop."""
    tokens: int | None = None
    """Of all answers to a request; None if clients may ask for any number."""
    fields: frozenset[str] = frozenset()
    """Fields that clients may send, besides those that say how an answer is drawn."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a gateway is told."""

    policies: Mapping[str, Path | None]
    """The file of each policy, by the name that clients call it by; None of one that is only to come."""
    models: Path
    """The file of the models."""
    passing: str | None = None
    """The model that answers as long as the file of a policy is not there; None if there must be one."""
    shadow: float | ShadowRate = 0.0
    """Share of queries that all models are asked about, or how many in a period."""
    shadow_models: tuple[str, ...] = ()
    """Models that these are asked of besides."""
    follow: bool = True
    """Whether policies move along their ladders, as their files say; else they keep their positions."""
    stops: bool = False
    """Whether requests that the money for a period does not cover are refused."""
    key_env: str | None = None
    """The environment variable with the keys of clients, separated by commas; None if there is none."""
    keys_file: Path | None = None
    """The file of clients with names, in place of the variable; without both no key is needed."""
    open_models: bool = True
    """Whether clients without names may name models."""
    hosts: tuple[str, ...] | None = None
    """By which names it may be called, besides those of this machine; None for any."""
    log: Path | None = None
    """The call log."""
    log_answers: bool = True
    """With what was answered."""
    replica: str | None = None
    """Which replica this is, as lines of the log and the ledger say; None leaves it out."""
    ledger: str | None = field(default=None, repr=False)
    """The address of the ledger, with its password; None if replicas share nothing but the log."""
    share: float = 1.0
    """Of the money for a period, what this replica may spend."""
    log_prompts: bool = False
    """With what was asked."""
    refusal: str = "I am not sure enough to answer this."
    """The answer where the policy refuses."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    salt: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """By which lots are drawn: no client knows it."""

    def keys(self) -> tuple[str, ...]:
        """The keys of clients. Raises ValueError where the variable holds none."""
        if self.key_env is None:
            return ()
        keys = tuple(key.strip() for key in os.environ.get(self.key_env, "").split(",") if key.strip())
        if not keys:
            raise ValueError(f"--key-env: {describe_variable(self.key_env)} with the key is not set: set it")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            what = f"a key in {describe_variable(self.key_env)} has characters that no header can have"
            raise ValueError(f"--key-env: {what}: use others")
        return keys

    def ring(self, policies: Container[str], models: Collection[str]) -> KeyRing:
        """Who may call, and name which policies and models. Raises ValueError or OSError for keys that cannot be."""
        if self.keys_file is not None:
            ring = KeyRing.read(self.keys_file, policies, models)
            limited = [client for client in ring.named if client.money is not None]
            if limited and self.log is None and self.ledger is None:
                what = f"{self.keys_file.name}, client {limited[0].name}: its money is counted in a file beside the log"
                raise ValueError(f"{what}: give --log calls.jsonl, or --ledger")
            return ring
        return KeyRing.of_keys(self.keys(), models if self.open_models else ())

    def totals(self) -> FileTotals:
        """Totals of each client over all workers: beside the log or, without one, as long as the service runs."""
        if self.log is not None and str(self.log) != "-":
            return FileTotals(f"{self.log}.totals")
        folder = os.environ.get(FOLDER)
        return FileTotals(None if folder is None else Path(folder) / "clients.totals")

    def open_log(self) -> CallLog | None:
        """The call log, if there is to be one. Raises OSError where it cannot be opened."""
        if self.log is None:
            return None
        path = None if str(self.log) == "-" else self.log
        return CallLog(path, answers=self.log_answers, prompts=self.log_prompts, replica=self.replica)

    def open_ledger(self) -> Ledger | None:
        """The ledger, if there is to be one. Raises ValueError for an address that is none."""
        return None if self.ledger is None else Ledger(self.ledger, self.replica)


def is_local(host: str) -> bool:
    """Whether only this machine can call an address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("::1"), is_local("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Clients:
    """Clients of endpoints, kept as long as the service runs: models at one endpoint share their connections."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._clients: dict[tuple[str | None, str], DirectClient] = {}

    def of(self, model: ModelSettings) -> DirectClient:
        """The client of a model's endpoint. Raises ValueError where its key or its address cannot be used."""
        endpoint = model.base_url, model.key()
        if endpoint not in self._clients:
            address, query = model.address()
            self._clients[endpoint] = direct_client(
                base_url=address, key=endpoint[1], timeout=self._timeout, query=query
            )
        return self._clients[endpoint]

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy under the name that clients call it by."""

    name: str
    policy: AnyPolicy
    digest: str
    """A hash of what it says."""
    cascade: Cascade
    checked: frozenset[str] = frozenset()
    """Fields of a request that the checks of its models judge an answer to, and other signals do not."""
    requests: frozenset[str] | None = None
    """Forms of the requests that its log had; None where that did not tell: then its checks judge any."""

    def why_unjudged(self, request: ChatRequest) -> tuple[str, ...]:
        """Why the policy does not judge the answer to a request, in words; nothing where it does."""
        unseen = tuple(one for one in request.unjudged if one not in self.checked)
        if unseen or self.requests is None or request.form in self.requests:
            return unseen
        return (request.unknown_form(self.requests),)

    @property
    def passing(self) -> bool:
        """Whether it passes everything to one model, as there is no policy yet."""
        return not self.policy.calibrations

    @property
    def shadowed(self) -> tuple[str, ...]:
        """The models that shadow queries go to; none without a share of them."""
        return self.cascade.everyone if self.cascade.shadow else ()

    @property
    def shadow_cost(self) -> ShadowCost | None:
        """What shadow queries cost; None without any, and as long as there is no policy."""
        return None if self.passing or not self.shadowed else ShadowCost.of(self.policy, self.shadowed)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All that can be called."""

    policies: Mapping[str, ServedPolicy]
    models: Mapping[str, ServedModel]
    caller: Caller
    """Asks any model, and judges nothing."""
    ring: KeyRing
    """Who may call."""

    def go_on(self, before: Catalog) -> None:
        """Go on with the bills of the policies whose place these take."""
        for name, served in self.policies.items():
            served.cascade.billing.go_on(before.policies[name].cascade.billing)

    def changed(self, before: Catalog | None) -> list[str]:
        """The names of the policies that were others before, or were not there."""
        return [
            name
            for name, served in self.policies.items()
            if before is None or before.policies[name].digest != served.digest
        ]

    def news(self, before: Catalog, models: str) -> Iterator[str]:
        """What is different now, a line each; `models` is the file that they are in."""
        changed = self.changed(before)
        for name in changed:
            served = self.policies[name]
            yield f"policy {name} is {served.digest} from now on: {' → '.join(served.policy.models)}"
        if self.models != before.models:
            yield f"{models} is taken up: {', '.join(self.models)}"
        if self.ring.named != before.ring.named:
            yield f"the file of keys is taken up: {', '.join(client.name or '' for client in self.ring.named)}"
        elif not changed and self.models == before.models:
            yield "the files are read again: what they say is as before"


def digest_of(policy: AnyPolicy) -> str:
    """Twelve hexadecimal digits that tell a policy from another: of its JSON, whatever the file's white space.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> calibration = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
    >>> digest_of(Policy(("large",), {"large": calibration}, {"large": [Rule(1, "answer")]}, {"large": 1e-4}))
    'eeadd8c3c29f'
    """
    text = json.dumps(policy.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class CatalogMaker:
    """Makes catalogs, all by the same settings. What is wrong in a file is a ValueError that names it.

    Args:
        settings: of the service.
        client_of: the client by which a model is asked.
        log: where to write calls.
        observe: is told of each call, and by which policy.
        ledger: where replicas share what they spent.
    """

    settings: Settings
    client_of: Callable[[Any], DirectClient]
    log: CallLog | None = None
    observe: Callable[..., None] | None = None
    ledger: Ledger | None = None

    def read(self, before: Catalog | None = None) -> Catalog:
        """Policies and models as the files of the settings have them. Raises OSError for what cannot be read.

        Args:
            before: what was read the last time: a policy whose file was there must have one still.
        """
        settings = self.settings
        tuned = set() if before is None else {name for name, one in before.policies.items() if not one.passing}
        policies: dict[str, AnyPolicy] = {}
        for name, path in settings.policies.items():
            if path is not None and (settings.passing is None or name in tuned or path.exists()):
                policies[name] = load_policy(path)
            elif settings.passing is not None:  # not calibrated
                model, rules = settings.passing, (Rule(1.0, "answer"),)
                policies[name] = Policy((model,), {}, {model: rules}, {model: 0.0})
        catalog = self.make(policies, read_models(settings.models))
        for name, served in catalog.policies.items():
            bill = served.cascade.billing.bill
            if isinstance(bill, PeriodBill) and settings.ledger is None and str(settings.log or "-") == "-":
                what = f"its budget is for each {bill.period.every}, and what was spent is in the log"
                raise ValueError(f"policy {name}: {what}: give --log calls.jsonl, --ledger, or --no-follow")
        return catalog

    def make(self, policies: Mapping[str, AnyPolicy], models: Mapping[str, ServedModel]) -> Catalog:
        """Policies before models, both by the names that clients call them by."""
        settings, served = self.settings, {}
        for option, names in {"--shadow-models": settings.shadow_models, "--pass": (settings.passing,)}.items():
            missing = ", ".join(name for name in names if name is not None and name not in models)
            if missing:
                raise ValueError(
                    f"{option}: {settings.models.name} has no table for {missing}: add it, or name another"
                )
        means = {model: cost for policy in policies.values() for model, cost in policy.cost.items()}
        endpoints = {name: self._endpoint(model, means.get(name)) for name, model in models.items()}
        for name, policy in policies.items():
            path = settings.policies[name]
            where = path.name if path is not None and policy.calibrations else f"--pass {settings.passing}"
            if name in models:
                raise ValueError(f"{settings.models.name}: {name} is the name of a policy too: give one another name")
            try:
                served[name] = self._serve(name, policy, models)
            except ValueError as problem:
                raise ValueError(f"{where}: {problem}") from None
        caller = Caller(endpoints, self.log, 2 * settings.limits.concurrency, self.observe)
        return Catalog(served, models, caller, settings.ring(served, models))

    def _serve(self, name: str, policy: AnyPolicy, models: Mapping[str, ServedModel]) -> ServedPolicy:
        """A policy ready to be asked, by its name."""
        settings, limits = self.settings, self.settings.limits
        recorded_tuning(policy)  # what is wrong with it is found now, not when the policy is tuned again
        records = recorded_asked(policy)
        missing = ", ".join(model for model in policy.models if model not in models)
        if missing:
            raise ValueError(f"it asks {missing}, for which {settings.models.name} has no table: add it")
        asked = {model: models[model] for model in (*policy.models, *self._shadow_models(policy, models))}
        recorded = {model: records.get(model, {}).get("options", {}) for model in asked}
        asked = {
            model: replace(one, options=self._limited(one, {**recorded[model], **one.options}), fixed=FIXED)
            for model, one in asked.items()
        }
        cascade = Cascade(
            followed(policy, follows=policy.follows and settings.follow, period=self._money(policy.period)),
            {model: self.client_of(one) for model, one in asked.items()},
            signal={model: _signal(one, records.get(model, {})) for model, one in asked.items()},
            log=self.log,
            ledger=self.ledger,
            name=name,
            models=asked,
            concurrency=2 * limits.concurrency,
            timeout=limits.timeout,
            retries=limits.retries,
            shadow=settings.shadow,
            salt=settings.salt,
            observe=None if self.observe is None else partial(self.observe, policy=name),
        )
        cascade.billing.stops = settings.stops
        signals = [cascade.signal_of(model) for model in policy.models]
        judged = [one.judges if isinstance(one, Check) else frozenset() for one in signals]
        told = [records[model]["requests"] for model in policy.models if "requests" in records.get(model, {})]
        requests = frozenset.intersection(*map(frozenset, told)) if told else None
        return ServedPolicy(name, policy, digest_of(policy), cascade, frozenset.intersection(*judged), requests)

    def _money(self, period: Period | None) -> Period | None:
        """What this replica may spend."""
        return None if period is None else replace(period, money=period.money * self.settings.share)

    def _shadow_models(self, policy: AnyPolicy, models: Mapping[str, ServedModel]) -> tuple[str, ...]:
        """The models that shadow queries are asked of besides: the policy's reference is one, whose answers tell later
        whether the policy is still right; as long as there is no policy they are all that there are, or those named."""
        named = self.settings.shadow_models
        if self.settings.shadow and not policy.calibrations:
            return named or tuple(models)
        reference = recorded_reference(policy.provenance)
        if not self.settings.shadow or reference is None or reference.model not in models:
            return named
        return tuple(dict.fromkeys([*named, reference.model]))

    def _endpoint(self, model: ServedModel, mean: float | None) -> Endpoint:
        """Where a model is asked as its client says: max_tokens = 1, say, is for answers that are judged.

        Args:
            model: of the file.
            mean: what a call of it costs, if it has no price.

        Raises ValueError with the file and the model.
        """
        limits = self.settings.limits
        try:
            client = self.client_of(model).with_options(timeout=limits.timeout, max_retries=limits.retries)
            checked_options(dict(model.options))
        except ValueError as problem:
            what = str(problem).removeprefix(f"model {model.name}: ")
            raise ValueError(f"{self.settings.models.name}, model {model.name}: {what}") from None
        kept = {name: value for name, value in model.options.items() if name.startswith("extra_") or name in _OPERATORS}
        options, mean = self._limited(model, kept), mean if model.price is None else None
        return Endpoint(client, model.served, None, options, model.price, mean, fixed=FIXED)

    def _limited(self, model: ServedModel, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a model with the limit on the tokens of answers, where they have none."""
        most = self.settings.limits.tokens
        if most is None or most_written(options) is not None:
            return {**options}
        of_openai = getattr(model, "base_url", None) is None
        return {**options, "max_completion_tokens" if of_openai else "max_tokens": most}


def _signal(model: ServedModel, record: Mapping[str, Any]) -> Signal | None:
    """The signal that the file of models names; None if it is the one of the policy's record."""
    recorded = model.signal in (None, record.get("signal")) and signal_from_record(record) is not None
    return None if model.signal is None or recorded else signal_by_name(model.signal)


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from what it was before; None of one that is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def in_words(problem: Exception) -> str:
    """What is wrong with a file, on one line without control characters.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "policy.json"))
    'policy.json: No such file or directory'
    """
    if isinstance(problem, OSError) and problem.filename is not None:
        return visible(f"{os.fsdecode(problem.filename)}: {problem.strerror}")
    return visible(" ".join(str(problem).split())) or type(problem).__name__
