"""Two inputs of a model whose outputs are far apart, compared with themselves."""

import math

import torch
from torch import Tensor

from ._program import Program

STEPS = 30  # of power iteration, at most
SETTLED = 1e-3  # the relative growth in a step after which no more are made
STEP = 1e-3  # the distance of the two inputs, relative to the size of the first
# What rounding may add to a difference of outputs, relative to their sizes, in units of
# the precision: thousands, as it accumulates from layer to layer.
UNITS = 2.0**12


def largest_quotient(program: Program) -> float:
    """A large |f(x) - f(y)| / |x - y|, for the example x and some y near it.

    By power iteration with the Jacobian: it is multiplied with by a difference of
    outputs, its transpose by autograd. Every quotient on the way is attained,
    wherever the function may have kinks.
    """
    try:
        return _ascended(program, torch.float64)
    except RuntimeError:  # a graph that insists on its own precision
        return _ascended(program, torch.float32)


@torch.enable_grad()
def _ascended(program: Program, dtype: torch.dtype) -> float:
    f = program.function(dtype)
    x = [program.given[i].detach().to(dtype).requires_grad_() for i in program.inputs]
    here = f(x)
    size = _length([part.detach() for part in x])
    step = STEP * (size if size > 0 else 1.0)
    rng = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=rng, dtype=dtype).to(p) for p in x]
    best = 0.0
    for _ in range(STEPS):
        length = _length(direction)
        if not (0 < length < math.inf):
            break
        with torch.no_grad():
            moved = [p + step / length * d for p, d in zip(x, direction)]
            apart = _length([b - a for a, b in zip(x, moved)])
            there = f(moved)
            change = there - here
            noise = UNITS * torch.finfo(dtype).eps * (here.norm() + there.norm())
            quotient = float(change.norm() - noise) / apart
        if not math.isfinite(quotient):
            break
        grown, best = quotient > (1 + SETTLED) * best, max(best, quotient)
        if not grown or not here.requires_grad:
            break
        found = torch.autograd.grad(here, x, change, True, allow_unused=True)
        direction = [torch.zeros_like(p) if g is None else g for p, g in zip(x, found)]
    return best


def _length(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))
