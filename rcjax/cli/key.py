"""`rcjax key`: keys for the clients of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rcjax.cli.inputs import require_libraries
from rcjax.cli.options import AsJson
from rcjax.cli.printing import print_json


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
    from rcjax.serving.gateway.keys import add_key

    made = add_key(name, keys)
    if json_:
        print_json({"name": name, "key": made, "keys": str(keys)})
        return
    typer.echo(made)
    typer.echo(f"{keys} has its hash: this key is not shown again", err=True)
