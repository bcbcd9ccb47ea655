"""The longest chain of dependent steps of a program: turns of loops, which wait for one another on any device."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

#: Equations that hold a program of their own, under one of these names.
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def loops(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """Turns of the loops of a program, one after the other, by the loops around them: "while 3 > scan 80": 240.

    Loops whose turns are known beforehand are counted, the others run, with these arguments.
    """
    program = jax.make_jaxpr(function)(*args)
    counts: dict[str, int] = {}
    _run(program, jax.tree.leaves(args), (), counts)
    return counts


def _run(program: core.ClosedJaxpr, args: Sequence[Any], around: tuple[str, ...], counts: dict[str, int]) -> list[Any]:
    """What the program returns; its loops are added to the counts."""
    jaxpr = program.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        inner = next((equation.params[name] for name in _INNER if name in equation.params), None)
        if equation.primitive.name == "while":
            results = _turn(equation.params, inputs, around, counts)
        elif isinstance(inner, core.ClosedJaxpr) and equation.primitive.name != "scan":
            results = _run(inner, inputs, around, counts)
        else:
            _count(equation, around, 1, counts)
            results = equation.primitive.bind(*inputs, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
        values |= zip(equation.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _turn(params: dict[str, Any], inputs: list[Any], around: tuple[str, ...], counts: dict[str, int]) -> list[Any]:
    """A loop that ends when it will, turn after turn."""
    n, m = params["cond_nconsts"], params["body_nconsts"]
    condition, body, state = inputs[:n], inputs[n : n + m], inputs[n + m :]
    turns, within = 0, {}
    while np.any(going := np.asarray(_run(params["cond_jaxpr"], [*condition, *state], (), {})[0])):
        after = _run(params["body_jaxpr"], [*body, *state], (), within)
        if going.ndim:  # of a batch of loops, those that are done keep what they have
            after = [
                np.where(going.reshape(going.shape + (1,) * (np.ndim(new) - going.ndim)), new, old)
                for new, old in zip(after, state, strict=True)
            ]
        state = after
        turns += 1
    _add(counts, (*around, f"while {turns}"), turns if not within else 0)
    for path, count in within.items():
        _add(counts, (*around, f"while {turns}", path), count)
    return state


def _count(equation: Any, around: tuple[str, ...], times: int, counts: dict[str, int]) -> None:
    """Count the loops within an equation, which all have known numbers of turns."""
    scanning = equation.primitive.name == "scan"
    if scanning:
        turns = -(-equation.params["length"] // equation.params["unroll"])
        around, times = (*around, f"scan {turns}"), times * turns
    before = sum(counts.values())
    for value in jax.tree.leaves(dict(equation.params), is_leaf=lambda leaf: isinstance(leaf, core.ClosedJaxpr)):
        if isinstance(value, core.ClosedJaxpr):
            for inner in value.jaxpr.eqns:
                _count(inner, around, times, counts)
    if scanning and sum(counts.values()) == before:
        _add(counts, around, times)


def _add(counts: dict[str, int], path: tuple[str, ...], turns: int) -> None:
    if turns:
        name = " > ".join(path)
        counts[name] = counts.get(name, 0) + turns
