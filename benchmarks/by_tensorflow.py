"""The paper's lines in TensorFlow, traced and compiled before anything is timed."""

from collections.abc import Callable

import tensorflow as tf

from .cases import Case
from .contender import Contender, Run, Task, not_strided_nor_pointwise


def fft_values(task: Task) -> Run:
    """The values of the transformed kernel, frequency by frequency."""
    return _traced(lambda kernel: _values(kernel, task.case), task)


def fft_norm(task: Task) -> Run:
    """The largest of all values."""
    return _traced(lambda k: tf.reduce_max(_values(k, task.case)), task)


def fft_clip(task: Task) -> Run:
    """Clip the values at every frequency, transform back, and crop."""

    def clip(kernel: tf.Tensor) -> tf.Tensor:
        s, u, v = tf.linalg.svd(_transform(kernel, task.case))
        least = tf.cast(tf.minimum(s, task.level), u.dtype)
        clipped = tf.matmul(u * least[..., None, :], v, adjoint_b=True)
        back = tf.signal.ifft2d(tf.transpose(clipped, (2, 3, 0, 1)))
        k = task.case.kernel
        return tf.math.real(back)[..., :k, :k]

    return _traced(clip, task)


def _traced(function: Callable[[tf.Tensor], tf.Tensor], task: Task) -> Run:
    kernel = tf.constant(task.weight)
    call = tf.function(function).get_concrete_function(kernel)
    return lambda: call(kernel).numpy()


def _values(kernel: tf.Tensor, case: Case) -> tf.Tensor:
    return tf.linalg.svd(_transform(kernel, case), compute_uv=False)


def _transform(kernel: tf.Tensor, case: Case) -> tf.Tensor:
    more = (0, case.grid - case.kernel)
    padded = tf.pad(kernel, ((0, 0), (0, 0), more, more))
    h = tf.signal.fft2d(tf.cast(padded, tf.complex64))
    return tf.transpose(h, (2, 3, 0, 1))  # (n, n, out, in)


CONTENDERS = (
    Contender(
        "paper, TensorFlow",
        {"values": fft_values, "norm": fft_norm, "clip": fft_clip},
        not_strided_nor_pointwise,
    ),
)
