"""`rcjax serve` and `rcjax key`: serve cascades behind the API that applications already call; keys of its clients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rcjax.cli.console import print_json, shown, warn
from rcjax.cli.inputs import require_libraries, require_outputs, require_plausible_models
from rcjax.cli.options import AsJson, File, Model, Models, Name, Really, ReplicaOptions, Seconds
from rcjax.cli.parsers import pairs, shadow as read_shadow, size

if TYPE_CHECKING:
    from rcjax.serving.gateway.catalog import Catalog, ServedPolicy, Settings
    from rcjax.serving.shadowing import ShadowRate


def key(
    action: Annotated[Literal["new"], typer.Argument(metavar="new")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    keys: Annotated[Path, typer.Option(metavar="FILE")] = Path("keys.toml"),
    json_: AsJson = False,
) -> None:
    """Make a key for a client of a service.

    Prints the key once, and adds the client to the file, with the SHA-256 of the key in place of the key. A service
    that runs with `--keys` accepts the key within a second. You may add limits to the client's table.

    Example: `rcjax key new team-a`

    Args:
        action: The action: new makes a key.
        name: Name of the client, in logs, figures and ids of queries.
        keys: File of the clients of a service, keys.toml.
    """
    require_libraries("rcjax key", "serve", "starlette", "openai")
    from rcjax.serving.gateway.clients import add_key

    made = add_key(name, keys)
    if json_:
        print_json({"name": name, "key": made, "keys": str(keys)})
        return
    typer.echo(made)
    typer.echo(f"{keys} has its hash: this key is not shown again", err=True)


def serve(
    replicas: ReplicaOptions,
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY")] = None,
    policies: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME=FILE")] = None,
    models: File = None,
    pass_: Model = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=256, metavar="N")] = 1,
    log: File = None,
    log_prompts: bool = False,
    no_log_answers: bool = False,
    shadow: Annotated[Any, typer.Option(parser=read_shadow, metavar="SHARE|N/week")] = "0",
    shadow_models: Models = None,
    no_follow: bool = False,
    stop_at_budget: bool = False,
    key_env: Name = None,
    keys: File = None,
    open_models: bool = False,
    open_: bool = False,
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    deadline: Seconds = 120.0,
    timeout: Seconds = 60.0,
    retries: Annotated[int, typer.Option(min=0, metavar="N")] = 2,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N")] = 256,
    max_tokens: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    allow_field: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    max_body: Annotated[Any, typer.Option(parser=size, metavar="SIZE")] = "4MB",
    max_in_flight: Annotated[Any, typer.Option(parser=size, metavar="SIZE")] = "32MB",
    drain: Seconds = 30.0,
    refusal_text: Annotated[str, typer.Option(metavar="TEXT")] = "I am not sure enough to answer this.",
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Serve policies behind OpenAI's API.

    Applications change their base URL and call a policy as a model. Keys of endpoints and of clients come from the
    environment. The service reloads changed policy files while it runs.

    Example: `rcjax serve policy.json --models models.toml --log calls.jsonl --shadow 5%`

    Args:
        policy: Policy file, served under the name policy.
        policies: Policy file, served under this name; may be repeated.
        models: File of the models, models.toml: endpoints and prices.
        pass_: Model that answers all requests until there is a policy.
        host: Address to listen at.
        port: Port to listen at; 0 for any free port.
        workers: Number of processes that answer.
        log: The call log, in JSON Lines; - for standard output.
        log_prompts: Log prompts as well.
        no_log_answers: Do not log answers.
        shadow: Share of the queries that all models answer, to learn from, or their number a day, week or month. Money
            for a period pays for them; a budget per query does not.
        shadow_models: Further models for shadow queries.
        no_follow: Keep the position of each ladder, and do not follow the bill.
        stop_at_budget: Refuse requests that the money for a period does not cover, rather than use the cheapest rung.
        key_env: Environment variable with the keys of clients.
        keys: File of clients with names and limits (`rcjax key`), keys.toml, in place of the variable.
        open_models: Let clients without names call models of models.toml, on no policy's bill. Without a key, on this
            machine, they may anyway.
        open_: Let other machines call without a key.
        allow_host: Another host name of the service; may be repeated.
        deadline: Time limit for a whole request.
        timeout: Time limit for one attempt.
        retries: Number of retries after a transient failure.
        concurrency: Number of requests at once, per worker.
        max_tokens: Limit on the tokens of all answers to a request. [default: as clients ask]
        allow_field: Field of requests that is passed on to models, such as service_tier; may be repeated.
        max_body: Size of the largest accepted request.
        max_in_flight: Limit on the bytes of all requests at once, per worker; about a tenth of a worker's memory.
        drain: Time for requests under way when the service is stopped.
        refusal_text: Answer if the policy refuses.
    """
    require_libraries("rcjax serve", "serve", "openai", "starlette", "uvicorn", "prometheus_client")
    files = _policy_files(policy, policies or [], pass_)
    if models is None:
        raise typer.BadParameter("is missing: give the file of the models, models.toml", param_hint="--models")
    _require_key(host, key_env, keys, open_)
    for option, given, partner, partner_given in (
        ("--shadow", shadow, "--log calls.jsonl", log),
        ("--log-prompts", log_prompts, "--log calls.jsonl", log),
        ("--shadow-models", shadow_models, "--shadow 5%", shadow),
    ):
        if given and not partner_given:
            problem = f"goes with {partner.split()[0]} only: give {partner} too"
            raise typer.BadParameter(problem, param_hint=option)
    if replicas.ledger is not None:
        require_libraries("--ledger", "ledger", "redis")
    from rcjax.serving.gateway.catalog import Settings, is_local
    from rcjax.serving.gateway.intake import RequestLimits
    from rcjax.serving.gateway.processes import serve as run
    from rcjax.serving.shadowing import ShadowRate

    if max_in_flight < max_body:
        raise typer.BadParameter("is less than --max-body: give more", param_hint="--max-in-flight")
    logs_to_stdout = str(log) == "-"
    if logs_to_stdout and json_:
        raise typer.BadParameter("goes without --log -: both write to standard output", param_hint="--json")
    policy_files = {"POLICY" if path == policy else f"--policy {name}": path for name, path in files.items() if path}
    inputs = policy_files | {"--models": models} | ({} if keys is None else {"--keys": keys})
    require_outputs({"--log": None if logs_to_stdout else log}, inputs)
    has_key = key_env is not None or keys is not None
    require_plausible_models(models, really)
    settings = Settings(
        policies=files,
        models=models,
        pass_model=pass_,
        shadow=replace(shadow, workers=workers) if isinstance(shadow, ShadowRate) else shadow,
        shadow_models=tuple(shadow_models or ()),
        follow=not no_follow,
        stops_at_budget=stop_at_budget,
        key_env=key_env,
        keys_file=keys,
        open_models=open_models or (is_local(host) and not has_key and not open_),
        hosts=_allowed_hosts(host, allow_host or [], has_key=has_key),
        log=log,
        log_answers=not no_log_answers,
        log_prompts=log_prompts,
        refusal=refusal_text,
        **replicas.settings(),
        limits=RequestLimits(
            deadline,
            timeout,
            retries,
            concurrency,
            max_body,
            max_in_flight,
            drain_seconds=drain,
            tokens=max_tokens,
            fields=frozenset(allow_field or ()),
        ),
    )
    settings.keys()
    run(settings, host, port, workers, partial(_announce, settings, json_, workers))


def _announce(settings: Settings, as_json: bool, workers: int, url: str, catalog: Catalog) -> None:
    """Announce that the service accepts connections; warn if a policy's reference gets no shadow queries."""
    from rcjax.policy.comparison import recorded_reference
    from rcjax.serving.models_file import describe_listed, read_models

    for name, served in catalog.policies.items():
        reference = recorded_reference(served.policy.provenance)
        if settings.shadow and reference is not None and reference.model not in catalog.models:
            problem = f"{settings.models.name} has no table for {reference.model}, the reference of policy {name}"
            warn(f"{problem}: shadow queries are not asked of it, and rcjax check cannot tell what differs: add it")
    for line in describe_listed(read_models(settings.models).values()):
        warn(line, "note")
    if as_json:
        policies = {
            name: {
                "models": list(served.policy.models),
                "policy_hash": served.digest,
                "passing": served.is_untuned,
                "shadow": list(served.shadowed),
                **({} if served.shadow_cost is None else served.shadow_cost.to_json(settings.shadow)),
            }
            for name, served in catalog.policies.items()
        }
        print_json({"url": url, "policies": policies, "models": list(catalog.models)})
    else:
        _print_policies(url, catalog.policies, settings.shadow)
        if settings.keys_file is not None and workers > 1:
            limits = "at_once, and the rung that each client's own bill allows, are by worker"
            warn(f"{limits}: money and requests a minute are of all {workers}", "note")


@shown
def _print_policies(url: str, policies: Mapping[str, ServedPolicy], shadow: float | ShadowRate) -> None:
    typer.echo(f"serving at {url}/v1, under these names of models:", err=True)
    for name, served in policies.items():
        digest = "no policy yet" if served.is_untuned else served.digest
        typer.echo(f"  {name} ({digest}): {' → '.join(served.policy.models)}", err=True)
        if served.shadowed:
            share = f"{100 * shadow:g} % of its queries" if isinstance(shadow, int | float) else str(shadow)
            cost = "" if served.shadow_cost is None else f": {served.shadow_cost.describe(shadow)}"
            typer.echo(f"    shadow: {share} also to {', '.join(served.shadowed)}{cost}", err=True)
    typer.echo(f"costs, and shares of the models: {url}/ in a browser", err=True)


def _require_key(host: str, key_env: str | None, keys: Path | None, is_open: bool) -> None:
    """Refuse an address that other machines can reach without a key, unless `--open` is given."""
    from rcjax.serving.gateway.catalog import is_local

    if not host.strip():
        raise typer.BadParameter("is empty: give an address, such as 127.0.0.1", param_hint="--host")
    if key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key_env):  # perhaps the key: do not print it
        advice = "give the name of the variable that holds the key, never the key itself"
        raise typer.BadParameter(f"is no name of an environment variable: {advice}", param_hint="--key-env")
    if key_env is not None and keys is not None:
        raise typer.BadParameter("goes without --key-env: its clients have keys of their own", param_hint="--keys")
    has_key = key_env is not None or keys is not None
    if has_key and is_open:
        option = "--keys" if keys is not None else "--key-env"
        raise typer.BadParameter(f"goes without {option}: it is for calls without a key", param_hint="--open")
    if not is_local(host) and not has_key and not is_open:
        advice = "give --keys with clients, --key-env with the name of the variable that holds a key, or --open"
        raise typer.BadParameter(f"others can reach {host}: {advice}", param_hint="--host")


def _allowed_hosts(host: str, names: Sequence[str], *, has_key: bool) -> tuple[str, ...] | None:
    """Return the further host names that requests may use; None (any) if others can call, or a key is set."""
    from rcjax.serving.gateway.catalog import is_local

    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9.:_-]+", name) or re.fullmatch(r"[^:]*:\d+", name):
            advice = "give a name without a scheme and a port, such as box.local"
            raise typer.BadParameter(f"{name!r} is no name of a host: {advice}", param_hint="--allow-host")
    return tuple(names) if names or (is_local(host) and not has_key) else None


def _policy_files(single: Path | None, named: Sequence[str], pass_model: str | None) -> dict[str, Path | None]:
    """Return the files of policies by name; None for the file before there is a policy."""
    files = pairs([*([] if single is None else [f"policy={single}"]), *named], "--policy")
    for name in files:
        if not re.fullmatch(r"[\w.:/@+-]+", name):
            advice = "give one of letters, digits and . _ - : / @ +"
            raise typer.BadParameter(f"{name!r} is no name for a policy: {advice}", param_hint="--policy")
    if not files and pass_model is None:
        advice = "give the file of a policy, --policy name=file, or --pass with today's model until there is one"
        raise typer.BadParameter(f"is missing: {advice}", param_hint="POLICY")
    return {name: Path(path) for name, path in files.items()} or {"policy": None}
