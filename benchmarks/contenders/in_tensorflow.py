"""In TensorFlow: the paper's lines, traced before anything is timed; convspectra."""

import tensorflow as tf

from ..cases import Task
from . import Contender, Function, not_strided_nor_pointwise
from .ours import ours


def values(kernel: tf.Tensor, task: Task) -> tf.Tensor:
    """The singular values of the transformed kernel, frequency by frequency."""
    return tf.linalg.svd(_transform(kernel, task), compute_uv=False)


def norm(kernel: tf.Tensor, task: Task) -> tf.Tensor:
    """The largest of all values."""
    return tf.reduce_max(values(kernel, task))


def clip(kernel: tf.Tensor, task: Task) -> tf.Tensor:
    """Clip the values at every frequency, transform back, and crop."""
    s, u, v = tf.linalg.svd(_transform(kernel, task))
    clipped = tf.cast(tf.minimum(s, task.max_norm), u.dtype)
    h = tf.matmul(u * clipped[..., None, :], v, adjoint_b=True)
    back = tf.signal.ifft2d(tf.transpose(h, (2, 3, 0, 1)))
    k = task.case.kernel
    return tf.math.real(back)[..., :k, :k]


def _transform(kernel: tf.Tensor, task: Task) -> tf.Tensor:
    pad = (0, task.case.grid - task.case.kernel)
    padded = tf.pad(kernel, ((0, 0), (0, 0), pad, pad))
    h = tf.signal.fft2d(tf.cast(padded, tf.complex64))
    return tf.transpose(h, (2, 3, 0, 1))  # (n, n, out, in)


def _compiled(function: Function, kernel: tf.Tensor) -> Function:
    call = tf.function(function).get_concrete_function(kernel)
    return lambda kernel: call(kernel).numpy()


CONTENDERS = (
    Contender(
        "paper, TensorFlow",
        {"values": values, "norm": norm, "clip": clip},
        tf.constant,
        _compiled,
        not_strided_nor_pointwise,
    ),
    ours("TensorFlow", tf.constant),
)
