"""Two inputs of a model whose outputs are far apart, compared with themselves."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node as Step

from ._program import Program, arguments, computed, in_double, is_real

# Of random directions, one after the other until one changes the output. Nobody uses
# these: an example that a user draws with the same seed would be the direction itself,
# along which many functions are constant or linear.
SEEDS = (0x9E3779B9, 0x7F4A7C15, 0xF39CC060)
STEPS = 30  # of power iteration, at most
SETTLED = 1e-3  # the relative growth in a step after which no more are made
DISTANCE = 1e-3  # of the two inputs, relative to the size of the first
# What rounding may add to a result, in units of its precision times the result's norm.
RESULT_UNITS = 2.0**5
# What rounding may add to a difference of outputs, in units of the precision times the
# largest norm of an array on the way: thousands, as it accumulates.
UNITS = 2.0**12


def largest_quotient(program: Program, constants: Mapping[Step, Any]) -> float:
    """A large |f(x) - f(y)| / |x - y|, for the example x and some y near it.

    Zero if the program cannot be computed in double precision.
    """
    best = 0.0
    with contextlib.suppress(Exception):  # of an operator without a derivative, say
        for seed in SEEDS:
            for quotient in _quotients(program, constants, seed):
                if not quotient > (1 + SETTLED) * best:
                    break
                best = quotient
            if best > 0:
                break
    return best if math.isfinite(best) else 0.0


def computes_the_same(
    program: Program, constants: Mapping[Step, Any], model: nn.Module
) -> bool:
    """Whether program and model give the same, at the example and away from it.

    And change alike from one to the other, as far as the model's precision tells. Where
    results are infinite, as masks make them, both must be.
    """
    here = [program.given[step] for step in program.inputs]
    way = _random_like(here, SEEDS[0])
    size = (_length(here) or 1.0) / max(_length(way), 1e-300)
    there = [x + size * d.to(x) for x, d in zip(here, way)]
    try:
        found = [
            _results(program, constants, [x.double() for x in inputs])[0]
            for inputs in (here, there)
        ]
    except Exception:  # an operator that insists on its precision: nothing to see
        return True
    expected = [_row(program.called(model, inputs)) for inputs in (here, there)]
    if [x.shape for x in found] != [x.shape for x in expected]:
        return False
    if found[0].shape != found[1].shape:  # which depends on the input's numbers
        return True
    finite = torch.stack(expected).isfinite().all(0)
    found, expected = ([x[finite] for x in rows] for rows in (found, expected))
    rounding, largest = program.rounding(), max(float(x.norm()) for x in expected)
    for a, b in zip(_with_change(found), _with_change(expected)):
        allowed = rounding ** (1 / 3) * float(b.norm())
        allowed += RESULT_UNITS * rounding * largest + 1e-30
        if not float((a - b).norm()) <= allowed:
            return False
    return True


def _with_change(rows: list[Tensor]) -> list[Tensor]:
    here, there = rows
    return [here, there, there - here]


@torch.enable_grad()
def _quotients(
    program: Program, constants: Mapping[Step, Any], seed: int
) -> Iterator[float]:
    """Quotients that grow, by power iteration with the Jacobian.

    A difference of outputs is its product with a direction; autograd has that of its
    transpose. All of them are attained, also where the function has kinks.
    """
    x = [program.given[step].double().requires_grad_() for step in program.inputs]
    here, size = _results(program, constants, x)
    distance = DISTANCE * (_length(x) or 1.0)
    way = _random_like(x, seed)
    for _ in range(STEPS):
        length = _length(way)
        if not 0 < length < math.inf:
            return
        with torch.no_grad():
            y = [part + distance / length * d for part, d in zip(x, way)]
            apart = _length([b - a for a, b in zip(x, y)])
            if not apart > 0:
                return
            there, other_size = _results(program, constants, y)
            change = there - here
            noise = UNITS * torch.finfo(torch.float64).eps * max(size, other_size)
        yield (float(change.norm()) - noise) / apart
        found = torch.autograd.grad(here, x, change, True, allow_unused=True)
        way = [torch.zeros_like(a) if g is None else g for a, g in zip(x, found)]


def _results(
    program: Program, constants: Mapping[Step, Any], inputs: list[Tensor]
) -> tuple[Tensor, float]:
    """The real results of a program in one row, and the largest norm on the way."""
    known = {**constants, **dict(zip(program.inputs, inputs))}
    size = 0.0
    for step in program.calls():
        if step not in known:
            known[step] = computed(step, in_double(step, arguments(step, known)))
            if is_real(known[step]):
                size = max(size, float(known[step].detach().norm()))
    return _row([known[step] for step in program.outputs]), size


def _row(results: list[Any]) -> Tensor:
    rows = [x.double().flatten() for x in results if is_real(x)]
    return torch.cat([*rows, torch.zeros(0, dtype=torch.float64)])


def _random_like(parts: list[Tensor], seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(part.shape, generator=rng).to(part) for part in parts]


def _length(parts: list[Tensor]) -> float:
    return math.sqrt(
        sum(float(part.detach().double().square().sum()) for part in parts)
    )
