"""Docstrings list the parameters that functions have: all of them, in their order, under their names."""

import ast
import re

import pytest
from imports import functions

MOST_IN_PROSE = 3


def parameters(function):
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def listed(docstring):
    """The names of an `Args:` list; None where there is no list."""
    block = re.search(r"^Args:\n((?: +.*\n?)+)", docstring, re.MULTILINE)
    if block is None:
        return None
    heads = re.findall(r"^ {4}(\w[\w, ]*): ", block[1], re.MULTILINE)
    return [name.strip() for head in heads for name in head.split(",")]


WITH_LIST = [
    pytest.param(function, names, id=f"{module}.{function.name}")
    for module, function in functions()
    if (names := listed(ast.get_docstring(function) or "")) is not None
]


@pytest.mark.parametrize(("function", "names"), WITH_LIST)
def test_a_list_has_every_parameter(function, names):
    assert sorted(names) == sorted(parameters(function))


MANY = [
    pytest.param(ast.get_docstring(function), id=f"{module}.{function.name}")
    for module, function in functions()
    if len(parameters(function)) > MOST_IN_PROSE
    and ast.get_docstring(function)
    and not function.name.startswith("_")
    and not module.startswith("cli.")  # whose options explain themselves
]


@pytest.mark.parametrize("docstring", MANY)
def test_functions_of_many_parameters_list_them(docstring):
    assert listed(docstring)


def test_a_list_is_read():
    docstring = (
        "What it does.\n\nArgs:\n    a, b: one thing,\n        and more: of it.\n    c: another.\n\nRaises no error."
    )
    assert listed(docstring) == ["a", "b", "c"]
    assert listed("What a and b are.") is None
