"""The only file that knows which array libraries exist."""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias, TypeVar

import array_api_compat
import array_api_compat.numpy
import numpy as np

from .._base import cached
from .threads import in_our_thread, one_blas_thread

T = TypeVar("T")
Array: TypeAlias = Any  # no static type spans NumPy, torch and JAX

_SPACING = {  # of the numbers next to 1, by dtype
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
LITTLE = 2**17  # products, which take no longer than it takes to go to a thread
_DOUBLE = ("float64", "complex128")
_HALF = ("float16", "bfloat16")
_LIBRARIES = {  # which the tests have tried, and what tells their arrays
    "NumPy": array_api_compat.is_numpy_array,
    "torch": array_api_compat.is_torch_array,
    "JAX": array_api_compat.is_jax_array,
}


def namespace(x: Array) -> Any:
    """The array library of `x`, by the names of the array API standard."""
    if type(x) is np.ndarray:  # by far the most frequent question
        return array_api_compat.numpy
    return array_api_compat.array_namespace(x)


def check_weight(weight: Array) -> None:
    """Refuse what is not an array of finite floating-point numbers."""
    if not _is_of_known_library(weight):
        *most, last = _LIBRARIES
        raise TypeError(
            f"`weight` must be a {', '.join(most)} or {last} array, got "
            f"{_full_name(type(weight))}. Convert it first, for example by "
            "`np.asarray`."
        )
    if dtype_name(weight) not in _SPACING:
        raise TypeError(
            "`weight` must be floating point (half, single or double, real or "
            f"complex), got {dtype_name(weight)}. Scale integers and quantized weights "
            "to what they stand for first."
        )
    if getattr(array_api_compat.device(weight), "type", None) == "meta":
        raise ValueError(
            "`weight` must hold numbers, got a tensor on the meta device. Materialize "
            "the model first."
        )
    if not is_traced(weight):
        xp = namespace(weight)
        if not bool(xp.all(xp.isfinite(weight))):
            raise ValueError("`weight` must be finite, got NaN or infinity in it.")


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
    return dtype.name  # which NumPy puts together anew each time


def spacing(x: Array) -> float:
    """The distance of 1 from the next number in the dtype of `x`."""
    return _SPACING[dtype_name(x)]


def is_complex(x: Array) -> bool:
    return dtype_name(x).startswith("complex")


def is_host(x: Array) -> bool:
    """Whether `x` is an array of NumPy's own."""
    return array_api_compat.is_numpy_array(x)


def is_traced(x: Array) -> bool:
    """Whether `x` is a JAX tracer, whose numbers nobody can look at."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


def astype(x: Array, name: str) -> Array:
    xp = namespace(x)
    return xp.astype(x, getattr(xp, name))


def widen(x: Array) -> Array:
    """Half precision as single; all else as it is."""
    return astype(x, "float32") if dtype_name(x) in _HALF else x


def to_complex(x: Array) -> Array:
    """Double precision as complex128, all else as complex64."""
    return astype(x, "complex128" if dtype_name(x) in _DOUBLE else "complex64")


def to_double(x: Array) -> Array:
    return astype(x, "complex128" if is_complex(x) else "float64")


def normalized(x: Array) -> tuple[Array, float]:
    """`x` in double precision over a power of two, its largest entry next to 1.

    Squares of what follows from it neither overflow nor vanish.
    """
    xp = namespace(x)
    parts = (xp.real(x), xp.imag(x)) if is_complex(x) else (x,)
    largest = max(float(xp.max(part)) for part in parts)
    largest = max(largest, *(-float(xp.min(part)) for part in parts)) or 1.0
    scale = 2.0 ** min(max(round(math.log2(largest)), -1000), 1000)
    return to_double(x) * (1 / scale), scale


def length(x: Array) -> float:
    """The root of the sum of all squares."""
    xp = namespace(x)
    flat = xp.reshape(x, (-1,))
    return math.sqrt(complex(xp.vecdot(flat, flat)).real)


def like(x: Array, values: np.ndarray) -> Array:
    """Floating-point `values` in the library, dtype and device of `x`."""
    if is_host(x):
        return np.asarray(values, dtype=x.dtype)
    device = array_api_compat.device(x)
    return namespace(x).asarray(values, dtype=x.dtype, device=device)


def indices_like(x: Array, indices: np.ndarray) -> Array:
    """Integer `indices` in the library and on the device of `x`."""
    device = array_api_compat.device(x)
    return namespace(x).asarray(indices.astype(np.int32), device=device)


def to_numpy(x: Array) -> np.ndarray:
    return np.asarray(x.detach().cpu() if array_api_compat.is_torch_array(x) else x)


def adjoint(x: Array) -> Array:
    """The conjugate transpose over the last two axes."""
    return conj(namespace(x).matrix_transpose(x))


def conj(x: Array) -> Array:
    return namespace(x).conj(x) if is_complex(x) else x


def svdvals(x: Array) -> Array:
    """The singular values of the matrices in the last two axes, descending."""
    xp = namespace(x)
    if min(x.shape[-2:]) > 1:
        return xp.linalg.svdvals(x)
    largest = xp.max(xp.abs(constant(x)), axis=(-2, -1), keepdims=True)
    # Over its largest entry, so that squares neither overflow nor vanish.
    largest = xp.clip(largest, min=float(xp.finfo(largest.dtype).smallest_normal))
    x = x / largest
    parts = (xp.real(x), xp.imag(x)) if is_complex(x) else (x,)
    square = sum(xp.sum(part * part, axis=(-2, -1)) for part in parts)
    # The root has no derivative at 0: keep the 0 away from it, in both directions.
    zero = square == 0
    root = xp.sqrt(xp.where(zero, xp.ones_like(square), square))
    root = xp.where(zero, xp.zeros_like(root), root)
    return (root * largest[..., 0, 0])[..., None]


def constant(x: Array) -> Array:
    """`x` cut off from automatic differentiation."""
    if is_traced(x):
        import jax

        return jax.lax.stop_gradient(x)
    return x.detach() if array_api_compat.is_torch_array(x) else x


def are_definite(matrices: Array) -> np.ndarray:
    """Whether each Hermitian matrix (batch, n, n) has a Cholesky factor."""
    xp = namespace(matrices)
    if matrices.shape[-1] == 1:
        return np.real(to_numpy(matrices))[:, 0, 0] > 0
    torch = _faster_torch(matrices)
    if torch is not None:
        found = with_one_thread(torch.linalg.cholesky_ex, torch.asarray(matrices))
        return to_numpy(found.info == 0) & _are_factors(torch, found.L)
    if matrices.shape[-1] < 64 and _have_factors(xp, matrices):
        return np.ones(matrices.shape[0], dtype=bool)
    # NumPy does not say which one of a batch failed.
    each = (matrices[i, ...] for i in range(matrices.shape[0]))
    return np.array([_have_factors(xp, matrix) for matrix in each], dtype=bool)


def _have_factors(xp: Any, matrices: Array) -> bool:
    try:
        factors = xp.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return bool(_are_factors(xp, factors).all())


def _are_factors(xp: Any, factors: Array) -> np.ndarray:
    """Whether factors are the end of a factorization that has not broken down.

    A library may mark one that has by NaN alone. Its pivots, the squares of the
    diagonal, decide: all other entries have gone into them.
    """
    diagonal = np.real(to_numpy(xp.linalg.diagonal(factors)))
    return np.asarray(((diagonal > 0) & np.isfinite(diagonal)).all(axis=-1))


def eigh(x: Array) -> tuple[Array, Array]:
    """The ascending eigenvalues and the eigenvectors of Hermitian matrices."""
    torch = _faster_torch(x) if is_host(x) else None
    if torch is None:
        values, vectors = namespace(x).linalg.eigh(x)
        return values, vectors
    values, vectors = with_one_thread(torch.linalg.eigh, torch.asarray(x))
    return values.numpy(), vectors.numpy()


def _faster_torch(x: Array) -> Any:
    """Torch, if `x` is a tensor, or if its LAPACK is at hand and the faster one.

    For little work it is not: NumPy is done before another thread has begun.
    """
    torch = sys.modules.get("torch")
    if torch is None or array_api_compat.is_torch_array(x):
        return torch
    if not is_host(x) or x.size * x.shape[-1] < LITTLE:
        return None
    if not torch.backends.mkl.is_available():
        return None
    return torch


def numbers(weight: Array) -> Array:
    """`weight` cut off from automatic differentiation, as NumPy's if on the CPU.

    What follows decides by looking at numbers: JAX would compile every new shape.
    """
    if array_api_compat.is_jax_array(weight):
        return np.asarray(weight)
    weight = constant(weight)
    if _is_torch_on_cpu(weight) and dtype_name(weight) not in _HALF:
        return weight.resolve_conj().resolve_neg().numpy()
    return weight


def on_host(weight: Array) -> np.ndarray | None:
    """`weight` as NumPy's, if it is on the CPU and nobody asks for derivatives."""
    if is_differentiated(weight):
        return None
    if array_api_compat.is_jax_array(weight):
        platforms = {device.platform for device in weight.devices()}
        return np.asarray(weight) if platforms == {"cpu"} else None
    plain = numbers(weight)
    return plain if is_host(plain) else None


def from_host(weight: Array, found: np.ndarray) -> Array:
    """An array of NumPy's in the library and on the device of `weight`."""
    return namespace(weight).asarray(found, device=array_api_compat.device(weight))


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


def looking_at_numbers(
    f: Callable[[Array], tuple[Any, ...]],
    weight: Array,
    *,
    arrays: int,
    scalars: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """Call `f` on the plain numbers of `weight`, also under JAX's transformations.

    Parameters
    ----------
    f : function
        From an array of numbers to a tuple: `arrays` arrays shaped and typed like it,
        and then real numbers.
    scalars : tuple of {-1, 0, 1}
        Where JAX has no double precision, each of these numbers is rounded down, to
        the nearest, or up.
    """
    if not array_api_compat.is_jax_array(weight):
        found = with_one_thread(f, numbers(weight))
        back = [like(weight, x) for x in found[:arrays]]
        return *back, *(scalar_like(weight, x) for x in found[arrays:])
    import jax

    weight = jax.lax.stop_gradient(weight)
    real = jax.dtypes.canonicalize_dtype(np.float64)

    def on_host(values: Any) -> tuple[np.ndarray, ...]:
        plain = np.asarray(values)
        if not np.all(np.isfinite(plain)):  # too late for an error message
            nothing, nan = np.full_like(plain, np.nan), np.asarray(np.nan, real)
            return *[nothing] * arrays, *[nan] * len(scalars)
        found = with_one_thread(f, plain)
        rounded = [_rounded(x, real, way) for x, way in zip(found[arrays:], scalars)]
        return *found[:arrays], *rounded

    if not is_traced(weight):
        return tuple(jax.numpy.asarray(x) for x in on_host(weight))
    shapes = [jax.ShapeDtypeStruct(weight.shape, weight.dtype)] * arrays
    shapes += [jax.ShapeDtypeStruct((), real)] * len(scalars)
    found = jax.pure_callback(on_host, tuple(shapes), weight, vmap_method="sequential")
    return tuple(found)


def _rounded(value: float, dtype: np.dtype, way: int) -> np.ndarray:
    """`value` in `dtype`, not above it for way -1 and not below it for way 1."""
    near = np.asarray(value, dtype=dtype)
    if way * (float(near) - value) < 0:
        near = np.nextafter(near, np.asarray(way * np.inf, dtype=dtype))
    return near


def scalar_like(weight: Array, value: float) -> Any:
    """A real number in double precision, in the library and device of `weight`."""
    if array_api_compat.is_numpy_array(weight):
        return np.float64(value)
    xp, device = namespace(weight), array_api_compat.device(weight)
    return xp.asarray(value, dtype=xp.float64, device=device)


def is_differentiated(weight: Array) -> bool:
    """Whether anyone may ask for a derivative by `weight`."""
    return is_traced(weight) or getattr(weight, "requires_grad", False)


def with_gradient(value: Any, gradient: Array, weight: Array) -> Any:
    """`value` with a derivative of Re <gradient, d weight>."""
    xp = namespace(weight)
    change = conj(gradient) * (weight - constant(weight))  # 0, but for its derivative
    change = xp.real(change) if is_complex(change) else change
    return value + xp.sum(xp.astype(change, value.dtype))
