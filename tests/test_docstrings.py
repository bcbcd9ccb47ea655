"""Docstrings list the parameters that functions have: all of them, in their order, under their names."""

import ast
import re

import pytest
from imports import functions

MAX_IN_PROSE = 3


def parameters(function):
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def starred(function):
    """The names of what takes any number of arguments, which a list may have."""
    return {one.arg for one in (function.args.vararg, function.args.kwarg) if one is not None}


def listed(docstring):
    """The names of an `Args:` list; None where there is no list."""
    block = re.search(r"^Args:\n((?: +.*\n?)+)", docstring, re.MULTILINE)
    if block is None:
        return None
    heads = re.findall(r"^ {4}(\w[\w, ]*): ", block[1], re.MULTILINE)
    return [name.strip() for head in heads for name in head.split(",")]


@pytest.fixture(scope="module")
def documented():
    """Every function that has a docstring: the name of its module, the function, and the docstring."""
    return [(module, function, text) for module, function in functions() if (text := ast.get_docstring(function))]


def test_a_list_of_arguments_has_every_parameter(documented):
    lists = [(module, function, names) for module, function, text in documented if (names := listed(text)) is not None]
    wrong = [
        f"{module}.{function.name} lists {names}, but has {parameters(function)}"
        for module, function, names in lists
        # Of a command the list is the help of its own options; those that several have bring their help along.
        for own in [parameters(function)]
        if sorted({*names} - starred(function)) != sorted({*own} & {*names} if module.startswith("cli.") else own)
    ]
    assert len(lists) > 200
    assert wrong == []


def test_functions_of_many_parameters_list_them(documented):
    many = [
        (f"{module}.{function.name}", text)
        for module, function, text in documented
        if len(parameters(function)) > MAX_IN_PROSE
        and not function.name.startswith("_")
        and not module.startswith("cli.")  # whose options explain themselves
    ]
    assert len(many) > 100
    assert [name for name, text in many if not listed(text)] == []
