"""Which values of a function something reads, which only its whole trace tells."""

from itertools import count
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Jaxpr, Var, jaxprs_in_params

NUMBERED, NOT_COUNTED = "convspectra number ", "convspectra reader"
# JAX keeps what it has traced for `jit`: numbers of an earlier trace must be others.
NUMBERS = count()


def numbered(x: jax.Array) -> tuple[jax.Array, int]:
    """`x`, and the number for which `numbers_read` then looks."""
    number = next(NUMBERS)
    return checkpoint_name(x, f"{NUMBERED}{number}"), number


def not_counted(x: jax.Array) -> jax.Array:
    """`x` for a reader that does not count."""
    return checkpoint_name(x, NOT_COUNTED)


def numbers_read(jaxpr: Jaxpr) -> set[int]:
    """The numbers of the values that anything reads; results of a function are read."""
    numbers: dict[Any, int] = {}
    found: set[int] = set()

    def read(values: Any) -> None:
        found.update(numbers[x] for x in values if isinstance(x, Var) and x in numbers)

    for equation in jaxpr.eqns:
        for inner in jaxprs_in_params(equation.params):
            found |= numbers_read(inner)
        name = equation.primitive.name == "name" and equation.params["name"]
        if name != NOT_COUNTED:
            read(equation.invars)
        if name and name.startswith(NUMBERED):
            numbers[equation.outvars[0]] = int(name.removeprefix(NUMBERED))
    read(jaxpr.outvars)
    return found
