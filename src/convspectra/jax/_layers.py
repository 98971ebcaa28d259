"""The layers of a Flax model, each with its actual geometry."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen, nnx

from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._text import cell
from .._training import FoundLayers
from ._modules import geometry_of, role_of, to_layer
from ._paths import Path, leaves_by_path

Note = Callable[[Any, Path, Any], None]


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel of a model, at one geometry."""

    path: Path  # of the kernel in the tree of parameters
    role: str  # which says how the kernel lies in memory
    geometry: Geometry

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclass(frozen=True, slots=True, eq=False)
class Layers(FoundLayers[Use]):
    """The layers of a model, as a sequence; see `layers`.

    Attributes
    ----------
    found : tuple of Layer
    skipped : dict of str to str
        The names of other kernels, and why they are left out.
    """


def layers(model: Any, example: Any, params: Any = None) -> Layers:
    """Every convolution and dense layer of a Flax model, with its actual input size.

    The model is traced by `jax.eval_shape`: nothing is computed, and the model is left
    unchanged.

    Parameters
    ----------
    model : flax.nnx.Module or flax.linen.Module
    example : array, jax.ShapeDtypeStruct, or tuple
        An input of the model, or all of its arguments. Only the shapes and dtypes of
        arrays matter.
    params : pytree, optional
        The parameters of a linen model. An nnx model has its own.

    Returns
    -------
    Layers
        In the order of execution, named by their path in the parameters:
        "block/conv/kernel". A layer that is used with several input sizes appears once
        for each, as "name@32x32"; a dense layer is a kernel with one tap. Weights are
        JAX arrays in the layout of `Layer`.
    """
    if isinstance(model, nnx.Module):
        if params is not None:
            raise TypeError(
                "`params` must be None for an nnx model, which has its own."
            )
        params, run = nnx.state(model, nnx.Param), _follow_nnx
    elif isinstance(model, linen.Module):
        if params is None:
            raise TypeError(
                "`params` must be the parameters of a linen model, got None. Pass "
                '`model.init(key, example)["params"]`, or the trained ones.'
            )
        run = _follow_linen
    else:
        raise TypeError(
            "`model` must be a module of flax.nnx or flax.linen, got "
            f"{type(model).__name__}."
        )
    kernels = leaves_by_path(params)
    uses: list[Use] = []
    skipped: dict[str, str] = {}

    def note(module: Any, path: Path, x: Any) -> None:
        kernel, role = kernels.get(path), role_of(module)
        try:
            if kernel is None:
                raise ValueError("its kernel is not in `params`")
            _check_dtype(kernel.dtype)
            use = Use(path, role, geometry_of(module, role, x.shape, kernel.shape))
        except (ValueError, TypeError) as error:
            skipped["/".join(path)] = f"{error}".rstrip(".")
            return
        if use not in uses:
            uses.append(use)

    run(model, example, note)
    known = {use.path for use in uses}
    for path, leaf in kernels.items():
        if path[-1] == "kernel" and leaf.ndim > 1 and path not in known:
            why = "no convolution or dense layer of Flax was called with it"
            skipped.setdefault("/".join(path), why)
    several = Counter(use.path for use in uses)
    found = tuple(_layer(use, kernels[use.path], several[use.path] > 1) for use in uses)
    return Layers(found, skipped, tuple(uses))


def _layer(use: Use, kernel: jax.Array, several: bool) -> Layer:
    name = f"{use.name}@{cell(use.geometry.grid)}" if several else use.name
    try:
        return Layer(name, to_layer(use.role, kernel), use.geometry)
    except (ValueError, TypeError) as error:
        raise type(error)(f"Layer {name!r}: {error}") from None


def _check_dtype(dtype: Any) -> None:
    """Refuse what a quantized layer has for a kernel."""
    if not jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        raise TypeError(f"its numbers are {dtype}, which stand for others")


def _trace(call: Callable[..., Any], state: Any, example: Any) -> None:
    """Trace call(state, *example) by shapes; what is no array is a constant."""
    args = example if isinstance(example, tuple) else (example,)
    arrays = {i: x for i, x in enumerate(args) if hasattr(x, "dtype")}

    def traced(state: Any, given: dict[int, Any]) -> None:
        call(state, *(given.get(i, x) for i, x in enumerate(args)))

    jax.eval_shape(traced, state, arrays)


def _follow_linen(model: Any, example: Any, note: Note) -> None:
    """Note the calls of modules while a linen model is initialized, by shapes only."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if context.method_name == "__call__" and role_of(module):
            first = args[0] if args else kwargs["inputs"]
            note(module, (*module.path, "kernel"), first)
        return call(*args, **kwargs)

    def call(key: Any, *args: Any) -> None:
        model.init({"params": key, "dropout": key}, *args)

    with linen.intercept_methods(intercept):
        _trace(call, jax.random.key(0), example)


def _follow_nnx(model: Any, example: Any, note: Note) -> None:
    """Note the calls of modules of a copy of an nnx model, by shapes only."""
    graph, state = nnx.split(model)

    def call(state: Any, *args: Any) -> None:
        copy = nnx.merge(graph, state)
        for path, module in list(nnx.iter_modules(copy)):
            if role_of(module):
                _watch(module, (*map(str, path), "kernel"), note)
        copy(*args)

    _trace(call, state, example)


def _watch(module: Any, path: Path, note: Note) -> None:
    """Make a module note its calls, by a class of its own."""
    kind = type(module)

    def watched(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        note(self, path, inputs)
        return kind.__call__(self, inputs, *args, **kwargs)

    module.__class__ = type(
        kind.__name__, (kind,), {"__call__": watched, "__module__": kind.__module__}
    )
