"""The paper's lines in JAX, compiled before anything is timed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .contender import Contender, Run, Task, not_strided_nor_pointwise


def fft_values(task: Task) -> Run:
    """The values of the transformed kernel, frequency by frequency."""
    return _compiled(lambda kernel: _values(kernel, task.case.grid), task)


def fft_norm(task: Task) -> Run:
    """The largest of all values."""
    return _compiled(lambda kernel: _values(kernel, task.case.grid).max(), task)


def fft_clip(task: Task) -> Run:
    """Clip the values at every frequency, transform back, and crop."""

    def clip(kernel: jax.Array) -> jax.Array:
        h = _transform(kernel, task.case.grid)
        u, s, vh = jnp.linalg.svd(h, full_matrices=False)
        clipped = jnp.matmul(u * jnp.minimum(s, task.level)[..., None, :], vh)
        k = kernel.shape[0]
        back = jnp.fft.ifft2(clipped, axes=(0, 1)).real[:k, :k]
        return back.transpose(3, 2, 0, 1)

    return _compiled(clip, task)


def _compiled(function: Callable[[jax.Array], jax.Array], task: Task) -> Run:
    kernel = jnp.asarray(task.weight.transpose(2, 3, 1, 0))
    call = jax.jit(function).lower(kernel).compile()
    return lambda: call(kernel).block_until_ready()


def _values(kernel: jax.Array, n: int) -> jax.Array:
    return jnp.linalg.svd(_transform(kernel, n), compute_uv=False)


def _transform(kernel: jax.Array, n: int) -> jax.Array:
    return jnp.fft.fft2(kernel, (n, n), axes=(0, 1))  # (n, n, in, out)


CONTENDERS = (
    Contender(
        "paper, JAX",
        {"values": fft_values, "norm": fft_norm, "clip": fft_clip},
        not_strided_nor_pointwise,
    ),
)
