"""Records as options: a command that takes a record has an option for each of the record's fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from rcjax.cli import parsers
from rcjax.policy.spec import HELP, OUTPUT, PANELS, TARGET, Spec, SpecError

_BY_NAME = inspect.Parameter.KEYWORD_ONLY

#: The panels that `--help` shows; the others come by `--help-all`.
_SHORT = (None, TARGET, OUTPUT)
_ALL = "rcjax.cli.help_all"


class LongHelp(TyperCommand):
    """A command with many options: `--help` shows those that most people need, `--help-all` every one."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Print the help, without what only `--help-all` shows, unless it is that."""
        long = any(option.name == "help_all" for option in self.params)
        rest = [option for option in self.params if long and getattr(option, "rich_help_panel", None) not in _SHORT]
        for option in rest:
            option.hidden = _ALL not in ctx.meta  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        for option in rest:  # what is hidden is not completed
            option.hidden = False  # type: ignore[attr-defined]


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_help_all, is_eager=True, help="Show every option and exit.")
]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, each of whose parameters that is a record becomes options for the record's fields.

    Annotated as `Spec` it takes all fields that the line offers, as `Annotated[Spec, "budget", …]` those that are
    named; a parameter of the command's own stands for the field of its name. Options stand in the order of their
    panels. Fields that do not go together are a usage error, in the words of the command line.
    """
    own = inspect.signature(command, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[Any, list[str]]] = {}
    for parameter in own.values():
        hint = parameter.annotation
        kind, *names = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=_BY_NAME))
            continue
        offered = [one for one in _options(kind) if not names or one.name in names]
        records[parameter.name] = kind, [option.name for option in offered if option.name not in own]
        parameters += [own.get(option.name, option).replace(kind=_BY_NAME) for option in offered]
    if any(_panel(one) not in _SHORT for one in parameters):
        parameters.append(inspect.Parameter("help_all", _BY_NAME, default=False, annotation=_HelpAll))
    parameters = sorted({one.name: one for one in parameters}.values(), key=_place)

    @wraps(command)
    def called(*, help_all: bool = False, **given: Any) -> None:
        for name, (kind, options) in records.items():
            values = {option: given.pop(option) for option in options}
            try:
                given[name] = kind(**{option: value for option, value in values.items() if value is not None})
            except SpecError as problem:
                raise usage(problem) from None
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] - typer asks for it
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _options(kind: Any) -> list[inspect.Parameter]:
    """The parameters of a command for the fields of a record: annotated as options are, or those of `Spec`."""
    if kind is Spec:
        return [_of_spec(field) for field in fields(Spec) if field.metadata["panel"] is not None]
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(field.name, _BY_NAME, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
    ]


def usage(problem: SpecError) -> typer.BadParameter:
    """What does not go together, in the words of the command line."""
    return typer.BadParameter(problem.say(option_name), param_hint=problem.option and option_name(problem.option))


def checked(spec: Spec) -> None:
    """A usage error where options do not go together (`Spec.check`)."""
    try:
        spec.check()
    except SpecError as problem:
        raise usage(problem) from None


def option_name(name: str) -> str:
    """An option as the command line has it.

    >>> option_name("max_error")
    '--max-error'
    """
    return "--" + name.replace("_", "-")


def _of_spec(each: Field[Any]) -> inspect.Parameter:
    """The parameter of a command for a field of `Spec`."""
    told, kind, default = each.metadata, bool, each.default
    how: dict[str, Any] = {"help": HELP[each.name], "rich_help_panel": told["panel"]}
    if told["form"] is not None:
        metavar, parser = told["form"]
        how |= {"metavar": metavar, "parser": getattr(parsers, parser, str)}
        kind, default = Any, None
    option = typer.Option(told["flag"] or option_name(each.name), **how)
    return inspect.Parameter(each.name, _BY_NAME, default=default, annotation=Annotated[kind, option])


def _panel(parameter: inspect.Parameter) -> str | None:
    return getattr(get_args(parameter.annotation)[1], "rich_help_panel", None)


def _place(parameter: inspect.Parameter) -> tuple[int, bool]:
    """The place of a parameter's panel, of which none is the first, and whether it is a flag: these come last."""
    panel = _panel(parameter)
    return (1 + PANELS.index(panel) if panel in PANELS else 0), get_args(parameter.annotation)[0] is bool
