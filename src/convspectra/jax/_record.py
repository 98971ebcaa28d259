"""Which kernels a Flax model uses, and which input sizes they see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import linen, nnx

from .._layer.geometry import Geometry
from ._modules import geometry_of, is_batch_norm, role_of
from ._paths import Path


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """A BatchNorm of a model."""

    path: Path  # of the module
    epsilon: float


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel of a model, at one geometry."""

    path: Path  # of the kernel in the tree of parameters
    role: str  # which says how the kernel lies in memory
    geometry: Geometry
    batch_norm: BatchNorm | None = None  # what the output goes into

    @property
    def name(self) -> str:
        return "/".join(self.path)


class Recorder:
    """The uses of a model's kernels, and the reasons why other kernels have none."""

    def __init__(self, kernels: Mapping[Path, Any], *, batch_norms: bool) -> None:
        self.skipped: dict[str, str] = {}
        self._batch_norms = batch_norms
        self._kernels = kernels
        self._uses: list[Use] = []
        # The places of uses by the outputs that they make, which are kept: their
        # ids must not be given to others.
        self._makers: dict[int, tuple[Any, int]] = {}

    @property
    def uses(self) -> tuple[Use, ...]:
        """In the order of execution; what is used at one size several times, once."""
        return tuple(dict.fromkeys(self._uses))

    def call(self, module: Any, path: Path, x: Any, call: Callable[[], Any]) -> Any:
        """Call a module on `x`, and note what it does there."""
        if self._batch_norms and is_batch_norm(module):
            _, place = self._makers.get(id(x), (None, None))
            if place is not None and module.axis in (-1, x.ndim - 1):
                norm = BatchNorm(path, module.epsilon)
                self._uses[place] = replace(self._uses[place], batch_norm=norm)
        output = call()
        if role_of(module) and self._note(module, (*path, "kernel"), x):
            self._makers[id(output)] = output, len(self._uses) - 1
        return output

    def _note(self, module: Any, path: Path, x: Any) -> bool:
        kernel, role = self._kernels.get(path), role_of(module)
        try:
            if kernel is None:
                raise ValueError("its kernel is not in `params`")
            _check_dtype(kernel.dtype)
            use = Use(path, role, geometry_of(module, role, x.shape, kernel.shape))
        except (ValueError, TypeError) as error:
            self.skipped["/".join(path)] = f"{error}".rstrip(".")
            return False
        self._uses.append(use)
        return True


def follow_linen(model: Any, example: Any, recorder: Recorder) -> None:
    """Note the calls of modules while a linen model is initialized, by shapes only."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        first = _first(args, kwargs)
        module = context.module
        return recorder.call(module, module.path, first, lambda: call(*args, **kwargs))

    def call(key: Any, *args: Any) -> None:
        model.init({"params": key, "dropout": key}, *args)

    with linen.intercept_methods(intercept):
        _trace(call, jax.random.key(0), example)


def follow_nnx(model: Any, example: Any, recorder: Recorder) -> None:
    """Note the calls of modules of a copy of an nnx model, by shapes only."""
    graph, state = nnx.split(model)

    def call(state: Any, *args: Any) -> None:
        copy = nnx.merge(graph, state)
        for path, module in list(nnx.iter_modules(copy)):
            if role_of(module) or is_batch_norm(module):
                _watch(module, tuple(map(str, path)), recorder)
        copy(*args)

    _trace(call, state, example)


def _watch(module: Any, path: Path, recorder: Recorder) -> None:
    """Make a module note its calls, by a class of its own."""
    kind = type(module)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = _first(args, kwargs)
        return recorder.call(
            self, path, first, lambda: kind.__call__(self, *args, **kwargs)
        )

    module.__class__ = type(
        kind.__name__, (kind,), {"__call__": watched, "__module__": kind.__module__}
    )


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The input of a module, which may be passed by its name."""
    return args[0] if args else next(iter(kwargs.values()), None)


def _trace(call: Callable[..., Any], state: Any, example: Any) -> None:
    """Trace call(state, *example) by shapes; what is no array is a constant."""
    args = example if isinstance(example, tuple) else (example,)
    arrays = {i: x for i, x in enumerate(args) if hasattr(x, "dtype")}

    def traced(state: Any, given: dict[int, Any]) -> None:
        call(state, *(given.get(i, x) for i, x in enumerate(args)))

    jax.eval_shape(traced, state, arrays)


def _check_dtype(dtype: Any) -> None:
    """Refuse what a quantized layer has for a kernel."""
    if not jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        raise TypeError(f"its numbers are {dtype}, which stand for others")
