"""Policies and models as a service has them at one time: read from their files, checked, ready to be asked.

New files are taken up while the service runs, on a signal and where one has changed; a broken one changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rcjax._base.wording import visible
from rcjax.policy.counted import recorded_reference
from rcjax.policy.following import PeriodBill
from rcjax.policy.ladder import load_policy
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.record import recorded_asked, recorded_tuning
from rcjax.policy.rules import Rule
from rcjax.serving.asker import Caller, Observe
from rcjax.serving.asking import Endpoint, checked_options
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade
from rcjax.serving.endpoint import DirectClient, direct_client
from rcjax.serving.gateway.settings import Settings
from rcjax.serving.models_file import ModelSettings, ServedModel, read_models
from rcjax.signals import Check, Signal
from rcjax.signals.records import signal_by_name, signal_from_record


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
    unjudged: str
    """The model of requests that cannot be judged."""
    checked: frozenset[str] = frozenset()
    """Fields of a request that the checks of its models judge an answer to, and other signals do not."""

    @property
    def passing(self) -> bool:
        """Whether it passes everything to one model, as there is no policy yet."""
        return not self.policy.calibrations

    @property
    def shadowed(self) -> tuple[str, ...]:
        """The models that shadow queries go to; none without a share of them."""
        return self.cascade.everyone if self.cascade.shadow else ()


@dataclass(frozen=True, slots=True)
class Lineup:
    """All that can be called."""

    policies: Mapping[str, ServedPolicy]
    models: Mapping[str, ServedModel]
    caller: Caller
    """Asks any model, and judges nothing."""

    def go_on(self, before: Lineup) -> None:
        """Go on with the bills of the policies whose place these take."""
        for name, served in self.policies.items():
            served.cascade.billing.go_on(before.policies[name].cascade.billing)


def digest_of(policy: AnyPolicy) -> str:
    """Twelve hexadecimal digits that tell a policy from another: of its JSON, whatever the file's white space.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> calibration = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
    >>> digest_of(Policy(("large",), {"large": calibration}, {"large": [Rule(1, "answer")]}, {"large": 1e-4}))
    'eeadd8c3c29f'
    """
    text = json.dumps(policy.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def read_lineup(
    settings: Settings,
    clients: Clients,
    log: CallLog | None = None,
    observe: Observe | None = None,
    before: Lineup | None = None,
) -> Lineup:
    """Read the files of the settings.

    Args:
        settings: of the service.
        clients: of the endpoints.
        log: where to write calls.
        observe: is told of each call.
        before: what was read the last time: a policy whose file was there must have one still.

    Raises ValueError, with the file and what is wrong in it, and OSError where it cannot be read.
    """
    tuned = {} if before is None else {name: one for name, one in before.policies.items() if not one.passing}
    files = {
        name: path if path is not None and (name in tuned or path.exists()) else None
        for name, path in settings.policies.items()
    }
    settings = settings if settings.passing is None else replace(settings, policies=files)
    lineup = make_lineup(settings, read_models(settings.models), clients.of, log, observe)
    for name, served in lineup.policies.items():
        bill = served.cascade.billing.bill
        if isinstance(bill, PeriodBill) and settings.logging.path is None:
            what = f"its budget is for each {bill.period.every}, and what was spent is in the log"
            raise ValueError(f"policy {name}: {what}: give --log calls.jsonl, or --no-follow")
    return lineup


def make_lineup(
    settings: Settings,
    models: Mapping[str, ServedModel],
    client_of: Callable[[Any], DirectClient],
    log: CallLog | None = None,
    observe: Observe | None = None,
) -> Lineup:
    """The policies in the files of the settings, before models that are told.

    Args:
        settings: of the service.
        models: by name.
        client_of: the client by which one of the models is asked.
        log: where to write calls.
        observe: is told of each call.

    Raises ValueError, with the file and what is wrong in it, and OSError where it cannot be read.
    """
    _check_names(settings, models)
    make = _Cascades(settings, models, client_of, log, observe)
    loaded = {name: _load(path, settings.passing or "") for name, path in settings.policies.items()}
    caller = make.passing_on({model: cost for _, policy in loaded.values() for model, cost in policy.cost.items()})
    return Lineup({name: make.serve(name, *one) for name, one in loaded.items()}, models, caller)


def _load(path: Path | None, passing: str) -> tuple[str, AnyPolicy]:
    """(where it is from, the policy of a file); without one a policy that keeps every answer of one model, which is not
    calibrated."""
    if path is not None:
        return path.name, load_policy(path)
    return f"--pass {passing}", Policy((passing,), {}, {passing: (Rule(1.0, "answer"),)}, {passing: 0.0})


def _check_names(settings: Settings, models: Mapping[str, ServedModel]) -> None:
    """Refuse policies that have the name of a model, and options that name models which there are not."""
    for name in settings.policies:
        if name in models:
            raise ValueError(f"{settings.models.name}: {name} is the name of a policy too: give one another name")
    unjudged = () if settings.unjudged is None else (settings.unjudged,)
    passing = () if settings.passing is None else (settings.passing,)
    for option, names in (
        ("--unjudged", unjudged),
        ("--shadow-models", settings.shadow_models),
        ("--pass", passing),
    ):
        missing = ", ".join(name for name in names if name not in models)
        if missing:
            raise ValueError(f"{option}: {settings.models.name} has no table for {missing}: add it, or name another")


@dataclass(frozen=True, slots=True)
class _Cascades:
    """Makes the cascades of policies, all by the same settings."""

    settings: Settings
    models: Mapping[str, ServedModel]
    client_of: Callable[[Any], DirectClient]
    log: CallLog | None
    observe: Callable[..., None] | None

    def serve(self, name: str, where: str, policy: AnyPolicy) -> ServedPolicy:
        """A policy ready to be asked, by its name. Raises ValueError that says where it is from."""
        try:
            return self._serve(name, policy)
        except ValueError as problem:
            raise ValueError(f"{where}: {problem}") from None

    def _serve(self, name: str, policy: AnyPolicy) -> ServedPolicy:
        recorded_tuning(policy)  # what is wrong with it is found now, not when the policy is tuned again
        records = recorded_asked(policy)
        shadowing = self._shadow_models(policy)
        asked = [*policy.models, *shadowing]
        missing = ", ".join(model for model in policy.models if model not in self.models)
        if missing:
            raise ValueError(f"it asks {missing}, for which {self.settings.models.name} has no table: add it")
        settings, limits = {model: self.models[model] for model in asked}, self.settings.limits
        unjudged = self.settings.unjudged or settings[policy.models[-1]].name
        signals = {model: self._signal(one, records.get(model, {})) for model, one in settings.items()}
        cascade = Cascade(
            policy.followed(follows=policy.follows and self.settings.follow, period=policy.period),
            {model: self.client_of(one) for model, one in settings.items()},
            signal=signals,
            log=self.log,
            name=name,
            served={model: one.served for model, one in settings.items()},
            model_options={model: one.options for model, one in settings.items()},
            prices={model: one.price.record() for model, one in settings.items() if one.price is not None},
            concurrency=2 * limits.concurrency,
            timeout=limits.timeout,
            retries=limits.retries,
            shadow=self.settings.shadow,
            shadow_models=shadowing,
            salt=self.settings.salt,
            observe=None if self.observe is None else partial(self.observe, policy=name),
        )
        used = [cascade.signal_of(model) for model in policy.models]
        judged = [one.judges if isinstance(one, Check) else frozenset() for one in used]
        checked = frozenset.intersection(*judged)
        return ServedPolicy(name, policy, digest_of(policy), cascade, unjudged, checked)

    def _shadow_models(self, policy: AnyPolicy) -> tuple[str, ...]:
        """The models that shadow queries are asked of besides: the policy's reference is one, whose answers tell later
        whether the policy is still right; as long as there is no policy they are all that there are, or those named."""
        if self.settings.shadow and not policy.calibrations:
            return self.settings.shadow_models or tuple(self.models)
        reference = recorded_reference(policy.provenance)
        if not self.settings.shadow or reference is None or reference.model not in self.models:
            return self.settings.shadow_models
        return tuple(dict.fromkeys([*self.settings.shadow_models, reference.model]))

    @staticmethod
    def _signal(model: ServedModel, record: Mapping[str, Any]) -> Signal | None:
        """The signal that the file of models names; None if it is the one of the policy's record."""
        recorded = model.signal in (None, record.get("signal")) and signal_from_record(record) is not None
        return None if model.signal is None or recorded else signal_by_name(model.signal)

    def passing_on(self, means: Mapping[str, float]) -> Caller:
        """What asks any model, and judges nothing.

        Args:
            means: what a call costs by the logs of the policies, for models without a price.
        """
        endpoints = {name: self._endpoint(model, means.get(name)) for name, model in self.models.items()}
        return Caller(endpoints, self.log, 2 * self.settings.limits.concurrency, self.observe)

    def _endpoint(self, model: ServedModel, mean: float | None) -> Endpoint:
        """Where a model is asked as its client says: max_tokens = 1, say, is for answers that are judged.

        Raises ValueError with the file and the model.
        """
        limits = self.settings.limits
        try:
            client = self.client_of(model).with_options(timeout=limits.timeout, max_retries=limits.retries)
            checked_options(dict(model.options))
            options = {name: value for name, value in model.options.items() if name.startswith("extra_")}
        except ValueError as problem:
            what = str(problem).removeprefix(f"model {model.name}: ")
            raise ValueError(f"{self.settings.models.name}, model {model.name}: {what}") from None
        return Endpoint(client, model.served, None, options, model.price, mean if model.price is None else None)


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
