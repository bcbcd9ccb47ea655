"""The catalog of a service: the policies and models of its files, made by its settings.

A running service reads its files again on a signal, and when a file has changed; a broken file changes nothing.
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

from rcjax._base.codec import visible
from rcjax.policy.comparison import describe_rungs
from rcjax.policy.decisions import Rule
from rcjax.policy.error_kind import recorded_reference
from rcjax.policy.ladder import load_policy, with_following
from rcjax.policy.policy import AbstractPolicy, Policy
from rcjax.policy.signals import ReplyCheck
from rcjax.policy.spec import recorded_request_settings, recorded_tuning
from rcjax.serving.billing import describe_new_period
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade, ServiceOptions
from rcjax.serving.endpoints import THINKING_OPTIONS, Endpoint, require_options, within_token_limit
from rcjax.serving.exchange import ModelCaller, gather_all
from rcjax.serving.gateway.chat_request import ChatRequest, RequestLimits
from rcjax.serving.gateway.clients import KeyRing
from rcjax.serving.models_file import ModelEntry, describe_variable, read_models
from rcjax.serving.openai_client import make_api_client, openai
from rcjax.serving.shadow import ShadowCost, ShadowRate
from rcjax.serving.totals import Ledger, TotalsFile
from rcjax.serving.usage import TOKEN_LIMITS

#: Options that change the price of an answer: no client can replace the values of `models.toml` or the policy.
_OPERATOR_OPTIONS = THINKING_OPTIONS | {"service_tier"}

#: Options that no client can replace.
FIXED_OPTIONS = _OPERATOR_OPTIONS.union(TOKEN_LIMITS)

_SLOTS_PER_REQUEST = 2  # slots of model callers for each request in progress, whose votes are asked for at once


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a gateway."""

    policies: Mapping[str, Path | None]
    """The file of each policy, by the policy's name for clients; None for a policy that is still to come."""
    models_file: Path
    """The file of the models."""
    pass_model: str | None = None
    """The model that answers while a policy's file is missing; None if the file must exist."""
    shadow: float | ShadowRate = 0.0
    """Share of queries that all models are asked about, or a number in a period."""
    shadow_models: tuple[str, ...] = ()
    """Further models for shadow queries."""
    follows: bool = True
    """Whether policies whose files say so move along their ladders; False: all keep their positions."""
    stops_at_budget: bool = False
    """Whether requests that the money for a period does not cover are refused."""
    key_env: str | None = None
    """The environment variable with the keys of clients, separated by commas; None without keys."""
    keys_file: Path | None = None
    """The file of clients with names, in place of the variable; without file and variable no key is needed."""
    open_models: bool = True
    """Whether clients without names may call models by name."""
    hosts: tuple[str, ...] | None = None
    """Host names that requests may give, besides the names of this machine; None for any."""
    log: Path | None = None
    """The call log; "-" for standard output."""
    log_answers: bool = True
    """Whether the log keeps answers."""
    replica: str | None = None
    """The name of this replica in the log and the ledger; None leaves it out."""
    ledger: str | None = field(default=None, repr=False)
    """The address of the ledger, with its password; None without a ledger."""
    share: float = 1.0
    """This replica's share of the money for a period, and of each client's money and requests."""
    log_prompts: bool = False
    """Whether the log keeps prompts."""
    abstain_text: str = "I am not sure enough to answer this."
    """The answer if the policy abstains."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    shared_folder: Path | None = None
    """The folder in which several workers count together; None with one worker."""
    salt: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """A secret for the draws of shadow queries and rungs."""

    @property
    def log_file(self) -> Path | None:
        """File of the call log; None without one, or if the log goes to standard output."""
        return None if str(self.log) == "-" else self.log

    def read_keys(self) -> tuple[str, ...]:
        """Return the keys of clients from the variable. Raises ValueError if it holds none, or an invalid one."""
        if self.key_env is None:
            return ()
        keys = tuple(key.strip() for key in os.environ.get(self.key_env, "").split(",") if key.strip())
        if not keys:
            raise ValueError(f"--key-env: {describe_variable(self.key_env)} with the key is not set: set it")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            problem = f"a key in {describe_variable(self.key_env)} has characters that no header can have"
            raise ValueError(f"--key-env: {problem}: use others")
        return keys

    def make_key_ring(self, policies: Container[str], models: Collection[str]) -> KeyRing:
        """Make the ring of clients for these policies and models. Raises ValueError or OSError for invalid keys."""
        if self.keys_file is not None:
            ring = KeyRing.read(self.keys_file, policies, models, self.share)
            limited = [client for client in ring.named if client.money is not None]
            if limited and self.log_file is None and self.ledger is None:
                where = f"{self.keys_file.name}, client {limited[0].name}"
                advice = "give --log calls.jsonl, or --ledger"
                raise ValueError(f"{where}: its money is counted in a file beside the log: {advice}")
            return ring
        return KeyRing.of_keys(self.read_keys(), models if self.open_models else ())

    def make_client_totals(self) -> TotalsFile:
        """Make the clients' totals over all workers, in a file beside the log.

        Without a log, the totals last until the service ends. The file is not the file of the policies' bills, because
        each payment of a bill writes that file on the event loop.
        """
        if self.log_file is not None:
            return TotalsFile(f"{self.log_file}.clients")
        return TotalsFile(None if self.shared_folder is None else self.shared_folder / "clients.totals")

    def open_log(self, observe: Callable[[str], None] | None = None) -> CallLog | None:
        """Open the call log, which tells `observe` the outcome of each line; None without a log. Raises OSError."""
        if self.log is None:
            return None
        return CallLog(
            self.log_file, answers=self.log_answers, prompts=self.log_prompts, replica=self.replica, observe=observe
        )

    def open_ledger(self) -> Ledger | None:
        """Make the ledger; None without one. Raises ValueError for an invalid address."""
        return None if self.ledger is None else Ledger(self.ledger, self.replica)


def is_local(host: str) -> bool:
    """Return whether a host is an address of this machine that no other machine can call.

    >>> is_local("127.0.0.1"), is_local("Localhost"), is_local("::1"), is_local("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


class EndpointConnections:
    """Connections to endpoints, kept while the service runs; models with the same endpoint and key share them."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._api_clients: dict[tuple[str | None, str], openai.AsyncOpenAI] = {}

    def api_client(self, model: ModelEntry) -> openai.AsyncOpenAI:
        """Return the client of a model's endpoint. Raises ValueError for an invalid key or address."""
        endpoint = model.base_url, model.read_key()
        if endpoint not in self._api_clients:
            address, query = model.address()
            self._api_clients[endpoint] = make_api_client(
                base_url=address, key=endpoint[1], timeout=self._timeout, query=query
            )
        return self._api_clients[endpoint]

    async def close(self) -> None:
        """Close all connections, even if some fail to close, and raise the first error at the end."""
        await gather_all(client.close() for client in self._api_clients.values())


@dataclass(frozen=True, slots=True)
class Deployment:
    """A policy in service, with the cascade that answers by it."""

    name: str
    """The policy's name for clients."""
    file_policy: AbstractPolicy
    """The policy as its file has it; the cascade's policy has the money and the following of the settings."""
    digest: str
    """A hash of the JSON of the file's policy (`digest_of`)."""
    cascade: Cascade
    is_untuned: bool = False
    """Whether there is no policy yet, and one model answers everything."""
    judged_fields: frozenset[str] = frozenset()
    """Fields of requests, such as tools, for which the checks of all models can judge the answer."""
    request_forms: frozenset[str] | None = None
    """Digests of the forms of requests in the policy's log; None if the log has none: then every form is judged."""

    def why_not_judged(self, request: ChatRequest) -> tuple[str, ...]:
        """Return the reasons, in words, why the policy does not judge the answer to a request; empty if it does."""
        unseen = tuple(part for part in request.parts_not_judged if part not in self.judged_fields)
        if unseen:
            return unseen
        if self.request_forms is None or request.request_form in self.request_forms:
            return ()
        return (request.describe_unknown_form(self.request_forms),)

    def describe_models(self) -> str:
        """Describe the models that answer now, and those that the policy may ask once it has followed its bill."""
        policy = self.cascade.policy
        asked = {name for rung in policy.adjacent_rungs for name in rung.models}
        later = ", ".join(name for name in policy.models if name not in asked)
        return describe_rungs(policy) + (f"; as it follows its bill also {later}" if later and policy.follows else "")

    @property
    def shadow_models(self) -> tuple[str, ...]:
        """Models of shadow queries; none if there are no shadow queries."""
        return self.cascade.all_models if self.cascade.shadow else ()

    @property
    def shadow_cost(self) -> ShadowCost | None:
        """The expected cost of shadow queries; None without shadow queries, and before there is a policy."""
        is_known = self.shadow_models and not self.is_untuned
        return ShadowCost.estimate(self.file_policy, self.shadow_models) if is_known else None

    def describe_other_calls(self) -> Iterator[str]:
        """Yield a line on the models that answer after all models of a rung have failed, and one on shadow queries."""
        if self.cascade.fallbacks:
            yield f"if all models of a rung fail: {', then '.join(self.cascade.fallbacks)}"
        shadow, cost = self.cascade.shadow, self.shadow_cost
        if self.shadow_models:
            share = f"{100 * shadow:g} % of its queries" if isinstance(shadow, int | float) else str(shadow)
            price = "the cost is known once there is a policy" if cost is None else cost.describe(shadow)
            yield f"shadow: {share} to all of {', '.join(self.shadow_models)}: {price}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The policies and models that clients can call."""

    policies: Mapping[str, Deployment]
    models: Mapping[str, ModelEntry]
    unjudged_model_caller: ModelCaller
    """Asks a model without judging its answer."""
    key_ring: KeyRing
    """The clients."""

    def continue_from(self, before: Catalog) -> None:
        """Continue the bills of changed policies, and the means of unchanged models, from the last catalog."""
        unchanged = [name for name, model in self.models.items() if before.models.get(name) == model]
        self.unjudged_model_caller.continue_means(before.unjudged_model_caller, unchanged)
        for name, deployment in self.policies.items():
            if deployment is not before.policies[name]:
                deployment.cascade.continue_from(before.policies[name].cascade, unchanged)

    def changed_policies(self, before: Catalog | None) -> list[str]:
        """Return the names of policies that are new or have changed."""
        earlier = {} if before is None else before.policies
        known = {name: (old.digest, old.is_untuned) for name, old in earlier.items()}
        return [name for name, new in self.policies.items() if known.get(name) != (new.digest, new.is_untuned)]

    def describe_changes(self, before: Catalog, models: str) -> Iterator[str]:
        """Yield a line for each change since the last catalog; `models` is the name of the models' file."""
        changed = self.changed_policies(before)
        for name in changed:
            deployment = self.policies[name]
            yield f"policy {name} is {deployment.digest} from now on: {deployment.describe_models()}"
            yield from (f"policy {name}, {line}" for line in deployment.describe_other_calls())
        if self.models != before.models:
            names = dict.fromkeys([*self.models, *before.models])
            others = [name for name in names if self.models.get(name) != before.models.get(name)]
            yield f"{models} is loaded: {', '.join(others)} changed"
        if self.key_ring.named != before.key_ring.named:
            yield f"the file of keys is loaded: {', '.join(client.name or '' for client in self.key_ring.named)}"
        elif not changed and self.models == before.models:
            yield "the files were read again: nothing has changed"
        for client in self.key_ring.named:
            old = before.key_ring.by_name(client.name)
            if old is not None and client.money is not None and client.money.every != old.period.every:
                yield f"client {client.name}: {describe_new_period(client.money.every, old.period.every)}"


def digest_of(policy: AbstractPolicy) -> str:
    """Return twelve hexadecimal digits that identify a policy: a hash of its JSON, whatever the file's white space.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> calibration = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
    >>> digest_of(Policy(("large",), {"large": calibration}, {"large": [Rule(1, "answer")]}, {"large": 1e-4}))
    'eeadd8c3c29f'
    """
    text = json.dumps(policy.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class CatalogMaker:
    """Makes catalogs from the files of the settings. Raises ValueError, which names the file, for a faulty file.

    Args:
        settings: settings of the service.
        api_client: returns the client of a model's endpoint.
        log: log of the calls.
        observe: receives each call, with the name of its policy.
        observe_shadow: receives (the policy's name, the outcome) for each query drawn as a shadow query.
        ledger: ledger of the replicas.
    """

    settings: ServiceSettings
    api_client: Callable[[ModelEntry], openai.AsyncOpenAI]
    log: CallLog | None = None
    observe: Callable[..., None] | None = None
    observe_shadow: Callable[[str, str], None] | None = None
    ledger: Ledger | None = None

    def read(self, before: Catalog | None = None) -> Catalog:
        """Read the policies and models from their files. Raises OSError if one cannot be read.

        Unchanged policies keep the deployments of the catalog `before`. A policy that had a file must still have one.
        """
        settings = self.settings
        earlier = {} if before is None else before.policies
        tuned = {name for name, deployment in earlier.items() if not deployment.is_untuned}
        policies: dict[str, AbstractPolicy | None] = {}
        for name, path in settings.policies.items():
            if path is not None and (settings.pass_model is None or name in tuned or path.exists()):
                policies[name] = load_policy(path)
            elif settings.pass_model is not None:
                policies[name] = None
        models, deployments = read_models(settings.models_file), dict[str, Deployment]()
        self._require_tables(policies, models)  # before any key is needed: the file may be another one
        endpoints = {name: self._endpoint(model) for name, model in models.items()}
        for name, policy in policies.items():
            try:
                deployments[name] = self._deploy(name, policy, models, before)
            except ValueError as problem:
                raise ValueError(f"{self._source_of(name, policy)}: {problem}") from None
            period, left = deployments[name].file_policy.period, deployments[name].cascade.billing.money_left
            if period is not None and left is not None and settings.ledger is None and settings.log_file is None:
                reason = f"its budget is for each {period.every}, and the money spent is kept beside the log"
                raise ValueError(f"policy {name}: {reason}: give --log calls.jsonl, --ledger, or --no-follow")
        model_caller = ModelCaller(endpoints, self.log, _SLOTS_PER_REQUEST * settings.limits.concurrency, self.observe)
        return Catalog(deployments, models, model_caller, settings.make_key_ring(deployments, models))

    def _source_of(self, name: str, policy: AbstractPolicy | None) -> str:
        """Return the source of a policy for messages: its file's name, or `--pass MODEL`."""
        path = self.settings.policies[name]
        return f"--pass {self.settings.pass_model}" if path is None or policy is None else path.name

    def _require_tables(self, policies: Mapping[str, AbstractPolicy | None], models: Mapping[str, ModelEntry]) -> None:
        """Raise ValueError if a model lacks a table, or has the name of a policy."""
        settings = self.settings
        for option, names in {"--shadow-models": settings.shadow_models, "--pass": (settings.pass_model,)}.items():
            missing = ", ".join(name for name in names if name is not None and name not in models)
            if missing:
                raise ValueError(
                    f"{option}: {settings.models_file.name} has no table for {missing}: add it, or name another"
                )
        for name, policy in policies.items():
            if name in models:
                raise ValueError(
                    f"{settings.models_file.name}: {name} is the name of a policy too: give one another name"
                )
            missing = ", ".join(model for model in (policy.models if policy else ()) if model not in models)
            if missing:
                problem = f"it asks {missing}, for which {settings.models_file.name} has no table: add it"
                raise ValueError(f"{self._source_of(name, policy)}: {problem}")

    def _deploy(
        self, name: str, tuned: AbstractPolicy | None, models: Mapping[str, ModelEntry], before: Catalog | None
    ) -> Deployment:
        """Make the deployment of a policy or, before its file exists, of a policy that always asks `--pass`.

        Raises ValueError for a faulty policy.
        """
        settings = self.settings
        policy = _pass_policy(settings.pass_model or "") if tuned is None else tuned
        digest = digest_of(policy)
        old = None if before is None else before.policies[name]
        if before and old and (old.digest, old.is_untuned, before.models) == (digest, tuned is None, models):
            return old
        recorded_tuning(policy)  # a fault in the record is found now, not when the policy is tuned again
        records = recorded_request_settings(policy)
        names = *policy.models, *self._shadow_models(tuned, models)
        fixed: dict[str, Any] = {"fixed": FIXED_OPTIONS, "max_tokens": settings.limits.max_tokens}
        options = {name: {**records.get(name, {}).get("options", {}), **models[name].options} for name in names}
        called = {name: replace(models[name], options=options[name], **fixed) for name in names}
        period = None if policy.period is None else replace(policy.period, money=policy.period.money * settings.share)
        cascade = Cascade(
            with_following(policy, follows=policy.follows and settings.follows, period=period),
            {model: self.api_client(entry) for model, entry in called.items()},
            log=self.log,
            models=called,
            service=self._service_options(name, old),
        )
        signals = [cascade.signal_of(model) for model in policy.models]
        judged = [signal.judged_fields if isinstance(signal, ReplyCheck) else frozenset() for signal in signals]
        forms = [records[model]["requests"] for model in policy.models if "requests" in records.get(model, {})]
        request_forms = frozenset.intersection(*map(frozenset, forms)) if forms else None
        return Deployment(name, policy, digest, cascade, tuned is None, frozenset.intersection(*judged), request_forms)

    def _service_options(self, name: str, old: Deployment | None) -> ServiceOptions:
        """Return the options of a policy's cascade, which continues the shadow queries of the old one."""
        settings, limits = self.settings, self.settings.limits
        return ServiceOptions(
            concurrency=_SLOTS_PER_REQUEST * limits.concurrency,
            timeout=limits.timeout,
            retries=limits.retries,
            shadow=settings.shadow if old is None else old.cascade.shadow_share,
            salt=settings.salt,
            name=name,
            ledger=self.ledger,
            stops_at_budget=settings.stops_at_budget,
            observe=None if self.observe is None else partial(self.observe, policy=name),
            observe_shadow=None if self.observe_shadow is None else partial(self.observe_shadow, name),
        )

    def _shadow_models(self, policy: AbstractPolicy | None, models: Mapping[str, ModelEntry]) -> tuple[str, ...]:
        """Return the models for shadow queries besides the policy's own: the settings' and the policy's reference.

        The answers of the reference show later whether the policy is still right. Before there is a policy, these are
        the models of the settings, or all models if the settings name none.
        """
        named = self.settings.shadow_models
        if not self.settings.shadow:
            return named
        if policy is None:
            return named or tuple(models)
        reference = recorded_reference(policy.provenance)
        if reference is None or reference.model not in models:
            return named
        return tuple(dict.fromkeys([*named, reference.model]))

    def _endpoint(self, model: ModelEntry) -> Endpoint:
        """Make a model's endpoint for answers that no policy judges.

        The endpoint keeps `extra_*` and `_OPERATOR_OPTIONS` of the file; the client chooses the other options.
        Raises ValueError, which names the file and the model.
        """
        limits = self.settings.limits
        try:
            client = self.api_client(model).with_options(timeout=limits.timeout, max_retries=limits.retries)
            require_options(model.options)
        except ValueError as problem:
            reason = str(problem).removeprefix(f"model {model.name}: ")
            raise ValueError(f"{self.settings.models_file.name}, model {model.name}: {reason}") from None
        kept = {name: v for name, v in model.options.items() if name.startswith("extra_") or name in _OPERATOR_OPTIONS}
        options = within_token_limit(kept, limits.max_tokens)
        return Endpoint(client, model.upstream_model, None, options, model.price, None, fixed=FIXED_OPTIONS)


def _pass_policy(model: str) -> Policy:
    """Make a policy by which one model answers everything."""
    return Policy((model,), {}, {model: (Rule(1.0, "answer"),)}, {model: 0.0})


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """Return a signature that changes with a file; None for a missing file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def describe_problem(problem: Exception) -> str:
    """Describe the problem of a file on one line, without control characters.

    >>> describe_problem(FileNotFoundError(2, "No such file or directory", "policy.json"))
    'policy.json: No such file or directory'
    """
    if isinstance(problem, OSError) and problem.filename is not None:
        return visible(f"{os.fsdecode(problem.filename)}: {problem.strerror}")
    return visible(" ".join(str(problem).split())) or type(problem).__name__
