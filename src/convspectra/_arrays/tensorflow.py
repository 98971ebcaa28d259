"""TensorFlow's tensors by the names of the array API standard, as far as we call it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from .array import Array

float32, float64 = tf.float32, tf.float64
complex64, complex128 = tf.complex64, tf.complex128
int64 = tf.int64

abs, conj, exp, log, sqrt = tf.abs, tf.math.conj, tf.exp, tf.math.log, tf.sqrt
real, imag = tf.math.real, tf.math.imag
matmul, reshape, permute_dims = tf.matmul, tf.reshape, tf.transpose
concat, stack, where = tf.concat, tf.stack, tf.where
ones_like, zeros_like = tf.ones_like, tf.zeros_like
matrix_transpose, count_nonzero = tf.linalg.matrix_transpose, tf.math.count_nonzero
all, sum = tf.reduce_all, tf.reduce_sum
max, min = tf.reduce_max, tf.reduce_min
stop_gradient = tf.stop_gradient


def asarray(values: Any, *, dtype: Any = None, device: str | None = None) -> Array:
    values = np.asarray(values)
    if dtype is not None:
        values = values.astype(dtype.as_numpy_dtype)
    with tf.device(device or None):  # in a graph, a tensor's device may be ""
        return tf.convert_to_tensor(values)


def astype(x: Array, dtype: Any) -> Array:
    if dtype.is_complex and not x.dtype.is_complex:
        # TensorFlow warns of the derivative of a cast to complex numbers.
        part = tf.cast(x, dtype.real_dtype)
        return tf.complex(part, tf.zeros_like(part))
    return tf.cast(x, dtype)


def clip(x: Array, *, min: float | None = None, max: float | None = None) -> Array:
    x = x if min is None else tf.maximum(x, tf.constant(min, x.dtype))
    return x if max is None else tf.minimum(x, tf.constant(max, x.dtype))


def isfinite(x: Array) -> Array:
    if not x.dtype.is_complex:
        return tf.math.is_finite(x)
    return tf.math.is_finite(real(x)) & tf.math.is_finite(imag(x))


def take(x: Array, indices: Array, *, axis: int) -> Array:
    return tf.gather(x, indices, axis=axis)


def finfo(dtype: Any) -> Any:
    return np.finfo(dtype.as_numpy_dtype)


def _svdvals(x: Array) -> Array:
    return tf.linalg.svd(x, compute_uv=False)


linalg = SimpleNamespace(svdvals=_svdvals)


def is_symbolic(x: Array) -> bool:
    """Whether the numbers of `x` are not there yet: in a graph, none are."""
    return tf.is_symbolic_tensor(x) or not tf.executing_eagerly()


def is_recorded() -> bool:
    """Whether some gradient tape may be recording."""
    return could_possibly_record()


def is_on_cpu(x: Array) -> bool:
    return tf.DeviceSpec.from_string(x.device).device_type in (None, "CPU")


def call_in_graph(
    f: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    weight: Array,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[Any],
) -> tuple[Array, ...]:
    """Have `f` called on the numbers of `weight` whenever the graph runs."""
    if tf.__internal__.get_enclosing_xla_context() is not None:
        raise ValueError(
            "A function that is compiled by XLA must not look at numbers, and a "
            "certified norm does. Set `jit_compile=False`: in Keras, "
            "`model.compile(..., jit_compile=False)`."
        )
    found = tf.numpy_function(f, [tf.stop_gradient(weight)], dtypes, stateful=False)
    return tuple(tf.ensure_shape(x, shape) for x, shape in zip(found, shapes))
