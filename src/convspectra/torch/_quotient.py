"""Two inputs of a model whose outputs are far apart, compared with themselves."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node as Step

from ._program import Program, arguments, computed, is_random, is_real

STEPS = 30  # of power iteration, at most
SETTLED = 1e-3  # the relative growth in a step after which no more are made
DISTANCE = 1e-3  # of the two inputs, relative to the size of the first
# What rounding may add to a difference of outputs, in units of the precision times the
# largest norm of an array on the way: thousands, as it accumulates.
UNITS = 2.0**12


def largest_quotient(program: Program, constants: Mapping[Step, Any]) -> float:
    """A large |f(x) - f(y)| / |x - y|, for the example x and some y near it.

    Zero if the function is random, or cannot be computed in double precision.
    """
    best = 0.0
    if any(map(is_random, program.calls())):
        return best
    try:
        for quotient in _quotients(program, constants):
            if not quotient > (1 + SETTLED) * best:
                break
            best = quotient
    except (RuntimeError, TypeError):  # of an operator that has no derivative, say
        pass
    return best


@torch.enable_grad()
def _quotients(program: Program, constants: Mapping[Step, Any]) -> Iterator[float]:
    """Quotients that grow, by power iteration with the Jacobian.

    A difference of outputs is its product with a direction; autograd has that of its
    transpose. All of them are attained, also where the function has kinks.
    """
    x = [program.given[step].clone().requires_grad_() for step in program.inputs]
    here, size = _results(program, constants, x)
    length = _length(x)
    distance = DISTANCE * (length if length > 0 else 1.0)
    rng = torch.Generator().manual_seed(0)
    way = [torch.randn(part.shape, generator=rng).to(part) for part in x]
    for _ in range(STEPS):
        length = _length(way)
        if not 0 < length < math.inf:
            return
        with torch.no_grad():
            y = [part + distance / length * d for part, d in zip(x, way)]
            there, other_size = _results(program, constants, y)
            change = there - here
            noise = UNITS * torch.finfo(torch.float64).eps * max(size, other_size)
            apart = _length([b - a for a, b in zip(x, y)])
        yield (float(change.norm()) - noise) / apart
        found = torch.autograd.grad(here, x, change, True, allow_unused=True)
        way = [torch.zeros_like(a) if g is None else g for a, g in zip(x, found)]


def _results(
    program: Program, constants: Mapping[Step, Any], inputs: list[Tensor]
) -> tuple[Tensor, float]:
    """The real results of a model in one row, and the largest norm on the way."""
    known = {**constants, **dict(zip(program.inputs, inputs))}
    size = 0.0
    for step in program.calls():
        if step not in known:
            known[step] = computed(step, arguments(step, known))
            if is_real(known[step]):
                size = max(size, float(known[step].detach().norm()))
    rows = [known[step].flatten() for step in program.outputs if is_real(known[step])]
    return torch.cat([*rows, torch.zeros(0, dtype=torch.float64)]), size


def _length(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.detach().square().sum()) for part in parts))
