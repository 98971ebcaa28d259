"""Calls that decide by the values of an array, also under `jit` and `grad`.

From an array of any library to NumPy's, and back:

    to_numpy         a NumPy array of any array whose numbers are known, cut off from
                     automatic differentiation (in `array.py`)
    detach_to_numpy  the same for what the CPU is to compute; torch's arrays on a GPU
                     with double precision, and in half precision, stay torch's
    numpy_or_none    the same, but None for what another device is to compute, and
                     where somebody may ask for derivatives
    numpy_view       NumPy's and torch's arrays on the CPU alone, in the same memory;
                     None for all others, and where somebody may ask for derivatives
    from_numpy       the way back: to the library and device of a given array
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from .array import (
    HALF,
    Array,
    asarray_like,
    conj,
    device_of,
    dtype_name,
    has_double,
    is_complex,
    is_floating,
    is_host,
    is_sparse,
    is_tensorflow_array,
    is_traced,
    is_transformed,
    namespace,
    stop_gradient,
    to_numpy,
)
from .sharding import split_like
from .threads import in_our_thread, one_blas_thread

T = TypeVar("T")
# How `call_on_host` rounds a number where there is no double precision.
ROUND_DOWN, ROUND_NEAREST, ROUND_UP = -1, 0, 1


def detach_to_numpy(weight: Array) -> Array:
    """`weight` cut off from automatic differentiation, as NumPy's if on the CPU.

    What follows decides by values, and JAX would compile each of its new shapes. It
    computes in double precision: what is on a device without it comes to the CPU.
    """
    if array_api_compat.is_jax_array(weight) or is_tensorflow_array(weight):
        return to_numpy(weight)
    weight = to_double_device(stop_gradient(weight))
    if _is_torch_on_cpu(weight) and dtype_name(weight) not in HALF:
        return weight.resolve_conj().resolve_neg().numpy()
    return weight


def to_double_device(x: Array) -> Array:
    """`x` where there is double precision: on its own device, or else on the CPU."""
    return x if has_double(x) else x.cpu()


def numpy_or_none(weight: Array) -> np.ndarray | None:
    """`weight` as a NumPy array, or None for what its own library has to compute.

    That is an array on another device that has double precision, an array of torch's in
    half precision, and one whose derivative somebody may ask for.
    """
    if is_differentiated(weight):
        return None
    if array_api_compat.is_jax_array(weight):
        platforms = {device.platform for device in weight.devices()}
        return np.asarray(weight) if platforms == {"cpu"} else None
    if is_tensorflow_array(weight) and not namespace(weight).is_on_cpu(weight):
        return None
    plain = detach_to_numpy(weight)
    return plain if is_host(plain) else None


def numpy_view(weight: Array) -> np.ndarray | None:
    """The numbers of NumPy's and torch's arrays on the CPU, without a copy of them.

    None for all others, and if somebody may ask for derivatives.
    """
    if type(weight) is np.ndarray:
        return weight
    if not _is_torch_on_cpu(weight) or is_differentiated(weight):
        return None
    if not is_floating(weight) or is_sparse(weight):  # which `check_weight` refuses
        return None
    plain = detach_to_numpy(weight)
    return plain if is_host(plain) else None


def from_numpy(weight: Array, found: np.ndarray) -> Array:
    """An array of NumPy's in the library and on the device of `weight`."""
    return namespace(weight).asarray(found, device=device_of(weight))


def _is_torch_on_cpu(x: Array) -> bool:
    return array_api_compat.is_torch_array(x) and x.device.type == "cpu"


def one_thread(weight: Array) -> AbstractContextManager[None]:
    """One thread for BLAS while NumPy, or torch on the CPU, works on many matrices.

    BLAS would start and join its threads for each of them: that gains little when the
    machine is idle, and when another process is busy costs a factor of thirty.
    """
    on_cpu = is_host(weight) or _is_torch_on_cpu(weight)
    return one_blas_thread() if on_cpu else nullcontext()


def with_one_thread(f: Callable[[Array], T], weight: Array) -> T:
    """Return f(weight), with one thread for BLAS, and for torch if it does the work."""
    with one_thread(weight):
        if _is_torch_on_cpu(weight):
            return in_our_thread(partial(f, weight))
        return f(weight)


def call_on_host(
    f: Callable[[Array], tuple[Any, ...]],
    weight: Array,
    *,
    arrays: int,
    scalars: tuple[int, ...] = (),
    has_gradient: bool = False,
) -> tuple[Any, ...]:
    """Call `f` on the plain numbers of `weight`, also in graphs and transformations.

    Parameters
    ----------
    f : function
        From an array of numbers to a tuple: `arrays` arrays shaped and typed like it,
        and then real numbers.
    scalars : tuple of {ROUND_DOWN, ROUND_NEAREST, ROUND_UP}
        How each of these numbers is rounded where there is no double precision, in JAX
        or on the device.
    has_gradient : bool
        Whether the first array is the gradient of the last number, which then has this
        derivative. All else is a constant to automatic differentiation.
    """
    found = _call_on_host(f, weight, arrays, scalars, has_gradient)
    if has_gradient and not (
        is_host(weight) or array_api_compat.is_torch_array(weight)
    ):
        return *found[:-1], _with_gradient(found[-1], found[0], weight)
    return found


def _call_on_host(
    f: Callable[[Array], tuple[Any, ...]],
    weight: Array,
    arrays: int,
    scalars: tuple[int, ...],
    has_gradient: bool,
) -> tuple[Any, ...]:
    if is_transformed(weight) or (
        has_gradient and array_api_compat.is_torch_array(weight)
    ):
        from .torch_function import HostFunction

        def plainly(plain: Array) -> tuple[Any, ...]:
            return _call_on_host(f, plain, arrays, scalars, False)

        return HostFunction.apply(weight, plainly, has_gradient)
    if not (array_api_compat.is_jax_array(weight) or is_traced(weight)):
        found = with_one_thread(f, detach_to_numpy(weight))
        back = [asarray_like(weight, x) for x in found[:arrays]]
        numbers = zip(found[arrays:], scalars, strict=True)
        return *back, *(scalar_like(weight, x, way) for x, way in numbers)
    real = np.dtype(np.float64)
    if array_api_compat.is_jax_array(weight):
        real = sys.modules["jax"].dtypes.canonicalize_dtype(real)

    def on_host(values: Any) -> tuple[np.ndarray, ...]:
        plain = np.asarray(values)
        if not np.all(np.isfinite(plain)):  # under `jit` no error can be raised
            nothing, nan = np.full_like(plain, np.nan), np.asarray(np.nan, real)
            return *[nothing] * arrays, *[nan] * len(scalars)
        found = with_one_thread(f, plain)
        rounded = [_rounded(x, real, way) for x, way in zip(found[arrays:], scalars)]
        return *found[:arrays], *rounded

    shapes = [tuple(weight.shape)] * arrays + [()] * len(scalars)
    dtypes = [weight.dtype] * arrays + [real] * len(scalars)
    if is_tensorflow_array(weight):
        return namespace(weight).call_in_graph(on_host, weight, shapes, dtypes)
    import jax

    weight = jax.lax.stop_gradient(weight)
    if is_traced(weight):
        results = tuple(map(jax.ShapeDtypeStruct, shapes, dtypes))
        found = jax.pure_callback(on_host, results, weight, vmap_method="sequential")
    else:
        found = [jax.numpy.asarray(x) for x in on_host(weight)]
    return tuple(split_like(weight, x) for x in found)


def _rounded(value: float, dtype: np.dtype, way: int) -> np.ndarray:
    """`value` in `dtype`, rounded as one of the constants above says."""
    near = np.asarray(value, dtype=dtype)
    if way * (float(near) - value) < 0:
        near = np.nextafter(near, np.asarray(way * np.inf, dtype=dtype))
    return near


def scalar_like(weight: Array, value: float, way: int = ROUND_NEAREST) -> Any:
    """A real number in double precision, in the library and device of `weight`.

    Rounded as by `_rounded` where the device has single precision only.
    """
    if array_api_compat.is_numpy_array(weight):
        return np.float64(value)
    xp, dtype = namespace(weight), "float64"
    if not has_double(weight):
        dtype = "float32"
        value = float(_rounded(value, np.dtype(dtype), way))
    return xp.asarray(value, dtype=getattr(xp, dtype), device=device_of(weight))


def scalars_like(weight: Array, *values: float) -> list[Any]:
    """Several of these, where `weight` is NumPy's, or torch's on the CPU."""
    found = np.array(values)
    if type(weight) is np.ndarray:
        return list(found)
    return list(sys.modules["torch"].from_numpy(found))


def is_differentiated(weight: Array) -> bool:
    """Whether anyone may ask for a derivative by `weight`."""
    if is_tensorflow_array(weight):
        return is_traced(weight) or namespace(weight).is_recorded()
    needs_gradient = getattr(weight, "requires_grad", False)
    return needs_gradient or is_traced(weight) or is_transformed(weight)


def _with_gradient(value: Any, gradient: Array, weight: Array) -> Any:
    """`value` with a derivative of Re <gradient, d weight>."""
    xp = namespace(weight)
    zero = weight - stop_gradient(weight)  # which has a derivative
    change = conj(gradient) * zero
    change = xp.real(change) if is_complex(change) else change
    return value + xp.sum(xp.astype(change, value.dtype))
