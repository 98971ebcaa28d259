"""Which library, dtype and device an array has; only this folder knows libraries."""

import math
import sys
from typing import Any, TypeAlias

import array_api_compat
import array_api_compat.numpy
import numpy as np

from .._base import cached

Array: TypeAlias = Any  # no static type spans the arrays of several libraries

_SPACING = {  # the distance of 1 from the next number, by dtype
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
_DOUBLE = ("float64", "complex128")
HALF = ("float16", "bfloat16")
NOT_FINITE = "`weight` must be finite, got NaN or infinity in it."


def is_tensorflow_array(x: Any) -> bool:
    """Whether `x` is a tensor or a variable of TensorFlow, if that was imported."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, (tf.Tensor, tf.Variable))


_LIBRARIES = {  # those that the tests run with, and what recognizes their arrays
    "NumPy": array_api_compat.is_numpy_array,
    "torch": array_api_compat.is_torch_array,
    "JAX": array_api_compat.is_jax_array,
    "TensorFlow": is_tensorflow_array,
}


def namespace(x: Array) -> Any:
    """The array library of `x`, by the names of the array API standard."""
    if type(x) is np.ndarray:  # by far the most frequent question
        return array_api_compat.numpy
    if is_tensorflow_array(x):
        # A call of `import_module` is one that TensorFlow's AutoGraph warns of.
        from . import tensorflow

        return tensorflow
    return array_api_compat.array_namespace(x)


def check_weight(weight: Array) -> None:
    """Refuse what is not an array of finite floating-point numbers."""
    if type(weight) is np.ndarray and is_floating(weight):
        if not np.isfinite(weight).all():
            raise ValueError(NOT_FINITE)
        return
    if not _is_of_known_library(weight):
        *most, last = _LIBRARIES
        raise TypeError(
            f"`weight` must be a {', '.join(most)} or {last} array, got "
            f"{_full_name(type(weight))}. Convert it first, for example by "
            "`np.asarray`."
        )
    if not is_floating(weight):
        raise TypeError(
            "`weight` must be floating point (half, single or double, real or "
            f"complex), got {dtype_name(weight)}. Scale integers and quantized weights "
            "to what they stand for first."
        )
    if isinstance(weight, np.ma.MaskedArray):
        raise TypeError(
            "`weight` must have a number everywhere, got a masked array. Say what "
            "stands under the mask: `weight.filled(0)`."
        )
    if is_sparse(weight):
        raise TypeError(
            f"`weight` must be dense, got a tensor with the layout {_layout(weight)}. "
            "Convert it first, by `weight.to_dense()`."
        )
    if getattr(array_api_compat.device(weight), "type", None) == "meta":
        raise ValueError(
            "`weight` must hold numbers, got a tensor on the meta device. Materialize "
            "the model first."
        )
    if None in tuple(weight.shape):
        raise ValueError(
            f"`weight` must have a known shape, got {tuple(weight.shape)}. State it by "
            "`tf.ensure_shape`."
        )
    if not (is_traced(weight) or is_transformed(weight)):
        xp = namespace(weight)
        if not bool(xp.all(xp.isfinite(weight))):
            raise ValueError(NOT_FINITE)


def _is_of_known_library(x: Any) -> bool:
    """Whether `x` is an array of a library that the tests have tried.

    Others have the same functions, but a lazy array has no numbers to decide by, and
    what a library does where a factorization fails must be known.
    """
    if type(x).__module__.partition(".")[0] == "array_api_strict":
        return True
    return any(is_of_library(x) for is_of_library in _LIBRARIES.values())


def _full_name(kind: type) -> str:
    """With the package that it comes from, unless that is Python itself."""
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def dtype_name(x: Array) -> str:
    """The bare name of the dtype: "float32" in every library."""
    if isinstance(x.dtype, np.dtype):
        return _numpy_name(x.dtype)
    return getattr(x.dtype, "name", str(x.dtype).rpartition(".")[2])


@cached(maxsize=None)
def _numpy_name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy builds this string anew each time


def is_floating(x: Array) -> bool:
    """Whether `x` is in half, single or double precision, real or complex."""
    return dtype_name(x) in _SPACING


def is_sparse(x: Array) -> bool:
    """Whether `x` is a tensor of torch's that does not store all of its numbers."""
    return array_api_compat.is_torch_array(x) and _layout(x) != "torch.strided"


def _layout(x: Any) -> str:
    return str(x.layout)


def spacing(x: Array) -> float:
    """The distance of 1 from the next number in the dtype of `x`."""
    return _SPACING[dtype_name(x)]


def is_complex(x: Array) -> bool:
    return dtype_name(x).startswith("complex")


def is_host(x: Array) -> bool:
    """Whether `x` is an array of NumPy's own."""
    return type(x) is np.ndarray or array_api_compat.is_numpy_array(x)


def has_double(x: Array) -> bool:
    """Whether the device of `x` has double precision; a GPU of Apple's has not."""
    if is_host(x) or not array_api_compat.is_torch_array(x):
        return True
    return x.device.type == "cpu" or _torch_has_double(x.device)


@cached(maxsize=None)
def _torch_has_double(device: Any) -> bool:
    import torch

    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def is_traced(x: Array) -> bool:
    """Whether nobody can look at the numbers of `x`, in JAX or TensorFlow.

    A function under `jit` may close over an array of JAX that has numbers, but then no
    result that is computed of it has any.
    """
    if is_tensorflow_array(x):
        return namespace(x).is_symbolic(x)
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(x, jax.Array):
        return False
    tracer = jax.core.Tracer
    # Outside of a trace this gives `x` itself, and takes a few microseconds.
    return isinstance(x, tracer) or isinstance(jax.lax.stop_gradient(x), tracer)


def is_transformed(x: Array) -> bool:
    """Whether `x` is in a transformation of torch.func, or has a forward tangent."""
    if not array_api_compat.is_torch_array(x):
        return False
    is_wrapped, forward_ad = _torch_transformations()
    if is_wrapped(x):
        return True
    dual = forward_ad._current_level >= 0
    return dual and forward_ad.unpack_dual(x).tangent is not None


@cached(maxsize=None)
def _torch_transformations() -> tuple[Any, Any]:
    """What tells of torch.func, and of forward tangents: an import takes 10 us."""
    from torch._C._functorch import is_functorch_wrapped_tensor
    from torch.autograd import forward_ad

    return is_functorch_wrapped_tensor, forward_ad


def astype(x: Array, name: str) -> Array:
    xp = namespace(x)
    return xp.astype(x, getattr(xp, name))


def widen(x: Array) -> Array:
    """Half precision as single; all else as it is."""
    return astype(x, "float32") if dtype_name(x) in HALF else x


def to_complex(x: Array) -> Array:
    """Double precision as complex128, all else as complex64."""
    return astype(x, "complex128" if dtype_name(x) in _DOUBLE else "complex64")


def to_double(x: Array) -> Array:
    return astype(x, "complex128" if is_complex(x) else "float64")


def normalized(x: Array) -> tuple[Array, float]:
    """`x` in double precision over a power of two, so that its largest entry is near 1.

    Squares of what is computed from it neither overflow nor underflow.
    """
    if type(x) is np.ndarray and x.dtype.kind == "f":
        largest = max(float(x.max()), -float(x.min())) or 1.0
    else:
        xp = namespace(x)
        parts = (xp.real(x), xp.imag(x)) if is_complex(x) else (x,)
        largest = max(float(xp.max(part)) for part in parts)
        largest = max(largest, *(-float(xp.min(part)) for part in parts)) or 1.0
    scale = 2.0 ** min(max(round(math.log2(largest)), -1000), 1000)
    return to_double(x) * (1 / scale), scale


def frobenius_norm(x: Array) -> float:
    """The root of the sum of all squares."""
    xp = namespace(x)
    flat = xp.reshape(x, (-1,))
    return math.sqrt(complex(xp.vecdot(flat, flat)).real)


def device_of(x: Array) -> Any:
    """Where new arrays go that meet `x`; None, JAX's choice, if `x` is sharded."""
    found = array_api_compat.device(x)
    return None if len(getattr(found, "device_set", ())) > 1 else found


def asarray_like(x: Array, values: np.ndarray) -> Array:
    """Floating-point `values` in the library, dtype and device of `x`."""
    if is_host(x):
        return np.asarray(values, dtype=x.dtype)
    return namespace(x).asarray(values, dtype=x.dtype, device=device_of(x))


def zeros_for(x: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of this shape in the library, dtype and device of `x`."""
    return namespace(x).zeros(shape, dtype=x.dtype, device=device_of(x))


def indices_like(x: Array, indices: np.ndarray) -> Array:
    """Integer `indices` in the library and on the device of `x`."""
    return namespace(x).asarray(indices.astype(np.int32), device=device_of(x))


def to_numpy(x: Array) -> np.ndarray:
    if is_tensorflow_array(x):
        return x.numpy()
    if array_api_compat.is_torch_array(x):  # whose sign may be due, or conjugation
        x = x.detach().cpu().resolve_conj().resolve_neg()
    return np.asarray(x)


def adjoint(x: Array) -> Array:
    """The conjugate transpose over the last two axes."""
    return conj(namespace(x).matrix_transpose(x))


def conj(x: Array) -> Array:
    return namespace(x).conj(x) if is_complex(x) else x


def stop_gradient(x: Array) -> Array:
    """`x` cut off from automatic differentiation."""
    if is_tensorflow_array(x):
        return namespace(x).stop_gradient(x)
    if is_traced(x):
        import jax

        return jax.lax.stop_gradient(x)
    return x.detach() if array_api_compat.is_torch_array(x) else x
