"""`rcjax serve` and `rcjax key`: serve cascades behind the API that applications already call; keys of its clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rcjax.cli.console import escape_arguments, print_json, warn
from rcjax.cli.inputs import (
    pairs,
    part,
    require_libraries,
    require_outputs,
    require_plausible_models,
    shadow_rate,
    size,
)
from rcjax.cli.options import AsJson, Count, File, Model, Models, Name, Really, Seconds
from rcjax.serving.shadow import ShadowRate

if TYPE_CHECKING:
    from rcjax.serving.gateway.catalog import Catalog, Deployment, ServiceSettings
    from rcjax.serving.gateway.chat_request import RequestLimits

Size = Annotated[int, typer.Option(parser=size, metavar="SIZE")]


def key(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    keys: Annotated[Path, typer.Option(metavar="FILE")] = Path("keys.toml"),
    json_: AsJson = False,
) -> None:
    """Make a key for a client of a service.

    Prints the key, this once, and adds the client to the file, which holds the SHA-256 of the key alone. A service
    that runs with `--keys` accepts the key within a second. You may add limits to the client's table in the file.

    Example: `rcjax key team-a`

    Args:
        name: Name of the client, for logs, figures and ids of queries.
        keys: File of the clients of a service, keys.toml.
    """
    require_libraries("rcjax key", "serve", "starlette", "openai")
    from rcjax.serving.gateway.clients import add_key

    new_key = add_key(name, keys)
    if json_:
        print_json({"name": name, "key": new_key, "keys": str(keys)})
        return
    typer.echo(new_key)
    typer.echo(f"{keys} has its hash: this key is not shown again", err=True)


@dataclass(frozen=True)
class ServedOptions:
    """The options of the served policies and models.

    Args:
        policy: Policy file, which clients call as the model `policy`.
        policies: Policy file, which clients call by this name; may be repeated.
        models: File of the models, models.toml: endpoints and prices.
        pass_: Model that answers all requests until the policy file exists.
    """

    policy: Annotated[Path | None, typer.Argument(metavar="POLICY")] = None
    policies: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME=FILE")] = None
    models: File = None
    pass_: Model = None

    def files(self) -> dict[str, Path | None]:
        """Return the files of policies by name; None for the file before there is a policy."""
        single = [] if self.policy is None else [f"policy={self.policy}"]
        files = pairs([*single, *(self.policies or ())], "--policy")
        for name in files:
            if not re.fullmatch(r"[\w.:/@+-]+", name):
                advice = "give one of letters, digits and . _ - : / @ +"
                raise typer.BadParameter(f"{name!r} is not a name for a policy: {advice}", param_hint="--policy")
        if not files and self.pass_ is None:
            advice = "give the file of a policy, --policy name=file, or --pass with today's model until there is one"
            raise typer.BadParameter(f"is missing: {advice}", param_hint="POLICY")
        return {name: Path(path) for name, path in files.items()} or {"policy": None}

    def models_file(self) -> Path:
        """Return the file of the models; a usage error without one."""
        if self.models is None:
            raise typer.BadParameter("is missing: give the file of the models, models.toml", param_hint="--models")
        return self.models

    def inputs(self) -> dict[str, Path | None]:
        """Return the input files by option, for `require_outputs`."""
        policies = ((name, path) for name, path in self.files().items() if path)
        files = {"POLICY" if path == self.policy else f"--policy {name}": path for name, path in policies}
        return files | {"--models": self.models}


@dataclass(frozen=True)
class CallLogOptions:
    """The options of the call log, and of its shadow queries.

    Args:
        log: The call log, in JSON Lines; - for standard output.
        log_prompts: Log prompts as well.
        no_log_answers: Do not log answers.
        shadow: Share of the queries that all models answer, so that the log can be tuned on; or the number of such
            shadow queries a day, week or month. A budget for a period pays for them, a budget per query does not.
        shadow_models: Further models, which answer shadow queries only.
    """

    log: File = None
    log_prompts: bool = False
    no_log_answers: bool = False
    shadow: Annotated[float | ShadowRate, typer.Option(parser=shadow_rate, metavar="SHARE|N/week")] = 0.0
    shadow_models: Models = None

    def require_partners(self) -> None:
        """Refuse options that need the log, or shadow queries, without them."""
        for option, value, partner, partner_value in (
            ("--shadow", self.shadow, "--log calls.jsonl", self.log),
            ("--log-prompts", self.log_prompts, "--log calls.jsonl", self.log),
            ("--no-log-answers", self.no_log_answers, "--log calls.jsonl", self.log),
            ("--shadow-models", self.shadow_models, "--shadow 5%", self.shadow),
        ):
            if value and not partner_value:
                problem = f"goes with {partner.split()[0]} only: give {partner} too"
                raise typer.BadParameter(problem, param_hint=option)

    def apply_to(self, settings: ServiceSettings, workers: int) -> ServiceSettings:
        """Apply these options to the settings of a service with a number of workers."""
        return replace(
            settings,
            log=self.log,
            log_answers=not self.no_log_answers,
            log_prompts=self.log_prompts,
            shadow=replace(self.shadow, workers=workers) if isinstance(self.shadow, ShadowRate) else self.shadow,
            shadow_models=tuple(self.shadow_models or ()),
        )


@dataclass(frozen=True)
class AccessOptions:
    """The options of access: keys, addresses and hosts.

    Args:
        key_env: Environment variable with the keys of clients.
        keys: File of clients with names, keys and limits, keys.toml (`rcjax key`), in place of `--key-env`.
        open_models: Let clients without a name call models by name, which counts in no policy's budget. Always on for
            a local address without keys, unless `--open` is given.
        open_: Let other machines call without a key.
        allow_host: Another host name of the service; may be repeated. Requests to any further name are then refused.
    """

    key_env: Name = None
    keys: File = None
    open_models: bool = False
    open_: bool = False
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None

    def has_key(self) -> bool:
        """Return whether clients need a key."""
        return self.key_env is not None or self.keys is not None

    def require_key(self, host: str) -> None:
        """Refuse an address that other machines can reach without a key, unless `--open` is given."""
        from rcjax.serving.gateway.catalog import is_local

        if not host.strip():
            raise typer.BadParameter("is empty: give an address, such as 127.0.0.1", param_hint="--host")
        if self.key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            # It may be the key itself: the message does not repeat it.
            advice = "give the name of the variable that holds the key, never the key itself"
            raise typer.BadParameter(f"is not a name of an environment variable: {advice}", param_hint="--key-env")
        if self.key_env is not None and self.keys is not None:
            raise typer.BadParameter(
                "cannot be combined with --key-env: its clients have keys of their own", param_hint="--keys"
            )
        if self.has_key() and self.open_:
            option = "--keys" if self.keys is not None else "--key-env"
            raise typer.BadParameter(
                f"cannot be combined with {option}: it is for calls without a key", param_hint="--open"
            )
        if self.keys is not None and self.open_models:
            problem = "cannot be combined with --keys: each client's table names the models that it may call"
            raise typer.BadParameter(problem, param_hint="--open-models")
        if not is_local(host) and not self.has_key() and not self.open_:
            advice = "give --keys with clients, --key-env with the name of the variable that holds a key, or --open"
            raise typer.BadParameter(f"others can reach {host}: {advice}", param_hint="--host")

    def hosts(self, is_private: bool) -> tuple[str, ...] | None:
        """Return the host names to accept; None accepts any: others can call, and no name is given."""
        names = tuple(self.allow_host or ())
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9.:_-]+", name) or re.fullmatch(r"[^:]*:\d+", name):
                advice = "give a name without a scheme and a port, such as box.local"
                raise typer.BadParameter(f"{name!r} is not a name of a host: {advice}", param_hint="--allow-host")
        return names if names or is_private else None

    def apply_to(self, settings: ServiceSettings, host: str) -> ServiceSettings:
        """Apply these options to the settings of a service that listens at an address."""
        from rcjax.serving.gateway.catalog import is_local

        is_private = is_local(host) and not self.has_key()
        return replace(
            settings,
            key_env=self.key_env,
            keys_file=self.keys,
            open_models=self.open_models or (is_private and not self.open_),
            hosts=self.hosts(is_private),
        )


@dataclass(frozen=True)
class LimitOptions:
    """The limits on requests.

    Args:
        deadline: Time limit for a whole request.
        timeout: Time limit for one attempt.
        retries: Number of retries after a transient failure; an answer that takes too long is not requested again.
        concurrency: Number of requests at once, per worker.
        max_tokens: Limit on the tokens that each model may write for a request, over all its answers, whatever
            models.toml says. [default: as clients ask]
        allow_field: Field of requests that is passed on to models, such as service_tier; may be repeated.
        max_body: Size of the largest accepted request.
        max_in_flight: Limit on the bytes of requests and shadow queries in progress, per worker. A worker needs up to
            ten times as much memory.
        drain: Time for requests under way when the service is stopped.
    """

    deadline: Seconds = 120.0
    timeout: Seconds = 60.0
    retries: Annotated[int, typer.Option(min=0, metavar="N")] = 2
    concurrency: Annotated[int, typer.Option(min=1, metavar="N")] = 256
    max_tokens: Count = None
    allow_field: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None
    max_body: Size = 4_000_000
    max_in_flight: Size = 32_000_000
    drain: Seconds = 30.0

    def limits(self) -> RequestLimits:
        """Return the limits; a usage error if a request of the largest size would never fit."""
        from rcjax.serving.gateway.chat_request import RequestLimits

        if self.max_in_flight < self.max_body:
            raise typer.BadParameter("is less than --max-body: give more", param_hint="--max-in-flight")
        limits = asdict(self)
        return RequestLimits(allowed_fields=frozenset(limits.pop("allow_field") or ()), **limits)


@dataclass(frozen=True)
class ReplicaOptions:
    """The options of a replica of a service.

    Args:
        ledger: Redis or Valkey in which replicas share their spending, redis://host:6379; or set RCJAX_LEDGER, to hide
            a password.
        share: Share of this replica in a number of shadow queries: 1/5 for one of five. Without a ledger, also its
            share in the money for a period, and in each client's money and requests.
        replica: Name of this replica in the log and the ledger. [default: the name of the host]
    """

    ledger: Annotated[str | None, typer.Option(metavar="URL", envvar="RCJAX_LEDGER", show_envvar=False)] = None
    share: Annotated[float | None, typer.Option(parser=part, metavar="SHARE")] = None
    replica: Name = None

    def apply_to(self, settings: ServiceSettings) -> ServiceSettings:
        """Apply these options to the settings of a service; a usage error for options that do not go together."""
        if self.ledger is not None:
            require_libraries("--ledger", "ledger", "redis")
        if self.replica is not None and not re.fullmatch(r"[\w.:-]{1,64}", self.replica):
            problem = f"{self.replica!r} is not a name for a replica: give at most 64 letters, digits and . _ - :"
            raise typer.BadParameter(problem, param_hint="--replica")
        if self.replica is not None and settings.log is None and self.ledger is None:
            problem = "goes with --log or --ledger only, in which it names this replica: give one of them too"
            raise typer.BadParameter(problem, param_hint="--replica")
        replica = self.replica or socket.gethostname()
        share, shadow = 1.0 if self.share is None else self.share, settings.shadow
        if isinstance(shadow, ShadowRate):
            if self.ledger is not None and self.share is None:
                advice = "with five replicas add --share 1/5, with one --share 1"
                warn(f"--shadow: each replica asks {shadow}, as the ledger divides only money: {advice}", "note")
            shadow = replace(shadow, queries=shadow.queries * share)
        elif self.ledger is not None and share < 1:
            warn("--share divides nothing: replicas of a ledger share the money, and --shadow is no number of queries")
        share = share if self.ledger is None else 1.0  # replicas of one ledger share the whole money
        return replace(settings, ledger=self.ledger, share=share, replica=replica, shadow=shadow)


def serve(
    *,
    served: ServedOptions,
    calls: CallLogOptions,
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=256, metavar="N")] = 1,
    no_follow: bool = False,
    stop_at_budget: bool = False,
    access: AccessOptions,
    accepted: LimitOptions,
    replicas: ReplicaOptions,
    abstain_text: Annotated[str, typer.Option(metavar="TEXT")] = "I am not sure enough to answer this.",
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Serve policies behind OpenAI's API: applications change their base URL, and call a policy as a model.

    Keys of endpoints come from the environment. The service takes up changed policy files while it runs.

    Example: `rcjax serve policy.json --models models.toml --log calls.jsonl --shadow 5%`

    Args:
        host: Address to listen at.
        port: Port to listen at; 0 for any free port.
        workers: Number of processes that answer.
        no_follow: Keep the position of each ladder, and do not follow the bill.
        stop_at_budget: Refuse requests that the money for a period does not cover, rather than use the cheapest rung.
        abstain_text: Text of the answer if the policy abstains.
    """
    require_libraries("rcjax serve", "serve", "openai", "starlette", "uvicorn", "prometheus_client")
    files, models_file = served.files(), served.models_file()
    access.require_key(host)
    calls.require_partners()
    if stop_at_budget and no_follow:
        problem = "cannot be combined with --no-follow: a service that does not follow its bill never stops"
        raise typer.BadParameter(problem, param_hint="--stop-at-budget")
    from rcjax.serving.gateway.catalog import ServiceSettings
    from rcjax.serving.gateway.processes import serve as run

    settings = ServiceSettings(
        policies=files,
        models_file=models_file,
        pass_model=served.pass_,
        follows=not no_follow,
        stops_at_budget=stop_at_budget,
        abstain_text=abstain_text,
        limits=accepted.limits(),
    )
    settings = replicas.apply_to(access.apply_to(calls.apply_to(settings, workers), host))
    if json_ and settings.log is not None and settings.log_file is None:
        raise typer.BadParameter("cannot be combined with --log -: both write to standard output", param_hint="--json")
    inputs = served.inputs() | {"--keys": access.keys}
    require_outputs({"--log": settings.log_file}, inputs, {"--log": "log of a service"})
    require_plausible_models(models_file, really)
    run(settings, host, port, workers, partial(announce, settings, json_, workers))


def announce(settings: ServiceSettings, as_json: bool, workers: int, url: str, catalog: Catalog) -> None:
    """Announce that the service accepts connections; warn of options without effect and of a reference not asked."""
    from rcjax.policy.error_kind import recorded_reference
    from rcjax.serving.models_file import describe_listed

    for name, deployment in catalog.policies.items():
        reference = recorded_reference(deployment.file_policy.provenance)
        if settings.shadow and reference is not None and reference.model not in catalog.models:
            problem = f"{settings.models_file.name} has no table for {reference.model}, the reference of policy {name}"
            warn(f"{problem}: shadow queries are not asked of it, and rcjax check cannot tell what differs: add it")
    money = {deployment.cascade.billing.money_left for deployment in catalog.policies.values()}
    if settings.stops_at_budget and money == {None}:
        warn("--stop-at-budget stops nothing: no policy here follows money for a day, a week or a month")
    limits = [client.money or client.requests for client in catalog.key_ring.named]
    if settings.share < 1 and not any(limits) and money == {None} and not isinstance(settings.shadow, ShadowRate):
        warn("--share divides nothing: no policy follows money for a period, and no client has a limit")
    for line in describe_listed(catalog.models.values()):
        warn(line, "note")
    if as_json:
        policies = {
            name: {
                "models": list(deployment.file_policy.models),
                "policy_hash": deployment.digest,
                "passing": deployment.is_untuned,
                "shadow": list(deployment.shadow_models),
                **({} if deployment.shadow_cost is None else deployment.shadow_cost.to_json(settings.shadow)),
            }
            for name, deployment in catalog.policies.items()
        }
        print_json({"url": url, "policies": policies, "models": list(catalog.models)})
    else:
        _print_policies(url, catalog.policies)
        if settings.keys_file is not None and workers > 1:
            scope = "max_concurrent and each client's rung hold per worker"
            warn(f"{scope}; money and requests a minute hold for the whole service", "note")


@escape_arguments
def _print_policies(url: str, policies: Mapping[str, Deployment]) -> None:
    typer.echo(f"serving at {url}/v1, under these names of models:", err=True)
    for name, deployment in policies.items():
        digest = "no policy yet" if deployment.is_untuned else deployment.digest
        typer.echo(f"  {name} ({digest}): {deployment.describe_models()}", err=True)
        for line in deployment.describe_other_calls():
            typer.echo(f"    {line}", err=True)
    typer.echo(f"figures for Prometheus: {url}/metrics", err=True)
