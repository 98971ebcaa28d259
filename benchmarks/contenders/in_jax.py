"""In JAX: the paper's lines, compiled before anything is timed; convspectra."""

import jax
import jax.numpy as jnp

from . import Contender, Function, not_strided_nor_pointwise
from .ours import ours
from .paper import LAYOUT, paper_jobs


def _compiled(function: Function, kernel: jax.Array) -> Function:
    call = jax.jit(function).lower(kernel).compile()
    return lambda kernel: call(kernel).block_until_ready()


CONTENDERS = (
    Contender(
        "paper, JAX",
        paper_jobs(jnp),
        lambda weight: jnp.asarray(weight.transpose(LAYOUT)),
        _compiled,
        not_strided_nor_pointwise,
    ),
    ours("JAX", jnp.asarray, jax.block_until_ready),
)
